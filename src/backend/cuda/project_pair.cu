/* project_pair.cu - PROJECT for one row that two blocks of a cluster prepare for each other: long
 * rows. */
#include "backend/cuda/project.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PAIR __cluster_dims__(PROJECT_SHARE)
#else
#define PAIR
#endif

PROJECT_KERNELS(pair, 1, PROJECT_SHARE, 56, PAIR)
