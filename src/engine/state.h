/* state.h - the memory of sequences: slots, pages of the KV cache, recurrent state, snapshots.
 *
 * Part of the engine: used by its thread alone, but for copies of the host tier's thread
 * (`thread_moves`). Tables come from the engine's arena; backend and tiers are borrowed. Nothing
 * is allocated after state_init. */
#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include "backend/backend.h"
#include "engine/cache.h"
#include "plan/io.h"
#include "plan/plan.h"

/* An array in STATE, with an item for each cell, page or slot: item i is at offset + i * bytes. */
struct state_array {
    uint64_t offset, bytes; /* bytes 0: none */
    uint32_t n_heads;       /* of a page: this many heads times PAGE positions */
};

/* STATE as the ops of a plan use it. */
struct state_layout {
    /* One item per cell: delta-net states, conv windows, hidden states. */
    struct state_array *recurrent;
    uint32_t n_recurrent;
    struct state_array *paged;        /* one item per page: keys and values of each layer */
    uint32_t n_paged, n_heads;        /* arrays, and heads of all of them */
    struct state_array table, counts; /* one item per slot */
    uint64_t recurrent_bytes;         /* of a cell */
    uint64_t slot_bytes;              /* of a slot, all of it */
    uint64_t page_bytes;              /* of a page in all layers */
};
int state_layout_of(struct state_layout *layout, const struct plan *plan, struct arena *arena,
                    struct err *err);

enum { MAX_MARKS = 16 };

struct slot {
    bool is_open;
    uint32_t length;   /* positions that its memory holds */
    uint32_t n_tokens; /* tokens known; those from `length` on wait */
    int32_t *tokens;   /* (context) */
    uint32_t n_drafts; /* guesses of what comes next, in `tokens` after those known */
    uint32_t cell;     /* with its recurrent state */
    uint32_t n_pages; /* those that `length` positions need; during a step, those of its rows too */
    uint32_t *pages;  /* (pages_per_seq) */
    uint32_t block;   /* the last of its pages that the cache has, with all before it */
    uint32_t marks[MAX_MARKS]; /* positions after `length` for snapshots, ascending */
    uint32_t n_marks;
    uint32_t first_planned, n_planned; /* snapshots that the running step takes, in state's list */
    uint32_t first_spare, n_drafted;   /* drafts that it verifies, and their first spare cell */
    bool is_rewound; /* since its last step, to a place before the last token that was kept */
    bool is_starved; /* its tokens waited in the last step, for lack of pages */
};

/* A snapshot that a step takes: the state after the first `position` tokens is stored to
 * the cell. */
struct planned {
    uint32_t position, cell;
};

struct state_options {
    uint32_t n_slots;
    uint32_t n_snapshots, snapshot_every; /* cells for snapshots; tokens between regular ones */
    uint32_t n_spare;                     /* cells for drafts: as many in one step */
    uint32_t context, pages_per_seq, n_pages, n_vocab;
    uint32_t n_lower; /* blocks and snapshots that the tiers below hold */
};

struct state {
    const struct backend_kind *kind;
    struct backend *backend; /* both borrowed */
    struct state_layout layout;
    struct state_options options;
    struct slot *slots; /* (n_slots) */
    struct pages pages;
    struct cache cache;
    struct planned *planned; /* (n_snapshots) of the running step, slot by slot */
    uint32_t n_planned;
    uint32_t *spare; /* (n_spare) cells; the first n_spare_used are the running step's */
    uint32_t n_spare_used;
    uint32_t *page_list, *block_list; /* (pages_per_seq) scratch: lists of pages and blocks */
    uint16_t *counts;                 /* (n_vocab) scratch: counts of tokens */
    struct backend_copy *copies;      /* (arrays of a slot and a page) scratch: a list of them */
    struct backend_move *moves, *thread_moves; /* the same of the host tier's thread */
    uint64_t n_taken, n_used;
};

/* All tables from the arena; STATE is zero. */
int state_init(struct state *st, const struct state_options *options, struct arena *arena,
               struct err *err);

/* A free slot, empty: zero states, zero counts. SLUICE_ERR_ARGUMENT when there is none. */
int state_open(struct state *st, uint32_t *slot, struct err *err);
/* is_kept: what it holds stays in the cache, as long as there is room. */
void state_close(struct state *st, uint32_t slot, bool is_kept);

/* A snapshot is to be taken after the first n tokens, length <= n <= n_tokens. */
int state_mark(struct state *st, uint32_t slot, uint32_t n, struct err *err);
/* Rows up to the next place for a snapshot. */
uint32_t state_rows_to_snapshot(const struct state *st, uint32_t slot);
/* Rows that there are pages for. */
uint32_t state_page_rows(const struct state *st, uint32_t slot);
/* Gives the slot the pages of its next `rows` positions, at most state_page_rows, to write to.
 * *first: the first entry of its table that changes; those up to its last page do. */
int state_reserve(struct state *st, uint32_t slot, uint32_t rows, uint32_t *first, struct err *err);
/* Before a step's first slot. */
void state_begin_step(struct state *st);
/* Plans the snapshots in the middle of the slot's next `rows` positions: its `planned`. One at
 * their end is taken by state_advance. */
void state_plan_snapshots(struct state *st, uint32_t slot, uint32_t rows);
/* The step is to verify up to n of the slot's drafts, in rows after all that wait; returns how many
 * there are cells for. The state before draft i goes to spare cell number first_spare + i, that
 * after the last draft to the slot's own. Where state is not recurrent no cells are needed. */
uint32_t state_plan_drafts(struct state *st, uint32_t slot, uint32_t n);
/* Whether the slot's next step begins with the copy of a page that others read. */
bool state_must_copy(const struct state *st, uint32_t slot);
/* A free cell, for a step to store unneeded state to; NO_CELL: there is none. To be returned before
 * anything else is done. */
uint32_t state_borrow_cell(struct state *st);
void state_return_cell(struct state *st, uint32_t cell);
/* A step added this many rows, and the snapshots that were planned; of the drafted rows after these
 * the first `kept` were right. */
int state_advance(struct state *st, uint32_t slot, uint32_t rows, uint32_t kept, struct err *err);

/* A step with this slot was interrupted: the slot is as before it, except that more of its tokens
 * may wait. */
int state_undo(struct state *st, uint32_t slot, struct err *err);

int state_fork(struct state *st, uint32_t from, uint32_t *to, struct err *err);
/* Keeps the first n tokens, n <= n_tokens; those from `held` on, held <= n, wait. */
int state_rewind(struct state *st, uint32_t slot, uint32_t n, uint32_t held, struct err *err);

/* What state_resume found. */
struct state_found {
    uint32_t held;        /* the slot's length now */
    uint32_t matched;     /* of its tokens, known from this or another conversation */
    uint32_t from[TIERS]; /* tokens taken over, by where they were */
    bool lacks_pages;     /* more was known, but pages ran out */
};
/* Takes over what the cache and other slots have of the slot's first `max` tokens, where that is
 * more than the slot holds. */
int state_resume(struct state *st, uint32_t slot, uint32_t max, struct state_found *found,
                 struct err *err);

/* An open, empty slot becomes one of `length` positions whose tokens are in place: its pages and
 * tables, not their contents. SLUICE_ERR_MEMORY when there are too few pages. For load. */
int state_adopt(struct state *st, uint32_t slot, uint32_t length, struct err *err);

/* Calls fn for every stretch of STATE that a slot's content is made of, in an order that depends
 * on the layout alone. */
typedef int stretch_fn(void *user, uint64_t offset, uint64_t bytes, struct err *err);
int state_each_stretch(const struct state *st, uint32_t slot, stretch_fn *fn, void *user,
                       struct err *err);
uint64_t state_stretch_bytes(const struct state *st, uint32_t length);

/* Starts to copy what state_resume would reuse of these n > 0 tokens from disk to host memory,
 * while steps run. Returns whether any such read is in flight. */
bool state_fetch(struct state *st, const int32_t *tokens, uint32_t n);

/* Attaches the tiers below the device (disk and fetch may be NULL); and, at the end, writes what is
 * on the device to them. */
int state_attach(struct state *st, struct host_tier *host, struct disk_tier *disk,
                 struct disk_fetch *fetch, struct err *err);
/* Once per step, best while it runs: copies what is to be evicted next to host memory. */
void state_copy_ahead(struct state *st);
/* Notes how long a step of this many rows took: state that is recomputed faster than copied out and
 * back is not copied. */
void state_note_step(struct state *st, uint32_t rows, double seconds);
void state_detach(struct state *st);

/* SLUICE_ERR_MEMORY with its text. */
int state_out_of_pages(const struct state *st, struct err *err);

/* The first broken invariant in words, NULL when all hold. For tests. */
const char *state_broken(const struct state *st);

#endif
