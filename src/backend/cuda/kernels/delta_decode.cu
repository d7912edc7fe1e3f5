/* delta_decode.cu - DELTA of one row: a block convolves the channels that it needs itself.
 *
 * 288 channels of 4B's block. The window's entry that it writes is read by nobody. */
#include "backend/cuda/kernels/delta.cuh"

/* Dynamic shared memory: y (n), then ring and taps (conv_width, n) each. With one slot everything
 * but the row itself is on its way before the wait: an earlier kernel of the step writes none of
 * it. */
template <int J, int M>
static __device__ __forceinline__ void delta_row(const struct delta_params &p) {
    extern __shared__ float4 aligned[];
    __shared__ struct delta_gate gate;
    constexpr uint32_t TILE = DELTA_WARPS * J, THREADS = DELTA_WARPS * 32;
    uint32_t tid = threadIdx.x, warp = tid / 32, width = p.conv_width;
    uint32_t dk = p.key_width, n = 2 * dk + TILE;
    struct place at = place_of(p, p.cut, blockIdx.x);
    float *y = (float *)aligned, *ring = y + n, *taps = ring + width * n;
    float s[J][M], a = 0, dt = 0;
    int n_columns;
    uint32_t column = at.first_column + warp * J;
    float *state = p.state + state_at<J>(p, at, column, &n_columns);
    bool is_gate = tid == THREADS - 1;

    auto load = [&](uint32_t slot) {
        load_state<J, M>(s, state + slot * p.state_stride, dk, n_columns, p.is_even);
        const float *from = p.window + (uint64_t)slot * width * p.channels;
        for (uint32_t i = tid; i < n; i += THREADS) {
            int c = channel_of(p, at, i);
            for (uint32_t t = 0; t < width && c >= 0; t++)
                cp_async_4(smem_addr(ring + t * n + i), from + (uint64_t)t * p.channels + c);
        }
    };
    if (p.slots == 1)
        load(0);
    for (uint32_t i = tid; i < n; i += THREADS) {
        int c = channel_of(p, at, i);
        for (uint32_t t = 0; t < width && c >= 0; t++)
            cp_async_4(smem_addr(taps + t * n + i), p.conv + (uint64_t)c * width + t);
    }
    if (is_gate)
        a = ld_no_allocate_f32(p.a + at.head), dt = ld_no_allocate_f32(p.dt + at.head);
    pdl_wait(p.io);

    uint32_t slot = p.slots == 1 ? 0 : p.io.segments->slot;
    uint32_t position = p.io.segments->first_position;
    if (p.slots != 1)
        load(slot);
    cp_async_commit();
    float alpha = 0, beta = 0;
    if (is_gate)
        alpha = p.in[p.alpha_column + at.head], beta = p.in[p.beta_column + at.head];
    uint32_t place = ring_place(p, position);
    float *entry = p.window + ((uint64_t)slot * width + place) * p.channels;
    for (uint32_t i = tid; i < n; i += THREADS) {
        int c = channel_of(p, at, i);
        float now = c >= 0 ? p.in[c] : 0;
        cp_async_wait<0>();
        float sum = 0;
        if (c >= 0)
            sum = convolve(
                width, position, [&](uint32_t t) { return taps[t * n + i]; },
                [&](uint32_t back) {
                    return back ? ring[ring_before(p, place, back) * n + i] : now;
                });
        y[i] = sum;
        if (c >= 0 && (i >= 2 * dk || at.has_keys))
            entry[c] = now;
    }
    if (is_gate)
        gate = gate_of(alpha, beta, a, dt);
    __syncthreads();

    float q[M], k[M], v[J];
    if (p.is_even)
        take_row<J, M, true>(y, dk, q, k, v);
    else
        take_row<J, M, false>(y, dk, q, k, v);
    struct delta_key key = key_of<M>(p, q, k);
    rule<J, M>(s, q, k, v, key, gate, p.out + at.head * p.value_width + column, n_columns);
    store_state<J, M>(s, state + slot * p.state_stride, dk, n_columns, p.is_even);
}

#define KERNELS(J, KEY)                                                                            \
    extern "C" __global__ void __launch_bounds__(DELTA_WARPS * 32, 2)                              \
        delta_row_##J##_##KEY(const __grid_constant__ struct delta_params p) {                     \
        pdl_launch_dependents();                                                                   \
        delta_row<J, KEY / 32>(p);                                                                 \
    }
KERNELS(1, 128)
KERNELS(2, 128)
KERNELS(4, 128)
KERNELS(1, 256)
KERNELS(2, 256)
KERNELS(4, 256)
