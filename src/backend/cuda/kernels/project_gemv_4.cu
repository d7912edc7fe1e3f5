/* project_gemv_4.cu - PROJECT for four rows at once. */
#include "backend/cuda/kernels/project_gemv.cuh"

PROJECT_KERNELS(4, 96)
