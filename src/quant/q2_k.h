/* q2_k.h - 2 bits; 16 sub-blocks of 16, each with a 4-bit scale and minimum:
 * y = d scale q - dmin minimum. */
#ifndef QUANT_Q2_K_H
#define QUANT_Q2_K_H

#include "quant/f16.h"

struct q2_k {
    uint8_t scales[16]; /* scale in the low nibble, minimum in the high one */
    uint8_t qs[64];     /* 2 x 32 bytes; byte l of half h holds values 128h + 32g + l, g = 0..3 */
    uint16_t d, dmin;   /* fp16 */
};
static_assert(sizeof(struct q2_k) == 84, "q2_k is packed");

QUANT_FN void q2_k_unpack(const struct q2_k *b, int g, struct unpacked *out) {
    float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
    for (int i = 0; i < 2; i++) {
        out->scale[i] = d * (float)(b->scales[2 * g + i] & 15);
        out->min[i] = dmin * (float)(b->scales[2 * g + i] >> 4);
    }
    for (int i = 0; i < 8; i++)
        out->q[i] = load_u32(b->qs + 32 * (g / 4) + 4 * i) >> 2 * (g % 4) & 0x03030303;
}

#endif
