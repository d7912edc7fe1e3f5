/* kernels_avx512.c - products with AVX-512 (F, BW, VL, DQ), and attention.
 *
 * The int8 kernels are those of kernels_x86.h with sixteen weight rows a tile, for processors
 * without VNNI (kernels_avx512_vnni.c); their products are those of kernels_x86_madd.h. */
#include "backend/cpu/kernels_rows.h"

#if defined(__x86_64__)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")))
#define BYTE_BIAS_LOG2 0
#define BYTE_FLIP 0
#include "backend/cpu/kernels_avx512.h"
#include "backend/cpu/kernels_x86_lanes.h"

/* ---- activations as int8 --------------------------------------------------------------------- */

/* The largest of n values (a multiple of 32) without their signs, as bits. */
INLINE int32_t largest_bits(const float *x, uint32_t n) {
    const __m512i no_sign = _mm512_set1_epi32(0x7fffffff);
    __m512i max = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i += 16)
        max = _mm512_max_epi32(max, _mm512_and_si512(_mm512_loadu_si512(x + i), no_sign));
    return _mm512_reduce_max_epi32(max);
}

/* 32 values to int8; sum: of either half. */
INLINE void quantize_group(const float *x, float inverse, int8_t *q, int32_t *sum) {
    for (int h = 0; h < 2; h++) {
        __m512 y = _mm512_loadu_ps(x + 16 * h) * V_SET(inverse) + V_SET(ROUND_MAGIC);
        __m128i bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(y));
        _mm_storeu_si128((__m128i *)(q + 16 * h), bytes);
        sum[h] = sum_bytes(bytes);
    }
}

#define ACTS_INLINE INLINE
#define ACTS_TARGET TARGET
#include "backend/cpu/kernels_acts.h"

/* ---- int8 activations ------------------------------------------------------------------------ */

/* In place: gcc 12 would copy x first. */
INLINE __m512i sign_bytes(__m512i x, __m512i w) {
    __asm__("vpsubb %0, %2, %0%{%1%}"
            : "+v"(x)
            : "Yk"(_mm512_movepi8_mask(w)), "v"(_mm512_setzero_si512()));
    return x;
}

enum { DOT_FEW = 4, DOT_MANY = 8 };
#define I_SET(x) _mm512_set1_epi32(x)
#define I_LEFT(v, bits) _mm512_slli_epi32(v, bits)
#define I_ADD(a, b) _mm512_add_epi32(a, b)
#define I_ADD_WORDS(a, b) _mm512_add_epi16(a, b)
#define I_ABS_BYTES(v) _mm512_abs_epi8(v)
#define I_SIGN_BYTES(x, w) sign_bytes(x, w)
#define I_PAIRS(u, s) _mm512_maddubs_epi16(u, s)
#define I_WIDEN(v) _mm512_madd_epi16(v, _mm512_set1_epi16(1))
#include "backend/cpu/kernels_x86_madd.h"

/* ---- f32 activations ------------------------------------------------------------------------- */

INLINE __m512 bf16_load(const uint8_t *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* Sixteen signed bytes as f32. */
INLINE void widen_16(bytes16 q, __m512 *to) {
    to[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)q));
}

/* In a fixed order, unlike _mm512_reduce_add_ps. */
INLINE float sum_sixteen(__m512 v) {
    return sum_eight(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}

#define LANES 16
#define F32_ACTS 4
#define V_ZERO() _mm512_setzero_ps()
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps(p, v)
#define V_SUM(v) sum_sixteen(v)
#include "backend/cpu/kernels_decode.h"

/* ---- attention ------------------------------------------------------------------------------- */

#define V_FUSED(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_MAX(a, b) _mm512_max_ps(a, b)
#define V_HALF(v) _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define V_FOUR(p) _mm512_broadcast_f32x4(_mm_loadu_ps(p))
#define V_PAIRS(a, b) (_mm512_shuffle_ps(a, b, 0x88) + _mm512_shuffle_ps(a, b, 0xdd))
#define V_WEIGHTS const float *
#define V_LOAD_WEIGHTS(p) (p)
#define V_WEIGHT(w, i) V_SET((w)[i])
#define V_INTERLEAVE(from, row, to) interleave(from, row, to)
#define ATTEND_ROWS 5
#define ATTEND_F16_ROWS 8

/* Caches of q8_0 and q4_0. A byte becomes an f32 in two instructions: with 128 added it takes the
 * second byte of the bits of 2^15, and
 *
 *   fma(2^15 + 128 + q, d, -(2^15 + 128) d) = d q
 *
 * is exact for every finite d: 257 and d have 20 bits together, so each product fits an f32. */
#define BYTE_BASE 32896.0f /* 2^15 + 128 */

INLINE __m512 byte_of(__m512i bytes, int k) {
    const __m512i base = _mm512_set1_epi32(0x47000000); /* 2^15 */
    const __m128i from = _mm_setr_epi8(0, (char)k, 0, 0, 0, (char)(4 + k), 0, 0, 0, (char)(8 + k),
                                       0, 0, 0, (char)(12 + k), 0, 0);
    return _mm512_castsi512_ps(
        _mm512_mask_shuffle_epi8(base, 0x2222222222222222, bytes, _mm512_broadcast_i32x4(from)));
}

/* Quants plus 128, of bytes and of the low nibbles. */
INLINE __m512i bytes_up(__m512i v) {
    return _mm512_xor_si512(v, _mm512_set1_epi8((char)128));
}

INLINE __m512i nibbles_up(__m512i v) {
    return _mm512_add_epi8(_mm512_and_si512(v, _mm512_set1_epi8(15)), _mm512_set1_epi8(128 - 8));
}

struct key_scales {
    __m512 d, minus; /* each of four scales in four lanes; times -BYTE_BASE */
};

INLINE struct key_scales key_scales(const uint16_t *f16s) {
    const __m512i each = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m128 four = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(const void *)f16s));
    __m512 d = _mm512_permutexvar_ps(each, _mm512_castps128_ps512(four));
    return (struct key_scales){d, d * V_SET(-BYTE_BASE)};
}

/* Four rows of four bytes to four columns, in each quarter of a vector. */
INLINE __m512i transpose_bytes(__m512i v) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(order));
}

INLINE __m512i four_rows(const uint8_t *p, size_t row) {
    const __m128i *a = (const __m128i *)p, *b = (const __m128i *)(p + row);
    const __m128i *c = (const __m128i *)(p + 2 * row), *d = (const __m128i *)(p + 3 * row);
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128(a));
    v = _mm512_inserti32x4(v, _mm_loadu_si128(b), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128(c), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128(d), 3);
}

/* Byte k of a lane: the key's value in four k, or four 4 + k. */
INLINE void interleave_block(const uint8_t *from, size_t row, bool is_q4, uint8_t *to) {
    __m512i a = transpose_bytes(four_rows(from + 2, row)), b;
    if (is_q4) {
        b = nibbles_up(_mm512_srli_epi16(a, 4));
        a = nibbles_up(a);
    } else {
        b = bytes_up(transpose_bytes(four_rows(from + 18, row)));
        a = bytes_up(a);
    }
    _mm512_storeu_si512(to, a);
    _mm512_storeu_si512(to + 64, b);
}

INLINE __m512 key_values(const uint8_t *bytes, int i, const struct key_scales *s) {
    return _mm512_fmadd_ps(byte_of(ints_load(bytes + i / 4 * 64), i % 4), s->d, s->minus);
}

/* With two vectors, what is used again stays in registers; a query alone has too few sums then. */
#define KEY_VECTORS(rows) ((rows) == 1 ? 4 : 2)

enum { VALUE_BLOCKS = 2 };
struct value_scales {
    float d[VALUE_BLOCKS][ATTEND_POSITIONS], minus[VALUE_BLOCKS][ATTEND_POSITIONS];
};

INLINE void put_scales(const uint16_t *f16s, uint32_t b, uint32_t p, struct value_scales *to) {
    __m512 d = half_load((const uint8_t *)f16s);
    _mm512_storeu_ps(to->d[b] + p, d);
    _mm512_storeu_ps(to->minus[b] + p, d * V_SET(-BYTE_BASE));
}

/* The 64 quants of two blocks, plus 128. */
INLINE __m512i two_blocks(const uint8_t *at, bool is_q4) {
    if (!is_q4) {
        __m512i v = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(at + 2)));
        return bytes_up(_mm512_inserti64x4(v, _mm256_loadu_si256((const __m256i *)(at + 36)), 1));
    }
    const __m512i shift = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(at + 2)));
    v = _mm512_mask_broadcast_i32x4(v, 0xff00, _mm_loadu_si128((const __m128i *)(at + 20)));
    return nibbles_up(_mm512_srlv_epi64(v, shift));
}

/* Byte k of a lane is to be the lane's value in vector k. */
INLINE void block_values(const uint8_t *at, bool is_q4, const struct value_scales *s, uint32_t p,
                         __m512 *to) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i bytes = transpose_bytes(_mm512_permutexvar_epi32(order, two_blocks(at, is_q4)));
    UNROLL for (int k = 0; k < 4; k++) to[k] =
        _mm512_fmadd_ps(byte_of(bytes, k), V_SET(s->d[k / 2][p]), V_SET(s->minus[k / 2][p]));
}

/* Sixteen f16 of four rows: four of each row to a vector, vectors 128 bytes apart. */
INLINE void interleave(const uint8_t *from, size_t row, uint8_t *to) {
    const __m512i first = _mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13);
    const __m512i last = _mm512_setr_epi64(2, 6, 10, 14, 3, 7, 11, 15);
    __m256i r[4];
    UNROLL for (int i = 0; i < 4; i++) r[i] =
        _mm256_loadu_si256((const __m256i *)(from + (size_t)i * row));
    __m512i a = _mm512_inserti64x4(_mm512_castsi256_si512(r[0]), r[1], 1);
    __m512i b = _mm512_inserti64x4(_mm512_castsi256_si512(r[2]), r[3], 1);
    __m512i low = _mm512_permutex2var_epi64(a, first, b);
    __m512i high = _mm512_permutex2var_epi64(a, last, b);
    _mm256_storeu_si256((__m256i *)to, _mm512_castsi512_si256(low));
    _mm256_storeu_si256((__m256i *)(to + 128), _mm512_extracti64x4_epi64(low, 1));
    _mm256_storeu_si256((__m256i *)(to + 256), _mm512_castsi512_si256(high));
    _mm256_storeu_si256((__m256i *)(to + 384), _mm512_extracti64x4_epi64(high, 1));
}

#include "backend/cpu/kernels_attend.h"

/* ---- the rows -------------------------------------------------------------------------------- */

#define AVX512 (CPU_AVX2 | CPU_AVX512)
#define INT8_ROW(TYPE, type)                                                                       \
    {#type " avx512", DT_##TYPE, false, AVX512, TILE, bytes_##type, pack_##type, project_##type},
#define F32_ROW(TYPE, type) F32_KERNEL(TYPE, type, "avx512", AVX512),

static const struct kernel rows[] = {
    /* clang-format off */
    FOR_EACH_FAST_TYPE(INT8_ROW)
    FOR_EACH_GRID_TYPE(INT8_ROW)
    FOR_EACH_FAST_TYPE(F32_ROW)
    F32_ROW(F32, f32)
    F32_ROW(F16, f16)
    F32_ROW(BF16, bf16)
    /* clang-format on */
};

const struct kernel_rows kernels_avx512 = {
    rows, sizeof rows / sizeof *rows, {"attend avx512", AVX512, attend_split}, act_groups_vectors};

#endif
