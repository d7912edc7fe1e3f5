/* kernels_neon_sdot.c - int8 products with SDOT alone: four values of four rows in a vector. */
#include "backend/cpu/kernels_rows.h"

#if defined(__aarch64__)
#ifdef __clang__ /* version 14 has no such attribute: the Makefile names it for the file */
#define TARGET
#else
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define K_STEP 4
#define ISA "dotprod"
#define NEEDS (CPU_NEON | CPU_DOTPROD)
#include "backend/cpu/kernels_neon_int8.h"

const struct kernel_rows kernels_neon_sdot = {rows, sizeof rows / sizeof *rows, {0}, NULL};

#endif
