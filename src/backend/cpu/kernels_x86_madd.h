/* kernels_x86_madd.h - int8 products on x86 without VNNI: kernels_x86.h and its dot_rows.
 *
 * vpmaddubsw multiplies unsigned by signed bytes and adds neighbours, saturating at 16 bits, so the
 * weights' size decides how many of its results may be added before they are widened to 32 bits:
 *
 *   weights up to 15: eight (8 x 2 x 15 x 127 = 30480), up to 31: four, up to 63: two
 *
 * Types that fill their bytes are kept signed, and the weight's sign is moved to the activation:
 * |w| (x sign w), at most 2 x 128 x 127 = 32512.
 *
 * Included by kernels_avx2.c and kernels_avx512.c. Beside what kernels_x86.h asks for they first
 * define
 *   I_SET(x)               all lanes of four bytes
 *   I_LEFT(v, bits)        each shifted
 *   I_ADD(a, b)            of four bytes
 *   I_ADD_WORDS(a, b)      of two
 *   I_ABS_BYTES(v)
 *   I_SIGN_BYTES(x, w)     x where the byte of w is positive, -x where it is negative
 *   I_PAIRS(u, s)          vpmaddubsw
 *   I_WIDEN(v)             the sums of neighbours of two bytes */

/* Weights without their signs, where they have any. */
INLINE INTS magnitude(const struct format *f, INTS w) {
    return f->max < 128 ? w : I_ABS_BYTES(w);
}

/* Sums of two products each, 16 bits wide. */
INLINE INTS multiply_pairs(const struct format *f, INTS w, INTS magnitude, const int8_t *q) {
    int32_t four;
    memcpy(&four, q, sizeof four);
    INTS x = I_SET(four);
    return I_PAIRS(magnitude, f->max < 128 ? x : I_SIGN_BYTES(x, w));
}

/* The dot products of run h of a group and n rows. */
INLINE void dot_rows(const struct format *f, const struct expanded *w, const struct act_group *rows,
                     size_t stride, int n, int h, INTS *dot) {
    int quads = 8 / f->runs, fit = f->max < 16 ? 8 : f->max < 32 ? 4 : f->max < 64 ? 2 : 1;
    int batch = fit < quads ? fit : quads;
    UNROLL for (int r = 0; r < n; r++) {
        const struct act_group *a = rows + (size_t)r * stride;
        int32_t minus = f->runs == 1 ? a->minus_sum : a->minus_half[h];
        dot[r] = f->bias_log2 ? I_LEFT(I_SET(minus), f->bias_log2) : I_SET(0);
    }
    UNROLL for (int j = quads * h; j < quads * (h + 1); j += batch) {
        INTS pairs[DOT_MANY];
        UNROLL for (int i = j; i < j + batch; i++) {
            INTS plain = magnitude(f, w->w[i]);
            UNROLL for (int r = 0; r < n; r++) {
                INTS two = multiply_pairs(f, w->w[i], plain, rows[(size_t)r * stride].q + 4 * i);
                pairs[r] = i == j ? two : I_ADD_WORDS(pairs[r], two);
                if (n == DOT_MANY && batch > 1)
                    __asm__ volatile("" : "+v"(pairs[r])); /* or gcc adds them all at the end */
            }
        }
        UNROLL for (int r = 0; r < n; r++) dot[r] = I_ADD(dot[r], I_WIDEN(pairs[r]));
    }
}

#include "backend/cpu/kernels_x86.h"
