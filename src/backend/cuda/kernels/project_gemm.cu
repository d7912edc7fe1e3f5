/* project_gemm.cu - PROJECT for five rows and more: the sums of project.cuh, bit for bit, on tensor
 * cores.
 *
 * A warp multiplies a m16_tile, 16 rows of weights (A of an mma), with 8 NT rows of activations
 * (B), 32 columns at a time (16 of Q6_K). What comes out are the integers that a lane has there;
 * here a lane (g, j) = (lane / 4, lane % 4) has those of rows g and g + 8 of the m16_tile and rows
 * 2 j and 2 j + 1 of every eight of the activations. They are added as there: as integers over 128
 * columns, times scales, pairs of neighbours first within a kblock, then kblock by kblock. Minimums
 * meet the sums of the activations in an mma of halves, in which everything is a whole number and
 * exact.
 *
 * From the start of its tasks to their end a warp goes its own way: kblocks come by the copy
 * engine, and whoever is the last of a m16_tile's warps adds up and stores. */
#include "backend/cuda/kernels/project_gemm_kblock.cuh"

/* ---- tasks ------------------------------------------------------------------------------------
 */

struct many_task {
    uint32_t segment, m16_tile; /* of the segment */
    uint32_t kblock, end;
    uint32_t part, parts; /* of the m16_tile's */
    uint32_t place;       /* the block's own number of the m16_tile */
    uint32_t first_part;  /* where its parts are in shared memory */
};

/* Task t of the block; false: there are not so many. */
static __device__ __forceinline__ bool find_many(const struct many_params &m, uint32_t t,
                                                 struct many_task &out) {
    const struct project_params &p = m.p;
    if (m.is_spread) {
        t += p.bounds[blockIdx.x];
        uint32_t kblock = __umulhi(t, m.strip_magic);
        out = {0, t - kblock * m.m16_tiles, kblock, kblock + 1, kblock, m.kblocks, 0, 0};
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

/* Bands of the qact that a block needs: all, or those of its tasks' kblocks, which are k_slabs; or
 * none, if it has no tasks. Each of them is waited for by some warp. */
struct many_range {
    uint32_t first, n;
};

static __device__ __forceinline__ struct many_range range_of(const struct many_params &m) {
    uint32_t begin = m.p.bounds[blockIdx.x], end = m.p.bounds[blockIdx.x + 1];
    if (!m.is_spread)
        return {0, end > begin ? m.qacts.k_slabs : 0};
    uint32_t first = __umulhi(begin, m.strip_magic),
             last = end > begin ? __umulhi(end - 1, m.strip_magic) + 1 : first;
    return {first, last - first};
}

/* ---- the pipeline: a stage has a kblock of every tile of a m16_tile
 * --------------------------------------
 */

struct many_loader {
    const uint8_t *at; /* of this lane's tile, if it has one */
    uint32_t left;     /* kblocks of the task */
    uint32_t task;     /* the next one; OVER: there is none */
    uint32_t form;     /* bytes of a kblock; tiles of a m16_tile, above 16 */
};

enum : uint32_t { OVER = ~0u };

/* Lane l brings tile l of the m16_tile. Of SwiGLU the first half is gate, the second up. */
static __device__ __forceinline__ void aim(const struct many_params &m, const struct many_task &t,
                                           struct many_loader &l) {
    const struct project_segment &s = m.p.segments[t.segment];
    uint32_t lane = threadIdx.x % 32, tiles = MANY_STRIP >> s.row_shift, tile = lane;
    const uint8_t *data = s.data;
    uint32_t all = (s.n + (1u << s.row_shift) - 1) >> s.row_shift, own = tiles;
    if (m.p.epilogue == EPILOGUE_SWIGLU) {
        own = tiles / 2;
        data = lane >= own ? m.p.segments[1].data : data;
        tile = lane >= own ? lane - own : lane;
    }
    tile = min(t.m16_tile * own + tile, all - 1);
    l.form = s.kblock_bytes | tiles << 16;
    l.left = t.end - t.kblock;
    l.at = data + ((uint64_t)tile * s.kblocks + t.kblock) * s.kblock_bytes;
}

/* False: there is nothing more. asks: else only the loader goes on, and another tile_warp asks. */
static __device__ __forceinline__ bool load_strip(const struct many_params &m,
                                                  struct many_loader &l, uint32_t stage,
                                                  uint32_t barrier, bool asks) {
    uint32_t lane = volatile_lane();
    if (l.left == 0 && l.task != OVER) {
        struct many_task t;
        if (find_many(m, l.task, t)) {
            aim(m, t, l);
            l.task += m.p.task_warps;
        } else {
            l.task = OVER;
        }
    }
    if (l.left == 0)
        return false;
    uint32_t tiles = l.form >> 16, bytes = l.form & 0xffff;
    if (asks && lane == 0)
        mbarrier_expect_tx(barrier, tiles * bytes);
    if (asks && lane < tiles)
        cp_async_bulk(stage + lane * m.p.stage_bytes, l.at, bytes, barrier);
    l.at += bytes;
    l.left--;
    return true;
}

/* ---- sums and results -------------------------------------------------------------------------
 */

/* The barriers of a block: one a stage of every warp, one of the squares, one of the factors, one a
 * k_slab of the qact. */
static __device__ __forceinline__ uint32_t slot_barrier(const struct many_params &m, uint32_t warp,
                                                        uint32_t stage) {
    extern __shared__ uint4 shared[];
    return smem_addr(shared) + m.p.mbars_at + (warp * m.p.stages + stage) * 8;
}

static __device__ __forceinline__ uint32_t squares_barrier(const struct many_params &m) {
    return slot_barrier(m, m.p.task_warps, 0);
}

static __device__ __forceinline__ uint32_t factors_barrier(const struct many_params &m) {
    return squares_barrier(m) + 8;
}

static __device__ __forceinline__ uint32_t band_barrier(const struct many_params &m, uint32_t i) {
    return squares_barrier(m) + 16 + i * 8;
}

static __device__ __forceinline__ float *factors_of(const struct many_params &m) {
    extern __shared__ uint4 shared[];
    return (float *)((uint8_t *)shared + m.squares_at) + m.qacts.rows * m.qacts.squares_pitch;
}

/* The factors of all rows, by one warp, a lane a row: row_factor's sum, in its order. */
static __device__ __forceinline__ void store_factors(const struct many_params &m) {
    extern __shared__ uint4 shared[];
    const struct project_input &in = m.p.in;
    uint32_t row = threadIdx.x % 32, chunks = in.k / PROJECT_GROUP;
    const float *squares =
        (const float *)((const uint8_t *)shared + m.squares_at) + row * m.qacts.squares_pitch;
    float sum[32];
    if (row < m.qacts.rows) {
#pragma unroll
        for (uint32_t i = 0; i < 32; i++)
            sum[i] = i < chunks ? squares[i] : 0;
#pragma unroll 1
        for (uint32_t first = 32; first < chunks; first += 32)
#pragma unroll
            for (uint32_t i = 0; i < 32; i++)
                sum[i] = first + i < chunks ? __fadd_rn(sum[i], squares[first + i]) : sum[i];
#pragma unroll
        for (int round = 0; round < 5; round++)
#pragma unroll
            for (int i = 0; i < 16; i++)
                if (i < 16 >> round)
                    sum[i] = __fadd_rn(sum[i], sum[i + (16 >> round)]);
        factors_of(m)[row] = norm_factor(in, sum[0]);
    }
    __syncwarp();
    if (row == 0)
        mbarrier_arrive(factors_barrier(m));
}

/* Those of rows 2 j and 2 j + 1 of eight. */
static __device__ __forceinline__ float2 factor_pair(const struct many_params &m, uint32_t row) {
    return m.p.in.prologue == PROLOGUE_NORM ? *(const float2 *)(factors_of(m) + row)
                                            : make_float2(1, 1);
}

/* All that is asked of the factors comes behind this. */
static __device__ __forceinline__ void wait_factors(const struct many_params &m) {
    if (HAS_CP_ASYNC_BULK && m.p.in.prologue == PROLOGUE_NORM)
        bulk_wait(factors_barrier(m), 0);
}

/* What a lane puts where, of a m16_tile: sums of rows g and g + 8 of the weights, rows 2 j and 2 j
 * + 1 of every eight of the activations. */
struct strip_place {
    float *out;      /* weights' row g, row 2 j of the first eight */
    uint32_t stride; /* from row to row */
    uint32_t n;      /* the weights' row */
    uint32_t row;    /* of the block's */
};

/* own: the first of the warp's rows. */
static __device__ __forceinline__ struct strip_place
place_strip(const struct many_params &m, const struct many_task &t, uint32_t own) {
    const struct project_params &p = m.p;
    uint32_t lane = volatile_lane(), row = own + lane % 4 * 2;
    uint32_t rows = p.epilogue == EPILOGUE_SWIGLU ? MANY_STRIP / 2 : MANY_STRIP;
    uint32_t n = t.m16_tile * rows + lane / 4;
    return {p.out + (uint64_t)(blockIdx.y * m.qacts.rows + row) * p.out_stride +
                p.segments[t.segment].column + n,
            p.out_stride, n, row};
}

/* A m16_tile all of which there is, without biases: most are so. */
template <int NT>
static __device__ __forceinline__ void put_whole_strip(const struct many_params &m,
                                                       const struct strip_place &at,
                                                       const float (&sum)[NT][4]) {
    uint32_t epilogue = m.p.epilogue;
    float was[NT][4] = {};
    if (epilogue == EPILOGUE_ADD) {
#pragma unroll
        for (int i = 0; i < 4 * NT; i++)
            was[i / 4][i % 4] =
                __ldcg(at.out + (uint64_t)at.stride * (i / 4 * 8 + i % 2) + i % 4 / 2 * 8);
    }
    wait_factors(m);
#pragma unroll
    for (int e = 0; e < NT; e++) {
        float2 f = factor_pair(m, at.row + e * 8);
        float *out = at.out + (uint64_t)at.stride * (e * 8), *next = out + at.stride;
        float v[4] = {__fmul_rn(sum[e][0], f.x), __fmul_rn(sum[e][1], f.y),
                      __fmul_rn(sum[e][2], f.x), __fmul_rn(sum[e][3], f.y)};
        if (epilogue == EPILOGUE_SWIGLU) {
            out[0] = swiglu(v[0], v[2]);
            next[0] = swiglu(v[1], v[3]);
            continue;
        }
        if (epilogue == EPILOGUE_ADD)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = __fadd_rn(was[e][i], v[i]);
        out[0] = v[0];
        next[0] = v[1];
        out[8] = v[2];
        next[8] = v[3];
    }
}

template <int NT>
static __device__ __forceinline__ void put_strip(const struct many_params &m,
                                                 const struct many_task &t, uint32_t tile_warp,
                                                 uint32_t n_rows, const float (&sum)[NT][4]) {
    const struct project_params &p = m.p;
    const struct project_segment &s = p.segments[t.segment];
    struct strip_place at = place_strip(m, t, tile_warp * NT * 8);
    bool is_swiglu = p.epilogue == EPILOGUE_SWIGLU, is_sum = p.epilogue == EPILOGUE_ADD;
    uint32_t first_row = blockIdx.y * m.qacts.rows, strip_rows = is_swiglu ? 8 : 16;
    uint32_t there = n_rows > first_row ? n_rows - first_row : 0;
    if (there >= (tile_warp + 1) * NT * 8 && (t.m16_tile + 1) * strip_rows <= s.n && !p.has_bias)
        return put_whole_strip<NT>(m, at, sum);
    wait_factors(m);
#pragma unroll
    for (int i = 0; i < 4 * NT; i++) {
        uint32_t row = i / 4 * 8 + i % 2, n = i % 4 / 2 * 8;
        if (at.row + row >= there || (is_swiglu && n) || at.n + n >= s.n)
            continue;
        float *out = at.out + (uint64_t)at.stride * row + n;
        float2 factor = factor_pair(m, at.row + i / 4 * 8);
        float f = i % 2 ? factor.y : factor.x, v = __fmul_rn(sum[i / 4][i % 4], f);
        if (p.has_bias)
            v = add_bias(s, at.n + n, v);
        if (is_sum)
            v = __fadd_rn(__ldcg(out), v);
        if (is_swiglu) {
            float w = __fmul_rn(sum[i / 4][i % 4 ^ 2], f);
            v = swiglu(v, p.has_bias ? add_bias(p.segments[1], at.n, w) : w);
        }
        *out = v;
    }
}

/* Where a tile_warp's parts of a task's m16_tile are, and the counter of those that are there. */
template <int NT>
static __device__ __forceinline__ float4 *parts_of(const struct many_params &m,
                                                   const struct many_task &t, uint32_t tile_warp,
                                                   uint32_t *&counter) {
    extern __shared__ uint4 shared[];
    uint8_t *base = (uint8_t *)shared;
    if (m.is_spread) {
        uint32_t m16_tile = (blockIdx.y * m.m16_tiles + t.m16_tile) * m.tile_warps + tile_warp;
        counter = m.counters + m16_tile;
        return (float4 *)m.parts + (uint64_t)m16_tile * m.kblocks * NT * 32;
    }
    counter = (uint32_t *)(base + m.counters_at) + t.place * m.tile_warps + tile_warp;
    return (float4 *)(base + m.p.partials_at) +
           (t.first_part * m.tile_warps + tile_warp * t.parts) * NT * 32;
}

/* Whether this warp is the last of its m16_tile's; the parts of all are seen then. */
static __device__ __forceinline__ bool is_last(const struct many_params &m,
                                               const struct many_task &t, uint32_t *counter) {
    uint32_t before = 0;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        before = m.is_spread ? atomic_inc_acq_rel_gpu(counter) : atomic_inc_acq_rel_cta(counter);
        if (before == t.parts - 1)
            *counter = 0;
    }
    bool is_last = __shfl_sync(~0u, before, 0) == t.parts - 1;
    __syncwarp(); /* what lane 0 has seen all have */
    return is_last;
}

/* All parts of a m16_tile: kblocks of a split are added up, then splits. Some are on their way at
 * once: from global memory each takes 700 cycles. */
template <int NT>
static __device__ __forceinline__ void add_parts(const struct many_params &m,
                                                 const struct many_task &t, const float4 *parts,
                                                 float (&sum)[NT][4]) {
    constexpr int BATCH = NT == 4 ? 2 : 8; /* registers */
    const struct project_segment &s = m.p.segments[t.segment];
    float split[NT][4];
    uint32_t left = 0, next = 0, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4 * NT; i++)
        sum[i / 4][i % 4] = 0;
#pragma unroll 1
    for (uint32_t part = 0; part < t.parts; part += BATCH) {
        float4 v[BATCH][NT];
#pragma unroll
        for (uint32_t i = 0; i < BATCH * NT; i++) {
            const float4 *from =
                parts + (min(part + i / NT, t.parts - 1) * NT + i % NT) * 32 + lane;
            v[i / NT][i % NT] = m.is_spread ? __ldcg(from) : *from;
        }
#pragma unroll
        for (uint32_t b = 0; b < BATCH; b++) {
            if (part + b >= t.parts)
                break;
            if (left == 0) {
                left = m.is_spread ? task_kblocks(s, next++) : 1;
#pragma unroll
                for (int i = 0; i < 4 * NT; i++)
                    split[i / 4][i % 4] = 0;
            }
            left--;
#pragma unroll
            for (int e = 0; e < NT; e++) {
                split[e][0] = __fadd_rn(split[e][0], v[b][e].x);
                split[e][1] = __fadd_rn(split[e][1], v[b][e].y);
                split[e][2] = __fadd_rn(split[e][2], v[b][e].z);
                split[e][3] = __fadd_rn(split[e][3], v[b][e].w);
            }
            if (left == 0)
#pragma unroll
                for (int i = 0; i < 4 * NT; i++)
                    sum[i / 4][i % 4] = __fadd_rn(sum[i / 4][i % 4], split[i / 4][i % 4]);
        }
    }
}

template <int NT>
static __device__ __forceinline__ void end_task(const struct many_params &m,
                                                const struct many_task &t, uint32_t tile_warp,
                                                uint32_t n_rows, float (&acc)[NT][4]) {
    if (t.parts > 1) {
        uint32_t *counter;
        float4 *parts = parts_of<NT>(m, t, tile_warp, counter), *to = parts + t.part * NT * 32;
#pragma unroll
        for (int e = 0; e < NT; e++)
            to[e * 32 + threadIdx.x % 32] = make_float4(acc[e][0], acc[e][1], acc[e][2], acc[e][3]);
        if (!is_last(m, t, counter))
            return;
        add_parts<NT>(m, t, parts, acc);
    }
    put_strip<NT>(m, t, tile_warp, n_rows, acc);
}

/* Whether all tile_warps are done with a stage: the last asks for what comes next. */
static __device__ __forceinline__ bool is_left(const struct many_params &m, uint32_t stage) {
    extern __shared__ uint4 shared[];
    if (m.tile_warps == 1)
        return true;
    uint32_t before = 0;
    if (volatile_lane() == 0)
        before = atomicAdd((uint32_t *)((uint8_t *)shared + m.left_at) + stage, 1);
    return __shfl_sync(~0u, before, 0) % 2;
}

/* All tasks of a warp, which is a tile_warp of those of a pipeline. first: of the k_slabs that are
 * here. */
template <int SET, int NT>
static __device__ __forceinline__ void
many_tasks(const struct many_params &m, struct many_loader &l, uint32_t pipeline,
           uint32_t tile_warp, uint32_t first, uint32_t n_rows) {
    extern __shared__ uint4 shared[];
    const struct project_params &p = m.p;
    uint32_t stage = 0, phase = 0, there = 0; /* k_slabs that have come */
#pragma unroll 1
    for (uint32_t i = pipeline;; i += p.task_warps) {
        struct many_task t;
        if (!find_many(m, i, t))
            return;
        uint32_t segment = t.segment, left = t.end - t.kblock,
                 shift = p.segments[segment].row_shift;
        uint32_t type = p.segments[segment].type, groups = 32u >> shift;
        uint32_t in_band = m.qacts.band_shift - (type == IS_Q8_0 ? 6 : 7); /* groups, as a power */
        uint32_t group = t.kblock * groups - (first << in_band);
        float acc[NT][4] = {};
#pragma unroll 1
        for (; left; left--, group += groups) {
            uint32_t from = smem_addr(shared), k_slab = group >> in_band;
#pragma unroll 1
            for (; HAS_CP_ASYNC_BULK && there <= k_slab; there++)
                bulk_wait(band_barrier(m, there), 0);
            uint32_t at = (pipeline * p.stages + stage) * p.stage_bytes * m.tiles;
            uint32_t barrier = slot_barrier(m, pipeline, stage);
            bulk_wait(barrier, phase);
            many_unit_of<SET, NT>(type, view_of(1u << shift, p.stage_bytes), at, from + at,
                                  acts_of(m, k_slab, tile_warp * NT * 8),
                                  group - (k_slab << in_band), acc);
            __syncwarp();
            load_strip(m, l, opaque(from + at), opaque(barrier),
                       is_left(m, pipeline * p.stages + stage));
            stage = stage + 1 == p.stages ? 0 : stage + 1;
            phase ^= stage == 0;
        }
        struct many_task again; /* another, so that the first need not be kept */
        find_many(m, opaque(i), again);
        end_task<NT>(m, again, tile_warp, n_rows, acc);
    }
}

/* ---- plain segments ---------------------------------------------------------------------------
 */

/* A split of a tile for one row: sums as of dot_f32_global. Some kblocks are on their way at once:
 * they come from far away, and there is little else to do. */
static __device__ __forceinline__ float plain_task(const struct project_params &p,
                                                   const struct project_segment &s, uint32_t tile,
                                                   uint32_t split, uint32_t row) {
    constexpr int BATCH = 3;
    uint32_t lane = threadIdx.x % 32, lanes = 1u << s.lane_shift, place = lane & (lanes - 1);
    const uint8_t *at = s.data + (uint64_t)tile * s.kblocks * s.kblock_bytes + lane * 16;
    uint32_t u = task_first_kblock(s, split), last = u + task_kblocks(s, split);
    float acc[4] = {};
#pragma unroll 1
    for (; u < last; u += BATCH) {
        struct global_acts<1> a[BATCH];
        float4 w[BATCH][4];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            uint32_t v = min(u + b, last - 1);
            load_global_acts<1>(p, row, v * lanes + place, a[b]);
#pragma unroll
            for (uint32_t r = 0; r < 4; r++)
                w[b][r] = __ldcg((const float4 *)(at + (uint64_t)v * s.kblock_bytes + r * 512));
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            float4 x = apply_norm_weight(p, a[b].x[0], a[b].norm);
#pragma unroll
            for (uint32_t r = 0; r < 4; r++) {
                float next = dot_f32x4(w[b][r], x, acc[r]);
                acc[r] = u + b < last ? next : acc[r];
            }
        }
    }
    return reduce_f32_lanes(acc, lanes, lane);
}

/* All blocks share the plain segments: each has a tile for some rows. Item i of the block: */
struct plain_item {
    const struct project_segment *s;
    uint32_t tile, row; /* the first */
};

static __device__ __forceinline__ bool find_plain(const struct many_params &m, uint32_t i,
                                                  uint32_t rows, struct plain_item &out) {
    uint32_t groups = (rows + MANY_PLAIN_ROWS - 1) / MANY_PLAIN_ROWS;
    i = blockIdx.x + i * gridDim.x;
    if (i >= m.plain_tiles * groups)
        return false;
    out.tile = i / groups;
    out.row = (i - out.tile * groups) * MANY_PLAIN_ROWS;
    out.s = m.plain;
    while (out.tile >= out.s->n_tiles)
        out.tile -= out.s++->n_tiles;
    return true;
}

/* By the warps that have no m16_tiles, while the others have: `warp` of `warps`. Not inlined, so
 * that the others' registers are their own. */
static __device__ __noinline__ void plain_tiles(const struct many_params &m, uint32_t warp,
                                                uint32_t warps, uint32_t n_rows) {
    extern __shared__ uint4 shared[];
    float *sums = (float *)((uint8_t *)shared + m.plain_at); /* (item, split, row, row of a tile) */
    uint32_t lane = threadIdx.x % 32, first_row = blockIdx.y * m.qacts.rows;
    uint32_t rows = n_rows > first_row ? min(m.qacts.rows, n_rows - first_row) : 0;
    uint32_t tasks = m.plain_slices * MANY_PLAIN_ROWS, n = MANY_PLAIN_ROWS * MANY_PLAIN;
    struct plain_item item;
    for (uint32_t t = warp; find_plain(m, t / tasks, rows, item); t += warps) {
        uint32_t split = t % tasks / MANY_PLAIN_ROWS, r = t % MANY_PLAIN_ROWS;
        if (split >= item.s->splits || item.row + r >= rows)
            continue;
        float v = plain_task(m.p, *item.s, item.tile, split, first_row + item.row + r);
        if (lane < MANY_PLAIN)
            sums[t * MANY_PLAIN + lane % 2 * 2 + lane / 2] = v;
    }
    named_barrier_sync(warps * 32);
    wait_factors(m);
    uint32_t e = warp * 32 + lane, r = e / MANY_PLAIN % MANY_PLAIN_ROWS, row = e % MANY_PLAIN;
    for (uint32_t i = e / n; find_plain(m, i, rows, item); i += warps * 32 / n) {
        uint32_t at = item.tile * MANY_PLAIN + row;
        float v = 0;
        if (item.row + r >= rows || at >= item.s->n)
            continue;
        for (uint32_t split = 0; split < item.s->splits; split++)
            v = __fadd_rn(
                v, sums[((i * m.plain_slices + split) * MANY_PLAIN_ROWS + r) * MANY_PLAIN + row]);
        store_result(
            m.p, *item.s, at, first_row + item.row + r,
            __fmul_rn(v, m.p.in.prologue == PROLOGUE_NORM ? factors_of(m)[item.row + r] : 1));
    }
}

/* ---- the whole --------------------------------------------------------------------------------
 */

/* Asks for the rows of this block, by one warp: the squares, and its k_slabs. */
static __device__ __forceinline__ void fetch_rows(const struct many_params &m,
                                                  const struct many_range &x) {
    extern __shared__ uint4 shared[];
    const struct many_image &e = m.qacts;
    const uint8_t *from = e.at + (uint64_t)blockIdx.y * e.bytes;
    uint32_t base = smem_addr(shared), squares = e.bytes - e.squares_at;
    for (uint32_t i = threadIdx.x % 32; i < x.n; i += 32)
        bulk_load(base + m.p.qact_at + i * e.band_bytes,
                  from + (uint64_t)(x.first + i) * e.band_bytes, e.band_bytes, band_barrier(m, i));
    if (squares && threadIdx.x % 32 == 0)
        bulk_load(base + m.squares_at, from + e.squares_at, squares, squares_barrier(m));
}

template <int SET, int NT>
static __device__ __forceinline__ void project_many(const struct many_params &m) {
    extern __shared__ uint4 shared[];
    pdl_launch_dependents();
    const struct project_params &p = m.p;
    uint8_t *base = (uint8_t *)shared;
    uint32_t warp = warp_uniform(threadIdx.x / 32), warps = blockDim.x / 32;
    uint32_t tile_warp = warp / p.task_warps, pipeline = warp - tile_warp * p.task_warps;
    bool filled = false, is_last = warp == warps - 1, has_ring = tile_warp < m.tile_warps;
    uint32_t from = smem_addr(shared), stage_bytes = p.stage_bytes * m.tiles;
    uint32_t stages = from + pipeline * p.stages * stage_bytes,
             mbars = slot_barrier(m, pipeline, 0);
    struct many_loader l = {NULL, 0, pipeline, 0};
    if (tile_warp == 0)
        mbarrier_init_stages(mbars, p.stages);
    if (has_ring)
        filled = load_strip(m, l, stages, mbars, tile_warp == 0);
    struct many_range x = range_of(m);
    if (is_last)
        mbarrier_init_stages(squares_barrier(m), 2 + x.n);
    for (uint32_t i = threadIdx.x; i < (p.mbars_at - m.counters_at) / 4; i += blockDim.x)
        ((uint32_t *)(base + m.counters_at))[i] = 0;
    uint32_t first_row = blockIdx.y * m.qacts.rows;
    __syncthreads();
    pdl_wait(p.io);
    if (blockIdx.y && first_row >= count_rows(p.io, p.in)) {
        if (filled) /* before a block leaves what it asked for must have come */
            bulk_wait(mbars, 0);
        return;
    }
    if (is_last)
        fetch_rows(m, x);
    /* More kblocks are asked for behind the rows, which would queue behind them. */
    if (has_ring)
        for (uint32_t i = 1; i < p.stages; i++)
            load_strip(m, l, stages + i * stage_bytes, mbars + i * 8, tile_warp == 0);
    uint32_t n_rows = count_rows(p.io, p.in);
    if (is_last && (!HAS_CP_ASYNC_BULK || p.in.prologue == PROLOGUE_NORM))
        bulk_wait(squares_barrier(m), 0);
    if (is_last && p.in.prologue == PROLOGUE_NORM)
        store_factors(m);
    if (!HAS_CP_ASYNC_BULK) /* this warp has copied all of it */
        __syncthreads();
    if (has_ring)
        many_tasks<SET, NT>(m, l, pipeline, tile_warp, x.first, n_rows);
    else if (m.plain_tiles)
        plain_tiles(m, warp - p.task_warps * m.tile_warps, warps - p.task_warps * m.tile_warps,
                    n_rows);
}

#define MANY_KERNEL(EIGHTS, REGISTERS, NAME, SET)                                                  \
    extern "C" __global__ void __maxnreg__(REGISTERS)                                              \
        project_many_##EIGHTS##_##NAME(const __grid_constant__ struct many_params m) {             \
        project_many<SET, EIGHTS>(m);                                                              \
    }

#define MANY_KERNELS(...)                                                                          \
    MANY_KERNEL(__VA_ARGS__, q4, IS_Q4_K)                                                          \
    MANY_KERNEL(__VA_ARGS__, q6, IS_Q6_K)                                                          \
    MANY_KERNEL(__VA_ARGS__, q4_q6, IS_Q4_K | IS_Q6_K)                                             \
    MANY_KERNEL(__VA_ARGS__, q8, IS_Q8_0)                                                          \
    MANY_KERNEL(__VA_ARGS__, all, MANY_SETS)

MANY_KERNELS(1, 112)
MANY_KERNELS(2, 128)
MANY_KERNELS(4, 168)

/* ---- rows made ready --------------------------------------------------------------------------
 */

/* Row `row` of an qact. */
struct many_row {
    struct many_image m;
    uint32_t row;
};

static __device__ __forceinline__ void *qact_word(const struct many_row &to, uint32_t, uint32_t i) {
    uint32_t shift = to.m.band_shift, k_slab = i * 4 >> shift, columns = 1u << shift;
    return to.m.at + k_slab * to.m.band_bytes + to.row * (columns + 16) + (i * 4 & (columns - 1));
}

static __device__ __forceinline__ float4 *qact_floats(const struct many_row &,
                                                      const struct project_input &) {
    return NULL; /* there are none */
}

static __device__ __forceinline__ void qact_group(const struct many_row &to, uint32_t, uint32_t i,
                                                  float scale, int sum) {
    uint32_t rows = to.m.rows, k_slab = i * 4 >> to.m.band_shift;
    uint8_t *at = to.m.at + k_slab * to.m.band_bytes;
    i -= k_slab << to.m.band_shift >> 2;
    uint32_t group = to.m.group == 128 ? i / 32 : i / 8;
    ((float *)(at + to.m.scales_at))[group * rows + to.row] = scale;
    ((__half2 *)(at + to.m.sums_at))[(i / 32 * rows + to.row) * 4 + i / 8 % 4] =
        __floats2half2_rn((float)(sum & ~1), (float)(sum & 1));
}

static __device__ __forceinline__ float *row_squares(const struct many_image &m, uint32_t row) {
    return (float *)(m.at + m.squares_at) + row * m.squares_pitch;
}

/* Blocks (i, ...) make row i, or part of it. */
extern "C" __global__ void __maxnreg__(56)
    project_many_prepare(const __grid_constant__ struct many_prepare_params p) {
    extern __shared__ uint4 prepare_room[];
    pdl_launch_dependents();
    uint32_t i = blockIdx.x, group = i / p.qacts.rows;
    struct many_row to = {p.qacts, i - group * p.qacts.rows};
    to.m.at += (uint64_t)group * p.qacts.bytes;
    float *red = p.in.prologue == PROLOGUE_NORM ? row_squares(to.m, to.row)
                                                : (float *)prepare_room; /* a factor a head */
    struct row_source source = {min(i, p.row_limit - 1), p.row_limit, true};
    quantize_row_grid(p.io, p.in, source, to, red);
}
