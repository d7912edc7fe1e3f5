/* q4_0.h - 4 bits and a scale: y = d (n - 8). d may be negative. */
#ifndef QUANT_Q4_0_H
#define QUANT_Q4_0_H

#include "quant/f16.h"

struct q4_0 {
    uint16_t d;     /* fp16 */
    uint8_t qs[16]; /* values 0..15 in the low nibbles, 16..31 in the high ones */
};
static_assert(sizeof(struct q4_0) == 18, "q4_0 is packed");

QUANT_FN void q4_0_unpack(const struct q4_0 *b, int g, struct unpacked *out) {
    (void)g; /* a block is one group */
    unpacked_scale(out, f16_to_f32(b->d), 0);
    unpack_nibbles(b->qs, out);
    for (int i = 0; i < 8; i++)
        out->q[i] = bytes_minus(out->q[i], 8);
}

#endif
