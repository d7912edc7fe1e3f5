/* state.h - the memory of sequences: slots, attention pages, snapshots. */
#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include "backend/backend.h"
#include "engine/pages.h"
#include "plan/io.h"
#include "plan/plan.h"

/* A part of STATE that is one item after the other: item i lies at offset + i * bytes. */
struct piece {
    uint64_t offset, bytes; /* bytes 0: there is none */
};

/* STATE as the ops of a plan use it. */
struct state_layout {
    struct piece *recurrent; /* an item a slot: delta-net states and conv windows */
    uint32_t n_recurrent;
    struct piece *paged; /* an item a page: keys and values of each layer */
    uint32_t n_paged;
    struct piece table, counts; /* an item a slot */
    uint64_t recurrent_bytes;   /* of a slot */
    uint64_t slot_bytes;        /* of a slot, all of it */
    uint64_t page_bytes;        /* of a page in all layers */
};
int state_layout_of(struct state_layout *layout, const struct plan *plan, struct arena *arena,
                    struct err *err);

enum { NO_SNAPSHOT = UINT32_MAX };

struct slot {
    bool is_open;
    uint32_t length;     /* positions that its memory holds */
    uint32_t n_tokens;   /* tokens known; those from `length` on wait */
    int32_t *tokens;     /* (context) */
    uint32_t n_pages;    /* those that `length` positions need; in a step, its rows' too */
    uint32_t *pages;     /* (pages_per_seq) */
    bool is_starved;     /* tokens waited in the last step, and there was no page for them */
    uint32_t *snapshots; /* (n_grid) that of position (i + 1) * grid, or NO_SNAPSHOT */
};

struct snapshot {
    uint32_t refs; /* slots that have it */
    uint64_t used; /* when: the one longest unused goes first */
};

struct state_options {
    uint32_t n_slots, n_snapshots, grid;
    uint32_t context, pages_per_seq, n_pages, n_vocab;
};

struct state {
    const struct backend_kind *kind;
    struct backend *backend; /* both borrowed */
    struct state_layout layout;
    struct state_options options;
    struct slot *slots;         /* (n_slots) */
    struct snapshot *snapshots; /* (n_snapshots) number i has the memory of slot n_slots + i */
    uint32_t n_grid;
    struct pages pages;
    uint16_t *counts; /* (n_vocab) room to count in */
    uint64_t clock;
    uint64_t n_taken, n_used;
};

/* All tables from the arena; STATE is zero. */
int state_init(struct state *st, const struct state_options *options, struct arena *arena,
               struct err *err);

/* A free slot, empty: zero states, zero counts. SLUICE_ERR_ARGUMENT when there is none. */
int state_open(struct state *st, uint32_t *slot, struct err *err);
void state_close(struct state *st, uint32_t slot);

/* Rows that the next step may add without jumping over a place for a snapshot. */
uint32_t state_room(const struct state *st, uint32_t slot);
/* Rows, of `most` that wait, for a step that may jump over such places: up to the last one among
 * them, or all where there is none. */
uint32_t state_rows_to_last(const struct state *st, uint32_t slot, uint32_t most);
/* Rows that there are pages for. */
uint32_t state_page_room(const struct state *st, uint32_t slot);
/* Gives the slot the pages of its next `rows` positions, at most state_page_room, to write to.
 * *first: the first entry of its table that changes; those up to its last page do. */
int state_reserve(struct state *st, uint32_t slot, uint32_t rows, uint32_t *first, struct err *err);
/* Whether such a step begins with the copy of a page that others read. */
bool state_must_copy(const struct state *st, uint32_t slot);
/* A step added so many rows. Takes a snapshot where it is due. */
int state_advance(struct state *st, uint32_t slot, uint32_t rows, struct err *err);

/* A step with this slot was cut off: the slot is as before it, but that more of its tokens may
 * wait. */
int state_undo(struct state *st, uint32_t slot, struct err *err);

int state_fork(struct state *st, uint32_t from, uint32_t *to, struct err *err);
/* Keeps the first n tokens, n <= n_tokens, of which those from `held` <= n on wait. */
int state_rewind(struct state *st, uint32_t slot, uint32_t n, uint32_t held, struct err *err);

/* An open, empty slot becomes one of `length` positions whose tokens are in place: its pages and
 * tables, not their contents. SLUICE_ERR_MEMORY when there are too few pages. For load. */
int state_adopt(struct state *st, uint32_t slot, uint32_t length, struct err *err);

/* Calls fn for every stretch of STATE that a slot's content is made of, in an order that depends
 * on the layout alone. */
typedef int stretch_fn(void *user, uint64_t offset, uint64_t bytes, struct err *err);
int state_each_stretch(const struct state *st, uint32_t slot, stretch_fn *fn, void *user,
                       struct err *err);
uint64_t state_stretch_bytes(const struct state *st, uint32_t length);

/* SLUICE_ERR_MEMORY, in words. */
int state_out_of_pages(const struct state *st, struct err *err);

/* The first broken invariant in words, NULL when all hold. For tests. */
const char *state_broken(const struct state *st);

#endif
