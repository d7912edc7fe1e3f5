#include "backend/cpu/kernels_rows.h"
#if defined(__x86_64__)
const struct kernel_rows kernels_avx2 = {0, 0};
#endif
