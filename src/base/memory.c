/* memory.c - see memory.h. */
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

/* The number in a line "NAME   N kB" of a system file; UINT64_MAX: none. */
static uint64_t read_kilobytes(const char *path, const char *name) {
    uint64_t found = UINT64_MAX;
    char line[256];
    FILE *f = fopen(path, "re");
    while (f && found == UINT64_MAX && fgets(line, sizeof line, f)) {
        unsigned long long n;
        if (strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), "%llu", &n) == 1)
            found = n;
    }
    if (f)
        fclose(f);
    return found;
}

uint64_t memory_available(void) {
    uint64_t kilobytes = read_kilobytes("/proc/meminfo", "MemAvailable:");
    uint64_t machine = kilobytes == UINT64_MAX ? UINT64_MAX : kilobytes << 10;
    uint64_t group = read_kilobytes("/sys/fs/cgroup/memory.max", ""); /* bytes, or "max" */
    return machine < group ? machine : group;
}
