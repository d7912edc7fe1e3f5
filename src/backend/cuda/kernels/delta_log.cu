/* delta_log.cu - DELTA of decode segments where many sequences share a step, and what settles their
 * states. The formula is in delta.cuh, the log in delta.h.
 *
 * delta_log
 *   grid    blocks_per_tile blocks a head tile of 64 columns, two an SM; a block has every
 *           blocks_per_tile-th segment of its tile
 *   block   8 warps that compute, and one that copies: a state of 32 KB and its log are one bulk
 *           copy each, two jobs ahead of the one that is computed
 *   warp    8 columns, S in registers; half of the channels of the convolution. The ninth: a job's
 *           place, gate and norms
 *
 * Before griddepcontrol.wait: conv weights and gate constants. A job's q, k and v are convolved two
 * jobs ahead, in one of three places; its norms one job ahead. One barrier a job.
 *
 * delta_settle: grid (head tiles, layers, cells), 8 warps; applies the entries of a log. */
#include "backend/cuda/kernels/delta.cuh"

enum {
    J = 8, /* columns of a warp */
    M = 4,
    KEY = DELTA_LOG_KEY,
    TILE = DELTA_LOG_TILE,
    WARPS = DELTA_LOG_WARPS,
    COMPUTING = 32 * WARPS,
    CHANNELS = 2 * KEY + TILE,
    CONV = 4,
    FIRST_V = COMPUTING - TILE, /* threads from here on have a channel of v beside one of q or k */
    STATE_BYTES = TILE * KEY * 4,
    ENTRY_BYTES = DELTA_LOG_FLOATS * 4
};
static_assert(J * WARPS == TILE && 2 * KEY == COMPUTING, "delta_log");

/* A segment of the block's, in shared memory: 16 and 16 bytes. */
struct log_job {
    struct io_segment segment;
    float decay, beta;
    uint32_t n_logged;  /* entries of the log before this row */
    uint32_t is_stored; /* the state is written, and its log is empty after it; else one more */
};

struct log_stage {
    float state[TILE][KEY];
    float log[DELTA_LOG_ENTRIES][DELTA_LOG_FLOATS];
};

struct log_shared {
    struct log_stage stages[2];
    float y[3][CHANNELS];
    struct delta_norms norms[2];
    struct log_job jobs[DELTA_TILE_JOBS];
    uint64_t full[2], empty[2]; /* mbarriers of the stages */
};
static_assert(sizeof(struct log_shared) == DELTA_LOG_SHARED, "log_shared");
static_assert(DELTA_TILE_JOBS <= 32, "one warp prepares the jobs, a lane each");

/* ---- applying entries ------------------------------------------------------------------------ */

struct log_entry {
    float k[M], dk[J], decay;

    __device__ __forceinline__ void load(const float *entry) {
        const float *columns = entry + KEY + threadIdx.x / 32 * J;
        unpack4(*(const float4 *)(entry + threadIdx.x % 32 * 4), k);
        unpack4(*(const float4 *)columns, dk);
        unpack4(*(const float4 *)(columns + 4), dk + 4);
        decay = entry[KEY + TILE];
    }
};

static __device__ __forceinline__ void update(float (&s)[J][M], const float (&k)[M],
                                              const float (&dk)[J], float decay) {
#pragma unroll
    for (int j = 0; j < J; j++)
        update_column<M>(s[j], k, dk[j], decay);
}

/* n entries, in shared or global memory; the next one is loaded ahead. */
static __device__ __forceinline__ void apply_log(float (&s)[J][M], const float *entries,
                                                 uint32_t n) {
    struct log_entry even, odd;
    if (n)
        even.load(entries);
#pragma unroll 1
    for (uint32_t i = 0; i < n; i += 2, entries += 2 * DELTA_LOG_FLOATS) {
        if (i + 1 < n)
            odd.load(entries + DELTA_LOG_FLOATS);
        update(s, even.k, even.dk, even.decay);
        if (i + 1 == n)
            break;
        if (i + 2 < n)
            even.load(entries + 2 * DELTA_LOG_FLOATS);
        update(s, odd.k, odd.dk, odd.decay);
    }
}

/* The entry of a row: k by the first warp, dk by a lane of each. */
static __device__ __forceinline__ void write_entry(float *entry, const float (&k)[M],
                                                   const float (&dk)[J], float decay) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *columns = entry + KEY + J * warp;
    if (warp == 0)
        *(float4 *)(entry + 4 * lane) = make_float4(k[0], k[1], k[2], k[3]);
    if (lane == 0) {
        *(float4 *)columns = make_float4(dk[0], dk[1], dk[2], dk[3]);
        *(float4 *)(columns + 4) = make_float4(dk[4], dk[5], dk[6], dk[7]);
    }
    if (warp == WARPS - 1 && lane == 0)
        entry[KEY + TILE] = decay;
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

/* Where a row and its predecessors are: values from the beginning of `in` and of the window, which
 * plan_log has seen to be few enough. */
struct log_source {
    uint32_t in, window[CONV]; /* window: by how many positions before, 0: the row's own */
    uint32_t n_before;         /* predecessors that the convolution reaches */

    __device__ __forceinline__ log_source(const struct delta_params &p,
                                          const struct io_segment &g) {
        in = g.first_row * (uint32_t)p.in_stride;
        n_before = g.first_position;
#pragma unroll
        for (uint32_t back = 0; back < CONV; back++)
            window[back] = (g.cell * CONV + (g.first_position - back) % CONV) * p.channels;
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
        if (back <= from.n_before)
            x[CONV - 1 - back] = ld_no_allocate_f32(p.window + (from.window[back] + c.channel));
    }
}

/* silu of the convolution, and the row's window entry. */
static __device__ __forceinline__ float convolve(const struct delta_params &p,
                                                 const struct log_source &from,
                                                 const struct log_channel &c,
                                                 const float (&x)[CONV]) {
    float sum = 0;
#pragma unroll
    for (uint32_t t = 0; t < CONV; t++)
        sum = fmaf(c.weights[t], x[t], sum);
    if (c.writes_window)
        p.window[from.window[0] + c.channel] = x[CONV - 1];
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

    __device__ __forceinline__ struct io_segment job_segment(uint32_t i) const {
        uint4 g = ld_shared_u32x4(&s->jobs[i].segment);
        return {g.x, g.y, g.z, g.w};
    }

    /* The tile's state of a cell. */
    __device__ __forceinline__ float *state_of(const struct delta_params &p, uint32_t cell) const {
        return p.state + cell * p.state_stride + (uint64_t)tile_number * (TILE * KEY);
    }

    __device__ __forceinline__ float *log_of(const struct delta_params &p, uint32_t cell) const {
        uint64_t at = (uint64_t)cell * tiles + tile_number;
        return p.log + at * (DELTA_LOG_ENTRIES * DELTA_LOG_FLOATS);
    }

    __device__ __forceinline__ uint32_t *count_of(const struct delta_params &p,
                                                  uint32_t cell) const {
        return p.log_counts + tile_number * p.log_cells + cell;
    }

    /* ---- by the ninth warp: copies, gates, norms */

    /* One lane. A stage's mbarrier expects two arrivals: its state's and its log's. */
    __device__ __forceinline__ void copy_state(const struct delta_params &p, uint32_t i,
                                               const struct io_segment &g) const {
        uint32_t barrier = smem_addr(&s->full[i % 2]), bytes = g.n_rows == 1 ? STATE_BYTES : 0;
        mbarrier_expect_tx(barrier, bytes);
        if (bytes)
            cp_async_bulk(smem_addr(s->stages[i % 2].state), (const uint8_t *)state_of(p, g.cell),
                          bytes, barrier);
    }

    __device__ __forceinline__ void copy_log(const struct delta_params &p, uint32_t i,
                                             uint32_t cell, uint32_t n) const {
        uint32_t barrier = smem_addr(&s->full[i % 2]);
        mbarrier_expect_tx(barrier, n * ENTRY_BYTES);
        if (n)
            cp_async_bulk(smem_addr(s->stages[i % 2].log), (const uint8_t *)log_of(p, cell),
                          n * ENTRY_BYTES, barrier);
    }

    /* A lane a job. A state is written when its log is full, and else in turn, so that every block
     * and every step writes about as much. */
    __device__ __forceinline__ void prepare(const struct delta_params &p, float a, float dt) const {
        uint32_t lane = threadIdx.x % 32;
        struct log_job job = {};
        job.segment = load_segment(p, lane);
        uint32_t n_segments = p.io.header->n_segments, cell = job.segment.cell;
        bool is_there = has(lane, n_segments), is_decode = is_there && job.segment.n_rows == 1;
        bool has_log = is_decode && cell < p.log_cells;
        float alpha = 0, beta = 0;
        if (lane < 2 && is_there)
            copy_state(p, lane, job.segment);
        if (has_log)
            job.n_logged = ld_no_allocate_u32(count_of(p, cell));
        if (is_decode) {
            const float *in = p.in + job.segment.first_row * p.in_stride + tile.head;
            alpha = ld_no_allocate_f32(in + p.alpha_column);
            beta = ld_no_allocate_f32(in + p.beta_column);
        }
        if (lane < 2 && is_there)
            copy_log(p, lane, cell, job.n_logged);
        struct delta_gate gate = gate_of(alpha, beta, a, dt);
        job.decay = gate.decay, job.beta = gate.beta;
        job.is_stored = !has_log || job.n_logged >= DELTA_LOG_ENTRIES ||
                        ((job.segment.first_position + lane) & DELTA_LOG_ENTRIES) == 0;
        if (is_there)
            s->jobs[lane] = job;
    }

    __device__ __forceinline__ void write_norms(const struct delta_params &p, uint32_t i) const {
        float q[M], k[M];
        load_shared_values<M, true>(q, s->y[i % 3], KEY);
        load_shared_values<M, true>(k, s->y[i % 3] + KEY, KEY);
        struct delta_norms norms = norms_of<M>(p, q, k);
        if (threadIdx.x % 32 == 0)
            s->norms[i % 2] = norms;
    }

    /* Job i + 2 into the place of job i. */
    __device__ __forceinline__ void copy_next(const struct delta_params &p, uint32_t i) const {
        const struct log_job *next = &s->jobs[i + 2];
        if (threadIdx.x % 32 == 0) {
            struct io_segment g = job_segment(i + 2);
            mbarrier_wait(smem_addr(&s->empty[i % 2]), i / 2 % 2);
            copy_state(p, i, g);
            copy_log(p, i, g.cell, next->n_logged);
        }
        __syncwarp();
    }

    /* ---- by the others */

    __device__ __forceinline__ void compute(const struct delta_params &p, uint32_t i) const {
        uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const struct log_stage *stage = &s->stages[i % 2];
        struct io_segment g = job_segment(i);
        uint4 info = ld_shared_u32x4(&s->jobs[i].decay); /* decay, beta, n_logged, is_stored */
        struct delta_gate gate = {__uint_as_float(info.x), __uint_as_float(info.y), {0, 0}};
        struct delta_norms norms = s->norms[i % 2];
        const float *y = s->y[i % 3];
        float q[M], k[M], v[J], dk[J], x[J][M];
        load_shared_values<M, true>(q, y, KEY);
        load_shared_values<M, true>(k, y + KEY, KEY);
        unpack4(*(const float4 *)(y + 2 * KEY + J * warp), v);
        unpack4(*(const float4 *)(y + 2 * KEY + J * warp + 4), v + 4);
        mbarrier_wait(smem_addr(&s->full[i % 2]), i / 2 % 2);
        bool is_decode = g.n_rows == 1;
        if (is_decode) {
#pragma unroll
            for (int j = 0; j < J; j++)
                unpack4(*(const float4 *)&stage->state[J * warp + j][4 * lane], x[j]);
            apply_log(x, stage->log[0], info.z);
        }
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(smem_addr(&s->empty[i % 2]));
        if (!is_decode)
            return;
        float *out = p.out + g.first_row * p.out_stride + tile_number * TILE + J * warp;
        delta_row<J, M, false>(x, q, k, v, norms, gate, out, J, dk);
        if (info.w) {
            update(x, k, dk, gate.decay);
            store_state<J, M>(x, state_of(p, g.cell) + J * warp * KEY, KEY, J, true);
        } else {
            write_entry(log_of(p, g.cell) + info.z * DELTA_LOG_FLOATS, k, dk, gate.decay);
        }
        if (warp == WARPS - 1 && lane == 0 && g.cell < p.log_cells)
            *count_of(p, g.cell) = info.w ? 0 : info.z + 1;
    }
};

/* Its channels of a thread that computes: one of q or k, and perhaps one of v. */
struct thread_conv {
    struct log_channel qk, v;
    float qk_inputs[CONV], v_inputs[CONV];

    static __device__ __forceinline__ bool has_v(void) {
        return threadIdx.x >= FIRST_V;
    }

    __device__ __forceinline__ void begin(const struct delta_params &p,
                                          const struct head_tile &tile) {
        qk.load(p, tile, threadIdx.x);
        if (has_v())
            v.load(p, tile, 2 * KEY + threadIdx.x - FIRST_V);
    }

    __device__ __forceinline__ void load(const struct delta_params &p,
                                         const struct log_source &from) {
        load_inputs(p, from, qk, qk_inputs);
        if (has_v())
            load_inputs(p, from, v, v_inputs);
    }

    __device__ __forceinline__ void run(const struct delta_params &p, const struct log_source &from,
                                        float *y) const {
        y[threadIdx.x] = convolve(p, from, qk, qk_inputs);
        if (has_v())
            y[2 * KEY + threadIdx.x - FIRST_V] = convolve(p, from, v, v_inputs);
    }
};

static __device__ __forceinline__ void run_computing(const struct delta_params &p,
                                                     const struct log_block &b) {
    struct log_shared *s = b.s;
    struct thread_conv conv;
    conv.begin(p, b.tile);
    pdl_wait(p.io);
    struct io_segment g[2] = {b.load_segment(p, 0), b.load_segment(p, 1)};
    uint32_t n_segments = p.io.header->n_segments;
    struct thread_conv other = conv;
    bool is_decode[2] = {b.has(0, n_segments) && g[0].n_rows == 1,
                         b.has(1, n_segments) && g[1].n_rows == 1};
    if (is_decode[0])
        conv.load(p, log_source(p, g[0]));
    if (is_decode[1])
        other.load(p, log_source(p, g[1]));
    if (is_decode[0])
        conv.run(p, log_source(p, g[0]), s->y[0]);
    if (is_decode[1])
        other.run(p, log_source(p, g[1]), s->y[1]);
    __syncthreads(); /* y of two jobs, and all jobs */
    __syncthreads(); /* the first job's norms */
#pragma unroll 1
    for (uint32_t i = 0; b.has(i, n_segments); i++) {
        bool is_next = b.has(i + 2, n_segments);
        struct io_segment next = {};
        if (is_next)
            next = b.job_segment(i + 2);
        is_next = next.n_rows == 1;
        if (is_next)
            conv.load(p, log_source(p, next));
        b.compute(p, i);
        if (is_next)
            conv.run(p, log_source(p, next), s->y[(i + 2) % 3]);
        if (b.has(i + 1, n_segments))
            __syncthreads();
    }
}

static __device__ __forceinline__ void run_copying(const struct delta_params &p,
                                                   const struct log_block &b) {
    float a = ld_no_allocate_f32(p.a + b.tile.head), dt = ld_no_allocate_f32(p.dt + b.tile.head);
    pdl_wait(p.io);
    b.prepare(p, a, dt);
    uint32_t n_segments = p.io.header->n_segments;
    __syncthreads();
    if (b.has(0, n_segments))
        b.write_norms(p, 0);
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = 0; b.has(i, n_segments); i++) {
        if (b.has(i + 2, n_segments))
            b.copy_next(p, i);
        if (b.has(i + 1, n_segments)) {
            b.write_norms(p, i + 1);
            __syncthreads();
        }
    }
}

extern "C" __global__ void __launch_bounds__(COMPUTING + 32, 2)
    delta_log(const __grid_constant__ struct delta_params p) {
    extern __shared__ float4 dynamic[];
    struct log_shared *s = (struct log_shared *)dynamic;
    pdl_launch_dependents();
    const struct log_block b(p, s);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            mbarrier_init(smem_addr(&s->full[i]), 2);
            mbarrier_init(smem_addr(&s->empty[i]), WARPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < COMPUTING)
        run_computing(p, b);
    else
        run_copying(p, b);
}

/* ---- settling -------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(COMPUTING)
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
    const float *log =
        l.log + ((uint64_t)cell * l.tiles + tile) * (DELTA_LOG_ENTRIES * DELTA_LOG_FLOATS);
    float s[J][M];
    load_state<J, M>(s, state, KEY, J, true);
    apply_log(s, log, n);
    store_state<J, M>(s, state, KEY, J, true);
    __syncthreads(); /* all have read the count */
    if (threadIdx.x == 0)
        *count = 0;
}
