/* places.h - where a device backend has each weight: what the tables of CUDA and Vulkan share. The
 * elements of such a table are structs whose first member is the weight's struct operand. */
#ifndef BACKEND_PLACES_H
#define BACKEND_PLACES_H

#include <stddef.h>

#include "plan/plan.h"

/* Sorts n elements of `size` bytes by where the file has their weights, and leaves the first of
 * those for the same weight. Returns how many are left. */
uint32_t places_sort(void *table, uint32_t n, size_t size);

/* The element of a weight, or of a matrix whose first rows it is; NULL: there is none. So plans
 * that read a matrix in part come after those that read all of it. */
const void *places_look_up(const void *table, uint32_t n, size_t size,
                           const struct operand *weight);
/* The same of one that must be there. */
const void *places_find(const void *table, uint32_t n, size_t size, const struct operand *weight);

#endif
