/* attend.cu - ATTEND: head norms, rotary embedding, cache, split attention.
 *
 * A sequence's positions come in splits: of 32 where it is short, so that many SMs have something
 * to do, up to a page (256) where it is long; how long depends on its own length alone. A unit is
 * up to 8 queries that share keys and values: heads of a row, or of several rows that follow each
 * other in a segment. Blocks take (unit, split) in turn. A split gives each query a maximum, a sum
 * and a mixed value, which are folded in order, 16 splits into one, then these: by the block that
 * arrives last, or (plans of many rows) by the one that walks all 16.
 *
 * Maxima are rounded up to whole powers of two, so that folding only ever multiplies by powers of
 * two: exact, and no exponentials in that chain.
 *
 * Heads of 64, 128 and 256 over halves use the tensor cores. Keys and values come in fragment
 * order, by copies that run ahead through shared memory; 4 d bytes a position, read once a unit.
 * Queries and weights, which are f32, go in as two halves each, high and low: 22 bits of them
 * count. For scores A is 16 positions x 16 values of K and B 8 queries; for mixing A is 8 queries'
 * high and 8 queries' low weights x 16 positions and B is V x 8 columns. All other widths and
 * types: plain arithmetic, a warp to a position, then a thread to a column. */
#include <float.h>

#include "backend/cuda/attend.h"
#include "backend/cuda/device.cuh"
#include "quant/q4_0.h"
#include "quant/q8_0.h"

/* Of enum dtype, whose header is for C alone. */
enum { CACHE_F32 = 0, CACHE_F16 = 1, CACHE_Q4_0 = 2, CACHE_Q8_0 = 8 };

enum { THREADS = ATTEND_WARPS * 32, PAGE = IO_PAGE_POSITIONS };

static __device__ __forceinline__ float load_once(const float *p) {
    float x;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(p));
    return x;
}

/* ---- heads ---------------------------------------------------------------------------------- */

/* A head as a warp loads it: lane l has value l and every 32nd behind it, and the angles of every
 * 32nd pair. Loads that nothing waits for yet. */
template <int M> struct raw_head {
    float x[M];
    float2 turn[(M + 1) / 2];

    __device__ __forceinline__ void load(const struct attend_params &p, const float *from,
                                         uint32_t row) {
        uint32_t lane = threadIdx.x % 32;
        const float *angles = p.angles + (uint64_t)row * p.rotary;
#pragma unroll
        for (int m = 0; m < M; m++)
            x[m] = lane + 32 * m < p.head_width ? load_once(from + lane + 32 * m) : 0;
#pragma unroll
        for (int m = 0; m < (M + 1) / 2; m++) {
            bool is_there = lane + 32 * m < p.rotary / 2;
            const float *at = angles + 2 * (lane + 32 * m);
            turn[m].x = is_there ? load_once(at) : 1, turn[m].y = is_there ? load_once(at + 1) : 0;
        }
    }
};

/* It normed (where there is a norm), turned, in shared memory. */
template <int M>
static __device__ __forceinline__ void make_head(const struct attend_params &p,
                                                 const struct raw_head<M> &head, const float *norm,
                                                 float *to) {
    uint32_t lane = threadIdx.x % 32, d = p.head_width;
    float sum = 0, factor = 1;
    if (norm) {
#pragma unroll
        for (int m = 0; m < M; m++)
            sum = fmaf(head.x[m], head.x[m], sum);
        sum = __fdiv_rn(warp_sum(sum), (float)d);
        factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(sum, p.eps)));
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        uint32_t i = lane + 32 * m;
        if (i < d)
            to[i] = norm ? __fmul_rn(__fmul_rn(head.x[m], factor), norm[i]) : head.x[m];
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < (M + 1) / 2; m++) {
        uint32_t i = lane + 32 * m, half = p.rotary / 2;
        uint32_t a = p.has_neighbours ? 2 * i : i, b = p.has_neighbours ? a + 1 : i + half;
        if (i >= half)
            break;
        float cosine = head.turn[m].x, sine = head.turn[m].y, xa = to[a], xb = to[b];
        to[a] = fmaf(xa, cosine, -__fmul_rn(xb, sine));
        to[b] = fmaf(xb, cosine, __fmul_rn(xa, sine));
    }
    __syncwarp();
}

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
            ((uint16_t *)to)[i] = f16_from_f32_clamped(x[i]);
        else if (p.type == CACHE_Q8_0)
            encode_q8_0(to + i / 32 * sizeof(struct q8_0), x[i]);
        else
            encode_q4_0(to + i / 32 * sizeof(struct q4_0), x[i]);
    }
}

/* Bytes from the start of keys or values to a position of a slot for a KV head. */
static __device__ __forceinline__ uint64_t cache_at(const struct attend_params &p, uint32_t slot,
                                                    uint32_t head, uint32_t position) {
    uint64_t page = (uint64_t)p.pages[(uint64_t)slot * p.pages_per_slot + position / PAGE];
    return ((page * p.kv_heads + head) * PAGE + position % PAGE) * p.row_bytes;
}

/* A warp takes a query, key or value head of a row. */
extern "C" __global__ void __launch_bounds__(THREADS)
    attend_prepare(const __grid_constant__ struct attend_params p) {
    __shared__ float room[ATTEND_WARPS][ATTEND_MAX_WIDTH];
    pdl_launch();
    pdl_wait(p.io);
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = p.head_width;
    uint32_t heads = p.heads + 2 * p.kv_heads, items = p.io.header->n_rows * heads;
    float *x = room[warp];
    for (uint32_t i = blockIdx.x * ATTEND_WARPS + warp; i < items; i += gridDim.x * ATTEND_WARPS) {
        uint32_t row = i / heads, head = i % heads;
        const float *in = p.in + row * p.in_stride;
        struct io_row at = p.io.rows[row];
        struct raw_head<ATTEND_MAX_WIDTH / 32> raw;
        if (head < p.heads) {
            raw.load(p, in + head * p.q_stride, row);
            make_head(p, raw, p.q_norm, x);
            for (uint32_t c = lane; c < d; c += 32)
                p.query[((uint64_t)row * p.heads + head) * d + c] = x[c];
        } else if (head < p.heads + p.kv_heads) {
            head -= p.heads;
            raw.load(p, in + p.k_column + head * d, row);
            make_head(p, raw, p.k_norm, x);
            encode(p, p.keys + cache_at(p, at.slot, head, at.position), x);
        } else {
            head -= p.heads + p.kv_heads;
            encode(p, p.values + cache_at(p, at.slot, head, at.position),
                   in + p.v_column + head * d);
        }
        __syncwarp();
    }
}

/* ---- splits --------------------------------------------------------------------------------- */

/* How a row's positions are dealt out. */
struct extent {
    uint32_t n, length, splits, runs; /* positions; of a split; how many; pieces of work */
};

/* The shortest split that leaves no more than `most` of them. */
static __device__ __forceinline__ uint32_t split_length(uint32_t n, uint32_t most) {
    uint32_t length = ATTEND_SHORT;
    while (length < PAGE && (n + length - 1) / length > most)
        length *= 2;
    return length;
}

static __device__ __forceinline__ struct extent extent_of(const struct attend_params &p,
                                                          uint32_t position) {
    struct extent e;
    e.n = position + 1;
    e.length = split_length(e.n, p.max_splits);
    if (e.length == PAGE) /* long: a second level of folding is worth while */
        e.length = split_length(e.n, p.max_long_splits);
    e.splits = (e.n + e.length - 1) / e.length;
    e.runs = p.run_splits == 1 ? e.splits : (e.splits + ATTEND_FOLD - 1) / ATTEND_FOLD;
    return e;
}

/* A unit: the queries of some heads of a KV head, of a row or of several that follow each other. */
struct work {
    uint32_t unit;           /* its number, where its parts and counters lie */
    uint32_t row, n_rows;    /* all have splits of the same length */
    uint32_t slot, position; /* of the last row */
    uint32_t kv_head, first_head, n_heads, n_queries; /* n_queries = n_rows * n_heads */
    bool is_first_tile;
    struct extent e; /* of the last row */
};

/* index counts (KV head, tile) of the row. */
static __device__ __forceinline__ struct work work_of(const struct attend_params &p, uint32_t row,
                                                      uint32_t n_rows, uint32_t index) {
    uint32_t tile = index % p.tiles;
    struct io_row last = p.io.rows[row + n_rows - 1];
    struct work w;
    w.unit = row * p.kv_heads * p.tiles + index;
    w.row = row;
    w.n_rows = n_rows;
    w.slot = last.slot;
    w.position = last.position;
    w.kv_head = index / p.tiles;
    w.first_head = w.kv_head * p.group + tile * ATTEND_TILE;
    w.n_heads = min((uint32_t)ATTEND_TILE, p.group - tile * ATTEND_TILE);
    w.n_queries = n_rows * w.n_heads;
    w.is_first_tile = tile == 0;
    w.e = extent_of(p, w.position);
    return w;
}

/* Positions from `begin` on that a query sees, of `n` that the last row sees. */
static __device__ __forceinline__ uint32_t seen_by(const struct work &w, uint32_t query,
                                                   uint32_t begin) {
    uint32_t end = w.e.n - (w.n_rows - 1 - query / w.n_heads);
    return end > begin ? min(end - begin, w.e.length) : 0;
}

/* The most runs that a row of this step has; every warp for itself. */
static __device__ uint32_t most_runs(const struct attend_params &p, uint32_t n_rows) {
    uint32_t most = 0;
    for (uint32_t row = threadIdx.x % 32; row < n_rows; row += 32)
        most = max(most, extent_of(p, p.io.rows[row].position).runs);
    return __reduce_max_sync(0xffffffffu, most);
}

/* Rows are taken together where they follow each other in a segment. The first ones, in order. */
struct leaders {
    uint16_t row[ATTEND_MAX_ROWS + 1]; /* the last is n_rows */
    uint32_t n, runs;                  /* the most that one of them has */
};

static __device__ void find_leaders(const struct attend_params &p, struct leaders &l,
                                    uint32_t n_rows) {
    uint32_t lane = threadIdx.x % 32, count = 0, most = 0;
    for (uint32_t base = 0; base < n_rows; base += 32) {
        uint32_t row = base + lane;
        bool leads = false;
        if (row < n_rows) {
            struct io_row at = p.io.rows[row];
            uint32_t offset = row - p.io.segments[at.segment].first_row;
            struct extent e = extent_of(p, at.position);
            leads = offset % p.tile_rows == 0 || e.length != extent_of(p, at.position - 1).length;
            most = max(most, e.runs);
        }
        uint32_t mask = __ballot_sync(0xffffffffu, leads);
        if (leads)
            l.row[count + __popc(mask & ((1u << lane) - 1))] = (uint16_t)row;
        count += __popc(mask);
    }
    most = __reduce_max_sync(0xffffffffu, most);
    if (lane == 0)
        l.row[count] = (uint16_t)n_rows, l.n = count, l.runs = most;
}

/* ---- folding -------------------------------------------------------------------------------- */

/* 2^(a - b) for whole a <= b. */
static __device__ __forceinline__ float power(float a, float b) {
    int k = (int)(a - b);
    return k < -126 ? 0.0f : __int_as_float((127 + k) << 23);
}

/* What a query has seen: the maximum (a whole number, of scores to base 2) and the sum. */
struct seen {
    float max, sum;
};

/* Before the first split. */
static __device__ __forceinline__ struct seen seen_none(void) {
    struct seen s = {-1e30f, 0};
    return s;
}

/* Factors of the old and the new mixed value. */
struct factors {
    float old, now;
};

static __device__ __forceinline__ struct factors fold(struct seen *all, struct seen part) {
    float max = fmaxf(all->max, part.max);
    struct factors f = {power(all->max, max), power(part.max, max)};
    all->sum = fmaf(all->sum, f.old, __fmul_rn(part.sum, f.now));
    all->max = max;
    return f;
}

static __device__ __forceinline__ float fold_value(float x, float part, struct factors f) {
    return fmaf(x, f.old, __fmul_rn(part, f.now));
}

/* Mixed values (queries, d) of a unit as its block's threads have them: thread t has E vectors of V
 * values, those that begin at V (t + j THREADS). D is the kernel's width, or 0: any even one. */
template <int D> struct mixed {
    static constexpr int V = D ? 4 : 2, MOST = ATTEND_TILE * (D ? D : ATTEND_MAX_WIDTH);
    static constexpr int E = (MOST + V * THREADS - 1) / (V * THREADS);
    float x[E][V];

    static __device__ __forceinline__ uint32_t at(int j) {
        return (threadIdx.x + j * THREADS) * V;
    }
};

template <int V> static __device__ __forceinline__ void copy_vector(float *to, const float *from) {
    if (V == 4)
        *(float4 *)to = *(const float4 *)from;
    else
        *(float2 *)to = *(const float2 *)from;
}

/* The same from memory that other blocks wrote. */
template <int V> static __device__ __forceinline__ void fetch_vector(float *to, const float *from) {
    if (V == 4)
        *(float4 *)to = __ldcg((const float4 *)from);
    else
        *(float2 *)to = __ldcg((const float2 *)from);
}

struct fold_shared {
    struct seen seen[ATTEND_TILE];
    struct factors factors[ATTEND_FOLD][ATTEND_TILE];
    float sums[ATTEND_FOLD][ATTEND_TILE];
    bool is_last;
};

static __device__ __forceinline__ float *part_at(const struct attend_params &p, uint32_t unit,
                                                 uint32_t slot) {
    return p.parts + ((uint64_t)unit * p.slots + slot) * p.part_values;
}

template <int D>
static __device__ void store_part(const struct attend_params &p, const struct work &w,
                                  const struct fold_shared &s, const struct mixed<D> &m,
                                  uint32_t slot) {
    uint32_t n = w.n_queries * (D ? D : p.head_width);
    float *to = part_at(p, w.unit, slot);
#pragma unroll
    for (int j = 0; j < m.E; j++)
        if (m.at(j) < n)
            copy_vector<m.V>(to + m.at(j), m.x[j]);
    if (threadIdx.x < w.n_queries)
        ((struct seen *)(to + n))[threadIdx.x] = s.seen[threadIdx.x];
}

/* True in all threads of the block that is the last of `count` to come here. What the others wrote
 * before is seen then, and the counter is zero again. */
static __device__ bool is_last(struct fold_shared &s, uint32_t *counter, uint32_t count) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        s.is_last = atomicAdd(counter, 1u) == count - 1;
        if (s.is_last)
            *counter = 0;
    }
    __syncthreads();
    bool last = s.is_last;
    if (last)
        __threadfence();
    return last;
}

/* Factors for folding n parts into `all`, by warp q for query q: lane i has part i. What fold()
 * would say one after the other; maxima may be taken in any order. */
static __device__ __forceinline__ void fold_factors(const struct attend_params &p,
                                                    struct fold_shared &s, struct seen *all,
                                                    const float *from, uint32_t n) {
    uint32_t lane = threadIdx.x % 32, query = threadIdx.x / 32;
    float2 part = make_float2(-1e30f, 0);
    if (lane < n)
        part = __ldcg((const float2 *)(from + lane * p.part_values));
    float max = fmaxf(part.x, all->max);
#pragma unroll
    for (int d = 1; d < ATTEND_FOLD; d *= 2) {
        float other = __shfl_up_sync(0xffffffffu, max, d);
        max = lane >= d ? fmaxf(max, other) : max;
    }
    float before = __shfl_up_sync(0xffffffffu, max, 1);
    struct factors f = {power(lane ? before : all->max, max), power(part.x, max)};
    if (lane < n)
        s.factors[lane][query] = f, s.sums[lane][query] = part.y;
    __syncwarp();
    all->max = __shfl_sync(0xffffffffu, max, n - 1);
#pragma unroll
    for (uint32_t i = 0; i < ATTEND_FOLD; i++)
        if (i < n)
            all->sum = fold_value(all->sum, s.sums[i][query], s.factors[i][query]);
}

/* Folds n parts from `slot` on, in order: into m and s.seen. */
template <int D>
static __device__ void fold_parts(const struct attend_params &p, const struct work &w,
                                  struct fold_shared &s, struct mixed<D> &m, uint32_t slot,
                                  uint32_t n) {
    constexpr uint32_t AT_ONCE = 8; /* loads in flight: more of them spill */
    uint32_t d = D ? D : p.head_width, values = w.n_queries * d, tid = threadIdx.x;
    struct seen all = seen_none();
#pragma unroll
    for (int j = 0; j < m.E; j++)
#pragma unroll
        for (int v = 0; v < m.V; v++)
            m.x[j][v] = 0;
    for (uint32_t first = 0; first < n; first += ATTEND_FOLD) {
        uint32_t now = min((uint32_t)ATTEND_FOLD, n - first);
        const float *from = part_at(p, w.unit, slot + first);
        if (tid / 32 < w.n_queries)
            fold_factors(p, s, &all, from + values + 2 * (tid / 32), now);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < m.E; j++) {
            uint32_t e = m.at(j), query = e / d;
            if (e >= values)
                break;
            for (uint32_t i = 0; i < now; i += AT_ONCE) {
                float part[AT_ONCE][m.V];
#pragma unroll
                for (uint32_t k = 0; k < AT_ONCE; k++)
                    fetch_vector<m.V>(part[k], from + min(i + k, now - 1) * p.part_values + e);
#pragma unroll
                for (uint32_t k = 0; k < AT_ONCE; k++)
                    if (i + k < now)
#pragma unroll
                        for (int v = 0; v < m.V; v++)
                            m.x[j][v] = fold_value(m.x[j][v], part[k][v], s.factors[i + k][query]);
            }
        }
        __syncthreads();
    }
    if (tid / 32 < w.n_queries && tid % 32 == 0)
        s.seen[tid / 32] = all;
    __syncthreads();
}

/* Behind a run: hands on what it has, and whoever is last writes the result. */
template <int D>
static __device__ void finish(const struct attend_params &p, const struct work &w,
                              struct fold_shared &s, struct mixed<D> &m, uint32_t run) {
    uint32_t d = D ? D : p.head_width, groups = (w.e.splits + ATTEND_FOLD - 1) / ATTEND_FOLD;
    uint32_t group = p.run_splits == 1 ? run / ATTEND_FOLD : run;
    uint32_t *counters = p.counters + (uint64_t)w.unit * p.counters_per_unit;
    uint32_t group_slot = 0; /* where the groups' parts begin */
    if (p.run_splits == 1) {
        uint32_t first = group * ATTEND_FOLD;
        uint32_t n = min((uint32_t)ATTEND_FOLD, w.e.splits - first);
        group_slot = w.e.splits;
        if (n > 1) {
            store_part<D>(p, w, s, m, run);
            if (!is_last(s, counters + 1 + group, n))
                return;
            fold_parts<D>(p, w, s, m, first, n);
        }
    }
    if (groups > 1) {
        store_part<D>(p, w, s, m, group_slot + group);
        if (!is_last(s, counters, groups))
            return;
        fold_parts<D>(p, w, s, m, group_slot, groups);
    }
#pragma unroll
    for (int j = 0; j < m.E; j++) {
        uint32_t e = m.at(j), query = e / d;
        if (query >= w.n_queries)
            break;
        float *out = p.out + (w.row + query / w.n_heads) * p.out_stride +
                     (uint64_t)(w.first_head + query % w.n_heads) * d + e % d;
#pragma unroll
        for (int v = 0; v < m.V; v++)
            out[v] = __fdiv_rn(m.x[j][v], s.seen[query].sum);
    }
}

/* ---- softmax of a split --------------------------------------------------------------------- */

enum { SCORE_STRIDE = PAGE + 16 }; /* so that 8 lanes of a fragment meet different banks */

/* Warp q: scores of query q become weights, and the split's maximum and sum are folded into what
 * the query has seen. Weights beyond n are zero. */
static __device__ __forceinline__ void weigh(float *scores, float factor, uint32_t n,
                                             struct fold_shared &s, uint32_t query) {
    uint32_t lane = threadIdx.x % 32;
    float x[PAGE / 32], max = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < PAGE / 32; i++) {
        x[i] = lane + 32 * i < n ? __fmul_rn(scores[lane + 32 * i], factor) : -INFINITY;
        max = fmaxf(max, x[i]);
    }
    max = ceilf(warp_max(max));
#pragma unroll
    for (int i = 0; i < PAGE / 32; i++) {
        x[i] = lane + 32 * i < n ? exp2f(__fsub_rn(x[i], max)) : 0.0f;
        sum += x[i];
        scores[lane + 32 * i] = x[i];
    }
    struct seen part = {max, warp_sum(sum)}, all = s.seen[query];
    __syncwarp(); /* all lanes have read it */
    struct factors f = fold(&all, part);
    if (lane == 0)
        s.seen[query] = all, s.factors[0][query] = f;
}

static __device__ __forceinline__ void forget(struct fold_shared &s) {
    if (threadIdx.x < ATTEND_TILE)
        s.seen[threadIdx.x] = seen_none();
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
        if (run >= w.e.runs)
            continue;
        const float *query = p.query + ((uint64_t)w.row * p.heads + w.first_head) * d;
        __syncthreads();
        forget(s.fold);
        for (uint32_t e = tid; e < w.n_queries * d; e += THREADS)
            s.query[e] = query[e];
        struct mixed<0> m = {};
        uint32_t end = min((run + 1) * p.run_splits, w.e.splits);
        for (uint32_t split = run * p.run_splits; split < end; split++) {
            uint32_t begin = split * w.e.length, n = min(w.e.length, w.e.n - begin);
            uint64_t at = cache_at(p, w.slot, w.kv_head, begin);
            __syncthreads();
            score_any<TYPE>(p, s, p.keys + at, n, w.n_queries);
            __syncthreads();
            if (warp < w.n_queries)
                weigh(s.scores[warp], p.scale * 1.44269504088896f, n, s.fold, warp);
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

/* ---- tensor cores --------------------------------------------------------------------------- */

/* c += a * b: 16 x 16 by 16 x 8. */
static __device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                           uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Two values as halves, and what that leaves of them as halves. */
struct split_pair {
    uint32_t high, low;
};

static __device__ __forceinline__ struct split_pair split_of(float x, float y) {
    __half2 high = __floats2half2_rn(x, y);
    float2 back = __half22float2(high);
    __half2 low = __floats2half2_rn(__fsub_rn(x, back.x), __fsub_rn(y, back.y));
    struct split_pair s = {*(uint32_t *)&high, *(uint32_t *)&low};
    return s;
}

template <int D> struct fast_shared {
    struct leaders leaders;
    uint4 query[D / 16][32]; /* B fragments: high 0, high 1, low 0, low 1 of a lane */
    alignas(16) float scores[ATTEND_TILE][SCORE_STRIDE];
    union {
        alignas(16) float mixed[512 / D][ATTEND_TILE][D]; /* parts of the positions */
        float heads[ATTEND_TILE + 2][D];                  /* while queries are made */
    };
    uint4 fresh_key[D / 8], fresh_value[D / 8]; /* of the row itself */
    float q_norm[D], k_norm[D];
    alignas(16) float kept[ATTEND_TILE * D]; /* mixed values of the run; each thread its own */
    float factor[ATTEND_TILE];               /* of a query's scores */
    struct work work[2];                     /* of this split and of the next */
    struct fold_shared fold;
};

/* What a warp reads of a split, this lane's part of it. Tiles of 16 positions of the keys come
 * first, every 8th; then, for 64 columns of the values, every PARTS-th step of 16 positions. A
 * group is two loads of 16 bytes: 32 columns of a tile, or half a step. */
template <int D> struct cursor {
    static constexpr uint32_t SLABS = D / 64, PARTS = ATTEND_WARPS / SLABS, BLOCKS = D / 32;
    const uint8_t *keys, *values;
    uint32_t n;                        /* positions to load; zeros behind them */
    uint32_t key_groups, real, groups; /* real: with anything in them; groups: at least a ring */

    __device__ __forceinline__ void set(const struct attend_params &p, uint64_t at, uint32_t seen,
                                        uint32_t positions) {
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
        uint32_t part = warp / SLABS * 16;
        keys = p.keys + at + (warp * 16 + g) * (2 * D) + t * 16;
        values = p.values + at + (part + 4 * t) * (2 * D) + warp % SLABS * 128 + g * 16;
        n = positions;
        key_groups = ((seen > warp * 16) + (seen > (warp + ATTEND_WARPS) * 16)) * BLOCKS;
        uint32_t steps = seen > part ? (seen - part + PARTS * 16 - 1) / (PARTS * 16) : 0;
        real = key_groups + 2 * steps;
        groups = max(real, (uint32_t)ATTEND_GROUPS);
    }

    __device__ __forceinline__ void set_none(void) {
        keys = values = NULL;
        n = key_groups = real = 0;
        groups = ATTEND_GROUPS;
    }
};

static __device__ __forceinline__ void copy16(uint4 *to, const uint8_t *from, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void copies_end(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All groups of copies but the last `left` have arrived. */
template <int left> static __device__ __forceinline__ void copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/* Loads run ahead of their use by ATTEND_GROUPS groups, through a ring in shared memory in which
 * each thread has room of its own: it reads what it copied itself. They run on into the next split.
 */
template <int D> struct stream {
    uint4 *ring; /* (ATTEND_GROUPS, 2, THREADS), from this thread's on */
    struct cursor<D> now, next;
    uint32_t ahead, in, out; /* the group of `now` that is loaded next; places in the ring */

    __device__ __forceinline__ void load(void) {
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = ahead++;
        bool is_next = i >= now.groups;
        struct cursor<D> c = is_next ? next : now;
        i -= is_next ? now.groups : 0;
        if (i < c.real) {
            const uint8_t *from;
            uint32_t position, second;
            if (i < c.key_groups) {
                uint32_t offset = i / c.BLOCKS * ATTEND_WARPS * 16;
                position = warp * 16 + lane / 4 + offset;
                from = c.keys + offset * (2 * D) + i % c.BLOCKS * 64;
                second = 8;
            } else {
                uint32_t j = i - c.key_groups, offset = j / 2 * c.PARTS * 16 + j % 2 * 2;
                position = warp / c.SLABS * 16 + 4 * (lane % 4) + offset;
                from = c.values + offset * (2 * D);
                second = 1;
            }
            uint4 *to = ring + in * (2 * THREADS);
            copy16(to, from, position < c.n ? 16 : 0);
            copy16(to + THREADS, from + second * (2 * D), position + second < c.n ? 16 : 0);
        }
        copies_end();
        in = in + 1 == ATTEND_GROUPS ? 0 : in + 1;
    }

    __device__ __forceinline__ void begin(uint4 *shared) {
        ring = shared + threadIdx.x;
        ahead = in = out = 0;
        for (int i = 0; i < ATTEND_GROUPS; i++)
            load();
    }

    /* The oldest group's loads; load() must follow once they have been used. `owed` says how many
     * groups were taken since the last load(). */
    template <int owed = 0> __device__ __forceinline__ void take(uint4 *first, uint4 *second) {
        copies_wait<ATTEND_GROUPS - 1 - owed>();
        const uint4 *from = ring + out * (2 * THREADS);
        *first = from[0], *second = from[THREADS];
        out = out + 1 == ATTEND_GROUPS ? 0 : out + 1;
    }

    /* Behind the last of a split's groups. */
    __device__ __forceinline__ void advance(void) {
        for (uint32_t i = now.real; i < now.groups; i++) {
            uint4 none[2];
            take(&none[0], &none[1]);
            load();
        }
        ahead -= now.groups;
        now = next;
    }
};

/* fresh: the row's own position in this split, which comes from shared memory; or none (~0). */
template <int D>
static __device__ __forceinline__ void score_fast(struct stream<D> &q, struct fast_shared<D> &s,
                                                  uint32_t fresh, uint32_t queries) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    constexpr uint32_t BLOCKS = D / 32;
    for (uint32_t first = warp * 16, left = q.now.key_groups; left > 0;
         first += ATTEND_WARPS * 16, left -= BLOCKS) {
        float c[4][4] = {};
        bool is_fresh = fresh / 16 == first / 16;
#pragma unroll 2
        for (uint32_t b = 0; b < BLOCKS; b++) {
            uint4 low, high;
            q.take(&low, &high);
            if (is_fresh) {
                uint4 own = s.fresh_key[b * 4 + t];
                low = first + g == fresh ? own : low;
                high = first + g + 8 == fresh ? own : high;
            }
            uint4 x = s.query[2 * b][lane], y = s.query[2 * b + 1][lane];
            mma(c[0], low.x, high.x, low.y, high.y, x.x, x.y);
            mma(c[1], low.x, high.x, low.y, high.y, x.z, x.w);
            mma(c[2], low.z, high.z, low.w, high.w, y.x, y.y);
            mma(c[3], low.z, high.z, low.w, high.w, y.z, y.w);
            q.load();
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t query = 2 * t + k % 2, position = first + g + k / 2 * 8;
            if (query < queries)
                s.scores[query][position] = (c[0][k] + c[2][k]) + (c[1][k] + c[3][k]);
        }
    }
}

static constexpr float WEIGHT_UP = 1024.0f; /* so that small weights keep their bits as halves */

template <int D>
static __device__ __forceinline__ void mix_fast(struct stream<D> &q, struct fast_shared<D> &s,
                                                uint32_t fresh, uint32_t queries) {
    using C = struct cursor<D>;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint32_t slab = warp % C::SLABS, part = warp / C::SLABS;
    float c[8][4] = {};
#pragma unroll 1
    for (uint32_t first = part * 16, left = q.now.real - q.now.key_groups; left > 0;
         first += C::PARTS * 16, left -= 2) {
        uint4 v[4];
        q.take(&v[0], &v[1]);
        q.template take<1>(&v[2], &v[3]);
        if (fresh / 16 == first / 16) {
            uint4 own = s.fresh_value[slab * 8 + g];
#pragma unroll
            for (int r = 0; r < 4; r++)
                v[r] = first + 4 * t + r == fresh ? own : v[r];
        }
        float4 p = *(const float4 *)&s.scores[g][first + 4 * t];
        struct split_pair x = split_of(p.x * WEIGHT_UP, p.y * WEIGHT_UP);
        struct split_pair y = split_of(p.z * WEIGHT_UP, p.w * WEIGHT_UP);
        const uint32_t *v0 = (const uint32_t *)&v[0], *v1 = (const uint32_t *)&v[1];
        const uint32_t *v2 = (const uint32_t *)&v[2], *v3 = (const uint32_t *)&v[3];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint32_t pick = k % 2 ? 0x7632 : 0x5410;
            mma(c[k], x.high, x.low, y.high, y.low, __byte_perm(v0[k / 2], v1[k / 2], pick),
                __byte_perm(v2[k / 2], v3[k / 2], pick));
        }
        q.load();
        q.load();
    }
    if (g >= queries)
        return;
    float4 *to = (float4 *)&s.mixed[part][g][slab * 64 + t * 16];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float o[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int column = k % 2 * 4 + r;
            o[r] = (c[column][k / 2] + c[column][k / 2 + 2]) * (1 / WEIGHT_UP);
        }
        to[k] = make_float4(o[0], o[1], o[2], o[3]);
    }
}

/* A query from `heads` into fragments, by one warp. It is multiplied by the power of two that
 * brings its largest value to [256, 512): room for halves above and below. */
template <int D>
static __device__ void pack_query(const struct attend_params &p, struct fast_shared<D> &s,
                                  uint32_t query) {
    uint32_t lane = threadIdx.x % 32;
    const float *x = s.heads[query];
    float most = 0;
    for (uint32_t i = lane; i < D; i += 32)
        most = fmaxf(most, fabsf(x[i]));
    int up = 135 - (int)(__float_as_uint(warp_max(most)) >> 23);
    up = up > 120 ? 120 : up; /* a tiny query, or none */
    float factor = __int_as_float((127 + up) << 23);
    for (uint32_t i = 2 * lane; i < D; i += 64) {
        struct split_pair pair = split_of(x[i] * factor, x[i + 1] * factor);
        uint32_t *to = (uint32_t *)&s.query[i / 32 * 2 + i % 8 / 4][query * 4 + i % 32 / 8];
        to[i % 4 / 2] = pair.high, to[2 + i % 4 / 2] = pair.low;
    }
    if (lane == 0)
        s.factor[query] = __fmul_rn(p.scale * 1.44269504088896f, __int_as_float((127 - up) << 23));
}

/* The row's own key or value as halves: for this block, and for the cache. */
template <int D> static __device__ void keep_fresh(const float *x, uint4 *here, uint8_t *cache) {
    for (uint32_t i = threadIdx.x % 32; i < D; i += 32) {
        uint16_t half = f16_from_f32_clamped(x[i]);
        ((uint16_t *)here)[i] = half;
        if (cache)
            ((uint16_t *)cache)[i] = half;
    }
}

/* What a warp makes of a row alone: queries first, then key and value. */
template <int D>
static __device__ __forceinline__ const float *task_at(const struct attend_params &p,
                                                       const struct work &w, uint32_t task) {
    const float *in = p.in + w.row * p.in_stride;
    if (task < w.n_queries)
        return in + (w.first_head + task) * p.q_stride;
    return in + (task == w.n_queries ? p.k_column : p.v_column) + w.kv_head * D;
}

/* Queries of a row alone, a warp each; and its key and value, where they are needed. The first task
 * of each warp has been loaded. */
template <int D>
static __device__ __forceinline__ void make_alone(const struct attend_params &p,
                                                  struct fast_shared<D> &s, const struct work &w,
                                                  struct raw_head<D / 32> &raw, bool has_fresh) {
    uint32_t warp = threadIdx.x / 32, tasks = w.n_queries + (has_fresh ? 2 : 0);
    for (uint32_t i = warp; i < tasks; i += ATTEND_WARPS) {
        if (i != warp)
            raw.load(p, task_at<D>(p, w, i), w.row);
        if (i < w.n_queries) {
            make_head(p, raw, p.q_norm ? s.q_norm : NULL, s.heads[i]);
            pack_query<D>(p, s, i);
            continue;
        }
        uint64_t at = cache_at(p, w.slot, w.kv_head, w.position);
        if (i == w.n_queries) {
            make_head(p, raw, p.k_norm ? s.k_norm : NULL, s.heads[i]);
            keep_fresh<D>(s.heads[i], s.fresh_key, w.is_first_tile ? p.keys + at : NULL);
        } else {
            keep_fresh<D>(task_at<D>(p, w, i), s.fresh_value,
                          w.is_first_tile ? p.values + at : NULL);
        }
    }
}

/* Queries that attend_prepare has made. */
template <int D>
static __device__ __forceinline__ void
take_queries(const struct attend_params &p, struct fast_shared<D> &s, const struct work &w) {
    uint32_t lane = threadIdx.x % 32, i = threadIdx.x / 32;
    if (i >= w.n_queries)
        return;
    uint64_t row = w.row + i / w.n_heads, head = w.first_head + i % w.n_heads;
    const float *from = p.query + (row * p.heads + head) * D;
    for (uint32_t c = lane; c < D; c += 32)
        s.heads[i][c] = from[c];
    __syncwarp();
    pack_query<D>(p, s, i);
}

template <int D>
static __device__ __forceinline__ void run_split(struct stream<D> &q, struct fast_shared<D> &s,
                                                 const struct work &w, uint32_t fresh,
                                                 uint32_t begin, bool is_first) {
    uint32_t warp = threadIdx.x / 32, queries = w.n_queries;
    score_fast<D>(q, s, fresh, queries);
    __syncthreads();
    if (warp < queries)
        weigh(s.scores[warp], s.factor[warp], seen_by(w, warp, begin), s.fold, warp);
    __syncthreads();
    mix_fast<D>(q, s, fresh, queries);
    q.advance();
    __syncthreads();
    using M = struct mixed<D>;
#pragma unroll
    for (int j = 0; j < M::E; j++) {
        uint32_t e = M::at(j), query = e / D;
        if (query >= queries)
            break;
        struct factors f = s.fold.factors[0][query];
        float x[M::V], part[M::V];
        copy_vector<M::V>(x, &s.mixed[0][query][e % D]);
#pragma unroll
        for (int k = 1; k < cursor<D>::PARTS; k++) {
            copy_vector<M::V>(part, &s.mixed[k][query][e % D]);
#pragma unroll
            for (int v = 0; v < M::V; v++)
                x[v] += part[v];
        }
        copy_vector<M::V>(part, s.kept + e);
#pragma unroll
        for (int v = 0; v < M::V; v++)
            x[v] = fold_value(is_first ? 0 : part[v], x[v], f);
        copy_vector<M::V>(s.kept + e, x);
    }
}

/* A block's place in the work: a split of a run, and the item that the run is. */
struct turn {
    uint32_t item, split, end;
};

/* The unit of an item, and its run. */
template <int D, bool ALONE>
static __device__ __forceinline__ struct work item_of(const struct attend_params &p,
                                                      const struct fast_shared<D> &s,
                                                      uint32_t n_units, uint32_t item) {
    uint32_t per_row = p.kv_heads * p.tiles, unit = item % n_units, leader = unit / per_row;
    uint32_t row = ALONE ? 0 : s.leaders.row[leader];
    return work_of(p, row, ALONE ? 1 : s.leaders.row[leader + 1] - row, unit % per_row);
}

/* From t.item on, the first item that has such a run; false: none. */
template <int D, bool ALONE>
static __device__ __forceinline__ bool seek(const struct attend_params &p,
                                            const struct fast_shared<D> &s, uint32_t n_units,
                                            uint32_t runs, struct turn &t, struct work &w) {
    uint32_t run_splits = ALONE ? 1 : p.run_splits;
    for (; t.item < n_units * runs; t.item += gridDim.x) {
        uint32_t run = t.item / n_units;
        w = item_of<D, ALONE>(p, s, n_units, t.item);
        if (run >= w.e.runs)
            continue;
        t.split = run * run_splits;
        t.end = min(t.split + run_splits, w.e.splits);
        return true;
    }
    return false;
}

/* Where a split lies. The row's own position, when it is alone, comes from elsewhere. */
template <int D, bool ALONE>
static __device__ __forceinline__ void point(const struct attend_params &p, const struct work &w,
                                             uint32_t split, struct cursor<D> &c) {
    uint32_t begin = split * w.e.length, n = min(w.e.length, w.e.n - begin);
    bool has_fresh = ALONE && split == w.e.splits - 1;
    c.set(p, cache_at(p, w.slot, w.kv_head, begin), n, has_fresh ? n - 1 : n);
}

/* ALONE: the plan's only row; queries, key and value are made here. */
template <int D, bool ALONE>
static __device__ __forceinline__ void attend_fast(const struct attend_params &p) {
    extern __shared__ uint4 room[];
    static_assert(sizeof(struct fast_shared<D>) <= ATTEND_FAST_SHARED(D), "attend.h");
    struct fast_shared<D> &s = *(struct fast_shared<D> *)room;
    uint4 *ring = room + ATTEND_FAST_SHARED(D) / sizeof *room;
    uint32_t tid = threadIdx.x, n_units = p.kv_heads * p.tiles, runs;
    for (uint32_t i = tid; ALONE && i < D; i += THREADS) {
        s.q_norm[i] = p.q_norm ? p.q_norm[i] : 1;
        s.k_norm[i] = p.k_norm ? p.k_norm[i] : 1;
    }
    for (uint32_t i = tid; i < ATTEND_TILE * SCORE_STRIDE; i += THREADS)
        s.scores[0][i] = 0; /* queries that a tile lacks have no weight */
    pdl_wait(p.io);
    struct raw_head<D / 32> raw;
    if (ALONE) { /* what does not depend on the position is on its way before that is known */
        struct work w = {};
        uint32_t index = blockIdx.x % n_units, tile = index % p.tiles;
        w.kv_head = index / p.tiles, w.first_head = w.kv_head * p.group + tile * ATTEND_TILE;
        w.n_queries = min((uint32_t)ATTEND_TILE, p.group - tile * ATTEND_TILE);
        raw.load(p, task_at<D>(p, w, tid / 32), 0);
        runs = extent_of(p, p.io.rows->position).runs;
    } else {
        if (tid < 32)
            find_leaders(p, s.leaders, p.io.header->n_rows);
        __syncthreads();
        n_units *= s.leaders.n, runs = s.leaders.runs;
    }
    struct turn t = {blockIdx.x, 0, 0};
    struct work w;
    if (!seek<D, ALONE>(p, s, n_units, runs, t, w))
        return;
    struct stream<D> q;
    point<D, ALONE>(p, w, t.split, q.now);
    q.begin(ring);
    if (tid == 0)
        s.work[0] = w;
    uint32_t made = ~0u, side = 0; /* the unit whose queries are there */
    for (bool is_first = true, has_next = true; has_next;) {
        __syncthreads(); /* nobody reads what the last split left any more */
        const struct work &here = s.work[side];
        uint32_t begin = t.split * here.e.length;
        bool has_fresh = ALONE && t.split == here.e.splits - 1;
        uint32_t fresh = has_fresh ? here.e.n - 1 - begin : ~0u;
        if (is_first)
            forget(s.fold);
        if (ALONE && (made != here.unit || has_fresh)) {
            if (made != ~0u)
                raw.load(p, task_at<D>(p, here, tid / 32), 0);
            make_alone<D>(p, s, here, raw, has_fresh);
        } else if (!ALONE && made != here.unit) {
            take_queries<D>(p, s, here);
        }
        made = here.unit;
        struct turn u = {t.item, t.split + 1, t.end};
        bool is_last_of_run = u.split == u.end;
        if (is_last_of_run) {
            u.item += gridDim.x;
            has_next = seek<D, ALONE>(p, s, n_units, runs, u, w);
            if (tid == 0 && has_next)
                s.work[side ^ 1] = w;
        } else {
            w = here;
        }
        if (has_next)
            point<D, ALONE>(p, w, u.split, q.next);
        else
            q.next.set_none();
        __syncthreads();
        run_split<D>(q, s, here, fresh, begin, is_first);
        if (is_last_of_run) {
            struct mixed<D> m;
#pragma unroll
            for (int j = 0; j < m.E; j++)
                if (m.at(j) < m.MOST)
                    copy_vector<m.V>(m.x[j], s.kept + m.at(j));
            finish<D>(p, here, s.fold, m, t.item / n_units);
            side ^= 1;
        }
        is_first = is_last_of_run;
        t = u;
    }
}

/* ---- kernels -------------------------------------------------------------------------------- */

#define FAST_KERNELS(D)                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        attend_row_##D(const __grid_constant__ struct attend_params p) {                           \
        pdl_launch();                                                                              \
        attend_fast<D, true>(p);                                                                   \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        attend_rows_##D(const __grid_constant__ struct attend_params p) {                          \
        pdl_launch();                                                                              \
        attend_fast<D, false>(p);                                                                  \
    }
FAST_KERNELS(64)
FAST_KERNELS(128)
FAST_KERNELS(256)

#define ANY_KERNEL(name, TYPE)                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS)                                          \
        attend_any_##name(const __grid_constant__ struct attend_params p) {                        \
        pdl_launch();                                                                              \
        attend_any<TYPE>(p);                                                                       \
    }
ANY_KERNEL(f32, CACHE_F32)
ANY_KERNEL(f16, CACHE_F16)
ANY_KERNEL(q8_0, CACHE_Q8_0)
ANY_KERNEL(q4_0, CACHE_Q4_0)
