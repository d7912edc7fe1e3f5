/* kernels_rows.h - what the files of kernels share: the list of types and their parts of the table.
 *
 * Every kernels_<set>.c holds the kernels of one instruction set and ends with its rows of the
 * table; kernels.c puts them together, best first. */
#ifndef BACKEND_CPU_KERNELS_ROWS_H
#define BACKEND_CPU_KERNELS_ROWS_H

#include "backend/cpu/kernels.h"

/* The types with a grid, which have int8 kernels alone: in --exact they are left to portable C. */
#define FOR_EACH_GRID_TYPE(X)                                                                      \
    X(IQ2_XXS, iq2_xxs)                                                                            \
    X(IQ2_XS, iq2_xs)                                                                              \
    X(IQ2_S, iq2_s)                                                                                \
    X(IQ3_XXS, iq3_xxs)                                                                            \
    X(IQ3_S, iq3_s)                                                                                \
    X(IQ1_S, iq1_s)                                                                                \
    X(IQ1_M, iq1_m)

/* The block types that every instruction set has kernels for: X(NAME, name of its struct). Types of
 * types.def that are in neither list are left to portable C. */
#define FOR_EACH_FAST_TYPE(X)                                                                      \
    X(Q4_0, q4_0)                                                                                  \
    X(Q4_1, q4_1)                                                                                  \
    X(Q5_0, q5_0)                                                                                  \
    X(Q5_1, q5_1)                                                                                  \
    X(Q8_0, q8_0)                                                                                  \
    X(Q2_K, q2_k)                                                                                  \
    X(Q3_K, q3_k)                                                                                  \
    X(Q4_K, q4_k)                                                                                  \
    X(Q5_K, q5_k)                                                                                  \
    X(Q6_K, q6_k)                                                                                  \
    X(IQ4_NL, iq4_nl)                                                                              \
    X(IQ4_XS, iq4_xs)                                                                              \
    X(MXFP4, mxfp4)

/* Loops over registers must be unrolled, or their arrays end in memory; -O2 does not always. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#elif defined(__OPTIMIZE__)
#define UNROLL _Pragma("GCC unroll 16")
#else /* MODE=debug: gcc would complain of some that it ignores */
#define UNROLL
#endif

/* Sixteen bytes as both compilers know them, and the same bits as 16-bit numbers. */
typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint16_t words8 __attribute__((vector_size(16)));

/* Groups from one activation row to the next. */
static inline size_t stride_of(const struct activations *acts) {
    return acts->group_stride ? acts->group_stride : acts->k / 32;
}

typedef void act_groups_fn(const float *x, uint32_t k, uint32_t group, struct act_group *groups);

struct kernel_rows {
    const struct kernel *at;
    size_t count;
    struct attend_kernel attend; /* run is NULL where another file has it */
    act_groups_fn *act_groups;   /* needs what attend needs; NULL: portable C will do */
};

extern const struct kernel_rows kernels_portable;
#if defined(__x86_64__)
extern const struct kernel_rows kernels_avx512_vnni, kernels_avx512, kernels_avx2;
#elif defined(__aarch64__)
extern const struct kernel_rows kernels_neon_mmla, kernels_neon_sdot, kernels_neon_plain,
    kernels_neon_fhm, kernels_neon;
#endif

#endif
