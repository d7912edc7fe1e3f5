/* kernels_neon.c - products with NEON: SDOT alone, or SMMLA for pairs of rows.
 *
 * int8: a tile is eight weight rows; a group of 32 values of them is sixteen vectors, which stay in
 * registers while the activation rows pass by. They are packed (kernels_pack.h, T = 8) in one of
 * two orders: with SMMLA a vector holds eight values of two rows (U = 8), w[step][pair]; with SDOT
 * alone four values of four rows (U = 4), w[four / 2][2 (four % 2) + half tile].
 *
 *   smmla, U = 8:  [a b] x [x y]   -> [a.x, a.y, b.x, b.y]     eight values, 32 products
 *   sdot,  U = 8:  [a b] x [x x]   -> [a.x' a.x" b.x' b.x"]    halves of them, added in pairs
 *   sdot,  U = 4:  [a b c d] x x   -> [a.x b.x c.x d.x]        four values of x, by element
 *
 * All give the same integers. Then, in f32, with the sub-block scales s and minimums m of the 256
 * value types still integers (a multiplication is cheaper than a conversion and one more rounding):
 *
 *   part = fma(f32(s dot + s' dot'), x.scale, part)      for each group of a block
 *   low  = fma(f32(m), x.scale * sum(x.q), low)
 *   acc  = fma(part, d, acc) - low * dmin                once a block
 *
 * |s dot + s' dot'| stays below 2^24, so the conversion is exact. */
#include "backend/cpu/kernels_rows.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

#include "backend/cpu/kernels_pack.h"
#include "base/cpu.h"

#define TARGET
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__ /* version 14 has no such attribute: the Makefile names both for the file */
#define TARGET_SDOT
#define TARGET_MMLA
#else
#define TARGET_SDOT __attribute__((target("arch=armv8.2-a+dotprod")))
#define TARGET_MMLA __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#endif

enum { TILE = 8, TILES = 8, MAX_ACTS = 8 };

/* ---- opening a group ------------------------------------------------------------------------- */

struct opened {
    int8x16_t w[4][4];                /* as above, plus the type's bias */
    int32x4_t scale[2][2], min[2][2]; /* [run][half tile]; types with sub-blocks */
};

/* Opens group g of a packed block; phase = g % phases is a constant where this is inlined. */
typedef void open_fn(const uint8_t *block, int g, int phase, struct opened *out);

/* Vector p of the i-th 64 bytes of the quants. */
INLINE uint8x16_t quants(const uint8_t *block, int i, int p) {
    return vld1q_u8(block + 64 * i + 16 * p);
}

INLINE int8x16_t as_signed(uint8x16_t v) {
    return vreinterpretq_s8_u8(v);
}

INLINE void load_u8(const uint8_t *p, int32x4_t *to) {
    uint16x8_t wide = vmovl_u8(vld1_u8(p));
    to[0] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide)));
    to[1] = vreinterpretq_s32_u32(vmovl_high_u16(wide));
}

INLINE void load_i8(const uint8_t *p, int32x4_t *to) {
    int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    to[0] = vmovl_s16(vget_low_s16(wide));
    to[1] = vmovl_high_s16(wide);
}

/* The 16 bytes of the 32-value types: low nibbles are steps 0 and 1, high ones 2 and 3. */
INLINE void open_nibbles(const uint8_t *from, struct opened *out) {
    UNROLL for (int p = 0; p < 4; p++) {
        UNROLL for (int u = 0; u < 2; u++) {
            uint8x16_t v = quants(from, u, p);
            out->w[u][p] = as_signed(vandq_u8(v, vdupq_n_u8(15)));
            out->w[u + 2][p] = as_signed(vshrq_n_u8(v, 4));
        }
    }
}

/* A value's bit stands at bit i / 4 of its row's byte i % 4. U = 4: at the same for a whole vector.
 */
INLINE void add_fifth_bits_4(const uint8_t *words, struct opened *out) {
    uint8x16_t bits[2] = {vld1q_u8(words), vld1q_u8(words + 16)};
    UNROLL for (int four = 0; four < 8; four++) {
        UNROLL for (int h = 0; h < 2; h++) {
            uint8x16_t moved = vshlq_u8(bits[h], vdupq_n_s8((int8_t)(4 - four)));
            int8x16_t *w = &out->w[four / 2][2 * (four % 2) + h];
            *w = vorrq_s8(*w, as_signed(vandq_u8(moved, vdupq_n_u8(16))));
        }
    }
}

/* U = 8: value 8s + c's bit stands at bit 2s + c / 4. */
INLINE void add_fifth_bits_8(const uint8_t *words, struct opened *out) {
    static const int8_t left[16] = {4, 4, 4, 4, 3, 3, 3, 3, 4, 4, 4, 4, 3, 3, 3, 3};
    int8x16_t shift = vld1q_s8(left);
    uint32x4_t four[2] = {vreinterpretq_u32_u8(vld1q_u8(words)),
                          vreinterpretq_u32_u8(vld1q_u8(words + 16))};
    UNROLL for (int p = 0; p < 4; p++) {
        uint32x4_t both =
            p % 2 ? vzip2q_u32(four[p / 2], four[p / 2]) : vzip1q_u32(four[p / 2], four[p / 2]);
        UNROLL for (int s = 0; s < 4; s++) {
            int8x16_t by = vsubq_s8(shift, vdupq_n_s8((int8_t)(2 * s)));
            uint8x16_t bit = vandq_u8(vshlq_u8(vreinterpretq_u8_u32(both), by), vdupq_n_u8(16));
            out->w[s][p] = vorrq_s8(out->w[s][p], as_signed(bit));
        }
    }
}

INLINE void look_up(const int8_t *values, struct opened *out) {
    int8x16_t table = vld1q_s8(values);
    UNROLL for (int s = 0; s < 4; s++) UNROLL for (int p = 0; p < 4; p++) out->w[s][p] =
        vqtbl1q_s8(table, vreinterpretq_u8_s8(out->w[s][p]));
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

INLINE void open_q4_0(const uint8_t *block, int g, int phase, struct opened *out) {
    (void)g, (void)phase;
    open_nibbles(block, out);
}

#define open_q4_1 open_q4_0

INLINE void open_q5_0(const uint8_t *block, int g, int phase, struct opened *out) {
    (void)g, (void)phase;
    open_nibbles(block, out);
}

#define open_q5_1 open_q5_0

INLINE void open_q8_0(const uint8_t *block, int g, int phase, struct opened *out) {
    (void)g, (void)phase;
    UNROLL for (int s = 0; s < 4; s++) UNROLL for (int p = 0; p < 4; p++) out->w[s][p] =
        as_signed(quants(block, s, p));
}

INLINE void open_iq4_nl(const uint8_t *block, int g, int phase, struct opened *out) {
    (void)g, (void)phase;
    open_nibbles(block, out);
    look_up(iq4_values, out);
}

INLINE void open_iq4_xs(const uint8_t *block, int g, int phase, struct opened *out) {
    (void)phase;
    open_nibbles(block + 128 * g, out);
    look_up(iq4_values, out);
    load_i8(block + TILE * (PACK_BYTES_iq4_xs + g), out->scale[0]);
}

INLINE void open_mxfp4(const uint8_t *block, int g, int phase, struct opened *out) {
    (void)g, (void)phase;
    open_nibbles(block, out);
    look_up(mxfp4_values, out);
}

/* Two bits of unit i, from bit 2 phase on. */
INLINE uint8x16_t two_bits(const uint8_t *block, int i, int p, int phase) {
    uint8x16_t v = vshlq_u8(quants(block, i, p), vdupq_n_s8((int8_t)(-2 * phase)));
    return vandq_u8(v, vdupq_n_u8(3));
}

INLINE void open_q2_k(const uint8_t *block, int g, int phase, struct opened *out) {
    UNROLL for (int s = 0; s < 4; s++) UNROLL for (int p = 0; p < 4; p++) out->w[s][p] =
        as_signed(two_bits(block, 4 * (g / 4) + s, p, phase));
    UNROLL for (int h = 0; h < 2; h++) {
        load_u8(block + TILE * (PACK_BYTES_q2_k + 2 * g + h), out->min[h]);
        UNROLL for (int i = 0; i < 2; i++) {
            out->scale[h][i] = vandq_s32(out->min[h][i], vdupq_n_s32(15));
            out->min[h][i] = vshrq_n_s32(out->min[h][i], 4);
        }
    }
}

INLINE void open_q3_k(const uint8_t *block, int g, int phase, struct opened *out) {
    int8x16_t third = vdupq_n_s8((int8_t)(2 - g));
    UNROLL for (int s = 0; s < 4; s++) {
        UNROLL for (int p = 0; p < 4; p++) {
            uint8x16_t high = vandq_u8(vshlq_u8(quants(block, 8 + s, p), third), vdupq_n_u8(4));
            out->w[s][p] = as_signed(vorrq_u8(two_bits(block, 4 * (g / 4) + s, p, phase), high));
        }
    }
    UNROLL for (int h = 0; h < 2; h++)
        load_i8(block + TILE * (PACK_BYTES_q3_k + 2 * g + h), out->scale[h]);
}

INLINE uint8x16_t nibble(uint8x16_t v, int is_high) {
    return is_high ? vshrq_n_u8(v, 4) : vandq_u8(v, vdupq_n_u8(15));
}

INLINE void open_q4_k(const uint8_t *block, int g, int phase, struct opened *out) {
    UNROLL for (int s = 0; s < 4; s++) UNROLL for (int p = 0; p < 4; p++) out->w[s][p] =
        as_signed(nibble(quants(block, 4 * (g / 2) + s, p), phase));
    load_u8(block + TILE * (PACK_BYTES_q4_k + g), out->scale[0]);
    load_u8(block + TILE * (PACK_BYTES_q4_k + 8 + g), out->min[0]);
}

INLINE void open_q5_k(const uint8_t *block, int g, int phase, struct opened *out) {
    int8x16_t fifth = vdupq_n_s8((int8_t)(4 - g));
    UNROLL for (int s = 0; s < 4; s++) {
        UNROLL for (int p = 0; p < 4; p++) {
            uint8x16_t low = nibble(quants(block, 4 * (g / 2) + s, p), phase);
            uint8x16_t high = vandq_u8(vshlq_u8(quants(block, 16 + s, p), fifth), vdupq_n_u8(16));
            out->w[s][p] = as_signed(vorrq_u8(low, high));
        }
    }
    load_u8(block + TILE * (PACK_BYTES_q5_k + g), out->scale[0]);
    load_u8(block + TILE * (PACK_BYTES_q5_k + 8 + g), out->min[0]);
}

/* Shifts that insert put nibble and upper bits together: 2 or 3 instructions instead of 5. */
INLINE uint8x16_t six_bits(uint8x16_t low, uint8x16_t high, int phase) {
    if (phase % 2)
        high = vshrq_n_u8(high, 2);
    uint8x16_t both = phase < 2 ? vsliq_n_u8(low, high, 4) : vsriq_n_u8(high, low, 4);
    return vandq_u8(both, vdupq_n_u8(63));
}

INLINE void open_q6_k(const uint8_t *block, int g, int phase, struct opened *out) {
    int half = g / 4;
    UNROLL for (int s = 0; s < 4; s++) {
        UNROLL for (int p = 0; p < 4; p++) {
            uint8x16_t low = quants(block, 8 * half + 4 * (phase % 2) + s, p);
            uint8x16_t high = quants(block, 16 + 4 * half + s, p);
            out->w[s][p] = as_signed(six_bits(low, high, phase));
        }
    }
    UNROLL for (int h = 0; h < 2; h++)
        load_i8(block + TILE * (PACK_BYTES_q6_k + 2 * g + h), out->scale[h]);
}

/* ---- int8 activations ------------------------------------------------------------------------ */

struct format {
    enum dtype type;
    int unit; /* U: 4 or 8 */
    open_fn *open;
    uint32_t words;               /* where fifth bits stand; 0: none */
    uint32_t groups, block_bytes; /* of a packed block */
    uint32_t f16s;                /* where d stands; for mxfp4 the exponents */
    int phases;                   /* groups that are opened in different ways */
    int runs;                     /* scales in a group: 1 or 2 */
    int bias_log2;                /* the weights' bias is a power of two; 0: none */
    bool has_min;
};

/* The integer dot products of one activation row with eight weight rows, for each run. */
struct dots {
    int32x4_t of[2][2]; /* [run][half tile] */
};

/* What a lane pair starts from: the correction for the bias in the lower lanes. */
INLINE int32_t bias_of(const struct format *f, const struct act_group *a, int run) {
    int32_t minus = f->runs == 1 ? a->minus_sum : a->minus_half[run];
    return f->bias_log2 ? minus * (1 << f->bias_log2) : 0;
}

/* U = 8. */
INLINE TARGET_SDOT struct dots dots_in_pairs(const struct format *f, const struct opened *w,
                                             const struct act_group *a) {
    struct dots out = {0};
    int steps = 4 / f->runs;
    UNROLL for (int h = 0; h < f->runs; h++) {
        int64x2_t start = vdupq_n_s64((int64_t)(uint32_t)bias_of(f, a, h));
        int32x4_t dot[4];
        UNROLL for (int p = 0; p < 4; p++) dot[p] = vreinterpretq_s32_s64(start);
        UNROLL for (int s = steps * h; s < steps * (h + 1); s++) {
            int8x8_t eight = vld1_s8(a->q + 8 * s);
            int8x16_t x = vcombine_s8(eight, eight);
            UNROLL for (int p = 0; p < 4; p++) dot[p] = vdotq_s32(dot[p], w->w[s][p], x);
        }
        out.of[h][0] = vpaddq_s32(dot[0], dot[1]);
        out.of[h][1] = vpaddq_s32(dot[2], dot[3]);
    }
    return out;
}

/* Four values of both halves of the tile; the lane must be a constant in any build. */
#define DOT_FOUR(run, four)                                                                        \
    do {                                                                                           \
        const int8x16_t *four_ = &w->w[(four) / 2][2 * ((four) % 2)];                              \
        out.of[run][0] = vdotq_laneq_s32(out.of[run][0], four_[0], x[(four) / 4], (four) % 4);     \
        out.of[run][1] = vdotq_laneq_s32(out.of[run][1], four_[1], x[(four) / 4], (four) % 4);     \
    } while (0)

/* U = 4. */
INLINE TARGET_SDOT struct dots dots_in_fours(const struct format *f, const struct opened *w,
                                             const struct act_group *a) {
    struct dots out;
    int8x16_t x[2] = {vld1q_s8(a->q), vld1q_s8(a->q + 16)};
    const int last = f->runs - 1;
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int i = 0; i < 2; i++) out.of[h][i] =
        vdupq_n_s32(h <= last ? bias_of(f, a, h) : 0);
    DOT_FOUR(0, 0);
    DOT_FOUR(0, 1);
    DOT_FOUR(0, 2);
    DOT_FOUR(0, 3);
    DOT_FOUR(last, 4);
    DOT_FOUR(last, 5);
    DOT_FOUR(last, 6);
    DOT_FOUR(last, 7);
    return out;
}

INLINE TARGET_MMLA void dots_of_two(const struct format *f, const struct opened *w,
                                    const struct act_group *a, const struct act_group *b,
                                    struct dots *to_a, struct dots *to_b) {
    int steps = 4 / f->runs;
    UNROLL for (int h = 0; h < f->runs; h++) {
        uint64_t low = (uint32_t)bias_of(f, a, h), high = (uint32_t)bias_of(f, b, h);
        uint64x2_t start = vdupq_n_u64(low | high << 32);
        int32x4_t dot[4];
        UNROLL for (int p = 0; p < 4; p++) dot[p] = vreinterpretq_s32_u64(start);
        UNROLL for (int s = steps * h; s < steps * (h + 1); s++) {
            int8x16_t x = vcombine_s8(vld1_s8(a->q + 8 * s), vld1_s8(b->q + 8 * s));
            UNROLL for (int p = 0; p < 4; p++) dot[p] = vmmlaq_s32(dot[p], w->w[s][p], x);
        }
        UNROLL for (int i = 0; i < 2; i++) {
            to_a->of[h][i] = vuzp1q_s32(dot[2 * i], dot[2 * i + 1]);
            to_b->of[h][i] = vuzp2q_s32(dot[2 * i], dot[2 * i + 1]);
        }
    }
}

/* One activation row's sums over a block, before d and dmin. */
struct partial {
    float32x4_t part[2], low[2]; /* [half tile] */
};

INLINE void add_dots(const struct format *f, const struct opened *w, const struct act_group *a,
                     const struct dots *dots, struct partial *to) {
    UNROLL for (int i = 0; i < 2; i++) {
        int32x4_t whole = dots->of[0][i];
        if (f->groups > 1)
            whole = vmulq_s32(whole, w->scale[0][i]);
        if (f->runs == 2)
            whole = vmlaq_s32(whole, dots->of[1][i], w->scale[1][i]);
        to->part[i] = vfmaq_n_f32(to->part[i], vcvtq_f32_s32(whole), a->scale);
        if (f->groups > 1 && f->has_min && f->runs == 1)
            to->low[i] = vfmaq_n_f32(to->low[i], vcvtq_f32_s32(w->min[0][i]), a->offset);
        if (f->has_min && f->runs == 2) {
            int32x4_t min = vmulq_n_s32(w->min[0][i], -a->minus_half[0]);
            min = vmlaq_n_s32(min, w->min[1][i], -a->minus_half[1]);
            to->low[i] = vfmaq_n_f32(to->low[i], vcvtq_f32_s32(min), a->scale);
        }
    }
}

INLINE void load_f16s(const uint8_t *p, float32x4_t *to) {
    uint16x8_t bits = vreinterpretq_u16_u8(vld1q_u8(p));
    float16x8_t eight = vreinterpretq_f16_u16(bits);
    to[0] = vcvt_f32_f16(vget_low_f16(eight));
    to[1] = vcvt_high_f32_f16(eight);
}

/* mxfp4_scale of eight exponents. */
INLINE void load_exponents(const uint8_t *p, float32x4_t *to) {
    int32x4_t e[2];
    load_u8(p, e);
    UNROLL for (int i = 0; i < 2; i++) {
        int32x4_t small = vshlq_s32(vdupq_n_s32(0x00200000), e[i]);
        int32x4_t normal = vshlq_n_s32(vsubq_s32(e[i], vdupq_n_s32(1)), 23);
        uint32x4_t is_small = vcltq_s32(e[i], vdupq_n_s32(2));
        to[i] = vreinterpretq_f32_s32(vbslq_s32(is_small, small, normal));
    }
}

/* The block's sums, with d and dmin, into those of the whole K. */
INLINE void add_partial(const struct format *f, const uint8_t *block, const struct act_group *a,
                        const struct partial *from, float32x4_t *sums) {
    float32x4_t d[2], second[2];
    if (f->type == DT_MXFP4)
        load_exponents(block + f->f16s, d);
    else
        load_f16s(block + f->f16s, d);
    if (f->has_min)
        load_f16s(block + f->f16s + 2 * TILE, second);
    UNROLL for (int i = 0; i < 2; i++) {
        sums[i] = vfmaq_f32(sums[i], from->part[i], d[i]);
        if (f->has_min && f->groups > 1)
            sums[i] = vfmsq_f32(sums[i], from->low[i], second[i]);
        else if (f->has_min)
            sums[i] = vfmaq_n_f32(sums[i], second[i], a->offset); /* m is added in these types */
    }
}

INLINE void open_group(const struct format *f, const uint8_t *block, int g, int phase,
                       struct opened *out) {
    f->open(block, g, phase, out);
    if (f->words && f->unit == 4)
        add_fifth_bits_4(block + f->words, out);
    else if (f->words)
        add_fifth_bits_8(block + f->words, out);
}

INLINE void clear_partials(struct partial *part, int acts) {
    UNROLL for (int r = 0; r < acts; r++) UNROLL for (int i = 0; i < 2; i++) part[r].part[i] =
        part[r].low[i] = vdupq_n_f32(0);
}

/* One block of a tile against `acts` rows, one by one or in pairs. */
INLINE TARGET_SDOT void add_block_sdot(const struct format *f, const uint8_t *block,
                                       const struct act_group *rows, size_t stride, int acts,
                                       float32x4_t (*sums)[2]) {
    struct partial part[MAX_ACTS];
    clear_partials(part, acts);
    for (int g = 0; g < (int)f->groups; g += f->phases) {
        UNROLL for (int phase = 0; phase < f->phases; phase++) {
            struct opened w;
            open_group(f, block, g + phase, phase, &w);
            UNROLL for (int r = 0; r < acts; r++) {
                const struct act_group *a = rows + (size_t)r * stride + g + phase;
                struct dots dots = f->unit == 4 ? dots_in_fours(f, &w, a) : dots_in_pairs(f, &w, a);
                add_dots(f, &w, a, &dots, &part[r]);
            }
        }
    }
    UNROLL for (int r = 0; r < acts; r++)
        add_partial(f, block, rows + (size_t)r * stride, &part[r], sums[r]);
}

INLINE TARGET_MMLA void add_block_mmla(const struct format *f, const uint8_t *block,
                                       const struct act_group *rows, size_t stride, int acts,
                                       float32x4_t (*sums)[2]) {
    struct partial part[MAX_ACTS];
    clear_partials(part, acts);
    for (int g = 0; g < (int)f->groups; g += f->phases) {
        UNROLL for (int phase = 0; phase < f->phases; phase++) {
            struct opened w;
            open_group(f, block, g + phase, phase, &w);
            UNROLL for (int r = 0; r < acts; r += 2) {
                const struct act_group *a = rows + (size_t)r * stride + g + phase;
                struct dots to_a, to_b;
                dots_of_two(f, &w, a, a + stride, &to_a, &to_b);
                add_dots(f, &w, a, &to_a, &part[r]);
                add_dots(f, &w, a + stride, &to_b, &part[r + 1]);
            }
        }
    }
    UNROLL for (int r = 0; r < acts; r++)
        add_partial(f, block, rows + (size_t)r * stride, &part[r], sums[r]);
}

struct tiles {
    const uint8_t *at;
    size_t bytes;           /* of one */
    uint32_t count, groups; /* groups: K / 32 */
};

/* Asks for what this block will be followed by, AHEAD bytes later. */
INLINE void fetch_ahead(const struct format *f, const uint8_t *block) {
    enum { AHEAD = 1024 };
    for (uint32_t i = 0; i < f->block_bytes; i += 64)
        __builtin_prefetch(block + AHEAD + i);
}

/* One tile after the other, as memory has them: Neoverse cores read one stream at 19.6 GB/s a core
 * (N1) and eight side by side at 12.3. */
#define ADD_TILES(name, TARGET_IT, add_block)                                                      \
    INLINE TARGET_IT void name(const struct format *f, struct tiles tiles,                         \
                               const struct act_group *rows, size_t stride, int acts,              \
                               float32x4_t(*sums)[MAX_ACTS][2]) {                                  \
        for (uint32_t t = 0; t < tiles.count; t++) {                                               \
            const uint8_t *block = tiles.at + t * tiles.bytes;                                     \
            for (uint32_t at = 0; at < tiles.groups; at += f->groups, block += f->block_bytes) {   \
                fetch_ahead(f, block);                                                             \
                add_block(f, block, rows + at, stride, acts, sums[t]);                             \
            }                                                                                      \
        }                                                                                          \
    }
ADD_TILES(add_tiles_sdot, TARGET_SDOT, add_block_sdot)
ADD_TILES(add_tiles_mmla, TARGET_MMLA, add_block_mmla)

/* Some rows: eight, four, two or one. Says how many. */
INLINE TARGET_SDOT uint32_t add_sdot(const struct format *f, struct tiles tiles,
                                     const struct act_group *rows, size_t stride, uint32_t acts,
                                     float32x4_t (*sums)[MAX_ACTS][2]) {
    if (acts >= 4)
        return add_tiles_sdot(f, tiles, rows, stride, 4, sums), 4;
    if (acts >= 2)
        return add_tiles_sdot(f, tiles, rows, stride, 2, sums), 2;
    return add_tiles_sdot(f, tiles, rows, stride, 1, sums), 1;
}

INLINE TARGET_MMLA uint32_t add_mmla(const struct format *f, struct tiles tiles,
                                     const struct act_group *rows, size_t stride, uint32_t acts,
                                     float32x4_t (*sums)[MAX_ACTS][2]) {
    if (acts >= 8)
        return add_tiles_mmla(f, tiles, rows, stride, 8, sums), 8;
    if (acts >= 4)
        return add_tiles_mmla(f, tiles, rows, stride, 4, sums), 4;
    if (acts >= 2)
        return add_tiles_mmla(f, tiles, rows, stride, 2, sums), 2;
    return add_tiles_sdot(f, tiles, rows, stride, 1, sums), 1;
}

static void store_sums(float32x4_t (*sums)[MAX_ACTS][2], uint32_t acts, uint32_t columns,
                       float *out, size_t out_stride) {
    for (uint32_t t = 0; t * TILE < columns; t++) {
        size_t lanes = columns - t * TILE < TILE ? columns - t * TILE : TILE;
        for (uint32_t r = 0; r < acts; r++)
            memcpy(out + r * out_stride + t * TILE, sums[t][r], lanes * sizeof *out);
    }
}

#define PROJECT_WITH(TYPE, type, unit, add_some, name, TARGET_IT)                                  \
    static uint64_t name##_bytes_##type(uint32_t k, uint32_t n) {                                  \
        return packed_bytes(DT_##TYPE, (struct packing){TILE, unit, 0}, k, n);                     \
    }                                                                                              \
    static void name##_pack_##type(const void *from, uint32_t k, uint32_t n, void *to) {           \
        pack_rows(DT_##TYPE, (struct packing){TILE, unit, 0}, from, k, n, to);                     \
    }                                                                                              \
    static TARGET_IT void name##_##type(const void *weights, uint32_t first, uint32_t count,       \
                                        const struct activations *acts, float *out,                \
                                        size_t out_stride) {                                       \
        const struct format *f = &format_##type##_##unit;                                          \
        struct tiles tiles = {.groups = acts->k / 32};                                             \
        tiles.bytes = (size_t)(tiles.groups / f->groups) * f->block_bytes;                         \
        tiles.at = (const uint8_t *)weights + first / TILE * tiles.bytes;                          \
        for (uint32_t n = 0; n < count; n += TILES * TILE, tiles.at += TILES * tiles.bytes) {      \
            uint32_t columns = count - n < TILES * TILE ? count - n : TILES * TILE;                \
            tiles.count = (columns + TILE - 1) / TILE;                                             \
            for (uint32_t r = 0, done; r < acts->n_rows; r += done) {                              \
                float32x4_t sums[TILES][MAX_ACTS][2];                                              \
                memset(sums, 0, sizeof sums);                                                      \
                const struct act_group *from = acts->groups + r * stride_of(acts);                 \
                done = add_some(f, tiles, from, stride_of(acts), acts->n_rows - r, sums);          \
                store_sums(sums, done, columns, out + r * out_stride + n, out_stride);             \
            }                                                                                      \
        }                                                                                          \
    }

#define FORMAT(TYPE, type, unit, words, phases, runs, bias_log2, has_min)                          \
    static const struct format format_##type##_##unit = {DT_##TYPE,                                \
                                                         unit,                                     \
                                                         open_##type,                              \
                                                         words,                                    \
                                                         PACK_GROUPS_##type,                       \
                                                         TILE * PACK_SIZE_##type,                  \
                                                         TILE * PACK_HALVES_##type,                \
                                                         phases,                                   \
                                                         runs,                                     \
                                                         bias_log2,                                \
                                                         has_min};

/* The kernels of one type: with SDOT alone, and with both. */
#define PROJECT(TYPE, type, words, phases, runs, bias_log2, has_min)                               \
    FORMAT(TYPE, type, 4, words, phases, runs, bias_log2, has_min)                                 \
    FORMAT(TYPE, type, 8, words, phases, runs, bias_log2, has_min)                                 \
    PROJECT_WITH(TYPE, type, 4, add_sdot, project_sdot, TARGET_SDOT)                               \
    PROJECT_WITH(TYPE, type, 8, add_mmla, project_mmla, TARGET_MMLA)

PROJECT(Q4_0, q4_0, 0, 1, 1, 3, false)
PROJECT(Q4_1, q4_1, 0, 1, 1, 0, true)
PROJECT(Q5_0, q5_0, TILE *PACK_WORDS_q5_0, 1, 1, 4, false)
PROJECT(Q5_1, q5_1, TILE *PACK_WORDS_q5_1, 1, 1, 0, true)
PROJECT(Q8_0, q8_0, 0, 1, 1, 0, false)
PROJECT(Q2_K, q2_k, 0, 4, 2, 0, true)
PROJECT(Q3_K, q3_k, 0, 4, 2, 2, false)
PROJECT(Q4_K, q4_k, 0, 2, 1, 0, true)
PROJECT(Q5_K, q5_k, 0, 2, 1, 0, true)
PROJECT(Q6_K, q6_k, 0, 4, 2, 5, false)
PROJECT(IQ4_NL, iq4_nl, 0, 1, 1, 0, false)
PROJECT(IQ4_XS, iq4_xs, 0, 1, 1, 0, false)
PROJECT(MXFP4, mxfp4, 0, 1, 1, 0, false)

/* ---- f32 activations ------------------------------------------------------------------------- */

INLINE float32x4_t half_load(const uint8_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

INLINE float32x4_t bf16_load(const uint8_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

/* Sixteen signed bytes as f32. */
INLINE void widen_16(bytes16 q, float32x4_t *to) {
    int8x16_t v = vreinterpretq_s8_u8((uint8x16_t)q);
    int16x8_t half[2] = {vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v)};
    UNROLL for (int i = 0; i < 2; i++) {
        to[2 * i] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(half[i])));
        to[2 * i + 1] = vcvtq_f32_s32(vmovl_high_s16(half[i]));
    }
}

INLINE bytes16 look_up_16(const uint8_t *values, bytes16 nibbles) {
    return (bytes16)vqtbl1q_u8(vld1q_u8(values), (uint8x16_t)nibbles);
}

INLINE float half_to_f32(uint16_t half) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0);
}

#define VEC float32x4_t
#define LANES 4
#define F32_ACTS 4
#define V_SET(x) vdupq_n_f32(x)
#define V_ZERO() vdupq_n_f32(0)
#define V_LOAD(p) vld1q_f32(p)
#define V_STORE(p, v) vst1q_f32(p, v)
#define V_FMA(a, b, c) vfmaq_f32(c, a, b)
#define V_SUM(v) vaddvq_f32(v)
#include "backend/cpu/kernels_decode.h"

/* ---- attention ------------------------------------------------------------------------------- */

#define V_FUSED(a, b, c) vfmaq_f32(c, a, b)
#define V_MAX(a, b) vmaxq_f32(a, b)
#define V_FOUR(p) vld1q_f32(p)
#define V_PAIRS(a, b) vpaddq_f32(a, b)
#define V_WEIGHTS float32x4_t
#define V_LOAD_WEIGHTS(p) vld1q_f32(p)
#define V_WEIGHT(w, i) vdupq_n_f32((w)[i]) /* a lane of a register where loops are unrolled */
#define ATTEND_ROWS 5
#include "backend/cpu/kernels_attend.h"

/* ---- the rows -------------------------------------------------------------------------------- */

#define INT8_ROW(TYPE, type, isa, name, needs)                                                     \
    {#type " " isa,       DT_##TYPE,          false,        needs, TILE,                           \
     name##_bytes_##type, name##_pack_##type, name##_##type},
#define MMLA_ROW(TYPE, type)                                                                       \
    INT8_ROW(TYPE, type, "i8mm", project_mmla, CPU_NEON | CPU_DOTPROD | CPU_I8MM)
#define SDOT_ROW(TYPE, type) INT8_ROW(TYPE, type, "dotprod", project_sdot, CPU_NEON | CPU_DOTPROD)
#define F32_ROW(TYPE, type) F32_KERNEL(TYPE, type, "neon", CPU_NEON),

static const struct kernel rows[] = {
    /* clang-format off */
    FOR_EACH_FAST_TYPE(MMLA_ROW)
    FOR_EACH_FAST_TYPE(SDOT_ROW)
    FOR_EACH_FAST_TYPE(F32_ROW)
    F32_ROW(F32, f32)
    F32_ROW(F16, f16)
    F32_ROW(BF16, bf16)
    /* clang-format on */
};

const struct kernel_rows kernels_neon = {
    rows, sizeof rows / sizeof *rows, {"attend neon", CPU_NEON, attend_split}};

#endif
