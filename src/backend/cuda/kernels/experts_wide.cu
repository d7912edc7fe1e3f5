/* experts_wide.cu - the products of EXPERTS_IN and EXPERTS_OUT for many rows, on wgmma (sm_90a):
 * project_wide.cu's, for tiles of places (ops/experts_wide.h) by 128 weight rows of their expert.
 *
 *   IN    hidden[row][i][n] = silu(gate[e][n] . a) * (up[e][n] . a), times the norm's factor each
 *   OUT   sum[row][i][n] = down[e][n] . hidden[row][i]
 *
 * Bits: a pair's sum has the order of experts_gemv.cu, all of K in one split.
 *
 * A thread block takes tiles one after the other; tiles of 32 places need few enough registers for
 * two thread blocks an SM (EXPERTS_WIDE_BLOCKS), whose warps fill each other's waits. First the
 * weight rows of an expert, then the next tile of places, so that the blocks that run together
 * share an expert's weights and a tile's activations in L2. Bytes of a tile: as project_wide.cu;
 * weights are read from memory once where an expert's tiles of places follow each other closely
 * enough. */
#define WIDE_PRODUCT_ALONE
#include "backend/cuda/kernels/project_wide.cu"
#include "backend/cuda/ops/experts_wide.h"

#if __CUDA_ARCH_FEAT_SM90_ALL

/* ---- tiles -------------------------------------------------------------------------------- */

struct expert_tile {
    uint32_t tile, n_block; /* tile: of places */
};

/* The tiles of places of a launch. */
struct tile_range {
    uint32_t first, end;

    __device__ __forceinline__ tile_range(const struct experts_wide_params &p) {
        first = p.has_shared ? 0 : __ldcg(p.order.n_tiles);
        end = __ldcg(p.order.n_tiles + p.has_routed);
    }
};

/* Tile number i of the launch; which expert's is left to who needs it. */
static __device__ __forceinline__ bool find_expert_tile(const struct experts_wide_params &p,
                                                        const struct tile_range &range, uint32_t i,
                                                        struct expert_tile &out) {
    uint32_t tile = i / p.n_blocks;
    out.n_block = i - tile * p.n_blocks;
    out.tile = range.first + tile;
    return out.tile < range.end;
}

/* Row r of the tile's 128 weight rows. IN: rows 8 i ... of gate, then the same of up, in turns. */
template <bool IS_IN>
static __device__ __forceinline__ struct weight_row
find_expert_row(const struct experts_wide_params &p, const struct expert_tile &t, uint32_t r) {
    uint32_t of_tile = __ldcg(p.order.experts + t.tile);
    bool is_shared = of_tile == p.experts;
    const struct experts_wide_matrix &m = is_shared ? p.shared : p.routed;
    uint32_t which = IS_IN ? r / 8 % 2 : 0, expert = is_shared ? 0 : of_tile;
    uint32_t n = IS_IN ? t.n_block * (WIDE_N / 2) + r / 16 * 8 + r % 8 : t.n_block * WIDE_N + r;
    uint32_t tile = n >> p.row_shift;
    return {m.data[which] + expert * m.expert_bytes[which] +
                (uint64_t)tile * p.kblocks * p.kblock_bytes,
            n - (tile << p.row_shift)};
}

template <int TYPE>
static __device__ __forceinline__ uint32_t groups_of_kblock(const struct experts_wide_params &p) {
    return (TYPE == IS_Q8_0 ? 16u : 32u) >> p.row_shift;
}

/* ---- copying ------------------------------------------------------------------------------ */

template <int TYPE, int ROWS, bool IS_IN>
static __device__ __forceinline__ void copy_expert_tile(const struct experts_wide_params &p,
                                                        const struct expert_tile &t,
                                                        struct pipeline &pipe) {
    uint32_t r = threadIdx.x % 128, in_kblock = groups_of_kblock<TYPE>(p);
    struct weight_row own = find_expert_row<IS_IN>(p, t, r);
    const uint8_t *group = p.w.qact;
#pragma unroll 1
    for (uint32_t left = p.kblocks; left; left--, own.tile += p.kblock_bytes)
#pragma unroll 1
        for (uint32_t i = 0; i < in_kblock; i++, group += p.w.group_bytes) {
            mbarrier_wait(pipe.empty(), pipe.phase ^ 1);
            if (r == 0)
                copy_qact<TYPE, ROWS>(p.w, pipe.at(p.w), group, t.tile * ROWS, pipe.full());
            copy_weights<TYPE, ROWS>(pipe.at(p.w), own.tile, i, own.row, p.row_shift, r);
            cp_async_arrive(pipe.full());
            pipe.next(p.w);
        }
}

template <int TYPE, int ROWS, bool IS_IN>
static __device__ __forceinline__ void copy_expert_tiles(const struct experts_wide_params &p) {
    const struct tile_range range(p);
    struct pipeline pipe = {0, 0};
    struct expert_tile t;
#pragma unroll 1
    for (uint32_t i = blockIdx.x; find_expert_tile(p, range, i, t); i += gridDim.x)
        copy_expert_tile<TYPE, ROWS, IS_IN>(p, t, pipe);
}

/* ---- multiplying -------------------------------------------------------------------------- */

/* SwiGLU of the values of places 8 i + 2 j and the next, x of v[4 i + x]. */
template <int ROWS>
static __device__ __forceinline__ void store_hidden(const struct experts_wide_params &p,
                                                    const struct expert_tile &t,
                                                    const float (&v)[ROWS / 2]) {
    const thread_place own;
    uint32_t n = t.n_block * (WIDE_N / 2) + own.row / 16 * 8 + own.row % 8;
    const uint4 *pairs = (const uint4 *)(p.order.pairs + t.tile * ROWS + 2 * own.j);
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        uint4 two = __ldcg(pairs + 4 * i);
#pragma unroll
        for (int x = 0; x < 2; x++) {
            uint32_t row = x ? two.z : two.x, expert = x ? two.w : two.y;
            if (row == ~0u)
                continue;
            float f = __ldcg(p.factors + row);
            p.out[row * p.row_stride + expert * p.pair_stride + n] =
                swiglu(__fmul_rn(v[4 * i + x], f), __fmul_rn(v[4 * i + x + 2], f));
        }
    }
}

/* The warpgroup's 64 values of a place are 256 bytes: through shared memory, so that the next tile
 * begins while they are stored. */
template <int ROWS>
static __device__ __forceinline__ void store_sums(const struct experts_wide_params &p,
                                                  const struct expert_tile &t,
                                                  const float (&v)[ROWS / 2]) {
    const thread_place own;
    uint32_t group = threadIdx.x / 128, thread = threadIdx.x % 128;
    uint32_t at = shared_base() + p.sums_at + group * (ROWS * EXPERTS_WIDE_PITCH);
    float *to = (float *)__cvta_shared_to_generic(at + 2 * own.j * EXPERTS_WIDE_PITCH) +
                (own.row - group * 64);
    uint2 pair = __ldcg((const uint2 *)p.order.pairs + t.tile * ROWS + thread % ROWS);
    bulk_store_wait<false>();
    named_barrier_sync(256);
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++)
#pragma unroll
        for (int x = 0; x < 4; x++)
            to[(8 * i + x % 2) * (EXPERTS_WIDE_PITCH / 4) + x / 2 * 8] = v[4 * i + x];
    fence_proxy_async();
    named_barrier_sync(256);
    if (thread < ROWS) {
        if (pair.x != ~0u)
            bulk_store(p.out + pair.x * p.row_stride + pair.y * p.pair_stride + t.n_block * WIDE_N +
                           group * 64,
                       at + thread * EXPERTS_WIDE_PITCH, 256);
        bulk_store_commit();
    }
}

template <int TYPE, int ROWS, bool IS_IN>
static __device__ __forceinline__ void multiply_expert_tile(const struct experts_wide_params &p,
                                                            const struct expert_tile &t,
                                                            struct pipeline &pipe) {
    uint32_t left = p.kblocks * groups_of_kblock<TYPE>(p);
    struct wide_sums<TYPE, ROWS> sums;
    unpack_next<TYPE, ROWS>(p.w, sums, pipe, left);
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++)
        sums.split[i] = 0;
#pragma unroll 1
    for (uint32_t kblock = p.kblocks; kblock; kblock--) {
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++)
            sums.kblock[i] = -0.0f;
#pragma unroll 1
        for (uint32_t i = groups_of_kblock<TYPE>(p); i; i--)
            multiply_group<TYPE, ROWS>(p.w, sums, pipe, left);
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++)
            sums.split[i] = __fadd_rn(sums.split[i], sums.kblock[i]);
    }
    if constexpr (IS_IN)
        store_hidden<ROWS>(p, t, sums.split);
    else
        store_sums<ROWS>(p, t, sums.split);
}

template <int TYPE, int ROWS, bool IS_IN>
static __device__ __forceinline__ void multiply_expert_tiles(const struct experts_wide_params &p) {
    const struct tile_range range(p);
    struct pipeline pipe = {0, 0};
    struct expert_tile t;
#pragma unroll 1
    for (uint32_t i = blockIdx.x; find_expert_tile(p, range, i, t); i += gridDim.x)
        multiply_expert_tile<TYPE, ROWS, IS_IN>(p, t, pipe);
    if (!IS_IN)
        bulk_store_wait<true>();
}

template <int TYPE, int ROWS, bool IS_IN>
static __device__ __forceinline__ void experts_wide(const struct experts_wide_params &p) {
    pdl_launch_dependents();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < p.w.stages; i++) {
            mbarrier_init(shared_base() + i * 8, 128 + 1); /* full: the copying threads, bytes */
            mbarrier_init(shared_base() + 64 + i * 8, 8);  /* empty: the multiplying warps */
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    pdl_wait(p.w.io);
    if (threadIdx.x >= 256) {
        setmaxnreg_dec<24>();
        copy_expert_tiles<TYPE, ROWS, IS_IN>(p);
    } else {
        setmaxnreg_inc<EXPERTS_WIDE_BLOCKS(TYPE, ROWS) == 2 ? 104 : 240>();
        multiply_expert_tiles<TYPE, ROWS, IS_IN>(p);
    }
}

#endif

/* experts_wide_<in, out>_<type>_<places of a tile>. */
#if __CUDA_ARCH_FEAT_SM90_ALL
#define EXPERTS_WIDE_KERNEL(IN_OUT, IS_IN, NAME, TYPE, ROWS)                                       \
    extern "C" __global__ void __launch_bounds__(WIDE_THREADS, EXPERTS_WIDE_BLOCKS(TYPE, ROWS))    \
        experts_wide_##IN_OUT##_##NAME##_##ROWS(                                                   \
            const __grid_constant__ struct experts_wide_params p) {                                \
        experts_wide<TYPE, ROWS, IS_IN>(p);                                                        \
    }
#else
#define EXPERTS_WIDE_KERNEL(IN_OUT, IS_IN, NAME, TYPE, ROWS)                                       \
    extern "C" __global__ void experts_wide_##IN_OUT##_##NAME##_##ROWS(                            \
        const __grid_constant__ struct experts_wide_params) {                                      \
    }
#endif

#define EXPERTS_WIDE_KERNELS(NAME, TYPE)                                                           \
    EXPERTS_WIDE_KERNEL(in, true, NAME, TYPE, 32)                                                  \
    EXPERTS_WIDE_KERNEL(out, false, NAME, TYPE, 32)                                                \
    EXPERTS_WIDE_KERNEL(out, false, NAME, TYPE, 64)

EXPERTS_WIDE_KERNELS(q4, IS_Q4_K)
EXPERTS_WIDE_KERNELS(q5, IS_Q5_K)
EXPERTS_WIDE_KERNELS(q6, IS_Q6_K)
EXPERTS_WIDE_KERNELS(q8, IS_Q8_0)
EXPERTS_WIDE_KERNEL(in, true, q8, IS_Q8_0, 64)
