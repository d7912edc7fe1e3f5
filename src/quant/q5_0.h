/* q5_0.h - 5 bits and a scale: y = d (n - 16). d may be negative. */
#ifndef QUANT_Q5_0_H
#define QUANT_Q5_0_H

#include "quant/f16.h"

struct q5_0 {
    uint16_t d;     /* fp16 */
    uint8_t qh[4];  /* 32 bits, value i's fifth at bit i; bytes, since their offset is 2 */
    uint8_t qs[16]; /* values 0..15 in the low nibbles, 16..31 in the high ones */
};
static_assert(sizeof(struct q5_0) == 22, "q5_0 is packed");

/* Four bits to bit 4 of four bytes, also of q5_1. */
QUANT_FN uint32_t q5_high_bits(uint32_t bits) {
    return (bits & 15) * 0x02040810u & 0x10101010u;
}

QUANT_FN void q5_0_unpack(const struct q5_0 *b, int g, struct unpacked *out) {
    (void)g; /* a block is one group */
    unpacked_scale(out, f16_to_f32(b->d), 0);
    unpack_nibbles(b->qs, out);
    uint32_t high = load_u32(b->qh);
    for (int i = 0; i < 8; i++)
        out->q[i] = bytes_minus(out->q[i] | q5_high_bits(high >> 4 * i), 16);
}

#endif
