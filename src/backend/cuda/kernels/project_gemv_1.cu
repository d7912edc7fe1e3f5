/* project_gemv_1.cu - PROJECT for one row: see project_gemv.cuh. 56 registers: thread blocks of two
 * consecutive kernels fit an SM. */
#include "backend/cuda/kernels/project_gemv.cuh"

PROJECT_GEMV_ALL(1, 56)
