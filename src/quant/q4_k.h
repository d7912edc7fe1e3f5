/* q4_k.h - 4 bits; 8 sub-blocks of 32, each with a 6-bit scale and minimum:
 * y = d scale n - dmin minimum. */
#ifndef QUANT_Q4_K_H
#define QUANT_Q4_K_H

#include "quant/f16.h"

struct q4_k {
    uint16_t d, dmin;   /* fp16 */
    uint8_t scales[12]; /* see q4_k_scale */
    uint8_t qs[128];    /* 4 x 32 bytes; byte l of run r holds values 64r + l and 64r + 32 + l */
};
static_assert(sizeof(struct q4_k) == 144, "q4_k is packed");

/* The 12 bytes, also of q5_k: bytes 0-3 hold the scales 0-3, bytes 4-7 the minimums 0-3, each
 * byte's two upper bits belong to number s + 4, whose low nibbles are in byte 8 + s: the scale's
 * below, the minimum's above. */
QUANT_FN int q4_k_scale(const uint8_t *scales, int s) {
    return s < 4 ? scales[s] & 63 : (scales[s + 4] & 15) | scales[s - 4] >> 6 << 4;
}

QUANT_FN int q4_k_min(const uint8_t *scales, int s) {
    return s < 4 ? scales[s + 4] & 63 : scales[s + 4] >> 4 | scales[s] >> 6 << 4;
}

QUANT_FN void q4_k_unpack(const struct q4_k *b, int g, struct unpacked *out) {
    unpacked_scale(out, f16_to_f32(b->d) * (float)q4_k_scale(b->scales, g),
                   f16_to_f32(b->dmin) * (float)q4_k_min(b->scales, g));
    for (int i = 0; i < 8; i++)
        out->q[i] = load_u32(b->qs + 32 * (g / 2) + 4 * i) >> 4 * (g % 2) & 0x0f0f0f0f;
}

#endif
