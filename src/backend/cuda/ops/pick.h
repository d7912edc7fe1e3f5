/* pick.h - limits, arguments and state of the PICK kernel, for host and device. */
#ifndef BACKEND_CUDA_OPS_PICK_H
#define BACKEND_CUDA_OPS_PICK_H

#include "backend/cuda/shared.h"

enum {
    PICK_THREADS = 512,
    PICK_BINS = 1024, /* of a histogram; at least as many as a grid has blocks */
};

/* What the blocks of a row share; zeros between two steps. */
struct pick_state {
    uint64_t best;         /* the largest key: argmax */
    uint32_t arrived;      /* blocks that have finished */
    uint32_t at_barrier;   /* blocks that have come to the row's barrier, both times */
    uint32_t n_candidates; /* of the row's list */
    uint32_t zero[3];
};

struct pick_params {
    struct cuda_io io;
    const float *logits;  /* (O, V) */
    float *wanted;        /* (O, V) in the host's memory; NULL: the LM head has written them */
    uint16_t *counts;     /* (S, V): how often a token is in the sequence; or NULL */
    float *adjusted;      /* (O, V): logits with biases and penalties */
    uint64_t *candidates; /* (O, V): keys of the tokens that may pass the cuts, unsorted */
    uint64_t *histograms; /* (O, PICK_BINS): weight per bin, or per block where nothing is cut */
    struct pick_state *states; /* (O) */
    uint32_t *rows_done;       /* counter, zero between two steps */
    uint64_t *done;            /* mapped: the step that is complete; NULL: another follows */
    uint64_t *end_stamp;       /* when that was */
    int32_t *burst; /* mapped, (O, IO_BURST): the tokens of a burst; NULL: no step follows */
    /* A single row's largest key as the LM head found it, with ones in the upper word where a logit
     * is NaN or infinite; or NULL. */
    const uint64_t *lm_head_best;
    uint32_t step; /* of the burst */
    uint32_t vocab, max_outputs;
    uint32_t logits_stride, wanted_stride, counts_stride, adjusted_stride, candidates_stride;
};

#endif
