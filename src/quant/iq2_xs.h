/* iq2_xs.h - a grid of 512 times eight values; 16 sub-blocks of 16, each with a 4-bit scale:
 * y = d (2 scale + 1) / 8 value. */
#ifndef QUANT_IQ2_XS_H
#define QUANT_IQ2_XS_H

#include "quant/iq2_xxs.h"

struct iq2_xs {
    uint16_t d;        /* half */
    uint16_t qs[32];   /* index in the low nine bits, seven sign bits above */
    uint8_t scales[8]; /* two a byte, the first low */
};
static_assert(sizeof(struct iq2_xs) == 74, "iq2_xs is packed");

/* The grid: see grid.h. */
/* clang-format off */
QUANT_FN uint32_t iq2_xs_grid(uint32_t i) {
    static const uint16_t grid[512] = {
#include "quant/iq2_xs_grid.def"
    };
    return grid[i];
}
/* clang-format on */

QUANT_FN void iq2_xs_unpack(const struct iq2_xs *b, int g, struct unpacked *out) {
    for (int i = 0; i < 2; i++) {
        out->scale[i] = iq2_scale(b->d, b->scales[g] >> 4 * i & 15);
        out->min[i] = 0;
    }
    for (int i = 0; i < 4; i++) {
        uint32_t q = b->qs[4 * g + i];
        iq2_values(iq2_xs_grid(q & 511), grid_signs(q >> 9), out->q + 2 * i);
    }
}

#endif
