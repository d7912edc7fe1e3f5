/* kernels_neon_fhm.h - how functions for cores that have FMLAL (FEAT_FHM) are compiled. */
#ifndef BACKEND_CPU_KERNELS_NEON_FHM_H
#define BACKEND_CPU_KERNELS_NEON_FHM_H

#ifdef __clang__ /* version 14 has no such attribute: the Makefile names it for the file */
#define TARGET
#else
#define TARGET __attribute__((target("arch=armv8.2-a+fp16fml")))
#endif
#define INLINE static inline __attribute__((always_inline)) TARGET

#endif
