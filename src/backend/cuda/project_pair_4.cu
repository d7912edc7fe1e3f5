/* project_pair_4.cu - PROJECT for four rows at once that two blocks of a cluster prepare for each
 * other. */
#include "backend/cuda/project.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PAIR __cluster_dims__(PROJECT_SHARE)
#else
#define PAIR
#endif

PROJECT_KERNELS(pair_4, 4, PROJECT_SHARE, 96, PAIR)
