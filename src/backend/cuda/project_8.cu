/* project_8.cu - PROJECT for eight rows at once; and the kernel that makes rows ready for four or
 * eight. */
#include "backend/cuda/project.cuh"

PROJECT_KERNELS_FEW(8, 8, 1, 128, )

/* Blocks (i, ...) make the image of row i. */
extern "C" __global__ void __maxnreg__(48)
    project_prepare(const __grid_constant__ struct prepare_params p) {
    extern __shared__ uint4 prepare_room[];
    float4 weight[NORM_BATCH];
    pdl_launch();
    struct team who = {threadIdx.x + blockIdx.y * blockDim.x, gridDim.y * blockDim.x, 0, 0};
    prepare_early(who, p.in, weight);
    uint32_t i = blockIdx.x;
    uint8_t *image = p.images + (uint64_t)i * p.image_bytes;
    float *red = p.in.kind == PREPARE_NORM ? p.squares + i * (p.in.k / PROJECT_CHUNK)
                                           : (float *)prepare_room; /* a factor a head */
    struct row_source source = {i, gridDim.x, true};
    prepare_row<1>(who, p.io, p.in, source, weight, image, red);
}
