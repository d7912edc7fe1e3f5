/* q8_0.h - signed bytes and a scale: y = d q. */
#ifndef QUANT_Q8_0_H
#define QUANT_Q8_0_H

#include "quant/f16.h"

struct q8_0 {
    uint16_t d; /* fp16 */
    int8_t qs[32];
};
static_assert(sizeof(struct q8_0) == 34, "q8_0 is packed");

QUANT_FN void q8_0_unpack(const struct q8_0 *b, int g, struct unpacked *out) {
    (void)g; /* a block is one group */
    unpacked_scale(out, f16_to_f32(b->d), 0);
    for (int i = 0; i < 8; i++)
        out->q[i] = load_u32(b->qs + 4 * i);
}

#endif
