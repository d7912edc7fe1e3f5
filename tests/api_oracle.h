/* api_oracle.h - random calls of the engine's API, checked against a simple model of sequences.
 *
 * Bytes choose the calls. The model knows what every sequence must show: its tokens, how many wait,
 * what it wants, the token sampled, its rows of logits. Tokens and logits are compared, bit for
 * bit, with those of a fresh sequence in another engine, which is only ever fed. Calls that must
 * fail are among them; after one of those everything is as before. Used by test_engine_api.c and by
 * fuzz/fuzz_api.c, which say what happens when something differs. */
#ifndef API_ORACLE_H
#define API_ORACLE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "sluice.h"

/* Notes that the engine and the model differ. */
static void oracle_differs(int line, const char *what);

#define SAME(cond) ((cond) ? (void)0 : oracle_differs(__LINE__, #cond))

enum {
    ORACLE_SEQS = 3,
    ORACLE_CONTEXT = 300, /* more than a page */
    ORACLE_STALE = 8,
    ORACLE_BIASES = 3,
};

/* What a sequence must show. */
struct oracle_seq {
    sluice_seq *seq; /* NULL: not open */
    int32_t tokens[ORACLE_CONTEXT];
    uint32_t n, waiting;
    unsigned wants;
    struct sluice_sampling sampling;
    struct sluice_bias biases[ORACLE_BIASES];
    int32_t token; /* sampled after the first n_sampled tokens; -1: none */
    uint32_t n_sampled;
    bool is_given;     /* by sluice_seq_next */
    bool is_rewound;   /* tokens fed next may spare it some that wait */
    uint32_t rows;     /* of logits; the last is after token n - waiting */
    sluice_seq *fresh; /* fed with these tokens and nothing else ... */
    int32_t fed[ORACLE_CONTEXT];
    uint32_t n_fed;
    int32_t fresh_token; /* ... sampled this after them ... */
    float *logits;       /* (context, n_logits) and gave these */
};

struct oracle {
    sluice_model *model;
    sluice_engine *engine, *other; /* the one tested; that of fresh sequences */
    struct sluice_facts facts;
    struct oracle_seq seqs[ORACLE_SEQS];
    sluice_seq *stale[ORACLE_STALE]; /* handles closed not long ago */
    uint32_t n_stale;
    char path[64]; /* for saved sequences */
    const uint8_t *bytes;
    size_t size, at;
};

/* ---- opening ------------------------------------------------------------------------------ */

static bool oracle_open(struct oracle *o, const char *path) {
    struct sluice_engine_options options = sluice_engine_options_default();
    memset(o, 0, sizeof *o);
    options.backend = "cpu";
    options.threads = 1;
    options.context = ORACLE_CONTEXT;
    options.sequences = ORACLE_SEQS;
    options.batch = 2;
    options.prefill = 24;
    options.all_outputs = 8;
    options.snapshot_every = 16;
    options.snapshot_bytes = 1 << 20; /* a few: some are replaced */
    if (sluice_model_open(&o->model, path) || sluice_engine_open(&o->engine, o->model, &options))
        return false;
    options.batch = ORACLE_SEQS;
    options.prefill = options.all_outputs = 64;
    options.snapshot_bytes = 0;
    if (sluice_engine_open(&o->other, o->model, &options))
        return false;
    sluice_model_facts(o->model, &o->facts);
    for (int i = 0; i < ORACLE_SEQS; i++)
        o->seqs[i].logits =
            malloc(ORACLE_CONTEXT * (size_t)o->facts.n_logits * sizeof *o->seqs[i].logits);
    snprintf(o->path, sizeof o->path, "/tmp/sluice-oracle-%ld.seq", (long)getpid());
    return true;
}

static void oracle_close(struct oracle *o) {
    sluice_engine_close(o->engine);
    sluice_engine_close(o->other);
    sluice_model_close(o->model);
    for (int i = 0; i < ORACLE_SEQS; i++)
        free(o->seqs[i].logits);
}

/* ---- chance ------------------------------------------------------------------------------- */

static uint32_t oracle_draw(struct oracle *o, uint32_t n) {
    uint32_t value = o->at < o->size ? o->bytes[o->at++] : 0;
    return value % n;
}

static struct oracle_seq *oracle_any(struct oracle *o) {
    return &o->seqs[oracle_draw(o, ORACLE_SEQS)];
}

static struct oracle_seq *oracle_free(struct oracle *o) {
    for (int i = 0; i < ORACLE_SEQS; i++)
        if (!o->seqs[i].seq)
            return &o->seqs[i];
    return NULL;
}

/* ---- fresh sequences ---------------------------------------------------------------------- */

static void fresh_feed(struct oracle *o, struct oracle_seq *s, uint32_t n) {
    uint32_t width = (uint32_t)o->facts.n_logits, done = s->n_fed;
    SAME(sluice_seq_feed(s->fresh, s->tokens + s->n_fed, n - s->n_fed) == SLUICE_OK);
    memcpy(s->fed + s->n_fed, s->tokens + s->n_fed, (n - s->n_fed) * sizeof *s->fed);
    for (uint32_t rows; done < n; done += rows) {
        const float *logits;
        SAME(sluice_engine_step(o->other, NULL) == SLUICE_OK);
        SAME(sluice_seq_logits(s->fresh, &logits, &rows) == SLUICE_OK && rows > 0);
        if (rows == 0)
            return;
        memcpy(s->logits + (size_t)done * width, logits, rows * width * sizeof *logits);
    }
    s->n_fed = n;
    s->fresh_token = sluice_seq_token(s->fresh);
}

/* Feeds a fresh sequence the first n tokens. The last of them is fed by itself, with the sampling
 * of now. */
static void fresh_follow(struct oracle *o, struct oracle_seq *s, uint32_t n, bool is_sampled) {
    bool is_beginning = s->fresh && s->n_fed <= n - is_sampled &&
                        memcmp(s->fed, s->tokens, s->n_fed * sizeof *s->fed) == 0;
    if (!is_beginning) {
        sluice_seq_close(s->fresh);
        SAME(sluice_seq_open(&s->fresh, o->other) == SLUICE_OK);
        s->n_fed = 0;
    }
    sluice_seq_want(s->fresh, SLUICE_WANT_TOKEN | SLUICE_WANT_ALL_LOGITS);
    if (n > s->n_fed + is_sampled)
        fresh_feed(o, s, n - is_sampled);
    if (!is_sampled)
        return;
    SAME(sluice_seq_set_sampling(s->fresh, &s->sampling) == SLUICE_OK);
    fresh_feed(o, s, n);
}

/* ---- what is seen ------------------------------------------------------------------------- */

static int32_t expected_token(const struct oracle_seq *s) {
    return s->waiting == 0 && s->n == s->n_sampled ? s->token : -1;
}

static void check_logits(struct oracle *o, struct oracle_seq *s) {
    const float *logits = NULL;
    uint32_t rows = 0, end = s->n - s->waiting;
    size_t width = (size_t)o->facts.n_logits;
    SAME(sluice_seq_logits(s->seq, &logits, &rows) == SLUICE_OK);
    SAME(rows == s->rows && (rows > 0) == (logits != NULL));
    if (rows == 0 || rows != s->rows)
        return;
    if (s->n_fed < end || memcmp(s->fed, s->tokens, end * sizeof *s->fed) != 0)
        fresh_follow(o, s, end, false);
    SAME(memcmp(logits, s->logits + (end - rows) * width, rows * width * sizeof *logits) == 0);
}

static void check_seq(struct oracle *o, struct oracle_seq *s) {
    const int32_t *tokens;
    uint32_t n, waiting;
    sluice_seq_tokens(s->seq, &tokens, &n, &waiting);
    SAME(n == s->n && waiting == s->waiting);
    SAME(n != s->n || memcmp(tokens, s->tokens, n * sizeof *tokens) == 0);
    SAME(sluice_seq_token(s->seq) == expected_token(s));
    check_logits(o, s);
}

static void oracle_check(struct oracle *o) {
    for (int i = 0; i < ORACLE_SEQS; i++)
        if (o->seqs[i].seq)
            check_seq(o, &o->seqs[i]);
    SAME(state_broken(&o->engine->state) == NULL);
}

/* ---- steps -------------------------------------------------------------------------------- */

/* What a sequence shows after steps that were not cancelled. */
static uint32_t follow_seq(struct oracle *o, struct oracle_seq *s, bool is_one_step) {
    uint32_t waiting, done;
    sluice_seq_tokens(s->seq, NULL, NULL, &waiting);
    SAME(waiting <= s->waiting);
    done = s->waiting - waiting;
    s->waiting = waiting;
    if (is_one_step)
        s->rows = s->wants & SLUICE_WANT_ALL_LOGITS ? done
                  : s->wants & SLUICE_WANT_LOGITS   ? done > 0 && waiting == 0
                                                    : 0;
    else
        sluice_seq_logits(s->seq, &(const float *){0}, &s->rows); /* their values are checked */
    if (done == 0)
        return 0;
    s->is_rewound = false;
    s->token = -1;
    s->n_sampled = s->n - waiting;
    s->is_given = false;
    if (waiting == 0 && s->wants & SLUICE_WANT_TOKEN) {
        fresh_follow(o, s, s->n, true);
        s->token = s->fresh_token;
    }
    return done;
}

static uint32_t follow_all(struct oracle *o, bool is_one_step) {
    uint32_t rows = 0;
    for (int i = 0; i < ORACLE_SEQS; i++)
        if (o->seqs[i].seq)
            rows += follow_seq(o, &o->seqs[i], is_one_step);
    return rows;
}

static void call_step(struct oracle *o) {
    uint32_t rows = 99;
    SAME(sluice_engine_step(o->engine, &rows) == SLUICE_OK);
    if (rows > 0) /* else there was no step, and logits stay */
        SAME(follow_all(o, true) == rows);
}

static void call_burst(struct oracle *o) {
    uint32_t steps = 99, n = oracle_draw(o, 5);
    int status = sluice_engine_burst(o->engine, n, &steps);
    SAME(status == (n ? SLUICE_OK : SLUICE_ERR_ARGUMENT));
    if (n && steps)
        SAME(steps == 1 && follow_all(o, true) > 0);
}

static void call_next(struct oracle *o, struct oracle_seq *s) {
    int32_t token = -77, last = expected_token(s);
    bool is_ready = last >= 0 && !s->is_given;
    bool can_feed = last >= 0 && s->n < ORACLE_CONTEXT;
    bool can = is_ready || ((s->wants & SLUICE_WANT_TOKEN) && (s->waiting || can_feed));
    int status = sluice_seq_next(s->seq, &token);
    SAME(status == (can ? SLUICE_OK : SLUICE_ERR_ARGUMENT));
    SAME((token == -77) == !can);
    if (!can || status)
        return;
    if (!is_ready) {
        if (!s->waiting) {
            s->tokens[s->n++] = last;
            s->waiting++;
        }
        follow_all(o, false);
    }
    s->is_given = true;
    SAME(token == expected_token(s));
}

/* ---- cancelling --------------------------------------------------------------------------- */

static void call_cancelled(struct oracle *o, struct oracle_seq *s) {
    int32_t token = -77;
    uint32_t n = 99;
    int status = SLUICE_OK;
    sluice_engine_cancel(o->engine);
    uint32_t how = oracle_draw(o, 3);
    if (how == 0) {
        status = sluice_engine_step(o->engine, &n);
    } else if (how == 1) {
        status = sluice_engine_burst(o->engine, 4, &n);
    } else {
        status = sluice_seq_next(s->seq, &token);
        if (status == SLUICE_ERR_ARGUMENT) /* it could not have run: the wish still stands */
            status = sluice_engine_step(o->engine, &n);
    }
    SAME(status == SLUICE_ERR_CANCELLED && token == -77 && (n == 99 || n == 0));
}

/* A backend whose step is always cut off: what it should have written is spoiled. */
static struct oracle *oracle_cutting;

static void spoil(struct sluice_engine *e, struct state_array p, uint32_t i) {
    uint8_t *junk = malloc(p.bytes ? p.bytes : 1);
    memset(junk, 0xFF, p.bytes);
    backend_cpu.write_state(e->backend, p.offset + i * p.bytes, p.bytes, junk, NULL);
    free(junk);
}

static int cut_wait(struct backend *b, struct err *err) {
    struct sluice_engine *e = oracle_cutting->engine;
    backend_cpu.wait(b, err);
    for (uint32_t i = 0; i < e->n_parts; i++) {
        const struct slot *s = &e->state.slots[e->parts[i].slot];
        const struct state_layout *l = &e->state.layout;
        for (uint32_t k = 0; k < l->n_recurrent; k++)
            spoil(e, l->recurrent[k], e->parts[i].slot);
        if (l->counts.bytes)
            spoil(e, l->counts, e->parts[i].slot);
        uint32_t n_before = (s->length + IO_PAGE_POSITIONS - 1) / IO_PAGE_POSITIONS;
        for (uint32_t p = n_before; p < s->n_pages; p++)
            for (uint32_t k = 0; k < l->n_paged; k++)
                spoil(e, l->paged[k], s->pages[p]);
    }
    atomic_store(&e->cancel, true);
    return err_set(err, SLUICE_ERR_CANCELLED, "cut off");
}

/* A step that is cut off in the middle. More tokens may wait than before; logits are gone. */
static void call_cut(struct oracle *o) {
    struct backend_kind cutting = backend_cpu;
    const struct backend_kind *kind = o->engine->kind;
    uint32_t rows = 99, n_waiting = 0;
    cutting.wait = cut_wait;
    oracle_cutting = o;
    for (int i = 0; i < ORACLE_SEQS; i++)
        n_waiting += o->seqs[i].seq ? o->seqs[i].waiting : 0;
    o->engine->kind = &cutting;
    int status = sluice_engine_step(o->engine, &rows);
    o->engine->kind = kind;
    SAME(rows == 0 && status == (n_waiting ? SLUICE_ERR_CANCELLED : SLUICE_OK));
    for (int i = 0; n_waiting && i < ORACLE_SEQS; i++) {
        struct oracle_seq *s = &o->seqs[i];
        uint32_t waiting;
        if (!s->seq)
            continue;
        s->rows = 0;
        sluice_seq_tokens(s->seq, NULL, NULL, &waiting);
        SAME(waiting >= s->waiting && (s->waiting || waiting == 0));
        s->waiting = waiting;
    }
}

/* ---- the life of sequences ---------------------------------------------------------------- */

static void begin_seq(struct oracle *o, struct oracle_seq *s, sluice_seq *seq) {
    for (int i = 0; i < ORACLE_STALE; i++)
        SAME(o->stale[i] != seq); /* a handle is not used again so soon */
    s->seq = seq;
    s->n = s->waiting = s->n_sampled = s->rows = 0;
    s->wants = SLUICE_WANT_TOKEN;
    s->sampling = sluice_sampling_default(o->model);
    s->token = -1;
    s->is_given = s->is_rewound = false;
}

static void copy_seq(struct oracle_seq *to, const struct oracle_seq *from) {
    memcpy(to->tokens, from->tokens, sizeof to->tokens);
    to->n = from->n;
    to->waiting = from->waiting;
    to->token = from->token;
    to->n_sampled = from->n_sampled;
    to->is_given = from->is_given;
    to->is_rewound = from->is_rewound;
}

static void call_open(struct oracle *o) {
    struct oracle_seq *s = oracle_free(o);
    sluice_seq *seq = o->stale[0];
    int status = sluice_seq_open(&seq, o->engine);
    SAME(status == (s ? SLUICE_OK : SLUICE_ERR_ARGUMENT) && (seq != NULL) == !status);
    if (s && !status)
        begin_seq(o, s, seq);
}

static void call_close(struct oracle *o, struct oracle_seq *s) {
    sluice_seq_close(s->seq);
    sluice_seq_close(s->seq); /* no harm */
    o->stale[o->n_stale++ % ORACLE_STALE] = s->seq;
    s->seq = NULL;
}

static void call_fork(struct oracle *o, struct oracle_seq *s) {
    struct oracle_seq *to = oracle_free(o);
    sluice_seq *seq = s->seq;
    int status = sluice_seq_fork(&seq, s->seq);
    SAME(status == (to ? SLUICE_OK : SLUICE_ERR_ARGUMENT) && (seq != NULL) == !status);
    if (!to || status)
        return;
    begin_seq(o, to, seq);
    copy_seq(to, s);
    to->wants = s->wants;
    to->sampling = s->sampling;
    memcpy(to->biases, s->biases, sizeof to->biases);
    to->sampling.biases = to->biases;
}

static void call_save_and_load(struct oracle *o, struct oracle_seq *s) {
    struct oracle_seq *to = oracle_free(o);
    sluice_seq *seq = s->seq;
    SAME(sluice_seq_save(s->seq, "/nowhere/at/all") == SLUICE_ERR_IO);
    SAME(sluice_seq_load(&seq, o->engine, "/nowhere/at/all") == SLUICE_ERR_IO && !seq);
    SAME(sluice_seq_save(s->seq, o->path) == SLUICE_OK);
    int status = sluice_seq_load(&seq, o->engine, o->path);
    unlink(o->path);
    SAME(status == (to ? SLUICE_OK : SLUICE_ERR_ARGUMENT) && (seq != NULL) == !status);
    if (!to || status)
        return;
    begin_seq(o, to, seq);
    copy_seq(to, s);
    to->token = expected_token(s);
    to->n_sampled = to->n;
    to->is_rewound = false;
}

static void call_rewind(struct oracle *o, struct oracle_seq *s) {
    uint32_t how = oracle_draw(o, 4), some = oracle_draw(o, 256);
    uint32_t n = how == 0 ? some : how == 1 ? s->n - s->waiting : s->n - s->n * (some % 17) / 64;
    int status = sluice_seq_rewind(s->seq, n);
    SAME(status == (n <= s->n ? SLUICE_OK : SLUICE_ERR_ARGUMENT));
    if (status || n >= s->n)
        return;
    uint32_t held = s->n - s->waiting;
    bool has_token = n == held && n == s->n_sampled && s->token >= 0;
    uint32_t least = n >= held + 1 ? n - held : n > 0 && !has_token;
    s->n = n;
    s->rows = 0;
    s->is_given = false;
    s->is_rewound = true;
    if (n < s->n_sampled)
        s->token = -1;
    sluice_seq_tokens(s->seq, NULL, NULL, &s->waiting);
    SAME(s->waiting <= n && s->waiting >= least);
    SAME(o->engine->state.layout.n_recurrent || s->waiting == least);
}

/* ---- tokens and settings ------------------------------------------------------------------ */

static void call_feed(struct oracle *o, struct oracle_seq *s) {
    int32_t tokens[ORACLE_CONTEXT] = {0};
    uint32_t n = oracle_draw(o, 24) ? oracle_draw(o, 12) : oracle_draw(o, 256), step = 1 + n;
    uint32_t wrong = oracle_draw(o, 8), waiting;
    bool resumes = oracle_draw(o, 3) == 0;
    struct sluice_reuse reuse = {0};
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)((wrong * 37 + i * step) % (uint32_t)o->facts.n_logits);
    if (wrong == 7 && n)
        tokens[n - 1] = n % 2 ? -1 : o->facts.n_logits;
    int status =
        resumes ? sluice_seq_resume(s->seq, tokens, n, &reuse) : sluice_seq_feed(s->seq, tokens, n);
    bool can = n <= ORACLE_CONTEXT - s->n && !(wrong == 7 && n);
    SAME(status == (can ? SLUICE_OK : SLUICE_ERR_ARGUMENT));
    SAME(sluice_seq_feed(s->seq, NULL, 1) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_feed(s->seq, tokens, SIZE_MAX) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_resume(s->seq, tokens, SIZE_MAX, NULL) == SLUICE_ERR_ARGUMENT);
    if (status)
        return;
    memcpy(s->tokens + s->n, tokens, n * sizeof *tokens);
    s->n += n;
    s->waiting += n;
    sluice_seq_tokens(s->seq, NULL, NULL, &waiting);
    SAME(waiting <= s->waiting && (waiting > 0 || s->waiting == 0));
    SAME(waiting == s->waiting || resumes || (s->is_rewound && n > 0));
    SAME(!resumes || reuse.tokens == s->waiting - waiting);
    if (waiting < s->waiting)
        s->rows = 0;
    s->waiting = waiting;
}

/* What it does shows only in what is reused later. */
static void call_mark(struct oracle *o, struct oracle_seq *s) {
    uint32_t n = oracle_draw(o, 2) ? s->n - s->n * oracle_draw(o, 9) / 16 : oracle_draw(o, 256);
    int status = sluice_seq_mark(s->seq, n);
    SAME((n >= s->n - s->waiting && n <= s->n) || status == SLUICE_ERR_ARGUMENT);
    SAME(!status || status == SLUICE_ERR_ARGUMENT);
}

static void call_want(struct oracle *o, struct oracle_seq *s) {
    unsigned wants = oracle_draw(o, 10);
    int status = sluice_seq_want(s->seq, wants);
    SAME(status == (wants < 8 ? SLUICE_OK : SLUICE_ERR_ARGUMENT));
    if (!status)
        s->wants = wants;
}

static void call_sampling(struct oracle *o, struct oracle_seq *s) {
    static const float temperatures[] = {0, 1e-6f, 0.7f, 100, 1e-38f, -1, NAN, INFINITY};
    static const float biases[] = {0, 5, -INFINITY, -1e9f, 1e9f, INFINITY, NAN, 3e38f};
    uint32_t hot = oracle_draw(o, 8), biased = oracle_draw(o, 8), n = oracle_draw(o, 4);
    struct sluice_bias list[ORACLE_BIASES];
    struct sluice_sampling sampling = {
        .temperature = temperatures[hot],
        .top_k = oracle_draw(o, 3) * 5,
        .top_p = (float)(1 + oracle_draw(o, 2)) / 2,
        .repeat_penalty = 1 + (float)oracle_draw(o, 2) / 4,
        .frequency_penalty = (float)oracle_draw(o, 3),
        .seed = oracle_draw(o, 256),
        .biases = n == 3 && biased == 0 ? NULL : list,
        .n_biases = n,
    };
    for (uint32_t i = 0; i < n; i++)
        list[i] = (struct sluice_bias){(int32_t)(i * 7), biases[biased]};
    bool can = hot < 4 && (n == 0 || (biased < 5 && sampling.biases));
    int status = sluice_seq_set_sampling(s->seq, &sampling);
    SAME(status == (can ? SLUICE_OK : SLUICE_ERR_ARGUMENT));
    if (status)
        return;
    s->sampling = sampling;
    memcpy(s->biases, list, sizeof s->biases);
    s->sampling.biases = s->biases;
}

/* ---- handles that are none ---------------------------------------------------------------- */

static void call_bad(struct oracle *o, sluice_seq *seq) {
    struct sluice_sampling sampling = sluice_sampling_default(o->model);
    sluice_seq *out = seq;
    int32_t token = 3;
    const int32_t *tokens = &token;
    uint32_t n = 9, waiting = 9;
    const float *at;
    SAME(sluice_seq_feed(seq, &token, 1) == SLUICE_ERR_ARGUMENT);
    SAME(!seq || strstr(sluice_engine_error(o->engine), "closed"));
    SAME(sluice_seq_next(seq, &token) == SLUICE_ERR_ARGUMENT && token == 3);
    SAME(sluice_seq_want(seq, 1) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_resume(seq, tokens, 1, NULL) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_mark(seq, 0) == SLUICE_ERR_ARGUMENT);
    SAME(!sluice_seq_is_starved(seq));
    SAME(sluice_seq_set_sampling(seq, &sampling) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_rewind(seq, 0) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_fork(&out, seq) == SLUICE_ERR_ARGUMENT && !out);
    SAME(sluice_seq_save(seq, o->path) == SLUICE_ERR_ARGUMENT && access(o->path, F_OK) != 0);
    SAME(sluice_seq_logits(seq, &at, &n) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_token(seq) == -1);
    sluice_seq_tokens(seq, &tokens, &n, &waiting);
    SAME(!tokens && n == 0 && waiting == 0);
    sluice_seq_close(seq);
}

static void call_stale(struct oracle *o) {
    call_bad(o, o->stale[oracle_draw(o, ORACLE_STALE)]); /* or NULL */
}

static void call_null(struct oracle *o, struct oracle_seq *s) {
    sluice_seq *out;
    SAME(sluice_seq_next(s->seq, NULL) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_logits(s->seq, NULL, NULL) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_set_sampling(s->seq, NULL) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_fork(NULL, s->seq) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_save(s->seq, NULL) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_load(NULL, o->engine, o->path) == SLUICE_ERR_ARGUMENT);
    SAME(sluice_seq_load(&out, o->engine, NULL) == SLUICE_ERR_ARGUMENT && !out);
    SAME(sluice_seq_open(NULL, o->engine) == SLUICE_ERR_ARGUMENT);
    sluice_seq_tokens(s->seq, NULL, NULL, NULL);
}

/* ---- a run -------------------------------------------------------------------------------- */

static void call_on_engine(struct oracle *o, uint32_t which) {
    switch (which) {
    case 0:
        call_burst(o);
        break;
    case 1:
        call_cut(o);
        break;
    case 2:
        call_stale(o);
        break;
    case 3:
        call_open(o);
        break;
    default:
        call_step(o);
    }
}

static void call_on_seq(struct oracle *o, uint32_t which, struct oracle_seq *s) {
    static void (*const calls[])(struct oracle *, struct oracle_seq *) = {
        call_feed,     call_feed,          call_feed,     call_next,      call_next,
        call_next,     call_want,          call_sampling, call_fork,      call_rewind,
        call_null,     call_save_and_load, call_next,     call_cancelled, call_feed,
        call_sampling, call_want,          call_close,    call_mark,
    };
    calls[which % (sizeof calls / sizeof *calls)](o, s);
}

/* Runs the calls that the bytes mean, then closes all sequences. */
static void oracle_run(struct oracle *o, const uint8_t *bytes, size_t size) {
    o->bytes = bytes;
    o->size = size;
    o->at = 0;
    while (o->at < o->size) {
        uint32_t which = oracle_draw(o, 28);
        struct oracle_seq *s = oracle_any(o);
        if (which < 9)
            call_on_engine(o, which);
        else if (s->seq)
            call_on_seq(o, which - 9, s);
        else
            call_open(o);
        oracle_check(o);
    }
    for (int i = 0; i < ORACLE_SEQS; i++) {
        sluice_seq_close(o->seqs[i].seq);
        sluice_seq_close(o->seqs[i].fresh);
        o->seqs[i].seq = o->seqs[i].fresh = NULL;
    }
    SAME(pages_available(&o->engine->state.pages) == o->engine->state.pages.n);
    memset(o->stale, 0, sizeof o->stale);
}

#endif
