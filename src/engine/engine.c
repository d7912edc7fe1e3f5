/* engine.c - opening: options to plans, plans to a backend.
 *
 * Everything is made here, at open: a plan and a recording for every width of a step, the regions,
 * the tables. Nothing is allocated after it. */
#include "engine/engine.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/size.h"

enum {
    DEFAULT_CONTEXT = 8192,
    MAX_CONTEXT = 1 << 24,
    MAX_SEQUENCES = 4096,
    MAX_PREFILL = 4096,
    MAX_DRAFTS = 256,
    MAX_SNAPSHOTS = 1 << 20,
    MAX_PAGES = 1 << 28,
    MAX_THREADS = 1024,
};

/* ---- options ------------------------------------------------------------------------------ */

static int check_range(const char *name, int64_t value, int64_t min, int64_t max, struct err *err) {
    if (value >= min && value <= max)
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_ARGUMENT, "%s is %lld, expected %lld to %lld", name,
                   (long long)value, (long long)min, (long long)max);
}

/* Checks the ranges alone; whether they suit the model is checked later. */
static int check_options(const struct sluice_engine_options *o, struct err *err) {
    const struct {
        const char *name;
        int64_t value, min, max;
    } ranges[] = {
        {"device (--device)", o->device, 0, INT_MAX},
        {"threads (-t)", o->threads, 0, MAX_THREADS},
        {"context (-c)", o->context, INT64_MIN, MAX_CONTEXT},
        {"sequences", o->sequences, 1, MAX_SEQUENCES},
        {"batch (--batch)", o->batch, 1, MAX_SEQUENCES},
        {"prefill", o->prefill, 0, MAX_PREFILL},
        {"drafts", o->drafts, 0, MAX_DRAFTS},
        {"block_drafts", o->block_drafts, 0, IO_BURST},
        {"snapshot_every", o->snapshot_every, 0, MAX_CONTEXT},
    };
    int status = SLUICE_OK;
    for (size_t i = 0; !status && i < sizeof ranges / sizeof *ranges; i++)
        status = check_range(ranges[i].name, ranges[i].value, ranges[i].min, ranges[i].max, err);
    return status;
}

static int find_kv_type(const struct sluice_engine_options *o, const struct config *c,
                        enum dtype *out, struct err *err) {
    const char *name = o->exact ? "f32" : o->kv_type ? o->kv_type : "f16";
    static const enum dtype types[] = {DT_F32, DT_F16, DT_Q8_0, DT_Q4_0};
    bool is_known = dtype_find(str_of(name), out), is_one = false;
    for (size_t i = 0; is_known && i < sizeof types / sizeof *types; i++)
        is_one |= *out == types[i];
    if (!is_one)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "KV cache type (--kv) is '%s', expected f32, f16, q8_0 or q4_0", name);
    if (c->head_width % dtype_info(*out)->block_values != 0)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "KV cache type (--kv) is %s, expected f16 or f32: heads have %u values",
                       name, c->head_width);
    return SLUICE_OK;
}

/* A tokenizer by byte pairs numbers its tokens about by frequency, since its merges were learned in
 * that order. Of Qwen3.5's 248,320 the first 98,304 are 99.8 % and more of English text and of
 * code, 95 of Chinese and German, 80 of Japanese (docs/results.md). */
enum { BLOCK_VOCAB = 98304 };

static uint32_t block_vocab_of(const struct sluice_engine_options *o, const struct config *c) {
    uint32_t usual = c->n_vocab / 2 >= BLOCK_VOCAB ? BLOCK_VOCAB : 0;
    uint32_t vocab = o->block_vocab ? o->block_vocab : usual;
    return vocab < c->n_vocab ? vocab : 0;
}

static int fill_setup(struct setup *s, const struct sluice_engine_options *o,
                      const struct config *c, bool has_draft_block, const struct backend_kind *kind,
                      struct err *err) {
    uint32_t usual = min_u32(c->context, DEFAULT_CONTEXT);
    int64_t context = o->context < 0 ? usual : o->context == 0 ? c->context : o->context;
    int status = check_range("context (-c)", context, 1, MAX_CONTEXT, err);
    if (!status)
        status = find_kv_type(o, c, &s->kv_type, err);
    if (status)
        return status;
    s->context = (uint32_t)context;
    s->pages_per_seq = (s->context + IO_PAGE_POSITIONS - 1) / IO_PAGE_POSITIONS;
    s->n_seqs = o->sequences;
    s->n_pages = s->n_seqs * s->pages_per_seq;
    s->batch = min_u32(o->batch, o->sequences);
    if (kind->max_rows) /* wider steps are cut into several */
        s->batch = min_u32(s->batch, kind->max_rows);
    s->drafts = o->drafts;
    s->block_drafts = has_draft_block ? min_u32(o->block_drafts, o->drafts) : 0;
    s->block_vocab = s->block_drafts ? block_vocab_of(o, c) : 0;
    s->prefill = max_u32(o->prefill ? o->prefill : kind->prefill, s->batch + s->drafts);
    if (kind->max_rows)
        s->prefill = min_u32(s->prefill, kind->max_rows);
    if (kind->max_rows && !o->prefill && (uint64_t)s->context * s->n_seqs < s->prefill)
        s->prefill = max_u32(s->context * s->n_seqs, s->batch); /* no step can have more */
    s->outputs = min_u32(max_u32(o->all_outputs, s->batch), s->prefill);
    s->exact = o->exact;
    return SLUICE_OK;
}

/* ---- plans -------------------------------------------------------------------------------- */

struct plan_kind {
    /* model_plan or model_draft_plan */
    int (*write)(struct plan **out, const struct model *m, const struct plan_options *options,
                 struct err *err);
    uint32_t n_vocab;     /* picked from; 0: all */
    uint32_t burst_steps; /* 0: the usual number */
};

static int make_plan(const struct sluice_engine *e, const struct plan_kind *kind, struct plan **out,
                     uint32_t rows, uint32_t n_cells, struct err *err) {
    const struct setup *s = &e->setup;
    const struct config *c = &e->model->model->config;
    const struct plan_options options = {
        .max_rows = rows,
        .max_outputs = min_u32(rows, s->outputs + s->drafts),
        .n_slots = s->n_seqs,
        .n_cells = n_cells,
        .n_pages = s->n_pages,
        .pages_per_seq = s->pages_per_seq,
        .kv_type = s->kv_type,
        .n_vocab = kind->n_vocab ? kind->n_vocab : c->n_vocab,
        .n_taps = s->n_taps,
        .tap_width = s->n_taps ? c->hidden : 0,
        .has_draft_block = s->block_drafts > 0,
        .burst_steps = kind->burst_steps,
    };
    int status = kind->write(out, e->model->model, &options, err);
    if (status == SLUICE_ERR_MEMORY)
        err_prefix(err, "%s: a context of %u (-c) with %u sequences (--batch)",
                   e->model->model->path, s->context, s->n_seqs);
    return status;
}

/* As many pages as the budget buys; 0: what all sequences at full length need. */
static int plan_pages(struct setup *s, uint64_t budget, uint64_t page_bytes, struct err *err) {
    if (budget == 0 || page_bytes == 0)
        return SLUICE_OK;
    if (budget < page_bytes)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "kv_bytes (--kv-bytes) is %llu, expected at least %llu: %d positions",
                       (unsigned long long)budget, (unsigned long long)page_bytes,
                       IO_PAGE_POSITIONS);
    uint64_t n = budget / page_bytes;
    s->n_pages = n < MAX_PAGES ? (uint32_t)n : MAX_PAGES;
    return SLUICE_OK;
}

/* Such that snapshots take no more memory than the KV cache of the tokens between them. */
static uint32_t usual_snapshot_every(const struct state_layout *layout) {
    uint64_t pages = layout->page_bytes
                         ? (layout->recurrent_bytes + layout->page_bytes - 1) / layout->page_bytes
                         : 1;
    uint64_t every = IO_PAGE_POSITIONS * (pages ? pages : 1);
    return every < MAX_CONTEXT ? (uint32_t)every : MAX_CONTEXT;
}

/* As many snapshots as the budget buys and pages allow; none where rewinding just truncates. */
static void plan_snapshots(struct setup *s, uint64_t budget, const struct state_layout *layout) {
    if (!layout->n_recurrent)
        return;
    uint64_t useful = s->n_pages * (1 + (uint64_t)IO_PAGE_POSITIONS /
                                            min_u32(s->snapshot_every, IO_PAGE_POSITIONS));
    uint64_t bought = budget / layout->recurrent_bytes;
    uint64_t n = bought < useful ? bought : useful;
    if (budget && !bought) /* a default may be too small for a model, so it is no error */
        log_line(LOG_WARN,
                 "snapshot_bytes (--snapshot-bytes) is %llu, and a snapshot takes %llu: none are "
                 "kept",
                 (unsigned long long)budget, (unsigned long long)layout->recurrent_bytes);
    s->n_snapshots = n < MAX_SNAPSHOTS ? (uint32_t)n : MAX_SNAPSHOTS;
}

/* How many pages and snapshots there will be: a plan without them says what each takes. */
static int plan_state_memory(struct sluice_engine *e, const struct sluice_engine_options *o,
                             struct err *err) {
    struct plan *probe;
    struct state_layout layout = {0};
    const struct plan_kind kind = {.write = model_plan};
    int status = make_plan(e, &kind, &probe, 1, e->setup.n_seqs, err);
    if (!status)
        status = state_layout_of(&layout, probe, &e->arena, err);
    if (!status)
        status = plan_pages(&e->setup, o->kv_bytes, layout.page_bytes, err);
    e->setup.snapshot_every = o->snapshot_every ? o->snapshot_every : usual_snapshot_every(&layout);
    if (!status)
        status = tiers_plan(&e->setup, o, &layout, err);
    if (!status)
        plan_snapshots(&e->setup, o->snapshot_bytes, &layout);
    plan_free(probe);
    return status;
}

/* The widths of steps: doubling up to the batch, then those for prompts; doubling all the way where
 * a backend has a widest step. */
static uint32_t widths_of(const struct setup *s, uint32_t max_rows, uint32_t widths[MAX_PLANS]) {
    static const uint32_t prompts[] = {64, 256, 1024};
    uint32_t n = 0;
    for (uint32_t rows = 1; rows < (max_rows ? s->prefill : s->batch); rows *= 2)
        widths[n++] = rows;
    if (max_rows) {
        widths[n++] = s->prefill;
        return n;
    }
    widths[n++] = s->batch;
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++)
        if (prompts[i] > s->batch && prompts[i] < s->prefill)
            widths[n++] = prompts[i];
    if (s->prefill > s->batch)
        widths[n++] = s->prefill;
    return n;
}

/* Makes the next of e->plans, which the caller counts. */
static int add_plan(struct sluice_engine *e, const struct plan_kind *kind, uint32_t rows,
                    struct err *err) {
    const struct setup *s = &e->setup;
    uint32_t i = engine_n_plans(e);
    CHECK(i < MAX_PLANS);
    return make_plan(e, kind, &e->plans[i], rows, s->n_seqs + s->drafts + s->n_snapshots, err);
}

/* Steps of the draft block: a row for each of the sequences that are decoded together, and a spare
 * cell for each row, of which there are setup.drafts. */
static int make_draft_plans(struct sluice_engine *e, uint32_t n_vocab, struct err *err) {
    const struct plan_kind kind = {model_draft_plan, n_vocab, e->setup.block_drafts};
    uint32_t most = min_u32(e->setup.batch, e->setup.drafts);
    int status = SLUICE_OK;
    for (uint32_t rows = 1, last = 0; !status && last < most; rows *= 2) {
        last = min_u32(rows, most);
        status = add_plan(e, &kind, last, err);
        e->n_draft_plans += !status;
    }
    return status;
}

static int make_plans(struct sluice_engine *e, struct err *err) {
    uint32_t widths[MAX_PLANS], n = widths_of(&e->setup, e->kind->max_rows, widths);
    CHECK(n <= MAX_PLANS);
    const struct plan_kind trunk = {.write = model_plan};
    int status = SLUICE_OK;
    for (; e->n_plans < n; e->n_plans++) {
        if ((status = add_plan(e, &trunk, widths[e->n_plans], err)))
            return status;
        CHECK(e->plans[e->n_plans]->bytes[REGION_STATE] == e->plans[0]->bytes[REGION_STATE]);
    }
    /* Backends place a matrix whole: the plans that read all of it come first. */
    if (e->setup.block_drafts)
        status = make_draft_plans(e, 0, err);
    if (!status && e->setup.block_vocab)
        status = make_draft_plans(e, e->setup.block_vocab, err);
    return status ? status : state_layout_of(&e->state.layout, e->plans[0], &e->arena, err);
}

uint32_t engine_plan_for(const struct sluice_engine *e, uint32_t rows, uint32_t outputs) {
    uint32_t i = 0;
    while (i < e->n_plans && (e->plans[i]->max_rows < rows || e->plans[i]->max_outputs < outputs))
        i++;
    CHECK(i < e->n_plans);
    return i;
}

uint32_t engine_draft_plan_for(const struct sluice_engine *e, uint32_t rows, bool from_all) {
    uint32_t n = e->setup.block_vocab ? e->n_draft_plans / 2 : e->n_draft_plans;
    uint32_t i = e->n_plans + (from_all ? 0 : e->n_draft_plans - n), end = i + n;
    while (i < end && e->plans[i]->max_rows < rows)
        i++;
    CHECK(i < end);
    return i;
}

/* ---- open and close ----------------------------------------------------------------------- */

static int open_backend(struct sluice_engine *e, const struct sluice_engine_options *o,
                        struct err *err) {
    const char *name = o->backend ? o->backend : "auto";
    e->kind = backend_find(name);
    if (!e->kind) {
        char names[128];
        return err_set(err, SLUICE_ERR_ARGUMENT, "backend is '%s', expected %s",
                       backend_meant(name),
                       backend_names(backend_meant(name), names, sizeof names));
    }
    const struct weights *w = e->model->model->weights;
    bool on_disk = o->weights_dir && e->kind->uses_host_weights;
    uint64_t memory = !on_disk ? 0 : o->memory_limit ? o->memory_limit : memory_available();
    const struct backend_options options = {.device = o->device,
                                            .threads = o->threads,
                                            .exact = o->exact,
                                            .cancel = &e->cancel,
                                            .mapped = weights_mapped(w),
                                            .weights_dir = on_disk ? o->weights_dir : NULL,
                                            .memory = memory - min_u64(memory, o->cache_bytes),
                                            .weights_bytes = o->weights_bytes};
    e->device = o->device;
    return e->kind->open(&e->backend, &options, err);
}

/* Whether the widest step takes no more than its share of free memory: the rest may be for others,
 * or for a context opened later. */
static bool is_narrow_enough(const struct sluice_engine *e, uint64_t limit) {
    enum { SHARE = 8 };
    const struct backend_memory *m = &e->predicted;
    uint64_t steps = size_plus(size_plus(m->scratch, m->workspace), m->io);
    return steps <= limit / SHARE && engine_memory_of(e, m).total <= limit;
}

/* What the plans take. */
static int predict(struct sluice_engine *e, struct err *err) {
    int status = e->kind->predict(e->backend, e->plans, engine_n_plans(e), &e->predicted, err);
    if (e->kind->uses_host_weights) /* plans only know where the last weight ends */
        e->predicted.weights = e->model->weight_bytes - e->predicted.released - e->predicted.paged;
    return status;
}

static void drop_widest(struct sluice_engine *e) {
    struct plan **widest = &e->plans[--e->n_plans];
    plan_free(*widest);
    memmove(widest, widest + 1, e->n_draft_plans * sizeof *widest);
}

/* Drops the widest plans until the rest takes little memory. */
static int choose_widest(struct sluice_engine *e, const struct sluice_engine_options *o,
                         struct err *err) {
    struct setup *s = &e->setup;
    uint64_t limit;
    int status = fit_limit(e, o, &limit, err);
    while (!status && !is_narrow_enough(e, limit) && e->n_plans > 1 &&
           e->plans[e->n_plans - 2]->max_rows >= s->batch) {
        drop_widest(e);
        s->prefill = e->plans[e->n_plans - 1]->max_rows;
        s->outputs = min_u32(s->outputs, s->prefill);
        status = predict(e, err);
    }
    return status;
}

int engine_prepare(struct sluice_engine **out, struct sluice_model *model,
                   const struct sluice_engine_options *o, bool has_taps, struct err *err) {
    struct sluice_engine *e = *out = calloc(1, sizeof *e);
    if (!e)
        return err_memory(err, "an engine");
    if (!model || !model->is_open)
        return err_set(err, SLUICE_ERR_ARGUMENT, "the model is not open%s%s", model ? ": " : "",
                       model ? model->err.text : "");
    e->model = model;
    e->setup.n_taps = has_taps ? model->model->config.n_layers + 2 : o->hidden;
    int status;
    if ((status = check_options(o, err)) || (status = open_backend(e, o, err)) ||
        (status = fill_setup(&e->setup, o, &model->model->config,
                             model->model->draft.join.n_dims && !has_taps, e->kind, err)) ||
        (status = plan_state_memory(e, o, err)) || (status = make_plans(e, err)))
        return status;
    status = predict(e, err);
    return !status && !o->prefill && e->kind->max_rows ? choose_widest(e, o, err) : status;
}

static int make_tables(struct sluice_engine *e, struct err *err) {
    const struct setup *s = &e->setup;
    const struct state_options options = {
        .n_slots = s->n_seqs,
        .n_snapshots = s->n_snapshots,
        .n_spare = e->state.layout.n_recurrent ? s->drafts : 0,
        .snapshot_every = s->snapshot_every,
        .context = s->context,
        .pages_per_seq = s->pages_per_seq,
        .n_pages = s->n_pages,
        .n_lower = s->n_host + s->n_disk,
        .n_vocab = e->model->model->config.n_vocab,
    };
    e->state.kind = e->kind;
    e->state.backend = e->backend;
    e->handles = arena_array(&e->arena, s->n_seqs + SPARE_HANDLES, sizeof *e->handles);
    e->seqs = arena_array(&e->arena, s->n_seqs, sizeof *e->seqs);
    e->parts = arena_array(&e->arena, s->n_seqs, sizeof *e->parts);
    e->mask_words = div_up((uint32_t)e->model->n_tokens, 32);
    e->masks = arena_array(&e->arena, 2 * (uint64_t)s->n_seqs * e->mask_words, sizeof *e->masks);
    if (!e->handles || !e->seqs || !e->parts || !e->masks)
        return err_memory(err, "the tables of sequences");
    for (uint32_t i = 0; i < s->n_seqs + SPARE_HANDLES; i++)
        e->handles[i].engine = e;
    for (int32_t t = 0; t < e->model->n_tokens && e->n_ends < IO_MAX_ENDS; t++)
        if (sluice_token_is_end(e->model, t))
            e->ends[e->n_ends++] = t;
    return state_init(&e->state, &options, &e->arena, err);
}

static int load_weights(struct sluice_model *m, bool is_on_host, bool with_draft_block,
                        struct err *err) {
    pthread_mutex_lock(&m->loading);
    int status = is_on_host ? model_load(m->model, err) : model_map(m->model, err);
    if (!status && with_draft_block)
        status = model_load_draft(m->model, err);
    pthread_mutex_unlock(&m->loading);
    return status;
}

int engine_load(struct sluice_engine *e, const struct sluice_engine_options *o, struct err *err) {
    const struct weights *w = e->model->model->weights;
    int status = fit_check(e, o, err);
    if (!status)
        status = make_tables(e, err);
    if (!status)
        status = load_weights(e->model, e->kind->uses_host_weights, e->setup.block_drafts > 0, err);
    if (!status)
        status = e->kind->load(
            e->backend,
            (struct backend_weights){w->base, w->bytes, w->synthetic, weights_mapped(w)}, e->plans,
            engine_n_plans(e), o->progress, o->user, err);
    if (!status)
        status = tiers_open(e, o, err);
    e->is_loaded = status == SLUICE_OK;
    return status;
}

void engine_close(struct sluice_engine *e) {
    if (!e)
        return;
    tiers_close(e);
    if (e->kind)
        e->kind->close(e->backend);
    for (uint32_t i = 0; i < engine_n_plans(e); i++)
        plan_free(e->plans[i]);
    arena_free(&e->arena);
    free(e);
}

struct sluice_memory engine_memory_of(const struct sluice_engine *e,
                                      const struct backend_memory *m) {
    const uint64_t parts[] = {m->weights, m->state, m->scratch, m->io, m->packed, m->workspace};
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        total = size_plus(total, parts[i]);
    return (struct sluice_memory){
        .weights = m->weights,
        .state = m->state,
        .snapshots = e->setup.n_snapshots * e->state.layout.recurrent_bytes,
        .scratch = m->scratch,
        .io = m->io,
        .packed = m->packed,
        .workspace = m->workspace,
        .driver = m->driver,
        .disk = m->disk + m->paged,
        .cache = e->setup.host_bytes,
        .total = total,
    };
}
