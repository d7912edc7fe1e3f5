/* attend_batch.cu - ATTEND of plans of several rows: heads of 64, 128 and 256 over an fp16 cache.
 *
 * Blocks of 8 warps loop over (query tile, chunk of splits); a tile's queries are heads of one row,
 * or of consecutive rows of a segment. K and V go from global memory straight into registers, in
 * fragment order, 16 loads of up to 8 bytes in flight a lane; a cached position is read once a
 * tile, 4 D bytes. A block computes one split at a time, of narrow heads two; meanwhile its values,
 * and the next one's keys, come into L2. Partials are combined as attend_split.cuh says.
 *
 * attend_batch_D         any number of rows: attend_rope_store has made queries and stored K and V.
 *                        On sm_90 attend_wide.cu has the longer segments.
 * attend_batch_fused_D   up to 32 rows: blocks norm and rotate the heads they need themselves, and
 *                        take keys and values of this step's rows from shared memory, never from
 *                        the cache. Before griddepcontrol.wait they read the rows that IO holds by
 *                        then, as attend_decode.cu does, so that after it all loads start at once.
 *                        qwen35-4b on an H200: 8.9 us at 4 rows and at 32. Without the early read
 *                        9.9 instead of 11.3 at 4 rows, 10.2 instead of 13.2 at 32. */
#include "backend/cuda/kernels/attend_short.cuh"
#include "backend/cuda/kernels/attend_split.cuh"

/* A block's work item in the fused kernel. */
struct fused_item {
    struct query_tile tile;
    bool is_valid;                      /* the tile has such a chunk */
    uint32_t chunk, first, end;         /* splits first to end - 1 */
    uint32_t new_begin, n_new, new_row; /* positions that this step adds; the first one's row */
    uint32_t page;                      /* of the tile's last position */
};

/* The rows of a step in a warp, a lane a row. */
struct step_rows {
    uint32_t n, position, slot, segment; /* of the step; of the lane's row */
    uint32_t segment_row;                /* the first of its segment */
    uint32_t tile_mask, max_chunks;      /* rows that begin a tile; the most chunks of a tile */
};

/* A pass is the splits that a block computes at once. Of V a warp has a slab of columns of one of
 * them, a lane LANE_COLUMNS. */
template <int D> struct pass {
    static constexpr int SPLITS = D > 128 ? 1 : 2;
    static constexpr int SLABS = ATTEND_WARPS / SPLITS, LANE_COLUMNS = D / SLABS / 8;
    static_assert(SPLITS * ATTEND_MAX_SPLIT <= PAGE, "a pass is in one page");
};

/* NEW: the most new positions of an item; 0: not fused. */
template <int D, int NEW> struct batch_shared {
    uint2 query[D / 16][32]; /* B fragments */
    alignas(16) float scores[ATTEND_TILE_QUERIES][SCORE_STRIDE];
    alignas(16) __half weights[ATTEND_TILE_QUERIES][SCORE_STRIDE]; /* after softmax */
    union {                                                        /* one after the other: */
        struct short_shared_if<D> short_context;
        alignas(16) float pv[pass<D>::SPLITS][ATTEND_TILE_QUERIES * D];
        float scratch[ATTEND_WARPS][D]; /* RoPE */
    };
    alignas(16) float out[ATTEND_TILE_QUERIES * D]; /* O of the chunk; each thread its own values */
    float score_factor[ATTEND_TILE_QUERIES];
    struct query_tile tile; /* not in registers: the loads in flight need them */
    struct combine_shared combine;
    uint4 new_keys[NEW ? NEW : 1][D / 8], new_values[NEW ? NEW : 1][D / 8];
    struct fused_item items[NEW ? 2 : 1]; /* this one and the next */
    struct step_rows rows[NEW ? 32 : 1];
    uint32_t n_items, first_item; /* of the step; which of the two is the first */
};

/* ---- a pass ---------------------------------------------------------------------------------- */

/* First position, how many, how many of them are in the cache; and which of the new positions comes
 * after those. */
struct position_range {
    uint32_t begin, n, n_cached, first_new;
};

/* A lane's loads of a pass: of K a warp has K_TILES M16 tiles of positions, of V all positions of a
 * split. DEPTH are in flight. */
template <int D> struct kv_stream {
    static constexpr int SLABS = pass<D>::SLABS, C = pass<D>::LANE_COLUMNS;
    static constexpr int K_TILES = pass<D>::SPLITS, K_TILE_LOADS = D / 8;
    static constexpr int V_STEPS = ATTEND_MAX_SPLIT / 16;
    static constexpr int K_LOADS = K_TILES * K_TILE_LOADS, LOADS = K_LOADS + 4 * V_STEPS;
    static constexpr int DEPTH = 16;
    uint2 data[DEPTH];
    const uint8_t *keys, *values; /* this lane's first */
    uint32_t n, n_values;         /* positions to load: of the pass, of the lane's split */
    uint32_t split_n;             /* positions of the lane's split, cached or new */
    uint32_t first_new_value;     /* the new position after its cached ones */
    struct position_range at;

    __device__ __forceinline__ void load(int i) {
        if (i >= LOADS)
            return;
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        data[i % DEPTH] = make_uint2(0, 0);
        if (i < K_LOADS) {
            int step = i % K_TILE_LOADS / 2;
            uint32_t offset = i / K_TILE_LOADS * ATTEND_WARPS * 16 + i % 2 * 8;
            if (warp * 16 + lane / 4 + offset < n)
                data[i % DEPTH] = ld_no_allocate_u32x2(keys + offset * (2 * D) + step * 32);
        } else {
            int j = i - K_LOADS;
            uint32_t offset = j / 4 * 16 + j % 4;
            if (4 * (lane % 4) + offset >= n_values)
                return;
            if (C == 4)
                data[i % DEPTH] = ld_no_allocate_u32x2(values + offset * (2 * D));
            else
                data[i % DEPTH].x = ld_no_allocate_u32(values + offset * (2 * D));
        }
    }

    /* `length`: of a split. Called before anything that waits. */
    __device__ __forceinline__ void begin(const uint8_t *k, const uint8_t *v,
                                          struct position_range range, uint32_t length) {
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
        uint32_t first = warp / SLABS * length; /* of the lane's split */
        keys = k + (warp * 16 + g) * (2 * D) + t * 8;
        values = v + (first + 4 * t) * (2 * D) + (warp % SLABS * 8 + g) * (2 * C);
        at = range, n = range.n_cached;
        n_values = n > first ? min(n - first, length) : 0;
        split_n = range.n > first ? min(range.n - first, length) : 0;
        first_new_value = range.first_new + (first > n ? first - n : 0);
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            load(i);
    }
};

template <int D, int NEW>
static __device__ __forceinline__ void qk(struct kv_stream<D> &q, struct batch_shared<D, NEW> &s,
                                          uint32_t queries) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < q.K_TILES; i++) {
        uint32_t first = (warp + i * ATTEND_WARPS) * 16;
        float c[4] = {};
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            int at = i * q.K_TILE_LOADS + 2 * step;
            uint2 k0 = q.data[at % q.DEPTH], k8 = q.data[(at + 1) % q.DEPTH];
            if (NEW && first + 16 > q.n && first < q.at.n) {
                uint32_t new0 = first + g - q.n, new8 = new0 + 8; /* huge: in the cache */
                if (new0 < q.at.n - q.n)
                    k0 = ((const uint2 *)s.new_keys[q.at.first_new + new0])[4 * step + t];
                if (new8 < q.at.n - q.n)
                    k8 = ((const uint2 *)s.new_keys[q.at.first_new + new8])[4 * step + t];
            }
            if (first < q.at.n)
                qk_mma(c, k0, k8, s.query[step][lane]);
            q.load(at + q.DEPTH);
            q.load(at + 1 + q.DEPTH);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t query = 2 * t + k % 2, position = first + g + k / 2 * 8;
            if (query < queries)
                s.scores[query][position] = c[k];
        }
    }
}

template <int D, int NEW>
static __device__ __forceinline__ void pv(struct kv_stream<D> &q, struct batch_shared<D, NEW> &s,
                                          uint32_t queries, uint32_t length) {
    constexpr int C = q.C;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint32_t slab = warp % q.SLABS, split = warp / q.SLABS;
    float c[C][4] = {};
#pragma unroll
    for (int i = 0; i < q.V_STEPS; i++) {
        uint32_t first = 16 * i;
        int at = q.K_LOADS + 4 * i;
        if (first < q.split_n) {
            struct v_columns<C> v[4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                uint2 x = q.data[(at + r) % q.DEPTH];
                uint32_t new_r = first + 4 * t + r - q.n_values; /* huge: in the cache */
                if (NEW && new_r < q.split_n - q.n_values) {
                    const __half *own = (const __half *)s.new_values[q.first_new_value + new_r];
                    v[r] = load_v_columns<C>(own + (slab * 8 + g) * C);
                    continue;
                }
                v[r].x[0] = x.x;
                if (C == 4)
                    v[r].x[C / 2 - 1] = x.y;
            }
            pv_mma<C>(c, v, *(const uint2 *)&s.weights[g][split * length + first + 4 * t]);
        }
#pragma unroll
        for (int r = 0; r < 4; r++)
            q.load(at + r + q.DEPTH);
    }
    if (g < queries && q.split_n)
        store_pv<C>(c, &s.pv[split][g * D + (slab * 8 + 2 * t) * C]);
}

/* QK, softmax, PV of a pass, its splits combined into the chunk's O. */
template <int D, int NEW>
static __device__ __forceinline__ void run_pass(struct kv_stream<D> &q,
                                                struct batch_shared<D, NEW> &s, bool is_first) {
    uint32_t warp = threadIdx.x / 32, queries = s.tile.n_queries, length = s.tile.splits.length;
    uint32_t splits = (q.at.n + length - 1) / length;
    qk<D, NEW>(q, s, queries);
    __syncthreads();
    if (warp < queries)
        for (uint32_t i = 0; i < splits; i++)
            softmax(s.scores[warp] + i * length, s.weights[warp] + i * length, s.score_factor[warp],
                    visible_positions(s.tile, warp, q.at.begin + i * length), s.combine,
                    &s.combine.rescale[i][warp], warp);
    __syncthreads();
    pv<D, NEW>(q, s, queries, length);
    __syncthreads();
    using O = struct out_regs<D>;
#pragma unroll
    for (int j = 0; j < O::E; j++) {
        uint32_t e = O::at(j), query = e / D;
        if (query >= queries)
            break;
        float x[O::V] = {}, part[O::V];
        if (!is_first)
            copy_vector<O::V>(x, s.out + e);
#pragma unroll
        for (uint32_t i = 0; i < pass<D>::SPLITS; i++) {
            if (i >= splits)
                break;
            copy_vector<O::V>(part, &s.pv[i][e]);
#pragma unroll
            for (int v = 0; v < O::V; v++)
                x[v] = combine_value(x[v], part[v], s.combine.rescale[i][query]);
        }
        copy_vector<O::V>(s.out + e, x);
    }
}

/* Those of queries that a tile lacks stay zero. */
template <int D, int NEW>
static __device__ __forceinline__ void clear_weights(struct batch_shared<D, NEW> &s) {
    for (uint32_t i = threadIdx.x; i < sizeof s.weights / sizeof(uint32_t); i += THREADS)
        ((uint32_t *)s.weights)[i] = 0;
}

/* O of a chunk, from where run_pass left it. */
template <int D, int NEW>
static __device__ __forceinline__ struct out_regs<D>
load_out(const struct batch_shared<D, NEW> &s) {
    struct out_regs<D> m;
#pragma unroll
    for (int j = 0; j < m.E; j++)
        if (m.at(j) < m.MOST)
            copy_vector<m.V>(m.x[j], s.out + m.at(j));
    return m;
}

/* ---- short contexts -------------------------------------------------------------------------- */

/* This lane's positions: in the cache `offset` bytes from its start, or new. */
template <int NEW>
static __device__ __forceinline__ struct short_kv
short_kv_at(const struct attend_params &p, const struct batch_shared<64, NEW> &s, uint64_t offset,
            struct position_range at) {
    constexpr uint32_t ROW = 2 * 64;
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    struct short_kv r;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t k = min(g + 8 * i, at.n - 1);
        const uint8_t *from_new = (const uint8_t *)s.new_keys[at.first_new + k - at.n_cached];
        r.key[i] = (k < at.n_cached ? p.keys + offset + k * ROW : from_new) + t * 8;
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t k = min(4 * t + i, at.n - 1);
        const uint8_t *from_new = (const uint8_t *)s.new_values[at.first_new + k - at.n_cached];
        r.value[i] = (k < at.n_cached ? p.values + offset + k * ROW : from_new) + g * 16;
    }
    return r;
}

/* Splits of 16, a warp each: `at` is this warp's, its cached positions at `offset`. */
template <int NEW>
static __device__ __forceinline__ void
run_short(const struct attend_params &p, struct batch_shared<64, NEW> &s,
          const struct query_tile &tile, uint64_t offset, struct position_range at) {
    uint32_t t = threadIdx.x % 4;
    if (at.begin < tile.splits.n_positions) {
        const uint32_t visible[2] = {visible_positions(tile, 2 * t, at.begin),
                                     visible_positions(tile, 2 * t + 1, at.begin)};
        short_split(s.short_context.s, short_kv_at<NEW>(p, s, offset, at), s.query, s.score_factor,
                    tile.n_queries, visible, []() {});
    }
    __syncthreads();
    for (uint32_t e = 4 * threadIdx.x; e < tile.n_queries * 64; e += 4 * THREADS) {
        uint32_t query = e / 64, row = row_of_query(tile, query);
        float *out = p.out + (tile.row + row) * p.out_stride + e % 64 +
                     (uint64_t)(tile.first_head + query - row * tile.n_heads) * 64;
        *(float4 *)out = short_combine(s.short_context.s, e, tile.splits.count);
    }
}

/* ---- attend_batch: K and V of all rows are in the cache -------------------------------------- */

template <int D>
static __device__ __forceinline__ void
run_chunk(const struct attend_params &p, struct batch_shared<D, 0> &s,
          const struct query_tile &tile, uint32_t chunk, bool has_queries) {
    uint32_t first = chunk * chunk_splits(p, tile.splits);
    uint32_t end = min(first + chunk_splits(p, tile.splits), tile.splits.count);
    for (uint32_t split = first; split < end; split += pass<D>::SPLITS) {
        uint32_t begin = split * tile.splits.length;
        uint32_t n = min((min(split + pass<D>::SPLITS, end) - split) * tile.splits.length,
                         tile.splits.n_positions - begin);
        uint64_t at = cache_offset(p, tile.slot, tile.kv_head, begin);
        bool is_first = split == first;
        struct kv_stream<D> q;
        q.begin(p.keys + at, p.values + at, {begin, n, n, 0}, tile.splits.length);
        if (threadIdx.x == 0) {
            prefetch_l2(p.values + at, n * (2 * D));
            uint32_t next = begin + pass<D>::SPLITS * tile.splits.length;
            if (split + pass<D>::SPLITS < end)
                prefetch_l2(p.keys + cache_offset(p, tile.slot, tile.kv_head, next),
                            min(n, tile.splits.n_positions - next) * (2 * D));
        }
        __syncthreads(); /* the last pass's shared memory is free */
        if (is_first) {
            reset_state(s.combine);
            if (threadIdx.x == 0)
                s.tile = tile;
            if (!has_queries)
                load_queries<D>(p, s.query, s.score_factor, tile);
        }
        __syncthreads();
        run_pass<D, 0>(q, s, is_first);
    }
    struct out_regs<D> m = load_out<D, 0>(s);
    combine_and_store<D>(p, s.tile, s.combine, m, chunk);
}

static __device__ __forceinline__ void run_short_chunk(const struct attend_params &p,
                                                       struct batch_shared<64, 0> &s,
                                                       const struct query_tile &tile,
                                                       bool has_queries) {
    uint32_t begin = threadIdx.x / 32 * 16;
    uint32_t n = begin < tile.splits.n_positions ? min(16u, tile.splits.n_positions - begin) : 0;
    __syncthreads(); /* the last tile's shared memory is free */
    if (!has_queries)
        load_queries<64>(p, s.query, s.score_factor, tile);
    __syncthreads();
    run_short<0>(p, s, tile, cache_offset(p, tile.slot, tile.kv_head, 0) + begin * 2 * 64,
                 {begin, n, n, 0});
}

template <int D>
static __device__ __forceinline__ void attend_batch(const struct attend_params &p) {
    __shared__ struct batch_shared<D, 0> s;
    __shared__ struct row_tiles row_tiles;
    uint32_t tid = threadIdx.x;
    clear_weights<D, 0>(s);
    pdl_wait(p.io);
    if (tid < 32)
        find_row_tiles(p, row_tiles);
    __syncthreads();
    uint32_t per_row = p.kv_heads * p.tiles_per_kv, n_tiles = per_row * row_tiles.n;
    uint32_t loaded = ~0u; /* the tile whose queries are in shared memory */
    for (uint32_t i = blockIdx.x; i < n_tiles * row_tiles.max_chunks; i += gridDim.x) {
        uint32_t chunk = i / n_tiles, index = i % n_tiles, row_tile = index / per_row;
        struct query_tile tile =
            query_tile_of(p, row_tiles.row(row_tile), row_tiles.n_rows(row_tile), index % per_row);
        tile.index = index; /* partials for the rows that are here */
        if (chunk >= n_chunks(p, tile.splits))
            continue;
        if (!is_short(tile.splits))
            run_chunk<D>(p, s, tile, chunk, loaded == index);
        else if constexpr (D == 64)
            run_short_chunk(p, s, tile, loaded == index);
        loaded = index;
    }
}

/* ---- attend_batch_fused: finding work, by one warp ------------------------------------------- */

/* Relaxed: before griddepcontrol.wait EMBED may still write them, so they may be anything. */
static __device__ __forceinline__ struct step_rows load_step_rows(const struct attend_params &p) {
    uint32_t lane = threadIdx.x % 32;
    struct step_rows r;
    r.n = ld_relaxed(&p.io.header->n_rows);
    uint4 at = ld_relaxed_u32x4(p.io.rows + min(lane, p.max_rows - 1));
    r.position = at.y, r.slot = at.z, r.segment = at.w;
    return r;
}

static __device__ __forceinline__ bool are_valid(const struct attend_params &p,
                                                 const struct step_rows &r) {
    bool is_valid =
        threadIdx.x % 32 >= r.n || (r.slot < p.n_slots && r.position < p.pages_per_slot * PAGE);
    return __all_sync(0xffffffffu, is_valid && r.n <= p.max_rows);
}

static __device__ __forceinline__ bool are_equal(const struct step_rows &a,
                                                 const struct step_rows &b) {
    bool is_equal = a.position == b.position && a.slot == b.slot && a.segment == b.segment;
    return __all_sync(0xffffffffu, a.n == b.n && (is_equal || threadIdx.x % 32 >= a.n));
}

/* find_row_tiles for up to 32 rows. */
static __device__ __forceinline__ void find_tiles(const struct attend_params &p,
                                                  struct step_rows &r) {
    uint32_t lane = threadIdx.x % 32;
    bool is_row = lane < r.n;
    r.segment_row = __ffs(__match_any_sync(0xffffffffu, is_row ? r.segment : ~lane)) - 1;
    struct split_layout l = split_layout_of(p, r.position);
    bool is_first = is_row && ((lane - r.segment_row) % p.tile_rows == 0 ||
                               l.length != split_layout_of(p, r.position - 1).length);
    r.tile_mask = __ballot_sync(0xffffffffu, is_first);
    r.max_chunks = __reduce_max_sync(0xffffffffu, is_row ? n_chunks(p, l) : 0);
}

static __device__ __forceinline__ uint32_t n_items(const struct attend_params &p,
                                                   const struct step_rows &r) {
    return p.kv_heads * p.tiles_per_kv * __popc(r.tile_mask) * r.max_chunks;
}

static __device__ __forceinline__ struct fused_item
find_item(const struct attend_params &p, const struct step_rows &r, uint32_t index) {
    struct fused_item f = {};
    if (index >= n_items(p, r))
        return f;
    uint32_t per_row = p.kv_heads * p.tiles_per_kv, n_tiles = per_row * __popc(r.tile_mask);
    f.chunk = index < n_tiles ? 0 : index / n_tiles;
    uint32_t tile = index - f.chunk * n_tiles, row_tile = tile / per_row, lane = threadIdx.x % 32;
    uint32_t rank = __popc(r.tile_mask & ((1u << lane) - 1));
    uint32_t row =
        __ffs(__ballot_sync(0xffffffffu, rank == row_tile && r.tile_mask >> lane & 1)) - 1;
    uint32_t later = row < 31 ? r.tile_mask >> (row + 1) : 0;
    uint32_t rows = min(later ? __ffs(later) : r.n - row, p.tile_rows), last = row + rows - 1;
    uint32_t slot = __shfl_sync(0xffffffffu, r.slot, last);
    uint32_t position = __shfl_sync(0xffffffffu, r.position, last);
    f.page = load_page(p, slot, position);
    f.tile = query_tile_at(p, row, rows, slot, position, tile - row_tile * per_row);
    uint32_t each = chunk_splits(p, f.tile.splits);
    f.first = f.chunk * each, f.end = min(f.first + each, f.tile.splits.count);
    f.is_valid = f.first < f.end;
    uint32_t before = last - __shfl_sync(0xffffffffu, r.segment_row, last); /* in the segment */
    f.new_begin = max(f.first * f.tile.splits.length, position - min(before, position));
    uint32_t end = min(f.end * f.tile.splits.length, f.tile.splits.n_positions);
    f.n_new = end > f.new_begin ? end - f.new_begin : 0;
    f.new_row = last - (position - f.new_begin);
    return f;
}

/* ---- attend_batch_fused: heads --------------------------------------------------------------- */

/* cache_offset of a position of the tile's sequence; most are in the page that is known. */
static __device__ __forceinline__ uint64_t item_cache_offset(const struct attend_params &p,
                                                             const struct fused_item &f,
                                                             uint32_t position) {
    uint32_t page = f.page;
    if (position / PAGE != f.tile.position / PAGE)
        page = load_page(p, f.tile.slot, position);
    return (((uint64_t)page * p.kv_heads + f.tile.kv_head) * PAGE + position % PAGE) * p.row_bytes;
}

/* Positions from `begin` on, at most n. */
static __device__ __forceinline__ struct position_range range_at(const struct fused_item &f,
                                                                 uint32_t begin, uint32_t n) {
    uint32_t end = f.tile.splits.n_positions;
    struct position_range at = {begin, begin < end ? min(n, end - begin) : 0, 0, 0};
    if (f.new_begin > begin)
        at.n_cached = min(at.n, f.new_begin - begin);
    else
        at.first_new = begin - f.new_begin;
    return at;
}

/* A head that a warp computes: a query of the tile, or a new key or value. */
struct head_task {
    bool is_valid, is_query, is_key;
    uint32_t row, number, column; /* number: of the query, or the new position */
};

static __device__ __forceinline__ struct head_task
head_task_of(const struct attend_params &p, const struct fused_item &f, uint32_t i) {
    uint32_t keys = f.tile.n_queries + f.n_new;
    struct head_task t = {i < keys + f.n_new, i < f.tile.n_queries,
                          i >= f.tile.n_queries && i < keys};
    if (t.is_query) {
        uint32_t row = row_of_query(f.tile, i);
        t.row = f.tile.row + row, t.number = i;
        t.column = (f.tile.first_head + i - row * f.tile.n_heads) * p.q_stride;
    } else {
        t.number = t.is_key ? i - f.tile.n_queries : i - keys;
        t.row = f.new_row + t.number;
        t.column = (t.is_key ? p.k_column : p.v_column) + f.tile.kv_head * p.head_width;
    }
    return t;
}

template <int D>
static __device__ __forceinline__ void load_head(const struct attend_params &p,
                                                 const struct head_task &t,
                                                 struct head_regs<D / 64, D> &head) {
    head.load(p, p.in + t.row * p.in_stride + t.column, t.row);
    head.load_norm(p, t.is_query ? p.q_norm : p.k_norm);
}

/* The tile's queries and the chunk's new keys and values. The warp's first is in flight. */
template <int D, int NEW>
static __device__ __forceinline__ void
make_heads(const struct attend_params &p, struct batch_shared<D, NEW> &s,
           const struct fused_item &f, struct head_regs<D / 64, D> &head) {
    uint32_t warp = threadIdx.x / 32, i = warp;
    struct head_task t = head_task_of(p, f, i);
#pragma unroll 1
    while (t.is_valid) {
        if (t.is_query || t.is_key)
            head.norm_and_rotate(p, t.is_query ? p.q_norm : p.k_norm, t.row, s.scratch[warp]);
        if (t.is_query)
            pack_query<D>(p, head.x, s.query, s.score_factor, t.number);
        else
            store_f16<D>(head.x, (t.is_key ? s.new_keys : s.new_values)[t.number]);
        t = head_task_of(p, f, i += ATTEND_WARPS);
        if (t.is_valid)
            load_head<D>(p, t, head);
    }
}

/* KV store of the tile's own rows; the last warps first, which have less to compute. */
template <int D, int NEW>
static __device__ __forceinline__ void store_new_kv(const struct attend_params &p,
                                                    const struct batch_shared<D, NEW> &s,
                                                    const struct fused_item &f) {
    uint32_t lane = threadIdx.x % 32, warp = ATTEND_WARPS - 1 - threadIdx.x / 32;
    for (uint32_t i = warp; f.tile.is_first_of_kv && i < f.n_new; i += ATTEND_WARPS) {
        if (f.new_row + i < f.tile.row || lane >= D / 8)
            continue;
        uint64_t at = item_cache_offset(p, f, f.new_begin + i);
        ((uint4 *)(p.keys + at))[lane] = s.new_keys[i][lane];
        ((uint4 *)(p.values + at))[lane] = s.new_values[i][lane];
    }
}

/* ---- attend_batch_fused ---------------------------------------------------------------------- */

/* `head`: the warp's first, in flight. */
template <int D, int NEW>
static __device__ __forceinline__ void
run_item(const struct attend_params &p, struct batch_shared<D, NEW> &s, const struct fused_item &f,
         struct head_regs<D / 64, D> &head) {
    bool is_short_item = D == 64 && is_short(f.tile.splits);
    for (uint32_t split = f.first; split < f.end; split += pass<D>::SPLITS) {
        uint32_t length = f.tile.splits.length, splits = min(pass<D>::SPLITS, f.end - split);
        struct position_range at = is_short_item ? range_at(f, threadIdx.x / 32 * 16, 16)
                                                 : range_at(f, split * length, splits * length);
        uint32_t begin = at.begin;
        uint64_t offset = at.n_cached ? item_cache_offset(p, f, begin) : 0;
        struct kv_stream<D> q;
        if (!is_short_item)
            q.begin(p.keys + offset, p.values + offset, at, length);
        if (threadIdx.x == 0 && !is_short_item && at.n_cached >= ATTEND_PREFETCHED) {
            prefetch_l2(p.values + offset, at.n_cached * (2 * D));
            struct position_range next = range_at(f, begin + pass<D>::SPLITS * length, at.n);
            if (split + pass<D>::SPLITS < f.end && next.n_cached)
                prefetch_l2(p.keys + item_cache_offset(p, f, next.begin), next.n_cached * (2 * D));
        }
        __syncthreads(); /* the last pass's shared memory is free */
        if (split == f.first) {
            reset_state(s.combine);
            if (threadIdx.x == 0)
                s.tile = f.tile;
            make_heads<D>(p, s, f, head);
        }
        __syncthreads();
        if (split == f.first)
            store_new_kv<D>(p, s, f);
        if constexpr (D == 64)
            if (is_short_item) {
                run_short<NEW>(p, s, f.tile, offset, at);
                return;
            }
        run_pass<D, NEW>(q, s, split == f.first);
    }
    struct out_regs<D> m = load_out<D, NEW>(s);
    combine_and_store<D>(p, s.tile, s.combine, m, f.chunk);
}

/* Before griddepcontrol.wait warp 0 finds the block's first item in the rows as they are by then;
 * after it all warps load that item's heads while warp 0 checks that the rows are still the same.
 */
template <int D>
static __device__ __forceinline__ void attend_batch_fused(const struct attend_params &p) {
    extern __shared__ uint4 dynamic_shared[];
    using S = struct batch_shared<D, ATTEND_FUSED_ROWS>;
    static_assert(sizeof(S) <= ATTEND_FUSED_SHARED(D), "attend.h");
    S &s = *(S *)dynamic_shared;
    uint32_t warp = threadIdx.x / 32, index = blockIdx.x, current = 0;
    struct head_regs<D / 64, D> head;
    struct step_rows r;
    clear_weights<D, ATTEND_FUSED_ROWS>(s);
    if (warp == 0) {
        r = load_step_rows(p);
        bool is_valid = are_valid(p, r);
        r.n = is_valid ? r.n : 0;
        find_tiles(p, r);
        struct fused_item f = find_item(p, r, index);
        if (threadIdx.x == 0)
            s.items[0] = f;
    }
    __syncthreads();
    pdl_wait(p.io);
    bool is_loaded = s.items[0].is_valid;
    if (is_loaded) {
        struct head_task t = head_task_of(p, s.items[0], warp);
        if (t.is_valid)
            load_head<D>(p, t, head);
    }
    if (warp == 0) {
        struct step_rows now = load_step_rows(p);
        uint32_t page =
            is_loaded ? load_page(p, s.items[0].tile.slot, s.items[0].tile.position) : 0;
        bool is_right = are_equal(r, now) && page == s.items[0].page;
        if (!is_right) {
            r = now;
            find_tiles(p, r);
            struct fused_item f = find_item(p, r, index);
            if (threadIdx.x == 0)
                s.items[1] = f;
        }
        if (threadIdx.x == 0)
            s.n_items = n_items(p, r), s.first_item = !is_right;
        s.rows[threadIdx.x] = r;
    }
    __syncthreads();
    current = s.first_item;
    is_loaded = is_loaded && !current;
    for (; index < s.n_items; index += gridDim.x, current ^= 1, is_loaded = false) {
        const struct fused_item &f = s.items[current];
        if (f.is_valid && !is_loaded) {
            struct head_task t = head_task_of(p, f, warp);
            if (t.is_valid)
                load_head<D>(p, t, head);
        }
        if (f.is_valid)
            run_item<D>(p, s, f, head);
        if (index + gridDim.x >= s.n_items)
            break;
        if (warp == 0) {
            struct fused_item next = find_item(p, s.rows[threadIdx.x], index + gridDim.x);
            if (threadIdx.x == 0)
                s.items[current ^ 1] = next;
        }
        __syncthreads();
    }
}

#define BATCH_KERNEL(NAME, D)                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        NAME##_##D(const __grid_constant__ struct attend_params p) {                               \
        pdl_launch_dependents();                                                                   \
        NAME<D>(p);                                                                                \
    }
BATCH_KERNEL(attend_batch, 64)
BATCH_KERNEL(attend_batch, 128)
BATCH_KERNEL(attend_batch, 256)
BATCH_KERNEL(attend_batch_fused, 64)
BATCH_KERNEL(attend_batch_fused, 128)
BATCH_KERNEL(attend_batch_fused, 256)
