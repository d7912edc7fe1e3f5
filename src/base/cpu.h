/* cpu.h - what this processor can do, detected once. */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include <stdint.h>

enum cpu_feature {
    CPU_AVX2 = 1 << 0,   /* with FMA and F16C */
    CPU_AVX512 = 1 << 1, /* F, BW, VL, DQ */
    CPU_AVX512_VNNI = 1 << 2,
    CPU_AVX_VNNI = 1 << 3,
    CPU_AMX_INT8 = 1 << 4,
    CPU_AMX_BF16 = 1 << 5,
    CPU_AVX512_BF16 = 1 << 6,
    CPU_NEON = 1 << 8,
    CPU_DOTPROD = 1 << 9,
    CPU_I8MM = 1 << 10,
    CPU_BF16 = 1 << 11,
    CPU_SVE = 1 << 12,
    CPU_FHM = 1 << 13, /* f16 products added to f32 */
};

/* The features of this machine that the operating system enables. For diagnosis, the environment
 * variable SLUICE_CPU names those to keep, e.g. "avx2" or "none"; empty: all. */
uint32_t cpu_features(void);

/* Their names, e.g. "avx2 avx512 avx512_vnni"; "none" when there are none. Static. */
const char *cpu_feature_names(void);

/* The first word of SLUICE_CPU that is not the name of a feature; NULL: all are. Static. */
const char *cpu_unknown_feature(void);
/* The names SLUICE_CPU may have, besides "none". Static. */
const char *cpu_known_features(void);

/* How many threads to run by default: the processors this process may use, by its affinity and by
 * the quota of its control groups. */
int cpu_count(void);

#endif
