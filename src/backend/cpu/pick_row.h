/* pick_row.h - a row of logits whose token is picked: what the files of PICK share.
 *
 * pick.c is the op: it changes logits, shares rows out to threads and counts tokens. pick_sample.c
 * picks a row's token, pick_buckets.c where top-p and min-p leave many; pick_keys.c has the best
 * candidates in order. */
#ifndef BACKEND_CPU_PICK_ROW_H
#define BACKEND_CPU_PICK_ROW_H

#include "backend/cpu/vec.h"
#include "plan/io.h"

/* A row whose token is picked. order: first the best rank of each block, where logits are changed;
 * then candidates; in its upper half their exponentials. */
struct pick_row {
    const struct io_output *o;
    uint32_t n, n_blocks;
    bool is_changed;
    const float *logits;
    float *x; /* adjusted, or the logits themselves */
    float *adjusted;
    uint64_t *order;
    int32_t *ranks; /* (n_blocks): the best of each block of the logits */
    int32_t *best;  /* (n_blocks): the same of x */
};

/* ---- keys of candidates ------------------------------------------------------------------- */

/* A key that sorts like (logit, then lower index first), largest first. No two are equal. */
static inline uint64_t key_of(int32_t rank, uint32_t i) {
    return (uint64_t)((uint32_t)rank ^ 0x80000000u) << 32 | (uint32_t)~i;
}

static inline int32_t rank_in(uint64_t key) {
    return (int32_t)((uint32_t)(key >> 32) ^ 0x80000000u);
}

static inline uint32_t index_of(uint64_t key) {
    return ~(uint32_t)key;
}

/* ---- pick_keys.c -------------------------------------------------------------------------- */

/* Moves the m largest of n keys to the front, in no order. No two keys are equal. */
void pick_select(uint64_t *keys, uint32_t n, uint32_t m);
/* Sorts n keys, the largest first. */
void pick_sort(uint64_t *keys, uint32_t n);
/* Lists the keys of all tokens; returns how many there are. */
uint32_t pick_list_all(const struct pick_row *r, uint64_t *keys);
/* Lists those that may be among the best m <= n_blocks: not less than the best of the m-th best
 * block. Returns how many there are, 0: more than `order` has room for. */
uint32_t pick_list_best(const struct pick_row *r, uint64_t *keys, uint32_t m);
/* The best of n > 0 ranks. */
int32_t pick_best_of(const int32_t *ranks, uint32_t n);

static inline int32_t pick_best_rank(const struct pick_row *r) {
    return pick_best_of(r->best, r->n_blocks);
}

/* Ranks say what is best unless biases made NaN. */
static inline bool pick_is_plain(const struct pick_row *r, int32_t best) {
    return float_of(best) == float_of(best) && r->x[0] == r->x[0];
}

/* ---- pick_sample.c ------------------------------------------------------------------------ */

/* The best token, the lower id among equals. */
int32_t pick_best(const struct pick_row *r);
/* A token drawn by the row's sampling parameters; position: of the row. */
int32_t pick_sample(const struct pick_row *r, uint32_t position);

/* ---- pick_buckets.c ----------------------------------------------------------------------- */

/* Draws among what top-p and min-p leave of all. shift: the best logit over the temperature; total:
 * the sum of all e^(logit / temperature - shift); random: in [0, 1). Returns -1: not decided. */
int32_t pick_by_buckets(const struct pick_row *r, float shift, double total, double random);

#endif
