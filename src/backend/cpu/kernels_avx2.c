/* kernels_avx2.c - products with AVX2, FMA and F16C.
 *
 * The int8 kernels are those of kernels_x86.h with eight weight rows a tile, their products those
 * of kernels_x86_madd.h. */
#include "backend/cpu/kernels_rows.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/kernels_grid.h"
#include "backend/cpu/kernels_pack.h"
#include "base/cpu.h"
#include "quant/encode.h"
#include "quant/mxfp4.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum { TILE = 8 };
#define BYTE_BIAS_LOG2 0
#define BYTE_FLIP 0
#define VEC __m256
#define INTS __m256i
#define V_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define V_FNMA(a, b, c) _mm256_fnmadd_ps(a, b, c)
#define V_SET(x) _mm256_set1_ps(x)

#include "backend/cpu/kernels_x86_grid.h"
#include "backend/cpu/kernels_x86_lanes.h"

/* ---- vectors --------------------------------------------------------------------------------- */

INLINE __m256i ints_load(const uint8_t *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

/* The bits of `mask` after a shift to the right. */
INLINE __m256i bits_at(__m256i v, int shift, int mask) {
    if (shift)
        v = _mm256_srlv_epi32(v, _mm256_set1_epi32(shift));
    return _mm256_and_si256(v, _mm256_set1_epi32(mask));
}

/* low | (v shifted left) & mask; a shift by less than zero goes right. Nothing that crosses from
 * byte to byte passes the mask. A shift by 32 or more (a negative one, that is) leaves zero, so
 * no branch hangs on g. */
INLINE __m256i add_bits(__m256i low, __m256i v, int left, int mask) {
    __m256i up = _mm256_sllv_epi32(v, _mm256_set1_epi32(left));
    __m256i down = _mm256_srlv_epi32(v, _mm256_set1_epi32(-left));
    __m256i bits = _mm256_and_si256(_mm256_or_si256(up, down), _mm256_set1_epi32(mask));
    return _mm256_or_si256(low, bits);
}

INLINE __m256i look_up(const uint8_t *values, __m256i nibbles) {
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)values));
    return _mm256_shuffle_epi8(table, nibbles);
}

INLINE __m256i widen_u8(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

INLINE __m256i widen_i8(const uint8_t *p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

INLINE __m256 half_load(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m256 f32_of(__m256i v) {
    return _mm256_cvtepi32_ps(v);
}

INLINE __m256i grid_4(const uint32_t *grid, bool by_gather, __m256i index) {
    if (by_gather)
        return _mm256_i32gather_epi32((const int *)(const void *)grid, index, 4);
    return eight_of_4(grid, index);
}

INLINE void grid_8(const uint64_t *grid, bool by_gather, __m256i index, __m256i *w) {
    const int *at = (const int *)(const void *)grid;
    if (!by_gather) {
        eight_of_8(grid, index, w);
        return;
    }
    w[0] = _mm256_i32gather_epi32(at, index, 8);
    w[1] = _mm256_i32gather_epi32(at + 1, index, 8);
}

/* Bytes with the bias of the grids; those whose bit of `signs`, 4 j .. 4 j + 3, is set are negated:
 * all bits inverted are 255 - w, and 2 GRID_BIAS - w is wanted. */
INLINE __m256i negate(__m256i w, __m256i signs, int j) {
    const __m256i lane =
        _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
    __m256i bits = _mm256_set1_epi32(j % 2 ? (int)0x80402010 : 0x08040201);
    __m256i spread =
        _mm256_shuffle_epi8(signs, _mm256_add_epi8(lane, _mm256_set1_epi8((char)(j / 2))));
    __m256i is_minus = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bits), bits);
    __m256i inverted = _mm256_xor_si256(w, is_minus);
    return _mm256_add_epi8(
        inverted, _mm256_and_si256(is_minus, _mm256_set1_epi8((char)(2 * GRID_BIAS - 255))));
}

/* Each byte less `by`. */
INLINE __m256i bytes_less(__m256i v, int by) {
    return _mm256_sub_epi8(v, _mm256_set1_epi8((char)by));
}

/* The largest of n values (a multiple of 32) without their signs, as bits. */
INLINE int32_t largest_bits(const float *x, uint32_t n) {
    const __m256i no_sign = _mm256_set1_epi32(0x7fffffff);
    __m256i max = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8)
        max = _mm256_max_epi32(
            max, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)), no_sign));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

/* Sixteen values' lowest bytes, and the sum of these. */
INLINE int32_t quantize_half(const float *x, float inverse, int8_t *q) {
    const __m256i low = _mm256_set1_epi32(255);
    __m256i v[2];
    UNROLL for (int i = 0; i < 2; i++) {
        __m256 y = _mm256_loadu_ps(x + 8 * i) * V_SET(inverse) + V_SET(ROUND_MAGIC);
        v[i] = _mm256_and_si256(_mm256_castps_si256(y), low);
    }
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(v[0], v[1]), 0xd8);
    __m128i bytes =
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)q, bytes);
    return sum_bytes(bytes);
}

/* 32 values to int8; sum: of either half. */
INLINE void quantize_group(const float *x, float inverse, int8_t *q, int32_t *sum) {
    sum[0] = quantize_half(x, inverse, q);
    sum[1] = quantize_half(x + 16, inverse, q + 16);
}

#define ACTS_INLINE INLINE
#define ACTS_TARGET TARGET
#include "backend/cpu/kernels_acts.h"

/* ---- int8 activations ------------------------------------------------------------------------ */

#include "backend/cpu/kernels_x86_expand.h"

enum { DOT_FEW = 1, DOT_MANY = 4 };
#define I_SET(x) _mm256_set1_epi32(x)
#define I_LEFT(v, bits) _mm256_slli_epi32(v, bits)
#define I_ADD(a, b) _mm256_add_epi32(a, b)
#define I_ADD_WORDS(a, b) _mm256_add_epi16(a, b)
#define I_ABS_BYTES(v) _mm256_abs_epi8(v)
#define I_SIGN_BYTES(x, w) _mm256_sign_epi8(x, w)
#define I_PAIRS(u, s) _mm256_maddubs_epi16(u, s)
#define I_WIDEN(v) _mm256_madd_epi16(v, _mm256_set1_epi16(1))
#include "backend/cpu/kernels_x86_madd.h"

/* ---- f32 activations ------------------------------------------------------------------------- */

INLINE __m256 bf16_load(const uint8_t *p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* Sixteen signed bytes as f32. */
INLINE void widen_16(bytes16 q, __m256 *to) {
    __m128i v = (__m128i)q;
    to[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v));
    to[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v)));
}

#define LANES 8
#define F32_ACTS 2
#define V_ZERO() _mm256_setzero_ps()
#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_STORE(p, v) _mm256_storeu_ps(p, v)
#define V_SUM(v) sum_eight(v)
#include "backend/cpu/kernels_decode.h"

/* ---- attention ------------------------------------------------------------------------------- */

#define V_FUSED(a, b, c) _mm256_fmadd_ps(a, b, c)
#define V_MAX(a, b) _mm256_max_ps(a, b)
#define V_HALF(v) _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define V_FOUR(p) _mm256_broadcast_ps((const __m128 *)(const void *)(p))
#define V_PAIRS(a, b) _mm256_hadd_ps(a, b)
#define V_WEIGHTS const float *
#define V_LOAD_WEIGHTS(p) (p)
#define V_WEIGHT(w, i) V_SET((w)[i])
#define V_INTERLEAVE(from, row, to) interleave(from, row, to)
#define ATTEND_ROWS 3
#define ATTEND_F16_ROWS 6

struct key_scales {
    __m256 d; /* each of two scales in four lanes */
};

INLINE struct key_scales key_scales(const uint16_t *f16s) {
    const __m256i each = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    uint32_t two;
    memcpy(&two, f16s, sizeof two);
    __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128((int)two));
    return (struct key_scales){_mm256_permutevar8x32_ps(_mm256_castps128_ps256(both), each)};
}

/* The 32 quants of a block. */
INLINE void block_bytes(const uint8_t *block, bool is_q4, __m128i *to /* (2) */) {
    const __m128i *qs = (const __m128i *)(const void *)(block + 2);
    to[0] = _mm_loadu_si128(qs);
    if (!is_q4) {
        to[1] = _mm_loadu_si128(qs + 1);
        return;
    }
    const __m128i low = _mm_set1_epi8(15), bias = _mm_set1_epi8(8);
    to[1] = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(to[0], 4), low), bias);
    to[0] = _mm_sub_epi8(_mm_and_si128(to[0], low), bias);
}

/* Four bytes of either key side by side. */
INLINE void interleave_block(const uint8_t *from, size_t row, bool is_q4, uint8_t *to) {
    __m128i a[2], b[2];
    block_bytes(from, is_q4, a);
    block_bytes(from + row, is_q4, b);
    UNROLL for (int h = 0; h < 2; h++) {
        _mm_storeu_si128((__m128i *)(to + 32 * h), _mm_unpacklo_epi32(a[h], b[h]));
        _mm_storeu_si128((__m128i *)(to + 32 * h + 16), _mm_unpackhi_epi32(a[h], b[h]));
    }
}

INLINE __m256 key_values(const uint8_t *bytes, int i, const struct key_scales *s) {
    return f32_of(widen_i8(bytes + 8 * i)) * s->d;
}

#define KEY_VECTORS(rows) 4

enum { VALUE_BLOCKS = 1 };
struct value_scales {
    float d[VALUE_BLOCKS][ATTEND_POSITIONS];
};

INLINE void put_scales(const uint16_t *f16s, uint32_t b, uint32_t p, struct value_scales *to) {
    _mm256_storeu_ps(to->d[b] + p, half_load((const uint8_t *)f16s));
}

INLINE void block_values(const uint8_t *at, bool is_q4, const struct value_scales *s, uint32_t p,
                         __m256 *to) {
    __m128i bytes[2];
    block_bytes(at, is_q4, bytes);
    UNROLL for (int h = 0; h < 2; h++) widen_16((bytes16)bytes[h], to + 2 * h);
    UNROLL for (int c = 0; c < 4; c++) to[c] = to[c] * V_SET(s->d[0][p]);
}

/* Eight f16 of two rows: four of each row to a vector, vectors 64 bytes apart. */
INLINE void interleave(const uint8_t *from, size_t row, uint8_t *to) {
    __m128i a = _mm_loadu_si128((const __m128i *)from);
    __m128i b = _mm_loadu_si128((const __m128i *)(from + row));
    _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi64(a, b));
    _mm_storeu_si128((__m128i *)(to + 64), _mm_unpackhi_epi64(a, b));
}

#include "backend/cpu/kernels_attend.h"

/* ---- the rows -------------------------------------------------------------------------------- */

#define INT8_ROW(TYPE, type)                                                                       \
    {#type " avx2", DT_##TYPE, false, CPU_AVX2, TILE, bytes_##type, pack_##type, project_##type},
#define F32_ROW(TYPE, type) F32_KERNEL(TYPE, type, "avx2", CPU_AVX2),

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

const struct kernel_rows kernels_avx2 = {
    rows, sizeof rows / sizeof *rows, {"attend avx2", CPU_AVX2, attend_split}, act_groups_vectors};

#endif
