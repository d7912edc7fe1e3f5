/* iq4_nl.h - 4 bits that stand for 16 unevenly spaced values: y = d value(n). d may be negative. */
#ifndef QUANT_IQ4_NL_H
#define QUANT_IQ4_NL_H

#include "quant/f16.h"

struct iq4_nl {
    uint16_t d;     /* half */
    uint8_t qs[16]; /* values 0..15 in the low nibbles, 16..31 in the high ones */
};
static_assert(sizeof(struct iq4_nl) == 18, "iq4_nl is packed");

/* The value of a nibble, also of iq4_xs. */
QUANT_FN int iq4_value(int nibble) {
    static const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
    return values[nibble];
}

QUANT_FN void iq4_nl_decode_block(const struct iq4_nl *b, float *y /* (32) */) {
    float d = f16_to_f32(b->d);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)iq4_value(b->qs[i] & 15);
        y[i + 16] = d * (float)iq4_value(b->qs[i] >> 4);
    }
}

#endif
