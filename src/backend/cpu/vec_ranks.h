/* vec_ranks.h - row_ranks with vectors of RANK_LANES, for RANK_TARGET. vec.c includes it for each
 * length; RANKS(name) tells their names apart. */
typedef float RANKS(rank_floats) __attribute__((vector_size(4 * RANK_LANES)));
typedef int32_t RANKS(ranks) __attribute__((vector_size(4 * RANK_LANES)));

#ifdef __clang__
#define EACH_RANKS(u) _Pragma("unroll") for (int u = 0; u < LANES / RANK_LANES; u++)
#else
#define EACH_RANKS(u) _Pragma("GCC unroll 4") for (int u = 0; u < LANES / RANK_LANES; u++)
#endif
#define rank_max(a, b)                                                                             \
    ({                                                                                             \
        __typeof__(a) rank_a_ = (a), rank_b_ = (b), is_more_ = rank_a_ > rank_b_;                  \
        ivec_choose(is_more_, rank_a_, rank_b_);                                                   \
    })
#define rank_most(a, b) ((a) > (b) ? (a) : (b))

/* What is read next was written by another op, and is far. Zero times what is not finite is NaN. */
RANK_TARGET bool RANKS(row_ranks)(const float *x, int32_t *best, size_t n) {
    enum { AHEAD = 2048 };
    RANKS(rank_floats) zeros = {0};
    size_t i = 0;
    for (; i + RANK_BLOCK <= n; i += RANK_BLOCK) {
        RANKS(ranks) max[LANES / RANK_LANES];
        EACH_RANKS(u) max[u] = (RANKS(ranks)){0} + INT32_MIN;
        for (size_t k = i; k < i + RANK_BLOCK; k += LANES) {
            __builtin_prefetch(x + k + AHEAD);
            EACH_RANKS(u) {
                RANKS(rank_floats) v;
                memcpy(&v, x + k + u * RANK_LANES, sizeof v);
                RANKS(ranks) bits = (RANKS(ranks))v;
                max[u] = rank_max(bits ^ (bits >> 31 & INT32_MAX), max[u]);
                zeros += v * 0.0f;
            }
        }
        ivec4 four[LANES / 4];
        memcpy(four, max, sizeof four);
        for (int k = 1; k < LANES / 4; k++)
            four[0] = rank_max(four[0], four[k]);
        int32_t a = rank_most(four[0][0], four[0][1]), b = rank_most(four[0][2], four[0][3]);
        best[i / RANK_BLOCK] = rank_most(a, b);
    }
    bool is_finite = true;
    for (int k = 0; k < RANK_LANES; k++)
        is_finite &= zeros[k] == 0;
    return (i == n || rank_some(x + i, best + i / RANK_BLOCK, n - i)) && is_finite;
}
#undef EACH_RANKS
#undef rank_max
#undef rank_most
#undef RANK_LANES
#undef RANK_TARGET
#undef RANKS
