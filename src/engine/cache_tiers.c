/* cache_tiers.c - entries of the prefix cache in the tiers below the device: copied there when they
 * are evicted or ahead of that, written through to disk, fetched and loaded back. */
#include "base/clock.h"
#include "base/size.h"
#include "engine/cache_internal.h"

/* ---- the tiers below ---------------------------------------------------------------------- */

/* Makes room for this many bytes in a lower tier: the least useful entries there go. Their bytes
 * may be free only once they are written to disk. */
static void make_room(struct cache *c, enum tier tier, uint64_t cost) {
    enum cache_heap which = tier == TIER_HOST ? HEAP_HOST : HEAP_DISK;
    struct cache_lower *l = &c->lower;
    uint64_t free = tier == TIER_HOST ? host_tier_free_bytes(l->host) + host_tier_leaving(l->host)
                                      : disk_tier_free_bytes(l->disk);
    while (free < cost && c->heaps[which].n > 0) {
        uint32_t e = c->heaps[which].at[0];
        uint64_t bytes = cache_payload_bytes(c, e);
        free += tier == TIER_HOST ? host_tier_cost(l->host, bytes)
                                  : disk_tier_cost(c->entries[e].n_tokens, bytes);
        cache_leave_tier(c, e, tier);
        cache_remove_if_lost(c, e);
    }
}

static void write_to_disk(struct cache *c, uint32_t e) {
    const struct cache_entry *at = &c->entries[e];
    const struct disk_meta meta = {
        .kind = at->kind == ENTRY_BLOCK ? DISK_BLOCK : DISK_SNAPSHOT,
        .position = at->position,
        .hash = at->hash,
        .parent = c->entries[at->parent].hash,
        .n_tokens = at->n_tokens,
        .bytes = cache_payload_bytes(c, e),
    };
    make_room(c, TIER_DISK, disk_tier_cost(meta.n_tokens, meta.bytes));
    cache_set_tier(c, e, TIER_DISK,
                   disk_tier_put(c->lower.disk, &meta, cache_tokens(c, e), at->object[TIER_HOST]));
}

static void count_moved(struct sluice_moved *moved, uint64_t bytes, double started) {
    moved->bytes += bytes;
    moved->seconds += seconds_now() - started;
}

/* Whether an entry is on the device only, and worth a copy. One that was copied before and then
 * evicted below is not worth another copy: entries copied ahead would evict each other at every
 * step. */
static bool is_only_here(const struct cache *c, uint32_t e) {
    bool is_useless = c->options.is_recurrent && c->entries[e].kind == ENTRY_BLOCK &&
                      c->entries[e].n_children == 0;
    return c->lower.host && !is_useless && !c->entries[e].is_copied &&
           cache_is_in(c, e, TIER_DEVICE) && !cache_is_in(c, e, TIER_HOST) &&
           !cache_is_in(c, e, TIER_DISK);
}

/* It is in host memory from now on, and being written to disk where there is one and it is worth
 * it. */
static void note_spilled(struct cache *c, uint32_t e, uint32_t object) {
    cache_set_tier(c, e, TIER_HOST, object);
    c->entries[e].is_copied = true;
    c->n_spilled++;
    if (c->lower.disk && !cache_is_cheap_on_disk(c, e))
        write_to_disk(c, e);
}

/* Copies an entry that is only on the device to the tiers below. `waits`: waits for the disk when
 * there is no room. */
static void spill(struct cache *c, uint32_t e, bool waits) {
    struct cache_lower *l = &c->lower;
    struct cache_payload payload = {l->user, e};
    struct err ignored;
    uint64_t bytes = cache_payload_bytes(c, e);
    uint32_t object = NO_OBJECT;
    if (!is_only_here(c, e))
        return;
    double started = seconds_now();
    make_room(c, TIER_HOST, host_tier_cost(l->host, bytes));
    int status = host_tier_put(l->host, bytes, l->fill, &payload, &object, &ignored);
    if (status == SLUICE_ERR_MEMORY && waits && l->disk) {
        disk_tier_flush(l->disk);
        status = host_tier_put(l->host, bytes, l->fill, &payload, &object, &ignored);
    }
    if (status)
        return;
    count_moved(&c->to_host, bytes, started);
    note_spilled(c, e, object);
}

/* The same while steps run. False: no room now. */
static bool spill_later(struct cache *c, uint32_t e) {
    const struct cache_entry *at = &c->entries[e];
    uint64_t bytes = cache_payload_bytes(c, e);
    struct err ignored;
    uint32_t object;
    const struct host_source from = {at->cell, at->page, at->n_tokens};
    make_room(c, TIER_HOST, host_tier_cost(c->lower.host, bytes));
    if (host_tier_put_later(c->lower.host, bytes, from, &object, &ignored))
        return false;
    note_spilled(c, e, object);
    return true;
}

void cache_finish_spill(struct cache *c, uint32_t e) {
    double started = seconds_now();
    struct cache_payload payload = {c->lower.user, e};
    if (cache_is_in(c, e, TIER_HOST)) {
        if (!host_tier_finish(c->lower.host, c->entries[e].object[TIER_HOST], c->lower.fill,
                              &payload))
            cache_leave_tier(c, e, TIER_HOST);
        c->waited_seconds += seconds_now() - started;
    }
    if (!cache_is_cheap(c, e))
        spill(c, e, false);
}

/* ---- ahead of need ------------------------------------------------------------------------ */

/* The first entry on the path to e that is not on disk; NO_ENTRY: all are. */
static uint32_t first_not_on_disk(const struct cache *c, uint32_t e) {
    uint32_t first = NO_ENTRY;
    for (; e != CACHE_ROOT; e = c->entries[e].parent)
        if (!cache_is_in(c, e, TIER_DISK))
            first = e;
    return first;
}

/* Copies those that fit, parents first, so that a killed process leaves usable prefixes. */
static void copy_due(struct cache *c) {
    while (c->n_due > 0) {
        uint32_t e = c->due[0], next = first_not_on_disk(c, e);
        if (next != NO_ENTRY && is_only_here(c, next) && !spill_later(c, next))
            return;
        if (next != NO_ENTRY && !cache_is_in(c, next, TIER_DISK) && cache_is_in(c, next, TIER_HOST))
            write_to_disk(c, next);
        if (next == NO_ENTRY || !cache_is_in(c, next, TIER_DISK)) /* done, or the disk is full */
            cache_forget_due(c, e);
    }
}

void cache_write_through(struct cache *c, uint32_t e) {
    if (!c->lower.disk || e == CACHE_ROOT || c->entries[e].is_due || cache_is_cheap_on_disk(c, e))
        return;
    if (c->n_due == MAX_DUE)
        cache_forget_due(c, c->due[0]);
    c->due[c->n_due++] = e;
    c->entries[e].is_due = true;
    copy_due(c);
}

void cache_copy_due(struct cache *c) {
    do
        copy_due(c);
    while (c->n_due > 0 && host_tier_wait_any(c->lower.host));
}

/* Who may be evicted next: an entry of a heap, at this index, or (at NO_ENTRY) a block that will be
 * a leaf once the one after it is gone. */
struct candidate {
    uint32_t entry, at;
};
enum { AHEAD = 16, MAX_FRONT = 3 * AHEAD + 1 };

static void add_candidate(struct candidate *front, uint32_t *n, uint32_t e, uint32_t at) {
    front[(*n)++] = (struct candidate){e, at};
}

/* Lists the next `max` entries that would be evicted, in order, if none was used meanwhile. */
static uint32_t list_next(const struct cache *c, enum cache_heap which, uint32_t max,
                          uint32_t out[AHEAD]) {
    const struct entry_heap *h = &c->heaps[which];
    struct candidate front[MAX_FRONT];
    uint32_t n_front = 0, n = 0;
    if (h->n > 0)
        add_candidate(front, &n_front, h->at[0], 0);
    while (n < max && n_front > 0) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < n_front; i++)
            if (c->entries[front[i].entry].priority < c->entries[front[best].entry].priority)
                best = i;
        struct candidate p = front[best];
        front[best] = front[--n_front];
        out[n++] = p.entry;
        for (uint32_t at = 2 * p.at + 1; p.at != NO_ENTRY && at <= 2 * p.at + 2 && at < h->n; at++)
            add_candidate(front, &n_front, h->at[at], at);
        uint32_t parent = c->entries[p.entry].parent;
        if (which == HEAP_PAGES && parent != CACHE_ROOT && cache_is_idle(c, parent) &&
            c->entries[parent].n_below[TIER_DEVICE] == 1)
            add_candidate(front, &n_front, parent, NO_ENTRY);
    }
    return n;
}

/* Copies the next `max` of a heap ahead, so that they can leave at once. */
static void copy_next(struct cache *c, enum cache_heap which, uint32_t max) {
    uint32_t next[AHEAD], n = list_next(c, which, max, next);
    bool has_room = true;
    for (uint32_t i = 0; has_room && i < n; i++)
        if (is_only_here(c, next[i]) && !cache_is_cheap(c, next[i]))
            has_room = spill_later(c, next[i]);
}

void cache_copy_ahead(struct cache *c) {
    const struct cache_options *o = &c->options;
    if (!c->lower.host)
        return;
    /* No more than a part of host memory: copies would only push each other out. */
    const struct host_tier *host = c->lower.host;
    uint64_t n_fit = host->n_units * host->unit_bytes / 8 / (o->page_bytes + o->cell_bytes);
    uint32_t ahead = n_fit < AHEAD ? (uint32_t)n_fit : AHEAD;
    copy_due(c);
    if (c->pages->n_free < ahead)
        copy_next(c, HEAP_PAGES, ahead - c->pages->n_free);
    if (o->n_cells && c->n_free_cells < ahead)
        copy_next(c, HEAP_CELLS, ahead - c->n_free_cells);
}

void cache_pin(struct cache *c, uint32_t e, bool is_pinned) {
    for (; e != CACHE_ROOT; e = c->entries[e].parent) {
        c->entries[e].pins += is_pinned ? 1 : UINT32_MAX;
        cache_update_heaps(c, e);
    }
}

enum tier cache_tier(const struct cache *c, uint32_t e) {
    enum tier tier = TIER_DEVICE;
    while (!cache_is_in(c, e, tier))
        tier++;
    return tier == TIER_HOST && c->entries[e].is_fetched ? TIER_DISK : tier;
}

/* Whether an entry has to be read from a file; one that is still being written is in memory. */
static bool is_on_disk_alone(const struct cache *c, uint32_t e) {
    return cache_tier(c, e) == TIER_DISK && !cache_is_in(c, e, TIER_HOST) &&
           disk_tier_is_written(c->lower.disk, c->entries[e].object[TIER_DISK]);
}

/* False: no room now. */
static bool fetch_one(struct cache *c, uint32_t e) {
    const struct cache_lower *l = &c->lower;
    uint64_t bytes = cache_payload_bytes(c, e);
    struct err ignored;
    uint32_t object;
    if (!disk_fetch_has_room(l->fetch))
        return false;
    make_room(c, TIER_HOST, host_tier_cost(l->host, bytes));
    if (host_tier_reserve(l->host, bytes, &object, &ignored))
        return false;
    disk_fetch_begin(l->fetch, c->entries[e].object[TIER_DISK], cache_tokens(c, e), object);
    cache_set_tier(c, e, TIER_HOST, object);
    c->entries[e].is_fetched = true;
    cache_touch(c, e); /* or it would be the first to go again */
    return true;
}

/* Whether reads of an entry and the blocks before it are in flight, and the bytes of them that are
 * only on disk. */
static bool is_any_coming(const struct cache *c, uint32_t e, uint64_t *on_disk) {
    bool is_any = false;
    *on_disk = 0;
    for (; e != CACHE_ROOT; e = c->entries[e].parent) {
        uint32_t object = c->entries[e].object[TIER_HOST];
        if (cache_is_in(c, e, TIER_DEVICE))
            continue;
        if (object != NO_OBJECT)
            is_any |= host_tier_is_pending(c->lower.host, object);
        else if (is_on_disk_alone(c, e))
            *on_disk += cache_payload_bytes(c, e);
    }
    return is_any;
}

bool cache_fetch(struct cache *c, uint32_t e) {
    const struct cache_lower *l = &c->lower;
    uint64_t on_disk;
    if (!l->fetch)
        return false;
    bool is_coming = is_any_coming(c, e, &on_disk);
    if (on_disk == 0 || on_disk < l->min_fetch)
        return is_coming;
    /* Half of host memory: one conversation should not evict all others. */
    uint64_t left = l->host->n_units * l->host->unit_bytes / 2;
    cache_pin(c, e, true);
    for (uint32_t at = e; at != CACHE_ROOT; at = c->entries[at].parent) {
        uint64_t cost = host_tier_cost(l->host, cache_payload_bytes(c, at));
        if (cost <= left && is_on_disk_alone(c, at))
            is_coming |= fetch_one(c, at);
        if (c->entries[at].is_fetched)
            left -= cost < left ? cost : left;
    }
    cache_pin(c, e, false);
    return is_coming;
}

int cache_load(struct cache *c, uint32_t e, tier_take_fn *take, void *user, bool *is_found,
               struct err *err) {
    struct cache_entry *at = &c->entries[e];
    bool is_in_host = at->object[TIER_HOST] != NO_OBJECT;
    double started = seconds_now();
    int status = SLUICE_OK;
    *is_found = false;
    c->n_loaded++;
    at->is_fetched = false;
    if (is_in_host) {
        if ((*is_found = host_tier_wait(c->lower.host, at->object[TIER_HOST])))
            status = host_tier_get(c->lower.host, at->object[TIER_HOST], take, user, err);
        *is_found &= status == SLUICE_OK;
    } else {
        status = disk_tier_get(c->lower.disk, at->object[TIER_DISK], cache_tokens(c, e), take, user,
                               is_found, err);
    }
    count_moved(is_in_host ? &c->from_host : &c->from_disk, cache_payload_bytes(c, e), started);
    return status;
}

void cache_lose(struct cache *c, uint32_t e) {
    cache_leave_tier(c, e, cache_is_in(c, e, TIER_HOST) ? TIER_HOST : TIER_DISK);
    cache_remove_if_lost(c, e);
}

/* Whether an entry is to outlive the process: a snapshot that is worth it, or a block before one.
 * Where state is recurrent a block is of no use without a snapshot after it. */
static bool is_wanted_on_disk(const struct cache *c, uint32_t e) {
    if (!c->options.is_recurrent || c->entries[e].kind == ENTRY_SNAPSHOT)
        return !cache_is_cheap_on_disk(c, e);
    bool is_wanted = false;
    for (int kind = 0; !is_wanted && kind < ENTRY_KINDS; kind++)
        for (uint32_t k = c->entries[e].first[kind]; !is_wanted && k != NO_ENTRY;
             k = c->entries[k].next)
            is_wanted = is_wanted_on_disk(c, k);
    return is_wanted;
}

void cache_detach(struct cache *c) {
    while (c->lower.host && host_tier_wait_any(c->lower.host))
        continue;
    for (uint32_t e = 1; c->lower.disk && e < c->n_fresh; e++)
        if (is_only_here(c, e) && is_wanted_on_disk(c, e))
            spill(c, e, true);
    c->lower = (struct cache_lower){0};
}
