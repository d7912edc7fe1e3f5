/* q5_k.h - 5 bits; 8 sub-blocks of 32, each with a 6-bit scale and minimum:
 * y = d scale n - dmin minimum. */
#ifndef QUANT_Q5_K_H
#define QUANT_Q5_K_H

#include "quant/q4_k.h"

struct q5_k {
    uint16_t d, dmin;   /* halves */
    uint8_t scales[12]; /* as in q4_k */
    uint8_t qh[32];     /* fifth bits: of value 32s + l at bit s of byte l */
    uint8_t qs[128];    /* as in q4_k */
};
static_assert(sizeof(struct q5_k) == 176, "q5_k is packed");

QUANT_FN void q5_k_decode_block(const struct q5_k *b, float *y /* (256) */) {
    float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
    for (int s = 0; s < 8; s++) {
        const uint8_t *qs = b->qs + 32 * (s / 2);
        int shift = 4 * (s % 2);
        float scale = d * (float)q4_k_scale(b->scales, s);
        float min = dmin * (float)q4_k_min(b->scales, s);
        for (int l = 0; l < 32; l++)
            y[32 * s + l] = scale * (float)((qs[l] >> shift & 15) + (b->qh[l] >> s & 1) * 16) - min;
    }
}

#endif
