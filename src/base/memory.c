/* memory.c - see memory.h. */
#include "base/memory.h"

#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

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

#ifdef __GLIBC__
bool memory_heap(struct memory_heap *out) {
#if __GLIBC_PREREQ(2, 33)
    struct mallinfo2 m = mallinfo2();
#else
    struct mallinfo m = mallinfo(); /* of up to 2 GB */
#endif
    *out = (struct memory_heap){(double)(m.uordblks + m.hblkhd), (double)(m.arena + m.hblkhd)};
    return true;
}

void memory_trim(void) {
    malloc_trim(0);
}
#else
bool memory_heap(struct memory_heap *out) {
    *out = (struct memory_heap){0};
    return false;
}

void memory_trim(void) {
}
#endif
