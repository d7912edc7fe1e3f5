/* fit.c - whether an engine fits into memory, and what would. */
#include <stdarg.h>
#include <stdio.h>

#include "base/filemap.h"
#include "base/locale.h"
#include "base/memory.h"
#include "engine/engine.h"

static bool fits(const struct sluice_engine *e, uint64_t limit) {
    struct sluice_memory m = engine_memory_of(e, &e->predicted);
    /* Of packed weights there are then as many as there was room for a moment ago. */
    uint64_t rest = m.disk ? m.total - m.packed + limit / BACKEND_DISK_SHARE : 0;
    return m.total <= limit && rest <= limit;
}

static bool has_weights_on_disk(const struct sluice_engine *e) {
    return e->predicted.disk > 0 || e->predicted.paged > 0;
}

/* Whether it fits with these options; *in_memory: without weights on disk. */
static bool would_fit_where(const struct sluice_engine *e, const struct sluice_engine_options *o,
                            uint64_t limit, bool *in_memory) {
    struct sluice_engine *other;
    struct err ignored;
    int status = engine_prepare(&other, e->model, o, e->setup.n_taps > 1, &ignored);
    bool yes = status == SLUICE_OK && fits(other, limit);
    *in_memory = yes && !has_weights_on_disk(other);
    engine_close(other);
    return yes;
}

static bool would_fit(const struct sluice_engine *e, const struct sluice_engine_options *o,
                      uint64_t limit) {
    bool ignored;
    return would_fit_where(e, o, limit, &ignored);
}

__attribute__((format(printf, 2, 3))) static void add_advice(struct fit *f, const char *format,
                                                             ...) {
    va_list args;
    CHECK(f->n_advice < FIT_ADVICE);
    va_start(args, format);
    locale_vprint(f->advice[f->n_advice++], sizeof f->advice[0], format, args);
    va_end(args);
}

static void find_advice(struct fit *f, const struct sluice_engine *e,
                        const struct sluice_engine_options *options) {
    static const char *const kv_types[] = {"f16", "q8_0", "q4_0"};
    struct sluice_engine_options o = *options;
    for (o.context = e->setup.context / 2; o.context >= 256; o.context /= 2)
        if (would_fit(e, &o, f->free)) {
            add_advice(f, "-c %lld", (long long)o.context);
            break;
        }
    o = *options;
    for (size_t i = 0; !o.exact && i < sizeof kv_types / sizeof *kv_types; i++) {
        o.kv_type = kv_types[i];
        if (would_fit(e, &o, f->free)) {
            add_advice(f, "--kv %s", o.kv_type);
            break;
        }
    }
    o = *options;
    for (o.kv_bytes /= 2; o.kv_bytes >= e->state.layout.page_bytes && o.kv_bytes; o.kv_bytes /= 2)
        if (would_fit(e, &o, f->free)) {
            add_advice(f, "--kv-bytes %llu", (unsigned long long)o.kv_bytes);
            break;
        }
    o = *options;
    o.block_drafts = 0;
    if (e->setup.block_drafts > 0 && would_fit(e, &o, f->free))
        add_advice(f, "--mtp 0");
    o = *options;
    o.weights_dir = "DIR";
    if (!options->weights_dir && e->kind->uses_host_weights && would_fit(e, &o, f->free))
        add_advice(f, "--weights-dir DIR");
    o = *options;
    o.batch = o.sequences = 1;
    if (options->batch > 1 && would_fit(e, &o, f->free))
        add_advice(f, "--batch 1");
}

int fit_limit(const struct sluice_engine *e, const struct sluice_engine_options *o, uint64_t *bytes,
              struct err *err) {
    *bytes = o->memory_limit ? o->memory_limit : memory_available();
    return !o->memory_limit && e->kind->available ? e->kind->available(e->backend, bytes, err)
                                                  : SLUICE_OK;
}

bool engine_fits(const struct sluice_engine *e, const struct sluice_engine_options *o) {
    uint64_t bytes;
    struct err ignored;
    return fit_limit(e, o, &bytes, &ignored) == SLUICE_OK && fits(e, bytes);
}

static bool may_use_disk(const struct sluice_engine *e, const struct sluice_engine_options *o) {
    return o->weights_dir && e->kind->uses_host_weights;
}

int fit_find(struct fit *f, const struct sluice_engine *e, const struct sluice_engine_options *o,
             struct err *err) {
    struct sluice_memory m = engine_memory_of(e, &e->predicted);
    *f = (struct fit){.total = m.total, .weights = m.weights + m.packed};
    int status = fit_limit(e, o, &f->free, err);
    if (status)
        return status;
    uint64_t left = f->free > f->total ? f->free - f->total : 0;
    f->cache_free = e->kind->available ? memory_available() : left;
    f->fits = fits(e, f->free);
    if (may_use_disk(e, o)) {
        f->disk = e->predicted.disk;
        if ((status = filemap_room(o->weights_dir, BACKEND_DISK_WEIGHTS, &f->disk_free, err)))
            return status;
    }
    f->has_room = f->disk <= f->disk_free;
    f->cache_fits = e->setup.host_bytes <= f->cache_free;
    if (!f->fits)
        find_advice(f, e, o);
    else if (!f->cache_fits && f->cache_free >> 20)
        add_advice(f, "--cache-bytes %lluM", (unsigned long long)(f->cache_free >> 20));
    return SLUICE_OK;
}

const char *fit_advice(const struct fit *f, char *out, size_t size) {
    size_t used = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < f->n_advice && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", f->advice[i]);
    return out;
}

/* The pages that fit below the limit, in o->kv_bytes. */
static bool shrink_pages(const struct sluice_engine *e, struct sluice_engine_options *o,
                         uint64_t limit) {
    struct sluice_engine *whole;
    struct err ignored;
    bool has_room = false;
    o->kv_bytes = 0;
    if (engine_prepare(&whole, e->model, o, e->setup.n_taps > 1, &ignored) == SLUICE_OK) {
        const struct setup *s = &whole->setup;
        uint64_t page = whole->state.layout.page_bytes;
        uint64_t total = engine_memory_of(whole, &whole->predicted).total;
        uint64_t rest = total - s->n_pages * page;
        has_room = total <= limit;
        if (!has_room && page && rest < limit && (limit - rest) / page >= s->pages_per_seq) {
            o->kv_bytes = (limit - rest) / page * page;
            has_room = would_fit(e, o, limit);
        }
    }
    engine_close(whole);
    return has_room;
}

static bool shrink_in_memory(const struct sluice_engine *e, struct sluice_engine_options *options,
                             uint64_t limit, bool may_batch_less) {
    struct sluice_engine_options o = *options;
    o.weights_dir = NULL;
    while (!shrink_pages(e, &o, limit - limit / 8)) {
        if (!may_batch_less || o.batch <= 1)
            return false;
        o.batch = o.sequences = o.batch / 2;
    }
    options->kv_bytes = o.kv_bytes;
    options->batch = options->sequences = o.batch;
    return true;
}

/* Every byte for sequences is one more of the weights that each step reads from the disk. So their
 * pages take a share of the limit at most, or those of one, in o->kv_bytes. Whether the rest of
 * their state takes no more than that either. */
static bool share_with_weights(const struct sluice_engine *e, struct sluice_engine_options *o,
                               uint64_t limit) {
    struct sluice_engine *whole;
    struct err ignored;
    bool is_small = false;
    o->kv_bytes = 0;
    if (engine_prepare(&whole, e->model, o, e->setup.n_taps > 1, &ignored) == SLUICE_OK) {
        const struct setup *s = &whole->setup;
        struct sluice_memory m = engine_memory_of(whole, &whole->predicted);
        uint64_t page = whole->state.layout.page_bytes, pages = s->n_pages * page;
        uint64_t share = limit / BACKEND_DISK_SHARE, least = s->pages_per_seq * page;
        if (page && pages > share)
            o->kv_bytes = share > least ? share / page * page : least;
        is_small = m.state - m.snapshots - pages <= share;
    }
    engine_close(whole);
    return is_small;
}

static bool shrink_beside_disk(const struct sluice_engine *e, struct sluice_engine_options *options,
                               uint64_t limit, bool may_batch_less) {
    struct sluice_engine_options o = *options;
    for (;; o.batch = o.sequences = o.batch / 2) {
        bool is_least = !may_batch_less || o.batch <= 1, in_memory;
        bool is_small = share_with_weights(e, &o, limit);
        if (would_fit_where(e, &o, limit, &in_memory) && (is_small || is_least || in_memory))
            break;
        if (is_least)
            return false;
    }
    *options = o;
    return true;
}

bool fit_is_short(const struct sluice_engine *e, const struct sluice_engine_options *o) {
    return !engine_fits(e, o) || (has_weights_on_disk(e) && !o->weights_bytes);
}

bool fit_shrink(const struct sluice_engine *e, struct sluice_engine_options *options,
                bool may_batch_less) {
    uint64_t limit;
    struct err ignored;
    if (fit_limit(e, options, &limit, &ignored))
        return false;
    bool in_memory = !may_use_disk(e, options) || !options->weights_bytes;
    if (in_memory && shrink_in_memory(e, options, limit, may_batch_less))
        return true;
    return may_use_disk(e, options) && shrink_beside_disk(e, options, limit, may_batch_less);
}

int fit_check(const struct sluice_engine *e, const struct sluice_engine_options *o,
              struct err *err) {
    struct fit f;
    int status = fit_find(&f, e, o, err);
    if (status || (f.fits && f.cache_fits && f.has_room))
        return status;
    if (!f.has_room)
        return filemap_no_room(o->weights_dir, BACKEND_DISK_WEIGHTS, f.disk, f.disk_free, err);
    if (f.fits)
        return err_set(err, SLUICE_ERR_MEMORY,
                       "the cache in host memory (--cache-bytes) needs %.3f GB, expected at most "
                       "the %.3f that are free beside the model",
                       (double)e->setup.host_bytes / 1e9, (double)f.cache_free / 1e9);
    char advice[FIT_ADVICE * sizeof f.advice[0]], sequences[48] = "";
    if (e->setup.n_seqs > 1)
        snprintf(sequences, sizeof sequences, " with %u sequences (--batch)", e->setup.n_seqs);
    return err_set(err, SLUICE_ERR_MEMORY,
                   "%s: a context of %u (-c)%s needs %.3f GB, of which %.3f for weights, and %.3f "
                   "are free; %s%s",
                   e->model->model->path, e->setup.context, sequences, (double)f.total / 1e9,
                   (double)f.weights / 1e9, (double)f.free / 1e9,
                   f.n_advice           ? "what would fit: "
                   : f.weights > f.free ? "the weights alone do not fit"
                                        : "no -c, --kv or --batch would fit",
                   fit_advice(&f, advice, sizeof advice));
}
