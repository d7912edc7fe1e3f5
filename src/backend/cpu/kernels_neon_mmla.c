/* kernels_neon_mmla.c - int8 products with SMMLA: eight values of two rows in a vector. */
#include "backend/cpu/kernels_rows.h"

#if defined(__aarch64__)
#ifdef __clang__ /* version 14 has no such attribute: the Makefile names both for the file */
#define TARGET
#else
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#endif
#define K_STEP 8
#define ISA "i8mm"
#define NEEDS (CPU_NEON | CPU_DOTPROD | CPU_I8MM)
#include "backend/cpu/kernels_neon_int8.h"

const struct kernel_rows kernels_neon_mmla = {rows, sizeof rows / sizeof *rows, {0}, NULL};

#endif
