/* memory.h - the machine's memory. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stdint.h>

/* Bytes still available on the machine and in the control groups of this process, page cache that
 * can be dropped among them; UINT64_MAX: unknown. */
uint64_t memory_available(void);
/* The same by the files in another folder's proc and sys, for tests. */
uint64_t memory_available_at(const char *root);

#endif
