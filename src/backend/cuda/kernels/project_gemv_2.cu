/* project_gemv_2.cu - PROJECT for two rows at once: see project_gemv.cuh. */
#include "backend/cuda/kernels/project_gemv.cuh"

PROJECT_GEMV_PAIRS(2, 96)
