/* pages.h - the pages of the KV cache: who has them, and who may write to them.
 *
 * Part of the engine: used by its thread alone. Tables come from the engine's arena. */
#ifndef ENGINE_PAGES_H
#define ENGINE_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "plan/io.h"

enum { PAGE = IO_PAGE_POSITIONS, NO_PAGE = UINT32_MAX, NO_OWNER = UINT32_MAX };

struct page {
    uint32_t refs;   /* holders; 0: it is free */
    uint32_t kept;   /* those of them that are the prefix cache's */
    uint32_t owner;  /* the one slot that may append to it while others have it, or NO_OWNER */
    uint32_t frozen; /* others than the owner read this many positions, the first */
};

struct pages {
    struct page *at; /* (n) */
    uint32_t n;
    uint32_t *free; /* (n) a stack */
    uint32_t n_free;
    uint32_t n_idle; /* pages that only the prefix cache has */
    /* Of the prefix cache. `settle` is called when a page becomes idle or stops being so; `reclaim`
     * frees at least one idle page. */
    void (*settle)(void *user, uint32_t page);
    void (*reclaim)(void *user);
    void *user;
};

/* Tables from the arena; false when memory ran out. */
bool pages_init(struct pages *p, uint32_t n, struct arena *arena);

/* Pages that can be taken now: free ones, and those that only the prefix cache keeps. */
uint32_t pages_available(const struct pages *p);

/* A page that `owner` alone has. There must be one available. */
uint32_t page_take(struct pages *p, uint32_t owner);
/* One more slot that reads the first `positions` of the page. */
void page_share(struct pages *p, uint32_t page, uint32_t positions);
void page_drop(struct pages *p, uint32_t page, uint32_t slot);
/* The same for the prefix cache. */
void page_keep(struct pages *p, uint32_t page, uint32_t positions);
void page_unkeep(struct pages *p, uint32_t page);

/* Whether only the prefix cache has it. */
static inline bool page_is_idle(const struct pages *p, uint32_t page) {
    return p->at[page].refs > 0 && p->at[page].refs == p->at[page].kept;
}

/* Whether a slot that has the page may write its positions from `first` on. */
bool page_is_writable(const struct pages *p, uint32_t page, uint32_t slot, uint32_t first);
/* The slot begins to write and becomes the page's owner. The page must be writable. */
void page_own(struct pages *p, uint32_t page, uint32_t slot);

static inline uint32_t pages_for(uint32_t positions) {
    return (positions + PAGE - 1) / PAGE;
}

#endif
