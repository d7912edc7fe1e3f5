/* conversations.h - conversations as clients have them, in random schedules, each answer checked
 * against a cold run.
 *
 * Prompts are made as agents make them: a shared system prompt, a longer history, a token changed
 * near the end, a part of an answer taken out, a branch from the middle. Several answers run
 * beside each other in an engine with too few pages and too few snapshots; they are forked,
 * rewound, cancelled, cut off, preempted; what comes next is drafted, rightly and wrongly. Whatever
 * happened, every token, and the logits that the
 * last one was sampled from, bit for bit, are those of a sequence that was alone in another engine
 * and read everything itself. Used on the CPU by test_conversations.c and on a device by
 * rig/test_device_conversations.c. */
#ifndef TESTS_CONVERSATIONS_H
#define TESTS_CONVERSATIONS_H

#include "base/size.h"
#include "engine/engine.h"
#include "sluice.h"
#include "test.h"

enum {
    TALK_CONTEXT = 1000,
    TALK_SEQS = 4,
    TALK_KNOWN = 10,
    TALK_NEW = 24,
    TALK_SYSTEM = 290,
    TALK_DRAFTS = 3
};

struct talk_tokens {
    int32_t at[TALK_CONTEXT];
    uint32_t n;
};

struct talk_answer {
    bool is_there, is_over;
    sluice_seq *seq;           /* NULL: it waits */
    struct talk_tokens tokens; /* prompt and answer so far */
    uint32_t n_prompt, wanted;
    uint64_t seed, born;
    struct talk_tokens expected; /* what a cold run gives, and the logits of its last token, */
    float *logits;
    struct talk_tokens drafts; /* and what the model's block drafts after it, if it has one */
};

struct talks {
    sluice_model *model;
    sluice_engine *engine, *cold;
    struct sluice_facts facts;
    uint64_t random, born;
    struct talk_tokens known[TALK_KNOWN]; /* what earlier conversations came to */
    uint32_t n_known;
    struct talk_answer answers[TALK_SEQS];
    /* Counted. */
    uint32_t n_done, n_forked, n_rewound, n_cancelled, n_cut, n_preempted, n_restarted;
    uint64_t n_read, n_reused, n_host, n_disk, n_block_drafts;
    struct sluice_counters counters;      /* of all engines, of which a restart makes another */
    struct sluice_engine_options options; /* of the engine */
};

static uint32_t talk_draw(struct talks *t, uint32_t n) {
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((t->random >> 33) % n);
}

/* ---- prompts ------------------------------------------------------------------------------ */

static void talk_add(struct talks *t, struct talk_tokens *to, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n && to->n < TALK_CONTEXT - TALK_NEW - 1; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        to->at[to->n++] = (int32_t)((seed >> 33) % (uint64_t)t->facts.n_tokens);
    }
}

static void talk_take_out(struct talk_tokens *p, uint32_t from, uint32_t n) {
    memmove(p->at + from, p->at + from + n, (p->n - from - n) * sizeof *p->at);
    p->n -= n;
}

static void talk_prompt(struct talks *t, struct talk_tokens *p) {
    uint32_t how = t->n_known ? talk_draw(t, 6) : 0;
    p->n = 0;
    if (how > 0)
        *p = t->known[talk_draw(t, t->n_known)];
    if (p->n > TALK_CONTEXT - 200)
        p->n = 1 + talk_draw(t, p->n);
    if (how == 0)
        talk_add(t, p, TALK_SYSTEM, talk_draw(t, 2)); /* one of two system prompts */
    else if (how == 1 && p->n > 50)                   /* the time is another now */
        p->at[p->n - 1 - talk_draw(t, 40)] = (int32_t)talk_draw(t, (uint32_t)t->facts.n_tokens);
    else if (how == 2 && p->n > 50) /* what it thought is not sent again */
        talk_take_out(p, p->n - 20 - talk_draw(t, 20), 1 + talk_draw(t, 15));
    else if (how == 3) /* a branch */
        p->n = 1 + talk_draw(t, p->n);
    talk_add(t, p, 1 + talk_draw(t, talk_draw(t, 4) ? 40 : 400), t->random);
}

/* ---- answers ------------------------------------------------------------------------------ */

static void talk_fail(struct talks *t, int line) {
    test_fail(__FILE__, line, "%s", sluice_engine_error(t->engine));
}
#define TALK_OK(t, call) ((call) == SLUICE_OK ? (void)0 : talk_fail(t, __LINE__))

static struct sluice_sampling talk_sampling(const struct talk_answer *a) {
    return (struct sluice_sampling){.temperature = 1,
                                    .top_p = 1,
                                    .repeat_penalty = 1.1f,
                                    .frequency_penalty = 0.1f,
                                    .seed = a->seed};
}

/* Logits with the last token. */
static unsigned talk_wants(const struct talk_answer *a) {
    return a->tokens.n + 1 == a->n_prompt + a->wanted ? SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS
                                                      : SLUICE_WANT_TOKEN;
}

/* What the block drafts after a sequence's last token, which is fed for that: none where pages are
 * lacking. */
static void talk_block_drafts(struct talks *t, sluice_engine *e, sluice_seq *seq, int32_t token,
                              struct talk_tokens *to) {
    const int32_t *drafts;
    to->n = 0;
    if (!t->facts.has_draft_block || sluice_seq_feed(seq, &token, 1))
        return;
    EXPECT_INT(sluice_engine_draft(e, &seq, 1, TALK_DRAFTS), SLUICE_OK);
    sluice_seq_drafts(seq, &drafts, &to->n);
    if (to->n)
        memcpy(to->at, drafts, to->n * sizeof *drafts);
}

static void talk_start(struct talks *t, struct talk_answer *a) {
    struct sluice_sampling s = talk_sampling(a);
    struct sluice_reuse reuse;
    uint32_t n = a->tokens.n, waiting;
    bool is_ready = false;
    t->engine->state.cache.lower.min_fetch = 0;
    for (uint32_t i = talk_draw(t, 4); !is_ready && i > 0; i--) /* ready or not */
        TALK_OK(t, sluice_engine_fetch(t->engine, a->tokens.at, n, &is_ready));
    TALK_OK(t, sluice_seq_open(&a->seq, t->engine));
    TALK_OK(t, sluice_seq_set_sampling(a->seq, &s));
    TALK_OK(t, sluice_seq_resume(a->seq, a->tokens.at, n, &reuse));
    sluice_seq_tokens(a->seq, NULL, NULL, &waiting);
    EXPECT(waiting == n - reuse.tokens && waiting > 0 && reuse.matched >= reuse.tokens);
    EXPECT((reuse.why[0] == 0) == (waiting == 1));
    for (uint32_t i = talk_draw(t, 3); i > 0; i--)
        TALK_OK(t, sluice_seq_mark(a->seq, n - talk_draw(t, waiting)));
    t->n_read += n;
    EXPECT_INT(reuse.device + reuse.host + reuse.disk, reuse.tokens);
    t->n_reused += reuse.tokens;
    t->n_host += reuse.host;
    t->n_disk += reuse.disk;
}

/* What a sequence that is alone and reads everything makes of it. */
static void talk_expect(struct talks *t, struct talk_answer *a) {
    struct sluice_sampling s = talk_sampling(a);
    sluice_seq *seq = NULL;
    const float *logits = NULL;
    uint32_t rows = 0;
    a->expected = a->tokens;
    EXPECT_INT(sluice_seq_open(&seq, t->cold), SLUICE_OK);
    EXPECT_INT(sluice_seq_set_sampling(seq, &s), SLUICE_OK);
    EXPECT_INT(sluice_seq_want(seq, SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(seq, a->tokens.at, a->n_prompt), SLUICE_OK);
    for (uint32_t i = 0; i < a->wanted; i++)
        EXPECT_INT(sluice_seq_next(seq, &a->expected.at[a->expected.n++]), SLUICE_OK);
    EXPECT_INT(sluice_seq_logits(seq, &logits, &rows), SLUICE_OK);
    EXPECT_INT(rows, 1);
    if (rows == 1)
        memcpy(a->logits, logits, (size_t)t->facts.n_logits * sizeof *logits);
    talk_block_drafts(t, t->cold, seq, a->expected.at[a->expected.n - 1], &a->drafts);
    sluice_seq_close(seq);
}

static void talk_begin(struct talks *t, struct talk_answer *a) {
    a->is_there = true;
    talk_prompt(t, &a->tokens);
    a->n_prompt = a->tokens.n;
    a->wanted = 1 + talk_draw(t, TALK_NEW);
    a->seed = talk_draw(t, 1000);
    a->born = ++t->born;
    talk_expect(t, a);
}

static void talk_check(struct talks *t, const struct talk_answer *a, const float *logits) {
    uint32_t i = 0;
    while (i < a->tokens.n && a->tokens.at[i] == a->expected.at[i])
        i++;
    if (i < a->tokens.n)
        test_fail(__FILE__, __LINE__, "answer %llu: token %u is %d, a cold run gives %d",
                  (unsigned long long)a->born, i, a->tokens.at[i], a->expected.at[i]);
    else if (memcmp(logits, a->logits, (size_t)t->facts.n_logits * sizeof *logits) != 0)
        test_fail(__FILE__, __LINE__, "answer %llu: other logits than in a cold run",
                  (unsigned long long)a->born);
}

static void talk_end(struct talks *t, struct talk_answer *a) {
    const float *logits;
    uint32_t rows;
    TALK_OK(t, sluice_seq_logits(a->seq, &logits, &rows));
    EXPECT_INT(rows, 1);
    EXPECT_INT(a->tokens.n, a->expected.n);
    if (rows == 1)
        talk_check(t, a, logits);
    a->is_over = true;
}

/* After all logits of the step were looked at. */
static void talk_leave(struct talks *t, struct talk_answer *a) {
    struct talk_tokens drafts;
    talk_block_drafts(t, t->engine, a->seq, a->tokens.at[a->tokens.n - 1], &drafts);
    if (drafts.n && (drafts.n != a->drafts.n ||
                     memcmp(drafts.at, a->drafts.at, drafts.n * sizeof *drafts.at) != 0))
        test_fail(__FILE__, __LINE__, "answer %llu: the block drafts otherwise than in a cold run",
                  (unsigned long long)a->born);
    t->n_block_drafts += drafts.n;
    sluice_seq_close(a->seq);
    a->seq = NULL;
    a->is_there = a->is_over = false;
    t->known[t->n_known < TALK_KNOWN ? t->n_known++ : talk_draw(t, TALK_KNOWN)] = a->tokens;
    t->n_done++;
}

/* What a step or a burst brought. */
static void talk_collect(struct talks *t, struct talk_answer *a) {
    const int32_t *tokens;
    uint32_t n;
    int32_t token = sluice_seq_token(a->seq);
    if (token < 0)
        return;
    sluice_seq_tokens(a->seq, &tokens, &n, NULL);
    memcpy(a->tokens.at, tokens, n * sizeof *tokens);
    a->tokens.n = n;
    uint32_t last = a->n_prompt + a->wanted - 1; /* the answer's last token stands there */
    if (n >= last && a->seq->wants == SLUICE_WANT_TOKEN) {
        /* A burst came to it without its logits: it is sampled again. */
        a->tokens.n = last;
        TALK_OK(t, sluice_seq_rewind(a->seq, last - 1));
        TALK_OK(t, sluice_seq_feed(a->seq, &a->tokens.at[last - 1], 1));
        return;
    }
    a->tokens.at[a->tokens.n++] = token;
    if (n == last)
        talk_end(t, a);
    else
        TALK_OK(t, sluice_seq_feed(a->seq, &token, 1));
}

/* ---- what happens to them ----------------------------------------------------------------- */

static void talk_fork(struct talks *t, struct talk_answer *from) {
    struct talk_answer *to = t->answers;
    while (to < t->answers + TALK_SEQS && to->is_there)
        to++;
    if (to == t->answers + TALK_SEQS)
        return;
    float *logits = to->logits;
    *to = *from;
    to->logits = logits;
    memcpy(logits, from->logits, (size_t)t->facts.n_logits * sizeof *logits);
    to->born = ++t->born;
    TALK_OK(t, sluice_seq_fork(&to->seq, from->seq));
    t->n_forked++;
}

static void talk_rewind(struct talks *t, struct talk_answer *a) {
    if (a->tokens.n <= a->n_prompt)
        return;
    a->tokens.n = a->n_prompt + talk_draw(t, a->tokens.n - a->n_prompt);
    TALK_OK(t, sluice_seq_rewind(a->seq, a->tokens.n));
    t->n_rewound++;
}

static void talk_preempt(struct talks *t, struct talk_answer *a) {
    sluice_seq_close(a->seq);
    a->seq = NULL;
    t->n_preempted++;
}

/* None can go on: the youngest waits, or the only one ends. */
static void talk_make_room(struct talks *t) {
    struct talk_answer *youngest = NULL;
    uint32_t n = 0;
    for (struct talk_answer *a = t->answers; a < t->answers + TALK_SEQS; a++) {
        n += a->seq != NULL;
        if (a->seq && (!youngest || a->born > youngest->born))
            youngest = a;
    }
    talk_preempt(t, youngest);
    youngest->is_there = n > 1;
}

static struct talks *talk_cutting;

static int talk_cut_wait(struct backend *b, struct err *err) {
    struct sluice_engine *e = talk_cutting->engine;
    backend_cpu.wait(b, err);
    for (uint32_t i = 0; i < e->n_parts; i++)
        for (uint32_t k = 0; k < e->state.layout.n_recurrent; k++) {
            struct state_array p = e->state.layout.recurrent[k];
            uint32_t cell = e->state.slots[e->parts[i].slot].cell;
            const struct backend_copy lost = {p.offset + cell * p.bytes, BACKEND_ZEROS, p.bytes};
            backend_cpu.copy_state(b, &lost, 1, err);
        }
    atomic_store(&e->cancel, true);
    return err_set(err, SLUICE_ERR_CANCELLED, "cut off");
}

/* A step of the CPU that is cut off in the middle: its recurrent states are lost. */
static void talk_cut(struct talks *t) {
    struct backend_kind cutting = backend_cpu;
    const struct backend_kind *kind = t->engine->kind;
    if (kind != &backend_cpu)
        return;
    cutting.wait = talk_cut_wait;
    talk_cutting = t;
    t->engine->kind = &cutting;
    sluice_engine_step(t->engine, NULL);
    t->engine->kind = kind;
    t->n_cut++;
}

/* What a cold run gave, with a wrong token somewhere at times; nothing beyond the step whose logits
 * are looked at. */
static void talk_draft(struct talks *t, struct talk_answer *a) {
    int32_t guess[16];
    uint32_t n = min_u32(talk_draw(t, 12), a->expected.n - 1 - a->tokens.n);
    memcpy(guess, a->expected.at + a->tokens.n, n * sizeof *guess);
    if (n && talk_draw(t, 3) == 0)
        guess[talk_draw(t, n)] = (int32_t)talk_draw(t, (uint32_t)t->facts.n_tokens);
    TALK_OK(t, sluice_seq_draft(a->seq, guess, n));
}

/* The block drafts for some; they are wrong here nearly always. */
static void talk_draft_by_block(struct talks *t) {
    sluice_seq *seqs[TALK_SEQS];
    uint32_t n = 0;
    for (struct talk_answer *a = t->answers; a < t->answers + TALK_SEQS; a++)
        if (a->seq && talk_draw(t, 2) && a->tokens.n + TALK_DRAFTS < a->expected.n)
            seqs[n++] = a->seq;
    if (t->facts.has_draft_block)
        TALK_OK(t, sluice_engine_draft(t->engine, seqs, n, 1 + talk_draw(t, TALK_DRAFTS)));
}

static void talk_step(struct talks *t) {
    for (struct talk_answer *a = t->answers; a < t->answers + TALK_SEQS; a++)
        if (a->seq) {
            TALK_OK(t, sluice_seq_want(a->seq, talk_wants(a)));
            if (talk_draw(t, 2))
                talk_draft(t, a);
        }
    if (talk_draw(t, 4) == 0)
        talk_draft_by_block(t);
    if (talk_draw(t, 30) == 0) {
        sluice_engine_cancel(t->engine);
        t->n_cancelled++;
    } else if (talk_draw(t, 20) == 0) {
        talk_cut(t);
    }
    int status = talk_draw(t, 2) ? sluice_engine_step(t->engine, NULL)
                                 : sluice_engine_burst(t->engine, 8, NULL);
    if (status == SLUICE_ERR_MEMORY)
        talk_make_room(t);
    else if (status && status != SLUICE_ERR_CANCELLED)
        talk_fail(t, __LINE__);
    for (struct talk_answer *a = t->answers; !status && a < t->answers + TALK_SEQS; a++)
        if (a->seq)
            talk_collect(t, a);
    for (struct talk_answer *a = t->answers; a < t->answers + TALK_SEQS; a++)
        if (a->is_over)
            talk_leave(t, a);
}

/* The engine is closed and opened again; what it knew is in its folder. */
static void talk_add_counters(struct talks *t) {
    struct sluice_counters c;
    sluice_engine_counters(t->engine, &c);
    t->counters.snapshots_taken += c.snapshots_taken;
    t->counters.snapshots_used += c.snapshots_used;
    t->counters.evicted += c.evicted;
    t->counters.drafted += c.drafted;
    t->counters.drafts_kept += c.drafts_kept;
}

static void talk_restart(struct talks *t) {
    for (struct talk_answer *a = t->answers; a < t->answers + TALK_SEQS; a++)
        if (a->seq && talk_draw(t, 2))
            talk_preempt(t, a);
    talk_add_counters(t);
    sluice_engine_close(t->engine);
    for (struct talk_answer *a = t->answers; a < t->answers + TALK_SEQS; a++)
        a->seq = NULL;
    TALK_OK(t, sluice_engine_open(&t->engine, t->model, &t->options));
    t->n_restarted++;
}

static void talk_round(struct talks *t) {
    struct talk_answer *a = &t->answers[talk_draw(t, TALK_SEQS)];
    uint32_t event = talk_draw(t, 40);
    if (t->options.cache_dir && talk_draw(t, 25) == 0)
        talk_restart(t);
    if (!a->is_there)
        talk_begin(t, a);
    if (!a->seq)
        talk_start(t, a);
    else if (event == 0)
        talk_fork(t, a);
    else if (event == 1)
        talk_rewind(t, a);
    else if (event == 2)
        talk_preempt(t, a);
    talk_step(t);
    const char *broken = state_broken(&t->engine->state);
    if (broken)
        test_fail(__FILE__, __LINE__, "%s", broken);
}

/* ---- a run -------------------------------------------------------------------------------- */

/* Pages and snapshots that the engine gets, and how wide its steps are. */
struct talk_setup {
    const char *path, *backend;
    uint32_t pages, snapshots, every, prefill, threads, drafts;
    uint32_t host; /* pages' and cells' worth of host memory */
    const char
        *folder; /* and folder below it; NULL: none. Then the engine is opened again at times */
    uint64_t seed;
};

static uint64_t talk_page_bytes(sluice_model *model, const char *backend, uint64_t *cell) {
    struct sluice_engine_options o = sluice_engine_options_default();
    struct sluice_engine *e = NULL;
    struct err err = {0};
    o.backend = backend;
    o.context = 256;
    EXPECT_INT(engine_prepare(&e, model, &o, false, &err), SLUICE_OK);
    uint64_t bytes = e->state.layout.page_bytes;
    *cell = e->state.layout.recurrent_bytes;
    engine_close(e);
    return bytes;
}

static bool talk_open(struct talks *t, const struct talk_setup *setup) {
    struct sluice_engine_options o = sluice_engine_options_default();
    uint64_t cell;
    memset(t, 0, sizeof *t);
    t->random = setup->seed;
    if (sluice_model_open(&t->model, setup->path)) {
        test_fail(__FILE__, __LINE__, "%s", sluice_model_error(t->model));
        return false;
    }
    sluice_model_facts(t->model, &t->facts);
    o.backend = setup->backend;
    o.context = TALK_CONTEXT;
    o.threads = 1;
    o.snapshot_bytes = 0;
    o.drafts = o.block_drafts = TALK_DRAFTS;
    bool is_open = sluice_engine_open(&t->cold, t->model, &o) == SLUICE_OK;
    o.threads = (int)setup->threads;
    o.sequences = o.batch = TALK_SEQS;
    o.prefill = setup->prefill;
    o.drafts = setup->drafts;
    o.kv_bytes = setup->pages * talk_page_bytes(t->model, setup->backend, &cell);
    o.snapshot_bytes = setup->snapshots * cell;
    o.snapshot_every = setup->every;
    o.cache_bytes = setup->host * (o.kv_bytes / setup->pages + cell);
    o.cache_dir = setup->folder;
    o.cache_dir_bytes = 1 << 30;
    t->options = o;
    is_open = is_open && sluice_engine_open(&t->engine, t->model, &o) == SLUICE_OK;
    for (int i = 0; i < TALK_SEQS; i++)
        t->answers[i].logits = calloc((size_t)t->facts.n_logits, sizeof(float));
    if (!is_open)
        test_fail(__FILE__, __LINE__, "%s%s", sluice_engine_error(t->cold),
                  sluice_engine_error(t->engine));
    return is_open;
}

static void talk_close(struct talks *t) {
    for (int i = 0; i < TALK_SEQS; i++) {
        sluice_seq_close(t->answers[i].seq);
        free(t->answers[i].logits);
    }
    if (t->engine)
        EXPECT_INT(pages_available(&t->engine->state.pages), t->engine->state.pages.n);
    sluice_engine_close(t->engine);
    sluice_engine_close(t->cold);
    sluice_model_close(t->model);
}

/* This many answers, or as many as the seconds allow. */
static void talk_run(const struct talk_setup *setup, uint32_t n_answers) {
    struct talks *t = malloc(sizeof *t);
    if (talk_open(t, setup)) {
        const struct sluice_counters *c = &t->counters;
        for (uint64_t round = 0; t->n_done < n_answers && round < 100000 && !test_has_failed();
             round++)
            talk_round(t);
        talk_add_counters(t);
        EXPECT(t->n_reused > 0 && (test_has_failed() || t->n_done >= n_answers));
        bool is_small = 2 * n_answers < 5 * setup->pages; /* all may fit above */
        EXPECT(!setup->host || is_small || t->n_host + t->n_disk > 0);
        EXPECT(test_has_failed() || !t->facts.has_draft_block || t->n_block_drafts > 0);
        EXPECT(test_has_failed() || (c->drafts_kept > 0 && c->drafted > c->drafts_kept));
        test_note(
            "%u answers: %u%% of %llu tokens reused; %u forked, %u rewound, %u cancelled, "
            "%u cut, %u preempted, %u restarts; %llu tokens from host memory, %llu from disk; "
            "%llu snapshots taken, %llu used, %llu evicted; %llu of %llu drafts kept",
            t->n_done, (unsigned)(100 * t->n_reused / (t->n_read ? t->n_read : 1)),
            (unsigned long long)t->n_read, t->n_forked, t->n_rewound, t->n_cancelled, t->n_cut,
            t->n_preempted, t->n_restarted, (unsigned long long)t->n_host,
            (unsigned long long)t->n_disk, (unsigned long long)c->snapshots_taken,
            (unsigned long long)c->snapshots_used, (unsigned long long)c->evicted,
            (unsigned long long)c->drafts_kept, (unsigned long long)c->drafted);
    }
    talk_close(t);
    free(t);
}

#endif
