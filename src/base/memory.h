/* memory.h - the machine's memory. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stdint.h>

/* Bytes still available on the machine or in its control group; UINT64_MAX: unknown. */
uint64_t memory_available(void);

#endif
