/* attend_staged.cu - ATTEND over a q8_0 or q4_0 cache, and of heads of 96: plans of any number of
 * rows. attend_rope_store has made the queries and stored K and V; on sm_90 attend_wide.cu has the
 * longer segments.
 *
 * Blocks of 8 warps loop over (query tile, chunk of splits), one split at a time. Its keys and its
 * values are copied to shared memory as they are in the cache, each while the other is used: blocks
 * of 34 or 18 bytes make poor loads, but a split's are one run of bytes. They become fp16 in
 * registers, in fragment order: of K a warp has 16 positions, of V a slab of columns. Chains,
 * softmax and combining are those of attend.cuh.
 *
 * Reads the bytes of a cached position once a tile. */
#include "backend/cuda/kernels/attend_quants.cuh"
#include "backend/cuda/kernels/attend_split.cuh"

template <int TYPE, int D> struct staged_shared {
    static constexpr int ROW = CACHE_ROW<TYPE, D>;
    static constexpr int C = D > 128 ? 4 : 2, SLABS = D / 8 / C; /* of V: a lane's columns; warps */
    static constexpr int STRIDE = ATTEND_MAX_SPLIT + 16;         /* no bank conflicts */
    static_assert(SLABS <= ATTEND_WARPS, "a warp a slab");
    alignas(16) uint8_t keys[ATTEND_MAX_SPLIT * ROW], values[ATTEND_MAX_SPLIT * ROW];
    uint2 query[D / 16][32]; /* B fragments */
    alignas(16) float scores[ATTEND_TILE_QUERIES][STRIDE];
    alignas(16) __half weights[ATTEND_TILE_QUERIES][STRIDE];
    alignas(16) float pv[ATTEND_TILE_QUERIES * D];
    float score_factor[ATTEND_TILE_QUERIES];
    struct combine_shared combine;
};

/* ---- a split --------------------------------------------------------------------------------- */

/* Where a block stands: a split of its work item. */
struct cursor {
    struct query_tile tile;
    uint32_t item, chunk, split, end; /* end: of the chunk's splits */
};

/* First position of the split, and how many it has. */
static __device__ __forceinline__ uint32_t split_begin(const struct cursor &c) {
    return c.split * c.tile.splits.length;
}

static __device__ __forceinline__ uint32_t split_n(const struct cursor &c) {
    return min(c.tile.splits.length, c.tile.splits.n_positions - split_begin(c));
}

/* Copies keys or values of a split, as a group of cp.async; an empty one where there is none. A
 * split begins at a multiple of 16 bytes; after its last position up to 15 more are read. */
template <int TYPE, int D>
static __device__ __forceinline__ void stage(const struct attend_params &p, const struct cursor &c,
                                             bool is_there, const uint8_t *cache, uint8_t *to) {
    if (is_there) {
        const uint8_t *from = cache + cache_offset(p, c.tile.slot, c.tile.kv_head, split_begin(c));
        uint32_t bytes = split_n(c) * CACHE_ROW<TYPE, D>, shared = smem_addr(to);
        for (uint32_t i = 16 * threadIdx.x; i < bytes; i += 16 * THREADS)
            cp_async_16(shared + i, from + i);
    }
    cp_async_commit();
}

template <int TYPE, int D>
static __device__ __forceinline__ void qk(struct staged_shared<TYPE, D> &s, uint32_t n,
                                          uint32_t queries) {
    uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16, g = lane / 4, t = lane % 4;
    if (first >= n)
        return;
    const uint8_t *row0 = s.keys + (first + g) * s.ROW, *row8 = row0 + 8 * s.ROW;
    float c[4] = {};
#pragma unroll
    for (int step = 0; step < D / 16; step++)
        qk_mma(c, cached_4<TYPE>(row0, 16 * step + 4 * t), cached_4<TYPE>(row8, 16 * step + 4 * t),
               s.query[step][lane]);
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (2 * t + k % 2 < queries)
            s.scores[2 * t + k % 2][first + g + k / 2 * 8] = c[k];
}

template <int TYPE, int D>
static __device__ __forceinline__ void pv(struct staged_shared<TYPE, D> &s, uint32_t n,
                                          uint32_t queries) {
    constexpr int C = s.C;
    uint32_t lane = threadIdx.x % 32, slab = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    if (slab >= s.SLABS)
        return;
    float c[C][4] = {};
#pragma unroll 2
    for (uint32_t first = 0; first < n; first += 16) {
        struct v_columns<C> v[4];
#pragma unroll
        for (uint32_t r = 0; r < 4; r++)
            v[r] = cached<TYPE, C>(s.values + (first + 4 * t + r) * s.ROW, (slab * 8 + g) * C);
        if (first + 16 > n) /* not copied: 0 times it must be 0 */
#pragma unroll
            for (uint32_t r = 0; r < 4; r++)
                if (first + 4 * t + r >= n)
                    v[r] = {};
        pv_mma<C>(c, v, *(const uint2 *)&s.weights[g][first + 4 * t]);
    }
    if (g < queries)
        store_pv<C>(c, &s.pv[g * D + (slab * 8 + 2 * t) * C]);
}

/* ---- work items ------------------------------------------------------------------------------ */

/* Items of the step: (chunk, row tile, tile of the row). */
struct items {
    uint32_t n, n_tiles, per_row;
};

/* The block's next item from c.item on; false: there is none. */
static __device__ __forceinline__ bool find_item(const struct attend_params &p,
                                                 const struct row_tiles &rows,
                                                 const struct items &items, struct cursor &c) {
    for (; c.item < items.n; c.item += gridDim.x) {
        uint32_t index = c.item % items.n_tiles, row_tile = index / items.per_row;
        c.chunk = c.item / items.n_tiles;
        c.tile = query_tile_of(p, rows.row(row_tile), rows.n_rows(row_tile), index % items.per_row);
        c.tile.index = index; /* partials for the rows that are here */
        uint32_t each = chunk_splits(p, c.tile.splits);
        c.split = c.chunk * each, c.end = min(c.split + each, c.tile.splits.count);
        if (c.split < c.end)
            return true;
    }
    return false;
}

/* The split after this one, of the same item or of the next. */
static __device__ __forceinline__ bool advance(const struct attend_params &p,
                                               const struct row_tiles &rows,
                                               const struct items &items, struct cursor &c) {
    if (++c.split < c.end)
        return true;
    c.item += gridDim.x;
    return find_item(p, rows, items, c);
}

/* The split's O, in s.pv, into the chunk's. */
template <int TYPE, int D>
static __device__ __forceinline__ void combine_split(const struct staged_shared<TYPE, D> &s,
                                                     struct out_regs<D> &m, uint32_t queries,
                                                     bool is_first) {
#pragma unroll
    for (int j = 0; j < m.E; j++) {
        uint32_t e = m.at(j), query = e / D;
        if (query >= queries)
            break;
        float part[m.V];
        copy_vector<m.V>(part, &s.pv[e]);
#pragma unroll
        for (int v = 0; v < m.V; v++)
            m.x[j][v] =
                combine_value(is_first ? 0.0f : m.x[j][v], part[v], s.combine.rescale[0][query]);
    }
}

template <int TYPE, int D>
static __device__ __forceinline__ void attend_staged(const struct attend_params &p) {
    extern __shared__ uint4 dynamic_shared[]; /* the table of row tiles, then: */
    using S = struct staged_shared<TYPE, D>;
    static_assert(sizeof(S) <= ATTEND_STAGED_SHARED(S::ROW, D), "attend.h");
    S &s = *(S *)((uint8_t *)dynamic_shared + ATTEND_ROW_TABLE(p.max_rows));
    __shared__ struct row_tiles rows;
    uint32_t warp = threadIdx.x / 32, loaded = ~0u; /* the tile whose queries are here */
    for (uint32_t i = threadIdx.x; i < sizeof s.weights / sizeof(uint32_t); i += THREADS)
        ((uint32_t *)s.weights)[i] = 0; /* of queries that a tile lacks */
    pdl_wait(p.io);
    if (warp == 0)
        find_row_tiles(p, rows);
    __syncthreads();
    struct items items = {0, 0, p.kv_heads * p.tiles_per_kv};
    items.n_tiles = items.per_row * rows.n, items.n = items.n_tiles * rows.max_chunks;
    struct cursor c = {{}, blockIdx.x, 0, 0, 0};
    struct out_regs<D> m;
    bool is_there = find_item(p, rows, items, c), is_first = true;
    stage<TYPE, D>(p, c, is_there, p.keys, s.keys);
    stage<TYPE, D>(p, c, is_there, p.values, s.values);
    while (is_there) {
        struct cursor next = c;
        bool has_next = advance(p, rows, items, next);
        uint32_t n = split_n(c), queries = c.tile.n_queries;
        if (is_first) {
            reset_state(s.combine);
            if (loaded != c.tile.index)
                load_queries<D>(p, s.query, s.score_factor, c.tile);
            loaded = c.tile.index;
        }
        cp_async_wait<1>();
        __syncthreads();
        qk<TYPE, D>(s, n, queries);
        __syncthreads();
        stage<TYPE, D>(p, next, has_next, p.keys, s.keys);
        if (warp < queries)
            softmax(s.scores[warp], s.weights[warp], s.score_factor[warp],
                    visible_positions(c.tile, warp, split_begin(c)), s.combine,
                    &s.combine.rescale[0][warp], warp);
        cp_async_wait<1>();
        __syncthreads();
        pv<TYPE, D>(s, n, queries);
        __syncthreads();
        stage<TYPE, D>(p, next, has_next, p.values, s.values);
        combine_split<TYPE, D>(s, m, queries, is_first);
        is_first = c.split + 1 == c.end;
        if (is_first) {
            combine_and_store<D>(p, c.tile, s.combine, m, c.chunk);
            __syncthreads(); /* all have read s.combine */
        }
        c = next, is_there = has_next;
    }
    cp_async_wait_all();
}

#define STAGED_KERNEL(NAME, TYPE, D)                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        attend_staged_##NAME(const __grid_constant__ struct attend_params p) {                     \
        pdl_launch_dependents();                                                                   \
        attend_staged<TYPE, D>(p);                                                                 \
    }
STAGED_KERNEL(96, CACHE_F16, 96)
STAGED_KERNEL(q8_0_64, CACHE_Q8_0, 64)
STAGED_KERNEL(q8_0_96, CACHE_Q8_0, 96)
STAGED_KERNEL(q8_0_128, CACHE_Q8_0, 128)
STAGED_KERNEL(q8_0_256, CACHE_Q8_0, 256)
STAGED_KERNEL(q4_0_64, CACHE_Q4_0, 64)
STAGED_KERNEL(q4_0_96, CACHE_Q4_0, 96)
STAGED_KERNEL(q4_0_128, CACHE_Q4_0, 128)
STAGED_KERNEL(q4_0_256, CACHE_Q4_0, 256)

/* ---- fp16 for attend_wide -------------------------------------------------------------------- */

/* Keys, or values, of some positions of a page. */
struct unpack_unit {
    uint64_t at; /* first position, of all in the cache */
    uint32_t n;
    bool is_value;
};

/* Unit i of the step: of every segment that attend_wide has, all that its last row sees. */
static __device__ __forceinline__ bool find_unit(const struct attend_params &p, uint32_t i,
                                                 struct unpack_unit &unit) {
    for (uint32_t s = 0; s < p.io.header->n_segments; s++) {
        struct io_segment seg = p.io.segments[s];
        uint32_t end = seg.first_position + seg.n_rows;
        uint32_t parts = (end + ATTEND_UNPACK_POSITIONS - 1) / ATTEND_UNPACK_POSITIONS;
        uint32_t n = seg.n_rows >= ATTEND_WIDE_ROWS ? 2 * p.kv_heads * parts : 0;
        if (i < n) {
            uint32_t head = i / 2 % p.kv_heads, part = i / 2 / p.kv_heads;
            uint32_t position = part * ATTEND_UNPACK_POSITIONS;
            uint64_t page = load_page(p, p.io.rows[seg.first_row].slot, position);
            unit = {(page * p.kv_heads + head) * PAGE + position % PAGE,
                    min(end - position, (uint32_t)ATTEND_UNPACK_POSITIONS), i % 2 != 0};
            return true;
        }
        i -= n;
    }
    return false;
}

/* A lane has eight columns, 16 bytes of fp16. */
template <int TYPE>
static __device__ __forceinline__ void unpack(const struct attend_params &p,
                                              const struct unpack_unit &unit) {
    const uint8_t *from = (unit.is_value ? p.values : p.keys) + unit.at * p.row_bytes;
    uint4 *to = (uint4 *)((unit.is_value ? p.half_values : p.half_keys) +
                          unit.at * p.head_width * sizeof(__half));
    uint32_t chunks = p.head_width / 8;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < unit.n * chunks; i += THREADS) {
        uint32_t position = i / chunks, column = (i - position * chunks) * 8;
        const uint8_t *row = from + position * p.row_bytes;
        uint2 a = cached_4<TYPE>(row, column), b = cached_4<TYPE>(row, column + 4);
        to[i] = make_uint4(a.x, a.y, b.x, b.y);
    }
}

/* A quantized cache as fp16, d q rounded once, for attend_wide: unpacking it there, once for every
 * tile of queries, took longer than multiplying. */
extern "C" __global__ void __launch_bounds__(THREADS)
    attend_unpack(const __grid_constant__ struct attend_params p) {
    pdl_launch_dependents();
    pdl_wait(p.io);
    struct unpack_unit unit;
    for (uint32_t i = blockIdx.x; find_unit(p, i, unit); i += gridDim.x)
        if (p.type == CACHE_Q8_0)
            unpack<CACHE_Q8_0>(p, unit);
        else
            unpack<CACHE_Q4_0>(p, unit);
}
