/* merge.h - the heart of BPE: which pairs of symbols join, in what order.
 *
 * A symbol is a number; bpe.c and spm.c define what it stands for. A pair table says for a pair of
 * neighbours how early it joins (its rank, lower is earlier) and into what. */
#ifndef TEXT_MERGE_H
#define TEXT_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define SYMBOL_NONE UINT32_MAX /* joins with nothing */
#define RANK_NONE UINT32_MAX

struct joined {
    uint32_t rank, symbol; /* RANK_NONE, SYMBOL_NONE when the pair does not join */
};

struct pair_slot {
    uint32_t left, right; /* left SYMBOL_NONE marks a free slot */
    struct joined to;
};

/* Zero-initialize; pairs_free when done. */
struct pairs {
    struct pair_slot *slots;
    uint64_t seed; /* drawn per process, so that no file can choose collisions */
    size_t mask;   /* slots - 1 */
    size_t count;
};

/* Reserves `count` pairs in all. */
int pairs_reserve(struct pairs *pairs, size_t count, struct err *err);

/* Adds a pair, which must have been reserved; the first of its kind stays. */
void pairs_add(struct pairs *pairs, uint32_t left, uint32_t right, struct joined to);
void pairs_free(struct pairs *pairs);

static inline size_t pair_home(const struct pairs *pairs, uint32_t left, uint32_t right) {
    __uint128_t p =
        (__uint128_t)(((uint64_t)left << 32 | right) ^ pairs->seed) * UINT64_C(0x9E3779B97F4A7C15);
    return ((uint64_t)p ^ (uint64_t)(p >> 64)) & pairs->mask;
}

static inline struct joined pairs_get(const struct pairs *pairs, uint32_t left, uint32_t right) {
    if (left == SYMBOL_NONE || right == SYMBOL_NONE)
        return (struct joined){RANK_NONE, SYMBOL_NONE};
    for (size_t i = pair_home(pairs, left, right);; i = (i + 1) & pairs->mask) {
        const struct pair_slot *slot = &pairs->slots[i];
        if (slot->left == left && slot->right == right)
            return slot->to;
        if (slot->left == SYMBOL_NONE)
            return (struct joined){RANK_NONE, SYMBOL_NONE};
    }
}

/* The memory that merging needs, kept between words. Zero-initialize; merger_free when done. */
struct merge_node;
struct merger {
    uint32_t *symbols; /* the word: put its first symbols here */
    size_t n_symbols, symbol_capacity;
    struct merge_node *nodes;
    uint64_t *heap;
    size_t n_heap, heap_capacity, node_capacity;
};

/* Reserves n symbols. */
int merger_reserve(struct merger *m, size_t n, struct err *err);
void merger_free(struct merger *m);

/* Joins m->symbols until no pair joins any more: always the pair of lowest rank, the leftmost of
 * those. O(n log n), with up to 36 bytes of memory per symbol. */
int merge_run(struct merger *m, const struct pairs *pairs, struct err *err);

#endif
