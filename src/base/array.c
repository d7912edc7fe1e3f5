/* array.c - arrays that grow as they are filled. */
#include "base/array.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { FIRST_CAPACITY = 16 };

bool array_grow(void *array, size_t n, size_t *capacity, size_t size) {
    void *old, *more;
    uint64_t bytes;
    if (n < *capacity)
        return true;
    size_t wanted = *capacity ? 2 * *capacity : FIRST_CAPACITY;
    if (wanted <= n)
        wanted = n + 1;
    if (wanted <= *capacity || !size_mul(wanted, size, &bytes) || bytes > SIZE_MAX)
        return false;
    memcpy(&old, array, sizeof old); /* a pointer of any type */
    more = realloc(old, bytes);
    if (!more)
        return false;
    memcpy(array, &more, sizeof more);
    *capacity = wanted;
    /* cppcheck-suppress memleak ; *array has it */
    return true;
}
