/* f16.h - IEEE half: 1 sign, 5 exponent (bias 15), 10 mantissa bits. The scales of all block types
 * are fp16 too, and small ones are subnormal, so every pattern must come out exactly. */
#ifndef QUANT_F16_H
#define QUANT_F16_H

#include "quant/common.h"

#define F16_MAX 65504.0f
#define F16_TINY 5.9604644775390625e-8f /* 2^-24, the smallest fp16 above zero */

QUANT_FN float f16_to_f32(uint16_t half) {
#ifdef __CUDA_ARCH__
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
#else
    const uint32_t rebias = (uint32_t)(127 - 15) << 23;
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t wide = (uint32_t)(half & 0x7fff) << 13; /* exponent and mantissa where f32 has them */
    uint32_t normal = wide + rebias + (wide >= 0x0f800000 ? rebias : 0); /* inf, nan: all ones */
    /* A subnormal becomes the mantissa of a number in [2^-14, 2^-13), less 2^-14: exact, and no
     * subnormal f32 is touched, which some settings would flush. */
    const uint32_t bias = (uint32_t)(127 - 14) << 23;
    uint32_t small = f32_bits(f32_from_bits(wide + bias) - f32_from_bits(bias));
    return f32_from_bits(sign | (wide < 0x00800000 ? small : normal));
#endif
}

/* Rounds to nearest even; beyond the range to infinity; a NaN stays one. */
QUANT_FN uint16_t f16_from_f32(float x) {
#ifdef __CUDA_ARCH__
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
#else
    uint32_t bits = f32_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    /* Adding 0.5 makes 2^-24 the last bit, so the addition rounds a subnormal as it should. */
    uint32_t small = f32_bits(f32_from_bits(size) + 0.5f) - f32_bits(0.5f);
    uint32_t normal = (size - ((uint32_t)(127 - 15) << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    uint32_t half = size < 0x38800000 ? small : normal; /* 2^-14 */
    half = size >= 0x477ff000 ? 0x7c00 : half;          /* 65520, half-way to 2^16 */
    half = size > 0x7f800000 ? 0x7e00 : half;
    return (uint16_t)(sign | half);
#endif
}

/* The same, but finite numbers stay finite. */
QUANT_FN uint16_t f16_from_f32_clamped(float x) {
    x = x > F16_MAX ? F16_MAX : x;
    x = x < -F16_MAX ? -F16_MAX : x;
    return f16_from_f32(x);
}

#endif
