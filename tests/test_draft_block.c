/* test_draft_block.c - the model's own block for drafts, against stored f32 figures, and what comes
 * out with it against what comes out without. */
#include "engine/engine.h"
#include "plan/io.h"
#include "sluice.h"
#include "test.h"

enum { MAX_PROMPTS = 8, MAX_TOKENS = 64, DEPTH = 3 };

struct rig {
    sluice_model *model;
    sluice_engine *engine;
    struct sluice_facts facts;
};

static bool rig_open(struct rig *r, const char *path, struct sluice_engine_options o) {
    *r = (struct rig){0};
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

static void rig_close(struct rig *r) {
    sluice_engine_close(r->engine);
    sluice_model_close(r->model);
}

static void fail(const struct rig *r, int line) {
    test_fail(__FILE__, line, "%s", sluice_engine_error(r->engine));
}
#define OK(r, call) ((call) == SLUICE_OK ? (void)0 : fail(r, __LINE__))

static struct sluice_engine_options options(uint32_t draft_block) {
    struct sluice_engine_options o = sluice_engine_options_default();
    o.backend = "cpu";
    o.context = 512;
    o.threads = 2;
    o.exact = true;
    o.drafts = draft_block;
    o.draft_block = draft_block;
    return o;
}

/* ---- against stored figures --------------------------------------------------------------- */

static const char *in_folder(char out[128], const char *name, const char *file) {
    snprintf(out, 128, "mtp/%s/%s", name, file);
    return out;
}

/* A line a prompt; returns how many. */
static uint32_t read_ids(const char *name, const char *file, int32_t ids[][MAX_TOKENS],
                         uint32_t n[MAX_PROMPTS]) {
    char path[128];
    size_t size;
    char *text = test_read_file(test_data(in_folder(path, name, file)), &size);
    char *rest = text, *line;
    uint32_t lines = 0;
    while (rest && (line = strsep(&rest, "\n")) && lines < MAX_PROMPTS && (*line || rest)) {
        n[lines] = 0;
        for (char *word; (word = strsep(&line, " "));)
            if (*word && n[lines] < MAX_TOKENS)
                ids[lines][n[lines]++] = atoi(word);
        lines++;
    }
    free(text);
    return lines;
}

static sluice_seq *open_greedy(const struct rig *r) {
    struct sluice_sampling s = sluice_sampling_default(r->model);
    sluice_seq *seq = NULL;
    s.temperature = 0;
    OK(r, sluice_seq_open(&seq, r->engine));
    OK(r, sluice_seq_set_sampling(seq, &s));
    return seq;
}

/* The logits of the block's last step, in whose plan they are scratch memory. */
static double compare_logits(const struct rig *r, const float *expected) {
    const sluice_engine *e = r->engine;
    const struct plan *plan = e->plans[e->last_plan];
    size_t bytes = plan->n_vocab * sizeof(float);
    float *found = malloc(bytes);
    double worst = 0;
    for (uint32_t i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].kind == OP_PROJECT && plan->ops[i].project.is_lm_head)
            e->kind->peek(e->backend, REGION_SCRATCH, plan->ops[i].project.out.offset, bytes, found,
                          NULL);
    for (uint32_t i = 0; i < plan->n_vocab; i++)
        worst = fmax(worst, fabs((double)found[i] - expected[i]));
    free(found);
    return worst;
}

static double draft_and_compare(const struct rig *r, sluice_seq *seq, uint32_t n,
                                const float *expected) {
    OK(r, sluice_engine_draft(r->engine, &seq, 1, n));
    return compare_logits(r, expected);
}

/* The prompt token by token; before each, and before the token after them, what the block predicts
 * one token further, and from there two more. Stored are the rows from the second token on. */
static double run_prompt(const struct rig *r, const int32_t *prompt, uint32_t n,
                         const int32_t *chain, const float *expected) {
    size_t n_logits = (size_t)r->facts.n_logits;
    double worst = 0;
    sluice_seq *seq = open_greedy(r);
    const int32_t *drafts;
    uint32_t n_drafts;
    for (uint32_t i = 0; i < n; i++) {
        OK(r, sluice_seq_feed(seq, &prompt[i], 1));
        if (i > 0)
            worst = fmax(worst, draft_and_compare(r, seq, 1, expected + (i - 1) * n_logits));
        OK(r, sluice_seq_draft(seq, NULL, 0));
        OK(r, sluice_engine_step(r->engine, NULL));
    }
    EXPECT_INT(sluice_seq_token(seq), chain[0]);
    OK(r, sluice_seq_feed(seq, &chain[0], 1));
    for (uint32_t depth = 1; depth <= DEPTH; depth++)
        worst =
            fmax(worst, draft_and_compare(r, seq, depth, expected + (n + depth - 2) * n_logits));
    sluice_seq_drafts(seq, &drafts, &n_drafts);
    EXPECT_INT(n_drafts, DEPTH);
    for (uint32_t i = 0; i < n_drafts; i++)
        EXPECT_INT(drafts[i], chain[1 + i]);
    sluice_seq_close(seq);
    return worst;
}

/* The same with the prompt in one step. */
static double run_whole_prompt(const struct rig *r, const int32_t *prompt, uint32_t n,
                               const int32_t *chain, const float *expected) {
    size_t n_logits = (size_t)r->facts.n_logits;
    sluice_seq *seq = open_greedy(r);
    OK(r, sluice_seq_feed(seq, prompt, n));
    OK(r, sluice_engine_step(r->engine, NULL));
    OK(r, sluice_seq_feed(seq, &chain[0], 1));
    double worst = draft_and_compare(r, seq, DEPTH, expected + (n + DEPTH - 2) * n_logits);
    sluice_seq_close(seq);
    return worst;
}

static void run_reference(const char *name, const char *model, const char *suffix) {
    static int32_t prompts[MAX_PROMPTS][MAX_TOKENS], chains[MAX_PROMPTS][MAX_TOKENS];
    uint32_t n[MAX_PROMPTS], n_chain[MAX_PROMPTS];
    char path[128], file[64];
    struct rig r;
    size_t bytes;
    if (!rig_open(&r, test_data(in_folder(path, name, model)), options(DEPTH)))
        return rig_close(&r);
    EXPECT(r.facts.has_draft_block);
    uint32_t n_prompts = read_ids(name, "tokens.txt", prompts, n);
    snprintf(file, sizeof file, "chain-row0%s.txt", suffix);
    EXPECT_INT(read_ids(name, file, chains, n_chain), n_prompts);
    snprintf(file, sizeof file, "draft-row0%s.bin", suffix);
    char *stored = test_read_file(test_data(in_folder(path, name, file)), &bytes);
    const float *expected = (const float *)stored;
    double worst = 0;
    for (uint32_t i = 0; stored && i < n_prompts && !test_has_failed(); i++) {
        worst = fmax(worst, run_prompt(&r, prompts[i], n[i], chains[i], expected));
        worst = fmax(worst, run_whole_prompt(&r, prompts[i], n[i], chains[i], expected));
        expected += (n[i] + 2) * (size_t)r.facts.n_logits;
    }
    EXPECT_INT((const char *)expected - stored, bytes); /* every stored row was used */
    if (!(worst <= 1e-4))
        test_fail(__FILE__, __LINE__, "%s/%s: logits of drafts are off by %g", name, model, worst);
    free(stored);
    rig_close(&r);
}

TEST(draft_block_has_the_logits_of_the_references) {
    run_reference("qwen35-mtp", "model-f32.gguf", "");
    run_reference("qwen35-mtp", "model-q8_0.gguf", "-q8_0");
    run_reference("qwen35moe-mtp", "model-f32.gguf", "");
}

TEST(draft_block_of_a_folder_has_the_logits_of_the_references) {
    run_reference("qwen35-mtp", "", "");
    run_reference("qwen35moe-mtp", "", "");
}

/* ---- the same tokens ---------------------------------------------------------------------- */

enum { TEXT = 180, MOST_SEQS = 3, STORED = 3 };

/* A text as a model without drafts goes on, and what the block drafts after each of its tokens. */
struct text {
    int32_t tokens[TEXT];
    int32_t drafts[TEXT][STORED]; /* after the first i tokens, of which the last waits */
    uint32_t n_drafts[TEXT];
};

static sluice_seq *open_seq(const struct rig *r, float temperature) {
    const struct sluice_sampling s = {
        .temperature = temperature, .top_p = 0.95f, .repeat_penalty = 1, .seed = 7};
    sluice_seq *seq = NULL;
    OK(r, sluice_seq_open(&seq, r->engine));
    OK(r, sluice_seq_set_sampling(seq, &s));
    return seq;
}

static void keep_drafts(const struct rig *r, sluice_seq *seq, struct text *t, uint32_t n) {
    const int32_t *drafts;
    OK(r, sluice_engine_draft(r->engine, &seq, 1, STORED));
    sluice_seq_drafts(seq, &drafts, &t->n_drafts[n]);
    for (uint32_t i = 0; i < t->n_drafts[n]; i++)
        t->drafts[n][i] = drafts[i];
    OK(r, sluice_seq_draft(seq, NULL, 0));
}

/* Token by token, and nothing drafted is verified. */
static void make_text(const struct rig *r, float temperature, struct text *t) {
    sluice_seq *seq = open_seq(r, temperature);
    t->tokens[0] = 3 % r->facts.n_tokens;
    for (uint32_t n = 1; n <= TEXT && !test_has_failed(); n++) {
        OK(r, sluice_seq_feed(seq, &t->tokens[n - 1], 1));
        keep_drafts(r, seq, t, n - 1);
        OK(r, sluice_engine_step(r->engine, NULL));
        if (n < TEXT)
            t->tokens[n] = sluice_seq_token(seq);
    }
    sluice_seq_close(seq);
}

/* The tokens that the sequence has beyond `n`, compared with the text. */
static uint32_t expect_text(const sluice_seq *seq, const struct text *t) {
    const int32_t *tokens;
    uint32_t n;
    sluice_seq_tokens(seq, &tokens, &n, NULL);
    for (uint32_t i = 0; i < n && i < TEXT; i++)
        if (tokens[i] != t->tokens[i]) {
            test_fail(__FILE__, __LINE__, "token %u is %d, expected %d", i, tokens[i],
                      t->tokens[i]);
            break;
        }
    return n;
}

/* The first n tokens, of which the last waits. */
static void go_to(const struct rig *r, sluice_seq *seq, const struct text *t, uint32_t n) {
    OK(r, sluice_seq_rewind(seq, n - 1));
    OK(r, sluice_engine_step(r->engine, NULL));
    OK(r, sluice_seq_feed(seq, &t->tokens[n - 1], 1));
}

/* What is drafted depends on the tokens alone. */
static void expect_drafts(const struct rig *r, sluice_seq *seq, const struct text *t) {
    uint32_t n = expect_text(seq, t), n_drafts;
    const int32_t *drafts;
    OK(r, sluice_engine_draft(r->engine, &seq, 1, STORED));
    sluice_seq_drafts(seq, &drafts, &n_drafts);
    EXPECT_INT(n_drafts, t->n_drafts[n - 1]);
    for (uint32_t i = 0; i < n_drafts && i < t->n_drafts[n - 1]; i++)
        EXPECT_INT(drafts[i], t->drafts[n - 1][i]);
}

/* Generates with drafts, several sequences in a step, up to `end` tokens each; returns the
 * share of drafts that were right. */
static double generate(const struct rig *r, sluice_seq **seqs, uint32_t n_seqs, uint32_t end,
                       const struct text *t) {
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
            OK(r, sluice_seq_feed(seqs[i], &token, 1));
            goes_on = true;
        }
        if (step % 4 != 3)
            OK(r, sluice_engine_draft(r->engine, seqs, n_seqs, 1 + step % STORED));
        if (goes_on)
            OK(r, sluice_engine_step(r->engine, NULL));
        for (uint32_t i = 0; i < n_seqs; i++)
            expect_text(seqs[i], t);
    }
    sluice_engine_counters(r->engine, &after);
    return (double)(after.drafts_kept - before.drafts_kept) /
           (double)(after.drafted - before.drafted);
}

static sluice_seq *begin(const struct rig *r, float temperature, const struct text *t, uint32_t n) {
    sluice_seq *seq = open_seq(r, temperature);
    struct sluice_reuse reuse;
    OK(r, sluice_seq_resume(seq, t->tokens, n, &reuse));
    OK(r, sluice_engine_step(r->engine, NULL));
    return seq;
}

/* Rewound, forked, saved and loaded, closed and resumed, it drafts and says the same. */
static void compare_places(const struct rig *r, float temperature, const struct text *t) {
    const char *path = test_temporary("draft_block.seq");
    sluice_seq *seq = begin(r, temperature, t, 160), *fork, *loaded;
    go_to(r, seq, t, 131);
    expect_drafts(r, seq, t);
    OK(r, sluice_seq_fork(&fork, seq));
    OK(r, sluice_engine_step(r->engine, NULL));
    generate(r, (sluice_seq *[]){seq, fork}, 2, 160, t);
    go_to(r, fork, t, 142);
    expect_drafts(r, fork, t);
    remove(path);
    OK(r, sluice_seq_save(fork, path));
    sluice_seq_close(fork);
    sluice_seq_close(seq);
    OK(r, sluice_seq_load(&loaded, r->engine, path));
    expect_drafts(r, loaded, t);
    sluice_seq_close(loaded);
    seq = open_seq(r, temperature);
    struct sluice_reuse reuse;
    OK(r, sluice_seq_resume(seq, t->tokens, 170, &reuse));
    go_to(r, seq, t, 170);
    expect_drafts(r, seq, t);
    sluice_seq_close(seq);
}

/* Returns the share of drafts that were right. */
static double compare_model(const char *path, float temperature) {
    struct sluice_engine_options o = options(STORED);
    struct rig cold, r;
    static struct text t;
    double share = 0;
    o.exact = false;
    bool is_open = rig_open(&cold, path, o);
    o.sequences = o.batch = MOST_SEQS;
    o.drafts = 8;
    o.snapshot_every = 32;
    o.snapshot_bytes = 4 << 20;
    if (is_open && rig_open(&r, path, o)) {
        make_text(&cold, temperature, &t);
        sluice_seq *seqs[MOST_SEQS];
        for (uint32_t i = 0; i < MOST_SEQS; i++)
            seqs[i] = begin(&r, temperature, &t, 5 + 30 * i);
        share = generate(&r, seqs, MOST_SEQS, TEXT - 10, &t);
        for (uint32_t i = 0; i < MOST_SEQS; i++)
            sluice_seq_close(seqs[i]);
        compare_places(&r, temperature, &t);
        rig_close(&r);
    }
    rig_close(&cold);
    return share;
}

/* The story model's block was trained; those of random models know nothing. */
TEST(draft_block_gives_the_tokens_of_a_run_without) {
    for (int i = 0; i < 2 && !test_has_failed(); i++) {
        compare_model(test_data("mtp/qwen35-mtp/model-f32.gguf"), (float)i);
        compare_model(test_data("mtp/qwen35moe-mtp/model-f32.gguf"), (float)i);
    }
    double greedy = compare_model(test_data("mtp/stories.gguf"), 0);
    double sampled = compare_model(test_data("mtp/stories.gguf"), 0.8f);
    test_note("drafts of the story model's block that were right: %.2f, sampled %.2f", greedy,
              sampled);
    EXPECT(greedy > 0.7);
    EXPECT(sampled > 0.4);
}
