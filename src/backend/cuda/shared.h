/* shared.h - what host and kernels of the CUDA backend both know.
 *
 * Every kernel takes one struct by value, filled once when a plan is recorded: addresses that never
 * move, shapes, constants. What differs between two steps it reads from IO. */
#ifndef BACKEND_CUDA_SHARED_H
#define BACKEND_CUDA_SHARED_H

#include <stdint.h>

#include "plan/io.h"

/* IO as kernels read it: the device's copy, made by the step's first kernel (EMBED). The picked
 * tokens and the logits that are asked for go straight to the host's block. */
struct cuda_io {
    const struct io_header *header;
    const struct io_row *rows;
    const struct io_segment *segments;
    const uint32_t *to; /* (rows) cells */
    const struct io_output *outputs;
    struct io_output *host_outputs; /* mapped host memory */
    const struct io_bias *biases;   /* mapped host memory: rarely read, as are the masks */
    const uint32_t *masks, *keeps;  /* (outputs, IO_MASK_WORDS) */
    uint64_t *stamp;                /* when this kernel's wait was over, in ns; one a kernel */
};

/* A weight matrix, or several of one shape (experts). */
struct cuda_matrix {
    const uint8_t *data;
    uint64_t plane_bytes; /* from one matrix to the next */
    uint32_t type;        /* enum dtype */
    uint32_t is_tiled;    /* 1: in tiles, as tiles.h has them; 0: rows as in the file */
    uint32_t k, n;        /* values of a row, rows */
    uint64_t row_bytes;   /* of a row as in the file */
    uint32_t tile_rows;   /* where it is tiled: rows of a tile */
    uint32_t zero;
};

#endif
