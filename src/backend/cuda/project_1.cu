/* project_1.cu - PROJECT for one row. */
#include "backend/cuda/project.cuh"

PROJECT_KERNELS(1, 56)
