/* attend_wide.cu - ATTEND of prompts: segments of ATTEND_WIDE_ROWS rows and more, heads of 64, 96,
 * 128 and 256 over an fp16, q8_0 or q4_0 cache, on wgmma (sm_90a). attend_rope_store has made the
 * queries and stored K and V; shorter segments of the step are attend_batch.cu's or
 * attend_staged.cu's.
 *
 *   out = softmax(scale Q K^T) V    causal
 *
 * A tile is up to 128 queries that read one KV head: query heads of consecutive rows, whose splits
 * have the same length.
 *
 * Blocks, one an SM, take items (groups of splits of a tile, in order of position) from a counter.
 *   warps 0 to 3    the producer: cp.async of Q, K and V into shared memory, 128-byte swizzle; of
 *                   a quantized cache bulk copies of 32 positions as they are, which the producer
 *                   then unpacks to fp16 for the consumers
 *   warps 4 to 11   two consumer warpgroups, 64 queries each
 *
 * Per split of L positions: S = Q K^T (m64nLk16, both from shared memory), softmax in registers,
 * then PV by blocks of 64 columns (m64n64k16, weights from registers): a split's O begins at zero
 * and is combined into the group's in registers. A group's O is combined into the row's own through
 * `out`, by whichever blocks have the groups of a tile, one after the other: a flag a tile and
 * warpgroup counts the groups that are in.
 *
 * The chains of MMAs, their order, the softmax and the order of combining are those of attend.cuh:
 * the bits are those of one row alone.
 *
 * Reads the bytes of a position (fp16: 4 D) once a tile, and queries twice (2 D bytes) an item. */
#include "backend/cuda/kernels/attend.cuh"

enum {
    TILE_QUERIES = ATTEND_WIDE_QUERIES,
    TILE_POSITIONS = 128,
    GROUP_THREADS = 128, /* of a warpgroup */
    PANEL_BYTES = TILE_POSITIONS * 128,
    RAW_POSITIONS = 32, /* of a quantized cache, copied at once, */
    RAW_STAGES = 3,     /* this many ahead */
    MAX_SEGMENTS = ATTEND_MAX_ROWS / ATTEND_WIDE_ROWS,
};

/* Groups [first_group, end_group) of a tile's splits for one KV head. */
struct wide_item {
    uint32_t n_rows;              /* 0: no more items */
    uint32_t row, position, slot; /* of the first row */
    uint32_t kv_head, flag;
    uint32_t first_group, end_group, n_groups; /* n_groups: of the tile */
    struct split_layout splits;                /* of the last row */
};

template <int D, int T> struct wide_shared {
    static constexpr bool IS_QUANT = T != CACHE_F16;
    static constexpr int STAGE_COLUMNS = D < 128 ? D : 128;
    static constexpr int STAGE_PANELS = (STAGE_COLUMNS + 63) / 64; /* heads of 96: half of one */
    static constexpr int STAGE_BYTES = STAGE_PANELS * PANEL_BYTES;
    static constexpr int TILE_STAGES = D / STAGE_COLUMNS; /* of K, or V, of a tile */
    static constexpr int STAGES = IS_QUANT ? (D > 64 ? 4 : 5) : D > 128 ? 5 : 6;
    static constexpr int RAW_BYTES = IS_QUANT ? RAW_POSITIONS * CACHE_ROW<T, D> : 16;
    static_assert(!IS_QUANT || STAGES % TILE_STAGES == 0, "a tile's stages are consecutive");
    uint8_t query[(D + 63) / 64][PANEL_BYTES];
    uint8_t stages[STAGES][STAGE_BYTES];
    alignas(16) uint8_t raw[RAW_STAGES][RAW_BYTES];
    uint64_t full[STAGES], empty[STAGES], query_full, query_empty; /* mbarriers */
    uint64_t raw_full[RAW_STAGES];
    float score_factor[TILE_QUERIES];
    struct wide_item items[3]; /* the last, this one and the next */
    uint16_t segment[MAX_SEGMENTS], first_tile[MAX_SEGMENTS];
    uint32_t n_segments, n_tiles, n_groups; /* of the step; n_groups: the most of a tile */
};

/* ---- tiles ----------------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t n_groups_at(const struct attend_params &p,
                                                       uint32_t position) {
    struct split_layout l = split_layout_of(p, position);
    return (l.count + l.per_group - 1) / l.per_group;
}

/* The step's wide segments. By one warp. */
template <int D, int T>
static __device__ __forceinline__ void find_segments(const struct attend_params &p,
                                                     struct wide_shared<D, T> &s) {
    uint32_t lane = threadIdx.x % 32, n = p.io.header->n_segments, count = 0, tiles = 0, most = 0;
    for (uint32_t base = 0; base < n; base += 32) {
        struct io_segment seg = {};
        struct row_tile unused;
        if (base + lane < n)
            seg = p.io.segments[base + lane];
        bool is_wide = seg.n_rows >= ATTEND_WIDE_ROWS;
        uint32_t mine = is_wide ? walk_row_tiles(p, seg, p.wide_rows, ~0u, &unused) : 0,
                 before = mine;
        if (is_wide)
            most = max(most, n_groups_at(p, seg.first_position + seg.n_rows - 1));
        for (int i = 1; i < 32; i *= 2) {
            uint32_t other = __shfl_up_sync(0xffffffffu, before, i);
            before += lane >= i ? other : 0;
        }
        uint32_t mask = __ballot_sync(0xffffffffu, is_wide);
        if (is_wide) {
            uint32_t at = count + __popc(mask & ((1u << lane) - 1));
            s.segment[at] = (uint16_t)(base + lane);
            s.first_tile[at] = (uint16_t)(tiles + before - mine);
        }
        count += __popc(mask);
        tiles += __shfl_sync(0xffffffffu, before, 31);
    }
    most = __reduce_max_sync(0xffffffffu, most);
    if (lane == 0)
        s.n_segments = count, s.n_tiles = tiles, s.n_groups = most;
}

/* Item i of the step, groups before tiles so that blocks rarely wait for each other; false: the
 * tile has no such groups. The tiles of late positions come first. By one warp. */
template <int D, int T>
static __device__ __forceinline__ bool find_item(const struct attend_params &p,
                                                 const struct wide_shared<D, T> &s, uint32_t i,
                                                 uint32_t item_groups, struct wide_item *item) {
    uint32_t lane = threadIdx.x % 32, each = s.n_tiles * p.kv_heads, chunk = i / each;
    uint32_t tile = s.n_tiles - 1 - i % each / p.kv_heads, segment = 0;
    for (uint32_t base = 0; base < s.n_segments; base += 32)
        segment += __popc(__ballot_sync(0xffffffffu, base + lane < s.n_segments &&
                                                         s.first_tile[base + lane] <= tile));
    segment--;
    struct io_segment of = p.io.segments[s.segment[segment]];
    struct row_tile rows;
    walk_row_tiles(p, of, p.wide_rows, tile - s.first_tile[segment], &rows);
    item->row = of.first_row + rows.first, item->n_rows = rows.n;
    item->position = of.first_position + rows.first, item->slot = p.io.rows[of.first_row].slot;
    item->kv_head = i % p.kv_heads;
    item->flag = 2 * (tile * p.kv_heads + item->kv_head);
    item->splits = split_layout_of(p, item->position + item->n_rows - 1);
    item->n_groups = n_groups_at(p, item->position + item->n_rows - 1);
    item->first_group = chunk * item_groups;
    item->end_group = min(item->first_group + item_groups, item->n_groups);
    return item->first_group < item->end_group;
}

/* First position of a group, and the end of those that the tile sees. */
static __device__ __forceinline__ uint32_t group_begin(const struct wide_item &item,
                                                       uint32_t group) {
    return group * item.splits.per_group * item.splits.length;
}

static __device__ __forceinline__ uint32_t group_end(const struct wide_item &item, uint32_t group) {
    return min(group_begin(item, group + 1), item.splits.n_positions);
}

/* ---- the producer warpgroup ------------------------------------------------------------------ */

/* A row of a panel: 16-byte chunks in the order of the 128-byte swizzle. */
static __device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t chunk) {
    return chunk / 8 * PANEL_BYTES + row * 128 + ((chunk ^ row) % 8) * 16;
}

/* The tile's queries, zero where it has none, and their factors. */
template <int D, int T>
static __device__ __forceinline__ void fill_queries(const struct attend_params &p,
                                                    struct wide_shared<D, T> &s,
                                                    const struct wide_item &item) {
    constexpr uint32_t CHUNKS = D / 8, ROWS = GROUP_THREADS / CHUNKS;
    uint32_t tid = threadIdx.x, chunk = tid % CHUNKS, n = item.n_rows * p.q_per_kv;
    uint32_t to = smem_addr(s.query);
    const __half *from = (const __half *)p.queries + 8 * chunk;
    uint32_t first = item.row * p.heads + item.kv_head * p.q_per_kv;
#pragma unroll 4
    for (uint32_t m = tid / CHUNKS; m < TILE_QUERIES; m += ROWS) {
        uint32_t row = m / p.q_per_kv, head = first + row * (p.heads - p.q_per_kv) + m;
        cp_async_16_or_zero(to + swizzled(m, chunk), from + (uint64_t)(m < n ? head : first) * D,
                            m < n);
    }
    uint32_t row = tid / p.q_per_kv, head = first + row * (p.heads - p.q_per_kv) + tid;
    s.score_factor[tid] = tid < n ? __ldcg(p.query_factors + head) : 0;
}

/* Columns from `column` on of 128 positions from `from` on, of which n are there. */
template <int D, int T>
static __device__ __forceinline__ void fill_stage(uint32_t to, const uint8_t *from, uint32_t n) {
    constexpr uint32_t CHUNKS = wide_shared<D, T>::STAGE_COLUMNS / 8;
    constexpr uint32_t LANES = CHUNKS > 8 ? 16 : 8, ROWS = GROUP_THREADS / LANES;
    static_assert(ROWS % 8 == 0, "rows of a thread have the same swizzle");
    uint32_t chunk = threadIdx.x % LANES, row = threadIdx.x / LANES;
    if (CHUNKS < LANES && chunk >= CHUNKS)
        return;
    to += swizzled(row, chunk);
    from += row * (2 * D) + chunk * 16;
    if (n >= TILE_POSITIONS) {
#pragma unroll
        for (uint32_t i = 0; i < TILE_POSITIONS; i += ROWS)
            cp_async_16(to + i * 128, from + i * (2 * D));
        return;
    }
#pragma unroll 4
    for (uint32_t i = 0; i < TILE_POSITIONS; i += ROWS)
        cp_async_16_or_zero(to + i * 128, row + i < n ? from + i * (2 * D) : from, row + i < n);
}

struct fill_state {
    uint32_t stage, phase; /* of the next fill; phase: of `empty` when it is free */
};

template <int D, int T>
static __device__ __forceinline__ void fill_next(struct wide_shared<D, T> &s, struct fill_state &f,
                                                 const uint8_t *from, uint32_t n) {
    mbarrier_wait(smem_addr(&s.empty[f.stage]), f.phase ^ 1);
    fill_stage<D, T>(smem_addr(s.stages[f.stage]), from, n);
    cp_async_arrive(smem_addr(&s.full[f.stage]));
    if (++f.stage == s.STAGES)
        f.stage = 0, f.phase ^= 1;
}

/* What the producer knows of the items to come. */
struct item_queue {
    uint32_t n;           /* items so far, without this one */
    uint32_t ticket;      /* of the item to look at next; in thread 0 */
    uint32_t end, groups; /* of tickets; of an item */
};

/* The next item of the step, by warp 0. */
template <int D, int T>
static __device__ __forceinline__ void find_next_item(const struct attend_params &p,
                                                      struct wide_shared<D, T> &s,
                                                      struct item_queue &q, uint32_t slot) {
    if (threadIdx.x >= 32)
        return;
    struct wide_item item;
    uint32_t i;
    do {
        i = __shfl_sync(0xffffffffu, q.ticket, 0);
        if (threadIdx.x == 0)
            q.ticket = atomicAdd(p.wide_work, 1u); /* in flight until it is needed */
    } while (i < q.end && !find_item<D, T>(p, s, i, q.groups, &item));
    if (i >= q.end)
        item.n_rows = 0;
    if (threadIdx.x == 0)
        s.items[slot] = item;
}

/* Queries once the consumers have done with the last item's. The plain arrival is for the item. */
template <int D, int T>
static __device__ __forceinline__ void fill_next_queries(const struct attend_params &p,
                                                         struct wide_shared<D, T> &s,
                                                         const struct wide_item &item, uint32_t n) {
    if (n)
        mbarrier_wait(smem_addr(&s.query_empty), (n - 1) & 1);
    if (item.n_rows)
        fill_queries<D, T>(p, s, item);
    cp_async_arrive(smem_addr(&s.query_full));
    mbarrier_arrive(smem_addr(&s.query_full));
}

/* Of every 128 positions all of K, then all of V; the queries after the first K. */
template <int D, int T>
static __device__ __forceinline__ void
fill_item(const struct attend_params &p, struct wide_shared<D, T> &s, struct fill_state &f,
          struct item_queue &q, const struct wide_item &item) {
    uint32_t begin = group_begin(item, item.first_group);
    uint32_t end = group_end(item, item.end_group - 1);
    const int32_t *pages = p.page_table + (uint64_t)item.slot * p.pages_per_slot;
    uint32_t page = pages[begin / PAGE];
    for (uint32_t at = begin; at < end; at += TILE_POSITIONS) {
        uint32_t next = pages[min(at + TILE_POSITIONS, end - 1) / PAGE]; /* in flight meanwhile */
        uint64_t offset =
            (((uint64_t)page * p.kv_heads + item.kv_head) * PAGE + at % PAGE) * (2 * D);
#pragma unroll 1
        for (int i = 0; i < s.TILE_STAGES; i++)
            fill_next<D, T>(s, f, p.keys + offset + i * (2 * s.STAGE_COLUMNS), end - at);
        if (at == begin)
            fill_next_queries<D, T>(p, s, item, q.n);
#pragma unroll 1
        for (int i = 0; i < s.TILE_STAGES; i++)
            fill_next<D, T>(s, f, p.values + offset + i * (2 * s.STAGE_COLUMNS), end - at);
        if (at == begin) /* all warps have begun the last item: the slot is free */
            find_next_item<D, T>(p, s, q, (q.n + 1) % 3);
        page = next;
    }
}

static __device__ __forceinline__ void sync_producers(void) {
    any_barrier_sync(1, GROUP_THREADS);
}

/* ---- the producer, of a quantized cache ------------------------------------------------------ */

/* A block of 32 values of row `row`, from the 16-byte chunk `chunk` on. It begins at a multiple of
 * two bytes: aligned words are loaded and shifted. */
template <int T>
static __device__ __forceinline__ void unpack_block(uint32_t to, const uint8_t *block, uint32_t row,
                                                    uint32_t chunk) {
    constexpr int WORDS = T == CACHE_Q8_0 ? 8 : 4;
    uint32_t is_odd = (smem_addr(block) & 2) != 0, shift = is_odd ? 0x7654 : 0x5432;
    const uint32_t *words = (const uint32_t *)(block - 2 * is_odd);
    uint32_t q[WORDS], word = words[0], scale = __byte_perm(word, 0, is_odd ? 0x3232 : 0x1010);
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        uint32_t next = words[i + 1];
        q[i] = __byte_perm(word, next, shift), word = next;
    }
    __half2 d = *(__half2 *)&scale;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        int i = T == CACHE_Q8_0 ? 2 * c : c % 2 * 2, nibble = T == CACHE_Q4_0 ? c / 2 * 4 : 0;
        uint2 a = f16_of_quants<T>(q[i] >> nibble, d), b = f16_of_quants<T>(q[i + 1] >> nibble, d);
        st_shared_u32x4(to + swizzled(row, chunk + c), make_uint4(a.x, a.y, b.x, b.y));
    }
}

/* 32 positions from row `first` of the stages on, of which n are there: the others are zero. */
template <int D, int T>
static __device__ __forceinline__ void unpack_raw(uint32_t to, const uint8_t *raw, uint32_t first,
                                                  uint32_t n) {
    constexpr uint32_t BLOCKS = D / 32, BLOCK = T == CACHE_Q8_0 ? 34 : 18;
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32 * 8 + lane % 8;
#pragma unroll 1
    for (uint32_t b = lane / 8; b < BLOCKS; b += 4) {
        if (row < n)
            unpack_block<T>(to, raw + (row * BLOCKS + b) * BLOCK, first + row, 4 * b);
        else
            for (int c = 0; c < 4; c++)
                st_shared_u32x4(to + swizzled(first + row, 4 * b + c), make_uint4(0, 0, 0, 0));
    }
}

/* A tile's part of the page table, and where its positions begin in it. */
struct raw_tile {
    uint32_t page, at;
};

/* Starts copy i of a tile, four of keys and four of values; by one thread. `count`: copies so far.
 */
template <int D, int T>
static __device__ __forceinline__ void
start_raw(const struct attend_params &p, struct wide_shared<D, T> &s, const struct wide_item &item,
          struct raw_tile tile, uint32_t i, uint32_t count) {
    uint32_t barrier = smem_addr(&s.raw_full[count % RAW_STAGES]);
    uint64_t position = ((uint64_t)tile.page * p.kv_heads + item.kv_head) * PAGE + tile.at % PAGE +
                        i % 4 * RAW_POSITIONS;
    mbarrier_expect_tx(barrier, s.RAW_BYTES);
    cp_async_bulk(smem_addr(s.raw[count % RAW_STAGES]),
                  (i < 4 ? p.keys : p.values) + position * CACHE_ROW<T, D>, s.RAW_BYTES, barrier);
}

/* K, or V, of a tile: copies `from` to from + 3. */
template <int D, int T>
static __device__ __forceinline__ void
fill_unpacked(const struct attend_params &p, struct wide_shared<D, T> &s, struct fill_state &f,
              const struct wide_item &item, struct raw_tile tile, struct raw_tile next,
              uint32_t from, uint32_t end, uint32_t &count) {
    for (int i = 0; i < s.TILE_STAGES; i++)
        mbarrier_wait(smem_addr(&s.empty[f.stage + i]), f.phase ^ 1);
    uint32_t to = smem_addr(s.stages[f.stage]), n = end - tile.at;
#pragma unroll 1
    for (uint32_t i = from; i < from + 4; i++, count++) {
        uint32_t first = i % 4 * RAW_POSITIONS, stage = count % RAW_STAGES;
        mbarrier_wait(smem_addr(&s.raw_full[stage]), count / RAW_STAGES & 1);
        unpack_raw<D, T>(to, s.raw[stage], first, n > first ? n - first : 0);
        sync_producers(); /* the copy's memory is free */
        uint32_t ahead = i + RAW_STAGES;
        if (threadIdx.x == 0 && (ahead < 8 || next.at < end))
            start_raw<D, T>(p, s, item, ahead < 8 ? tile : next, ahead % 8, count + RAW_STAGES);
    }
    fence_proxy_async(); /* wgmma reads what these threads wrote */
    for (int i = 0; i < s.TILE_STAGES; i++)
        mbarrier_arrive(smem_addr(&s.full[f.stage + i]));
    f.stage += s.TILE_STAGES;
    if (f.stage == s.STAGES)
        f.stage = 0, f.phase ^= 1;
}

/* fill_item of a quantized cache. */
template <int D, int T>
static __device__ __forceinline__ void
unpack_item(const struct attend_params &p, struct wide_shared<D, T> &s, struct fill_state &f,
            struct item_queue &q, const struct wide_item &item, uint32_t &count) {
    uint32_t begin = group_begin(item, item.first_group);
    uint32_t end = group_end(item, item.end_group - 1);
    const int32_t *pages = p.page_table + (uint64_t)item.slot * p.pages_per_slot;
    struct raw_tile tile = {(uint32_t)pages[begin / PAGE], begin};
    if (threadIdx.x == 0)
        for (uint32_t i = 0; i < RAW_STAGES; i++)
            start_raw<D, T>(p, s, item, tile, i, count + i);
    while (tile.at < end) {
        struct raw_tile next = {0, tile.at + TILE_POSITIONS};
        next.page = pages[min(next.at, end - 1) / PAGE];
        fill_unpacked<D, T>(p, s, f, item, tile, next, 0, end, count);
        if (tile.at == begin)
            fill_next_queries<D, T>(p, s, item, q.n);
        fill_unpacked<D, T>(p, s, f, item, tile, next, 4, end, count);
        if (tile.at == begin) /* all warps have begun the last item: the slot is free */
            find_next_item<D, T>(p, s, q, (q.n + 1) % 3);
        tile = next;
    }
}

/* ---- the producer, all items ----------------------------------------------------------------- */

template <int D, int T>
static __device__ __forceinline__ void run_producer(const struct attend_params &p,
                                                    struct wide_shared<D, T> &s) {
    struct item_queue q = {};
    struct fill_state f = {};
    uint32_t raw_copies = 0;
    if (threadIdx.x == 0)
        q.ticket = atomicAdd(p.wide_work, 1u);
    if (threadIdx.x < 32)
        find_segments<D, T>(p, s);
    sync_producers();
    uint32_t tiles = s.n_tiles * p.kv_heads, all = tiles * s.n_groups;
    q.groups = all >= 32 * gridDim.x ? 4 : all >= 16 * gridDim.x ? 2 : 1;
    q.end = tiles * ((s.n_groups + q.groups - 1) / q.groups);
    find_next_item<D, T>(p, s, q, 0);
    for (;; q.n++) {
        sync_producers();
        const struct wide_item &item = s.items[q.n % 3];
        if (item.n_rows == 0)
            break;
        if constexpr (s.IS_QUANT)
            unpack_item<D, T>(p, s, f, q, item, raw_copies);
        else
            fill_item<D, T>(p, s, f, q, item);
    }
    fill_next_queries<D, T>(p, s, s.items[q.n % 3], q.n);
    cp_async_wait_all();
}

/* ---- the consumer warpgroups ----------------------------------------------------------------- */

/* A query of a tile; thread rows 0 and 1 are rows g and g + 8 of its warp's 16. */
struct query {
    bool is_valid;
    uint32_t row, head; /* of the tile; of all heads */
};

static __device__ __forceinline__ struct query
query_of(const struct attend_params &p, const struct wide_item &item, uint32_t wg, uint32_t i) {
    uint32_t thread = volatile_thread();
    uint32_t m = wg * 64 + thread / 32 % 4 * 16 + thread % 32 / 4 + 8 * i, row = m / p.q_per_kv;
    struct query q = {m < item.n_rows * p.q_per_kv, row,
                      item.kv_head * p.q_per_kv + m - row * p.q_per_kv};
    return q;
}

/* Descriptors of wgmma operands in panels of 64 columns, 128-byte swizzle: rows along M or N (Q,
 * K), or along K (V). Offsets are added to the lower word. */
static __device__ __forceinline__ uint64_t describe(uint32_t at, uint32_t offset) {
    return (uint64_t)(1u << 30 | 1024 >> 4) << 32 | ((at >> 4) + (offset >> 4) + (1u << 16));
}

struct consume_state {
    uint32_t stage, phase; /* of the next fill */
};

/* The stage `ahead` of the next one. */
template <int D, int T>
static __device__ __forceinline__ uint32_t stage_of(const struct consume_state &c, uint32_t ahead) {
    uint32_t stage = c.stage + ahead;
    return stage >= wide_shared<D, T>::STAGES ? stage - wide_shared<D, T>::STAGES : stage;
}

template <int D, int T>
static __device__ __forceinline__ void stage_wait(struct wide_shared<D, T> &s,
                                                  const struct consume_state &c, uint32_t ahead) {
    mbarrier_wait(smem_addr(&s.full[stage_of<D, T>(c, ahead)]),
                  c.phase ^ (c.stage + ahead >= s.STAGES));
    fence_proxy_async(); /* cp.async wrote it, wgmma reads it */
}

template <int D, int T>
static __device__ __forceinline__ uint32_t stage_at(struct wide_shared<D, T> &s,
                                                    const struct consume_state &c, uint32_t ahead) {
    return smem_addr(s.stages) + stage_of<D, T>(c, ahead) * s.STAGE_BYTES;
}

/* The warp has done with n stages from `ahead` on. */
template <int D, int T>
static __device__ __forceinline__ void stage_release(struct wide_shared<D, T> &s,
                                                     const struct consume_state &c, uint32_t ahead,
                                                     uint32_t n) {
    if (threadIdx.x % 32 == 0)
        for (uint32_t i = 0; i < n; i++)
            mbarrier_arrive(smem_addr(&s.empty[stage_of<D, T>(c, ahead + i)]));
}

template <int D, int T>
static __device__ __forceinline__ void stage_advance(const struct wide_shared<D, T> &s,
                                                     struct consume_state &c, uint32_t n) {
    c.stage += n;
    if (c.stage >= s.STAGES)
        c.stage -= s.STAGES, c.phase ^= 1;
}

/* All threads of a warpgroup. */
static __device__ __forceinline__ void warpgroup_sync(uint32_t wg) {
    if (wg)
        any_barrier_sync(3, GROUP_THREADS);
    else
        any_barrier_sync(2, GROUP_THREADS);
}

/* S of the split `sub` of the stages' positions: element 4 j + e is row g + e / 2 * 8, position
 * 8 j + 2 t + e % 2. */
template <int D, int T, int L>
static __device__ __forceinline__ void qk(struct wide_shared<D, T> &s,
                                          const struct consume_state &c, uint32_t wg, uint32_t sub,
                                          float (&x)[L / 2]) {
    uint32_t query = opaque(smem_addr(s.query) + wg * 64 * 128); /* not 16 descriptors kept */
    if (L == TILE_POSITIONS)
        for (int i = 0; i < s.TILE_STAGES; i++)
            stage_wait<D, T>(s, c, i);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < s.TILE_STAGES; i++) {
        uint32_t keys = opaque(stage_at<D, T>(s, c, i) + sub * L * 128);
#pragma unroll
        for (int k = 0; k < s.STAGE_COLUMNS / 16; k++) {
            uint32_t panel = i * s.STAGE_PANELS + k / 4;
            uint64_t a = describe(query, panel * PANEL_BYTES + k % 4 * 32);
            uint64_t b = describe(keys, k / 4 * PANEL_BYTES + k % 4 * 32);
            if (i == 0 && k == 0)
                wgmma_f16<false>(x, a, b);
            else
                wgmma_f16<true>(x, a, b);
        }
    }
    wgmma_commit();
    wgmma_wait<0>();
}

/* Over the four lanes of a row: maximum, or sum, t bit 1 first. */
static __device__ __forceinline__ float over_row(float x, bool is_max) {
#pragma unroll
    for (int i = 2; i > 0; i >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, x, i);
        x = is_max ? fmaxf(x, other) : x + other;
    }
    return x;
}

/* Scores become weights, as A fragments; part: (max, sum) of both rows. Weights are summed in the
 * order of the kernels for few rows: neighbours, then positions 64, 32, 16, 8, 4, 2 apart (splits
 * of 16, attend_short.cuh: 8, 4, 2, 1). */
template <int L>
static __device__ __forceinline__ void softmax(const float (&x)[L / 2], const float (&factors)[2],
                                               uint32_t (&weights)[L / 16][4],
                                               struct max_sum (&part)[2]) {
    constexpr int N = L / 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum[N], most = -INFINITY, factor = factors[i];
#pragma unroll
        for (int j = 0; j < L / 4; j++)
            most = fmaxf(most, x[j / 2 * 4 + 2 * i + j % 2]);
        float max = part[i].max = rounded_max(over_row(most, true), factor);
#pragma unroll
        for (int j = 0; j < N; j++) {
            float w[2][2]; /* positions 8 j + 2 t and the next, and those L / 2 further */
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[k / 2][k % 2] =
                    softmax_weight(x[(j + k / 2 * N) * 4 + 2 * i + k % 2], factor, max);
            weights[j / 2][j % 2 * 2 + i] = f16x2_of(w[0][0], w[0][1]);
            weights[(j + N) / 2][(j + N) % 2 * 2 + i] = f16x2_of(w[1][0], w[1][1]);
            if (L > 16)
                sum[j] = (w[0][0] + w[0][1]) + (w[1][0] + w[1][1]);
            else
                sum[j] = over_row(w[0][0] + w[1][0], false) + over_row(w[0][1] + w[1][1], false);
        }
#pragma unroll
        for (int n = N / 2; n > 0; n /= 2)
#pragma unroll
            for (int j = 0; j < n; j++)
                sum[j] += sum[j + n];
        part[i].sum = L > 16 ? over_row(sum[0], false) : sum[0];
    }
}

/* O of a group: block b of 64 columns, element 4 j + e is row g + e / 2 * 8, column 64 b + 8 j +
 * 2 t + e % 2. */
template <int D> struct group_out {
    float x[(D + 63) / 64][32]; /* heads of 96: half of the last */
    struct max_sum state[2];
};

/* 2 N columns of V, which begin at `values` in shared memory: PV, combined into x. */
template <int N, int L>
static __device__ __forceinline__ void pv_columns(uint32_t values,
                                                  const uint32_t (&weights)[L / 16][4],
                                                  const struct rescale (&f)[2], float (&x)[32]) {
    float part[N];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < L / 16; k++) {
        if (k == 0)
            wgmma_f16<false, true>(part, weights[k], describe(values, 0));
        else
            wgmma_f16<true, true>(part, weights[k], describe(values, k * 16 * 128));
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int e = 0; e < N; e++)
        x[e] = combine_value(x[e], part[e], f[e / 2 % 2]);
}

/* PV of split `sub` of the stages' positions, combined into the group's O. */
template <int D, int T, int L>
static __device__ __forceinline__ void
pv(struct wide_shared<D, T> &s, const struct consume_state &c, uint32_t sub,
   const uint32_t (&weights)[L / 16][4], const struct max_sum (&state)[2], struct group_out<D> &o) {
    struct rescale f[2] = {combine(&o.state[0], state[0]), combine(&o.state[1], state[1])};
#pragma unroll
    for (int b = 0; b < (D + 63) / 64; b++) {
        uint32_t stage = s.TILE_STAGES + b / s.STAGE_PANELS;
        if (L == TILE_POSITIONS && b % s.STAGE_PANELS == 0)
            stage_wait<D, T>(s, c, stage);
        uint32_t values =
            opaque(stage_at<D, T>(s, c, stage) + b % s.STAGE_PANELS * PANEL_BYTES + sub * L * 128);
        if (64 * b + 64 <= D)
            pv_columns<32, L>(values, weights, f, o.x[b]);
        else
            pv_columns<16, L>(values, weights, f, o.x[b]);
    }
}

/* Positions after a row's own do not count. */
template <int L>
static __device__ __forceinline__ void mask(const struct attend_params &p,
                                            const struct wide_item &item, uint32_t wg,
                                            uint32_t begin, float (&x)[L / 2]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        int seen = (int)(item.position + query_of(p, item, wg, i).row - begin) -
                   (int)(threadIdx.x % 4 * 2);
#pragma unroll
        for (int j = 0; j < L / 4; j++)
            if (j / 2 * 8 + j % 2 > seen)
                x[j / 2 * 4 + 2 * i + j % 2] = -INFINITY;
    }
}

/* Waits until `count` groups of the tile are in. By all threads of a warpgroup. */
static __device__ __forceinline__ void wait_flag(const uint32_t *flag, uint32_t count,
                                                 uint32_t wg) {
    if (threadIdx.x % GROUP_THREADS == 0)
        while (ld_acquire(flag) < count)
            ;
    warpgroup_sync(wg);
}

/* The group's O into the row's own, in `out`; after the last group that is the result. */
template <int D>
static __device__ __forceinline__ void
combine_group(const struct attend_params &p, const struct wide_item &item,
              const struct group_out<D> &o, uint32_t group, uint32_t wg) {
    bool is_first = group == 0, is_last = group + 1 == item.n_groups;
    uint32_t *flag = p.wide_work + 1 + item.flag + wg;
    if (!is_first)
        wait_flag(flag, group, wg);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        struct query q = query_of(p, item, wg, i);
        if (!q.is_valid)
            continue;
        uint64_t row = item.row + q.row;
        float2 *state = (float2 *)p.wide_states + row * p.heads + q.head;
        float *out = p.out + row * p.out_stride + q.head * D + threadIdx.x % 4 * 2;
        struct max_sum all = max_sum_empty();
        if (!is_first) {
            float2 before = __ldcg(state);
            all.max = before.x, all.sum = before.y;
        }
        struct rescale f = combine(&all, o.state[i]);
        float inverse = is_last ? rcp_approx(all.sum) : 1.0f;
        if (!is_last && threadIdx.x % 4 == 0)
            *state = make_float2(all.max, all.sum);
#pragma unroll
        for (int b = 0; b < (D + 63) / 64; b++) {
            constexpr int LAST = D % 64 ? D % 64 / 8 : 8;
            const int n = 64 * b + 64 <= D ? 8 : LAST;
            float2 x[8];
#pragma unroll
            for (int j = 0; j < n; j++) {
                x[j] = make_float2(0, 0);
                if (!is_first)
                    x[j] = __ldcg((const float2 *)(out + 64 * b + 8 * j));
            }
#pragma unroll
            for (int j = 0; j < n; j++) {
                x[j].x = combine_value(x[j].x, o.x[b][4 * j + 2 * i], f) * inverse;
                x[j].y = combine_value(x[j].y, o.x[b][4 * j + 2 * i + 1], f) * inverse;
                *(float2 *)(out + 64 * b + 8 * j) = x[j];
            }
        }
    }
    if (is_last)
        return;
    __threadfence();
    warpgroup_sync(wg);
    if (threadIdx.x % GROUP_THREADS == 0)
        st_release(flag, group + 1);
}

/* K and V of 128 positions from `at` on: their splits, one after the other. */
template <int D, int T, int L>
static __device__ __forceinline__ void
run_positions(const struct attend_params &p, struct wide_shared<D, T> &s, struct consume_state &c,
              const struct wide_item &item, uint32_t wg, uint32_t at, bool is_last,
              struct group_out<D> &o) {
    uint32_t m = wg * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    const float factors[2] = {s.score_factor[m], s.score_factor[m + 8]};
    if (L < TILE_POSITIONS)
        for (int i = 0; i < 2 * s.TILE_STAGES; i++)
            stage_wait<D, T>(s, c, i);
#pragma unroll 1
    for (uint32_t sub = 0; sub < TILE_POSITIONS / L; sub++) {
        uint32_t begin = at + sub * L;
        if (L < TILE_POSITIONS && begin >= item.splits.n_positions)
            break;
        float x[L / 2];
        uint32_t weights[L / 16][4];
        struct max_sum state[2];
        qk<D, T, L>(s, c, wg, sub, x);
        if (L == TILE_POSITIONS) {
            stage_release<D, T>(s, c, 0, s.TILE_STAGES);
            if (is_last && threadIdx.x % 32 == 0)
                mbarrier_arrive(smem_addr(&s.query_empty));
        }
        if (begin + L > item.position + 1)
            mask<L>(p, item, wg, begin, x);
        softmax<L>(x, factors, weights, state);
        pv<D, T, L>(s, c, sub, weights, state, o);
    }
    if (L < TILE_POSITIONS) {
        stage_release<D, T>(s, c, 0, s.TILE_STAGES);
        if (is_last && threadIdx.x % 32 == 0)
            mbarrier_arrive(smem_addr(&s.query_empty));
    }
    stage_release<D, T>(s, c, s.TILE_STAGES, s.TILE_STAGES);
    stage_advance<D, T>(s, c, 2 * s.TILE_STAGES);
}

template <int D, int T, int L>
static __device__ __forceinline__ void
run_item(const struct attend_params &p, struct wide_shared<D, T> &s, struct consume_state &c,
         const struct wide_item &item, uint32_t wg) {
    for (uint32_t group = item.first_group; group < item.end_group; group++) {
        struct group_out<D> o = {};
        o.state[0] = o.state[1] = max_sum_empty();
        uint32_t end = group_end(item, group);
        for (uint32_t at = group_begin(item, group); at < end; at += TILE_POSITIONS)
            run_positions<D, T, L>(p, s, c, item, wg, at,
                                   at + TILE_POSITIONS >= end && group + 1 == item.end_group, o);
        combine_group<D>(p, item, o, group, wg);
    }
}

template <int D, int T>
static __device__ __forceinline__ void run_consumers(const struct attend_params &p,
                                                     struct wide_shared<D, T> &s) {
    uint32_t wg = threadIdx.x / GROUP_THREADS - 1;
    struct consume_state c = {};
    for (uint32_t n = 0;; n++) {
        mbarrier_wait(smem_addr(&s.query_full), n & 1);
        fence_proxy_async();
        const struct wide_item &item = s.items[n % 3];
        if (item.n_rows == 0)
            break;
        if (item.splits.length == 128)
            run_item<D, T, 128>(p, s, c, item, wg);
        else if (item.splits.length == 64)
            run_item<D, T, 64>(p, s, c, item, wg);
        else if constexpr (D == 64 && T == CACHE_F16)
            run_item<D, T, 16>(p, s, c, item, wg);
        else if constexpr (D > 128)
            run_item<D, T, 32>(p, s, c, item, wg);
    }
}

template <int D, int T>
static __device__ __forceinline__ void attend_wide(const struct attend_params &p) {
    extern __shared__ uint8_t dynamic_shared[];
    static_assert(sizeof(struct wide_shared<D, T>) + 1024 <= ATTEND_WIDE_SHARED(D), "attend.h");
    struct wide_shared<D, T> &s =
        *(struct wide_shared<D, T> *)(dynamic_shared + (0u - smem_addr(dynamic_shared)) % 1024);
    if (threadIdx.x == 0) {
        for (int i = 0; i < s.STAGES; i++) {
            mbarrier_init(smem_addr(&s.full[i]), GROUP_THREADS);
            mbarrier_init(smem_addr(&s.empty[i]), 2 * GROUP_THREADS / 32);
        }
        for (int i = 0; i < RAW_STAGES; i++)
            mbarrier_init(smem_addr(&s.raw_full[i]), 1);
        mbarrier_init(smem_addr(&s.query_full), 2 * GROUP_THREADS);
        mbarrier_init(smem_addr(&s.query_empty), 2 * GROUP_THREADS / 32);
        mbarrier_init_fence();
    }
    pdl_wait(p.io);
    /* No segment can have as many rows as this kernel is for: steps of decode. */
    if (p.io.header->n_rows < p.io.header->n_segments + ATTEND_WIDE_ROWS - 1)
        return;
    __syncthreads();
    if (threadIdx.x < GROUP_THREADS) {
        setmaxnreg_dec<(D <= 128 ? 56 : s.IS_QUANT ? 40 : 24)>();
        run_producer<D, T>(p, s);
    } else {
        setmaxnreg_inc<(D <= 128 ? 224 : s.IS_QUANT ? 232 : 240)>();
        run_consumers<D, T>(p, s);
    }
}

#define WIDE_KERNEL(NAME, D, TYPE)                                                                 \
    extern "C" __global__ void __launch_bounds__(384, 1)                                           \
        attend_wide_##NAME(const __grid_constant__ struct attend_params p) {                       \
        pdl_launch_dependents();                                                                   \
        attend_wide<D, TYPE>(p);                                                                   \
    }
WIDE_KERNEL(64, 64, CACHE_F16)
WIDE_KERNEL(96, 96, CACHE_F16)
WIDE_KERNEL(128, 128, CACHE_F16)
WIDE_KERNEL(256, 256, CACHE_F16)
WIDE_KERNEL(q8_0_64, 64, CACHE_Q8_0)
WIDE_KERNEL(q8_0_96, 96, CACHE_Q8_0)
WIDE_KERNEL(q8_0_128, 128, CACHE_Q8_0)
WIDE_KERNEL(q8_0_256, 256, CACHE_Q8_0)
WIDE_KERNEL(q4_0_64, 64, CACHE_Q4_0)
WIDE_KERNEL(q4_0_96, 96, CACHE_Q4_0)
WIDE_KERNEL(q4_0_128, 128, CACHE_Q4_0)
WIDE_KERNEL(q4_0_256, 256, CACHE_Q4_0)
