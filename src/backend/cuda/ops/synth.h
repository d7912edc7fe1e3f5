/* synth.h - weights that no file holds, made where they are used. */
#ifndef BACKEND_CUDA_OPS_SYNTH_H
#define BACKEND_CUDA_OPS_SYNTH_H

#include <stdint.h>

enum { SYNTH_THREADS = 256, SYNTH_MAX_BLOCKS = 4096 };

/* Blocks of a type as they lie in a file. */
struct synth_params {
    uint8_t *to;
    uint64_t first; /* where the first would lie: this numbers it */
    uint64_t n;
    uint32_t type; /* enum dtype, one that random_has */
    uint32_t block_bytes;
};

#ifndef __CUDACC__
#include "backend/cuda/host/cuda.h"

/* Fills `bytes` at `to` on the device, whole blocks of the operand's type, as they lie from offset
 * `at` of WEIGHTS on: the same whether a tensor is made at once or in parts. */
int cuda_synthesize(struct backend *b, const struct operand *o, CUdeviceptr to, uint64_t at,
                    uint64_t bytes, struct err *err);
#endif

#endif
