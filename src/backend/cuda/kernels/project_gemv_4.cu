/* project_gemv_4.cu - PROJECT for four rows at once: see project_gemv.cuh. Up to four
 * rows it is faster than tensor cores (qwen35-4b, H200, all products of a step of 4 rows: 1431 us,
 * by mma 2057); from five on int8 activations are project_gemm.cu's. */
#include "backend/cuda/kernels/project_gemv.cuh"

PROJECT_GEMV_ALL(4, 96)
