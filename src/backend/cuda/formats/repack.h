/* repack.h - repacks rows as in the file into tiles, on the device. */
#ifndef BACKEND_CUDA_FORMATS_REPACK_H
#define BACKEND_CUDA_FORMATS_REPACK_H

#include "backend/cuda/formats/tiles.h"

struct repack_params {
    const uint8_t *from; /* rows [first, first + count) as in the file, row_bytes each */
    uint8_t *to;         /* the whole matrix's tiles */
    struct tile_format format;
    uint32_t from_type;    /* enum dtype of the rows */
    uint32_t k, n;         /* of the whole matrix */
    uint32_t first, count; /* multiples of 16, but for count at the matrix's end */
    uint64_t row_bytes;
};

#ifndef __CUDACC__
struct cuda_launch;
/* Grid and threads of the kernel "repack". */
void repack_launch(const struct repack_params *p, struct cuda_launch *launch);
#endif

#endif
