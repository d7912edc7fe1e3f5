/* weight_list.h - the weights that a device backend has, each once: what those of CUDA and Vulkan
 * share. The elements of such a list are structs whose first member is the weight's struct
 * operand. */
#ifndef BACKEND_WEIGHT_LIST_H
#define BACKEND_WEIGHT_LIST_H

#include <stddef.h>

#include "plan/plan.h"

/* Sorts n elements of `size` bytes by where the file has their weights, and leaves the first of
 * those for the same weight. Returns how many are left. */
uint32_t weight_list_sort(void *table, uint32_t n, size_t size);

/* The element of a weight, or of a matrix whose first rows it is; NULL: there is none. So plans
 * that read a matrix in part come after those that read all of it. */
const void *weight_list_look_up(const void *table, uint32_t n, size_t size,
                                const struct operand *weight);
/* The same of one that must be there. */
const void *weight_list_find(const void *table, uint32_t n, size_t size,
                             const struct operand *weight);

#endif
