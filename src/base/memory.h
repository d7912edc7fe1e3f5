/* memory.h - the machine's memory. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stdint.h>

/* Bytes that may still be taken, of the machine's or of the control group's; UINT64_MAX: unknown.
 */
uint64_t memory_available(void);

#endif
