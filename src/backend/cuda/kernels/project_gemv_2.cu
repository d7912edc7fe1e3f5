/* project_gemv_2.cu - PROJECT for two rows at once. */
#include "backend/cuda/kernels/project_gemv.cuh"

PROJECT_KERNELS(2, 72)
