/* pool.h - a team of threads that sleeps when there is nothing to do.
 *
 * One thread owns the pool and gives it jobs; a job runs on every thread of the team, the owner
 * included, and is over when all are done. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct pool;

/* A job: `index` is this thread's number, 0 (the owner) to `count` - 1. */
typedef void pool_fn(void *context, int index, int count);

/* A team of `threads` (at least 1, the caller counted in). */
int pool_open(struct pool **out, int threads, struct err *err);
void pool_close(struct pool *pool); /* takes NULL */

int pool_threads(const struct pool *pool);

/* Runs fn on every thread and returns when all have returned. */
void pool_run(struct pool *pool, pool_fn *fn, void *context);

/* Inside a job: returns once every thread of the team has arrived. A brief spin, then sleep. */
void pool_barrier(struct pool *pool);

/* Calls fn(context, begin, end) for pieces of `grain` items that together cover 0..count once;
 * threads take pieces as they become free, so the order is not fixed. */
typedef void pool_range_fn(void *context, uint64_t begin, uint64_t end);
void pool_for(struct pool *pool, uint64_t count, uint64_t grain, pool_range_fn *fn, void *context);

#endif
