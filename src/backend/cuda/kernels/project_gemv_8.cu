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

/* F16 weights: a thread block a row, since its parts need the row's largest value. Shared memory:
 * the row as f32, then a factor a head. */
extern "C" __global__ void __maxnreg__(56)
    project_quantize_f16(const __grid_constant__ struct quantize_params p) {
    extern __shared__ float4 row_values[];
    __shared__ uint32_t maxima[PROJECT_WARPS];
    pdl_launch_dependents();
    uint32_t i = blockIdx.x, max_bits = 0;
    uint8_t *qact = p.qacts + (uint64_t)i * p.qact_bytes;
    float4 *values = row_values;
    float *red = p.in.prologue == PROLOGUE_NORM ? p.squares + i * (p.in.k / PROJECT_GROUP)
                                                : (float *)(values + p.in.k / 4);
    struct row_source source = {i, gridDim.x, true};
    struct row_threads threads = row_threads_of(p.in);
    struct col8 weights = {};
    struct f16_row to = {values, &max_bits};
    load_first_norm_weights(threads, p.in, weights);
    quantize_row<IS_F16>(threads, p.io, p.in, source, weights, to, red);
    store_warp_max(max_bits, maxima);
    __syncthreads();
    float down =
        split_f16_row(p.in.k, values, maxima,
                      [&](uint32_t at, const struct bf16_parts &v, const struct bf16_parts &w) {
                          store_bf16_parts(qact, at, v, w);
                      });
    if (threadIdx.x == 0)
        *f16_down(qact, p.in.k) = down;
}
