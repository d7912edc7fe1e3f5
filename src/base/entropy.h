/* entropy.h - bytes that nobody can predict. */
#ifndef BASE_ENTROPY_H
#define BASE_ENTROPY_H

#include <stddef.h>

enum { ENTROPY_MAX = 256 };

/* Fills n bytes, at most ENTROPY_MAX; never waits. Where the system has none (early at boot), they
 * differ from call to call and from process to process, but can be predicted. */
void entropy_fill(void *out, size_t n);

#endif
