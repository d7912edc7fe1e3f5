/* state.c - the memory of sequences: slots, attention pages, snapshots.
 *
 * In: slot numbers and lengths from batch.c and api.c.  Out: which item of STATE belongs to whom.
 *
 * (1) A slot is open or closed. A closed one has no pages, no snapshots, no tokens.
 * (2) An open slot has exactly the pages that its length needs. A page's count of references is
 *     the number of slots that have it; it is on the free list when that is 0, and only then.
 * (3) There are as many pages as all slots at full length need, so that taking one never fails.
 * (4) A page that several slots have is only read: the positions a slot will write next lie in
 *     pages it has alone.
 * (5) A recurrent state is valid at the slot's length and nowhere else. It cannot be cut back:
 *     going back restores the newest snapshot at or before the target (at worst the empty state)
 *     and leaves the tokens from there on waiting, to be processed again.
 * (6) A snapshot is what the recurrent state was at a position that is a multiple of the grid,
 *     after the very tokens that stand before it in every slot that has it. Its count of references
 *     is the number of those slots.
 * (7) counts[slot] says how often each token stands among the slot's first `length` tokens.
 *
 * What may fail comes first, what changes the tables after it. */
#include "engine/state.h"

#include <string.h>

#include "base/size.h"
#include "plan/build.h"

enum { PAGE = IO_PAGE_POSITIONS };

static uint32_t pages_for(uint32_t positions) {
    return (positions + PAGE - 1) / PAGE;
}

/* ---- the layout -------------------------------------------------------------------------------
 */

static struct piece piece_of(const struct operand *o) {
    if (o->n_dims == 0)
        return (struct piece){0};
    return (struct piece){o->offset, operand_bytes(o) / o->dims[o->n_dims - 1]};
}

static void add_piece(struct piece *list, uint32_t *n, const struct operand *o, uint64_t *sum) {
    struct piece p = piece_of(o);
    list[(*n)++] = p;
    *sum += p.bytes;
}

int state_layout_of(struct state_layout *l, const struct plan *plan, struct arena *arena,
                    struct err *err) {
    *l = (struct state_layout){.recurrent =
                                   arena_array(arena, plan->n_ops, 2 * sizeof(struct piece)),
                               .paged = arena_array(arena, plan->n_ops, 2 * sizeof(struct piece))};
    if (!l->recurrent || !l->paged)
        return err_memory(err, "the layout of sequences");
    l->table = piece_of(&plan->pages);
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const struct op *op = &plan->ops[i];
        if (op->kind == OP_DELTA) {
            add_piece(l->recurrent, &l->n_recurrent, &op->delta.state, &l->recurrent_bytes);
            add_piece(l->recurrent, &l->n_recurrent, &op->delta.window, &l->recurrent_bytes);
        } else if (op->kind == OP_ATTEND) {
            add_piece(l->paged, &l->n_paged, &op->attend.keys, &l->page_bytes);
            add_piece(l->paged, &l->n_paged, &op->attend.values, &l->page_bytes);
        } else if (op->kind == OP_PICK) {
            l->counts = piece_of(&op->pick.counts);
        }
    }
    l->slot_bytes = l->recurrent_bytes + l->table.bytes + l->counts.bytes;
    return SLUICE_OK;
}

static uint64_t item(struct piece p, uint32_t i) {
    return p.offset + i * p.bytes;
}

/* ---- moving contents --------------------------------------------------------------------------
 */

static int write_zeros(const struct state *st, struct piece p, uint32_t slot, struct err *err) {
    return st->kind->clear_state(st->backend, item(p, slot), p.bytes, err);
}

static int zero_recurrent(const struct state *st, uint32_t slot, struct err *err) {
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < st->layout.n_recurrent; i++)
        status = write_zeros(st, st->layout.recurrent[i], slot, err);
    return status;
}

static int copy_piece(const struct state *st, struct piece p, uint32_t to, uint32_t from,
                      struct err *err) {
    return p.bytes == 0
               ? SLUICE_OK
               : st->kind->copy_state(st->backend, item(p, to), item(p, from), p.bytes, err);
}

static int copy_pieces(const struct state *st, const struct piece *list, uint32_t n, uint32_t to,
                       uint32_t from, struct err *err) {
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < n; i++)
        status = copy_piece(st, list[i], to, from, err);
    return status;
}

static int copy_recurrent(const struct state *st, uint32_t to, uint32_t from, struct err *err) {
    return copy_pieces(st, st->layout.recurrent, st->layout.n_recurrent, to, from, err);
}

/* The first n pages of the slot's table. */
static int write_table(const struct state *st, uint32_t slot, uint32_t n, struct err *err) {
    if (n == 0 || st->layout.table.bytes == 0)
        return SLUICE_OK;
    return st->kind->write_state(st->backend, item(st->layout.table, slot), n * sizeof(uint32_t),
                                 st->slots[slot].pages, err);
}

/* What the counts are after the first n tokens. */
static int write_counts(struct state *st, uint32_t slot, uint32_t n, struct err *err) {
    if (st->layout.counts.bytes == 0)
        return SLUICE_OK;
    memset(st->counts, 0, st->options.n_vocab * sizeof *st->counts);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t *count = &st->counts[st->slots[slot].tokens[i]];
        *count += *count < UINT16_MAX;
    }
    return st->kind->write_state(st->backend, item(st->layout.counts, slot),
                                 st->layout.counts.bytes, st->counts, err);
}

/* ---- tables -----------------------------------------------------------------------------------
 */

static bool make_slot(struct state *st, struct slot *s, struct arena *arena) {
    s->tokens = arena_array(arena, st->options.context, sizeof *s->tokens);
    s->pages = arena_array(arena, st->options.pages_per_seq, sizeof *s->pages);
    s->snapshots = arena_array(arena, st->n_grid, sizeof *s->snapshots);
    for (uint32_t i = 0; s->snapshots && i < st->n_grid; i++)
        s->snapshots[i] = NO_SNAPSHOT;
    return s->tokens && s->pages && s->snapshots;
}

int state_init(struct state *st, const struct state_options *options, struct arena *arena,
               struct err *err) {
    st->options = *options;
    st->n_grid = options->n_snapshots ? options->context / options->grid : 0;
    st->n_pages = options->n_slots * options->pages_per_seq;
    st->slots = arena_array(arena, options->n_slots, sizeof *st->slots);
    st->snapshots = arena_array(arena, options->n_snapshots, sizeof *st->snapshots);
    st->page_refs = arena_array(arena, st->n_pages, sizeof *st->page_refs);
    st->free_pages = arena_array(arena, st->n_pages, sizeof *st->free_pages);
    st->counts = arena_array(arena, options->n_vocab, sizeof *st->counts);
    bool is_made = st->slots && st->snapshots && st->page_refs && st->free_pages && st->counts;
    for (uint32_t i = 0; is_made && i < options->n_slots; i++)
        is_made = make_slot(st, &st->slots[i], arena);
    if (!is_made)
        return err_memory(err, "the tables of sequences");
    while (st->n_free < st->n_pages) { /* the lowest number is taken first */
        st->free_pages[st->n_free] = st->n_pages - 1 - st->n_free;
        st->n_free++;
    }
    return SLUICE_OK;
}

static uint32_t take_page(struct state *st) {
    CHECK(st->n_free > 0);
    uint32_t page = st->free_pages[--st->n_free];
    st->page_refs[page] = 1;
    return page;
}

static void drop_page(struct state *st, uint32_t page) {
    CHECK(st->page_refs[page] > 0);
    if (--st->page_refs[page] == 0)
        st->free_pages[st->n_free++] = page;
}

/* ---- snapshots --------------------------------------------------------------------------------
 */

static bool is_recurrent(const struct state *st) {
    return st->layout.n_recurrent > 0;
}

/* Gives up the snapshots from entry `first` on. */
static void drop_snapshots(struct state *st, struct slot *s, uint32_t first) {
    for (uint32_t i = first; i < st->n_grid; i++) {
        if (s->snapshots[i] != NO_SNAPSHOT)
            st->snapshots[s->snapshots[i]].refs--;
        s->snapshots[i] = NO_SNAPSHOT;
    }
}

/* A snapshot nobody has, for which the one longest unused may have to go. */
static uint32_t free_snapshot(struct state *st) {
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < st->options.n_snapshots; i++) {
        if (st->snapshots[i].refs == 0)
            return i;
        if (st->snapshots[i].used < st->snapshots[oldest].used)
            oldest = i;
    }
    for (uint32_t s = 0; s < st->options.n_slots; s++)
        for (uint32_t i = 0; i < st->n_grid; i++)
            if (st->slots[s].snapshots[i] == oldest)
                st->slots[s].snapshots[i] = NO_SNAPSHOT;
    st->snapshots[oldest].refs = 0;
    return oldest;
}

static int take_snapshot(struct state *st, uint32_t slot, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t entry = s->length / st->options.grid - 1;
    if (s->snapshots[entry] != NO_SNAPSHOT)
        return SLUICE_OK;
    uint32_t n = free_snapshot(st);
    int status = copy_recurrent(st, st->options.n_slots + n, slot, err);
    if (status)
        return status;
    s->snapshots[entry] = n;
    st->snapshots[n] = (struct snapshot){.refs = 1, .used = ++st->clock};
    st->n_taken++;
    return SLUICE_OK;
}

/* The newest snapshot at or before position n: its entry, or n_grid when there is none. */
static uint32_t find_snapshot(const struct state *st, const struct slot *s, uint32_t n) {
    for (uint32_t i = st->n_grid ? n / st->options.grid : 0; i-- > 0;)
        if (s->snapshots[i] != NO_SNAPSHOT)
            return i;
    return st->n_grid;
}

/* ---- a slot's life ----------------------------------------------------------------------------
 */

int state_open(struct state *st, uint32_t *slot, struct err *err) {
    uint32_t i = 0;
    while (i < st->options.n_slots && st->slots[i].is_open)
        i++;
    if (i == st->options.n_slots)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "%u sequences are open, expected fewer: the engine has room for no more", i);
    int status = zero_recurrent(st, i, err);
    if (!status && st->layout.counts.bytes)
        status = write_zeros(st, st->layout.counts, i, err);
    if (status)
        return status;
    st->slots[i].is_open = true;
    *slot = i;
    return SLUICE_OK;
}

void state_close(struct state *st, uint32_t slot) {
    struct slot *s = &st->slots[slot];
    CHECK(s->is_open);
    drop_snapshots(st, s, 0);
    while (s->n_pages > 0)
        drop_page(st, s->pages[--s->n_pages]);
    s->length = s->n_tokens = 0;
    s->is_open = false;
}

/* A burst reserves for tokens that are not known yet. */
uint32_t state_reserve(struct state *st, uint32_t slot, uint32_t rows, struct io_change *changes) {
    struct slot *s = &st->slots[slot];
    uint32_t n = 0, needed = pages_for(s->length + rows);
    CHECK(s->length + rows <= st->options.context && s->n_tokens <= st->options.context);
    for (; s->n_pages < needed; s->n_pages++, n++) {
        s->pages[s->n_pages] = take_page(st);
        changes[n] = (struct io_change){slot, s->n_pages, s->pages[s->n_pages], 0};
    }
    return n;
}

uint32_t state_room(const struct state *st, uint32_t slot) {
    if (st->n_grid == 0)
        return UINT32_MAX;
    return st->options.grid - st->slots[slot].length % st->options.grid;
}

uint32_t state_rows_to_last(const struct state *st, uint32_t slot, uint32_t most) {
    uint32_t length = st->slots[slot].length;
    if (st->n_grid == 0 || most < state_room(st, slot))
        return most;
    return most - (length + most) % st->options.grid;
}

int state_advance(struct state *st, uint32_t slot, uint32_t rows, struct err *err) {
    struct slot *s = &st->slots[slot];
    s->length += rows;
    bool is_due = st->n_grid && s->length % st->options.grid == 0;
    return is_due ? take_snapshot(st, slot, err) : SLUICE_OK;
}

/* ---- fork -------------------------------------------------------------------------------------
 */

/* Full pages become common property; one that is begun is copied, for both will write to it. */
static int share_pages(struct state *st, const struct slot *from, struct slot *to,
                       struct err *err) {
    uint32_t full = from->length / PAGE;
    int status = SLUICE_OK;
    for (uint32_t i = 0; i < from->n_pages; i++) {
        to->pages[i] = i < full ? from->pages[i] : take_page(st);
        if (i < full)
            st->page_refs[to->pages[i]]++;
        else if (!status)
            status = copy_pieces(st, st->layout.paged, st->layout.n_paged, to->pages[i],
                                 from->pages[i], err);
    }
    to->n_pages = from->n_pages;
    return status;
}

int state_fork(struct state *st, uint32_t from, uint32_t *to, struct err *err) {
    int status = state_open(st, to, err);
    if (status)
        return status;
    const struct slot *old = &st->slots[from];
    struct slot *new = &st->slots[*to];
    status = copy_recurrent(st, *to, from, err);
    if (!status)
        status = copy_piece(st, st->layout.counts, *to, from, err);
    if (!status)
        status = share_pages(st, old, new, err);
    if (!status)
        status = write_table(st, *to, new->n_pages, err);
    if (status) {
        state_close(st, *to);
        return status;
    }
    memcpy(new->tokens, old->tokens, old->n_tokens * sizeof *old->tokens);
    new->n_tokens = old->n_tokens;
    new->length = old->length;
    for (uint32_t i = 0; i < st->n_grid; i++) {
        new->snapshots[i] = old->snapshots[i];
        if (new->snapshots[i] != NO_SNAPSHOT)
            st->snapshots[new->snapshots[i]].refs++;
    }
    return SLUICE_OK;
}

/* ---- rewind -----------------------------------------------------------------------------------
 */

/* The recurrent state back to the newest snapshot at or before n; *length: its position. */
static int restore(struct state *st, uint32_t slot, uint32_t n, uint32_t *length, struct err *err) {
    uint32_t entry = find_snapshot(st, &st->slots[slot], n);
    if (entry == st->n_grid) {
        *length = 0;
        return zero_recurrent(st, slot, err);
    }
    uint32_t number = st->slots[slot].snapshots[entry];
    st->snapshots[number].used = ++st->clock;
    st->n_used++;
    *length = (entry + 1) * st->options.grid;
    return copy_recurrent(st, slot, st->options.n_slots + number, err);
}

/* The page that position `length` will go to, when it is begun and others have it too, becomes
 * the slot's own. */
static int own_last_page(struct state *st, uint32_t slot, uint32_t length, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t index = length / PAGE, old = s->pages[index];
    if (length % PAGE == 0 || st->page_refs[old] == 1)
        return SLUICE_OK;
    uint32_t own = take_page(st);
    int status = copy_pieces(st, st->layout.paged, st->layout.n_paged, own, old, err);
    if (status) {
        drop_page(st, own);
        return status;
    }
    drop_page(st, old);
    s->pages[index] = own;
    return write_table(st, slot, index + 1, err);
}

/* The slot's memory becomes that of its first n positions, or of fewer: then tokens wait. */
static int go_back(struct state *st, uint32_t slot, uint32_t n, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t length = n;
    int status = is_recurrent(st) ? restore(st, slot, n, &length, err) : SLUICE_OK;
    if (!status)
        status = write_counts(st, slot, length, err);
    if (!status)
        status = own_last_page(st, slot, length, err);
    if (status)
        return status;
    while (s->n_pages > pages_for(length))
        drop_page(st, s->pages[--s->n_pages]);
    s->length = length;
    return SLUICE_OK;
}

int state_rewind(struct state *st, uint32_t slot, uint32_t n, uint32_t held, struct err *err) {
    struct slot *s = &st->slots[slot];
    CHECK(s->is_open && held <= n && n <= s->n_tokens);
    int status = held < s->length ? go_back(st, slot, held, err) : SLUICE_OK;
    if (status)
        return status;
    drop_snapshots(st, s, st->n_grid ? n / st->options.grid : 0);
    s->n_tokens = n;
    return SLUICE_OK;
}

int state_undo(struct state *st, uint32_t slot, struct err *err) {
    return go_back(st, slot, st->slots[slot].length, err);
}

/* ---- save and load ----------------------------------------------------------------------------
 */

int state_adopt(struct state *st, uint32_t slot, uint32_t length, struct err *err) {
    struct slot *s = &st->slots[slot];
    CHECK(s->is_open && s->n_pages == 0 && length <= s->n_tokens);
    while (s->n_pages < pages_for(length))
        s->pages[s->n_pages++] = take_page(st);
    s->length = length;
    int status = write_counts(st, slot, length, err);
    return status ? status : write_table(st, slot, s->n_pages, err);
}

int state_each_stretch(const struct state *st, uint32_t slot, stretch_fn *fn, void *user,
                       struct err *err) {
    const struct state_layout *l = &st->layout;
    const struct slot *s = &st->slots[slot];
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < l->n_recurrent; i++)
        status = fn(user, item(l->recurrent[i], slot), l->recurrent[i].bytes, err);
    for (uint32_t p = 0; !status && p < s->n_pages; p++)
        for (uint32_t i = 0; !status && i < l->n_paged; i++)
            status = fn(user, item(l->paged[i], s->pages[p]), l->paged[i].bytes, err);
    return status;
}

uint64_t state_stretch_bytes(const struct state *st, uint32_t length) {
    return st->layout.recurrent_bytes + pages_for(length) * st->layout.page_bytes;
}

/* ---- invariants -------------------------------------------------------------------------------
 */

static const char *broken_slot(const struct state *st, const struct slot *s) {
    uint32_t n_snapshots = 0;
    for (uint32_t i = 0; i < st->n_grid; i++)
        n_snapshots += s->snapshots[i] != NO_SNAPSHOT;
    if (!s->is_open)
        return s->n_pages || n_snapshots || s->n_tokens || s->length
                   ? "(1) a closed slot has memory"
                   : NULL;
    if (s->length > s->n_tokens || s->n_tokens > st->options.context)
        return "(1) a slot is longer than its tokens, or than the context";
    if (s->n_pages != pages_for(s->length))
        return "(2) a slot has other pages than its length needs";
    if (s->length % PAGE && st->page_refs[s->pages[s->n_pages - 1]] != 1)
        return "(4) a page that will be written is shared";
    for (uint32_t i = 0; i < st->n_grid; i++)
        if (s->snapshots[i] != NO_SNAPSHOT && (i + 1) * st->options.grid > s->n_tokens)
            return "(6) a snapshot is of a position after the last token";
    return NULL;
}

static uint32_t count_page(const struct state *st, uint32_t page) {
    uint32_t n = 0;
    for (uint32_t s = 0; s < st->options.n_slots; s++)
        for (uint32_t i = 0; i < st->slots[s].n_pages; i++)
            n += st->slots[s].pages[i] == page;
    return n;
}

static uint32_t count_snapshot(const struct state *st, uint32_t number) {
    uint32_t n = 0;
    for (uint32_t s = 0; s < st->options.n_slots; s++)
        for (uint32_t i = 0; i < st->n_grid; i++)
            n += st->slots[s].snapshots[i] == number;
    return n;
}

const char *state_broken(const struct state *st) {
    uint32_t n_unused = 0;
    for (uint32_t i = 0; i < st->options.n_slots; i++) {
        const char *broken = broken_slot(st, &st->slots[i]);
        if (broken)
            return broken;
    }
    for (uint32_t i = 0; i < st->n_pages; i++) {
        if (count_page(st, i) != st->page_refs[i])
            return "(2) a page's references are miscounted";
        n_unused += st->page_refs[i] == 0;
    }
    for (uint32_t i = 0; i < st->n_free; i++)
        if (st->page_refs[st->free_pages[i]] != 0)
            return "(2) a page in use is on the free list";
    if (n_unused != st->n_free)
        return "(2) the free list has lost a page, or has one twice";
    for (uint32_t i = 0; i < st->options.n_snapshots; i++)
        if (count_snapshot(st, i) != st->snapshots[i].refs)
            return "(6) a snapshot's references are miscounted";
    return NULL;
}
