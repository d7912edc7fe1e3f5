/* project_4.cu - PROJECT for four rows at once. */
#include "backend/cuda/project.cuh"

PROJECT_KERNELS(4, 96)
