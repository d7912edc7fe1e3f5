/* embed.h - arguments of the kernels for EMBED, TAP and the end of a step. */
#ifndef BACKEND_CUDA_OPS_EMBED_H
#define BACKEND_CUDA_OPS_EMBED_H

#include "backend/cuda/shared.h"

enum {
    EMBED_THREADS = 512,
    EMBED_ROW_THREADS = 384, /* of these for the embedding row; the others compute angles */
};

struct embed_params {
    struct cuda_io io;
    const uint8_t *host_io; /* mapped; the device's copy where that is up to date */
    uint8_t *io_copy;
    uint32_t n_rows;     /* R: rows of the bucket */
    uint32_t rows_at;    /* offset of the rows in IO */
    uint32_t changes_at; /* of the page table changes: IO is copied up to here */
    uint32_t max_changes;
    uint32_t pages_per_slot; /* 0: no page table */
    uint32_t clears_argmax;  /* the LM head's, in IO's header: begins a burst's later step */
    int32_t *page_table;     /* (S, pages_per_slot) */
    struct cuda_matrix table;
    float *x; /* (R, x_stride) */
    uint32_t x_stride;
    const double *freqs; /* (n_freqs) */
    uint32_t n_freqs;
    float rope_scale;
    float *angles; /* (R, n_freqs, 2): cos, sin */
};

struct tap_params {
    struct cuda_io io;
    const float *x;    /* (R, x_stride) */
    const float *norm; /* (width), or NULL: no norm */
    float *out;        /* (O, out_stride), mapped host memory */
    uint32_t x_stride, out_stride, width;
    float eps;
};

struct done_params {
    struct cuda_io io;
    uint64_t *done; /* mapped host memory */
};

#endif
