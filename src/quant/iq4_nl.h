/* iq4_nl.h - 4 bits that stand for 16 unevenly spaced values: y = d value(n). d may be negative. */
#ifndef QUANT_IQ4_NL_H
#define QUANT_IQ4_NL_H

#include "quant/f16.h"

struct iq4_nl {
    uint16_t d;     /* fp16 */
    uint8_t qs[16]; /* values 0..15 in the low nibbles, 16..31 in the high ones */
};
static_assert(sizeof(struct iq4_nl) == 18, "iq4_nl is packed");

/* The values of four nibbles, also of iq4_xs: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25,
 * 38, 53, 69, 89, 113. */
QUANT_FN uint32_t iq4_lookup(uint32_t nibbles) {
    return bytes_lookup(0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535, nibbles);
}

QUANT_FN void iq4_nl_unpack(const struct iq4_nl *b, int g, struct unpacked *out) {
    (void)g; /* a block is one group */
    unpacked_scale(out, f16_to_f32(b->d), 0);
    unpack_nibbles(b->qs, out);
    for (int i = 0; i < 8; i++)
        out->q[i] = iq4_lookup(out->q[i]);
}

#endif
