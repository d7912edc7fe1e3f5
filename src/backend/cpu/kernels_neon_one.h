/* kernels_neon_one.h - products of one row of activations with tiles that are packed for SMMLA.
 *
 * A part of kernels_neon_int8.h. With one row half of SMMLA's sums would be unused, so these use
 * SDOT: a vector has eight values of two weight rows and is multiplied with eight activations,
 * repeated; they are stored in this form once for all tiles. Lanes are added in pairs at the end of
 * a group. That end is computed while the next group is expanded and multiplied: its instructions,
 * each of which waits for the one before, would otherwise fill the queues of the vector pipes.
 *
 * Sums are multiplied with their scales as integers, and converted once a group. The bits are those
 * of the other kernels, whose floats are exact up to there; on a core with two vector pipes it
 * would take longer. */

/* A group of the row. q: eight values, repeated. */
struct twice {
    int8_t q[4][16];
    float scale, offset, half_offset[2];
};

/* Groups in this form at a time. */
enum { MAX_TWICE = 1024 };

INLINE void store_twice(const struct act_group *from, uint32_t n, struct twice *to) {
    for (uint32_t g = 0; g < n; g++, from++, to++) {
        UNROLL for (int i = 0; i < 4; i++) vst1q_s8(to->q[i], two_eights(from->q, from->q, i));
        to->scale = from->scale;
        to->offset = from->offset;
        memcpy(to->half_offset, from->half_offset, sizeof to->half_offset);
    }
}

/* Half a group of a tile's eight weight rows with 16 activations x: v and w have four vectors each,
 * of the tile's first and second half; sums 0 and 1 are of two weight rows of v each, 2 and 3 of w.
 * In assembly, because the order counts: the four sums take turns, and activations that were just
 * loaded need not be read from the register file, which has few ports (Neoverse V1). */
#define DOT_EIGHT                                                                                  \
    "sdot %0.4s, %6.16b, %4.16b\n\t"                                                               \
    "sdot %1.4s, %7.16b, %4.16b\n\t"                                                               \
    "sdot %2.4s, %10.16b, %4.16b\n\t"                                                              \
    "sdot %3.4s, %11.16b, %4.16b\n\t"                                                              \
    "sdot %0.4s, %8.16b, %5.16b\n\t"                                                               \
    "sdot %1.4s, %9.16b, %5.16b\n\t"                                                               \
    "sdot %2.4s, %12.16b, %5.16b\n\t"                                                              \
    "sdot %3.4s, %13.16b, %5.16b"
#define DOT_EIGHT_INPUTS                                                                           \
    "w"(v[0]), "w"(v[1]), "w"(v[2]), "w"(v[3]), "w"(w[0]), "w"(w[1]), "w"(w[2]), "w"(w[3]),        \
        "Q"(*(const int8_t(*)[2][16])x)

INLINE TARGET void start_eight(int32x4_t *sum /* (4) */, const int8x16_t *v, const int8x16_t *w,
                               const int8_t (*x)[16]) {
    int8x16_t x0, x1;
    __asm__("ldp %q4, %q5, %14\n\t"
            "movi %0.4s, #0\n\t"
            "movi %1.4s, #0\n\t"
            "movi %2.4s, #0\n\t"
            "movi %3.4s, #0\n\t" DOT_EIGHT
            : "=&w"(sum[0]), "=&w"(sum[1]), "=&w"(sum[2]), "=&w"(sum[3]), "=&w"(x0), "=&w"(x1)
            : DOT_EIGHT_INPUTS);
}

INLINE TARGET void add_eight(int32x4_t *sum /* (4) */, const int8x16_t *v, const int8x16_t *w,
                             const int8_t (*x)[16]) {
    int8x16_t x0, x1;
    __asm__("ldp %q4, %q5, %14\n\t" DOT_EIGHT
            : "+&w"(sum[0]), "+&w"(sum[1]), "+&w"(sum[2]), "+&w"(sum[3]), "=&w"(x0), "=&w"(x1)
            : DOT_EIGHT_INPUTS);
}

/* sum: [run]. */
INLINE TARGET void dots_of_one(const struct format *f, int8x16_t (*w)[8], const struct twice *x,
                               int32x4_t (*sum)[4] /* (2) */) {
    start_eight(sum[0], w[0], w[1], x->q);
    if (f->runs == 2)
        start_eight(sum[1], w[0] + 4, w[1] + 4, x->q + 2);
    else
        add_eight(sum[0], w[0] + 4, w[1] + 4, x->q + 2);
}

INLINE int32x4_t dot_of_half(const int32x4_t *sum, int half) {
    return vpaddq_s32(sum[2 * half], sum[2 * half + 1]);
}

/* sum / 2^shift. */
INLINE float32x4_t unshifted(int32x4_t sum, int shift) {
    switch (shift) {
    case 2:
        return vcvtq_n_f32_s32(sum, 2);
    case 3:
        return vcvtq_n_f32_s32(sum, 3);
    case 4:
        return vcvtq_n_f32_s32(sum, 4);
    case 5:
        return vcvtq_n_f32_s32(sum, 5);
    default:
        return vcvtq_f32_s32(sum);
    }
}

/* ---- blocks of 32 values --------------------------------------------------------------------- */

INLINE void end_small_block(const struct format *f, const uint8_t *block, const struct twice *x,
                            const int32x4_t *sum, float32x4_t *to) {
    const struct half at = half_of(f, block, 0);
    UNROLL for (int h = 0; h < 2; h++) {
        float32x4_t dot = unshifted(dot_of_half(sum, h), f->shift[0]);
        to[h] = vfmaq_f32(to[h], vmulq_n_f32(dot, x->scale), d_of(f, at, h));
        if (f->has_min)
            to[h] = vfmaq_n_f32(to[h], second_of(at, h), x->offset);
    }
}

INLINE TARGET void expand_both(const struct format *f, const uint8_t *group, int8x16_t (*w)[8]) {
    f->expand(group, w[0]);
    f->expand(group + f->half, w[1]);
}

/* `n` blocks, n > 0. */
INLINE TARGET void add_small_blocks_of_one(const struct format *f, const uint8_t *block, uint32_t n,
                                           const struct twice *x, float32x4_t *to /* (2) */) {
    int8x16_t w[2][8];
    int32x4_t sum[2][4];
    fetch_ahead(block, f->size);
    expand_both(f, block, w);
    dots_of_one(f, w, x, sum);
    for (uint32_t g = 1; g < n; g++, x++) {
        const uint8_t *next = block + f->size;
        fetch_ahead(next, f->size);
        expand_both(f, next, w);
        end_small_block(f, block, x, sum[0], to);
        dots_of_one(f, w, x + 1, sum);
        block = next;
    }
    end_small_block(f, block, x, sum[0], to);
}

/* ---- blocks of 256 values -------------------------------------------------------------------- */

INLINE void halves_of(int16x8_t v, int32x4_t *to /* (2) */) {
    to[0] = vmovl_s16(vget_low_s16(v));
    to[1] = vmovl_high_s16(v);
}

/* Eight bytes from `first` on as integers of 32 bits: by TBL, as only two pipes shift. */
INLINE void spread_bytes(uint8x16_t v, int first, int32x4_t *to /* (2) */) {
#define LANE(i) i, 255, 255, 255
#define FOUR_LANES(i)                                                                              \
    { LANE(i), LANE(i + 1), LANE(i + 2), LANE(i + 3) }
    static const uint8_t from[4][16] = {FOUR_LANES(0), FOUR_LANES(4), FOUR_LANES(8),
                                        FOUR_LANES(12)};
    UNROLL for (int h = 0; h < 2; h++) to[h] =
        vreinterpretq_s32_u8(vqtbl1q_u8(v, vld1q_u8(from[first / 4 + h])));
}

/* Scales at the end of a row's group, in the top bits of a word: 2 scale + 1. */
INLINE int32x4_t words_at_the_end(const struct format *f, const uint8_t *group) {
    uint32_t words[4];
    UNROLL for (uint32_t r = 0; r < 4; r++) words[r] = load_32(group + (r + 1) * f->half / 4 - 4);
    uint32x4_t top = vshrq_n_u32(vld1q_u32(words), 27);
    return vreinterpretq_s32_u32(vorrq_u32(top, vdupq_n_u32(1)));
}

/* The scales of group g of all eight rows: [run][half]. */
INLINE void scales_of_eight(const struct format *f, const uint8_t *block, int g,
                            int32x4_t (*s)[2]) {
    const uint8_t *group = block + 2 * (uint32_t)g * f->half;
    const uint8_t *one = block + f->bytes + NEON_TILE * g, *two = block + f->bytes + 16 * g;
    int8x16_t pair;
    switch (f->type) {
    case DT_IQ2_XXS:
    case DT_IQ3_XXS:
        s[0][0] = words_at_the_end(f, group);
        s[0][1] = words_at_the_end(f, group + f->half);
        return;
    case DT_IQ1_S: {
        int32_t shifts[8];
        UNROLL for (uint32_t r = 0; r < 8; r++) shifts[r] =
            (int32_t)(load_16(group + (r + 1) * f->half / 4 - 2) >> 11 & 14) + 1;
        s[0][0] = vld1q_s32(shifts);
        s[0][1] = vld1q_s32(shifts + 4);
        return;
    }
    case DT_IQ2_XS:
    case DT_IQ2_S:
    case DT_IQ1_M: {
        uint8x8_t both = vld1_u8(one), low = vand_u8(both, vdup_n_u8(15)),
                  high = vshr_n_u8(both, 4);
        if (f->type != DT_IQ1_M) {
            low = vorr_u8(vadd_u8(low, low), vdup_n_u8(1));
            high = vorr_u8(vadd_u8(high, high), vdup_n_u8(1));
        }
        halves_of(vreinterpretq_s16_u16(vmovl_u8(low)), s[0]);
        halves_of(vreinterpretq_s16_u16(vmovl_u8(high)), s[1]);
        return;
    }
    case DT_Q2_K: /* the second run's values are times 4: so are the first run's scales */
        pair = vreinterpretq_s8_u8(vandq_u8(vld1q_u8(two), vdupq_n_u8(15)));
        halves_of(vshll_n_s8(vget_low_s8(pair), 2), s[0]);
        halves_of(vmovl_high_s8(pair), s[1]);
        return;
    case DT_Q3_K:
    case DT_Q6_K:
        pair = vld1q_s8((const int8_t *)two);
        halves_of(vmovl_s8(vget_low_s8(pair)), s[0]);
        halves_of(vmovl_high_s8(pair), s[1]);
        return;
    case DT_Q4_K:
    case DT_Q5_K:
        spread_bytes(vld1q_u8(two), 0, s[0]);
        return;
    default:
        halves_of(vmovl_s8(vld1_s8((const int8_t *)one)), s[0]);
    }
}

/* What the minimums of group g take away, before dmin. */
INLINE void add_low_of_one(const struct format *f, const uint8_t *block, int g,
                           const struct twice *x, float32x4_t *low /* (2) */) {
    const uint8_t *at = block + f->bytes + 2 * NEON_TILE * g;
    UNROLL for (int run = 0; run < f->runs; run++) {
        int32x4_t m[2];
        if (f->runs == 1)
            spread_bytes(vld1q_u8(at), 8, m);
        else
            halves_of(vreinterpretq_s16_u16(vmovl_u8(vshr_n_u8(vld1_u8(at + NEON_TILE * run), 4))),
                      m);
        UNROLL for (int h = 0; h < 2; h++) low[h] = vfmaq_n_f32(
            low[h], vcvtq_f32_s32(m[h]), f->runs == 1 ? x->offset : x->half_offset[run]);
    }
}

INLINE void end_group(const struct format *f, const uint8_t *block, int g, const struct twice *x,
                      int32x4_t (*sum)[4], float32x4_t *part, float32x4_t *low) {
    int32x4_t s[2][2];
    scales_of_eight(f, block, g, s);
    UNROLL for (int h = 0; h < 2; h++) {
        int32x4_t dots = vmulq_s32(dot_of_half(sum[0], h), s[0][h]);
        if (f->runs == 2)
            dots = vmlaq_s32(dots, dot_of_half(sum[1], h), s[1][h]);
        part[h] = vfmaq_n_f32(part[h], unshifted(dots, f->shift[f->runs - 1]), x->scale);
    }
    if (f->has_min)
        add_low_of_one(f, block, g, x, low);
}

INLINE TARGET void add_block_of_one(const struct format *f, const uint8_t *block,
                                    const struct twice *x, float32x4_t *to /* (2) */) {
    const uint32_t bytes = f->size / 8;
    float32x4_t part[2] = {vdupq_n_f32(0), vdupq_n_f32(0)}, low[2] = {part[0], part[0]};
    int8x16_t w[2][8];
    int32x4_t sum[2][4];
    fetch_ahead(block, bytes);
    expand_both(f, block, w);
    dots_of_one(f, w, x, sum);
    for (int g = 1; g < 8; g++) {
        fetch_ahead(block + (uint32_t)g * bytes, bytes);
        expand_both(f, block + 2 * (uint32_t)g * f->half, w);
        end_group(f, block, g - 1, x + g - 1, sum, part, low);
        dots_of_one(f, w, x + g, sum);
    }
    end_group(f, block, 7, x + 7, sum, part, low);
    UNROLL for (int h = 0; h < 2; h++)
        end_block(f, half_of(f, block, 0), h, part + h, low + h, 1, to + h);
}

/* `n` groups of a tile. */
INLINE TARGET void add_tile_of_one(const struct format *f, const uint8_t *at, uint32_t n,
                                   const struct twice *x, float32x4_t (*sums)[MAX_ACTS]) {
    float32x4_t to[2] = {sums[0][0], sums[1][0]};
    if (f->groups == 1)
        add_small_blocks_of_one(f, at, n, x, to);
    else
        for (uint32_t g = 0; g < n; g += 8, at += f->size)
            add_block_of_one(f, at, x + g, to);
    sums[0][0] = to[0];
    sums[1][0] = to[1];
}
