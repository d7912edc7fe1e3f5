/* iq2_s.h - a grid of 1024 times eight values; 16 sub-blocks of 16, each with a 4-bit scale:
 * y = d (2 scale + 1) / 8 value. */
#ifndef QUANT_IQ2_S_H
#define QUANT_IQ2_S_H

#include "quant/iq2_xxs.h"

struct iq2_s {
    uint16_t d;        /* half */
    uint8_t qs[32];    /* low eight bits of the indices */
    uint8_t signs[32]; /* of the same values, a bit each */
    uint8_t qh[8];     /* upper two bits: of index 4g + i at bit 2i of byte g */
    uint8_t scales[8]; /* two a byte, the first low */
};
static_assert(sizeof(struct iq2_s) == 82, "iq2_s is packed");

/* The grid: see grid.h. */
/* clang-format off */
QUANT_FN uint32_t iq2_s_grid(uint32_t i) {
    static const uint16_t grid[1024] = {
#include "quant/iq2_s_grid.def"
    };
    return grid[i];
}
/* clang-format on */

QUANT_FN void iq2_s_unpack(const struct iq2_s *b, int g, struct unpacked *out) {
    for (int i = 0; i < 2; i++) {
        out->scale[i] = iq2_scale(b->d, b->scales[g] >> 4 * i & 15);
        out->min[i] = 0;
    }
    for (int i = 0; i < 4; i++) {
        uint32_t index = b->qs[4 * g + i] | (b->qh[g] >> 2 * i & 3u) << 8;
        iq2_values(iq2_s_grid(index), b->signs[4 * g + i], out->q + 2 * i);
    }
}

#endif
