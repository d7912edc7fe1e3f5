/* kernels_rows.h - what the files of kernels share: the list of types and their parts of the table.
 *
 * Every kernels_<set>.c holds the kernels of one instruction set and ends with its rows of the
 * table; kernels.c puts them together, best first. */
#ifndef BACKEND_CPU_KERNELS_ROWS_H
#define BACKEND_CPU_KERNELS_ROWS_H

#include "backend/cpu/kernels.h"

/* Loops over registers must be unrolled, or their arrays end in memory; -O2 does not always. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Sixteen bytes as both compilers know them, and the same bits as 16-bit numbers. */
typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint16_t words8 __attribute__((vector_size(16)));

/* Groups from one activation row to the next. */
static inline size_t stride_of(const struct activations *acts) {
    return acts->group_stride ? acts->group_stride : acts->k / 32;
}

struct kernel_rows {
    const struct kernel *at;
    size_t count;
};

extern const struct kernel_rows kernels_portable;
#if defined(__x86_64__)
extern const struct kernel_rows kernels_avx512, kernels_avx2;
#elif defined(__aarch64__)
extern const struct kernel_rows kernels_neon;
#endif

#endif
