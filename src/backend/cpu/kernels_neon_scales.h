/* kernels_neon_scales.h - scales and sums of integers as floats: a part of kernels_neon_int8.h.
 *
 * A sum of integers starts at the bits of a large float whose last bit counts as one (or a half, a
 * quarter ... where the expanded values are too large by a power of two): read as a float, less
 * what it began with, it is the sum. That is one instruction that both pipes of a small core run,
 * where a conversion takes one of them for two cycles, as an integer multiplication does. Scales
 * become floats in the same way. */

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

/* Where half a tile's parts of a block are. */
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

/* 2 scale + 1 of types whose scales are in the word (of 4 or 2 bytes) that ends a row's group. */
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
