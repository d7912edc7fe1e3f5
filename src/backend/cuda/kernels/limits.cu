/* limits.cu - the device's memory bandwidth, and its fp16 tensor cores' peak where there is no
 * wgmma (limits_wgmma.cu). */
#include "backend/cuda/kernels/ptx.cuh"
#include "backend/cuda/ops/limits.h"

/* Reads all bytes once, four 16-byte loads of a thread in flight. */
extern "C" __global__ void __launch_bounds__(512)
    read_memory(const __grid_constant__ struct read_params p) {
    uint64_t n = p.bytes / 16, step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t sum = 0;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 v[4];
        for (int k = 0; k < 4; k++)
            v[k] = ld_no_allocate(p.from + (i + k * step) * 16);
        for (int k = 0; k < 4; k++)
            sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < n; i += step)
        sum += ld_no_allocate(p.from + i * 16).x;
    if (sum == 0x12345678) /* never, the memory is zero: but the compiler must not drop the loads */
        *p.sink = 0;
}

/* A warp has PEAK_PRODUCTS independent sums, so that none waits for the one before it. */
extern "C" __global__ void __launch_bounds__(PEAK_THREADS)
    peak_mma(const __grid_constant__ struct peak_params p) {
    uint32_t a[4], b[2];
    float c[PEAK_PRODUCTS][4] = {}, sum = 0;
    for (uint32_t i = 0; i < 4; i++)
        a[i] = random_f16x2(threadIdx.x * 8 + i);
    for (uint32_t i = 0; i < 2; i++)
        b[i] = random_f16x2(threadIdx.x * 8 + 4 + i);
#pragma unroll 1
    for (uint32_t round = 0; round < p.rounds; round++)
#pragma unroll
        for (int i = 0; i < PEAK_PRODUCTS; i++)
            mma_m16n8k16_f16(c[i], a[0], a[1], a[2], a[3], b[0], b[1]);
    for (int i = 0; i < PEAK_PRODUCTS; i++)
        for (int k = 0; k < 4; k++)
            sum += c[i][k];
    if (sum == 12345678) /* never: but the compiler must not drop the products */
        *p.sink = sum;
}
