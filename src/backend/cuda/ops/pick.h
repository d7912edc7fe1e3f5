/* pick.h - what the kernels of PICK are told. */
#ifndef BACKEND_CUDA_OPS_PICK_H
#define BACKEND_CUDA_OPS_PICK_H

#include "backend/cuda/shared.h"

enum {
    PICK_THREADS = 512,
    PICK_BINS = 1024, /* of a histogram; at least as many as a grid has blocks */
};

/* What the blocks of a row's team tell each other; zeros between two steps. */
struct pick_state {
    uint64_t best;    /* of all parts: a key */
    uint32_t arrived; /* blocks that are done */
    uint32_t met;     /* blocks that came to where they wait for each other */
    uint32_t length;  /* of the list in `order` */
    uint32_t zero[3];
};

struct pick_params {
    struct cuda_io io;
    const float *logits;       /* (O, V) */
    float *wanted;             /* (O, V) in the host's memory; NULL: the head has written them */
    uint16_t *counts;          /* (S, V), or NULL */
    float *room;               /* (O, V): logits with biases and penalties */
    uint64_t *order;           /* (O, V): what is left of them, in no order */
    uint64_t *weights;         /* (O, PICK_BINS): histogram, or sums of the blocks' parts */
    struct pick_state *states; /* (O) */
    uint32_t *ended;           /* rows that are done; zero between two steps */
    uint64_t *done;            /* mapped: the step that is over; NULL: others follow */
    uint64_t *end_stamp;       /* when that was */
    int32_t *burst; /* mapped, (O, IO_BURST): the tokens of a burst; NULL: no step follows */
    /* The key of a single row's best as the head found it, above it ones where a logit is NaN; or
     * NULL. */
    const uint64_t *head_best;
    uint32_t step; /* of the burst */
    uint32_t vocab, max_outputs;
    uint32_t logits_stride, wanted_stride, counts_stride, room_stride, order_stride;
};

#endif
