/* delta_decode.cu - DELTA of a plan of one row. The formula is in delta.cuh.
 *
 * delta_decode_J_KEY: J columns a warp, keys of up to KEY values. delta_decode_full_J_KEY: keys of
 * KEY values, whole tiles and a window of four: a third of the instructions, of which an SM keeps
 * few.
 *   grid    a block a head tile
 *   block   convolves its tile's channels itself (288 of qwen35-4b), a thread a channel
 *   warp    the rule for its J columns
 *
 * With one cell, everything but the row is loaded before griddepcontrol.wait: the state into
 * registers, the tile's window and conv weights into shared memory by cp.async. No earlier kernel
 * of the step writes these. The window entry that is written, the row's own, is read by no block
 * of this step.
 *
 * After it all loads are on their way before any is waited for. Over delta_batch at one row: 6.7 %
 * of a step of qwen35-0.8b. */
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

/* The same of four positions, of which all but the last are there before it. */
template <class WEIGHT, class INPUT>
static __device__ __forceinline__ float convolve4(uint32_t position, WEIGHT weight, INPUT input,
                                                  float last) {
    float sum = 0;
#pragma unroll
    for (uint32_t t = 0; t < 3; t++) {
        float next = fmaf(weight(t), input(3 - t), sum);
        sum = 3 - t <= position ? next : sum;
    }
    return silu_approx(fmaf(weight(3), last, sum));
}

enum { CHANNELS_BARRIER = 1, GATE_BARRIER = 2 };

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

/* Dynamic shared memory of n channels: y (n), window and weights (conv_width, n). */
template <int J, int M, bool IS_FULL>
static __device__ __forceinline__ void delta_decode(const struct delta_params &p) {
    extern __shared__ float4 dynamic[];
    __shared__ struct delta_gate gate;
    uint32_t tid = threadIdx.x, warp = tid / 32, width = IS_FULL ? 4 : p.conv_width;
    uint32_t dk = IS_FULL ? 32 * M : p.key_width, n = 2 * dk + DELTA_WARPS * J;
    struct head_tile tile = head_tile_of(p, p.decode_tiling, blockIdx.x);
    float *y = (float *)dynamic, *window = y + n, *weights = window + width * n;
    float s[J][M], a = 0, dt = 0;
    int n_columns;
    uint32_t column = tile.first_column + warp * J;
    float *state = p.state + state_offset<J>(p, tile, column, &n_columns);
    bool is_vec4 = IS_FULL || p.is_state_vec4;
    if (IS_FULL)
        n_columns = J;
    bool is_gate_thread = !IS_FULL && tid == THREADS - 1; /* it has the fewest channels */
    if (IS_FULL && warp == DELTA_WARPS)
        return make_gate(p, tile.head, gate);

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
    uint32_t entry = IS_FULL ? position % 4 : entry_of(p, position);
    float *new_entry = p.window + ((uint64_t)cell * width + entry) * p.channels;
    auto weight = [&](uint32_t t, uint32_t i) { return weights[t * n + i]; };
    auto before = [&](uint32_t back, uint32_t i) {
        return window[(IS_FULL ? (entry - back) % 4 : entry_before(p, entry, back)) * n + i];
    };
    for (uint32_t i = tid;;) {
        float result = 0;
        if ((IS_FULL && i < n) || (c >= 0 && width == 4))
            result = convolve4(
                position, [&](uint32_t t) { return weight(t, i); },
                [&](uint32_t back) { return before(back, i); }, x);
        else if (!IS_FULL && c >= 0)
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
    if (IS_FULL)
        any_barrier_sync(CHANNELS_BARRIER, THREADS);
    else
        __syncthreads();

    float q[M], k[M], v[J];
    if (is_vec4)
        load_qkv<J, M, true>(y, dk, q, k, v);
    else
        load_qkv<J, M, false>(y, dk, q, k, v);
    struct delta_norms norms = norms_of<M>(p, q, k);
    if (IS_FULL)
        any_barrier_sync(GATE_BARRIER, THREADS + 32);
    delta_rule<J, M>(s, q, k, v, norms, gate, p.out + tile.head * p.value_width + column,
                     n_columns);
    store_state<J, M>(s, state + cell * p.state_stride, dk, n_columns, is_vec4);
}

#define KERNEL(NAME, J, KEY, IS_FULL)                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS + 32 * IS_FULL, 2)                        \
        delta_decode_##NAME(const __grid_constant__ struct delta_params p) {                       \
        pdl_launch_dependents();                                                                   \
        delta_decode<J, KEY / 32, IS_FULL>(p);                                                     \
    }
KERNEL(full_1_128, 1, 128, true)
KERNEL(full_2_128, 2, 128, true)
KERNEL(full_4_128, 4, 128, true)
KERNEL(1_128, 1, 128, false)
KERNEL(2_128, 2, 128, false)
KERNEL(4_128, 4, 128, false)
KERNEL(1_256, 1, 256, false)
KERNEL(2_256, 2, 256, false)
KERNEL(4_256, 4, 256, false)
