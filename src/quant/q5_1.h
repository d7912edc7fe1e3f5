/* q5_1.h - 5 bits, a scale and an offset: y = d n + m. */
#ifndef QUANT_Q5_1_H
#define QUANT_Q5_1_H

#include "quant/q5_0.h"

struct q5_1 {
    uint16_t d, m;  /* fp16 */
    uint8_t qh[4];  /* 32 bits, value i's fifth at bit i */
    uint8_t qs[16]; /* values 0..15 in the low nibbles, 16..31 in the high ones */
};
static_assert(sizeof(struct q5_1) == 24, "q5_1 is packed");

QUANT_FN void q5_1_unpack(const struct q5_1 *b, int g, struct unpacked *out) {
    (void)g; /* a block is one group */
    unpacked_scale(out, f16_to_f32(b->d), -f16_to_f32(b->m));
    unpack_nibbles(b->qs, out);
    uint32_t high = load_u32(b->qh);
    for (int i = 0; i < 8; i++)
        out->q[i] |= q5_high_bits(high >> 4 * i);
}

#endif
