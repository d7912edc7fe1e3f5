/* project_wide_bf16.cu - PROJECT of BF16 or F16 weights for many rows, on wgmma (sm_90a), with the
 * bits of one row: project_bf16.cuh has the definition.
 *
 *   out[row][n] = epilogue(factor[row] * sum over k of w[n][k] * a[row][k])
 *
 * A thread block, one an SM, takes tiles of 128 weight rows by ROWS rows of activations; a stage of
 * its pipeline has 64 columns of both. Weights are stored as wgmma reads them (formats/tiles.h):
 * lanes of four warps copy 4 or 8 rows of a panel each (a warp alone issues its lanes' bulk copies
 * one after the other, which is too slow), and both parts of the activations are a copy each. Two
 * warpgroups have 64 weight rows each. hi of all rows and lo of all rows are the 2 ROWS
 * columns of one wgmma: a thread ends with both chains of a result, and adds them.
 *
 * CLUSTER: two thread blocks have neighbouring weight rows and the same activations. Each copies
 * one part, for both.
 *
 * Bytes: of a tile 128 a weight row and 256 a row of activations (half of that with clusters) for
 * every 64 columns, out of L2. */
#include "backend/cuda/kernels/project_wide_store.cuh"
#include "backend/cuda/ops/project_wide_bf16.h"

#if __CUDA_ARCH_FEAT_SM90_ALL

/* ---- the pipeline in shared memory -------------------------------------------------------- */

static __device__ __forceinline__ uint32_t shared_base(void) {
    extern __shared__ __align__(1024) uint8_t bf16_shared[];
    return smem_addr(bf16_shared);
}

/* The stage that is filled, or multiplied, next. */
template <int ROWS> struct bf16_pipeline {
    uint32_t stage = 0, phase = 0;

    __device__ __forceinline__ uint32_t at(void) const {
        return shared_base() + BF16_STAGES_AT + stage * wide_bf16_stage_bytes(ROWS);
    }
    __device__ __forceinline__ uint32_t full(void) const {
        return shared_base() + stage * 8;
    }
    __device__ __forceinline__ uint32_t empty(void) const {
        return shared_base() + 64 + stage * 8;
    }
    __device__ __forceinline__ void next(const struct wide_bf16_params &p) {
        stage = stage + 1 == p.stages ? 0 : stage + 1;
        phase ^= stage == 0;
    }
};

/* ---- tiles of the product ----------------------------------------------------------------- */

struct bf16_tile {
    uint32_t segment, n_block, row_block;
    uint32_t first_stripe, end_stripe; /* that this thread block multiplies */
};

/* Tiles that n weight rows are; with SwiGLU a tile has half as many rows of each matrix. */
static __device__ __forceinline__ uint32_t count_n_blocks(const struct wide_bf16_params &p,
                                                          uint32_t n) {
    uint32_t rows = p.epilogue == EPILOGUE_SWIGLU ? WIDE_N / 2 : WIDE_N;
    return (n + rows - 1) / rows;
}

/* Slots of all K splits of a tile, one after the other (project_bf16.cuh): all that are multiplied
 * before sums are added. */
static __device__ __forceinline__ uint32_t count_stripes(const struct project_segment &s) {
    return s.splits << (4 - s.row_shift);
}

struct bf16_stripe {
    uint32_t panel, panels; /* the first, and how many: every S-th panel */
};

static __device__ __forceinline__ struct bf16_stripe find_stripe(const struct project_segment &s,
                                                                 uint32_t i) {
    uint32_t shift = 4 - s.row_shift, split = i >> shift;
    return {(task_first_kblock(s, split) << shift) + (i & ((1u << shift) - 1)),
            task_kblocks(s, split)};
}

/* Tile t of the step (with clusters, of this block's place in them), or one stripe of it. Row
 * blocks in groups, so that those that run together share weights and activations. */
template <int ROWS, int CLUSTER>
static __device__ __forceinline__ bool find_tile(const struct wide_bf16_params &p, uint32_t t,
                                                 uint32_t n_rows, struct bf16_tile &out) {
    uint32_t row_blocks = (n_rows + ROWS - 1) / ROWS;
#pragma unroll 1
    for (uint32_t i = 0; i < p.n_segments; i++) {
        uint32_t blocks = (count_n_blocks(p, p.segments[i].n) + CLUSTER - 1) / CLUSTER;
        uint32_t n = row_blocks * blocks, stripes = count_stripes(p.segments[i]);
        uint32_t parts = p.is_split_k ? stripes : 1;
        if (t < n * parts) {
            uint32_t stripe = t / n;
            t -= stripe * n;
            uint32_t first = t / (blocks * p.group_rows) * p.group_rows;
            uint32_t group = min(row_blocks - first, p.group_rows);
            t -= first * blocks;
            uint32_t block = t / group;
            out.segment = i;
            out.row_block = first + t - block * group;
            out.n_block = block * CLUSTER + (CLUSTER > 1 ? blockIdx.x % CLUSTER : 0);
            out.first_stripe = stripe;
            out.end_stripe = p.is_split_k ? stripe + 1 : stripes;
            return true;
        }
        t -= n * parts;
    }
    return false;
}

/* ---- the copying warps -------------------------------------------------------------------- */

/* What a lane copies of every panel: up to 8 rows of a tile. bytes 0: nothing. */
struct weight_rows {
    const uint8_t *at;
    uint32_t to, bytes, step; /* to: in the stage; step: from panel to panel of the matrix */
};

/* SwiGLU: 8 rows of gate, then the same of up, in turns. Rows after the last are not stored. */
static __device__ __forceinline__ struct weight_rows
find_weight_rows(const struct wide_bf16_params &p, const struct bf16_tile &t) {
    const struct project_segment &s = p.segments[t.segment];
    uint32_t warp = threadIdx.x / 32 % 4, height = min(1u << s.row_shift, 8);
    uint32_t r = warp * 32 + threadIdx.x % 32 * height; /* of the stage's rows */
    if (threadIdx.x % 32 * height >= 32)
        return {NULL, 0, 0, 0};
    uint32_t n = t.n_block * WIDE_N + r;
    const uint8_t *data = s.data;
    if (p.epilogue == EPILOGUE_SWIGLU) {
        data = r / 8 % 2 ? p.segments[1].data : data;
        n = t.n_block * (WIDE_N / 2) + r / 16 * 8 + r % 8;
    }
    uint32_t tile = min(n >> s.row_shift, s.n_tiles - 1), step = 128u << s.row_shift;
    data += (uint64_t)tile * s.kblocks * s.kblock_bytes + (n & ((1u << s.row_shift) - 1)) * 128;
    return {data, r * 128, height * 128, step};
}

/* Both parts of a panel. */
template <int ROWS, int CLUSTER>
static __device__ __forceinline__ void copy_acts(const struct wide_bf16_params &p,
                                                 const struct bf16_tile &t, uint32_t panel,
                                                 const struct bf16_pipeline<ROWS> &pipe) {
    uint32_t thread = threadIdx.x % 128, part = CLUSTER > 1 ? blockIdx.x % CLUSTER : thread / 32;
    uint32_t to = pipe.at() + (WIDE_N + part * ROWS) * 128;
    const uint8_t *acts =
        p.acts + ((uint64_t)(2 * panel + part) * p.act_rows + t.row_block * ROWS) * 128;
    if (CLUSTER > 1) {
        if (thread == 0)
            cp_async_bulk_multicast(to, acts, ROWS * 128, pipe.full(), (1 << CLUSTER) - 1);
    } else if (thread == 0 || thread == 32) {
        cp_async_bulk(to, acts, ROWS * 128, pipe.full());
    }
}

/* A panel's weights, the first copy to a stage. */
template <int ROWS>
static __device__ __forceinline__ void copy_weights(const struct weight_rows &own,
                                                    const struct bf16_pipeline<ROWS> &pipe) {
    if (threadIdx.x % 128 == 0)
        mbarrier_expect_tx(pipe.full(), wide_bf16_stage_bytes(ROWS));
    if (own.bytes)
        cp_async_bulk(pipe.at() + own.to, own.at, own.bytes, pipe.full());
}

/* Panels of a tile; of the first `n_copied` weights are copied already. */
template <int ROWS, int CLUSTER>
static __device__ __forceinline__ void copy_tile(const struct wide_bf16_params &p,
                                                 const struct bf16_tile &t, uint32_t n_copied,
                                                 struct bf16_pipeline<ROWS> &pipe) {
    const struct project_segment &s = p.segments[t.segment];
    struct weight_rows own = find_weight_rows(p, t);
    const uint8_t *first = own.at;
#pragma unroll 1
    for (uint32_t i = t.first_stripe; i < t.end_stripe; i++) {
        struct bf16_stripe stripe = find_stripe(s, i);
        own.at = first + (uint64_t)stripe.panel * own.step;
#pragma unroll 1
        for (; stripe.panels; stripe.panels--) {
            if (n_copied) {
                n_copied--;
            } else {
                mbarrier_wait(pipe.empty(), pipe.phase ^ 1);
                copy_weights<ROWS>(own, pipe);
                __syncwarp(); /* lanes that copy nothing would miss the stage's next phase */
            }
            copy_acts<ROWS, CLUSTER>(p, t, stripe.panel, pipe);
            pipe.next(p);
            own.at += TILE_KBLOCK_FLOAT;
            stripe.panel += 16u >> s.row_shift;
        }
    }
}

/* Where all rows are in one block of rows, tiles are known before pdl_wait: weights of the first
 * stages are copied before it. The number of panels. */
template <int ROWS>
static __device__ __forceinline__ uint32_t copy_ahead(const struct wide_bf16_params &p) {
    bf16_pipeline<ROWS> pipe;
    struct bf16_tile t;
    if (p.row_blocks > 1 || !find_tile<ROWS, 1>(p, blockIdx.x, 1, t))
        return 0;
    struct bf16_stripe stripe = find_stripe(p.segments[t.segment], t.first_stripe);
    uint32_t n = min(stripe.panels, p.stages);
    struct weight_rows own = find_weight_rows(p, t);
    own.at += (uint64_t)stripe.panel * own.step;
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++, own.at += TILE_KBLOCK_FLOAT, pipe.next(p))
        copy_weights<ROWS>(own, pipe);
    return n;
}

template <int ROWS, int CLUSTER>
static __device__ __forceinline__ void copy_tiles(const struct wide_bf16_params &p) {
    bf16_pipeline<ROWS> pipe;
    struct bf16_tile t;
    uint32_t n_copied = CLUSTER > 1 ? 0 : copy_ahead<ROWS>(p);
    pdl_wait(p.io);
    uint32_t n_rows = count_rows(p.io, p.in);
    if (n_copied && !n_rows) { /* a bulk copy must not outlive its thread block */
        find_tile<ROWS, 1>(p, blockIdx.x, 1, t);
        for (; n_copied; n_copied--, pipe.next(p)) {
            copy_acts<ROWS, 1>(p, t, 0, pipe);
            mbarrier_wait(pipe.full(), 0);
        }
        return;
    }
#pragma unroll 1
    for (uint32_t i = blockIdx.x / CLUSTER; find_tile<ROWS, CLUSTER>(p, i, n_rows, t);
         i += gridDim.x / CLUSTER, n_copied = 0)
        copy_tile<ROWS, CLUSTER>(p, t, n_copied, pipe);
}

/* ---- multiplying -------------------------------------------------------------------------- */

/* Descriptor of rows of 128 bytes, swizzled, 8 of them 1024 bytes. */
static __device__ __forceinline__ uint64_t describe_rows(uint32_t at) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* A stage is read: in all blocks that copy into it. */
template <int CLUSTER> static __device__ __forceinline__ void release_stage(uint32_t empty) {
    if (CLUSTER > 1) {
        if (volatile_lane() < CLUSTER)
            mbarrier_arrive_rank(empty, volatile_lane());
    } else if (volatile_lane() == 0) {
        mbarrier_arrive(empty);
    }
}

/* c += 64 columns. */
template <int TYPE, int ROWS>
static __device__ __forceinline__ void multiply_panel(float (&c)[ROWS], uint32_t at) {
    uint64_t a = describe_rows(at + threadIdx.x / 128 * (64 * 128)),
             b = describe_rows(at + WIDE_N * 128);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        if (TYPE == IS_F16)
            wgmma_add_f16(c, a + step * 2, b + step * 2);
        else
            wgmma_add_bf16(c, a + step * 2, b + step * 2);
    wgmma_commit();
}

/* A stripe: both parts of it in c. */
template <int TYPE, int ROWS, int CLUSTER>
static __device__ __forceinline__ void multiply_stripe(const struct wide_bf16_params &p,
                                                       float (&c)[ROWS], uint32_t panels,
                                                       struct bf16_pipeline<ROWS> &pipe) {
    uint32_t before = 0;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        c[i] = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < panels; i++) {
        mbarrier_wait(pipe.full(), pipe.phase);
        multiply_panel<TYPE, ROWS>(c, pipe.at());
        wgmma_wait<1>();
        if (i)
            release_stage<CLUSTER>(before);
        before = pipe.empty();
        pipe.next(p);
    }
    wgmma_wait<0>();
    release_stage<CLUSTER>(before);
#pragma unroll
    for (int i = 0; i < ROWS; i++) /* nothing is read before the wait */
        materialize(c[i]);
}

/* ---- epilogue ----------------------------------------------------------------------------- */

/* store_tile's WHOLE. */
struct whole_tile {
    template <int ROWS, int EPILOGUE>
    static __device__ __forceinline__ void store(const struct wide_bf16_params &p,
                                                 float (&v)[ROWS / 2], float *out,
                                                 const float *factors) {
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
            float2 f = factors ? __ldcg((const float2 *)factors + 4 * i) : make_float2(1, 1);
#pragma unroll
            for (int e = 0; e < 4; e++)
                v[4 * i + e] = __fmul_rn(v[4 * i + e], e % 2 ? f.y : f.x);
        }
        if (EPILOGUE == EPILOGUE_ADD) {
            float was[ROWS / 2];
            load_values<ROWS>(p, out, was);
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++)
                v[i] = __fadd_rn(was[i], v[i]);
        }
        store_values<ROWS, EPILOGUE>(p, v, out);
    }
};

/* ---- the multiplying warpgroups ----------------------------------------------------------- */

/* A stripe's sums to the workspace; the last thread block of the tile's adds all, in order, and has
 * them in v. */
template <int ROWS>
static __device__ __forceinline__ bool
combine_stripes(const struct wide_bf16_params &p, const struct bf16_tile &t, float (&v)[ROWS / 2]) {
    constexpr uint32_t THREADS = WIDE_N * 2;
    const struct project_segment &s = p.segments[t.segment];
    uint32_t tile = s.first_tile + t.n_block * p.row_blocks + t.row_block;
    uint32_t stripes = count_stripes(s);
    float4 *partials =
        (float4 *)p.partials + (uint64_t)tile * p.max_stripes * (ROWS / 8) * THREADS + threadIdx.x;
    float4 *own = partials + (uint64_t)t.first_stripe * (ROWS / 8) * THREADS;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++)
        own[i * THREADS] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    uint32_t at = shared_base() + BF16_LAST, *last = (uint32_t *)__cvta_shared_to_generic(at);
    any_barrier_sync(1, THREADS);
    if (threadIdx.x == 0) {
        uint32_t before = atomic_inc_acq_rel_gpu(p.arrivals + tile);
        *last = before == stripes - 1;
        if (*last)
            p.arrivals[tile] = 0;
    }
    any_barrier_sync(1, THREADS);
    if (!*last)
        return false;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        v[i] = 0;
#pragma unroll 1
    for (uint32_t stripe = 0; stripe < stripes; stripe++)
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
            float4 w = __ldcg(partials + (uint64_t)(stripe * (ROWS / 8) + i) * THREADS);
            v[4 * i] = __fadd_rn(v[4 * i], w.x);
            v[4 * i + 1] = __fadd_rn(v[4 * i + 1], w.y);
            v[4 * i + 2] = __fadd_rn(v[4 * i + 2], w.z);
            v[4 * i + 3] = __fadd_rn(v[4 * i + 3], w.w);
        }
    return true;
}

template <int TYPE, int ROWS, int CLUSTER>
static __device__ __forceinline__ void multiply_tile(const struct wide_bf16_params &p,
                                                     const struct bf16_tile &t, uint32_t n_rows,
                                                     struct bf16_pipeline<ROWS> &pipe) {
    const struct project_segment &s = p.segments[t.segment];
    float c[ROWS], sum[ROWS / 2];
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        sum[i] = 0;
#pragma unroll 1
    for (uint32_t i = t.first_stripe; i < t.end_stripe; i++) {
        multiply_stripe<TYPE, ROWS, CLUSTER>(p, c, find_stripe(s, i).panels, pipe);
#pragma unroll
        for (int v = 0; v < ROWS / 2; v++)
            sum[v] = __fadd_rn(sum[v], __fadd_rn(c[v], c[ROWS / 2 + v]));
    }
    if (p.is_split_k && count_stripes(s) > 1 && !combine_stripes<ROWS>(p, t, sum))
        return;
    store_tile<ROWS, whole_tile>(p, t, n_rows, sum);
}

template <int TYPE, int ROWS, int CLUSTER>
static __device__ __forceinline__ void multiply_tiles(const struct wide_bf16_params &p) {
    bf16_pipeline<ROWS> pipe;
    struct bf16_tile t;
    pdl_wait(p.io);
    uint32_t n_rows = count_rows(p.io, p.in);
#pragma unroll 1
    for (uint32_t i = blockIdx.x / CLUSTER; find_tile<ROWS, CLUSTER>(p, i, n_rows, t);
         i += gridDim.x / CLUSTER)
        multiply_tile<TYPE, ROWS, CLUSTER>(p, t, n_rows, pipe);
}

template <int TYPE, int ROWS, int BLOCKS, int CLUSTER>
static __device__ __forceinline__ void project_wide_bf16(const struct wide_bf16_params &p) {
    pdl_launch_dependents();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < p.stages; i++) {
            mbarrier_init(shared_base() + i * 8, 1);                /* full: the bytes */
            mbarrier_init(shared_base() + 64 + i * 8, 8 * CLUSTER); /* empty: multiplying warps */
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    }
    if (threadIdx.x >= 256) {
        if (BLOCKS == 1)
            setmaxnreg_dec<24>();
        copy_tiles<ROWS, CLUSTER>(p);
    } else {
        if (BLOCKS == 1)
            setmaxnreg_inc<240>();
        multiply_tiles<TYPE, ROWS, CLUSTER>(p);
    }
    if (CLUSTER > 1)
        cluster_sync(); /* the other block may still copy, and arrive, here */
}

#endif

/* BLOCKS: thread blocks an SM. */
#if __CUDA_ARCH_FEAT_SM90_ALL
#define BF16_KERNEL(NAME, TYPE, ROWS, BLOCKS, CLUSTER)                                             \
    extern "C" __global__ void __launch_bounds__(BF16_THREADS, BLOCKS)                             \
        __cluster_dims__(CLUSTER, 1, 1)                                                            \
            project_wide_##NAME(const __grid_constant__ struct wide_bf16_params p) {               \
        project_wide_bf16<TYPE, ROWS, BLOCKS, CLUSTER>(p);                                         \
    }
#else
#define BF16_KERNEL(NAME, TYPE, ROWS, BLOCKS, CLUSTER)                                             \
    extern "C" __global__ void project_wide_##NAME(                                                \
        const __grid_constant__ struct wide_bf16_params) {                                         \
    }
#endif

/* project_wide_<type>_<rows of a tile>; pairs: in clusters of two. */
#define BF16_KERNELS(NAME, TYPE)                                                                   \
    BF16_KERNEL(NAME##_16, TYPE, 16, 2, 1)                                                         \
    BF16_KERNEL(NAME##_32, TYPE, 32, 2, 1)                                                         \
    BF16_KERNEL(NAME##_64, TYPE, 64, 1, 1)                                                         \
    BF16_KERNEL(NAME##_128, TYPE, 128, 1, 1)                                                       \
    BF16_KERNEL(NAME##_128_pairs, TYPE, 128, 1, 2)
BF16_KERNELS(bf16, IS_BF16)
BF16_KERNELS(f16, IS_F16)

/* ---- splitting the activations ------------------------------------------------------------ */

/* A row of the split activations: quantize.cuh's QACT. Index i counts four columns. */
struct wide_split_row {
    uint8_t *data; /* of all rows */
    uint32_t row, rows;
};

static __device__ __forceinline__ void store_wide_parts(const struct wide_split_row &to, uint32_t i,
                                                        const struct bf16_parts &parts) {
    uint32_t part = to.rows * 128, chunk = (i % 16 / 4 * 2 ^ to.row % 8) * 16;
    uint8_t *at = to.data + ((uint64_t)(i / 16) * 2 * to.rows + to.row) * 128 + i % 4 * 4;
    *(uint32_t *)(at + chunk) = parts.hi.x;
    *(uint32_t *)(at + (chunk ^ 16)) = parts.hi.y;
    *(uint32_t *)(at + part + chunk) = parts.lo.x;
    *(uint32_t *)(at + part + (chunk ^ 16)) = parts.lo.y;
}

static __device__ __forceinline__ void qact_store_floats(const struct wide_split_row &to,
                                                         const struct project_input &, bool,
                                                         uint32_t i, float4 v) {
    store_wide_parts(to, i, split_bf16(v));
}

static __device__ __forceinline__ void *qact_word(const struct wide_split_row &, uint32_t,
                                                  uint32_t) {
    return NULL; /* there are no int8 values */
}

static __device__ __forceinline__ void qact_group(const struct wide_split_row &, uint32_t, uint32_t,
                                                  float, int) {
}

/* A block a row. Shared memory: sums of squares of 128 columns, or a factor a head. */
extern "C" __global__ void __maxnreg__(56)
    project_wide_split(const __grid_constant__ struct wide_split_params p) {
    extern __shared__ float split_red[];
    pdl_launch_dependents();
    struct wide_split_row to = {p.acts, blockIdx.x, p.act_rows};
    quantize_wide_row<IS_BF16>(row_threads_of(p.in), p, to, split_red);
}

/* F16: first the row as f32 in shared memory, before the rest. */
extern "C" __global__ void __maxnreg__(56)
    project_wide_split_f16(const __grid_constant__ struct wide_split_params p) {
    extern __shared__ float4 split_values[];
    __shared__ uint32_t maxima[PROJECT_WARPS];
    pdl_launch_dependents();
    uint32_t row = blockIdx.x, max_bits = 0;
    float *red = (float *)(split_values + p.in.k / 4);
    struct wide_split_row to = {p.acts, row, p.act_rows};
    struct f16_row values = {split_values, &max_bits};
    if (!quantize_wide_values<IS_F16>(row_threads_of(p.in), p, values, red))
        return;
    store_warp_max(max_bits, maxima);
    __syncthreads();
    float down =
        split_f16_row(p.in.k, split_values, maxima,
                      [&](uint32_t i, const struct bf16_parts &v, const struct bf16_parts &w) {
                          store_wide_parts(to, i, v);
                          store_wide_parts(to, i + COL8_STEP, w);
                      });
    if (threadIdx.x >= 32)
        return;
    float factor = row_factor(p.in, red);
    if (threadIdx.x == 0)
        p.factors[row] = __fmul_rn(factor, down);
}
