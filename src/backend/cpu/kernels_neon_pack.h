/* kernels_neon_pack.h - the packed order of quantized matrices on ARM: eight rows side by side.
 *
 * A matrix is cut into tiles of eight rows (the last filled up with zeros), a tile is stored block
 * after block along K. In a packed block
 *
 *   quants  [group of 32][half tile][BITS vectors of 16 bytes]
 *   bytes   [group][i][row]   sub-block scales, then minimums or the second half's scales; the
 *                             exponent of mxfp4
 *   f16s    [i][row]          d, then m or dmin
 *
 * Four rows of a group are eight vectors w[0..7] of int8: with SDOT alone w[j] has values 4j..4j+3
 * of each row (k_step 4); with SMMLA w[2s] has values 8s..8s+7 of the first two rows and w[2s + 1]
 * of the others (k_step 8). So the first four vectors are values 0..15 either way. BITS vectors
 * hold the eight, so that few instructions expand them: bits that would cost an instruction more to
 * shift stay where they are, and the expanded vectors are the values times a power of two:
 *
 *   2 bits  w0 w4 w1 w5 from the lowest up, then w2 w6 w3 w7; w4..w7 times 4
 *   3 bits  signed, times 32: a byte has two values on top; its two lowest bits hold w6 and w7:
 *           w0 w1 (w6 / 2), w2 w3 (w7 / 2), w4 w5 (w7 % 2) (w6 % 2)
 *   4 bits  w0..w3 in the low nibbles, w4..w7 in the high ones; if signed, times 16
 *   5 bits  w0..w4, and in three bits w5 / 4, w6 / 4, w7 / 4, (w5 % 4, w7 / 2 % 2),
 *           (w6 % 4, w7 % 2); if signed w0..w4 are on top, times 8
 *   6 bits  signed, times 4: three values on top; their lowest bits hold the fourth
 *
 * Types with a grid keep a row's bytes of a group together: [group of 32][row][bytes], in the order
 * of the file's parts. Their values come from kernels_grid.h.
 *
 * Nothing grows but by scales of six bits expanded into bytes: q4_k has 148 bytes a row (144 in the
 * file), q5_k 180 (176), q3_k 114 (110), iq4_xs 138 (136), iq3_s 114 (110), iq1_m 58 (56). */
#ifndef BACKEND_CPU_KERNELS_NEON_PACK_H
#define BACKEND_CPU_KERNELS_NEON_PACK_H

#include "backend/cpu/kernels_rows.h"

enum { NEON_TILE = 8 };

/* X(TYPE, type, values, bits, bytes of a group, f16s): of one row's block. */
/* clang-format off */
#define NEON_TYPES(X)                                                                              \
    X(Q4_0,   q4_0,    32, 4, 0, 1)                                                                \
    X(Q4_1,   q4_1,    32, 4, 0, 2)                                                                \
    X(Q5_0,   q5_0,    32, 5, 0, 1)                                                                \
    X(Q5_1,   q5_1,    32, 5, 0, 2)                                                                \
    X(Q8_0,   q8_0,    32, 8, 0, 1)                                                                \
    X(Q2_K,   q2_k,   256, 2, 2, 2) /* two of scale and minimum, as in the file */                 \
    X(Q3_K,   q3_k,   256, 3, 2, 1) /* scales less 32 */                                           \
    X(Q4_K,   q4_k,   256, 4, 2, 2) /* scale, minimum */                                           \
    X(Q5_K,   q5_k,   256, 5, 2, 2)                                                                \
    X(Q6_K,   q6_k,   256, 6, 2, 1)                                                                \
    X(IQ4_NL, iq4_nl,  32, 4, 0, 1) /* the numbers of the values in their table */                 \
    X(IQ4_XS, iq4_xs, 256, 4, 1, 1) /* scales less 32 */                                           \
    X(MXFP4,  mxfp4,   32, 4, 1, 0)
/* clang-format on */

/* X(TYPE, type, bytes of a row's group, bytes of scales): of types with a grid, 256 values each. */
/* clang-format off */
#define NEON_GRID_TYPES(X)                                                                         \
    X(IQ2_XXS, iq2_xxs,  8, 0) /* four indices; signs and scale */                                 \
    X(IQ2_XS,  iq2_xs,   8, 1) /* qs; two scales, as in the file */                                \
    X(IQ2_S,   iq2_s,    9, 1) /* qs, signs, qh; two scales */                                     \
    X(IQ3_XXS, iq3_xxs, 12, 0) /* qs; signs and scale */                                           \
    X(IQ3_S,   iq3_s,   13, 1) /* qs, signs, qh; 2 scale + 1 */                                    \
    X(IQ1_S,   iq1_s,    6, 0) /* qs, qh */                                                        \
    X(IQ1_M,   iq1_m,    6, 1) /* qs, qh; two of 2 scale + 1, four bits each */
/* clang-format on */

/* Groups of a block, and where its parts are in a tile's block. */
enum {
#define X(TYPE, type, group, bytes)                                                                \
    NEON_GROUPS_##type = 8, NEON_ROW_##type = (group), NEON_HALF_##type = 4 * (group),             \
    NEON_BYTES_##type = 8 * NEON_TILE * (group),                                                   \
    NEON_F16S_##type = NEON_BYTES_##type + 8 * NEON_TILE * (bytes),                                \
    NEON_SIZE_##type = NEON_F16S_##type + 2 * NEON_TILE,
    NEON_GRID_TYPES(X)
#undef X
#define X(TYPE, type, values, bits, bytes, f16s)                                                   \
    NEON_GROUPS_##type = (values) / 32, NEON_HALF_##type = 16 * (bits),                            \
    NEON_BYTES_##type = NEON_GROUPS_##type * 2 * NEON_HALF_##type,                                 \
    NEON_F16S_##type = NEON_BYTES_##type + NEON_GROUPS_##type * NEON_TILE * (bytes),               \
    NEON_SIZE_##type = NEON_F16S_##type + NEON_TILE * 2 * (f16s),
        NEON_TYPES(X)
#undef X
};

/* k_step: 4 or 8, see above. */
uint64_t neon_packed_bytes(enum dtype type, uint32_t k, uint32_t n);
void neon_pack(enum dtype type, uint32_t k_step, const void *rows, uint32_t k, uint32_t n,
               void *packed);

#endif
