/* project_gemv_8.cu - PROJECT for eight rows at once, and the kernel that quantizes rows for four
 * or eight. Five rows and more of int8 activations are project_gemm.cu's; here are the types with
 * f32 activations, and one kernel for what gemm does not take. */
#include "backend/cuda/kernels/project_gemv.cuh"

PROJECT_GEMV_FLOAT(8, 128)

/* Thread blocks (i, ...) quantize row i, and store its sums of squares where there is a norm. */
extern "C" __global__ void __maxnreg__(56)
    project_quantize(const __grid_constant__ struct quantize_params p) {
    extern __shared__ uint4 head_factors[];
    pdl_launch_dependents();
    uint32_t i = blockIdx.x;
    uint8_t *qact = p.qacts + (uint64_t)i * p.qact_bytes;
    float *red = p.in.prologue == PROLOGUE_NORM ? p.squares + i * (p.in.k / PROJECT_GROUP)
                                                : (float *)head_factors;
    struct row_source source = {i, gridDim.x, true};
    quantize_row_grid(p.io, p.in, source, qact, red);
}
