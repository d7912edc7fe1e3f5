/* attend_split.cuh - ATTEND of plans of many rows: units of work, and folding through memory.
 *
 * Blocks take (unit, run of splits) in turn; a run is one split or a group of them. What a run
 * gives is folded by the block that arrives last. */
#ifndef BACKEND_CUDA_KERNELS_ATTEND_SPLIT_CUH
#define BACKEND_CUDA_KERNELS_ATTEND_SPLIT_CUH

#include "backend/cuda/kernels/attend.cuh"

/* All positions are in splits of 16, which one block has. */
static __device__ __forceinline__ bool is_short(const struct extent &e) {
    return e.length == 16;
}

/* Splits of a run. */
static __device__ __forceinline__ uint32_t run_splits(const struct attend_params &p,
                                                      const struct extent &e) {
    return is_short(e) ? e.fold : p.run_splits;
}

static __device__ __forceinline__ uint32_t runs_of(const struct attend_params &p,
                                                   const struct extent &e) {
    return run_splits(p, e) == 1 ? e.splits : (e.splits + e.fold - 1) / e.fold;
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

/* index counts (KV head, tile) of the row; slot and position are of the last one. */
static __device__ __forceinline__ struct work work_at(const struct attend_params &p, uint32_t row,
                                                      uint32_t n_rows, uint32_t slot,
                                                      uint32_t position, uint32_t index) {
    uint32_t tile = index % p.tiles;
    struct work w;
    w.unit = row * p.kv_heads * p.tiles + index;
    w.row = row;
    w.n_rows = n_rows;
    w.slot = slot;
    w.position = position;
    w.kv_head = index / p.tiles;
    w.first_head = w.kv_head * p.group + tile * ATTEND_TILE;
    w.n_heads = min((uint32_t)ATTEND_TILE, p.group - tile * ATTEND_TILE);
    w.n_queries = n_rows * w.n_heads;
    w.is_first_tile = tile == 0;
    w.e = extent_of(p, w.position);
    return w;
}

static __device__ __forceinline__ struct work work_of(const struct attend_params &p, uint32_t row,
                                                      uint32_t n_rows, uint32_t index) {
    struct io_row last = p.io.rows[row + n_rows - 1];
    return work_at(p, row, n_rows, last.slot, last.position, index);
}

/* Which of a unit's rows a query is of. Mostly there is one, and a division takes a hundred
 * instructions. */
static __device__ __forceinline__ uint32_t row_of_query(const struct work &w, uint32_t query) {
    return w.n_rows > 1 ? query / w.n_heads : 0;
}

/* Positions from `begin` on that a query sees, of `n` that the last row sees. */
static __device__ __forceinline__ uint32_t seen_by(const struct work &w, uint32_t query,
                                                   uint32_t begin) {
    uint32_t end = w.e.n - (w.n_rows - 1 - row_of_query(w, query));
    return end > begin ? min(end - begin, w.e.length) : 0;
}

/* The most runs that a row of this step has; every warp for itself. */
static __device__ uint32_t most_runs(const struct attend_params &p, uint32_t n_rows) {
    uint32_t most = 0;
    for (uint32_t row = threadIdx.x % 32; row < n_rows; row += 32)
        most = max(most, runs_of(p, extent_of(p, p.io.rows[row].position)));
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
            most = max(most, runs_of(p, e));
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
            float part[ATTEND_FOLD][m.V];
            compiler_fence(); /* loads of one j at a time: registers */
#pragma unroll
            for (uint32_t i = 0; i < ATTEND_FOLD; i++)
                fetch_vector<m.V>(part[i], from + min(i, now - 1) * p.part_values + e);
#pragma unroll
            for (uint32_t i = 0; i < ATTEND_FOLD; i++)
                if (i < now)
#pragma unroll
                    for (int v = 0; v < m.V; v++)
                        m.x[j][v] = fold_value(m.x[j][v], part[i][v], s.factors[i][query]);
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
    uint32_t d = D ? D : p.head_width, groups = 1;
    if (w.e.splits > w.e.fold)
        groups = (w.e.splits + w.e.fold - 1) / w.e.fold;
    bool is_one = run_splits(p, w.e) == 1;
    uint32_t group = !is_one ? run : run < w.e.fold ? 0 : run / w.e.fold;
    uint32_t *counters = p.counters + (uint64_t)w.unit * p.counters_per_unit;
    uint32_t group_slot = 0; /* where the groups' parts begin */
    if (is_one) {
        uint32_t first = group * w.e.fold;
        uint32_t n = min(w.e.fold, w.e.splits - first);
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
        uint32_t row = row_of_query(w, query), head = w.first_head + query - row * w.n_heads;
        float *out = p.out + (w.row + row) * p.out_stride + (uint64_t)head * d + (e - query * d);
        float inverse = rcp_approx(s.seen[query].sum);
#pragma unroll
        for (int v = 0; v < m.V; v++)
            out[v] = m.x[j][v] * inverse;
    }
}

/* ---- softmax of a split --------------------------------------------------------------------- */

enum { SCORE_STRIDE = PAGE + 16 }; /* so that 8 lanes of a fragment meet different banks */

/* Warp q: scores of query q become weights, and the split's maximum and sum are folded into what
 * the query has seen. Weights beyond n are zero. N: the most positions. */
template <int N>
static __device__ __forceinline__ void weigh(float *scores, float factor, uint32_t n,
                                             struct fold_shared &s, uint32_t query) {
    uint32_t lane = threadIdx.x % 32;
    float x[N / 32], max = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < N / 32; i++) {
        x[i] = lane + 32 * i < n ? __fmul_rn(scores[lane + 32 * i], factor) : -INFINITY;
        max = fmaxf(max, x[i]);
    }
    max = ceilf(warp_max(max));
#pragma unroll
    for (int i = 0; i < N / 32; i++) {
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

#endif
