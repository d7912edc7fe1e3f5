/* join.h - arguments of the kernels for JOIN and HIDDEN. */
#ifndef BACKEND_CUDA_OPS_JOIN_H
#define BACKEND_CUDA_OPS_JOIN_H

#include "backend/cuda/shared.h"

enum { JOIN_THREADS = 1024 }; /* of both */

struct join_params {
    struct cuda_io io;
    const float *embed;                   /* (R, embed_stride) */
    const float *x, *norm;                /* (R, x_stride) and (width), or NULL */
    const float *embed_norm, *state_norm; /* (width) */
    const float *state;                   /* (cells, state_stride) */
    float *out;                           /* (R, out_stride) */
    uint32_t embed_stride, x_stride, state_stride, out_stride;
    uint32_t n_rows, width; /* R, D */
    float eps;
};

struct hidden_params {
    struct cuda_io io;
    const float *x, *norm; /* (R, x_stride) and (width) */
    float *state;          /* (cells, state_stride) */
    uint32_t x_stride, state_stride;
    uint32_t n_rows, width; /* R, D */
    float eps;
};

#endif
