/* route.h - params of ROUTE. */
#ifndef BACKEND_CUDA_OPS_ROUTE_H
#define BACKEND_CUDA_OPS_ROUTE_H

#include "backend/cuda/shared.h"

enum {
    ROUTE_PER_BLOCK = 2, /* router rows a block, at most */
    ROUTE_BLOCK = 512,   /* threads */
    ROUTE_GROUP = 32,    /* experts of which a warp finds the best */
};

struct route_params {
    struct cuda_io io;
    const float *in, *norm;
    const float *router, *shared_gate; /* (E, width), (width) or NULL */
    uint32_t *keys;                    /* (R, E + 1): counters; 0: not there yet */
    uint32_t *choice;                  /* (R, used + 1) */
    float *weight;                     /* (R, used + 1) */
    uint64_t in_stride, choice_stride, weight_stride;
    uint32_t width, experts, used;
    uint32_t row_limit;  /* rows of the bucket */
    uint32_t choosers;   /* blocks (x) that choose */
    uint32_t is_aligned; /* all of it may be read 16 bytes at a time */
    float eps;
};

#endif
