/* fallback_quantize.cuh - activation rows for fallback.cuh: the prologue, then int8. A block a row.
 *
 *   x       the row after the prologue, f32
 *   q       round(x / scale), scale = largest magnitude of 32 or 128 values / 127 (act_quantize)
 *   scales  for every 32 values: scale, scale * sum(q[0..15]), scale * sum(q[16..31]),
 *           scale * sum(q[0..31])
 *
 * Reads and writes each row once, and again from L1 or L2 to quantize it. */
#ifndef BACKEND_CUDA_KERNELS_FALLBACK_QUANTIZE_CUH
#define BACKEND_CUDA_KERNELS_FALLBACK_QUANTIZE_CUH

#include <float.h>

#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/project_fallback.h"

/* ---- prologues ------------------------------------------------------------------------------- */

/* By the block; `partials`: FALLBACK_WARPS floats in shared memory. */
static __device__ __forceinline__ void norm_row(const struct fallback_quantize_params &p,
                                                const float *x, float *y, float *partials) {
    float squares = 0;
    for (uint32_t i = threadIdx.x; i < p.k; i += FALLBACK_THREADS)
        squares = __fmaf_rn(x[i], x[i], squares);
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0)
        partials[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0;
    for (int w = 0; w < FALLBACK_WARPS; w++)
        squares += partials[w];
    float factor = norm_factor(squares, p.k, p.eps);
    for (uint32_t i = threadIdx.x; i < p.k; i += FALLBACK_THREADS)
        y[i] = x[i] * factor * p.norm[i];
}

/* A warp a head. */
static __device__ __forceinline__ void gated_norm(const struct fallback_quantize_params &p,
                                                  const float *x, const float *gate, float *y) {
    uint32_t width = p.head_width, heads = p.k / width, lane = threadIdx.x % 32;
    for (uint32_t h = threadIdx.x / 32; h < heads; h += FALLBACK_WARPS) {
        const float *from = x + (uint64_t)h * width, *g = gate + (uint64_t)h * p.gate_stride;
        float squares = 0;
        for (uint32_t i = lane; i < width; i += 32)
            squares = __fmaf_rn(from[i], from[i], squares);
        float factor = norm_factor(warp_sum(squares), width, p.eps);
        for (uint32_t i = lane; i < width; i += 32)
            y[(uint64_t)h * width + i] = from[i] * factor * p.norm[i] * silu(g[i]);
    }
}

static __device__ __forceinline__ void sigmoid_gate(const struct fallback_quantize_params &p,
                                                    const float *x, const float *gate, float *y) {
    for (uint32_t i = threadIdx.x; i < p.k; i += FALLBACK_THREADS) {
        uint32_t h = i / p.head_width;
        y[i] = x[i] * sigmoid(gate[(uint64_t)h * p.gate_stride + (i - h * p.head_width)]);
    }
}

static __device__ __forceinline__ void apply_prologue(const struct fallback_quantize_params &p,
                                                      const float *x, const float *gate, float *y,
                                                      float *partials) {
    switch (p.prologue) {
    case PROLOGUE_NORM:
        return norm_row(p, x, y, partials);
    case PROLOGUE_GATED_NORM:
        return gated_norm(p, x, gate, y);
    case PROLOGUE_SIGMOID_GATE:
        return sigmoid_gate(p, x, gate, y);
    default:
        for (uint32_t i = threadIdx.x; i < p.k; i += FALLBACK_THREADS)
            y[i] = x[i];
    }
}

/* ---- int8 ------------------------------------------------------------------------------------ */

/* The largest over 8 or 32 lanes. */
static __device__ __forceinline__ uint32_t lanes_max(uint32_t x, int lanes) {
    for (int i = lanes / 2; i > 0; i >>= 1)
        x = max(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

/* Values 4i ... 4i + 3 of a row, by a lane of the 8 or 32 that share a scale; `is_inside`: they are
 * not after the row's end. */
static __device__ __forceinline__ void quantize_vec4(float4 v, uint32_t i, bool is_inside,
                                                     uint32_t group, int8_t *q, float4 *scales) {
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it rounds, half to even */
    const float x[4] = {v.x, v.y, v.z, v.w};
    uint32_t most = 0, word = 0;
    /* As integers infinity is above all numbers and NaN above that: neither can hide. */
#pragma unroll
    for (int b = 0; b < 4; b++)
        most = max(most, __float_as_uint(x[b]) & 0x7fffffffu);
    most = lanes_max(most, group / 4);
    float scale = __uint_as_float(most) / 127.0f;
    scale = scale < FLT_MIN ? 0.0f : scale;
    bool is_usual = scale > 0 && scale <= FLT_MAX;
    float inverse = is_usual ? 1.0f / scale : 0.0f;
#pragma unroll
    for (int b = 0; b < 4; b++) {
        uint32_t bits = __float_as_uint(__fadd_rn(__fmul_rn(x[b], inverse), round)) & 255;
        word |= (is_usual ? bits : 0) << 8 * b;
    }
    int half = __dp4a((int)word, 0x01010101, 0); /* of 16 values: four lanes */
    half += __shfl_xor_sync(0xffffffffu, half, 1);
    half += __shfl_xor_sync(0xffffffffu, half, 2);
    int other = __shfl_xor_sync(0xffffffffu, half, 4);
    if (!is_inside)
        return;
    ((uint32_t *)q)[i] = word;
    if (i % 8 == 0)
        scales[i / 8] = make_float4(scale, scale * (float)half, scale * (float)other,
                                    scale * (float)(half + other));
}

/* k is a multiple of 32; x, q and scales are 16-aligned. By the block. */
static __device__ __forceinline__ void quantize_row(const float *x, uint32_t k, uint32_t group,
                                                    int8_t *q, float4 *scales) {
    for (uint32_t base = 0; 4 * base < k; base += FALLBACK_THREADS) {
        uint32_t i = base + threadIdx.x;
        bool is_inside = 4 * i < k;
        float4 v = is_inside ? ((const float4 *)x)[i] : make_float4(0, 0, 0, 0);
        quantize_vec4(v, i, is_inside, group, q, scales);
    }
}

#endif
