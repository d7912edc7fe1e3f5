/* attend_quants.cuh - q8_0 and q4_0 in the KV cache: a head encoded, as src/quant/encode.c does,
 * and values read back as the tensor cores get them. */
#ifndef BACKEND_CUDA_KERNELS_ATTEND_QUANTS_CUH
#define BACKEND_CUDA_KERNELS_ATTEND_QUANTS_CUH

#include "backend/cuda/kernels/attend.cuh"
#include "quant/q4_0.h"
#include "quant/q8_0.h"

/* ---- encoding -------------------------------------------------------------------------------- */

/* The largest |x| of 32 lanes; a NaN counts as nothing. */
static __device__ __forceinline__ float largest(float x) {
    uint32_t size = x == x ? __float_as_uint(x) & 0x7fffffffu : 0;
    return __uint_as_float(__reduce_max_sync(0xffffffffu, size));
}

/* The scale of a block: NaN where one of its values is not finite. As src/quant/encode.c. */
static __device__ __forceinline__ uint16_t mark_damage(uint16_t d, float x) {
    return __all_sync(0xffffffffu, fabsf(x) <= FLT_MAX) ? d : (uint16_t)0x7e00;
}

/* A block of 32, a value a lane. The same bits as src/quant/encode.c: so no fused multiply-adds. */
static __device__ void encode_q8_0(uint8_t *to, float x) {
    uint32_t lane = threadIdx.x % 32;
    float scale = __fdiv_rn(largest(x), 127.0f);
    uint16_t d = f16_from_f32_clamped(scale);
    float base = scale <= F16_MAX ? scale : f16_to_f32(d);
    float factor = base != 0 ? __fdiv_rn(1.0f, base) : 0.0f;
    if (!(factor <= FLT_MAX))
        factor = 0;
    float v = __fmul_rn(x, factor), size = v < 0 ? -v : v;
    size = size > 127 ? 127 : size;
    int whole = (int)size;
    whole += __fsub_rn(size, (float)whole) >= 0.5f;
    to[2 + lane] = (uint8_t)(int8_t)(v < 0 ? -whole : whole);
    d = mark_damage(d, x);
    if (lane == 0)
        *(uint16_t *)to = d;
}

/* As in src/quant/encode.h. */
static __device__ uint16_t f16_from_scale(float scale) {
    if (scale == 0)
        return 0;
    uint16_t half = f16_from_f32_clamped(scale);
    float found = f16_to_f32(half), lost = scale < 0 ? found - scale : scale - found;
    return (uint16_t)(half + ((half & 0x7c00) == 0 && lost > 0));
}

static __device__ void encode_q4_0(uint8_t *to, float x) {
    uint32_t lane = threadIdx.x % 32;
    float size = largest(x), most = __any_sync(0xffffffffu, x == size) ? size : -size;
    uint16_t d = f16_from_scale(__fdiv_rn(most, -8.0f));
    float scale = f16_to_f32(d), factor = scale != 0 ? __fdiv_rn(1.0f, scale) : 0.0f;
    float v = __fadd_rn(__fmul_rn(x, factor), 8.0f);
    v = v < 0 ? 0 : v;
    v = v > 15 ? 15 : v;
    uint32_t q = __float_as_uint(__fadd_rn(v, 12582912.0f)) & 15;
    uint32_t upper = __shfl_down_sync(0xffffffffu, q, 16);
    if (lane < 16)
        to[2 + lane] = (uint8_t)(q | upper << 4);
    d = mark_damage(d, x);
    if (lane == 0)
        *(uint16_t *)to = d;
}

/* ---- cached values --------------------------------------------------------------------------- */

/* C columns of a position from `column` on, a multiple of C, in shared memory. */
template <int TYPE, int C>
static __device__ __forceinline__ struct v_columns<C> cached(const uint8_t *row, uint32_t column) {
    if constexpr (TYPE == CACHE_F16)
        return load_v_columns<C>(row + 2 * column);
    constexpr uint32_t BLOCK = TYPE == CACHE_Q8_0 ? 34 : 18;
    uint32_t at = column % 32, shift = TYPE == CACHE_Q4_0 && at >= 16 ? 4 : 0;
    const uint16_t *b = (const uint16_t *)(row + column / 32 * BLOCK);
    const uint16_t *q = b + 1 + (TYPE == CACHE_Q4_0 ? at % 16 : at) / 2;
    uint32_t quants = q[0];
    if (C == 4)
        quants |= (uint32_t)q[1] << 16;
    uint2 x = f16_of_quants<TYPE>(quants >> shift, __half2half2(*(const __half *)b));
    struct v_columns<C> v;
    v.x[0] = x.x;
    if (C == 4)
        v.x[C / 2 - 1] = x.y;
    return v;
}

template <int TYPE>
static __device__ __forceinline__ uint2 cached_4(const uint8_t *row, uint32_t column) {
    struct v_columns<4> v = cached<TYPE, 4>(row, column);
    return make_uint2(v.x[0], v.x[1]);
}

#endif
