/* experts.h - params of EXPERTS_IN and EXPERTS_OUT on tiled weights.
 *
 * A task is a tile of one matrix of one expert, all of K, done by one warp. Blocks are one a
 * multiprocessor and have about the same number of tasks. A row's bits depend on shapes alone. */
#ifndef BACKEND_CUDA_OPS_EXPERTS_H
#define BACKEND_CUDA_OPS_EXPERTS_H

#include "backend/cuda/ops/project.h"

enum { EXPERTS_WARPS = 16 }; /* of a block */

/* Matrices of one shape, an expert each; or the shared expert's one. */
struct experts_matrix {
    const uint8_t *data;
    uint64_t plane_bytes; /* from one expert to the next */
    uint32_t type;        /* IS_..., as project.h has them */
    uint32_t kblocks;     /* of a tile */
    uint32_t kblock_bytes;
    uint32_t lane_shift; /* lanes that share a row, as a power of two: 32 / rows of a tile */
};

/* Shared memory: the pipeline's stages first. */
struct experts_ring {
    uint32_t stages, stage_bytes; /* of a warp */
    uint32_t qact_at, partials_at, red_at, mbars_at;
    uint32_t bytes;
};

struct experts_in_tiles_params {
    struct cuda_io io;
    struct project_input in;
    const uint32_t *choice;
    float *hidden;
    uint64_t choice_stride, hidden_stride;
    struct experts_matrix routed[2], shared[2]; /* gate and up */
    uint32_t routed_tiles, shared_tiles; /* of an expert's matrix; shared: 0, there is none */
    uint32_t routed_magic;               /* see fastdiv_of */
    uint32_t routed_width, shared_width;
    uint32_t used, row_shift; /* rows of a tile, as a power of two */
    uint32_t is_early;        /* the row may be read before the wait: see experts_tiles.cu */
    struct experts_ring pipeline;
};

struct experts_out_tiles_params {
    struct cuda_io io;
    struct project_input in; /* all of hidden */
    const uint32_t *choice;
    const float *weight;
    float *x;
    uint64_t choice_stride, weight_stride, x_stride;
    struct experts_matrix routed, shared; /* shared.kblocks 0: there is none */
    uint32_t shared_first;                /* kblocks of shared's size before its part of hidden */
    uint32_t used, width, tiles;
    uint32_t row_shift;
    uint32_t is_early; /* choice, weight and x may be read before the wait */
    struct experts_ring pipeline;
};

#ifndef __CUDACC__
/* Whether an op's matrices are kept in tiles: all of them, or none. */
bool experts_can_tile(const struct op *op);
/* The form of one of them; false: `weight` is none of the op's matrices. */
bool experts_tile(const struct op *op, const struct operand *weight, struct tile_format *out);
/* False: not for this op; record it on rows. */
bool record_experts_in_tiles(struct recorder *r, const struct op *op, int *status);
bool record_experts_out_tiles(struct recorder *r, const struct op *op, int *status);
#endif

#endif
