/* kernels_neon_mmla.h - a group's sums by SMMLA, eight values at a time: a part of
 * kernels_neon_int8.h. */

/* Values 8 step .. 8 step + 7 of a and of b. Two steps share their loads. */
INLINE int8x16_t two_eights(const int8_t *a, const int8_t *b, int step) {
    int64x2_t x = vreinterpretq_s64_s8(vld1q_s8(a + step / 2 * 16));
    int64x2_t y = vreinterpretq_s64_s8(vld1q_s8(b + step / 2 * 16));
    return vreinterpretq_s8_s64(step % 2 ? vtrn2q_s64(x, y) : vtrn1q_s64(x, y));
}

INLINE float32x4_t two_twice(float x, float y) {
    float32x2_t both = {x, y};
    return vcombine_f32(both, both);
}

/* n groups of `acts` rows. */
INLINE void interleave(const struct format *f, struct rows rows, uint32_t n, int acts,
                       struct interleaved *to) {
    for (int r = 0; r < acts; r += 2, to++) {
        struct interleaved *at = to;
        for (uint32_t g = 0; g < n; g++, at += acts / 2) {
            const struct act_group *x = group_of(rows, r, (int)g);
            const struct act_group *y = group_of(rows, r + 1, (int)g);
            UNROLL for (int i = 0; i < 4; i++) vst1q_s8(at->q[i], two_eights(x->q, y->q, i));
            vst1q_f32(at->scale, two_twice(x->scale, y->scale));
            if (f->has_min && f->runs == 1)
                vst1q_f32(at->offset, two_twice(x->offset, y->offset));
            if (f->has_min && f->runs == 2) {
                vst1q_f32(at->half_offset[0], two_twice(x->half_offset[0], y->half_offset[0]));
                vst1q_f32(at->half_offset[1], two_twice(x->half_offset[1], y->half_offset[1]));
            }
        }
    }
}

/* Sums in pairs become those of each row. */
static void part_pairs(float32x4_t (*sums)[2][MAX_ACTS], uint32_t tiles, uint32_t acts) {
    for (uint32_t h = 0; h < 2 * tiles; h++)
        for (uint32_t r = 0; r < acts; r += 2) {
            float32x4_t *at = sums[h / 2][h % 2] + r, both = at[0];
            at[0] = vuzp1q_f32(both, at[1]);
            at[1] = vuzp2q_f32(both, at[1]);
        }
}

/* Of two rows by SMMLA: [a b] x [x y] -> [a.x a.y b.x b.y]. dot: [two weight
 * rows, and the other two][run]. */
INLINE TARGET void dots_of_two(const struct format *f, const int8x16_t *w,
                               const struct interleaved *xy, int32x4_t (*dot)[2]) {
    const int steps = 4 / f->runs;
    UNROLL for (int run = 0; run < f->runs; run++) {
        int32x4_t pair[2];
        UNROLL for (int p = 0; p < 2; p++) pair[p] =
            start_of(f->shift[run], false, vld1q_s8(xy->q[steps * run + p]));
        UNROLL for (int step = steps * run; step < steps * (run + 1); step++) {
            int8x16_t x = vld1q_s8(xy->q[step]);
            UNROLL for (int p = 0; p < 2; p++) pair[p] = vmmlaq_s32(pair[p], w[2 * step + p], x);
        }
        dot[0][run] = pair[0];
        dot[1][run] = pair[1];
    }
}

/* Two steps, 16 values, of eight rows and four weight rows: each vector of weights and activations
 * is loaded right before its use, and the eight sums alternate. V1 reads few operands a cycle from
 * its registers, but need not read what was just loaded; and a sum that is added to twice in a row
 * waits. */
#define LOAD_WEIGHTS(a, b, step) "ldp %q[" a "], %q[" b "], [%[w], #32*" step "]\n\t"
#define LOAD_PAIR(pair, step) "ldr %q[x" pair "], [%[xy], #144*" pair "+16*" step "]\n\t"
#define LOAD_START(sum) "ldr %q[d" sum "], [%[start], #16*" sum "]\n\t"
#define ADD_SUM(sum, w, pair) "smmla %[d" sum "].4s, %[" w "].16b, %[x" pair "].16b\n\t"
#define FIRST_PAIR(first, second, pair)                                                            \
    LOAD_PAIR(pair, "0")                                                                           \
    LOAD_START(first) LOAD_START(second) ADD_SUM(first, "a", pair) ADD_SUM(second, "b", pair)
#define ADD_PAIR(first, second, pair, step, a, b)                                                  \
    LOAD_PAIR(pair, step) ADD_SUM(first, a, pair) ADD_SUM(second, b, pair)
#define ADD_STEP(step, a, b)                                                                       \
    LOAD_WEIGHTS(a, b, step)                                                                       \
    ADD_PAIR("0", "1", "0", step, a, b)                                                            \
    ADD_PAIR("2", "3", "1", step, a, b)                                                            \
    ADD_PAIR("4", "5", "2", step, a, b)                                                            \
    ADD_PAIR("6", "7", "3", step, a, b)
#define EIGHT_SUMS(mode)                                                                           \
    [d0] mode(dot[0]), [d1] mode(dot[1]), [d2] mode(dot[2]), [d3] mode(dot[3]), [d4] mode(dot[4]), \
        [d5] mode(dot[5]), [d6] mode(dot[6]), [d7] mode(dot[7]), [a] "=&w"(a), [b] "=&w"(b),       \
        [c] "=&w"(c), [d] "=&w"(d), [x0] "=&w"(x0), [x1] "=&w"(x1), [x2] "=&w"(x2), [x3] "=&w"(x3)
INLINE TARGET void first_steps(int shift, const int8x16_t *w, const int8_t *xy, int32x4_t *dot) {
#define FOUR(v) v, v, v, v
#define EIGHT_STARTS(shift)                                                                        \
    { FOUR(FOUR(START_BITS(shift))), FOUR(FOUR(START_BITS(shift))) }
    static const _Alignas(128)
        int32_t starts[][4 * MAX_ACTS] = {EIGHT_STARTS(0), EIGHT_STARTS(1), EIGHT_STARTS(2),
                                          EIGHT_STARTS(3), EIGHT_STARTS(4), EIGHT_STARTS(5)};
    int8x16_t a, b, c, d, x0, x1, x2, x3;
    __asm__(LOAD_WEIGHTS("a", "b", "0") FIRST_PAIR("0", "1", "0") FIRST_PAIR("2", "3", "1")
                FIRST_PAIR("4", "5", "2") FIRST_PAIR("6", "7", "3") ADD_STEP("1", "c", "d")
            : EIGHT_SUMS("=&w")
            : [w] "r"(w), [xy] "r"(xy), [start] "r"(starts[shift])
            : "memory");
}

INLINE TARGET void next_steps(const int8x16_t *w, const int8_t *xy, int32x4_t *dot) {
    int8x16_t a, b, c, d, x0, x1, x2, x3;
    __asm__(ADD_STEP("0", "a", "b") ADD_STEP("1", "c", "d")
            : EIGHT_SUMS("+&w")
            : [w] "r"(w), [xy] "r"(xy)
            : "memory");
}

/* A group's sums of eight rows. start: what sums start at, multiplied with s[0] and negated, so
 * that one instruction takes it away and multiplies; nothing is rounded, as in group_sum_of. */
INLINE TARGET void group_sums_of_eight(const struct format *f, const int8x16_t *w,
                                       const float32x4_t (*s)[ORDERS], const float32x4_t *start,
                                       const struct interleaved *xy, float32x4_t *group_sums) {
    UNROLL for (int run = 0; run < f->runs; run++) {
        int32x4_t dot[MAX_ACTS];
        first_steps(f->shift[run], w + 4 * run, xy->q[2 * run], dot);
        if (f->runs == 1)
            next_steps(w + 4, xy->q[2], dot);
        UNROLL for (int r = 0; r < MAX_ACTS; r++) {
            float32x4_t sum = vreinterpretq_f32_s32(dot[r]);
            if (run == 0 && f->groups > 1)
                group_sums[r] = vfmaq_f32(start[r % ORDERS], sum, s[0][r % ORDERS]);
            else if (run == 0)
                group_sums[r] = sum_of(dot[r], f->shift[0]);
            else
                group_sums[r] =
                    vfmaq_f32(group_sums[r], sum_of(dot[r], f->shift[1]), s[1][r % ORDERS]);
        }
    }
}

/* The sums of group g: both halves of a tile for two rows, one for four or eight. */
INLINE TARGET void multiply(const struct format *f, const int8x16_t (*w)[8],
                            const float32x4_t (*s)[2][ORDERS], struct rows rows, int g, int acts,
                            float32x4_t (*group_sums)[MAX_ACTS]) {
    const int halves = acts > 2 ? 1 : 2;
    UNROLL for (int h = 0; h < halves; h++) {
        UNROLL for (int r = 0; r + 1 < acts; r += 2) {
            int32x4_t dot[2][2];
            dots_of_two(f, w[h], interleaved_of(rows, r, g, acts), dot);
            UNROLL for (int p = 0; p < 2; p++) group_sums[h][r + p] =
                group_sum_of(f, dot[p], s[h], p);
        }
    }
}
