/* synth.h - random weights of synthetic models, generated on the device. */
#ifndef BACKEND_CUDA_OPS_SYNTH_H
#define BACKEND_CUDA_OPS_SYNTH_H

#include <stdint.h>

enum { SYNTH_THREADS = 256, SYNTH_MAX_BLOCKS = 4096 };

/* n blocks of a type, in the layout of a file. */
struct synth_params {
    uint8_t *to;
    uint64_t
        first;     /* offset of the first block in WEIGHTS: a block's values depend on its offset */
    uint64_t n;    /* blocks */
    uint32_t type; /* enum dtype, one that random_has */
    uint32_t block_bytes;
};

#ifndef __CUDACC__
#include "backend/cuda/host/cuda.h"

/* Fills `bytes` (whole blocks of the operand's type) at `to` on the device with what WEIGHTS has
 * from offset `at` on: the same values whether a tensor is generated at once or in parts. */
int cuda_synthesize(struct backend *b, const struct operand *o, CUdeviceptr to, uint64_t at,
                    uint64_t bytes, struct err *err);
#endif

#endif
