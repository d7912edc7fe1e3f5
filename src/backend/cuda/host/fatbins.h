/* fatbins.h - the compiled kernels, one image a .cu file; the table is made by the Makefile. */
#ifndef BACKEND_CUDA_HOST_FATBINS_H
#define BACKEND_CUDA_HOST_FATBINS_H

struct cuda_fatbin {
    const char *name; /* NULL behind the last */
    const unsigned char *fatbin;
};
extern const struct cuda_fatbin cuda_fatbins[];

#endif
