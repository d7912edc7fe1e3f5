/* project_gemv_8.cu - PROJECT for eight rows at once; and the kernel that makes rows ready for four
 * or eight. */
#include "backend/cuda/kernels/project_gemv.cuh"

PROJECT_KERNELS_FEW(8, 128)

/* Blocks (i, ...) make the qact of row i. */
extern "C" __global__ void __maxnreg__(56)
    project_quantize(const __grid_constant__ struct quantize_params p) {
    extern __shared__ uint4 prepare_room[];
    pdl_launch_dependents();
    uint32_t i = blockIdx.x;
    uint8_t *qact = p.qacts + (uint64_t)i * p.qact_bytes;
    float *red = p.in.kind == PROLOGUE_NORM ? p.squares + i * (p.in.k / PROJECT_GROUP)
                                            : (float *)prepare_room; /* a factor a head */
    struct row_source source = {i, gridDim.x, true};
    quantize_row_grid(p.io, p.in, source, qact, red);
}
