/* host_tier.h - host memory for what was evicted from the device: KV pages and snapshots as plain
 * bytes.
 *
 * Only a store: the cache knows what an object means and which one to evict. The memory is reserved
 * at open and touched as it is used; nothing is allocated after that.
 *
 * Threads: one thread puts, gets and frees. Another may unpin what that thread has pinned for it,
 * and get it until then. A thread of the tier fills what is put with host_tier_put_later, any other
 * what is put with host_tier_reserve. */
#ifndef ENGINE_HOST_TIER_H
#define ENGINE_HOST_TIER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "sluice.h"

/* How bytes come in and go out: n bytes of the object, from byte `at` on; called in ascending
 * order, each byte once. A status other than SLUICE_OK ends the call, which returns it. */
typedef int tier_fill_fn(void *user, uint64_t at, uint64_t n, void *to, struct err *err);
typedef int tier_take_fn(void *user, uint64_t at, uint64_t n, const void *from, struct err *err);

enum { HOST_UNIT_BYTES = 2 << 20, HOST_NONE = UINT32_MAX, HOST_JOBS = 64 };

/* Where to copy from, for an object that is filled later; only its owner knows what the numbers
 * mean. */
struct host_source {
    uint32_t cell, page, positions;
};

/* Who fills such objects: `fence` is called by put_later, for a job's number below HOST_JOBS;
 * `fill` by the tier's thread, with the same number, when it gets to the job. The bytes are those
 * at the time of `fence`, and stay in place until the object is filled. */
struct host_filler {
    void *user;
    int (*fence)(void *user, uint32_t job, struct err *err);
    int (*fill)(void *user, uint32_t job, struct host_source from, uint64_t at, uint64_t n,
                void *to, struct err *err);
};

enum host_state { HOST_FILLED, HOST_WAITING, HOST_FILLING, HOST_FAILED };

/* An object is named by its first unit. */
struct host_object {
    uint64_t bytes; /* 0: no object begins here */
    uint32_t pins;
    bool is_freed; /* by its owner; its units are freed with the last pin */
    enum host_state state;
};

/* An object to be filled, which it pins. */
struct host_job {
    uint32_t object;
    struct host_source from;
};

struct host_tier {
    uint8_t *memory; /* (n_units, unit_bytes) */
    uint64_t unit_bytes;
    uint32_t n_units;
    uint32_t *next;              /* (n_units) the unit after this one; HOST_NONE: it is the last */
    struct host_object *objects; /* (n_units) */
    pthread_mutex_t lock;        /* guards all below, and the objects' pins */
    uint32_t first_free, n_free;
    uint32_t n_leaving; /* units of objects that are freed but still pinned */
    struct host_filler filler;
    struct host_job jobs[HOST_JOBS]; /* a ring: the first n_jobs from first_job on */
    uint32_t first_job, n_jobs;
    pthread_cond_t work, done;
    bool has_thread, is_ending;
    pthread_t thread;
    struct sluice_moved filled; /* by the thread */
};

/* As many units (0: of HOST_UNIT_BYTES) as `bytes` hold, at least one. */
int host_tier_open(struct host_tier *h, uint64_t bytes, uint64_t unit_bytes, struct err *err);
/* Only jobs may still pin anything; they are dropped. Takes a zeroed tier too. */
void host_tier_close(struct host_tier *h);
/* Starts the thread for host_tier_put_later. */
int host_tier_start(struct host_tier *h, const struct host_filler *filler, struct err *err);

/* Bytes that an object takes; bytes that are free; and bytes of freed objects that are still
 * pinned. */
uint64_t host_tier_cost(const struct host_tier *h, uint64_t bytes);
uint64_t host_tier_free_bytes(struct host_tier *h);
uint64_t host_tier_leaving(struct host_tier *h);

/* A new object of n > 0 bytes that `fill` provides. SLUICE_ERR_MEMORY: no room. Then, and when fill
 * fails, nothing has changed. */
int host_tier_put(struct host_tier *h, uint64_t n, tier_fill_fn *fill, void *user, uint32_t *object,
                  struct err *err);
/* The same, filled by the thread. SLUICE_ERR_MEMORY also when HOST_JOBS wait already. */
int host_tier_put_later(struct host_tier *h, uint64_t n, struct host_source from, uint32_t *object,
                        struct err *err);
/* A new object for another thread to fill; it is pinned for that thread. SLUICE_ERR_MEMORY: no
 * room. */
int host_tier_reserve(struct host_tier *h, uint64_t n, uint32_t *object, struct err *err);
/* Called by that thread, once each: begin (false: no longer needed, or filled by another; it is
 * unpinned), write, and end with success or failure. */
bool host_tier_begin(struct host_tier *h, uint32_t object);
void host_tier_write(const struct host_tier *h, uint32_t object, uint64_t at, uint64_t n,
                     const void *from);
void host_tier_end(struct host_tier *h, uint32_t object, bool is_filled);
/* Whether it is still to be filled. */
bool host_tier_is_pending(struct host_tier *h, uint32_t object);

/* Waits until an object that is filled later is filled; false: that failed. */
bool host_tier_wait(struct host_tier *h, uint32_t object);
/* The same for the thread that puts: fills it itself if the tier's thread has not begun. */
bool host_tier_finish(struct host_tier *h, uint32_t object, tier_fill_fn *fill, void *user);
/* Waits until a job is done; false: there is none. */
bool host_tier_wait_any(struct host_tier *h);
/* Copies a filled object out. */
int host_tier_get(const struct host_tier *h, uint32_t object, tier_take_fn *take, void *user,
                  struct err *err);
uint64_t host_tier_bytes(const struct host_tier *h, uint32_t object);
/* What the thread has copied so far. */
struct sluice_moved host_tier_filled(struct host_tier *h);
/* When this returns the tier's thread no longer uses it. */
void host_tier_free(struct host_tier *h, uint32_t object);

/* A pinned object keeps its bytes until it is unpinned as often, even if it is freed before. */
void host_tier_pin(struct host_tier *h, uint32_t object);
void host_tier_unpin(struct host_tier *h, uint32_t object);

/* The first broken invariant in words, NULL when all hold. For tests. */
const char *host_tier_broken(struct host_tier *h);

#endif
