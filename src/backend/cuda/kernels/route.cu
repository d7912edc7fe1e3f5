/* route.cu - ROUTE: norm, router logits, the `used` best experts, a softmax over them.
 *
 *   logit[e] = norm(in) . router[e];  choice = the indices of the largest logits, in order;
 *   weight = softmax(logit[choice]), or softmax(logit)[choice] where is_unnormed;
 *   weight[used] = sigmoid(norm(in) . shared_gate)
 *
 * Grid: (thread blocks, row groups). A thread block has one or two router rows, which it loads
 * before griddepcontrol.wait, times the norm's weight, and keeps in registers for all rows of its
 * row group. The norm's factor is applied to the finished sum, so a row is read once. Then
 * topk_blocks thread blocks choose, a row each: a logit is published as a nonzero 32-bit key, and
 * whoever chooses polls for it and sets it back to 0. So there is no counter, no fence and no
 * second read. A thread block polls only after it has published all its own logits, and those that
 * poll are fewer than the SMs, so the others always run.
 *
 * Order of a logit's sum: a thread adds its columns 4 t..., 4 (t + 512)..., ...; then lanes 16, 8,
 * 4, 2, 1 apart, then warps likewise. Reads (E + 1) * width floats once a row group.
 *
 * launch_dependents comes after the wait: so when EXPERTS_IN starts, all that was written before
 * this kernel is complete, and may be read before its wait (experts_gemv.cu). */
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/route.h"

enum {
    WARPS = ROUTE_THREADS / 32,
    EARLY = 2, /* float4 of a row that a thread loads at once: before the wait, or a row ahead */
};

/* Columns 4 i... of a row; zeros after its end. */
static __device__ __forceinline__ float4 load_weights4(const struct route_params &p,
                                                       const float *row, uint32_t i) {
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

/* Router row e, after the last the shared gate; NULL: not of this thread block. */
static __device__ __forceinline__ const float *router_row(const struct route_params &p, uint32_t e,
                                                          uint32_t end) {
    return e >= end ? NULL : e == p.experts ? p.shared_gate : p.router + (uint64_t)e * p.width;
}

/* Columns 4 i... of the thread block's router rows, times the norm's weight. */
static __device__ __forceinline__ void load_router(const struct route_params &p, uint32_t first,
                                                   uint32_t end, uint32_t i,
                                                   float4 (&w)[ROUTE_BLOCK_LOGITS]) {
    float4 norm = load_weights4(p, p.norm, i);
#pragma unroll
    for (int k = 0; k < ROUTE_BLOCK_LOGITS; k++)
        w[k] = load_weights4(p, router_row(p, first + k, end), i);
#pragma unroll
    for (int k = 0; k < ROUTE_BLOCK_LOGITS; k++)
        w[k] = make_float4(__fmul_rn(w[k].x, norm.x), __fmul_rn(w[k].y, norm.y),
                           __fmul_rn(w[k].z, norm.z), __fmul_rn(w[k].w, norm.w));
}

/* Written by this step: not through L1. */
static __device__ __forceinline__ float4 load_input4(const struct route_params &p, const float *row,
                                                     uint32_t i) {
    if (p.is_aligned && 4 * i < p.width)
        return __ldcg((const float4 *)row + i);
    return load_weights4(p, row, i);
}

static __device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
    sum = __fmaf_rn(a.x, b.x, sum);
    sum = __fmaf_rn(a.y, b.y, sum);
    sum = __fmaf_rn(a.z, b.z, sum);
    return __fmaf_rn(a.w, b.w, sum);
}

/* The sum of the row's squares, and its dot products with the router rows. */
struct row_sums {
    float v[1 + ROUTE_BLOCK_LOGITS];

    /* w: times the norm's weight. */
    __device__ __forceinline__ void add(float4 x, const float4 (&w)[ROUTE_BLOCK_LOGITS]) {
        v[0] = dot(x, x, v[0]);
#pragma unroll
        for (int i = 0; i < ROUTE_BLOCK_LOGITS; i++)
            v[1 + i] = dot(w[i], x, v[1 + i]);
    }

    /* Over the warp, lanes 16 apart first; all lanes get the sums. */
    __device__ __forceinline__ void reduce(void) {
#pragma unroll
        for (int lane = 16; lane > 0; lane /= 2)
#pragma unroll
            for (int i = 0; i < 1 + ROUTE_BLOCK_LOGITS; i++)
                v[i] = __fadd_rn(v[i], __shfl_xor_sync(~0u, v[i], lane));
    }
};

/* Orders as floats do, and is never 0. */
static __device__ __forceinline__ uint32_t key_of(float x) {
    return max(order_bits(x + 0.0f), 1u); /* -0 and 0 are equal */
}

/* Polls until another thread block has published a key, and sets it back to 0 for the next step. */
static __device__ __forceinline__ uint32_t take_key(uint32_t *at) {
    uint32_t key;
    do
        key = *(volatile uint32_t *)at;
    while (key == 0);
    *(volatile uint32_t *)at = 0;
    return key;
}

/* Rank of key `at`: how many of n keys (a multiple of 4) are larger, or equal with a lower index.
 */
static __device__ __forceinline__ uint32_t rank_of(const uint32_t *keys, uint32_t n, uint32_t key,
                                                   uint32_t at) {
    uint32_t rank = 0;
#pragma unroll 4
    for (uint32_t i = 0; i < n; i += 4) {
        uint4 k = *(const uint4 *)(keys + i);
        rank += k.x > key || (k.x == key && i < at);
        rank += k.y > key || (k.y == key && i + 1 < at);
        rank += k.z > key || (k.z == key && i + 2 < at);
        rank += k.w > key || (k.w == key && i + 3 < at);
    }
    return rank;
}

/* By a warp: the sum of e^(logit - largest) of all experts. */
static __device__ float sum_of_all(const uint32_t *keys, uint32_t n, float largest) {
    float sum = 0;
    for (uint32_t e = threadIdx.x % 32; e < n; e += 32)
        sum += expf(from_order_bits(keys[e]) - largest);
    return warp_sum(sum);
}

/* By a warp: weights of n chosen logits, the largest first. all: what their sum is divided by,
 * where that is not their own. */
static __device__ __forceinline__ void store_softmax(const float *top, uint32_t n, bool is_unnormed,
                                                     float all, float *weight) {
    uint32_t lane = threadIdx.x % 32;
    float sum = 0;
    for (uint32_t j = lane; j < n; j += 32)
        sum += expf(top[j] - top[0]);
    sum = warp_sum(sum);
    if (is_unnormed)
        sum = all;
    for (uint32_t j = lane; j < n; j += 32)
        weight[j] = expf(top[j] - top[0]) / sum;
}

/* By the thread block. A warp ranks 32 experts and keeps the best; then those of all warps are
 * ranked. Softmax over all experts, normalised again over the chosen, is softmax over the chosen.
 */
static __device__ void choose_experts(const struct route_params &p, uint32_t row, uint32_t *keys) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t groups = (p.experts + ROUTE_WARP_EXPERTS - 1) / ROUTE_WARP_EXPERTS;
    uint32_t kept = min(p.used, (uint32_t)ROUTE_WARP_EXPERTS), n = groups * kept;
    uint32_t *best = keys + groups * ROUTE_WARP_EXPERTS; /* (groups, kept): keys, */
    uint32_t *experts = best + n;                        /* and whose they are */
    float *top = (float *)(experts + n);                 /* (used): logits */
    uint32_t *from = p.keys + (uint64_t)row * (p.experts + 1);
    uint32_t *choice = p.choice + row * p.choice_stride;
    float *weight = p.weight + row * p.weight_stride;
    for (uint32_t g = warp; g < groups; g += WARPS) {
        uint32_t e = g * ROUTE_WARP_EXPERTS + lane, key = e < p.experts ? take_key(from + e) : 0;
        keys[e] = key;
        __syncwarp();
        uint32_t rank = rank_of(keys + g * ROUTE_WARP_EXPERTS, ROUTE_WARP_EXPERTS, key, lane);
        if (rank < kept) {
            best[g * kept + rank] = key;
            experts[g * kept + rank] = e;
        }
    }
    if (threadIdx.x == ROUTE_THREADS - 1) {
        float gate = p.shared_gate ? from_order_bits(take_key(from + p.experts)) : 0;
        choice[p.used] = p.experts;
        weight[p.used] = p.shared_gate ? 1 / (1 + expf(-gate)) : 0;
    }
    __syncthreads();
    /* Four threads a candidate. */
    for (uint32_t first = warp * 8; first < n; first += ROUTE_THREADS / 4) {
        uint32_t c = first + lane / 4, at = min(c, n - 1), key = best[at], rank = 0;
#pragma unroll 4
        for (uint32_t i = lane % 4; i < n; i += 4)
            rank += best[i] > key || (best[i] == key && i < at);
        rank += __shfl_xor_sync(~0u, rank, 1);
        rank += __shfl_xor_sync(~0u, rank, 2);
        if (c < n && lane % 4 == 0 && rank < p.used) {
            choice[rank] = experts[c];
            top[rank] = from_order_bits(best[c]);
        }
    }
    __syncthreads();
    if (warp == 0) {
        float all = p.is_unnormed ? sum_of_all(keys, p.experts, top[0]) : 0;
        store_softmax(top, p.used, p.is_unnormed, all, weight);
    }
}

/* By warp 0: adds the warps' sums and publishes the logits of router rows [first, end). */
static __device__ __forceinline__ void publish_logits(const struct route_params &p, uint32_t row,
                                                      uint32_t first, uint32_t end,
                                                      const float4 *warp_sums) {
    struct row_sums all = {};
    uint32_t lane = threadIdx.x % 32;
    if (lane < WARPS) {
        float4 v = warp_sums[lane];
        all.v[0] = v.x, all.v[1] = v.y, all.v[2] = v.z;
    }
    all.reduce();
    float factor = norm_factor(all.v[0], p.width, p.eps);
    if (first + lane < end)
        *(volatile uint32_t *)(p.keys + (uint64_t)row * (p.experts + 1) + first + lane) =
            key_of(__fmul_rn(lane ? all.v[2] : all.v[1], factor));
}

/* The first columns of a row. */
static __device__ __forceinline__ void load_row(const struct route_params &p, uint32_t row,
                                                float4 (&x)[EARLY]) {
#pragma unroll
    for (int e = 0; e < EARLY; e++)
        x[e] = load_input4(p, p.in + row * p.in_stride, threadIdx.x + e * ROUTE_THREADS);
}

extern "C" __global__ void __maxnreg__(64) route(const __grid_constant__ struct route_params p) {
    extern __shared__ __align__(16) uint32_t keys[];
    __shared__ float4 warp_sums[2][WARPS]; /* of two rows in turn: one may still be read */
    uint32_t n = p.experts + (p.shared_gate != NULL);
    uint32_t first = blockIdx.x * n / gridDim.x, end = (blockIdx.x + 1) * n / gridDim.x;
    float4 w[EARLY][ROUTE_BLOCK_LOGITS];
#pragma unroll
    for (int e = 0; e < EARLY; e++)
        load_router(p, first, end, threadIdx.x + e * ROUTE_THREADS, w[e]);
    pdl_wait(p.io);
    pdl_launch_dependents();
    uint32_t n_rows = p.row_limit > 1 ? p.io.header->n_rows : 1, buffer = 0;
    float4 x[EARLY];
    load_row(p, blockIdx.y, x);
#pragma unroll 1
    for (uint32_t row = blockIdx.y; row < n_rows; row += gridDim.y, buffer ^= 1) {
        struct row_sums sum = {};
#pragma unroll
        for (int e = 0; e < EARLY; e++)
            sum.add(x[e], w[e]);
#pragma unroll 1
        for (uint32_t i = threadIdx.x + EARLY * ROUTE_THREADS; 4 * i < p.width;
             i += ROUTE_THREADS) {
            float4 more[ROUTE_BLOCK_LOGITS];
            load_router(p, first, end, i, more);
            sum.add(load_input4(p, p.in + row * p.in_stride, i), more);
        }
        if (row + gridDim.y < n_rows)
            load_row(p, row + gridDim.y, x);
        sum.reduce();
        if (threadIdx.x % 32 == 0)
            warp_sums[buffer][threadIdx.x / 32] = make_float4(sum.v[0], sum.v[1], sum.v[2], 0);
        __syncthreads();
        if (threadIdx.x < 32)
            publish_logits(p, row, first, end, warp_sums[buffer]);
    }
    if (blockIdx.x < p.topk_blocks)
#pragma unroll 1
        for (uint32_t row = blockIdx.y + blockIdx.x * gridDim.y; row < n_rows;
             row += p.topk_blocks * gridDim.y) {
            choose_experts(p, row, keys);
            __syncthreads();
        }
}

/* ---- many rows --------------------------------------------------------------------------------
 *
 * The same sums for rows of up to 4 * ROUTE_THREADS columns, 16 rows a thread block, which keeps
 * them in registers and reads the router once. Warp w has the columns that warp w has above; a
 * thread has four rows and the columns of lanes l, l + 8, l + 16 and l + 24, so that the first two
 * levels of the sum are its own and three are left. Each warp copies its part of the router rows,
 * 512 bytes, some rows ahead. Then a warp chooses for a row. */

enum {
    THREAD_ROWS = 4,
    WARP_SUMS = ROUTE_WIDE_BATCH * ROUTE_WIDE_ROWS,
    SLOT_BYTES = 512, /* a warp's part of a router row */
};

/* A thread's columns of a row. */
struct columns {
    float4 v[4];
};

static __device__ __forceinline__ struct columns load_columns(const struct route_params &p,
                                                              const float *row, uint32_t first) {
    struct columns c;
#pragma unroll
    for (int h = 0; h < 4; h++)
        c.v[h] = load_input4(p, row, first + 8 * h);
    return c;
}

/* The thread's part of a dot product: each lane's columns, then lanes 16 apart, then 8. */
static __device__ __forceinline__ float dot_columns(const struct columns &w,
                                                    const struct columns &x) {
    float s[4];
#pragma unroll
    for (int h = 0; h < 4; h++)
        s[h] = dot(w.v[h], x.v[h], 0);
    return __fadd_rn(__fadd_rn(s[0], s[2]), __fadd_rn(s[1], s[3]));
}

/* Adds lanes 4, 2 and 1 apart; lane l of eight has row l / 2 of its four in the end. */
static __device__ __forceinline__ void store_sums(const float (&s)[THREAD_ROWS], float *sums) {
    uint32_t lane = threadIdx.x % 32;
    bool is_upper = lane & 4;
    float a[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float other = __shfl_xor_sync(~0u, is_upper ? s[i] : s[i + 2], 4);
        a[i] = __fadd_rn(is_upper ? s[i + 2] : s[i], other);
    }
    is_upper = lane & 2;
    float other = __shfl_xor_sync(~0u, is_upper ? a[0] : a[1], 2);
    float v = __fadd_rn(is_upper ? a[1] : a[0], other);
    v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 1));
    if (lane % 2 == 0)
        sums[lane / 8 * THREAD_ROWS + lane / 2 % 4] = v;
}

/* The warps' sums, 8 apart first. */
template <int N> static __device__ __forceinline__ float add_warps(const float *sums) {
    if constexpr (N == WARPS)
        return sums[0];
    else
        return __fadd_rn(add_warps<2 * N>(sums), add_warps<2 * N>(sums + N * WARP_SUMS));
}

/* A warp's router rows in flight: row e is in slot e % ROUTE_WIDE_SLOTS. */
struct router_ring {
    uint32_t at, n; /* shared memory; rows of the router */

    __device__ __forceinline__ void copy(const struct route_params &p, uint32_t e) const {
        uint32_t lane = threadIdx.x % 32, i = threadIdx.x; /* float4 of the row */
        if (e < n)
            cp_async_16_or_zero(at + e % ROUTE_WIDE_SLOTS * SLOT_BYTES + lane * 16,
                                router_row(p, e, n) + (4 * i < p.width ? 4 * i : 0),
                                4 * i < p.width);
        cp_async_commit();
    }

    /* By all lanes: row e, times the norm's weights. The slot of the row before it is free then. */
    __device__ __forceinline__ struct columns take(uint32_t e, const struct columns &norm) const {
        struct columns w;
        cp_async_wait<ROUTE_WIDE_SLOTS - 2>();
        __syncwarp();
        const float4 *from =
            (const float4 *)__cvta_shared_to_generic(at + e % ROUTE_WIDE_SLOTS * SLOT_BYTES) +
            threadIdx.x % 8;
#pragma unroll
        for (int h = 0; h < 4; h++) {
            float4 v = from[8 * h], m = norm.v[h];
            w.v[h] = make_float4(__fmul_rn(v.x, m.x), __fmul_rn(v.y, m.y), __fmul_rn(v.z, m.z),
                                 __fmul_rn(v.w, m.w));
        }
        return w;
    }
};

/* Router rows base ... of a batch. */
static __device__ __forceinline__ void
add_batch(const struct route_params &p, const struct columns (&x)[THREAD_ROWS],
          const struct columns &norm, const struct router_ring &ring, uint32_t base, float *sums) {
    uint32_t end = min(base + ROUTE_WIDE_BATCH, ring.n);
#pragma unroll 1
    for (uint32_t e = base; e < end; e++, sums += ROUTE_WIDE_ROWS) {
        struct columns w = ring.take(e, norm);
        ring.copy(p, e + ROUTE_WIDE_SLOTS - 1);
        float s[THREAD_ROWS];
#pragma unroll
        for (int r = 0; r < THREAD_ROWS; r++)
            s[r] = dot_columns(w, x[r]);
        store_sums(s, sums);
    }
}

/* By a warp: the best experts of a row, whose keys it consumes. */
static __device__ void choose_wide(const struct route_params &p, uint32_t row, uint32_t *keys,
                                   float *top) {
    uint32_t lane = threadIdx.x % 32, *choice = p.choice + row * p.choice_stride;
    float *weight = p.weight + row * p.weight_stride, all = 0;
    if (p.is_unnormed) {
        uint32_t largest = 0;
        for (uint32_t e = lane; e < p.experts; e += 32)
            largest = max(largest, keys[e]);
        all = sum_of_all(keys, p.experts, from_order_bits(__reduce_max_sync(~0u, largest)));
    }
#pragma unroll 1
    for (uint32_t i = 0; i < p.used; i++) {
        uint32_t best = 0, at = ~0u;
#pragma unroll 4
        for (uint32_t e = lane; e < p.experts; e += 32) {
            uint32_t key = keys[e];
            at = key > best ? e : at;
            best = max(best, key);
        }
        uint32_t most = __reduce_max_sync(~0u, best);
        at = __reduce_min_sync(~0u, best == most ? at : ~0u);
        if (lane == 0) {
            choice[i] = at;
            top[i] = from_order_bits(most);
            keys[at] = 0;
        }
        __syncwarp();
    }
    if (lane == 0) {
        float gate = p.shared_gate ? from_order_bits(keys[p.experts]) : 0;
        choice[p.used] = p.experts;
        weight[p.used] = p.shared_gate ? 1 / (1 + expf(-gate)) : 0;
    }
    store_softmax(top, p.used, p.is_unnormed, all, weight);
}

/* Shared memory: the warps' rings; sums (warp, router row of a batch, row); keys (row, E + 1);
 * logits of the rows' best. */
extern "C" __global__ void __launch_bounds__(ROUTE_THREADS, 1)
    route_wide(const __grid_constant__ struct route_params p) {
    extern __shared__ __align__(16) uint32_t keys[];
    __shared__ float factors[ROUTE_WIDE_ROWS];
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = warp * 32 + lane % 8;
    uint32_t n = p.experts + (p.shared_gate != NULL), stride = p.experts + 1;
    float *sums = (float *)keys + WARPS * ROUTE_WIDE_SLOTS * (SLOT_BYTES / 4);
    uint32_t *logits = (uint32_t *)sums + WARPS * WARP_SUMS;
    float *top = (float *)(logits + ROUTE_WIDE_ROWS * stride);
    struct columns x[THREAD_ROWS], norm = load_columns(p, p.norm, column);
    const struct router_ring ring = {smem_addr(keys) + warp * (ROUTE_WIDE_SLOTS * SLOT_BYTES), n};
    for (uint32_t e = 0; e < ROUTE_WIDE_SLOTS - 1; e++)
        ring.copy(p, e);
    pdl_wait(p.io);
    pdl_launch_dependents();
    uint32_t n_rows = p.io.header->n_rows, first = blockIdx.x * ROUTE_WIDE_ROWS;
    if (first >= n_rows) {
        cp_async_wait_all();
        return;
    }
    float squares[THREAD_ROWS];
#pragma unroll
    for (int r = 0; r < THREAD_ROWS; r++) {
        uint32_t row = min(first + lane / 8 * THREAD_ROWS + r, n_rows - 1);
        x[r] = load_columns(p, p.in + row * p.in_stride, column);
        squares[r] = dot_columns(x[r], x[r]);
    }
    store_sums(squares, sums + warp * WARP_SUMS);
    __syncthreads();
    if (threadIdx.x < ROUTE_WIDE_ROWS)
        factors[threadIdx.x] = norm_factor(add_warps<1>(sums + threadIdx.x), p.width, p.eps);
    __syncthreads();
#pragma unroll 1
    for (uint32_t base = 0; base < n; base += ROUTE_WIDE_BATCH) {
        add_batch(p, x, norm, ring, base, sums + warp * WARP_SUMS);
        __syncthreads();
        uint32_t e = base + threadIdx.x / ROUTE_WIDE_ROWS, row = threadIdx.x % ROUTE_WIDE_ROWS;
        if (e < n)
            logits[row * stride + e] =
                key_of(__fmul_rn(add_warps<1>(sums + threadIdx.x), factors[row]));
        __syncthreads();
    }
    if (first + warp < n_rows)
        choose_wide(p, first + warp, logits + warp * stride, top + warp * p.used);
}
