/* q3_k.h - 3 bits; 16 sub-blocks of 16, each with a signed 6-bit scale: y = d scale (q - 4). */
#ifndef QUANT_Q3_K_H
#define QUANT_Q3_K_H

#include "quant/f16.h"

struct q3_k {
    uint8_t hmask[32];  /* third bits: of value 32j + l at bit j of byte l */
    uint8_t qs[64];     /* low two bits: 2 x 32 bytes, as in q2_k */
    uint8_t scales[12]; /* 8 bytes of low nibbles (k, k + 8), 4 of upper bit pairs */
    uint16_t d;         /* fp16 */
};
static_assert(sizeof(struct q3_k) == 110, "q3_k is packed");

/* The scale of sub-block k, -32..31. */
QUANT_FN int q3_k_scale(const uint8_t *scales, int k) {
    int low = scales[k % 8] >> 4 * (k / 8) & 15;
    int high = scales[8 + k % 4] >> 2 * (k / 4) & 3;
    return (low | high << 4) - 32;
}

QUANT_FN void q3_k_unpack(const struct q3_k *b, int g, struct unpacked *out) {
    float d = f16_to_f32(b->d);
    for (int i = 0; i < 2; i++) {
        out->scale[i] = d * (float)q3_k_scale(b->scales, 2 * g + i);
        out->min[i] = 0;
    }
    for (int i = 0; i < 8; i++) {
        uint32_t low = load_u32(b->qs + 32 * (g / 4) + 4 * i) >> 2 * (g % 4) & 0x03030303;
        uint32_t high = load_u32(b->hmask + 4 * i) >> g & 0x01010101;
        out->q[i] = bytes_minus(low | high << 2, 4);
    }
}

#endif
