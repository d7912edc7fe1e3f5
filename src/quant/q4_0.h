/* q4_0.h - 4 bits and a scale: y = d (n - 8). d may be negative. */
#ifndef QUANT_Q4_0_H
#define QUANT_Q4_0_H

#include "quant/f16.h"

struct q4_0 {
    uint16_t d;     /* half */
    uint8_t qs[16]; /* values 0..15 in the low nibbles, 16..31 in the high ones */
};
static_assert(sizeof(struct q4_0) == 18, "q4_0 is packed");

QUANT_FN void q4_0_decode_block(const struct q4_0 *b, float *y /* (32) */) {
    float d = f16_to_f32(b->d);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((b->qs[i] & 15) - 8);
        y[i + 16] = d * (float)((b->qs[i] >> 4) - 8);
    }
}

#endif
