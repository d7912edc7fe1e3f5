/* fatbins.h - the compiled kernels, embedded: one fatbin a .cu file. tools/fatbins.sh makes the
 * tables. */
#ifndef BACKEND_CUDA_HOST_FATBINS_H
#define BACKEND_CUDA_HOST_FATBINS_H

struct cuda_fatbin {
    const char *name; /* NULL after the last */
    const unsigned char *bytes;
};
extern const struct cuda_fatbin cuda_fatbins[];

/* Every kernel, sorted by name. The host puts some names together at run time: they are looked up
 * here, so that a typo fails without a GPU, too. */
struct cuda_kernel {
    const char *name; /* NULL after the last */
    int registers;    /* a thread, of the machine code for 9.0 */
    unsigned fatbin;  /* which of cuda_fatbins has it */
};
extern const struct cuda_kernel cuda_kernels[];

#endif
