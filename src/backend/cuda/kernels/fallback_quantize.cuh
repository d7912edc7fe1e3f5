/* fallback_quantize.cuh - activation rows on their way to rows.cuh's products: the norm, then int8.
 *
 * A block of STREAM_THREADS prepares a row; whether all blocks do so for themselves in shared
 * memory or one does for all in global memory, the bits are the same. */
#ifndef BACKEND_CUDA_KERNELS_FALLBACK_QUANTIZE_CUH
#define BACKEND_CUDA_KERNELS_FALLBACK_QUANTIZE_CUH

#include <float.h>

#include "backend/cuda/kernels/fallback_stream.cuh"

/* The sum over the block, added up in one order. `room`: STREAM_WARPS floats in shared memory. */
static __device__ __forceinline__ float block_sum(float x, float *room) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < STREAM_WARPS; w++)
        x += room[w];
    return x;
}

static __device__ __forceinline__ float norm_factor(float squares, uint32_t n, float eps) {
    return 1.0f / sqrtf(squares / (float)n + eps);
}

static __device__ __forceinline__ uint32_t lanes_max(uint32_t x, int lanes) {
    for (int i = lanes / 2; i > 0; i >>= 1)
        x = max(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

/* Values 4i.. of a row of n, zeros behind its end; the row needs no alignment. */
static __device__ __forceinline__ void load_four(const float *x, uint32_t i, uint32_t n,
                                                 float (&v)[4]) {
    if (4 * i + 4 <= n && ((uintptr_t)x & 15) == 0) {
        float4 f = *(const float4 *)(x + 4 * i);
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
        return;
    }
#pragma unroll
    for (int b = 0; b < 4; b++)
        v[b] = 4 * i + b < n ? x[4 * i + b] : 0;
}

/* Where a prepared row goes: f32 (n), int8 (act_stride(n) and its runs), or both; NULL: not. */
struct row_places {
    float *y;
    int8_t *q;
    float2 *runs;
    uint32_t group; /* values of q that share a scale: 32 or 128 */
};

/* Four values of a group that 8 or 32 lanes share, as act_quantize has them: value 4i on. q has
 * room for act_stride(k). */
static __device__ __forceinline__ void quantize_four(const float (&v)[4], uint32_t i, bool is_there,
                                                     const row_places &to) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds, half to even */
    uint32_t most = 0, word = 0;
    /* On the bits infinity is above all numbers and NaN above that: neither can hide. */
#pragma unroll
    for (int b = 0; b < 4; b++)
        most = max(most, __float_as_uint(v[b]) & 0x7fffffffu);
    most = to.group > 32 ? lanes_max(most, 32) : lanes_max(most, 8);
    float scale = __uint_as_float(most) / 127.0f;
    scale = scale < FLT_MIN ? 0.0f : scale;
    bool is_usual = scale > 0 && scale <= FLT_MAX;
    float inverse = is_usual ? 1.0f / scale : 0.0f;
#pragma unroll
    for (int b = 0; b < 4; b++) {
        uint32_t bits = __float_as_uint(__fadd_rn(__fmul_rn(v[b], inverse), magic)) & 255;
        word |= (is_usual ? bits : 0) << 8 * b;
    }
    int sum = __dp4a((int)word, 0x01010101, 0);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (is_there) {
        ((uint32_t *)to.q)[4 * act_run(i / 4) + i % 4] = word;
        if (i % 4 == 0)
            to.runs[i / 4] = make_float2(scale, scale * (float)sum);
    }
}

/* Four values of a row of n, by all threads of a warp. */
static __device__ __forceinline__ void store_four(const float (&v)[4], uint32_t i, uint32_t n,
                                                  const row_places &to) {
    if (to.y)
#pragma unroll
        for (int b = 0; b < 4; b++)
            if (4 * i + b < n)
                to.y[4 * i + b] = v[b];
    if (to.q)
        quantize_four(v, i, 4 * i < n, to);
}

/* A row as it is, by the block. The first AHEAD pieces of a thread are loaded before the first is
 * used; between load and store other things may be done. */
template <int AHEAD> struct row_copy {
    float v[AHEAD][4];
    const float *x;
    uint32_t n;

    __device__ __forceinline__ void load(const float *from, uint32_t count, uint32_t at = 0) {
        x = from;
        n = count;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            load_four(x, at + threadIdx.x + i * STREAM_THREADS, n, v[i]);
    }

    __device__ __forceinline__ void store(const row_places &to) {
        for (uint32_t base = 0; 4 * base < n; base += AHEAD * STREAM_THREADS) {
            if (base)
                load(x, n, base);
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                store_four(v[i], base + threadIdx.x + i * STREAM_THREADS, n, to);
        }
    }
};

/* x / rms(x) * w, by the block. A thread's first pieces stay in registers: the weights' may be
 * loaded before the wait, the row's at once behind it, beside whatever else is needed. */
struct row_norm {
    enum { EARLY = 2 };
    float w[EARLY][4], x[EARLY][4];
    const float *weights, *row;
    uint32_t n;

    __device__ __forceinline__ void load_weights(const float *from, uint32_t count) {
        weights = from;
        n = count;
#pragma unroll
        for (int i = 0; i < EARLY; i++)
            load_four(from, threadIdx.x + i * STREAM_THREADS, n, w[i]);
    }

    __device__ __forceinline__ void load_row(const float *from) {
        row = from;
#pragma unroll
        for (int i = 0; i < EARLY; i++)
            load_four(from, threadIdx.x + i * STREAM_THREADS, n, x[i]);
    }

    static __device__ __forceinline__ float add_squares(const float (&v)[4], float sum) {
#pragma unroll
        for (int b = 0; b < 4; b++)
            sum = __fmaf_rn(v[b], v[b], sum);
        return sum;
    }

    /* Stored behind the next __syncthreads. */
    __device__ __forceinline__ void store(float eps, const row_places &to, float *room) {
        const uint32_t rest = EARLY * STREAM_THREADS;
        float squares = 0;
#pragma unroll
        for (int i = 0; i < EARLY; i++)
            squares = add_squares(x[i], squares);
#pragma unroll 4
        for (uint32_t base = rest; 4 * base < n; base += STREAM_THREADS) {
            float v[4];
            load_four(row, base + threadIdx.x, n, v);
            squares = add_squares(v, squares);
        }
        float factor = norm_factor(block_sum(squares, room), n, eps);
#pragma unroll
        for (int i = 0; i < EARLY; i++)
            if (4 * i * STREAM_THREADS < n)
                store_scaled(x[i], w[i], factor, threadIdx.x + i * STREAM_THREADS, to);
#pragma unroll 2
        for (uint32_t base = rest; 4 * base < n; base += STREAM_THREADS) {
            float v[4], f[4];
            load_four(row, base + threadIdx.x, n, v);
            load_four(weights, base + threadIdx.x, n, f);
            store_scaled(v, f, factor, base + threadIdx.x, to);
        }
    }

    __device__ __forceinline__ void store_scaled(const float (&v)[4], const float (&f)[4],
                                                 float factor, uint32_t i,
                                                 const row_places &to) const {
        float y[4];
#pragma unroll
        for (int b = 0; b < 4; b++)
            y[b] = v[b] * factor * f[b];
        store_four(y, i, n, to);
    }
};

#endif
