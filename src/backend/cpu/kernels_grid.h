/* kernels_grid.h - the grids of IQ1, IQ2 and IQ3 as the int8 kernels look them up.
 *
 * quant/<type>.h has two or three bits a value; here an entry is its bytes, so that one load gives
 * four or eight quants. 36 KiB at most, of which a type needs 1 to 16. */
#ifndef BACKEND_CPU_KERNELS_GRID_H
#define BACKEND_CPU_KERNELS_GRID_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/kernels_rows.h"

/* What is added to every byte: the dot products of x86 want unsigned weights. */
enum {
#if defined(__x86_64__)
    GRID_BIAS = 64,
    GRID_IQ1_BIAS = 16,
#else
    GRID_BIAS = 0,
    GRID_IQ1_BIAS = 0,
#endif
};

struct kernel_grids {
    uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024]; /* without signs */
    uint64_t iq1[2048];                              /* moved up */
    uint32_t iq3_xxs[256], iq3_s[512];
#if defined(__x86_64__)
    /* Look-ups are gathers; otherwise loads, one by one. Microcode of 2023, which keeps gathers
     * from showing other programs' data, made them three times as slow on Skylake to Tiger Lake;
     * what came after has AVX-VNNI. */
    bool is_gathered;
#else
    uint64_t signs[256], even[128]; /* bytes of 255 where a sign bit is set; even: quant/grid.h */
#endif
};

/* Filled by kernel_grids_fill, which packing calls: a matrix is packed before it is used. */
extern struct kernel_grids kernel_grids;
void kernel_grids_fill(void);

#endif
