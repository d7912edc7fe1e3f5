/* experts_wide_rows.cu - EXPERTS_IN and EXPERTS_OUT for many rows: what is done for rows, before
 * and after the products of experts_wide.cu (ops/experts_wide.h says what goes where).
 *
 *   sort      a counting sort of (row, expert) pairs by expert, on one thread block an expert. Each
 *             counts all pairs for itself (which is cheaper than handing counts on) and writes its
 *             own expert's, in order of rows. Reads R * (used + 1) words twice a thread block.
 *   quantize  a thread block a row: quantized once, as the gemv kernels do, into shared memory, and
 *             from there stored to the row's places. Writes 276 bytes for 128 columns of a pair.
 *   combine   a thread block a row: x[n] = fma(weight[i], sum[i][n], x[n]), i = 0, 1, ..., the
 *             shared expert last: the order of experts_gemv.cu. Reads 4 (used + 1) bytes a value.
 */
#include "backend/cuda/kernels/quantize.cuh"
#include "backend/cuda/ops/experts_wide.h"

/* ---- sort --------------------------------------------------------------------------------- */

enum { SORT_WARPS = EXPERTS_SORT_THREADS / 32 };

/* A warp's part of all choices, flat: a multiple of 32 of them. */
struct choice_range {
    uint32_t first, end;

    __device__ __forceinline__ choice_range(uint32_t n) {
        uint32_t each = (n + EXPERTS_SORT_THREADS - 1) / EXPERTS_SORT_THREADS * 32;
        first = min(threadIdx.x / 32 * each, n);
        end = min(first + each, n);
    }
};

static __device__ __forceinline__ uint32_t tiles_of(const struct experts_sort_params &p,
                                                    uint32_t pairs) {
    return (pairs + (1u << p.tile_shift) - 1) >> p.tile_shift;
}

/* Counts every expert's pairs; returns how many of the warp's are `expert`'s, in all lanes. */
static __device__ __forceinline__ uint32_t count_pairs(const struct experts_sort_params &p,
                                                       const struct choice_range &range,
                                                       uint32_t expert, uint32_t *counts) {
    uint32_t own = 0;
#pragma unroll 4
    for (uint32_t i = range.first + threadIdx.x % 32; i < range.end; i += 32) {
        uint32_t e = __ldcg(p.choice + i);
        if (e < p.experts)
            atomicAdd(counts + e, 1);
        own += e == expert;
    }
    return __reduce_add_sync(~0u, own);
}

/* By one warp: counts become the experts' first tiles, and after the last how many there are. */
static __device__ __forceinline__ void count_tiles(const struct experts_sort_params &p,
                                                   uint32_t before, const uint32_t *counts,
                                                   uint32_t *first_tiles) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t base = 0; base < p.experts; base += 32) {
        uint32_t e = base + lane, n = e < p.experts ? tiles_of(p, counts[e]) : 0, sum = n;
#pragma unroll
        for (uint32_t i = 1; i < 32; i *= 2) {
            uint32_t other = __shfl_up_sync(~0u, sum, i);
            sum += lane >= i ? other : 0;
        }
        if (e < p.experts)
            first_tiles[e] = before + sum - n;
        before += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0)
        first_tiles[p.experts] = before;
}

/* Pairs of `expert` among the warp's choices, from place `at` on. */
static __device__ __forceinline__ void place_pairs(const struct experts_sort_params &p,
                                                   const struct choice_range &range,
                                                   uint32_t expert, uint32_t at) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll 4
    for (uint32_t base = range.first; base < range.end; base += 32) {
        uint32_t i = base + lane;
        bool is_own = i < range.end && __ldcg(p.choice + i) == expert;
        uint32_t all = __ballot_sync(~0u, is_own);
        if (is_own) {
            uint32_t to = at + __popc(all & ((1u << lane) - 1)), row = __umulhi(i, p.row_fastdiv);
            p.order.pairs[to] = {row, i - row * (p.used + 1)};
            p.order.places[i] = to;
        }
        at += __popc(all);
    }
}

/* The shared expert: every row, at its own number. */
static __device__ __forceinline__ void place_shared(const struct experts_sort_params &p,
                                                    uint32_t n_rows, uint32_t n_tiles) {
    for (uint32_t i = threadIdx.x; i < n_tiles << p.tile_shift; i += blockDim.x) {
        p.order.pairs[i] = {i < n_rows ? i : ~0u, p.used};
        if (i < n_rows)
            p.order.places[i * (p.used + 1) + p.used] = i;
    }
}

extern "C" __global__ void __launch_bounds__(EXPERTS_SORT_THREADS)
    experts_wide_sort(const __grid_constant__ struct experts_sort_params p) {
    extern __shared__ uint32_t sorted[];
    __shared__ uint32_t warp_pairs[SORT_WARPS];
    uint32_t *counts = sorted, *first_tiles = sorted + p.experts;
    uint32_t expert = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    pdl_launch_dependents();
    for (uint32_t i = threadIdx.x; i < p.experts; i += blockDim.x)
        counts[i] = 0;
    __syncthreads();
    pdl_wait(p.io);
    uint32_t n_rows = p.io.header->n_rows, shared_tiles = p.has_shared ? tiles_of(p, n_rows) : 0;
    const struct choice_range range(n_rows * (p.used + 1));
    uint32_t own = count_pairs(p, range, expert, counts);
    if (lane == 0)
        warp_pairs[warp] = own;
    __syncthreads();
    if (warp == 0)
        count_tiles(p, shared_tiles, counts, first_tiles);
    __syncthreads();
    uint32_t first_tile = 0, end_tile = shared_tiles;
    if (expert < p.experts) {
        first_tile = first_tiles[expert], end_tile = first_tiles[expert + 1];
        uint32_t before = __reduce_add_sync(~0u, lane < warp ? warp_pairs[lane] : 0),
                 first = first_tile << p.tile_shift;
        place_pairs(p, range, expert, first + before);
        for (uint32_t i = first + counts[expert] + threadIdx.x; i < end_tile << p.tile_shift;
             i += blockDim.x)
            p.order.pairs[i] = {~0u, 0};
    } else {
        place_shared(p, n_rows, shared_tiles);
        if (threadIdx.x == 0)
            p.order.n_tiles[0] = shared_tiles, p.order.n_tiles[1] = first_tiles[p.experts];
    }
    for (uint32_t i = first_tile + threadIdx.x; i < end_tile; i += blockDim.x)
        p.order.experts[i] = expert;
}

/* ---- quantize ----------------------------------------------------------------------------- */

/* A quantized row in shared memory, as project.h has it. */
struct qact_row {
    const uint8_t *qact;
    uint32_t k;

    /* Four values of block `block` of 32 columns of a group: columns 16 upper + 4 w ... */
    __device__ __forceinline__ uint32_t word(uint32_t group, uint32_t block, uint32_t upper,
                                             uint32_t w) const {
        return *(const uint32_t *)(qact + ((2 * block + upper) * project_plane(k) + group) * 16 +
                                   w * 4);
    }
    __device__ __forceinline__ float scale(uint32_t group, uint32_t block) const {
        return *(const float *)(qact + project_scales_at(k) + (group * 4 + block) * 4);
    }
    __device__ __forceinline__ int sum(uint32_t group, uint32_t block) const {
        return *(const int *)(qact + project_sums_at(k) + (group * 4 + block) * 4);
    }
};

/* Two bytes of four as fp16. */
template <uint32_t BYTES> static __device__ __forceinline__ uint32_t f16x2_of(uint32_t q) {
    uint32_t v = __byte_perm(q ^ 0x80808080u, 0x64646464u, BYTES);
    __half2 h = __hsub2(*reinterpret_cast<__half2 *>(&v), __float2half2_rn(1152));
    return *reinterpret_cast<uint32_t *>(&h);
}

/* 16 columns' numbers, two chunks of 16 bytes: task i of a group's eight. Which columns a chunk has
 * is in project_wide_quantize.cu (qact_store); Q8_0: those of chunk i. */
struct number_chunks {
    uint4 v[2];
    uint32_t panel, chunk[2];

    __device__ __forceinline__ number_chunks(const struct qact_row &row, uint32_t group, uint32_t i,
                                             bool is_q8_0) {
        uint32_t q[4], w = i / 2, upper = i % 2;
#pragma unroll
        for (uint32_t b = 0; b < 4; b++)
            q[b] = is_q8_0 ? row.word(group, i / 2, i % 2, b) : row.word(group, b, upper, w);
        panel = i / 4;
        if (is_q8_0) {
            chunk[0] = i % 4 * 2, chunk[1] = chunk[0] + 1;
            v[0] = make_uint4(f16x2_of<0x4140>(q[0]), f16x2_of<0x4140>(q[1]),
                              f16x2_of<0x4140>(q[2]), f16x2_of<0x4140>(q[3]));
            v[1] = make_uint4(f16x2_of<0x4342>(q[0]), f16x2_of<0x4342>(q[1]),
                              f16x2_of<0x4342>(q[2]), f16x2_of<0x4342>(q[3]));
        } else {
            chunk[0] = w % 2 * 4 + upper, chunk[1] = chunk[0] + 2;
            v[0] = make_uint4(f16x2_of<0x4240>(q[0]), f16x2_of<0x4240>(q[1]),
                              f16x2_of<0x4240>(q[2]), f16x2_of<0x4240>(q[3]));
            v[1] = make_uint4(f16x2_of<0x4341>(q[0]), f16x2_of<0x4341>(q[1]),
                              f16x2_of<0x4341>(q[2]), f16x2_of<0x4341>(q[3]));
        }
    }
};

/* The experts of a row that group g is for, and which group of theirs it is. */
struct group_experts {
    uint32_t first, end, group;

    __device__ __forceinline__ group_experts(const struct experts_wide_quantize_params &p,
                                             uint32_t g)
        : first(0), end(p.n_experts), group(g) {
        if (p.expert_groups) {
            first = min(p.group_fastdiv ? __umulhi(g, p.group_fastdiv) : g,
                        p.n_experts - 1); /* the shared one, which is last, may have more */
            end = first + 1;
            group = g - first * p.expert_groups;
        }
    }
};

/* Scale and sum of block b of group g: project_wide.h's arrays. */
static __device__ __forceinline__ void store_group(const struct experts_wide_quantize_params &p,
                                                   const struct qact_row &from, uint32_t g,
                                                   uint32_t b, const uint32_t *places) {
    const struct group_experts to(p, g);
    float scale = from.scale(g, b);
    int sum = from.sum(g, b);
    __half2 parts = __floats2half2_rn((float)(sum & ~1), (float)(sum & 1));
    for (uint32_t i = to.first; i < to.end; i++) {
        uint32_t row = places[i], n8 = row / 8;
        uint8_t *at = p.qact + to.group * p.group_bytes + p.qact_rows * 256ull;
        if (b == 0)
            *(float *)(at + n8 / 4 * 128 + n8 % 4 / 2 * 64 + row % 8 / 2 * 16 +
                       (n8 % 2 * 2 + row % 2) * 4) = scale;
        if (!p.is_q8_0)
            *(__half2 *)(at + p.qact_rows * 4ull + n8 / 4 * 512 + (row % 8 * 4 + b) * 16 +
                         n8 % 4 * 4) = parts;
    }
}

static __device__ __forceinline__ void store_numbers(const struct experts_wide_quantize_params &p,
                                                     const struct qact_row &from, uint32_t g,
                                                     uint32_t i, const uint32_t *places) {
    const struct group_experts to(p, g);
    const struct number_chunks chunks(from, g, i, p.is_q8_0);
    uint8_t *at = p.qact + to.group * p.group_bytes + chunks.panel * (p.qact_rows * 128ull);
    for (uint32_t e = to.first; e < to.end; e++) {
        uint32_t row = places[e];
        uint4 *line = (uint4 *)(at + row * 128ull);
        line[chunks.chunk[0] ^ row % 8] = chunks.v[0];
        line[chunks.chunk[1] ^ row % 8] = chunks.v[1];
    }
}

/* Shared memory: the row's places, sums of squares of 128 columns, the quantized row. */
extern "C" __global__ void __maxnreg__(64)
    experts_wide_quantize(const __grid_constant__ struct experts_wide_quantize_params p) {
    extern __shared__ uint4 quantized[];
    uint32_t row = blockIdx.x, groups = p.in.k / WIDE_GROUP;
    uint8_t *qact = (uint8_t *)quantized;
    float *squares = (float *)(qact + (project_int8_bytes(p.in.k) + 15) / 16 * 16);
    uint32_t *places = (uint32_t *)(squares + groups);
    pdl_launch_dependents();
    struct row_threads threads = row_threads_of(p.in);
    struct col8 weights = {};
    load_first_norm_weights(threads, p.in, weights);
    pdl_wait(p.io);
    if (row >= p.io.header->n_rows)
        return;
    for (uint32_t i = threadIdx.x; i < p.n_experts; i += blockDim.x)
        places[i] = __ldcg(p.order.places + (uint64_t)row * (p.used + 1) + i);
    struct row_source source = {row, p.row_limit, false};
    quantize_row_vec4<IS_INT8>(threads, p.io, p.in, source, weights, qact, squares);
    __syncthreads();
    const struct qact_row from = {qact, p.in.k};
    for (uint32_t i = threadIdx.x; i < groups * 8; i += blockDim.x)
        store_numbers(p, from, i / 8, i % 8, places);
    for (uint32_t i = threadIdx.x; i < groups * 4; i += blockDim.x)
        store_group(p, from, i / 4, i % 4, places);
    if (p.factors && threadIdx.x < 32) {
        float factor = row_factor(p.in, squares);
        if (threadIdx.x == 0)
            p.factors[row] = factor;
    }
}

/* ---- combine ------------------------------------------------------------------------------ */

static __device__ __forceinline__ float4 fma4(float w, float4 v, float4 sum) {
    return make_float4(__fmaf_rn(w, v.x, sum.x), __fmaf_rn(w, v.y, sum.y), __fmaf_rn(w, v.z, sum.z),
                       __fmaf_rn(w, v.w, sum.w));
}

extern "C" __global__ void
experts_wide_combine(const __grid_constant__ struct experts_combine_params p) {
    uint32_t row = blockIdx.x;
    pdl_launch_dependents();
    pdl_wait(p.io);
    if (row >= p.io.header->n_rows)
        return;
    const float *weight = p.weight + row * p.weight_stride;
    for (uint32_t n = 4 * threadIdx.x; n < p.width; n += 4 * blockDim.x) {
        const float *sum = p.sums + (uint64_t)row * (p.used + 1) * p.width + n;
        float4 *x = (float4 *)(p.x + row * p.x_stride + n), y = __ldcg(x);
#pragma unroll 8
        for (uint32_t i = 0; i < p.n_experts; i++)
            y = fma4(__ldcg(weight + i), __ldcg((const float4 *)(sum + (uint64_t)i * p.width)), y);
        *x = y;
    }
}
