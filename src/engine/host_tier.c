/* host_tier.c - host memory for objects, in units of one size.
 *
 * (1) A unit is on the free list or in the chain of exactly one object.
 * (2) An object's chain has as many units as its bytes need and does not change while it lives: so
 *     a holder of a pin walks it without the lock.
 * (3) An object that was freed lives on while it is pinned, and no longer.
 * (4) A job pins its object, and so does another thread that is to fill one. Jobs are done in
 *     order; the thread holds the lock for tables alone.
 *
 * Units freed last are taken first: memory that was never needed is never touched. */
#include "engine/host_tier.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/size.h"
#include "base/thread.h"

static uint32_t units_for(const struct host_tier *h, uint64_t bytes) {
    uint64_t n = bytes / h->unit_bytes + (bytes % h->unit_bytes != 0);
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static uint8_t *unit_at(const struct host_tier *h, uint32_t unit) {
    return h->memory + unit * h->unit_bytes;
}

/* ---- open and close ----------------------------------------------------------------------- */

static uint8_t *reserve(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE); /* fewer page faults, where huge pages are available */
    madvise(p, bytes, MADV_DONTDUMP);
    return p;
}

int host_tier_open(struct host_tier *h, uint64_t bytes, uint64_t unit_bytes, struct err *err) {
    *h = (struct host_tier){.unit_bytes = unit_bytes ? unit_bytes : HOST_UNIT_BYTES};
    uint64_t n = bytes / h->unit_bytes;
    if (n == 0 || n >= HOST_NONE)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "the cache in host memory has %llu bytes, expected %llu or more%s",
                       (unsigned long long)bytes, (unsigned long long)h->unit_bytes,
                       n ? ", but not so many" : "");
    h->memory = reserve(n * h->unit_bytes);
    h->next = malloc(n * sizeof *h->next);
    h->objects = calloc(n, sizeof *h->objects);
    h->n_units = h->n_free = (uint32_t)n;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->work, NULL);
    pthread_cond_init(&h->done, NULL);
    if (!h->memory || !h->next || !h->objects) {
        host_tier_close(h);
        return err_set(err, SLUICE_ERR_MEMORY,
                       "out of memory for a cache of %llu bytes in host memory",
                       (unsigned long long)bytes);
    }
    for (uint32_t i = 0; i < n; i++)
        h->next[i] = i + 1 < n ? i + 1 : HOST_NONE;
    return SLUICE_OK;
}

void host_tier_close(struct host_tier *h) {
    if (h->n_units == 0)
        return;
    if (h->has_thread)
        thread_stop(h->thread, &h->lock, &h->work, &h->is_ending);
    if (h->memory)
        munmap(h->memory, h->n_units * h->unit_bytes);
    free(h->next);
    free(h->objects);
    pthread_cond_destroy(&h->done);
    pthread_cond_destroy(&h->work);
    pthread_mutex_destroy(&h->lock);
    *h = (struct host_tier){0};
}

/* ---- units -------------------------------------------------------------------------------- */

uint64_t host_tier_cost(const struct host_tier *h, uint64_t bytes) {
    return size_times(units_for(h, bytes), h->unit_bytes);
}

uint64_t host_tier_free_bytes(struct host_tier *h) {
    pthread_mutex_lock(&h->lock);
    uint64_t bytes = h->n_free * h->unit_bytes;
    pthread_mutex_unlock(&h->lock);
    return bytes;
}

uint64_t host_tier_leaving(struct host_tier *h) {
    pthread_mutex_lock(&h->lock);
    uint64_t bytes = h->n_leaving * h->unit_bytes;
    pthread_mutex_unlock(&h->lock);
    return bytes;
}

/* A chain of n units; HOST_NONE: fewer are free. */
static uint32_t take_units(struct host_tier *h, uint32_t n) {
    if (n > h->n_free)
        return HOST_NONE;
    uint32_t first = h->first_free, last = first;
    for (uint32_t i = 1; i < n; i++)
        last = h->next[last];
    h->first_free = h->next[last];
    h->next[last] = HOST_NONE;
    h->n_free -= n;
    return first;
}

static void give_back(struct host_tier *h, uint32_t first) {
    uint32_t last = first;
    h->n_free += units_for(h, h->objects[first].bytes);
    while (h->next[last] != HOST_NONE)
        last = h->next[last];
    h->next[last] = h->first_free;
    h->first_free = first;
    h->objects[first] = (struct host_object){0};
}

static struct host_object *living(const struct host_tier *h, uint32_t object) {
    CHECK(object < h->n_units && h->objects[object].bytes > 0);
    return &h->objects[object];
}

/* ---- objects ------------------------------------------------------------------------------ */

/* Units of a chain that follow each other in memory: the fewer calls, the faster a device
 * copies. */
struct unit_run {
    uint32_t unit, next;
    uint64_t at, bytes;
};

/* The next run of an object of n bytes; false after the last. */
static bool next_run(const struct host_tier *h, uint64_t n, struct unit_run *r) {
    uint32_t last = r->next;
    r->at += r->bytes;
    if (r->at == n)
        return false;
    r->unit = last;
    while (h->next[last] == last + 1)
        last++;
    r->next = h->next[last];
    r->bytes = (last - r->unit + 1) * h->unit_bytes;
    if (r->bytes > n - r->at)
        r->bytes = n - r->at;
    return true;
}

/* Takes units for an object of n bytes; SLUICE_ERR_MEMORY when too few are free. Under the lock. */
static int reserve_object(struct host_tier *h, uint64_t n, enum host_state state, uint32_t *object,
                          struct err *err) {
    CHECK(n > 0);
    uint32_t first = take_units(h, units_for(h, n));
    if (first == HOST_NONE)
        return err_set(err, SLUICE_ERR_MEMORY,
                       "the cache in host memory has no room for %llu bytes",
                       (unsigned long long)n);
    h->objects[first] = (struct host_object){.bytes = n, .state = state};
    *object = first;
    return SLUICE_OK;
}

/* Fills an object on the caller's thread. */
static int fill_here(const struct host_tier *h, uint32_t object, tier_fill_fn *fill, void *user,
                     struct err *err) {
    uint64_t n = h->objects[object].bytes;
    int status = SLUICE_OK;
    struct unit_run r = {.next = object};
    while (!status && next_run(h, n, &r))
        status = fill(user, r.at, r.bytes, unit_at(h, r.unit), err);
    return status;
}

int host_tier_put(struct host_tier *h, uint64_t n, tier_fill_fn *fill, void *user, uint32_t *object,
                  struct err *err) {
    uint32_t first;
    pthread_mutex_lock(&h->lock);
    int status = reserve_object(h, n, HOST_FILLED, &first, err);
    pthread_mutex_unlock(&h->lock);
    if (status)
        return status;
    if ((status = fill_here(h, first, fill, user, err)))
        host_tier_free(h, first);
    else
        *object = first;
    return status;
}

int host_tier_get(const struct host_tier *h, uint32_t object, tier_take_fn *take, void *user,
                  struct err *err) {
    uint64_t n = living(h, object)->bytes;
    int status = SLUICE_OK;
    struct unit_run r = {.next = object};
    CHECK(living(h, object)->state == HOST_FILLED);
    while (!status && next_run(h, n, &r))
        status = take(user, r.at, r.bytes, unit_at(h, r.unit), err);
    return status;
}

uint64_t host_tier_bytes(const struct host_tier *h, uint32_t object) {
    return living(h, object)->bytes;
}

/* One pin less. */
static void unpin(struct host_tier *h, uint32_t object) {
    struct host_object *o = living(h, object);
    CHECK(o->pins > 0);
    if (--o->pins > 0 || !o->is_freed)
        return;
    h->n_leaving -= units_for(h, o->bytes);
    give_back(h, object);
}

static bool is_pending(const struct host_object *o) {
    return o->state == HOST_WAITING || o->state == HOST_FILLING;
}

/* If the thread has not begun to fill it and nobody else waits for it, the job is dropped. */
void host_tier_free(struct host_tier *h, uint32_t object) {
    pthread_mutex_lock(&h->lock);
    struct host_object *o = living(h, object);
    CHECK(!o->is_freed);
    if (o->state == HOST_WAITING && o->pins == 1)
        o->state = HOST_FAILED;
    while (is_pending(o))
        pthread_cond_wait(&h->done, &h->lock);
    o->is_freed = true;
    if (o->pins == 0)
        give_back(h, object);
    else
        h->n_leaving += units_for(h, o->bytes);
    pthread_mutex_unlock(&h->lock);
}

void host_tier_pin(struct host_tier *h, uint32_t object) {
    pthread_mutex_lock(&h->lock);
    struct host_object *o = living(h, object);
    CHECK(!o->is_freed || o->pins > 0);
    o->pins++;
    pthread_mutex_unlock(&h->lock);
}

void host_tier_unpin(struct host_tier *h, uint32_t object) {
    pthread_mutex_lock(&h->lock);
    unpin(h, object);
    pthread_mutex_unlock(&h->lock);
}

/* ---- the thread --------------------------------------------------------------------------- */

static int fill_object(const struct host_tier *h, uint32_t number, const struct host_job *job) {
    uint64_t n = h->objects[job->object].bytes;
    struct unit_run r = {.next = job->object};
    struct err ignored; /* the device's: its next user gets it too */
    int status = SLUICE_OK;
    while (!status && next_run(h, n, &r))
        status = h->filler.fill(h->filler.user, number, job->from, r.at, r.bytes,
                                unit_at(h, r.unit), &ignored);
    return status;
}

/* Does the first job. Called with the lock held, which is released meanwhile. */
static void do_job(struct host_tier *h) {
    uint32_t number = h->first_job;
    const struct host_job *job = &h->jobs[number];
    struct host_object *o = &h->objects[job->object];
    if (o->state == HOST_WAITING) {
        o->state = HOST_FILLING;
        pthread_mutex_unlock(&h->lock);
        double started = seconds_now();
        int status = fill_object(h, number, job);
        pthread_mutex_lock(&h->lock);
        o->state = status ? HOST_FAILED : HOST_FILLED;
        h->filled.bytes += status ? 0 : o->bytes;
        h->filled.seconds += seconds_now() - started;
    }
    unpin(h, job->object);
    h->first_job = (number + 1) % HOST_JOBS;
    h->n_jobs--;
    pthread_cond_broadcast(&h->done);
}

static void *thread_main(void *user) {
    struct host_tier *h = user;
    pthread_mutex_lock(&h->lock);
    while (!h->is_ending)
        if (h->n_jobs > 0)
            do_job(h);
        else
            pthread_cond_wait(&h->work, &h->lock);
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

int host_tier_start(struct host_tier *h, const struct host_filler *filler, struct err *err) {
    h->filler = *filler;
    h->has_thread = thread_start(&h->thread, thread_main, h);
    return h->has_thread ? SLUICE_OK : err_memory(err, "the thread of the cache in host memory");
}

int host_tier_put_later(struct host_tier *h, uint64_t n, struct host_source from, uint32_t *object,
                        struct err *err) {
    CHECK(h->has_thread);
    pthread_mutex_lock(&h->lock);
    uint32_t number = (h->first_job + h->n_jobs) % HOST_JOBS;
    int status =
        h->n_jobs == HOST_JOBS
            ? err_set(err, SLUICE_ERR_MEMORY, "%d copies to host memory wait already", HOST_JOBS)
            : h->filler.fence(h->filler.user, number, err);
    if (!status)
        status = reserve_object(h, n, HOST_WAITING, object, err);
    if (!status) {
        h->objects[*object].pins = 1;
        h->jobs[number] = (struct host_job){*object, from};
        h->n_jobs++;
        pthread_cond_signal(&h->work);
    }
    pthread_mutex_unlock(&h->lock);
    return status;
}

/* ---- filled by others --------------------------------------------------------------------- */

int host_tier_reserve(struct host_tier *h, uint64_t n, uint32_t *object, struct err *err) {
    pthread_mutex_lock(&h->lock);
    int status = reserve_object(h, n, HOST_WAITING, object, err);
    if (!status)
        h->objects[*object].pins = 1;
    pthread_mutex_unlock(&h->lock);
    return status;
}

bool host_tier_begin(struct host_tier *h, uint32_t object) {
    pthread_mutex_lock(&h->lock);
    struct host_object *o = living(h, object);
    bool is_wanted = o->state == HOST_WAITING;
    if (is_wanted)
        o->state = HOST_FILLING;
    else
        unpin(h, object);
    pthread_mutex_unlock(&h->lock);
    return is_wanted;
}

void host_tier_write(const struct host_tier *h, uint32_t object, uint64_t at, uint64_t n,
                     const void *from) {
    struct unit_run r = {.next = object};
    while (n > 0 && next_run(h, living(h, object)->bytes, &r)) {
        if (at >= r.at + r.bytes)
            continue;
        uint64_t part = r.at + r.bytes - at < n ? r.at + r.bytes - at : n;
        memcpy(unit_at(h, r.unit) + (at - r.at), from, part);
        from = (const uint8_t *)from + part;
        at += part;
        n -= part;
    }
    CHECK(n == 0);
}

void host_tier_end(struct host_tier *h, uint32_t object, bool is_filled) {
    pthread_mutex_lock(&h->lock);
    living(h, object)->state = is_filled ? HOST_FILLED : HOST_FAILED;
    unpin(h, object);
    pthread_cond_broadcast(&h->done);
    pthread_mutex_unlock(&h->lock);
}

bool host_tier_is_pending(struct host_tier *h, uint32_t object) {
    pthread_mutex_lock(&h->lock);
    bool is_it = is_pending(living(h, object));
    pthread_mutex_unlock(&h->lock);
    return is_it;
}

struct sluice_moved host_tier_filled(struct host_tier *h) {
    pthread_mutex_lock(&h->lock);
    struct sluice_moved filled = h->filled;
    pthread_mutex_unlock(&h->lock);
    return filled;
}

bool host_tier_wait(struct host_tier *h, uint32_t object) {
    pthread_mutex_lock(&h->lock);
    const struct host_object *o = living(h, object);
    while (is_pending(o))
        pthread_cond_wait(&h->done, &h->lock);
    bool is_filled = o->state == HOST_FILLED;
    pthread_mutex_unlock(&h->lock);
    return is_filled;
}

bool host_tier_finish(struct host_tier *h, uint32_t object, tier_fill_fn *fill, void *user) {
    struct err ignored;
    pthread_mutex_lock(&h->lock);
    struct host_object *o = living(h, object);
    bool is_ours = o->state == HOST_WAITING;
    if (is_ours)
        o->state = HOST_FILLING;
    pthread_mutex_unlock(&h->lock);
    if (!is_ours)
        return host_tier_wait(h, object);
    int status = fill_here(h, object, fill, user, &ignored);
    pthread_mutex_lock(&h->lock);
    o->state = status ? HOST_FAILED : HOST_FILLED;
    pthread_cond_broadcast(&h->done);
    pthread_mutex_unlock(&h->lock);
    return status == SLUICE_OK;
}

bool host_tier_wait_any(struct host_tier *h) {
    pthread_mutex_lock(&h->lock);
    bool is_any = h->n_jobs > 0;
    if (is_any) {
        uint32_t number = h->first_job;
        while (h->n_jobs > 0 && h->first_job == number)
            pthread_cond_wait(&h->done, &h->lock);
    }
    pthread_mutex_unlock(&h->lock);
    return is_any;
}

/* ---- invariants --------------------------------------------------------------------------- */

/* Marks a chain's units and counts them; HOST_NONE: one was already marked. */
static uint32_t mark_chain(const struct host_tier *h, uint32_t first, bool *is_seen) {
    uint32_t n = 0;
    for (uint32_t unit = first; unit != HOST_NONE; unit = h->next[unit], n++) {
        if (unit >= h->n_units || is_seen[unit])
            return HOST_NONE;
        is_seen[unit] = true;
    }
    return n;
}

static const char *find_broken(const struct host_tier *h, bool *is_seen) {
    if (mark_chain(h, h->first_free, is_seen) != h->n_free)
        return "(1) the free list is longer or shorter than counted";
    uint64_t sum = h->n_free, n_leaving = 0;
    for (uint32_t i = 0; i < h->n_units; i++) {
        const struct host_object *o = &h->objects[i];
        if (o->bytes == 0)
            continue;
        uint32_t n = mark_chain(h, i, is_seen);
        if (n != units_for(h, o->bytes))
            return "(2) an object has other units than its bytes need, or another's";
        if (o->is_freed && o->pins == 0)
            return "(3) an object that was freed and is not pinned has units";
        sum += n;
        n_leaving += o->is_freed ? n : 0;
    }
    if (n_leaving != h->n_leaving)
        return "(3) units that are to be free are miscounted";
    return sum == h->n_units ? NULL : "(1) a unit is lost";
}

const char *host_tier_broken(struct host_tier *h) {
    bool *is_seen = calloc(h->n_units, sizeof *is_seen);
    CHECK(is_seen);
    pthread_mutex_lock(&h->lock);
    const char *what = find_broken(h, is_seen);
    pthread_mutex_unlock(&h->lock);
    free(is_seen);
    return what;
}
