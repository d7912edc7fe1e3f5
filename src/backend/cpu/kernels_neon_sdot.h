/* kernels_neon_sdot.h - a group's sums by SDOT, four values at a time: a part of
 * kernels_neon_int8.h. */

/* dot += [. . . .] x x: four values of four weight rows with four of x by element, four times. In
 * assembly, because gcc 12 copies sums from one register to the next, and a core adds to a sum
 * every cycle only if it stays where it is. One chain of sums is half of what a core can do, and
 * its queues are short: two or four chains alternate. */
INLINE TARGET void dot_two(int32x4_t *dot, const int8x16_t *v, const int8x16_t *w, int8x16_t x) {
    __asm__("sdot %0.4s, %2.16b, %10.4b[0]\n\t"
            "sdot %1.4s, %6.16b, %10.4b[0]\n\t"
            "sdot %0.4s, %3.16b, %10.4b[1]\n\t"
            "sdot %1.4s, %7.16b, %10.4b[1]\n\t"
            "sdot %0.4s, %4.16b, %10.4b[2]\n\t"
            "sdot %1.4s, %8.16b, %10.4b[2]\n\t"
            "sdot %0.4s, %5.16b, %10.4b[3]\n\t"
            "sdot %1.4s, %9.16b, %10.4b[3]"
            : "+&w"(dot[0]), "+&w"(dot[1])
            : "w"(v[0]), "w"(v[1]), "w"(v[2]), "w"(v[3]), "w"(w[0]), "w"(w[1]), "w"(w[2]),
              "w"(w[3]), "w"(x));
}

#define DOT_FOUR(w, i)                                                                             \
    "sdot %0.4s, " w ".16b, %8.4b[" i "]\n\t"                                                      \
    "sdot %1.4s, " w ".16b, %9.4b[" i "]\n\t"                                                      \
    "sdot %2.4s, " w ".16b, %10.4b[" i "]\n\t"                                                     \
    "sdot %3.4s, " w ".16b, %11.4b[" i "]\n\t"
INLINE TARGET void dot_four(int32x4_t *dot, const int8x16_t *w, const int8x16_t *x) {
    __asm__(DOT_FOUR("%4", "0") DOT_FOUR("%5", "1") DOT_FOUR("%6", "2") DOT_FOUR("%7", "3")
            : "+&w"(dot[0]), "+&w"(dot[1]), "+&w"(dot[2]), "+&w"(dot[3])
            : "w"(w[0]), "w"(w[1]), "w"(w[2]), "w"(w[3]), "w"(x[0]), "w"(x[1]), "w"(x[2]),
              "w"(x[3]));
}

/* Both halves of a tile with one row. */
INLINE TARGET void multiply_one(const struct format *f, const int8x16_t (*w)[8],
                                const float32x4_t (*s)[2][ORDERS], const struct act_group *a,
                                float32x4_t *group_sums /* (2) */) {
    const int last = f->runs - 1;
    int32x4_t dot[2][2]; /* [run][half] */
    UNROLL for (int run = 0; run < f->runs; run++) UNROLL for (int h = 0; h < 2; h++) dot[run][h] =
        f->type == DT_Q8_0 ? vdupq_n_s32(start_bits(f->shift[run]))
                           : start_of(f->shift[run], false, w[h][4 * run]);
    dot_two(dot[0], w[0], w[1], vld1q_s8(a->q));
    dot_two(dot[last], w[0] + 4, w[1] + 4, vld1q_s8(a->q + 16));
    UNROLL for (int h = 0; h < 2; h++) group_sums[h] =
        group_sum_of(f, (int32x4_t[2]){dot[0][h], dot[last][h]}, s[h], 0);
}

/* Half a tile with four rows. */
INLINE TARGET void multiply_four(const struct format *f, const int8x16_t *w,
                                 const float32x4_t (*s)[ORDERS], const struct interleaved *four,
                                 float32x4_t *group_sums /* (4) */) {
    const int last = f->runs - 1;
    int32x4_t dot[2][4]; /* [run][row] */
    UNROLL for (int run = 0; run < 2; run++) {
        int8x16_t x[4];
        UNROLL for (int r = 0; r < 4; r++) {
            x[r] = vld1q_s8(four->q[run][r]);
            if (run <= last)
                dot[run][r] = start_of(f->shift[run], false, x[r]);
        }
        dot_four(dot[run <= last ? run : last], w + 4 * run, x);
    }
    UNROLL for (int r = 0; r < 4; r++) group_sums[r] =
        group_sum_of(f, (int32x4_t[2]){dot[0][r], dot[last][r]}, s, r);
}

/* The sums of group g: both halves of a tile for one or two rows, one for four or eight. */
INLINE TARGET void multiply(const struct format *f, const int8x16_t (*w)[8],
                            const float32x4_t (*s)[2][ORDERS], struct rows rows, int g, int acts,
                            float32x4_t (*group_sums)[MAX_ACTS]) {
    UNROLL for (int r = 0; r < acts && acts <= 2; r++) {
        float32x4_t both[2];
        multiply_one(f, w, s, group_of(rows, r, g), both);
        group_sums[0][r] = both[0];
        group_sums[1][r] = both[1];
    }
    UNROLL for (int r = 0; r < acts && acts > 2; r += 4)
        multiply_four(f, w[0], s[0], interleaved_of(rows, r, g, acts), group_sums[0] + r);
}

/* n groups of `acts` rows. */
INLINE void interleave(const struct format *f, struct rows rows, uint32_t n, int acts,
                       struct interleaved *to) {
    for (int first = 0; first < acts; first += INTERLEAVED, to++) {
        struct interleaved *at = to;
        for (uint32_t g = 0; g < n; g++, at += acts / INTERLEAVED)
            UNROLL for (int r = 0; r < INTERLEAVED; r++) {
                const struct act_group *x = group_of(rows, first + r, (int)g);
                vst1q_s8(at->q[0][r], vld1q_s8(x->q));
                vst1q_s8(at->q[1][r], vld1q_s8(x->q + 16));
                at->scale[r] = x->scale;
                if (f->has_min && f->runs == 1)
                    at->offset[r] = x->offset;
                if (f->has_min && f->runs == 2) {
                    at->half_offset[0][r] = x->half_offset[0];
                    at->half_offset[1][r] = x->half_offset[1];
                }
            }
    }
}
