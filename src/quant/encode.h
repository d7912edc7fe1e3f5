/* encode.h - the quantizers that types.def names, and the rounding they share.
 *
 * All give the same bits with every compiler and on every processor: plain f32 arithmetic in a
 * fixed order, nothing from libm but sqrtf. */
#ifndef QUANT_ENCODE_H
#define QUANT_ENCODE_H

#include <float.h>

#include "quant/f16.h"
#include "quant/quant.h"

static_assert(FLT_EVAL_METHOD == 0, "f32 arithmetic must round to f32");

dtype_encode_fn f32_encode, f16_encode, bf16_encode;
dtype_encode_fn q4_0_encode, q4_1_encode, q5_0_encode, q5_1_encode, q8_0_encode;
dtype_encode_fn q2_k_encode, q3_k_encode, q4_k_encode, q5_k_encode, q6_k_encode;
dtype_encode_weighted_fn q4_0_encode_weighted, q4_1_encode_weighted, q5_0_encode_weighted,
    q5_1_encode_weighted, q8_0_encode_weighted;
dtype_encode_weighted_fn q2_k_encode_weighted, q3_k_encode_weighted, q4_k_encode_weighted,
    q5_k_encode_weighted, q6_k_encode_weighted;

/* Adding this leaves no bits for a fraction, so the addition rounds, half to even, any number
 * smaller than 2^22; the low bits of the sum are the integer. rintf is a call on plain x86-64. */
#define ROUND_MAGIC 12582912.0f /* 1.5 * 2^23 */

/* A scale as fp16. What would be subnormal is rounded away from zero: there fp16 is coarse,
 * and a scale too small cuts the largest values off, while one too large only costs precision. */
static inline uint16_t f16_from_scale(float scale) {
    if (scale == 0)
        return 0; /* and not -0 */
    uint16_t half = f16_from_f32_clamped(scale);
    float found = f16_to_f32(half), lost = scale < 0 ? found - scale : scale - found;
    bool is_subnormal = (half & 0x7c00) == 0;
    return (uint16_t)(half + (is_subnormal && lost > 0));
}

#endif
