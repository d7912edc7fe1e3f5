/* q5_0.h - 5 bits and a scale: y = d (n - 16). d may be negative. */
#ifndef QUANT_Q5_0_H
#define QUANT_Q5_0_H

#include "quant/f16.h"

struct q5_0 {
    uint16_t d;     /* half */
    uint8_t qh[4];  /* 32 bits, value i's fifth at bit i; bytes, for they lie at offset 2 */
    uint8_t qs[16]; /* values 0..15 in the low nibbles, 16..31 in the high ones */
};
static_assert(sizeof(struct q5_0) == 22, "q5_0 is packed");

QUANT_FN void q5_0_decode_block(const struct q5_0 *b, float *y /* (32) */) {
    float d = f16_to_f32(b->d);
    uint32_t high;
    memcpy(&high, b->qh, sizeof high);
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((b->qs[i] & 15) + (int)(high >> i & 1) * 16 - 16);
        y[i + 16] = d * (float)((b->qs[i] >> 4) + (int)(high >> (i + 16) & 1) * 16 - 16);
    }
}

#endif
