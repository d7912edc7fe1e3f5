/* limits.h - arguments of the kernels that measure what the device can do: figures are compared
 * with it. */
#ifndef BACKEND_CUDA_OPS_LIMITS_H
#define BACKEND_CUDA_OPS_LIMITS_H

#include <stdint.h>

/* A plain read of memory. */
struct read_params {
    const uint8_t *from;
    uint64_t bytes; /* a multiple of 16 */
    uint32_t *sink;
};

enum {
    PEAK_THREADS = 512,
    PEAK_PRODUCTS = 16,                   /* of a warpgroup, or warp, in a round */
    PEAK_WGMMA_FLOPS = 2 * 64 * 128 * 16, /* of one of them, by wgmma */
    PEAK_MMA_FLOPS = 2 * 16 * 8 * 16,     /* by mma */
    PEAK_WARPGROUPS = PEAK_THREADS / 128,
};

/* Products on fp16 tensor cores with f32 sums, operands in registers and shared memory. */
struct peak_params {
    uint32_t rounds;
    float *sink;
};

#ifdef __CUDACC__
/* Two fp16 values of random sign, from 1/2 to 1. */
static __device__ __forceinline__ uint32_t random_f16x2(uint32_t i) {
    i = (i ^ i >> 15) * 0x2c1b3c6du;
    i = (i ^ i >> 12) * 0x297a2d39u;
    return ((i ^ i >> 15) & 0x83ff83ffu) | 0x38003800u;
}
#endif

#endif
