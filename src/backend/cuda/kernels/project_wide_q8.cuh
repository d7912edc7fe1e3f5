/* project_wide_q8.cuh - Q8_0 times 128 rows: both operands int8, from shared memory.
 *
 * A sum of 32 columns is scaled by itself, by the product of two scales that no other sum has: ten
 * float instructions for 128 columns of an output, more than tensor cores need for them. So all
 * else is kept small. int8 weights need no unpacking, and wgmma reads them as cp.async wrote them;
 * one conversion a sum costs what unpacking did. A warpgroup has all 128 weight rows and half of
 * the tile's rows of activations, a thread four weight rows: with 64 and all it would load twice as
 * many scales, and shared memory would be what it waits for.
 *
 * A group of 128 columns is eight units: 64 weight rows by 32 rows by 64 columns, two sums of 32
 * columns each. A unit is multiplied while the one before is scaled. */
#ifndef BACKEND_CUDA_KERNELS_PROJECT_WIDE_Q8_CUH
#define BACKEND_CUDA_KERNELS_PROJECT_WIDE_Q8_CUH

#include "backend/cuda/kernels/project_wide_types.cuh"

#if __CUDA_ARCH_FEAT_SM90_ALL

/* Sums [32 m + 16 n ...]: half m of the weight rows, half n of the warpgroup's rows. */
template <> struct wide_sums<IS_Q8_0, 128> {
    int c[2][2][16]; /* of two units: columns 0 to 31, 32 to 63 */
    float kblock[64];
    float split[64];
};

/* Unit u: columns 64 half ..., weight rows 64 m ..., rows 32 n ... */
template <int U> struct q8_unit {
    enum : int { N = U / 4, HALF = U / 2 % 2, M = U % 2 };
};

/* Descriptor of weights: 16 bytes of 8 rows are 128 bytes, the next 16 bytes WIDE_CHUNK further. */
static __device__ __forceinline__ uint64_t describe_weights(uint32_t at) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(WIDE_CHUNK >> 4) << 16 |
           (uint64_t)(128 >> 4) << 32;
}

template <int U>
static __device__ __forceinline__ void start_unit(struct wide_sums<IS_Q8_0, 128> &s, uint64_t a,
                                                  uint64_t b) {
    using unit = q8_unit<U>;
    a += (2 * unit::HALF * 2 * WIDE_CHUNK + unit::M * 64 * 16) / 16;
    b += (2 * unit::HALF * 32 + unit::N * 32 * 128) / 16;
    wgmma_fence();
    wgmma_s8(s.c[U % 2][0], a, b);
    wgmma_s8(s.c[U % 2][1], a + 2 * WIDE_CHUNK / 16, b + 2);
    wgmma_commit();
}

/* Of one 32 columns: scales of rows 8 i + 2 j and the next. */
struct q8_scales {
    act_scales first, second;

    __device__ __forceinline__ q8_scales(uint32_t at) : first(at), second(at + 128) {
    }
};

template <int U>
static __device__ __forceinline__ void scale_unit(struct wide_sums<IS_Q8_0, 128> &s,
                                                  const struct q8_scales &scales,
                                                  const uint32_t (&dd)[2]) {
    using unit = q8_unit<U>;
    float2 d[2] = {half2_to_float2(dd[0]), half2_to_float2(dd[1])};
#pragma unroll
    for (int i = 0; i < 16; i++) /* nothing is read before the wait */
        asm volatile("" : "+r"(s.c[U % 2][0][i]), "+r"(s.c[U % 2][1][i]));
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float &sum = s.kblock[32 * unit::M + 16 * unit::N + i];
        int e = i / 4, x = i % 4;
        float v = __fmul_rn(__fmul_rn(d[x / 2].x, scales.first.get(e, x)),
                            __int2float_rn(s.c[U % 2][0][i]));
        v = __fmaf_rn(__fmul_rn(d[x / 2].y, scales.second.get(e, x)),
                      __int2float_rn(s.c[U % 2][1][i]), v);
        sum = __fadd_rn(sum, v);
    }
}

template <int U> static __device__ __forceinline__ void load_d(uint32_t (&d)[2], uint32_t at) {
    using L = stage_layout<IS_Q8_0, 128>;
    const thread_place own(volatile_thread() % 128);
    uint32_t from = at + L::W_D + (own.row + q8_unit<U>::M * 64) * 8 + q8_unit<U>::HALF * 4;
    d[0] = peek<uint32_t>(from);
    d[1] = peek<uint32_t>(from + 64);
}

/* Units U and U + 1, which have the same rows and columns. U is started. */
template <int U>
static __device__ __forceinline__ void multiply_units(struct wide_sums<IS_Q8_0, 128> &s,
                                                      uint32_t at, uint64_t a, uint64_t b,
                                                      uint32_t scales_at) {
    using unit = q8_unit<U>;
    uint32_t d[2], d_next[2];
    start_unit<U + 1>(s, a, b);
    const q8_scales scales(scales_at + unit::N * 512 + unit::HALF * 256);
    load_d<U>(d, at);
    load_d<U + 1>(d_next, at);
    wgmma_wait<1>();
    scale_unit<U>(s, scales, d);
    if constexpr (U + 2 < 8) {
        start_unit<U + 2>(s, a, b);
        wgmma_wait<1>();
    } else {
        wgmma_wait<0>();
    }
    scale_unit<U + 1>(s, scales, d_next);
}

/* A group, the stage at `at`. */
static __device__ __forceinline__ void multiply_int8(struct wide_sums<IS_Q8_0, 128> &s,
                                                     uint32_t at) {
    using L = stage_layout<IS_Q8_0, 128>;
    uint32_t thread = volatile_thread(), group = warp_uniform(thread / 128);
    uint64_t a = describe_weights(at + L::QUANTS), b = describe_panel(at + group * (64 * 128));
    uint32_t scales_at = at + L::SCALES + group * 1024 + thread % 4 * 16;
    fence_proxy_async(); /* cp.async wrote the weights */
    start_unit<0>(s, a, b);
    multiply_units<0>(s, at, a, b, scales_at);
    multiply_units<2>(s, at, a, b, scales_at);
    multiply_units<4>(s, at, a, b, scales_at);
    multiply_units<6>(s, at, a, b, scales_at);
}

#endif

#endif
