/* attend_batch.cu - ATTEND of plans of several rows: heads of 64, 128 and 256 over halves. A unit's
 * queries are heads of a row, or of several rows that follow each other in a segment. Keys and
 * values go straight into registers, in fragment order.
 *
 * Where rows are many attend_prepare has made queries, keys and values. Where they are few, blocks
 * make for themselves what they need, also of other rows of a segment: fresh positions, which are
 * never read from the cache. Before the wait they look where the rows seem to be, as in
 * attend_row.cu, so that behind it all loads begin at once. */
#include "backend/cuda/kernels/attend_short.cuh"
#include "backend/cuda/kernels/attend_split.cuh"

/* What a block does of an item where rows are few. */
struct few_work {
    struct work w;
    bool is_there;                /* the unit has such a run */
    uint32_t run, first, end;     /* splits */
    uint32_t fresh_from, n_fresh; /* positions of the run that this step adds */
    uint32_t fresh_row;           /* of the first of them */
    uint32_t page;                /* of the last position of the unit */
};

/* The rows of a step as a warp has them, a lane a row. */
struct few_rows {
    uint32_t n, position, slot, segment; /* of the step; of the lane's row */
    uint32_t first;                      /* row of its segment */
    uint32_t leading, runs;              /* rows that lead; the most runs of one of them */
};

/* F: the most fresh positions; 0: none. */
template <int D, int F> struct rows_shared {
    uint4 query[D / 16][32]; /* B fragments */
    alignas(16) float scores[ATTEND_TILE][SCORE_STRIDE];
    union {
        struct short_room<D> brief;
        alignas(16) float mixed[512 / D][ATTEND_TILE][D]; /* parts of the positions */
        float heads[ATTEND_WARPS][D];                     /* while queries are made */
    };
    alignas(16) float kept[ATTEND_TILE * D]; /* mixed values of the run; each thread its own */
    float factor[ATTEND_TILE];               /* of a query's scores */
    struct work work; /* for what comes behind the loads: they need the registers */
    struct fold_shared fold;
    uint4 fresh_keys[F ? F : 1][D / 8], fresh_values[F ? F : 1][D / 8];
    struct few_work few[F ? 2 : 1]; /* this item's, the next one's */
    struct few_rows rows[F ? 32 : 1];
    uint32_t items, turn; /* of the step; which of the two is the first */
};

/* A split: its first position, how many there are, how many of them are in the cache, and which of
 * the fresh ones comes behind those. */
struct split {
    uint32_t begin, n, loaded, fresh;
};

/* A lane's loads in flight (8 measured better than 12 or 16, where registers are spilled). Of a
 * split a warp has a tile or two of 16 positions of the keys, then, for 64 columns of the values,
 * every PARTS-th step of 16 positions. */
template <int D> struct stream {
    static constexpr int SLABS = D / 64, PARTS = ATTEND_WARPS / SLABS;
    static constexpr int STEPS = ATTEND_LENGTH(D) / 16 / PARTS;
    static constexpr int TILES = ATTEND_LENGTH(D) / 16 / ATTEND_WARPS, TILE_LOADS = D / 16;
    static constexpr int KEYS = TILES * TILE_LOADS, ALL = KEYS + 4 * STEPS, DEPTH = 8;
    uint4 data[DEPTH];
    const uint8_t *keys, *values; /* this lane's first */
    uint32_t n;                   /* positions to load */
    struct split at;

    __device__ __forceinline__ void load(int i) {
        if (i >= ALL)
            return;
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, offset, position;
        const uint8_t *from;
        if (i < KEYS) {
            int part = i % TILE_LOADS;
            offset = i / TILE_LOADS * ATTEND_WARPS * 16 + part % 2 * 8;
            position = warp * 16 + lane / 4 + offset;
            from = keys + offset * (2 * D) + part / 2 * 64;
        } else {
            int j = i - KEYS;
            offset = j / 4 * PARTS * 16 + j % 4;
            position = warp / SLABS * 16 + 4 * (lane % 4) + offset;
            from = values + offset * (2 * D);
        }
        if (position < n)
            data[i % DEPTH] = ld_no_allocate(from);
        else
            data[i % DEPTH] = make_uint4(0, 0, 0, 0);
    }

    /* The first positions' loads must come before everything that waits. */
    __device__ __forceinline__ void begin(const uint8_t *k, const uint8_t *v, struct split split) {
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
        keys = k + (warp * 16 + g) * (2 * D) + t * 16;
        values = v + (warp / SLABS * 16 + 4 * t) * (2 * D) + warp % SLABS * 128 + g * 16;
        at = split, n = split.loaded;
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            load(i);
    }
};

template <int D, int F>
static __device__ __forceinline__ void score(struct stream<D> &q, struct rows_shared<D, F> &s,
                                             uint32_t queries) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < q.TILES; i++) {
        uint32_t first = (warp + i * ATTEND_WARPS) * 16;
        float sum[4];
#pragma unroll
        for (int part = 0; part < D / 64; part++) {
            float c[4][4] = {};
#pragma unroll
            for (int b = 2 * part; b < 2 * part + 2; b++) {
                int at = i * q.TILE_LOADS + 2 * b;
                uint4 low = q.data[at % q.DEPTH], high = q.data[(at + 1) % q.DEPTH];
                if (F && first + 16 > q.n && first < q.at.n) {
                    uint32_t one = first + g - q.n, two = one + 8; /* beyond F: not fresh */
                    if (one < q.at.n - q.n)
                        low = s.fresh_keys[q.at.fresh + one][4 * b + t];
                    if (two < q.at.n - q.n)
                        high = s.fresh_keys[q.at.fresh + two][4 * b + t];
                }
                if (first < q.at.n)
                    score_step(c, low, high, s.query[2 * b][lane], s.query[2 * b + 1][lane]);
                q.load(at + q.DEPTH);
                q.load(at + 1 + q.DEPTH);
            }
#pragma unroll
            for (int k = 0; k < 4; k++)
                sum[k] = part ? sum[k] + score_of(c, k) : score_of(c, k);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t query = 2 * t + k % 2, position = first + g + k / 2 * 8;
            if (query < queries)
                s.scores[query][position] = sum[k];
        }
    }
}

template <int D, int F>
static __device__ __forceinline__ void mix(struct stream<D> &q, struct rows_shared<D, F> &s,
                                           uint32_t queries) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint32_t slab = warp % q.SLABS, part = warp / q.SLABS;
    float c[8][4] = {};
#pragma unroll
    for (int i = 0; i < q.STEPS; i++) {
        uint32_t first = (part + i * q.PARTS) * 16;
        int at = q.KEYS + 4 * i;
        if (first < q.at.n) {
            uint4 v[4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                v[r] = q.data[(at + r) % q.DEPTH];
                uint32_t fresh = first + 4 * t + r - q.n;
                if (F && fresh < q.at.n - q.n)
                    v[r] = s.fresh_values[q.at.fresh + fresh][slab * 8 + g];
            }
            mix_step(c, v, *(const float4 *)&s.scores[g][first + 4 * t]);
        }
#pragma unroll
        for (int r = 0; r < 4; r++)
            q.load(at + r + q.DEPTH);
    }
    if (g < queries)
        store_mixed(c, (float4 *)&s.mixed[part][g][slab * 64 + t * 16]);
}

/* Queries that attend_prepare has made. */
template <int D>
static __device__ __forceinline__ void
take_queries(const struct attend_params &p, struct rows_shared<D, 0> &s, const struct work &w) {
    uint32_t lane = threadIdx.x % 32, i = threadIdx.x / 32;
    if (i >= w.n_queries)
        return;
    uint32_t own = row_of_query(w, i), head = w.first_head + i - own * w.n_heads;
    const float2 *from = (const float2 *)(p.query + ((uint64_t)(w.row + own) * p.heads + head) * D);
    float2 x[D / 64];
#pragma unroll
    for (int m = 0; m < D / 64; m++)
        x[m] = from[lane + 32 * m];
    pack_query<D>(p, x, s.query, s.factor, i);
}

template <int D, int F>
static __device__ __forceinline__ void run_split(struct stream<D> &q, struct rows_shared<D, F> &s,
                                                 bool is_first) {
    uint32_t warp = threadIdx.x / 32, queries = s.work.n_queries;
    score<D, F>(q, s, queries);
    __syncthreads();
    if (warp < queries)
        weigh<ATTEND_LENGTH(D)>(s.scores[warp], s.factor[warp], seen_by(s.work, warp, q.at.begin),
                                s.fold, warp);
    __syncthreads();
    mix<D, F>(q, s, queries);
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
        for (int k = 1; k < q.PARTS; k++) {
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

/* What a run has mixed, of all its splits. */
template <int D, int F>
static __device__ __forceinline__ struct mixed<D> take_mixed(const struct rows_shared<D, F> &s) {
    struct mixed<D> m;
#pragma unroll
    for (int j = 0; j < m.E; j++)
        if (m.at(j) < m.MOST)
            copy_vector<m.V>(m.x[j], s.kept + m.at(j));
    return m;
}

/* ---- few positions -------------------------------------------------------------------------- */

/* Where this lane's positions are: in the cache from `from` on, or fresh. */
template <int F>
static __device__ __forceinline__ struct short_rows rows_at(const struct attend_params &p,
                                                            const struct rows_shared<64, F> &s,
                                                            uint64_t from, struct split at) {
    constexpr uint32_t ROW = 2 * 64;
    uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    struct short_rows r;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t k = min(g + 8 * i, at.n - 1);
        const uint8_t *fresh = (const uint8_t *)s.fresh_keys[at.fresh + k - at.loaded];
        r.key[i] = (k < at.loaded ? p.keys + from + k * ROW : fresh) + t * 16;
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t k = min(4 * t + i, at.n - 1);
        const uint8_t *fresh = (const uint8_t *)s.fresh_values[at.fresh + k - at.loaded];
        r.value[i] = (k < at.loaded ? p.values + from + k * ROW : fresh) + g * 16;
    }
    return r;
}

/* Splits of 16: a warp each. `at` is this warp's, `from` its first position in the cache. */
template <int F>
static __device__ __forceinline__ void run_short(const struct attend_params &p,
                                                 struct rows_shared<64, F> &s, const struct work &w,
                                                 uint64_t from, struct split at) {
    uint32_t t = threadIdx.x % 4;
    if (at.begin < w.e.n) {
        const uint32_t limit[2] = {seen_by(w, 2 * t, at.begin), seen_by(w, 2 * t + 1, at.begin)};
        short_split(s.brief.s, rows_at<F>(p, s, from, at), s.query, s.factor, w.n_queries, limit,
                    []() {});
    }
    __syncthreads();
    for (uint32_t e = 4 * threadIdx.x; e < w.n_queries * 64; e += 4 * THREADS) {
        uint32_t query = e / 64, row = row_of_query(w, query);
        float *out = p.out + (w.row + row) * p.out_stride + e % 64 +
                     (uint64_t)(w.first_head + query - row * w.n_heads) * 64;
        *(float4 *)out = short_fold(s.brief.s, e, w.e.splits);
    }
}

/* ---- many rows ------------------------------------------------------------------------------ */

template <int D>
static __device__ __forceinline__ void run_rows(const struct attend_params &p,
                                                struct rows_shared<D, 0> &s, const struct work &w,
                                                uint32_t run, bool has_queries) {
    uint32_t first = run * run_splits(p, w.e);
    uint32_t end = min(first + run_splits(p, w.e), w.e.splits);
    for (uint32_t split = first; split < end; split++) {
        uint32_t begin = split * w.e.length, n = min(w.e.length, w.e.n - begin);
        uint64_t at = cache_at(p, w.slot, w.kv_head, begin);
        bool is_first = split == first;
        struct stream<D> q;
        q.begin(p.keys + at, p.values + at, {begin, n, n, 0});
        __syncthreads(); /* nobody reads what the last split left any more */
        if (is_first) {
            forget(s.fold);
            if (threadIdx.x == 0)
                s.work = w;
            if (!has_queries)
                take_queries<D>(p, s, w);
        }
        __syncthreads();
        run_split<D, 0>(q, s, is_first);
    }
    struct mixed<D> m = take_mixed<D, 0>(s);
    finish<D>(p, s.work, s.fold, m, run);
}

static __device__ __forceinline__ void short_of_rows(const struct attend_params &p,
                                                     struct rows_shared<64, 0> &s,
                                                     const struct work &w, bool has_queries) {
    uint32_t begin = threadIdx.x / 32 * 16, n = begin < w.e.n ? min(16u, w.e.n - begin) : 0;
    __syncthreads(); /* nobody reads what the last one left any more */
    if (!has_queries)
        take_queries<64>(p, s, w);
    __syncthreads();
    run_short<0>(p, s, w, cache_at(p, w.slot, w.kv_head, 0) + begin * 2 * 64, {begin, n, n, 0});
}

template <int D> static __device__ __forceinline__ void attend_rows(const struct attend_params &p) {
    __shared__ struct rows_shared<D, 0> s;
    __shared__ struct leaders leaders;
    uint32_t tid = threadIdx.x;
    for (uint32_t i = tid; i < ATTEND_TILE * SCORE_STRIDE; i += THREADS)
        s.scores[0][i] = 0; /* queries that a tile lacks have no weight */
    pdl_wait(p.io);
    if (tid < 32)
        find_leaders(p, leaders, p.io.header->n_rows);
    __syncthreads();
    uint32_t per_row = p.kv_heads * p.tiles, n_units = per_row * leaders.n;
    uint32_t made = ~0u; /* the unit whose queries are there */
    for (uint32_t i = blockIdx.x; i < n_units * leaders.runs; i += gridDim.x) {
        uint32_t run = i / n_units, unit = i % n_units, leader = unit / per_row;
        uint32_t row = leaders.row[leader], rows = leaders.row[leader + 1] - row;
        struct work w = work_of(p, row, rows, unit % per_row);
        if (run >= runs_of(p, w.e))
            continue;
        if (!is_short(w.e))
            run_rows<D>(p, s, w, run, made == unit);
        else if constexpr (D == 64)
            short_of_rows(p, s, w, made == unit);
        made = unit;
    }
}

/* ---- few rows ------------------------------------------------------------------------------- */

/* Loads that see what other kernels write meanwhile. Before the wait it may be nonsense. */
static __device__ __forceinline__ struct few_rows load_rows(const struct attend_params &p) {
    uint32_t lane = threadIdx.x % 32;
    struct few_rows r;
    r.n = ld_relaxed(&p.io.header->n_rows);
    uint4 at = ld_relaxed_u32x4(p.io.rows + min(lane, p.max_rows - 1));
    r.position = at.y, r.slot = at.z, r.segment = at.w;
    return r;
}

static __device__ __forceinline__ bool are_sound(const struct attend_params &p,
                                                 const struct few_rows &r) {
    bool is_sound =
        threadIdx.x % 32 >= r.n || (r.slot < p.n_slots && r.position < p.pages_per_slot * PAGE);
    return __all_sync(0xffffffffu, is_sound && r.n <= p.max_rows);
}

static __device__ __forceinline__ bool are_same(const struct few_rows &a,
                                                const struct few_rows &b) {
    bool is_same = a.position == b.position && a.slot == b.slot && a.segment == b.segment;
    return __all_sync(0xffffffffu, a.n == b.n && (is_same || threadIdx.x % 32 >= a.n));
}

static __device__ __forceinline__ void find_leading(const struct attend_params &p,
                                                    struct few_rows &r) {
    uint32_t lane = threadIdx.x % 32;
    bool is_row = lane < r.n;
    r.first = __ffs(__match_any_sync(0xffffffffu, is_row ? r.segment : ~lane)) - 1;
    struct extent e = extent_of(p, r.position);
    bool leads = is_row && ((lane - r.first) % p.tile_rows == 0 ||
                            e.length != extent_of(p, r.position - 1).length);
    r.leading = __ballot_sync(0xffffffffu, leads);
    r.runs = __reduce_max_sync(0xffffffffu, is_row ? runs_of(p, e) : 0);
}

static __device__ __forceinline__ uint32_t items_of(const struct attend_params &p,
                                                    const struct few_rows &r) {
    return p.kv_heads * p.tiles * __popc(r.leading) * r.runs;
}

/* By one warp. */
static __device__ __forceinline__ struct few_work
find_work(const struct attend_params &p, const struct few_rows &r, uint32_t item) {
    struct few_work f = {};
    if (item >= items_of(p, r))
        return f;
    uint32_t per_row = p.kv_heads * p.tiles, n_units = per_row * __popc(r.leading);
    f.run = item < n_units ? 0 : item / n_units;
    uint32_t unit = item - f.run * n_units, leader = unit / per_row, lane = threadIdx.x % 32;
    uint32_t rank = __popc(r.leading & ((1u << lane) - 1));
    uint32_t row = __ffs(__ballot_sync(0xffffffffu, rank == leader && r.leading >> lane & 1)) - 1;
    uint32_t behind = row < 31 ? r.leading >> (row + 1) : 0;
    uint32_t rows = min(behind ? __ffs(behind) : r.n - row, p.tile_rows), last = row + rows - 1;
    uint32_t slot = __shfl_sync(0xffffffffu, r.slot, last);
    uint32_t position = __shfl_sync(0xffffffffu, r.position, last);
    f.page = load_page(p, slot, position);
    f.w = work_at(p, row, rows, slot, position, unit - leader * per_row);
    uint32_t each = run_splits(p, f.w.e);
    f.first = f.run * each, f.end = min(f.first + each, f.w.e.splits);
    f.is_there = f.first < f.end;
    uint32_t before = last - __shfl_sync(0xffffffffu, r.first, last); /* rows of the segment */
    f.fresh_from = max(f.first * f.w.e.length, position - min(before, position));
    uint32_t end = min(f.end * f.w.e.length, f.w.e.n);
    f.n_fresh = end > f.fresh_from ? end - f.fresh_from : 0;
    f.fresh_row = last - (position - f.fresh_from);
    return f;
}

/* Bytes to a position of the unit's sequence. Most are in the page that is known. */
static __device__ __forceinline__ uint64_t few_at(const struct attend_params &p,
                                                  const struct few_work &f, uint32_t position) {
    uint32_t page = f.page;
    if (position / PAGE != f.w.position / PAGE)
        page = load_page(p, f.w.slot, position);
    return (((uint64_t)page * p.kv_heads + f.w.kv_head) * PAGE + position % PAGE) * p.row_bytes;
}

/* Of a split that begins there: what is in the cache, what is fresh. */
static __device__ __forceinline__ struct split split_at(const struct few_work &f, uint32_t begin) {
    struct split at = {begin, begin < f.w.e.n ? min(f.w.e.length, f.w.e.n - begin) : 0, 0, 0};
    if (f.fresh_from > begin)
        at.loaded = min(at.n, f.fresh_from - begin);
    else
        at.fresh = begin - f.fresh_from;
    return at;
}

/* What a warp makes: a query of the unit, or a fresh key or value. */
struct few_task {
    bool is_there, is_query, is_key;
    uint32_t row, number, column; /* number: of the query, or the fresh position */
};

static __device__ __forceinline__ struct few_task task_of(const struct attend_params &p,
                                                          const struct few_work &f, uint32_t i) {
    uint32_t keys = f.w.n_queries + f.n_fresh;
    struct few_task t = {i < keys + f.n_fresh, i < f.w.n_queries, i >= f.w.n_queries && i < keys};
    if (t.is_query) {
        uint32_t row = row_of_query(f.w, i);
        t.row = f.w.row + row, t.number = i;
        t.column = (f.w.first_head + i - row * f.w.n_heads) * p.q_stride;
    } else {
        t.number = t.is_key ? i - f.w.n_queries : i - keys;
        t.row = f.fresh_row + t.number;
        t.column = (t.is_key ? p.k_column : p.v_column) + f.w.kv_head * p.head_width;
    }
    return t;
}

template <int D>
static __device__ __forceinline__ void load_task(const struct attend_params &p,
                                                 const struct few_task &t,
                                                 struct raw_head<D / 64, D> &raw) {
    raw.load(p, p.in + t.row * p.in_stride + t.column, t.row);
    raw.load_norm(p, t.is_query ? p.q_norm : p.k_norm);
}

/* Queries of the unit and the run's fresh keys and values. The warp's first is on its way. */
template <int D, int F>
static __device__ __forceinline__ void
make_few(const struct attend_params &p, struct rows_shared<D, F> &s, const struct few_work &f,
         struct raw_head<D / 64, D> &raw) {
    uint32_t warp = threadIdx.x / 32, i = warp;
    struct few_task t = task_of(p, f, i);
#pragma unroll 1
    while (t.is_there) {
        if (t.is_query || t.is_key)
            raw.make(p, t.is_query ? p.q_norm : p.k_norm, t.row, s.heads[warp]);
        if (t.is_query)
            pack_query<D>(p, raw.x, s.query, s.factor, t.number);
        else
            keep_halves<D>(raw.x, (t.is_key ? s.fresh_keys : s.fresh_values)[t.number]);
        t = task_of(p, f, i += ATTEND_WARPS);
        if (t.is_there)
            load_task<D>(p, t, raw);
    }
}

/* The unit's own rows into the cache, by the last warps. */
template <int D, int F>
static __device__ __forceinline__ void store_few(const struct attend_params &p,
                                                 const struct rows_shared<D, F> &s,
                                                 const struct few_work &f) {
    uint32_t lane = threadIdx.x % 32, warp = ATTEND_WARPS - 1 - threadIdx.x / 32;
    for (uint32_t i = warp; f.w.is_first_tile && i < f.n_fresh; i += ATTEND_WARPS) {
        if (f.fresh_row + i < f.w.row || lane >= D / 8)
            continue;
        uint64_t at = few_at(p, f, f.fresh_from + i);
        ((uint4 *)(p.keys + at))[lane] = s.fresh_keys[i][lane];
        ((uint4 *)(p.values + at))[lane] = s.fresh_values[i][lane];
    }
}

/* An item, the first of whose heads are on their way. */
template <int D, int F>
static __device__ __forceinline__ void
run_few(const struct attend_params &p, struct rows_shared<D, F> &s, const struct few_work &f,
        struct raw_head<D / 64, D> &raw) {
    bool is_brief = D == 64 && is_short(f.w.e);
    for (uint32_t split = f.first; split < f.end; split++) {
        uint32_t begin = is_brief ? threadIdx.x / 32 * 16 : split * f.w.e.length;
        struct split at = split_at(f, begin);
        uint64_t from = at.loaded ? few_at(p, f, begin) : 0;
        struct stream<D> q;
        if (!is_brief)
            q.begin(p.keys + from, p.values + from, at);
        __syncthreads(); /* nobody reads what the last split left any more */
        if (split == f.first) {
            forget(s.fold);
            if (threadIdx.x == 0)
                s.work = f.w;
            make_few<D>(p, s, f, raw);
        }
        __syncthreads();
        if (split == f.first)
            store_few<D>(p, s, f);
        if constexpr (D == 64)
            if (is_brief) {
                run_short<F>(p, s, f.w, from, at);
                return;
            }
        run_split<D, F>(q, s, split == f.first);
    }
    struct mixed<D> m = take_mixed<D, F>(s);
    finish<D>(p, s.work, s.fold, m, f.run);
}

/* Before the wait warp 0 finds out what the block seems to have to do; behind it all begin with
 * that while warp 0 sees whether it is so. */
template <int D> static __device__ __forceinline__ void attend_few(const struct attend_params &p) {
    extern __shared__ uint4 room[];
    using S = struct rows_shared<D, ATTEND_FEW_ROWS>;
    static_assert(sizeof(S) <= ATTEND_FEW_SHARED(D), "attend.h");
    S &s = *(S *)room;
    uint32_t warp = threadIdx.x / 32, item = blockIdx.x, turn = 0;
    struct raw_head<D / 64, D> raw;
    struct few_rows r;
    for (uint32_t i = threadIdx.x; i < ATTEND_TILE * SCORE_STRIDE; i += THREADS)
        s.scores[0][i] = 0; /* queries that a tile lacks have no weight */
    if (warp == 0) {
        r = load_rows(p);
        bool is_sound = are_sound(p, r);
        r.n = is_sound ? r.n : 0;
        find_leading(p, r);
        struct few_work f = find_work(p, r, item);
        if (threadIdx.x == 0)
            s.few[0] = f;
    }
    __syncthreads();
    pdl_wait(p.io);
    bool is_loaded = s.few[0].is_there;
    if (is_loaded) {
        struct few_task t = task_of(p, s.few[0], warp);
        if (t.is_there)
            load_task<D>(p, t, raw);
    }
    if (warp == 0) {
        struct few_rows now = load_rows(p);
        uint32_t page = is_loaded ? load_page(p, s.few[0].w.slot, s.few[0].w.position) : 0;
        bool is_right = are_same(r, now) && page == s.few[0].page;
        if (!is_right) {
            r = now;
            find_leading(p, r);
            struct few_work f = find_work(p, r, item);
            if (threadIdx.x == 0)
                s.few[1] = f;
        }
        if (threadIdx.x == 0)
            s.items = items_of(p, r), s.turn = !is_right;
        s.rows[threadIdx.x] = r;
    }
    __syncthreads();
    turn = s.turn;
    is_loaded = is_loaded && !turn;
    for (; item < s.items; item += gridDim.x, turn ^= 1, is_loaded = false) {
        const struct few_work &f = s.few[turn];
        if (f.is_there && !is_loaded) {
            struct few_task t = task_of(p, f, warp);
            if (t.is_there)
                load_task<D>(p, t, raw);
        }
        if (f.is_there)
            run_few<D>(p, s, f, raw);
        if (item + gridDim.x >= s.items)
            break;
        if (warp == 0) {
            struct few_work next = find_work(p, s.rows[threadIdx.x], item + gridDim.x);
            if (threadIdx.x == 0)
                s.few[turn ^ 1] = next;
        }
        __syncthreads();
    }
}

#define KERNEL(NAME, D)                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        NAME##_##D(const __grid_constant__ struct attend_params p) {                               \
        pdl_launch_dependents();                                                                   \
        NAME<D>(p);                                                                                \
    }
KERNEL(attend_rows, 64)
KERNEL(attend_rows, 128)
KERNEL(attend_rows, 256)
KERNEL(attend_few, 64)
KERNEL(attend_few, 128)
KERNEL(attend_few, 256)
