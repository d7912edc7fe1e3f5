/* cache.h - the prefix cache: state computed for the beginnings of conversations, live ones
 * included.
 *
 * A tree over the tokens of all conversations. A block is PAGE tokens after those of its parent,
 * and the page with their keys and values. A snapshot is a position that a sequence can continue
 * from: the block before it, a tail of fewer than PAGE tokens with the page they are in, and, for
 * models with recurrent state, a cell: the memory of one such state. Models without it can continue
 * from anywhere; their snapshots are the tails of closed sequences.
 *
 * What is evicted from the device goes to host memory, if there is such a tier, and from there to
 * disk. The tree is the only index of all three.
 *
 * Part of the engine: used by its thread alone. Tables come from the engine's arena; pages and
 * tiers are borrowed. Nothing is allocated after cache_init. */
#ifndef ENGINE_CACHE_H
#define ENGINE_CACHE_H

#include "base/hash.h"
#include "engine/disk_fetch.h"
#include "engine/pages.h"

enum { CACHE_ROOT = 0, NO_ENTRY = UINT32_MAX, NO_CELL = UINT32_MAX };

enum entry_kind { ENTRY_BLOCK, ENTRY_SNAPSHOT, ENTRY_KINDS };

enum tier { TIER_DEVICE, TIER_HOST, TIER_DISK, TIERS };
enum { NO_OBJECT = UINT32_MAX };
_Static_assert((uint32_t)HOST_NONE == NO_OBJECT && (uint32_t)DISK_NONE == NO_OBJECT, "no object");

/* Why an entry may be evicted: its page is needed, or its cell, or its space in a lower tier. */
enum cache_heap { HEAP_PAGES, HEAP_CELLS, HEAP_HOST, HEAP_DISK, CACHE_HEAPS };

struct cache_entry {
    enum entry_kind kind;
    struct hash128 hash;                         /* of all tokens up to its end */
    uint32_t position;                           /* tokens up to its end */
    uint32_t n_tokens;                           /* its own tokens: PAGE, or those of the tail */
    uint32_t parent;                             /* a block; the root is its own */
    uint32_t first[ENTRY_KINDS], next, previous; /* children by kind, and siblings */
    uint32_t next_in_bucket;                     /* of blocks; of free entries: the next free one */
    uint32_t object[TIERS];              /* in each tier; NO_OBJECT: not there. On the device: 0 */
    uint32_t page, next_of_page;         /* if on the device; a snapshot without a tail has none */
    uint32_t cell;                       /* of a snapshot on the device */
    uint32_t n_children, n_below[TIERS]; /* all children, and those in each tier */
    uint32_t pins;                       /* being read: it stays where it is */
    bool is_due;                         /* listed to be written to disk */
    bool is_fetched; /* prefetched from disk into host memory, for a load to come */
    bool is_copied;  /* was copied to the tiers below since its last use, and may have been evicted
                      * there */
    /* What it is worth keeping: see worth() in cache_evict.c. */
    uint32_t uses;
    double since, priority;
    uint32_t heap_at[CACHE_HEAPS]; /* its index there, or NO_ENTRY */
};

struct cache_options {
    uint32_t n_entries;           /* besides the root */
    uint32_t first_cell, n_cells; /* numbers of the cells that snapshots may have */
    bool is_recurrent;
    uint64_t page_bytes, cell_bytes;
};

/* The tiers below the device; NULL: there is none. `fill` returns an entry's payload. */
struct cache_payload {
    void *user;
    uint32_t entry;
};
struct cache_lower {
    struct host_tier *host;
    struct disk_tier *disk;
    struct disk_fetch *fetch; /* where there is a disk */
    uint64_t min_fetch; /* smaller reads are not prefetched: a load is done before a step ends */
    tier_fill_fn *fill; /* user: a struct cache_payload */
    void *user;
};

/* Measured seconds to recompute a token, to copy a byte out and back, and to read one from disk.
 * 0: unknown; then everything that leaves the device is copied, and everything closed is written.
 */
struct cache_rates {
    double token_seconds, byte_seconds, disk_byte_seconds;
};

struct entry_heap {
    uint32_t *at;
    uint32_t n;
};

enum { MAX_DUE = 64 };

struct cache {
    struct cache_options options;
    struct pages *pages; /* borrowed */
    struct cache_lower lower;
    struct cache_rates rates;     /* set by the owner */
    struct cache_entry *entries;  /* (n_entries + 1), the root first */
    int32_t *tokens;              /* (n_entries + 1, PAGE) */
    uint32_t first_free, n_fresh; /* a list, and those from n_fresh on, never used */
    uint32_t *buckets;            /* (n_buckets, a power of two) */
    uint32_t n_buckets;
    uint32_t *of_page;    /* (pages) the first entry that has it */
    uint32_t *free_cells; /* (n_cells) a stack */
    uint32_t n_free_cells;
    struct entry_heap heaps[CACHE_HEAPS];
    double clock;
    uint64_t n_evicted;           /* from the device */
    uint32_t due[MAX_DUE], n_due; /* entries that are to go to disk with all before them */
    uint64_t n_spilled, n_loaded;
    struct sluice_moved to_host, from_host, from_disk; /* by the caller's thread */
    double waited_seconds; /* waited for the thread that copies to the host */
};

/* Tables from the arena; false when memory ran out. */
bool cache_init(struct cache *c, const struct cache_options *options, struct pages *pages,
                struct arena *arena);

static inline const struct cache_entry *cache_entry(const struct cache *c, uint32_t e) {
    return &c->entries[e];
}
static inline int32_t *cache_tokens(const struct cache *c, uint32_t e) {
    return c->tokens + (size_t)e * PAGE;
}

/* Attaches the tiers below, with what earlier runs left on disk. */
void cache_attach(struct cache *c, const struct cache_lower *lower);
/* Writes everything that is worth it to disk, if there is one; the tiers are not used after that.
 */
void cache_detach(struct cache *c);

/* The block of these PAGE tokens after `parent`, on the device. If there was none it is added with
 * this page; else its page may be another one with the same bits. NO_ENTRY: no room. */
uint32_t cache_block(struct cache *c, uint32_t parent, const int32_t *tokens, uint32_t page);

/* Adds a snapshot after `block` and n more tokens, on the device, if there is none yet. `page` has
 * their keys and values, NO_PAGE when n is 0. The cache owns the cell then. False: no room. */
bool cache_snapshot(struct cache *c, uint32_t block, const int32_t *tokens, uint32_t n,
                    uint32_t page, uint32_t cell);
/* Whether there is such a snapshot on the device. */
bool cache_has_snapshot(const struct cache *c, uint32_t block, const int32_t *tokens, uint32_t n);

/* A cell for a snapshot; the least useful snapshot may be evicted for it. NO_CELL: there are none.
 */
uint32_t cache_take_cell(struct cache *c);
void cache_return_cell(struct cache *c, uint32_t cell);

/* What is known of the beginning of n tokens. */
struct match {
    uint32_t block;    /* the last whole one */
    uint32_t position; /* its end */
    uint32_t tail;     /* tokens in common after it, with ... */
    uint32_t entry;    /* ... the beginning of this entry; NO_ENTRY: none */
};
struct match cache_match(const struct cache *c, const int32_t *tokens, uint32_t n);

/* The newest snapshot of at most the first `max` of these tokens, whose path goes through `block`;
 * NO_ENTRY: none. */
uint32_t cache_snapshot_before(const struct cache *c, uint32_t block, const int32_t *tokens,
                               uint32_t max);
/* The last block on the path to `block` that ends at or before a position. */
uint32_t cache_block_before(const struct cache *c, uint32_t block, uint32_t position);

/* An entry and the blocks before it were used. */
void cache_use(struct cache *c, uint32_t e);

static inline bool cache_is_in(const struct cache *c, uint32_t e, enum tier tier) {
    return c->entries[e].object[tier] != NO_OBJECT;
}
/* Pins an entry and the blocks before it, or unpins them. */
void cache_pin(struct cache *c, uint32_t e, bool is_pinned);
/* Reads an entry's payload from the tier below that has it. If it is not found, what `take` got is
 * to be thrown away. */
int cache_load(struct cache *c, uint32_t e, tier_take_fn *take, void *user, bool *is_found,
               struct err *err);
/* The tier that an entry comes from. */
enum tier cache_tier(const struct cache *c, uint32_t e);
/* Begins to read an entry and the blocks before it from disk into host memory while steps run:
 * those that are only on disk, worth it, and fit. Returns whether any such read is in flight: a
 * load would wait for it. */
bool cache_fetch(struct cache *c, uint32_t e);
/* Drops an entry that was not found from its tier. It must not be pinned. */
void cache_lose(struct cache *c, uint32_t e);
/* A block that was loaded is on the device again. */
void cache_restore_page(struct cache *c, uint32_t e, uint32_t page);
/* Writes an entry and the blocks before it to disk as well, if there is one and it is worth it:
 * those that fit now, the rest with later calls of cache_copy_ahead. */
void cache_write_through(struct cache *c, uint32_t e);
/* Starts to copy to the tiers below, while steps run, what is to be written through and what will
 * be evicted next, so that no step waits for it. Call it once per step. */
void cache_copy_ahead(struct cache *c);
/* Waits until everything to be written through is being written, as far as it fits. */
void cache_copy_due(struct cache *c);

/* Whether the entries with this page have nothing after them on the device, so that they can leave
 * it; and evicts them: the page is then its slots' alone. */
bool cache_can_release(const struct cache *c, uint32_t page);
void cache_release(struct cache *c, uint32_t page);

/* Removes every entry whose pages no slot holds, from all tiers. */
void cache_forget(struct cache *c);

/* The first broken invariant in words, NULL when all hold. For tests. */
const char *cache_broken(const struct cache *c);

#endif
