/* iq1_s.h - a grid of 2048 times eight values, -1, 0 or 1, all moved by 1/8 up or down;
 * 8 sub-blocks of 32, each with a 3-bit scale and the direction: y = d (2 scale + 1) (value +-
 * 1/8). So that quants are whole they are eight times that, and the scale an eighth. */
#ifndef QUANT_IQ1_S_H
#define QUANT_IQ1_S_H

#include "quant/grid.h"

struct iq1_s {
    uint16_t d;     /* half */
    uint8_t qs[32]; /* low eight bits of the indices */
    uint16_t qh[8]; /* upper three bits of four indices, the first lowest; scale; bit 15: down */
};
static_assert(sizeof(struct iq1_s) == 50, "iq1_s is packed");

/* The grid, also of iq1_m: see grid.h. Level n stands for n - 1. */
/* clang-format off */
QUANT_FN uint32_t iq1_grid(uint32_t i) {
    static const uint16_t grid[2048] = {
#include "quant/iq1_grid.def"
    };
    return grid[i];
}
/* clang-format on */

/* Eight quants of an entry, also of iq1_m. */
QUANT_FN void iq1_values(uint32_t index, uint32_t is_down, uint32_t *q /* (2) */) {
    uint32_t code = iq1_grid(index);
    for (int i = 0; i < 2; i++)
        q[i] = bytes_minus(8 * grid_spread_2(code >> 8 * i & 255), 7 + 2 * is_down);
}

QUANT_FN void iq1_s_unpack(const struct iq1_s *b, int g, struct unpacked *out) {
    uint32_t high = b->qh[g];
    unpacked_scale(out, f16_to_f32(b->d) * (float)(2 * (high >> 12 & 7) + 1) * 0.125f, 0);
    for (int i = 0; i < 4; i++) {
        uint32_t index = b->qs[4 * g + i] | (high >> 3 * i & 7) << 8;
        iq1_values(index, high >> 15, out->q + 2 * i);
    }
}

#endif
