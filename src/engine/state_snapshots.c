/* state_snapshots.c - what the cache gets of a slot: its full pages as blocks, and snapshots of its
 * recurrent state, at the end of a step, in its middle, and after drafts that were right.
 *
 * A cell is handed over, never copied, where the step itself has stored the state to it: see (8) in
 * state.c. */
#include <string.h>

#include "base/size.h"
#include "engine/state_internal.h"

int state_enter_blocks(struct state *st, uint32_t slot, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t first = UINT32_MAX;
    for (uint32_t at; (at = cache_entry(&st->cache, s->block)->position) + PAGE <= s->length;) {
        uint32_t *page = &s->pages[at / PAGE];
        uint32_t e = cache_block(&st->cache, s->block, s->tokens + at, *page);
        if (e == NO_ENTRY)
            break;
        uint32_t known = cache_entry(&st->cache, e)->page;
        s->block = e;
        if (known == *page)
            continue;
        page_share(&st->pages, known, PAGE);
        page_drop(&st->pages, *page, slot);
        *page = known;
        first = min_u32(first, at / PAGE);
    }
    return state_write_table(st, slot, first, err);
}

/* Makes a snapshot of the slot's first `position` tokens, unless there is one or it does not fit.
 * Full pages are in the cache. cell: NO_CELL where state is not recurrent; else the cache owns it
 * from now on. */
static void keep_snapshot(struct state *st, uint32_t slot, uint32_t position, uint32_t cell) {
    struct slot *s = &st->slots[slot];
    struct cache *c = &st->cache;
    uint32_t tail = position % PAGE, at = position - tail;
    uint32_t block = cache_block_before(c, s->block, position);
    bool is_kept =
        cache_entry(c, block)->position == at &&
        !cache_has_snapshot(c, block, s->tokens + at, tail) &&
        cache_snapshot(c, block, s->tokens + at, tail, tail ? s->pages[at / PAGE] : NO_PAGE, cell);
    if (cell != NO_CELL && !is_kept)
        cache_return_cell(c, cell);
    st->n_taken += is_kept && cell != NO_CELL;
}

int state_take_snapshot(struct state *st, uint32_t slot, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t tail = s->length % PAGE, cell = NO_CELL;
    bool is_known = cache_entry(&st->cache, s->block)->position == s->length - tail &&
                    cache_has_snapshot(&st->cache, s->block, s->tokens + s->length - tail, tail);
    if (is_known || s->length == 0 || (!state_is_recurrent(st) && tail == 0))
        return SLUICE_OK;
    if (state_is_recurrent(st) && (cell = cache_take_cell(&st->cache)) == NO_CELL)
        return SLUICE_OK;
    int status = state_is_recurrent(st) ? state_copy_recurrent(st, cell, s->cell, err) : SLUICE_OK;
    if (!status)
        keep_snapshot(st, slot, s->length, cell);
    else
        cache_return_cell(&st->cache, cell);
    return status;
}

void state_write_through(struct state *st, const struct slot *s) {
    uint32_t e = cache_snapshot_before(&st->cache, s->block, s->tokens, s->length);
    if (e != NO_ENTRY &&
        cache_entry(&st->cache, e)->position >= cache_entry(&st->cache, s->block)->position)
        cache_write_through(&st->cache, e);
    else if (!state_is_recurrent(st))
        cache_write_through(&st->cache, s->block);
}

/* ---- marks -------------------------------------------------------------------------------- */

/* The next position that is to become a snapshot; UINT32_MAX: there is none. */
static uint32_t next_snapshot(const struct state *st, const struct slot *s) {
    if (st->options.n_snapshots == 0)
        return UINT32_MAX;
    uint32_t regular =
        s->length - s->length % st->options.snapshot_every + st->options.snapshot_every;
    return s->n_marks ? min_u32(s->marks[0], regular) : regular;
}

uint32_t state_rows_to_snapshot(const struct state *st, uint32_t slot) {
    const struct slot *s = &st->slots[slot];
    return next_snapshot(st, s) - s->length;
}

uint32_t state_pass_marks(struct slot *s) {
    uint32_t n = 0, last = 0;
    while (n < s->n_marks && s->marks[n] <= s->length)
        last = s->marks[n++];
    s->n_marks -= n;
    memmove(s->marks, s->marks + n, s->n_marks * sizeof *s->marks);
    return last;
}

bool state_is_due(const struct state *st, uint32_t n, bool on_mark) {
    return st->options.n_snapshots && (on_mark || n % st->options.snapshot_every == 0);
}

int state_mark(struct state *st, uint32_t slot, uint32_t n, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t i = 0;
    CHECK(n >= s->length && n <= s->n_tokens);
    if (st->options.n_snapshots == 0)
        return SLUICE_OK;
    if (n == s->length)
        return state_take_snapshot(st, slot, err);
    while (i < s->n_marks && s->marks[i] < n)
        i++;
    if (i < s->n_marks && s->marks[i] == n)
        return SLUICE_OK;
    if (s->n_marks == MAX_MARKS)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "the sequence has %d marks that it has not reached, expected fewer",
                       MAX_MARKS);
    memmove(s->marks + i + 1, s->marks + i, (s->n_marks++ - i) * sizeof *s->marks);
    s->marks[i] = n;
    return SLUICE_OK;
}

/* ---- a step's snapshots ------------------------------------------------------------------- */

void state_begin_step(struct state *st) {
    st->n_planned = st->n_spare_used = 0;
}

/* The last places come first: they save the most work. A single step leaves half of the cells to
 * others. */
void state_plan_snapshots(struct state *st, uint32_t slot, uint32_t rows) {
    struct slot *s = &st->slots[slot];
    uint32_t end = s->length + rows, every = st->options.snapshot_every, n_marks = s->n_marks;
    uint32_t max = (st->options.n_snapshots + 1) / 2;
    s->first_planned = st->n_planned;
    for (uint32_t p = end - 1; st->n_planned < max; p--) {
        while (n_marks && s->marks[n_marks - 1] > p)
            n_marks--;
        uint32_t mark = n_marks ? s->marks[n_marks - 1] : 0;
        p = p - p % every > mark ? p - p % every : mark;
        uint32_t cell = p > s->length ? cache_take_cell(&st->cache) : NO_CELL;
        if (cell == NO_CELL)
            break;
        st->planned[st->n_planned++] = (struct planned){p, cell};
    }
    s->n_planned = st->n_planned - s->first_planned;
}

void state_end_planned(struct state *st, uint32_t slot, bool is_there) {
    struct slot *s = &st->slots[slot];
    for (; s->n_planned > 0; s->n_planned--) {
        const struct planned *p = &st->planned[s->first_planned + s->n_planned - 1];
        if (is_there)
            keep_snapshot(st, slot, p->position, p->cell);
        else
            cache_return_cell(&st->cache, p->cell);
    }
}

/* ---- drafts ------------------------------------------------------------------------------- */

uint32_t state_plan_drafts(struct state *st, uint32_t slot, uint32_t n) {
    struct slot *s = &st->slots[slot];
    if (state_is_recurrent(st))
        n = min_u32(n, st->options.n_spare - st->n_spare_used);
    s->first_spare = st->n_spare_used;
    s->n_drafted = n;
    st->n_spare_used += state_is_recurrent(st) ? n : 0;
    return n;
}

static void swap(uint32_t *a, uint32_t *b) {
    uint32_t was = *a;
    *a = *b;
    *b = was;
}

/* Makes the state after the first `position` tokens, in a spare cell, a snapshot; the cache gives
 * another cell in exchange. */
static void keep_spare(struct state *st, uint32_t slot, uint32_t position, uint32_t *spare) {
    uint32_t cell = cache_take_cell(&st->cache);
    if (cell == NO_CELL)
        return;
    swap(spare, &cell);
    keep_snapshot(st, slot, position, cell);
}

void state_end_drafts(struct state *st, uint32_t slot, uint32_t first, uint32_t kept,
                      bool on_mark) {
    struct slot *s = &st->slots[slot];
    if (!state_is_recurrent(st))
        return;
    if (kept < s->n_drafted)
        swap(&s->cell, &st->spare[s->first_spare + kept]);
    for (uint32_t i = 0; i < kept; i++)
        if (state_is_due(st, first + i, i == 0 && on_mark))
            keep_spare(st, slot, first + i, &st->spare[s->first_spare + i]);
}

uint32_t state_borrow_cell(struct state *st) {
    if (!state_is_recurrent(st))
        return NO_CELL;
    return st->options.n_spare ? st->spare[0] : cache_take_cell(&st->cache);
}

void state_return_cell(struct state *st, uint32_t cell) {
    if (cell != NO_CELL && !st->options.n_spare)
        cache_return_cell(&st->cache, cell);
}
