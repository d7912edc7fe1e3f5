/* delta.cu - DELTA: convolution, gates and the gated delta rule.
 *
 *   y    = silu(conv(window, qkv));  q, k, v = y
 *   e    = exp(a * softplus(alpha + dt)),  b = sigmoid(beta)
 *   d[j] = b * (v[j] - e * (k . S[j]))
 *   o[j] = e * (q . S[j]) + (q . k) * d[j]
 *   S[j] = e * S[j] + d[j] * k             q, k as if normed: |q| and |k| are factors of the sums
 *
 * A block has a tile of a value head's columns, a warp 1, 2 or 4 of them, a lane every 32nd value
 * of each, in registers: the state is read once and written once for all rows of a segment.
 *
 * Plans of one row are one kernel (delta_row): 288 channels of 4B's block are convolved by the
 * block itself. The window's entry that it writes is read by nobody. For more rows delta_conv does
 * that once for all, and delta_rule walks each segment's rows; behind the first nobody reads the
 * window, so the second moves it on.
 *
 * Sums are written as fmaf and __fmul_rn so that both ways round alike, whatever the compiler does
 * around them. */
#include "backend/cuda/delta.h"
#include "backend/cuda/device.cuh"

static __device__ __forceinline__ uint32_t smem_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void copy4(float *to, const float *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_address(to)), "l"(from)
                 : "memory");
}

static __device__ __forceinline__ void copy16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_address(to)), "l"(from)
                 : "memory");
}

static __device__ __forceinline__ void copies_end(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All groups of copies but the last `left` have arrived. */
template <int left> static __device__ __forceinline__ void copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

static __device__ __forceinline__ float load_once(const float *p) {
    float x;
    asm volatile("ld.global.L1::no_allocate.f32 %0, [%1];" : "=f"(x) : "l"(p));
    return x;
}

/* ---- what both ways share ------------------------------------------------------------------- */

/* A block's place: a tile of columns of a value head. */
struct place {
    uint32_t head, key_head, first_column;
    bool has_keys; /* it is the one that moves its key head's window on */
};

static __device__ __forceinline__ struct place place_of(const struct delta_params &p,
                                                        uint32_t block, uint32_t tile) {
    uint32_t head = block / p.tiles, group = p.value_heads / p.key_heads;
    struct place at;
    at.head = head;
    at.key_head = p.is_tiled ? head % p.key_heads : head / group;
    at.first_column = block % p.tiles * tile;
    at.has_keys = at.first_column == 0 && (p.is_tiled ? head < p.key_heads : head % group == 0);
    return at;
}

/* The i-th of the channels that a block needs: q, k, its columns of v. -1: none. */
static __device__ __forceinline__ int channel_of(const struct delta_params &p,
                                                 const struct place &at, uint32_t i) {
    uint32_t dk = p.key_width, keys = p.key_heads * dk;
    if (i < dk)
        return (int)(at.key_head * dk + i);
    if (i < 2 * dk)
        return (int)(keys + at.key_head * dk + i - dk);
    uint32_t column = at.first_column + i - 2 * dk;
    return column < p.value_width ? (int)(2 * keys + at.head * p.value_width + column) : -1;
}

/* Entry of the ring for a position. */
static __device__ __forceinline__ float *window_at(const struct delta_params &p, uint32_t slot,
                                                   uint32_t position) {
    return p.window + ((uint64_t)slot * p.conv_width + position % p.conv_width) * p.channels;
}

static __device__ __forceinline__ float conv_result(float sum) {
    return __fdiv_rn(sum, 1.0f + __expf(-sum));
}

/* silu of the taps' sum, oldest first; positions before the beginning are left out. */
template <class TAP, class RAW>
static __device__ __forceinline__ float convolve(uint32_t width, uint32_t position, TAP tap,
                                                 RAW raw) {
    float sum = 0;
#pragma unroll 4
    for (uint32_t t = 0; t < width; t++) {
        uint32_t back = width - 1 - t;
        if (back <= position)
            sum = fmaf(tap(t), raw(back), sum);
    }
    return conv_result(sum);
}

static __device__ __forceinline__ struct delta_gate gate_of(float alpha, float beta, float a,
                                                            float dt) {
    float x = alpha + dt, softplus = x > 20.0f ? x : log1pf(expf(x));
    struct delta_gate gate = {};
    gate.decay = expf(__fmul_rn(a, softplus));
    gate.beta = __fdiv_rn(1.0f, 1.0f + expf(-beta));
    return gate;
}

template <int M>
static __device__ __forceinline__ struct delta_key
key_of(const struct delta_params &p, const float (&q)[M], const float (&k)[M]) {
    float qq = 0, kk = 0, qk = 0;
#pragma unroll
    for (int m = 0; m < M; m++) {
        qq = fmaf(q[m], q[m], qq);
        kk = fmaf(k[m], k[m], kk);
        qk = fmaf(q[m], k[m], qk);
    }
    qq = warp_sum(qq), kk = warp_sum(kk), qk = warp_sum(qk);
    struct delta_key key;
    key.q_factor = __fdiv_rn(p.q_scale, __fsqrt_rn(qq + 1e-6f));
    key.k_factor = __fdiv_rn(1.0f, __fsqrt_rn(kk + 1e-6f));
    key.qk = __fmul_rn(__fmul_rn(qk, key.q_factor), key.k_factor);
    key.zero = 0;
    return key;
}

/* N sums over the warp at once: lane l has that of x[l / (32 / N)]. The order of additions is
 * warp_sum's, so the bits are too; N - 1 + 5 - log2 N shuffles instead of 5 N. */
template <int N> static __device__ __forceinline__ float spread_sum(float (&x)[N]) {
    uint32_t lane = threadIdx.x % 32;
    int d = 16;
#pragma unroll
    for (int n = N / 2; n > 0; n /= 2, d /= 2) {
        bool is_upper = lane & d;
#pragma unroll
        for (int i = 0; i < n; i++) {
            float give = is_upper ? x[i] : x[i + n], keep = is_upper ? x[i + n] : x[i];
            x[i] = keep + __shfl_xor_sync(0xffffffffu, give, d);
        }
    }
#pragma unroll
    for (; d > 0; d /= 2)
        x[0] += __shfl_xor_sync(0xffffffffu, x[0], d);
    return x[0];
}

/* One row of the rule for a warp's J columns; `out` is the row's at the first of n of them. */
template <int J, int M>
static __device__ __forceinline__ void
rule(float (&s)[J][M], const float (&q)[M], const float (&k)[M], const float (&v)[J],
     const struct delta_key &key, const struct delta_gate &gate, float *out, int n) {
    constexpr int SHARE = 32 / (2 * J); /* lanes that have one sum */
    int lane = threadIdx.x % 32, j_own = lane / SHARE / 2;
    float x[2 * J], d[J], d_own = 0;
#pragma unroll
    for (int j = 0; j < J; j++) {
        x[2 * j] = x[2 * j + 1] = 0;
#pragma unroll
        for (int m = 0; m < M; m++) {
            x[2 * j] = fmaf(s[j][m], k[m], x[2 * j]);
            x[2 * j + 1] = fmaf(s[j][m], q[m], x[2 * j + 1]);
        }
    }
    float sum = spread_sum<2 * J>(x);
#pragma unroll
    for (int j = 0; j < J; j++) {
        float ks = __fmul_rn(__shfl_sync(0xffffffffu, sum, 2 * j * SHARE), key.k_factor);
        d[j] = __fmul_rn(gate.beta, fmaf(-gate.decay, ks, v[j]));
        d_own = j == j_own ? d[j] : d_own;
        float dk = __fmul_rn(d[j], key.k_factor);
#pragma unroll
        for (int m = 0; m < M; m++)
            s[j][m] = fmaf(dk, k[m], __fmul_rn(gate.decay, s[j][m]));
    }
    float o = fmaf(gate.decay, __fmul_rn(sum, key.q_factor), __fmul_rn(key.qk, d_own));
    if (lane % (2 * SHARE) == SHARE && j_own < n)
        out[j_own] = o;
}

template <int J, int M>
static __device__ __forceinline__ void load_state(float (&s)[J][M], const float *from, uint32_t dk,
                                                  int n) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int m = 0; m < M; m++)
            s[j][m] = j < n && lane + 32 * m < dk ? load_once(from + j * dk + lane + 32 * m) : 0;
}

template <int J, int M>
static __device__ __forceinline__ void store_state(const float (&s)[J][M], float *to, uint32_t dk,
                                                   int n) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int m = 0; m < M; m++)
            if (j < n && lane + 32 * m < dk)
                to[j * dk + lane + 32 * m] = s[j][m];
}

/* The state's rows from a warp's first column on, and how many of them there are. */
template <int J>
static __device__ __forceinline__ uint64_t state_at(const struct delta_params &p,
                                                    const struct place &at, uint32_t column,
                                                    int *n) {
    *n = column < p.value_width ? (int)min((uint32_t)J, p.value_width - column) : 0;
    return ((uint64_t)at.head * p.value_width + (*n ? column : 0)) * p.key_width;
}

static __device__ __forceinline__ uint64_t state_stride(const struct delta_params &p) {
    return (uint64_t)p.value_heads * p.value_width * p.key_width;
}

/* ---- one row -------------------------------------------------------------------------------- */

/* Dynamic shared memory: y (n), then ring and taps (conv_width, n) each. With one slot everything
 * but the row itself is on its way before the wait: an earlier kernel of the step writes none of
 * it. */
template <int J, int M>
static __device__ __forceinline__ void delta_row(const struct delta_params &p) {
    extern __shared__ float shared[];
    __shared__ struct delta_gate gate;
    constexpr uint32_t TILE = DELTA_WARPS * J, THREADS = DELTA_WARPS * 32;
    uint32_t tid = threadIdx.x, lane = tid % 32, warp = tid / 32, width = p.conv_width;
    uint32_t dk = p.key_width, n = 2 * dk + TILE;
    struct place at = place_of(p, blockIdx.x, TILE);
    float *y = shared, *ring = y + n, *taps = ring + width * n;
    float s[J][M], a = 0, dt = 0;
    int n_columns;
    uint32_t column = at.first_column + warp * J;
    float *state = p.state + state_at<J>(p, at, column, &n_columns);
    bool is_gate = tid == THREADS - 1;

    auto load = [&](uint32_t slot) {
        load_state<J, M>(s, state + slot * state_stride(p), dk, n_columns);
        const float *from = p.window + (uint64_t)slot * width * p.channels;
        for (uint32_t i = tid; i < n; i += THREADS) {
            int c = channel_of(p, at, i);
            for (uint32_t t = 0; t < width && c >= 0; t++)
                copy4(ring + t * n + i, from + (uint64_t)t * p.channels + c);
        }
    };
    if (p.slots == 1)
        load(0);
    for (uint32_t i = tid; i < n; i += THREADS) {
        int c = channel_of(p, at, i);
        for (uint32_t t = 0; t < width && c >= 0; t++)
            copy4(taps + t * n + i, p.conv + (uint64_t)c * width + t);
    }
    if (is_gate)
        a = load_once(p.a + at.head), dt = load_once(p.dt + at.head);
    pdl_wait(p.io);

    uint32_t slot = p.slots == 1 ? 0 : p.io.segments->slot;
    uint32_t position = p.io.segments->first_position;
    if (p.slots != 1)
        load(slot);
    copies_end();
    float alpha = 0, beta = 0;
    if (is_gate)
        alpha = p.in[p.alpha_column + at.head], beta = p.in[p.beta_column + at.head];
    float *entry = window_at(p, slot, position);
    for (uint32_t i = tid; i < n; i += THREADS) {
        int c = channel_of(p, at, i);
        float now = c >= 0 ? p.in[c] : 0;
        copies_wait<0>();
        float sum = 0;
        if (c >= 0)
            sum = convolve(
                width, position, [&](uint32_t t) { return taps[t * n + i]; },
                [&](uint32_t back) {
                    return back ? ring[(position - back) % width * n + i] : now;
                });
        y[i] = sum;
        if (c >= 0 && (i >= 2 * dk || at.has_keys))
            entry[c] = now;
    }
    if (is_gate)
        gate = gate_of(alpha, beta, a, dt);
    __syncthreads();

    float q[M], k[M], v[J];
#pragma unroll
    for (int m = 0; m < M; m++) {
        uint32_t i = lane + 32 * m;
        q[m] = i < dk ? y[i] : 0, k[m] = i < dk ? y[dk + i] : 0;
    }
#pragma unroll
    for (int j = 0; j < J; j++)
        v[j] = y[2 * dk + warp * J + j];
    struct delta_key key = key_of<M>(p, q, k);
    rule<J, M>(s, q, k, v, key, gate, p.out + at.head * p.value_width + column, n_columns);
    store_state<J, M>(s, state + slot * state_stride(p), dk, n_columns);
}

/* ---- many rows: the convolution ------------------------------------------------------------- */

/* Where the raw values of a row and of those before it lie, oldest first; NULL before the
 * beginning. W is the convolution's width, or the widest. */
template <int W> struct raw_rows {
    uint32_t row;
    const float *at[W];
};

template <int W>
static __device__ __forceinline__ struct raw_rows<W> raw_rows_of(const struct delta_params &p,
                                                                 uint32_t row) {
    struct io_row io = p.io.rows[row];
    uint32_t own = io.position - p.io.segments[io.segment].first_position;
    struct raw_rows<W> r;
    r.row = row;
#pragma unroll
    for (int t = 0; t < W; t++) {
        uint32_t back = p.conv_width - 1 - t; /* t beyond the width: beyond all positions */
        r.at[t] = back > io.position ? NULL
                  : back <= own      ? p.in + (uint64_t)(row - back) * p.in_stride
                                     : window_at(p, io.slot, io.position - back);
    }
    return r;
}

/* N channels, 32 apart, those below `end`: all loads before the first sum. */
template <int W, int N>
static __device__ __forceinline__ void conv_channels(const struct delta_params &p,
                                                     const struct raw_rows<W> &r, uint32_t c,
                                                     uint32_t end, float (&y)[N]) {
    float raw[N][W], taps[N][W];
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int t = 0; t < W; t++) {
            bool is_there = r.at[t] && c + 32 * i < end;
            raw[i][t] = is_there ? r.at[t][c + 32 * i] : 0;
            taps[i][t] = is_there ? p.conv[(uint64_t)(c + 32 * i) * p.conv_width + t] : 0;
        }
#pragma unroll
    for (int i = 0; i < N; i++) {
        float sum = 0;
#pragma unroll
        for (int t = 0; t < W; t++)
            sum = r.at[t] ? fmaf(taps[i][t], raw[i][t], sum) : sum;
        y[i] = c + 32 * i < end ? conv_result(sum) : 0;
    }
}

template <int W>
static __device__ __forceinline__ void conv_keys(const struct delta_params &p,
                                                 const struct raw_rows<W> &r, uint32_t head) {
    constexpr int M = DELTA_MAX_WIDTH / 32, N = W == 4 ? 4 : 2;
    uint32_t lane = threadIdx.x % 32, dk = p.key_width;
    uint64_t item = (uint64_t)r.row * p.key_heads + head;
    float *to = p.qk + item * 2 * p.padded_key, q[M], k[M];
#pragma unroll
    for (int m = 0; m < M; m += N) {
        uint32_t first = head * dk, second = (p.key_heads + head) * dk, i = lane + 32 * m;
        float y[N];
        conv_channels<W, N>(p, r, first + i, first + dk, y);
#pragma unroll
        for (int n = 0; n < N; n++)
            q[m + n] = y[n];
        conv_channels<W, N>(p, r, second + i, second + dk, y);
#pragma unroll
        for (int n = 0; n < N; n++) {
            k[m + n] = y[n];
            if (i + 32 * n < p.padded_key)
                to[i + 32 * n] = q[m + n], to[p.padded_key + i + 32 * n] = k[m + n];
        }
    }
    struct delta_key key = key_of<M>(p, q, k);
    if (lane == 0)
        p.keys[item] = key;
}

template <int W>
static __device__ __forceinline__ void conv_values(const struct delta_params &p,
                                                   const struct raw_rows<W> &r, uint32_t head) {
    constexpr int N = W == 4 ? 4 : 2;
    uint32_t lane = threadIdx.x % 32, dv = p.value_width;
    uint64_t item = (uint64_t)r.row * p.value_heads + head;
    uint32_t first = 2 * p.key_heads * p.key_width + head * dv;
    const float *in = p.in + r.row * p.in_stride;
    for (uint32_t i = lane; i < p.padded_value; i += 32 * N) {
        float y[N];
        conv_channels<W, N>(p, r, first + i, first + dv, y);
#pragma unroll
        for (int n = 0; n < N; n++)
            if (i + 32 * n < p.padded_value)
                p.v[item * p.padded_value + i + 32 * n] = y[n];
    }
    if (lane == 0)
        p.gates[item] =
            gate_of(in[p.alpha_column + head], in[p.beta_column + head], p.a[head], p.dt[head]);
}

template <int W>
static __device__ __forceinline__ void conv_head(const struct delta_params &p, uint32_t row,
                                                 uint32_t head) {
    struct raw_rows<W> r = raw_rows_of<W>(p, row);
    if (head < p.key_heads)
        conv_keys<W>(p, r, head);
    else
        conv_values<W>(p, r, head - p.key_heads);
}

/* A warp takes a key head or a value head of a row. */
extern "C" __global__ void __launch_bounds__(256)
    delta_conv(const __grid_constant__ struct delta_params p) {
    pdl_launch();
    pdl_wait(p.io);
    uint32_t heads = p.key_heads + p.value_heads, warps = gridDim.x * (blockDim.x / 32);
    uint32_t items = p.io.header->n_rows * heads;
    for (uint32_t i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < items; i += warps) {
        uint32_t row = i / heads, head = i % heads;
        if (p.conv_width == 4)
            conv_head<4>(p, row, head);
        else
            conv_head<8>(p, row, head);
    }
}

/* ---- many rows: the rule -------------------------------------------------------------------- */

/* Of a row in shared memory: q, k, the tile's v, key and gate. */
template <int J, int M> struct row_layout {
    static constexpr int KEY = 32 * M, TILE = DELTA_WARPS * J, VALUES = 2 * KEY + TILE + 8;
};

/* Copies of n rows from `row` on; 16 bytes a thread and turn. */
template <int J, int M>
static __device__ __forceinline__ void fetch_rows(const struct delta_params &p,
                                                  const struct place &at, float *to, uint32_t row,
                                                  uint32_t n) {
    using L = row_layout<J, M>;
    constexpr uint32_t QK = 2 * L::KEY / 4, V = L::TILE / 4, ALL = QK + V + 2;
    for (uint32_t i = threadIdx.x; i < n * ALL; i += DELTA_WARPS * 32) {
        uint64_t r = row + i / ALL, piece = i % ALL;
        uint64_t key = r * p.key_heads + at.key_head, value = r * p.value_heads + at.head;
        const void *from;
        if (piece < QK)
            from = p.qk + key * 2 * L::KEY + piece * 4;
        else if (piece < QK + V)
            from = p.v + value * p.padded_value + at.first_column + (piece - QK) * 4;
        else
            from = piece == QK + V ? (const void *)(p.keys + key) : (const void *)(p.gates + value);
        copy16(to + i / ALL * L::VALUES + piece * 4, from);
    }
    copies_end();
}

template <int J, int M>
static __device__ __forceinline__ void run_row(float (&s)[J][M], const float *from, float *out,
                                               int n_columns) {
    using L = row_layout<J, M>;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float q[M], k[M], v[J];
#pragma unroll
    for (int m = 0; m < M; m++)
        q[m] = from[lane + 32 * m], k[m] = from[L::KEY + lane + 32 * m];
#pragma unroll
    for (int j = 0; j < J; j++)
        v[j] = from[2 * L::KEY + warp * J + j];
    struct delta_key key = *(const struct delta_key *)(from + 2 * L::KEY + L::TILE);
    struct delta_gate gate = *(const struct delta_gate *)(from + 2 * L::KEY + L::TILE + 4);
    rule<J, M>(s, q, k, v, key, gate, out, n_columns);
}

/* The ring holds the segment's last raw values afterwards. */
static __device__ __forceinline__ void move_window(const struct delta_params &p,
                                                   const struct place &at,
                                                   const struct io_segment &g, uint32_t tile) {
    uint32_t kept = min(g.n_rows, p.conv_width), n = 2 * p.key_width + tile;
    for (uint32_t i = threadIdx.x; i < n * kept; i += DELTA_WARPS * 32) {
        uint32_t row = g.n_rows - kept + i / n;
        int c = channel_of(p, at, i % n);
        if (c >= 0 && (i % n >= 2 * p.key_width || at.has_keys))
            window_at(p, g.slot, g.first_position + row)[c] =
                p.in[(uint64_t)(g.first_row + row) * p.in_stride + c];
    }
}

template <int J, int M>
static __device__ __forceinline__ void run_segment(const struct delta_params &p,
                                                   const struct place &at,
                                                   const struct io_segment &g, float *shared) {
    using L = row_layout<J, M>;
    constexpr uint32_t STAGE = DELTA_STAGE_ROWS;
    float s[J][M];
    int n_columns;
    uint32_t column = at.first_column + threadIdx.x / 32 * J;
    float *state = p.state + g.slot * state_stride(p) + state_at<J>(p, at, column, &n_columns);
    float *out = p.out + g.first_row * p.out_stride + at.head * p.value_width + column;
    load_state<J, M>(s, state, p.key_width, n_columns);
    fetch_rows<J, M>(p, at, shared, g.first_row, min(STAGE, g.n_rows));
    for (uint32_t first = 0, side = 0; first < g.n_rows; first += STAGE, side ^= 1) {
        uint32_t n = min(STAGE, g.n_rows - first), next = first + STAGE;
        if (next < g.n_rows) {
            fetch_rows<J, M>(p, at, shared + (side ^ 1) * STAGE * L::VALUES, g.first_row + next,
                             min(STAGE, g.n_rows - next));
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        for (uint32_t r = 0; r < n; r++, out += p.out_stride)
            run_row<J, M>(s, shared + (side * STAGE + r) * L::VALUES, out, n_columns);
        __syncthreads(); /* the next turn copies over what was just read */
    }
    store_state<J, M>(s, state, p.key_width, n_columns);
    move_window(p, at, g, L::TILE);
}

template <int J, int M>
static __device__ __forceinline__ void delta_rule(const struct delta_params &p) {
    extern __shared__ float4 aligned[];
    pdl_wait(p.io);
    struct place at = place_of(p, blockIdx.x, DELTA_WARPS * J);
    uint32_t n = p.io.header->n_segments;
    for (uint32_t i = blockIdx.y; i < n; i += gridDim.y)
        run_segment<J, M>(p, at, p.io.segments[i], (float *)aligned);
}

#define KERNELS(J, KEY)                                                                            \
    extern "C" __global__ void __launch_bounds__(DELTA_WARPS * 32, 2)                              \
        delta_row_##J##_##KEY(const __grid_constant__ struct delta_params p) {                     \
        pdl_launch();                                                                              \
        delta_row<J, KEY / 32>(p);                                                                 \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(DELTA_WARPS * 32, 2)                              \
        delta_rule_##J##_##KEY(const __grid_constant__ struct delta_params p) {                    \
        pdl_launch();                                                                              \
        delta_rule<J, KEY / 32>(p);                                                                \
    }
KERNELS(1, 128)
KERNELS(2, 128)
KERNELS(4, 128)
KERNELS(1, 256)
KERNELS(2, 256)
KERNELS(4, 256)
