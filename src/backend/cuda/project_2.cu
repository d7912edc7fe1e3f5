/* project_2.cu - PROJECT for two rows at once. */
#include "backend/cuda/project.cuh"

PROJECT_KERNELS(2, 72)
