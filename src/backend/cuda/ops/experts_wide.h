/* experts_wide.h - params of EXPERTS_IN and EXPERTS_OUT for many rows, on wgmma (compute capability
 * 9.0), with the bits of one row.
 *
 * A pair is a row and one of its experts, the shared one included. Pairs are ordered by expert, the
 * shared one first, then by row, and each expert's begin at a multiple of a tile's rows; a pair's
 * place is where it is in that order. So a tile of places is multiplied with one expert's weights.
 *
 * Kernels of an op, all of fixed grids; what a step really has is in experts_order:
 *   experts_wide_sort       the order of pairs, and the expert of each tile
 *   experts_wide_quantize   a row of activations, quantized once, to all its places, in the form of
 *                           project_wide.h; and the norm's factors
 *   experts_wide_<type>     a tile of places by 128 weight rows of its expert: project_wide.cu's
 *                           product; IN stores SwiGLU to hidden, OUT a sum for every pair
 *   experts_wide_combine    OUT: adds a row's pairs, in the order of experts_gemv.cu */
#ifndef BACKEND_CUDA_OPS_EXPERTS_WIDE_H
#define BACKEND_CUDA_OPS_EXPERTS_WIDE_H

#include "backend/cuda/ops/project_wide.h"

enum {
    EXPERTS_WIDE_MIN_ROWS = 64,
    EXPERTS_SORT_THREADS = 1024,
    EXPERTS_ROW_THREADS = 256, /* of experts_wide_quantize and _combine */
    EXPERTS_WIDE_PITCH = 272,  /* bytes of 64 sums of a place in shared memory, padded */
};

/* Thread blocks an SM, by type and places of a tile. */
#define EXPERTS_WIDE_BLOCKS(type, places) ((places) == 32 && (type) != IS_Q8_0 ? 2 : 1)

struct experts_pair {
    uint32_t row, i; /* its i-th expert; i = used: the shared one. row ~0: a place without pair */
};

struct experts_order {
    struct experts_pair *pairs; /* (place) */
    uint32_t *places;           /* (row, used + 1) */
    uint32_t *experts;          /* (tile); the shared one has the number after the last */
    uint32_t *n_tiles;          /* [0]: of the shared expert, which are first; [1]: all */
};

struct experts_sort_params {
    struct cuda_io io;
    const uint32_t *choice; /* (R, used + 1), dense */
    struct experts_order order;
    uint32_t used, experts, has_shared;
    uint32_t row_fastdiv; /* of used + 1 */
    uint32_t tile_shift;  /* log2 of a tile's places */
};

struct experts_wide_quantize_params {
    struct cuda_io io;
    struct project_input in;
    struct experts_order order;
    uint8_t *qact;
    float *factors; /* of the norm, a row each; NULL: there is none */
    uint64_t group_bytes;
    uint32_t qact_rows, row_limit, is_q8_0;
    uint32_t used, n_experts; /* n_experts: of a row: used, and 1 if there is a shared one */
    uint32_t expert_groups;   /* OUT: groups of 128 columns that are an expert's; 0: all are every
                                 expert's (IN) */
    uint32_t group_fastdiv;   /* of expert_groups */
};

/* Matrices of one shape: gate and up, or down. */
struct experts_wide_matrix {
    const uint8_t *data[2];   /* expert 0 */
    uint64_t expert_bytes[2]; /* from one expert to the next */
};

struct experts_wide_params {
    struct wide_params w; /* its in, segments, factors and epilogue are not used */
    struct experts_order order;
    struct experts_wide_matrix routed, shared;
    uint32_t has_routed, has_shared; /* whose tiles this launch multiplies */
    uint32_t experts;
    uint32_t kblocks, kblock_bytes, row_shift; /* of a tile of weights */
    uint32_t n_blocks;                         /* tiles of the product that an expert's rows are */
    const float *factors;                      /* IN: of the norm, a row each */
    float *out;                                /* IN: hidden, OUT: (row, used + 1, width) */
    uint64_t row_stride, pair_stride;          /* of out, in floats */
    uint32_t sums_at;                          /* OUT: offset in shared memory of a tile's sums */
};

struct experts_combine_params {
    struct cuda_io io;
    const float *sums;   /* (row, used + 1, width) */
    const float *weight; /* (row, used + 1) */
    float *x;            /* (R, width), added to */
    uint64_t x_stride, weight_stride;
    uint32_t width, used, n_experts; /* n_experts: as in experts_wide_quantize_params */
};

#ifndef __CUDACC__
/* Whether these kernels are the op's: its weights are tiled, and rows enough. */
bool experts_is_wide(struct recorder *r, const struct op *op);
int record_experts_in_wide(struct recorder *r, const struct op *op);
int record_experts_out_wide(struct recorder *r, const struct op *op);
#endif

#endif
