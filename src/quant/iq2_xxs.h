/* iq2_xxs.h - a grid of 256 times eight values; 8 sub-blocks of 32, each with a 4-bit scale:
 * y = d (2 scale + 1) / 8 value. */
#ifndef QUANT_IQ2_XXS_H
#define QUANT_IQ2_XXS_H

#include "quant/grid.h"

struct iq2_xxs {
    uint16_t d;     /* half */
    uint8_t qs[64]; /* 8 x (4 bytes: indices; 4: seven sign bits each, scale in the upper four) */
};
static_assert(sizeof(struct iq2_xxs) == 66, "iq2_xxs is packed");

/* Eight values of an entry, also of the other IQ2: the levels are 8, 25 and 43. */
QUANT_FN void iq2_values(uint32_t code, uint32_t signs, uint32_t *q /* (2) */) {
    for (int i = 0; i < 2; i++) {
        uint32_t level = grid_spread_2(code >> 8 * i & 255);
        uint32_t value = 0x08080808 + (level & 0x01010101) * 17 + (level >> 1 & 0x01010101) * 35;
        q[i] = grid_negate(value, signs >> 4 * i);
    }
}

/* d (2 scale + 1) / 8, also of the other IQ2. */
QUANT_FN float iq2_scale(uint16_t d, uint32_t scale) {
    return f16_to_f32(d) * (0.5f + (float)scale) * 0.25f;
}

/* The grid: see grid.h. */
/* clang-format off */
QUANT_FN uint32_t iq2_xxs_grid(uint32_t i) {
    static const uint16_t grid[256] = {
#include "quant/iq2_xxs_grid.def"
    };
    return grid[i];
}
/* clang-format on */

QUANT_FN void iq2_xxs_unpack(const struct iq2_xxs *b, int g, struct unpacked *out) {
    uint32_t indices = load_u32(b->qs + 8 * g), rest = load_u32(b->qs + 8 * g + 4);
    unpacked_scale(out, iq2_scale(b->d, rest >> 28), 0);
    for (int i = 0; i < 4; i++)
        iq2_values(iq2_xxs_grid(indices >> 8 * i & 255), grid_signs(rest >> 7 * i & 127),
                   out->q + 2 * i);
}

#endif
