/* cache_internal.h - what the files of cache.h share.
 *
 * cache.c is the tree: entries, and finding them; cache_evict.c decides which go first;
 * cache_tiers.c moves them to the tiers below the device and back. */
#ifndef ENGINE_CACHE_INTERNAL_H
#define ENGINE_CACHE_INTERNAL_H

#include "engine/cache.h"

/* ---- cache.c ------------------------------------------------------------------------------ */

/* The longest snapshot after `block` whose tail is a beginning of these tokens, at most `max`; of
 * those in a tier, TIERS: in any. NO_ENTRY: none. */
uint32_t cache_best_snapshot_in(const struct cache *c, enum tier tier, uint32_t block,
                                const int32_t *tokens, uint32_t max);
/* An entry is added to a tier, or leaves it (NO_OBJECT). */
void cache_set_tier(struct cache *c, uint32_t e, enum tier tier, uint32_t object);
/* Removes an entry from a tier, and frees its object or page and cell there. */
void cache_leave_tier(struct cache *c, uint32_t e, enum tier tier);
/* The same of an entry that is on the device. */
void cache_take_off_device(struct cache *c, uint32_t e);
/* Removes an entry that is in no tier, and all that follow it. */
void cache_remove_if_lost(struct cache *c, uint32_t top);
/* The entry is no longer listed to be written to disk. */
void cache_forget_due(struct cache *c, uint32_t e);

/* ---- cache_evict.c ------------------------------------------------------------------------ */

/* Bytes of an entry's page and cell, stored as one object. */
uint64_t cache_payload_bytes(const struct cache *c, uint32_t e);
/* Whether it takes longer to copy an entry out and back than to process its tokens again. A block
 * of a recurrent model is needed by the snapshots after it, whatever it costs. */
bool cache_is_cheap(const struct cache *c, uint32_t e);
/* Whether it takes longer to read a snapshot from disk than to process its tokens again, from the
 * newest one there. Only recurrent state is large for its tokens. */
bool cache_is_cheap_on_disk(const struct cache *c, uint32_t e);
/* Whether its page, or its parent's where it has none, is one that only the cache has. */
bool cache_is_idle(const struct cache *c, uint32_t e);
/* Whether an entry belongs to a heap: (5) in cache.c. */
bool cache_belongs_to(const struct cache *c, uint32_t e, enum cache_heap which);
/* Adds the entry to the heaps it belongs to, removes it from the others, and restores heap order.
 */
void cache_update_heaps(struct cache *c, uint32_t e);
/* The entry was used now: sets its priority and its place in the heaps. */
void cache_touch(struct cache *c, uint32_t e);
/* For pages.h; user: the cache. A page became idle, or stopped being so: updates the entries that
 * have it, or follow it without a page. And: evicts entries until a page is free. */
void cache_settle(void *user, uint32_t page);
void cache_reclaim(void *user);

/* ---- cache_tiers.c ------------------------------------------------------------------------ */

/* Before an entry leaves the device: it is copied to the tiers below, if it fits and is worth it.
 */
void cache_finish_spill(struct cache *c, uint32_t e);

#endif
