/* attend_decode.cu - ATTEND of a plan of one row: heads of 64, 128 and 256 over an fp16, q8_0 or
 * q4_0 cache, on sm_90 and later. Norm, RoPE, KV store, split-KV attention and combine in one
 * kernel.
 *
 * attend_decode_D_R, attend_decode_TYPE_D_R: heads of D columns, clusters of R blocks.
 *   cluster        a group of splits of a query tile, one item after the other
 *   block          a split: K, then V, through a pipeline of 4 stages of some 16 KiB, as they are
 *                  in the cache; of q8_0 and q4_0 lanes make fp16 of what they read
 *   warp 8         the producer: bulk copies, two mbarriers (full, empty) a stage
 *   warps 0 to 7   consumers: of K a warp has 16 positions of the split, of V a slab of columns
 *
 * Cluster combine is a reduce-scatter through DSMEM: each block sends every other block its share
 * of the split's O (st.async, counted by an mbarrier), and combines its own share over the R
 * splits. Where a tile has several groups a cluster has a range of them, one after the other. Then
 * nothing but the bytes may take time: a group is combined while the next one's weights are
 * computed, by warps that have no query, its share goes to global memory, and blocks count
 * themselves once, after all their groups; the last block of each rank combines them. A single
 * split, and a short context (attend_short.cuh), are a block's alone: then every block of a cluster
 * has an item of its own, so that the first clusters, which find room beside the kernel before,
 * have them all.
 *
 * Before griddepcontrol.wait the producer reads the row and page that IO holds by then, nearly
 * always the right ones since EMBED has written them, and starts the first copies from there; after
 * the wait it reads them again and starts over if they differ. The row's own key and value, which
 * this kernel computes, are never read from the cache.
 *
 * Reads the sequence's keys and values once: of fp16 4 D bytes a position and KV head. ATTEND of
 * qwen35-4b at 256 positions on an H200: 4.7 us. */
#include "backend/cuda/kernels/attend_quants.cuh"
#include "backend/cuda/kernels/attend_short.cuh"

/* struct max_sum with the maximum as int. */
struct imax_sum {
    int max;
    float sum;
};

/* A block's part of an item (query tile, group): a split, or none, then it only combines. */
struct item {
    uint32_t tile, group;
    uint32_t kv_head, first_head, n_queries;
    bool is_first_of_kv;         /* of its KV head's tiles */
    bool has_new;                /* the split ends with the row's own position */
    uint32_t begin, n, n_cached; /* positions: first, how many, of them in the cache */
};

/* A block's items, in order of tiles and of groups within a tile. */
struct work {
    uint32_t first, end, step, groups; /* groups: of a tile */

    __device__ __forceinline__ bool is_none(void) const {
        return first >= end;
    }

    __device__ __forceinline__ uint32_t first_tile(void) const {
        return groups == 1 ? first : first / groups;
    }
};

/* What a block does: found by the producer. */
struct duty {
    struct split_layout l;
    struct work w;
    struct item item; /* the first, if there is one */
};

/* R: blocks of a cluster; T: the cache's type. */
template <int D, int R, int T> struct decode_shared {
    static constexpr int ROW = CACHE_ROW<T, D>, STAGE_POSITIONS = ATTEND_STAGE_POSITIONS(ROW);
    static constexpr int SLABS = D < 128 ? D / 16 : ATTEND_WARPS; /* of columns, in PV */
    static constexpr int LANE_COLUMNS = D / SLABS / 8;
    static constexpr int MAX_SPLIT = ATTEND_MAX_SPLIT;
    static_assert(MAX_SPLIT <= 16 * ATTEND_WARPS, "QK: a warp an M16 tile");
    static_assert(MAX_SPLIT <= STAGE_POSITIONS * ATTEND_STAGES, "stage_release");
    uint4 stages[ATTEND_STAGES][STAGE_POSITIONS * ROW / 16];
    uint2 query[D / 16][32];                             /* B fragments */
    __half weights[ATTEND_TILE_QUERIES][MAX_SPLIT + 16]; /* after softmax; no bank conflicts */
    union {                                              /* one after the other: */
        float scratch[ATTEND_WARPS][D];                  /* RoPE */
        float scores[ATTEND_TILE_QUERIES][MAX_SPLIT + 4];
        alignas(16) float pv[ATTEND_TILE_QUERIES * D];
        struct short_shared_if<T == CACHE_F16 ? D : 0> short_context;
    };
    uint4 new_key[(ROW + 15) / 16], new_value[(ROW + 15) / 16]; /* of the row itself */
    /* What the cluster's blocks send; two, since the next item's may come while these are read. */
    alignas(16) float shares[2][ATTEND_TILE_QUERIES * D]; /* (R, share) */
    struct imax_sum peer_state[2][R][ATTEND_TILE_QUERIES];
    struct imax_sum state[ATTEND_TILE_QUERIES]; /* of this block's split */
    float score_factor[ATTEND_TILE_QUERIES];
    uint64_t full[ATTEND_STAGES], empty[ATTEND_STAGES], shares_full[2]; /* mbarriers */
    struct io_row row;     /* as the producer reads it after griddepcontrol.wait */
    struct duty duty;      /* at its position */
    uint32_t phase_offset; /* 1: the full barriers have completed a phase unused */
    uint64_t guesses;      /* a byte a warp: the tile whose heads it has made, see tile_byte */
    bool is_last;
    uint32_t page; /* the row's, in a short context */
};

/* ---- mbarriers and copies -------------------------------------------------------------------- */

/* The same address in the cluster's block of that rank. */
static __device__ __forceinline__ uint32_t dsmem_addr(const void *p, uint32_t rank) {
    return map_to_rank(smem_addr(p), rank);
}

static __device__ __forceinline__ void st_async(uint32_t to, struct imax_sum x, uint32_t barrier) {
    st_async(to, make_uint2((uint32_t)x.max, __float_as_uint(x.sum)), barrier);
}

static __device__ __forceinline__ void mbarrier_init(uint64_t *b, uint32_t count) {
    mbarrier_init(smem_addr(b), count);
}

static __device__ __forceinline__ void mbarrier_arrive(uint64_t *b) {
    mbarrier_arrive(smem_addr(b));
}

static __device__ __forceinline__ void mbarrier_expect_tx(uint64_t *b, uint32_t bytes) {
    mbarrier_expect_tx(smem_addr(b), bytes);
}

static __device__ __forceinline__ void mbarrier_wait(uint64_t *b, uint32_t phase) {
    mbarrier_wait(smem_addr(b), phase);
}

static __device__ __forceinline__ void bulk_copy(void *to, const uint8_t *from, uint32_t bytes,
                                                 uint64_t *b) {
    mbarrier_expect_tx(b, bytes);
    cp_async_bulk(smem_addr(to), from, bytes, smem_addr(b));
}

/* All warps but the producer. */
static __device__ __forceinline__ void sync_consumers(void) {
    named_barrier_sync(THREADS);
}

/* ---- work items ------------------------------------------------------------------------------ */

/* The first group of a tile, without the split: that needs the row. */
static __device__ __forceinline__ struct item item_tile(const struct attend_params &p,
                                                        uint32_t tile) {
    struct item item = {};
    item.tile = tile;
    item.kv_head = tile / p.tiles_per_kv;
    uint32_t in_kv = tile - item.kv_head * p.tiles_per_kv;
    item.first_head = item.kv_head * p.q_per_kv + in_kv * ATTEND_TILE_QUERIES;
    item.n_queries = min((uint32_t)ATTEND_TILE_QUERIES, p.q_per_kv - in_kv * ATTEND_TILE_QUERIES);
    item.is_first_of_kv = in_kv == 0;
    return item;
}

/* A block has all positions of a tile. */
static __device__ __forceinline__ bool is_one_block(const struct split_layout &l) {
    return l.length == 16 || l.count == 1;
}

/* Whether items are then blocks', not clusters': the wider heads are a block's alone up to 64
 * positions only. */
template <int D> static __device__ __forceinline__ constexpr bool can_spread(void) {
    return ATTEND_SHORT_POSITIONS(D) != 0;
}

/* Items in ranges, one a cluster. Where there are fewer of them the first clusters have one each:
 * these find room beside the kernel before. */
struct ranges {
    uint32_t items, clusters;

    __device__ __forceinline__ uint32_t first(uint32_t cluster) const {
        return min(cluster, clusters) * items / clusters;
    }

    __device__ __forceinline__ uint32_t cluster_of(uint32_t item) const {
        return ((item + 1) * clusters - 1) / items;
    }
};

template <int R>
static __device__ __forceinline__ struct ranges ranges_of(const struct attend_params &p,
                                                          uint32_t groups) {
    uint32_t items = p.kv_heads * p.tiles_per_kv * groups;
    struct ranges r = {items, min(items, gridDim.x / R)};
    return r;
}

/* One group a tile: tiles are dealt to clusters in turns, or to blocks. More: a cluster has a range
 * of items, so that it rarely changes the tile. */
template <int D, int R>
static __device__ __forceinline__ struct work work_of(const struct attend_params &p,
                                                      const struct split_layout &l) {
    uint32_t tiles = p.kv_heads * p.tiles_per_kv, cluster = blockIdx.x / R;
    struct work w = {cluster, tiles, gridDim.x / R, 1};
    if (is_one_block(l)) {
        if (can_spread<D>())
            w.first = blockIdx.x, w.step = gridDim.x;
        else if (blockIdx.x % R)
            w.end = 0;
    } else if (l.count > R) {
        w.groups = (l.count + R - 1) / R;
        struct ranges r = ranges_of<R>(p, w.groups);
        w.first = r.first(cluster), w.end = r.first(cluster + 1);
        w.step = 1;
    }
    return w;
}

template <int D, int R>
static __device__ __forceinline__ void find_split(struct item &item, const struct split_layout &l) {
    uint32_t split = item.group * R + blockIdx.x % R;
    item.begin = split * l.length;
    item.n = split < l.count ? min(l.length, l.n_positions - item.begin) : 0;
    item.has_new = split == l.count - 1;
    if (is_one_block(l)) {
        item.has_new = can_spread<D>() || blockIdx.x % R == 0;
        item.begin = 0, item.n = item.has_new ? l.n_positions : 0;
    }
    item.n_cached = item.n - item.has_new;
}

/* A context of splits of 16 where every tile has a block. Most steps of small models are such, and
 * their stages are short: so nothing else is found out there than what it takes. */
template <int D, int T>
static __device__ __forceinline__ bool is_plain_short(const struct attend_params &p,
                                                      uint32_t position) {
    return D == 64 && T == CACHE_F16 && position < p.short_positions &&
           p.kv_heads * p.tiles_per_kv <= gridDim.x;
}

/* The block's first item. */
template <int D, int R>
static __device__ __forceinline__ struct item
first_item(const struct attend_params &p, const struct work &w, const struct split_layout &l) {
    struct item item = item_tile(p, w.first_tile());
    item.group = w.first - item.tile * w.groups;
    find_split<D, R>(item, l);
    return item;
}

template <int D, int R>
static __device__ __forceinline__ struct duty duty_of(const struct attend_params &p,
                                                      uint32_t position) {
    struct duty d = {split_layout_of(p, position), {}, {}};
    d.w = work_of<D, R>(p, d.l);
    if (!d.w.is_none())
        d.item = first_item<D, R>(p, d.w, d.l);
    return d;
}

/* The item after it. */
template <int D, int R>
static __device__ __forceinline__ void next_item(const struct attend_params &p,
                                                 const struct work &w, struct item &item,
                                                 const struct split_layout &l) {
    if (++item.group == w.groups)
        item = item_tile(p, item.tile + w.step);
    find_split<D, R>(item, l);
}

/* ---- the producer warp ----------------------------------------------------------------------- */

/* Relaxed: before griddepcontrol.wait EMBED may still write it. */
static __device__ __forceinline__ struct io_row load_row(const struct attend_params &p) {
    uint4 x = ld_relaxed_u32x4(p.io.rows);
    struct io_row row = {(int32_t)x.x, x.y, x.z, x.w};
    return row;
}

/* Copies i to end - 1 of an item, keys before values. `fill` counts the block's fills of stages:
 * the phase of the barriers comes from it. A copy begins at a multiple of 16 bytes and may read up
 * to 12 after its last position. */
template <int D, int R, int T>
static __device__ __forceinline__ void
produce(const struct attend_params &p, struct decode_shared<D, R, T> &s, const struct item &item,
        uint32_t page, uint32_t i, uint32_t end, uint32_t fill) {
    uint32_t half = (item.n + s.STAGE_POSITIONS - 1) / s.STAGE_POSITIONS;
    uint64_t at = ((uint64_t)page * p.kv_heads + item.kv_head) * PAGE + item.begin % PAGE;
    for (end = min(end, 2 * half); i < end; i++, fill++) {
        uint32_t stage = fill % ATTEND_STAGES, round = fill / ATTEND_STAGES;
        uint32_t first = (i < half ? i : i - half) * s.STAGE_POSITIONS;
        uint32_t n =
            item.n_cached > first ? min(item.n_cached - first, (uint32_t)s.STAGE_POSITIONS) : 0;
        if (round)
            mbarrier_wait(&s.empty[stage], (round - 1) & 1);
        if (n)
            bulk_copy(s.stages[stage], (i < half ? p.keys : p.values) + (at + first) * s.ROW,
                      (n * s.ROW + 15) / 16 * 16, &s.full[stage]);
        else
            mbarrier_arrive(&s.full[stage]);
    }
}

/* Fills of an item of n positions. */
static __device__ __forceinline__ uint32_t n_fills(uint32_t n, uint32_t stage_positions) {
    return 2 * ((n + stage_positions - 1) / stage_positions);
}

/* What was read, and started from it, before griddepcontrol.wait. */
struct prefetch {
    struct io_row row;
    uint32_t begin, page; /* the block's first position and its page */
    bool is_valid;        /* row and page are within bounds */
    uint32_t fills;       /* that were started */
};

template <int D, int R, int T>
static __device__ __forceinline__ void init_barriers(struct decode_shared<D, R, T> &s) {
    for (int i = 0; i < ATTEND_STAGES; i++)
        mbarrier_init(&s.full[i], 1), mbarrier_init(&s.empty[i], ATTEND_WARPS);
    for (int i = 0; i < 2; i++)
        mbarrier_init(&s.shares_full[i], 1);
    mbarrier_init_fence();
    fence_proxy_async();
}

template <int D, int R, int T>
static __device__ __forceinline__ struct prefetch begin_prefetch(const struct attend_params &p,
                                                                 struct decode_shared<D, R, T> &s) {
    struct prefetch f = {load_row(p), 0, 0, false, 0};
    f.is_valid = f.row.slot < p.n_slots && f.row.position < p.pages_per_slot * PAGE;
    if (!f.is_valid)
        return f;
    struct duty d = s.duty = duty_of<D, R>(p, f.row.position);
    const struct item &item = d.item;
    if (!item.n)
        return f;
    f.begin = item.begin;
    f.page = load_page(p, f.row.slot, item.begin);
    if (f.page >= p.n_pages) {
        f.is_valid = false;
        return f;
    }
    produce<D, R, T>(p, s, item, f.page, 0, ATTEND_STAGES, 0);
    f.fills = min(n_fills(item.n, s.STAGE_POSITIONS), (uint32_t)ATTEND_STAGES);
    return f;
}

/* After griddepcontrol.wait: the row, and how many fills stand. If the prefetch was wrong all
 * stages complete their first phase unused, and filling starts over. */
template <int D, int R, int T>
static __device__ __forceinline__ uint32_t check_prefetch(const struct attend_params &p,
                                                          struct decode_shared<D, R, T> &s,
                                                          const struct prefetch &f,
                                                          struct io_row *row) {
    uint32_t page = 0;
    if (f.fills) /* at the same time as the row */
        page = load_page(p, f.row.slot, f.begin);
    *row = s.row = load_row(p);
    s.phase_offset = 0;
    s.page = page; /* of a short context, which is one page */
    if (f.is_valid && row->slot == f.row.slot && row->position == f.row.position && page == f.page)
        return f.fills;
    if (is_plain_short<D, T>(p, row->position))
        s.page = load_page(p, row->slot, 0);
    s.duty = duty_of<D, R>(p, row->position);
    for (uint32_t i = 0; i < ATTEND_STAGES; i++) {
        if (i >= f.fills)
            mbarrier_arrive(&s.full[i]);
        mbarrier_wait(&s.full[i], 0);
    }
    s.phase_offset = 1;
    return 0;
}

/* All items of the block, the first of which has `fills` fills in `page` already. */
template <int D, int R, int T>
static __device__ __forceinline__ void
produce_items(const struct attend_params &p, struct decode_shared<D, R, T> &s, struct io_row row,
              uint32_t page, uint32_t fills) {
    struct duty d = s.duty;
    struct split_layout l = d.l;
    struct work w = d.w;
    struct item item = d.item;
    uint32_t fill = 0;
    for (; w.first < w.end; w.first += w.step, next_item<D, R>(p, w, item, l)) {
        if (!item.n)
            continue;
        if (fill || !fills)
            page = load_page(p, row.slot, item.begin);
        produce<D, R, T>(p, s, item, page, fills, ~0u, fill + fills);
        fill += n_fills(item.n, s.STAGE_POSITIONS), fills = 0;
    }
}

template <int D, int R, int T>
static __device__ __forceinline__ void run_producer(const struct attend_params &p,
                                                    struct decode_shared<D, R, T> &s) {
    bool is_leader = threadIdx.x == THREADS;
    struct prefetch f;
    struct io_row row;
    uint32_t fills = 0;
    if (is_leader)
        init_barriers<D, R, T>(s);
    __syncwarp();
    cluster_arrive();
    if (is_leader)
        f = begin_prefetch<D, R, T>(p, s);
    __syncwarp();
    cluster_wait();
    pdl_wait(p.io);
    if (is_leader)
        fills = check_prefetch<D, R, T>(p, s, f, &row);
    __syncthreads();
    if (is_leader && !(fills && is_plain_short<D, T>(p, row.position)))
        produce_items<D, R, T>(p, s, row, f.page, fills);
}

/* ---- consumers: heads of the row ------------------------------------------------------------- */

/* Head i that a tile needs: its queries, then the key, then the value. */
template <int D, int R, int T>
static __device__ __forceinline__ const float *head_at(const struct attend_params &p,
                                                       const struct item &item, uint32_t i) {
    if (i < item.n_queries)
        return p.in + (item.first_head + i) * p.q_stride;
    return p.in + (i == item.n_queries ? p.k_column : p.v_column) + item.kv_head * D;
}

/* A head as the cache has it. `scratch` is the warp's own, of a head's width. */
template <int T, int M, int D>
static __device__ __forceinline__ void store_quants(const struct attend_params &p,
                                                    const struct head_regs<M, D> &head,
                                                    float *scratch, uint8_t *to) {
    uint32_t lane = threadIdx.x % 32;
    head.store(p, scratch);
    __syncwarp();
#pragma unroll 4
    for (uint32_t i = 0; i < D / 32; i++)
        if (T == CACHE_Q8_0)
            encode_q8_0(to + i * sizeof(struct q8_0), scratch[32 * i + lane]);
        else
            encode_q4_0(to + i * sizeof(struct q4_0), scratch[32 * i + lane]);
    __syncwarp();
}

static __device__ __forceinline__ const float *head_norm(const struct attend_params &p,
                                                         const struct item &item, uint32_t i) {
    return i < item.n_queries ? p.q_norm : p.k_norm;
}

/* Norm and RoPE of head i, by a warp. Does not need the row's position. */
template <int D, int R, int T>
static __device__ __forceinline__ void
make_head(const struct attend_params &p, struct decode_shared<D, R, T> &s, const struct item &item,
          struct head_regs<D / 64, D> &head, uint32_t i) {
    bool is_query = i < item.n_queries, is_key = i == item.n_queries;
    float *scratch = s.scratch[threadIdx.x / 32];
    if (is_query || is_key)
        head.norm_and_rotate(p, head_norm(p, item, i), 0, scratch);
    uint4 *own = is_key ? s.new_key : s.new_value;
    if (is_query)
        pack_query<D>(p, head.x, s.query, s.score_factor, i);
    else if (T == CACHE_F16)
        store_f16<D>(head.x, own);
    else
        store_quants<T>(p, head, scratch, (uint8_t *)own);
}

/* Heads `first` and every eighth after it. */
template <int D, int R, int T>
static __device__ __forceinline__ void make_heads(const struct attend_params &p,
                                                  struct decode_shared<D, R, T> &s,
                                                  const struct item &item, uint32_t first) {
#pragma unroll 1
    for (uint32_t i = first; i < item.n_queries + 2; i += ATTEND_WARPS) {
        struct head_regs<D / 64, D> head;
        head.load(p, head_at<D, R, T>(p, item, i), 0);
        head.load_norm(p, head_norm(p, item, i));
        make_head<D, R, T>(p, s, item, head, i);
    }
}

/* KV store, by the last warp of the block that has the row's position; `page` is the row's. */
template <int D, int R, int T>
static __device__ __forceinline__ void
store_new_kv(const struct attend_params &p, const struct decode_shared<D, R, T> &s,
             const struct item &item, uint32_t position, uint32_t page) {
    uint32_t lane = threadIdx.x % 32;
    if (!item.has_new || !item.is_first_of_kv || threadIdx.x / 32 != ATTEND_WARPS - 1)
        return;
    uint64_t at = ((uint64_t)page * p.kv_heads + item.kv_head) * PAGE + position % PAGE;
    using word = typename std::conditional<T == CACHE_F16, uint4, uint32_t>::type;
    constexpr uint32_t WORDS = s.ROW / sizeof(word);
#pragma unroll
    for (uint32_t i = 0; i < WORDS; i += 32)
        if (i + lane < WORDS) {
            ((word *)p.keys)[at * WORDS + i + lane] = ((const word *)s.new_key)[i + lane];
            ((word *)p.values)[at * WORDS + i + lane] = ((const word *)s.new_value)[i + lane];
        }
}

/* ---- consumers: QK, softmax, PV of a split --------------------------------------------------- */

template <int D, int R, int T>
static __device__ __forceinline__ const uint8_t *stage_wait(struct decode_shared<D, R, T> &s,
                                                            uint32_t fill, uint32_t phase_offset) {
    uint32_t stage = fill % ATTEND_STAGES;
    mbarrier_wait(&s.full[stage], (fill / ATTEND_STAGES + phase_offset) & 1);
    return (const uint8_t *)s.stages[stage];
}

/* By the warps that have read it, each for so many that together they are all consumers. */
template <int D, int R, int T>
static __device__ __forceinline__ void stage_release(struct decode_shared<D, R, T> &s,
                                                     uint32_t fill, uint32_t warps) {
    __syncwarp();
    if (threadIdx.x % 32 < warps)
        mbarrier_arrive(&s.empty[fill % ATTEND_STAGES]);
}

/* 64 columns of a position, 4 steps of an MMA, from `at` on (the lane's first column). All
 * positions start at the same bank: lanes g, g + 1 ... load their steps in different orders. */
static __device__ __forceinline__ void load_key_steps(uint2 (&x)[4], const uint8_t *at,
                                                      uint32_t g) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        x[i] = *(const uint2 *)(at + (i ^ g % 4) * 32);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint2 a = x[i], b = x[i + 1];
        x[i] = g & 1 ? b : a, x[i + 1] = g & 1 ? a : b;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint2 a = x[i], b = x[i + 2];
        x[i] = g & 2 ? b : a, x[i + 2] = g & 2 ? a : b;
    }
}

/* Scores of 16 positions from `first`, over an fp16 cache. keys: of the lane's first. */
template <int D, int R>
static __device__ __forceinline__ void qk_f16(const struct decode_shared<D, R, CACHE_F16> &s,
                                              const struct item &item, const uint8_t *keys,
                                              float (&c)[4]) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint32_t first = warp * 16;
    bool has_new = item.has_new && (item.n - 1) / 16 == warp;
#pragma unroll
    for (uint32_t slab = 0; slab < D / 64; slab++) {
        uint2 k0[4], k8[4];
        load_key_steps(k0, keys + slab * 128, g);
        load_key_steps(k8, keys + slab * 128 + 8 * (2 * D), g);
#pragma unroll
        for (uint32_t b = 0; b < 4; b++) {
            if (has_new) {
                uint2 own = ((const uint2 *)s.new_key)[(slab * 4 + b) * 4 + t];
                k0[b] = first + g == item.n - 1 ? own : k0[b];
                k8[b] = first + g + 8 == item.n - 1 ? own : k8[b];
            }
            qk_mma(c, k0[b], k8[b], s.query[slab * 4 + b][lane]);
        }
    }
}

/* QK: a warp has an M16 tile of the split's positions. */
template <int D, int R, int T>
static __device__ __forceinline__ void qk(struct decode_shared<D, R, T> &s, const struct item &item,
                                          uint32_t &fill, uint32_t phase_offset) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint32_t first = warp * 16, stage = first / s.STAGE_POSITIONS;
    uint32_t stages = (item.n + s.STAGE_POSITIONS - 1) / s.STAGE_POSITIONS;
    if (first < item.n) {
        const uint8_t *keys = stage_wait<D, R, T>(s, fill + stage, phase_offset) +
                              (first % s.STAGE_POSITIONS + g) * s.ROW;
        float c[4] = {};
        if constexpr (T == CACHE_F16) {
            qk_f16<D, R>(s, item, keys + t * 8, c);
        } else {
            uint32_t own = item.has_new ? item.n - 1 - first : ~0u; /* the row's position */
            const uint8_t *new_key = (const uint8_t *)s.new_key;
            const uint8_t *row0 = g == own ? new_key : keys,
                          *row8 = g + 8 == own ? new_key : keys + 8 * s.ROW;
#pragma unroll
            for (uint32_t step = 0; step < D / 16; step++)
                qk_mma(c, cached_4<T>(row0, 16 * step + 4 * t),
                       cached_4<T>(row8, 16 * step + 4 * t), s.query[step][lane]);
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            s.scores[2 * t + k % 2][first + g + k / 2 * 8] = c[k];
        uint32_t n = min(item.n - stage * s.STAGE_POSITIONS, (uint32_t)s.STAGE_POSITIONS);
        bool is_first = first % s.STAGE_POSITIONS == 0; /* arrives for those without a position */
        stage_release<D, R, T>(s, fill + stage, is_first ? ATTEND_WARPS - (n - 1) / 16 : 1);
    }
    fill += stages;
}

/* A bijection of the bits of a float that orders them as int; its own inverse. */
static __device__ __forceinline__ int ordered_int(int bits) {
    return bits ^ (bits >> 31 & 0x7fffffff);
}

/* Softmax: warp q turns query q's scores into weights, in the order of attend_split.cuh's
 * softmax(). */
template <int D, int R, int T>
static __device__ __forceinline__ void softmax(struct decode_shared<D, R, T> &s, uint32_t n,
                                               uint32_t q) {
    uint32_t lane = threadIdx.x % 32;
    float2 x[s.MAX_SPLIT / 64];
    float max = -INFINITY, sum = 0, factor = s.score_factor[q];
#pragma unroll
    for (int i = 0; i < s.MAX_SPLIT / 64; i++) {
        uint32_t position = 2 * lane + 64 * i;
        float2 score = *(const float2 *)&s.scores[q][position];
        x[i].x = position < n ? score.x : -INFINITY;
        x[i].y = position + 1 < n ? score.y : -INFINITY;
        max = fmaxf(max, fmaxf(x[i].x, x[i].y));
    }
    int order = __reduce_max_sync(0xffffffffu, ordered_int(__float_as_int(max)));
    max = rounded_max(__int_as_float(ordered_int(order)), factor);
#pragma unroll
    for (int i = 0; i < s.MAX_SPLIT / 64; i++) {
        x[i].x = softmax_weight(x[i].x, factor, max), x[i].y = softmax_weight(x[i].y, factor, max);
        sum += x[i].x + x[i].y;
        *(uint32_t *)&s.weights[q][2 * lane + 64 * i] = f16x2_of(x[i].x, x[i].y);
    }
    sum = warp_sum(sum);
    float most = 1 << 29;
    struct imax_sum mine = {(int)fminf(fmaxf(max, -most), most), sum};
    if (lane == 0)
        s.state[q] = mine;
}

/* Of 8 C columns from `column` on a lane has 2 C of query g, from 2 C t on; each goes to the rank
 * whose share it is. */
template <int D, int R, int T, int C>
static __device__ __forceinline__ void send_pv(struct decode_shared<D, R, T> &s,
                                               const float (&c)[C][4], uint32_t n_queries,
                                               uint32_t column, uint32_t buffer) {
    uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, share = n_queries * (D / R);
    uint32_t e = g * D + column + t * 2 * C;
    float inverse = __frcp_rn((float)n_queries);
    uint32_t to = (uint32_t)(((float)(e / (D / R)) + 0.5f) * inverse); /* e / share */
    uint32_t at = blockIdx.x % R * share + e - to * share;
    uint32_t barrier = dsmem_addr(&s.shares_full[buffer], to);
#pragma unroll
    for (int i = 0; i < 2 * C; i += 4)
        st_async(dsmem_addr(&s.shares[buffer][at + i], to), pv_columns(c, i), barrier);
}

/* PV: a warp has a slab of columns of all positions. IS_SENT: to the cluster's blocks, else to
 * s.pv. */
template <int D, int R, int T, bool IS_SENT>
static __device__ __forceinline__ void pv(struct decode_shared<D, R, T> &s, const struct item &item,
                                          uint32_t &fill, uint32_t phase_offset, uint32_t buffer) {
    constexpr int C = s.LANE_COLUMNS;
    uint32_t lane = threadIdx.x % 32, slab = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint32_t column = slab * (D / s.SLABS) + g * C;
    uint32_t in_row = T == CACHE_F16 ? 0 : column, offset = 4 * t * s.ROW + (column - in_row) * 2;
    float c[C][4] = {};
    for (uint32_t base = 0; base < item.n; base += s.STAGE_POSITIONS, fill++) {
        const uint8_t *values = stage_wait<D, R, T>(s, fill, phase_offset) + offset;
        uint32_t end = slab < s.SLABS ? min(item.n, base + s.STAGE_POSITIONS) : 0;
#pragma unroll 2
        for (uint32_t first = base; first < end; first += 16, values += 16 * s.ROW) {
            struct v_columns<C> v[4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                v[r] = cached<T, C>(values + r * s.ROW, in_row);
            if (first + 16 > item.n_cached) { /* not copied there: 0 times it must be 0 */
                struct v_columns<C> own = cached<T, C>((const uint8_t *)s.new_value, column),
                                    none = {};
#pragma unroll
                for (uint32_t r = 0; r < 4; r++) {
                    uint32_t position = first + 4 * t + r;
                    if (position >= item.n_cached)
                        v[r] = position < item.n ? own : none;
                }
            }
            pv_mma<C>(c, v, *(const uint2 *)&s.weights[g][first + 4 * t]);
        }
        stage_release<D, R, T>(s, fill, 1);
    }
    if (slab >= s.SLABS || g >= item.n_queries)
        return;
    if (IS_SENT)
        send_pv<D, R, T, C>(s, c, item.n_queries, slab * (D / s.SLABS), buffer);
    else
        store_pv<C>(c, &s.pv[g * D + slab * (D / s.SLABS) + t * 2 * C]);
}

template <int D, int R, int T>
static __device__ __forceinline__ void run_split(struct decode_shared<D, R, T> &s,
                                                 const struct item &item, uint32_t &fill) {
    uint32_t warp = threadIdx.x / 32, phase_offset = s.phase_offset;
    qk<D, R, T>(s, item, fill, phase_offset);
    sync_consumers();
    if (warp < item.n_queries)
        softmax<D, R, T>(s, item.n, warp);
    sync_consumers();
    pv<D, R, T, false>(s, item, fill, phase_offset, 0);
    sync_consumers();
}

/* ---- consumers: combine ---------------------------------------------------------------------- */

/* A value of O and its query's (max, sum): combine() and combine_value() with int maxima. */
struct accumulator {
    float x;
    struct imax_sum all;

    __device__ __forceinline__ void clear(void) {
        x = 0, all.max = -(1 << 30), all.sum = 0;
    }

    static __device__ __forceinline__ float exp2_int(int k) {
        return __int_as_float((max(k, -127) + 127) << 23);
    }

    __device__ __forceinline__ void combine(float part, struct imax_sum t) {
        int most = max(all.max, t.max);
        float old = exp2_int(all.max - most), now = exp2_int(t.max - most);
        x = fmaf(x, old, __fmul_rn(part, now));
        all.sum = fmaf(all.sum, old, __fmul_rn(t.sum, now));
        all.max = most;
    }
};

/* Value e of the tile's output. */
template <int D>
static __device__ __forceinline__ void store_out(const struct attend_params &p,
                                                 const struct item &item, uint32_t e,
                                                 const struct accumulator &a) {
    p.out[(uint64_t)item.first_head * D + e] = a.x * rcp_approx(a.all.sum);
}

/* The output where there is one split. */
template <int D, int R, int T>
static __device__ __forceinline__ void store_one_split(const struct attend_params &p,
                                                       struct decode_shared<D, R, T> &s,
                                                       const struct item &item) {
#pragma unroll 1
    for (uint32_t e = 4 * threadIdx.x; e < item.n_queries * D; e += 4 * THREADS) {
        float4 x = *(const float4 *)&s.pv[e];
        const float *values = (const float *)&x;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            struct accumulator a;
            a.clear();
            a.combine(values[i], s.state[e / D]);
            store_out<D>(p, item, e + i, a);
        }
    }
}

/* (max, sum) of the block's split to all blocks; without a split one that nobody combines, but all
 * wait for. */
template <int D, int R, int T>
static __device__ __forceinline__ void send_states(struct decode_shared<D, R, T> &s,
                                                   const struct item &item, uint32_t buffer) {
    uint32_t q = threadIdx.x / 32, to = threadIdx.x % 32;
    if (q < item.n_queries && to < R)
        st_async(dsmem_addr(&s.peer_state[buffer][blockIdx.x % R][q], to),
                 item.n ? s.state[q] : imax_sum{0, 0}, dsmem_addr(&s.shares_full[buffer], to));
}

/* Value i of this block's share, over the group's splits. */
template <int D, int R, int T>
static __device__ __forceinline__ struct accumulator
combine_splits(const struct decode_shared<D, R, T> &s, uint32_t buffer, uint32_t share, uint32_t i,
               uint32_t splits) {
    uint32_t query = (blockIdx.x % R * share + i) / D;
    float part[R];
    struct imax_sum state[R];
#pragma unroll
    for (uint32_t r = 0; r < R; r++)
        part[r] = s.shares[buffer][r * share + i], state[r] = s.peer_state[buffer][r][query];
    struct accumulator a;
    a.clear();
#pragma unroll
    for (uint32_t r = 0; r < R; r++)
        if (r < splits)
            a.combine(part[r], state[r]);
    return a;
}

/* How many clusters have groups of a tile. */
template <int R>
static __device__ __forceinline__ uint32_t clusters_of(const struct attend_params &p, uint32_t tile,
                                                       uint32_t groups) {
    struct ranges r = ranges_of<R>(p, groups);
    return r.cluster_of((tile + 1) * groups - 1) - r.cluster_of(tile * groups) + 1;
}

/* True in all consumers of the last block of its rank that has stored its groups of a tile: it sees
 * what the others wrote before, and the counter is zero again. */
template <int R>
static __device__ __forceinline__ bool is_last_block(const struct attend_params &p, bool *flag,
                                                     uint32_t tile, uint32_t groups) {
    sync_consumers();
    if (threadIdx.x == 0) {
        uint32_t *counter = p.counters + tile * R + blockIdx.x % R;
        uint32_t before = atomic_inc_acq_rel_gpu(counter);
        bool is_last = before == clusters_of<R>(p, tile, groups) - 1;
        *flag = is_last;
        if (is_last)
            *counter = 0;
    }
    sync_consumers();
    return *flag;
}

/* Where a tile has one group: this block's share of the output. */
template <int D, int R, int T>
static __device__ __forceinline__ void
store_share(const struct attend_params &p, struct decode_shared<D, R, T> &s,
            const struct item &item, uint32_t splits, uint32_t buffer) {
    uint32_t rank = blockIdx.x % R, share = item.n_queries * (D / R);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < share; i += THREADS)
        store_out<D>(p, item, rank * share + i,
                     combine_splits<D, R, T>(s, buffer, share, i, splits));
}

/* A tile's partials, and where in each this rank's states begin. */
static __device__ __forceinline__ float *partials_of(const struct attend_params &p, uint32_t tile) {
    return p.partials + (uint64_t)tile * p.n_partials * p.partial_floats;
}

static __device__ __forceinline__ uint32_t states_at(uint32_t width, uint32_t rank) {
    return ATTEND_TILE_QUERIES * width + rank * (2 * ATTEND_TILE_QUERIES);
}

/* More groups: this block's share of one, by the threads from `first` on. */
template <int D, int R, int T>
static __device__ __forceinline__ void
store_partial(const struct attend_params &p, struct decode_shared<D, R, T> &s,
              const struct item &item, uint32_t group, uint32_t splits, uint32_t buffer,
              uint32_t first) {
    uint32_t rank = blockIdx.x % R, share = item.n_queries * (D / R);
    float *to = partials_of(p, item.tile) + (uint64_t)group * p.partial_floats;
#pragma unroll 1
    for (uint32_t i = threadIdx.x - first; i < share; i += THREADS - first) {
        uint32_t at = rank * share + i;
        struct accumulator a = combine_splits<D, R, T>(s, buffer, share, i, splits);
        to[at] = a.x;
        if (i == 0 || at % D == 0)
            *(int2 *)(to + states_at(D, rank) + 2 * (at / D)) =
                make_int2(a.all.max, __float_as_int(a.all.sum));
    }
}

/* Groups of a tile, as a rank's last block copies them to the free stages: 256 values of its share
 * each, and (max, sum) of their queries. */
struct group_part {
    float values[THREADS];
    int2 states[ATTEND_TILE_QUERIES];
};

static __device__ __forceinline__ void copy_part(struct group_part *to, const float *values,
                                                 const float *states, uint32_t n) {
    uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = 4 * lane; i < n; i += 128)
        cp_async_16(smem_addr(to->values + i), values + i);
    if (lane < sizeof to->states / 16)
        cp_async_16(smem_addr((uint4 *)to->states + lane), states + 4 * lane);
}

/* When the cluster has stored its groups of a tile: by the rank's last block its share of all. */
template <int D, int R, int T>
static __device__ __forceinline__ void combine_tile(const struct attend_params &p,
                                                    struct decode_shared<D, R, T> &s,
                                                    const struct item &item, uint32_t groups) {
    constexpr uint32_t PARTS = sizeof s.stages / sizeof(struct group_part);
    struct group_part *parts = (struct group_part *)s.stages;
    uint32_t tid = threadIdx.x, rank = blockIdx.x % R, share = item.n_queries * (D / R);
    if (!is_last_block<R>(p, &s.is_last, item.tile, groups))
        return;
    for (uint32_t first = 0; first < share; first += THREADS) { /* once, mostly */
        uint32_t at = rank * share + first;
        struct accumulator a;
        a.clear();
        for (uint32_t base = 0; base < groups; base += PARTS) {
            uint32_t now = min(groups - base, PARTS);
            for (uint32_t i = tid / 32; i < now; i += ATTEND_WARPS) {
                const float *from =
                    partials_of(p, item.tile) + (uint64_t)(base + i) * p.partial_floats;
                copy_part(&parts[i], from + at, from + states_at(D, rank),
                          min(share - first, (uint32_t)THREADS));
            }
            cp_async_wait_all();
            sync_consumers();
            if (first + tid < share)
#pragma unroll 4
                for (uint32_t i = 0; i < now; i++) {
                    int2 state = parts[i].states[(at + tid) / D];
                    a.combine(parts[i].values[tid], {state.x, __int_as_float(state.y)});
                }
            sync_consumers();
        }
        if (first + tid < share)
            store_out<D>(p, item, at + tid, a);
    }
}

/* How many splits a group has. */
template <int R>
static __device__ __forceinline__ uint32_t n_splits(const struct split_layout &l, uint32_t group) {
    return min((uint32_t)R, l.count - group * R);
}

/* Before a block sends its share of item `combines`: its own mbarrier learns how much will come. */
template <int D, int R, int T>
static __device__ __forceinline__ void
expect_shares(struct decode_shared<D, R, T> &s, const struct item &item,
              const struct split_layout &l, uint32_t combines) {
    uint32_t splits = n_splits<R>(l, item.group);
    uint32_t bytes = splits * (D / R) * sizeof(float) + R * sizeof(struct imax_sum);
    if (threadIdx.x == 0)
        mbarrier_expect_tx(&s.shares_full[combines & 1], item.n_queries * bytes);
}

template <int D, int R, int T>
static __device__ __forceinline__ void wait_shares(struct decode_shared<D, R, T> &s,
                                                   uint32_t combines) {
    mbarrier_wait(&s.shares_full[combines & 1], combines >> 1 & 1);
}

/* ---- consumers: all items -------------------------------------------------------------------- */

/* A short context: a split of 16 a warp; keys are one stage, values the next. */
template <int R>
static __device__ __forceinline__ void
run_short(const struct attend_params &p, struct decode_shared<64, R, CACHE_F16> &s,
          const struct item &item, uint32_t splits, uint32_t fill) {
    constexpr uint32_t ROW = 2 * 64;
    uint32_t lane = threadIdx.x % 32, split = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    static_assert(s.STAGE_POSITIONS >= ATTEND_SHORT_POSITIONS(64), "keys are one stage");
    if (split < splits) {
        uint32_t own = item.n - 1 - split * 16, phase_offset = s.phase_offset; /* own: the row's */
        const uint8_t *keys = (const uint8_t *)s.stages[fill % ATTEND_STAGES] + split * 16 * ROW;
        const uint8_t *values =
            (const uint8_t *)s.stages[(fill + 1) % ATTEND_STAGES] + split * 16 * ROW;
        struct short_kv from;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint8_t *key = keys + (g + 8 * i) * ROW;
            from.key[i] = (g + 8 * i < own ? key : (const uint8_t *)s.new_key) + t * 8;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint8_t *value = values + (4 * t + i) * ROW;
            from.value[i] = (4 * t + i < own ? value : (const uint8_t *)s.new_value) + g * 16;
        }
        const uint32_t visible[2] = {own + 1, own + 1};
        stage_wait<64, R, CACHE_F16>(s, fill, phase_offset);
        short_split(s.short_context.s, from, s.query, s.score_factor, item.n_queries, visible,
                    [&]() { stage_wait<64, R, CACHE_F16>(s, fill + 1, phase_offset); });
    }
    sync_consumers();
    for (uint32_t e = 4 * threadIdx.x; e < item.n_queries * 64; e += 4 * THREADS)
        *(float4 *)(p.out + (uint64_t)item.first_head * 64 + e) =
            short_combine(s.short_context.s, e, splits);
    stage_release<64, R, CACHE_F16>(s, fill, 1);
    stage_release<64, R, CACHE_F16>(s, fill + 1, 1);
}

static_assert(ATTEND_WARPS == 8, "guesses");

/* A block's first tile as a warp leaves it in s.guesses; 0: none, or any. */
static __device__ __forceinline__ uint32_t tile_byte(const struct work &w, uint32_t tile) {
    return w.is_none() || tile >= 255 ? 0 : tile + 1;
}

/* Before griddepcontrol.wait, from the row that IO holds by then, as the producer does. Narrow
 * heads, where a stage is short, are not guessed for several groups a tile: that is more code. */
template <int D, int R>
static __device__ __forceinline__ struct work guess_work(const struct attend_params &p) {
    uint32_t position = ld_relaxed(&p.io.rows->position);
    if (can_spread<D>()) {
        struct work w = {blockIdx.x, p.kv_heads * p.tiles_per_kv, 1, 1};
        if (position >= p.short_positions)
            w.first = blockIdx.x / R;
        return w;
    }
    return work_of<D, R>(p, split_layout_of(p, position < p.pages_per_slot * PAGE ? position : 0));
}

/* What the producer has found: in registers, where there are enough. */
template <int D, class X> using found = typename std::conditional<D == 64, X, const X &>::type;

/* Tiles that are the block's alone. */
template <int D, int R, int T>
static __device__ __forceinline__ void
run_alone(const struct attend_params &p, struct decode_shared<D, R, T> &s, struct item item) {
    found<D, struct split_layout> l = s.duty.l;
    found<D, struct work> w = s.duty.w;
    uint32_t page = load_page(p, s.row.slot, l.n_positions - 1), fill = 0, index = w.first;
    for (;;) {
        if (l.length == 16) {
            /* its warp rarely has a split */
            store_new_kv<D, R, T>(p, s, item, l.n_positions - 1, page);
            if constexpr (D == 64 && T == CACHE_F16)
                run_short<R>(p, s, item, l.count, fill);
            fill += 2;
        } else {
            run_split<D, R, T>(s, item, fill);
            store_one_split<D, R, T>(p, s, item);
            store_new_kv<D, R, T>(p, s, item, l.n_positions - 1, page);
        }
        index += w.step;
        if (index >= w.end)
            return;
        next_item<D, R>(p, w, item, l);
        sync_consumers(); /* the last item's shared memory is free */
        make_heads<D, R, T>(p, s, item, threadIdx.x / 32);
        sync_consumers();
    }
}

/* Items of the cluster. What its blocks have sent each other of a group is combined when they have
 * the tile's next group's scores, by warps without a query: so no block waits for the others. And
 * before that group is sent: so a block that sends into this buffer again has seen what this one
 * sent after it had read it. */
template <int D, int R, int T>
static __device__ __forceinline__ void
run_cluster(const struct attend_params &p, struct decode_shared<D, R, T> &s, struct item item) {
    found<D, struct split_layout> l = s.duty.l;
    found<D, struct work> w = s.duty.w;
    uint32_t page = 0, fill = 0, combines = 0, index = w.first;
    uint32_t n = 0; /* groups of the tile that were sent */
    for (;;) {
        if (item.has_new)
            page = load_page(p, s.row.slot, l.n_positions - 1);
        if (item.n)
            qk<D, R, T>(s, item, fill, s.phase_offset);
        sync_consumers();
        if (item.n && threadIdx.x / 32 < item.n_queries)
            softmax<D, R, T>(s, item.n, threadIdx.x / 32);
        uint32_t first = item.n_queries < ATTEND_WARPS ? 32 * item.n_queries : 0;
        if (n && threadIdx.x >= first) {
            wait_shares<D, R, T>(s, combines - 1);
            store_partial<D, R, T>(p, s, item, item.group - 1, R, (combines - 1) & 1, first);
        }
        sync_consumers();
        expect_shares<D, R, T>(s, item, l, combines);
        send_states<D, R, T>(s, item, combines & 1);
        if (item.n)
            pv<D, R, T, true>(s, item, fill, s.phase_offset, combines & 1);
        store_new_kv<D, R, T>(p, s, item, l.n_positions - 1, page);
        combines++, n++, index += w.step;
        if (item.group + 1 == w.groups || index >= w.end) { /* no more of this tile */
            wait_shares<D, R, T>(s, combines - 1);
            uint32_t splits = n_splits<R>(l, item.group), buffer = (combines - 1) & 1;
            if (w.groups == 1)
                store_share<D, R, T>(p, s, item, splits, buffer);
            else
                store_partial<D, R, T>(p, s, item, item.group, splits, buffer, 0);
            if (index >= w.end)
                break;
            n = 0;
        }
        next_item<D, R>(p, w, item, l);
        if (n == 0) {
            sync_consumers(); /* the last tile's shared memory is free */
            make_heads<D, R, T>(p, s, item, threadIdx.x / 32);
            sync_consumers();
        }
    }
    while (w.groups > 1) {
        combine_tile<D, R, T>(p, s, item, w.groups);
        if (w.first >= item.tile * w.groups)
            return;
        item = item_tile(p, item.tile - 1);
    }
}

/* item: the first of the block's first tile if the guess was right, without its split; its first
 * heads are made. */
template <int D, int R, int T>
static __device__ __forceinline__ void
run_consumers(const struct attend_params &p, struct decode_shared<D, R, T> &s, struct item item) {
    __syncthreads(); /* with the producer: it has checked its prefetch, and read the row */
    if constexpr (D == 64 && T == CACHE_F16) {
        uint32_t position = s.row.position;
        if (is_plain_short<D, T>(p, position)) {
            if (blockIdx.x >= p.kv_heads * p.tiles_per_kv)
                return;
            if (blockIdx.x < 254 && s.guesses == (blockIdx.x + 1) * 0x0101010101010101u) {
                item.has_new = true, item.begin = 0, item.n = position + 1;
                store_new_kv<D, R, T>(p, s, item, position, s.page);
                run_short<R>(p, s, item, position / 16 + 1, 0);
                return;
            }
        }
    }
    if (s.duty.w.is_none())
        return;
    item = s.duty.item;
    uint32_t byte = tile_byte(s.duty.w, item.tile);
    if (!byte || s.guesses != byte * 0x0101010101010101u) {
        make_heads<D, R, T>(p, s, item, threadIdx.x / 32);
        sync_consumers();
    }
    if (is_one_block(s.duty.l))
        run_alone<D, R, T>(p, s, item);
    else
        run_cluster<D, R, T>(p, s, item);
}

template <int D, int R, int T>
static __device__ __forceinline__ void attend_decode(const struct attend_params &p) {
    extern __shared__ uint4 dynamic_shared[];
    using S = struct decode_shared<D, R, T>;
    static_assert(sizeof(struct decode_shared<D, R, T>) <= ATTEND_DECODE_SHARED(S::ROW, D),
                  "attend.h");
    struct decode_shared<D, R, T> &s = *(struct decode_shared<D, R, T> *)dynamic_shared;
    uint32_t tid = threadIdx.x;
    if (tid >= THREADS) {
        run_producer<D, R, T>(p, s);
        return;
    }
    struct work guess = guess_work<D, R>(p);
    bool has_work = !guess.is_none();
    struct item item = item_tile(p, has_work ? guess.first_tile() : 0);
    for (uint32_t i = tid; i < sizeof s.weights / sizeof(uint32_t); i += THREADS)
        ((uint32_t *)s.weights)[i] = 0; /* of queries that the tile lacks */
    cluster_arrive();
    cluster_wait(); /* all blocks' mbarriers are initialised */
    /* The warp's first head: all but its loads before the wait. */
    struct head_regs<D / 64, D> head;
    uint32_t warp = tid / 32;
    bool has_head = has_work && warp < item.n_queries + 2;
    if (tid % 32 == 0)
        ((uint8_t *)&s.guesses)[warp] = (uint8_t)tile_byte(guess, item.tile);
    const float *from = head_at<D, R, T>(p, item, warp);
    if (has_head)
        head.load_norm(p, head_norm(p, item, warp));
    if (!__any_sync(~0u, (uintptr_t)from & 1)) /* no address has bit 0, but only we know */
        pdl_wait();
    if (has_head)
        head.load(p, from, 0);
    store_stamp(tid | blockIdx.x, p.io.stamp);
    if (has_head)
        make_head<D, R, T>(p, s, item, head, warp);
    if (has_work)
        make_heads<D, R, T>(p, s, item, warp + ATTEND_WARPS);
    run_consumers<D, R, T>(p, s, item);
}

#define DECODE_KERNEL(NAME, D, R, T)                                                               \
    extern "C" __global__ void __cluster_dims__(R, 1, 1) __launch_bounds__(THREADS + 32, 2)        \
        attend_decode_##NAME##_##R(const __grid_constant__ struct attend_params p) {               \
        pdl_launch_dependents();                                                                   \
        attend_decode<D, R, T>(p);                                                                 \
    }
#define DECODE_KERNELS(NAME, D, T)                                                                 \
    DECODE_KERNEL(NAME, D, 4, T)                                                                   \
    DECODE_KERNEL(NAME, D, 8, T)
DECODE_KERNELS(64, 64, CACHE_F16)
DECODE_KERNELS(128, 128, CACHE_F16)
DECODE_KERNELS(256, 256, CACHE_F16)
DECODE_KERNELS(q8_0_64, 64, CACHE_Q8_0)
DECODE_KERNELS(q8_0_128, 128, CACHE_Q8_0)
DECODE_KERNELS(q8_0_256, 256, CACHE_Q8_0)
DECODE_KERNELS(q4_0_64, 64, CACHE_Q4_0)
DECODE_KERNELS(q4_0_128, 128, CACHE_Q4_0)
DECODE_KERNELS(q4_0_256, 256, CACHE_Q4_0)
