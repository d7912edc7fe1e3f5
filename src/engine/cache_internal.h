/* cache_internal.h - what the files of cache.h share: cache.c and cache_tiers.c. */
#ifndef ENGINE_CACHE_INTERNAL_H
#define ENGINE_CACHE_INTERNAL_H

#include "engine/cache.h"

/* ---- cache.c ------------------------------------------------------------------------------ */

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
/* Adds the entry to the heaps it belongs to, removes it from the others, and restores heap order.
 */
void cache_place(struct cache *c, uint32_t e);
/* The entry was used now: sets its priority and its place in the heaps. */
void cache_touch(struct cache *c, uint32_t e);
/* An entry is added to a tier, or leaves it (NO_OBJECT). */
void cache_set_tier(struct cache *c, uint32_t e, enum tier tier, uint32_t object);
/* Removes an entry from a tier, and frees its object or page and cell there. */
void cache_leave_tier(struct cache *c, uint32_t e, enum tier tier);
/* Removes an entry that is in no tier, and all that follow it. */
void cache_remove_if_lost(struct cache *c, uint32_t top);
/* The entry is no longer listed to be written to disk. */
void cache_forget_due(struct cache *c, uint32_t e);

/* ---- cache_tiers.c ------------------------------------------------------------------------ */

/* Before an entry leaves the device: it is copied to the tiers below, if it fits and is worth it.
 */
void cache_finish_spill(struct cache *c, uint32_t e);

#endif
