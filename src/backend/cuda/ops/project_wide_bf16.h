/* project_wide_bf16.h - params of PROJECT of BF16 or F16 weights on wgmma, on compute
 * capability 9.0.
 *
 *   out[row][n] = epilogue(factor[row] * sum over k of w[n][k] * a[row][k])
 *
 * Kernels of an op: project_wide_split splits the activations into two bf16 and computes the norm's
 * factors (project_wide_split_f16: two f16, factor / s), project_wide_<type>_<rows> multiplies them
 * with the tiles, project_wide_f32 does the F32 segments (alpha and beta). Tiles and K splits are
 * those of the gemv kernels, so a row's bits are, too (kernels/project_bf16.cuh).
 *
 * Split activations have the columns in panels of 64, and of a panel all rows of the bucket, R
 * (rounded up), first hi, then lo: a row of a panel is 128 bytes, swizzled and with the order of
 * columns of the weights' tiles (formats/tiles.h). */
#ifndef BACKEND_CUDA_OPS_PROJECT_WIDE_BF16_H
#define BACKEND_CUDA_OPS_PROJECT_WIDE_BF16_H

#include "backend/cuda/ops/project_wide.h"

enum {
    BF16_MIN_ROWS = 9,     /* of a bucket */
    BF16_MAX_TILE = 128,   /* rows of activations of a tile, at most */
    BF16_THREADS = 384,    /* two warpgroups multiply, one copies */
    BF16_PANEL = 64,       /* columns of a stage */
    BF16_STAGES_AT = 1024, /* offset of the stages in shared memory, after the mbarriers */
    BF16_MAX_STAGES = 8,
    BF16_LAST = 128, /* offset in shared memory: whether this block is a tile's last */
};

/* Bytes of a stage: 64 columns of the tile's weights, then of both parts of its activations. */
HOST_DEVICE uint32_t wide_bf16_stage_bytes(uint32_t rows) {
    return (WIDE_N + 2 * rows) * 128;
}

struct wide_bf16_params {
    struct cuda_io io;
    struct project_input in;
    const uint8_t *acts;
    uint32_t act_rows;    /* of a panel's part */
    const float *factors; /* a row each; NULL: there are none */
    float *out;
    uint32_t out_stride, epilogue, has_bias;
    uint32_t n_segments; /* SwiGLU: 1, gate; up follows it */
    uint32_t stages;
    uint32_t is_split_k;  /* tiles are few: different thread blocks multiply the stripes of one, and
                            the last of them adds */
    float *partials;      /* (tile, stripe, four values, thread, value) */
    uint32_t *arrivals;   /* a tile each; 0 between two steps */
    uint32_t max_stripes; /* of a tile */
    uint32_t row_blocks;  /* of the bucket; segments' first_tile counts tiles of it */
    uint32_t group_rows;  /* row blocks of a group: see find_tile */
    struct project_segment segments[PROJECT_SEGMENTS]; /* n_tiles: as in memory */
};

struct wide_split_params {
    struct cuda_io io;
    struct project_input in;
    uint8_t *acts;
    float *factors;
    uint32_t row_limit, act_rows;
};

#ifndef __CUDACC__
/* Records a PROJECT whose K splits project.c has chosen; `set` is its types. False: not one for
 * these kernels, and nothing was recorded. */
bool record_project_wide_bf16(struct recorder *r, const struct project_params *p, uint32_t set,
                              int *status);
#endif

#endif
