/* open.c - the options that verbs with an engine share, and opening a model and an engine with
 * them. */
#include "cmd/open.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/size.h"
#include "cmd/bias.h"
#include "cmd/cmd.h"
#include "cmd/interrupt.h"
#include "cmd/progress.h"
#include "engine/engine.h"

/* ---- options ------------------------------------------------------------------------------ */

struct common common_default(void) {
    return (struct common){
        .backend = "auto",
        .kv = "f16",
        .context = INT_MIN,
        .batch = 1,
        .mtp = MTP_NOT_GIVEN,
        .temperature = NAN,
        .top_p = NAN,
        .min_p = NAN,
        .repeat_penalty = NAN,
        .presence_penalty = NAN,
        .frequency_penalty = NAN,
        .top_k = -1,
        .seed = -1,
        .kv_bytes = UINT64_MAX,
        .snapshot_bytes = UINT64_MAX,
        .cache_bytes = UINT64_MAX,
        .cache_dir_bytes = UINT64_MAX,
        .weights_bytes = UINT64_MAX,
    };
}

int common_opts(struct opt *table, int n, struct common *c, unsigned groups) {
    /* clang-format off */
    const struct {
        unsigned group;
        struct opt opt;
    } rows[] = {
        {WITH_CPU, {"--model", 'm', OPT_STRING, &c->model, "MODEL", MODEL_HELP}},
        {WITH_DEVICE, {"--backend", 0, OPT_STRING, &c->backend, "NAME", "auto (default), or one that `sluice devices` lists"}},
        {WITH_DEVICE, {"--device", 0, OPT_STRING, &c->device, "N", "which device of that backend, or a part of its name; default: 0"}},
        {WITH_CPU, {"--threads", 't', OPT_INT, &c->threads, "N", "CPU threads; 0 (default): one per processor"}},
        {WITH_CONTEXT, {"--context", 'c', OPT_INT, &c->context, "N", "context length in tokens; 0: the model's; default: the model's, at most 8192"}},
        {WITH_CPU, {"--kv", 0, OPT_STRING, &c->kv, "TYPE", "type of the KV cache: f32, f16 (default), q8_0, q4_0"}},
        {WITH_CPU, {"--exact", 0, OPT_FLAG, &c->exact, NULL, "f32 activations and f32 KV cache"}},
        {WITH_CPU, {"--weights-dir", 0, OPT_STRING, &c->weights_dir, "DIR", "folder on a disk for the weights of a model that is larger than memory (CPU)"}},
        {WITH_CPU, {"--weights-bytes", 0, OPT_SIZE, &c->weights_bytes, "SIZE", "with it: how much of the weights stays in memory; default: as much as fits"}},
        {WITH_DRAFT, {"--draft", 0, OPT_INT, &c->draft, "N", "guess up to N tokens ahead and verify them in one step; 0: off; default: 7, bench and explain: 0"}},
        {WITH_DRAFT, {"--mtp", 0, OPT_INT, &c->mtp, "N", "of these, up to N by the model's own block for multi-token prediction; 0: off; default: 3 where it has one, bench and explain: 0"}},
        {WITH_CACHE, {"--kv-bytes", 0, OPT_SIZE, &c->kv_bytes, "SIZE", "size of the KV cache; default: enough for all sequences in full, in serve what fits"}},
        {WITH_CACHE, {"--snapshot-bytes", 0, OPT_SIZE, &c->snapshot_bytes, "SIZE", "device memory for snapshots of recurrent state"}},
        {WITH_CACHE, {"--cache-bytes", 0, OPT_SIZE, &c->cache_bytes, "SIZE", "host memory for cached prompts that don't fit on the device; default: none"}},
        {WITH_CACHE, {"--cache-dir", 0, OPT_STRING, &c->cache_dir, "DIR", "folder that keeps processed prompts for later runs"}},
        {WITH_CACHE, {"--cache-dir-bytes", 0, OPT_SIZE, &c->cache_dir_bytes, "SIZE", "size limit of that folder; default: 8G"}},
        {WITH_SAMPLING, {"--temp", 0, OPT_FLOAT, &c->temperature, "T", "temperature; 0: always the most likely token; default: the model's, or 0.8"}},
        {WITH_SAMPLING, {"--top-k", 0, OPT_INT, &c->top_k, "K", "sample from the K most likely tokens; 0: all; default: the model's, or 0"}},
        {WITH_SAMPLING, {"--top-p", 0, OPT_FLOAT, &c->top_p, "P", "sample from the most likely tokens that add up to P; default: the model's, or 0.95"}},
        {WITH_SAMPLING, {"--min-p", 0, OPT_FLOAT, &c->min_p, "P", "drop tokens less than P times as likely as the best; default: the model's, or 0"}},
        {WITH_SAMPLING, {"--repeat-penalty", 0, OPT_FLOAT, &c->repeat_penalty, "X", "make tokens seen before less likely; 1: off; default: the model's, or 1"}},
        {WITH_SAMPLING, {"--presence-penalty", 0, OPT_FLOAT, &c->presence_penalty, "X", "subtract X from the logits of tokens seen before; default: 0"}},
        {WITH_SAMPLING, {"--frequency-penalty", 0, OPT_FLOAT, &c->frequency_penalty, "X", "subtract X for each time a token was seen; default: 0"}},
        {WITH_SAMPLING, {"--logit-bias", 0, OPT_LIST, &c->logit_biases, "T=X", "add X to a token's logit: ID=X or 'text'=X; repeatable"}},
        {WITH_SAMPLING, {"--ignore-eos", 0, OPT_FLAG, &c->ignore_eos, NULL, "never sample end tokens, so the text goes on"}},
        {WITH_SAMPLING, {"--seed", 0, OPT_INT64, &c->seed, "N", "same seed, same text; default: random"}},
        {WITH_STOP, {"--stop", 0, OPT_LIST, &c->stops, "TEXT", "stop before TEXT; repeatable"}},
        {WITH_JSON, {"--json", 0, OPT_FLAG, &c->as_json, NULL, "print one JSON object"}},
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].group & groups)
            table[n++] = rows[i].opt;
    return n;
}

/* The devices that `--device` may name, as one line. */
static const char *device_lines(const struct backend_kind *kind, char *out, size_t size) {
    char line[256];
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; used < size && kind->device_line(i, line, sizeof line); i++)
        used += (size_t)snprintf(out + used, size - used, "%s%d (%s)", i ? " or " : "", i, line);
    return out;
}

/* Whether `part` is in a device's name: of "cuda: device 0, NVIDIA H200, compute ..." the second
 * part. */
static bool names_device(const char *line, const char *part) {
    int skipped = 0;
    if (sscanf(line, "%*[^:]: device %*d, %n", &skipped) == 0)
        line += skipped;
    const char *found = strcasestr(line, part);
    return found && found + strlen(part) <= line + strcspn(line, ",");
}

/* The number of the device: as given, or of the first whose name contains the text; -1: none. */
static int device_number(const struct common *c, const struct backend_kind *kind) {
    char line[256], *end;
    if (!c->device)
        return 0;
    long number = strtol(c->device, &end, 10);
    if (c->device[0] && !*end)
        return number >= 0 && number < INT_MAX && kind->device_line((int)number, line, sizeof line)
                   ? (int)number
                   : -1;
    for (int i = 0; c->device[0] && kind->device_line(i, line, sizeof line); i++)
        if (names_device(line, c->device))
            return i;
    return -1;
}

/* If a backend has no device at all, opening it reports why. */
static int check_device(const struct common *c, const char *verb) {
    char line[256], all[1024];
    const struct backend_kind *kind = backend_find(c->backend);
    const char *name = backend_meant(c->backend);
    if (!kind)
        return complain(EXIT_USAGE, "%s: %s is '%s', expected %s", verb,
                        name == c->backend ? "--backend" : "SLUICE_BACKEND", name,
                        backend_names(name, all, sizeof all));
    if (kind->device_line(0, line, sizeof line) && device_number(c, kind) < 0)
        return complain(EXIT_WORLD, "%s: --device is '%s', expected %s", verb, c->device,
                        device_lines(kind, all, sizeof all));
    return OPTS_GO_ON;
}

static int check_ranges(const struct common *c, const char *verb) {
    const struct {
        const char *name;
        float value, min, max;
    } floats[] = {
        {"--temp", c->temperature, 0, 100},
        {"--top-p", c->top_p, 0, 1},
        {"--min-p", c->min_p, 0, 1},
        {"--repeat-penalty", c->repeat_penalty, 0.01f, 100},
        {"--presence-penalty", c->presence_penalty, -100, 100},
        {"--frequency-penalty", c->frequency_penalty, -100, 100},
    };
    const struct {
        const char *name;
        int value, min, max;
    } ints[] = {
        {"--context", c->context == INT_MIN ? 0 : c->context, 0, 1 << 24},
        {"--threads", c->threads, 0, 1024},
        {"--batch", c->batch, 1, 4096},
        {"--draft", c->draft, 0, 256},
        {"--mtp", c->mtp == MTP_NOT_GIVEN ? 0 : c->mtp, 0, MAX_MTP},
        {"--top-k", c->top_k, -1, INT_MAX},
    };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        if (floats[i].value < floats[i].min || floats[i].value > floats[i].max)
            return complain(EXIT_USAGE, "%s: %s is %g, expected %g to %g", verb, floats[i].name,
                            (double)floats[i].value, (double)floats[i].min, (double)floats[i].max);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        if (ints[i].value < ints[i].min || ints[i].value > ints[i].max)
            return complain(EXIT_USAGE, "%s: %s is %d, expected %d to %d", verb, ints[i].name,
                            ints[i].value, ints[i].min, ints[i].max);
    return OPTS_GO_ON;
}

/* Checks the options of the KV cache and of folders. */
static int check_cache(const struct common *c, const char *verb) {
    if (c->cache_dir && !c->cache_dir[0])
        return complain(EXIT_USAGE, "%s: --cache-dir is '', expected a folder", verb);
    if (!c->cache_dir && c->cache_dir_bytes != UINT64_MAX)
        return complain(EXIT_USAGE, "%s: --cache-dir-bytes needs --cache-dir DIR", verb);
    if (c->weights_dir && !c->weights_dir[0])
        return complain(EXIT_USAGE, "%s: --weights-dir is '', expected a folder", verb);
    if (!c->weights_dir && c->weights_bytes != UINT64_MAX)
        return complain(EXIT_USAGE, "%s: --weights-bytes needs --weights-dir DIR", verb);
    if (c->exact && strcmp(c->kv, "f16") != 0 && strcmp(c->kv, "f32") != 0)
        return complain(EXIT_USAGE, "%s: --exact and --kv %s are both given, expected one of them",
                        verb, c->kv);
    static const char *const kv_types[] = {"f32", "f16", "q8_0", "q4_0"};
    bool is_known = false;
    for (size_t i = 0; i < sizeof kv_types / sizeof *kv_types; i++)
        is_known |= strcmp(c->kv, kv_types[i]) == 0;
    if (!is_known)
        return complain(EXIT_USAGE, "%s: --kv is '%s', expected f32, f16, q8_0 or q4_0", verb,
                        c->kv);
    return OPTS_GO_ON;
}

int common_check(const struct common *c, const char *verb) {
    int exit = check_ranges(c, verb);
    if (exit != OPTS_GO_ON)
        return exit;
    if (c->temperature > 0 && c->temperature < 1e-6f) /* the engine's limit */
        return complain(EXIT_USAGE, "%s: --temp is %g, expected 0, or 1e-06 to 100", verb,
                        (double)c->temperature);
    if (c->seed < -1)
        return complain(EXIT_USAGE, "%s: --seed is %lld, expected 0 or more", verb,
                        (long long)c->seed);
    if ((exit = check_cache(c, verb)) != OPTS_GO_ON)
        return exit;
    for (int i = 0; i < c->stops.n; i++)
        if (!c->stops.at[i][0])
            return complain(EXIT_USAGE, "%s: --stop is '', expected a text", verb);
    struct bias_spec spec;
    for (int i = 0; i < c->logit_biases.n; i++)
        if (!bias_parse(c->logit_biases.at[i], &spec))
            return complain(EXIT_USAGE,
                            "%s: --logit-bias is '%s', expected TOKEN=X, TOKEN+X or TOKEN-X, X up "
                            "to 1000 or -inf",
                            verb, c->logit_biases.at[i]);
    if (c->as_json && say_shows(SAY_NORMAL) && !say_shows(SAY_ALL))
        say_set_level(SAY_WARNINGS);
    return check_device(c, verb);
}

static uint64_t given_or(uint64_t given, uint64_t otherwise) {
    return given == UINT64_MAX ? otherwise : given;
}

static void fill_cache(const struct common *c, struct sluice_engine_options *o) {
    static const uint64_t usual_snapshots = 256ull << 20, usual_folder = 8ull << 30;
    o->kv_bytes = given_or(c->kv_bytes, 0);
    o->cache_bytes = given_or(c->cache_bytes, 0);
    o->cache_dir = c->cache_dir;
    o->cache_dir_bytes = given_or(c->cache_dir_bytes, usual_folder);
    bool is_kept = o->cache_dir || o->cache_bytes;
    o->snapshot_bytes = given_or(c->snapshot_bytes, is_kept ? usual_snapshots : 0);
}

struct sluice_engine_options common_engine(const struct common *c) {
    struct sluice_engine_options o = sluice_engine_options_default();
    o.backend = c->backend;
    const struct backend_kind *kind = backend_find(c->backend);
    o.device = kind ? device_number(c, kind) : 0;
    o.threads = c->threads;
    o.exact = c->exact;
    o.kv_type = c->kv;
    o.context = c->context == INT_MIN ? -1 : c->context;
    o.sequences = o.batch = (uint32_t)c->batch;
    o.drafts = (uint32_t)c->draft;
    o.block_drafts = min_u32(c->mtp == MTP_NOT_GIVEN ? USUAL_MTP : (uint32_t)c->mtp, o.drafts);
    o.weights_dir = c->weights_dir;
    o.weights_bytes = c->weights_bytes == UINT64_MAX ? 0 : c->weights_bytes ? c->weights_bytes : 1;
    fill_cache(c, &o);
    return o;
}

/* Short enough to type. */
static uint64_t drawn_seed(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t x = (uint64_t)t.tv_nsec ^ (uint64_t)t.tv_sec << 20 ^ (uint64_t)getpid() << 40;
    return x * 0x9E3779B97F4A7C15u >> 32;
}

struct sluice_sampling common_sampling(const struct common *c, const sluice_model *model) {
    struct sluice_sampling s = sluice_sampling_default(model);
    const struct {
        float given, *to;
    } rows[] = {
        {c->temperature, &s.temperature},
        {c->top_p, &s.top_p},
        {c->min_p, &s.min_p},
        {c->repeat_penalty, &s.repeat_penalty},
        {c->presence_penalty, &s.presence_penalty},
        {c->frequency_penalty, &s.frequency_penalty},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!isnan(rows[i].given))
            *rows[i].to = rows[i].given;
    if (c->top_k >= 0)
        s.top_k = (uint32_t)c->top_k;
    s.seed = c->seed >= 0 ? (uint64_t)c->seed : drawn_seed();
    s.biases = c->biases;
    s.n_biases = c->n_biases;
    return s;
}

/* ---- opening ------------------------------------------------------------------------------ */

static int add_bias(struct common *c, int32_t token, float bias) {
    if (c->n_biases == SLUICE_MAX_BIASES)
        return complain(EXIT_USAGE, "more than %d tokens have a bias (--logit-bias, --ignore-eos)",
                        SLUICE_MAX_BIASES);
    c->biases[c->n_biases++] = (struct sluice_bias){token, bias};
    return 0;
}

/* Resolves --logit-bias and --ignore-eos for this model. */
static int fill_biases(struct common *c, const sluice_model *model) {
    struct err err = {0};
    struct sluice_facts facts;
    int exit = 0;
    sluice_model_facts(model, &facts);
    c->n_biases = 0;
    for (int i = 0; !exit && i < c->logit_biases.n; i++) {
        struct bias_spec spec;
        int32_t token = bias_parse(c->logit_biases.at[i], &spec)
                            ? bias_token(&spec, model->tokenizer, facts.n_tokens, &err)
                            : -1;
        exit = token < 0 ? complain(EXIT_USAGE, "--logit-bias: %s", err.text)
                         : add_bias(c, token, spec.bias);
    }
    for (int32_t t = 0; !exit && c->ignore_eos && t < facts.n_tokens; t++)
        if (sluice_token_is_end(model, t))
            exit = add_bias(c, t, -INFINITY);
    return exit;
}

int fail_engine(const sluice_engine *engine) {
    return complain(EXIT_WORLD, "%s", sluice_engine_error(engine));
}

static int check_mtp(const struct common *c, const sluice_model *model) {
    struct sluice_facts facts;
    sluice_model_facts(model, &facts);
    if (c->mtp == MTP_NOT_GIVEN || c->mtp == 0 || facts.has_draft_block)
        return 0;
    const char *why = model->model->draft_fault.text;
    return complain(EXIT_WORLD, "--mtp %d: %s has no block for multi-token prediction%s%s%s",
                    c->mtp, model->model->path, *why ? " (" : "", why, *why ? ")" : "");
}

int common_open_model(struct common *c, sluice_model **model) {
    struct err err = {0};
    *model = NULL;
    const char *path = model_path(c->model, &err);
    if (!path)
        return fail(&err);
    interrupt_while_loading(true);
    int status = sluice_model_open(model, path);
    interrupt_while_loading(false);
    if (status) {
        err_set(&err, status, "%s", sluice_model_error(*model));
        hint_of_model(&err, path);
    }
    int exit = status ? fail(&err) : fill_biases(c, *model);
    if (!exit)
        exit = check_mtp(c, *model);
    if (!exit)
        return 0;
    sluice_model_close(*model);
    *model = NULL;
    return exit;
}

/* The slash makes a file at this path an error. */
static int make_folder(const char *path) {
    char slashed[PATH_MAX];
    int n = snprintf(slashed, sizeof slashed, "%s/", path);
    bool is_made = (mkdir(path, 0700) == 0 || errno == EEXIST) && n < (int)sizeof slashed;
    return is_made && access(slashed, W_OK | X_OK) == 0
               ? 0
               : complain(EXIT_WORLD, "%s: cannot be used as the cache folder: %s", path,
                          strerror(errno));
}

int common_make_cache_dir(const struct common *c) {
    return c->cache_dir ? make_folder(c->cache_dir) : 0;
}

static void warn_of_context(const sluice_engine *engine) {
    struct sluice_facts facts;
    struct sluice_choice choice;
    sluice_model_facts(engine->model, &facts);
    sluice_engine_choice(engine, &choice);
    if (choice.context > facts.context)
        warn("context %u is more than the %u the model was made for; what it says after those may "
             "make no sense",
             choice.context, facts.context);
}

static void warn_of_threads(int threads) {
    int n = cpu_count();
    if (threads > n)
        warn("%d threads (-t) on %d processor%s that may be used: more threads than processors are "
             "slower, often many times; 0, the default, is one each",
             threads, n, n == 1 ? "" : "s");
}

int threads_check(const char *verb, int *threads) {
    int exit = check_range(verb, "--threads", *threads, 0, 1024);
    if (exit != OPTS_GO_ON)
        return exit;
    warn_of_threads(*threads);
    *threads = *threads ? *threads : cpu_count();
    return OPTS_GO_ON;
}

static void show_loading(void *user, uint64_t done, uint64_t total) {
    struct progress *p = user;
    if (!p->what)
        progress_start(p, "loading", total);
    p->total = total;
    progress_update(p, done);
}

/* What does not fit goes without some of its memory, where that is a choice of ours. */
static int prepare(sluice_model *model, struct sluice_engine_options *o, bool taps,
                   enum shrink shrink, sluice_engine **engine, struct err *err) {
    bool may_batch_less = shrink == SHRINK_PAGES_AND_BATCH;
    int status = engine_prepare(engine, model, o, taps, err);
    bool fits = status == SLUICE_OK && engine_fits(*engine, o);
    if (status || (fits && !(shrink && fit_is_short(*engine, o))))
        return status;
    bool is_smaller = shrink && fit_shrink(*engine, o, may_batch_less);
    if (!is_smaller && !fits && (*engine)->setup.block_drafts) {
        warn("the block for multi-token prediction does not fit into memory, so it is not used (as "
             "with --mtp 0)");
        o->block_drafts = 0;
        is_smaller = true;
        if (shrink)
            fit_shrink(*engine, o, may_batch_less);
    }
    if (!is_smaller)
        return status;
    engine_close(*engine);
    return engine_prepare(engine, model, o, taps, err);
}

/* What the user may have counted on is less than in full. */
static void tell_shrunk(const sluice_engine *e, const struct sluice_engine_options *wanted) {
    const struct setup *s = &e->setup;
    uint64_t tokens = (uint64_t)s->n_pages * IO_PAGE_POSITIONS;
    if (s->n_seqs < wanted->sequences)
        say(SAY_NORMAL, "memory is short: %u answer%s at the same time, not %u (--batch)",
            s->n_seqs, s->n_seqs == 1 ? "" : "s", wanted->sequences);
    if (s->n_pages < s->n_seqs * s->pages_per_seq)
        say(SAY_NORMAL,
            "memory is short: answers share a KV cache of %llu tokens, not %u each (--kv-bytes, "
            "--kv)",
            (unsigned long long)tokens, s->context);
}

int common_open_engine_shrunk(sluice_model *model, const struct sluice_engine_options *options,
                              bool taps, enum shrink shrink, sluice_engine **engine) {
    struct sluice_engine_options o = *options;
    struct progress bar = {0};
    struct err err = {0};
    int exit = o.cache_dir ? make_folder(o.cache_dir) : 0; /* fail before loading */
    if (exit)
        return exit;
    o.progress = show_loading;
    o.user = &bar;
    interrupt_while_loading(true);
    int status = prepare(model, &o, taps, shrink, engine, &err);
    if (!status)
        status = engine_load(*engine, &o, &err);
    interrupt_while_loading(false);
    progress_end(&bar);
    if (!status) {
        warn_of_context(*engine);
        if ((*engine)->kind->uses_host_weights)
            warn_of_threads(o.threads);
        else if (o.weights_dir)
            warn("--weights-dir has no effect on %s: it is for the CPU (--backend cpu)",
                 (*engine)->kind->name);
        if (shrink)
            tell_shrunk(*engine, options);
        return 0;
    }
    engine_close(*engine);
    *engine = NULL;
    return fail(&err);
}

int common_open_engine(sluice_model *model, const struct sluice_engine_options *options, bool taps,
                       sluice_engine **engine) {
    return common_open_engine_shrunk(model, options, taps, SHRINK_NOTHING, engine);
}

int common_check_windows(const char *verb, int *window, int max, int context) {
    enum { USUAL_WINDOW = 512 };
    const struct {
        const char *name;
        int value;
    } names[] = {{"--window", *window}, {"--context", context}};
    int exit = check_range(verb, "--windows", max, 0, INT_MAX);
    *window = USUAL_WINDOW;
    for (int i = 0; i < 2; i++)
        if (exit == OPTS_GO_ON && names[i].value != WINDOW_NOT_GIVEN) {
            *window = names[i].value;
            exit = check_range(verb, names[i].name, *window, 2, INT_MAX);
        }
    if (exit == OPTS_GO_ON && names[0].value != WINDOW_NOT_GIVEN && *window != names[0].value)
        exit = complain(EXIT_USAGE, "%s: --context is %d, expected %d (--window), or one of them",
                        verb, context, names[0].value);
    return exit;
}

size_t common_count_windows(const struct ids *ids, int window, int max) {
    size_t n = ids->len / (size_t)window;
    return max && (size_t)max < n ? (size_t)max : n;
}

int common_each_window(const struct ids *ids, int window, int max, const char *label,
                       int (*on)(void *user, const int32_t *tokens, uint32_t n), void *user) {
    size_t n = common_count_windows(ids, window, max), n_tokens = (size_t)window;
    struct token_bar bar;
    int exit = 0;
    token_bar_start(&bar, label, n * n_tokens);
    for (size_t i = 0; !exit && i < n; i++) {
        exit = on(user, ids->at + i * n_tokens, (uint32_t)window);
        token_bar_update(&bar, (i + 1) * n_tokens);
    }
    token_bar_end(&bar);
    return exit;
}

uint32_t common_outputs(const sluice_model *model, uint32_t useful) {
    enum { MAX_LOGITS_BYTES = 256 << 20, MAX_BATCH = 256 };
    struct sluice_facts facts;
    sluice_model_facts(model, &facts);
    uint64_t row_bytes = (uint64_t)facts.n_logits * 20; /* logits twice, and space to sort them */
    uint64_t n = MAX_LOGITS_BYTES / row_bytes;
    n = n < 1 ? 1 : n > MAX_BATCH ? MAX_BATCH : n;
    return n < useful ? (uint32_t)n : useful;
}

void common_announce(const struct common *c, const sluice_model *model,
                     const sluice_engine *engine) {
    struct sluice_facts facts;
    struct sluice_choice choice;
    struct sluice_memory memory;
    sluice_model_facts(model, &facts);
    sluice_engine_choice(engine, &choice);
    sluice_engine_memory(engine, &memory);
    const char *slash = strrchr(model->model->path, '/');
    char where[sizeof choice.device + 32];
    int threads = c->threads ? c->threads : cpu_count();
    if (engine->kind->uses_host_weights)
        snprintf(where, sizeof where, "%s, %d thread%s", choice.backend, threads,
                 threads == 1 ? "" : "s");
    else
        snprintf(where, sizeof where, "%s", choice.device);
    double millions = (double)facts.parameters / 1e6;
    bool has_billions = millions >= 999.5;
    say(SAY_NORMAL, "%s (%s, %.1f %c parameters); %s; context %u",
        slash && slash[1] ? slash + 1 : model->model->path, facts.architecture,
        has_billions ? millions / 1e3 : millions, has_billions ? 'B' : 'M', where, choice.context);
    say(SAY_ALL, "%s%s, %u sequence%s, kv %s; %s: weights %s, state %s, work %s", choice.backend,
        c->exact ? ", exact" : "", choice.sequences, choice.sequences == 1 ? "" : "s",
        choice.kv_type, human_bytes(memory.total), human_bytes(memory.weights + memory.packed),
        human_bytes(memory.state), human_bytes(memory.scratch + memory.io + memory.workspace));
    if (memory.disk)
        say(SAY_ALL, "%s of weights are on disk, read when they are needed",
            human_bytes(memory.disk));
}

int common_burst(sluice_engine *engine, uint32_t n, uint32_t *steps) {
    int status;
    do
        status = sluice_engine_burst(engine, n, steps);
    while (status == SLUICE_ERR_CANCELLED && !interrupt_asked());
    return status;
}

int common_work_off(sluice_engine *engine, const char *what, uint64_t tokens) {
    struct token_bar bar;
    uint64_t done = 0;
    int status = SLUICE_OK;
    token_bar_start(&bar, what, tokens);
    for (uint32_t rows = 1; !status && rows > 0 && !interrupt_asked();) {
        do
            status = sluice_engine_step(engine, &rows);
        while (status == SLUICE_ERR_CANCELLED && !interrupt_asked());
        token_bar_update(&bar, done += rows);
    }
    token_bar_end(&bar);
    if (interrupt_asked())
        return EXIT_INTERRUPTED;
    return status ? fail_engine(engine) : 0;
}

int common_encode_file(const sluice_model *model, const char *path, size_t window,
                       struct ids *out) {
    struct err err = {0};
    struct filemap map = {.fd = -1};
    if (!model->tokenizer)
        return complain(EXIT_WORLD, "%s", sluice_model_error(model));
    int status = filemap_read(&map, path, &err);
    if (!status)
        status = tokenizer_encode(model->tokenizer, (struct str){(const char *)map.data, map.size},
                                  0, out, &err);
    filemap_close(&map);
    if (status)
        return fail(&err);
    if (out->len < window)
        return complain(EXIT_WORLD, "%s: %zu tokens, expected at least a window of %zu (--window)",
                        path, out->len, window);
    return 0;
}

/* ---- measures ----------------------------------------------------------------------------- */

uint64_t common_step_bytes(const sluice_engine *engine, uint32_t rows, uint32_t depth) {
    const struct plan *plan = engine->plans[engine_plan_for(engine, rows, rows)];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        struct op_traffic t = op_traffic(&plan->ops[i], (struct op_use){rows, rows, depth});
        bytes += t.weights + t.state;
    }
    return bytes;
}

typedef uint64_t lanes __attribute__((vector_size(64)));

/* Ways to read: the best one differs from machine to machine. */
enum way { EIGHT_STREAMS, ONE_STREAM, ONE_STREAM_INTO_L2, WAYS };

struct sweep {
    const lanes *data;
    uint64_t sink;
    enum way way;
};

/* Eight streams side by side are faster than one on some machines (x86), slower on others: Neoverse
 * cores read one at 1.3 to 1.6 times the speed, and V1 is faster by a fifth again where lines are
 * fetched 12 KiB ahead into L2. The kernels use what is best for their machine. */
static void read_all(void *context, uint64_t begin, uint64_t end) {
    enum { STREAMS = 8, AHEAD = 16, FAR = 192 };
    struct sweep *s = context;
    const bool is_one = s->way != EIGHT_STREAMS;
    uint64_t n = (end - begin) / STREAMS, apart = is_one ? 1 : n, step = is_one ? STREAMS : 1;
    const lanes *at = s->data + begin;
    lanes sum[4] = {{0}};
    for (uint64_t i = 0; i < n; i++, at += step) {
        for (uint64_t k = 0; k < STREAMS; k++) {
            if (s->way == ONE_STREAM_INTO_L2)
                __builtin_prefetch(at + k * apart + FAR, 0, 2);
            else
                __builtin_prefetch(at + k * apart + AHEAD);
            sum[k % 4] ^= at[k * apart];
        }
    }
    sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
    __atomic_fetch_xor(&s->sink, sum[0][0] ^ sum[0][7], __ATOMIC_RELAXED);
}

/* GB/s that this many threads read from memory together; the best of some tries. */
static double measure_bandwidth(int threads) {
    enum { TRIES = 4 * WAYS, GRAIN = 1 << 16, HUGE_PAGE = 2 << 20 }; /* four megabytes a piece */
    uint64_t bytes = memory_available() > 4ull << 30 ? 1ull << 30 : 1ull << 28, n = bytes / 64;
    struct err err;
    struct pool *pool = NULL;
    struct sweep s = {.data = aligned_alloc(HUGE_PAGE, bytes)};
    double best = 0;
    if (s.data && pool_open(&pool, threads ? threads : cpu_count(), &err) == SLUICE_OK) {
        madvise((void *)s.data, bytes, MADV_HUGEPAGE); /* as packed weights are */
        memset((void *)s.data, 1, bytes);
        for (int i = 0; i < TRIES; i++) {
            double started = seconds_now();
            s.way = (enum way)(i % WAYS);
            pool_for(pool, n, GRAIN, read_all, &s);
            double rate = (double)bytes / 1e9 / (seconds_now() - started);
            best = rate > best ? rate : best;
        }
    }
    pool_close(pool);
    free((void *)s.data);
    return best;
}

double common_limit(const sluice_engine *engine, int threads) {
    double bytes = 0;
    struct err ignored;
    if (!engine->kind->bandwidth)
        return measure_bandwidth(threads);
    return engine->kind->bandwidth(engine->backend, &bytes, &ignored) ? 0 : bytes / 1e9;
}

double common_peak(const sluice_engine *engine) {
    double flops = 0;
    struct err ignored;
    return engine->kind->peak && !engine->kind->peak(engine->backend, &flops, &ignored)
               ? flops / 1e12
               : 0;
}
