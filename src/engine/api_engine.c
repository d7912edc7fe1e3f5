/* api_engine.c - the public interface of engines: checks arguments, keeps errors with their handle.
 */
#include "base/size.h"
#include "engine/engine.h"

struct sluice_engine_options sluice_engine_options_default(void) {
    return (struct sluice_engine_options){
        .backend = "auto",
        .kv_type = "f16",
        .context = -1,
        .sequences = 1,
        .batch = 1,
        .snapshot_bytes = 128 << 20,
    };
}

int sluice_engine_open(sluice_engine **out, sluice_model *model,
                       const struct sluice_engine_options *options) {
    if (!out)
        return SLUICE_ERR_ARGUMENT;
    struct sluice_engine_options o = options ? *options : sluice_engine_options_default();
    struct err err = {0};
    int status = engine_prepare(out, model, &o, false, &err);
    if (!status)
        status = engine_load(*out, &o, &err);
    if (*out)
        (*out)->err = err;
    return status;
}

void sluice_engine_close(sluice_engine *e) {
    engine_close(e);
}

const char *sluice_engine_error(const sluice_engine *e) {
    return e ? e->err.text : "";
}

bool api_is_loaded(const struct sluice_engine *e) {
    return e && e->is_loaded;
}

int api_check_pointer(struct sluice_engine *e, const void *pointer, const char *name) {
    if (pointer)
        return SLUICE_OK;
    return err_set(&e->err, SLUICE_ERR_ARGUMENT, "%s is NULL, expected a pointer", name);
}

/* ---- steps -------------------------------------------------------------------------------- */

int sluice_engine_step(sluice_engine *e, uint32_t *rows) {
    uint32_t ignored;
    if (!api_is_loaded(e))
        return SLUICE_ERR_ARGUMENT;
    return batch_step(e, rows ? rows : &ignored, NULL, &e->err);
}

int sluice_engine_burst(sluice_engine *e, uint32_t n, uint32_t *steps) {
    uint32_t done = 0;
    if (!api_is_loaded(e))
        return SLUICE_ERR_ARGUMENT;
    if (n < 1)
        return err_set(&e->err, SLUICE_ERR_ARGUMENT, "a burst of 0 steps, expected at least 1");
    int status = batch_burst(e, n, &done, &e->err);
    if (steps)
        *steps = done;
    return status;
}

/* A lock-free store: allowed in a signal handler. */
void sluice_engine_cancel(sluice_engine *e) {
    _Static_assert(ATOMIC_BOOL_LOCK_FREE == 2, "a signal handler may only store what has no lock");
    if (e)
        atomic_store(&e->cancel, true);
}

int sluice_engine_fetch(sluice_engine *e, const int32_t *tokens, size_t n, bool *is_ready) {
    if (!api_is_loaded(e))
        return SLUICE_ERR_ARGUMENT;
    int status = api_check_pointer(e, is_ready, "is_ready");
    if (!status && n > 0)
        status = api_check_pointer(e, tokens, "tokens");
    if (status)
        return status;
    uint32_t n_tokens = min_u32(e->setup.context, n < UINT32_MAX ? (uint32_t)n : UINT32_MAX);
    *is_ready = !e->fetch || n_tokens == 0 || !state_fetch(&e->state, tokens, n_tokens);
    return SLUICE_OK;
}

/* ---- what it has and did ------------------------------------------------------------------ */

void sluice_engine_memory(const sluice_engine *e, struct sluice_memory *out) {
    if (!out)
        return;
    struct backend_memory m = e ? e->predicted : (struct backend_memory){0};
    if (api_is_loaded(e))
        e->kind->memory(e->backend, &m);
    *out = e ? engine_memory_of(e, &m) : (struct sluice_memory){0};
}

/* Bytes between tiers, moved by the engine's thread and by those of the tiers. */
static void count_moved(const struct sluice_engine *e, struct sluice_counters *out) {
    const struct cache *c = &e->state.cache;
    out->to_host = c->to_host;
    out->from_host = c->from_host;
    out->from_disk = c->from_disk;
    out->held_up_seconds =
        c->to_host.seconds + c->from_host.seconds + c->from_disk.seconds + c->waited_seconds;
    if (e->host.n_units) {
        struct sluice_moved by_thread = host_tier_filled((struct host_tier *)&e->host);
        out->to_host.bytes += by_thread.bytes;
        out->to_host.seconds += by_thread.seconds;
    }
    if (e->disk) {
        struct sluice_moved by_thread = disk_fetch_moved(e->fetch);
        struct disk_counters disk;
        disk_tier_counters(e->disk, &disk);
        out->to_disk = (struct sluice_moved){disk.written_bytes, disk.written_seconds};
        out->from_disk.bytes += by_thread.bytes;
        out->from_disk.seconds += by_thread.seconds;
    }
}

void sluice_engine_counters(const sluice_engine *e, struct sluice_counters *out) {
    struct backend_counters c = {0};
    if (!out)
        return;
    *out = (struct sluice_counters){0};
    if (!api_is_loaded(e))
        return;
    e->kind->counters(e->backend, &c);
    *out = (struct sluice_counters){
        .steps = e->n_steps,
        .rows = e->n_rows,
        .drafted = e->n_drafted,
        .drafts_kept = e->n_kept,
        .draft_steps = e->n_draft_steps,
        .submissions = c.submissions,
        .waits = c.waits,
        .host_copies = c.host_copies,
        .host_copy_bytes = c.host_copy_bytes,
        .allocations = c.allocations,
        .snapshots_taken = e->state.n_taken,
        .snapshots_used = e->state.n_used,
        .resumed = e->n_resumed,
        .resumed_hits = e->n_hits,
        .tokens_reused = e->n_reused,
        .evicted = e->state.cache.n_evicted,
        .spilled = e->state.cache.n_spilled,
        .loaded = e->state.cache.n_loaded,
    };
    count_moved(e, out);
}

int sluice_engine_forget(sluice_engine *e) {
    if (!api_is_loaded(e))
        return SLUICE_ERR_ARGUMENT;
    cache_forget(&e->state.cache);
    return SLUICE_OK;
}

void sluice_engine_kept(sluice_engine *e, struct sluice_kept *out) {
    if (!out)
        return;
    *out = (struct sluice_kept){0};
    if (!api_is_loaded(e))
        return;
    const struct cache *c = &e->state.cache;
    out->device =
        (uint64_t)(e->state.pages.n - e->state.pages.n_free) * e->state.layout.page_bytes +
        (uint64_t)(c->options.n_cells - c->n_free_cells) * c->options.cell_bytes;
    if (e->host.n_units)
        out->host = e->host.n_units * e->host.unit_bytes - host_tier_free_bytes(&e->host);
    if (e->disk)
        out->disk = disk_tier_bytes(e->disk);
}

void sluice_engine_pages(const sluice_engine *e, struct sluice_pages *out) {
    if (!out)
        return;
    *out = (struct sluice_pages){0};
    if (api_is_loaded(e))
        *out = (struct sluice_pages){
            .total = e->state.pages.n,
            .free = pages_available(&e->state.pages),
            .tokens = PAGE,
            .starved = e->n_starved,
        };
}

void sluice_engine_choice(const sluice_engine *e, struct sluice_choice *out) {
    if (!out)
        return;
    *out = (struct sluice_choice){.backend = "", .kv_type = ""};
    if (!api_is_loaded(e))
        return;
    *out = (struct sluice_choice){
        .backend = e->kind->name,
        .kv_type = dtype_name(e->setup.kv_type),
        .context = e->setup.context,
        .sequences = e->setup.n_seqs,
        .batch = e->setup.batch,
        .drafts = e->setup.drafts,
        .block_drafts = e->setup.block_drafts,
        .hidden = e->setup.n_taps > 0,
    };
    e->kind->device_line(e->device, out->device, sizeof out->device);
}
