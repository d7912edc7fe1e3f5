/* state.c - the memory of sequences: slots, pages of the KV cache, recurrent state, snapshots.
 *
 * In: slot numbers and lengths from batch.c and api_seq.c.  Out: which item of STATE belongs to
 * whom.
 *
 * (1) A slot is open or closed. A closed one has no pages, no marks, no tokens.
 * (2) Between steps an open slot has exactly the pages that its length needs. A page's count of
 *     references is the number of slots and of entries of the cache that have it.
 * (3) Pages are taken as a slot grows, all that a step's rows need or none. There may be fewer than
 *     all slots at full length need: a slot that finds none is left out of the step and loses
 *     nothing.
 * (4) A slot writes only to pages that it may write to (pages.c). One that others read up to the
 *     slot's length or beyond is copied first, by the step that writes.
 * (5) A recurrent state is valid at the slot's length and nowhere else. It cannot be truncated:
 *     rewinding restores the newest snapshot at or before the target (at worst the empty state) and
 *     leaves the tokens from there on waiting, to be processed again.
 * (6) A page that is full is entered into the cache by the step that filled it. A slot's pages up
 *     to `block` are those of that block and the ones before it: where another conversation had
 *     the same tokens before, the slot takes its page and gives up its own.
 * (7) counts[slot] is how often each token occurs among the slot's first `length` tokens.
 * (8) Every cell is a slot's, spare, or the cache's. A step that verifies drafts stores the state
 *     after every row that may be the last kept to a spare cell, and the slot takes the one of the
 *     row that is: no copy.
 *
 * Operations do what may fail first, then change the tables. */
#include <string.h>

#include "base/size.h"
#include "engine/state_internal.h"

/* ---- moving contents ---------------------------------------------------------------------- */

/* Copies item `from` of n arrays to item `to`; NO_CELL: zeros. */
static int copy_items(const struct state *st, const struct state_array *list, uint32_t n,
                      uint32_t to, uint32_t from, struct err *err) {
    uint32_t n_copies = 0;
    for (uint32_t i = 0; i < n; i++)
        if (list[i].bytes)
            st->copies[n_copies++] = (struct backend_copy){
                .to = state_array_item(list[i], to),
                .from = from == NO_CELL ? BACKEND_ZEROS : state_array_item(list[i], from),
                .bytes = list[i].bytes,
            };
    return n_copies ? st->kind->copy_state(st->backend, st->copies, n_copies, err) : SLUICE_OK;
}

int state_copy_recurrent(const struct state *st, uint32_t to, uint32_t from, struct err *err) {
    return copy_items(st, st->layout.recurrent, st->layout.n_recurrent, to, from, err);
}

static int zero_recurrent(const struct state *st, uint32_t cell, struct err *err) {
    return state_copy_recurrent(st, cell, NO_CELL, err);
}

static int copy_counts(const struct state *st, uint32_t to, uint32_t from, struct err *err) {
    return copy_items(st, &st->layout.counts, 1, to, from, err);
}

int state_write_table(const struct state *st, uint32_t slot, uint32_t first, struct err *err) {
    const struct slot *s = &st->slots[slot];
    if (first >= s->n_pages || st->layout.table.bytes == 0)
        return SLUICE_OK;
    return st->kind->write_state(
        st->backend, state_array_item(st->layout.table, slot) + first * sizeof *s->pages,
        (s->n_pages - first) * sizeof *s->pages, s->pages + first, err);
}

int state_write_counts(struct state *st, uint32_t slot, uint32_t n, struct err *err) {
    if (st->layout.counts.bytes == 0)
        return SLUICE_OK;
    memset(st->counts, 0, st->options.n_vocab * sizeof *st->counts);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t *count = &st->counts[st->slots[slot].tokens[i]];
        *count += *count < UINT16_MAX;
    }
    return st->kind->write_state(st->backend, state_array_item(st->layout.counts, slot),
                                 st->layout.counts.bytes, st->counts, err);
}

/* ---- tables ------------------------------------------------------------------------------- */

static bool make_slot(struct state *st, struct slot *s, struct arena *arena) {
    s->tokens = arena_array(arena, st->options.context, sizeof *s->tokens);
    s->pages = arena_array(arena, st->options.pages_per_seq, sizeof *s->pages);
    return s->tokens && s->pages;
}

/* At most one block per page; at most one snapshot per cell where state is recurrent, elsewhere per
 * page of a tail. */
static struct cache_options cache_options_of(const struct state *st) {
    const struct state_options *o = &st->options;
    return (struct cache_options){
        .n_entries =
            o->n_pages + (state_is_recurrent(st) ? o->n_snapshots : o->n_pages) + o->n_lower,
        .first_cell = o->n_slots + o->n_spare,
        .n_cells = o->n_snapshots,
        .is_recurrent = state_is_recurrent(st),
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
    st->spare = arena_array(arena, options->n_spare, sizeof *st->spare);
    st->page_list = arena_array(arena, options->pages_per_seq, sizeof *st->page_list);
    st->block_list = arena_array(arena, options->pages_per_seq, sizeof *st->block_list);
    uint32_t n_arrays = st->layout.n_recurrent + st->layout.n_paged + 1;
    st->copies = arena_array(arena, n_arrays, sizeof *st->copies);
    uint32_t n_moves = st->layout.n_recurrent + st->layout.n_heads;
    st->moves = arena_array(arena, n_moves, sizeof *st->moves);
    st->thread_moves = arena_array(arena, n_moves, sizeof *st->moves);
    bool is_made = st->copies && st->moves && st->thread_moves && st->slots && st->counts &&
                   st->planned && st->spare && st->page_list && st->block_list &&
                   pages_init(&st->pages, options->n_pages, arena) &&
                   cache_init(&st->cache, &cache, &st->pages, arena);
    for (uint32_t i = 0; is_made && i < options->n_slots; i++) {
        st->slots[i].cell = i;
        is_made = make_slot(st, &st->slots[i], arena);
    }
    for (uint32_t i = 0; is_made && i < options->n_spare; i++)
        st->spare[i] = options->n_slots + i;
    return is_made ? SLUICE_OK : err_memory(err, "the tables of sequences");
}

/* ---- pages -------------------------------------------------------------------------------- */

void state_drop_pages(struct state *st, uint32_t slot, uint32_t n) {
    struct slot *s = &st->slots[slot];
    while (s->n_pages > n)
        page_drop(&st->pages, s->pages[--s->n_pages], slot);
}

static bool is_last_writable(const struct state *st, uint32_t slot) {
    const struct slot *s = &st->slots[slot];
    return page_is_writable(&st->pages, s->pages[s->length / PAGE], slot, s->length % PAGE);
}

/* With no page for the copy the cache gives up the page, if it is the only other that has it. */
bool state_must_copy(const struct state *st, uint32_t slot) {
    const struct slot *s = &st->slots[slot];
    if (s->length % PAGE == 0 || is_last_writable(st, slot))
        return false;
    uint32_t page = s->pages[s->length / PAGE];
    const struct page *at = &st->pages.at[page];
    return pages_available(&st->pages) > 0 || at->refs != at->kept + 1 ||
           !cache_can_release(&st->cache, page);
}

uint32_t state_page_rows(const struct state *st, uint32_t slot) {
    const struct slot *s = &st->slots[slot];
    uint64_t n = (uint64_t)s->n_pages + pages_available(&st->pages) - state_must_copy(st, slot);
    uint64_t end = n * PAGE;
    return end <= s->length
               ? 0
               : (uint32_t)(end - s->length < UINT32_MAX ? end - s->length : UINT32_MAX);
}

/* Makes the page of position `length` writable for the slot, copying it if need be. */
static int own_last_page(struct state *st, uint32_t slot, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t *entry = &s->pages[s->length / PAGE];
    if (!state_must_copy(st, slot)) {
        if (!is_last_writable(st, slot))
            cache_release(&st->cache, *entry);
        page_own(&st->pages, *entry, slot);
        return SLUICE_OK;
    }
    uint32_t own = page_take(&st->pages, slot);
    int status = copy_items(st, st->layout.paged, st->layout.n_paged, own, *entry, err);
    page_drop(&st->pages, status ? own : *entry, slot);
    if (!status)
        *entry = own;
    return status;
}

/* A burst reserves pages for tokens that are not known yet. */
int state_reserve(struct state *st, uint32_t slot, uint32_t rows, uint32_t *first,
                  struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t needed = pages_for(s->length + rows);
    bool is_copied = state_must_copy(st, slot);
    CHECK(s->length + rows <= st->options.context && rows <= state_page_rows(st, slot));
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

/* ---- a slot's life ------------------------------------------------------------------------ */

int state_open(struct state *st, uint32_t *slot, struct err *err) {
    uint32_t i = 0;
    while (i < st->options.n_slots && st->slots[i].is_open)
        i++;
    if (i == st->options.n_slots)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "%u sequences are open, expected fewer: the engine has room for no more", i);
    int status = zero_recurrent(st, st->slots[i].cell, err);
    if (!status)
        status = copy_counts(st, i, NO_CELL, err);
    if (status)
        return status;
    st->slots[i].is_open = true;
    *slot = i;
    return SLUICE_OK;
}

static bool is_any_open(const struct state *st) {
    uint32_t i = 0;
    while (i < st->options.n_slots && !st->slots[i].is_open)
        i++;
    return i < st->options.n_slots;
}

void state_close(struct state *st, uint32_t slot, bool is_kept) {
    struct slot *s = &st->slots[slot];
    struct err ignored; /* the device's: then nothing is kept */
    CHECK(s->is_open);
    state_end_planned(st, slot, false);
    bool is_known = is_kept && state_enter_blocks(st, slot, &ignored) == SLUICE_OK &&
                    state_take_snapshot(st, slot, &ignored) == SLUICE_OK;
    state_drop_pages(st, slot, 0);
    if (is_known)
        state_write_through(st, s);
    s->length = s->n_tokens = s->n_drafts = s->n_marks = 0;
    s->block = CACHE_ROOT;
    s->is_open = s->is_starved = s->is_rewound = false;
    if (!is_any_open(st)) /* nobody waits, and the next step may be far off */
        cache_copy_due(&st->cache);
}

/* Rows that are not kept have pages, too; later rows overwrite them. */
int state_advance(struct state *st, uint32_t slot, uint32_t rows, uint32_t kept, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t first = s->length + rows;
    CHECK(kept <= s->n_drafted && (s->n_drafted == 0 || first == s->n_tokens));
    s->length = first;
    bool on_mark = s->n_marks && state_pass_marks(s) == first;
    s->n_tokens += kept;
    s->length += kept;
    s->is_rewound = false;
    state_drop_pages(st, slot, pages_for(s->length));
    int status = state_enter_blocks(st, slot, err);
    state_end_planned(st, slot, status == SLUICE_OK);
    state_end_drafts(st, slot, first, kept, on_mark);
    s->n_drafted = 0;
    if (s->length == s->n_tokens)
        s->n_drafts = 0;
    return status || !state_is_due(st, s->length, kept == 0 && on_mark)
               ? status
               : state_take_snapshot(st, slot, err);
}

/* ---- fork --------------------------------------------------------------------------------- */

/* Shares all pages, also a partly filled one: the old slot goes on writing after what the new one
 * reads, and the new one copies the page before it writes. */
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
    status = state_copy_recurrent(st, new->cell, old->cell, err);
    if (!status)
        status = copy_counts(st, *to, from, err);
    if (!status) {
        share_pages(st, old, new);
        status = state_write_table(st, *to, 0, err);
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

/* ---- rewind ------------------------------------------------------------------------------- */

int state_restore(struct state *st, uint32_t slot, uint32_t snapshot, bool *is_found,
                  struct err *err) {
    uint32_t own = st->slots[slot].cell;
    *is_found = true;
    if (snapshot == NO_ENTRY)
        return zero_recurrent(st, own, err);
    st->n_used++;
    uint32_t cell = cache_entry(&st->cache, snapshot)->cell;
    return cell == NO_CELL ? state_load_entry(st, snapshot, own, NO_PAGE, is_found, err)
                           : state_copy_recurrent(st, own, cell, err);
}

/* Restores the recurrent state of the newest snapshot at or before n; *length: its position. */
static int restore_before(struct state *st, uint32_t slot, uint32_t n, uint32_t *length,
                          struct err *err) {
    const struct slot *s = &st->slots[slot];
    for (;;) {
        bool is_found;
        uint32_t snapshot = cache_snapshot_before(&st->cache, s->block, s->tokens, n);
        *length = snapshot == NO_ENTRY ? 0 : cache_entry(&st->cache, snapshot)->position;
        int status = state_restore(st, slot, snapshot, &is_found, err);
        if (status)
            return status;
        if (!is_found) {
            cache_lose(&st->cache, snapshot);
            continue;
        }
        if (snapshot != NO_ENTRY)
            cache_use(&st->cache, snapshot);
        return SLUICE_OK;
    }
}

int state_go_back(struct state *st, uint32_t slot, uint32_t n, struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t length = n;
    int status = state_is_recurrent(st) ? restore_before(st, slot, n, &length, err) : SLUICE_OK;
    if (!status)
        status = state_write_counts(st, slot, length, err);
    if (status)
        return status;
    state_drop_pages(st, slot, pages_for(length));
    s->length = length;
    s->block = cache_block_before(&st->cache, s->block, length);
    return SLUICE_OK;
}

int state_rewind(struct state *st, uint32_t slot, uint32_t n, uint32_t held, struct err *err) {
    struct slot *s = &st->slots[slot];
    CHECK(s->is_open && held <= n && n <= s->n_tokens);
    int status = held < s->length ? state_go_back(st, slot, held, err) : SLUICE_OK;
    if (status)
        return status;
    while (s->n_marks && s->marks[s->n_marks - 1] > n)
        s->n_marks--;
    s->n_tokens = n;
    s->n_drafts = 0;
    s->is_rewound = s->length < n;
    return SLUICE_OK;
}

/* The device's table may lack a page that the step copied. */
int state_undo(struct state *st, uint32_t slot, struct err *err) {
    state_end_planned(st, slot, false);
    st->slots[slot].n_drafted = 0;
    int status = state_go_back(st, slot, st->slots[slot].length, err);
    return status ? status : state_write_table(st, slot, 0, err);
}

/* ---- save and load ------------------------------------------------------------------------ */

int state_adopt(struct state *st, uint32_t slot, uint32_t length, struct err *err) {
    struct slot *s = &st->slots[slot];
    CHECK(s->is_open && s->n_pages == 0 && length <= s->n_tokens);
    if (pages_for(length) > pages_available(&st->pages))
        return state_out_of_pages(st, err);
    while (s->n_pages < pages_for(length))
        s->pages[s->n_pages++] = page_take(&st->pages, slot);
    s->length = length;
    int status = state_write_counts(st, slot, length, err);
    return status ? status : state_write_table(st, slot, 0, err);
}

int state_each_stretch(const struct state *st, uint32_t slot, stretch_fn *fn, void *user,
                       struct err *err) {
    const struct state_layout *l = &st->layout;
    const struct slot *s = &st->slots[slot];
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < l->n_recurrent; i++)
        status = fn(user, state_array_item(l->recurrent[i], s->cell), l->recurrent[i].bytes, err);
    for (uint32_t p = 0; !status && p < s->n_pages; p++)
        for (uint32_t i = 0; !status && i < l->n_paged; i++)
            status = fn(user, state_array_item(l->paged[i], s->pages[p]), l->paged[i].bytes, err);
    return status;
}

uint64_t state_stretch_bytes(const struct state *st, uint32_t length) {
    return st->layout.recurrent_bytes + pages_for(length) * st->layout.page_bytes;
}

/* ---- invariants --------------------------------------------------------------------------- */

static const char *broken_slot(const struct state *st, uint32_t slot) {
    const struct slot *s = &st->slots[slot];
    if (!s->is_open)
        return s->n_pages || s->n_marks || s->n_tokens || s->n_drafts || s->length ||
                       s->block != CACHE_ROOT
                   ? "(1) a closed slot has memory"
                   : NULL;
    if (s->length > s->n_tokens || s->n_tokens + s->n_drafts > st->options.context)
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
        const struct cache_entry *e = cache_entry(&st->cache, b);
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

/* How many owners a cell has: slots, the spare list, the cache. */
static uint32_t count_cell(const struct state *st, uint32_t cell) {
    const struct cache *c = &st->cache;
    uint32_t n = 0;
    for (uint32_t i = 0; i < st->options.n_slots; i++)
        n += st->slots[i].cell == cell;
    for (uint32_t i = 0; i < st->options.n_spare; i++)
        n += st->spare[i] == cell;
    for (uint32_t i = 0; i < c->n_free_cells; i++)
        n += c->free_cells[i] == cell;
    for (uint32_t i = 0; i < c->heaps[HEAP_CELLS].n; i++)
        n += cache_entry(c, c->heaps[HEAP_CELLS].at[i])->cell == cell;
    return n;
}

static const char *broken_cells(const struct state *st) {
    uint32_t n = st->options.n_slots + st->options.n_spare + st->cache.options.n_cells;
    for (uint32_t i = 0; i < n; i++)
        if (count_cell(st, i) != 1)
            return "(8) a cell is lost, or has two owners";
    return NULL;
}

const char *state_broken(const struct state *st) {
    const char *broken = broken_pages(st);
    if (!broken)
        broken = broken_cells(st);
    for (uint32_t i = 0; !broken && i < st->options.n_slots; i++)
        broken = broken_slot(st, i);
    return broken ? broken : cache_broken(&st->cache);
}
