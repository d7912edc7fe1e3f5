/* state.cu - copies and clears stretches of STATE between steps: a slot's recurrent state is two of
 * them a layer.
 *
 * copy_stretches: grid (COPY_BLOCKS, stretches); the blocks of a stretch take its 16 bytes in turn,
 * four loads of a thread in flight. Stretches that are not made of whole 16 bytes go byte by byte.
 * Bytes: each read and written once. */
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/state.h"

static __device__ void copy_vectors(const struct copy_piece &c) {
    enum { AHEAD = 4 };
    const uint4 *from = (const uint4 *)c.from;
    uint4 *to = (uint4 *)c.to;
    uint64_t n = c.bytes / 16, step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (AHEAD - 1) * step < n; i += AHEAD * step) {
        uint4 v[AHEAD];
        for (int k = 0; k < AHEAD; k++)
            v[k] = from ? __ldcs(from + i + k * step) : make_uint4(0, 0, 0, 0);
        for (int k = 0; k < AHEAD; k++)
            to[i + k * step] = v[k];
    }
    for (; i < n; i += step)
        to[i] = from ? from[i] : make_uint4(0, 0, 0, 0);
}

static __device__ void copy_bytes(const struct copy_piece &c) {
    const uint8_t *from = (const uint8_t *)c.from;
    uint8_t *to = (uint8_t *)c.to;
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < c.bytes; i += step)
        to[i] = from ? from[i] : 0;
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    copy_stretches(const __grid_constant__ struct copy_params p) {
    const struct copy_piece &c = p.list[blockIdx.y];
    if ((c.to | c.from | c.bytes) % 16 == 0)
        copy_vectors(c);
    else
        copy_bytes(c);
}
