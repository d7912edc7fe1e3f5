/* state.c - the memory of sequences: slots, pages of the KV cache, recurrent state, snapshots.
 *
 * In: slot numbers and lengths from batch.c and api.c.  Out: which item of STATE belongs to whom.
 *
 * (1) A slot is open or closed. A closed one has no pages, no marks, no tokens.
 * (2) Between steps an open slot has exactly the pages that its length needs. A page's count of
 *     references is the number of slots and of entries of the cache that have it.
 * (3) Pages are taken as a slot grows, all that a step's rows need or none. There may be fewer than
 *     all slots at full length need: a slot that finds none is left out of the step and loses
 *     nothing.
 * (4) A slot writes only to pages that it may write to (pages.c). One that others read up to the
 *     slot's length or beyond is copied first, by the step that writes.
 * (5) A recurrent state is valid at the slot's length and nowhere else. It cannot be cut back:
 *     going back restores the newest snapshot at or before the target (at worst the empty state)
 *     and leaves the tokens from there on waiting, to be processed again.
 * (6) A page that is full is entered into the cache by the step that filled it. A slot's pages up
 *     to `block` are those of that block and the ones before it: where another conversation had
 *     the same tokens before, the slot takes its page and gives up its own.
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

/* Entries of the slot's table from `first` on. */
static int write_table(const struct state *st, uint32_t slot, uint32_t first, struct err *err) {
    const struct slot *s = &st->slots[slot];
    if (first >= s->n_pages || st->layout.table.bytes == 0)
        return SLUICE_OK;
    return st->kind->write_state(st->backend,
                                 item(st->layout.table, slot) + first * sizeof *s->pages,
                                 (s->n_pages - first) * sizeof *s->pages, s->pages + first, err);
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

static bool is_recurrent(const struct state *st) {
    return st->layout.n_recurrent > 0;
}

static bool make_slot(struct state *st, struct slot *s, struct arena *arena) {
    s->tokens = arena_array(arena, st->options.context, sizeof *s->tokens);
    s->pages = arena_array(arena, st->options.pages_per_seq, sizeof *s->pages);
    return s->tokens && s->pages;
}

/* Blocks have a page each, and so many snapshots are there at most: where state is recurrent they
 * have a cell, elsewhere a tail's page. */
static struct cache_options cache_options_of(const struct state *st) {
    const struct state_options *o = &st->options;
    return (struct cache_options){
        .n_entries = o->n_pages + (is_recurrent(st) ? o->n_snapshots : o->n_pages),
        .first_cell = o->n_slots,
        .n_cells = o->n_snapshots,
        .is_recurrent = is_recurrent(st),
        .page_bytes = st->layout.page_bytes,
        .cell_bytes = st->layout.recurrent_bytes,
    };
}

int state_init(struct state *st, const struct state_options *options, struct arena *arena,
               struct err *err) {
    st->options = *options;
    const struct cache_options cache = cache_options_of(st);
    st->slots = arena_array(arena, options->n_slots, sizeof *st->slots);
    st->counts = arena_array(arena, options->n_vocab, sizeof *st->counts);
    st->planned = arena_array(arena, options->n_snapshots, sizeof *st->planned);
    st->room_pages = arena_array(arena, options->pages_per_seq, sizeof *st->room_pages);
    bool is_made = st->slots && st->counts && st->planned && st->room_pages &&
                   pages_init(&st->pages, options->n_pages, arena) &&
                   cache_init(&st->cache, &cache, &st->pages, arena);
    for (uint32_t i = 0; is_made && i < options->n_slots; i++)
        is_made = make_slot(st, &st->slots[i], arena);
    return is_made ? SLUICE_OK : err_memory(err, "the tables of sequences");
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

/* ---- what the cache gets ----------------------------------------------------------------------
 */

/* Full pages become blocks of the cache. */
static int enter_blocks(struct state *st, uint32_t slot, struct err *err) {
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
    return write_table(st, slot, first, err);
}

/* The first `position` tokens of the slot become a snapshot, unless they are one or there is no
 * room. Full pages are in the cache. NO_CELL where state is not recurrent; else the cell is the
 * cache's from now on. */
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

/* The slot as it is becomes a snapshot. */
static int take_snapshot(struct state *st, uint32_t slot, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t tail = s->length % PAGE, cell = NO_CELL;
    bool is_known = cache_entry(&st->cache, s->block)->position == s->length - tail &&
                    cache_has_snapshot(&st->cache, s->block, s->tokens + s->length - tail, tail);
    if (is_known || s->length == 0 || (!is_recurrent(st) && tail == 0))
        return SLUICE_OK;
    if (is_recurrent(st) && (cell = cache_take_cell(&st->cache)) == NO_CELL)
        return SLUICE_OK;
    int status = is_recurrent(st) ? copy_recurrent(st, cell, slot, err) : SLUICE_OK;
    if (!status)
        keep_snapshot(st, slot, s->length, cell);
    else
        cache_return_cell(&st->cache, cell);
    return status;
}

void state_begin_step(struct state *st) {
    st->n_planned = 0;
}

/* The last places come first: they spare most. A single step leaves half of the cells to others. */
void state_plan_snapshots(struct state *st, uint32_t slot, uint32_t rows) {
    struct slot *s = &st->slots[slot];
    uint32_t end = s->length + rows, grid = st->options.grid, n_marks = s->n_marks;
    uint32_t most = (st->options.n_snapshots + 1) / 2;
    s->first_planned = st->n_planned;
    for (uint32_t p = end - 1; st->n_planned < most; p--) {
        while (n_marks && s->marks[n_marks - 1] > p)
            n_marks--;
        uint32_t mark = n_marks ? s->marks[n_marks - 1] : 0;
        p = p - p % grid > mark ? p - p % grid : mark;
        uint32_t cell = p > s->length ? cache_take_cell(&st->cache) : NO_CELL;
        if (cell == NO_CELL)
            break;
        st->planned[st->n_planned++] = (struct planned){p, cell};
    }
    s->n_planned = st->n_planned - s->first_planned;
}

/* What was planned is there now, or will never be. */
static void end_planned(struct state *st, uint32_t slot, bool is_there) {
    struct slot *s = &st->slots[slot];
    for (; s->n_planned > 0; s->n_planned--) {
        const struct planned *p = &st->planned[s->first_planned + s->n_planned - 1];
        if (is_there)
            keep_snapshot(st, slot, p->position, p->cell);
        else
            cache_return_cell(&st->cache, p->cell);
    }
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

void state_close(struct state *st, uint32_t slot, bool is_kept) {
    struct slot *s = &st->slots[slot];
    struct err ignored; /* the device's: then nothing is kept */
    CHECK(s->is_open);
    end_planned(st, slot, false);
    if (is_kept && enter_blocks(st, slot, &ignored) == SLUICE_OK)
        take_snapshot(st, slot, &ignored);
    drop_pages(st, slot, 0);
    s->length = s->n_tokens = s->n_marks = 0;
    s->block = CACHE_ROOT;
    s->is_open = s->is_starved = s->is_rewound = false;
}

/* The next position that is to become a snapshot; UINT32_MAX: there is none. */
static uint32_t next_snapshot(const struct state *st, const struct slot *s) {
    if (st->options.n_snapshots == 0)
        return UINT32_MAX;
    uint32_t on_grid = s->length - s->length % st->options.grid + st->options.grid;
    return s->n_marks ? min_u32(s->marks[0], on_grid) : on_grid;
}

uint32_t state_room(const struct state *st, uint32_t slot) {
    const struct slot *s = &st->slots[slot];
    return next_snapshot(st, s) - s->length;
}

/* Marks that the slot has reached are done with; the last of them, 0: there was none. */
static uint32_t pass_marks(struct slot *s) {
    uint32_t n = 0, last = 0;
    while (n < s->n_marks && s->marks[n] <= s->length)
        last = s->marks[n++];
    s->n_marks -= n;
    memmove(s->marks, s->marks + n, s->n_marks * sizeof *s->marks);
    return last;
}

int state_advance(struct state *st, uint32_t slot, uint32_t rows, struct err *err) {
    struct slot *s = &st->slots[slot];
    s->length += rows;
    s->is_rewound = false;
    bool is_marked = s->n_marks && pass_marks(s) == s->length;
    bool is_due = is_marked || (st->options.n_snapshots && s->length % st->options.grid == 0);
    int status = enter_blocks(st, slot, err);
    end_planned(st, slot, status == SLUICE_OK);
    return status || !is_due ? status : take_snapshot(st, slot, err);
}

int state_mark(struct state *st, uint32_t slot, uint32_t n, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t i = 0;
    CHECK(n >= s->length && n <= s->n_tokens);
    if (st->options.n_snapshots == 0)
        return SLUICE_OK;
    if (n == s->length)
        return take_snapshot(st, slot, err);
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
        status = write_table(st, *to, 0, err);
    }
    if (status) {
        state_close(st, *to, false);
        return status;
    }
    memcpy(new->tokens, old->tokens, old->n_tokens * sizeof *old->tokens);
    new->n_tokens = old->n_tokens;
    new->length = old->length;
    new->block = old->block;
    memcpy(new->marks, old->marks, sizeof new->marks);
    new->n_marks = old->n_marks;
    new->is_rewound = old->is_rewound;
    return SLUICE_OK;
}

/* ---- rewind -----------------------------------------------------------------------------------
 */

/* The recurrent state becomes that of a snapshot; NO_ENTRY: the empty one. */
static int restore(struct state *st, uint32_t slot, uint32_t snapshot, struct err *err) {
    if (snapshot == NO_ENTRY)
        return zero_recurrent(st, slot, err);
    cache_use(&st->cache, snapshot);
    st->n_used++;
    return copy_recurrent(st, slot, cache_entry(&st->cache, snapshot)->cell, err);
}

/* The slot's memory becomes that of its first n positions, or of fewer: then tokens wait. */
static int go_back(struct state *st, uint32_t slot, uint32_t n, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t length = n;
    int status = SLUICE_OK;
    if (is_recurrent(st)) {
        uint32_t snapshot = cache_snapshot_before(&st->cache, s->block, s->tokens, n);
        length = snapshot == NO_ENTRY ? 0 : cache_entry(&st->cache, snapshot)->position;
        status = restore(st, slot, snapshot, err);
    }
    if (!status)
        status = write_counts(st, slot, length, err);
    if (status)
        return status;
    drop_pages(st, slot, pages_for(length));
    s->length = length;
    s->block = cache_block_before(&st->cache, s->block, length);
    return SLUICE_OK;
}

int state_rewind(struct state *st, uint32_t slot, uint32_t n, uint32_t held, struct err *err) {
    struct slot *s = &st->slots[slot];
    CHECK(s->is_open && held <= n && n <= s->n_tokens);
    int status = held < s->length ? go_back(st, slot, held, err) : SLUICE_OK;
    if (status)
        return status;
    while (s->n_marks && s->marks[s->n_marks - 1] > n)
        s->n_marks--;
    s->n_tokens = n;
    s->is_rewound = s->length < n;
    return SLUICE_OK;
}

/* A page that the step copied may not have come to stand in the table. */
int state_undo(struct state *st, uint32_t slot, struct err *err) {
    end_planned(st, slot, false);
    int status = go_back(st, slot, st->slots[slot].length, err);
    return status ? status : write_table(st, slot, 0, err);
}

/* ---- resume -----------------------------------------------------------------------------------
 */

/* Where a slot may go on from: whole blocks, then a part of a page. */
struct target {
    uint32_t position, block;
    uint32_t page;     /* of the part; NO_PAGE: there is none */
    uint32_t snapshot; /* of the recurrent state, else NO_ENTRY */
};

/* Tokens in common with what other slots hold after the block that was found, where that is more
 * than the cache has. */
static void match_slots(const struct state *st, uint32_t slot, struct match *m, uint32_t *page) {
    const struct slot *s = &st->slots[slot];
    for (uint32_t i = 0; i < st->options.n_slots; i++) {
        const struct slot *other = &st->slots[i];
        if (i == slot || !other->is_open || other->block != m->block)
            continue;
        uint32_t most = min_u32(other->length, s->n_tokens), at = m->position;
        while (at < most && at < m->position + PAGE && other->tokens[at] == s->tokens[at])
            at++;
        if (at - m->position <= m->tail)
            continue;
        m->tail = at - m->position;
        *page = other->pages[m->position / PAGE];
    }
}

/* Without recurrent state any position will do, at most `most`. */
static struct target cut_at(const struct state *st, const struct match *m, uint32_t page,
                            uint32_t most) {
    uint32_t position = min_u32(m->position + m->tail, most);
    struct target t = {.position = position, .page = NO_PAGE, .snapshot = NO_ENTRY};
    t.block = cache_block_before(&st->cache, m->block, position);
    if (position % PAGE == 0)
        return t;
    t.page = page;
    for (uint32_t b = m->block; b != t.block; b = cache_entry(&st->cache, b)->parent)
        t.page = cache_entry(&st->cache, b)->page;
    return t;
}

static struct target snapshot_at(const struct state *st, const struct slot *s,
                                 const struct match *m, uint32_t most) {
    struct target t = {.page = NO_PAGE, .block = CACHE_ROOT};
    t.snapshot = cache_snapshot_before(&st->cache, m->block, s->tokens, most);
    if (t.snapshot == NO_ENTRY)
        return t;
    const struct entry *e = cache_entry(&st->cache, t.snapshot);
    t.position = e->position;
    t.block = e->parent;
    t.page = e->page;
    return t;
}

static struct target find_target(const struct state *st, uint32_t slot, uint32_t *matched) {
    const struct slot *s = &st->slots[slot];
    struct match m = cache_match(&st->cache, s->tokens, s->n_tokens);
    uint32_t most = s->n_tokens - 1;
    uint32_t page = m.entry == NO_ENTRY ? NO_PAGE : cache_entry(&st->cache, m.entry)->page;
    match_slots(st, slot, &m, &page);
    *matched = m.position + m.tail;
    return is_recurrent(st) ? snapshot_at(st, s, &m, min_u32(most, *matched))
                            : cut_at(st, &m, page, most);
}

/* The slot gets the pages of the target in place of its own. */
static void take_pages(struct state *st, uint32_t slot, const struct target *t) {
    struct slot *s = &st->slots[slot];
    uint32_t n = pages_for(t->position), i = t->position / PAGE;
    if (n > i) {
        st->room_pages[i] = t->page;
        page_share(&st->pages, t->page, t->position % PAGE);
    }
    for (uint32_t b = t->block; b != CACHE_ROOT; b = cache_entry(&st->cache, b)->parent) {
        st->room_pages[--i] = cache_entry(&st->cache, b)->page;
        page_share(&st->pages, st->room_pages[i], PAGE);
    }
    drop_pages(st, slot, 0);
    memcpy(s->pages, st->room_pages, n * sizeof *s->pages);
    s->n_pages = n;
    s->block = t->block;
    s->length = t->position;
}

int state_resume(struct state *st, uint32_t slot, struct state_found *found, struct err *err) {
    struct slot *s = &st->slots[slot];
    *found = (struct state_found){.held = s->length};
    if (s->n_tokens == 0)
        return SLUICE_OK;
    struct target t = find_target(st, slot, &found->matched);
    if (t.position <= s->length)
        return SLUICE_OK;
    if (!is_recurrent(st))
        cache_use(&st->cache, t.block);
    int status = is_recurrent(st) ? restore(st, slot, t.snapshot, err) : SLUICE_OK;
    if (!status)
        status = write_counts(st, slot, t.position, err);
    if (status)
        return status;
    take_pages(st, slot, &t);
    pass_marks(s);
    found->held = s->length;
    return write_table(st, slot, 0, err);
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
    return status ? status : write_table(st, slot, 0, err);
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

static const char *broken_slot(const struct state *st, uint32_t slot) {
    const struct slot *s = &st->slots[slot];
    if (!s->is_open)
        return s->n_pages || s->n_marks || s->n_tokens || s->length || s->block != CACHE_ROOT
                   ? "(1) a closed slot has memory"
                   : NULL;
    if (s->length > s->n_tokens || s->n_tokens > st->options.context)
        return "(1) a slot is longer than its tokens, or than the context";
    if (s->n_pages != pages_for(s->length))
        return "(2) a slot has other pages than its length needs";
    for (uint32_t i = 0; i < s->n_pages; i++) {
        const struct page *p = &st->pages.at[s->pages[i]];
        bool is_own = p->refs == 1 || p->owner == slot;
        if (!is_own && p->frozen < min_u32(s->length - i * PAGE, PAGE))
            return "(4) a page may be written where another slot reads it";
    }
    for (uint32_t i = 0; i < s->n_marks; i++)
        if (s->marks[i] <= (i ? s->marks[i - 1] : s->length) || s->marks[i] > s->n_tokens)
            return "(1) a mark is where it cannot be reached";
    if (cache_entry(&st->cache, s->block)->position > s->length)
        return "(6) a slot's block ends after its last position";
    for (uint32_t b = s->block; b != CACHE_ROOT; b = cache_entry(&st->cache, b)->parent) {
        const struct entry *e = cache_entry(&st->cache, b);
        if (e->page != s->pages[e->position / PAGE - 1])
            return "(6) a slot has another page than its block";
        if (memcmp(cache_tokens(&st->cache, b), s->tokens + e->position - PAGE,
                   PAGE * sizeof *s->tokens) != 0)
            return "(6) a slot has other tokens than its block";
    }
    return NULL;
}

static uint32_t count_page(const struct state *st, uint32_t page) {
    uint32_t n = st->pages.at[page].kept;
    for (uint32_t s = 0; s < st->options.n_slots; s++)
        for (uint32_t i = 0; i < st->slots[s].n_pages; i++)
            n += st->slots[s].pages[i] == page;
    return n;
}

static const char *broken_pages(const struct state *st) {
    uint32_t n_unused = 0, n_idle = 0;
    for (uint32_t i = 0; i < st->pages.n; i++) {
        if (count_page(st, i) != st->pages.at[i].refs)
            return "(2) a page's references are miscounted";
        n_unused += st->pages.at[i].refs == 0;
        n_idle += page_is_idle(&st->pages, i);
    }
    for (uint32_t i = 0; i < st->pages.n_free; i++)
        if (st->pages.at[st->pages.free[i]].refs != 0)
            return "(2) a page in use is on the free list";
    if (n_unused != st->pages.n_free)
        return "(2) the free list has lost a page, or has one twice";
    return n_idle != st->pages.n_idle ? "(2) idle pages are miscounted" : NULL;
}

const char *state_broken(const struct state *st) {
    const char *broken = broken_pages(st);
    for (uint32_t i = 0; !broken && i < st->options.n_slots; i++)
        broken = broken_slot(st, i);
    return broken ? broken : cache_broken(&st->cache);
}
