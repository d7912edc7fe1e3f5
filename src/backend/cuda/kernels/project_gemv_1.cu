/* project_gemv_1.cu - PROJECT for one row. */
#include "backend/cuda/kernels/project_gemv.cuh"

PROJECT_KERNELS(1, 56)
