/* attend_split.cuh - query tiles, chunks of splits, and combining through global memory, for the
 * kernels of several rows (attend_batch.cu, attend_staged.cu, attend_fallback.cu).
 *
 * Blocks loop over (tile, chunk). A block that has computed a chunk stores its partial (O, max,
 * sum) and counts itself in; the last of a group combines the group's splits, the last of the
 * groups combines these, in order, and writes O / sum. Which block is last changes no bits. */
#ifndef BACKEND_CUDA_KERNELS_ATTEND_SPLIT_CUH
#define BACKEND_CUDA_KERNELS_ATTEND_SPLIT_CUH

#include "backend/cuda/kernels/attend.cuh"

/* ---- chunks and query tiles ------------------------------------------------------------------ */

/* A short context: splits of 16, all of them one chunk. */
static __device__ __forceinline__ bool is_short(const struct split_layout &l) {
    return l.length == 16;
}

static __device__ __forceinline__ uint32_t chunk_splits(const struct attend_params &p,
                                                        const struct split_layout &l) {
    return is_short(l) ? l.per_group : p.chunk_splits;
}

static __device__ __forceinline__ uint32_t n_chunks(const struct attend_params &p,
                                                    const struct split_layout &l) {
    return chunk_splits(p, l) == 1 ? l.count : (l.count + l.per_group - 1) / l.per_group;
}

struct query_tile {
    uint32_t index;                                   /* of its partials and counters */
    uint32_t row, n_rows;                             /* all have splits of the same length */
    uint32_t slot, position;                          /* of the last row */
    uint32_t kv_head, first_head, n_heads, n_queries; /* n_queries = n_rows * n_heads */
    bool is_first_of_kv;                              /* of its KV head's tiles */
    struct split_layout splits;                       /* of the last row */
};

/* `index` counts the tiles of a row; slot and position are the last row's. */
static __device__ __forceinline__ struct query_tile query_tile_at(const struct attend_params &p,
                                                                  uint32_t row, uint32_t n_rows,
                                                                  uint32_t slot, uint32_t position,
                                                                  uint32_t index) {
    uint32_t in_kv = index % p.tiles_per_kv;
    struct query_tile tile;
    tile.index = row * p.kv_heads * p.tiles_per_kv + index;
    tile.row = row;
    tile.n_rows = n_rows;
    tile.slot = slot;
    tile.position = position;
    tile.kv_head = index / p.tiles_per_kv;
    tile.first_head = tile.kv_head * p.q_per_kv + in_kv * ATTEND_TILE_QUERIES;
    tile.n_heads = min((uint32_t)ATTEND_TILE_QUERIES, p.q_per_kv - in_kv * ATTEND_TILE_QUERIES);
    tile.n_queries = n_rows * tile.n_heads;
    tile.is_first_of_kv = in_kv == 0;
    tile.splits = split_layout_of(p, tile.position);
    return tile;
}

static __device__ __forceinline__ struct query_tile
query_tile_of(const struct attend_params &p, uint32_t row, uint32_t n_rows, uint32_t index) {
    struct io_row last = p.io.rows[row + n_rows - 1];
    return query_tile_at(p, row, n_rows, last.slot, last.position, index);
}

/* Which of the tile's rows a query belongs to. Mostly there is one: a division costs a hundred
 * instructions. */
static __device__ __forceinline__ uint32_t row_of_query(const struct query_tile &tile,
                                                        uint32_t query) {
    return tile.n_rows > 1 ? query / tile.n_heads : 0;
}

/* Causal mask: how many positions of the split that begins at `begin` a query sees. */
static __device__ __forceinline__ uint32_t visible_positions(const struct query_tile &tile,
                                                             uint32_t query, uint32_t begin) {
    uint32_t end = tile.splits.n_positions - (tile.n_rows - 1 - row_of_query(tile, query));
    return end > begin ? min(end - begin, tile.splits.length) : 0;
}

/* The most chunks that a row of this step has; computed by every warp. */
static __device__ uint32_t max_chunks(const struct attend_params &p, uint32_t n_rows) {
    uint32_t most = 0;
    for (uint32_t row = threadIdx.x % 32; row < n_rows; row += 32)
        most = max(most, n_chunks(p, split_layout_of(p, p.io.rows[row].position)));
    return __reduce_max_sync(0xffffffffu, most);
}

/* Up to tile_rows consecutive rows of a segment share their query tiles. */
struct row_tiles {
    uint16_t *tile; /* (max_rows), dynamic shared memory: first row, and how many less one */
    uint32_t n, max_chunks;
    static_assert(ATTEND_MAX_ROWS <= 4096 && ATTEND_TILE_QUERIES <= 16, "12 and 4 bits");

    __device__ __forceinline__ uint32_t row(uint32_t i) const {
        return tile[i] & 4095u;
    }

    __device__ __forceinline__ uint32_t n_rows(uint32_t i) const {
        return (tile[i] >> 12) + 1u;
    }
};

/* By one warp, a lane a segment; without those that attend_wide.cu has. */
static __device__ void find_row_tiles(const struct attend_params &p, struct row_tiles &tiles) {
    extern __shared__ uint16_t row_tile_table[];
    uint32_t lane = threadIdx.x % 32, count = 0, most = 0, segments = p.io.header->n_segments;
    for (uint32_t base = 0; base < segments; base += 32) {
        struct io_segment s = {};
        struct row_tile t;
        if (base + lane < segments)
            s = p.io.segments[base + lane];
        if (p.wide_rows && s.n_rows >= ATTEND_WIDE_ROWS)
            s.n_rows = 0;
        uint32_t n = walk_row_tiles(p, s, p.tile_rows, ~0u, &t), end = n;
        for (uint32_t i = 1; i < 32; i *= 2) {
            uint32_t other = __shfl_up_sync(0xffffffffu, end, i);
            end += lane >= i ? other : 0;
        }
        for (uint32_t i = 0; i < n; i++) {
            walk_row_tiles(p, s, p.tile_rows, i, &t);
            /* not the last one's alone: it may have fewer splits, longer ones */
            most = max(most, n_chunks(p, split_layout_of(p, s.first_position + t.first + t.n - 1)));
            row_tile_table[count + end - n + i] =
                (uint16_t)((s.first_row + t.first) | (t.n - 1) << 12);
        }
        count += __shfl_sync(0xffffffffu, end, 31);
    }
    most = __reduce_max_sync(0xffffffffu, most);
    if (lane == 0)
        tiles.tile = row_tile_table, tiles.n = count, tiles.max_chunks = most;
}

/* A tile's queries, which attend_rope_store has made, as B fragments, and their factors. */
template <int D>
static __device__ __forceinline__ void load_queries(const struct attend_params &p,
                                                    uint2 (*fragments)[32], float *score_factor,
                                                    const struct query_tile &tile) {
    uint32_t lane = threadIdx.x % 32, i = threadIdx.x / 32;
    if (i >= tile.n_queries)
        return;
    uint32_t row = row_of_query(tile, i), head = tile.first_head + i - row * tile.n_heads;
    uint32_t at = (tile.row + row) * p.heads + head;
    const uint2 *from = (const uint2 *)((const __half *)p.queries + (uint64_t)at * D);
#pragma unroll
    for (int b = 0; b < D / 128 + 1; b++) {
        uint32_t column = 4 * lane + 128 * b;
        if (column < D)
            fragments[column / 16][i * 4 + lane % 4] = __ldcg(from + lane + 32 * b);
    }
    if (lane == 0)
        score_factor[i] = __ldcg(p.query_factors + at);
}

/* ---- combining partials ---------------------------------------------------------------------- */

/* O of a tile, (queries, d), in the registers of a block: thread t has E vectors of V values, those
 * that begin at V (t + j THREADS). D is the head width, or 0: any even one. */
template <int D> struct out_regs {
    static constexpr int V = D ? 4 : 2, MOST = ATTEND_TILE_QUERIES * (D ? D : ATTEND_MAX_WIDTH);
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

/* The same past L1: from memory that other blocks wrote. */
template <int V>
static __device__ __forceinline__ void copy_vector_cg(float *to, const float *from) {
    if (V == 4)
        *(float4 *)to = __ldcg((const float4 *)from);
    else
        *(float2 *)to = __ldcg((const float2 *)from);
}

struct combine_shared {
    struct max_sum state[ATTEND_TILE_QUERIES]; /* of the chunk, then of all */
    struct rescale rescale[ATTEND_GROUP_SPLITS][ATTEND_TILE_QUERIES];
    float sums[ATTEND_GROUP_SPLITS][ATTEND_TILE_QUERIES];
    bool is_last;
};

/* A partial: O (queries, d), then (max, sum) of each query. */
static __device__ __forceinline__ float *partial_at(const struct attend_params &p, uint32_t tile,
                                                    uint32_t index) {
    return p.partials + ((uint64_t)tile * p.n_partials + index) * p.partial_floats;
}

template <int D>
static __device__ void store_partial(const struct attend_params &p, const struct query_tile &tile,
                                     const struct combine_shared &s, const struct out_regs<D> &m,
                                     uint32_t index) {
    uint32_t n = tile.n_queries * (D ? D : p.head_width);
    float *to = partial_at(p, tile.index, index);
#pragma unroll
    for (int j = 0; j < m.E; j++)
        if (m.at(j) < n)
            copy_vector<m.V>(to + m.at(j), m.x[j]);
    if (threadIdx.x < tile.n_queries)
        ((struct max_sum *)(to + n))[threadIdx.x] = s.state[threadIdx.x];
}

/* True in all threads of the last of `count` blocks to call it: it sees what the others wrote
 * before, and the counter is zero again. */
static __device__ bool is_last_block(struct combine_shared &s, uint32_t *counter, uint32_t count) {
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

/* (max, sum) of n partials combined into *all, and the factors for their O: warp q for query q,
 * lane i for partial i. A prefix maximum by shuffles gives what combine() gives one after the
 * other. */
static __device__ __forceinline__ void combine_max_sum(const struct attend_params &p,
                                                       struct combine_shared &s,
                                                       struct max_sum *all, const float *from,
                                                       uint32_t n) {
    uint32_t lane = threadIdx.x % 32, query = threadIdx.x / 32;
    float2 part = make_float2(-1e30f, 0);
    if (lane < n)
        part = __ldcg((const float2 *)(from + lane * p.partial_floats));
    float max = fmaxf(part.x, all->max);
#pragma unroll
    for (int d = 1; d < ATTEND_GROUP_SPLITS; d *= 2) {
        float other = __shfl_up_sync(0xffffffffu, max, d);
        max = lane >= d ? fmaxf(max, other) : max;
    }
    float before = __shfl_up_sync(0xffffffffu, max, 1);
    struct rescale f = {exp2_diff(lane ? before : all->max, max), exp2_diff(part.x, max)};
    if (lane < n)
        s.rescale[lane][query] = f, s.sums[lane][query] = part.y;
    __syncwarp();
    all->max = __shfl_sync(0xffffffffu, max, n - 1);
#pragma unroll
    for (uint32_t i = 0; i < ATTEND_GROUP_SPLITS; i++)
        if (i < n)
            all->sum = combine_value(all->sum, s.sums[i][query], s.rescale[i][query]);
}

/* Combines n partials from `index` on, in order, into m and s.state. */
template <int D>
static __device__ void combine_partials(const struct attend_params &p,
                                        const struct query_tile &tile, struct combine_shared &s,
                                        struct out_regs<D> &m, uint32_t index, uint32_t n) {
    uint32_t d = D ? D : p.head_width, values = tile.n_queries * d, tid = threadIdx.x;
    struct max_sum all = max_sum_empty();
#pragma unroll
    for (int j = 0; j < m.E; j++)
#pragma unroll
        for (int v = 0; v < m.V; v++)
            m.x[j][v] = 0;
    for (uint32_t first = 0; first < n; first += ATTEND_GROUP_SPLITS) {
        uint32_t now = min((uint32_t)ATTEND_GROUP_SPLITS, n - first);
        const float *from = partial_at(p, tile.index, index + first);
        if (tid / 32 < tile.n_queries)
            combine_max_sum(p, s, &all, from + values + 2 * (tid / 32), now);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < m.E; j++) {
            uint32_t e = m.at(j), query = e / d;
            if (e >= values)
                break;
            float part[ATTEND_GROUP_SPLITS][m.V];
            compiler_fence(); /* loads of one j at a time: registers */
#pragma unroll
            for (uint32_t i = 0; i < ATTEND_GROUP_SPLITS; i++)
                copy_vector_cg<m.V>(part[i], from + min(i, now - 1) * p.partial_floats + e);
#pragma unroll
            for (uint32_t i = 0; i < ATTEND_GROUP_SPLITS; i++)
                if (i < now)
#pragma unroll
                    for (int v = 0; v < m.V; v++)
                        m.x[j][v] = combine_value(m.x[j][v], part[i][v], s.rescale[i][query]);
        }
        __syncthreads();
    }
    if (tid / 32 < tile.n_queries && tid % 32 == 0)
        s.state[tid / 32] = all;
    __syncthreads();
}

/* After a chunk: stores its partial where there are others, and the last block combines them and
 * writes the tile's output. Partials of groups follow those of splits. */
template <int D>
static __device__ void combine_and_store(const struct attend_params &p,
                                         const struct query_tile &tile, struct combine_shared &s,
                                         struct out_regs<D> &m, uint32_t chunk) {
    uint32_t d = D ? D : p.head_width, groups = 1;
    if (tile.splits.count > tile.splits.per_group)
        groups = (tile.splits.count + tile.splits.per_group - 1) / tile.splits.per_group;
    bool is_one_split = chunk_splits(p, tile.splits) == 1;
    uint32_t group = !is_one_split                   ? chunk
                     : chunk < tile.splits.per_group ? 0
                                                     : chunk / tile.splits.per_group;
    uint32_t *counters = p.counters + (uint64_t)tile.index * p.counters_per_tile;
    uint32_t first_group_partial = 0;
    if (is_one_split) {
        uint32_t first = group * tile.splits.per_group;
        uint32_t n = min(tile.splits.per_group, tile.splits.count - first);
        first_group_partial = tile.splits.count;
        if (n > 1) {
            store_partial<D>(p, tile, s, m, chunk);
            if (!is_last_block(s, counters + 1 + group, n))
                return;
            combine_partials<D>(p, tile, s, m, first, n);
        }
    }
    if (groups > 1) {
        store_partial<D>(p, tile, s, m, first_group_partial + group);
        if (!is_last_block(s, counters, groups))
            return;
        combine_partials<D>(p, tile, s, m, first_group_partial, groups);
    }
#pragma unroll
    for (int j = 0; j < m.E; j++) {
        uint32_t e = m.at(j), query = e / d;
        if (query >= tile.n_queries)
            break;
        uint32_t row = row_of_query(tile, query),
                 head = tile.first_head + query - row * tile.n_heads;
        float *out = p.out + (tile.row + row) * p.out_stride + (uint64_t)head * d + (e - query * d);
        float inverse = rcp_approx(s.state[query].sum);
#pragma unroll
        for (int v = 0; v < m.V; v++)
            out[v] = m.x[j][v] * inverse;
    }
}

/* ---- softmax of a split ---------------------------------------------------------------------- */

enum { SCORE_STRIDE = PAGE + 16 }; /* the 8 rows of a fragment start at different banks */

/* Warp q: query q's scores become weights 2^(s - max) in place, zero from n on, and the split's
 * (max, sum) is combined into the chunk's. N: the most positions. */
template <int N>
static __device__ __forceinline__ void softmax(float *scores, float factor, uint32_t n,
                                               struct combine_shared &s, uint32_t query) {
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
    struct max_sum part = {max, warp_sum(sum)}, all = s.state[query];
    __syncwarp(); /* all lanes have read it */
    struct rescale f = combine(&all, part);
    if (lane == 0)
        s.state[query] = all, s.rescale[0][query] = f;
}

/* Warp q: query q's scores of a split become weights, zero from n on, and (max, sum) is combined
 * into the chunk's. Lane l has positions 2 l, 2 l + 1 and those 64 further; weights are summed by
 * pairs, then over a lane, then by warp_sum: attend_decode.cu and attend_wide.cu do the same. */
static __device__ __forceinline__ void softmax(const float *scores, __half *weights, float factor,
                                               uint32_t n, struct combine_shared &s,
                                               struct rescale *rescale, uint32_t query) {
    constexpr int PAIRS = ATTEND_MAX_SPLIT / 64;
    uint32_t lane = threadIdx.x % 32;
    float2 x[PAIRS];
    float max = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        uint32_t position = 2 * lane + 64 * i;
        x[i] = make_float2(-INFINITY, -INFINITY);
        if (position < n)
            x[i].x = scores[position];
        if (position + 1 < n)
            x[i].y = scores[position + 1];
        max = fmaxf(max, fmaxf(x[i].x, x[i].y));
    }
    max = rounded_max(warp_max(max), factor);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        x[i].x = softmax_weight(x[i].x, factor, max), x[i].y = softmax_weight(x[i].y, factor, max);
        sum += x[i].x + x[i].y;
        *(uint32_t *)&weights[2 * lane + 64 * i] = f16x2_of(x[i].x, x[i].y);
    }
    struct max_sum part = {max, warp_sum(sum)}, all = s.state[query];
    __syncwarp(); /* all lanes have read it */
    struct rescale f = combine(&all, part);
    if (lane == 0)
        s.state[query] = all, *rescale = f;
    __syncwarp();
}

static __device__ __forceinline__ void reset_state(struct combine_shared &s) {
    if (threadIdx.x < ATTEND_TILE_QUERIES)
        s.state[threadIdx.x] = max_sum_empty();
}

#endif
