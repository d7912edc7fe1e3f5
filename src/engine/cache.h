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
 * disk. The tree is the only index of all three. */
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

struct entry {
    enum entry_kind kind;
    struct hash128 hash;                         /* of all tokens up to its end */
    uint32_t position;                           /* tokens up to its end */
    uint32_t n_tokens;                           /* of its own: PAGE, or those of the tail */
    uint32_t parent;                             /* a block; the root is its own */
    uint32_t first[ENTRY_KINDS], next, previous; /* children by kind, and siblings */
    uint32_t next_in_bucket;                     /* of blocks; of free entries: the next free one */
    uint32_t object[TIERS];      /* in each; NO_OBJECT: it is not there. On the device it is 0 */
    uint32_t page, next_of_page; /* on the device, but for a snapshot without a tail */
    uint32_t cell;               /* of a snapshot on the device */
    uint32_t n_children, n_below[TIERS]; /* all, and those that are in a tier */
    uint32_t pins;                       /* it is being read: it stays where it is */
    bool is_due;                         /* it is in the list of what is to go to disk */
    bool is_fetched; /* in host memory for a load to come: what it is read from is the disk */
    bool is_copied;  /* it was copied to the tiers below since its last use, whether it still is
                      * there or not */
    /* What it is worth keeping: see worth() in cache.c. */
    uint32_t uses;
    double since, priority;
    uint32_t heap_at[CACHE_HEAPS]; /* its place, or NO_ENTRY */
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
    uint64_t min_fetch; /* fewer bytes are not fetched: a load has them sooner than a step ends */
    tier_fill_fn *fill; /* user: a struct cache_payload */
    void *user;
};

/* Measured seconds to recompute a token, to copy a byte out and back, and to read one from disk. 0:
 * not known; then everything that leaves the device is copied, and everything closed written. */
struct cache_rates {
    double token_seconds, byte_seconds, disk_byte_seconds;
};

struct heap {
    uint32_t *at;
    uint32_t n;
};

enum { MAX_DUE = 64 };

struct cache {
    struct cache_options options;
    struct pages *pages; /* borrowed */
    struct cache_lower lower;
    struct cache_rates rates;     /* set by the owner */
    struct entry *entries;        /* (n_entries + 1), the root first */
    int32_t *tokens;              /* (n_entries + 1, PAGE) */
    uint32_t first_free, n_fresh; /* a list, and those from n_fresh on, never used */
    uint32_t *buckets;            /* (n_buckets, a power of two) */
    uint32_t n_buckets;
    uint32_t *of_page;    /* (pages) the first entry that has it */
    uint32_t *free_cells; /* (n_cells) a stack */
    uint32_t n_free_cells;
    struct heap heaps[CACHE_HEAPS];
    double clock;
    uint64_t n_evicted;           /* from the device */
    uint32_t due[MAX_DUE], n_due; /* entries that are to go to disk with all before them */
    uint64_t n_spilled, n_loaded;
    struct sluice_moved to_host, from_host, from_disk; /* by the caller's thread */
    double waited_seconds;                             /* for the thread that copies to the host */
};

/* Tables from the arena; false when memory ran out. */
bool cache_init(struct cache *c, const struct cache_options *options, struct pages *pages,
                struct arena *arena);

static inline const struct entry *cache_entry(const struct cache *c, uint32_t e) {
    return &c->entries[e];
}
static inline int32_t *cache_tokens(const struct cache *c, uint32_t e) {
    return c->tokens + (size_t)e * PAGE;
}

/* The tiers below, with what the disk has from earlier runs. */
void cache_attach(struct cache *c, const struct cache_lower *lower);
/* Everything that is worth it goes to disk, where there is one; the tiers are not used after that.
 */
void cache_detach(struct cache *c);

/* The block of these PAGE tokens after `parent`, on the device. When it is not there yet it is from
 * now on, with this page; else its page may be another, with the same bits. NO_ENTRY: there is no
 * room. */
uint32_t cache_block(struct cache *c, uint32_t parent, const int32_t *tokens, uint32_t page);

/* A snapshot after `block` and n tokens more, on the device, where none is there yet. `page` has
 * their keys and values, NO_PAGE when n is 0. The cell becomes the cache's. False: there is no
 * room.
 */
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

/* The newest snapshot of the first `max` of these tokens or fewer, which go through `block`;
 * NO_ENTRY: none. */
uint32_t cache_snapshot_before(const struct cache *c, uint32_t block, const int32_t *tokens,
                               uint32_t max);
/* The block on the way to `block` that ends at or before a position. */
uint32_t cache_block_before(const struct cache *c, uint32_t block, uint32_t position);

/* An entry and the blocks before it were used. */
void cache_use(struct cache *c, uint32_t e);

static inline bool cache_is_in(const struct cache *c, uint32_t e, enum tier tier) {
    return c->entries[e].object[tier] != NO_OBJECT;
}
/* An entry and the blocks before it stay where they are, or may go again. */
void cache_pin(struct cache *c, uint32_t e, bool is_pinned);
/* Reads an entry's payload from the tier below that has it. Not found: what `take` got is void. */
int cache_load(struct cache *c, uint32_t e, tier_take_fn *take, void *user, bool *is_found,
               struct err *err);
/* The tier that an entry comes from. */
enum tier cache_tier(const struct cache *c, uint32_t e);
/* Begins to read an entry and the blocks before it from disk into host memory, beside the steps, as
 * far as they are nowhere else, worth it, and there is room. Returns whether any such read is in
 * flight: a load would wait for it. */
bool cache_fetch(struct cache *c, uint32_t e);
/* An entry that was not found is gone from that tier. It is not pinned. */
void cache_lose(struct cache *c, uint32_t e);
/* A block that was loaded is on the device again. */
void cache_restore_page(struct cache *c, uint32_t e, uint32_t page);
/* An entry and the blocks before it are to go to disk as well, where there is one and that is worth
 * it: as far as there is room for the copies, and the rest with the calls of cache_copy_ahead. */
void cache_write_through(struct cache *c, uint32_t e);
/* Starts to copy to the tiers below, while steps run, what is to be written through and what will
 * be evicted from the device next, so that no step waits for it then. To be called once a step. */
void cache_copy_ahead(struct cache *c);
/* Waits until all that is to be written through is being written, as far as there is room for it.
 */
void cache_copy_due(struct cache *c);

/* All entries that no slot holds the pages of leave all tiers. */
void cache_forget(struct cache *c);

/* The first broken invariant in words, NULL when all hold. For tests. */
const char *cache_broken(const struct cache *c);

#endif
