/* delta_log.cu - DELTA of decode segments where many sequences share a step, and what settles their
 * states. The formula is in delta.cuh, the log in delta.h.
 *
 * delta_log
 *   grid    blocks_per_tile blocks a head tile of 64 columns, two an SM; a block has every
 *           blocks_per_tile-th segment of its tile
 *   block   convolves a job's q, k and v two jobs ahead, a thread a channel, into one of three
 *           buffers; the last warp, which has no channels, computes its norms one job ahead; the
 *           log is copied two jobs ahead; one barrier a job
 *   warp    4 columns, which it copies to shared memory by cp.async two jobs ahead
 *
 * Before griddepcontrol.wait: conv weights and gate constants.
 *
 * delta_settle: grid (head tiles, layers, cells); applies the entries of a log. */
#include "backend/cuda/kernels/delta.cuh"

enum {
    J = 4, /* columns of a warp */
    M = 4,
    KEY = DELTA_LOG_KEY,
    TILE = DELTA_LOG_TILE,
    WARPS = DELTA_WARPS,
    CHANNELS = 2 * KEY + TILE,
    CONV = 4,
    ENTRY = DELTA_LOG_FLOATS,
    LOG_KEYS = DELTA_LOG_ENTRIES * KEY, /* floats of a log: k, and the others */
    LOG = DELTA_LOG_ENTRIES * ENTRY,
};
static_assert(ENTRY == TILE + 4 && J * WARPS == TILE && CHANNELS <= THREADS - 32, "delta_log");

/* A segment of the block's, in shared memory, four times 16 bytes. Where its values begin is found
 * once, not by every thread: 32 bits are enough, as plan_log has seen. */
struct log_job {
    float decay, beta;
    uint32_t n_logged; /* entries of the log before this row */
    uint32_t kind;     /* enum log_kind */
    uint32_t state, in, log, keys;
    uint32_t window[CONV]; /* by how many positions before, 0: the row's own; or NO_ENTRY */
    struct io_segment segment;
};

enum log_kind {
    NO_JOB,    /* it is no decode segment, or after the last */
    IS_LOGGED, /* the log has one entry more after it */
    IS_STORED, /* the state is written, and its log is empty after it */
};
enum : uint32_t { NO_ENTRY = ~0u }; /* before position 0 */

struct log_shared {
    float states[2][TILE][KEY];
    float logs[3][LOG_KEYS + LOG]; /* k of all entries, then dk and decay */
    float y[3][CHANNELS];
    struct delta_norms norms[2];
    struct log_job jobs[DELTA_TILE_JOBS + 2]; /* the last two are empty */
};
static_assert(sizeof(struct log_shared) == DELTA_LOG_SHARED, "log_shared");
static_assert(DELTA_TILE_JOBS <= 32, "one warp prepares the jobs, a lane each");

/* ---- applying entries ------------------------------------------------------------------------ */

/* n entries, in shared or global memory. */
static __device__ __forceinline__ void apply_log(float (&s)[J][M], const float *keys,
                                                 const float *entries, uint32_t n) {
    const float *key = keys + threadIdx.x % 32 * 4, *columns = entries + threadIdx.x / 32 * J,
                *decay = entries + TILE;
#pragma unroll 2
    for (uint32_t i = 0; i < n; i++) {
        float k[M], dk[J], by = *decay;
        unpack4(*(const float4 *)key, k);
        unpack4(*(const float4 *)columns, dk);
        key += KEY, columns += ENTRY, decay += ENTRY;
#pragma unroll
        for (int j = 0; j < J; j++)
            update_column<M>(s[j], k, dk[j], by);
    }
}

/* The entry of a row: k by the first warp of the tile that owns it, dk by a lane of each. */
static __device__ __forceinline__ void write_entry(float *key, float *entry, const float (&k)[M],
                                                   const float (&dk)[J], float decay,
                                                   bool is_key_owner) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 0 && is_key_owner)
        *(float4 *)(key + 4 * lane) = make_float4(k[0], k[1], k[2], k[3]);
    if (lane == 0)
        *(float4 *)(entry + J * warp) = make_float4(dk[0], dk[1], dk[2], dk[3]);
    if (threadIdx.x == 0)
        entry[TILE] = decay;
}

/* ---- the convolution ------------------------------------------------------------------------- */

/* A channel of a thread. */
struct log_channel {
    uint32_t channel;
    bool writes_window;
    float weights[CONV];

    /* Channel i of the tile: q, k, then v. */
    __device__ __forceinline__ void load(const struct delta_params &p, const struct head_tile &tile,
                                         uint32_t i) {
        channel = (uint32_t)channel_of(p, tile, i);
        writes_window = i >= 2 * KEY || tile.is_key_owner;
        const float *from = p.conv_weights + (uint64_t)channel * CONV;
#pragma unroll
        for (int t = 0; t < CONV; t++)
            weights[t] = ld_no_allocate_f32(from + t);
    }
};

/* Where a row's input and its window's entries begin. */
struct log_source {
    uint32_t in, window[CONV];

    __device__ __forceinline__ log_source(const struct delta_params &p,
                                          const struct io_segment &g) {
        in = g.first_row * (uint32_t)p.in_stride;
#pragma unroll
        for (uint32_t back = 0; back < CONV; back++) {
            uint32_t entry = g.cell * CONV + (g.first_position - back) % CONV;
            window[back] = back <= g.first_position ? entry * p.channels : NO_ENTRY;
        }
    }

    __device__ __forceinline__ log_source(const struct log_job &job) {
        uint4 w = ld_shared_u32x4(job.window);
        in = job.in;
        window[0] = w.x, window[1] = w.y, window[2] = w.z, window[3] = w.w;
    }
};

/* Oldest first, zeros before position 0. */
static __device__ __forceinline__ void load_inputs(const struct delta_params &p,
                                                   const struct log_source &from,
                                                   const struct log_channel &c, float (&x)[CONV]) {
    x[CONV - 1] = ld_no_allocate_f32(p.in + (from.in + c.channel));
#pragma unroll
    for (uint32_t back = 1; back < CONV; back++) {
        x[CONV - 1 - back] = 0;
        if (from.window[back] != NO_ENTRY)
            x[CONV - 1 - back] = ld_no_allocate_f32(p.window + (from.window[back] + c.channel));
    }
}

/* silu of the convolution, and the row's window entry. */
static __device__ __forceinline__ float convolve(const struct delta_params &p, uint32_t entry,
                                                 const struct log_channel &c,
                                                 const float (&x)[CONV]) {
    float sum = 0;
#pragma unroll
    for (uint32_t t = 0; t < CONV; t++)
        sum = fmaf(c.weights[t], x[t], sum);
    if (c.writes_window)
        p.window[entry + c.channel] = x[CONV - 1];
    return silu_approx(sum);
}

/* ---- a block --------------------------------------------------------------------------------- */

struct log_block {
    struct log_shared *s;
    struct head_tile tile;
    uint32_t tile_number, tiles; /* of all value heads */
    uint32_t first, step;        /* of its segments */

    __device__ __forceinline__ log_block(const struct delta_params &p, struct log_shared *shared) {
        s = shared;
        tiles = p.value_heads * p.decode_tiling.tiles;
        first = blockIdx.x / tiles, step = p.blocks_per_tile;
        tile_number = blockIdx.x - first * tiles;
        tile = head_tile_of(p, p.decode_tiling, tile_number);
    }

    __device__ __forceinline__ bool has(uint32_t i, uint32_t n_segments) const {
        return first + i * step < n_segments;
    }

    __device__ __forceinline__ struct io_segment load_segment(const struct delta_params &p,
                                                              uint32_t i) const {
        uint4 g = ld_volatile_u32x4(p.io.segments + min(first + i * step, p.max_segments - 1));
        return {g.x, g.y, g.z, g.w};
    }

    /* Where the tile's state of a cell and its log begin; k of the log's entries, which the tiles
     * of a key head share: they have as many, always. */
    __device__ __forceinline__ uint32_t state_of(const struct delta_params &p,
                                                 uint32_t cell) const {
        return cell * (uint32_t)p.state_stride + tile_number * (TILE * KEY);
    }

    __device__ __forceinline__ uint32_t log_of(uint32_t cell) const {
        return (cell * tiles + tile_number) * LOG;
    }

    __device__ __forceinline__ uint32_t keys_of(const struct delta_params &p, uint32_t cell) const {
        return (cell * p.key_heads + tile.key_head) * LOG_KEYS;
    }

    __device__ __forceinline__ uint32_t *count_of(const struct delta_params &p,
                                                  uint32_t cell) const {
        return p.log_counts + tile_number * p.log_cells + cell;
    }

    /* A thread's 16 bytes of the first n entries of a log, and where in shared memory they go. */
    static __device__ __forceinline__ bool is_log_thread(uint32_t n) {
        return threadIdx.x < n * ((KEY + ENTRY) / 4);
    }

    static __device__ __forceinline__ const float *log_source_of(const struct delta_params &p,
                                                                 uint32_t keys, uint32_t log,
                                                                 uint32_t n, uint32_t &to) {
        uint32_t i = 4 * threadIdx.x;
        bool is_key = i < n * KEY;
        to = is_key ? i : LOG_KEYS + i - n * KEY;
        return is_key ? p.log_keys + (keys + i) : p.log + (log + i - n * KEY);
    }

    __device__ __forceinline__ uint32_t count_logged(const struct delta_params &p,
                                                     uint32_t cell) const {
        return cell < p.log_cells ? ld_no_allocate_u32(count_of(p, cell)) : 0;
    }

    /* The warp's columns of a state, to its buffer in shared memory. */
    __device__ __forceinline__ void copy_state(const struct delta_params &p, uint32_t i,
                                               uint32_t state) const {
        uint32_t at = threadIdx.x / 32 * (J * KEY) + threadIdx.x % 32 * 4;
        const float *from = p.state + (state + at);
        uint32_t to = smem_addr(&s->states[i % 2][0][0] + at);
#pragma unroll
        for (int j = 0; j < J; j++)
            cp_async_16(to + 4 * j * KEY, from + j * KEY);
    }

    /* What a job is made of; a lane has one. */
    struct lane_job {
        struct io_segment segment;
        float alpha, beta, a, dt;
        uint32_t n_logged;
    };

    __device__ __forceinline__ struct lane_job
    load_job(const struct delta_params &p, uint32_t n_segments, float a, float dt) const {
        uint32_t lane = threadIdx.x % 32;
        struct lane_job job = {.a = a, .dt = dt};
        if (has(lane, n_segments))
            job.segment = load_segment(p, lane);
        if (job.segment.n_rows == 1) {
            const float *in = p.in + (job.segment.first_row * (uint32_t)p.in_stride + tile.head);
            job.alpha = ld_no_allocate_f32(in + p.alpha_column);
            job.beta = ld_no_allocate_f32(in + p.beta_column);
            job.n_logged = count_logged(p, job.segment.cell);
        }
        return job;
    }

    /* A state is written when its log is full; otherwise states take turns, so that every block and
     * every step writes about as much, and neighbouring blocks at different times of a step
     * (qwen35-4b, 64 sequences: 1.4 %). */
    __device__ __forceinline__ void write_job(const struct delta_params &p,
                                              const struct lane_job &from) const {
        uint32_t lane = threadIdx.x % 32, cell = from.segment.cell;
        uint32_t turn = from.segment.first_position + lane + 2 * first + tile.key_head;
        struct log_job job = {.segment = from.segment};
        if (from.segment.n_rows == 1) {
            struct delta_gate gate = gate_of(from.alpha, from.beta, from.a, from.dt);
            const struct log_source source(p, from.segment);
            bool is_stored = cell >= p.log_cells || from.n_logged >= DELTA_LOG_ENTRIES ||
                             (turn & DELTA_LOG_ENTRIES) == 0;
            job.decay = gate.decay, job.beta = gate.beta;
            job.n_logged = from.n_logged, job.kind = is_stored ? IS_STORED : IS_LOGGED;
            job.state = state_of(p, cell), job.in = source.in;
            job.log = log_of(cell), job.keys = keys_of(p, cell);
#pragma unroll
            for (int i = 0; i < CONV; i++)
                job.window[i] = source.window[i];
        }
        s->jobs[lane] = job;
        if (lane < 2)
            s->jobs[DELTA_TILE_JOBS + lane] = {};
    }

    __device__ __forceinline__ void write_norms(const struct delta_params &p, const float *y,
                                                uint32_t i) const {
        float q[M], k[M];
        load_shared_values<M, true>(q, y, KEY);
        load_shared_values<M, true>(k, y + KEY, KEY);
        struct delta_norms norms = norms_of<M>(p, q, k);
        if (threadIdx.x % 32 == 0)
            s->norms[i % 2] = norms;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    delta_log(const __grid_constant__ struct delta_params p) {
    extern __shared__ float4 dynamic[];
    struct log_shared *s = (struct log_shared *)dynamic;
    pdl_launch_dependents();
    const struct log_block b(p, s);
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool has_channel = threadIdx.x < CHANNELS, is_last_warp = warp == WARPS - 1;
    struct log_channel channel = {};
    float a = 0, dt = 0;
    if (has_channel)
        channel.load(p, b.tile, threadIdx.x);
    if (is_last_warp) {
        a = ld_no_allocate_f32(p.a + b.tile.head);
        dt = ld_no_allocate_f32(p.dt + b.tile.head);
    }
    pdl_wait(p.io);

    /* The first two jobs: all loads before the first use. The second state comes last, since what
     * is loaded after a state arrives after it. */
    struct io_segment g[2] = {b.load_segment(p, 0), b.load_segment(p, 1)};
    uint32_t n_segments = ld_no_allocate_u32(&p.io.header->n_segments), n_logged[2] = {0, 0};
    struct log_block::lane_job own = {};
    float x[2][CONV];
    float4 entries[2];
    bool is_decode[2];
    if (is_last_warp)
        own = b.load_job(p, n_segments, a, dt);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        is_decode[i] = b.has(i, n_segments) && g[i].n_rows == 1;
        if (is_decode[i])
            n_logged[i] = b.count_logged(p, g[i].cell);
        if (is_decode[i] && has_channel)
            load_inputs(p, log_source(p, g[i]), channel, x[i]);
    }
    cp_async_commit(); /* where the loop has a log's */
    if (is_decode[0])
        b.copy_state(p, 0, b.state_of(p, g[0].cell));
    cp_async_commit();
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        if (b.is_log_thread(n_logged[i])) {
            uint32_t to, keys = b.keys_of(p, g[i].cell), log = b.log_of(g[i].cell);
            entries[i] = ld_cg_f32x4(b.log_source_of(p, keys, log, n_logged[i], to));
        }
    cp_async_commit();
    if (is_decode[1])
        b.copy_state(p, 1, b.state_of(p, g[1].cell));
    cp_async_commit();
    if (is_last_warp)
        b.write_job(p, own);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        if (is_decode[i] && has_channel)
            s->y[i][threadIdx.x] = convolve(p, log_source(p, g[i]).window[0], channel, x[i]);
        if (b.is_log_thread(n_logged[i])) {
            uint32_t to;
            b.log_source_of(p, 0, 0, n_logged[i], to);
            *(float4 *)(s->logs[i] + to) = entries[i];
        }
    }
    __syncthreads();
    if (is_last_warp)
        b.write_norms(p, s->y[0], 0);
    __syncthreads();

    uint32_t at = 0, at_next = 2; /* buffers of jobs i and i + 2, of three */
    const struct log_job *job = s->jobs;
    const uint32_t state_at = J * warp * KEY + 4 * lane;
#pragma unroll 1
    for (uint32_t i = 0; b.has(i, n_segments); i++, job++) {
        const struct log_job *next = job + 2;
        uint2 next_log = ld_shared_u32x2(&next->n_logged); /* and the kind */
        bool is_next = next_log.y != NO_JOB;
        uint4 next_at = ld_shared_u32x4(&next->state); /* state, in, log, keys */
        float inputs[CONV];
        if (is_next && has_channel)
            load_inputs(p, log_source(*next), channel, inputs);
        if (b.is_log_thread(next_log.x)) { /* of no job there are none */
            uint32_t to;
            const float *from = b.log_source_of(p, next_at.w, next_at.z, next_log.x, to);
            cp_async_16(smem_addr(s->logs[at_next] + to), from);
        }
        cp_async_commit();
        if (is_last_warp && job[1].kind != NO_JOB)
            b.write_norms(p, s->y[at == 2 ? 0 : at + 1], i + 1);

        const float *y = s->y[at], *state = &s->states[i % 2][0][0] + state_at;
        uint4 info = ld_shared_u32x4(&job->decay); /* decay, beta, n_logged, kind */
        float q[M], k[M], v[J], dk[J], column[J][M];
        cp_async_wait<3>();
        __syncwarp();
#pragma unroll
        for (int j = 0; j < J; j++)
            unpack4(*(const float4 *)(state + j * KEY), column[j]);
        __syncwarp();
        if (is_next)
            b.copy_state(p, i, next_at.x);
        cp_async_commit();
        if (info.w != NO_JOB) {
            struct delta_gate gate = {__uint_as_float(info.x), __uint_as_float(info.y), {0, 0}};
            apply_log(column, s->logs[at], s->logs[at] + LOG_KEYS, info.z);
            load_qkv<J, M, true>(y, KEY, q, k, v);
            uint32_t out = job->segment.first_row * (uint32_t)p.out_stride;
            delta_row<J, M, false>(column, q, k, v, s->norms[i % 2], gate,
                                   p.out + (out + b.tile_number * TILE + J * warp), J, dk);
            if (info.w == IS_STORED) {
                float *to = p.state + (job->state + J * warp * KEY);
#pragma unroll
                for (int j = 0; j < J; j++)
                    update_column<M>(column[j], k, dk[j], gate.decay);
                store_state<J, M>(column, to, KEY, J, true);
            } else {
                write_entry(p.log_keys + (job->keys + info.z * KEY),
                            p.log + (job->log + info.z * ENTRY), k, dk, gate.decay,
                            b.tile.is_key_owner);
            }
            if (threadIdx.x == THREADS - 1 && job->segment.cell < p.log_cells)
                *b.count_of(p, job->segment.cell) = info.w == IS_STORED ? 0 : info.z + 1;
        }
        if (is_next && has_channel)
            s->y[at_next][threadIdx.x] = convolve(p, next->window[0], channel, inputs);
        cp_async_wait<3>(); /* the next job's log */
        if (b.has(i + 1, n_segments))
            __syncthreads();
        at = at == 2 ? 0 : at + 1, at_next = at_next == 2 ? 0 : at_next + 1;
    }
}

/* ---- settling -------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS)
    delta_settle(const __grid_constant__ struct settle_params p) {
    const struct settle_layer &l = p.layers[blockIdx.y];
    uint32_t cell = p.cells[blockIdx.z], tile = blockIdx.x;
    if (tile >= l.tiles || cell >= l.cells)
        return;
    uint32_t *count = l.counts + tile * l.cells + cell, n = *(volatile uint32_t *)count;
    if (n == 0)
        return;
    float *state =
        l.state + cell * l.state_stride + ((uint64_t)tile * WARPS + threadIdx.x / 32) * (J * KEY);
    uint32_t head = tile / l.heads.head_tiles, key_heads = l.heads.key_heads;
    uint32_t key_head = l.heads.is_modulo_map ? head % key_heads : head / l.heads.heads_per_key;
    const float *log = l.log + ((uint64_t)cell * l.tiles + tile) * LOG;
    const float *keys = l.log_keys + ((uint64_t)cell * key_heads + key_head) * LOG_KEYS;
    float s[J][M];
    load_state<J, M>(s, state, KEY, J, true);
    apply_log(s, keys, log, n);
    store_state<J, M>(s, state, KEY, J, true);
    __syncthreads(); /* all have read the count */
    if (threadIdx.x == 0)
        *count = 0;
}
