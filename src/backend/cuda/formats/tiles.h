/* tiles.h - weights as the CUDA kernels read them: kblocks that a warp takes 16 bytes a lane at a
 * time.
 *
 * A tile is T = 4, 8 or 16 rows of a matrix. It is a run of kblocks along K, each one run of bytes.
 * Tiles follow each other, rows behind the matrix's last are zeros.
 *
 * Types that meet int8 activations: lane l of a kblock owns `span` columns of one row, row l % T,
 * columns (l / T) * span... of the kblock's. So T lanes side by side have the same columns, and T
 * pieces of 16 bytes lie side by side, of which tensor cores take 8 rows at once.
 *
 *   type        span  bytes a kblock: parts, each piece by piece of a lane's columns, then by lanes
 *   Q4_K        128   2304: 4 x 32 x 16 nibbles, 32 x 4 and 32 x 2 scales, 16 x 4 d
 *   Q5_K        128   2816: the same, and 32 x 16 upper bits behind the nibbles
 *   Q6_K        128   3360: 4 x 32 x 16 nibbles, 2 x 32 x 16 upper pairs, 32 x 8 scales, 16 x 2 d
 *   Q8_0         64   2176: 4 x 32 x 16 bytes, 32 x 4 d
 *
 * Nibbles: piece i has the lane's columns 32 i...; its byte b holds column b below and column 16 +
 * b above, so that four columns of a word are neighbours. Upper bits of Q5_K: word i is of piece i,
 * bit j of byte b for column 4 j + b. Upper pairs of Q6_K: two words a piece of nibbles (pieces 0
 * and 1 share the first 16 bytes, 2 and 3 the second), bits 2 j of byte b of word w for column 16 w
 * + 4 j + b; the pair's upper bit is flipped, so that nibble and pair are a two's complement
 * number: the value less 32. Scales of Q4_K and Q5_K: byte i of the word is the scale of columns 32
 * i... with the minimum's two upper bits above it; the half word holds the minimums' low nibbles,
 * of pieces 0, 2, 1, 3 from below. Q6_K: byte 2 i + h is the scale of columns 32 i + 16 h.... d:
 * two lanes of a row share a block of 256 columns; that of lane l is l / (2 T) * T + l % T, d and
 * dmin together. Q8_0: piece i has columns 16 i..., d of columns 0..31 and 32..63 together.
 *
 * Types that meet f32 activations: a lane owns 4 rows by `span` columns. T / 4 groups of L = 128 /
 * T lanes lie side by side; rows (l / L) * 4..., 4 x 32 x 16 bytes in order of rows of a lane, then
 * lanes.
 *
 *   BF16, F16     8   2048
 *   F32           4   2048
 *
 * BF16, F16: a lane's columns 0..3 are 4 l..., 4..7 are 4 L + 4 l..., l the lane's place in its
 * group: then 16-byte reads of the activations meet no bank twice. */
#ifndef BACKEND_CUDA_FORMATS_TILES_H
#define BACKEND_CUDA_FORMATS_TILES_H

#include <stdbool.h>
#include <stdint.h>

#include "quant/quant.h"

#ifdef __CUDACC__
#define HOST_DEVICE static __host__ __device__ __forceinline__
#else
#define HOST_DEVICE static inline
#endif

struct tile_format {
    uint32_t type;         /* enum dtype of the tiles: not always the file's */
    uint32_t rows;         /* of a tile: 4, 8 or 16 */
    uint32_t columns;      /* of a kblock */
    uint32_t kblock_bytes; /* a multiple of 16 */
    uint64_t bytes;        /* of the whole matrix */
};

/* Bytes of a kblock. */
enum {
    TILE_KBLOCK_Q4_K = 2304,
    TILE_KBLOCK_Q5_K = 2816,
    TILE_KBLOCK_Q6_K = 3360,
    TILE_KBLOCK_Q8_0 = 2176,
    TILE_KBLOCK_FLOAT = 2048, /* of BF16, F16 and F32 */
};

/* Where the parts of a kblock begin. */
enum {
    TILE_HIGH_BITS = 2048, /* behind the nibbles */
    TILE_Q4_SCALES = TILE_HIGH_BITS,
    TILE_Q5_SCALES = TILE_HIGH_BITS + 512,
    TILE_MINS = 128, /* behind the scales */
    TILE_D = 192,
    TILE_Q6_SCALES = TILE_HIGH_BITS + 1024,
    TILE_Q6_D = TILE_Q6_SCALES + 256,
};

/* Columns of a lane; 0: the type has no tiles. */
HOST_DEVICE uint32_t tile_span(uint32_t type) {
    switch (type) {
    case DT_Q4_K:
    case DT_Q5_K:
    case DT_Q6_K:
        return 128;
    case DT_Q8_0:
        return 64;
    case DT_BF16:
    case DT_F16:
        return 8;
    case DT_F32:
        return 4;
    default:
        return 0;
    }
}

HOST_DEVICE uint32_t tile_kblock_bytes(uint32_t type) {
    switch (type) {
    case DT_Q4_K:
        return TILE_KBLOCK_Q4_K;
    case DT_Q5_K:
        return TILE_KBLOCK_Q5_K;
    case DT_Q6_K:
        return TILE_KBLOCK_Q6_K;
    case DT_Q8_0:
        return TILE_KBLOCK_Q8_0;
    default:
        return TILE_KBLOCK_FLOAT;
    }
}

/* 1: products are of int8 activations. */
HOST_DEVICE uint32_t tile_is_int8(uint32_t type) {
    return tile_span(type) >= 64;
}

/* Columns of a kblock. */
HOST_DEVICE uint32_t tile_columns(uint32_t type, uint32_t rows) {
    return (tile_is_int8(type) ? 32 : 128) / rows * tile_span(type);
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
