/* attend_decode.cu - ATTEND of plans of one row: heads of 64, 128 and 256 over halves. All in one
 * kernel, for devices of capability 9.0 on.
 *
 * A cluster takes a group of a unit's splits, a block a split: its ninth warp copies keys, then
 * values, into slots of shared memory, the eight others have a task each in every slot. A result
 * goes in slices into the shared memory of the cluster's blocks, each of which folds one; clusters
 * hand on theirs through memory. A single split, and the few positions that attend_short.cuh is
 * for, are the first block's alone.
 *
 * The first copies begin before the row is known, from where the row seems to be: nearly always the
 * step's first kernel has written that by then. Else they are made again. The row's own key and
 * value are never read from the cache. */
#include "backend/cuda/kernels/attend_short.cuh"

enum { ROW_THREADS = THREADS + 32 };

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define IN_CLUSTERS(ranks) __cluster_dims__(ranks, 1, 1)
#else
#define IN_CLUSTERS(ranks)
#endif

#if __CUDA_ARCH__ >= 900

/* What a query has seen, with the maximum as the whole number that it is. */
struct tally {
    int max;
    float sum;
};

/* R blocks are a cluster. */
template <int D, int R> struct row_shared {
    static constexpr int POSITIONS = ATTEND_SLOT_BYTES / (2 * D); /* of a slot */
    static constexpr int SLABS = D / 64, PARTS = ATTEND_WARPS / SLABS, LENGTH = ATTEND_LENGTH(D);
    uint4 slots[ATTEND_SLOTS][ATTEND_SLOT_BYTES / 16];
    uint4 query[D / 16][32]; /* B fragments */
    float weights[ATTEND_TILE][LENGTH + 16];
    union {
        float heads[ATTEND_WARPS][D];                    /* while queries are made */
        float scores[SLABS][ATTEND_TILE][LENGTH + 4];    /* sums of 64 columns */
        alignas(16) float mixed[PARTS][ATTEND_TILE * D]; /* sums of a part of the positions */
        struct short_room<D> brief;
    };
    uint4 fresh_key[D / 8], fresh_value[D / 8]; /* of the row itself */
    /* Slices that the cluster's blocks send; the next piece's may come while these are read. */
    alignas(16) float parts[2][ATTEND_TILE * D]; /* (R, slice) */
    struct tally tallies[2][R][ATTEND_TILE];
    struct tally tally[ATTEND_TILE]; /* this block's own */
    float factor[ATTEND_TILE];       /* of a query's scores */
    uint64_t full[ATTEND_SLOTS], empty[ATTEND_SLOTS], ready[2];
    uint32_t lap; /* 1: the first copies were made again */
    bool is_last;
};

/* ---- barriers and copies -------------------------------------------------------------------- */

/* The same address in a block of the cluster. */
static __device__ __forceinline__ uint32_t shared_of(const void *p, uint32_t rank) {
    return map_to_rank(smem_addr(p), rank);
}

static __device__ __forceinline__ void st_async(uint32_t to, struct tally x, uint32_t barrier) {
    st_async(to, make_uint2((uint32_t)x.max, __float_as_uint(x.sum)), barrier);
}

static __device__ __forceinline__ void barrier_begin(uint64_t *b, uint32_t count) {
    mbarrier_init(smem_addr(b), count);
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    mbarrier_arrive(smem_addr(b));
}

static __device__ __forceinline__ void barrier_expect(uint64_t *b, uint32_t bytes) {
    mbarrier_expect_tx(smem_addr(b), bytes);
}

static __device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity) {
    mbarrier_wait(smem_addr(b), parity);
}

static __device__ __forceinline__ void copy(void *to, const uint8_t *from, uint32_t bytes,
                                            uint64_t *b) {
    barrier_expect(b, bytes);
    cp_async_bulk(smem_addr(to), from, bytes, smem_addr(b));
}

/* The eight warps without the one that copies. */
static __device__ __forceinline__ void sync_warps(void) {
    named_barrier_sync(THREADS);
}

/* ---- pieces of work ------------------------------------------------------------------------- */

/* What a block does of an item: a split, or nothing but folding. */
struct piece {
    uint32_t unit, group; /* of splits */
    uint32_t kv_head, first_head, n_queries;
    bool is_first_tile, has_fresh; /* the row's own position is the last */
    uint32_t begin, n, loaded;     /* positions; of them in the cache */
};

static __device__ __forceinline__ struct piece unit_of(const struct attend_params &p,
                                                       uint32_t item) {
    struct piece w = {};
    uint32_t units = p.kv_heads * p.tiles;
    w.group = item / units;
    w.unit = item - w.group * units;
    w.kv_head = w.unit / p.tiles;
    uint32_t tile = w.unit - w.kv_head * p.tiles;
    w.first_head = w.kv_head * p.group + tile * ATTEND_TILE;
    w.n_queries = min((uint32_t)ATTEND_TILE, p.group - tile * ATTEND_TILE);
    w.is_first_tile = tile == 0;
    return w;
}

/* One block has all positions. */
static __device__ __forceinline__ bool is_alone(const struct extent &e) {
    return e.length == 16 || e.splits == 1;
}

template <int R>
static __device__ __forceinline__ void find_split(struct piece &w, const struct extent &e) {
    uint32_t split = w.group * R + blockIdx.x % R;
    w.begin = split * e.length;
    w.n = split < e.splits ? min(e.length, e.n - w.begin) : 0;
    w.has_fresh = split == e.splits - 1;
    if (is_alone(e)) {
        w.has_fresh = blockIdx.x % R == 0;
        w.begin = 0, w.n = w.has_fresh ? e.n : 0;
    }
    w.loaded = w.n - w.has_fresh;
}

template <int R>
static __device__ __forceinline__ struct piece piece_of(const struct attend_params &p,
                                                        const struct extent &e, uint32_t item) {
    struct piece w = unit_of(p, item);
    find_split<R>(w, e);
    return w;
}

/* Items of this step that there are for a block: none, or as many as for its cluster. */
template <int R>
static __device__ __forceinline__ uint32_t items_of(const struct attend_params &p,
                                                    const struct extent &e) {
    uint32_t groups = is_alone(e) ? 1 : (e.splits + R - 1) / R;
    return is_alone(e) && blockIdx.x % R ? 0 : groups * p.kv_heads * p.tiles;
}

/* ---- the warp that copies ------------------------------------------------------------------- */

/* Loads that see what other kernels write meanwhile. */
static __device__ __forceinline__ struct io_row load_row(const struct attend_params &p) {
    uint4 x = ld_relaxed_u32x4(p.io.rows);
    struct io_row row = {(int32_t)x.x, x.y, x.z, x.w};
    return row;
}

/* Copies of a piece from its i-th on, keys before values, up to the end-th; `use` counts slots. */
template <int D, int R>
static __device__ __forceinline__ void feed(const struct attend_params &p,
                                            struct row_shared<D, R> &s, const struct piece &w,
                                            uint32_t page, uint32_t i, uint32_t end, uint32_t use) {
    uint32_t half = (w.n + s.POSITIONS - 1) / s.POSITIONS;
    uint64_t at = ((uint64_t)page * p.kv_heads + w.kv_head) * PAGE + w.begin % PAGE;
    for (end = min(end, 2 * half); i < end; i++, use++) {
        uint32_t slot = use % ATTEND_SLOTS, lap = use / ATTEND_SLOTS;
        uint32_t first = (i < half ? i : i - half) * s.POSITIONS;
        uint32_t n = w.loaded > first ? min(w.loaded - first, (uint32_t)s.POSITIONS) : 0;
        if (lap)
            barrier_wait(&s.empty[slot], (lap - 1) & 1);
        if (n)
            copy(s.slots[slot], (i < half ? p.keys : p.values) + (at + first) * (2 * D),
                 n * (2 * D), &s.full[slot]);
        else
            barrier_arrive(&s.full[slot]);
    }
}

static __device__ __forceinline__ uint32_t copies_of(uint32_t n, uint32_t positions) {
    return 2 * ((n + positions - 1) / positions);
}

/* What the first copies assumed. */
struct guess {
    struct io_row row;
    uint32_t begin, page; /* the block's first position, and where it is */
    bool is_sound;        /* the row is one that could be */
    uint32_t copies;      /* that were made */
};

template <int D, int R>
static __device__ __forceinline__ void begin_barriers(struct row_shared<D, R> &s) {
    for (int i = 0; i < ATTEND_SLOTS; i++)
        barrier_begin(&s.full[i], 1), barrier_begin(&s.empty[i], ATTEND_WARPS);
    for (int i = 0; i < 2; i++)
        barrier_begin(&s.ready[i], 1);
    mbarrier_init_fence();
    fence_proxy_async();
}

template <int D, int R>
static __device__ __forceinline__ struct guess begin_copies(const struct attend_params &p,
                                                            struct row_shared<D, R> &s) {
    struct guess g = {load_row(p), 0, 0, false, 0};
    g.is_sound = g.row.slot < p.n_slots && g.row.position < p.pages_per_slot * PAGE;
    if (!g.is_sound)
        return g;
    struct extent e = extent_of(p, g.row.position);
    uint32_t item = blockIdx.x / R;
    if (item >= items_of<R>(p, e))
        return g;
    struct piece w = piece_of<R>(p, e, item);
    if (!w.n)
        return g;
    g.begin = w.begin;
    g.page = load_page(p, g.row.slot, w.begin);
    if (g.page >= p.n_pages) {
        g.is_sound = false;
        return g;
    }
    feed<D, R>(p, s, w, g.page, 0, ATTEND_SLOTS, 0);
    g.copies = min(copies_of(w.n, s.POSITIONS), (uint32_t)ATTEND_SLOTS);
    return g;
}

/* Behind the wait: are the first copies what they should be? If not they are made again. Returns
 * how many were made. */
template <int D, int R>
static __device__ __forceinline__ uint32_t check_copies(const struct attend_params &p,
                                                        struct row_shared<D, R> &s,
                                                        const struct guess &g, struct io_row *row) {
    uint32_t page = 0;
    if (g.copies) /* at the same time as the row */
        page = load_page(p, g.row.slot, g.begin);
    *row = load_row(p);
    s.lap = 0;
    if (g.is_sound && row->slot == g.row.slot && row->position == g.row.position && page == g.page)
        return g.copies;
    for (uint32_t i = 0; i < ATTEND_SLOTS; i++) {
        if (i >= g.copies)
            barrier_arrive(&s.full[i]);
        barrier_wait(&s.full[i], 0);
    }
    s.lap = 1;
    return 0;
}

template <int D, int R>
static __device__ __forceinline__ void copy_all(const struct attend_params &p,
                                                struct row_shared<D, R> &s, struct io_row row,
                                                uint32_t page, uint32_t made) {
    struct extent e = extent_of(p, row.position);
    uint32_t items = items_of<R>(p, e), use = 0;
    for (uint32_t item = blockIdx.x / R; item < items; item += gridDim.x / R) {
        struct piece w = piece_of<R>(p, e, item);
        if (!w.n)
            continue;
        if (use || !made)
            page = load_page(p, row.slot, w.begin);
        feed<D, R>(p, s, w, page, made, ~0u, use + made);
        use += copies_of(w.n, s.POSITIONS), made = 0;
    }
}

/* ---- the others ----------------------------------------------------------------------------- */

/* What a warp makes of the row: queries first, then key and value. */
template <int D, int R>
static __device__ __forceinline__ const float *task_at(const struct attend_params &p,
                                                       const struct piece &w, uint32_t task) {
    if (task < w.n_queries)
        return p.in + (w.first_head + task) * p.q_stride;
    return p.in + (task == w.n_queries ? p.k_column : p.v_column) + w.kv_head * D;
}

/* Queries, a warp each; and the row's key and value. The row need not be known. */
template <int D, int R>
static __device__ __forceinline__ void
make_heads(const struct attend_params &p, struct row_shared<D, R> &s, const struct piece &w) {
    uint32_t warp = threadIdx.x / 32;
#pragma unroll 1
    for (uint32_t i = warp; i < w.n_queries + 2; i += ATTEND_WARPS) {
        bool is_query = i < w.n_queries, is_key = i == w.n_queries;
        struct raw_head<D / 64, D> raw;
        const float *norm = is_query ? p.q_norm : p.k_norm;
        raw.load(p, task_at<D, R>(p, w, i), 0);
        raw.load_norm(p, norm);
        if (is_query || is_key)
            raw.make(p, norm, 0, s.heads[warp]);
        if (is_query)
            pack_query<D>(p, raw.x, s.query, s.factor, i);
        else
            keep_halves<D>(raw.x, is_key ? s.fresh_key : s.fresh_value);
    }
}

/* The row's key and value into the cache, by the last warp; `page` is the row's. */
template <int D, int R>
static __device__ __forceinline__ void
store_fresh(const struct attend_params &p, const struct row_shared<D, R> &s, const struct piece &w,
            uint32_t position, uint32_t page) {
    uint32_t lane = threadIdx.x % 32;
    if (!w.has_fresh || !w.is_first_tile || threadIdx.x / 32 != ATTEND_WARPS - 1 || lane >= D / 8)
        return;
    uint64_t at = ((uint64_t)page * p.kv_heads + w.kv_head) * PAGE + position % PAGE;
    ((uint4 *)p.keys)[at * (D / 8) + lane] = s.fresh_key[lane];
    ((uint4 *)p.values)[at * (D / 8) + lane] = s.fresh_value[lane];
}

/* A slot is used by all warps, then free again. */
template <int D, int R>
static __device__ __forceinline__ const uint8_t *slot_begin(struct row_shared<D, R> &s,
                                                            uint32_t use, uint32_t lap) {
    uint32_t slot = use % ATTEND_SLOTS;
    barrier_wait(&s.full[slot], (use / ATTEND_SLOTS + lap) & 1);
    return (const uint8_t *)s.slots[slot];
}

template <int D, int R>
static __device__ __forceinline__ void slot_end(struct row_shared<D, R> &s, uint32_t use) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        barrier_arrive(&s.empty[use % ATTEND_SLOTS]);
}

/* A warp has 16 positions and 64 columns of every slot. */
template <int D, int R>
static __device__ __forceinline__ void score(struct row_shared<D, R> &s, const struct piece &w,
                                             uint32_t &use, uint32_t lap) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint32_t slab = warp % s.SLABS, tile = warp / s.SLABS, offset = (tile * 16 + g) * (2 * D);
    for (uint32_t base = 0; base < w.n; base += s.POSITIONS, use++) {
        const uint8_t *keys = slot_begin<D, R>(s, use, lap) + offset + slab * 128 + t * 16;
        uint32_t first = base + tile * 16;
        if (first < w.n) {
            bool is_fresh = w.has_fresh && (w.n - 1) / 16 == first / 16;
            /* Odd rows take the upper half first: all rows begin at the same bank. */
            const uint8_t *one = keys + g % 2 * 64, *two = keys + (g + 1) % 2 * 64;
            uint4 x[2] = {*(const uint4 *)one, *(const uint4 *)two};
            uint4 y[2] = {*(const uint4 *)(one + 8 * (2 * D)), *(const uint4 *)(two + 8 * (2 * D))};
            float c[4][4] = {};
#pragma unroll
            for (uint32_t b = 0; b < 2; b++) {
                uint4 low = g % 2 == b ? x[0] : x[1], high = g % 2 == b ? y[0] : y[1];
                if (is_fresh) {
                    uint4 own = s.fresh_key[slab * 8 + b * 4 + t];
                    low = first + g == w.n - 1 ? own : low;
                    high = first + g + 8 == w.n - 1 ? own : high;
                }
                uint32_t block = 2 * (slab * 2 + b);
                score_step(c, low, high, s.query[block][lane], s.query[block + 1][lane]);
            }
#pragma unroll
            for (int k = 0; k < 4; k++)
                s.scores[slab][2 * t + k % 2][first + g + k / 2 * 8] = score_of(c, k);
        }
        slot_end<D, R>(s, use);
    }
}

/* Warp q: scores of query q become weights, as attend_parts.cuh's weigh() does it. All blocks learn
 * of its maximum and sum. */
template <int D, int R>
static __device__ __forceinline__ void weigh(struct row_shared<D, R> &s, uint32_t n, uint32_t q,
                                             bool is_sent, uint32_t side) {
    uint32_t lane = threadIdx.x % 32;
    float x[s.LENGTH / 32], max = -INFINITY, sum = 0, factor = s.factor[q];
#pragma unroll
    for (int i = 0; i < s.LENGTH / 32; i++) {
        if (32 * i >= n)
            break;
        float score = s.scores[0][q][lane + 32 * i];
#pragma unroll
        for (int k = 1; k < s.SLABS; k++)
            score += s.scores[k][q][lane + 32 * i];
        x[i] = lane + 32 * i < n ? __fmul_rn(score, factor) : -INFINITY;
        max = fmaxf(max, x[i]);
    }
    int order = __float_as_int(max);
    order = __reduce_max_sync(0xffffffffu, order ^ (order >> 31 & 0x7fffffff));
    max = ceilf(__int_as_float(order ^ (order >> 31 & 0x7fffffff)));
#pragma unroll
    for (int i = 0; i < s.LENGTH / 32; i++) {
        if (32 * i >= n)
            break;
        x[i] = lane + 32 * i < n ? exp2f(__fsub_rn(x[i], max)) : 0.0f;
        sum += x[i];
        s.weights[q][lane + 32 * i] = x[i];
    }
    sum = warp_sum(sum);
    float most = 1 << 29;
    struct tally mine = {(int)fminf(fmaxf(max, -most), most), sum};
    if (lane == 0)
        s.tally[q] = mine;
    if (is_sent && lane < R)
        st_async(shared_of(&s.tallies[side][blockIdx.x % R][q], lane), mine,
                 shared_of(&s.ready[side], lane));
}

/* A warp has 64 columns and 16 positions of every slot. */
template <int D, int R>
static __device__ __forceinline__ void mix(struct row_shared<D, R> &s, const struct piece &w,
                                           uint32_t &use, uint32_t lap) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint32_t slab = warp % s.SLABS, part = warp / s.SLABS;
    uint32_t offset = (part * 16 + 4 * t) * (2 * D) + slab * 128 + g * 16;
    float c[8][4] = {};
    for (uint32_t base = 0; base < w.n; base += s.POSITIONS, use++) {
        const uint8_t *values = slot_begin<D, R>(s, use, lap) + offset;
        uint32_t first = base + part * 16;
        if (first < w.n) {
            uint4 v[4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                v[r] = *(const uint4 *)(values + r * (2 * D));
            if (first + 16 > w.loaded) { /* nothing was copied there, and it must be finite */
                uint4 own = s.fresh_value[slab * 8 + g], none = make_uint4(0, 0, 0, 0);
#pragma unroll
                for (uint32_t r = 0; r < 4; r++) {
                    uint32_t position = first + 4 * t + r;
                    v[r] = position < w.loaded ? v[r] : position < w.n ? own : none;
                }
            }
            mix_step(c, v, *(const float4 *)&s.weights[g][first + 4 * t]);
        }
        slot_end<D, R>(s, use);
    }
    if (g < w.n_queries)
        store_mixed(c, (float4 *)&s.mixed[part][g * D + slab * 64 + t * 16]);
}

/* A value of the result and what its query has seen: fold() and fold_value() on whole numbers. */
struct folded {
    float x;
    struct tally all;

    __device__ __forceinline__ void begin(void) {
        x = 0, all.max = -(1 << 30), all.sum = 0;
    }

    static __device__ __forceinline__ float power(int k) {
        return __int_as_float((max(k, -127) + 127) << 23);
    }

    __device__ __forceinline__ void add(float part, struct tally t) {
        int most = max(all.max, t.max);
        float old = power(all.max - most), now = power(t.max - most);
        x = fmaf(x, old, __fmul_rn(part, now));
        all.sum = fmaf(all.sum, old, __fmul_rn(t.sum, now));
        all.max = most;
    }
};

/* The e-th value of a unit's result. */
template <int D>
static __device__ __forceinline__ void put(const struct attend_params &p, const struct piece &w,
                                           uint32_t e, const struct folded &f) {
    p.out[(uint64_t)w.first_head * D + e] = f.x * rcp_approx(f.all.sum);
}

template <int D, int R>
static __device__ __forceinline__ float4 sum_parts(const struct row_shared<D, R> &s, uint32_t e) {
    float4 x = *(const float4 *)&s.mixed[0][e];
#pragma unroll
    for (int k = 1; k < s.PARTS; k++) {
        float4 y = *(const float4 *)&s.mixed[k][e];
        x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
    }
    return x;
}

/* The result of the only split. */
template <int D, int R>
static __device__ __forceinline__ void put_all(const struct attend_params &p,
                                               struct row_shared<D, R> &s, const struct piece &w) {
#pragma unroll 1
    for (uint32_t e = 4 * threadIdx.x; e < w.n_queries * D; e += 4 * THREADS) {
        float4 x = sum_parts<D, R>(s, e);
        const float *values = (const float *)&x;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            struct folded f;
            f.begin();
            f.add(values[i], s.tally[e / D]);
            put<D>(p, w, e + i, f);
        }
    }
}

/* A split's result in slices to the cluster's blocks. */
template <int D, int R>
static __device__ __forceinline__ void send_slices(struct row_shared<D, R> &s,
                                                   const struct piece &w, uint32_t side) {
    uint32_t rank = blockIdx.x % R, slice = w.n_queries * (D / R);
    float inverse = __frcp_rn((float)w.n_queries);
#pragma unroll 1
    for (uint32_t e = 4 * threadIdx.x; e < w.n_queries * D; e += 4 * THREADS) {
        float4 x = sum_parts<D, R>(s, e);
        uint32_t to = (uint32_t)(((float)(e / (D / R)) + 0.5f) * inverse); /* e / slice */
        st_async(shared_of(&s.parts[side][rank * slice + e - to * slice], to), x,
                 shared_of(&s.ready[side], to));
    }
}

/* Value i of this block's slice, of all splits of the group. */
template <int D, int R>
static __device__ __forceinline__ struct folded fold_group(const struct row_shared<D, R> &s,
                                                           uint32_t side, uint32_t slice,
                                                           uint32_t i, uint32_t splits) {
    uint32_t query = (blockIdx.x % R * slice + i) / D;
    float part[R];
    struct tally tally[R];
#pragma unroll
    for (uint32_t r = 0; r < R; r++)
        part[r] = s.parts[side][r * slice + i], tally[r] = s.tallies[side][r][query];
    struct folded f;
    f.begin();
#pragma unroll
    for (uint32_t r = 0; r < R; r++)
        if (r < splits)
            f.add(part[r], tally[r]);
    return f;
}

/* A value of all groups, which clusters have left in memory; and what they have seen. */
static __device__ __forceinline__ struct folded fold_groups(const struct attend_params &p,
                                                            const float *values,
                                                            const float *tallies, uint32_t groups) {
    struct folded f;
    f.begin();
    for (uint32_t first = 0; first < groups; first += 8) {
        float part[8];
        int2 tally[8];
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            uint64_t at = (uint64_t)min(first + i, groups - 1) * p.part_values;
            part[i] = __ldcg(values + at), tally[i] = __ldcg((const int2 *)(tallies + at));
        }
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            if (first + i < groups)
                f.add(part[i], {tally[i].x, __int_as_float(tally[i].y)});
    }
    return f;
}

/* True in all threads of the block that is the last of `count` to come here. What the others wrote
 * before is seen then, and the counter is zero again. */
static __device__ __forceinline__ bool is_last(bool *flag, uint32_t *counter, uint32_t count) {
    sync_warps();
    if (threadIdx.x == 0) {
        uint32_t before = atomic_inc_acq_rel_gpu(counter);
        *flag = before == count - 1;
        if (before == count - 1)
            *counter = 0;
    }
    sync_warps();
    return *flag;
}

/* Folds this block's slice of what the cluster has. Where there are more groups it goes to memory,
 * and the last block to come there folds the groups. */
template <int D, int R>
static __device__ __forceinline__ void fold_slice(const struct attend_params &p,
                                                  struct row_shared<D, R> &s, const struct piece &w,
                                                  const struct extent &e, uint32_t side) {
    uint32_t tid = threadIdx.x, rank = blockIdx.x % R, slice = w.n_queries * (D / R);
    uint32_t groups = (e.splits + R - 1) / R, splits = min((uint32_t)R, e.splits - w.group * R);
    float *parts = p.parts + (uint64_t)w.unit * p.slots * p.part_values;
    uint64_t here = (uint64_t)w.group * p.part_values;
    float *tallies = parts + ATTEND_TILE * D + rank * (2 * ATTEND_TILE); /* this rank's own */
#pragma unroll 1
    for (uint32_t i = tid; i < slice; i += THREADS) {
        uint32_t at = rank * slice + i;
        struct folded f = fold_group<D, R>(s, side, slice, i, splits);
        if (groups == 1) {
            put<D>(p, w, at, f);
            continue;
        }
        parts[here + at] = f.x;
        if (i == 0 || at % D == 0)
            *(int2 *)(tallies + here + 2 * (at / D)) =
                make_int2(f.all.max, __float_as_int(f.all.sum));
    }
    if (groups == 1 || !is_last(&s.is_last, p.counters + w.unit * R + rank, groups))
        return;
#pragma unroll 1
    for (uint32_t i = tid; i < slice; i += THREADS) {
        uint32_t at = rank * slice + i;
        put<D>(p, w, at, fold_groups(p, parts + at, tallies + 2 * (at / D), groups));
    }
}

/* Scores, weights and mixed values of a split. */
template <int D, int R>
static __device__ __forceinline__ void run_split(struct row_shared<D, R> &s, const struct piece &w,
                                                 uint32_t &use, bool is_sent, uint32_t side) {
    uint32_t warp = threadIdx.x / 32, lap = s.lap;
    score<D, R>(s, w, use, lap);
    sync_warps();
    if (warp < w.n_queries)
        weigh<D, R>(s, w.n, warp, is_sent, side);
    sync_warps();
    mix<D, R>(s, w, use, lap);
    sync_warps();
}

/* Of a block that has no split: what it has seen does not count, but all are waiting for it. */
template <int D, int R>
static __device__ __forceinline__ void send_nothing(struct row_shared<D, R> &s,
                                                    const struct piece &w, uint32_t side) {
    uint32_t q = threadIdx.x / 32, to = threadIdx.x % 32;
    struct tally none = {0, 0};
    if (q < w.n_queries && to < R)
        st_async(shared_of(&s.tallies[side][blockIdx.x % R][q], to), none,
                 shared_of(&s.ready[side], to));
}

/* What a cluster's blocks have of a group, together. */
template <int D, int R>
static __device__ __forceinline__ void fold_piece(const struct attend_params &p,
                                                  struct row_shared<D, R> &s, const struct piece &w,
                                                  const struct extent &e, uint32_t folds) {
    uint32_t side = folds & 1; /* pieces take turns */
    if (w.n)
        send_slices<D, R>(s, w, side);
    else
        send_nothing<D, R>(s, w, side);
    uint32_t splits = min((uint32_t)R, e.splits - w.group * R);
    uint32_t bytes = splits * (D / R) * sizeof(float) + R * sizeof(struct tally);
    if (threadIdx.x == 0)
        barrier_expect(&s.ready[side], w.n_queries * bytes);
    barrier_wait(&s.ready[side], folds >> 1 & 1);
    fold_slice<D, R>(p, s, w, e, side);
}

/* ---- few positions -------------------------------------------------------------------------- */

/* Splits of 16: a warp each, from the slots. */
template <int R>
static __device__ __forceinline__ void run_short(const struct attend_params &p,
                                                 struct row_shared<64, R> &s, const struct piece &w,
                                                 uint32_t splits, uint32_t use) {
    constexpr uint32_t ROW = 2 * 64;
    uint32_t lane = threadIdx.x % 32, split = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    static_assert(s.POSITIONS >= ATTEND_SHORT(64), "keys are one slot, values another");
    if (split < splits) {
        uint32_t own = w.n - 1 - split * 16, lap = s.lap; /* the row's own position */
        const uint8_t *keys = (const uint8_t *)s.slots[use % ATTEND_SLOTS] + split * 16 * ROW;
        const uint8_t *values =
            (const uint8_t *)s.slots[(use + 1) % ATTEND_SLOTS] + split * 16 * ROW;
        struct short_rows from;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint8_t *key = keys + (g + 8 * i) * ROW;
            from.key[i] = (g + 8 * i < own ? key : (const uint8_t *)s.fresh_key) + t * 16;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint8_t *value = values + (4 * t + i) * ROW;
            from.value[i] = (4 * t + i < own ? value : (const uint8_t *)s.fresh_value) + g * 16;
        }
        const uint32_t limit[2] = {own + 1, own + 1};
        slot_begin<64, R>(s, use, lap);
        short_split(s.brief.s, from, s.query, s.factor, w.n_queries, limit,
                    [&]() { slot_begin<64, R>(s, use + 1, lap); });
    }
    sync_warps();
    for (uint32_t e = 4 * threadIdx.x; e < w.n_queries * 64; e += 4 * THREADS)
        *(float4 *)(p.out + (uint64_t)w.first_head * 64 + e) = short_fold(s.brief.s, e, splits);
    slot_end<64, R>(s, use);
    slot_end<64, R>(s, use + 1);
}

/* All pieces of a block, the first of which is of unit w. */
template <int D, int R>
static __device__ __forceinline__ void run_pieces(const struct attend_params &p,
                                                  struct row_shared<D, R> &s, struct piece w) {
    struct io_row row = load_row(p); /* not waited for yet */
    uint32_t item = blockIdx.x / R, use = 0, folds = 0, page = 0;
    make_heads<D, R>(p, s, w);
    struct extent e = extent_of(p, row.position);
    uint32_t items = items_of<R>(p, e);
    find_split<R>(w, e);
    if (w.has_fresh)
        page = load_page(p, row.slot, row.position);
    __syncthreads(); /* and the first copies are right */
    while (item < items) {
        if (e.length == 16) {
            store_fresh<D, R>(p, s, w, row.position, page); /* its warp has nothing else to do */
            if constexpr (D == 64)
                run_short<R>(p, s, w, e.splits, use);
            use += 2;
        } else {
            if (w.n)
                run_split<D, R>(s, w, use, e.splits > 1, folds & 1);
            if (e.splits == 1)
                put_all<D, R>(p, s, w);
            else
                fold_piece<D, R>(p, s, w, e, folds++);
            store_fresh<D, R>(p, s, w, row.position, page);
        }
        item += gridDim.x / R;
        if (item >= items)
            break;
        uint32_t made = w.unit;
        w = piece_of<R>(p, e, item);
        if (w.has_fresh)
            page = load_page(p, row.slot, row.position);
        sync_warps(); /* nobody reads what the last piece left any more */
        if (made == w.unit)
            continue;
        make_heads<D, R>(p, s, w);
        sync_warps();
    }
}

template <int D, int R>
static __device__ __forceinline__ void copy_pieces(const struct attend_params &p,
                                                   struct row_shared<D, R> &s) {
    bool is_leader = threadIdx.x == THREADS;
    struct guess g;
    struct io_row row;
    uint32_t copies = 0;
    if (is_leader)
        begin_barriers<D, R>(s);
    __syncwarp();
    cluster_arrive();
    if (is_leader)
        g = begin_copies<D, R>(p, s);
    __syncwarp();
    cluster_wait();
    pdl_wait(p.io);
    if (is_leader)
        copies = check_copies<D, R>(p, s, g, &row);
    __syncthreads();
    if (is_leader)
        copy_all<D, R>(p, s, row, g.page, copies);
}

template <int D, int R>
static __device__ __forceinline__ void attend_row(const struct attend_params &p) {
    extern __shared__ uint4 room[];
    static_assert(sizeof(struct row_shared<D, R>) <= ATTEND_ROW_SHARED(D), "attend.h");
    struct row_shared<D, R> &s = *(struct row_shared<D, R> *)room;
    uint32_t tid = threadIdx.x;
    if (tid >= THREADS) {
        copy_pieces<D, R>(p, s);
        return;
    }
    struct piece w = unit_of(p, blockIdx.x / R);
    for (uint32_t i = tid; i < sizeof s.weights / sizeof(float); i += THREADS)
        s.weights[0][i] = 0; /* queries that a tile lacks have no weight */
    cluster_arrive();
    cluster_wait();    /* all blocks' barriers are there */
    if (tid < D / 8) { /* so that they are near when they are needed */
        if (p.q_norm)
            ld_volatile_f32(p.q_norm + 8 * tid);
        if (p.k_norm)
            ld_volatile_f32(p.k_norm + 8 * tid);
    }
    pdl_wait(p.io);
    run_pieces<D, R>(p, s, w);
}

#endif

#if __CUDA_ARCH__ >= 900
#define ROW_BODY(D, R) attend_row<D, R>(p)
#else
#define ROW_BODY(D, R)
#endif
#define ROW_KERNEL(D, R)                                                                           \
    extern "C" __global__ void IN_CLUSTERS(R) __launch_bounds__(ROW_THREADS, 2)                    \
        attend_row_##D##_##R(const __grid_constant__ struct attend_params p) {                     \
        pdl_launch_dependents();                                                                   \
        ROW_BODY(D, R);                                                                            \
    }
ROW_KERNEL(64, 4)
ROW_KERNEL(64, 8)
ROW_KERNEL(128, 4)
ROW_KERNEL(128, 8)
ROW_KERNEL(256, 4)
ROW_KERNEL(256, 8)
