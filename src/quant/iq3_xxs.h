/* iq3_xxs.h - a grid of 256 times four values; 8 sub-blocks of 32, each with a 4-bit scale:
 * y = d (2 scale + 1) / 4 value. */
#ifndef QUANT_IQ3_XXS_H
#define QUANT_IQ3_XXS_H

#include "quant/grid.h"

struct iq3_xxs {
    uint16_t d;     /* half */
    uint8_t qs[64]; /* indices */
    uint8_t
        scales[32]; /* 8 x 4 bytes: seven sign bits for each 8 values, scale in the upper four */
};
static_assert(sizeof(struct iq3_xxs) == 98, "iq3_xxs is packed");

/* The grid: see grid.h. */
/* clang-format off */
QUANT_FN uint32_t iq3_xxs_grid(uint32_t i) {
    static const uint16_t grid[256] = {
#include "quant/iq3_xxs_grid.def"
    };
    return grid[i];
}
/* clang-format on */

/* The levels: 4, 12, 20, 28, 36, 44, 52, 62. */
QUANT_FN uint32_t iq3_xxs_values(uint32_t index) {
    uint32_t level = grid_spread_3(iq3_xxs_grid(index));
    uint32_t is_seven = level & level >> 1 & level >> 2 & 0x01010101;
    return 0x04040404 + 8 * level + 2 * is_seven;
}

QUANT_FN void iq3_xxs_unpack(const struct iq3_xxs *b, int g, struct unpacked *out) {
    uint32_t rest = load_u32(b->scales + 4 * g);
    unpacked_scale(out, f16_to_f32(b->d) * (0.5f + (float)(rest >> 28)) * 0.5f, 0);
    for (int i = 0; i < 8; i++) {
        uint32_t signs = grid_signs(rest >> 7 * (i / 2) & 127) >> 4 * (i % 2);
        out->q[i] = grid_negate(iq3_xxs_values(b->qs[8 * g + i]), signs);
    }
}

#endif
