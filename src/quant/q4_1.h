/* q4_1.h - 4 bits, a scale and an offset: y = d n + m. */
#ifndef QUANT_Q4_1_H
#define QUANT_Q4_1_H

#include "quant/f16.h"

struct q4_1 {
    uint16_t d, m;  /* fp16 */
    uint8_t qs[16]; /* values 0..15 in the low nibbles, 16..31 in the high ones */
};
static_assert(sizeof(struct q4_1) == 20, "q4_1 is packed");

QUANT_FN void q4_1_unpack(const struct q4_1 *b, int g, struct unpacked *out) {
    (void)g; /* a block is one group */
    unpacked_scale(out, f16_to_f32(b->d), -f16_to_f32(b->m));
    unpack_nibbles(b->qs, out);
}

#endif
