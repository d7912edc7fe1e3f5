/* kernels_neon_int8.h - products of packed rows with int8 activations, for SDOT and for SMMLA.
 *
 * kernels_neon_sdot.c and kernels_neon_mmla.c define K_STEP (4 or 8: the values of a row that the
 * instruction multiplies), TARGET, ISA and NEEDS, include this file and get `rows`, the kernels of
 * every type. Matrices are packed as kernels_neon_pack.h says: a group of 32 values of four weight
 * rows is expanded into eight vectors and multiplied with up to eight activation rows; for one or
 * two activation rows, all eight weight rows of a tile are expanded at once. For many, a tile is
 * expanded once for all of them.
 *
 * A sum of integers starts at the bits of a large float whose last bit counts as one (or a half, a
 * quarter ... where the expanded values are too large by a power of two): read as a float, less
 * what it began with, it is the sum. That is one instruction that both pipes of a small core run,
 * where a conversion takes one of them for two cycles, as an integer multiplication does. Scales
 * become floats in the same way, so in the types of 256 values, with scales s and minimums m,
 *
 *   part = fma(s dot + s' dot', x.scale, part)
 *
 *   low = fma(m, x.scale * sum(x.q), low)
 *
 * for each group of a block, in q2_k for either half of it, and once a block
 *
 *   acc = fma(part, d, acc) - low * dmin
 *
 * |s dot + s' dot'| stays below 2^24: nothing is rounded before x.scale. */
#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/kernels_grid.h"
#include "backend/cpu/kernels_neon_pack.h"
#include "base/cpu.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    TILES = 16,   /* that activation rows are multiplied with at a time */
    MAX_ACTS = 8, /* rows at once */
    CHUNK = 8,    /* groups between visits to the sums: a block of 256 values */
    SEGMENT = 32, /* groups whose activations are interleaved, for all tiles */
    /* Rows that a tile stays expanded for: MANY at most, and not fewer than LEAST_MANY. */
    MANY = 64,
    LEAST_MANY = K_STEP == 8 ? 16 : 32,
};

#include "backend/cpu/kernels_neon_expand.h"

/* ---- floats from integers -------------------------------------------------------------------- */

struct format {
    enum dtype type;
    expand_fn *expand;
    int groups, runs;           /* of a block; scales in a group: 1 or 2 */
    int shift[2];               /* of a run's values: they are expanded times 2^shift */
    uint32_t half;              /* bytes of half a tile's group */
    uint32_t bytes, f16s, size; /* in a packed block: scales, d; and all */
    bool has_min;
    float d_factor; /* what d is multiplied with */
};

/* The bits of 1.5 * 2^(23 - shift). */
#define START_BITS(shift) (0x4b400000 - ((shift) << 23))

INLINE int32_t start_bits(int shift) {
    return START_BITS(shift);
}

INLINE float start_value(int shift) {
    return 1.5f * (float)(1 << (23 - shift));
}

/* Where a sum begins, or, if its lanes will be added in pairs, two of them. Loaded for each one:
 * loads have pipes of their own, and a copy of a register takes the place of a product. `before`
 * makes each load its own. One row of q8_0 has loads enough, and copies. */
INLINE int32x4_t start_of(int shift, bool in_pairs, int8x16_t before) {
#define STARTS(shift)                                                                              \
    {                                                                                              \
        {START_BITS(shift), START_BITS(shift), START_BITS(shift), START_BITS(shift)},              \
            {START_BITS(shift), 0, START_BITS(shift), 0},                                          \
    }
    static const int32x4_t starts[][2] = {STARTS(0), STARTS(1), STARTS(2),
                                          STARTS(3), STARTS(4), STARTS(5)};
    int32x4_t start;
    /* LDUR: LDR with an offset takes an integer pipe too (Neoverse N1). */
    __asm__("ldur %q0, [%1]" : "=w"(start) : "r"(&starts[shift][in_pairs]), "w"(before));
    return start;
}

INLINE float32x4_t sum_of(int32x4_t dot, int shift) {
    float32x4_t start = vreinterpretq_f32_s32(vdupq_n_s32(start_bits(shift)));
    return vsubq_f32(vreinterpretq_f32_s32(dot), start);
}

/* Four of the eight signed bytes at p. In this and what follows `half` is a
 * constant where it is inlined; the halves of many rows, which are no
 * constants, are in p. */
INLINE float32x4_t four_bytes(const uint8_t *p, int half) {
    int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    int32x4_t start = vdupq_n_s32(start_bits(0));
    return sum_of(half ? vaddw_high_s16(start, wide) : vaddw_s16(start, vget_low_s16(wide)), 0);
}

/* The same of low or high nibbles. */
INLINE float32x4_t four_nibbles(const uint8_t *p, int half, int is_high) {
    uint8x8_t both = vld1_u8(p);
    uint8x8_t one = is_high ? vshr_n_u8(both, 4) : vand_u8(both, vdup_n_u8(15));
    uint16x8_t wide = vmovl_u8(one);
    uint32x4_t start = vdupq_n_u32((uint32_t)start_bits(0));
    uint32x4_t sum = half ? vaddw_high_u16(start, wide) : vaddw_u16(start, vget_low_u16(wide));
    return sum_of(vreinterpretq_s32_u32(sum), 0);
}

INLINE float32x4_t four_f16s(const uint8_t *p, int half) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 8 * half)));
}

/* mxfp4_scale of four exponents. They end the block: no more than four can be
 * read. */
INLINE float32x4_t four_exponents(const uint8_t *p, int half) {
    uint32_t four;
    memcpy(&four, p + 4 * half, sizeof four);
    uint16x4_t wide = vget_low_u16(vmovl_u8(vcreate_u8(four)));
    int32x4_t e = vreinterpretq_s32_u32(vmovl_u16(wide));
    int32x4_t small = vshlq_s32(vdupq_n_s32(0x00200000), e);
    int32x4_t normal = vshlq_n_s32(vsubq_s32(e, vdupq_n_s32(1)), 23);
    return vreinterpretq_f32_s32(vbslq_s32(vcltq_s32(e, vdupq_n_s32(2)), small, normal));
}

/* Where half a tile's parts of a block stand. */
struct half {
    const uint8_t *quants, *bytes, *f16s;
};

INLINE struct half half_of(const struct format *f, const uint8_t *block, int half) {
    return (struct half){block + (uint32_t)half * f->half, block + f->bytes + 4 * half,
                         block + f->f16s + 8 * half};
}

INLINE float32x4_t d_of(const struct format *f, struct half at, int half) {
    if (f->type == DT_MXFP4)
        return four_exponents(at.bytes, half);
    float32x4_t d = four_f16s(at.f16s, half);
    return f->d_factor == 1 ? d : vmulq_n_f32(d, f->d_factor);
}

INLINE float32x4_t second_of(struct half at, int half) {
    return four_f16s(at.f16s + 2 * NEON_TILE, half);
}

INLINE float32x4_t twice_and_one(float32x4_t s) {
    return vfmaq_n_f32(vdupq_n_f32(1), s, 2);
}

/* 2 scale + 1 of types whose scales stand in the word (of 4 or 2 bytes) that ends a row's group. */
INLINE float32x4_t scales_at_the_end(const struct format *f, const uint8_t *group, int word,
                                     int shift, uint32_t mask) {
    float s[4];
    UNROLL for (uint32_t r = 0; r < 4; r++) {
        const uint8_t *end = group + (r + 1) * f->half / 4;
        s[r] = (float)((word == 4 ? load_32(end - 4) : load_16(end - 2)) >> shift & mask);
    }
    return twice_and_one(vld1q_f32(s));
}

/* The scales of a group, for each run. */
INLINE void load_scales(const struct format *f, struct half from, int g, int half, float32x4_t *s) {
    const uint8_t *group = from.quants + (uint32_t)(2 * g + half) * f->half;
    const uint8_t *one = from.bytes + NEON_TILE * g;
    if (f->type == DT_IQ2_XXS || f->type == DT_IQ3_XXS) {
        s[0] = scales_at_the_end(f, group, 4, 28, 15);
        return;
    }
    if (f->type == DT_IQ1_S) {
        s[0] = scales_at_the_end(f, group, 2, 12, 7);
        return;
    }
    if (f->type == DT_IQ2_XS || f->type == DT_IQ2_S || f->type == DT_IQ1_M) {
        UNROLL for (int run = 0; run < 2; run++) {
            s[run] = four_nibbles(one, half, run);
            if (f->type != DT_IQ1_M)
                s[run] = twice_and_one(s[run]);
        }
        return;
    }
    bool is_pair = f->runs == 2 || f->has_min; /* two bytes a row, not one */
    const uint8_t *at = from.bytes + NEON_TILE * (is_pair ? 2 : 1) * g;
    UNROLL for (int run = 0; run < f->runs; run++) s[run] =
        f->type == DT_Q2_K ? four_nibbles(at + NEON_TILE * run, half, 0)
                           : four_bytes(at + NEON_TILE * run, half);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Activations of several rows are interleaved, once for all tiles. */
#if K_STEP == 8
/* A group of rows x and y as SMMLA takes it: eight values of x and eight of y in a vector. Its sums
 * are of two weight rows, a and b: [a.x a.y b.x b.y]. They stay in this order to the end, so scales
 * of activation rows are [x y x y]. */
struct interleaved {
    int8_t q[4][16];
    float scale[4], offset[4], half_offset[2][4];
    float unused[4]; /* pairs 128 bytes apart are in one bank of L1: one load a cycle (V1) */
};
_Static_assert(sizeof(struct interleaved) == 144, "LOAD_PAIR has its size");
enum { INTERLEAVED = 2 };
#else
/* A group of four rows, so that few instructions load them: either half of it row by row, and the
 * rows' scales as the lanes of a vector. */
struct interleaved {
    int8_t q[2][4][16];
    float scale[4], offset[4], half_offset[2][4];
};
enum { INTERLEAVED = 4 };
#endif

/* How many orders four weight rows come in: see of_weights. */
enum { ORDERS = K_STEP == 8 ? 2 : 1 };

INLINE bool are_interleaved(int acts) {
    return acts >= INTERLEAVED;
}

INLINE bool is_paired(int acts) {
    return K_STEP == 8 && are_interleaved(acts);
}

/* The rows of a call: groups of row r at `at + r * stride`; interleaved, those of all rows for each
 * group. */
struct rows {
    const struct act_group *at;
    size_t stride;
    const struct interleaved *interleaved;
    const struct twice *twice; /* of one row; see kernels_neon_one.h. NULL: not stored so */
};

INLINE const struct act_group *group_of(struct rows rows, int r, int g) {
    return rows.at + (size_t)r * rows.stride + g;
}

INLINE const struct interleaved *interleaved_of(struct rows rows, int r, int g, int acts) {
    return rows.interleaved + (size_t)g * (size_t)(acts / INTERLEAVED) + r / INTERLEAVED;
}

/* The factors for the vectors of row r, out of the four of interleaved rows: all of them, or the
 * row's lane. */
INLINE float32x4_t of_rows(const float *four, int r) {
    float32x4_t v = vld1q_f32(four);
    return K_STEP == 8 ? v : vdupq_n_f32(v[r % INTERLEAVED]);
}

INLINE float32x4_t scale_of_row(struct rows rows, int r, int g, int acts) {
    return are_interleaved(acts) ? of_rows(interleaved_of(rows, r, g, acts)->scale, r)
                                 : vdupq_n_f32(group_of(rows, r, g)->scale);
}

INLINE float32x4_t offset_of_row(struct rows rows, int r, int g, int acts) {
    return are_interleaved(acts) ? of_rows(interleaved_of(rows, r, g, acts)->offset, r)
                                 : vdupq_n_f32(group_of(rows, r, g)->offset);
}

INLINE float32x4_t half_offset_of_row(struct rows rows, int r, int g, int half, int acts) {
    return are_interleaved(acts) ? of_rows(interleaved_of(rows, r, g, acts)->half_offset[half], r)
                                 : vdupq_n_f32(group_of(rows, r, g)->half_offset[half]);
}

/* Values of four weight rows, for row r: in pairs, the even row's vectors have the first two weight
 * rows, and the odd one's the others. */
INLINE float32x4_t of_weights(float32x4_t v, int r, int acts) {
    if (!is_paired(acts))
        return v;
    return r % 2 ? vzip2q_f32(v, v) : vzip1q_f32(v, v);
}

/* Of each run. */
INLINE void in_order(const float32x4_t *v /* (2) */, int runs, int acts,
                     float32x4_t (*to)[ORDERS] /* (2) */) {
    UNROLL for (int run = 0; run < runs; run++) UNROLL for (int r = 0; r < ORDERS; r++) to[run][r] =
        of_weights(v[run], r, acts);
}

/* A group's sum for four weight rows, before the activations' scale. */
INLINE float32x4_t group_sum_of(const struct format *f, const int32x4_t *dot,
                                const float32x4_t (*s)[ORDERS], int r) {
    float32x4_t sum = sum_of(dot[0], f->shift[0]);
    if (f->groups > 1)
        sum = vmulq_f32(sum, s[0][r % ORDERS]);
    if (f->runs == 2)
        sum = vfmaq_f32(sum, sum_of(dot[1], f->shift[1]), s[1][r % ORDERS]);
    return sum;
}

#if K_STEP == 4

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

#else

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

#endif

/* Asks for what comes some bytes after a group of a tile: far ahead and into L2 on cores with
 * SMMLA (Neoverse V1: 27 GB/s where 1 KiB ahead into L1 gives 22, and 8 KiB ahead into L1 12), q8_0
 * into L3 (31 GB/s, 24 with L2); others keep what N1 is best with. */
INLINE void fetch_ahead(const uint8_t *at, uint32_t bytes) {
    UNROLL for (uint32_t i = 0; i < bytes; i += 64) {
        if (K_STEP == 8 && bytes > 256)
            __builtin_prefetch(at + 12 * 1024 + i, 0, 1);
        else if (K_STEP == 8)
            __builtin_prefetch(at + 12 * 1024 + i, 0, 2);
        else
            __builtin_prefetch(at + 1024 + i);
    }
}

/* The minimums of group g, for each run. */
INLINE void load_minimums(const struct format *f, struct half from, int g, int half,
                          float32x4_t *m /* (2) */) {
    const uint8_t *at = from.bytes + 2 * NEON_TILE * g;
    UNROLL for (int run = 0; run < f->runs; run++) m[run] =
        f->runs == 1 ? four_bytes(at + NEON_TILE, half)
                     : four_nibbles(at + NEON_TILE * run, half, 1);
}

/* What they take away, before dmin. */
INLINE void add_low(const struct format *f, const float32x4_t (*m)[ORDERS], struct rows rows, int g,
                    int acts, float32x4_t *low) {
    UNROLL for (int r = 0; r < acts; r++) {
        if (f->runs == 1) {
            low[r] = vfmaq_f32(low[r], m[0][r % ORDERS], offset_of_row(rows, r, g, acts));
        } else {
            low[r] = vfmaq_f32(low[r], m[0][r % ORDERS], half_offset_of_row(rows, r, g, 0, acts));
            low[r] = vfmaq_f32(low[r], m[1][r % ORDERS], half_offset_of_row(rows, r, g, 1, acts));
        }
    }
}

/* d of a block of 256 values and dmin, in order. */
struct block_scales {
    float32x4_t d[ORDERS], dmin[ORDERS];
};

INLINE struct block_scales scales_of_block(const struct format *f, struct half at, int half,
                                           int acts) {
    struct block_scales s;
    float32x4_t d = d_of(f, at, half);
    UNROLL for (int o = 0; o < ORDERS; o++) s.d[o] = of_weights(d, o, acts);
    if (f->has_min) {
        float32x4_t dmin = second_of(at, half);
        UNROLL for (int o = 0; o < ORDERS; o++) s.dmin[o] = of_weights(dmin, o, acts);
    }
    return s;
}

/* What a block of 256 values adds to the sums of half a tile. */
INLINE void add_scaled(const struct format *f, const struct block_scales *scales,
                       const float32x4_t *part, const float32x4_t *low, int acts,
                       float32x4_t *sums) {
    UNROLL for (int r = 0; r < acts; r++) {
        float32x4_t sum = vfmaq_f32(sums[r], part[r], scales->d[r % ORDERS]);
        if (f->has_min)
            sum = vfmsq_f32(sum, low[r], scales->dmin[r % ORDERS]);
        sums[r] = sum;
    }
}

INLINE void end_block(const struct format *f, struct half at, int half, const float32x4_t *part,
                      const float32x4_t *low, int acts, float32x4_t *sums) {
    struct block_scales scales = scales_of_block(f, at, half, acts);
    add_scaled(f, &scales, part, low, acts, sums);
}

/* A block of 256 values: `halves` half tiles from `first` on, for all rows.
 * Many rows have no registers to spare for their minimums: those are added up
 * before. */
INLINE TARGET void add_block(const struct format *f, const uint8_t *block, int first, int halves,
                             struct rows rows, int acts, float32x4_t (*sums)[MAX_ACTS]) {
    const bool is_apart = f->has_min && acts > 2;
    const uint32_t group_bytes = f->size / (uint32_t)f->groups;
    const struct half at = half_of(f, block, first);
    float32x4_t part[2][MAX_ACTS], low[2][MAX_ACTS];
    UNROLL for (int h = 0; h < halves; h++) UNROLL for (int r = 0; r < acts; r++) part[h][r] =
        low[h][r] = vdupq_n_f32(0);
    for (int g = 0; is_apart && g < f->groups; g++)
        UNROLL for (int h = 0; h < halves; h++) {
            float32x4_t loaded[2], m[2][ORDERS];
            load_minimums(f, at, g, h, loaded);
            in_order(loaded, f->runs, acts, m);
            add_low(f, m, rows, g, acts, low[h]);
        }
    for (int g = 0; g < f->groups; g++) {
        int8x16_t w[2][8];
        float32x4_t loaded[2], s[2][2][ORDERS], m[2][ORDERS], group_sums[2][MAX_ACTS];
        if (halves == 2)
            fetch_ahead(block + (uint32_t)g * group_bytes, group_bytes);
        UNROLL for (int h = 0; h < halves; h++) {
            f->expand(at.quants + (uint32_t)(2 * g + h) * f->half, w[h]);
            load_scales(f, at, g, h, loaded);
            in_order(loaded, f->runs, acts, s[h]);
        }
        multiply(f, w, s, rows, g, acts, group_sums);
        UNROLL for (int h = 0; h < halves; h++) {
            UNROLL for (int r = 0; r < acts; r++) part[h][r] =
                vfmaq_f32(part[h][r], group_sums[h][r], scale_of_row(rows, r, g, acts));
            if (f->has_min && !is_apart) {
                load_minimums(f, at, g, h, loaded);
                in_order(loaded, f->runs, acts, m);
                add_low(f, m, rows, g, acts, low[h]);
            }
        }
    }
    UNROLL for (int h = 0; h < halves; h++)
        end_block(f, at, h, part[h], low[h], acts, sums[first + h]);
}

/* What a block of 32 values adds to the sums of half a tile. d, m: in order. */
INLINE void add_group_sums(const struct format *f, const float32x4_t *group_sums,
                           const float32x4_t *d, const float32x4_t *m, struct rows rows, int g,
                           int acts, float32x4_t *sum) {
    UNROLL for (int r = 0; r < acts; r++) {
        float32x4_t scaled = vmulq_f32(group_sums[r], scale_of_row(rows, r, g, acts));
        sum[r] = vfmaq_f32(sum[r], scaled, d[r % ORDERS]);
        if (f->has_min)
            sum[r] = vfmaq_f32(sum[r], m[r % ORDERS], offset_of_row(rows, r, g, acts));
    }
}

/* `n` blocks of 32 values. */
INLINE TARGET void add_blocks(const struct format *f, const uint8_t *block, int n, int first,
                              int halves, struct rows rows, int acts,
                              float32x4_t (*sums)[MAX_ACTS]) {
    float32x4_t sum[2][MAX_ACTS];
    UNROLL for (int h = 0; h < halves; h++) UNROLL for (int r = 0; r < acts; r++) sum[h][r] =
        sums[first + h][r];
    for (int g = 0; g < n; g++, block += f->size) {
        int8x16_t w[2][8];
        const struct half at = half_of(f, block, first);
        if (halves == 2)
            fetch_ahead(block, f->size);
        float32x4_t none[2][2][ORDERS] = {{{vdupq_n_f32(0)}}}, group_sums[2][MAX_ACTS];
        UNROLL for (int h = 0; h < halves; h++) f->expand(at.quants + (uint32_t)h * f->half, w[h]);
        multiply(f, w, none, rows, g, acts, group_sums);
        UNROLL for (int h = 0; h < halves; h++) {
            float32x4_t loaded[2] = {d_of(f, at, h)}, ordered[2][ORDERS];
            if (f->has_min)
                loaded[1] = second_of(at, h);
            in_order(loaded, f->has_min ? 2 : 1, acts, ordered);
            add_group_sums(f, group_sums[h], ordered[0], ordered[1], rows, g, acts, sum[h]);
        }
    }
    UNROLL for (int h = 0; h < halves; h++) UNROLL for (int r = 0; r < acts; r++)
        sums[first + h][r] = sum[h][r];
}

/* ---- tiles that stay expanded ------------------------------------------------------------- */

/* A group of half a tile. s: its scales, or d where blocks are of 32 values; m: its minimums. */
struct expanded {
    int8x16_t w[8];
    float32x4_t s[2][ORDERS], m[2][ORDERS], start[ORDERS]; /* start: see group_sums_of_eight */
};

/* `n` groups of half a tile, up to a block of 256 values. */
INLINE TARGET void expand_half(const struct format *f, const uint8_t *block, int n, int half,
                               struct expanded *to) {
    for (int g = 0; g<n; g++, to++, block += f->groups> 1 ? 0 : f->size) {
        const struct half at = half_of(f, block, half);
        float32x4_t s[2], m[2];
        f->expand(at.quants + (uint32_t)(f->groups > 1 ? 2 * g : 0) * f->half, to->w);
        if (f->groups > 1)
            load_scales(f, at, g, 0, s);
        else
            s[0] = d_of(f, at, 0);
        in_order(s, f->runs, MAX_ACTS, to->s);
        if (K_STEP == 8 && f->groups > 1)
            UNROLL for (int o = 0; o < ORDERS; o++) to->start[o] =
                vmulq_n_f32(to->s[0][o], -start_value(f->shift[0]));
        if (f->has_min && f->groups > 1)
            load_minimums(f, at, g, 0, m);
        else if (f->has_min)
            m[0] = second_of(at, 0);
        if (f->has_min)
            in_order(m, f->runs, MAX_ACTS, to->m);
    }
}

/* An expanded tile, up to a block of 256 values. */
struct expanded_tile {
    struct expanded half[2][CHUNK];
    struct block_scales scales[2];
};

INLINE TARGET void expand_tile(const struct format *f, const uint8_t *block, int n,
                               struct expanded_tile *to) {
    for (int half = 0; half < 2; half++) {
        expand_half(f, block, n, half, to->half[half]);
        if (f->groups > 1)
            to->scales[half] = scales_of_block(f, half_of(f, block, half), 0, MAX_ACTS);
    }
}

/* The minimums of both halves: sixteen sums that do not wait for each other. */
INLINE TARGET void add_lows(const struct format *f, const struct expanded_tile *tile, int n,
                            struct rows rows, float32x4_t (*low)[MAX_ACTS]) {
    float32x4_t sum[2][MAX_ACTS];
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int r = 0; r < MAX_ACTS; r++) sum[h][r] =
        vdupq_n_f32(0);
    for (int g = 0; g < n; g++)
        UNROLL for (int h = 0; h < 2; h++)
            add_low(f, tile->half[h][g].m, rows, g, MAX_ACTS, sum[h]);
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int r = 0; r < MAX_ACTS; r++) low[h][r] =
        sum[h][r];
}

/* add_block or add_blocks of half a tile and MAX_ACTS rows: n groups. */
INLINE TARGET void add_expanded(const struct format *f, int n, const struct expanded *expanded,
                                const struct block_scales *scales, struct rows rows,
                                const float32x4_t *low, float32x4_t *sums) {
    float32x4_t part[MAX_ACTS];
    UNROLL for (int r = 0; r < MAX_ACTS; r++) part[r] = f->groups > 1 ? vdupq_n_f32(0) : sums[r];
    for (int g = 0; g < n; g++) {
        float32x4_t group_sums[1][MAX_ACTS];
#if K_STEP == 8
        group_sums_of_eight(f, expanded[g].w, expanded[g].s, expanded[g].start,
                            interleaved_of(rows, 0, g, MAX_ACTS), group_sums[0]);
#else
        multiply(f, &expanded[g].w, &expanded[g].s, rows, g, MAX_ACTS, group_sums);
#endif
        if (f->groups > 1)
            UNROLL for (int r = 0; r < MAX_ACTS; r++) part[r] =
                vfmaq_f32(part[r], group_sums[0][r], scale_of_row(rows, r, g, MAX_ACTS));
        else
            add_group_sums(f, group_sums[0], expanded[g].s[0], expanded[g].m[0], rows, g, MAX_ACTS,
                           part);
    }
    if (f->groups > 1)
        add_scaled(f, scales, part, low, MAX_ACTS, sums);
    else
        UNROLL for (int r = 0; r < MAX_ACTS; r++) sums[r] = part[r];
}

#if K_STEP == 8
#include "backend/cpu/kernels_neon_one.h"
#endif

/* ---- tiles ----------------------------------------------------------------------------------- */

struct tiles {
    const uint8_t *at;
    size_t bytes;           /* of one */
    uint32_t count, groups; /* groups: K / 32 */
};

INLINE const uint8_t *block_at(const struct format *f, struct tiles tiles, uint32_t tile,
                               uint32_t group) {
    return tiles.at + tile * tiles.bytes + group / (uint32_t)f->groups * f->size;
}

/* `n` groups of one tile. */
INLINE TARGET void add_tile(const struct format *f, const uint8_t *at, uint32_t n, struct rows rows,
                            int acts, float32x4_t (*sums)[MAX_ACTS]) {
    const int halves = acts > 2 ? 1 : 2; /* more would not fit into the registers */
    const uint32_t step = f->groups > 1 || halves == 1 ? CHUNK : n;
    for (uint32_t g = 0; g < n; g += step) {
        struct rows from = {rows.at + g, rows.stride, NULL, NULL};
        if (are_interleaved(acts))
            from.interleaved = interleaved_of(rows, 0, (int)g, acts);
        int some = n - g < step ? (int)(n - g) : (int)step;
        uint32_t bytes = f->groups > 1 ? f->size : (uint32_t)some * f->size;
        for (int first = 0; first < 2; first += halves) {
            if (f->groups > 1)
                add_block(f, at, first, halves, from, acts, sums);
            else
                add_blocks(f, at, some, first, halves, from, acts, sums);
        }
        at += bytes;
    }
}

#if K_STEP == 8
/* One row: where it is not stored twice already, SEGMENT groups are, for all tiles. */
INLINE TARGET void add_tiles_of_one(const struct format *f, struct tiles tiles, struct rows rows,
                                    float32x4_t (*sums)[2][MAX_ACTS]) {
    struct twice some[SEGMENT];
    const uint32_t step = rows.twice ? tiles.groups : SEGMENT;
    for (uint32_t g = 0; g < tiles.groups; g += step) {
        uint32_t n = tiles.groups - g < step ? tiles.groups - g : step;
        const struct twice *x = rows.twice ? rows.twice : some;
        if (!rows.twice)
            store_twice(rows.at + g, n, some);
        for (uint32_t t = 0; t < tiles.count; t++)
            add_tile_of_one(f, block_at(f, tiles, t, g), n, x, sums[t]);
    }
}
#endif

/* One tile after the other, as memory has them: Neoverse cores read one stream at 19.6 GB/s a core
 * (N1) and eight side by side at 12.3. Rows are interleaved a segment at a time, for all tiles. */
INLINE TARGET void add_tiles(const struct format *f, struct tiles tiles, struct rows rows, int acts,
                             float32x4_t (*sums)[2][MAX_ACTS]) {
#if K_STEP == 8
    if (acts == 1) {
        add_tiles_of_one(f, tiles, rows, sums);
        return;
    }
#endif
    struct interleaved interleaved[SEGMENT * MAX_ACTS / INTERLEAVED];
    for (uint32_t g = 0; are_interleaved(acts) && g < tiles.groups; g += SEGMENT) {
        uint32_t n = tiles.groups - g < SEGMENT ? tiles.groups - g : SEGMENT;
        struct rows from = {rows.at + g, rows.stride, interleaved, NULL};
        const uint8_t *at = tiles.at + g / (uint32_t)f->groups * f->size;
        interleave(f, from, n, acts, interleaved);
        for (uint32_t t = 0; t < tiles.count; t++)
            add_tile(f, at + t * tiles.bytes, n, from, acts, sums[t]);
    }
    for (uint32_t t = 0; !are_interleaved(acts) && t < tiles.count; t++)
        add_tile(f, tiles.at + t * tiles.bytes, tiles.groups, rows, acts, sums[t]);
}

/* add_tiles for eight, four, two and one row: functions of their own, or
 * compiling takes long. */
typedef void add_fn(struct tiles tiles, struct rows rows, float32x4_t (*sums)[2][MAX_ACTS]);

/* Up to CHUNK groups of `acts` rows in eights, and of all tiles. */
typedef void add_many_fn(struct tiles tiles, uint32_t group, int n, struct rows rows, uint32_t acts,
                         float32x4_t (*sums)[TILES][2][MAX_ACTS]);

/* The interleaved activations stay in L1; a tile is expanded and multiplied with all of them. */
INLINE TARGET void add_many_tiles(const struct format *f, struct tiles tiles, uint32_t group, int n,
                                  struct rows rows, uint32_t acts,
                                  float32x4_t (*sums)[TILES][2][MAX_ACTS]) {
    struct interleaved interleaved[MANY / MAX_ACTS][CHUNK * MAX_ACTS / INTERLEAVED];
    struct expanded_tile tile;
    const uint32_t eights = acts / MAX_ACTS;
    rows.at += group;
    for (uint32_t i = 0; i < eights; i++, rows.at += MAX_ACTS * rows.stride)
        interleave(f, rows, (uint32_t)n, MAX_ACTS, interleaved[i]);
    const uint8_t *first = tiles.at + group / (uint32_t)f->groups * f->size, *block = first;
    const uint32_t bytes = (uint32_t)n / (uint32_t)f->groups * f->size;
    for (uint32_t t = 0; t < tiles.count; t++, block += tiles.bytes) {
        expand_tile(f, block, n, &tile);
        /* Pieces of tiles are too short for the processor to see what comes next. */
        const uint8_t *next = t + 1 < tiles.count ? block + tiles.bytes : first + bytes;
        for (uint32_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(next + i);
        for (uint32_t i = 0; i < eights; i++) {
            float32x4_t low[2][MAX_ACTS];
            rows.interleaved = interleaved[i];
            if (f->groups > 1 && f->has_min)
                add_lows(f, &tile, n, rows, low);
            for (int h = 0; h < 2; h++)
                add_expanded(f, n, tile.half[h], &tile.scales[h], rows, low[h], sums[i][t][h]);
        }
    }
}

struct adders {
    add_fn *eight, *four, *two, *one;
    add_many_fn *many;
};

/* Some rows. Says how many. */
static uint32_t add_some(const struct adders *add, struct tiles tiles, struct rows rows,
                         uint32_t acts, float32x4_t (*sums)[2][MAX_ACTS]) {
    if (acts >= 8)
        return add->eight(tiles, rows, sums), 8;
    if (acts >= 4)
        return add->four(tiles, rows, sums), 4;
    if (acts >= 2)
        return add->two(tiles, rows, sums), 2;
    return add->one(tiles, rows, sums), 1;
}

static void store_sums(float32x4_t (*sums)[2][MAX_ACTS], uint32_t acts, uint32_t columns,
                       float *out, size_t out_stride) {
    for (uint32_t n = 0; n < columns; n += 4) {
        size_t lanes = columns - n < 4 ? columns - n : 4;
        for (uint32_t r = 0; r < acts; r++)
            memcpy(out + r * out_stride + n, &sums[n / 8][n / 4 % 2][r], lanes * sizeof *out);
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Whether that is less work than to expand a tile for each eight rows: with SMMLA always, as its
 * products of eight rows load what was expanded; with SDOT only where expanding takes long
 * (bench/cpu/mca.py).
 */
static bool stays_expanded(const struct format *f) {
    const bool has_grid = f->d_factor != 1 || f->type == DT_IQ3_S;
    return K_STEP == 8 ? true : f->runs == 2 || has_grid;
}

INLINE struct rows rows_from(const struct activations *acts, uint32_t r) {
    return (struct rows){acts->groups + r * stride_of(acts), stride_of(acts), NULL, NULL};
}

static void store_rows(float32x4_t (*sums)[2][MAX_ACTS], uint32_t tiles, uint32_t acts,
                       uint32_t columns, float *out, size_t out_stride) {
#if K_STEP == 8
    if (is_paired((int)acts))
        part_pairs(sums, tiles, acts);
#else
    (void)tiles;
#endif
    store_sums(sums, acts, columns, out, out_stride);
}

/* Rows from r on, in eights. Says how many. */
static uint32_t add_many(const struct adders *add, struct tiles tiles,
                         const struct activations *acts, uint32_t r, uint32_t columns, float *out,
                         size_t out_stride) {
    uint32_t rows = acts->n_rows - r < MANY ? (acts->n_rows - r) / MAX_ACTS * MAX_ACTS : MANY;
    float32x4_t sums[MANY / MAX_ACTS][TILES][2][MAX_ACTS];
    memset(sums, 0, rows / MAX_ACTS * sizeof *sums);
    for (uint32_t g = 0; g < tiles.groups; g += CHUNK) {
        int n = tiles.groups - g < CHUNK ? (int)(tiles.groups - g) : CHUNK;
        add->many(tiles, g, n, rows_from(acts, r), rows, sums);
    }
    for (uint32_t i = 0; i < rows; i += MAX_ACTS)
        store_rows(sums[i / MAX_ACTS], tiles.count, MAX_ACTS, columns, out + i * out_stride,
                   out_stride);
    return rows;
}

static void project(const struct format *f, const struct adders *add, const void *weights,
                    uint32_t first, uint32_t count, const struct activations *acts, float *out,
                    size_t out_stride) {
    struct tiles tiles = {.groups = acts->k / 32};
    tiles.bytes = (size_t)(tiles.groups / (uint32_t)f->groups) * f->size;
    tiles.at = (const uint8_t *)weights + first / NEON_TILE * tiles.bytes;
#if K_STEP == 8
    struct twice twice[MAX_TWICE];
    const bool is_stored = acts->n_rows % 2 && tiles.groups <= MAX_TWICE;
    if (is_stored) /* the last row has no other beside it */
        store_twice(rows_from(acts, acts->n_rows - 1).at, tiles.groups, twice);
#endif
    const uint32_t max = TILES * NEON_TILE;
    for (uint32_t n = 0; n < count; n += max, tiles.at += TILES * tiles.bytes) {
        uint32_t columns = count - n < max ? count - n : max;
        tiles.count = (columns + NEON_TILE - 1) / NEON_TILE;
        for (uint32_t r = 0, done; r < acts->n_rows; r += done) {
            float *to = out + r * out_stride + n;
            if (acts->n_rows - r >= LEAST_MANY && stays_expanded(f)) {
                done = add_many(add, tiles, acts, r, columns, to, out_stride);
                continue;
            }
            float32x4_t sums[TILES][2][MAX_ACTS];
            memset(sums, 0, sizeof sums);
            struct rows rows = rows_from(acts, r);
#if K_STEP == 8
            rows.twice = is_stored ? twice : NULL;
#endif
            done = add_some(add, tiles, rows, acts->n_rows - r, sums);
            store_rows(sums, tiles.count, done, columns, to, out_stride);
        }
    }
}

#define ADD(type, name, acts)                                                                      \
    static TARGET void add_##name##_##type(struct tiles tiles, struct rows rows,                   \
                                           float32x4_t(*sums)[2][MAX_ACTS]) {                      \
        add_tiles(&format_##type, tiles, rows, acts, sums);                                        \
    }

#define PROJECT_SCALED_D(TYPE, type, expand, runs, shift_0, shift_1, has_min, d_factor)            \
    static const struct format format_##type = {DT_##TYPE,                                         \
                                                expand,                                            \
                                                NEON_GROUPS_##type,                                \
                                                runs,                                              \
                                                {shift_0, shift_1},                                \
                                                NEON_HALF_##type,                                  \
                                                NEON_BYTES_##type,                                 \
                                                NEON_F16S_##type,                                  \
                                                NEON_SIZE_##type,                                  \
                                                has_min,                                           \
                                                d_factor};                                         \
    static uint64_t bytes_##type(uint32_t k, uint32_t n) {                                         \
        return neon_packed_bytes(DT_##TYPE, k, n);                                                 \
    }                                                                                              \
    static void pack_##type(const void *from, uint32_t k, uint32_t n, void *to) {                  \
        neon_pack(DT_##TYPE, K_STEP, from, k, n, to);                                              \
    }                                                                                              \
    ADD(type, eight, 8)                                                                            \
    ADD(type, four, 4)                                                                             \
    ADD(type, two, 2)                                                                              \
    ADD(type, one, 1)                                                                              \
    static TARGET void add_many_##type(struct tiles tiles, uint32_t group, int n,                  \
                                       struct rows rows, uint32_t acts,                            \
                                       float32x4_t(*sums)[TILES][2][MAX_ACTS]) {                   \
        add_many_tiles(&format_##type, tiles, group, n, rows, acts, sums);                         \
    }                                                                                              \
    static void project_##type(const void *weights, uint32_t first, uint32_t count,                \
                               const struct activations *acts, float *out, size_t out_stride) {    \
        static const struct adders add = {add_eight_##type, add_four_##type, add_two_##type,       \
                                          add_one_##type, add_many_##type};                        \
        project(&format_##type, &add, weights, first, count, acts, out, out_stride);               \
    }

#define PROJECT(TYPE, type, expand, runs, shift_0, shift_1, has_min)                               \
    PROJECT_SCALED_D(TYPE, type, expand, runs, shift_0, shift_1, has_min, 1)
PROJECT(Q4_0, q4_0, expand_4_signed, 1, 4, 4, false)
PROJECT(Q4_1, q4_1, expand_4, 1, 0, 0, true)
PROJECT(Q5_0, q5_0, expand_5_signed, 1, 3, 3, false)
PROJECT(Q5_1, q5_1, expand_5, 1, 0, 0, true)
PROJECT(Q8_0, q8_0, expand_8, 1, 0, 0, false)
PROJECT(Q2_K, q2_k, expand_2, 2, 0, 2, true)
PROJECT(Q3_K, q3_k, expand_3, 2, 5, 5, false)
PROJECT(Q4_K, q4_k, expand_4, 1, 0, 0, true)
PROJECT(Q5_K, q5_k, expand_5, 1, 0, 0, true)
PROJECT(Q6_K, q6_k, expand_6, 2, 2, 2, false)
PROJECT(IQ4_NL, iq4_nl, expand_iq4, 1, 0, 0, false)
PROJECT(IQ4_XS, iq4_xs, expand_iq4, 1, 0, 0, false)
PROJECT(MXFP4, mxfp4, expand_mxfp4, 1, 0, 0, false)
PROJECT_SCALED_D(IQ2_XXS, iq2_xxs, expand_iq2_xxs, 1, 0, 0, false, 0.125f)
PROJECT_SCALED_D(IQ2_XS, iq2_xs, expand_iq2_xs, 2, 0, 0, false, 0.125f)
PROJECT_SCALED_D(IQ2_S, iq2_s, expand_iq2_s, 2, 0, 0, false, 0.125f)
PROJECT_SCALED_D(IQ3_XXS, iq3_xxs, expand_iq3_xxs, 1, 0, 0, false, 0.25f)
PROJECT(IQ3_S, iq3_s, expand_iq3_s, 1, 0, 0, false)
PROJECT_SCALED_D(IQ1_S, iq1_s, expand_iq1_s, 1, 0, 0, false, 0.125f)
PROJECT_SCALED_D(IQ1_M, iq1_m, expand_iq1_m, 2, 0, 0, false, 0.125f)

#define INT8_ROW(TYPE, type)                                                                       \
    {#type " " ISA, DT_##TYPE, false, NEEDS, NEON_TILE, bytes_##type, pack_##type, project_##type},

static const struct kernel rows[] = {FOR_EACH_FAST_TYPE(INT8_ROW) FOR_EACH_GRID_TYPE(INT8_ROW)};
