/* tiles.h - the layout of repacked weights: tiles of K blocks, which a warp reads 16 bytes a lane.
 *
 * A tile is T = 4, 8 or 16 rows of a matrix, over all of K. It is a sequence of K blocks, each one
 * contiguous run of bytes that one warp loads and multiplies. Tiles follow each other in memory;
 * the last is padded with zero rows.
 *
 * Types that are multiplied with int8 activations. Lane l owns `span` columns of row l % T of the
 * tile: columns l / T * span ... of the K block. T neighbouring lanes thus have the same columns of
 * T rows, and 8 of their 16-byte chunks are an 8x8 matrix for ldmatrix. A K block is a few arrays,
 * each ordered by chunk, then lane:
 *
 *   type   span  bytes  arrays
 *   Q4_K    128   2304  4 x 32 x 16 B nibbles, 32 x 4 B scales, 32 x 2 B mins, 16 x 4 B (d, dmin)
 *   Q5_K    128   2816  the same, with 32 x 16 B high bits after the nibbles
 *   Q6_K    128   3360  4 x 32 x 16 B nibbles, 2 x 32 x 16 B high bits, 32 x 8 B scales, 16 x 2 B d
 *   Q8_0     64   2176  4 x 32 x 16 B values, 32 x 4 B d
 *
 *   nibbles      chunk i: the lane's columns 32 i ...; byte b has column b in the low nibble and
 *                column 16 + b in the high one, so a word of nibbles is 4 neighbouring columns
 *   high bits    Q5_K: word i belongs to chunk i; bit j of byte b is column 4 j + b.
 *                Q6_K: two words a chunk (chunks 0 and 1 in the first 16 bytes, 2 and 3 in the
 *                second); bits 2 j and 2 j + 1 of byte b of word w are column 16 w + 4 j + b. The
 *                upper of the two is flipped: with the nibble they are the value minus 32 in six
 *                bits of two's complement
 *   scales       Q4_K, Q5_K: byte i is the scale of columns 32 i ... (6 bits) below the two high
 *                bits of their min. Q6_K: byte 2 i + h is the scale of columns 32 i + 16 h ...
 *   mins         the low nibbles of the mins of chunks 0, 2, 1, 3, lowest first
 *   d            K-quants: two lanes of a row share a block of 256 columns: entry
 *                l / (2 T) * T + l % T. Q8_0: those of columns 0..31 and 32..63
 *   values       Q8_0: chunk i has columns 16 i ...
 *
 * Types that are multiplied with f32 activations. A lane owns 4 rows by `span` columns; L = 128 / T
 * lanes share 4 rows, lane l has rows l / L * 4 ... A K block is 4 x 32 x 16 bytes, ordered by the
 * lane's row, then lane.
 *
 *   F32           4   2048  columns 4 i ..., i = l % L
 *
 * BF16 and F16 are for tensor cores, mma and wgmma (kernels/project_bf16.cuh). A K block is 16 / T
 * panels of 64 columns, 2048 bytes; a panel is T rows of 128 bytes, as wgmma reads them with a
 * swizzle of 128 bytes: chunk c of 16 bytes of row n of the matrix is at c ^ n % 8. Chunks 2 s and
 * 2 s + 1 are 16 columns, a step: word j of the first has columns 4 j and 4 j + 1 of them, word j
 * of the second columns 4 j + 2 and 4 j + 3, so that a lane of mma has four neighbours. */
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
    uint32_t columns;      /* of a K block */
    uint32_t kblock_bytes; /* a multiple of 16 */
    uint64_t bytes;        /* of the whole matrix */
};

/* Bytes of a K block. */
enum {
    TILE_KBLOCK_Q4_K = 2304,
    TILE_KBLOCK_Q5_K = 2816,
    TILE_KBLOCK_Q6_K = 3360,
    TILE_KBLOCK_Q8_0 = 2176,
    TILE_KBLOCK_FLOAT = 2048, /* of BF16, F16 and F32 */
};

/* Byte offsets of a K block's arrays. */
enum {
    TILE_HIGH_BITS = 2048, /* after the nibbles; Q8_0: d */
    TILE_Q4_SCALES = TILE_HIGH_BITS,
    TILE_Q5_SCALES = TILE_HIGH_BITS + 512,
    TILE_MINS = 128, /* from the scales of Q4_K and Q5_K */
    TILE_D = 192,    /* likewise */
    TILE_Q6_SCALES = TILE_HIGH_BITS + 1024,
    TILE_Q6_D = TILE_Q6_SCALES + 256,
};

/* Columns of a lane; 0: there is no tile layout for the type. */
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

/* Whether the type is multiplied with int8 activations; else with f32. */
HOST_DEVICE uint32_t tile_is_int8(uint32_t type) {
    return tile_span(type) >= 64;
}

/* Whether the K block is panels for tensor cores. */
HOST_DEVICE uint32_t tile_has_panels(uint32_t type) {
    return type == DT_BF16 || type == DT_F16;
}

/* Columns of a K block. */
HOST_DEVICE uint32_t tile_columns(uint32_t type, uint32_t rows) {
    return (tile_is_int8(type) ? 32 : 128) / rows * tile_span(type);
}

/* BF16, F16: offset of chunk `chunk` of a panel's row; n: the row in the matrix. */
HOST_DEVICE uint32_t tile_bf16_chunk(uint32_t rows, uint32_t n, uint32_t chunk) {
    return (n & (rows - 1)) * 128 + (chunk ^ n % 8) * 16;
}

/* What a matrix's tiles hold: its own type; F32, whatever its type; or F32 in tiles of 4 rows, for
 * matrices of few rows that are multiplied with f32 activations. */
enum tile_expansion { TILE_AS_IS, TILE_F32, TILE_FEW_F32 };

struct operand;

#ifdef __cplusplus
extern "C" {
#endif
/* The layout of a PROJECT's matrix, from its shape and the device alone. False: rows as in the
 * file. */
bool tile_choose(const struct operand *weight, enum tile_expansion as, uint32_t n_sms,
                 struct tile_format *out);
#ifdef __cplusplus
}
#endif

#endif
