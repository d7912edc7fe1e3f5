/* attend_rows.cu - ATTEND of plans of many rows, behind attend_prepare: heads of 64, 128 and 256
 * over halves. A unit's queries are heads of a row, or of several rows that follow each other in a
 * segment. Keys and values go straight into registers, in fragment order. */
#include "backend/cuda/attend_parts.cuh"

template <int D> struct rows_shared {
    struct leaders leaders;
    uint4 query[D / 16][32]; /* B fragments */
    alignas(16) float scores[ATTEND_TILE][SCORE_STRIDE];
    union {
        alignas(16) float mixed[512 / D][ATTEND_TILE][D]; /* parts of the positions */
        float heads[ATTEND_TILE][D];                      /* while queries are packed */
    };
    alignas(16) float kept[ATTEND_TILE * D]; /* mixed values of the run; each thread its own */
    float factor[ATTEND_TILE];               /* of a query's scores */
    struct work work; /* for what comes behind the loads: they need the registers */
    struct fold_shared fold;
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
            data[i % DEPTH] = load_weights(from);
        else
            data[i % DEPTH] = make_uint4(0, 0, 0, 0);
    }

    /* The first positions' loads must come before everything that waits. */
    __device__ __forceinline__ void begin(const uint8_t *k, const uint8_t *v, uint32_t positions) {
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
        keys = k + (warp * 16 + g) * (2 * D) + t * 16;
        values = v + (warp / SLABS * 16 + 4 * t) * (2 * D) + warp % SLABS * 128 + g * 16;
        n = positions;
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            load(i);
    }
};

template <int D>
static __device__ __forceinline__ void score(struct stream<D> &q, struct rows_shared<D> &s,
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
                if (first < q.n)
                    score_step(c, q.data[at % q.DEPTH], q.data[(at + 1) % q.DEPTH],
                               s.query[2 * b][lane], s.query[2 * b + 1][lane]);
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

template <int D>
static __device__ __forceinline__ void mix(struct stream<D> &q, struct rows_shared<D> &s,
                                           uint32_t queries) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    uint32_t slab = warp % q.SLABS, part = warp / q.SLABS;
    float c[8][4] = {};
#pragma unroll
    for (int i = 0; i < q.STEPS; i++) {
        uint32_t first = (part + i * q.PARTS) * 16;
        int at = q.KEYS + 4 * i;
        if (first < q.n) {
            uint4 v[4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                v[r] = q.data[(at + r) % q.DEPTH];
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
take_queries(const struct attend_params &p, struct rows_shared<D> &s, const struct work &w) {
    uint32_t lane = threadIdx.x % 32, i = threadIdx.x / 32;
    if (i >= w.n_queries)
        return;
    uint64_t row = w.row + i / w.n_heads, head = w.first_head + i % w.n_heads;
    const float *from = p.query + (row * p.heads + head) * D;
    for (uint32_t c = lane; c < D; c += 32)
        s.heads[i][c] = from[c];
    __syncwarp();
    pack_query<D>(p, s.heads[i], s.query, s.factor, i);
}

template <int D>
static __device__ __forceinline__ void run_split(struct stream<D> &q, struct rows_shared<D> &s,
                                                 uint32_t begin, bool is_first) {
    uint32_t warp = threadIdx.x / 32, queries = s.work.n_queries;
    score<D>(q, s, queries);
    __syncthreads();
    if (warp < queries)
        weigh(s.scores[warp], s.factor[warp], seen_by(s.work, warp, begin), s.fold, warp);
    __syncthreads();
    mix<D>(q, s, queries);
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

template <int D> static __device__ __forceinline__ void attend_rows(const struct attend_params &p) {
    __shared__ struct rows_shared<D> s;
    uint32_t tid = threadIdx.x;
    for (uint32_t i = tid; i < ATTEND_TILE * SCORE_STRIDE; i += THREADS)
        s.scores[0][i] = 0; /* queries that a tile lacks have no weight */
    pdl_wait(p.io);
    if (tid < 32)
        find_leaders(p, s.leaders, p.io.header->n_rows);
    __syncthreads();
    uint32_t per_row = p.kv_heads * p.tiles, n_units = per_row * s.leaders.n;
    uint32_t made = ~0u; /* the unit whose queries are there */
    for (uint32_t i = blockIdx.x; i < n_units * s.leaders.runs; i += gridDim.x) {
        uint32_t run = i / n_units, unit = i % n_units, leader = unit / per_row;
        uint32_t row = s.leaders.row[leader], rows = s.leaders.row[leader + 1] - row;
        struct work w = work_of(p, row, rows, unit % per_row);
        if (run >= runs_of(p, w.e))
            continue;
        uint32_t end = min((run + 1) * p.run_splits, w.e.splits);
        for (uint32_t split = run * p.run_splits; split < end; split++) {
            uint32_t begin = split * w.e.length;
            uint64_t at = cache_at(p, w.slot, w.kv_head, begin);
            bool is_first = split == run * p.run_splits;
            struct stream<D> q;
            q.begin(p.keys + at, p.values + at, min(w.e.length, w.e.n - begin));
            __syncthreads(); /* nobody reads what the last split left any more */
            if (is_first) {
                forget(s.fold);
                if (tid == 0)
                    s.work = w;
            }
            if (made != unit)
                take_queries<D>(p, s, w);
            made = unit;
            __syncthreads();
            run_split<D>(q, s, begin, is_first);
        }
        struct mixed<D> m;
#pragma unroll
        for (int j = 0; j < m.E; j++)
            if (m.at(j) < m.MOST)
                copy_vector<m.V>(m.x[j], s.kept + m.at(j));
        finish<D>(p, s.work, s.fold, m, run);
    }
}

#define ROWS_KERNEL(D)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        attend_rows_##D(const __grid_constant__ struct attend_params p) {                          \
        pdl_launch();                                                                              \
        attend_rows<D>(p);                                                                         \
    }
ROWS_KERNEL(64)
ROWS_KERNEL(128)
ROWS_KERNEL(256)
