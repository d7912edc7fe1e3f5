/* route.h - params of ROUTE (kernels/route.cu). */
#ifndef BACKEND_CUDA_OPS_ROUTE_H
#define BACKEND_CUDA_OPS_ROUTE_H

#include "backend/cuda/shared.h"

enum {
    ROUTE_BLOCK_LOGITS = 2, /* router rows of a thread block, at most */
    ROUTE_THREADS = 512,
    ROUTE_WARP_EXPERTS = 32, /* experts that a warp sorts */
    ROUTE_WIDE_ROWS = 16,    /* of a thread block of route_wide, at most */
    ROUTE_WIDE_BATCH = 32,   /* router rows between two barriers of route_wide */
    ROUTE_WIDE_SLOTS = 8,    /* router rows that a warp of it has in shared memory */
};

struct route_params {
    struct cuda_io io;
    const float *in, *norm;
    const float *router, *shared_gate; /* (E, width), (width) or NULL */
    uint32_t *keys;                    /* (R, E + 1): logits as keys; 0: not written yet */
    uint32_t *choice;                  /* (R, used + 1) */
    float *weight;                     /* (R, used + 1) */
    uint64_t in_stride, choice_stride, weight_stride;
    uint32_t width, experts, used;
    uint32_t row_limit;   /* rows of the bucket */
    uint32_t topk_blocks; /* thread blocks (x) that choose experts */
    uint32_t is_aligned;  /* rows may be read 16 bytes at a time */
    uint32_t is_unnormed; /* weights of a softmax over all experts */
    float eps;
};

#endif
