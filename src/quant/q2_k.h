/* q2_k.h - 2 bits; 16 sub-blocks of 16, each with a 4-bit scale and minimum:
 * y = d scale q - dmin minimum. */
#ifndef QUANT_Q2_K_H
#define QUANT_Q2_K_H

#include "quant/f16.h"

struct q2_k {
    uint8_t scales[16]; /* scale in the low nibble, minimum in the high one */
    uint8_t qs[64];     /* 2 x 32 bytes; byte l of half h holds values 128h + 32g + l, g = 0..3 */
    uint16_t d, dmin;   /* halves */
};
static_assert(sizeof(struct q2_k) == 84, "q2_k is packed");

QUANT_FN void q2_k_decode_block(const struct q2_k *b, float *y /* (256) */) {
    float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
    for (int k = 0; k < 16; k++) {
        const uint8_t *qs = b->qs + 32 * (k / 8) + 16 * (k % 2);
        int shift = 2 * (k % 8 / 2);
        float scale = d * (float)(b->scales[k] & 15), min = dmin * (float)(b->scales[k] >> 4);
        for (int l = 0; l < 16; l++)
            y[16 * k + l] = scale * (float)(qs[l] >> shift & 3) - min;
    }
}

#endif
