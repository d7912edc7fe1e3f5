/* cpu.c - what this processor can do, detected once. */
#include "base/cpu.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cgroup.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/auxv.h>
#include <sys/syscall.h>
#endif

static const struct {
    const char *name;
    uint32_t bit;
} feature_names[] = {
    {"avx2", CPU_AVX2},
    {"avx512", CPU_AVX512},
    {"avx512_vnni", CPU_AVX512_VNNI},
    {"avx_vnni", CPU_AVX_VNNI},
    {"amx_int8", CPU_AMX_INT8},
    {"amx_bf16", CPU_AMX_BF16},
    {"avx512_bf16", CPU_AVX512_BF16},
    {"neon", CPU_NEON},
    {"dotprod", CPU_DOTPROD},
    {"i8mm", CPU_I8MM},
    {"bf16", CPU_BF16},
    {"sve", CPU_SVE},
    {"fhm", CPU_FHM},
};

#if defined(__x86_64__)
/* Tile registers (AMX) are off until a process asks the kernel for them. */
static bool may_use_tiles(void) {
#ifdef __linux__
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_TILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILEDATA) == 0;
#else
    return false;
#endif
}

static uint64_t enabled_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static uint32_t detect(void) {
    uint32_t a, b, c, d, found = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    bool has_fma = c >> 12 & 1, has_osxsave = c >> 27 & 1, has_f16c = c >> 29 & 1;
    if (!has_osxsave)
        return 0;
    uint64_t state = enabled_state();
    bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xE6) == 0xE6, tiles = state >> 17 & 1;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    uint32_t subleaves = a, ebx = b, ecx = c, edx = d;
    if (ymm && (ebx >> 5 & 1) && has_fma && has_f16c)
        found |= CPU_AVX2;
    bool f512 = (ebx >> 16 & 1) && (ebx >> 17 & 1) && (ebx >> 30 & 1) && (ebx >> 31 & 1);
    if ((found & CPU_AVX2) && zmm && f512) {
        found |= CPU_AVX512;
        if (ecx >> 11 & 1)
            found |= CPU_AVX512_VNNI;
    }
    if (tiles && (found & CPU_AVX512) && (edx >> 24 & 1) && may_use_tiles()) {
        found |= edx >> 25 & 1 ? CPU_AMX_INT8 : 0;
        found |= edx >> 22 & 1 ? CPU_AMX_BF16 : 0;
    }
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        if ((found & CPU_AVX2) && (a >> 4 & 1))
            found |= CPU_AVX_VNNI;
        if ((found & CPU_AVX512) && (a >> 5 & 1))
            found |= CPU_AVX512_BF16;
    }
    return found;
}
#elif defined(__aarch64__)
static uint32_t detect(void) {
    uint32_t found = CPU_NEON; /* part of the base architecture */
#ifdef __linux__
    unsigned long hw = getauxval(AT_HWCAP), hw2 = getauxval(AT_HWCAP2);
    found |= hw >> 20 & 1 ? CPU_DOTPROD : 0;
    found |= hw >> 22 & 1 ? CPU_SVE : 0;
    found |= hw >> 23 & 1 ? CPU_FHM : 0;
    found |= hw2 >> 13 & 1 ? CPU_I8MM : 0;
    found |= hw2 >> 14 & 1 ? CPU_BF16 : 0;
#endif
    return found;
}
#else
static uint32_t detect(void) {
    return 0;
}
#endif

static uint32_t features;
static char names[160] = "none";

static bool is_listed(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *p = list; (p = strstr(p, name)); p += n) {
        bool starts = p == list || p[-1] == ' ' || p[-1] == ',';
        if (starts && (p[n] == 0 || p[n] == ' ' || p[n] == ','))
            return true;
    }
    return false;
}

/* NULL: all. */
static const char *to_keep(void) {
    const char *list = getenv("SLUICE_CPU");
    return list && *list ? list : NULL;
}

static bool is_feature(const char *name) {
    for (size_t i = 0; i < sizeof feature_names / sizeof *feature_names; i++)
        if (strcmp(name, feature_names[i].name) == 0)
            return true;
    return strcmp(name, "none") == 0;
}

const char *cpu_unknown_feature(void) {
    static char word[32];
    const char *list = to_keep();
    for (size_t n; list && *list; list += n) {
        list += strspn(list, " ,");
        n = strcspn(list, " ,");
        snprintf(word, sizeof word, "%.*s", (int)n, list);
        if (n > 0 && !is_feature(word))
            return word;
    }
    return NULL;
}

const char *cpu_known_features(void) {
    static char all[160];
    size_t len = 0;
    for (size_t i = 0; i < sizeof feature_names / sizeof *feature_names; i++)
        len += (size_t)snprintf(all + len, sizeof all - len, "%s%s", i ? " " : "",
                                feature_names[i].name);
    return all;
}

static void find_out(void) {
    features = detect();
    const char *keep = to_keep();
    size_t len = 0;
    for (size_t i = 0; i < sizeof feature_names / sizeof *feature_names; i++) {
        if (keep && !is_listed(keep, feature_names[i].name))
            features &= ~feature_names[i].bit;
        if (features & feature_names[i].bit)
            len += (size_t)snprintf(names + len, sizeof names - len, "%s%s", len ? " " : "",
                                    feature_names[i].name);
    }
}

static void find_out_once(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_out);
}

uint32_t cpu_features(void) {
    find_out_once();
    return features;
}

const char *cpu_feature_names(void) {
    find_out_once();
    return names;
}

static int by_affinity(void) {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

static int quota;

static void find_quota(void) {
    quota = cgroup_processors("");
}

int cpu_count(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_quota);
    int n = by_affinity();
    return quota && quota < n ? quota : n;
}
