/* tiles.h - weights as the CUDA kernels read them: units that a warp takes 16 bytes a lane at a
 * time.
 *
 * A tile is T = 4, 8 or 16 rows of a matrix. It is a run of units along K, each one run of bytes.
 * In a unit T / 4 groups of L = 128 / T lanes lie side by side; a lane owns 4 rows (lane / L * 4
 * ...) by `span` columns, and its group L * span columns: those of the unit. Tiles follow each
 * other, rows behind the matrix's last are zeros.
 *
 *   type        span  bytes a unit: parts, each in order of rows of a lane, then lanes
 *   Q4_K         32   2304: 4 x 32 x 16 nibbles, 32 x 4 and 32 x 2 scales, 4 x 16 d
 *   Q5_K         32   2816: the same, and 32 x 16 upper bits behind the nibbles
 *   Q6_K         32   3360: 4 x 32 x 16 nibbles, 2 x 32 x 16 upper pairs, 32 x 8 scales, 4 x 8 d
 *   Q8_0         16   2176: 4 x 32 x 16 bytes, 16 x 8 d
 *   BF16, F16     8   2048: 4 x 32 x 16
 *   F32           4   2048: 4 x 32 x 16
 *
 * Nibbles: byte i holds column i below and column 16 + i above, so that four columns of a word are
 * neighbours. Upper bits of Q5_K: a word a row, bit j of byte i for column 4 j + i. Upper pairs of
 * Q6_K: two words a row, bits 2 j of byte i of word w for column 16 w + 4 j + i; the pair's upper
 * bit is flipped, so that nibble and pair are a two's complement number: the value less 32. (Rows 0
 * and 1 of a lane share the first 16 bytes, rows 2 and 3 the second.) Scales of Q4_K and Q5_K: byte
 * r of the word is row r's scale with the minimum's two upper bits above it; the half word holds
 * the minimums' low nibbles, of rows 0, 2, 1, 3 from below. d: 8 lanes share a block of 256
 * columns; a row's d and dmin together. Q6_K: byte 2 r + h is the scale of row r's columns 16 h....
 * Q8_0: 2 lanes share a block. BF16, F16: a lane's columns 0..3 are 4 l..., 4..7 are 4 L + 4 l...,
 * l the lane's place in its group: then 16-byte reads of the activations meet no bank twice. */
#ifndef BACKEND_CUDA_TILES_H
#define BACKEND_CUDA_TILES_H

#include <stdbool.h>
#include <stdint.h>

#include "quant/quant.h"

#ifdef __CUDACC__
#define TILE_FN static __host__ __device__ __forceinline__
#else
#define TILE_FN static inline
#endif

struct tile_format {
    uint32_t type;       /* enum dtype of the tiles: not always the file's */
    uint32_t rows;       /* of a tile: 4, 8 or 16 */
    uint32_t columns;    /* of a unit */
    uint32_t unit_bytes; /* a multiple of 16 */
    uint64_t bytes;      /* of the whole matrix */
};

/* Bytes of a unit. */
enum {
    TILE_UNIT_Q4_K = 2304,
    TILE_UNIT_Q5_K = 2816,
    TILE_UNIT_Q6_K = 3360,
    TILE_UNIT_Q8_0 = 2176,
    TILE_UNIT_FLOAT = 2048, /* of BF16, F16 and F32 */
};

/* Where the parts of a unit begin. */
enum {
    TILE_MORE = 2048, /* behind the nibbles */
    TILE_Q4_SCALES = TILE_MORE,
    TILE_Q5_SCALES = TILE_MORE + 512,
    TILE_MINS = 128, /* behind the scales */
    TILE_D = 192,
    TILE_Q6_SCALES = TILE_MORE + 1024,
    TILE_Q6_D = TILE_Q6_SCALES + 256,
};

/* Columns of a lane; 0: the type has no tiles. */
TILE_FN uint32_t tile_span(uint32_t type) {
    switch (type) {
    case DT_Q4_K:
    case DT_Q5_K:
    case DT_Q6_K:
        return 32;
    case DT_Q8_0:
        return 16;
    case DT_BF16:
    case DT_F16:
        return 8;
    case DT_F32:
        return 4;
    default:
        return 0;
    }
}

TILE_FN uint32_t tile_unit_bytes(uint32_t type) {
    switch (type) {
    case DT_Q4_K:
        return TILE_UNIT_Q4_K;
    case DT_Q5_K:
        return TILE_UNIT_Q5_K;
    case DT_Q6_K:
        return TILE_UNIT_Q6_K;
    case DT_Q8_0:
        return TILE_UNIT_Q8_0;
    default:
        return TILE_UNIT_FLOAT;
    }
}

/* Columns of a unit. */
TILE_FN uint32_t tile_columns(uint32_t type, uint32_t rows) {
    return 128 / rows * tile_span(type);
}

/* 1: products are of int8 activations. */
TILE_FN uint32_t tile_is_int8(uint32_t type) {
    return tile_span(type) >= 16;
}

struct operand;

#ifdef __cplusplus
extern "C" {
#endif
/* The form in which a PROJECT's matrix is kept: of its shape and the device alone. False: as rows
 * of the file. f32_act: meets f32 activations whatever its type, so it is expanded. */
bool tile_choose(const struct operand *weight, bool f32_act, uint32_t n_sms,
                 struct tile_format *out);
#ifdef __cplusplus
}
#endif

#endif
