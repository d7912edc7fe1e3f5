/* repack.h - rows as in the file to tiles, on the device. */
#ifndef BACKEND_CUDA_FORMATS_REPACK_H
#define BACKEND_CUDA_FORMATS_REPACK_H

#include "backend/cuda/formats/tiles.h"

struct repack_params {
    const uint8_t *from; /* rows [first, first + count) as in the file, row_bytes each */
    uint8_t *to;         /* the whole matrix's tiles */
    struct tile_format format;
    uint32_t from_type;    /* enum dtype of the rows */
    uint32_t k, n;         /* of the whole matrix */
    uint32_t first, count; /* first: a multiple of 16; count too, but at the matrix's end */
    uint64_t row_bytes;
};

#ifndef __CUDACC__
struct cuda_launch;
/* How the kernel "repack" is launched for these. */
void repack_launch(const struct repack_params *p, struct cuda_launch *launch);
#endif

#endif
