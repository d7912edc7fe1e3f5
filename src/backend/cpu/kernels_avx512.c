/* kernels_avx512.c - products with AVX-512 VNNI, and with AMX for many rows.
 *
 * int8: sixteen weight rows are the sixteen lanes; four values of a row are the bytes of its lane
 * (kernels_pack.h, T = 16, U = 4). For each group of 32 along K the quants are opened into eight
 * vectors of unsigned bytes, which stay in registers while up to eight activation rows pass by:
 *
 *   dot  = -bias * sum(x.q) + w[0] x.q[0..3] + ... + w[7] x.q[28..31]     8 vpdpbusd, exact
 *   acc  = fma(f32(dot), w.scale * x.scale, acc)
 *   acc  = fma(-w.min, x.scale * sum(x.q), acc)                           types with a minimum
 *
 * vpdpbusd wants unsigned weights, so types with signed ones store w + bias. Types with a scale for
 * 16 values make two dots of four. Bytes read per call: the packed tiles once for every 8 rows
 * (from memory the first time, then from L2).
 *
 * AMX does the dots of 16 activation rows at once; the opened weights are its B tile as they are,
 * and the f32 steps are the same, so both give the same bits. */
#include "backend/cpu/kernels_rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/kernels_pack.h"
#include "base/cpu.h"
#include "quant/f16.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum { TILE = 16 };
#define QUANTS(type, block, i) _mm512_loadu_si512((block) + 64 * (i))
#define HALF(type, block, i) load_half((block) + TILE * (PACK_HALVES_##type + 2 * (i)))
#define BYTES(type, block, i) ((block) + TILE * (PACK_BYTES_##type + (i)))

/* ---- opening a group ------------------------------------------------------------------------- */

struct opened {
    __m512i w[8];            /* values 4j .. 4j + 3 of every row, plus the type's bias */
    __m512 scale[2], min[2]; /* of the group, or of its halves */
};

/* Opens group g of a packed block. */
typedef void open_fn(const uint8_t *block, int g, struct opened *out);

INLINE __m512 load_half(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 load_u8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

INLINE __m512 load_i8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* The bits of `mask` after a shift to the right: one instruction each, whatever g is. */
INLINE __m512i bits_at(__m512i v, int shift, int mask) {
    return _mm512_and_si512(_mm512_srlv_epi32(v, _mm512_set1_epi32(shift)),
                            _mm512_set1_epi32(mask));
}

/* low | (v rotated left) & mask. */
INLINE __m512i add_bits(__m512i low, __m512i v, int left, int mask) {
    __m512i turned = _mm512_rolv_epi32(v, _mm512_set1_epi32(left & 31));
    return _mm512_ternarylogic_epi32(turned, _mm512_set1_epi32(mask), low, 0xEA);
}

/* The 16 bytes of the 32-value types: low nibbles, then high ones. */
INLINE void open_nibbles(const uint8_t *quants, __m512i *w) {
    const __m512i mask = _mm512_set1_epi8(15);
    UNROLL for (int j = 0; j < 4; j++) {
        __m512i v = _mm512_loadu_si512(quants + 64 * j);
        w[j] = _mm512_and_si512(v, mask);
        w[j + 4] = _mm512_and_si512(_mm512_srli_epi32(v, 4), mask);
    }
}

INLINE void add_fifth_bits(const uint8_t *words, __m512i *w) {
    __m512i bits = _mm512_loadu_si512(words);
    UNROLL for (int j = 0; j < 8; j++) w[j] = add_bits(w[j], bits, 4 - j, 0x10101010);
}

/* Nibbles to the type's values, which are in `values` with the bias added. */
INLINE void look_up(const uint8_t *values, __m512i *w) {
    __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)values));
    UNROLL for (int j = 0; j < 8; j++) w[j] = _mm512_shuffle_epi8(table, w[j]);
}

INLINE void open_q4_0(const uint8_t *block, int g, struct opened *out) {
    (void)g;
    open_nibbles(block, out->w);
    out->scale[0] = HALF(q4_0, block, 0);
}

INLINE __m512 negative(__m512 v) {
    return _mm512_xor_ps(v, _mm512_set1_ps(-0.0f));
}

INLINE void open_q4_1(const uint8_t *block, int g, struct opened *out) {
    (void)g;
    open_nibbles(block, out->w);
    out->scale[0] = HALF(q4_1, block, 0);
    out->min[0] = negative(HALF(q4_1, block, 1));
}

INLINE void open_q5_0(const uint8_t *block, int g, struct opened *out) {
    (void)g;
    open_nibbles(block, out->w);
    add_fifth_bits(block + TILE * PACK_WORDS_q5_0, out->w);
    out->scale[0] = HALF(q5_0, block, 0);
}

INLINE void open_q5_1(const uint8_t *block, int g, struct opened *out) {
    (void)g;
    open_nibbles(block, out->w);
    add_fifth_bits(block + TILE * PACK_WORDS_q5_1, out->w);
    out->scale[0] = HALF(q5_1, block, 0);
    out->min[0] = negative(HALF(q5_1, block, 1));
}

INLINE void open_q8_0(const uint8_t *block, int g, struct opened *out) {
    (void)g;
    UNROLL for (int j = 0; j < 8; j++) out->w[j] = QUANTS(q8_0, block, j);
    out->scale[0] = HALF(q8_0, block, 0);
}

static const uint8_t iq4_values[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                       129, 141, 153, 166, 181, 197, 217, 241}; /* + 128 */

INLINE void open_iq4_nl(const uint8_t *block, int g, struct opened *out) {
    (void)g;
    open_nibbles(block, out->w);
    look_up(iq4_values, out->w);
    out->scale[0] = HALF(iq4_nl, block, 0);
}

INLINE void open_iq4_xs(const uint8_t *block, int g, struct opened *out) {
    open_nibbles(block + 256 * g, out->w);
    look_up(iq4_values, out->w);
    out->scale[0] = _mm512_mul_ps(HALF(iq4_xs, block, 0), load_i8(BYTES(iq4_xs, block, g)));
}

INLINE void open_mxfp4(const uint8_t *block, int g, struct opened *out) {
    static const uint8_t values[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                       16, 15, 14, 13, 12, 10, 8,  4}; /* twice the value, + 16 */
    (void)g;
    open_nibbles(block, out->w);
    look_up(values, out->w);
    /* mxfp4_scale of 16 exponents */
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)BYTES(mxfp4, block, 0)));
    __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    out->scale[0] = _mm512_castsi512_ps(_mm512_mask_blend_epi32(is_small, normal, small));
}

INLINE void open_q2_k(const uint8_t *block, int g, struct opened *out) {
    UNROLL for (int j = 0; j < 8; j++) out->w[j] =
        bits_at(QUANTS(q2_k, block, 8 * (g / 4) + j), 2 * (g % 4), 0x03030303);
    __m512 d = HALF(q2_k, block, 0), dmin = HALF(q2_k, block, 1);
    UNROLL for (int h = 0; h < 2; h++) {
        __m128i both = _mm_loadu_si128((const __m128i *)BYTES(q2_k, block, 2 * g + h));
        __m512i wide = _mm512_cvtepu8_epi32(both);
        __m512i scale = _mm512_and_si512(wide, _mm512_set1_epi32(15));
        out->scale[h] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale));
        out->min[h] = _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(_mm512_srli_epi32(wide, 4)));
    }
}

INLINE void open_q3_k(const uint8_t *block, int g, struct opened *out) {
    UNROLL for (int j = 0; j < 8; j++) {
        __m512i low = bits_at(QUANTS(q3_k, block, 8 * (g / 4) + j), 2 * (g % 4), 0x03030303);
        out->w[j] = add_bits(low, QUANTS(q3_k, block, 16 + j), 2 - g, 0x04040404);
    }
    __m512 d = HALF(q3_k, block, 0);
    UNROLL for (int h = 0; h < 2; h++) out->scale[h] =
        _mm512_mul_ps(d, load_i8(BYTES(q3_k, block, 2 * g + h)));
}

INLINE void open_q4_k(const uint8_t *block, int g, struct opened *out) {
    UNROLL for (int j = 0; j < 8; j++) out->w[j] =
        bits_at(QUANTS(q4_k, block, 8 * (g / 2) + j), 4 * (g % 2), 0x0f0f0f0f);
    out->scale[0] = _mm512_mul_ps(HALF(q4_k, block, 0), load_u8(BYTES(q4_k, block, g)));
    out->min[0] = _mm512_mul_ps(HALF(q4_k, block, 1), load_u8(BYTES(q4_k, block, 8 + g)));
}

INLINE void open_q5_k(const uint8_t *block, int g, struct opened *out) {
    UNROLL for (int j = 0; j < 8; j++) {
        __m512i low = bits_at(QUANTS(q5_k, block, 8 * (g / 2) + j), 4 * (g % 2), 0x0f0f0f0f);
        out->w[j] = add_bits(low, QUANTS(q5_k, block, 32 + j), 4 - g, 0x10101010);
    }
    out->scale[0] = _mm512_mul_ps(HALF(q5_k, block, 0), load_u8(BYTES(q5_k, block, g)));
    out->min[0] = _mm512_mul_ps(HALF(q5_k, block, 1), load_u8(BYTES(q5_k, block, 8 + g)));
}

INLINE void open_q6_k(const uint8_t *block, int g, struct opened *out) {
    int half = g / 4, run = g % 4;
    UNROLL for (int j = 0; j < 8; j++) {
        __m512i low = QUANTS(q6_k, block, 16 * half + 8 * (run % 2) + j);
        low = bits_at(low, 4 * (run / 2), 0x0f0f0f0f);
        out->w[j] = add_bits(low, QUANTS(q6_k, block, 32 + 8 * half + j), 4 - 2 * run, 0x30303030);
    }
    __m512 d = HALF(q6_k, block, 0);
    UNROLL for (int h = 0; h < 2; h++) out->scale[h] =
        _mm512_mul_ps(d, load_i8(BYTES(q6_k, block, 2 * g + h)));
}

/* ---- int8 activations ------------------------------------------------------------------------ */

struct format {
    open_fn *open;
    uint32_t groups, block_bytes; /* of a packed block */
    int runs;                     /* scales in a group: 1 or 2 */
    int bias_log2;                /* the weights' bias is a power of two; 0: none */
    bool has_min;
};

INLINE __m512i four_of(const struct act_group *a, int j) {
    int32_t four;
    memcpy(&four, a->q + 4 * j, sizeof four);
    return _mm512_set1_epi32(four);
}

/* The dot product of run h of a group, exact. */
INLINE __m512i dot_run(const struct format *f, const struct opened *w, const struct act_group *a,
                       int h) {
    int n = 8 / f->runs;
    int32_t minus = f->runs == 1 ? a->minus_sum : a->minus_half[h];
    __m512i dot = f->bias_log2 ? _mm512_slli_epi32(_mm512_set1_epi32(minus), f->bias_log2)
                               : _mm512_setzero_si512();
    UNROLL for (int j = 0; j < n; j++) dot =
        _mm512_dpbusd_epi32(dot, w->w[n * h + j], four_of(a, n * h + j));
    return dot;
}

/* The f32 part: the same for VNNI and AMX. */
INLINE __m512 add_run(const struct format *f, const struct opened *w, const struct act_group *a,
                      int h, __m512i dot, __m512 acc) {
    __m512 scale = _mm512_mul_ps(w->scale[h], _mm512_set1_ps(a->scale));
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, acc);
    if (!f->has_min)
        return acc;
    float offset = f->runs == 1 ? a->offset : a->scale * (float)-a->minus_half[h];
    return _mm512_fnmadd_ps(w->min[h], _mm512_set1_ps(offset), acc);
}

/* One tile and `acts` rows, a constant where this is inlined. */
INLINE void multiply(const struct format *f, const uint8_t *tile, const struct act_group *rows,
                     uint32_t row_groups, int acts, float (*out)[TILE]) {
    __m512 acc[8];
    UNROLL for (int r = 0; r < acts; r++) acc[r] = _mm512_setzero_ps();
    for (uint32_t at = 0; at < row_groups; tile += f->block_bytes) {
        for (uint32_t g = 0; g < f->groups; g++, at++) {
            struct opened w;
            f->open(tile, (int)g, &w);
            UNROLL for (int r = 0; r < acts; r++) {
                const struct act_group *a = rows + (size_t)r * row_groups + at;
                UNROLL for (int h = 0; h < f->runs; h++) acc[r] =
                    add_run(f, &w, a, h, dot_run(f, &w, a, h), acc[r]);
            }
        }
    }
    UNROLL for (int r = 0; r < acts; r++) _mm512_storeu_ps(out[r], acc[r]);
}

/* Up to eight rows; says how many. */
INLINE uint32_t multiply_some(const struct format *f, const uint8_t *tile,
                              const struct act_group *rows, uint32_t row_groups, uint32_t acts,
                              float (*out)[TILE]) {
    if (acts >= 8)
        return multiply(f, tile, rows, row_groups, 8, out), 8;
    if (acts >= 4)
        return multiply(f, tile, rows, row_groups, 4, out), 4;
    if (acts >= 2)
        return multiply(f, tile, rows, row_groups, 2, out), 2;
    return multiply(f, tile, rows, row_groups, 1, out), 1;
}

INLINE void project(const struct format *f, const void *weights, uint32_t first, uint32_t count,
                    const struct activations *acts, float *out, size_t out_stride) {
    uint32_t row_groups = acts->k / 32;
    size_t tile_bytes = (size_t)(row_groups / f->groups) * f->block_bytes;
    const uint8_t *tile = (const uint8_t *)weights + first / TILE * tile_bytes;
    for (uint32_t n = 0; n < count; n += TILE, tile += tile_bytes) {
        size_t lanes = count - n < TILE ? count - n : TILE;
        for (uint32_t r = 0; r < acts->n_rows;) {
            float sums[8][TILE];
            const struct act_group *rows = acts->groups + (size_t)r * row_groups;
            uint32_t done = multiply_some(f, tile, rows, row_groups, acts->n_rows - r, sums);
            for (uint32_t i = 0; i < done; i++, r++)
                memcpy(out + r * out_stride + n, sums[i], lanes * sizeof(float));
        }
    }
}

#define PROJECT(TYPE, type, runs, bias_log2, has_min)                                              \
    static uint64_t bytes_##type(uint32_t k, uint32_t n) {                                         \
        return packed_bytes(DT_##TYPE, (struct packing){TILE, 4, 0x80}, k, n);                     \
    }                                                                                              \
    static void pack_##type(const void *from, uint32_t k, uint32_t n, void *to) {                  \
        pack_rows(DT_##TYPE, (struct packing){TILE, 4, 0x80}, from, k, n, to);                     \
    }                                                                                              \
    static TARGET void project_##type(const void *weights, uint32_t first, uint32_t count,         \
                                      const struct activations *acts, float *out,                  \
                                      size_t out_stride) {                                         \
        static const struct format f = {open_##type, PACK_GROUPS_##type, TILE * PACK_SIZE_##type,  \
                                        runs,        bias_log2,          has_min};                 \
        project(&f, weights, first, count, acts, out, out_stride);                                 \
    }

PROJECT(Q4_0, q4_0, 1, 3, false)
PROJECT(Q4_1, q4_1, 1, 0, true)
PROJECT(Q5_0, q5_0, 1, 4, false)
PROJECT(Q5_1, q5_1, 1, 0, true)
PROJECT(Q8_0, q8_0, 1, 7, false)
PROJECT(Q2_K, q2_k, 2, 0, true)
PROJECT(Q3_K, q3_k, 2, 2, false)
PROJECT(Q4_K, q4_k, 1, 0, true)
PROJECT(Q5_K, q5_k, 1, 0, true)
PROJECT(Q6_K, q6_k, 2, 5, false)
PROJECT(IQ4_NL, iq4_nl, 1, 7, false)
PROJECT(IQ4_XS, iq4_xs, 1, 7, false)
PROJECT(MXFP4, mxfp4, 1, 4, false)

/* ---- f32 activations ------------------------------------------------------------------------- */

static TARGET void decode_f16(const void *src, float *dst, size_t n) {
    const uint8_t *at = src;
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(dst + i, load_half(at + 2 * i));
    dtype_info(DT_F16)->decode(at + 2 * i, dst + i, n - i);
}

static TARGET void decode_bf16(const void *src, float *dst, size_t n) {
    const uint8_t *at = src;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(at + 2 * i)));
        _mm512_storeu_si512(dst + i, _mm512_slli_epi32(wide, 16));
    }
    dtype_info(DT_BF16)->decode(at + 2 * i, dst + i, n - i);
}

/* Halves, quarters and so on are added to each other: fixed, unlike _mm512_reduce_add_ps. */
INLINE float sum_lanes(__m512 v) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#define VEC __m512
#define LANES 16
#define V_ZERO() _mm512_setzero_ps()
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_SUM(v) sum_lanes(v)
#define DECODE_F16 decode_f16
#define DECODE_BF16 decode_bf16
#include "backend/cpu/kernels_f32.h"

/* ---- the rows -------------------------------------------------------------------------------- */

#define VNNI (CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI)
#define INT8_ROW(TYPE, type)                                                                       \
    {#type " avx512_vnni", DT_##TYPE, false, VNNI, TILE, bytes_##type, pack_##type, project_##type},
#define F32_ROW(TYPE, type) F32_KERNEL(TYPE, type, "avx512", CPU_AVX2 | CPU_AVX512),

static const struct kernel rows[] = {
    /* clang-format off */
    FOR_EACH_QUANT(INT8_ROW)
    FOR_EACH_QUANT(F32_ROW)
    F32_ROW(F32, f32)
    F32_ROW(F16, f16)
    F32_ROW(BF16, bf16)
    /* clang-format on */
};

const struct kernel_rows kernels_avx512 = {rows, sizeof rows / sizeof *rows};

#endif
