/* tiers.c - opening and closing what is below the device: host memory and a folder for the blocks
 * and snapshots of the prefix cache. */
#include <string.h>

#include "base/cpu.h"
#include "base/log.h"
#include "engine/engine.h"

enum {
    MAX_OBJECTS = 1 << 18,
    MAX_WAITING = 8,    /* objects not yet written to disk, where host memory is for nothing else */
    CLOSE_SECONDS = 20, /* for copies in flight when the engine is closed */
    TIER_IDENTITY = 1,  /* changes when the meaning of an object's bytes does */
};

static uint64_t smaller_part(const struct state_layout *l) {
    uint64_t page = l->page_bytes, cell = l->recurrent_bytes;
    uint64_t smallest = !page || (cell && cell < page) ? cell : page;
    return smallest ? smallest : 1;
}

static uint64_t unit_of(const struct state_layout *l) {
    uint64_t smallest = smaller_part(l);
    return smallest < HOST_UNIT_BYTES ? smallest : HOST_UNIT_BYTES;
}

static uint32_t objects_in(uint64_t bytes, uint64_t smallest) {
    uint64_t n = bytes / smallest;
    return n < MAX_OBJECTS ? (uint32_t)n : MAX_OBJECTS;
}

int tiers_plan(struct setup *s, const struct sluice_engine_options *o,
               const struct state_layout *layout, struct err *err) {
    uint64_t snapshot_bytes = layout->page_bytes + layout->recurrent_bytes;
    bool has_disk = o->cache_dir && o->cache_dir[0];
    if (o->cache_bytes && o->cache_bytes < snapshot_bytes)
        return err_set(
            err, SLUICE_ERR_ARGUMENT,
            "cache_bytes (--cache-bytes) is %llu, expected 0 or at least %llu: a snapshot",
            (unsigned long long)o->cache_bytes, (unsigned long long)snapshot_bytes);
    if (has_disk && o->cache_dir_bytes < snapshot_bytes)
        return err_set(
            err, SLUICE_ERR_ARGUMENT,
            "cache_dir_bytes (--cache-dir-bytes) is %llu, expected at least %llu: a snapshot",
            (unsigned long long)o->cache_dir_bytes, (unsigned long long)snapshot_bytes);
    s->host_bytes = o->cache_bytes;
    if (has_disk && s->host_bytes < MAX_WAITING * snapshot_bytes)
        s->host_bytes = MAX_WAITING * snapshot_bytes;
    s->host_bytes -= s->host_bytes % unit_of(layout);
    s->disk_bytes = has_disk ? o->cache_dir_bytes : 0;
    s->n_host = objects_in(s->host_bytes, smaller_part(layout));
    s->n_disk = objects_in(s->disk_bytes, smaller_part(layout));
    return SLUICE_OK;
}

/* Hash of everything that the bits of a state depend on. The fingerprint has a sample of the
 * weights alone: the files' times tell whether others have changed. */
static struct hash128 identity_of(const struct sluice_engine *e) {
    char device[128] = "";
    struct {
        uint64_t fingerprint, page_bytes, recurrent_bytes;
        uint32_t version, numerics, kv_type, is_exact, positions, zero;
    } facts = {
        .fingerprint = save_fingerprint(e),
        .page_bytes = e->state.layout.page_bytes,
        .recurrent_bytes = e->state.layout.recurrent_bytes,
        .version = TIER_IDENTITY,
        .numerics = e->kind->numerics,
        .kv_type = e->setup.kv_type,
        .is_exact = e->setup.exact,
        .positions = PAGE,
    };
    if (!e->kind->uses_host_weights)
        e->kind->device_line(e->device, device, sizeof device);
    const char *name = e->kind->uses_host_weights ? cpu_feature_names() : device;
    struct hash h;
    hash_begin(&h);
    hash_add(&h, &facts, sizeof facts);
    hash_add(&h, e->kind->name, strlen(e->kind->name) + 1);
    hash_add(&h, name, strlen(name));
    const struct weights *w = e->model->model->weights;
    for (uint32_t i = 0; i < w->n_files; i++) {
        const uint64_t file[] = {w->files[i].size, (uint64_t)w->files[i].modified};
        hash_add(&h, file, sizeof file);
    }
    return hash128_end(&h);
}

static int open_disk(struct sluice_engine *e, const char *folder, struct err *err) {
    const struct disk_options options = {
        .folder = folder,
        .identity = identity_of(e),
        .max_bytes = e->setup.disk_bytes,
        .max_objects = e->setup.n_disk,
        .max_tokens = PAGE,
        .host = &e->host,
        .seconds_for_close = CLOSE_SECONDS,
    };
    return disk_tier_open(&e->disk, &options, err);
}

/* If that fails copies are slower, nothing else. */
static void pin_host(struct sluice_engine *e) {
    struct err why;
    if (!e->kind->pin)
        return;
    uint64_t bytes = e->host.n_units * e->host.unit_bytes;
    e->is_pinned = e->kind->pin(e->backend, e->host.memory, bytes, &why) == SLUICE_OK;
    if (!e->is_pinned)
        log_line(LOG_INFO, "the cache in host memory is not pinned: %s", why.text);
}

int tiers_open(struct sluice_engine *e, const struct sluice_engine_options *o, struct err *err) {
    if (e->setup.host_bytes == 0)
        return SLUICE_OK;
    int status = host_tier_open(&e->host, e->setup.host_bytes, unit_of(&e->state.layout), err);
    if (!status)
        pin_host(e);
    if (!status && e->setup.disk_bytes)
        status = open_disk(e, o->cache_dir, err);
    if (!status && e->disk)
        status = disk_fetch_open(&e->fetch, e->disk, &e->host, PAGE, err);
    return status ? status : state_attach(&e->state, &e->host, e->disk, e->fetch, err);
}

void tiers_close(struct sluice_engine *e) {
    for (uint32_t i = 0; e->is_loaded && e->disk && i < e->setup.n_seqs; i++)
        if (e->state.slots[i].is_open) /* what it has processed so far should be found again, too */
            state_close(&e->state, i, true);
    if (e->is_loaded)
        state_detach(&e->state);
    disk_fetch_close(e->fetch);
    disk_tier_close(e->disk);
    if (e->is_pinned)
        e->kind->unpin(e->backend, e->host.memory);
    host_tier_close(&e->host);
}
