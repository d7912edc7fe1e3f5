/* random.h - random blocks of a type, for models whose values are of no matter: mean 0, standard
 * deviation about 0.02, as trained weights have.
 *
 * A block is a function of its number alone: the same bits on host and device. */
#ifndef QUANT_RANDOM_H
#define QUANT_RANDOM_H

#include "quant/bf16.h"
#include "quant/f16.h"
#include "quant/iq1_m.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"
#include "quant/quant.h"

QUANT_FN uint64_t random_mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

QUANT_FN uint64_t random_next(uint64_t *state) {
    return random_mix(*state += 0x9E3779B97F4A7C15u);
}

/* n is a multiple of 4. */
QUANT_FN void random_bytes(uint64_t *state, void *to, int n) {
    uint8_t *at = (uint8_t *)to;
    for (int i = 0; i < n; i += 8) {
        uint64_t bits = random_next(state);
        if (i + 8 <= n)
            memcpy(at + i, &bits, 8);
        else
            memcpy(at + i, &bits, 4);
    }
}

/* The sum of four uniform numbers is close enough to a normal one. */
QUANT_FN float random_normal(uint64_t *state) {
    uint64_t bits = random_next(state);
    int sum = (int)(bits & 0xffff) + (int)(bits >> 16 & 0xffff) + (int)(bits >> 32 & 0xffff) +
              (int)(bits >> 48);
    return (float)(sum - 2 * 0xffff) * (0.02f / 37837);
}

/* Every 6-bit scale and minimum of q4_k and q5_k is 32. */
QUANT_FN void random_k_scales(uint8_t *scales /* (12) */) {
    for (int i = 0; i < 12; i++)
        scales[i] = i < 8 ? 160 : 0;
}

/* A block of a type with a grid that begins with its scale. All other bits may be random: sub-block
 * scales, indices, signs. */
QUANT_FN void random_grid(uint64_t *state, float d, void *out, int bytes) {
    *(uint16_t *)out = f16_from_f32(d);
    random_bytes(state, (uint16_t *)out + 1, bytes - 2);
}

/* Whether there are random blocks of that type. */
QUANT_FN bool random_has(uint32_t type) {
    return type == DT_F32 || type == DT_F16 || type == DT_BF16 || type == DT_Q8_0 ||
           type == DT_Q4_0 || type == DT_Q4_1 || type == DT_Q5_0 || type == DT_Q5_1 ||
           type == DT_Q2_K || type == DT_Q3_K || type == DT_Q4_K || type == DT_Q5_K ||
           type == DT_Q6_K || type == DT_IQ2_XXS || type == DT_IQ2_XS || type == DT_IQ2_S ||
           type == DT_IQ3_XXS || type == DT_IQ3_S || type == DT_IQ1_S || type == DT_IQ1_M;
}

/* Makes the block of that number, of a type that random_has. No alignment is needed beyond 2, and 4
 * for f32. The scales are those of uniform quants; the minimums put the mean at 0. */
QUANT_FN void random_block(uint32_t type, uint64_t number, void *out) {
    uint64_t state = random_mix(number + 1);
    float d;
    switch (type) {
    case DT_F32:
        *(float *)out = random_normal(&state);
        break;
    case DT_F16:
        *(uint16_t *)out = f16_from_f32(random_normal(&state));
        break;
    case DT_BF16:
        *(uint16_t *)out = bf16_from_f32(random_normal(&state));
        break;
    case DT_Q8_0:
        ((struct q8_0 *)out)->d = f16_from_f32(0.02f / 74);
        random_bytes(&state, ((struct q8_0 *)out)->qs, 32);
        break;
    case DT_Q4_0:
        ((struct q4_0 *)out)->d = f16_from_f32(0.02f / 4.6f);
        random_bytes(&state, ((struct q4_0 *)out)->qs, 16);
        break;
    case DT_Q4_1:
        d = 0.02f / 4.6f;
        ((struct q4_1 *)out)->d = f16_from_f32(d);
        ((struct q4_1 *)out)->m = f16_from_f32(-7.5f * d);
        random_bytes(&state, ((struct q4_1 *)out)->qs, 16);
        break;
    case DT_Q5_0:
        ((struct q5_0 *)out)->d = f16_from_f32(0.02f / 9.2f);
        random_bytes(&state, ((struct q5_0 *)out)->qh, 4);
        random_bytes(&state, ((struct q5_0 *)out)->qs, 16);
        break;
    case DT_Q5_1:
        d = 0.02f / 9.2f;
        ((struct q5_1 *)out)->d = f16_from_f32(d);
        ((struct q5_1 *)out)->m = f16_from_f32(-15.5f * d);
        random_bytes(&state, ((struct q5_1 *)out)->qh, 4);
        random_bytes(&state, ((struct q5_1 *)out)->qs, 16);
        break;
    case DT_Q2_K:
        d = 0.02f / 8.94f;
        for (int i = 0; i < 16; i++)
            ((struct q2_k *)out)->scales[i] = 0x88;
        random_bytes(&state, ((struct q2_k *)out)->qs, 64);
        ((struct q2_k *)out)->d = f16_from_f32(d);
        ((struct q2_k *)out)->dmin = f16_from_f32(1.5f * d);
        break;
    case DT_Q3_K:
        random_bytes(&state, ((struct q3_k *)out)->hmask, 32);
        random_bytes(&state, ((struct q3_k *)out)->qs, 64);
        for (int i = 0; i < 12; i++) /* 16 and -16, for the mean of q is not 0 */
            ((struct q3_k *)out)->scales[i] = i < 8 ? 0 : 0x77;
        ((struct q3_k *)out)->d = f16_from_f32(0.02f / 37.5f);
        break;
    case DT_Q4_K:
        d = 0.02f / 147;
        ((struct q4_k *)out)->d = f16_from_f32(d);
        ((struct q4_k *)out)->dmin = f16_from_f32(7.5f * d);
        random_k_scales(((struct q4_k *)out)->scales);
        random_bytes(&state, ((struct q4_k *)out)->qs, 128);
        break;
    case DT_Q5_K:
        d = 0.02f / 295;
        ((struct q5_k *)out)->d = f16_from_f32(d);
        ((struct q5_k *)out)->dmin = f16_from_f32(15.5f * d);
        random_k_scales(((struct q5_k *)out)->scales);
        random_bytes(&state, ((struct q5_k *)out)->qh, 32);
        random_bytes(&state, ((struct q5_k *)out)->qs, 128);
        break;
    case DT_Q6_K:
        random_bytes(&state, ((struct q6_k *)out)->ql, 128);
        random_bytes(&state, ((struct q6_k *)out)->qh, 64);
        for (int i = 0; i < 16; i++)
            ((struct q6_k *)out)->scales[i] = 16;
        ((struct q6_k *)out)->d = f16_from_f32(0.02f / 296);
        break;
    case DT_IQ2_XXS:
        random_grid(&state, 0.02f / 53.2f, out, 66);
        break;
    case DT_IQ2_XS:
        random_grid(&state, 0.02f / 55.9f, out, 74);
        break;
    case DT_IQ2_S:
        random_grid(&state, 0.02f / 56.4f, out, 82);
        break;
    case DT_IQ3_XXS:
        random_grid(&state, 0.02f / 142, out, 98);
        break;
    case DT_IQ3_S:
        random_grid(&state, 0.02f / 140, out, 110);
        break;
    case DT_IQ1_S:
        random_grid(&state, 0.02f / 7.2f, out, 50);
        break;
    case DT_IQ1_M:
        random_bytes(&state, out, 56);
        for (int i = 0; i < 4; i++) {
            uint32_t half = f16_from_f32(0.02f / 7.2f), rest = ((struct iq1_m *)out)->scales[i];
            ((struct iq1_m *)out)->scales[i] =
                (uint16_t)((rest & 0xfff) | (half >> 4 * i & 15) << 12);
        }
        break;
    }
}

#endif
