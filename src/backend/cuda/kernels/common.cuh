/* common.cuh - what kernels of all ops share. */
#ifndef BACKEND_CUDA_KERNELS_COMMON_CUH
#define BACKEND_CUDA_KERNELS_COMMON_CUH

#include <cuda_fp16.h>
#include <stdint.h>

#include "backend/cuda/kernels/ptx.cuh"
#include "backend/cuda/shared.h"

/* griddepcontrol.wait; the first thread of the grid stores the time after it. */
static __device__ __forceinline__ void pdl_wait(const struct cuda_io &io) {
    pdl_wait_stamped(threadIdx.x | blockIdx.x | blockIdx.y | blockIdx.z, io.stamp);
}

/* Stores a picked token for the host, and in the device's copy of IO for the next step of a burst.
 */
static __device__ __forceinline__ void put_token(const struct cuda_io &io, uint32_t output,
                                                 int32_t token) {
    io.host_outputs[output].token = token;
    ((struct io_output *)io.outputs)[output].token = token;
}

/* Sum and maximum over a warp, by xor 16, 8, 4, 2, 1: the same bits in every lane. */
static __device__ __forceinline__ float warp_sum(float x) {
    for (int i = 16; i > 0; i >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

static __device__ __forceinline__ float warp_max(float x) {
    for (int i = 16; i > 0; i >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}

/* Sum over a thread block of whole warps: warp_sum, then the warps in order. The same bits in every
 * thread. */
static __device__ __forceinline__ float block_sum(float x) {
    __shared__ float of_warp[32];
    x = warp_sum(x);
    __syncthreads(); /* the last call's are read */
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warp[0];
    for (uint32_t w = 1; w < blockDim.x / 32; w++)
        x += of_warp[w];
    return x;
}

/* The bits of a float mapped so that they order as unsigned integers: negative ones inverted, the
 * sign bit set for the others. And back. */
static __device__ __forceinline__ uint32_t order_bits(float x) {
    uint32_t bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float from_order_bits(uint32_t bits) {
    return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

/* RMS norm's factor 1 / sqrt(mean of n squares + eps), from their sum. */
static __device__ __forceinline__ float norm_factor(float squares, uint32_t n, float eps) {
    return rsqrtf(__fadd_rn(__fdividef(squares, (float)n), eps));
}

static __device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + __expf(-x));
}

static __device__ __forceinline__ float silu(float x) {
    return x / (1.0f + __expf(-x));
}

#endif
