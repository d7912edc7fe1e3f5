/* embed.h - params of EMBED, TAP and the step's end. */
#ifndef BACKEND_CUDA_OPS_EMBED_H
#define BACKEND_CUDA_OPS_EMBED_H

#include "backend/cuda/shared.h"

enum {
    EMBED_THREADS = 512,
    EMBED_FILLERS = 384, /* of them; the others make angles */
};

struct embed_params {
    struct cuda_io io;
    const uint8_t *host_io; /* mapped; in a burst's later steps the device's copy */
    uint8_t *io_copy;
    uint32_t n_rows;         /* of the bucket */
    uint32_t rows_at;        /* where the rows are in IO */
    uint32_t changes_at;     /* page changes, in IO: what comes before them is copied */
    uint32_t max_changes;    /* that there may be */
    uint32_t pages_per_slot; /* of the page table; 0: there is none */
    uint32_t zero;
    int32_t *pages;
    struct cuda_matrix table;
    float *x;
    uint32_t x_stride;
    const double *freqs;
    uint32_t n_freqs;
    float rope_scale;
    float *angles;
};

struct tap_params {
    struct cuda_io io;
    const float *x, *norm;
    float *out; /* mapped */
    uint32_t x_stride, out_stride, width;
    float eps;
};

struct done_params {
    struct cuda_io io;
    uint64_t *done; /* mapped */
};

/* How fast memory can be read, for the limit that figures are given beside. */
struct read_params {
    const uint8_t *from;
    uint64_t bytes; /* a multiple of 16 */
    uint32_t *sink;
};

#endif
