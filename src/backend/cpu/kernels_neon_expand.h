/* kernels_neon_expand.h - packed quants of half a tile to int8: eight vectors of a group of 32
 * values of four weight rows, in the orders of kernels_neon_pack.h. A part of kernels_neon_int8.h,
 * which defines K_STEP and INLINE. */

/* ---- expanding half a tile ---------------------------------------------------------------- */

typedef void expand_fn(const uint8_t *from, int8x16_t *w /* (8) */);

INLINE int8x16_t masked(uint8x16_t v, uint8_t mask) {
    return vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(mask)));
}

INLINE int8x16_t as_signed(uint8x16_t v) {
    return vreinterpretq_s8_u8(v);
}

INLINE void expand_2(const uint8_t *from, int8x16_t *w) {
    UNROLL for (int i = 0; i < 2; i++) {
        uint8x16_t v = vld1q_u8(from + 16 * i), high = vshrq_n_u8(v, 4);
        w[2 * i] = masked(v, 3);
        w[2 * i + 4] = masked(v, 12);
        w[2 * i + 1] = masked(high, 3);
        w[2 * i + 5] = masked(high, 12);
    }
}

INLINE void expand_3(const uint8_t *from, int8x16_t *w) {
    uint8x16_t v[3] = {vld1q_u8(from), vld1q_u8(from + 16), vld1q_u8(from + 32)};
    UNROLL for (int i = 0; i < 3; i++) {
        w[2 * i] = masked(v[i], 0xe0);
        w[2 * i + 1] = masked(vshlq_n_u8(v[i], 3), 0xe0);
    }
    w[6] = as_signed(vsliq_n_u8(vshlq_n_u8(v[2], 5), v[0], 6));
    w[7] = masked(vsliq_n_u8(vshlq_n_u8(v[2], 4), v[1], 6), 0xe0);
}

INLINE void expand_4(const uint8_t *from, int8x16_t *w) {
    UNROLL for (int i = 0; i < 4; i++) {
        uint8x16_t v = vld1q_u8(from + 16 * i);
        w[i] = masked(v, 15);
        w[i + 4] = as_signed(vshrq_n_u8(v, 4));
    }
}

INLINE void expand_4_signed(const uint8_t *from, int8x16_t *w) {
    UNROLL for (int i = 0; i < 4; i++) {
        uint8x16_t v = vld1q_u8(from + 16 * i);
        w[i] = as_signed(vshlq_n_u8(v, 4));
        w[i + 4] = masked(v, 0xf0);
    }
}

INLINE void expand_5(const uint8_t *from, int8x16_t *w) {
    uint8x16_t v[5];
    UNROLL for (int i = 0; i < 5; i++) {
        v[i] = vld1q_u8(from + 16 * i);
        w[i] = masked(v[i], 31);
    }
    w[5] = as_signed(vsriq_n_u8(vshrq_n_u8(v[0], 3), v[3], 6));
    w[6] = as_signed(vsriq_n_u8(vshrq_n_u8(v[1], 3), v[4], 6));
    uint8x16_t last = vsriq_n_u8(vshrq_n_u8(v[2], 3), vshlq_n_u8(v[3], 2), 6);
    w[7] = as_signed(vsriq_n_u8(last, vshlq_n_u8(v[4], 2), 7));
}

INLINE void expand_5_signed(const uint8_t *from, int8x16_t *w) {
    uint8x16_t v[5];
    UNROLL for (int i = 0; i < 5; i++) {
        v[i] = vld1q_u8(from + 16 * i);
        w[i] = masked(v[i], 0xf8);
    }
    w[5] = as_signed(vsliq_n_u8(vshlq_n_u8(v[3], 3), v[0], 5));
    w[6] = as_signed(vsliq_n_u8(vshlq_n_u8(v[4], 3), v[1], 5));
    uint8x16_t last = vsliq_n_u8(vshlq_n_u8(v[4], 1), vshrq_n_u8(v[3], 2), 4);
    w[7] = masked(vsliq_n_u8(last, v[2], 5), 0xf8);
}

INLINE void expand_6(const uint8_t *from, int8x16_t *w) {
    UNROLL for (int i = 0; i < 2; i++) {
        uint8x16_t v[3];
        UNROLL for (int j = 0; j < 3; j++) {
            v[j] = vld1q_u8(from + 16 * (3 * i + j));
            w[4 * i + j] = masked(v[j], 0xfc);
        }
        uint8x16_t last = vsliq_n_u8(vshlq_n_u8(v[2], 2), v[1], 4);
        w[4 * i + 3] = as_signed(vsliq_n_u8(last, v[0], 6));
    }
}

INLINE void expand_8(const uint8_t *from, int8x16_t *w) {
    UNROLL for (int i = 0; i < 8; i++) w[i] = as_signed(vld1q_u8(from + 16 * i));
}

INLINE void expand_table(const int8_t *values, const uint8_t *from, int8x16_t *w) {
    int8x16_t table = vld1q_s8(values);
    expand_4(from, w);
    UNROLL for (int i = 0; i < 8; i++) w[i] = vqtbl1q_s8(table, vreinterpretq_u8_s8(w[i]));
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

INLINE void expand_iq4(const uint8_t *from, int8x16_t *w) {
    expand_table(iq4_values, from, w);
}

INLINE void expand_mxfp4(const uint8_t *from, int8x16_t *w) {
    expand_table(mxfp4_values, from, w);
}

/* ---- expanding types with a grid ---------------------------------------------------------- */

/* Entry s of a row's group: eight values, and what makes some of them negative. */

INLINE uint32_t load_16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint32_t load_32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint64_t two_fours(const uint32_t *grid, uint32_t i, uint32_t j) {
    return grid[i] | (uint64_t)grid[j] << 32;
}

INLINE uint64_t values_iq2_xxs(const uint8_t *row, int s) {
    return kernel_grids.iq2_xxs[row[s]];
}

INLINE uint64_t minus_iq2_xxs(const uint8_t *row, int s) {
    return kernel_grids.even[load_32(row + 4) >> 7 * s & 127];
}

INLINE uint64_t values_iq2_xs(const uint8_t *row, int s) {
    return kernel_grids.iq2_xs[load_16(row + 2 * s) & 511];
}

INLINE uint64_t minus_iq2_xs(const uint8_t *row, int s) {
    return kernel_grids.even[load_16(row + 2 * s) >> 9];
}

INLINE uint64_t values_iq2_s(const uint8_t *row, int s) {
    return kernel_grids.iq2_s[row[s] | (row[8] >> 2 * s & 3u) << 8];
}

INLINE uint64_t minus_iq2_s(const uint8_t *row, int s) {
    return kernel_grids.signs[row[4 + s]];
}

INLINE uint64_t values_iq3_xxs(const uint8_t *row, int s) {
    return two_fours(kernel_grids.iq3_xxs, row[2 * s], row[2 * s + 1]);
}

INLINE uint64_t minus_iq3_xxs(const uint8_t *row, int s) {
    return kernel_grids.even[load_32(row + 8) >> 7 * s & 127];
}

INLINE uint64_t values_iq3_s(const uint8_t *row, int s) {
    return two_fours(kernel_grids.iq3_s, row[2 * s] | (row[12] >> 2 * s & 1u) << 8,
                     row[2 * s + 1] | (row[12] >> (2 * s + 1) & 1u) << 8);
}

INLINE uint64_t minus_iq3_s(const uint8_t *row, int s) {
    return kernel_grids.signs[row[8 + s]];
}

/* IQ1 has no signs; its values are moved down by two, or not. */
INLINE uint64_t values_iq1_s(const uint8_t *row, int s) {
    return kernel_grids.iq1[row[s] | (load_16(row + 4) >> 3 * s & 7) << 8];
}

INLINE uint64_t minus_iq1_s(const uint8_t *row, int s) {
    (void)s;
    return (load_16(row + 4) >> 15) * UINT64_C(0x0202020202020202);
}

INLINE uint64_t values_iq1_m(const uint8_t *row, int s) {
    return kernel_grids.iq1[row[s] | (load_16(row + 4) >> 4 * s & 7) << 8];
}

INLINE uint64_t minus_iq1_m(const uint8_t *row, int s) {
    return (load_16(row + 4) >> (4 * s + 3) & 1) * UINT64_C(0x0202020202020202);
}

INLINE uint8x16_t two_rows(uint64_t a, uint64_t b) {
    return vcombine_u8(vcreate_u8(a), vcreate_u8(b));
}

/* Eight values of rows 0 and 1, and of 2 and 3, to their vectors. */
INLINE void place_eights(uint8x16_t a, uint8x16_t b, int8x16_t *w) {
#if K_STEP == 4
    uint32x4_t x = vreinterpretq_u32_u8(a), y = vreinterpretq_u32_u8(b);
    w[0] = vreinterpretq_s8_u32(vuzp1q_u32(x, y));
    w[1] = vreinterpretq_s8_u32(vuzp2q_u32(x, y));
#else
    w[0] = as_signed(a);
    w[1] = as_signed(b);
#endif
}

INLINE uint8x16_t negated(uint8x16_t v, uint8x16_t minus) {
    return vsubq_u8(veorq_u8(v, minus), minus);
}

#define EXPAND_GRID(type, apply)                                                                   \
    INLINE void expand_##type(const uint8_t *from, int8x16_t *w) {                                 \
        const uint8_t *r[4] = {from, from + NEON_ROW_##type, from + 2 * NEON_ROW_##type,           \
                               from + 3 * NEON_ROW_##type};                                        \
        UNROLL for (int s = 0; s < 4; s++) {                                                       \
            uint8x16_t v[2];                                                                       \
            UNROLL for (int p = 0; p < 2; p++) v[p] =                                              \
                apply(two_rows(values_##type(r[2 * p], s), values_##type(r[2 * p + 1], s)),        \
                      two_rows(minus_##type(r[2 * p], s), minus_##type(r[2 * p + 1], s)));         \
            place_eights(v[0], v[1], w + 2 * s);                                                   \
        }                                                                                          \
    }
EXPAND_GRID(iq2_xxs, negated)
EXPAND_GRID(iq2_xs, negated)
EXPAND_GRID(iq2_s, negated)
EXPAND_GRID(iq3_xxs, negated)
EXPAND_GRID(iq3_s, negated)
EXPAND_GRID(iq1_s, vsubq_u8)
EXPAND_GRID(iq1_m, vsubq_u8)
