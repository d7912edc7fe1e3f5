/* synth.cu - random weight blocks, a thread a block, grid-stride. quant/random.h defines the
 * values, which are the same on the host. */
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/ops/synth.h"
#include "quant/random.h"

extern "C" __global__ void __launch_bounds__(SYNTH_THREADS)
    synth_fill(const __grid_constant__ struct synth_params p) {
    pdl_launch_dependents();
    pdl_wait();
    uint64_t step = (uint64_t)gridDim.x * SYNTH_THREADS;
    for (uint64_t i = (uint64_t)blockIdx.x * SYNTH_THREADS + threadIdx.x; i < p.n; i += step)
        random_block(p.type, p.first + i * p.block_bytes, p.to + i * p.block_bytes);
}
