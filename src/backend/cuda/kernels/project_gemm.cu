/* project_gemm.cu - PROJECT for five rows and more, on int8 tensor cores.
 *
 *   out[row][n] = epilogue(factor[row] * sum over k of w[n][k] * a[row][k])
 *
 * Grid: (one thread block an SM, row blocks). A warp multiplies an M16 tile of weights (A of mma)
 * with N8 n8 tiles of activations (B): see project_gemm_kblock.cuh. How tasks are divided, and what
 * stream-K is here, is said in ops/project_gemm.h. The activations were quantized by
 * project_gemm_quantize, or by project_gemm_finish of the op before (end of this file).
 *
 * Pipeline: a warp, or two that share a tile, has p.stages stages of shared memory; a stage is one
 * K block of an M16 tile, a bulk copy a tile, and has an mbarrier. The warp that is done with a
 * stage (the last of two) refills it: there are no producer warps and no `empty` mbarriers, and
 * from its first task to its last a warp never waits for another thread block. The first stage is
 * filled before griddepcontrol.wait. The last warp copies the K slabs, each with an mbarrier of its
 * own, and computes the norm's factors.
 *
 * Order of sums, that of the gemv kernels, so a row's bits are too: spans of a K block one by one,
 * K blocks of a split from 0 on, splits from 0 on, then factor, bias, epilogue.
 *
 * Reads a row block's weights once, and K (1 + 1 / 32 + 1 / 8) bytes a row in every thread
 * block (stream-K: its K slabs only), from L2. Stream-K writes and reads 512 bytes for every M16
 * tile, K block and n8 tile.
 *
 * Where the tiles of a thread block are one more than a multiple of the four schedulers, the last
 * one has a warp for every n8 tile (tail_warps; ffn in of qwen35-4b, 32 rows: 20.3 to 18.3 us).
 *
 * H200, qwen35-4b Q4_K_M, ffn in with 16 rows: 17 us; the gemv kernels for 8 rows 37. */
#include "backend/cuda/kernels/project_gemm_kblock.cuh"

/* ---- tasks -------------------------------------------------------------------------------- */

struct gemm_task {
    uint32_t segment, m16_tile;   /* of the segment */
    uint32_t kblock, end;         /* K blocks [kblock, end) */
    uint32_t partial, n_partials; /* which of the M16 tile's partial sums it makes */
    uint32_t local_tile;          /* by tiles: the M16 tile's number in the thread block, */
    uint32_t first_partial;       /* and that of its first partial sum */
};

/* Task t of the thread block; false: there is none. */
static __device__ __forceinline__ bool find_gemm_task(const struct gemm_params &gemm, uint32_t t,
                                                      struct gemm_task &out) {
    const struct project_params &p = gemm.p;
    if (gemm.is_stream_k) {
        t += p.bounds[blockIdx.x];
        uint32_t kblock = __umulhi(t, gemm.m16_fastdiv);
        out = {0, t - kblock * gemm.n_m16_tiles, kblock, kblock + 1, kblock, gemm.kblocks, 0, 0};
        return t < p.bounds[blockIdx.x + 1];
    }
    struct task found;
    if (!find_task(p, t, found))
        return false;
    const struct project_segment &s = p.segments[found.segment];
    uint32_t m16_tile = found.tile, split = found.split, kblock = task_first_kblock(s, split);
    out = {found.segment,
           m16_tile,
           kblock,
           kblock + task_kblocks(s, split),
           split,
           s.splits,
           s.first_tile + m16_tile - p.bounds[blockIdx.x],
           t - split};
    return true;
}

/* K slabs that the thread block needs: with stream-K those of its tasks (K blocks are slabs then),
 * else all; none without tasks. Each of them is waited for by some warp. */
struct slab_range {
    uint32_t first, n;
};

static __device__ __forceinline__ struct slab_range find_slabs(const struct gemm_params &gemm) {
    uint32_t begin = gemm.p.bounds[blockIdx.x], end = gemm.p.bounds[blockIdx.x + 1];
    if (!gemm.is_stream_k)
        return {0, end > begin ? gemm.qacts.n_slabs : 0};
    uint32_t first = __umulhi(begin, gemm.m16_fastdiv),
             last = end > begin ? __umulhi(end - 1, gemm.m16_fastdiv) + 1 : first;
    return {first, last - first};
}

/* ---- mbarriers: of all pipelines' stages, of the squares, of the factors, of the slabs ---- */

static __device__ __forceinline__ uint32_t stage_mbar(const struct gemm_params &gemm,
                                                      uint32_t pipeline, uint32_t stage) {
    extern __shared__ uint4 shared[];
    return smem_addr(shared) + gemm.p.mbars_at + (pipeline * gemm.p.stages + stage) * 8;
}

static __device__ __forceinline__ uint32_t squares_mbar(const struct gemm_params &gemm) {
    return stage_mbar(gemm, gemm.p.task_warps, 0);
}

static __device__ __forceinline__ uint32_t factors_mbar(const struct gemm_params &gemm) {
    return squares_mbar(gemm) + 8;
}

static __device__ __forceinline__ uint32_t slab_mbar(const struct gemm_params &gemm, uint32_t i) {
    return squares_mbar(gemm) + 16 + i * 8;
}

/* ---- pipeline ----------------------------------------------------------------------------- */

/* What a warp loads next. */
struct m16_loader {
    const uint8_t *at; /* K block of the tile that this lane copies, if it copies one */
    uint32_t left;     /* K blocks of the task */
    uint32_t task;     /* the next one; NO_TASK: there is none */
    uint32_t packed;   /* bytes of a K block; tiles of the M16 tile << 16 */
};

enum : uint32_t { NO_TASK = ~0u };

/* Lane l copies tile l of the M16 tile. SwiGLU: the first half of them is gate, the second up. */
static __device__ __forceinline__ void start_task(const struct gemm_params &gemm,
                                                  const struct gemm_task &t, struct m16_loader &l) {
    const struct project_segment &s = gemm.p.segments[t.segment];
    uint32_t lane = threadIdx.x % 32, tiles = GEMM_M >> s.row_shift, tile = lane;
    const uint8_t *data = s.data;
    uint32_t n_tiles = (s.n + (1u << s.row_shift) - 1) >> s.row_shift, advance = tiles;
    if (gemm.p.epilogue == EPILOGUE_SWIGLU) {
        advance = tiles / 2;
        data = lane >= advance ? gemm.p.segments[1].data : data;
        tile = lane >= advance ? lane - advance : lane;
    }
    tile = min(t.m16_tile * advance + tile, n_tiles - 1);
    l.packed = s.kblock_bytes | tiles << 16;
    l.left = t.end - t.kblock;
    l.at = data + ((uint64_t)tile * s.kblocks + t.kblock) * s.kblock_bytes;
}

/* Fills a stage with the next K block of the warp's tasks; false: there is none. Of two warps that
 * share a tile one copies (is_copying), the other only keeps its loader in step. */
static __device__ __forceinline__ bool load_stage(const struct gemm_params &gemm,
                                                  struct m16_loader &l, uint32_t stage,
                                                  uint32_t mbar, bool is_copying) {
    uint32_t lane = volatile_lane();
    if (l.left == 0 && l.task != NO_TASK) {
        struct gemm_task t;
        if (find_gemm_task(gemm, l.task, t)) {
            start_task(gemm, t, l);
            l.task += gemm.p.task_warps;
        } else {
            l.task = NO_TASK;
        }
    }
    if (l.left == 0)
        return false;
    uint32_t tiles = l.packed >> 16, bytes = l.packed & 0xffff;
    if (is_copying && lane == 0)
        mbarrier_expect_tx(mbar, tiles * bytes);
    if (is_copying && lane < tiles)
        cp_async_bulk(stage + lane * gemm.p.stage_bytes, l.at, bytes, mbar);
    l.at += bytes;
    l.left--;
    return true;
}

/* Whether all warps of a tile are done with a stage: the last of them refills it. */
static __device__ __forceinline__ bool is_stage_free(const struct gemm_params &gemm, uint32_t stage,
                                                     uint32_t warps) {
    extern __shared__ uint4 shared[];
    if (warps == 1)
        return true;
    uint32_t before = 0;
    if (volatile_lane() == 0)
        before = atomicAdd((uint32_t *)((uint8_t *)shared + gemm.releases_at) + stage, 1);
    return (__shfl_sync(~0u, before, 0) & (warps - 1)) == warps - 1;
}

/* ---- factors of the norm ------------------------------------------------------------------ */

static __device__ __forceinline__ float *norm_factors(const struct gemm_params &gemm) {
    extern __shared__ uint4 shared[];
    return (float *)((uint8_t *)shared + gemm.squares_at) +
           gemm.qacts.rows * gemm.qacts.squares_pitch;
}

/* By one warp, a lane a row: the sum of row_factor, in its order. */
static __device__ __forceinline__ void compute_norm_factors(const struct gemm_params &gemm) {
    extern __shared__ uint4 shared[];
    const struct project_input &in = gemm.p.in;
    uint32_t row = threadIdx.x % 32, n = in.k / PROJECT_GROUP;
    const float *squares =
        (const float *)((const uint8_t *)shared + gemm.squares_at) + row * gemm.qacts.squares_pitch;
    float sum[32];
    if (row < gemm.qacts.rows) {
#pragma unroll
        for (uint32_t i = 0; i < 32; i++)
            sum[i] = i < n ? squares[i] : 0;
#pragma unroll 1
        for (uint32_t first = 32; first < n; first += 32)
#pragma unroll
            for (uint32_t i = 0; i < 32; i++)
                sum[i] = first + i < n ? __fadd_rn(sum[i], squares[first + i]) : sum[i];
#pragma unroll
        for (int round = 0; round < 5; round++)
#pragma unroll
            for (int i = 0; i < 16; i++)
                if (i < 16 >> round)
                    sum[i] = __fadd_rn(sum[i], sum[i + (16 >> round)]);
        norm_factors(gemm)[row] = norm_factor(sum[0], in.k, in.eps);
    }
    __syncwarp();
    if (row == 0)
        mbarrier_arrive(factors_mbar(gemm));
}

/* Of `row` and the next; after wait_factors. */
static __device__ __forceinline__ float2 factor_pair(const struct gemm_params &gemm, uint32_t row) {
    return gemm.p.in.prologue == PROLOGUE_NORM ? *(const float2 *)(norm_factors(gemm) + row)
                                               : make_float2(1, 1);
}

static __device__ __forceinline__ void wait_factors(const struct gemm_params &gemm) {
    if (HAS_CP_ASYNC_BULK && gemm.p.in.prologue == PROLOGUE_NORM)
        bulk_wait(factors_mbar(gemm), 0);
}

/* ---- epilogue ----------------------------------------------------------------------------- */

/* Where a lane's C fragments go: weight rows g and g + 8, rows 2 j and 2 j + 1 of every n8 tile. */
struct c_place {
    float *out;      /* of weight row g, row 2 j of the first n8 tile */
    uint32_t stride; /* from row to row */
    uint32_t n;      /* weight row g, in the segment */
    uint32_t row;    /* row 2 j, in the row block */
};

/* first_row: the warp's, in the row block. */
static __device__ __forceinline__ struct c_place
find_c_place(const struct gemm_params &gemm, const struct gemm_task &t, uint32_t first_row) {
    const struct project_params &p = gemm.p;
    uint32_t lane = volatile_lane(), row = first_row + lane % 4 * 2;
    uint32_t tile_n = p.epilogue == EPILOGUE_SWIGLU ? GEMM_M / 2 : GEMM_M;
    uint32_t n = t.m16_tile * tile_n + lane / 4;
    return {p.out + (uint64_t)(blockIdx.y * gemm.qacts.rows + row) * p.out_stride +
                p.segments[t.segment].column + n,
            p.out_stride, n, row};
}

/* An M16 tile and rows all of which exist, without biases: no test for every value. */
template <int N8>
static __device__ __forceinline__ void store_full_tile(const struct gemm_params &gemm,
                                                       const struct c_place &at,
                                                       const float (&sum)[N8][4]) {
    uint32_t epilogue = gemm.p.epilogue;
    float residual[N8][4] = {};
    if (epilogue == EPILOGUE_ADD) {
#pragma unroll
        for (int i = 0; i < 4 * N8; i++)
            residual[i / 4][i % 4] =
                __ldcg(at.out + (uint64_t)at.stride * (i / 4 * 8 + i % 2) + i % 4 / 2 * 8);
    }
    wait_factors(gemm);
#pragma unroll
    for (int t = 0; t < N8; t++) {
        float2 f = factor_pair(gemm, at.row + t * 8);
        float *out = at.out + (uint64_t)at.stride * (t * 8), *next = out + at.stride;
        float v[4] = {__fmul_rn(sum[t][0], f.x), __fmul_rn(sum[t][1], f.y),
                      __fmul_rn(sum[t][2], f.x), __fmul_rn(sum[t][3], f.y)};
        if (epilogue == EPILOGUE_SWIGLU) {
            out[0] = swiglu(v[0], v[2]);
            next[0] = swiglu(v[1], v[3]);
            continue;
        }
        if (epilogue == EPILOGUE_ADD)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = __fadd_rn(residual[t][i], v[i]);
        out[0] = v[0];
        next[0] = v[1];
        out[8] = v[2];
        next[8] = v[3];
    }
}

/* tile_warp: which of the tile's warps this is; n_rows: of the step. */
template <int N8>
static __device__ __forceinline__ void store_tile(const struct gemm_params &gemm,
                                                  const struct gemm_task &t, uint32_t tile_warp,
                                                  uint32_t n_rows, const float (&sum)[N8][4]) {
    const struct project_params &p = gemm.p;
    const struct project_segment &s = p.segments[t.segment];
    struct c_place at = find_c_place(gemm, t, tile_warp * N8 * 8);
    bool is_swiglu = p.epilogue == EPILOGUE_SWIGLU, is_add = p.epilogue == EPILOGUE_ADD;
    uint32_t first_row = blockIdx.y * gemm.qacts.rows, tile_n = is_swiglu ? 8 : 16;
    uint32_t rows = n_rows > first_row ? n_rows - first_row : 0;
    if (rows >= (tile_warp + 1) * N8 * 8 && (t.m16_tile + 1) * tile_n <= s.n && !p.has_bias)
        return store_full_tile<N8>(gemm, at, sum);
    wait_factors(gemm);
#pragma unroll
    for (int i = 0; i < 4 * N8; i++) {
        uint32_t row = i / 4 * 8 + i % 2, n = i % 4 / 2 * 8;
        if (at.row + row >= rows || (is_swiglu && n) || at.n + n >= s.n)
            continue;
        float *out = at.out + (uint64_t)at.stride * row + n;
        float2 factors = factor_pair(gemm, at.row + i / 4 * 8);
        float f = i % 2 ? factors.y : factors.x, v = __fmul_rn(sum[i / 4][i % 4], f);
        if (p.has_bias)
            v = add_bias(s, at.n + n, v);
        if (is_add)
            v = __fadd_rn(__ldcg(out), v);
        if (is_swiglu) {
            float up = __fmul_rn(sum[i / 4][i % 4 ^ 2], f);
            v = swiglu(v, p.has_bias ? add_bias(p.segments[1], at.n, up) : up);
        }
        *out = v;
    }
}

/* ---- quantized activations ---------------------------------------------------------------- */

/* Row `row` of a row block: what quantize.cuh calls a QACT. Index i counts four columns. */
struct gemm_qact_row {
    struct gemm_qacts q;
    uint32_t row;
};

static __device__ __forceinline__ void *qact_word(const struct gemm_qact_row &to, uint32_t,
                                                  uint32_t i) {
    uint32_t shift = to.q.slab_shift, slab = i * 4 >> shift, columns = 1u << shift;
    return to.q.data + slab * to.q.slab_bytes + to.row * (columns + 16) + (i * 4 & (columns - 1));
}

static __device__ __forceinline__ float4 *qact_floats(const struct gemm_qact_row &,
                                                      const struct project_input &) {
    return NULL; /* there are none */
}

static __device__ __forceinline__ void qact_group(const struct gemm_qact_row &to, uint32_t,
                                                  uint32_t i, float scale, int sum) {
    uint32_t rows = to.q.rows, slab = i * 4 >> to.q.slab_shift;
    uint8_t *at = to.q.data + slab * to.q.slab_bytes;
    i -= slab << to.q.slab_shift >> 2;
    ((float *)(at + to.q.scales_at))[i / 32 * rows + to.row] = scale;
    ((__half2 *)(at + to.q.sums_at))[(i / 32 * rows + to.row) * 4 + i / 8 % 4] =
        __floats2half2_rn((float)(sum & ~1), (float)(sum & 1));
}

static __device__ __forceinline__ float *row_squares(const struct gemm_qacts &q, uint32_t row) {
    return (float *)(q.data + q.squares_at) + row * q.squares_pitch;
}

/* ---- partial sums ------------------------------------------------------------------------- */

/* Those of a task's M16 tile that this of its warps makes, and the counter of arrivals. */
template <int N8>
static __device__ __forceinline__ float4 *find_partials(const struct gemm_params &gemm,
                                                        const struct gemm_task &t,
                                                        uint32_t tile_warp, uint32_t *&arrivals) {
    extern __shared__ uint4 shared[];
    uint8_t *base = (uint8_t *)shared;
    if (gemm.is_stream_k) {
        uint32_t tile =
            (blockIdx.y * gemm.n_m16_tiles + t.m16_tile) * gemm.warps_per_tile + tile_warp;
        arrivals = gemm.arrivals + tile;
        return (float4 *)gemm.partials + (uint64_t)tile * gemm.kblocks * N8 * 32;
    }
    arrivals =
        (uint32_t *)(base + gemm.arrivals_at) + t.local_tile * gemm.warps_per_tile + tile_warp;
    return (float4 *)(base + gemm.p.partials_at) +
           (t.first_partial * gemm.warps_per_tile + tile_warp * t.n_partials) * N8 * 32;
}

/* Whether this warp is the last to arrive; it then sees all partial sums, and the counter is 0. */
static __device__ __forceinline__ bool
is_last_to_arrive(const struct gemm_params &gemm, const struct gemm_task &t, uint32_t *arrivals) {
    uint32_t before = 0;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        before =
            gemm.is_stream_k ? atomic_inc_acq_rel_gpu(arrivals) : atomic_inc_acq_rel_cta(arrivals);
        if (before == t.n_partials - 1)
            *arrivals = 0;
    }
    bool is_last = __shfl_sync(~0u, before, 0) == t.n_partials - 1;
    __syncwarp(); /* what lane 0 acquired holds for all lanes */
    return is_last;
}

/* Adds an M16 tile's partial sums: with stream-K the K blocks of each split, then splits. BATCH of
 * them are in flight at once: a read of global memory takes 700 cycles. */
template <int N8>
static __device__ __forceinline__ void
combine_partials(const struct gemm_params &gemm, const struct gemm_task &t, const float4 *partials,
                 float (&sum)[N8][4]) {
    constexpr int BATCH = N8 == 4 ? 2 : 8; /* as registers allow */
    const struct project_segment &s = gemm.p.segments[t.segment];
    float split_sum[N8][4];
    uint32_t left = 0, split = 0, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4 * N8; i++)
        sum[i / 4][i % 4] = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < t.n_partials; first += BATCH) {
        float4 v[BATCH][N8];
#pragma unroll
        for (uint32_t i = 0; i < BATCH * N8; i++) {
            const float4 *from =
                partials + (min(first + i / N8, t.n_partials - 1) * N8 + i % N8) * 32 + lane;
            v[i / N8][i % N8] = gemm.is_stream_k ? __ldcg(from) : *from;
        }
#pragma unroll
        for (uint32_t b = 0; b < BATCH; b++) {
            if (first + b >= t.n_partials)
                break;
            if (left == 0) {
                left = gemm.is_stream_k ? task_kblocks(s, split++) : 1;
#pragma unroll
                for (int i = 0; i < 4 * N8; i++)
                    split_sum[i / 4][i % 4] = 0;
            }
            left--;
#pragma unroll
            for (int n8 = 0; n8 < N8; n8++) {
                split_sum[n8][0] = __fadd_rn(split_sum[n8][0], v[b][n8].x);
                split_sum[n8][1] = __fadd_rn(split_sum[n8][1], v[b][n8].y);
                split_sum[n8][2] = __fadd_rn(split_sum[n8][2], v[b][n8].z);
                split_sum[n8][3] = __fadd_rn(split_sum[n8][3], v[b][n8].w);
            }
            if (left == 0)
#pragma unroll
                for (int i = 0; i < 4 * N8; i++)
                    sum[i / 4][i % 4] = __fadd_rn(sum[i / 4][i % 4], split_sum[i / 4][i % 4]);
        }
    }
}

template <int N8>
static __device__ __forceinline__ void finish_task(const struct gemm_params &gemm,
                                                   const struct gemm_task &t, uint32_t tile_warp,
                                                   uint32_t n_rows, float (&acc)[N8][4]) {
    if (t.n_partials > 1) {
        uint32_t *arrivals;
        float4 *partials = find_partials<N8>(gemm, t, tile_warp, arrivals);
        float4 *own = partials + t.partial * N8 * 32;
#pragma unroll
        for (int n8 = 0; n8 < N8; n8++)
            own[n8 * 32 + threadIdx.x % 32] =
                make_float4(acc[n8][0], acc[n8][1], acc[n8][2], acc[n8][3]);
        if (gemm.leaves_partials || !is_last_to_arrive(gemm, t, arrivals))
            return;
        combine_partials<N8>(gemm, t, partials, acc);
    }
    store_tile<N8>(gemm, t, tile_warp, n_rows, acc);
}

/* ---- all tasks of a warp ------------------------------------------------------------------ */

/* first_slab: the first one in shared memory. */
template <int SET, int N8>
static __device__ __forceinline__ void
run_gemm_tasks(const struct gemm_params &gemm, struct m16_loader &l, uint32_t pipeline,
               uint32_t tile_warp, uint32_t tile_warps, uint32_t first_slab, uint32_t n_rows) {
    extern __shared__ uint4 shared[];
    const struct project_params &p = gemm.p;
    uint32_t stage = 0, phase = 0, slabs_ready = 0;
#pragma unroll 1
    for (uint32_t i = pipeline;; i += p.task_warps) {
        struct gemm_task t;
        if (!find_gemm_task(gemm, i, t))
            return;
        uint32_t segment = t.segment, left = t.end - t.kblock,
                 row_shift = p.segments[segment].row_shift;
        uint32_t type = p.segments[segment].type, spans = 32u >> row_shift; /* of a K block */
        uint32_t slab_spans_shift = gemm.qacts.slab_shift - (type == IS_Q8_0 ? 6 : 7);
        uint32_t span = t.kblock * spans - (first_slab << slab_spans_shift);
        float acc[N8][4] = {};
#pragma unroll 1
        for (; left; left--, span += spans) {
            uint32_t base = smem_addr(shared), slab = span >> slab_spans_shift;
#pragma unroll 1
            for (; HAS_CP_ASYNC_BULK && slabs_ready <= slab; slabs_ready++)
                bulk_wait(slab_mbar(gemm, slabs_ready), 0);
            uint32_t at = (pipeline * p.stages + stage) * p.stage_bytes * gemm.tiles_per_m16;
            uint32_t mbar = stage_mbar(gemm, pipeline, stage);
            bulk_wait(mbar, phase);
            __syncwarp(); /* lanes may leave the wait apart; ldmatrix and mma need them together */
            mma_kblock_of_type<SET, N8>(type, view_stage(1u << row_shift, p.stage_bytes), at,
                                        base + at, view_slab(gemm, slab, tile_warp * N8 * 8),
                                        span - (slab << slab_spans_shift), acc);
            __syncwarp();
            load_stage(gemm, l, opaque(base + at), opaque(mbar),
                       is_stage_free(gemm, pipeline * p.stages + stage, tile_warps));
            stage = stage + 1 == p.stages ? 0 : stage + 1;
            phase ^= stage == 0;
        }
        struct gemm_task same; /* found again: keeping it costs spills (92 bytes with 32 rows) */
        find_gemm_task(gemm, opaque(i), same);
        finish_task<N8>(gemm, same, tile_warp, n_rows, acc);
    }
}

/* ---- F32 segments -----------------------------------------------------------------------------
 *
 * Alpha and beta: few rows of weights, f32 activations read where they are. Warps without M16 tiles
 * do them while the others run: an item is a tile for 4 rows of activations, items are dealt to all
 * thread blocks, and a warp has one split of K for one row. (16 and 32 rows of qwen35-4b: 5729 and
 * 8093 tok/s in blocks of the kernel before, 5941 and 8308 so.) */

/* A split of a tile for one row: the sums of dot_f32_global. BATCH K blocks are in flight at once.
 */
static __device__ __forceinline__ float dot_f32_split(const struct project_params &p,
                                                      const struct project_segment &s,
                                                      uint32_t tile, uint32_t split, uint32_t row) {
    constexpr int BATCH = 3;
    uint32_t lane = threadIdx.x % 32, lanes = 1u << s.lane_shift, place = lane & (lanes - 1);
    const uint8_t *at = s.data + (uint64_t)tile * s.kblocks * s.kblock_bytes + lane * 16;
    uint32_t kblock = task_first_kblock(s, split), end = kblock + task_kblocks(s, split);
    float acc[4] = {};
#pragma unroll 1
    for (; kblock < end; kblock += BATCH) {
        struct global_acts<1> a[BATCH];
        float4 w[BATCH][4];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            uint32_t k = min(kblock + b, end - 1);
            load_global_acts<1>(p, row, k * lanes + place, a[b]);
#pragma unroll
            for (uint32_t r = 0; r < 4; r++)
                w[b][r] = __ldcg((const float4 *)(at + (uint64_t)k * s.kblock_bytes + r * 512));
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            float4 x = apply_norm_weight(p, a[b].x[0], a[b].norm);
#pragma unroll
            for (uint32_t r = 0; r < 4; r++) {
                float next = dot_f32x4(w[b][r], x, acc[r]);
                acc[r] = kblock + b < end ? next : acc[r];
            }
        }
    }
    return reduce_f32_lanes(acc, lanes, lane);
}

struct f32_item {
    const struct project_segment *s;
    uint32_t tile, row; /* the first row, in the row block */
};

/* Item i of the thread block; rows: those of the row block that exist. False: there is none. */
static __device__ __forceinline__ bool find_f32_item(const struct gemm_params &gemm, uint32_t i,
                                                     uint32_t rows, struct f32_item &out) {
    uint32_t row_groups = (rows + GEMM_F32_ROWS - 1) / GEMM_F32_ROWS;
    i = blockIdx.x + i * gridDim.x;
    if (i >= gemm.f32_tiles * row_groups)
        return false;
    out.tile = i / row_groups;
    out.row = (i - out.tile * row_groups) * GEMM_F32_ROWS;
    out.s = gemm.f32_segments;
    while (out.tile >= out.s->n_tiles)
        out.tile -= out.s++->n_tiles;
    return true;
}

/* By `warps` warps, of which this is `warp`. Not inlined: it would take registers from the mma's
 * loop. */
static __device__ __noinline__ void run_f32_tiles(const struct gemm_params &gemm, uint32_t warp,
                                                  uint32_t warps, uint32_t n_rows) {
    extern __shared__ uint4 shared[];
    float *sums = (float *)((uint8_t *)shared + gemm.f32_sums_at); /* (item, split, row, n) */
    uint32_t lane = threadIdx.x % 32, first_row = blockIdx.y * gemm.qacts.rows;
    uint32_t rows = n_rows > first_row ? min(gemm.qacts.rows, n_rows - first_row) : 0;
    uint32_t item_tasks = gemm.f32_splits * GEMM_F32_ROWS, results = GEMM_F32_ROWS * GEMM_F32_TILE;
    struct f32_item item;
    for (uint32_t t = warp; find_f32_item(gemm, t / item_tasks, rows, item); t += warps) {
        uint32_t split = t % item_tasks / GEMM_F32_ROWS, r = t % GEMM_F32_ROWS;
        if (split >= item.s->splits || item.row + r >= rows)
            continue;
        float v = dot_f32_split(gemm.p, *item.s, item.tile, split, first_row + item.row + r);
        if (lane < GEMM_F32_TILE)
            sums[t * GEMM_F32_TILE + lane % 2 * 2 + lane / 2] = v;
    }
    named_barrier_sync(warps * 32);
    wait_factors(gemm);
    uint32_t e = warp * 32 + lane, r = e / GEMM_F32_TILE % GEMM_F32_ROWS, n = e % GEMM_F32_TILE;
    for (uint32_t i = e / results; find_f32_item(gemm, i, rows, item); i += warps * 32 / results) {
        uint32_t tile_n = item.tile * GEMM_F32_TILE + n;
        float v = 0;
        if (item.row + r >= rows || tile_n >= item.s->n)
            continue;
        for (uint32_t split = 0; split < item.s->splits; split++)
            v = __fadd_rn(
                v, sums[((i * gemm.f32_splits + split) * GEMM_F32_ROWS + r) * GEMM_F32_TILE + n]);
        store_result(gemm.p, *item.s, tile_n, first_row + item.row + r,
                     __fmul_rn(v, gemm.p.in.prologue == PROLOGUE_NORM
                                      ? norm_factors(gemm)[item.row + r]
                                      : 1));
    }
}

/* ---- the kernels -------------------------------------------------------------------------- */

/* By one warp: bulk copies of the thread block's slabs and of the squares. */
static __device__ __forceinline__ void load_qacts(const struct gemm_params &gemm,
                                                  const struct slab_range &slabs) {
    extern __shared__ uint4 shared[];
    const struct gemm_qacts &q = gemm.qacts;
    const uint8_t *from = q.data + (uint64_t)blockIdx.y * q.bytes;
    uint32_t base = smem_addr(shared), squares = q.bytes - q.squares_at;
    for (uint32_t i = threadIdx.x % 32; i < slabs.n; i += 32)
        bulk_load(base + gemm.p.qact_at + i * q.slab_bytes,
                  from + (uint64_t)(slabs.first + i) * q.slab_bytes, q.slab_bytes,
                  slab_mbar(gemm, i));
    if (squares && threadIdx.x % 32 == 0)
        bulk_load(base + gemm.squares_at, from + q.squares_at, squares, squares_mbar(gemm));
}

/* Warps: task_warps of each tile_warp, then those of F32 segments; the last one is also the one
 * that copies activations. */
template <int SET, int N8>
static __device__ __forceinline__ void project_gemm(const struct gemm_params &gemm) {
    extern __shared__ uint4 shared[];
    pdl_launch_dependents();
    const struct project_params &p = gemm.p;
    uint8_t *base = (uint8_t *)shared;
    uint32_t warp = warp_uniform(threadIdx.x / 32), warps = blockDim.x / 32;
    uint32_t tile_warp = warp / p.task_warps, pipeline = warp - tile_warp * p.task_warps;
    uint32_t tile_warps = gemm.warps_per_tile;
    bool is_tail = N8 > 1 && gemm.tail_warps && warp + 1 >= p.task_warps;
    if (is_tail) {
        pipeline = p.task_warps - 1;
        tile_warp = warp - pipeline;
        tile_warps = gemm.tail_warps;
    }
    bool is_filled = false, is_last = warp == warps - 1, has_tasks = tile_warp < tile_warps;
    uint32_t from = smem_addr(shared), stage_bytes = p.stage_bytes * gemm.tiles_per_m16;
    uint32_t stages = from + pipeline * p.stages * stage_bytes,
             mbars = stage_mbar(gemm, pipeline, 0);
    struct m16_loader l = {NULL, 0, pipeline, 0};
    if (tile_warp == 0)
        mbarrier_init_stages(mbars, p.stages);
    if (has_tasks)
        is_filled = load_stage(gemm, l, stages, mbars, tile_warp == 0);
    struct slab_range slabs = find_slabs(gemm);
    if (is_last)
        mbarrier_init_stages(squares_mbar(gemm), 2 + slabs.n);
    for (uint32_t i = threadIdx.x; i < (p.mbars_at - gemm.arrivals_at) / 4; i += blockDim.x)
        ((uint32_t *)(base + gemm.arrivals_at))[i] = 0;
    uint32_t first_row = blockIdx.y * gemm.qacts.rows;
    __syncthreads();
    pdl_wait(p.io);
    if (blockIdx.y && first_row >= count_rows(p.io, p.in)) {
        if (is_filled) /* a bulk copy must not outlive its thread block */
            bulk_wait(mbars, 0);
        return;
    }
    if (is_last)
        load_qacts(gemm, slabs);
    /* Further stages only now: activations would queue after their copies. */
    if (has_tasks)
        for (uint32_t i = 1; i < p.stages; i++)
            load_stage(gemm, l, stages + i * stage_bytes, mbars + i * 8, tile_warp == 0);
    uint32_t n_rows = count_rows(p.io, p.in);
    if (is_last && (!HAS_CP_ASYNC_BULK || p.in.prologue == PROLOGUE_NORM))
        bulk_wait(squares_mbar(gemm), 0);
    if (is_last && p.in.prologue == PROLOGUE_NORM)
        compute_norm_factors(gemm);
    if (!HAS_CP_ASYNC_BULK) /* no mbarriers: this warp's own cp.async have filled the slabs */
        __syncthreads();
    if (is_tail && has_tasks)
        run_gemm_tasks<SET, 1>(gemm, l, pipeline, tile_warp, tile_warps, slabs.first, n_rows);
    else if (has_tasks)
        run_gemm_tasks<SET, N8>(gemm, l, pipeline, tile_warp, gemm.warps_per_tile, slabs.first,
                                n_rows);
    else if (gemm.f32_tiles)
        run_f32_tiles(gemm, warp - p.task_warps * gemm.warps_per_tile,
                      warps - p.task_warps * gemm.warps_per_tile, n_rows);
}

/* project_gemm_<rows of a warp>_<types>. Sets of one type over q4_q6 for all, qwen35-4b, H200: 32
 * sequences 3.4 % faster, 16 none; over `all` 2.6 and 1.4 %. Below 9.0 there is only q4_q6. */
#define GEMM_KERNEL(ROWS, REGISTERS, NAME, SET)                                                    \
    extern "C" __global__ void __maxnreg__(REGISTERS)                                              \
        project_gemm_##ROWS##_##NAME(const __grid_constant__ struct gemm_params gemm) {            \
        project_gemm<SET, ROWS / 8>(gemm);                                                         \
    }

#if __CUDA_ARCH__ >= 900
#define GEMM_SINGLES(...)                                                                          \
    GEMM_KERNEL(__VA_ARGS__, q4, IS_Q4_K)                                                          \
    GEMM_KERNEL(__VA_ARGS__, q6, IS_Q6_K)
#else
#define GEMM_SINGLES(...)
#endif

#define GEMM_KERNELS(...)                                                                          \
    GEMM_SINGLES(__VA_ARGS__)                                                                      \
    GEMM_KERNEL(__VA_ARGS__, q4_q6, IS_Q4_K | IS_Q6_K)                                             \
    GEMM_KERNEL(__VA_ARGS__, q8, IS_Q8_0)                                                          \
    GEMM_KERNEL(__VA_ARGS__, all, GEMM_TYPES)

GEMM_KERNELS(8, 112)
GEMM_KERNELS(16, 128)
GEMM_KERNELS(32, 168)

/* ---- quantizing the activations ----------------------------------------------------------- */

/* Grid: (rows, thread blocks of a row). Half a warp has 128 columns (quantize.cuh). */
extern "C" __global__ void __maxnreg__(56)
    project_gemm_quantize(const __grid_constant__ struct gemm_quantize_params p) {
    extern __shared__ uint4 head_factors_room[];
    pdl_launch_dependents();
    uint32_t i = blockIdx.x, row_block = i / p.qacts.rows;
    struct gemm_qact_row to = {p.qacts, i - row_block * p.qacts.rows};
    to.q.data += (uint64_t)row_block * p.qacts.bytes;
    float *red =
        p.in.prologue == PROLOGUE_NORM ? row_squares(to.q, to.row) : (float *)head_factors_room;
    struct row_source source = {min(i, p.row_limit - 1), p.row_limit, true};
    quantize_row_grid(p.io, p.in, source, to, red);
}

/* ---- partial sums of stream-K, added and quantized ---------------------------------------- */

/* A warp adds an M16 tile's partial sums for 8 rows: finish_rows. */
extern "C" __global__ void __maxnreg__(96)
    project_gemm_finish(const __grid_constant__ struct gemm_finish_params p) {
    pdl_launch_dependents();
    uint32_t lane = threadIdx.x % 32, warp = warp_uniform(threadIdx.x / 32), n8 = blockIdx.y;
    uint32_t tile = (blockIdx.x * 8 + warp) * p.warps_per_tile + n8 / p.warp_n8;
    const float4 *from = (const float4 *)p.partials +
                         ((uint64_t)tile * p.kblocks * p.warp_n8 + n8 % p.warp_n8) * 32 + lane;
    finish_rows(
        p, [&] { return add_parts_in_order(from, p.warp_n8 * 32, p.kblocks, p.split_ends); },
        [&](uint32_t row, uint32_t at, const struct col8 &v, float square) {
            struct gemm_qact_row to = {p.qacts, row};
            store_col8<IS_INT8>(p.in, p.in.prologue, to, at, v, square, row_squares(to.q, row));
        });
}
