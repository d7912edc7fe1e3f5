/* state.c - the memory of sequences: slots, attention pages, snapshots.
 *
 * In: slot numbers and lengths from batch.c and api.c.  Out: which item of STATE belongs to whom.
 *
 * (1) A slot is open or closed. A closed one has no pages, no snapshots, no tokens.
 * (2) Between steps an open slot has exactly the pages that its length needs. A page's count of
 *     references is the number of slots that have it.
 * (3) Pages are taken as a slot grows, all that a step's rows need or none. There may be fewer than
 *     all slots at full length need: a slot that finds none is left out of the step and loses
 *     nothing.
 * (4) A slot writes only to pages that it may write to (pages.c). One that others read up to the
 *     slot's length or beyond is copied first, by the step that writes.
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
    st->slots = arena_array(arena, options->n_slots, sizeof *st->slots);
    st->snapshots = arena_array(arena, options->n_snapshots, sizeof *st->snapshots);
    st->counts = arena_array(arena, options->n_vocab, sizeof *st->counts);
    bool is_made =
        st->slots && st->snapshots && st->counts && pages_init(&st->pages, options->n_pages, arena);
    for (uint32_t i = 0; is_made && i < options->n_slots; i++)
        is_made = make_slot(st, &st->slots[i], arena);
    return is_made ? SLUICE_OK : err_memory(err, "the tables of sequences");
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

/* ---- pages ------------------------------------------------------------------------------------
 */

/* Those from entry n on. */
static void drop_pages(struct state *st, uint32_t slot, uint32_t n) {
    struct slot *s = &st->slots[slot];
    while (s->n_pages > n)
        page_drop(&st->pages, s->pages[--s->n_pages], slot);
}

bool state_must_copy(const struct state *st, uint32_t slot) {
    const struct slot *s = &st->slots[slot];
    uint32_t place = s->length % PAGE;
    return place && !page_is_writable(&st->pages, s->pages[s->length / PAGE], slot, place);
}

uint32_t state_page_room(const struct state *st, uint32_t slot) {
    const struct slot *s = &st->slots[slot];
    uint64_t n = (uint64_t)s->n_pages + pages_available(&st->pages) - state_must_copy(st, slot);
    uint64_t end = n * PAGE;
    return end <= s->length
               ? 0
               : (uint32_t)(end - s->length < UINT32_MAX ? end - s->length : UINT32_MAX);
}

/* The page that position `length` goes to becomes one that the slot may write to. */
static int own_last_page(struct state *st, uint32_t slot, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t *entry = &s->pages[s->length / PAGE];
    if (!state_must_copy(st, slot)) {
        page_own(&st->pages, *entry, slot);
        return SLUICE_OK;
    }
    uint32_t own = page_take(&st->pages, slot);
    int status = copy_pieces(st, st->layout.paged, st->layout.n_paged, own, *entry, err);
    page_drop(&st->pages, status ? own : *entry, slot);
    if (!status)
        *entry = own;
    return status;
}

/* A burst reserves for tokens that are not known yet. */
int state_reserve(struct state *st, uint32_t slot, uint32_t rows, uint32_t *first,
                  struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t needed = pages_for(s->length + rows);
    bool is_copied = state_must_copy(st, slot);
    CHECK(s->length + rows <= st->options.context && rows <= state_page_room(st, slot));
    *first = s->n_pages - is_copied;
    int status = s->length % PAGE ? own_last_page(st, slot, err) : SLUICE_OK;
    while (!status && s->n_pages < needed)
        s->pages[s->n_pages++] = page_take(&st->pages, slot);
    return status;
}

int state_out_of_pages(const struct state *st, struct err *err) {
    return err_set(err, SLUICE_ERR_MEMORY,
                   "all %u pages of the KV cache are in use, expected a free one: close a sequence "
                   "or open the engine with more (kv_bytes)",
                   st->pages.n);
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
    drop_pages(st, slot, 0);
    s->length = s->n_tokens = 0;
    s->is_open = s->is_starved = false;
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

/* Pages become common property, also one that is begun: the old slot goes on writing after what the
 * new one reads, and the new one copies it before it writes. */
static void share_pages(struct state *st, const struct slot *from, struct slot *to) {
    for (uint32_t i = 0; i < from->n_pages; i++) {
        page_share(&st->pages, from->pages[i], min_u32(from->length - i * PAGE, PAGE));
        to->pages[i] = from->pages[i];
    }
    to->n_pages = from->n_pages;
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
    if (!status) {
        share_pages(st, old, new);
        status = write_table(st, *to, new->n_pages, err);
    }
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

/* The slot's memory becomes that of its first n positions, or of fewer: then tokens wait. */
static int go_back(struct state *st, uint32_t slot, uint32_t n, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t length = n;
    int status = is_recurrent(st) ? restore(st, slot, n, &length, err) : SLUICE_OK;
    if (!status)
        status = write_counts(st, slot, length, err);
    if (status)
        return status;
    drop_pages(st, slot, pages_for(length));
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

/* A page that the step copied may not have come to stand in the table. */
int state_undo(struct state *st, uint32_t slot, struct err *err) {
    int status = go_back(st, slot, st->slots[slot].length, err);
    return status ? status : write_table(st, slot, st->slots[slot].n_pages, err);
}

/* ---- save and load ----------------------------------------------------------------------------
 */

int state_adopt(struct state *st, uint32_t slot, uint32_t length, struct err *err) {
    struct slot *s = &st->slots[slot];
    CHECK(s->is_open && s->n_pages == 0 && length <= s->n_tokens);
    if (pages_for(length) > pages_available(&st->pages))
        return state_out_of_pages(st, err);
    while (s->n_pages < pages_for(length))
        s->pages[s->n_pages++] = page_take(&st->pages, slot);
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
    for (uint32_t i = 0; i < s->n_pages; i++) {
        const struct page *p = &st->pages.at[s->pages[i]];
        bool is_own = p->refs == 1 || p->owner == (uint32_t)(s - st->slots);
        if (!is_own && p->frozen < min_u32(s->length - i * PAGE, PAGE))
            return "(4) a page may be written where another slot reads it";
    }
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
    for (uint32_t i = 0; i < st->pages.n; i++) {
        if (count_page(st, i) != st->pages.at[i].refs)
            return "(2) a page's references are miscounted";
        n_unused += st->pages.at[i].refs == 0;
    }
    for (uint32_t i = 0; i < st->pages.n_free; i++)
        if (st->pages.at[st->pages.free[i]].refs != 0)
            return "(2) a page in use is on the free list";
    if (n_unused != st->pages.n_free)
        return "(2) the free list has lost a page, or has one twice";
    for (uint32_t i = 0; i < st->options.n_snapshots; i++)
        if (count_snapshot(st, i) != st->snapshots[i].refs)
            return "(6) a snapshot's references are miscounted";
    return NULL;
}
