/* limits_wgmma.cu - the fp16 tensor cores' peak on compute capability 9.0, where only wgmma reaches
 * it. A block an SM, four warpgroups, each with a sum of 64 x 128: while one waits for its round
 * the others multiply. Operands are random, as zeros would need less power and run at a higher
 * clock. */
#include "backend/cuda/kernels/ptx.cuh"
#include "backend/cuda/ops/limits.h"

extern "C" __global__ void __launch_bounds__(PEAK_THREADS, 1)
    peak_wgmma(const __grid_constant__ struct peak_params p) {
    __shared__ alignas(1024) uint32_t panel[128][32]; /* B: 128 rows of 64 columns, swizzled */
    uint32_t a[4];
    float c[64] = {}, sum = 0;
    for (uint32_t i = threadIdx.x; i < 128 * 32; i += PEAK_THREADS)
        panel[i / 32][i % 32] = random_f16x2(i);
    for (uint32_t i = 0; i < 4; i++)
        a[i] = random_f16x2(128 * 32 + threadIdx.x * 4 + i);
    fence_proxy_async();
    __syncthreads();
    uint64_t b = (uint64_t)(smem_addr(panel) >> 4) | (uint64_t)1 << 16 |
                 (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
#pragma unroll 1
    for (uint32_t round = 0; round < p.rounds; round++) {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < PEAK_PRODUCTS; i++)
            wgmma_f16<true>(c, a, b + i % 4 * 2); /* the next 16 columns */
        wgmma_commit();
        wgmma_wait<0>();
    }
    for (int i = 0; i < 64; i++)
        sum += c[i];
    if (sum == 12345678) /* never: but the compiler must not drop the products */
        *p.sink = sum;
}
