/* project_gemv_8.cu - PROJECT for eight rows at once; and the kernel that makes rows ready for four
 * or eight. */
#include "backend/cuda/kernels/project_gemv.cuh"

PROJECT_KERNELS_FEW(8, 128)

/* Blocks (i, ...) make the image of row i. */
extern "C" __global__ void __maxnreg__(56)
    project_prepare(const __grid_constant__ struct prepare_params p) {
    extern __shared__ uint4 prepare_room[];
    pdl_launch();
    uint32_t i = blockIdx.x;
    uint8_t *image = p.images + (uint64_t)i * p.image_bytes;
    float *red = p.in.kind == PREPARE_NORM ? p.squares + i * (p.in.k / PROJECT_CHUNK)
                                           : (float *)prepare_room; /* a factor a head */
    struct row_source source = {i, gridDim.x, true};
    prepare_alone(p.io, p.in, source, image, red);
}
