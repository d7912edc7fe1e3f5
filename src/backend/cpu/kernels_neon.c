#include "backend/cpu/kernels_rows.h"
#if defined(__aarch64__)
const struct kernel_rows kernels_neon = {0, 0};
#endif
