/* q5_k.h - 5 bits; 8 sub-blocks of 32, each with a 6-bit scale and minimum:
 * y = d scale n - dmin minimum. */
#ifndef QUANT_Q5_K_H
#define QUANT_Q5_K_H

#include "quant/q4_k.h"

struct q5_k {
    uint16_t d, dmin;   /* fp16 */
    uint8_t scales[12]; /* as in q4_k */
    uint8_t qh[32];     /* fifth bits: of value 32s + l at bit s of byte l */
    uint8_t qs[128];    /* as in q4_k */
};
static_assert(sizeof(struct q5_k) == 176, "q5_k is packed");

QUANT_FN void q5_k_unpack(const struct q5_k *b, int g, struct unpacked *out) {
    unpacked_scale(out, f16_to_f32(b->d) * (float)q4_k_scale(b->scales, g),
                   f16_to_f32(b->dmin) * (float)q4_k_min(b->scales, g));
    for (int i = 0; i < 8; i++) {
        uint32_t low = load_u32(b->qs + 32 * (g / 2) + 4 * i) >> 4 * (g % 2) & 0x0f0f0f0f;
        out->q[i] = low | (load_u32(b->qh + 4 * i) >> g & 0x01010101) << 4;
    }
}

#endif
