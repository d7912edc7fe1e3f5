/* delta.cuh - what the DELTA kernels share: head tiles, the window, gates and the gated delta rule.
 *
 *   y     = silu(conv(window, qkv));  q, k, v = y
 *   decay = exp(a * softplus(alpha + dt)),  beta = sigmoid(beta)
 *   d[j]  = beta * (v[j] - decay * (k . S[j]))
 *   o[j]  = decay * (q . S[j]) + (q . k) * d[j]
 *   S[j]  = decay * S[j] + d[j] * k           with q / (|q| sqrt(dk)) and k / |k|
 *
 * q and k are not scaled themselves: struct delta_norms has the factors, which the sums are
 * multiplied by. Both dot products with S[j] are taken in one pass over it.
 *
 *   block   a head tile: 16 J columns of a value head
 *   warp    J columns (1, 2 or 4), S[j] in registers
 *   lane    M values of each column: values 4 l to 4 l + 3 of every 128
 *
 * The state is read once and written once for all rows of a segment, 16 bytes a lane at a time:
 * 8 B dv dk bytes a segment (4 MB a layer of qwen35-4b), beside which all else is small.
 *
 * Order of sums: the convolution from the oldest position on; a dot product over a lane's values in
 * order, then over lanes by xor 16, 8, 4, 2, 1. Multiplications and additions are fmaf and
 * __fmul_rn, and 1 / x and 1 / sqrt(x) are the approximate instructions, so that all kernels give
 * the same bits whatever the compiler does around them. */
#ifndef BACKEND_CUDA_KERNELS_DELTA_CUH
#define BACKEND_CUDA_KERNELS_DELTA_CUH

#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/delta.h"

enum { THREADS = DELTA_WARPS * 32 };

/* ---- head tiles ------------------------------------------------------------------------------ */

struct head_tile {
    uint32_t head, key_head, first_column;
    bool is_key_owner; /* of the tiles that share a key head, the one that writes its window */
};

/* Tile i of all value heads'. */
static __device__ __forceinline__ struct head_tile
head_tile_of(const struct delta_params &p, const struct delta_tiling &tiling, uint32_t i) {
    uint32_t head = i / tiling.tiles, heads_per_key = p.value_heads / p.key_heads;
    struct head_tile t;
    t.head = head;
    t.key_head = p.is_modulo_map ? head % p.key_heads : head / heads_per_key;
    t.first_column = i % tiling.tiles * DELTA_WARPS * tiling.columns;
    t.is_key_owner =
        t.first_column == 0 && (p.is_modulo_map ? head < p.key_heads : head % heads_per_key == 0);
    return t;
}

/* Channel i of a tile (q, then k, then its columns of v) among all; -1: beyond the head's columns.
 * New window entries of q and k are written by the key owner alone. */
static __device__ __forceinline__ int channel_of(const struct delta_params &p,
                                                 const struct head_tile &t, uint32_t i) {
    uint32_t dk = p.key_width, all_keys = p.key_heads * dk;
    if (i < dk)
        return (int)(t.key_head * dk + i);
    if (i < 2 * dk)
        return (int)(all_keys + t.key_head * dk + i - dk);
    uint32_t column = t.first_column + i - 2 * dk;
    return column < p.value_width ? (int)(2 * all_keys + t.head * p.value_width + column) : -1;
}

/* Values from a cell's state to a warp's first column, and how many columns the warp has. */
template <int J>
static __device__ __forceinline__ uint64_t state_offset(const struct delta_params &p,
                                                        const struct head_tile &t, uint32_t column,
                                                        int *n) {
    *n = column < p.value_width ? (int)min((uint32_t)J, p.value_width - column) : 0;
    return ((uint64_t)t.head * p.value_width + (*n ? column : 0)) * p.key_width;
}

/* ---- the window ------------------------------------------------------------------------------ */

/* position % conv_width. A division is a hundred instructions, and most widths are 4. */
static __device__ __forceinline__ uint32_t entry_of(const struct delta_params &p,
                                                    uint32_t position) {
    uint32_t width = p.conv_width;
    return width & (width - 1) ? position % width : position & (width - 1);
}

/* The entry of `back` positions earlier, back < conv_width. */
static __device__ __forceinline__ uint32_t entry_before(const struct delta_params &p,
                                                        uint32_t entry, uint32_t back) {
    return entry < back ? entry + p.conv_width - back : entry - back;
}

static __device__ __forceinline__ float *window_at(const struct delta_params &p, uint32_t cell,
                                                   uint32_t position) {
    return p.window + ((uint64_t)cell * p.conv_width + entry_of(p, position)) * p.channels;
}

/* The inputs up to a row of the segment become a cell's window, for the tile's channels. In place,
 * those before the segment are there already. */
static __device__ __forceinline__ void store_window(const struct delta_params &p,
                                                    const struct head_tile &tile,
                                                    const struct io_segment &g, uint32_t row,
                                                    uint32_t cell, uint32_t tile_columns,
                                                    uint32_t thread, uint32_t n_threads) {
    uint32_t position = g.first_position + row, n = 2 * p.key_width + tile_columns;
    uint32_t kept = min(cell == g.cell ? row : position, p.conv_width - 1) + 1;
    for (uint32_t i = thread; i < n * kept; i += n_threads) {
        uint32_t back = i / n;
        int c = channel_of(p, tile, i % n);
        if (c < 0 || (i % n < 2 * p.key_width && !tile.is_key_owner))
            continue;
        window_at(p, cell, position - back)[c] =
            back <= row ? p.in[(uint64_t)(g.first_row + row - back) * p.in_stride + c]
                        : window_at(p, g.cell, position - back)[c];
    }
}

/* ---- pointwise functions ------------------------------------------------------------------ */

static __device__ __forceinline__ float silu_approx(float x) {
    return __fmul_rn(x, rcp_approx(1.0f + __expf(-x)));
}

static __device__ __forceinline__ struct delta_gate gate_of(float alpha, float beta, float a,
                                                            float dt) {
    float x = alpha + dt, softplus = x > 20.0f ? x : log1pf(expf(x));
    struct delta_gate gate = {};
    gate.decay = expf(__fmul_rn(a, softplus));
    gate.beta = rcp_approx(1.0f + expf(-beta));
    return gate;
}

/* ---- the rule ----------------------------------------------------------------------------- */

/* N sums over the warp at once: lane l returns that of x[l / (32 / N)]. Each sum has the bits of
 * warp_sum; N - 1 + 5 - log2 N shuffles instead of 5 N. */
template <int N, int D = 16> static __device__ __forceinline__ float warp_sums(float (&x)[N]) {
    uint32_t lane = threadIdx.x % 32;
    int d = D;
    if constexpr (N > 8) { /* the loop below is not unrolled so often */
        float half[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float give = lane & D ? x[i] : x[i + N / 2], keep = lane & D ? x[i + N / 2] : x[i];
            half[i] = keep + __shfl_xor_sync(0xffffffffu, give, D);
        }
        return warp_sums<N / 2, D / 2>(half);
    }
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

/* Of a warp that holds q and k of a row. */
template <int M>
static __device__ __forceinline__ struct delta_norms
norms_of(const struct delta_params &p, const float (&q)[M], const float (&k)[M]) {
    float x[4] = {0, 0, 0, 0};
#pragma unroll
    for (int m = 0; m < M; m++) {
        x[0] = fmaf(q[m], q[m], x[0]);
        x[1] = fmaf(k[m], k[m], x[1]);
        x[2] = fmaf(q[m], k[m], x[2]);
    }
    float sum = warp_sums<4>(x); /* in 8 lanes each */
    float factor = __fmul_rn(threadIdx.x % 32 < 8 ? p.q_scale : 1.0f, rsqrt_approx(sum + 1e-6f));
    struct delta_norms norms;
    norms.q_factor = __shfl_sync(0xffffffffu, factor, 0);
    norms.k_factor = __shfl_sync(0xffffffffu, factor, 8);
    norms.qk =
        __fmul_rn(__fmul_rn(__shfl_sync(0xffffffffu, sum, 16), norms.q_factor), norms.k_factor);
    norms.padding = 0;
    return norms;
}

/* What a row adds to a column: dk times k. */
template <int M>
static __device__ __forceinline__ void update_column(float (&s)[M], const float (&k)[M], float dk,
                                                     float decay) {
#pragma unroll
    for (int m = 0; m < M; m++)
        s[m] = fmaf(dk, k[m], __fmul_rn(decay, s[m]));
}

/* One row of the rule for a warp's J columns, of which the first n are stored to `out`. Not
 * UPDATES: s stays as it was, and all_dk says what it lacks. */
template <int J, int M, bool UPDATES>
static __device__ __forceinline__ void
delta_row(float (&s)[J][M], const float (&q)[M], const float (&k)[M], const float (&v)[J],
          const struct delta_norms &norms, const struct delta_gate &gate, float *out, int n,
          float (&all_dk)[J]) {
    constexpr int SUM_LANES = 32 / (2 * J); /* that hold the same sum after warp_sums */
    int lane = threadIdx.x % 32, own_j = lane / SUM_LANES / 2;
    float x[2 * J], d[J], own_d = 0;
#pragma unroll
    for (int j = 0; j < J; j++) {
        x[2 * j] = x[2 * j + 1] = 0;
#pragma unroll
        for (int m = 0; m < M; m++) {
            x[2 * j] = fmaf(s[j][m], k[m], x[2 * j]);
            x[2 * j + 1] = fmaf(s[j][m], q[m], x[2 * j + 1]);
        }
    }
    float sum = warp_sums<2 * J>(x);
#pragma unroll
    for (int j = 0; j < J; j++) {
        float ks = __fmul_rn(__shfl_sync(0xffffffffu, sum, 2 * j * SUM_LANES), norms.k_factor);
        d[j] = __fmul_rn(gate.beta, fmaf(-gate.decay, ks, v[j]));
        own_d = j == own_j ? d[j] : own_d;
        all_dk[j] = __fmul_rn(d[j], norms.k_factor);
        if (UPDATES)
            update_column<M>(s[j], k, all_dk[j], gate.decay);
    }
    /* `sum` is q . S[own_j] in the lanes that store. */
    float o = fmaf(gate.decay, __fmul_rn(sum, norms.q_factor), __fmul_rn(norms.qk, own_d));
    if (lane % (2 * SUM_LANES) == SUM_LANES && own_j < n)
        out[own_j] = o;
}

template <int J, int M>
static __device__ __forceinline__ void
delta_rule(float (&s)[J][M], const float (&q)[M], const float (&k)[M], const float (&v)[J],
           const struct delta_norms &norms, const struct delta_gate &gate, float *out, int n) {
    float dk[J];
    delta_row<J, M, true>(s, q, k, v, norms, gate, out, n, dk);
}

/* ---- a lane's values: between registers and memory ------------------------------------------- */

/* Which of a column's dk values a lane's m-th is. */
static __device__ __forceinline__ uint32_t value_index(int m) {
    return m / 4 * 128 + threadIdx.x % 32 * 4 + m % 4;
}

static __device__ __forceinline__ void unpack4(float4 v, float *x) {
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

/* n columns of dk values from global memory, zeros beyond them. */
template <int J, int M>
static __device__ __forceinline__ void load_state(float (&s)[J][M], const float *from, uint32_t dk,
                                                  int n, bool is_vec4) {
#pragma unroll
    for (int i = 0; i < J * M; i++)
        s[i / M][i % M] = 0;
    if (is_vec4) {
#pragma unroll
        for (int i = 0; i < J * M; i += 4)
            if (i / M < n && value_index(i % M) < dk)
                unpack4(ld_no_allocate_f32x4(from + i / M * dk + value_index(i % M)),
                        &s[i / M][i % M]);
    } else {
#pragma unroll
        for (int i = 0; i < J * M; i++)
            if (i / M < n && value_index(i % M) < dk)
                s[i / M][i % M] = ld_no_allocate_f32(from + i / M * dk + value_index(i % M));
    }
}

template <int J, int M>
static __device__ __forceinline__ void store_state(const float (&s)[J][M], float *to, uint32_t dk,
                                                   int n, bool is_vec4) {
    if (is_vec4) {
#pragma unroll
        for (int i = 0; i < J * M; i += 4) {
            const float *x = &s[i / M][i % M];
            if (i / M < n && value_index(i % M) < dk)
                __stcs((float4 *)(to + i / M * dk + value_index(i % M)),
                       make_float4(x[0], x[1], x[2], x[3]));
        }
    } else {
#pragma unroll
        for (int i = 0; i < J * M; i++)
            if (i / M < n && value_index(i % M) < dk)
                __stcs(to + i / M * dk + value_index(i % M), s[i / M][i % M]);
    }
}

/* dk values from shared memory, zeros beyond them. */
template <int M, bool IS_VEC4>
static __device__ __forceinline__ void load_shared_values(float (&x)[M], const float *from,
                                                          uint32_t dk) {
#pragma unroll
    for (int m = 0; m < M; m += IS_VEC4 ? 4 : 1) {
        bool is_inside = value_index(m) < dk;
        if (IS_VEC4) {
            float4 v =
                is_inside ? *(const float4 *)(from + value_index(m)) : make_float4(0, 0, 0, 0);
            x[m] = v.x, x[m + 1] = v.y, x[m + 2] = v.z, x[m + 3] = v.w;
        } else {
            x[m] = is_inside ? from[value_index(m)] : 0;
        }
    }
}

/* q, k and the warp's columns of v from a row's channels y in shared memory. */
template <int J, int M, bool IS_VEC4>
static __device__ __forceinline__ void load_qkv(const float *y, uint32_t dk, float (&q)[M],
                                                float (&k)[M], float (&v)[J]) {
    load_shared_values<M, IS_VEC4>(q, y, dk);
    load_shared_values<M, IS_VEC4>(k, y + dk, dk);
    y += 2 * dk + threadIdx.x / 32 * J;
    if (IS_VEC4 && J == 4) {
        float4 four = *(const float4 *)y;
        v[0] = four.x, v[1 % J] = four.y, v[2 % J] = four.z, v[3 % J] = four.w;
    } else {
#pragma unroll
        for (int j = 0; j < J; j++)
            v[j] = y[j];
    }
}

#endif
