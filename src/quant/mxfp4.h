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

/* Twice the values of four nibbles, which are whole numbers: 0, 1, 2, 3, 4, 6, 8, 12, then the same
 * negated. */
QUANT_FN uint32_t mxfp4_twice(uint32_t nibbles) {
    return bytes_lookup(0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc, nibbles);
}

/* 2^(e - 128), the factor of the doubled values. Finite for every e; the two smallest are
 * subnormal. */
QUANT_FN float mxfp4_scale(uint8_t e) {
    return f32_from_bits(e < 2 ? (uint32_t)0x00200000 << e : (uint32_t)(e - 1) << 23);
}

QUANT_FN void mxfp4_unpack(const struct mxfp4 *b, int g, struct unpacked *out) {
    (void)g; /* a block is one group */
    unpacked_scale(out, mxfp4_scale(b->e), 0);
    unpack_nibbles(b->qs, out);
    for (int i = 0; i < 8; i++)
        out->q[i] = mxfp4_twice(out->q[i]);
}

#endif
