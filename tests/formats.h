/* formats.h - the block types as the specification has them, for tests: a formula for every value,
 * and where a block's scales are. A new type gets a row here. */
#ifndef TESTS_FORMATS_H
#define TESTS_FORMATS_H

#include <math.h>

#include "quant/types.h"

/* An IEEE half by its definition. */
static inline double half_value(int h) {
    int sign = h >> 15, exponent = h >> 10 & 31, mantissa = h & 1023;
    double size = exponent == 31  ? (mantissa ? NAN : INFINITY)
                  : exponent == 0 ? ldexp(mantissa, -24)
                                  : ldexp(1024 + mantissa, exponent - 25);
    return sign ? -size : size;
}

/* Element i of a block as scale * number - minimum, straight from the specification: byte by byte,
 * nothing shared with the headers but the grids, which tests/data/grids.tar.xz checks. */
struct element {
    double scale, number, minimum;
};

static inline double h_at(const uint8_t *b, int at) {
    return half_value(b[at] | b[at + 1] << 8);
}

static inline int nibble32(const uint8_t *qs, int i) {
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

static inline int fifth(const uint8_t *qh, int i) {
    return (qh[i / 8] >> i % 8 & 1) * 16;
}

static const int iq4_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

static inline struct element k_element(const uint8_t *b, const uint8_t *qs, int i) {
    const uint8_t *S = b + 4;
    int s = i / 32, byte = qs[32 * (s / 2) + i % 32];
    int sc = s < 4 ? S[s] & 63 : (S[s + 4] & 15) | ((S[s - 4] >> 6) << 4);
    int mn = s < 4 ? S[s + 4] & 63 : (S[s + 4] >> 4) | ((S[s] >> 6) << 4);
    return (struct element){h_at(b, 0) * sc, s % 2 ? byte >> 4 : byte & 15, h_at(b, 2) * mn};
}

static inline struct element q3_k_element(const uint8_t *b, int i) {
    const uint8_t *S = b + 96;
    int h = i / 128, g = i % 128 / 32, l = i % 32, k = i / 16;
    int low = k < 8 ? S[k] & 15 : S[k - 8] >> 4, high = (S[8 + k % 4] >> 2 * (k / 4)) & 3;
    int q = ((b[32 + 32 * h + l] >> 2 * g) & 3) - (((b[l] >> (4 * h + g)) & 1) ? 0 : 4);
    return (struct element){h_at(b, 108) * ((low | high << 4) - 32), q, 0};
}

static inline struct element q6_k_element(const uint8_t *b, int i) {
    int h = i / 128, g = i % 128 / 32, l = i % 32, byte = b[64 * h + 32 * (g & 1) + l];
    int lo = g < 2 ? byte & 15 : byte >> 4, hi = (b[128 + 32 * h + l] >> 2 * g) & 3;
    int scale = b[192 + i / 16] < 128 ? b[192 + i / 16] : b[192 + i / 16] - 256;
    return (struct element){h_at(b, 208) * scale, (lo | hi << 4) - 32, 0};
}

static inline struct element mxfp4_element(const uint8_t *b, int i) {
    static const double E[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    int n = nibble32(b + 1, i);
    return (struct element){ldexp(1, b[0] - 127), n < 8 ? E[n] : -E[n - 8], 0};
}

static inline struct element iq4_xs_element(const uint8_t *b, int i) {
    int s = i / 32, high = b[2] | b[3] << 8;
    int ls = ((b[4 + s / 2] >> 4 * (s % 2)) & 15) | (((high >> 2 * s) & 3) << 4);
    return (struct element){h_at(b, 0) * (ls - 32), iq4_table[nibble32(b + 8 + 16 * s, i % 32)], 0};
}

static inline struct element q4_0_element(const uint8_t *b, int i) {
    return (struct element){h_at(b, 0), nibble32(b + 2, i) - 8, 0};
}

static inline struct element q4_1_element(const uint8_t *b, int i) {
    return (struct element){h_at(b, 0), nibble32(b + 4, i), -h_at(b, 2)};
}

static inline struct element q5_0_element(const uint8_t *b, int i) {
    return (struct element){h_at(b, 0), nibble32(b + 6, i) + fifth(b + 2, i) - 16, 0};
}

static inline struct element q5_1_element(const uint8_t *b, int i) {
    return (struct element){h_at(b, 0), nibble32(b + 8, i) + fifth(b + 4, i), -h_at(b, 2)};
}

static inline struct element q8_0_element(const uint8_t *b, int i) {
    return (struct element){h_at(b, 0), b[2 + i] < 128 ? b[2 + i] : b[2 + i] - 256, 0};
}

static inline struct element iq4_nl_element(const uint8_t *b, int i) {
    return (struct element){h_at(b, 0), iq4_table[nibble32(b + 2, i)], 0};
}

static inline struct element q2_k_element(const uint8_t *b, int i) {
    return (struct element){h_at(b, 80) * (b[i / 16] & 15),
                            (b[16 + 32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32)) & 3,
                            h_at(b, 82) * (b[i / 16] >> 4)};
}

static inline struct element q4_k_element(const uint8_t *b, int i) {
    return k_element(b, b + 16, i);
}

static inline struct element q5_k_element(const uint8_t *b, int i) {
    struct element e = k_element(b, b + 48, i);
    e.number += 16 * ((b[16 + i % 32] >> i / 32) & 1);
    return e;
}

/* ---- types with a grid: the level of value i of an entry, and its sign -------------------- */

static inline int grid_sign(int seven, int i) {
    return i < 7 ? (seven >> i & 1 ? -1 : 1) : __builtin_popcount((unsigned)seven) % 2 ? -1 : 1;
}

static inline int iq2_level(uint32_t entry, int i) {
    static const int levels[4] = {8, 25, 43};
    return levels[entry >> 2 * i & 3];
}

static inline struct element iq2_xxs_element(const uint8_t *b, int i) {
    const uint8_t *at = b + 2 + 8 * (i / 32);
    uint32_t rest = at[4] | at[5] << 8 | at[6] << 16 | (uint32_t)at[7] << 24;
    int seven = (int)(rest >> 7 * (i % 32 / 8) & 127);
    return (struct element){
        h_at(b, 0) * (0.5 + (rest >> 28)) / 4,
        iq2_level(iq2_xxs_grid(at[i % 32 / 8]), i % 8) * grid_sign(seven, i % 8), 0};
}

static inline struct element iq2_xs_element(const uint8_t *b, int i) {
    int q = b[2 + i / 8 * 2] | b[3 + i / 8 * 2] << 8,
        scale = b[66 + i / 32] >> i % 32 / 16 * 4 & 15;
    return (struct element){h_at(b, 0) * (0.5 + scale) / 4,
                            iq2_level(iq2_xs_grid(q & 511), i % 8) * grid_sign(q >> 9, i % 8), 0};
}

static inline struct element iq2_s_element(const uint8_t *b, int i) {
    int index = b[2 + i / 8] | (b[66 + i / 32] >> i % 32 / 8 * 2 & 3) << 8;
    int scale = b[74 + i / 32] >> i % 32 / 16 * 4 & 15, sign = b[34 + i / 8] >> i % 8 & 1 ? -1 : 1;
    return (struct element){h_at(b, 0) * (0.5 + scale) / 4,
                            iq2_level(iq2_s_grid(index), i % 8) * sign, 0};
}

static inline struct element iq3_xxs_element(const uint8_t *b, int i) {
    static const int levels[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    const uint8_t *at = b + 66 + 4 * (i / 32);
    uint32_t rest = at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
    int seven = (int)(rest >> 7 * (i % 32 / 8) & 127);
    int level = levels[iq3_xxs_grid(b[2 + i / 4]) >> 3 * (i % 4) & 7];
    return (struct element){h_at(b, 0) * (0.5 + (rest >> 28)) / 2, level * grid_sign(seven, i % 8),
                            0};
}

static inline struct element iq3_s_element(const uint8_t *b, int i) {
    int index = b[2 + i / 4] | (b[66 + i / 32] >> i % 32 / 4 & 1) << 8;
    int scale = b[106 + i / 64] >> i % 64 / 32 * 4 & 15, sign = b[74 + i / 8] >> i % 8 & 1 ? -1 : 1;
    int level = 1 + 2 * (int)(iq3_s_grid(index) >> 3 * (i % 4) & 7);
    return (struct element){h_at(b, 0) * (1 + 2 * scale), level * sign, 0};
}

static inline struct element iq1_s_element(const uint8_t *b, int i) {
    int high = b[34 + i / 32 * 2] | b[35 + i / 32 * 2] << 8;
    int index = b[2 + i / 8] | (high >> i % 32 / 8 * 3 & 7) << 8;
    double value = (double)(iq1_grid(index) >> 2 * (i % 8) & 3) - 1;
    return (struct element){h_at(b, 0) * (2 * (high >> 12 & 7) + 1),
                            value + (high >> 15 ? -0.125 : 0.125), 0};
}

static inline struct element iq1_m_element(const uint8_t *b, int i) {
    int high = b[32 + i / 16] >> i % 16 / 8 * 4 & 15, index = b[i / 8] | (high & 7) << 8;
    int scales = b[48 + i / 64 * 2] | b[49 + i / 64 * 2] << 8;
    int d = b[49] >> 4 | b[51] >> 4 << 4 | b[53] >> 4 << 8 | b[55] >> 4 << 12;
    double value = (double)(iq1_grid(index) >> 2 * (i % 8) & 3) - 1;
    return (struct element){half_value(d) * (2 * (scales >> i % 64 / 16 * 3 & 7) + 1),
                            value + (high & 8 ? -0.125 : 0.125), 0};
}

enum { NO_FP16 = -1, SPREAD_FP16 = -2 };

static const struct format {
    enum dtype type;
    /* fp16: scale and minimum, or NO_FP16; d NO_FP16: byte 0 is an exponent; SPREAD_FP16: the upper
     * nibbles of bytes 49, 51, 53, 55 */
    int d_at, m_at;
    struct element (*element)(const uint8_t *b, int i);
} formats[] = {
    {DT_Q4_0, 0, NO_FP16, q4_0_element},
    {DT_Q4_1, 0, 2, q4_1_element},
    {DT_Q5_0, 0, NO_FP16, q5_0_element},
    {DT_Q5_1, 0, 2, q5_1_element},
    {DT_Q8_0, 0, NO_FP16, q8_0_element},
    {DT_Q2_K, 80, 82, q2_k_element},
    {DT_Q3_K, 108, NO_FP16, q3_k_element},
    {DT_Q4_K, 0, 2, q4_k_element},
    {DT_Q5_K, 0, 2, q5_k_element},
    {DT_Q6_K, 208, NO_FP16, q6_k_element},
    {DT_IQ4_NL, 0, NO_FP16, iq4_nl_element},
    {DT_IQ4_XS, 0, NO_FP16, iq4_xs_element},
    {DT_IQ2_XXS, 0, NO_FP16, iq2_xxs_element},
    {DT_IQ2_XS, 0, NO_FP16, iq2_xs_element},
    {DT_IQ2_S, 0, NO_FP16, iq2_s_element},
    {DT_IQ3_XXS, 0, NO_FP16, iq3_xxs_element},
    {DT_IQ3_S, 0, NO_FP16, iq3_s_element},
    {DT_IQ1_S, 0, NO_FP16, iq1_s_element},
    {DT_IQ1_M, SPREAD_FP16, NO_FP16, iq1_m_element},
    {DT_MXFP4, NO_FP16, NO_FP16, mxfp4_element},
};

/* All types that decode. */
static const enum dtype format_types[] = {
#define PLAIN_TYPE(NAME, name, id, bytes) DT_##NAME,
#define BLOCK_TYPE(NAME, name, id, values, bytes, run, encode) DT_##NAME,
#include "quant/types.def"
};
enum { FORMAT_TYPES = sizeof format_types / sizeof *format_types };

/* NULL for a type without blocks. */
static inline const struct format *format_of(enum dtype type) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].type == type)
            return &formats[i];
    return NULL;
}

/* Writes an fp16 to where a format has it; nothing for NO_FP16. */
static inline void format_put_half(uint8_t *block, int at, uint16_t half) {
    for (int i = 0; at == SPREAD_FP16 && i < 4; i++)
        block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4);
    if (at >= 0)
        memcpy(block + at, &half, 2);
}

/* Replaces a block's scale and minimum. An exponent becomes the nearest. */
static inline void format_put_scales(const struct format *f, uint8_t *block, float d, float m) {
    if (f->d_at == NO_FP16)
        block[0] = (uint8_t)(128 + (int)lrintf(log2f(fabsf(d) + 1e-9f)));
    format_put_half(block, f->d_at, f16_from_f32(d));
    format_put_half(block, f->m_at, f16_from_f32(m));
}

#endif
