/* clock.h - how long things take. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <time.h>

/* Monotonic seconds: only differences mean something. */
static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
