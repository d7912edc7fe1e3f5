/* launch.h - a kernel and its grid: between driver.cpp and gpu.cpp. */
#ifndef TESTS_EMULATOR_LAUNCH_H
#define TESTS_EMULATOR_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

struct gpu_kernel;

struct launch {
    const struct gpu_kernel *kernel;
    const void *params;
    uint32_t grid[3], threads, shared;
    uint64_t number; /* of all launches so far */
};

const struct gpu_kernel *gpu_find_kernel(const char *name);
/* Returns when all blocks are done; false: no GPU would take it. */
bool gpu_run(struct launch *l);

#endif
