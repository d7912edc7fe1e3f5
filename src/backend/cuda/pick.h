/* pick.h - what the kernels of PICK are told. */
#ifndef BACKEND_CUDA_PICK_H
#define BACKEND_CUDA_PICK_H

#include "backend/cuda/shared.h"

enum {
    PICK_THREADS = 512,
    PICK_BINS = 1024, /* of a histogram; at least as many as a grid has blocks */
};

struct pick_params {
    struct cuda_io io;
    const float *logits; /* (O, V) */
    float *wanted;       /* (O, V) in the host's memory */
    uint16_t *counts;    /* (S, V), or NULL */
    float *room;         /* (O, V): logits with biases and penalties */
    uint64_t *order;     /* (O, V): what is left of them, in no order */
    uint64_t *bests;     /* (O, blocks): the best of each block's part */
    uint64_t *weights;   /* (O, PICK_BINS): histogram, or sums of the blocks' parts */
    uint32_t *counters;  /* (O, 2): blocks that are done; length of the list in `order` */
    uint32_t vocab, max_outputs;
    uint32_t logits_stride, wanted_stride, counts_stride, room_stride, order_stride;
};

#endif
