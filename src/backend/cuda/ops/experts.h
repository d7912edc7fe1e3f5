/* experts.h - params of EXPERTS_IN and EXPERTS_OUT on tiled weights (kernels/experts_gemv.cu).
 *
 * A task is a tile of one matrix of one expert, all of K, done by one warp. Grid: (one thread block
 * an SM, rows); all thread blocks of a row have about the same number of tasks. A row's bits depend
 * on shapes alone. */
#ifndef BACKEND_CUDA_OPS_EXPERTS_H
#define BACKEND_CUDA_OPS_EXPERTS_H

#include "backend/cuda/ops/project.h"

/* Of a thread block; of OUT of one row: qwen35-35b-a3b has 18 tasks a thread block, which fits
 * beside one of 16 warps, both with 56 registers, but not beside another of 18. */
enum { EXPERTS_WARPS = 16, EXPERTS_OUT_WARPS = 18 };

/* Matrices of one shape, one an expert; or that of the shared expert. */
struct experts_matrix {
    const uint8_t *data;
    uint64_t expert_bytes; /* from one expert to the next */
    uint32_t type;         /* IS_..., of project.h */
    uint32_t kblocks;      /* of a tile; 0: there is no such matrix */
    uint32_t kblock_bytes;
    uint32_t lane_shift; /* log2 of the lanes that share a row: 32 / rows of a tile */
};

/* Shared memory of a thread block; the stages of all warps are at its start. */
struct experts_smem {
    uint32_t warps;               /* EXPERTS_WARPS or EXPERTS_OUT_WARPS */
    uint32_t stages, stage_bytes; /* of a warp */
    uint32_t qact_at, partials_at;
    uint32_t floats_at; /* IN: sums of squares by 128 columns; OUT: the experts' weights */
    uint32_t mbars_at;  /* one a stage */
    uint32_t bytes;
};

struct experts_in_gemv_params {
    struct cuda_io io;
    struct project_input in;
    const uint32_t *choice; /* (R, used + 1) */
    float *hidden;          /* (R, used * routed_width + shared_width) */
    uint64_t choice_stride, hidden_stride;
    struct experts_matrix routed[2], shared[2]; /* gate and up */
    uint32_t routed_tiles, shared_tiles;        /* of a matrix */
    uint32_t routed_fastdiv;                    /* of routed_tiles: see fastdiv_of */
    uint32_t routed_width, shared_width;
    uint32_t used, row_shift; /* log2 of the rows of a tile */
    uint32_t can_read_early;  /* `in` may be read before the wait: see experts_gemv.cu */
    struct experts_smem smem;
};

struct experts_out_gemv_params {
    struct cuda_io io;
    struct project_input in; /* hidden */
    const uint32_t *choice;  /* (R, used + 1) */
    const float *weight;     /* (R, used + 1) */
    float *x;                /* (R, width), added to */
    uint64_t choice_stride, weight_stride, x_stride;
    struct experts_matrix routed, shared;
    uint32_t shared_first_kblock; /* where the shared expert's part of hidden begins, in K blocks */
    uint32_t used, width, tiles;
    uint32_t row_shift;
    uint32_t can_read_early; /* choice, weight and x may be read before the wait */
    struct experts_smem smem;
};

#ifndef __CUDACC__
/* Whether an op's matrices are kept in tiles: all of them, or none. */
bool experts_can_tile(const struct op *op);
/* The tiles of one of them; false: `weight` is none of the op's matrices. */
bool experts_tile_format(const struct op *op, const struct operand *weight,
                         struct tile_format *out);
/* The activations that the op quantizes, with its norm. */
struct project_input experts_input(struct recorder *r, const struct op *op);
/* By these kernels, or for many rows those of experts_wide.h. False: the op's weights are not
 * tiled, and nothing was recorded. */
bool record_experts_in_tiled(struct recorder *r, const struct op *op, int *status);
bool record_experts_out_tiled(struct recorder *r, const struct op *op, int *status);
#endif

#endif
