/* places.c - see places.h. */
#include "backend/places.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* By offset, then by shape: a tied embedding table and LM head are one weight, but a matrix and its
 * first row are two. */
static int compare(const void *a, const void *b) {
    const struct operand *x = a, *y = b;
    return x->offset != y->offset ? (x->offset < y->offset ? -1 : 1)
                                  : memcmp(x->dims, y->dims, sizeof x->dims);
}

uint32_t places_sort(void *table, uint32_t n, size_t size) {
    char *at = table;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;
        while (k < kept && compare(at + k * size, at + i * size) != 0)
            k++;
        if (k == kept)
            memmove(at + kept++ * size, at + i * size, size);
    }
    qsort(table, kept, size, compare);
    return kept;
}

const void *places_look_up(const void *table, uint32_t n, size_t size,
                           const struct operand *weight) {
    return n ? bsearch(weight, table, n, size, compare) : NULL;
}

const void *places_find(const void *table, uint32_t n, size_t size, const struct operand *weight) {
    const void *found = places_look_up(table, n, size, weight);
    CHECK(found);
    return found;
}
