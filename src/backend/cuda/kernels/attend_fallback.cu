/* attend_fallback.cu - ATTEND of all widths and cache types that attend_batch.cu has not, by plain
 * fp32 arithmetic; and the kernel before all that have many rows, which fills the KV cache.
 *
 * attend_rope_store: a warp a head of a row. Queries are normed and rotated to memory, for tensor
 * cores scaled and rounded to fp16; keys, normed and rotated, and values are stored into the cache,
 * encoded as its type. It clears the counters of attend_wide.cu.
 *
 * attend_fallback_TYPE: blocks loop over (query tile of one row, chunk of splits). QK: a warp has
 * four positions at a time; PV: a thread has two columns. Partials are combined as attend_split.cuh
 * says. */
#include "backend/cuda/kernels/attend_quants.cuh"
#include "backend/cuda/kernels/attend_split.cuh"

/* ---- encoding a head ------------------------------------------------------------------------- */

/* A head into the cache, by one warp. */
static __device__ void encode(const struct attend_params &p, uint8_t *to, const float *x) {
    uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = lane; i < p.head_width; i += 32) {
        if (p.type == CACHE_F32)
            ((float *)to)[i] = x[i];
        else if (p.type == CACHE_F16)
            ((__half *)to)[i] = f16_clamped(x[i]);
        else if (p.type == CACHE_Q8_0)
            encode_q8_0(to + i / 32 * sizeof(struct q8_0), x[i]);
        else
            encode_q4_0(to + i / 32 * sizeof(struct q4_0), x[i]);
    }
}

/* A query into memory: as it is, or as pack_query() has it. */
template <class Regs>
static __device__ __forceinline__ void store_query(const struct attend_params &p, const Regs &regs,
                                                   uint64_t head) {
    uint32_t lane = threadIdx.x % 32;
    if (!p.query_factors) {
        regs.store(p, (float *)p.queries + head * p.head_width);
        return;
    }
    int up = query_exponent(regs.x);
    float factor = __int_as_float((127 + up) << 23);
    uint32_t *to = (uint32_t *)((__half *)p.queries + head * p.head_width) + lane;
#pragma unroll
    for (int m = 0; m < ATTEND_MAX_WIDTH / 64; m++)
        if (regs.has(p, m))
            to[32 * m] = f16x2_of(regs.x[m].x * factor, regs.x[m].y * factor);
    if (lane == 0)
        p.query_factors[head] = score_factor_of(p, up);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attend_rope_store(const __grid_constant__ struct attend_params p) {
    __shared__ float scratch[ATTEND_WARPS][ATTEND_MAX_WIDTH];
    pdl_launch_dependents();
    pdl_wait(p.io);
    uint32_t warp = threadIdx.x / 32, d = p.head_width;
    uint32_t heads = p.heads + 2 * p.kv_heads, items = p.io.header->n_rows * heads;
    float *x = scratch[warp];
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < p.n_wide_work;
         i += gridDim.x * THREADS)
        p.wide_work[i] = 0;
    for (uint32_t i = blockIdx.x * ATTEND_WARPS + warp; i < items; i += gridDim.x * ATTEND_WARPS) {
        uint32_t row = i / heads, head = i % heads;
        const float *in = p.in + row * p.in_stride;
        struct io_row at = p.io.rows[row];
        struct head_regs<ATTEND_MAX_WIDTH / 64, 0> regs;
        if (head < p.heads) {
            regs.load(p, in + head * p.q_stride, row);
            regs.load_norm(p, p.q_norm);
            regs.norm_and_rotate(p, p.q_norm, row, x);
            store_query(p, regs, (uint64_t)row * p.heads + head);
        } else if (head < p.heads + p.kv_heads) {
            head -= p.heads;
            regs.load(p, in + p.k_column + head * d, row);
            regs.load_norm(p, p.k_norm);
            regs.norm_and_rotate(p, p.k_norm, row, x);
            regs.store(p, x);
            __syncwarp();
            encode(p, p.keys + cache_offset(p, at.slot, head, at.position), x);
        } else {
            head -= p.heads + p.kv_heads;
            encode(p, p.values + cache_offset(p, at.slot, head, at.position),
                   in + p.v_column + head * d);
        }
        __syncwarp();
    }
}

/* ---- attention in fp32 ----------------------------------------------------------------------- */

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

struct fallback_shared {
    alignas(16) float query[ATTEND_TILE_QUERIES * ATTEND_MAX_WIDTH];
    float scores[ATTEND_TILE_QUERIES][SCORE_STRIDE];  /* then softmax weights */
    float pv[ATTEND_TILE_QUERIES * ATTEND_MAX_WIDTH]; /* (thread rows, queries, d) */
    struct combine_shared combine;
};

template <int TYPE>
static __device__ void qk(const struct attend_params &p, struct fallback_shared &s,
                          const uint8_t *keys, uint32_t n, uint32_t queries) {
    constexpr int POSITIONS = 4;
    uint32_t lane = threadIdx.x % 32, d = p.head_width;
    for (uint32_t first = threadIdx.x / 32 * POSITIONS; first < n;
         first += ATTEND_WARPS * POSITIONS) {
        float sum[POSITIONS][ATTEND_TILE_QUERIES] = {};
        for (uint32_t i = 2 * lane; i < d; i += 64) {
            float2 k[POSITIONS];
#pragma unroll
            for (int r = 0; r < POSITIONS; r++)
                k[r] = decode_pair<TYPE>(keys + (uint64_t)min(first + r, n - 1) * p.row_bytes, i);
#pragma unroll
            for (uint32_t q = 0; q < ATTEND_TILE_QUERIES; q++) {
                if (q >= queries)
                    break;
                float2 x = *(const float2 *)(s.query + q * d + i);
#pragma unroll
                for (int r = 0; r < POSITIONS; r++)
                    sum[r][q] = fmaf(x.y, k[r].y, fmaf(x.x, k[r].x, sum[r][q]));
            }
        }
#pragma unroll
        for (uint32_t q = 0; q < ATTEND_TILE_QUERIES; q++) {
            if (q >= queries)
                break;
#pragma unroll
            for (int r = 0; r < POSITIONS; r++) {
                float score = warp_sum(sum[r][q]);
                if (lane == 0 && first + r < n)
                    s.scores[q][first + r] = score;
            }
        }
    }
}

/* PV has the threads of a block in rows of d / 2, a thread two columns: thread row r takes
 * positions r, r + rows ... */
static __device__ __forceinline__ uint32_t n_thread_rows(const struct attend_params &p) {
    return THREADS / (p.head_width / 2);
}

template <int TYPE>
static __device__ void pv(const struct attend_params &p, struct fallback_shared &s,
                          const uint8_t *values, uint32_t n, uint32_t queries) {
    uint32_t d = p.head_width, pairs = d / 2, rows = n_thread_rows(p);
    uint32_t row = threadIdx.x / pairs, column = threadIdx.x % pairs * 2;
    if (row >= rows)
        return;
    float2 sum[ATTEND_TILE_QUERIES] = {};
#pragma unroll 4
    for (uint32_t i = row; i < n; i += rows) {
        float2 v = decode_pair<TYPE>(values + (uint64_t)i * p.row_bytes, column);
#pragma unroll
        for (int q = 0; q < ATTEND_TILE_QUERIES; q++) {
            float weight = s.scores[q][i];
            sum[q].x = fmaf(weight, v.x, sum[q].x), sum[q].y = fmaf(weight, v.y, sum[q].y);
        }
    }
#pragma unroll
    for (uint32_t q = 0; q < ATTEND_TILE_QUERIES; q++)
        if (q < queries)
            *(float2 *)(s.pv + (row * queries + q) * d + column) = sum[q];
}

/* A split's O, summed over the thread rows, into the chunk's. */
static __device__ __forceinline__ void combine_split(struct out_regs<0> &m,
                                                     const struct fallback_shared &s,
                                                     uint32_t n_queries, uint32_t d,
                                                     uint32_t rows) {
#pragma unroll
    for (int j = 0; j < m.E; j++) {
        uint32_t e = m.at(j), values = n_queries * d;
        if (e >= values)
            break;
#pragma unroll
        for (int v = 0; v < m.V; v++) {
            float sum = s.pv[e + v];
            for (uint32_t k = 1; k < rows; k++)
                sum += s.pv[k * values + e + v];
            m.x[j][v] = combine_value(m.x[j][v], sum, s.combine.rescale[0][e / d]);
        }
    }
}

template <int TYPE>
static __device__ __forceinline__ void attend_fallback(const struct attend_params &p) {
    __shared__ struct fallback_shared s;
    pdl_wait(p.io);
    uint32_t tid = threadIdx.x, warp = tid / 32, d = p.head_width, rows = n_thread_rows(p);
    uint32_t n_rows = p.io.header->n_rows, tiles = n_rows * p.kv_heads * p.tiles_per_kv;
    uint64_t items = (uint64_t)tiles * max_chunks(p, n_rows);
    for (uint32_t i = tid; i < ATTEND_TILE_QUERIES * SCORE_STRIDE; i += THREADS)
        s.scores[0][i] = 0; /* weights of queries that a tile lacks */
    for (uint64_t i = blockIdx.x; i < items; i += gridDim.x) {
        uint32_t chunk = (uint32_t)(i / tiles);
        uint32_t index = (uint32_t)(i % tiles), per_row = p.kv_heads * p.tiles_per_kv;
        struct query_tile tile = query_tile_of(p, index / per_row, 1, index % per_row);
        if (chunk >= n_chunks(p, tile.splits))
            continue;
        const float *query =
            (const float *)p.queries + ((uint64_t)tile.row * p.heads + tile.first_head) * d;
        __syncthreads();
        reset_state(s.combine);
        for (uint32_t e = tid; e < tile.n_queries * d; e += THREADS)
            s.query[e] = query[e];
        struct out_regs<0> m = {};
        uint32_t first = chunk * chunk_splits(p, tile.splits);
        uint32_t end = min(first + chunk_splits(p, tile.splits), tile.splits.count);
        for (uint32_t split = first; split < end; split++) {
            uint32_t begin = split * tile.splits.length;
            uint32_t n = min(tile.splits.length, tile.splits.n_positions - begin);
            uint64_t at = cache_offset(p, tile.slot, tile.kv_head, begin);
            __syncthreads();
            qk<TYPE>(p, s, p.keys + at, n, tile.n_queries);
            __syncthreads();
            if (warp < tile.n_queries)
                softmax<PAGE>(s.scores[warp], p.scale * LOG2_E, n, s.combine, warp);
            __syncthreads();
            pv<TYPE>(p, s, p.values + at, n, tile.n_queries);
            __syncthreads();
            combine_split(m, s, tile.n_queries, d, rows);
        }
        combine_and_store<0>(p, tile, s.combine, m, chunk);
    }
}

#define FALLBACK_KERNEL(name, TYPE)                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS)                                          \
        attend_fallback_##name(const __grid_constant__ struct attend_params p) {                   \
        pdl_launch_dependents();                                                                   \
        attend_fallback<TYPE>(p);                                                                  \
    }
FALLBACK_KERNEL(f32, CACHE_F32)
FALLBACK_KERNEL(f16, CACHE_F16)
FALLBACK_KERNEL(q8_0, CACHE_Q8_0)
FALLBACK_KERNEL(q4_0, CACHE_Q4_0)
