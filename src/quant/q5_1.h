/* q5_1.h - 5 bits, a scale and an offset: y = d n + m. */
#ifndef QUANT_Q5_1_H
#define QUANT_Q5_1_H

#include "quant/f16.h"

struct q5_1 {
    uint16_t d, m;  /* halves */
    uint8_t qh[4];  /* 32 bits, value i's fifth at bit i */
    uint8_t qs[16]; /* values 0..15 in the low nibbles, 16..31 in the high ones */
};
static_assert(sizeof(struct q5_1) == 24, "q5_1 is packed");

QUANT_FN void q5_1_decode_block(const struct q5_1 *b, float *y /* (32) */) {
    float d = f16_to_f32(b->d), m = f16_to_f32(b->m);
    uint32_t high;
    memcpy(&high, b->qh, sizeof high);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((b->qs[i] & 15) + (int)(high >> i & 1) * 16) + m;
        y[i + 16] = d * (float)((b->qs[i] >> 4) + (int)(high >> (i + 16) & 1) * 16) + m;
    }
}

#endif
