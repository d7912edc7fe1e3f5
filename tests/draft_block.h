/* draft_block.h - the model's own block for drafts, against stored f32 figures, and what comes out
 * with it against what comes out without. Used on the CPU by test_draft_block.c and on a device by
 * rig/test_device_conversations.c. */
#ifndef TESTS_DRAFT_BLOCK_H
#define TESTS_DRAFT_BLOCK_H

#include "engine/engine.h"
#include "plan/io.h"
#include "sluice.h"
#include "test.h"

enum { BLOCK_PROMPTS = 8, BLOCK_TOKENS = 64, BLOCK_DEPTH = 3 };

struct block_rig {
    sluice_model *model;
    sluice_engine *engine;
    struct sluice_facts facts;
};

static bool block_open(struct block_rig *r, const char *path, struct sluice_engine_options o) {
    *r = (struct block_rig){0};
    if (sluice_model_open(&r->model, path)) {
        test_fail(__FILE__, __LINE__, "%s", sluice_model_error(r->model));
        return false;
    }
    sluice_model_facts(r->model, &r->facts);
    if (sluice_engine_open(&r->engine, r->model, &o)) {
        test_fail(__FILE__, __LINE__, "%s", sluice_engine_error(r->engine));
        return false;
    }
    return true;
}

static void block_close(struct block_rig *r) {
    sluice_engine_close(r->engine);
    sluice_model_close(r->model);
}

static void block_fail(const struct block_rig *r, int line) {
    test_fail(__FILE__, line, "%s", sluice_engine_error(r->engine));
}
#define BLOCK_OK(r, call) ((call) == SLUICE_OK ? (void)0 : block_fail(r, __LINE__))

static struct sluice_engine_options block_options(const char *backend, uint32_t block_drafts) {
    struct sluice_engine_options o = sluice_engine_options_default();
    o.backend = backend;
    o.context = 512;
    o.threads = 2;
    o.exact = true;
    o.drafts = block_drafts;
    o.block_drafts = block_drafts;
    return o;
}

/* ---- against stored figures --------------------------------------------------------------- */

static const char *block_in_folder(char out[128], const char *name, const char *file) {
    snprintf(out, 128, "mtp/%s/%s", name, file);
    return out;
}

/* A line a prompt; returns how many. */
static uint32_t block_read_ids(const char *name, const char *file, int32_t ids[][BLOCK_TOKENS],
                               uint32_t n[BLOCK_PROMPTS]) {
    char path[128];
    size_t size;
    char *text = test_read_file(test_data(block_in_folder(path, name, file)), &size);
    char *rest = text, *line;
    uint32_t lines = 0;
    while (rest && (line = strsep(&rest, "\n")) && lines < BLOCK_PROMPTS && (*line || rest)) {
        n[lines] = 0;
        for (char *word; (word = strsep(&line, " "));)
            if (*word && n[lines] < BLOCK_TOKENS)
                ids[lines][n[lines]++] = atoi(word);
        lines++;
    }
    free(text);
    return lines;
}

static sluice_seq *block_open_greedy(const struct block_rig *r) {
    struct sluice_sampling s = sluice_sampling_default(r->model);
    sluice_seq *seq = NULL;
    s.temperature = 0;
    BLOCK_OK(r, sluice_seq_open(&seq, r->engine));
    BLOCK_OK(r, sluice_seq_set_sampling(seq, &s));
    return seq;
}

/* The logits of the block's last step, in whose plan they are scratch memory; on a device they may
 * be elsewhere, and its tokens have to do. */
static double block_compare_logits(const struct block_rig *r, const float *expected) {
    const sluice_engine *e = r->engine;
    const struct plan *plan = e->plans[e->last_plan];
    size_t bytes = plan->n_vocab * sizeof(float);
    float *found = malloc(bytes);
    double worst = 0;
    if (e->kind != &backend_cpu) {
        free(found);
        return 0;
    }
    for (uint32_t i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].kind == OP_PROJECT && plan->ops[i].project.is_lm_head)
            e->kind->peek(e->backend, REGION_SCRATCH, plan->ops[i].project.out.offset, bytes, found,
                          NULL);
    for (uint32_t i = 0; i < plan->n_vocab; i++)
        worst = fmax(worst, fabs((double)found[i] - expected[i]));
    free(found);
    return worst;
}

static double block_draft_and_compare(const struct block_rig *r, sluice_seq *seq, uint32_t n,
                                      const float *expected) {
    BLOCK_OK(r, sluice_engine_draft(r->engine, &seq, 1, n));
    return block_compare_logits(r, expected);
}

/* The prompt token by token; before each, and before the token after them, what the block predicts
 * one token further, and from there two more. Stored are the rows from the second token on. */
static double block_run_prompt(const struct block_rig *r, const int32_t *prompt, uint32_t n,
                               const int32_t *chain, const float *expected) {
    size_t n_logits = (size_t)r->facts.n_logits;
    double worst = 0;
    sluice_seq *seq = block_open_greedy(r);
    const int32_t *drafts;
    uint32_t n_drafts;
    for (uint32_t i = 0; i < n; i++) {
        BLOCK_OK(r, sluice_seq_feed(seq, &prompt[i], 1));
        if (i > 0)
            worst = fmax(worst, block_draft_and_compare(r, seq, 1, expected + (i - 1) * n_logits));
        BLOCK_OK(r, sluice_seq_draft(seq, NULL, 0));
        BLOCK_OK(r, sluice_engine_step(r->engine, NULL));
    }
    EXPECT_INT(sluice_seq_token(seq), chain[0]);
    BLOCK_OK(r, sluice_seq_feed(seq, &chain[0], 1));
    for (uint32_t depth = 1; depth <= BLOCK_DEPTH; depth++)
        worst = fmax(worst,
                     block_draft_and_compare(r, seq, depth, expected + (n + depth - 2) * n_logits));
    sluice_seq_drafts(seq, &drafts, &n_drafts);
    EXPECT_INT(n_drafts, BLOCK_DEPTH);
    for (uint32_t i = 0; i < n_drafts; i++)
        EXPECT_INT(drafts[i], chain[1 + i]);
    sluice_seq_close(seq);
    return worst;
}

/* The same with the prompt in one step. */
static double block_run_whole_prompt(const struct block_rig *r, const int32_t *prompt, uint32_t n,
                                     const int32_t *chain, const float *expected) {
    size_t n_logits = (size_t)r->facts.n_logits;
    sluice_seq *seq = block_open_greedy(r);
    BLOCK_OK(r, sluice_seq_feed(seq, prompt, n));
    BLOCK_OK(r, sluice_engine_step(r->engine, NULL));
    BLOCK_OK(r, sluice_seq_feed(seq, &chain[0], 1));
    double worst =
        block_draft_and_compare(r, seq, BLOCK_DEPTH, expected + (n + BLOCK_DEPTH - 2) * n_logits);
    sluice_seq_close(seq);
    return worst;
}

static void block_run_reference(const char *backend, const char *name, const char *model,
                                const char *suffix) {
    static int32_t prompts[BLOCK_PROMPTS][BLOCK_TOKENS], chains[BLOCK_PROMPTS][BLOCK_TOKENS];
    uint32_t n[BLOCK_PROMPTS], n_chain[BLOCK_PROMPTS];
    char path[128], file[64];
    struct block_rig r;
    size_t bytes;
    if (!block_open(&r, test_data(block_in_folder(path, name, model)),
                    block_options(backend, BLOCK_DEPTH)))
        return block_close(&r);
    EXPECT(r.facts.has_draft_block);
    uint32_t n_prompts = block_read_ids(name, "tokens.txt", prompts, n);
    snprintf(file, sizeof file, "chain-row0%s.txt", suffix);
    EXPECT_INT(block_read_ids(name, file, chains, n_chain), n_prompts);
    snprintf(file, sizeof file, "draft-row0%s.bin", suffix);
    char *stored = test_read_file(test_data(block_in_folder(path, name, file)), &bytes);
    const float *expected = (const float *)stored;
    double worst = 0;
    for (uint32_t i = 0; stored && i < n_prompts && !test_has_failed(); i++) {
        worst = fmax(worst, block_run_prompt(&r, prompts[i], n[i], chains[i], expected));
        worst = fmax(worst, block_run_whole_prompt(&r, prompts[i], n[i], chains[i], expected));
        expected += (n[i] + 2) * (size_t)r.facts.n_logits;
    }
    EXPECT_INT((const char *)expected - stored, bytes); /* every stored row was used */
    if (!(worst <= 1e-4))
        test_fail(__FILE__, __LINE__, "%s/%s: logits of drafts are off by %g", name, model, worst);
    free(stored);
    block_close(&r);
}

/* ---- the same tokens ---------------------------------------------------------------------- */

enum { BLOCK_TEXT = 180, BLOCK_SEQS = 3, BLOCK_DRAFTS = 3 };

/* A text as a model without drafts goes on, and what the block drafts after each of its tokens. */
struct block_text {
    int32_t tokens[BLOCK_TEXT];
    int32_t drafts[BLOCK_TEXT]
                  [BLOCK_DRAFTS]; /* after the first i tokens, of which the last waits */
    uint32_t n_drafts[BLOCK_TEXT];
};

static sluice_seq *block_open_seq(const struct block_rig *r, float temperature) {
    const struct sluice_sampling s = {
        .temperature = temperature, .top_p = 0.95f, .repeat_penalty = 1, .seed = 7};
    sluice_seq *seq = NULL;
    BLOCK_OK(r, sluice_seq_open(&seq, r->engine));
    BLOCK_OK(r, sluice_seq_set_sampling(seq, &s));
    return seq;
}

static void block_keep_drafts(const struct block_rig *r, sluice_seq *seq, struct block_text *t,
                              uint32_t n) {
    const int32_t *drafts;
    BLOCK_OK(r, sluice_engine_draft(r->engine, &seq, 1, BLOCK_DRAFTS));
    sluice_seq_drafts(seq, &drafts, &t->n_drafts[n]);
    for (uint32_t i = 0; i < t->n_drafts[n]; i++)
        t->drafts[n][i] = drafts[i];
    BLOCK_OK(r, sluice_seq_draft(seq, NULL, 0));
}

/* Token by token, and nothing drafted is verified. */
static void block_make_text(const struct block_rig *r, float temperature, struct block_text *t) {
    sluice_seq *seq = block_open_seq(r, temperature);
    t->tokens[0] = 3 % r->facts.n_tokens;
    for (uint32_t n = 1; n <= BLOCK_TEXT && !test_has_failed(); n++) {
        BLOCK_OK(r, sluice_seq_feed(seq, &t->tokens[n - 1], 1));
        block_keep_drafts(r, seq, t, n - 1);
        BLOCK_OK(r, sluice_engine_step(r->engine, NULL));
        if (n < BLOCK_TEXT)
            t->tokens[n] = sluice_seq_token(seq);
    }
    sluice_seq_close(seq);
}

/* The tokens that the sequence has beyond `n`, compared with the text. */
static uint32_t block_expect_text(const sluice_seq *seq, const struct block_text *t) {
    const int32_t *tokens;
    uint32_t n;
    sluice_seq_tokens(seq, &tokens, &n, NULL);
    for (uint32_t i = 0; i < n && i < BLOCK_TEXT; i++)
        if (tokens[i] != t->tokens[i]) {
            test_fail(__FILE__, __LINE__, "token %u is %d, expected %d", i, tokens[i],
                      t->tokens[i]);
            break;
        }
    return n;
}

/* The first n tokens, of which the last waits. */
static void block_go_to(const struct block_rig *r, sluice_seq *seq, const struct block_text *t,
                        uint32_t n) {
    BLOCK_OK(r, sluice_seq_rewind(seq, n - 1));
    BLOCK_OK(r, sluice_engine_step(r->engine, NULL));
    BLOCK_OK(r, sluice_seq_feed(seq, &t->tokens[n - 1], 1));
}

/* What is drafted depends on the tokens alone. */
static void block_expect_drafts(const struct block_rig *r, sluice_seq *seq,
                                const struct block_text *t) {
    uint32_t n = block_expect_text(seq, t), n_drafts;
    const int32_t *drafts;
    BLOCK_OK(r, sluice_engine_draft(r->engine, &seq, 1, BLOCK_DRAFTS));
    sluice_seq_drafts(seq, &drafts, &n_drafts);
    EXPECT_INT(n_drafts, t->n_drafts[n - 1]);
    for (uint32_t i = 0; i < n_drafts && i < t->n_drafts[n - 1]; i++)
        EXPECT_INT(drafts[i], t->drafts[n - 1][i]);
}

/* Generates with drafts, several sequences in a step, up to `end` tokens each; returns the
 * share of drafts that were right. */
static double block_generate(const struct block_rig *r, sluice_seq **seqs, uint32_t n_seqs,
                             uint32_t end, const struct block_text *t) {
    struct sluice_counters before, after;
    uint32_t step = 0;
    sluice_engine_counters(r->engine, &before);
    for (bool goes_on = true; goes_on && !test_has_failed(); step++) {
        goes_on = false;
        for (uint32_t i = 0; i < n_seqs; i++) {
            int32_t token = sluice_seq_token(seqs[i]);
            uint32_t n;
            sluice_seq_tokens(seqs[i], NULL, &n, NULL);
            if (n >= end || token < 0)
                continue;
            BLOCK_OK(r, sluice_seq_feed(seqs[i], &token, 1));
            goes_on = true;
        }
        if (step % 4 != 3)
            BLOCK_OK(r, sluice_engine_draft(r->engine, seqs, n_seqs, 1 + step % BLOCK_DRAFTS));
        if (goes_on)
            BLOCK_OK(r, sluice_engine_step(r->engine, NULL));
        for (uint32_t i = 0; i < n_seqs; i++)
            block_expect_text(seqs[i], t);
    }
    sluice_engine_counters(r->engine, &after);
    return (double)(after.drafts_kept - before.drafts_kept) /
           (double)(after.drafted - before.drafted);
}

static sluice_seq *block_begin(const struct block_rig *r, float temperature,
                               const struct block_text *t, uint32_t n) {
    sluice_seq *seq = block_open_seq(r, temperature);
    struct sluice_reuse reuse;
    BLOCK_OK(r, sluice_seq_resume(seq, t->tokens, n, &reuse));
    BLOCK_OK(r, sluice_engine_step(r->engine, NULL));
    return seq;
}

/* Rewound, forked, saved and loaded, closed and resumed, it drafts and says the same. */
static void block_compare_places(const struct block_rig *r, float temperature,
                                 const struct block_text *t) {
    const char *path = test_temporary("draft_block.seq");
    sluice_seq *seq = block_begin(r, temperature, t, 160), *fork, *loaded;
    block_go_to(r, seq, t, 131);
    block_expect_drafts(r, seq, t);
    BLOCK_OK(r, sluice_seq_fork(&fork, seq));
    BLOCK_OK(r, sluice_engine_step(r->engine, NULL));
    block_generate(r, (sluice_seq *[]){seq, fork}, 2, 160, t);
    block_go_to(r, fork, t, 142);
    block_expect_drafts(r, fork, t);
    remove(path);
    BLOCK_OK(r, sluice_seq_save(fork, path));
    sluice_seq_close(fork);
    sluice_seq_close(seq);
    BLOCK_OK(r, sluice_seq_load(&loaded, r->engine, path));
    block_expect_drafts(r, loaded, t);
    sluice_seq_close(loaded);
    seq = block_open_seq(r, temperature);
    struct sluice_reuse reuse;
    BLOCK_OK(r, sluice_seq_resume(seq, t->tokens, 170, &reuse));
    block_go_to(r, seq, t, 170);
    block_expect_drafts(r, seq, t);
    sluice_seq_close(seq);
}

/* Returns the share of drafts that were right. */
static double block_compare_model(const char *backend, const char *path, float temperature) {
    struct sluice_engine_options o = block_options(backend, BLOCK_DRAFTS);
    struct block_rig cold, r;
    static struct block_text t;
    double share = 0;
    o.exact = false;
    bool is_open = block_open(&cold, path, o);
    o.sequences = o.batch = BLOCK_SEQS;
    o.drafts = 8;
    o.snapshot_every = 32;
    o.snapshot_bytes = 4 << 20;
    if (is_open && block_open(&r, path, o)) {
        block_make_text(&cold, temperature, &t);
        sluice_seq *seqs[BLOCK_SEQS];
        for (uint32_t i = 0; i < BLOCK_SEQS; i++)
            seqs[i] = block_begin(&r, temperature, &t, 5 + 30 * i);
        share = block_generate(&r, seqs, BLOCK_SEQS, BLOCK_TEXT - 10, &t);
        for (uint32_t i = 0; i < BLOCK_SEQS; i++)
            sluice_seq_close(seqs[i]);
        block_compare_places(&r, temperature, &t);
        block_close(&r);
    }
    block_close(&cold);
    return share;
}

/* Forks share a page that each has to copy, and the drafts would cross into the next one: nothing
 * is drafted then, and all go on as one does. */
static void block_compare_forks(const char *backend, const char *path) {
    enum { PROMPT = 253, FORKS = 4, NEW = 12 };
    struct sluice_engine_options o = block_options(backend, 4);
    struct block_rig r;
    sluice_seq *seqs[FORKS];
    int32_t prompt[PROMPT], first[NEW];
    o.sequences = o.batch = FORKS;
    o.drafts = 16;
    if (block_open(&r, path, o)) {
        for (int i = 0; i < PROMPT; i++)
            prompt[i] = (i * 37 + 5) % r.facts.n_tokens;
        seqs[0] = block_open_seq(&r, 0);
        BLOCK_OK(&r, sluice_seq_feed(seqs[0], prompt, PROMPT));
        BLOCK_OK(&r, sluice_engine_step(r.engine, NULL));
        for (int i = 1; i < FORKS; i++)
            BLOCK_OK(&r, sluice_seq_fork(&seqs[i], seqs[0]));
        for (int n = 0; n < NEW; n++) {
            for (int i = 0; i < FORKS; i++) {
                int32_t token = sluice_seq_token(seqs[i]);
                first[n] = i == 0 ? token : first[n];
                EXPECT_INT(token, first[n]);
                BLOCK_OK(&r, sluice_seq_feed(seqs[i], &token, 1));
            }
            BLOCK_OK(&r, sluice_engine_draft(r.engine, seqs, FORKS, 4));
            for (int i = 0; i < FORKS; i++) /* one token a step, so that all stay in step */
                BLOCK_OK(&r, sluice_seq_draft(seqs[i], NULL, 0));
            BLOCK_OK(&r, sluice_engine_step(r.engine, NULL));
        }
        for (int i = 0; i < FORKS; i++)
            sluice_seq_close(seqs[i]);
        EXPECT(first[NEW - 1] >= 0);
    }
    block_close(&r);
}

/* What an engine that drafts from the first tokens drafts, beside one that does from all: the same
 * where that is one of these. A text of others makes it draft from all. Returns how many were
 * drafted from the first ones. */
static uint32_t block_compare_first(const struct block_rig *all, const struct block_rig *r,
                                    const int32_t *text, uint32_t n) {
    sluice_seq *seqs[2] = {block_open_greedy(all), block_open_greedy(r)};
    const struct block_rig *rigs[2] = {all, r};
    uint32_t n_first = 0;
    for (uint32_t i = 0; i < n && !test_has_failed(); i++) {
        int32_t found[2];
        for (int k = 0; k < 2; k++) {
            const int32_t *drafts;
            uint32_t n_drafts;
            BLOCK_OK(rigs[k], sluice_seq_feed(seqs[k], &text[i], 1));
            BLOCK_OK(rigs[k], sluice_engine_draft(rigs[k]->engine, &seqs[k], 1, 1));
            sluice_seq_drafts(seqs[k], &drafts, &n_drafts);
            found[k] = n_drafts ? drafts[0] : -1;
            BLOCK_OK(rigs[k], sluice_seq_draft(seqs[k], NULL, 0));
        }
        const sluice_engine *e = r->engine;
        uint32_t n_vocab = e->plans[e->last_plan]->n_vocab;
        bool is_first = n_vocab == e->setup.block_vocab;
        n_first += is_first;
        EXPECT(is_first || n_vocab == (uint32_t)r->facts.n_logits);
        EXPECT(found[1] < (int32_t)n_vocab);
        if (found[0] >= 0 && found[0] < (int32_t)n_vocab) /* -1: an end token */
            EXPECT_INT(found[1], found[0]);
        for (int k = 0; k < 2; k++)
            BLOCK_OK(rigs[k], sluice_engine_step(rigs[k]->engine, NULL));
    }
    sluice_seq_close(seqs[0]);
    sluice_seq_close(seqs[1]);
    return n_first;
}

static void block_compare_vocab(const char *backend, const char *path) {
    enum { N = 60, RARE = 12 }; /* the last ones of a text */
    struct sluice_engine_options o = block_options(backend, 1);
    struct block_rig all, r;
    int32_t text[N];
    bool is_open = block_open(&all, path, o);
    int32_t n_first = all.facts.n_tokens / 2;
    o.block_vocab = (uint32_t)n_first;
    if (is_open && block_open(&r, path, o)) {
        EXPECT_INT(all.engine->setup.block_vocab, 0);
        for (int i = 0; i < N; i++)
            text[i] = i * 37 % n_first + (i < N - RARE ? 0 : n_first);
        EXPECT_INT(block_compare_first(&all, &r, text, N), N - RARE + 3); /* 3 of 51 are few */
        block_close(&r);
    }
    block_close(&all);
}

/* A cancellation is reported, once, and the drafts of a later call are as ever. */
static void block_compare_cancelled(const char *backend, const char *path) {
    struct block_rig r;
    const int32_t *drafts;
    uint32_t n;
    if (block_open(&r, path, block_options(backend, 2))) {
        sluice_seq *seq = block_open_seq(&r, 0);
        BLOCK_OK(&r, sluice_seq_feed(seq, &(int32_t){3}, 1));
        BLOCK_OK(&r, sluice_engine_step(r.engine, NULL));
        BLOCK_OK(&r, sluice_seq_feed(seq, &(int32_t){4}, 1));
        sluice_engine_cancel(r.engine);
        EXPECT_INT(sluice_engine_draft(r.engine, &seq, 1, 2), SLUICE_ERR_CANCELLED);
        sluice_seq_drafts(seq, &drafts, &n);
        EXPECT_INT(n, 0);
        EXPECT(state_broken(&r.engine->state) == NULL);
        BLOCK_OK(&r, sluice_engine_draft(r.engine, &seq, 1, 2));
        sluice_seq_drafts(seq, &drafts, &n);
        EXPECT_INT(n, 2);
        sluice_seq_close(seq);
    }
    block_close(&r);
}

#endif
