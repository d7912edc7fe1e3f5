/* route.h - params of ROUTE. */
#ifndef BACKEND_CUDA_ROUTE_H
#define BACKEND_CUDA_ROUTE_H

#include "backend/cuda/shared.h"

enum { ROUTE_PER_BLOCK = 2 }; /* router rows a block */

struct route_params {
    struct cuda_io io;
    const float *in, *norm;
    const float *router, *shared_gate; /* (E, width), (width) or NULL */
    float *logits;                     /* (R, E + 1): work; the last is the shared gate's */
    uint32_t *arrived;                 /* (R): counters */
    uint32_t *choice;                  /* (R, used + 1) */
    float *weight;                     /* (R, used + 1) */
    uint64_t in_stride, choice_stride, weight_stride;
    uint32_t width, experts, used;
    float eps;
};

#endif
