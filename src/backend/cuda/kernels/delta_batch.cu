/* delta_batch.cu - DELTA of several rows: decode segments (one row of a sequence) and prefill
 * segments (several), in one kernel a layer. The formula is in delta.cuh.
 *
 * Blocks are persistent: one or two an SM. Where there are prefill segments, their phase 1 comes
 * before the decode segments and phase 2 after them (delta_batch_tile: both after).
 *
 * delta_batch_J_KEY (J columns a warp in decode segments, keys of up to KEY values)
 *   decode    Jobs (head tile, segment), tile-major, divided evenly: a block has consecutive ones,
 *             so mostly one tile. Like delta_decode a block convolves its tile's channels, a thread
 *             a channel (two where keys are 256 wide). Pipeline: while a job is computed, the
 *             states of the next two are copied to shared memory by cp.async (32 KB for 64 columns
 *             of 128 values) and the next one's conv inputs loaded to registers.
 *   prefill   Phase 1: all rows are convolved into workspace, a warp a key head or value head of a
 *             row, tasks of 16 taken from an atomic counter. Phase 2: a block computes a tile's
 *             rows one after the other, 8 at a time through two stages in shared memory. A row
 *             that has a cell to store to stores state and window there; the last row's is
 *             often the segment's own cell, whose window nobody reads after phase 1. A block
 *             waits between the phases for tasks that running blocks have taken: the grid need
 *             not be resident at once.
 *
 * delta_batch_tile_J_KEY, up to 32 segments a block: a block's tile is given by its number, and it
 * has every blocks_per_tile-th segment. Conv weights and gate constants are loaded before
 * griddepcontrol.wait, and after it the inputs of two segments at once. us a layer of qwen35-4b on
 * an H200 at 4, 16, 32, 64 and 128 rows: 6.7, 19.5, 38.7, 75, 151; with delta_batch 11.3, 24.0,
 * 42.8, 84, 165.
 *
 * Two kernels, convolution and rule, without prefetch of states took 21.0, 45.9 and 79.8; a plain
 * in-place update of 32 rows' states (64 MB) takes 35.0. The path for full tiles (IS_FULL)
 * and a conv width of 4 (W == 4): 5 % of a step of 32 rows of qwen35-0.8b. */
#include "backend/cuda/kernels/delta.cuh"

/* W, the conv weights a thread has room for: 4 is also the width itself, 8 the largest width. */
template <int W>
static __device__ __forceinline__ uint32_t conv_width_of(const struct delta_params &p) {
    return W == 4 ? 4 : p.conv_width;
}

/* How many positions before the row weight t applies to; where t is beyond the width this wraps
 * around to more than any position. */
template <int W>
static __device__ __forceinline__ uint32_t back_of(const struct delta_params &p, int t) {
    return conv_width_of<W>(p) - 1 - t;
}

/* ---- prefill, phase 1: the convolution ------------------------------------------------------- */

/* A row and its predecessors, oldest first: rows of `in`, window entries, NULL before position 0.
 */
template <int W> struct conv_rows {
    uint32_t row;
    const float *x[W];
};

template <int W>
static __device__ __forceinline__ struct conv_rows<W> conv_rows_of(const struct delta_params &p,
                                                                   uint32_t row) {
    struct io_row io = p.io.rows[row];
    struct io_segment g = p.io.segments[io.segment];
    uint32_t n_in_segment = io.position - g.first_position;
    struct conv_rows<W> r;
    r.row = row;
#pragma unroll
    for (int t = 0; t < W; t++) {
        uint32_t back = back_of<W>(p, t);
        r.x[t] = back > io.position     ? NULL
                 : back <= n_in_segment ? p.in + (uint64_t)(row - back) * p.in_stride
                                        : window_at(p, g.cell, io.position - back);
    }
    return r;
}

/* N channels from c on, STEP apart; zeros from `end` on. All loads come before the first sum. */
template <int W, int N, int STEP>
static __device__ __forceinline__ void convolve_channels(const struct delta_params &p,
                                                         const struct conv_rows<W> &r, uint32_t c,
                                                         uint32_t end, float (&y)[N]) {
    float x[W][N] = {}, weights[N][W] = {};
    if constexpr (W == 4 && N == 4 && STEP == 1) {
        if (c < end)
#pragma unroll
            for (int t = 0; t < 4; t++) {
                if (r.x[t])
                    unpack4(*(const float4 *)(r.x[t] + c), x[t]);
                unpack4(*(const float4 *)(p.conv_weights + (uint64_t)(c + t) * 4), weights[t]);
            }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int t = 0; t < W; t++)
                if (r.x[t] && c + STEP * i < end) {
                    x[t][i] = r.x[t][c + STEP * i];
                    weights[i][t] =
                        p.conv_weights[(uint64_t)(c + STEP * i) * conv_width_of<W>(p) + t];
                }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        float sum = 0;
#pragma unroll
        for (int t = 0; t < W; t++)
            sum = r.x[t] ? fmaf(weights[i][t], x[t][i], sum) : sum;
        y[i] = c + STEP * i < end ? silu_approx(sum) : 0;
    }
}

/* q and k of a key head, and their norms. N channels of a lane at a time, for registers' sake. */
template <int W, int N, int M>
static __device__ __forceinline__ void convolve_qk(const struct delta_params &p,
                                                   const struct conv_rows<W> &r, uint32_t head) {
    uint32_t dk = p.key_width;
    uint64_t item = (uint64_t)r.row * p.key_heads + head;
    float *to = p.conv_qk + item * 2 * 32 * M, q[M], k[M];
#pragma unroll
    for (int m = 0; m < M; m += N) {
        uint32_t first_q = head * dk, first_k = (p.key_heads + head) * dk, i = value_index(m);
        float y[N];
        convolve_channels<W, N, 1>(p, r, first_q + i, first_q + dk, y);
#pragma unroll
        for (int n = 0; n < N; n++)
            q[m + n] = y[n];
        convolve_channels<W, N, 1>(p, r, first_k + i, first_k + dk, y);
#pragma unroll
        for (int n = 0; n < N; n++) {
            k[m + n] = y[n];
            to[i + n] = q[m + n], to[32 * M + i + n] = k[m + n];
        }
    }
    struct delta_norms norms = norms_of<M>(p, q, k);
    if (threadIdx.x % 32 == 0)
        p.norms[item] = norms;
}

/* v of a value head, and its gates. */
template <int W, int N>
static __device__ __forceinline__ void convolve_v(const struct delta_params &p,
                                                  const struct conv_rows<W> &r, uint32_t head) {
    uint32_t lane = threadIdx.x % 32, dv = p.value_width;
    uint64_t item = (uint64_t)r.row * p.value_heads + head;
    uint32_t first = 2 * p.key_heads * p.key_width + head * dv;
    const float *in = p.in + r.row * p.in_stride;
    for (uint32_t i = lane; i < p.padded_value; i += 32 * N) {
        float y[N];
        convolve_channels<W, N, 32>(p, r, first + i, first + dv, y);
#pragma unroll
        for (int n = 0; n < N; n++)
            if (i + 32 * n < p.padded_value)
                p.conv_v[item * p.padded_value + i + 32 * n] = y[n];
    }
    if (lane == 0)
        p.gates[item] =
            gate_of(in[p.alpha_column + head], in[p.beta_column + head], p.a[head], p.dt[head]);
}

/* A warp's (row, head): key heads, then value heads. */
template <int W, int N, int M>
static __device__ __forceinline__ void convolve_head(const struct delta_params &p, uint32_t row,
                                                     uint32_t head) {
    struct conv_rows<W> r = conv_rows_of<W>(p, row);
    if (head < p.key_heads)
        convolve_qk<W, N, M>(p, r, head);
    else
        convolve_v<W, N>(p, r, head - p.key_heads);
}

/* IS_TILE: in delta_batch_tile, which has 4 conv weights, and registers for fewer channels. */
template <int M, bool IS_TILE>
static __device__ __forceinline__ void convolve_item(const struct delta_params &p, uint32_t i) {
    uint32_t heads = p.key_heads + p.value_heads, row = i / heads, head = i % heads;
    if (row >= p.io.header->n_rows || p.io.segments[p.io.rows[row].segment].n_rows == 1)
        return;
    if (IS_TILE)
        convolve_head<4, 2, M>(p, row, head);
    else if (p.conv_width == 4 && p.is_conv_vec4)
        convolve_head<4, 4, M>(p, row, head);
    else
        convolve_head<8, 1, M>(p, row, head);
}

static __device__ __forceinline__ uint32_t count_conv_tasks(const struct delta_params &p) {
    uint32_t items = p.io.header->n_rows * (p.key_heads + p.value_heads);
    return (items + DELTA_WARPS - 1) / DELTA_WARPS;
}

/* Thread 0 takes the next task before the block computes this one. */
template <int M, bool IS_TILE>
static __device__ __forceinline__ void convolve_prefill(const struct delta_params &p) {
    __shared__ uint32_t shared_task;
    uint32_t n_tasks = count_conv_tasks(p), next = 0, n_done = 0;
    if (threadIdx.x == 0)
        next = atomicAdd(&p.counters->tasks_taken, 1);
    for (;; n_done++) {
        if (threadIdx.x == 0)
            shared_task = next;
        __syncthreads();
        uint32_t task = shared_task;
        if (task >= n_tasks)
            break;
        if (threadIdx.x == 0)
            next = atomicAdd(&p.counters->tasks_taken, 1);
        convolve_item<M, IS_TILE>(p, task * DELTA_WARPS + threadIdx.x / 32);
        __syncthreads(); /* all have read shared_task, and stored their results */
    }
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&p.counters->tasks_done, n_done);
    }
}

/* Until all tasks are done and their results visible. */
static __device__ __forceinline__ void wait_for_convolution(const struct delta_params &p) {
    if (threadIdx.x == 0) {
        uint32_t n_tasks = count_conv_tasks(p);
        while (*(volatile uint32_t *)&p.counters->tasks_done < n_tasks)
            ;
        __threadfence();
    }
    __syncthreads();
}

/* The last block leaves the counters zero. */
static __device__ __forceinline__ void reset_counters(const struct delta_params &p) {
    if (threadIdx.x == 0 && atomicAdd(&p.counters->blocks_done, 1) == gridDim.x - 1)
        *p.counters = (struct delta_counters){0, 0, 0};
}

/* ---- prefill, phase 2: the rule -------------------------------------------------------------- */

/* A row in shared memory: q, k, the tile's v, norms, gate. */
template <int J, int M> struct prefill_row {
    static constexpr int KEY = 32 * M, TILE = DELTA_WARPS * J;
    static constexpr int NORMS = 2 * KEY + TILE, GATE = NORMS + 4, FLOATS = GATE + 4;
};

/* Starts the copies of n rows from `row` on, 16 bytes a thread. */
template <int J, int M>
static __device__ __forceinline__ void copy_rows(const struct delta_params &p,
                                                 const struct head_tile &tile, float *to,
                                                 uint32_t row, uint32_t n) {
    using L = prefill_row<J, M>;
    constexpr uint32_t QK = 2 * L::KEY / 4, V = L::TILE / 4, ALL = QK + V + 2; /* vectors */
    for (uint32_t i = threadIdx.x; i < n * ALL; i += THREADS) {
        uint64_t r = row + i / ALL, vec = i % ALL;
        uint64_t key = r * p.key_heads + tile.key_head, value = r * p.value_heads + tile.head;
        const void *from;
        if (vec < QK)
            from = p.conv_qk + key * 2 * L::KEY + vec * 4;
        else if (vec < QK + V)
            from = p.conv_v + value * p.padded_value + tile.first_column + (vec - QK) * 4;
        else
            from = vec == QK + V ? (const void *)(p.norms + key) : (const void *)(p.gates + value);
        cp_async_16(smem_addr(to + i / ALL * L::FLOATS + vec * 4), from);
    }
    cp_async_commit();
}

template <int J, int M>
static __device__ __forceinline__ void prefill_rule(float (&s)[J][M], const float *row, float *out,
                                                    int n_columns) {
    using L = prefill_row<J, M>;
    float q[M], k[M], v[J];
    load_qkv<J, M, true>(row, L::KEY, q, k, v);
    struct delta_norms norms = *(const struct delta_norms *)(row + L::NORMS);
    struct delta_gate gate = *(const struct delta_gate *)(row + L::GATE);
    delta_rule<J, M>(s, q, k, v, norms, gate, out, n_columns);
}

/* is_convolved: this block has waited for phase 1 already. The state is loaded before that. */
template <int J, int M>
static __device__ __forceinline__ void
prefill_segment(const struct delta_params &p, const struct head_tile &tile,
                const struct io_segment &g, float *shared, bool &is_convolved) {
    using L = prefill_row<J, M>;
    constexpr uint32_t ROWS = DELTA_PREFILL_ROWS;
    float s[J][M];
    int n_columns;
    uint32_t column = tile.first_column + threadIdx.x / 32 * J;
    float *state = p.state + state_offset<J>(p, tile, column, &n_columns);
    float *out = p.out + g.first_row * p.out_stride + tile.head * p.value_width + column;
    load_state<J, M>(s, state + g.cell * p.state_stride, p.key_width, n_columns, p.is_state_vec4);
    if (!is_convolved)
        wait_for_convolution(p);
    is_convolved = true;
    copy_rows<J, M>(p, tile, shared, g.first_row, min(ROWS, g.n_rows));
    for (uint32_t first = 0, stage = 0; first < g.n_rows; first += ROWS, stage ^= 1) {
        uint32_t n = min(ROWS, g.n_rows - first), next = first + ROWS;
        if (next < g.n_rows) {
            copy_rows<J, M>(p, tile, shared + (stage ^ 1) * ROWS * L::FLOATS, g.first_row + next,
                            min(ROWS, g.n_rows - next));
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        for (uint32_t r = 0; r < n; r++, out += p.out_stride) {
            prefill_rule<J, M>(s, shared + (stage * ROWS + r) * L::FLOATS, out, n_columns);
            uint32_t cell = p.io.to[g.first_row + first + r];
            if (cell == IO_NO_CELL)
                continue;
            store_state<J, M>(s, state + cell * p.state_stride, p.key_width, n_columns,
                              p.is_state_vec4);
            store_window(p, tile, g, first + r, cell, L::TILE, threadIdx.x, THREADS);
        }
        __syncthreads(); /* the next iteration overwrites this stage */
    }
}

template <int J, int M>
static __device__ __forceinline__ void prefill_segments(const struct delta_params &p,
                                                        float *shared) {
    uint32_t tiles = p.value_heads * p.prefill_tiling.tiles, n = p.io.header->n_segments * tiles;
    bool is_convolved = false;
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        struct io_segment g = p.io.segments[i / tiles];
        if (g.n_rows > 1)
            prefill_segment<J, M>(p, head_tile_of(p, p.prefill_tiling, i % tiles), g, shared,
                                  is_convolved);
    }
}

/* ---- decode: the convolution ----------------------------------------------------------------- */

/* The C channels of a tile that a thread convolves. */
template <int C, int W> struct thread_channels {
    int channel[C]; /* -1: none */
    bool writes_window[C];
    float weights[C][W];
};

/* Where a row and its predecessors are. */
struct conv_source {
    uint32_t first_entry; /* the cell's, in the window */
    uint32_t row;         /* of `in` */
    uint32_t entry;       /* the row's own, among the cell's */
    uint32_t n_before;    /* predecessors that the convolution reaches */
};

/* Their values in a thread's channels, oldest first. */
template <int C, int W> struct conv_inputs {
    float x[C][W];
    uint32_t n_before;
    float *new_entry; /* the row's own */
};

template <int C, int W>
static __device__ __forceinline__ void load_channels(const struct delta_params &p,
                                                     const struct head_tile &tile, uint32_t n,
                                                     struct thread_channels<C, W> &ch) {
#pragma unroll
    for (int i = 0; i < C; i++) {
        uint32_t channel = threadIdx.x + i * THREADS;
        ch.channel[i] = channel < n ? channel_of(p, tile, channel) : -1;
        ch.writes_window[i] =
            ch.channel[i] >= 0 && (channel >= 2 * p.key_width || tile.is_key_owner);
        const float *weights =
            p.conv_weights + (uint64_t)(uint32_t)ch.channel[i] * conv_width_of<W>(p);
#pragma unroll
        for (int t = 0; t < W; t++)
            if (ch.channel[i] >= 0 && (W == 4 || t < p.conv_width))
                ch.weights[i][t] = ld_no_allocate_f32(weights + t);
    }
}

template <int C, int W>
static __device__ __forceinline__ void
load_conv_inputs(const struct delta_params &p, const struct conv_source &from,
                 const struct thread_channels<C, W> &ch, struct conv_inputs<C, W> &in) {
    in.n_before = from.n_before;
    in.new_entry = p.window + (uint64_t)(from.first_entry + from.entry) * p.channels;
#pragma unroll
    for (int t = 0; t < W; t++) {
        uint32_t back = back_of<W>(p, t);
        if (back > from.n_before)
            continue;
        uint32_t entry =
            from.first_entry + from.entry - back + (from.entry < back ? conv_width_of<W>(p) : 0);
        const float *x = back ? p.window + (uint64_t)entry * p.channels
                              : p.in + (uint64_t)from.row * p.in_stride;
#pragma unroll
        for (int i = 0; i < C; i++)
            if (ch.channel[i] >= 0)
                in.x[i][t] = ld_no_allocate_f32(x + ch.channel[i]);
    }
}

/* y of a tile's n channels, and the row's window entry. */
template <int C, int W>
static __device__ __forceinline__ void convolve_row(const struct delta_params &p, uint32_t n,
                                                    const struct thread_channels<C, W> &ch,
                                                    const struct conv_inputs<C, W> &in, float *y) {
#pragma unroll
    for (int i = 0; i < C; i++) {
        float sum = 0, last = 0;
#pragma unroll
        for (int t = 0; t < W; t++)
            if (back_of<W>(p, t) <= in.n_before) {
                sum = fmaf(ch.weights[i][t], in.x[i][t], sum);
                last = in.x[i][t];
            }
        if (threadIdx.x + i * THREADS < n)
            y[threadIdx.x + i * THREADS] = ch.channel[i] >= 0 ? silu_approx(sum) : 0;
        if (ch.writes_window[i])
            in.new_entry[ch.channel[i]] = last;
    }
}

/* ---- decode: jobs ---------------------------------------------------------------------------- */

enum { NO_ROW = 0xffffffff };

/* A tile of a decode segment, in shared memory; all of a block's are written once. Read by 16
 * bytes: (state, first_entry, row), (entry, n_before, decay, beta). */
struct decode_job {
    uint64_t state; /* offset of the tile's first value */
    uint32_t first_entry;
    uint32_t row; /* NO_ROW: a prefill segment, not computed here */
    uint32_t entry;
    uint32_t n_before;
    float decay, beta;
    uint32_t columns; /* from the tile's first to the head's last */
    uint32_t padding[3];
};

static_assert(sizeof(struct decode_job) == DELTA_JOB_BYTES, "decode_job");

/* A block's consecutive jobs of (head tiles, segments). */
struct job_range {
    uint32_t first, n, n_segments;
};

static __device__ __forceinline__ struct job_range job_range_of(const struct delta_params &p,
                                                                uint32_t n_segments) {
    uint32_t jobs = n_segments * p.value_heads * p.decode_tiling.tiles;
    uint32_t each = jobs / gridDim.x, more = jobs - each * gridDim.x;
    return {blockIdx.x * each + min(blockIdx.x, more), each + (blockIdx.x < more), n_segments};
}

/* All but the gates. By the last threads first: the first ones have the most channels. */
template <int J>
static __device__ __forceinline__ void
write_jobs(const struct delta_params &p, const struct job_range &range,
           const struct io_segment *segments, struct decode_job *jobs) {
    for (uint32_t i = THREADS - 1 - threadIdx.x; i < range.n; i += THREADS) {
        uint32_t tile = (range.first + i) / range.n_segments, head = tile / p.decode_tiling.tiles;
        uint32_t column = (tile - head * p.decode_tiling.tiles) * DELTA_WARPS * J;
        struct io_segment g = segments[range.first + i - tile * range.n_segments];
        struct decode_job job = {};
        job.state =
            g.cell * p.state_stride + (uint64_t)(head * p.value_width + column) * p.key_width;
        job.first_entry = g.cell * p.conv_width;
        job.row = g.n_rows == 1 ? g.first_row : (uint32_t)NO_ROW;
        job.entry = entry_of(p, g.first_position);
        job.n_before = min(g.first_position, p.conv_width - 1);
        job.columns = p.value_width - column;
        jobs[i] = job;
    }
}

/* At once for all jobs: a gate is a long chain of dependent instructions. */
static __device__ __forceinline__ void
write_gates(const struct delta_params &p, const struct job_range &range, struct decode_job *jobs) {
    for (uint32_t i = THREADS - 1 - threadIdx.x; i < range.n; i += THREADS) {
        uint32_t head = (range.first + i) / range.n_segments / p.decode_tiling.tiles;
        uint32_t row = jobs[i].row;
        if (row == NO_ROW)
            continue;
        const float *in = p.in + row * p.in_stride + head;
        struct delta_gate gate =
            gate_of(in[p.alpha_column], in[p.beta_column], p.a[head], p.dt[head]);
        jobs[i].decay = gate.decay, jobs[i].beta = gate.beta;
    }
}

template <int C, int W>
static __device__ __forceinline__ void
load_job_inputs(const struct delta_params &p, const struct decode_job *job,
                const struct thread_channels<C, W> &ch, struct conv_inputs<C, W> &in) {
    uint4 first = ld_shared_u32x4(job);
    uint2 second = ld_shared_u32x2(&job->entry); /* not the gate: it may be written right now */
    if (first.w != NO_ROW)
        load_conv_inputs<C, W>(p, {first.z, first.w, second.x, second.y}, ch, in);
}

/* Columns of this warp. IS_FULL: dk is 32 M, and all tiles are full. */
template <int J, int M, bool IS_FULL>
static __device__ __forceinline__ int job_columns(const struct decode_job *job) {
    return IS_FULL ? J : min(max((int)job->columns - (int)threadIdx.x / 32 * J, 0), J);
}

/* Starts the copy of a warp's own J columns of 32 M values. */
template <int J, int M>
static __device__ __forceinline__ void copy_full_state(const float *from, float *to) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < J * M / 4; i++)
        cp_async_16(smem_addr(to + lane * 4 + 128 * i), from + lane * 4 + 128 * i);
}

/* The same for any tile. */
template <int J, int M, bool IS_FULL>
static __device__ __forceinline__ void copy_job_state(const struct delta_params &p,
                                                      const struct decode_job *job, float *to) {
    uint4 first = ld_shared_u32x4(job);
    if (first.w == NO_ROW)
        return;
    uint32_t lane = threadIdx.x % 32, dk = IS_FULL ? 32 * M : p.key_width;
    const float *from = p.state + ((uint64_t)first.y << 32 | first.x) + threadIdx.x / 32 * J * dk;
    uint32_t n = job_columns<J, M, IS_FULL>(job) * dk;
    if (IS_FULL) {
        copy_full_state<J, M>(from, to);
    } else if (p.is_state_vec4) {
#pragma unroll 1
        for (uint32_t i = lane * 4; i < n; i += 128)
            cp_async_16(smem_addr(to + i), from + i);
    } else {
#pragma unroll 1
        for (uint32_t i = lane; i < n; i += 32)
            cp_async_4(smem_addr(to + i), from + i);
    }
}

/* Columns that the head does not have come out undefined, and are not stored. */
template <int J, int M, bool IS_FULL>
static __device__ __forceinline__ void load_shared_state(float (&s)[J][M], const float *from,
                                                         uint32_t key_width) {
    uint32_t dk = IS_FULL ? 32 * M : key_width;
#pragma unroll
    for (int j = 0; j < J; j++)
        load_shared_values<M, IS_FULL>(s[j], from + j * dk, dk);
}

/* The rule for a warp's columns, and the state back to memory; `out` is at the tile's first column.
 */
template <int J, int M, bool IS_FULL>
static __device__ __forceinline__ void decode_rule(const struct delta_params &p,
                                                   const struct decode_job *job, float (&s)[J][M],
                                                   const float *y, float *out) {
    uint32_t warp = threadIdx.x / 32, dk = IS_FULL ? 32 * M : p.key_width;
    float q[M], k[M], v[J];
    load_qkv<J, M, IS_FULL>(y, dk, q, k, v);
    uint4 first = ld_shared_u32x4(job), second = ld_shared_u32x4(&job->entry);
    struct delta_norms norms = norms_of<M>(p, q, k);
    struct delta_gate gate = {__uint_as_float(second.z), __uint_as_float(second.w), {0, 0}};
    int n = job_columns<J, M, IS_FULL>(job);
    delta_rule<J, M>(s, q, k, v, norms, gate, out + warp * J, n);
    float *state = p.state + ((uint64_t)first.y << 32 | first.x) + warp * J * dk;
    store_state<J, M>(s, state, dk, n, IS_FULL || p.is_state_vec4);
}

/* Dynamic shared memory: the stages' states, each (16 warps, J, dk); y twice; jobs; segments. */
template <int J> struct decode_shared {
    float *warp_state, *y;
    uint32_t stage_floats, y_floats;
    struct decode_job *jobs;
    struct io_segment *segments;
    __device__ __forceinline__ decode_shared(const struct delta_params &p, uint32_t dk,
                                             float *shared) {
        stage_floats = DELTA_WARPS * J * dk;
        y_floats = (2 * dk + DELTA_WARPS * J + 3) / 4 * 4;
        warp_state = shared + threadIdx.x / 32 * J * dk;
        y = shared + DELTA_STAGES * stage_floats;
        jobs = (struct decode_job *)(y + 2 * y_floats);
        segments = (struct io_segment *)(jobs + p.max_jobs);
    }
    /* This warp's columns in job i's stage. */
    __device__ __forceinline__ float *state(uint32_t i) const {
        return warp_state + i % DELTA_STAGES * stage_floats;
    }
};

/* A state is copied and read by one warp, which needs no barrier; y is the block's, twice, so that
 * one barrier a job is enough. */
template <int J, int M, int W, bool IS_FULL>
static __device__ __forceinline__ void decode_segments(const struct delta_params &p, float *dynamic,
                                                       uint32_t n_segments) {
    constexpr int C = M == 8 ? 2 : 1;
    uint32_t dk = IS_FULL ? 32 * M : p.key_width, n = 2 * dk + DELTA_WARPS * J;
    const struct decode_shared<J> shared(p, dk, dynamic);
    const struct job_range range = job_range_of(p, n_segments);
    if (range.n == 0)
        return;
    write_jobs<J>(p, range, shared.segments, shared.jobs);
    uint32_t tile_number = range.first / n_segments;
    uint32_t left_of_tile = n_segments - range.first % n_segments;
    struct head_tile tile = head_tile_of(p, p.decode_tiling, tile_number);
    struct thread_channels<C, W> channels;
    struct conv_inputs<C, W> inputs;
    float s[J][M];
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = 0; i < DELTA_STAGES; i++) {
        if (i < range.n)
            copy_job_state<J, M, IS_FULL>(p, shared.jobs + i, shared.state(i));
        cp_async_commit();
    }
    load_channels<C, W>(p, tile, n, channels);
    load_job_inputs<C, W>(p, shared.jobs, channels, inputs);
    write_gates(p, range, shared.jobs);
#pragma unroll 1
    for (uint32_t i = 0; i < range.n; i++) {
        const struct decode_job *job = shared.jobs + i;
        float *y = shared.y + i % 2 * shared.y_floats;
        bool is_decode = job->row != NO_ROW;
        float *out = p.out + (uint64_t)job->row * p.out_stride + tile.head * p.value_width +
                     tile.first_column;
        if (is_decode)
            convolve_row<C, W>(p, n, channels, inputs, y);
        __syncthreads();
        if (i + 1 < range.n) {
            if (--left_of_tile == 0) {
                left_of_tile = n_segments;
                tile = head_tile_of(p, p.decode_tiling, ++tile_number);
                load_channels<C, W>(p, tile, n, channels);
            }
            load_job_inputs<C, W>(p, job + 1, channels, inputs);
        }
        cp_async_wait<DELTA_STAGES - 1>();
        __syncwarp();
        load_shared_state<J, M, IS_FULL>(s, shared.state(i), dk);
        __syncwarp();
        if (i + DELTA_STAGES < range.n)
            copy_job_state<J, M, IS_FULL>(p, job + DELTA_STAGES, shared.state(i));
        cp_async_commit();
        if (is_decode)
            decode_rule<J, M, IS_FULL>(p, job, s, y, out);
    }
    cp_async_wait<0>();
    __syncthreads();
}

/* As many as the plan may have, so that the loads need not wait for the header's count. */
template <int J, int M>
static __device__ __forceinline__ void copy_segments(const struct delta_params &p, float *dynamic) {
    const struct decode_shared<J> shared(p, p.key_width, dynamic);
    for (uint32_t i = threadIdx.x; i < p.max_segments; i += THREADS)
        shared.segments[i] = p.io.segments[i];
}

/* ---- decode by blocks that keep their tile --------------------------------------------------- */

/* A block's i-th segment with its gate, in shared memory; a prefill segment is not computed here.
 */
struct tile_job {
    struct io_segment segment;
    struct delta_gate gate;
};

static_assert(sizeof(struct tile_job) == DELTA_TILE_JOB_BYTES, "tile_job");
static_assert(DELTA_TILE_JOBS <= 32, "one warp computes the gates, a job a lane");

/* One volatile load, issued where it stands: the compiler would make later loads wait for it. */
static __device__ __forceinline__ struct io_segment load_segment(const struct io_segment *from) {
    uint4 g = ld_volatile_u32x4(from);
    return {g.x, g.y, g.z, g.w};
}

/* (n_rows, n_segments), likewise. */
static __device__ __forceinline__ uint2 load_counts(const struct io_header *header) {
    return ld_volatile_u32x2(&header->n_rows);
}

static __device__ __forceinline__ struct io_segment job_segment(const struct tile_job *job) {
    uint4 g = ld_shared_u32x4(&job->segment);
    return {g.x, g.y, g.z, g.w};
}

template <int W>
static __device__ __forceinline__ struct conv_source conv_source_of(const struct io_segment &g) {
    return {g.cell * W, g.first_row, g.first_position % W, min(g.first_position, W - 1)};
}

/* A block's tile and its segments first, first + step, ... Only for dk == 32 M, full tiles and a
 * conv width of 4. */
template <int J, int M> struct block_tile {
    static constexpr uint32_t W = 4, DK = 32 * M, CHANNELS = 2 * DK + DELTA_WARPS * J;
    static constexpr uint32_t STAGE_FLOATS = DELTA_WARPS * J * DK;
    static_assert(CHANNELS <= THREADS && DELTA_STAGES == 2, "block_tile");

    struct thread_channels<1, W> channels;
    uint32_t first, step;
    float *warp_state,
        *y; /* dynamic shared memory: the warp's columns in stage 0; y, three times */
    struct tile_job *jobs;
    float *state, *out;        /* of cell 0, and of row 0, at the warp's first column */
    const float *alpha, *beta; /* of row 0 */
    float a, dt;
    bool is_gate_warp; /* the last, which has no channels to convolve */

    /* Before griddepcontrol.wait: loads what the tile alone decides. */
    __device__ __forceinline__ block_tile(const struct delta_params &p, float *dynamic) {
        uint32_t tiles = p.value_heads * p.decode_tiling.tiles, rank = blockIdx.x / tiles;
        uint32_t warp = threadIdx.x / 32;
        struct head_tile tile = head_tile_of(p, p.decode_tiling, blockIdx.x - rank * tiles);
        uint32_t column = tile.first_column + warp * J, value = tile.head * p.value_width + column;
        load_channels<1, W>(p, tile, CHANNELS, channels);
        is_gate_warp = warp == DELTA_WARPS - 1;
        a = is_gate_warp ? ld_no_allocate_f32(p.a + tile.head) : 0;
        dt = is_gate_warp ? ld_no_allocate_f32(p.dt + tile.head) : 0;
        step = p.blocks_per_tile;
        first = rank < step ? rank : p.max_segments; /* blocks left over only help with prefill */
        warp_state = dynamic + warp * J * DK;
        y = dynamic + DELTA_STAGES * STAGE_FLOATS;
        jobs = (struct tile_job *)(y + 3 * CHANNELS);
        state = p.state + (uint64_t)value * DK;
        out = p.out + value;
        alpha = p.in + p.alpha_column + tile.head, beta = p.in + p.beta_column + tile.head;
    }

    __device__ __forceinline__ const struct io_segment *segment(const struct delta_params &p,
                                                                uint32_t i) const {
        return p.io.segments + min(first + i * step, p.max_segments - 1);
    }

    __device__ __forceinline__ bool has(uint32_t i, uint32_t n_segments) const {
        return first + i * step < n_segments;
    }

    /* Issues all loads of the first two jobs before it uses any, conv inputs before states since
     * they are small. Then convolves both and computes the gates of all jobs, one a lane. Returns
     * (n_rows, n_segments). */
    __device__ __forceinline__ uint2 start(const struct delta_params &p) {
        uint32_t lane = threadIdx.x % 32;
        struct io_segment g[2] = {load_segment(segment(p, 0)), load_segment(segment(p, 1))};
        struct tile_job own = {};
        if (is_gate_warp)
            own.segment = load_segment(segment(p, lane));
        uint2 n = load_counts(p.io.header);
        struct conv_inputs<1, W> inputs[2];
        bool is_decode[2], has_gate = is_gate_warp && has(lane, n.y) && own.segment.n_rows == 1;
        float x = 0, b = 0;
        if (has_gate)
            x = ld_no_allocate_f32(alpha + own.segment.first_row * p.in_stride),
            b = ld_no_allocate_f32(beta + own.segment.first_row * p.in_stride);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            is_decode[i] = has(i, n.y) && g[i].n_rows == 1;
            if (is_decode[i])
                load_conv_inputs<1, W>(p, conv_source_of<W>(g[i]), channels, inputs[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            if (is_decode[i])
                copy_full_state<J, M>(state + g[i].cell * p.state_stride,
                                      warp_state + i * STAGE_FLOATS);
            cp_async_commit();
        }
        if (has_gate)
            own.gate = gate_of(x, b, a, dt);
        if (is_gate_warp && has(lane, n.y))
            jobs[lane] = own;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            if (is_decode[i])
                convolve_row<1, W>(p, CHANNELS, channels, inputs[i], y + i * CHANNELS);
        __syncthreads();
        return n;
    }

    /* A job's y is complete before its state has arrived. The conv inputs of the job after the next
     * are loaded before the wait for this state and convolved after the rule, into the third y,
     * which nobody has read since the last barrier. */
    __device__ __forceinline__ void loop(const struct delta_params &p, uint32_t n_segments) {
        uint32_t y_offset = 0; /* of this job's */
#pragma unroll 1
        for (uint32_t i = 0; has(i, n_segments); i++) {
            struct io_segment g = job_segment(jobs + i);
            bool is_decode = g.n_rows == 1, has_next = has(i + 2, n_segments),
                 is_next_decode = false;
            struct io_segment next = {};
            struct conv_inputs<1, W> inputs;
            float q[M], k[M], v[J], s[J][M];
            if (has_next) {
                next = job_segment(jobs + i + 2);
                is_next_decode = next.n_rows == 1;
                if (is_next_decode)
                    load_conv_inputs<1, W>(p, conv_source_of<W>(next), channels, inputs);
            }
            load_qkv<J, M, true>(y + y_offset, DK, q, k, v);
            struct delta_norms norms = norms_of<M>(p, q, k);
            uint2 gate = ld_shared_u32x2(&jobs[i].gate);
            float *stage = warp_state + i % 2 * STAGE_FLOATS;
            cp_async_wait<1>();
            __syncwarp();
            load_shared_state<J, M, true>(s, stage, DK);
            __syncwarp();
            if (is_next_decode)
                copy_full_state<J, M>(state + next.cell * p.state_stride, stage);
            cp_async_commit();
            if (is_decode) {
                delta_rule<J, M>(s, q, k, v, norms,
                                 {__uint_as_float(gate.x), __uint_as_float(gate.y), {0, 0}},
                                 out + g.first_row * p.out_stride, J);
                store_state<J, M>(s, state + g.cell * p.state_stride, DK, J, true);
            }
            if (has_next) {
                if (is_next_decode)
                    convolve_row<1, W>(p, CHANNELS, channels, inputs,
                                       y + (y_offset ? y_offset - CHANNELS : 2 * CHANNELS));
                __syncthreads();
            }
            y_offset = y_offset == 2 * CHANNELS ? 0 : y_offset + CHANNELS;
        }
    }
};

/* ---- the kernels ----------------------------------------------------------------------------- */

template <int J, int M>
static __device__ __forceinline__ void delta_batch(const struct delta_params &p) {
    extern __shared__ float4 aligned[];
    float *dynamic = (float *)aligned;
    pdl_wait(p.io);
    copy_segments<J, M>(p, dynamic);
    uint32_t n_rows = p.io.header->n_rows, n_segments = p.io.header->n_segments;
    __syncthreads();
    bool has_prefill = n_rows != n_segments && !p.has_scan;
    if (has_prefill)
        convolve_prefill<M, false>(p);
    if (M == 4 && p.is_full && p.conv_width == 4) /* wider keys are rare: one path */
        decode_segments<J, M, 4, true>(p, dynamic, n_segments);
    else
        decode_segments<J, M, 8, false>(p, dynamic, n_segments);
    if (!has_prefill)
        return;
    prefill_segments<DELTA_PREFILL_COLUMNS, M>(p, dynamic);
    reset_counters(p);
}

template <int J, int M>
static __device__ __forceinline__ void delta_batch_tile(const struct delta_params &p) {
    extern __shared__ float4 aligned[];
    float *dynamic = (float *)aligned;
    struct block_tile<J, M> tile(p, dynamic);
    pdl_wait(p.io);
    uint2 n = tile.start(p);
    tile.loop(p, n.y);
    if (n.x == n.y || p.has_scan)
        return;
    convolve_prefill<M, true>(p); /* after its barriers nobody reads y any more */
    prefill_segments<DELTA_PREFILL_COLUMNS, M>(p, dynamic);
    reset_counters(p);
}

#define KERNEL(NAME, J, KEY)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        NAME##_##J##_##KEY(const __grid_constant__ struct delta_params p) {                        \
        pdl_launch_dependents();                                                                   \
        NAME<J, KEY / 32>(p);                                                                      \
    }
KERNEL(delta_batch, 2, 128)
KERNEL(delta_batch, 4, 128)
KERNEL(delta_batch, 2, 256)
KERNEL(delta_batch_tile, 2, 128)
KERNEL(delta_batch_tile, 4, 128)
