/* kernels_x86_grid.h - eight rows' entries of a grid, for AVX2 and AVX-512: included by them after
 * their TARGET and INLINE.
 *
 * Entries are loaded one by one where gathers are slow (kernels_grid.h). An entry fills a vector,
 * and blends, which any port does, put them together. */

/* In assembly, or gcc 12 moves indices through vectors. */
INLINE __m256i entry_4(const uint32_t *grid, uint64_t index) {
    __m256i v;
    __asm__("vpbroadcastd %1, %0" : "=x"(v) : "m"(grid[index]));
    return v;
}

INLINE __m256i entry_8(const uint64_t *grid, uint64_t index) {
    __m256i v;
    __asm__("vpbroadcastq %1, %0" : "=x"(v) : "m"(grid[index]));
    return v;
}

/* Indices 2i and 2i + 1 of eight are in pair i. */
struct index_pairs {
    uint64_t of[4];
};

INLINE struct index_pairs index_pairs(__m256i index) {
    struct index_pairs pairs;
    UNROLL for (int i = 0; i < 2; i++) {
        __m128i four = i ? _mm256_extracti128_si256(index, 1) : _mm256_castsi256_si128(index);
        __asm__("vmovq %1, %0" : "=r"(pairs.of[2 * i]) : "x"(four));
        __asm__("vpextrq $1, %1, %0" : "=r"(pairs.of[2 * i + 1]) : "x"(four));
    }
    return pairs;
}

INLINE __m256i eight_of_4(const uint32_t *grid, __m256i index) {
    struct index_pairs pairs = index_pairs(index);
    __m256i v[4];
    UNROLL for (int i = 0; i < 4; i++) v[i] = _mm256_blend_epi32(
        entry_4(grid, (uint32_t)pairs.of[i]), entry_4(grid, pairs.of[i] >> 32), 0xaa);
    return _mm256_blend_epi32(_mm256_blend_epi32(v[0], v[1], 0x0c),
                              _mm256_blend_epi32(v[2], v[3], 0xc0), 0xf0);
}

/* Pair p in the lower half of a vector, pair p + 2 in the upper one. */
INLINE __m256 two_pairs_of_8(const uint64_t *grid, const struct index_pairs *pairs, int p) {
    __m256i v[2];
    UNROLL for (int i = 0; i < 2; i++) v[i] =
        _mm256_blend_epi32(entry_8(grid, (uint32_t)pairs->of[p + 2 * i]),
                           entry_8(grid, pairs->of[p + 2 * i] >> 32), 0xcc);
    return _mm256_castsi256_ps(_mm256_blend_epi32(v[0], v[1], 0xf0));
}

/* w[0]: the first four bytes of every entry. w[1]: the others. */
INLINE void eight_of_8(const uint64_t *grid, __m256i index, __m256i *w) {
    struct index_pairs pairs = index_pairs(index);
    __m256 even = two_pairs_of_8(grid, &pairs, 0), odd = two_pairs_of_8(grid, &pairs, 1);
    w[0] = _mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0x88));
    w[1] = _mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0xdd));
}
