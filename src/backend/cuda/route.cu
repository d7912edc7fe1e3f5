/* route.cu - ROUTE: norm, router logits, the U best experts, a softmax over them.
 *
 * Every block normalises the row for itself and makes the logits of two router rows, eight warps a
 * row; the router's values are loaded before the wait. The last block to arrive at a row's counter
 * chooses. Reads E x width floats, once for every 8th row of the plan. */
#include "backend/cuda/route.h"
#include "backend/cuda/rows_prepare.cuh"

enum {
    ROW_WARPS = STREAM_WARPS / ROUTE_PER_BLOCK, /* that share a router row */
    EARLY = 4,                                  /* pieces a lane loads before the wait */
};

/* Piece i of four values; zeros behind the row's end. */
static __device__ __forceinline__ float4 load_piece(const float *row, uint32_t i, uint32_t width) {
    float v[4] = {0, 0, 0, 0};
    if (row && 4 * i + 4 <= width && ((uintptr_t)row & 15) == 0) {
        uint4 w = load_weights(row + 4 * i);
        return make_float4(__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z),
                           __uint_as_float(w.w));
    }
    for (uint32_t b = 0; row && b < 4; b++)
        if (4 * i + b < width)
            v[b] = row[4 * i + b];
    return make_float4(v[0], v[1], v[2], v[3]);
}

static __device__ __forceinline__ float dot4(float4 a, const float *x, float sum) {
    float4 b = *(const float4 *)x;
    sum = __fmaf_rn(a.x, b.x, sum);
    sum = __fmaf_rn(a.y, b.y, sum);
    sum = __fmaf_rn(a.z, b.z, sum);
    return __fmaf_rn(a.w, b.w, sum);
}

/* Orders as the floats do. */
static __device__ __forceinline__ uint32_t key_of(float x) {
    uint32_t bits = __float_as_uint(x + 0.0f); /* -0 is 0 */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* By the block: an expert's place is the number of those before it, the lower index first among
 * equals. A softmax over all, renormalised over the chosen, is a softmax over the chosen.
 * keys: (E rounded up to 4), top: (used), in shared memory. */
static __device__ void choose(const struct route_params &p, uint32_t row, uint32_t *keys,
                              float *top) {
    const float *logits = p.logits + (uint64_t)row * (p.experts + 1);
    uint32_t *choice = p.choice + row * p.choice_stride, n = (p.experts + 3) / 4 * 4;
    float *weight = p.weight + row * p.weight_stride;
    /* Other blocks wrote them: not from L1. */
    for (uint32_t e = threadIdx.x; e < n; e += STREAM_THREADS)
        keys[e] = e < p.experts ? key_of(__ldcg(logits + e)) : 0;
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < p.experts; e += STREAM_THREADS) {
        uint32_t mine = keys[e], before = 0;
#pragma unroll 4
        for (uint32_t i = 0; i < n; i += 4) {
            uint4 k = *(const uint4 *)(keys + i);
            before += k.x > mine || (k.x == mine && i < e);
            before += k.y > mine || (k.y == mine && i + 1 < e);
            before += k.z > mine || (k.z == mine && i + 2 < e);
            before += k.w > mine || (k.w == mine && i + 3 < e);
        }
        if (before < p.used) {
            choice[before] = e;
            top[before] = __ldcg(logits + e);
        }
    }
    __syncthreads();
    for (uint32_t j = threadIdx.x; j < p.used; j += STREAM_THREADS) {
        float sum = 0;
        for (uint32_t i = 0; i < p.used; i++)
            sum += expf(top[i] - top[0]);
        weight[j] = expf(top[j] - top[0]) / sum;
    }
    if (threadIdx.x == 0) {
        choice[p.used] = p.experts;
        weight[p.used] = p.shared_gate ? 1 / (1 + expf(-__ldcg(logits + p.experts))) : 0;
    }
}

/* The logits of this block's router rows e, e + 1 for one row. */
static __device__ __forceinline__ void logits_of(const struct route_params &p, uint32_t row,
                                                 const float *mine, const float4 (&w)[EARLY],
                                                 row_norm &norm, float *x, float *room) {
    uint32_t lane = threadIdx.x % (32 * ROW_WARPS);
    norm.load_row(p.in + row * p.in_stride);
    norm.store(p.eps, row_places{x, NULL, NULL}, room);
    __syncthreads();
    uint32_t pieces = (p.width + 3) / 4;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        if (lane + i * 32 * ROW_WARPS < pieces)
            sum = dot4(w[i], x + 4 * (lane + i * 32 * ROW_WARPS), sum);
    for (uint32_t i = lane + EARLY * 32 * ROW_WARPS; i < pieces; i += 32 * ROW_WARPS)
        sum = dot4(load_piece(mine, i, p.width), x + 4 * i, sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = sum;
    __syncthreads();
    uint32_t e = blockIdx.x * ROUTE_PER_BLOCK + threadIdx.x;
    if (threadIdx.x < ROUTE_PER_BLOCK && e <= p.experts) {
        sum = 0;
        for (int i = 0; i < ROW_WARPS; i++)
            sum += room[threadIdx.x * ROW_WARPS + i];
        p.logits[(uint64_t)row * (p.experts + 1) + e] = sum;
        __threadfence();
    }
}

extern "C" __global__ void __launch_bounds__(STREAM_THREADS)
    route(const __grid_constant__ struct route_params p) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ float room[STREAM_WARPS];
    __shared__ uint32_t is_last;
    pdl_launch();
    float *x = (float *)shared;
    uint32_t padded = (p.width + 3) / 4 * 4;
    uint32_t *keys = (uint32_t *)(x + padded);
    uint32_t e = blockIdx.x * ROUTE_PER_BLOCK + threadIdx.x / (32 * ROW_WARPS);
    const float *mine = e < p.experts    ? p.router + (uint64_t)e * p.width
                        : e == p.experts ? p.shared_gate
                                         : NULL;
    float4 w[EARLY];
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        w[i] = load_piece(mine, threadIdx.x % (32 * ROW_WARPS) + i * 32 * ROW_WARPS, p.width);
    if (threadIdx.x < padded - p.width)
        x[p.width + threadIdx.x] = 0;
    row_norm norm;
    norm.load_weights(p.norm, p.width);
    pdl_wait(p.io);
    /* Row 0 is always there: it need not wait for the count. */
    for (uint32_t row = blockIdx.y; !row || row < p.io.header->n_rows; row += gridDim.y) {
        logits_of(p, row, mine, w, norm, x, room);
        __syncthreads();
        if (threadIdx.x == 0)
            is_last = atomicAdd(p.arrived + row, 1) == gridDim.x - 1;
        __syncthreads();
        if (is_last) {
            __threadfence();
            choose(p, row, keys, (float *)keys + (p.experts + 3) / 4 * 4);
            if (threadIdx.x == 0)
                p.arrived[row] = 0;
        }
    }
}
