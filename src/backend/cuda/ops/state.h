/* state.h - arguments of the kernel that copies and clears stretches of STATE between steps. */
#ifndef BACKEND_CUDA_OPS_STATE_H
#define BACKEND_CUDA_OPS_STATE_H

#include <stdint.h>

enum { COPY_MOST = 96, COPY_BLOCKS = 16, COPY_THREADS = 256 };
#define COPY_KERNEL "copy_stretches"

struct copy_piece {
    uint64_t to, from, bytes; /* addresses on the device; from 0: zeros */
};

/* By value: a launch may have 4 KB of arguments, and needs no memory that outlives it. */
struct copy_params {
    uint32_t n, padding;
    struct copy_piece list[COPY_MOST];
};

#endif
