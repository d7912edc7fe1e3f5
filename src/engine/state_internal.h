/* state_internal.h - what the files of state.h share.
 *
 * state.c has the slots and their pages, state_snapshots.c what the cache gets of them, resume.c
 * what they get from it; payload.c moves contents between tiers; state_layout.c finds the arrays.
 */
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

/* ---- state.c ------------------------------------------------------------------------------ */

/* Copies the recurrent state of a cell to another; from NO_CELL: zeros. */
int state_copy_recurrent(const struct state *st, uint32_t to, uint32_t from, struct err *err);
/* Drops the slot's pages from entry n on. */
void state_drop_pages(struct state *st, uint32_t slot, uint32_t n);
/* Writes the entries of the slot's table from `first` on. */
int state_write_table(const struct state *st, uint32_t slot, uint32_t first, struct err *err);
/* Writes the token counts of the first n tokens. */
int state_write_counts(struct state *st, uint32_t slot, uint32_t n, struct err *err);
/* Restores the recurrent state of a snapshot, from any tier; NO_ENTRY: the empty state. */
int state_restore(struct state *st, uint32_t slot, uint32_t snapshot, bool *is_found,
                  struct err *err);
/* Takes the slot's memory back to its first n positions, or fewer: then tokens wait. */
int state_go_back(struct state *st, uint32_t slot, uint32_t n, struct err *err);

/* ---- state_snapshots.c -------------------------------------------------------------------- */

/* Full pages become blocks of the cache. Where it has a block of the same tokens, the slot takes
 * its page and gives up its own. */
int state_enter_blocks(struct state *st, uint32_t slot, struct err *err);
/* Makes a snapshot of the slot as it is, unless there is one or it does not fit. Full pages are in
 * the cache. */
int state_take_snapshot(struct state *st, uint32_t slot, struct err *err);
/* Writes what a closed slot leaves to disk, if there is one: then it survives the process. */
void state_write_through(struct state *st, const struct slot *s);
/* Removes the marks that the slot has reached; returns the last of them, 0: none. */
uint32_t state_pass_marks(struct slot *s);
/* Whether a snapshot is to be kept after the first n tokens; on_mark: they are marked. */
bool state_is_due(const struct state *st, uint32_t n, bool on_mark);
/* The planned snapshots were taken, or never will be. */
void state_end_planned(struct state *st, uint32_t slot, bool is_there);
/* Gives the slot the state after the drafted rows that are kept. `first`: the position of the first
 * spare cell's state; on_mark: it is marked. Full pages are in the cache. */
void state_end_drafts(struct state *st, uint32_t slot, uint32_t first, uint32_t kept, bool on_mark);

/* ---- payload.c ---------------------------------------------------------------------------- */

/* Loads an entry that is not on the device into a cell and a page; either may be none. */
int state_load_entry(struct state *st, uint32_t e, uint32_t cell, uint32_t page, bool *is_found,
                     struct err *err);

#endif
