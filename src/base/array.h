/* array.h - arrays that grow as they are filled. */
#ifndef BASE_ARRAY_H
#define BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>

/* Makes room for element n, which is mostly the next one: the capacity is at least doubled. `array`
 * is the address of a pointer to elements of `size` bytes, NULL while *capacity is 0; free() it
 * when done. New room is not zeroed. False: memory ran out, and nothing has changed. */
bool array_grow(void *array, size_t n, size_t *capacity, size_t size);

#endif
