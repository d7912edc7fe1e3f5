/* cache.c - the prefix cache: state computed for the beginnings of conversations, live ones
 * included.
 *
 * (1) An entry's tokens, after those of its ancestors, are what its page and cell were made from.
 *     Entries are found by a hash of all these tokens and compared token by token.
 * (2) No two blocks, and no two snapshots, of one parent have the same tokens.
 * (3) An entry is in one tier or several; it is removed when it is in none. A block stays as long
 *     as it has children, so the entries of a beginning have no gaps. An entry is on the device
 *     only if the blocks before it are.
 * (4) A slot that has the page of a block has those of all blocks before it. So a page that only
 *     the cache has (an idle one) is a leaf's, or there is a leaf after it whose page is idle too:
 *     idle pages can all be reclaimed, one after the other.
 * (5) Each heap has the entries that may go for one reason, the least useful on top. HEAP_PAGES has
 *     those with no other after them on the device whose page is idle, and snapshots without a page
 *     after such a block; HEAP_CELLS those with a cell; HEAP_HOST and HEAP_DISK those in that tier
 *     with no other after them in it. One that is pinned is in none. Order: cache_evict.c. */
#include <string.h>

#include "base/err.h"
#include "base/size.h"
#include "engine/cache_internal.h"

/* ---- entries ------------------------------------------------------------------------------ */

/* On disk it also stands for the tokens before, which a file does not have. Whoever sends prompts
 * chooses them all, so it must be one that nobody can choose. */
static struct hash128 hash_of(const struct cache *c, uint32_t parent, const int32_t *tokens,
                              uint32_t n) {
    struct {
        struct hash128 parent;
        int32_t tokens[PAGE];
    } key = {.parent = c->entries[parent].hash};
    memcpy(key.tokens, tokens, n * sizeof *tokens);
    return hash128_strong_of(&key, sizeof key.parent + n * sizeof *tokens);
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

uint32_t cache_best_snapshot_in(const struct cache *c, enum tier tier, uint32_t block,
                                const int32_t *tokens, uint32_t max) {
    uint32_t best = NO_ENTRY;
    for (uint32_t s = c->entries[block].first[ENTRY_SNAPSHOT]; s != NO_ENTRY;
         s = c->entries[s].next) {
        uint32_t n = c->entries[s].n_tokens;
        if (n <= max && (best == NO_ENTRY || n > c->entries[best].n_tokens) &&
            (tier == TIERS || cache_is_in(c, s, tier)) &&
            memcmp(cache_tokens(c, s), tokens, n * sizeof *tokens) == 0)
            best = s;
    }
    return best;
}

static uint32_t best_snapshot(const struct cache *c, uint32_t block, const int32_t *tokens,
                              uint32_t max) {
    return cache_best_snapshot_in(c, TIERS, block, tokens, max);
}

void cache_set_tier(struct cache *c, uint32_t e, enum tier tier, uint32_t object) {
    struct cache_entry *at = &c->entries[e];
    bool was_there = at->object[tier] != NO_OBJECT;
    at->object[tier] = object;
    c->entries[at->parent].n_below[tier] += (uint32_t)(object != NO_OBJECT) - was_there;
    cache_update_heaps(c, e);
    cache_update_heaps(c, at->parent);
}

static uint32_t take_entry(struct cache *c) {
    uint32_t e = c->first_free;
    if (e != NO_ENTRY)
        c->first_free = c->entries[e].next_in_bucket;
    else if (c->n_fresh <= c->options.n_entries)
        e = c->n_fresh++;
    return e;
}

/* A new entry with these tokens, linked to its parent; it is in no tier yet. */
static uint32_t add_entry(struct cache *c, struct cache_entry made, const int32_t *tokens) {
    uint32_t e = take_entry(c);
    if (e == NO_ENTRY)
        return e;
    struct cache_entry *at = &c->entries[e], *parent = &c->entries[made.parent];
    *at = made;
    at->position = parent->position + made.n_tokens;
    at->page = at->cell = at->next_of_page = at->next_in_bucket = at->previous = NO_ENTRY;
    for (int i = 0; i < CACHE_HEAPS; i++)
        at->heap_at[i] = NO_ENTRY;
    for (int i = 0; i < TIERS; i++)
        at->object[i] = NO_OBJECT;
    at->first[ENTRY_BLOCK] = at->first[ENTRY_SNAPSHOT] = NO_ENTRY;
    at->next = parent->first[made.kind];
    at->uses = 1;
    memcpy(cache_tokens(c, e), tokens, made.n_tokens * sizeof *tokens);
    if (at->next != NO_ENTRY)
        c->entries[at->next].previous = e;
    parent->first[made.kind] = e;
    parent->n_children++;
    if (made.kind == ENTRY_BLOCK) {
        at->next_in_bucket = *bucket_of(c, made.hash);
        *bucket_of(c, made.hash) = e;
    }
    return e;
}

static uint32_t add_block(struct cache *c, uint32_t parent, const int32_t *tokens,
                          struct hash128 hash) {
    const struct cache_entry made = {
        .kind = ENTRY_BLOCK, .hash = hash, .n_tokens = PAGE, .parent = parent};
    return add_entry(c, made, tokens);
}

static uint32_t add_snapshot(struct cache *c, uint32_t block, const int32_t *tokens, uint32_t n) {
    const struct cache_entry made = {.kind = ENTRY_SNAPSHOT,
                                     .hash = hash_of(c, block, tokens, n),
                                     .n_tokens = n,
                                     .parent = block};
    return add_entry(c, made, tokens);
}

/* The entry is on the device from now on. */
static void put_on_device(struct cache *c, uint32_t e, uint32_t page, uint32_t cell) {
    struct cache_entry *at = &c->entries[e];
    at->page = page;
    at->cell = cell;
    if (page != NO_PAGE) {
        at->next_of_page = c->of_page[page];
        c->of_page[page] = e;
        page_keep(c->pages, page, at->n_tokens);
    }
    cache_set_tier(c, e, TIER_DEVICE, 0);
    cache_touch(c, e);
}

static void unlink_from(uint32_t *list, struct cache *c, uint32_t e, bool is_page) {
    while (*list != e)
        list = is_page ? &c->entries[*list].next_of_page : &c->entries[*list].next_in_bucket;
    *list = is_page ? c->entries[e].next_of_page : c->entries[e].next_in_bucket;
}

void cache_take_off_device(struct cache *c, uint32_t e) {
    struct cache_entry *at = &c->entries[e];
    uint32_t page = at->page, cell = at->cell;
    if (page != NO_PAGE)
        unlink_from(&c->of_page[page], c, e, true);
    at->page = NO_PAGE;
    at->cell = NO_CELL;
    cache_set_tier(c, e, TIER_DEVICE, NO_OBJECT);
    if (page != NO_PAGE)
        page_unkeep(c->pages, page);
    if (cell != NO_CELL)
        cache_return_cell(c, cell);
}

void cache_leave_tier(struct cache *c, uint32_t e, enum tier tier) {
    uint32_t object = c->entries[e].object[tier];
    if (object == NO_OBJECT)
        return;
    if (tier == TIER_DEVICE)
        cache_take_off_device(c, e);
    else if (tier == TIER_HOST)
        host_tier_free(c->lower.host, object);
    else
        disk_tier_free(c->lower.disk, object);
    cache_set_tier(c, e, tier, NO_OBJECT);
    if (tier == TIER_HOST)
        c->entries[e].is_fetched = false;
}

void cache_forget_due(struct cache *c, uint32_t e) {
    uint32_t i = 0;
    if (!c->entries[e].is_due)
        return;
    while (c->due[i] != e)
        i++;
    memmove(c->due + i, c->due + i + 1, (--c->n_due - i) * sizeof *c->due);
    c->entries[e].is_due = false;
}

/* Takes an entry without children out of the tree. */
static void remove_entry(struct cache *c, uint32_t e) {
    struct cache_entry *at = &c->entries[e];
    struct cache_entry *parent = &c->entries[at->parent];
    CHECK(e != CACHE_ROOT && at->n_children == 0 && at->pins == 0);
    for (int i = TIERS; i-- > 0;)
        cache_leave_tier(c, e, i);
    cache_forget_due(c, e);
    *(at->previous == NO_ENTRY ? &parent->first[at->kind] : &c->entries[at->previous].next) =
        at->next;
    if (at->next != NO_ENTRY)
        c->entries[at->next].previous = at->previous;
    if (at->kind == ENTRY_BLOCK)
        unlink_from(bucket_of(c, at->hash), c, e, false);
    parent->n_children--;
    cache_update_heaps(c, at->parent);
    at->next_in_bucket = c->first_free;
    c->first_free = e;
}

void cache_remove_if_lost(struct cache *c, uint32_t top) {
    for (int i = 0; i < TIERS; i++)
        if (cache_is_in(c, top, i))
            return;
    for (uint32_t e = top, next;; e = next) {
        const uint32_t *first = c->entries[e].first;
        next = first[ENTRY_BLOCK] != NO_ENTRY ? first[ENTRY_BLOCK] : first[ENTRY_SNAPSHOT];
        if (next != NO_ENTRY)
            continue;
        next = c->entries[e].parent;
        remove_entry(c, e);
        if (e == top)
            return;
    }
}

uint32_t cache_block(struct cache *c, uint32_t parent, const int32_t *tokens, uint32_t page) {
    struct hash128 hash = hash_of(c, parent, tokens, PAGE);
    uint32_t e = find_block(c, parent, tokens, hash);
    if (e == NO_ENTRY)
        e = add_block(c, parent, tokens, hash);
    if (e != NO_ENTRY && !cache_is_in(c, e, TIER_DEVICE))
        put_on_device(c, e, page, NO_CELL);
    return e;
}

bool cache_snapshot(struct cache *c, uint32_t block, const int32_t *tokens, uint32_t n,
                    uint32_t page, uint32_t cell) {
    CHECK(n < PAGE && (n > 0) == (page != NO_PAGE));
    uint32_t e = best_snapshot(c, block, tokens, n);
    if (e == NO_ENTRY || c->entries[e].n_tokens != n)
        e = add_snapshot(c, block, tokens, n);
    if (e == NO_ENTRY || cache_is_in(c, e, TIER_DEVICE))
        return false;
    put_on_device(c, e, page, cell);
    return true;
}

bool cache_has_snapshot(const struct cache *c, uint32_t block, const int32_t *tokens, uint32_t n) {
    uint32_t found = best_snapshot(c, block, tokens, n);
    return found != NO_ENTRY && c->entries[found].n_tokens == n &&
           cache_is_in(c, found, TIER_DEVICE);
}

void cache_restore_page(struct cache *c, uint32_t e, uint32_t page) {
    put_on_device(c, e, page, NO_CELL);
}

/* ---- finding ------------------------------------------------------------------------------ */

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
            uint32_t max = min_u32(c->entries[e].n_tokens, n - m.position);
            uint32_t tail = common(cache_tokens(c, e), tokens + m.position, max);
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
                               uint32_t max) {
    block = cache_block_before(c, block, max);
    for (;; block = c->entries[block].parent) {
        uint32_t at = c->entries[block].position;
        uint32_t found = best_snapshot(c, block, tokens + at, max - at);
        if (found != NO_ENTRY || block == CACHE_ROOT)
            return found;
    }
}

/* ---- opening ------------------------------------------------------------------------------ */

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
    bool has_heaps = true;
    for (int i = 0; i < CACHE_HEAPS; i++)
        has_heaps &= (c->heaps[i].at = arena_array(arena, n, sizeof *c->heaps[i].at)) != NULL;
    if (!c->entries || !c->tokens || !c->buckets || !c->of_page || !c->free_cells || !has_heaps)
        return false;
    c->entries[CACHE_ROOT] = (struct cache_entry){
        .first = {NO_ENTRY, NO_ENTRY},
        .next = NO_ENTRY,
        .previous = NO_ENTRY,
        .page = NO_PAGE,
        .cell = NO_CELL,
        .heap_at = {NO_ENTRY, NO_ENTRY, NO_ENTRY, NO_ENTRY},
    };
    c->first_free = NO_ENTRY;
    c->n_fresh = 1;
    memset(c->buckets, 0xff, c->n_buckets * sizeof *c->buckets);
    memset(c->of_page, 0xff, pages->n * sizeof *c->of_page);
    for (uint32_t i = 0; i < options->n_cells; i++)
        cache_return_cell(c, options->first_cell + options->n_cells - 1 - i);
    pages->settle = cache_settle;
    pages->reclaim = cache_reclaim;
    pages->user = c;
    return true;
}

/* An object of an earlier run: its parent came before it. */
static bool add_from_disk(void *user, uint32_t object, const struct disk_meta *meta,
                          const int32_t *tokens) {
    struct cache *c = user;
    uint32_t n = meta->n_tokens, parent = CACHE_ROOT, e;
    bool is_block = meta->kind == DISK_BLOCK;
    if (is_block ? n != PAGE : n >= PAGE)
        return false;
    if (meta->position > n) {
        parent = *bucket_of(c, meta->parent);
        while (parent != NO_ENTRY && !hash128_equal(c->entries[parent].hash, meta->parent))
            parent = c->entries[parent].next_in_bucket;
    }
    if (parent == NO_ENTRY || c->entries[parent].position + n != meta->position ||
        !hash128_equal(hash_of(c, parent, tokens, n), meta->hash))
        return false;
    e = is_block ? add_block(c, parent, tokens, meta->hash) : add_snapshot(c, parent, tokens, n);
    if (e == NO_ENTRY)
        return false;
    cache_set_tier(c, e, TIER_DISK, object);
    if (meta->bytes == cache_payload_bytes(c, e)) {
        cache_touch(c, e);
        return true;
    }
    cache_set_tier(c, e, TIER_DISK, NO_OBJECT);
    cache_remove_if_lost(c, e);
    return false;
}

void cache_attach(struct cache *c, const struct cache_lower *lower) {
    c->lower = *lower;
    if (lower->disk)
        disk_tier_scan(lower->disk, add_from_disk, c);
}

/* ---- invariants --------------------------------------------------------------------------- */

static const char *broken_entry(const struct cache *c, uint32_t e) {
    const struct cache_entry *at = &c->entries[e];
    bool is_somewhere = e == CACHE_ROOT;
    for (int i = 0; i < TIERS; i++)
        is_somewhere |= cache_is_in(c, e, i);
    if (!is_somewhere)
        return "(3) an entry is in no tier";
    if (e != CACHE_ROOT && at->parent != CACHE_ROOT && cache_is_in(c, e, TIER_DEVICE) &&
        !cache_is_in(c, at->parent, TIER_DEVICE))
        return "(3) an entry is on the device, and the block before it is not";
    for (int i = 0; i < CACHE_HEAPS; i++) {
        uint32_t index = at->heap_at[i];
        if ((index != NO_ENTRY) != cache_belongs_to(c, e, i))
            return "(5) an entry is not in its heap, or in another";
        if (index == NO_ENTRY)
            continue;
        if (c->heaps[i].at[index] != e)
            return "(5) an entry is not where it says in its heap";
        if (index && c->entries[c->heaps[i].at[(index - 1) / 2]].priority > at->priority)
            return "(5) a heap is out of order";
    }
    return NULL;
}

/* How many entries are in its subtree, itself included; 0: a link is broken. */
static uint32_t count_below(const struct cache *c, uint32_t e, const char **broken) {
    uint32_t n = 1, n_children = 0, n_below[TIERS] = {0};
    const char *own = broken_entry(c, e);
    if (own)
        *broken = own;
    for (int kind = 0; kind < ENTRY_KINDS; kind++)
        for (uint32_t k = c->entries[e].first[kind]; k != NO_ENTRY; k = c->entries[k].next) {
            const struct cache_entry *at = &c->entries[k];
            if (at->parent != e || (int)at->kind != kind)
                *broken = "(3) a child has another parent";
            if (at->position != c->entries[e].position + at->n_tokens)
                *broken = "(1) an entry's position is wrong";
            n += count_below(c, k, broken);
            n_children++;
            for (int i = 0; i < TIERS; i++)
                n_below[i] += cache_is_in(c, k, i);
        }
    if (n_children != c->entries[e].n_children ||
        memcmp(n_below, c->entries[e].n_below, sizeof n_below) != 0)
        *broken = "(3) children are miscounted";
    return n;
}

const char *cache_broken(const struct cache *c) {
    const char *broken = NULL;
    uint32_t n_free = 0, n_cells = c->n_free_cells + c->heaps[HEAP_CELLS].n;
    uint64_t n_kept = 0, n_linked = 0;
    for (uint32_t e = c->first_free; e != NO_ENTRY; e = c->entries[e].next_in_bucket)
        n_free++;
    if (count_below(c, CACHE_ROOT, &broken) + n_free != c->n_fresh)
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
                    if (cache_is_in(c, k, TIER_DEVICE) &&
                        !page_is_idle(c->pages, c->entries[k].page))
                        return "(4) a slot has the page of a block, but not of the one before";
        }
    }
    if (n_cells != c->options.n_cells)
        return "(5) a cell is lost, or there is a step";
    return n_kept == n_linked ? NULL : "(1) kept pages are miscounted";
}
