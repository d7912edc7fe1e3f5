/* size.h - arithmetic on sizes that come from outside.
 *
 * Every product or sum of a file's values goes through here: the result is written only when it
 * fits, and the return value says whether it did. */
#ifndef BASE_SIZE_H
#define BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

__attribute__((warn_unused_result)) static inline bool size_mul(uint64_t a, uint64_t b,
                                                                uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

__attribute__((warn_unused_result)) static inline bool size_add(uint64_t a, uint64_t b,
                                                                uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

/* Rounds a up to a multiple of align, a power of two. */
__attribute__((warn_unused_result)) static inline bool size_align(uint64_t a, uint64_t align,
                                                                  uint64_t *out) {
    uint64_t sum;
    if (!size_add(a, align - 1, &sum))
        return false;
    *out = sum & ~(align - 1);
    return true;
}

/* The same in one expression: what does not fit is UINT64_MAX, and stays so. */
static inline uint64_t size_times(uint64_t a, uint64_t b) {
    uint64_t out;
    return size_mul(a, b, &out) ? out : UINT64_MAX;
}

static inline uint64_t size_plus(uint64_t a, uint64_t b) {
    uint64_t out;
    return size_add(a, b, &out) ? out : UINT64_MAX;
}

static inline uint64_t size_aligned(uint64_t a, uint64_t align) {
    uint64_t out;
    return size_align(a, align, &out) ? out : UINT64_MAX;
}

/* ---- numbers of our own ---------------------------------------------------------------------- */

static inline uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* The smallest shift of 1 that is n or more. */
static inline uint32_t shift_of(uint32_t n) {
    uint32_t shift = 0;
    while (1u << shift < n)
        shift++;
    return shift;
}

/* How many pieces of b are needed for a. */
static inline uint32_t div_up(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

#endif
