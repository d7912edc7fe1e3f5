/* entropy.c - see entropy.h. */
#include "base/entropy.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"

static bool ask_system(void *out, size_t n) {
#ifdef __linux__
    return getrandom(out, n, GRND_NONBLOCK) == (ssize_t)n;
#else
    return getentropy(out, n) == 0;
#endif
}

void entropy_fill(void *out, size_t n) {
    static atomic_uint calls;
    struct timespec t;
    CHECK(n <= ENTROPY_MAX);
    if (ask_system(out, n))
        return;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t x = ((uint64_t)t.tv_sec << 32 ^ (uint64_t)t.tv_nsec ^ (uint64_t)getpid() << 16) +
                 atomic_fetch_add(&calls, 1) + (uint64_t)(uintptr_t)&calls;
    for (size_t i = 0; i < n; i++) {
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u + 0x9E3779B97F4A7C15u;
        ((unsigned char *)out)[i] = (unsigned char)(x >> 56);
    }
}
