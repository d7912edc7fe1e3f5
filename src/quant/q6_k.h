/* q6_k.h - 6 bits; 16 sub-blocks of 16, each with a signed 8-bit scale: y = d scale (q - 32).
 * d may be negative. */
#ifndef QUANT_Q6_K_H
#define QUANT_Q6_K_H

#include "quant/f16.h"

struct q6_k {
    /* In each half of 128 values, g = 0..3 counts its runs of 32 and l the places in a run. */
    uint8_t ql[128];   /* 2 x 64 low nibbles: byte 32(g % 2) + l, the upper nibble for g >= 2 */
    uint8_t qh[64];    /* 2 x 32 upper bit pairs: byte l, bits 2g and 2g + 1 */
    int8_t scales[16]; /* of 16 values each */
    uint16_t d;        /* half */
};
static_assert(sizeof(struct q6_k) == 210, "q6_k is packed");

QUANT_FN void q6_k_decode_block(const struct q6_k *b, float *y /* (256) */) {
    float d = f16_to_f32(b->d);
    for (int k = 0; k < 16; k++) {
        int half = k / 8, g = k % 8 / 2, at = 16 * (k % 2);
        const uint8_t *low = b->ql + 64 * half + 32 * (g % 2) + at;
        const uint8_t *high = b->qh + 32 * half + at;
        int low_shift = 4 * (g / 2), high_shift = 2 * g;
        float scale = d * (float)b->scales[k];
        for (int l = 0; l < 16; l++) {
            int q = (low[l] >> low_shift & 15) | (high[l] >> high_shift & 3) << 4;
            y[16 * k + l] = scale * (float)(q - 32);
        }
    }
}

#endif
