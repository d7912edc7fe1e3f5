/* pages.c - the pages of the KV cache: who has them, and who may write to them.
 *
 * (1) A page is on the free list when nobody has it, and only then.
 * (2) Positions below `frozen` are never written while several have the page: a page that is begun
 *     can be shared without a copy, and its owner goes on writing after what the others read.
 * (3) Who has a page alone may write anywhere in it. */
#include "engine/pages.h"

#include "base/err.h"

bool pages_init(struct pages *p, uint32_t n, struct arena *arena) {
    p->n = n;
    p->n_free = 0;
    p->at = arena_array(arena, n, sizeof *p->at);
    p->free = arena_array(arena, n, sizeof *p->free);
    if (!p->at || !p->free)
        return false;
    for (; p->n_free < n; p->n_free++) /* the lowest number is taken first */
        p->free[p->n_free] = n - 1 - p->n_free;
    return true;
}

uint32_t pages_available(const struct pages *p) {
    return p->n_free;
}

uint32_t page_take(struct pages *p, uint32_t owner) {
    CHECK(p->n_free > 0);
    uint32_t page = p->free[--p->n_free];
    p->at[page] = (struct page){.refs = 1, .owner = owner};
    return page;
}

void page_share(struct pages *p, uint32_t page, uint32_t positions) {
    struct page *at = &p->at[page];
    CHECK(at->refs > 0 && positions <= PAGE);
    at->refs++;
    if (at->frozen < positions)
        at->frozen = positions;
}

void page_drop(struct pages *p, uint32_t page, uint32_t holder) {
    struct page *at = &p->at[page];
    CHECK(at->refs > 0);
    if (at->owner == holder)
        at->owner = NO_OWNER;
    if (--at->refs == 0)
        p->free[p->n_free++] = page;
}

bool page_is_writable(const struct pages *p, uint32_t page, uint32_t slot, uint32_t place) {
    const struct page *at = &p->at[page];
    return at->refs == 1 || (at->owner == slot && place >= at->frozen);
}

void page_own(struct pages *p, uint32_t page, uint32_t slot) {
    struct page *at = &p->at[page];
    if (at->owner == slot && at->refs > 1)
        return;
    CHECK(at->refs == 1);
    at->owner = slot;
    at->frozen = 0;
}
