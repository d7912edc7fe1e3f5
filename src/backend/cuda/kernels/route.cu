/* route.cu - ROUTE: norm, router logits, the U best experts, a softmax over them.
 *
 * Every block makes the logits of one or two router rows, whose values are loaded before the wait;
 * the norm's factor is put to the sum, so that one walk over the row is enough. Then a few blocks
 * have a row each, see its logits come in, one by one, and choose: a logit is a word that is zero
 * until it is there, so there is no counter to wait for and nothing to be read twice. A block waits
 * for others only when it has put all its own logits, and those that wait are fewer than there is
 * room for. Reads E x width floats, once for all the rows that a block takes.
 *
 * The next kernel is let begin behind the wait, not before it: so whatever was written before this
 * kernel is there for it at once (experts_tiles.cu counts on that). */
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/route.h"

enum {
    WARPS = ROUTE_BLOCK / 32,
    EARLY = 2, /* pieces of four columns that a thread loads before the wait */
};

/* Piece i of a row; zeros behind its end. */
static __device__ __forceinline__ float4 load_piece(const struct route_params &p, const float *row,
                                                    uint32_t i) {
    if (!row || 4 * i >= p.width)
        return make_float4(0, 0, 0, 0);
    if (p.is_aligned) {
        uint4 w = ld_no_allocate(row + 4 * i);
        return make_float4(__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z),
                           __uint_as_float(w.w));
    }
    float v[4];
#pragma unroll
    for (uint32_t b = 0; b < 4; b++)
        v[b] = 4 * i + b < p.width ? __ldcg(row + 4 * i + b) : 0;
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* Router row e, the last one's the shared gate; NULL: not of this block. */
static __device__ __forceinline__ const float *router_row(const struct route_params &p, uint32_t e,
                                                          uint32_t end) {
    return e >= end ? NULL : e == p.experts ? p.shared_gate : p.router + (uint64_t)e * p.width;
}

/* Piece i of the block's router rows times the norm's weight. */
static __device__ __forceinline__ void load_router(const struct route_params &p, uint32_t first,
                                                   uint32_t end, uint32_t i,
                                                   float4 (&w)[ROUTE_PER_BLOCK]) {
    float4 norm = load_piece(p, p.norm, i);
#pragma unroll
    for (int k = 0; k < ROUTE_PER_BLOCK; k++)
        w[k] = load_piece(p, router_row(p, first + k, end), i);
#pragma unroll
    for (int k = 0; k < ROUTE_PER_BLOCK; k++)
        w[k] = make_float4(__fmul_rn(w[k].x, norm.x), __fmul_rn(w[k].y, norm.y),
                           __fmul_rn(w[k].z, norm.z), __fmul_rn(w[k].w, norm.w));
}

/* A piece of what the step wrote: not from L1. */
static __device__ __forceinline__ float4 load_input(const struct route_params &p, const float *row,
                                                    uint32_t i) {
    if (p.is_aligned && 4 * i < p.width)
        return __ldcg((const float4 *)row + i);
    return load_piece(p, row, i);
}

static __device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
    sum = __fmaf_rn(a.x, b.x, sum);
    sum = __fmaf_rn(a.y, b.y, sum);
    sum = __fmaf_rn(a.z, b.z, sum);
    return __fmaf_rn(a.w, b.w, sum);
}

/* The sum of the row's squares and its products with two router rows. */
struct sums {
    float v[1 + ROUTE_PER_BLOCK];

    /* w: with the norm's weight in it. */
    __device__ __forceinline__ void add(float4 x, const float4 (&w)[ROUTE_PER_BLOCK]) {
        v[0] = dot(x, x, v[0]);
#pragma unroll
        for (int i = 0; i < ROUTE_PER_BLOCK; i++)
            v[1 + i] = dot(w[i], x, v[1 + i]);
    }

    /* Over lanes far apart first; all have it. */
    __device__ __forceinline__ void add_lanes(void) {
#pragma unroll
        for (int lane = 16; lane > 0; lane /= 2)
#pragma unroll
            for (int i = 0; i < 1 + ROUTE_PER_BLOCK; i++)
                v[i] = __fadd_rn(v[i], __shfl_xor_sync(~0u, v[i], lane));
    }
};

/* Orders as the floats do, and is never 0. */
static __device__ __forceinline__ uint32_t key_of(float x) {
    uint32_t bits = __float_as_uint(x + 0.0f); /* -0 is 0 */
    return max(bits & 0x80000000u ? ~bits : bits | 0x80000000u, 1u);
}

static __device__ __forceinline__ float value_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

/* Waits for a word of another block, takes it, and leaves it as it was before the step. */
static __device__ __forceinline__ uint32_t take(uint32_t *word) {
    uint32_t key;
    do
        key = *(volatile uint32_t *)word;
    while (key == 0);
    *(volatile uint32_t *)word = 0;
    return key;
}

/* How many of n keys, a multiple of 4, come before number `at`: larger, or equal with a lower
 * number. */
static __device__ __forceinline__ uint32_t count_before(const uint32_t *keys, uint32_t n,
                                                        uint32_t mine, uint32_t at) {
    uint32_t before = 0;
#pragma unroll 4
    for (uint32_t i = 0; i < n; i += 4) {
        uint4 k = *(const uint4 *)(keys + i);
        before += k.x > mine || (k.x == mine && i < at);
        before += k.y > mine || (k.y == mine && i + 1 < at);
        before += k.z > mine || (k.z == mine && i + 2 < at);
        before += k.w > mine || (k.w == mine && i + 3 < at);
    }
    return before;
}

/* By the block. A warp finds the best of 32 experts, in order; then those of all warps find their
 * places among each other. A softmax over all, renormalised over the chosen, is a softmax over the
 * chosen. */
static __device__ void choose(const struct route_params &p, uint32_t row, uint32_t *keys) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t groups = (p.experts + ROUTE_GROUP - 1) / ROUTE_GROUP;
    uint32_t keep = min(p.used, (uint32_t)ROUTE_GROUP), n = groups * keep;
    uint32_t *best = keys + groups * ROUTE_GROUP; /* (groups, keep) keys */
    uint32_t *ids = best + n;                     /* and whose they are */
    float *top = (float *)(ids + n);
    uint32_t *from = p.keys + (uint64_t)row * (p.experts + 1);
    uint32_t *choice = p.choice + row * p.choice_stride;
    float *weight = p.weight + row * p.weight_stride;
    for (uint32_t g = warp; g < groups; g += WARPS) {
        uint32_t e = g * ROUTE_GROUP + lane, mine = e < p.experts ? take(from + e) : 0;
        keys[e] = mine;
        __syncwarp();
        uint32_t before = count_before(keys + g * ROUTE_GROUP, ROUTE_GROUP, mine, lane);
        if (before < keep) {
            best[g * keep + before] = mine;
            ids[g * keep + before] = e;
        }
    }
    if (threadIdx.x == ROUTE_BLOCK - 1) {
        float gate = p.shared_gate ? value_of(take(from + p.experts)) : 0;
        choice[p.used] = p.experts;
        weight[p.used] = p.shared_gate ? 1 / (1 + expf(-gate)) : 0;
    }
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < n; c += ROUTE_BLOCK) {
        uint32_t before = count_before(best, n & ~3u, best[c], c);
        for (uint32_t i = n & ~3u; i < n; i++)
            before += best[i] > best[c] || (best[i] == best[c] && i < c);
        if (before < p.used) {
            choice[before] = ids[c];
            top[before] = value_of(best[c]);
        }
    }
    __syncthreads();
    if (warp == 0) {
        float sum = 0;
        for (uint32_t j = lane; j < p.used; j += 32)
            sum += expf(top[j] - top[0]);
        sum = warp_sum(sum);
        for (uint32_t j = lane; j < p.used; j += 32)
            weight[j] = expf(top[j] - top[0]) / sum;
    }
}

/* The row's logits, of router rows [first, end), put where the row's chooser looks for them. */
static __device__ __forceinline__ void put_logits(const struct route_params &p, uint32_t row,
                                                  uint32_t first, uint32_t end,
                                                  const float4 *room) {
    struct sums all = {};
    uint32_t lane = threadIdx.x % 32;
    if (lane < WARPS) {
        float4 v = room[lane];
        all.v[0] = v.x, all.v[1] = v.y, all.v[2] = v.z;
    }
    all.add_lanes();
    float factor = 1.0f / sqrtf(all.v[0] / (float)p.width + p.eps);
    if (first + lane < end)
        *(volatile uint32_t *)(p.keys + (uint64_t)row * (p.experts + 1) + first + lane) =
            key_of(__fmul_rn(lane ? all.v[2] : all.v[1], factor));
}

static __device__ __forceinline__ void load_early(const struct route_params &p, uint32_t row,
                                                  float4 (&x)[EARLY]) {
#pragma unroll
    for (int e = 0; e < EARLY; e++)
        x[e] = load_input(p, p.in + row * p.in_stride, threadIdx.x + e * ROUTE_BLOCK);
}

extern "C" __global__ void __maxnreg__(64) route(const __grid_constant__ struct route_params p) {
    extern __shared__ __align__(16) uint32_t keys[];
    __shared__ float4 room[2][WARPS];
    uint32_t n = p.experts + (p.shared_gate != NULL);
    uint32_t first = blockIdx.x * n / gridDim.x, end = (blockIdx.x + 1) * n / gridDim.x;
    float4 w[EARLY][ROUTE_PER_BLOCK];
#pragma unroll
    for (int e = 0; e < EARLY; e++)
        load_router(p, first, end, threadIdx.x + e * ROUTE_BLOCK, w[e]);
    pdl_wait(p.io);
    pdl_launch_dependents();
    uint32_t n_rows = p.row_limit > 1 ? p.io.header->n_rows : 1, turn = 0;
    float4 x[EARLY];
    load_early(p, blockIdx.y, x);
#pragma unroll 1
    for (uint32_t row = blockIdx.y; row < n_rows; row += gridDim.y, turn ^= 1) {
        struct sums sum = {};
#pragma unroll
        for (int e = 0; e < EARLY; e++)
            sum.add(x[e], w[e]);
#pragma unroll 1
        for (uint32_t i = threadIdx.x + EARLY * ROUTE_BLOCK; 4 * i < p.width; i += ROUTE_BLOCK) {
            float4 more[ROUTE_PER_BLOCK];
            load_router(p, first, end, i, more);
            sum.add(load_input(p, p.in + row * p.in_stride, i), more);
        }
        if (row + gridDim.y < n_rows)
            load_early(p, row + gridDim.y, x);
        sum.add_lanes();
        /* The other half of the room may still be read. */
        if (threadIdx.x % 32 == 0)
            room[turn][threadIdx.x / 32] = make_float4(sum.v[0], sum.v[1], sum.v[2], 0);
        __syncthreads();
        if (threadIdx.x < 32)
            put_logits(p, row, first, end, room[turn]);
    }
    if (blockIdx.x < p.choosers)
#pragma unroll 1
        for (uint32_t row = blockIdx.y + blockIdx.x * gridDim.y; row < n_rows;
             row += p.choosers * gridDim.y) {
            choose(p, row, keys);
            __syncthreads();
        }
}
