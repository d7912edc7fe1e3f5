/* mxfp4.h - 4-bit floats (1 sign, 2 exponent, 1 mantissa bit) and a power of two:
 * y = value(n) 2^(e - 127). */
#ifndef QUANT_MXFP4_H
#define QUANT_MXFP4_H

#include "quant/common.h"

struct mxfp4 {
    uint8_t e;
    uint8_t qs[16]; /* values 0..15 in the low nibbles, 16..31 in the high ones */
};
static_assert(sizeof(struct mxfp4) == 17, "mxfp4 is packed");

/* Twice the value of a nibble: so all are whole. */
QUANT_FN int mxfp4_twice(int nibble) {
    static const int8_t values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return values[nibble];
}

/* 2^(e - 128), the factor of the doubled values. Finite for every e; the two smallest are
 * subnormal. */
QUANT_FN float mxfp4_scale(uint8_t e) {
    return f32_from_bits(e < 2 ? (uint32_t)0x00200000 << e : (uint32_t)(e - 1) << 23);
}

QUANT_FN void mxfp4_decode_block(const struct mxfp4 *b, float *y /* (32) */) {
    float d = mxfp4_scale(b->e);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)mxfp4_twice(b->qs[i] & 15);
        y[i + 16] = d * (float)mxfp4_twice(b->qs[i] >> 4);
    }
}

#endif
