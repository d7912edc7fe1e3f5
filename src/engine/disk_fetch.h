/* disk_fetch.h - files of the disk tier into host memory, ahead of need: by a thread of its own,
 * beside the steps and beside the thread that writes files.
 *
 * The cache decides what is worth fetching. Calls come from the thread that uses both tiers;
 * nothing is allocated after open. */
#ifndef ENGINE_DISK_FETCH_H
#define ENGINE_DISK_FETCH_H

#include "engine/disk_tier.h"

enum { FETCH_JOBS = 256 };

struct disk_fetch;

/* Tiers are borrowed and closed after it; max_tokens: of an object. */
int disk_fetch_open(struct disk_fetch **out, struct disk_tier *disk, struct host_tier *host,
                    uint32_t max_tokens, struct err *err);
/* Drops the jobs it has not begun. Takes NULL. */
void disk_fetch_close(struct disk_fetch *f);

/* Whether fewer than FETCH_JOBS wait. */
bool disk_fetch_has_room(struct disk_fetch *f);
/* Queues a read of an object of these tokens, from disk into an object of host_tier_reserve; the
 * queue must have room. If the file is missing or damaged the host object stays unfilled. */
void disk_fetch_begin(struct disk_fetch *f, uint32_t object, const int32_t *tokens,
                      uint32_t host_object);
/* What it has read so far. */
struct sluice_moved disk_fetch_moved(struct disk_fetch *f);

#endif
