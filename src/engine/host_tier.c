/* host_tier.c - host memory for objects, in units of one size.
 *
 * (1) A unit is on the free list or in the chain of exactly one object.
 * (2) An object's chain has as many units as its bytes need and does not change while it lives: so
 *     whoever has it pinned walks it without the lock.
 * (3) An object that was freed lives on while it is pinned, and no longer.
 *
 * Units last given back are taken first: memory that was never needed is never touched. */
#include "engine/host_tier.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/size.h"

static uint32_t units_for(const struct host_tier *h, uint64_t bytes) {
    uint64_t n = bytes / h->unit_bytes + (bytes % h->unit_bytes != 0);
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static uint8_t *unit_at(const struct host_tier *h, uint32_t unit) {
    return h->memory + unit * h->unit_bytes;
}

/* ---- open and close ---------------------------------------------------------------------------
 */

static uint8_t *reserve(uint64_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE); /* fewer faults; where there are none, small ones do */
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
    if (h->memory)
        munmap(h->memory, h->n_units * h->unit_bytes);
    free(h->next);
    free(h->objects);
    pthread_mutex_destroy(&h->lock);
    *h = (struct host_tier){0};
}

/* ---- units ------------------------------------------------------------------------------------
 */

uint64_t host_tier_cost(const struct host_tier *h, uint64_t bytes) {
    return size_times(units_for(h, bytes), h->unit_bytes);
}

uint64_t host_tier_room(struct host_tier *h) {
    pthread_mutex_lock(&h->lock);
    uint64_t room = h->n_free * h->unit_bytes;
    pthread_mutex_unlock(&h->lock);
    return room;
}

/* A chain of n units, or HOST_NONE when so many are not free. */
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

/* ---- objects ----------------------------------------------------------------------------------
 */

/* Units of a chain that lie one after the other in memory: the fewer calls, the faster a device
 * copies. */
struct run {
    uint32_t unit, next;
    uint64_t at, bytes;
};

/* The next run of an object of n bytes; false after the last. */
static bool next_run(const struct host_tier *h, uint64_t n, struct run *r) {
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

int host_tier_put(struct host_tier *h, uint64_t n, tier_fill_fn *fill, void *user, uint32_t *object,
                  struct err *err) {
    CHECK(n > 0);
    pthread_mutex_lock(&h->lock);
    uint32_t first = take_units(h, units_for(h, n));
    if (first != HOST_NONE)
        h->objects[first] = (struct host_object){.bytes = n};
    pthread_mutex_unlock(&h->lock);
    if (first == HOST_NONE)
        return err_set(err, SLUICE_ERR_MEMORY,
                       "the cache in host memory has no room for %llu bytes",
                       (unsigned long long)n);
    int status = SLUICE_OK;
    struct run r = {.next = first};
    while (!status && next_run(h, n, &r))
        status = fill(user, r.at, r.bytes, unit_at(h, r.unit), err);
    if (status)
        host_tier_free(h, first);
    else
        *object = first;
    return status;
}

int host_tier_get(const struct host_tier *h, uint32_t object, tier_take_fn *take, void *user,
                  struct err *err) {
    uint64_t n = living(h, object)->bytes;
    int status = SLUICE_OK;
    struct run r = {.next = object};
    while (!status && next_run(h, n, &r))
        status = take(user, r.at, r.bytes, unit_at(h, r.unit), err);
    return status;
}

uint64_t host_tier_bytes(const struct host_tier *h, uint32_t object) {
    return living(h, object)->bytes;
}

void host_tier_free(struct host_tier *h, uint32_t object) {
    pthread_mutex_lock(&h->lock);
    struct host_object *o = living(h, object);
    CHECK(!o->is_freed);
    o->is_freed = true;
    if (o->pins == 0)
        give_back(h, object);
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
    struct host_object *o = living(h, object);
    CHECK(o->pins > 0);
    if (--o->pins == 0 && o->is_freed)
        give_back(h, object);
    pthread_mutex_unlock(&h->lock);
}

/* ---- invariants -------------------------------------------------------------------------------
 */

/* Marks a chain's units and counts them; HOST_NONE when one of them was marked before. */
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
    uint64_t sum = h->n_free;
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
    }
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
