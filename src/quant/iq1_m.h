/* iq1_m.h - the grid of iq1_s, moved up or down for each eight values; 16 sub-blocks of 16, each
 * with a 3-bit scale: y = d (2 scale + 1) (value +- 1/8). */
#ifndef QUANT_IQ1_M_H
#define QUANT_IQ1_M_H

#include "quant/iq1_s.h"

struct iq1_m {
    uint8_t qs[32];     /* low eight bits of the indices */
    uint8_t qh[16];     /* a nibble an index, the first low: its upper three bits; bit 3: down */
    uint16_t scales[4]; /* four scales each, the first lowest; upper four bits: of d */
};
static_assert(sizeof(struct iq1_m) == 56, "iq1_m is packed");

/* The fp16 scale whose nibbles are above the scales, the lowest first. */
QUANT_FN uint16_t iq1_m_d(const struct iq1_m *b) {
    return (uint16_t)(b->scales[0] >> 12 | b->scales[1] >> 12 << 4 | b->scales[2] >> 12 << 8 |
                      b->scales[3] >> 12 << 12);
}

QUANT_FN void iq1_m_unpack(const struct iq1_m *b, int g, struct unpacked *out) {
    float d = f16_to_f32(iq1_m_d(b));
    for (int i = 0; i < 2; i++) {
        int scale = b->scales[g / 2] >> 3 * (2 * (g % 2) + i) & 7;
        out->scale[i] = d * (float)(2 * scale + 1) * 0.125f;
        out->min[i] = 0;
    }
    for (int i = 0; i < 4; i++) {
        uint32_t high = (uint32_t)b->qh[2 * g + i / 2] >> 4 * (i % 2);
        iq1_values(b->qs[4 * g + i] | (high & 7) << 8, high >> 3 & 1, out->q + 2 * i);
    }
}

#endif
