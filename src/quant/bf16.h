/* bf16.h - the upper half of an f32. */
#ifndef QUANT_BF16_H
#define QUANT_BF16_H

#include "quant/common.h"

QUANT_FN float bf16_to_f32(uint16_t bits) {
    return f32_from_bits((uint32_t)bits << 16);
}

/* Rounds to nearest even; a NaN stays one. Numbers next to FLT_MAX round to infinity. */
QUANT_FN uint16_t bf16_from_f32(float x) {
    uint32_t bits = f32_bits(x);
    uint32_t number = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    uint32_t nan = bits >> 16 | 64; /* the quiet bit: the payload's upper half may be zero */
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : number);
}

/* The same, but finite numbers stay finite. */
QUANT_FN uint16_t bf16_from_f32_clamped(float x) {
    const float max = 3.3895313892515355e38f; /* 0x7f7f, the largest finite bf16 */
    x = x > max && x <= 3.402823466e38f ? max : x;
    x = x < -max && x >= -3.402823466e38f ? -max : x;
    return bf16_from_f32(x);
}

#endif
