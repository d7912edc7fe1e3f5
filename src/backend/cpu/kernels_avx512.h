/* kernels_avx512.h - vectors of AVX-512 for the int8 products: what kernels_x86_expand.h asks for.
 *
 * The files that include it, with VNNI and without, first define TARGET, BYTE_BIAS_LOG2 and
 * BYTE_FLIP. */
#include <immintrin.h>
#include <string.h>

#include "backend/cpu/kernels_grid.h"
#include "backend/cpu/kernels_pack.h"
#include "base/cpu.h"
#include "quant/encode.h"
#include "quant/mxfp4.h"

#define INLINE static inline __attribute__((always_inline)) TARGET

enum { TILE = 16 };
#define VEC __m512
#define INTS __m512i
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_FNMA(a, b, c) _mm512_fnmadd_ps(a, b, c)
#define V_SET(x) _mm512_set1_ps(x)

#include "backend/cpu/kernels_x86_grid.h"

/* ---- vectors --------------------------------------------------------------------------------- */

INLINE __m512i ints_load(const uint8_t *p) {
    return _mm512_loadu_si512(p);
}

/* The bits of `mask` after a shift to the right: one instruction each, whatever g is. */
INLINE __m512i bits_at(__m512i v, int shift, int mask) {
    if (shift)
        v = _mm512_srlv_epi32(v, _mm512_set1_epi32(shift));
    return _mm512_and_si512(v, _mm512_set1_epi32(mask));
}

/* low | (v shifted left) & mask; a shift by less than zero goes right. Nothing that crosses from
 * byte to byte passes the mask, so a rotation will do. */
INLINE __m512i add_bits(__m512i low, __m512i v, int left, int mask) {
    __m512i rotated = _mm512_rolv_epi32(v, _mm512_set1_epi32(left & 31));
    return _mm512_ternarylogic_epi32(rotated, _mm512_set1_epi32(mask), low, 0xEA);
}

INLINE __m512i look_up(const uint8_t *values, __m512i nibbles) {
    __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)values));
    return _mm512_shuffle_epi8(table, nibbles);
}

INLINE __m512i widen_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m512i widen_i8(const uint8_t *p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m512 half_load(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512 f32_of(__m512i v) {
    return _mm512_cvtepi32_ps(v);
}

INLINE __m512i both_halves(__m256i low, __m256i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

INLINE __m512i grid_4(const uint32_t *grid, bool by_gather, __m512i index) {
    if (by_gather)
        return _mm512_i32gather_epi32(index, grid, 4);
    return both_halves(eight_of_4(grid, _mm512_castsi512_si256(index)),
                       eight_of_4(grid, _mm512_extracti64x4_epi64(index, 1)));
}

/* Eight rows' entries at a time: half the gathers of two look-ups of four bytes. */
INLINE void gather_8(const uint64_t *grid, __m512i index, __m512i *w) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512i a = _mm512_i32gather_epi64(_mm512_castsi512_si256(index), grid, 8);
    __m512i b = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(index, 1), grid, 8);
    w[0] = _mm512_permutex2var_epi32(a, even, b);
    w[1] = _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
}

INLINE void grid_8(const uint64_t *grid, bool by_gather, __m512i index, __m512i *w) {
    if (by_gather) {
        gather_8(grid, index, w);
        return;
    }
    __m256i low[2], high[2];
    eight_of_8(grid, _mm512_castsi512_si256(index), low);
    eight_of_8(grid, _mm512_extracti64x4_epi64(index, 1), high);
    UNROLL for (int i = 0; i < 2; i++) w[i] = both_halves(low[i], high[i]);
}

/* Bytes with the bias of the grids; those whose bit of `signs`, 4 j .. 4 j + 3, is set are negated.
 */
INLINE __m512i negate(__m512i w, __m512i signs, int j) {
    const __m512i lane =
        _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
    __m512i bits = _mm512_set1_epi32(j % 2 ? (int)0x80402010 : 0x08040201);
    __m512i spread =
        _mm512_shuffle_epi8(signs, _mm512_add_epi8(lane, _mm512_set1_epi8((char)(j / 2))));
    return _mm512_mask_sub_epi8(w, _mm512_test_epi8_mask(spread, bits),
                                _mm512_set1_epi8((char)(2 * GRID_BIAS)), w);
}

/* Each byte less `by`. */
INLINE __m512i bytes_less(__m512i v, int by) {
    return _mm512_sub_epi8(v, _mm512_set1_epi8((char)by));
}

#include "backend/cpu/kernels_x86_expand.h"
