/* delta_decode.cu - DELTA of a plan of one row, and of plans of a few. The formula is in delta.cuh.
 *
 * delta_decode_J_KEY: J columns a warp, keys of up to KEY values. delta_decode_full_J_KEY: keys of
 * KEY values, whole tiles and a window of four: a third of the instructions; an SM keeps few of
 * them cached.
 *   grid    a block a head tile
 *   block   convolves its tile's channels itself (288 of qwen35-4b), a thread a channel
 *   warp    the rule for its J columns
 *
 * Everything but the row is loaded before griddepcontrol.wait: of other shapes, where there is one
 * cell, the state into registers, the tile's window and conv weights into shared memory by
 * cp.async. After it all loads are in flight before any is waited for. Over delta_batch at one
 * row: 6.7 % of a step of qwen35-0.8b.
 *
 * delta_few_J_128: plans of up to DELTA_FEW_ROWS rows, such as verify drafts; the shapes of
 * delta_decode_full. A block a head tile and segment, or several segments one after the other: it
 * convolves its channels for a chunk of rows, then applies them to its columns, which stay in
 * registers for all rows of the segment. q and k of a key head are convolved by all tiles that
 * share it, from the same window, which the segment may overwrite: the last of these blocks to have
 * read it writes it. */
#include "backend/cuda/kernels/delta.cuh"

/* silu of the convolution, oldest position first; those before position 0 are left out. */
template <class WEIGHT, class INPUT>
static __device__ __forceinline__ float convolve(uint32_t width, uint32_t position, WEIGHT weight,
                                                 INPUT input) {
    float sum = 0;
#pragma unroll 4
    for (uint32_t t = 0; t < width; t++) {
        uint32_t back = width - 1 - t;
        if (back <= position)
            sum = fmaf(weight(t), input(back), sum);
    }
    return silu_approx(sum);
}

enum { CHANNELS_BARRIER = 1, GATE_BARRIER = 2, SEGMENT_BARRIER = 3, FULL_KEY = 128 };

/* By a warp more than those with columns: the gates take longer than the convolution, and are
 * needed after the norms. */
static __device__ __forceinline__ void make_gate(const struct delta_params &p, uint32_t head,
                                                 struct delta_gate &gate) {
    float a = ld_no_allocate_f32(p.a + head), dt = ld_no_allocate_f32(p.dt + head);
    const float *gates = p.in + head;
    if (!__any_sync(~0u, (uintptr_t)gates & 1))
        pdl_wait();
    float alpha = __ldcg(gates + p.alpha_column), beta = __ldcg(gates + p.beta_column);
    struct delta_gate made = gate_of(alpha, beta, a, dt);
    if (threadIdx.x % 32 == 0)
        gate = made;
    any_barrier_arrive(GATE_BARRIER, THREADS + 32);
}

/* The row's cell and position as IO has them. Before pdl_wait they are nearly always the step's,
 * since EMBED has written them; then they are a guess. Where there is one cell nobody waits for its
 * number. */
struct cell_position {
    uint32_t cell, position;

    __device__ __forceinline__ void load(const struct delta_params &p) {
        cell = 0;
        if (p.n_cells > 1)
            cell = min(ld_relaxed(&p.io.segments->cell), p.n_cells - 1);
        position = ld_relaxed(&p.io.segments->first_position);
    }
};

/* What a cell has: a thread's columns of the state, and its channel's window. */
template <int J> struct full_past {
    float s[J][4], window[4];
    float *state, *entries; /* of the warp's columns; of the channel */

    __device__ __forceinline__ void load(const struct delta_params &p, uint32_t cell,
                                         uint32_t column, uint32_t channel) {
        state = p.state + (cell * p.state_stride + (uint64_t)column * FULL_KEY);
        entries = p.window + ((uint64_t)cell * 4 * p.channels + channel);
        load_state<J, 4>(s, state, FULL_KEY, J, true);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            window[i] = ld_no_allocate_f32(entries + i * p.channels);
    }

    /* The convolution of the inputs before the row, oldest first; those before position 0 are left
     * out. */
    __device__ __forceinline__ float add(const float4 &weights, uint32_t position) const {
        const float w[3] = {weights.x, weights.y, weights.z};
        bool one = position & 1, two = position & 2;
        float sum = 0;
#pragma unroll
        for (uint32_t t = 0; t < 3; t++) { /* entry (position + t + 1) % 4 */
            float even = two ? window[(t + 3) % 4] : window[(t + 1) % 4],
                  odd = two ? window[t % 4] : window[(t + 2) % 4];
            float next = fmaf(w[t], one ? odd : even, sum);
            sum = 3 - t <= position ? next : sum;
        }
        return sum;
    }
};

/* norms_of and delta_row, with all sums over the warp at once: those of the norms, then of k and q
 * with each column. `wait`: before the gates are read. */
template <int J, class WAIT>
static __device__ __forceinline__ void
full_rule(const struct delta_params &p, float (&s)[J][4], const float (&q)[4], const float (&k)[4],
          const float (&v)[J], const struct delta_gate &gate, float *out, WAIT wait) {
    constexpr int N = J == 4 ? 16 : 8, LANES = 32 / N; /* lanes that have the same sum */
    float x[N] = {};
#pragma unroll
    for (int m = 0; m < 4; m++) {
        x[0] = fmaf(q[m], q[m], x[0]);
        x[1] = fmaf(k[m], k[m], x[1]);
        x[2] = fmaf(q[m], k[m], x[2]);
    }
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int m = 0; m < 4; m++) {
            x[4 + 2 * j] = fmaf(s[j][m], k[m], x[4 + 2 * j]);
            x[5 + 2 * j] = fmaf(s[j][m], q[m], x[5 + 2 * j]);
        }
    float sum = warp_sums<N>(x);
    auto sum_of = [&](int i) { return __shfl_sync(0xffffffffu, sum, i * LANES); };
    uint32_t lane = threadIdx.x % 32, own_j = (lane / LANES - 4) / 2;
    float factor = __fmul_rn(lane < LANES ? p.q_scale : 1.0f, rsqrt_approx(sum + 1e-6f));
    float q_factor = __shfl_sync(0xffffffffu, factor, 0),
          k_factor = __shfl_sync(0xffffffffu, factor, LANES), own_d = 0;
    float qk = __fmul_rn(__fmul_rn(sum_of(2), q_factor), k_factor);
    wait();
#pragma unroll
    for (int j = 0; j < J; j++) {
        float ks = __fmul_rn(sum_of(4 + 2 * j), k_factor);
        float d = __fmul_rn(gate.beta, fmaf(-gate.decay, ks, v[j]));
        own_d = j == own_j ? d : own_d;
        update_column<4>(s[j], k, __fmul_rn(d, k_factor), gate.decay);
    }
    /* `sum` is q . S[own_j] in the lanes that store. */
    float o = fmaf(gate.decay, __fmul_rn(sum, q_factor), __fmul_rn(qk, own_d));
    if (lane >= 4 * LANES && lane % (2 * LANES) == LANES && own_j < J)
        out[own_j] = o;
}

/* Keys of 128 values, whole tiles, a window of four. All but the row is loaded, and added, before
 * griddepcontrol.wait, for the segment that IO has by then; after it only if that was another. No
 * earlier kernel of the step writes states or windows. The window entry that is written, the row's
 * own, is read by no block of this step. Dynamic shared memory: y, the channels after the
 * convolution. */
template <int J>
static __device__ __forceinline__ void delta_decode_full(const struct delta_params &p) {
    constexpr uint32_t CHANNELS = 2 * FULL_KEY + DELTA_WARPS * J;
    static_assert(CHANNELS <= THREADS, "a thread a channel");
    extern __shared__ float4 dynamic[];
    __shared__ struct delta_gate gate;
    float *y = (float *)dynamic;
    uint32_t tid = threadIdx.x, warp = tid / 32;
    struct head_tile tile = head_tile_of(p, p.decode_tiling, blockIdx.x);
    if (warp == DELTA_WARPS)
        return make_gate(p, tile.head, gate);
    bool has_channel = tid < CHANNELS;
    uint32_t c = has_channel ? (uint32_t)channel_of(p, tile, tid) : 0;
    uint32_t column = tile.head * p.value_width + tile.first_column + warp * J; /* of all heads */
    bool writes_window = has_channel && (tid >= 2 * FULL_KEY || tile.is_key_owner);
    float4 weights = ld_no_allocate_f32x4(p.conv_weights + (uint64_t)c * 4);
    struct cell_position guess, now;
    guess.load(p);
    struct full_past<J> past;
    past.load(p, guess.cell, column, c);
    float sum = past.add(weights, guess.position);
    /* The sum is made before the wait: no address has bit 0, but only we know. After it all loads
     * are in flight before any is waited for. */
    const float *row = p.in + c;
    if (!__any_sync(~0u, (uintptr_t)row & __float_as_uint(sum) & 1))
        pdl_wait();
    float x = 0;
    ld_cg_f32_if(has_channel, row, x);
    now.load(p);
    store_stamp(tid | blockIdx.x, p.io.stamp);
    if (now.cell != guess.cell)
        past.load(p, now.cell, column, c);
    if (now.cell != guess.cell || now.position != guess.position)
        sum = past.add(weights, now.position);
    if (has_channel)
        y[tid] = silu_approx(fmaf(weights.w, x, sum));
    if (writes_window)
        past.entries[now.position % 4 * p.channels] = x;
    any_barrier_sync(CHANNELS_BARRIER, THREADS);

    float q[4], k[4], v[J];
    load_qkv<J, 4, true>(y, FULL_KEY, q, k, v);
    full_rule<J>(p, past.s, q, k, v, gate, p.out + column,
                 [&]() { any_barrier_sync(GATE_BARRIER, THREADS + 32); });
    store_state<J, 4>(past.s, past.state, FULL_KEY, J, true);
}

/* ---- a few rows --------------------------------------------------------------------------- */

/* Segment i as IO has it; before pdl_wait a guess, as struct cell_position. */
static __device__ __forceinline__ struct io_segment few_segment(const struct delta_params &p,
                                                                uint32_t i) {
    uint4 g = ld_volatile_u32x4(p.io.segments + i);
    return {min(g.x, p.n_cells - 1), g.y, g.z, g.w};
}

/* What a segment's rows have besides their channels. */
struct few_rows {
    struct delta_gate gates[DELTA_FEW_ROWS];
    uint32_t to[DELTA_FEW_ROWS]; /* the cell that a row's state is stored to, or IO_NO_CELL */
};

/* By the warp more: a lane a row, segment after segment. */
static __device__ __forceinline__ void make_rows(const struct delta_params &p, uint32_t head,
                                                 struct few_rows &rows) {
    static_assert(DELTA_FEW_ROWS <= 32, "a lane a row");
    float a = ld_no_allocate_f32(p.a + head), dt = ld_no_allocate_f32(p.dt + head);
    uint32_t lane = threadIdx.x % 32;
    pdl_wait();
    uint32_t n_segments = p.io.header->n_segments;
#pragma unroll 1
    for (uint32_t i = blockIdx.y; i < n_segments; i += gridDim.y) {
        if (i != blockIdx.y) /* those of the segment before are no longer read */
            any_barrier_sync(SEGMENT_BARRIER, THREADS + 32);
        struct io_segment g = few_segment(p, i);
        if (lane < g.n_rows) {
            const float *row = p.in + (uint64_t)(g.first_row + lane) * p.in_stride + head;
            rows.to[lane] = p.io.to[g.first_row + lane];
            rows.gates[lane] =
                gate_of(__ldcg(row + p.alpha_column), __ldcg(row + p.beta_column), a, dt);
        }
        __syncwarp();
        any_barrier_arrive(GATE_BARRIER, THREADS + 32);
    }
}

/* A channel's inputs of all rows to shared memory, a thread's own. A chunk's loads are in flight at
 * once. */
template <uint32_t STRIDE>
static __device__ __forceinline__ void load_inputs(const float *in, uint64_t in_stride,
                                                   uint32_t n_rows, float *inputs) {
    constexpr uint32_t CHUNK = DELTA_FEW_CHUNK;
#pragma unroll 1
    for (uint32_t first = 0; first < n_rows; first += CHUNK, in += CHUNK * in_stride) {
        float x[CHUNK];
#pragma unroll
        for (uint32_t r = 0; r < CHUNK; r++) {
            x[r] = 0;
            ld_cg_f32_if(first + r < n_rows, in + r * in_stride, x[r]);
        }
#pragma unroll
        for (uint32_t r = 0; r < CHUNK; r++)
            if (first + r < n_rows)
                inputs[(3 + first + r) * STRIDE] = x[r];
    }
}

/* The three inputs before the segment's first row, oldest first, from the window. */
template <uint32_t STRIDE>
static __device__ __forceinline__ void load_earlier_inputs(const float *window, uint32_t position,
                                                           float *inputs) {
#pragma unroll
    for (uint32_t t = 0; t < 3; t++)
        inputs[t * STRIDE] = window[(position + t + 1) % 4 * STRIDE];
}

/* A channel of up to a chunk of rows; `inputs` is three before the first one's, whose position is
 * `position`. */
template <uint32_t STRIDE>
static __device__ __forceinline__ void convolve_chunk(const float4 &weights, uint32_t position,
                                                      uint32_t n_rows, const float *inputs,
                                                      float *y) {
    float before[3] = {inputs[0], inputs[STRIDE], inputs[2 * STRIDE]};
#pragma unroll
    for (uint32_t r = 0; r < DELTA_FEW_CHUNK; r++, position++) {
        float x = r < n_rows ? inputs[(3 + r) * STRIDE] : 0, sum = 0;
        sum = position >= 3 ? fmaf(weights.x, before[0], sum) : sum;
        sum = position >= 2 ? fmaf(weights.y, before[1], sum) : sum;
        sum = position >= 1 ? fmaf(weights.z, before[2], sum) : sum;
        if (r < n_rows)
            y[r * STRIDE] = silu_approx(fmaf(weights.w, x, sum));
        before[0] = before[1], before[1] = before[2], before[2] = x;
    }
}

/* A channel's window after a row whose position is `position`; `inputs` is at that row's. */
static __device__ __forceinline__ void write_window(const struct delta_params &p, uint32_t cell,
                                                    uint32_t position, uint32_t channel,
                                                    const float *inputs, uint32_t stride) {
    float *window = p.window + (uint64_t)cell * 4 * p.channels + channel;
    for (uint32_t back = 0; back < 4 && back <= position; back++)
        window[(position - back) % 4 * p.channels] = *(inputs - back * stride);
}

/* Whether this block is the last of those that share the key head to have read its window of the
 * segment. By one thread. */
static __device__ __forceinline__ bool arrive_last(const struct delta_params &p, uint32_t segment,
                                                   uint32_t key_head) {
    uint32_t *arrivals = p.arrivals + segment * p.key_heads + key_head;
    uint32_t n = p.value_heads / p.key_heads * p.decode_tiling.tiles;
    bool is_last = atomicAdd(arrivals, 1) == n - 1;
    if (is_last)
        *arrivals = 0;
    return is_last;
}

/* Dynamic shared memory, of which a thread has a column: conv weights, (channels, 4), y, (chunk,
 * channels), the window, (4, channels), and the inputs of the convolution from three positions
 * before the segment on, (rows, channels). y alone is read by others. */
template <int J> static __device__ __forceinline__ void delta_few(const struct delta_params &p) {
    constexpr uint32_t CHANNELS = 2 * FULL_KEY + DELTA_WARPS * J, CHUNK = DELTA_FEW_CHUNK;
    static_assert(CHANNELS <= THREADS, "a thread a channel");
    extern __shared__ float4 dynamic[];
    __shared__ struct few_rows rows;
    __shared__ bool is_last;
    uint32_t tid = threadIdx.x, warp = tid / 32;
    float4 *weights = dynamic + tid;
    float *y = (float *)(dynamic + CHANNELS), *window = y + CHUNK * CHANNELS + tid;
    float *inputs = window + 4 * CHANNELS;
    struct head_tile tile = head_tile_of(p, p.decode_tiling, blockIdx.x);
    if (warp == DELTA_WARPS)
        return make_rows(p, tile.head, rows);
    bool has_channel = tid < CHANNELS, is_key = tid < 2 * FULL_KEY;
    uint32_t c = has_channel ? (uint32_t)channel_of(p, tile, tid) : 0;
    uint32_t column = tile.head * p.value_width + tile.first_column + warp * J; /* of all heads */
    float4 own_weights = ld_no_allocate_f32x4(p.conv_weights + (uint64_t)c * 4);
    uint32_t guess = few_segment(p, blockIdx.y).cell;
    struct full_past<J> past;
    past.load(p, guess, column, c);
    auto store_window = [&]() {
#pragma unroll
        for (uint32_t t = 0; t < 4; t++)
            window[t * CHANNELS] = past.window[t];
    };
    if (has_channel) {
        *weights = own_weights;
        store_window();
    }
    pdl_wait(p.io);
#pragma unroll 1
    for (uint32_t i = blockIdx.y; i < p.io.header->n_segments; i += gridDim.y) {
        struct io_segment g = few_segment(p, i);
        bool was_guessed = i == blockIdx.y && g.cell == guess;
        if (!was_guessed)
            past.load(p, g.cell, column, c);
        if (has_channel) {
            if (!was_guessed)
                store_window();
            load_inputs<CHANNELS>(p.in + g.first_row * p.in_stride + c, p.in_stride, g.n_rows,
                                  inputs);
            load_earlier_inputs<CHANNELS>(window, g.first_position, inputs);
        }
#pragma unroll 1
        for (uint32_t r = 0; r < g.n_rows; r++) {
            if (r % CHUNK == 0) {
                if (r) /* the chunk before is used */
                    any_barrier_sync(CHANNELS_BARRIER, THREADS);
                if (has_channel)
                    convolve_chunk<CHANNELS>(*weights, g.first_position + r, g.n_rows - r,
                                             inputs + r * CHANNELS, y + tid);
                any_barrier_sync(CHANNELS_BARRIER, THREADS);
                if (r == 0 && tid == 0) /* all have used what they read of the window */
                    is_last = arrive_last(p, i, tile.key_head);
            }
            float q[4], k[4], v[J];
            load_qkv<J, 4, true>(y + r % CHUNK * CHANNELS, FULL_KEY, q, k, v);
            full_rule<J>(p, past.s, q, k, v, rows.gates[r],
                         p.out + (g.first_row + r) * p.out_stride + column, [&]() {
                             if (r == 0)
                                 any_barrier_sync(GATE_BARRIER, THREADS + 32);
                         });
            uint32_t cell = rows.to[r];
            if (cell != IO_NO_CELL)
                store_state<J, 4>(past.s,
                                  p.state + (cell * p.state_stride + (uint64_t)column * FULL_KEY),
                                  FULL_KEY, J, true);
        }
        any_barrier_sync(CHANNELS_BARRIER, THREADS);
        for (uint32_t r = 0; r < g.n_rows && has_channel && (!is_key || is_last); r++)
            if (rows.to[r] != IO_NO_CELL)
                write_window(p, rows.to[r], g.first_position + r, c, inputs + (3 + r) * CHANNELS,
                             CHANNELS);
        if (i + gridDim.y < p.io.header->n_segments)
            any_barrier_arrive(SEGMENT_BARRIER, THREADS + 32);
    }
}

/* ---- other shapes --------------------------------------------------------------------------- */

/* Dynamic shared memory of n channels: y (n), window and weights (conv_width, n). */
template <int J, int M>
static __device__ __forceinline__ void delta_decode(const struct delta_params &p) {
    extern __shared__ float4 dynamic[];
    __shared__ struct delta_gate gate;
    uint32_t tid = threadIdx.x, warp = tid / 32, width = p.conv_width;
    uint32_t dk = p.key_width, n = 2 * dk + DELTA_WARPS * J;
    struct head_tile tile = head_tile_of(p, p.decode_tiling, blockIdx.x);
    float *y = (float *)dynamic, *window = y + n, *weights = window + width * n;
    float s[J][M], a = 0, dt = 0;
    int n_columns;
    uint32_t column = tile.first_column + warp * J;
    float *state = p.state + state_offset<J>(p, tile, column, &n_columns);
    bool is_vec4 = p.is_state_vec4, is_gate_thread = tid == THREADS - 1; /* the fewest channels */

    auto load_cell = [&](uint32_t cell) {
        load_state<J, M>(s, state + cell * p.state_stride, dk, n_columns, is_vec4);
        const float *from = p.window + (uint64_t)cell * width * p.channels;
        for (uint32_t i = tid; i < n; i += THREADS) {
            int c = channel_of(p, tile, i);
            for (uint32_t t = 0; t < width && c >= 0; t++)
                cp_async_4(smem_addr(window + t * n + i), from + (uint64_t)t * p.channels + c);
        }
    };
    if (is_gate_thread)
        a = ld_no_allocate_f32(p.a + tile.head), dt = ld_no_allocate_f32(p.dt + tile.head);
    if (p.n_cells == 1)
        load_cell(0);
    for (uint32_t i = tid; i < n; i += THREADS) {
        int c = channel_of(p, tile, i);
        for (uint32_t t = 0; t < width && c >= 0; t++)
            cp_async_4(smem_addr(weights + t * n + i), p.conv_weights + (uint64_t)c * width + t);
    }
    /* All that the row is needed for is in flight before any of it is waited for: addresses are
     * computed before pdl_wait, and nothing is between the loads. */
    int c = tid < n ? channel_of(p, tile, tid) : -1;
    const float *row = p.in + max(c, 0), *gates = p.in + tile.head;
    cp_async_commit();
    cp_async_wait<0>(); /* a thread reads only what it has copied itself */
    if (!__any_sync(~0u, ((uintptr_t)row | (uintptr_t)gates) & 1))
        pdl_wait();
    float x = 0, alpha = 0, beta = 0;
    ld_cg_f32_if(c >= 0, row, x);
    ld_cg_f32_if(is_gate_thread, gates + p.alpha_column, alpha);
    ld_cg_f32_if(is_gate_thread, gates + p.beta_column, beta);
    uint32_t position = ld_relaxed(&p.io.segments->first_position);
    store_stamp(tid | blockIdx.x, p.io.stamp);

    uint32_t cell = p.n_cells == 1 ? 0 : p.io.segments->cell;
    if (p.n_cells != 1) {
        load_cell(cell);
        cp_async_commit();
        cp_async_wait<0>();
    }
    uint32_t entry = entry_of(p, position);
    float *new_entry = p.window + ((uint64_t)cell * width + entry) * p.channels;
    auto weight = [&](uint32_t t, uint32_t i) { return weights[t * n + i]; };
    auto before = [&](uint32_t back, uint32_t i) {
        return window[entry_before(p, entry, back) * n + i];
    };
    for (uint32_t i = tid;;) {
        float result = 0;
        if (c >= 0)
            result = convolve(
                width, position, [&](uint32_t t) { return weight(t, i); },
                [&](uint32_t back) { return back ? before(back, i) : x; });
        if (i < n)
            y[i] = result;
        if (c >= 0 && (i >= 2 * dk || tile.is_key_owner))
            new_entry[c] = x;
        i += THREADS;
        if (n <= THREADS || i >= n)
            break;
        c = channel_of(p, tile, i);
        x = c >= 0 ? p.in[c] : 0;
    }
    if (is_gate_thread)
        gate = gate_of(alpha, beta, a, dt);
    __syncthreads();

    float q[M], k[M], v[J];
    if (is_vec4)
        load_qkv<J, M, true>(y, dk, q, k, v);
    else
        load_qkv<J, M, false>(y, dk, q, k, v);
    struct delta_norms norms = norms_of<M>(p, q, k);
    delta_rule<J, M>(s, q, k, v, norms, gate, p.out + tile.head * p.value_width + column,
                     n_columns);
    store_state<J, M>(s, state + cell * p.state_stride, dk, n_columns, is_vec4);
}

#define KERNEL(NAME, J, KEY)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                       \
        delta_decode_##NAME(const __grid_constant__ struct delta_params p) {                       \
        pdl_launch_dependents();                                                                   \
        delta_decode<J, KEY / 32>(p);                                                              \
    }
#define FULL_KERNEL(J)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS + 32, 2)                                  \
        delta_decode_full_##J##_128(const __grid_constant__ struct delta_params p) {               \
        pdl_launch_dependents();                                                                   \
        delta_decode_full<J>(p);                                                                   \
    }
#define FEW_KERNEL(J)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS + 32, 2)                                  \
        delta_few_##J##_128(const __grid_constant__ struct delta_params p) {                       \
        pdl_launch_dependents();                                                                   \
        delta_few<J>(p);                                                                           \
    }
FULL_KERNEL(1)
FULL_KERNEL(2)
FULL_KERNEL(4)
FEW_KERNEL(1)
FEW_KERNEL(2)
FEW_KERNEL(4)
KERNEL(1_128, 1, 128)
KERNEL(2_128, 2, 128)
KERNEL(4_128, 4, 128)
KERNEL(1_256, 1, 256)
KERNEL(2_256, 2, 256)
KERNEL(4_256, 4, 256)
