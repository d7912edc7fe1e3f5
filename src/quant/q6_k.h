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
    uint16_t d;        /* fp16 */
};
static_assert(sizeof(struct q6_k) == 210, "q6_k is packed");

QUANT_FN void q6_k_unpack(const struct q6_k *b, int g, struct unpacked *out) {
    float d = f16_to_f32(b->d);
    const uint8_t *ql = b->ql + 64 * (g / 4) + 32 * (g % 2), *qh = b->qh + 32 * (g / 4);
    for (int i = 0; i < 2; i++) {
        out->scale[i] = d * (float)b->scales[2 * g + i];
        out->min[i] = 0;
    }
    for (int i = 0; i < 8; i++) {
        uint32_t low = load_u32(ql + 4 * i) >> 4 * (g % 4 / 2) & 0x0f0f0f0f;
        uint32_t high = load_u32(qh + 4 * i) >> 2 * (g % 4) & 0x03030303;
        out->q[i] = bytes_minus(low | high << 4, 32);
    }
}

#endif
