/* iq3_s.h - a grid of 512 times four values; 8 sub-blocks of 32, each with a 4-bit scale:
 * y = d (2 scale + 1) value. */
#ifndef QUANT_IQ3_S_H
#define QUANT_IQ3_S_H

#include "quant/grid.h"

struct iq3_s {
    uint16_t d;        /* half */
    uint8_t qs[64];    /* low eight bits of the indices */
    uint8_t qh[8];     /* ninth bits: of index 8g + i at bit i of byte g */
    uint8_t signs[32]; /* a bit a value */
    uint8_t scales[4]; /* two a byte, the first low */
};
static_assert(sizeof(struct iq3_s) == 110, "iq3_s is packed");

/* The grid: see grid.h. Level n stands for 2n + 1. */
/* clang-format off */
QUANT_FN uint32_t iq3_s_grid(uint32_t i) {
    static const uint16_t grid[512] = {
#include "quant/iq3_s_grid.def"
    };
    return grid[i];
}
/* clang-format on */

QUANT_FN void iq3_s_unpack(const struct iq3_s *b, int g, struct unpacked *out) {
    int scale = b->scales[g / 2] >> 4 * (g % 2) & 15;
    unpacked_scale(out, f16_to_f32(b->d) * (float)(2 * scale + 1), 0);
    for (int i = 0; i < 8; i++) {
        uint32_t index = b->qs[8 * g + i] | (b->qh[g] >> i & 1u) << 8;
        uint32_t value = 0x01010101 + 2 * grid_spread_3(iq3_s_grid(index));
        out->q[i] = grid_negate(value, b->signs[4 * g + i / 2] >> 4 * (i % 2));
    }
}

#endif
