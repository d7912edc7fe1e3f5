/* kernels_x86_expand.h - a group of packed quants to bytes, for the int8 products on x86: what
 * kernels_x86.h multiplies.
 *
 * The files that include it first define
 *   TILE, VEC, V_SET(x)
 *   INTS                            a vector of integers, TILE lanes of four bytes
 *   ints_load, bits_at, add_bits, look_up, widen_u8, widen_i8, half_load, f32_of
 *   grid_4, grid_8, negate          look-ups in kernels_grid.h, and signs
 *   BYTE_BIAS_LOG2, BYTE_FLIP       the bias of types whose quants are whole bytes, and the same as
 *                                   a bit to flip
 * and get expand_<type> for every type. */

/* A group of 32 values of TILE rows. */
struct expanded {
    INTS w[8];            /* values 4j .. 4j + 3 of every row, plus the type's bias */
    VEC scale[2], min[2]; /* of the group, or of its halves */
};

struct format {
    /* Group g of a packed block. */
    void (*expand)(const uint8_t *block, int g, struct expanded *out);
    uint32_t groups, block_bytes; /* of a packed block */
    int runs;                     /* scales in a group: 1 or 2 */
    int bias_log2;                /* the weights' bias is a power of two; 0: none */
    bool has_min;
    int max; /* the largest weight, with its bias; 255: whole bytes, which are signed without VNNI
              */
};

#define QUANTS(block, i) ints_load((block) + 4 * TILE * (i))
#define HALF(type, block, i) half_load((block) + TILE * (PACK_HALVES_##type + 2 * (i)))
#define BYTES(type, block, i) ((block) + TILE * (PACK_BYTES_##type + (i)))

/* The 16 bytes of the 32-value types: low nibbles, then high ones. */
INLINE void expand_nibbles(const uint8_t *quants, INTS *w) {
    UNROLL for (int j = 0; j < 4; j++) {
        w[j] = bits_at(QUANTS(quants, j), 0, 0x0f0f0f0f);
        w[j + 4] = bits_at(QUANTS(quants, j), 4, 0x0f0f0f0f);
    }
}

INLINE void add_fifth_bits(const uint8_t *words, INTS *w) {
    INTS bits = ints_load(words);
    UNROLL for (int j = 0; j < 8; j++) w[j] = add_bits(w[j], bits, 4 - j, 0x10101010);
}

INLINE void look_up_all(const uint8_t *values, INTS *w) {
    UNROLL for (int j = 0; j < 8; j++) w[j] = look_up(values, w[j]);
}

INLINE void expand_q4_0(const uint8_t *block, int g, struct expanded *out) {
    (void)g;
    expand_nibbles(block, out->w);
    out->scale[0] = HALF(q4_0, block, 0);
}

INLINE void expand_q4_1(const uint8_t *block, int g, struct expanded *out) {
    (void)g;
    expand_nibbles(block, out->w);
    out->scale[0] = HALF(q4_1, block, 0);
    out->min[0] = -HALF(q4_1, block, 1);
}

INLINE void expand_q5_0(const uint8_t *block, int g, struct expanded *out) {
    (void)g;
    expand_nibbles(block, out->w);
    add_fifth_bits(block + TILE * PACK_WORDS_q5_0, out->w);
    out->scale[0] = HALF(q5_0, block, 0);
}

INLINE void expand_q5_1(const uint8_t *block, int g, struct expanded *out) {
    (void)g;
    expand_nibbles(block, out->w);
    add_fifth_bits(block + TILE * PACK_WORDS_q5_1, out->w);
    out->scale[0] = HALF(q5_1, block, 0);
    out->min[0] = -HALF(q5_1, block, 1);
}

INLINE void expand_q8_0(const uint8_t *block, int g, struct expanded *out) {
    (void)g;
    UNROLL for (int j = 0; j < 8; j++) out->w[j] = QUANTS(block, j);
    out->scale[0] = HALF(q8_0, block, 0);
}

/* The value of every iq4 nibble, with the bias. */
#define IQ4(x) (uint8_t)((x) ^ BYTE_FLIP)
static const uint8_t iq4_values[16] = {IQ4(-127), IQ4(-104), IQ4(-83), IQ4(-65), IQ4(-49), IQ4(-35),
                                       IQ4(-22),  IQ4(-10),  IQ4(1),   IQ4(13),  IQ4(25),  IQ4(38),
                                       IQ4(53),   IQ4(69),   IQ4(89),  IQ4(113)};
#undef IQ4

INLINE void expand_iq4_nl(const uint8_t *block, int g, struct expanded *out) {
    (void)g;
    expand_nibbles(block, out->w);
    look_up_all(iq4_values, out->w);
    out->scale[0] = HALF(iq4_nl, block, 0);
}

INLINE void expand_iq4_xs(const uint8_t *block, int g, struct expanded *out) {
    expand_nibbles(block + 16 * TILE * g, out->w);
    look_up_all(iq4_values, out->w);
    out->scale[0] = HALF(iq4_xs, block, 0) * f32_of(widen_i8(BYTES(iq4_xs, block, g)));
}

/* mxfp4_scale of every lane: 2^(e - 128) by two factors, as one alone could be subnormal. */
INLINE VEC mxfp4_scales(INTS e) {
    const long long bias = 0x3f0000003f; /* in both halves of 64 bits; nothing carries over */
    INTS half = bits_at(e, 1, 127);
    return (VEC)((half + bias) << 23) * (VEC)((e - half + bias) << 23);
}

INLINE void expand_mxfp4(const uint8_t *block, int g, struct expanded *out) {
    static const uint8_t values[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                       16, 15, 14, 13, 12, 10, 8,  4}; /* twice the value, + 16 */
    (void)g;
    expand_nibbles(block, out->w);
    look_up_all(values, out->w);
    out->scale[0] = mxfp4_scales(widen_u8(BYTES(mxfp4, block, 0)));
}

INLINE void expand_q2_k(const uint8_t *block, int g, struct expanded *out) {
    UNROLL for (int j = 0; j < 8; j++) out->w[j] =
        bits_at(QUANTS(block, 8 * (g / 4) + j), 2 * (g % 4), 0x03030303);
    UNROLL for (int h = 0; h < 2; h++) {
        INTS both = widen_u8(BYTES(q2_k, block, 2 * g + h));
        out->scale[h] = HALF(q2_k, block, 0) * f32_of(bits_at(both, 0, 15));
        out->min[h] = HALF(q2_k, block, 1) * f32_of(bits_at(both, 4, 15));
    }
}

INLINE void expand_q3_k(const uint8_t *block, int g, struct expanded *out) {
    UNROLL for (int j = 0; j < 8; j++) {
        INTS low = bits_at(QUANTS(block, 8 * (g / 4) + j), 2 * (g % 4), 0x03030303);
        out->w[j] = add_bits(low, QUANTS(block, 16 + j), 2 - g, 0x04040404);
    }
    UNROLL for (int h = 0; h < 2; h++) out->scale[h] =
        HALF(q3_k, block, 0) * f32_of(widen_i8(BYTES(q3_k, block, 2 * g + h)));
}

INLINE void expand_q4_k(const uint8_t *block, int g, struct expanded *out) {
    UNROLL for (int j = 0; j < 8; j++) out->w[j] =
        bits_at(QUANTS(block, 8 * (g / 2) + j), 4 * (g % 2), 0x0f0f0f0f);
    out->scale[0] = HALF(q4_k, block, 0) * f32_of(widen_u8(BYTES(q4_k, block, g)));
    out->min[0] = HALF(q4_k, block, 1) * f32_of(widen_u8(BYTES(q4_k, block, 8 + g)));
}

INLINE void expand_q5_k(const uint8_t *block, int g, struct expanded *out) {
    UNROLL for (int j = 0; j < 8; j++) {
        INTS low = bits_at(QUANTS(block, 8 * (g / 2) + j), 4 * (g % 2), 0x0f0f0f0f);
        out->w[j] = add_bits(low, QUANTS(block, 32 + j), 4 - g, 0x10101010);
    }
    out->scale[0] = HALF(q5_k, block, 0) * f32_of(widen_u8(BYTES(q5_k, block, g)));
    out->min[0] = HALF(q5_k, block, 1) * f32_of(widen_u8(BYTES(q5_k, block, 8 + g)));
}

INLINE void expand_q6_k(const uint8_t *block, int g, struct expanded *out) {
    int half = g / 4, run = g % 4;
    UNROLL for (int j = 0; j < 8; j++) {
        INTS low = QUANTS(block, 16 * half + 8 * (run % 2) + j);
        low = bits_at(low, 4 * (run / 2), 0x0f0f0f0f);
        out->w[j] = add_bits(low, QUANTS(block, 32 + 8 * half + j), 4 - 2 * run, 0x30303030);
    }
    UNROLL for (int h = 0; h < 2; h++) out->scale[h] =
        HALF(q6_k, block, 0) * f32_of(widen_i8(BYTES(q6_k, block, 2 * g + h)));
}

/* Types with a grid. Four indices of eight values, or eight of four; a bit a sign. */

INLINE void negate_all(INTS *w, INTS signs) {
    UNROLL for (int j = 0; j < 8; j++) w[j] = negate(w[j], signs, j);
}

/* Sevens of sign bits, a byte each, and the eighths that make the number of minus signs even. */
INLINE INTS even_signs(INTS sevens) {
    static const uint8_t odd[16] = {0, 128, 128, 0, 128, 0, 0, 128, 128, 0, 0, 128, 0, 128, 128, 0};
    INTS nibbles = bits_at(sevens ^ bits_at(sevens, 4, 0x0f0f0f0f), 0, 0x0f0f0f0f);
    return sevens | look_up(odd, nibbles);
}

/* Those of iq2_xxs and iq3_xxs: the sevens are side by side. */
INLINE INTS side_by_side(INTS rest) {
    INTS sevens = bits_at(rest, 0, 0x7f);
    UNROLL for (int i = 1; i < 4; i++) sevens = add_bits(sevens, rest, i, 0x7f << 8 * i);
    return even_signs(sevens);
}

INLINE void look_up_iq2_xxs(const uint8_t *block, int g, bool by_gather, struct expanded *out) {
    INTS indices = QUANTS(block, 2 * g), rest = QUANTS(block, 2 * g + 1);
    UNROLL for (int i = 0; i < 4; i++)
        grid_8(kernel_grids.iq2_xxs, by_gather, bits_at(indices, 8 * i, 255), out->w + 2 * i);
    negate_all(out->w, side_by_side(rest));
    out->scale[0] = HALF(iq2_xxs, block, 0) * (V_SET(0.5f) + f32_of(bits_at(rest, 28, 15)));
    out->scale[0] = out->scale[0] * V_SET(0.25f);
}

/* The scales of iq2_xs and iq2_s: two in a byte. */
INLINE void scales_iq2(VEC d, INTS both, struct expanded *out) {
    UNROLL for (int h = 0; h < 2; h++) out->scale[h] =
        d * (V_SET(0.5f) + f32_of(bits_at(both, 4 * h, 15))) * V_SET(0.25f);
}

INLINE void look_up_iq2_xs(const uint8_t *block, int g, bool by_gather, struct expanded *out) {
    INTS two[2] = {QUANTS(block, 2 * g), QUANTS(block, 2 * g + 1)};
    UNROLL for (int i = 0; i < 4; i++) grid_8(
        kernel_grids.iq2_xs, by_gather, bits_at(two[i / 2], 16 * (i % 2), 511), out->w + 2 * i);
    INTS sevens = add_bits(bits_at(two[0], 9, 0x7f), two[0], -17, 0x7f00);
    sevens = add_bits(add_bits(sevens, two[1], 7, 0x7f0000), two[1], -1, 0x7f000000);
    negate_all(out->w, even_signs(sevens));
    scales_iq2(HALF(iq2_xs, block, 0), widen_u8(BYTES(iq2_xs, block, g)), out);
}

INLINE void look_up_iq2_s(const uint8_t *block, int g, bool by_gather, struct expanded *out) {
    INTS low = QUANTS(block, g), high = widen_u8(BYTES(iq2_s, block, g));
    UNROLL for (int i = 0; i < 4; i++) {
        INTS index = add_bits(bits_at(low, 8 * i, 255), high, 8 - 2 * i, 0x300);
        grid_8(kernel_grids.iq2_s, by_gather, index, out->w + 2 * i);
    }
    negate_all(out->w, QUANTS(block, 8 + g));
    scales_iq2(HALF(iq2_s, block, 0), widen_u8(BYTES(iq2_s, block, 8 + g)), out);
}

INLINE void look_up_iq3_xxs(const uint8_t *block, int g, bool by_gather, struct expanded *out) {
    INTS rest = QUANTS(block, 16 + g);
    UNROLL for (int j = 0; j < 8; j++) out->w[j] = grid_4(
        kernel_grids.iq3_xxs, by_gather, bits_at(QUANTS(block, 2 * g + j / 4), 8 * (j % 4), 255));
    negate_all(out->w, side_by_side(rest));
    out->scale[0] = HALF(iq3_xxs, block, 0) * (V_SET(0.5f) + f32_of(bits_at(rest, 28, 15)));
    out->scale[0] = out->scale[0] * V_SET(0.5f);
}

/* 2 v + 1, a whole number. */
INLINE VEC twice_and_one(INTS v) {
    VEC x = f32_of(v);
    return x + x + V_SET(1.0f);
}

INLINE void look_up_iq3_s(const uint8_t *block, int g, bool by_gather, struct expanded *out) {
    INTS high = widen_u8(BYTES(iq3_s, block, g));
    UNROLL for (int j = 0; j < 8; j++) {
        INTS low = bits_at(QUANTS(block, 2 * g + j / 4), 8 * (j % 4), 255);
        out->w[j] = grid_4(kernel_grids.iq3_s, by_gather, add_bits(low, high, 8 - j, 0x100));
    }
    negate_all(out->w, QUANTS(block, 16 + g));
    INTS scale = bits_at(widen_u8(BYTES(iq3_s, block, 8 + g / 2)), 4 * (g % 2), 15);
    out->scale[0] = HALF(iq3_s, block, 0) * twice_and_one(scale);
}

/* The eight values of an index of IQ1; bit `down` of `high` moves them. No byte borrows. */
INLINE void look_up_iq1(INTS index, INTS high, int down, bool by_gather, INTS *w) {
    INTS two = high ^ high; /* zero */
    UNROLL for (int i = 0; i < 4; i++) two = add_bits(two, high, 8 * i + 1 - down, 2 << 8 * i);
    grid_8(kernel_grids.iq1, by_gather, index, w);
    w[0] = w[0] - two;
    w[1] = w[1] - two;
}

INLINE void look_up_iq1_s(const uint8_t *block, int g, bool by_gather, struct expanded *out) {
    INTS low = QUANTS(block, g);
    INTS high = bits_at(QUANTS(block, 8 + g / 2), 16 * (g % 2), 0xffff);
    UNROLL for (int i = 0; i < 4; i++) {
        INTS index = add_bits(bits_at(low, 8 * i, 255), high, 8 - 3 * i, 0x700);
        look_up_iq1(index, high, 15, by_gather, out->w + 2 * i);
    }
    out->scale[0] = HALF(iq1_s, block, 0) * twice_and_one(bits_at(high, 12, 7)) * V_SET(0.125f);
}

INLINE void look_up_iq1_m(const uint8_t *block, int g, bool by_gather, struct expanded *out) {
    INTS low = QUANTS(block, g), scales = QUANTS(block, 12 + g / 4);
    INTS high = bits_at(QUANTS(block, 8 + g / 2), 16 * (g % 2), 0xffff);
    UNROLL for (int i = 0; i < 4; i++) {
        INTS index = add_bits(bits_at(low, 8 * i, 255), high, 8 - 4 * i, 0x700);
        look_up_iq1(index, high, 4 * i + 3, by_gather, out->w + 2 * i);
    }
    UNROLL for (int h = 0; h < 2; h++) {
        INTS scale = bits_at(scales, 16 * (g / 2 % 2) + 6 * (g % 2) + 3 * h, 7);
        out->scale[h] = HALF(iq1_m, block, 0) * twice_and_one(scale) * V_SET(0.125f);
    }
}

/* Functions that are called: they are long, and a kernel has an instance for every number of rows.
 */
#define EXPAND(type)                                                                               \
    static __attribute__((noinline))                                                               \
    TARGET void expand_##type(const uint8_t *block, int g, struct expanded *out) {                 \
        if (kernel_grids.is_gathered)                                                              \
            look_up_##type(block, g, true, out);                                                   \
        else                                                                                       \
            look_up_##type(block, g, false, out);                                                  \
    }
EXPAND(iq2_xxs)
EXPAND(iq2_xs)
EXPAND(iq2_s)
EXPAND(iq3_xxs)
EXPAND(iq3_s)
EXPAND(iq1_s)
EXPAND(iq1_m)
#undef EXPAND
