/* attend_fallback.cu - ATTEND of plans of many rows, first part: queries normed and turned, and the
 * cache. And the second part for all widths and types that attend_rows.cu has not: plain
 * arithmetic, a warp to a position, then a thread to a column. */
#include "backend/cuda/kernels/attend_split.cuh"
#include "quant/q4_0.h"
#include "quant/q8_0.h"

/* Of enum dtype, whose header is for C alone. */
enum { CACHE_F32 = 0, CACHE_F16 = 1, CACHE_Q4_0 = 2, CACHE_Q8_0 = 8 };

/* ---- the cache ------------------------------------------------------------------------------ */

static __device__ __forceinline__ float warp_min(float x) {
    return -warp_max(-x);
}

/* The same bits as src/quant/encode.c: so no fused multiply-adds here. A lane has a value. */
static __device__ void encode_q8_0(uint8_t *to, float x) {
    uint32_t lane = threadIdx.x % 32;
    float low = warp_min(x), high = warp_max(x);
    float scale = __fdiv_rn(-low > high ? -low : high, 127.0f);
    uint16_t d = f16_from_f32_clamped(scale);
    float base = scale <= F16_MAX ? scale : f16_to_f32(d);
    float factor = base != 0 ? __fdiv_rn(1.0f, base) : 0.0f;
    if (!(factor <= FLT_MAX))
        factor = 0;
    float v = __fmul_rn(x, factor), size = v < 0 ? -v : v;
    size = size > 127 ? 127 : size;
    int whole = (int)size;
    whole += __fsub_rn(size, (float)whole) >= 0.5f;
    to[2 + lane] = (uint8_t)(int8_t)(v < 0 ? -whole : whole);
    if (lane == 0)
        *(uint16_t *)to = d;
}

/* encode.h's f16_from_scale. */
static __device__ uint16_t half_of_scale(float scale) {
    if (scale == 0)
        return 0;
    uint16_t half = f16_from_f32_clamped(scale);
    float found = f16_to_f32(half), lost = scale < 0 ? found - scale : scale - found;
    return (uint16_t)(half + ((half & 0x7c00) == 0 && lost > 0));
}

static __device__ void encode_q4_0(uint8_t *to, float x) {
    uint32_t lane = threadIdx.x % 32;
    float low = warp_min(x), high = warp_max(x);
    uint16_t d = half_of_scale(__fdiv_rn(-low > high ? low : high, -8.0f));
    float scale = f16_to_f32(d), factor = scale != 0 ? __fdiv_rn(1.0f, scale) : 0.0f;
    float v = __fadd_rn(__fmul_rn(x, factor), 8.0f);
    v = v < 0 ? 0 : v;
    v = v > 15 ? 15 : v;
    uint32_t q = __float_as_uint(__fadd_rn(v, 12582912.0f)) & 15;
    uint32_t upper = __shfl_down_sync(0xffffffffu, q, 16);
    if (lane < 16)
        to[2 + lane] = (uint8_t)(q | upper << 4);
    if (lane == 0)
        *(uint16_t *)to = d;
}

/* A head from shared memory into the cache, by one warp. */
static __device__ void encode(const struct attend_params &p, uint8_t *to, const float *x) {
    uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = lane; i < p.head_width; i += 32) {
        if (p.type == CACHE_F32)
            ((float *)to)[i] = x[i];
        else if (p.type == CACHE_F16)
            ((__half *)to)[i] = half_of(x[i]);
        else if (p.type == CACHE_Q8_0)
            encode_q8_0(to + i / 32 * sizeof(struct q8_0), x[i]);
        else
            encode_q4_0(to + i / 32 * sizeof(struct q4_0), x[i]);
    }
}

/* A warp takes a query, key or value head of a row. */
extern "C" __global__ void __launch_bounds__(THREADS)
    attend_prepare(const __grid_constant__ struct attend_params p) {
    __shared__ float room[ATTEND_WARPS][ATTEND_MAX_WIDTH];
    pdl_launch_dependents();
    pdl_wait(p.io);
    uint32_t warp = threadIdx.x / 32, d = p.head_width;
    uint32_t heads = p.heads + 2 * p.kv_heads, items = p.io.header->n_rows * heads;
    float *x = room[warp];
    for (uint32_t i = blockIdx.x * ATTEND_WARPS + warp; i < items; i += gridDim.x * ATTEND_WARPS) {
        uint32_t row = i / heads, head = i % heads;
        const float *in = p.in + row * p.in_stride;
        struct io_row at = p.io.rows[row];
        struct raw_head<ATTEND_MAX_WIDTH / 64, 0> raw;
        if (head < p.heads) {
            raw.load(p, in + head * p.q_stride, row);
            raw.load_norm(p, p.q_norm);
            raw.make(p, p.q_norm, row, x);
            raw.keep(p, p.query + ((uint64_t)row * p.heads + head) * d);
        } else if (head < p.heads + p.kv_heads) {
            head -= p.heads;
            raw.load(p, in + p.k_column + head * d, row);
            raw.load_norm(p, p.k_norm);
            raw.make(p, p.k_norm, row, x);
            raw.keep(p, x);
            __syncwarp();
            encode(p, p.keys + cache_at(p, at.slot, head, at.position), x);
        } else {
            head -= p.heads + p.kv_heads;
            encode(p, p.values + cache_at(p, at.slot, head, at.position),
                   in + p.v_column + head * d);
        }
        __syncwarp();
    }
}

/* ---- plain arithmetic ----------------------------------------------------------------------- */

/* Values i and i + 1 of a position; i is even. */
template <int TYPE>
static __device__ __forceinline__ float2 decode_pair(const uint8_t *row, uint32_t i) {
    if (TYPE == CACHE_F32)
        return *(const float2 *)(row + 4 * i);
    if (TYPE == CACHE_F16)
        return __half22float2(*(const __half2 *)(row + 2 * i));
    if (TYPE == CACHE_Q8_0) {
        const struct q8_0 *b = (const struct q8_0 *)row + i / 32;
        float d = f16_to_f32(b->d);
        uint32_t q = *(const uint16_t *)(b->qs + i % 32);
        return make_float2(d * (float)(int8_t)(q & 255), d * (float)(int8_t)(q >> 8));
    }
    const struct q4_0 *b = (const struct q4_0 *)row + i / 32;
    float d = f16_to_f32(b->d);
    uint32_t q = *(const uint16_t *)(b->qs + i % 16) >> (i % 32 / 16 * 4);
    return make_float2(d * (float)((int)(q & 15) - 8), d * (float)((int)(q >> 8 & 15) - 8));
}

struct any_shared {
    alignas(16) float query[ATTEND_TILE * ATTEND_MAX_WIDTH];
    float scores[ATTEND_TILE][SCORE_STRIDE];
    float mixed[ATTEND_TILE * ATTEND_MAX_WIDTH]; /* (slices, queries, d) */
    struct fold_shared fold;
};

/* A warp takes four positions at a time. */
template <int TYPE>
static __device__ void score_any(const struct attend_params &p, struct any_shared &s,
                                 const uint8_t *keys, uint32_t n, uint32_t queries) {
    constexpr int ROWS = 4;
    uint32_t lane = threadIdx.x % 32, d = p.head_width;
    for (uint32_t first = threadIdx.x / 32 * ROWS; first < n; first += ATTEND_WARPS * ROWS) {
        float sum[ROWS][ATTEND_TILE] = {};
        for (uint32_t i = 2 * lane; i < d; i += 64) {
            float2 k[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                k[r] = decode_pair<TYPE>(keys + (uint64_t)min(first + r, n - 1) * p.row_bytes, i);
#pragma unroll
            for (uint32_t q = 0; q < ATTEND_TILE; q++) {
                if (q >= queries)
                    break;
                float2 x = *(const float2 *)(s.query + q * d + i);
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    sum[r][q] = fmaf(x.y, k[r].y, fmaf(x.x, k[r].x, sum[r][q]));
            }
        }
#pragma unroll
        for (uint32_t q = 0; q < ATTEND_TILE; q++) {
            if (q >= queries)
                break;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float all = warp_sum(sum[r][q]);
                if (lane == 0 && first + r < n)
                    s.scores[q][first + r] = all;
            }
        }
    }
}

/* A thread takes two columns, and every slices-th position. */
template <int TYPE>
static __device__ void mix_any(const struct attend_params &p, struct any_shared &s,
                               const uint8_t *values, uint32_t n, uint32_t queries) {
    uint32_t d = p.head_width, pairs = d / 2, slices = THREADS / pairs;
    uint32_t slice = threadIdx.x / pairs, column = threadIdx.x % pairs * 2;
    if (slice >= slices)
        return;
    float2 sum[ATTEND_TILE] = {};
#pragma unroll 4
    for (uint32_t i = slice; i < n; i += slices) {
        float2 v = decode_pair<TYPE>(values + (uint64_t)i * p.row_bytes, column);
#pragma unroll
        for (int q = 0; q < ATTEND_TILE; q++) {
            float weight = s.scores[q][i];
            sum[q].x = fmaf(weight, v.x, sum[q].x), sum[q].y = fmaf(weight, v.y, sum[q].y);
        }
    }
#pragma unroll
    for (uint32_t q = 0; q < ATTEND_TILE; q++)
        if (q < queries)
            *(float2 *)(s.mixed + (slice * queries + q) * d + column) = sum[q];
}

template <int TYPE>
static __device__ __forceinline__ void attend_any(const struct attend_params &p) {
    __shared__ struct any_shared s;
    pdl_wait(p.io);
    uint32_t tid = threadIdx.x, warp = tid / 32, d = p.head_width, slices = THREADS / (d / 2);
    uint32_t n_rows = p.io.header->n_rows, units = n_rows * p.kv_heads * p.tiles;
    uint64_t items = (uint64_t)units * most_runs(p, n_rows);
    for (uint32_t i = tid; i < ATTEND_TILE * SCORE_STRIDE; i += THREADS)
        s.scores[0][i] = 0; /* queries that a tile lacks have no weight */
    for (uint64_t i = blockIdx.x; i < items; i += gridDim.x) {
        uint32_t run = (uint32_t)(i / units);
        uint32_t unit = (uint32_t)(i % units), per_row = p.kv_heads * p.tiles;
        struct work w = work_of(p, unit / per_row, 1, unit % per_row);
        if (run >= runs_of(p, w.e))
            continue;
        const float *query = p.query + ((uint64_t)w.row * p.heads + w.first_head) * d;
        __syncthreads();
        forget(s.fold);
        for (uint32_t e = tid; e < w.n_queries * d; e += THREADS)
            s.query[e] = query[e];
        struct mixed<0> m = {};
        uint32_t first = run * run_splits(p, w.e);
        uint32_t end = min(first + run_splits(p, w.e), w.e.splits);
        for (uint32_t split = first; split < end; split++) {
            uint32_t begin = split * w.e.length, n = min(w.e.length, w.e.n - begin);
            uint64_t at = cache_at(p, w.slot, w.kv_head, begin);
            __syncthreads();
            score_any<TYPE>(p, s, p.keys + at, n, w.n_queries);
            __syncthreads();
            if (warp < w.n_queries)
                weigh<PAGE>(s.scores[warp], p.scale * LOG2_E, n, s.fold, warp);
            __syncthreads();
            mix_any<TYPE>(p, s, p.values + at, n, w.n_queries);
            __syncthreads();
#pragma unroll
            for (int j = 0; j < m.E; j++) {
                uint32_t e = m.at(j), values = w.n_queries * d;
                if (e >= values)
                    break;
#pragma unroll
                for (int v = 0; v < m.V; v++) {
                    float sum = s.mixed[e + v];
                    for (uint32_t k = 1; k < slices; k++)
                        sum += s.mixed[k * values + e + v];
                    m.x[j][v] = fold_value(m.x[j][v], sum, s.fold.factors[0][e / d]);
                }
            }
        }
        finish<0>(p, w, s.fold, m, run);
    }
}

#define ANY_KERNEL(name, TYPE)                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS)                                          \
        attend_any_##name(const __grid_constant__ struct attend_params p) {                        \
        pdl_launch_dependents();                                                                   \
        attend_any<TYPE>(p);                                                                       \
    }
ANY_KERNEL(f32, CACHE_F32)
ANY_KERNEL(f16, CACHE_F16)
ANY_KERNEL(q8_0, CACHE_Q8_0)
ANY_KERNEL(q4_0, CACHE_Q4_0)
