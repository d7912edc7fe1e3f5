/* pages.c - the pages of the KV cache: who has them, and who may write to them.
 *
 * (1) A page is on the free list exactly when nothing refers to it.
 * (2) Positions below `frozen` are never written while the page is shared: a partly filled page can
 *     be shared without a copy, and its owner goes on writing after what the others read.
 * (3) The only holder of a page may write anywhere in it.
 * (4) A page that only the prefix cache has counts as available. */
#include "engine/pages.h"

#include "base/err.h"

bool pages_init(struct pages *p, uint32_t n, struct arena *arena) {
    p->n = n;
    p->n_free = p->n_idle = 0;
    p->at = arena_array(arena, n, sizeof *p->at);
    p->free = arena_array(arena, n, sizeof *p->free);
    if (!p->at || !p->free)
        return false;
    for (; p->n_free < n; p->n_free++) /* the lowest number is taken first */
        p->free[p->n_free] = n - 1 - p->n_free;
    return true;
}

uint32_t pages_available(const struct pages *p) {
    return p->n_free + p->n_idle;
}

/* Refs and kept change by so much. */
static void change(struct pages *p, uint32_t page, int refs, int kept) {
    struct page *at = &p->at[page];
    bool was_idle = page_is_idle(p, page);
    at->refs = (uint32_t)((int)at->refs + refs);
    at->kept = (uint32_t)((int)at->kept + kept);
    bool is_idle = page_is_idle(p, page);
    p->n_idle += (uint32_t)is_idle - (uint32_t)was_idle;
    if (at->refs == 0)
        p->free[p->n_free++] = page;
    if (is_idle != was_idle && at->kept)
        p->settle(p->user, page);
}

uint32_t page_take(struct pages *p, uint32_t owner) {
    if (p->n_free == 0)
        p->reclaim(p->user);
    CHECK(p->n_free > 0);
    uint32_t page = p->free[--p->n_free];
    p->at[page] = (struct page){.refs = 1, .owner = owner};
    return page;
}

static void freeze(struct page *at, uint32_t positions) {
    CHECK(at->refs > 0 && positions <= PAGE);
    if (at->frozen < positions)
        at->frozen = positions;
}

void page_share(struct pages *p, uint32_t page, uint32_t positions) {
    freeze(&p->at[page], positions);
    change(p, page, 1, 0);
}

void page_drop(struct pages *p, uint32_t page, uint32_t slot) {
    CHECK(p->at[page].refs > p->at[page].kept);
    if (p->at[page].owner == slot)
        p->at[page].owner = NO_OWNER;
    change(p, page, -1, 0);
}

void page_keep(struct pages *p, uint32_t page, uint32_t positions) {
    freeze(&p->at[page], positions);
    change(p, page, 1, 1);
}

void page_unkeep(struct pages *p, uint32_t page) {
    CHECK(p->at[page].kept > 0);
    change(p, page, -1, -1);
}

bool page_is_writable(const struct pages *p, uint32_t page, uint32_t slot, uint32_t first) {
    const struct page *at = &p->at[page];
    return at->refs == 1 || (at->owner == slot && first >= at->frozen);
}

void page_own(struct pages *p, uint32_t page, uint32_t slot) {
    struct page *at = &p->at[page];
    if (at->owner == slot && at->refs > 1)
        return;
    CHECK(at->refs == 1);
    at->owner = slot;
    at->frozen = 0;
}
