/* resume.c - a slot takes over what the cache and other slots have of its tokens.
 *
 * First a target is found: how far to go, and from what. Then its pages are shared or loaded, its
 * recurrent state is copied or loaded, and the slot moves there. What turns out to be lost, or does
 * not fit, makes the search start again with less. */
#include <string.h>

#include "base/size.h"
#include "engine/state_internal.h"

/* Where a slot may continue from: whole blocks, then a part of a page. */
struct target {
    uint32_t position, block;
    uint32_t tail; /* the entry whose page has the part; NO_ENTRY: another slot's page has ... */
    uint32_t page; /* ... or there is none: NO_PAGE */
    uint32_t snapshot; /* of the recurrent state, else NO_ENTRY */
};

/* Finds tokens in common with other slots after the matched block, if that is more than the cache
 * has; *page: where they are. Always less than a page: a full page would be a block, unless the
 * cache had no room for it. */
static void match_slots(const struct state *st, uint32_t slot, struct match *m, uint32_t *page) {
    const struct slot *s = &st->slots[slot];
    for (uint32_t i = 0; i < st->options.n_slots; i++) {
        const struct slot *other = &st->slots[i];
        if (i == slot || !other->is_open || other->block != m->block)
            continue;
        uint32_t max = min_u32(other->length, s->n_tokens), at = m->position;
        while (at < max && at + 1 < m->position + PAGE && other->tokens[at] == s->tokens[at])
            at++;
        if (at - m->position <= m->tail)
            continue;
        m->tail = at - m->position;
        m->entry = NO_ENTRY;
        *page = other->pages[m->position / PAGE];
    }
}

/* Without recurrent state any position up to `max` will do. */
static struct target cut_at(const struct state *st, const struct match *m, uint32_t page,
                            uint32_t max) {
    uint32_t position = min_u32(m->position + m->tail, max);
    struct target t = {
        .position = position, .page = NO_PAGE, .tail = NO_ENTRY, .snapshot = NO_ENTRY};
    t.block = cache_block_before(&st->cache, m->block, position);
    if (position % PAGE == 0)
        return t;
    t.tail = m->entry;
    t.page = page;
    for (uint32_t b = m->block; b != t.block; b = cache_entry(&st->cache, b)->parent)
        t.tail = b;
    return t;
}

static struct target snapshot_at(const struct state *st, const struct slot *s,
                                 const struct match *m, uint32_t max) {
    struct target t = {.page = NO_PAGE, .tail = NO_ENTRY, .block = CACHE_ROOT};
    t.snapshot = cache_snapshot_before(&st->cache, m->block, s->tokens, max);
    if (t.snapshot == NO_ENTRY)
        return t;
    const struct cache_entry *e = cache_entry(&st->cache, t.snapshot);
    t.position = e->position;
    t.block = e->parent;
    t.tail = e->n_tokens ? t.snapshot : NO_ENTRY;
    return t;
}

static struct target find_target(const struct state *st, uint32_t slot, uint32_t max,
                                 uint32_t *matched) {
    const struct slot *s = &st->slots[slot];
    struct match m = cache_match(&st->cache, s->tokens, s->n_tokens);
    uint32_t page = NO_PAGE;
    match_slots(st, slot, &m, &page);
    *matched = m.position + m.tail;
    return state_is_recurrent(st) ? snapshot_at(st, s, &m, min_u32(max, *matched))
                                  : cut_at(st, &m, page, max);
}

/* Lists the target's blocks in block_list and its pages in page_list: the slot shares those on the
 * device; NO_PAGE for others. Returns how many others. */
static uint32_t share_target(struct state *st, const struct target *t) {
    uint32_t i = t->position / PAGE, part = t->position % PAGE, n_missing = 0;
    if (part) {
        uint32_t page = t->tail == NO_ENTRY ? t->page : cache_entry(&st->cache, t->tail)->page;
        st->page_list[i] = page;
        n_missing += page == NO_PAGE;
        if (page != NO_PAGE)
            page_share(&st->pages, page, part);
    }
    for (uint32_t b = t->block; b != CACHE_ROOT; b = cache_entry(&st->cache, b)->parent) {
        uint32_t page = cache_entry(&st->cache, b)->page;
        st->block_list[--i] = b;
        st->page_list[i] = page;
        n_missing += page == NO_PAGE;
        if (page != NO_PAGE)
            page_share(&st->pages, page, PAGE);
    }
    return n_missing;
}

static void drop_target(struct state *st, uint32_t slot, const struct target *t) {
    for (uint32_t i = 0; i < pages_for(t->position); i++)
        if (st->page_list[i] != NO_PAGE)
            page_drop(&st->pages, st->page_list[i], slot);
}

/* The position of the first page for which none is free. */
static uint32_t position_of_missing(const struct state *st, uint32_t n) {
    uint32_t i = 0;
    while (st->page_list[i] != NO_PAGE || n-- > 0)
        i++;
    return i * PAGE;
}

/* Loads the blocks that are not on the device, from the first on; *lost: one that was not found. */
static int load_blocks(struct state *st, uint32_t slot, const struct target *t,
                       struct state_found *found, uint32_t *lost, struct err *err) {
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && *lost == NO_ENTRY && i < t->position / PAGE; i++) {
        uint32_t e = st->block_list[i];
        bool is_found = true;
        found->from[cache_tier(&st->cache, e)] += PAGE;
        if (st->page_list[i] != NO_PAGE)
            continue;
        st->page_list[i] = page_take(&st->pages, slot);
        status = state_load_entry(st, e, NO_CELL, st->page_list[i], &is_found, err);
        if (!is_found)
            *lost = e;
        else if (!status)
            cache_restore_page(&st->cache, e, st->page_list[i]);
    }
    return status;
}

/* Loads the part of a page after the blocks, and the recurrent state. What is not on the device
 * goes straight to the slot. */
static int load_tail(struct state *st, uint32_t slot, const struct target *t,
                     struct state_found *found, uint32_t *lost, struct err *err) {
    uint32_t i = t->position / PAGE, part = t->position % PAGE;
    bool is_found = true, is_missing = part && st->page_list[i] == NO_PAGE;
    int status = SLUICE_OK;
    found->from[t->tail == NO_ENTRY ? TIER_DEVICE : cache_tier(&st->cache, t->tail)] += part;
    if (is_missing) {
        st->page_list[i] = page_take(&st->pages, slot);
        status =
            state_load_entry(st, t->tail, state_is_recurrent(st) ? st->slots[slot].cell : NO_CELL,
                             st->page_list[i], &is_found, err);
        st->n_used += state_is_recurrent(st);
    } else if (state_is_recurrent(st)) {
        status = state_restore(st, slot, t->snapshot, &is_found, err);
    }
    if (!is_found)
        *lost = is_missing ? t->tail : t->snapshot;
    return status;
}

/* The slot gets the target's pages in place of its own. */
static void take_pages(struct state *st, uint32_t slot, const struct target *t) {
    struct slot *s = &st->slots[slot];
    state_drop_pages(st, slot, 0);
    s->n_pages = pages_for(t->position);
    memcpy(s->pages, st->page_list, s->n_pages * sizeof *s->pages);
    s->block = t->block;
    s->length = t->position;
    state_pass_marks(s);
}

/* Moves the slot to the target. If a part of it is lost or does not fit, *is_done is false, and the
 * next search will find another: *max is lower, or the cache has forgotten what was lost. */
static int take_over(struct state *st, uint32_t slot, const struct target *t, uint32_t *max,
                     struct state_found *found, bool *is_done, struct err *err) {
    uint32_t end = t->snapshot != NO_ENTRY ? t->snapshot : t->tail != NO_ENTRY ? t->tail : t->block;
    uint32_t lost = NO_ENTRY;
    cache_pin(&st->cache, end, true);
    uint32_t n_missing = share_target(st, t), n_free = pages_available(&st->pages);
    int status = SLUICE_OK;
    bool fits = n_missing <= n_free, is_touched = false;
    memset(found->from, 0, sizeof found->from);
    if (fits)
        status = load_blocks(st, slot, t, found, &lost, err);
    if ((is_touched = fits && !status && lost == NO_ENTRY))
        status = load_tail(st, slot, t, found, &lost, err);
    cache_pin(&st->cache, end, false);
    *is_done = fits && !status && lost == NO_ENTRY;
    if (*is_done) {
        take_pages(st, slot, t);
        cache_use(&st->cache, end);
        return SLUICE_OK;
    }
    if (!fits)
        *max = position_of_missing(st, n_free);
    found->lacks_pages |= !fits;
    drop_target(st, slot, t);
    if (lost != NO_ENTRY)
        cache_lose(&st->cache, lost);
    if (!status && is_touched && state_is_recurrent(st)) /* its state may be half overwritten */
        status = state_go_back(st, slot, st->slots[slot].length, err);
    return status;
}

int state_resume(struct state *st, uint32_t slot, uint32_t max, struct state_found *found,
                 struct err *err) {
    struct slot *s = &st->slots[slot];
    uint32_t before = s->length;
    bool is_done = max == 0;
    int status = SLUICE_OK;
    *found = (struct state_found){0};
    CHECK(max <= s->n_tokens);
    while (!status && !is_done) {
        struct target t = find_target(st, slot, max, &found->matched);
        if (t.position <= s->length)
            break;
        status = take_over(st, slot, &t, &max, found, &is_done, err);
    }
    found->held = s->length;
    if (status || s->length <= before) {
        memset(found->from, 0, sizeof found->from);
        return status;
    }
    status = state_write_counts(st, slot, s->length, err);
    return status ? status : state_write_table(st, slot, 0, err);
}

bool state_fetch(struct state *st, const int32_t *tokens, uint32_t n) {
    struct match m = cache_match(&st->cache, tokens, n);
    uint32_t end = m.entry == NO_ENTRY ? m.block : m.entry;
    if (state_is_recurrent(st))
        end =
            cache_snapshot_before(&st->cache, m.block, tokens, min_u32(n - 1, m.position + m.tail));
    return end != NO_ENTRY && end != CACHE_ROOT && cache_fetch(&st->cache, end);
}
