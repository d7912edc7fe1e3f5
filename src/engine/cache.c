/* cache.c - the prefix cache: what is known of the beginnings of conversations, live ones included.
 *
 * (1) An entry's tokens, after those of its ancestors, are what its page and cell were made from.
 *     Entries are found by a hash of all these tokens and compared token by token.
 * (2) No two blocks, and no two snapshots, of one parent have the same tokens.
 * (3) A block stays as long as it has children; so what is known of a beginning has no gaps.
 * (4) A slot that has the page of a block has those of all blocks before it. So a page that only
 *     the cache has (an idle one) is a leaf's, or there is a leaf after it whose page is idle too:
 *     idle pages can all be reclaimed, one after the other.
 * (5) HEAP_PAGES has the leaves whose page is idle, and snapshots without a page after such a
 *     block; HEAP_CELLS has the entries with a cell. Both have the least useful one on top.
 *
 * Which one goes first: Greedy-Dual-Size-Frequency. An entry's priority is the clock when it was
 * last used plus uses * cost / bytes, where cost is the tokens that would have to be read again
 * without it; the one with the lowest goes, and the clock rises to its priority. So what is large,
 * cheap to read again, seldom used or long unused goes first, and one number weighs all four. */
#include "engine/cache.h"

#include <string.h>

#include "base/err.h"
#include "base/size.h"

/* ---- heaps ------------------------------------------------------------------------------------
 */

static void heap_put(struct cache *c, enum cache_heap which, uint32_t at, uint32_t e) {
    c->heaps[which].at[at] = e;
    c->entries[e].heap_at[which] = at;
}

/* Moves the entry at a place up or down until its priority is between those around it. */
static void heap_sift(struct cache *c, enum cache_heap which, uint32_t at) {
    struct heap *h = &c->heaps[which];
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
    struct heap *h = &c->heaps[which];
    uint32_t at = c->entries[e].heap_at[which];
    c->entries[e].heap_at[which] = NO_ENTRY;
    if (at == --h->n)
        return;
    heap_put(c, which, at, h->at[h->n]);
    heap_sift(c, which, at);
}

static bool is_idle(const struct cache *c, uint32_t e) {
    const struct entry *at = &c->entries[e];
    uint32_t page = at->page == NO_PAGE ? c->entries[at->parent].page : at->page;
    return page != NO_PAGE && page_is_idle(c->pages, page);
}

/* Into the heaps it belongs to, and out of the others; and to its place in them. */
static void place(struct cache *c, uint32_t e) {
    const struct entry *at = &c->entries[e];
    const bool belongs[CACHE_HEAPS] = {
        [HEAP_PAGES] = e != CACHE_ROOT && at->n_children == 0 && is_idle(c, e),
        [HEAP_CELLS] = at->cell != NO_CELL,
    };
    for (int i = 0; i < CACHE_HEAPS; i++) {
        bool is_there = at->heap_at[i] != NO_ENTRY;
        if (is_there && !belongs[i]) {
            heap_remove(c, i, e);
        } else if (belongs[i]) {
            if (!is_there)
                heap_put(c, i, c->heaps[i].n++, e);
            heap_sift(c, i, at->heap_at[i]);
        }
    }
}

/* A page became idle, or is no longer: what has it, or stands after it without a page. */
static void settle(void *user, uint32_t page) {
    struct cache *c = user;
    for (uint32_t e = c->of_page[page]; e != NO_ENTRY; e = c->entries[e].next_of_page) {
        place(c, e);
        for (uint32_t s = c->entries[e].first[ENTRY_SNAPSHOT]; s != NO_ENTRY;
             s = c->entries[s].next)
            place(c, s);
    }
}

/* ---- what an entry is worth -------------------------------------------------------------------
 */

/* The longest snapshot after `block` whose tail is a beginning of these tokens, at most `most`. */
static uint32_t best_snapshot(const struct cache *c, uint32_t block, const int32_t *tokens,
                              uint32_t most) {
    uint32_t best = NO_ENTRY;
    for (uint32_t s = c->entries[block].first[ENTRY_SNAPSHOT]; s != NO_ENTRY;
         s = c->entries[s].next) {
        uint32_t n = c->entries[s].n_tokens;
        if (n <= most && (best == NO_ENTRY || n > c->entries[best].n_tokens) &&
            memcmp(cache_tokens(c, s), tokens, n * sizeof *tokens) == 0)
            best = s;
    }
    return best;
}

/* The position of the newest snapshot before that one; 0: there is none. */
static uint32_t position_before(const struct cache *c, uint32_t snapshot) {
    uint32_t block = c->entries[snapshot].parent, most = c->entries[snapshot].n_tokens;
    uint32_t found = most ? best_snapshot(c, block, cache_tokens(c, snapshot), most - 1) : NO_ENTRY;
    while (found == NO_ENTRY && block != CACHE_ROOT) {
        uint32_t parent = c->entries[block].parent;
        found = best_snapshot(c, parent, cache_tokens(c, block), PAGE);
        block = parent;
    }
    return found == NO_ENTRY ? 0 : c->entries[found].position;
}

/* Where state is recurrent a block alone is of no use: it goes as soon as nothing comes after it.
 */
static double worth(const struct cache *c, uint32_t e) {
    const struct entry *at = &c->entries[e];
    uint64_t bytes = (at->page == NO_PAGE ? 0 : c->options.page_bytes) +
                     (at->cell == NO_CELL ? 0 : c->options.cell_bytes);
    uint32_t cost = at->n_tokens;
    if (c->options.is_recurrent)
        cost = at->kind == ENTRY_BLOCK ? 0 : at->position - position_before(c, e);
    return (double)at->uses * cost / (double)(bytes ? bytes : 1);
}

static void touch(struct cache *c, uint32_t e) {
    c->entries[e].since = c->clock;
    c->entries[e].priority = c->clock + worth(c, e);
    place(c, e);
}

void cache_use(struct cache *c, uint32_t e) {
    for (; e != CACHE_ROOT; e = c->entries[e].parent) {
        c->entries[e].uses++;
        touch(c, e);
    }
}

/* ---- entries ----------------------------------------------------------------------------------
 */

static struct hash128 hash_of(const struct cache *c, uint32_t parent, const int32_t *tokens,
                              uint32_t n) {
    struct {
        struct hash128 parent;
        int32_t tokens[PAGE];
    } key = {.parent = c->entries[parent].hash};
    memcpy(key.tokens, tokens, n * sizeof *tokens);
    return hash128_of(&key, sizeof key.parent + n * sizeof *tokens);
}

static uint32_t *bucket_of(const struct cache *c, struct hash128 hash) {
    return &c->buckets[hash.low & (c->n_buckets - 1)];
}

static uint32_t find_block(const struct cache *c, uint32_t parent, const int32_t *tokens,
                           struct hash128 hash) {
    uint32_t e = *bucket_of(c, hash);
    while (e != NO_ENTRY &&
           !(c->entries[e].parent == parent && hash128_equal(c->entries[e].hash, hash) &&
             memcmp(cache_tokens(c, e), tokens, PAGE * sizeof *tokens) == 0))
        e = c->entries[e].next_in_bucket;
    return e;
}

/* A new entry with these tokens, linked to its parent and its page. */
static uint32_t add_entry(struct cache *c, struct entry made, const int32_t *tokens) {
    uint32_t e = c->first_free;
    if (e == NO_ENTRY)
        return e;
    struct entry *at = &c->entries[e], *parent = &c->entries[made.parent];
    c->first_free = at->next_in_bucket;
    *at = made;
    at->position = parent->position + made.n_tokens;
    at->first[ENTRY_BLOCK] = at->first[ENTRY_SNAPSHOT] = at->previous = NO_ENTRY;
    at->heap_at[HEAP_PAGES] = at->heap_at[HEAP_CELLS] = at->next_in_bucket = NO_ENTRY;
    at->next = parent->first[made.kind];
    at->uses = 1;
    memcpy(cache_tokens(c, e), tokens, made.n_tokens * sizeof *tokens);
    if (at->next != NO_ENTRY)
        c->entries[at->next].previous = e;
    parent->first[made.kind] = e;
    parent->n_children++;
    place(c, made.parent);
    if (made.page != NO_PAGE) {
        at->next_of_page = c->of_page[made.page];
        c->of_page[made.page] = e;
        page_keep(c->pages, made.page, made.n_tokens);
    }
    touch(c, e);
    return e;
}

static void unlink_from(uint32_t *list, struct cache *c, uint32_t e, bool is_page) {
    while (*list != e)
        list = is_page ? &c->entries[*list].next_of_page : &c->entries[*list].next_in_bucket;
    *list = is_page ? c->entries[e].next_of_page : c->entries[e].next_in_bucket;
}

/* Takes an entry without children out of the tree. */
static void remove_entry(struct cache *c, uint32_t e) {
    struct entry *at = &c->entries[e];
    struct entry *parent = &c->entries[at->parent];
    CHECK(e != CACHE_ROOT && at->n_children == 0);
    for (int i = 0; i < CACHE_HEAPS; i++)
        if (at->heap_at[i] != NO_ENTRY)
            heap_remove(c, i, e);
    *(at->previous == NO_ENTRY ? &parent->first[at->kind] : &c->entries[at->previous].next) =
        at->next;
    if (at->next != NO_ENTRY)
        c->entries[at->next].previous = at->previous;
    if (at->kind == ENTRY_BLOCK)
        unlink_from(bucket_of(c, at->hash), c, e, false);
    if (at->page != NO_PAGE) {
        unlink_from(&c->of_page[at->page], c, e, true);
        page_unkeep(c->pages, at->page);
    }
    if (at->cell != NO_CELL)
        cache_return_cell(c, at->cell);
    parent->n_children--;
    place(c, at->parent);
    at->next_in_bucket = c->first_free;
    c->first_free = e;
}

uint32_t cache_block(struct cache *c, uint32_t parent, const int32_t *tokens, uint32_t page) {
    struct hash128 hash = hash_of(c, parent, tokens, PAGE);
    uint32_t e = find_block(c, parent, tokens, hash);
    if (e != NO_ENTRY)
        return e;
    const struct entry made = {.kind = ENTRY_BLOCK,
                               .hash = hash,
                               .n_tokens = PAGE,
                               .parent = parent,
                               .page = page,
                               .cell = NO_CELL};
    e = add_entry(c, made, tokens);
    if (e == NO_ENTRY)
        return e;
    c->entries[e].next_in_bucket = *bucket_of(c, hash);
    *bucket_of(c, hash) = e;
    return e;
}

bool cache_snapshot(struct cache *c, uint32_t block, const int32_t *tokens, uint32_t n,
                    uint32_t page, uint32_t cell) {
    CHECK(n < PAGE && (n > 0) == (page != NO_PAGE));
    const struct entry made = {.kind = ENTRY_SNAPSHOT,
                               .hash = hash_of(c, block, tokens, n),
                               .n_tokens = n,
                               .parent = block,
                               .page = page,
                               .cell = cell};
    return add_entry(c, made, tokens) != NO_ENTRY;
}

bool cache_has_snapshot(const struct cache *c, uint32_t block, const int32_t *tokens, uint32_t n) {
    uint32_t found = best_snapshot(c, block, tokens, n);
    return found != NO_ENTRY && c->entries[found].n_tokens == n;
}

/* ---- who goes ---------------------------------------------------------------------------------
 */

/* The least useful entry of a heap goes. What it is worth may have risen, as others before it are
 * gone: then it is looked at again. */
static void evict(struct cache *c, enum cache_heap which) {
    for (;;) {
        CHECK(c->heaps[which].n > 0);
        uint32_t e = c->heaps[which].at[0];
        struct entry *at = &c->entries[e];
        double now = at->since + worth(c, e);
        if (now > at->priority) {
            at->priority = now;
            place(c, e);
            continue;
        }
        if (c->clock < at->priority)
            c->clock = at->priority;
        c->n_evicted++;
        remove_entry(c, e);
        return;
    }
}

static void reclaim(void *user) {
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

/* ---- finding ----------------------------------------------------------------------------------
 */

static uint32_t common(const int32_t *a, const int32_t *b, uint32_t n) {
    uint32_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

struct match cache_match(const struct cache *c, const int32_t *tokens, uint32_t n) {
    struct match m = {.block = CACHE_ROOT, .entry = NO_ENTRY};
    while (n - m.position >= PAGE) {
        const int32_t *next = tokens + m.position;
        uint32_t e = find_block(c, m.block, next, hash_of(c, m.block, next, PAGE));
        if (e == NO_ENTRY)
            break;
        m.block = e;
        m.position += PAGE;
    }
    for (int kind = 0; kind < ENTRY_KINDS; kind++)
        for (uint32_t e = c->entries[m.block].first[kind]; e != NO_ENTRY; e = c->entries[e].next) {
            uint32_t most = min_u32(c->entries[e].n_tokens, n - m.position);
            uint32_t tail = common(cache_tokens(c, e), tokens + m.position, most);
            if (tail > m.tail) {
                m.tail = tail;
                m.entry = e;
            }
        }
    return m;
}

uint32_t cache_block_before(const struct cache *c, uint32_t block, uint32_t position) {
    while (c->entries[block].position > position)
        block = c->entries[block].parent;
    return block;
}

uint32_t cache_snapshot_before(const struct cache *c, uint32_t block, const int32_t *tokens,
                               uint32_t most) {
    block = cache_block_before(c, block, most);
    for (;; block = c->entries[block].parent) {
        uint32_t at = c->entries[block].position;
        uint32_t found = best_snapshot(c, block, tokens + at, most - at);
        if (found != NO_ENTRY || block == CACHE_ROOT)
            return found;
    }
}

/* ---- opening ----------------------------------------------------------------------------------
 */

bool cache_init(struct cache *c, const struct cache_options *options, struct pages *pages,
                struct arena *arena) {
    uint64_t n = (uint64_t)options->n_entries + 1;
    *c = (struct cache){.options = *options, .pages = pages, .n_buckets = 16};
    while (c->n_buckets < n)
        c->n_buckets *= 2;
    c->entries = arena_array(arena, n, sizeof *c->entries);
    c->tokens = arena_array(arena, n, PAGE * sizeof *c->tokens);
    c->buckets = arena_array(arena, c->n_buckets, sizeof *c->buckets);
    c->of_page = arena_array(arena, pages->n, sizeof *c->of_page);
    c->free_cells = arena_array(arena, options->n_cells, sizeof *c->free_cells);
    for (int i = 0; i < CACHE_HEAPS; i++)
        c->heaps[i].at = arena_array(arena, n, sizeof *c->heaps[i].at);
    if (!c->entries || !c->tokens || !c->buckets || !c->of_page || !c->free_cells ||
        !c->heaps[HEAP_PAGES].at || !c->heaps[HEAP_CELLS].at)
        return false;
    c->entries[CACHE_ROOT] = (struct entry){
        .first = {NO_ENTRY, NO_ENTRY},
        .next = NO_ENTRY,
        .previous = NO_ENTRY,
        .page = NO_PAGE,
        .cell = NO_CELL,
        .heap_at = {NO_ENTRY, NO_ENTRY},
    };
    c->first_free = NO_ENTRY;
    for (uint32_t e = options->n_entries; e > 0; e--) {
        c->entries[e].next_in_bucket = c->first_free;
        c->first_free = e;
    }
    memset(c->buckets, 0xff, c->n_buckets * sizeof *c->buckets);
    memset(c->of_page, 0xff, pages->n * sizeof *c->of_page);
    for (uint32_t i = 0; i < options->n_cells; i++)
        cache_return_cell(c, options->first_cell + options->n_cells - 1 - i);
    pages->settle = settle;
    pages->reclaim = reclaim;
    pages->user = c;
    return true;
}

/* ---- invariants -------------------------------------------------------------------------------
 */

/* How many entries stand below one, itself included; 0: a link is broken. */
static uint32_t count_below(const struct cache *c, uint32_t e, const char **broken) {
    uint32_t n = 1, n_children = 0;
    for (int kind = 0; kind < ENTRY_KINDS; kind++)
        for (uint32_t k = c->entries[e].first[kind]; k != NO_ENTRY; k = c->entries[k].next) {
            const struct entry *at = &c->entries[k];
            if (at->parent != e || (int)at->kind != kind)
                *broken = "(3) a child has another parent";
            if (at->position != c->entries[e].position + at->n_tokens)
                *broken = "(1) an entry's position is wrong";
            n += count_below(c, k, broken);
            n_children++;
        }
    if (n_children != c->entries[e].n_children)
        *broken = "(3) children are miscounted";
    return n;
}

static const char *broken_heaps(const struct cache *c, uint32_t e) {
    const struct entry *at = &c->entries[e];
    bool is_leaf = e != CACHE_ROOT && at->n_children == 0;
    if ((at->heap_at[HEAP_PAGES] != NO_ENTRY) != (is_leaf && is_idle(c, e)))
        return "(5) a leaf is not where it can be reclaimed, or should not be";
    if ((at->heap_at[HEAP_CELLS] != NO_ENTRY) != (at->cell != NO_CELL))
        return "(5) a cell is not where it can be reclaimed";
    for (int i = 0; i < CACHE_HEAPS; i++) {
        uint32_t place_of = at->heap_at[i];
        if (place_of == NO_ENTRY)
            continue;
        if (c->heaps[i].at[place_of] != e)
            return "(5) an entry is not where it says in its heap";
        if (place_of && c->entries[c->heaps[i].at[(place_of - 1) / 2]].priority > at->priority)
            return "(5) a heap is out of order";
    }
    return NULL;
}

const char *cache_broken(const struct cache *c) {
    const char *broken = NULL;
    uint32_t n_free = 0, n_cells = c->n_free_cells, n = c->options.n_entries + 1;
    uint64_t n_kept = 0, n_linked = 0;
    for (uint32_t e = c->first_free; e != NO_ENTRY; e = c->entries[e].next_in_bucket)
        n_free++;
    if (count_below(c, CACHE_ROOT, &broken) + n_free != n)
        return "(3) an entry is neither in the tree nor free";
    if (broken)
        return broken;
    for (uint32_t page = 0; page < c->pages->n; page++) {
        n_kept += c->pages->at[page].kept;
        for (uint32_t e = c->of_page[page]; e != NO_ENTRY; e = c->entries[e].next_of_page) {
            n_linked++;
            if (c->entries[e].page != page)
                return "(1) an entry is listed with another page";
            if (c->entries[e].kind == ENTRY_BLOCK && page_is_idle(c->pages, page))
                for (uint32_t k = c->entries[e].first[0]; k != NO_ENTRY; k = c->entries[k].next)
                    if (!page_is_idle(c->pages, c->entries[k].page))
                        return "(4) a slot has the page of a block, but not of the one before";
            if ((broken = broken_heaps(c, e)))
                return broken;
        }
    }
    for (uint32_t i = 0; i < c->heaps[HEAP_CELLS].n; i++, n_cells++)
        if ((broken = broken_heaps(c, c->heaps[HEAP_CELLS].at[i])))
            return broken;
    if (n_cells != c->options.n_cells)
        return "(5) a cell is lost, or there is a step";
    return n_kept == n_linked ? NULL : "(1) kept pages are miscounted";
}
