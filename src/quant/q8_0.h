/* q8_0.h - signed bytes and a scale: y = d q. */
#ifndef QUANT_Q8_0_H
#define QUANT_Q8_0_H

#include "quant/f16.h"

struct q8_0 {
    uint16_t d; /* half */
    int8_t qs[32];
};
static_assert(sizeof(struct q8_0) == 34, "q8_0 is packed");

QUANT_FN void q8_0_decode_block(const struct q8_0 *b, float *y /* (32) */) {
    float d = f16_to_f32(b->d);
    for (int i = 0; i < 32; i++)
        y[i] = d * (float)b->qs[i];
}

#endif
