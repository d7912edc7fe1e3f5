/* fit.c - whether an engine fits into memory, and what would. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "engine/engine.h"

static bool fits(const struct sluice_engine *e, uint64_t limit) {
    return engine_memory_of(e, &e->predicted).total <= limit;
}

static bool would_fit(const struct sluice_engine *e, const struct sluice_engine_options *o,
                      uint64_t limit) {
    struct sluice_engine *other;
    struct err ignored;
    int status = engine_prepare(&other, e->model, o, e->setup.n_taps > 1, &ignored);
    bool yes = status == SLUICE_OK && fits(other, limit);
    engine_close(other);
    return yes;
}

static void add_advice(char *text, size_t size, const char *format, const char *value) {
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, size - used, "%s", used ? ", " : "");
    if (used < size)
        snprintf(text + used, size - used, format, value);
}

/* Each option that makes it fit by itself. */
static void find_advice(const struct sluice_engine *e, const struct sluice_engine_options *options,
                        uint64_t limit, char *text, size_t size) {
    static const char *const kv_types[] = {"f16", "q8_0", "q4_0"};
    struct sluice_engine_options o = *options;
    text[0] = 0;
    for (o.context = e->setup.context / 2; o.context >= 256; o.context /= 2)
        if (would_fit(e, &o, limit)) {
            char number[24];
            snprintf(number, sizeof number, "%lld", (long long)o.context);
            add_advice(text, size, "-c %s", number);
            break;
        }
    o = *options;
    for (size_t i = 0; !o.exact && i < sizeof kv_types / sizeof *kv_types; i++) {
        o.kv_type = kv_types[i];
        if (would_fit(e, &o, limit)) {
            add_advice(text, size, "--kv %s", o.kv_type);
            break;
        }
    }
    o = *options;
    for (o.kv_bytes /= 2; o.kv_bytes >= e->state.layout.page_bytes && o.kv_bytes; o.kv_bytes /= 2)
        if (would_fit(e, &o, limit)) {
            char number[24];
            snprintf(number, sizeof number, "%llu", (unsigned long long)o.kv_bytes);
            add_advice(text, size, "--kv-bytes %s", number);
            break;
        }
    o = *options;
    o.batch = o.sequences = 1;
    if (options->batch > 1 && would_fit(e, &o, limit))
        add_advice(text, size, "--batch %s", "1");
}

int fit_limit(const struct sluice_engine *e, const struct sluice_engine_options *o, uint64_t *bytes,
              struct err *err) {
    *bytes = o->memory_limit ? o->memory_limit : memory_available();
    return !o->memory_limit && e->kind->available ? e->kind->available(e->backend, bytes, err)
                                                  : SLUICE_OK;
}

/* Checks that the cache in host memory fits beside what else the engine takes there. */
static int check_cache(const struct sluice_engine *e, uint64_t limit, struct err *err) {
    uint64_t taken = engine_memory_of(e, &e->predicted).total;
    uint64_t left = e->kind->available ? memory_available() : limit > taken ? limit - taken : 0;
    if (e->setup.host_bytes <= left)
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_MEMORY,
                   "the cache in host memory (--cache-bytes) needs %.3f GB, expected at most the "
                   "%.3f that are free beside the model",
                   (double)e->setup.host_bytes / 1e9, (double)left / 1e9);
}

int fit_check(const struct sluice_engine *e, const struct sluice_engine_options *o,
              struct err *err) {
    uint64_t limit;
    int status = fit_limit(e, o, &limit, err);
    if (status)
        return status;
    if (fits(e, limit))
        return check_cache(e, limit, err);
    struct sluice_memory m = engine_memory_of(e, &e->predicted);
    uint64_t weights = m.weights + m.packed;
    char advice[128], sequences[48] = "";
    find_advice(e, o, limit, advice, sizeof advice);
    if (e->setup.n_seqs > 1)
        snprintf(sequences, sizeof sequences, " with %u sequences (--batch)", e->setup.n_seqs);
    return err_set(err, SLUICE_ERR_MEMORY,
                   "%s: a context of %u (-c)%s needs %.3f GB, of which %.3f for weights, and %.3f "
                   "are free; %s%s",
                   e->model->model->path, e->setup.context, sequences, (double)m.total / 1e9,
                   (double)weights / 1e9, (double)limit / 1e9,
                   advice[0]         ? "what would fit: "
                   : weights > limit ? "the weights alone do not fit"
                                     : "no -c, --kv or --batch would fit",
                   advice);
}
