/* delta.cuh - DELTA: convolution, gates and the gated delta rule.
 *
 *   y    = silu(conv(window, qkv));  q, k, v = y
 *   e    = exp(a * softplus(alpha + dt)),  b = sigmoid(beta)
 *   d[j] = b * (v[j] - e * (k . S[j]))
 *   o[j] = e * (q . S[j]) + (q . k) * d[j]
 *   S[j] = e * S[j] + d[j] * k             q, k as if normed: |q| and |k| are factors of the sums
 *
 * A block has a tile of a value head's columns, a warp 1, 2 or 4 of them, a lane four neighbours of
 * every 128 values of each, in registers: the state is read once and written once for all rows of a
 * segment, 16 bytes at a time.
 *
 * Plans of one row: delta.cu. Of more: delta_many.cu. Sums are written as fmaf and __fmul_rn so
 * that all ways round alike, whatever the compiler does around them. */
#ifndef BACKEND_CUDA_KERNELS_DELTA_CUH
#define BACKEND_CUDA_KERNELS_DELTA_CUH

#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/delta.h"

static __device__ __forceinline__ void load4(const float *p, float *x) {
    float4 v = ld_no_allocate_f32x4(p);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

/* ---- places -------------------------------------------------------------------------------- */

/* A block's place: a tile of columns of a value head. */
struct place {
    uint32_t head, key_head, first_column;
    bool has_keys; /* it is the one that moves its key head's window on */
};

static __device__ __forceinline__ struct place place_of(const struct delta_params &p,
                                                        const struct delta_cut &cut, uint32_t i) {
    uint32_t head = i / cut.tiles, group = p.value_heads / p.key_heads;
    struct place at;
    at.head = head;
    at.key_head = p.is_tiled ? head % p.key_heads : head / group;
    at.first_column = i % cut.tiles * DELTA_WARPS * cut.columns;
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

/* Where a position is in the ring. Divisions take a hundred instructions, and widths are mostly 4.
 */
static __device__ __forceinline__ uint32_t ring_place(const struct delta_params &p,
                                                      uint32_t position) {
    uint32_t width = p.conv_width;
    return width & (width - 1) ? position % width : position & (width - 1);
}

/* Entry of the ring for a position. */
static __device__ __forceinline__ float *window_at(const struct delta_params &p, uint32_t slot,
                                                   uint32_t position) {
    return p.window + ((uint64_t)slot * p.conv_width + ring_place(p, position)) * p.channels;
}

/* So many positions before a place, less than all. */
static __device__ __forceinline__ uint32_t ring_before(const struct delta_params &p, uint32_t place,
                                                       uint32_t back) {
    return place < back ? place + p.conv_width - back : place - back;
}

/* silu */
static __device__ __forceinline__ float conv_result(float sum) {
    return __fmul_rn(sum, rcp_approx(1.0f + __expf(-sum)));
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
    gate.beta = rcp_approx(1.0f + expf(-beta));
    return gate;
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

template <int M>
static __device__ __forceinline__ struct delta_key
key_of(const struct delta_params &p, const float (&q)[M], const float (&k)[M]) {
    float x[4] = {0, 0, 0, 0};
#pragma unroll
    for (int m = 0; m < M; m++) {
        x[0] = fmaf(q[m], q[m], x[0]);
        x[1] = fmaf(k[m], k[m], x[1]);
        x[2] = fmaf(q[m], k[m], x[2]);
    }
    float sum = spread_sum<4>(x); /* 8 lanes have one */
    float factor = __fmul_rn(threadIdx.x % 32 < 8 ? p.q_scale : 1.0f, rsqrt_approx(sum + 1e-6f));
    struct delta_key key;
    key.q_factor = __shfl_sync(0xffffffffu, factor, 0);
    key.k_factor = __shfl_sync(0xffffffffu, factor, 8);
    key.qk = __fmul_rn(__fmul_rn(__shfl_sync(0xffffffffu, sum, 16), key.q_factor), key.k_factor);
    key.zero = 0;
    return key;
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

/* The m-th of a lane's values of a column. */
static __device__ __forceinline__ uint32_t value_of(int m) {
    return m / 4 * 128 + threadIdx.x % 32 * 4 + m % 4;
}

/* n columns of dk values. is_even: they are whole pieces of 16 bytes. */
template <int J, int M>
static __device__ __forceinline__ void load_state(float (&s)[J][M], const float *from, uint32_t dk,
                                                  int n, bool is_even) {
#pragma unroll
    for (int i = 0; i < J * M; i++)
        s[i / M][i % M] = 0;
    if (is_even) {
#pragma unroll
        for (int i = 0; i < J * M; i += 4)
            if (i / M < n && value_of(i % M) < dk)
                load4(from + i / M * dk + value_of(i % M), &s[i / M][i % M]);
    } else {
#pragma unroll
        for (int i = 0; i < J * M; i++)
            if (i / M < n && value_of(i % M) < dk)
                s[i / M][i % M] = ld_no_allocate_f32(from + i / M * dk + value_of(i % M));
    }
}

template <int J, int M>
static __device__ __forceinline__ void store_state(const float (&s)[J][M], float *to, uint32_t dk,
                                                   int n, bool is_even) {
    if (is_even) {
#pragma unroll
        for (int i = 0; i < J * M; i += 4) {
            const float *x = &s[i / M][i % M];
            if (i / M < n && value_of(i % M) < dk)
                __stcs((float4 *)(to + i / M * dk + value_of(i % M)),
                       make_float4(x[0], x[1], x[2], x[3]));
        }
    } else {
#pragma unroll
        for (int i = 0; i < J * M; i++)
            if (i / M < n && value_of(i % M) < dk)
                __stcs(to + i / M * dk + value_of(i % M), s[i / M][i % M]);
    }
}

/* A lane's values of dk in shared memory. IS_EVEN: they are whole pieces of 16 bytes. */
template <int M, bool IS_EVEN>
static __device__ __forceinline__ void take_values(float (&x)[M], const float *from, uint32_t dk) {
#pragma unroll
    for (int m = 0; m < M; m += IS_EVEN ? 4 : 1) {
        bool is_there = value_of(m) < dk;
        if (IS_EVEN) {
            float4 v = is_there ? *(const float4 *)(from + value_of(m)) : make_float4(0, 0, 0, 0);
            x[m] = v.x, x[m + 1] = v.y, x[m + 2] = v.z, x[m + 3] = v.w;
        } else {
            x[m] = is_there ? from[value_of(m)] : 0;
        }
    }
}

/* A row's q, k and a warp's columns of v. */
template <int J, int M, bool IS_EVEN>
static __device__ __forceinline__ void take_row(const float *y, uint32_t dk, float (&q)[M],
                                                float (&k)[M], float (&v)[J]) {
    take_values<M, IS_EVEN>(q, y, dk);
    take_values<M, IS_EVEN>(k, y + dk, dk);
    y += 2 * dk + threadIdx.x / 32 * J;
    if (IS_EVEN && J == 4) {
        float4 four = *(const float4 *)y;
        v[0] = four.x, v[1 % J] = four.y, v[2 % J] = four.z, v[3 % J] = four.w;
    } else {
#pragma unroll
        for (int j = 0; j < J; j++)
            v[j] = y[j];
    }
}

/* The state's rows from a warp's first column on, and how many of them there are. */
template <int J>
static __device__ __forceinline__ uint64_t state_at(const struct delta_params &p,
                                                    const struct place &at, uint32_t column,
                                                    int *n) {
    *n = column < p.value_width ? (int)min((uint32_t)J, p.value_width - column) : 0;
    return ((uint64_t)at.head * p.value_width + (*n ? column : 0)) * p.key_width;
}

#endif
