/* cache_evict.c - which entry of the prefix cache goes first: what each is worth, and the heaps in
 * that order.
 *
 * Eviction is Greedy-Dual-Size-Frequency. An entry's priority is the clock when it was last used
 * plus uses * cost / bytes, where cost is the tokens that would have to be processed again without
 * it; the one with the lowest goes, and the clock rises to its priority. So what is large, cheap to
 * recompute, seldom used or long unused goes first, and one number weighs all four. The rule is the
 * same in all tiers. */
#include "engine/cache_internal.h"

/* ---- heaps -------------------------------------------------------------------------------- */

static void heap_put(struct cache *c, enum cache_heap which, uint32_t at, uint32_t e) {
    c->heaps[which].at[at] = e;
    c->entries[e].heap_at[which] = at;
}

/* Moves the entry at this index up or down until its priority is between those around it. */
static void heap_sift(struct cache *c, enum cache_heap which, uint32_t at) {
    struct entry_heap *h = &c->heaps[which];
    uint32_t e = h->at[at];
    double p = c->entries[e].priority;
    for (; at > 0 && c->entries[h->at[(at - 1) / 2]].priority > p; at = (at - 1) / 2)
        heap_put(c, which, at, h->at[(at - 1) / 2]);
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < h->n &&
            c->entries[h->at[child + 1]].priority < c->entries[h->at[child]].priority)
            child++;
        if (child >= h->n || c->entries[h->at[child]].priority >= p)
            break;
        heap_put(c, which, at, h->at[child]);
        at = child;
    }
    heap_put(c, which, at, e);
}

static void heap_remove(struct cache *c, enum cache_heap which, uint32_t e) {
    struct entry_heap *h = &c->heaps[which];
    uint32_t at = c->entries[e].heap_at[which];
    c->entries[e].heap_at[which] = NO_ENTRY;
    if (at == --h->n)
        return;
    heap_put(c, which, at, h->at[h->n]);
    heap_sift(c, which, at);
}

bool cache_is_idle(const struct cache *c, uint32_t e) {
    const struct cache_entry *at = &c->entries[e];
    uint32_t page = at->page == NO_PAGE ? c->entries[at->parent].page : at->page;
    return page != NO_PAGE && page_is_idle(c->pages, page);
}

bool cache_belongs_to(const struct cache *c, uint32_t e, enum cache_heap which) {
    const struct cache_entry *at = &c->entries[e];
    if (e == CACHE_ROOT || at->pins)
        return false;
    switch (which) {
    case HEAP_PAGES:
        return cache_is_in(c, e, TIER_DEVICE) && !at->n_below[TIER_DEVICE] && cache_is_idle(c, e);
    case HEAP_CELLS:
        return at->cell != NO_CELL;
    case HEAP_HOST:
        return cache_is_in(c, e, TIER_HOST) && !at->n_below[TIER_HOST];
    default:
        return cache_is_in(c, e, TIER_DISK) && !at->n_below[TIER_DISK];
    }
}

void cache_update_heaps(struct cache *c, uint32_t e) {
    const struct cache_entry *at = &c->entries[e];
    for (int i = 0; i < CACHE_HEAPS; i++) {
        bool is_there = at->heap_at[i] != NO_ENTRY, belongs = cache_belongs_to(c, e, i);
        if (is_there && !belongs) {
            heap_remove(c, i, e);
        } else if (belongs) {
            if (!is_there)
                heap_put(c, i, c->heaps[i].n++, e);
            heap_sift(c, i, at->heap_at[i]);
        }
    }
}

void cache_settle(void *user, uint32_t page) {
    struct cache *c = user;
    for (uint32_t e = c->of_page[page]; e != NO_ENTRY; e = c->entries[e].next_of_page) {
        cache_update_heaps(c, e);
        for (uint32_t s = c->entries[e].first[ENTRY_SNAPSHOT]; s != NO_ENTRY;
             s = c->entries[s].next)
            cache_update_heaps(c, s);
    }
}

/* ---- what an entry is worth --------------------------------------------------------------- */

/* The position of the newest snapshot before that one in a tier, TIERS: in any; 0: there is none.
 */
static uint32_t position_before(const struct cache *c, enum tier tier, uint32_t snapshot) {
    uint32_t block = c->entries[snapshot].parent, max = c->entries[snapshot].n_tokens;
    const int32_t *tail = cache_tokens(c, snapshot);
    uint32_t found = max ? cache_best_snapshot_in(c, tier, block, tail, max - 1) : NO_ENTRY;
    while (found == NO_ENTRY && block != CACHE_ROOT) {
        uint32_t parent = c->entries[block].parent;
        found = cache_best_snapshot_in(c, tier, parent, cache_tokens(c, block), PAGE);
        block = parent;
    }
    return found == NO_ENTRY ? 0 : c->entries[found].position;
}

uint64_t cache_payload_bytes(const struct cache *c, uint32_t e) {
    const struct cache_entry *at = &c->entries[e];
    bool has_cell = at->kind == ENTRY_SNAPSHOT && c->options.is_recurrent;
    return (at->n_tokens ? c->options.page_bytes : 0) + (has_cell ? c->options.cell_bytes : 0);
}

/* Tokens that would have to be processed again without it. Where state is recurrent a block alone
 * is of no use: it goes as soon as nothing follows it. */
static uint32_t tokens_to_recompute(const struct cache *c, uint32_t e) {
    const struct cache_entry *at = &c->entries[e];
    if (!c->options.is_recurrent)
        return at->n_tokens;
    return at->kind == ENTRY_BLOCK ? 0 : at->position - position_before(c, TIERS, e);
}

static double worth(const struct cache *c, uint32_t e) {
    uint64_t bytes = cache_payload_bytes(c, e);
    return (double)c->entries[e].uses * tokens_to_recompute(c, e) / (double)(bytes ? bytes : 1);
}

bool cache_is_cheap(const struct cache *c, uint32_t e) {
    if (c->options.is_recurrent && c->entries[e].kind == ENTRY_BLOCK)
        return false;
    return tokens_to_recompute(c, e) * c->rates.token_seconds <
           (double)cache_payload_bytes(c, e) * c->rates.byte_seconds;
}

bool cache_is_cheap_on_disk(const struct cache *c, uint32_t e) {
    if (!c->options.is_recurrent || c->entries[e].kind == ENTRY_BLOCK)
        return false;
    return (c->entries[e].position - position_before(c, TIER_DISK, e)) * c->rates.token_seconds <
           (double)cache_payload_bytes(c, e) * c->rates.disk_byte_seconds;
}

void cache_touch(struct cache *c, uint32_t e) {
    c->entries[e].since = c->clock;
    c->entries[e].is_copied = false;
    c->entries[e].priority = c->clock + worth(c, e);
    cache_update_heaps(c, e);
}

void cache_use(struct cache *c, uint32_t e) {
    for (; e != CACHE_ROOT; e = c->entries[e].parent) {
        c->entries[e].uses++;
        cache_touch(c, e);
    }
}

/* ---- who goes ----------------------------------------------------------------------------- */

static void evict_entry(struct cache *c, uint32_t e) {
    c->n_evicted++;
    cache_finish_spill(c, e);
    cache_take_off_device(c, e);
    cache_remove_if_lost(c, e);
}

bool cache_can_release(const struct cache *c, uint32_t page) {
    uint32_t e = c->of_page[page];
    while (e != NO_ENTRY && !c->entries[e].pins && !c->entries[e].n_below[TIER_DEVICE])
        e = c->entries[e].next_of_page;
    return e == NO_ENTRY;
}

void cache_release(struct cache *c, uint32_t page) {
    while (c->of_page[page] != NO_ENTRY)
        evict_entry(c, c->of_page[page]);
}

/* Evicts the least useful entry of a heap from the device. Its worth may have risen since others
 * before it left: then it is sifted again first. */
static void evict(struct cache *c, enum cache_heap which) {
    for (;;) {
        CHECK(c->heaps[which].n > 0);
        uint32_t e = c->heaps[which].at[0];
        struct cache_entry *at = &c->entries[e];
        double now = at->since + worth(c, e);
        if (now > at->priority) {
            at->priority = now;
            cache_update_heaps(c, e);
            continue;
        }
        if (c->clock < at->priority)
            c->clock = at->priority;
        evict_entry(c, e);
        return;
    }
}

void cache_forget(struct cache *c) {
    for (uint32_t e = 1; e < c->n_fresh; e++) {
        bool is_below = cache_is_in(c, e, TIER_HOST) || cache_is_in(c, e, TIER_DISK);
        cache_leave_tier(c, e, TIER_HOST);
        cache_leave_tier(c, e, TIER_DISK);
        if (is_below)
            cache_remove_if_lost(c, e);
    }
    while (c->heaps[HEAP_PAGES].n > 0) {
        uint32_t e = c->heaps[HEAP_PAGES].at[0];
        cache_take_off_device(c, e);
        cache_remove_if_lost(c, e);
    }
}

void cache_reclaim(void *user) {
    struct cache *c = user;
    while (c->pages->n_free == 0)
        evict(c, HEAP_PAGES);
}

uint32_t cache_take_cell(struct cache *c) {
    if (c->n_free_cells == 0 && c->heaps[HEAP_CELLS].n == 0)
        return NO_CELL;
    if (c->n_free_cells == 0)
        evict(c, HEAP_CELLS);
    return c->free_cells[--c->n_free_cells];
}

void cache_return_cell(struct cache *c, uint32_t cell) {
    c->free_cells[c->n_free_cells++] = cell;
}
