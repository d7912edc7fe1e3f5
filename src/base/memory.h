/* memory.h - the machine's memory, and malloc's. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes still available on the machine and in the control groups of this process, page cache that
 * can be dropped among them; UINT64_MAX: unknown. */
uint64_t memory_available(void);
/* The same by the files in another folder's proc and sys, for tests. */
uint64_t memory_available_at(const char *root);

/* What malloc holds: in use, and with what it keeps for later. Its per-thread caches, up to some
 * 200 kB each, count as used. */
struct memory_heap {
    double used, held;
};
/* False: this system's malloc does not say. */
bool memory_heap(struct memory_heap *out);

/* Gives memory that malloc keeps for later back to the system, where that can be asked for. */
void memory_trim(void);

#endif
