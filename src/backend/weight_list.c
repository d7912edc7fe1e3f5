/* weight_list.c - see weight_list.h. */
#include "backend/weight_list.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* By offset, then by shape: a tied embedding table and LM head are one weight, but a matrix and a
 * vector that is its first row are two. */
static int compare(const void *a, const void *b) {
    const struct operand *x = a, *y = b;
    return x->offset != y->offset ? (x->offset < y->offset ? -1 : 1)
                                  : memcmp(x->dims, y->dims, sizeof x->dims);
}

uint32_t weight_list_sort(void *table, uint32_t n, size_t size) {
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

/* Whether these are the first rows of a matrix at the same offset. */
static bool are_first_rows(const struct operand *o, const struct operand *whole) {
    return o->n_dims == 2 && whole->n_dims == 2 && o->dims[0] == whole->dims[0] &&
           o->dims[1] < whole->dims[1];
}

/* The first element at this offset or a later one. */
static uint32_t find_offset(const char *table, uint32_t n, size_t size, uint64_t offset) {
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct operand *o = (const void *)(table + middle * size);
        if (o->offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const void *weight_list_look_up(const void *table, uint32_t n, size_t size,
                                const struct operand *weight) {
    const void *found = NULL;
    for (uint32_t i = find_offset(table, n, size, weight->offset); i < n; i++) {
        const struct operand *o = (const void *)((const char *)table + i * size);
        if (o->offset != weight->offset)
            break;
        if (compare(o, weight) == 0)
            return o;
        if (are_first_rows(weight, o))
            found = o;
    }
    return found;
}

const void *weight_list_find(const void *table, uint32_t n, size_t size,
                             const struct operand *weight) {
    const void *found = weight_list_look_up(table, n, size, weight);
    CHECK(found);
    return found;
}
