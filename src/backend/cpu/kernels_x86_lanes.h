/* kernels_x86_lanes.h - what the kernels with AVX2 and with AVX-512 do alike: sums over lanes,
 * always in the same order, and single values. Included by them after their TARGET and INLINE. */

/* Of sixteen signed bytes. */
INLINE int32_t sum_bytes(__m128i bytes) {
    __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), bytes);
    __m128i four = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

/* Halves are added to each other, then quarters. */
INLINE float sum_eight(__m256 v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* values[nibble], sixteen times. */
INLINE bytes16 look_up_16(const uint8_t *values, bytes16 nibbles) {
    return (bytes16)_mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)values), (__m128i)nibbles);
}

INLINE float half_to_f32(uint16_t half) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}
