/* q3_k.h - 3 bits; 16 sub-blocks of 16, each with a signed 6-bit scale: y = d scale (q - 4). */
#ifndef QUANT_Q3_K_H
#define QUANT_Q3_K_H

#include "quant/f16.h"

struct q3_k {
    uint8_t hmask[32];  /* third bits: of value 32j + l at bit j of byte l */
    uint8_t qs[64];     /* low two bits: 2 x 32 bytes, as in q2_k */
    uint8_t scales[12]; /* 8 bytes of low nibbles (k, k + 8), 4 of upper bit pairs */
    uint16_t d;         /* half */
};
static_assert(sizeof(struct q3_k) == 110, "q3_k is packed");

/* The scale of sub-block k, -32..31. */
QUANT_FN int q3_k_scale(const uint8_t *scales, int k) {
    int low = scales[k % 8] >> 4 * (k / 8) & 15;
    int high = scales[8 + k % 4] >> 2 * (k / 4) & 3;
    return (low | high << 4) - 32;
}

QUANT_FN void q3_k_decode_block(const struct q3_k *b, float *y /* (256) */) {
    float d = f16_to_f32(b->d);
    for (int k = 0; k < 16; k++) {
        const uint8_t *qs = b->qs + 32 * (k / 8) + 16 * (k % 2);
        const uint8_t *high = b->hmask + 16 * (k % 2);
        int shift = 2 * (k % 8 / 2), bit = k / 2;
        float scale = d * (float)q3_k_scale(b->scales, k);
        for (int l = 0; l < 16; l++)
            y[16 * k + l] = scale * (float)((qs[l] >> shift & 3) + (high[l] >> bit & 1) * 4 - 4);
    }
}

#endif
