/* project_many.h - params of PROJECT on tensor cores, for five rows and more. */
#ifndef BACKEND_CUDA_PROJECT_MANY_H
#define BACKEND_CUDA_PROJECT_MANY_H

#include "backend/cuda/project.h"

enum {
    MANY_LEAST = 5,     /* rows: with fewer, dot products of lanes take fewer instructions */
    MANY_SCALES = 1152, /* bytes in which a warp keeps a unit's scales, as floats */
    MANY_SETS = IS_Q4_K | IS_Q5_K | IS_Q6_K | IS_Q8_0,
    MANY_LEAST_PARTS = 2048, /* bytes: 32 slices of 16 rows */
};

/* Activations in shared memory: runs of 64 bytes, each two pieces of 32 columns side by side. G =
 * 1: a row's pieces 8 apart; G = 2: those of rows 8 apart. A run of them ends in 64 bytes of
 * nothing, the scales of a row in 8: then eight rows are read from different banks. */
TILE_FN uint32_t many_quads(uint32_t k, uint32_t g) {
    return g > 1 ? k / 32 : (k + 511) / 512 * 8;
}

TILE_FN uint32_t many_row_bytes(uint32_t k, uint32_t g) {
    return many_quads(k, g) * 64 + 64;
}

TILE_FN uint32_t many_pair_bytes(uint32_t k) {
    return k / 4 + 8;
}

struct many_params {
    struct project_params p; /* segments and slices as for fewer rows, without the plain ones */
    uint32_t rows;           /* in shared memory: 4, 8 or 16 */
    uint32_t pairs_at;       /* scales of activations, */
    uint32_t scales_at;      /* of weights, a warp's behind another's */
    uint32_t factors_at;
    uint32_t plain_tiles; /* of all plain segments: those of F32 */
    struct project_segment plain[PROJECT_SEGMENTS];
};

#ifndef __CUDACC__
/* Takes a PROJECT over, which project.c has cut into slices; false: it is none for this way, and
 * nothing was recorded. set: of its types. */
bool project_many(struct recorder *r, const struct project_params *p, uint32_t set, int *status);
#endif

#endif
