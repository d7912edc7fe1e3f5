/* memory.c - see memory.h. */
#include "base/memory.h"

#include "base/cgroup.h"

uint64_t memory_available_at(const char *root) {
    uint64_t kilobytes = cgroup_read(root, "/proc/meminfo", "MemAvailable:");
    uint64_t machine = kilobytes == UINT64_MAX ? UINT64_MAX : kilobytes << 10;
    uint64_t group = cgroup_memory_left(root);
    return machine < group ? machine : group;
}

uint64_t memory_available(void) {
    return memory_available_at("");
}
