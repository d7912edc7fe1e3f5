/* project_gemm.h - params of PROJECT on tensor cores, for five rows and more.
 *
 * A m16_tile is 16 rows of weights: one tile, or 2 or 4 side by side; of SwiGLU 8 rows of gate and
 * the same of up. A task is a run of a m16_tile's kblocks, done by one warp for all rows of
 * activations, or by two (tile_warps) for half of them each. Either a block has whole m16_tiles, a
 * task is a split of K, and splits meet in shared memory. Or, where m16_tiles are too few for that,
 * tasks are single kblocks, spread evenly over the blocks, each of which then needs but a part of
 * the activations; they meet in global memory. Whoever comes last adds them up, in their order. */
#ifndef BACKEND_CUDA_OPS_PROJECT_GEMM_H
#define BACKEND_CUDA_OPS_PROJECT_GEMM_H

#include "backend/cuda/ops/project.h"

enum {
    MANY_LEAST = 5, /* rows: with fewer, dot products of lanes are quicker */
    MANY_STRIP = 16,
    MANY_SETS = IS_Q4_K | IS_Q5_K | IS_Q6_K | IS_Q8_0,
    MANY_PART = 512,     /* bytes of a task's sums for 8 rows: 16 a lane */
    MANY_PLAIN = 4,      /* rows of a tile of plain segments, */
    MANY_PLAIN_ROWS = 4, /* and of activations that a block takes at once */
};

/* Rows made ready for a block: `rows` of them, 8, 16 or 32; those behind the bucket's last repeat
 * it. They lie in k_slabs, each of as many columns as the largest kblock has and the first of them
 * there first: numbers row by row, 16 bytes apart, so that eight of them are read from different
 * banks; then scales, all rows' of a group of columns side by side; then the sums of the numbers of
 * 32 columns, as two halves (the even part, and what is left: both exact), four of a row together,
 * rows side by side. Behind the k_slabs the sums of the squares of 128 columns, row by row, where
 * there is a norm. */
struct many_image {
    uint8_t *at;
    uint32_t rows;
    uint32_t group;      /* columns that share a scale: 32 or 128 */
    uint32_t band_shift; /* columns of a k_slab, as a power of two */
    uint32_t k_slabs;
    uint32_t scales_at, sums_at, band_bytes; /* of a k_slab */
    uint32_t squares_at, bytes;              /* of all */
    uint32_t squares_pitch; /* floats from row to row: an odd number, for the banks' sake */
};

struct many_params {
    /* Segments without the plain ones; of m16_tiles where tiles are meant. Where tasks are spread,
     * bounds are of them. */
    struct project_params p;
    struct many_image qacts;     /* of the first rows; those of later ones behind it */
    uint32_t tile_warps;         /* warps of a task, each for its share of the rows */
    uint32_t tiles;              /* of a m16_tile at most */
    uint32_t is_spread;          /* tasks are kblocks, in global memory their sums meet */
    uint32_t m16_tiles, kblocks; /* of the one segment that is spread */
    uint32_t strip_magic;        /* of m16_tiles, never 0: see fastdiv_of */
    float *parts;                /* (row block, m16_tile, kblock, 8 rows, lane, 4) */
    uint32_t *counters;          /* (row block, m16_tile): zero between two steps */
    uint32_t squares_at;         /* in shared memory; behind them the rows' factors */
    uint32_t counters_at;        /* in shared memory, of a block's m16_tiles; */
    uint32_t left_at;            /* and of its stages: tile_warps that are done with one */
    uint32_t plain_tiles;        /* of all plain segments: those of F32, in tiles of 4 rows */
    uint32_t plain_slices;       /* of K of those, at most */
    uint32_t plain_at;           /* in shared memory: their sums */
    struct project_segment plain[PROJECT_SEGMENTS];
};

/* Of the kernel before it, which makes rows ready. */
struct many_prepare_params {
    struct cuda_io io;
    struct project_input in;
    struct many_image qacts;
    uint32_t row_limit; /* rows of the bucket */
};

#ifndef __CUDACC__
/* Takes a PROJECT over, which project.c has cut into splits; false: it is none for this way, and
 * nothing was recorded. set: of its types. */
bool project_many(struct recorder *r, const struct project_params *p, uint32_t set, int *status);
#endif

#endif
