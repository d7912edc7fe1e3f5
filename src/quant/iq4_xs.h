/* iq4_xs.h - the values of iq4_nl in 8 sub-blocks of 32, each with a signed 6-bit scale:
 * y = d scale value(n). */
#ifndef QUANT_IQ4_XS_H
#define QUANT_IQ4_XS_H

#include "quant/iq4_nl.h"

struct iq4_xs {
    uint16_t d;          /* fp16 */
    uint16_t scales_h;   /* upper two bits of scale s at bit 2s */
    uint8_t scales_l[4]; /* low four bits, two scales per byte */
    uint8_t qs[128];     /* 8 x 16 bytes, each run as in iq4_nl */
};
static_assert(sizeof(struct iq4_xs) == 136, "iq4_xs is packed");

/* The scale of sub-block s, -32..31. */
QUANT_FN int iq4_xs_scale(const struct iq4_xs *b, int s) {
    int low = b->scales_l[s / 2] >> 4 * (s % 2) & 15, high = b->scales_h >> 2 * s & 3;
    return (low | high << 4) - 32;
}

QUANT_FN void iq4_xs_unpack(const struct iq4_xs *b, int g, struct unpacked *out) {
    unpacked_scale(out, f16_to_f32(b->d) * (float)iq4_xs_scale(b, g), 0);
    unpack_nibbles(b->qs + 16 * g, out);
    for (int i = 0; i < 8; i++)
        out->q[i] = iq4_lookup(out->q[i]);
}

#endif
