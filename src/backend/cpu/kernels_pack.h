/* kernels_pack.h - the packed order of quantized matrices on x86: rows side by side in tiles.
 *
 * The fast int8 kernels hold T weight rows in the lanes of a vector, so that no lanes are ever
 * added up. Packing cuts the matrix into tiles of T rows (the last filled up with zeros), and
 * stores a tile block after block along K. A packed block has four parts, each holding its items
 * of all T rows side by side:
 *
 *   quants  [i / 4][row][i % 4]   the block's bytes of quants, in units of four
 *   words   [i][row]  u32         the fifth bits of q5_0 and q5_1, value 4j + b's at bit 8b + j
 *   f16s  [i][row]  f16         d, then m or dmin
 *   bytes   [i][row]  u8, i8      sub-block scales, then minimums; the exponent of mxfp4
 *
 * T is 8 or 16, a vector's lanes. ARM has an order of its own, kernels_neon_pack.h.
 *
 * Scales of six bits are expanded into bytes, so a few types grow; PACKED_TYPES tells by how much.
 * (Expanding them into f32 would save two or three instructions a group and cost a third more
 * memory traffic in q4_k.) */
#ifndef BACKEND_CPU_KERNELS_PACK_H
#define BACKEND_CPU_KERNELS_PACK_H

#include "backend/cpu/kernels_rows.h"

/* X(TYPE, type, values, quants, words, f16s, bytes): of one row's block. In the file q4_k has
 * 144 bytes (here 148), q5_k 176 (180), q3_k 110 (114), iq4_xs 136 (138), iq1_m 56 (58); others do
 * not change. */
/* clang-format off */
#define PACKED_TYPES(X)                                                                            \
    X(Q4_0,   q4_0,    32,  16, 0, 1,  0) /* qs */                                                 \
    X(Q4_1,   q4_1,    32,  16, 0, 2,  0)                                                          \
    X(Q5_0,   q5_0,    32,  16, 1, 1,  0)                                                          \
    X(Q5_1,   q5_1,    32,  16, 1, 2,  0)                                                          \
    X(Q8_0,   q8_0,    32,  32, 0, 1,  0)                                                          \
    X(Q2_K,   q2_k,   256,  64, 0, 2, 16)                                                          \
    X(Q3_K,   q3_k,   256,  96, 0, 1, 16) /* qs, hmask; scales less 32 */                          \
    X(Q4_K,   q4_k,   256, 128, 0, 2, 16) /* qs; 8 scales, 8 minimums */                           \
    X(Q5_K,   q5_k,   256, 160, 0, 2, 16) /* qs, qh; as q4_k */                                    \
    X(Q6_K,   q6_k,   256, 192, 0, 1, 16) /* ql, qh */                                             \
    X(IQ4_NL, iq4_nl,  32,  16, 0, 1,  0)                                                          \
    X(IQ4_XS, iq4_xs, 256, 128, 0, 1,  8) /* scales less 32 */                                     \
    X(MXFP4,  mxfp4,   32,  16, 0, 0,  1)                                                          \
    X(IQ2_XXS, iq2_xxs, 256, 64, 0, 1,  0)                                                         \
    X(IQ2_XS,  iq2_xs,  256, 64, 0, 1,  8)                                                         \
    X(IQ2_S,   iq2_s,   256, 64, 0, 1, 16) /* qs, signs; qh, scales */                             \
    X(IQ3_XXS, iq3_xxs, 256, 96, 0, 1,  0) /* qs, scales */                                        \
    X(IQ3_S,   iq3_s,   256, 96, 0, 1, 12) /* qs, signs; qh, scales */                             \
    X(IQ1_S,   iq1_s,   256, 48, 0, 1,  0) /* qs, qh */                                            \
    X(IQ1_M,   iq1_m,   256, 56, 0, 1,  0) /* qs, qh, scales; d */
/* clang-format on */

/* A tile's shape. */
struct packing {
    uint32_t rows;     /* T */
    uint8_t flip_q8_0; /* the quants of q8_0 are stored xor this: 0x80 makes them unsigned */
};

uint64_t packed_bytes(enum dtype type, struct packing p, uint32_t k, uint32_t n);
void pack_rows(enum dtype type, struct packing p, const void *rows, uint32_t k, uint32_t n,
               void *packed);

/* Groups of a block; bytes of a row before each part of a packed block, and in all: times T they
 * are the offsets and the size of a tile's block. */
enum {
#define X(TYPE, type, values, quants, words, f16s, bytes)                                          \
    PACK_GROUPS_##type = (values) / 32, PACK_WORDS_##type = (quants),                              \
    PACK_HALVES_##type = (quants) + 4 * (words),                                                   \
    PACK_BYTES_##type = (quants) + 4 * (words) + 2 * (f16s),                                       \
    PACK_SIZE_##type = (quants) + 4 * (words) + 2 * (f16s) + (bytes),
    PACKED_TYPES(X)
#undef X
};

#endif
