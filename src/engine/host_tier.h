/* host_tier.h - host memory for what has left the device: KV pages and snapshots as plain bytes.
 *
 * A store and nothing more: what an object means, and which one goes when there is no room, is for
 * the cache to know. The memory is reserved at open and touched as it is used; nothing is allocated
 * after that.
 *
 * Threads: one thread puts, gets and frees. Another may unpin what that thread has pinned for it,
 * and get it until then. */
#ifndef ENGINE_HOST_TIER_H
#define ENGINE_HOST_TIER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* How bytes come in and go out: n bytes of the object from byte `at` on; in ascending order, each
 * byte once. A status other than SLUICE_OK ends the call, which returns it. */
typedef int tier_fill_fn(void *user, uint64_t at, uint64_t n, void *to, struct err *err);
typedef int tier_take_fn(void *user, uint64_t at, uint64_t n, const void *from, struct err *err);

enum { HOST_UNIT_BYTES = 2 << 20, HOST_NONE = UINT32_MAX };

/* An object is named by its first unit. */
struct host_object {
    uint64_t bytes; /* 0: no object begins here */
    uint32_t pins;
    bool is_freed; /* by its owner; its units follow when the last pin goes */
};

struct host_tier {
    uint8_t *memory; /* (n_units, unit_bytes) */
    uint64_t unit_bytes;
    uint32_t n_units;
    uint32_t *next;              /* (n_units) the unit after this one; HOST_NONE: it is the last */
    struct host_object *objects; /* (n_units) */
    pthread_mutex_t lock;        /* of all that follows, and of objects' pins */
    uint32_t first_free, n_free;
};

/* As many units (0: of HOST_UNIT_BYTES) as `bytes` hold, at least one. */
int host_tier_open(struct host_tier *h, uint64_t bytes, uint64_t unit_bytes, struct err *err);
void host_tier_close(struct host_tier *h); /* nothing is pinned any more; takes zeroed ones too */

/* What an object of so many bytes takes, and what is free. */
uint64_t host_tier_cost(const struct host_tier *h, uint64_t bytes);
uint64_t host_tier_room(struct host_tier *h);

/* A new object of n > 0 bytes that `fill` provides. SLUICE_ERR_MEMORY when it finds no room; then,
 * and when fill fails, nothing has changed. */
int host_tier_put(struct host_tier *h, uint64_t n, tier_fill_fn *fill, void *user, uint32_t *object,
                  struct err *err);
int host_tier_get(const struct host_tier *h, uint32_t object, tier_take_fn *take, void *user,
                  struct err *err);
uint64_t host_tier_bytes(const struct host_tier *h, uint32_t object);
void host_tier_free(struct host_tier *h, uint32_t object);

/* A pinned object keeps its bytes until it is unpinned as often, even when it is freed before. */
void host_tier_pin(struct host_tier *h, uint32_t object);
void host_tier_unpin(struct host_tier *h, uint32_t object);

/* The first broken invariant in words, NULL when all hold. For tests. */
const char *host_tier_broken(struct host_tier *h);

#endif
