/* state_internal.h - what the files of state.h share: state.c, payload.c and resume.c. */
#ifndef ENGINE_STATE_INTERNAL_H
#define ENGINE_STATE_INTERNAL_H

#include "engine/state.h"

static inline bool state_is_recurrent(const struct state *st) {
    return st->layout.n_recurrent > 0;
}

/* Where item i of an array is in STATE. */
static inline uint64_t state_array_item(struct state_array array, uint32_t i) {
    return array.offset + i * array.bytes;
}

/* Drops the slot's pages from entry n on. */
void state_drop_pages(struct state *st, uint32_t slot, uint32_t n);
/* Removes the marks that the slot has reached; returns the last of them, 0: none. */
uint32_t state_pass_marks(struct slot *s);
/* Writes the entries of the slot's table from `first` on. */
int state_write_table(const struct state *st, uint32_t slot, uint32_t first, struct err *err);
/* Writes the token counts of the first n tokens. */
int state_write_counts(struct state *st, uint32_t slot, uint32_t n, struct err *err);
/* Restores the recurrent state of a snapshot, from any tier; NO_ENTRY: the empty state. */
int state_restore(struct state *st, uint32_t slot, uint32_t snapshot, bool *is_found,
                  struct err *err);
/* Takes the slot's memory back to its first n positions, or fewer: then tokens wait. */
int state_go_back(struct state *st, uint32_t slot, uint32_t n, struct err *err);
/* Loads an entry that is not on the device into a cell and a page; either may be none. */
int state_load_entry(struct state *st, uint32_t e, uint32_t cell, uint32_t page, bool *is_found,
                     struct err *err);

#endif
