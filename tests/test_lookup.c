/* test_lookup.c - drafts by prompt lookup: what is guessed, how much of it is drafted, and that
 * answers are the same as without. */
#include "serve/lookup.h"
#include "serve/scheduler.h"
#include "test.h"

/* ---- guesses ------------------------------------------------------------------------------ */

enum { LONG = 3000 };

static bool lookup_open(struct lookup *l, void **memory) {
    *memory = malloc(lookup_bytes(LONG));
    lookup_init(l, *memory, LONG);
    return *memory != NULL;
}

TEST(lookup_guesses_what_followed_before) {
    static const int32_t text[] = {1, 2, 3, 4, 5, 9, 2, 3, 4, 6, 1, 2, 3, 4};
    struct lookup l;
    void *memory;
    if (!lookup_open(&l, &memory))
        return;
    EXPECT_INT(lookup_guess(&l, text, 3, 8), 0); /* nothing was before */
    EXPECT_INT(lookup_guess(&l, text, 8, 8), 0); /* two tokens in common are too few */
    EXPECT_INT(lookup_guess(&l, text, 9, 3), 3); /* 2 3 4 */
    EXPECT(memcmp(l.guess, text + 4, 3 * sizeof *text) == 0);
    EXPECT_INT(lookup_guess(&l, text, 13, 2), 2); /* 1 2 3 rather than 2 3 */
    EXPECT(l.guess[0] == 4 && l.guess[1] == 5);
    EXPECT_INT(lookup_guess(&l, text, 14, 2), 2); /* 1 2 3 4 rather than the newer 2 3 4 */
    EXPECT(l.guess[0] == 5 && l.guess[1] == 9);
    EXPECT_INT(lookup_guess(&l, text, 14, 0), 0);
    free(memory);
}

/* One that repeats itself goes on so, beyond its end. */
TEST(lookup_guesses_loops) {
    int32_t text[40];
    struct lookup l;
    void *memory;
    if (!lookup_open(&l, &memory))
        return;
    for (int i = 0; i < 40; i++)
        text[i] = i % 2;
    EXPECT_INT(lookup_guess(&l, text, 20, LOOKUP_MAX + 5), LOOKUP_MAX);
    for (int i = 0; i < LOOKUP_MAX; i++)
        EXPECT_INT(l.guess[i], i % 2);
    free(memory);
}

/* Against looking at every position, in texts of few different tokens. */
TEST(lookup_finds_the_longest_of_the_newest_matches) {
    int32_t *text = malloc(LONG * sizeof *text);
    uint64_t random = 5;
    uint32_t n_found = 0;
    for (int round = 0; round < 4; round++) {
        struct lookup l;
        void *memory;
        if (!lookup_open(&l, &memory))
            break;
        for (uint32_t n = 0; n < LONG; n++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            text[n] = (int32_t)((random >> 33) % (uint64_t)(20 << round));
            if (n < 4 || random >> 62 == 0)
                continue;
            uint32_t most = 0;
            for (uint32_t at = 3; at < n; at++) {
                uint32_t same = 0;
                while (same < at && same < 32 && text[at - 1 - same] == text[n - 1 - same])
                    same++;
                most = same > most ? same : most;
            }
            uint32_t found = lookup_guess(&l, text, n, 4);
            n_found += found > 0;
            if ((found > 0) != (most >= 3))
                test_fail(__FILE__, __LINE__, "after %u tokens: %u guessed, %u in common", n, found,
                          most);
        }
        free(memory);
    }
    EXPECT(n_found > 100);
    free(text);
}

/* ---- how much to draft -------------------------------------------------------------------- */

TEST(lookup_pace_drafts_what_pays) {
    struct pace p = {0};
    struct guess_record r = {.rightness = 0.9f};
    struct pace_step step = {1, 1};
    EXPECT_INT(pace_choose(&p, &step, &r, 1, 7, 0), 0); /* how long is a step without? */
    pace_note(&p, 1, 1);
    EXPECT_INT(pace_choose(&p, &step, &r, 1, 7, 0), 7); /* nobody knows better */
    EXPECT_INT(step.rows, 8);
    EXPECT(step.tokens > 5 && step.tokens < 6);
    pace_note(&p, 8, 10); /* ten times as long as one row */
    pace_note(&p, 4, 1.5);
    pace_note(&p, 2, 1.1);
    step = (struct pace_step){1, 1};
    EXPECT_INT(pace_choose(&p, &step, &r, 1, 7, 0), 3);
    r.rightness = 0.05f;
    for (int i = 0; i < 63; i++) {
        step = (struct pace_step){1, 1};
        EXPECT_INT(pace_choose(&p, &step, &r, 1, 7, 0), 0);
        EXPECT_INT(step.rows, 1);
    }
    EXPECT_INT(pace_choose(&p, &step, &r, 1, 7, 0), 3); /* tried anyway, seldom */
}

/* Drafts that cost time of their own, for two sequences: a token each, or none. */
TEST(lookup_pace_counts_what_drafts_take) {
    struct pace p = {0};
    struct guess_record r = {.rightness = 0.8f};
    struct pace_step step = {2, 2};
    pace_note(&p, 2, 1);
    pace_note(&p, 4, 1.2);
    pace_note(&p, 8, 2);
    EXPECT_NEAR(pace_draft_seconds(&p, 2), 0.1, 1e-9); /* not known: a tenth of a step */
    pace_note_draft(&p, 2, 3, 0.6);
    EXPECT_NEAR(pace_draft_seconds(&p, 2), 0.2, 1e-9);
    EXPECT_INT(pace_choose(&p, &step, &r, 2, 3, pace_draft_seconds(&p, 2)), 1);
    EXPECT_INT(step.rows, 4);
    EXPECT_NEAR(step.tokens, 3.6, 1e-6);
    step = (struct pace_step){2, 2};
    EXPECT_INT(pace_choose(&p, &step, &r, 2, 3, 0.7), 0);
    EXPECT_INT(step.rows, 2);
}

/* Guesses are learnt from whether or not they were drafted. */
TEST(lookup_learns_what_comes) {
    int32_t text[400];
    struct lookup l;
    void *memory;
    if (!lookup_open(&l, &memory))
        return;
    for (int i = 0; i < 400; i++)
        text[i] = i < 200 ? i % 10 : i < 300 ? i * 7 % 10 : i % 4 ? i % 4 : i;
    for (uint32_t n = 20; n < 200; n += 4)
        lookup_guess(&l, text, n, 4);
    EXPECT(l.record.rightness > 0.95f);
    for (uint32_t n = 300; n < 400; n++)
        lookup_guess(&l, text, n, 4);
    EXPECT(l.record.rightness < 0.8f);
    free(memory);
}

/* ---- through the scheduler ---------------------------------------------------------------- */

enum { N_PROMPT = 90, N_NEW = 120, N_REQUESTS = 6 };

/* Greedy, and whatever else people ask for. */
static const struct sluice_sampling samplings[N_REQUESTS] = {
    {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
    {.temperature = 0, .top_p = 1, .repeat_penalty = 1.05f},
    {.temperature = 0.3f, .top_p = 1, .repeat_penalty = 1, .seed = 3},
    {.temperature = 0.7f, .top_p = 0.9f, .top_k = 40, .repeat_penalty = 1, .seed = 4},
    {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 1, .seed = 5},
    {.temperature = 2, .top_p = 1, .repeat_penalty = 1.1f, .presence_penalty = 0.2f, .seed = 6},
};

struct answers {
    int32_t tokens[N_REQUESTS][N_NEW];
    uint32_t n[N_REQUESTS], n_drafted, n_kept;
};
struct asked {
    struct answers *to;
    uint32_t number;
};

static bool on_token(void *user, const struct sched_token *token) {
    const struct asked *asked = user;
    asked->to->tokens[asked->number][asked->to->n[asked->number]++] = token->token;
    return true;
}

static void on_end(void *user, const struct sched_report *report) {
    const struct asked *asked = user;
    EXPECT_INT(report->status, SLUICE_OK);
    EXPECT(report->n_kept <= report->n_drafted);
    asked->to->n_drafted += report->n_drafted;
    asked->to->n_kept += report->n_kept;
}

static void submit(struct sched *s, const sluice_model *model, struct asked *asked, uint64_t *id) {
    int32_t prompt[N_PROMPT];
    struct sluice_facts facts;
    struct err err = {0};
    sluice_model_facts(model, &facts);
    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = (int32_t)((i % 15 * 7919 + asked->number) % (uint32_t)facts.n_tokens);
    static const int32_t none[1];
    const struct sched_request q = {.prompt = prompt,
                                    .n_prompt = N_PROMPT,
                                    .max_tokens = N_NEW - asked->number,
                                    .sampling = samplings[asked->number],
                                    .ends = none,
                                    .on_token = on_token,
                                    .on_end = on_end,
                                    .user = asked};
    if (sched_submit(s, &q, id, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

static uint64_t answer_all(const sluice_model *model, sluice_engine *engine, bool has_no_lookup,
                           struct answers *to) {
    const struct sched_options options = {.queue = 4, .has_no_lookup = has_no_lookup};
    struct asked asked[N_REQUESTS];
    struct sched *s = NULL;
    struct sched_counters c = {0};
    struct err err = {0};
    uint64_t id;
    bool worked = true;
    memset(to, 0, sizeof *to);
    if (sched_open(&s, model, engine, &options, &err)) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return 0;
    }
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        asked[i] = (struct asked){to, i};
        submit(s, model, &asked[i], &id);
    }
    while (worked && !sched_step(s, &worked))
        EXPECT(sched_broken(s) == NULL);
    sched_counters(s, &c);
    EXPECT(c.drafted == to->n_drafted && c.drafts_kept == to->n_kept);
    sched_close(s);
    return c.submissions;
}

/* Answers by an engine that drafts, and by one that does not. */
static void compare_answers(const char *path, uint32_t block_drafts, struct answers *with) {
    struct sluice_engine_options o = sluice_engine_options_default();
    struct answers without;
    sluice_model *model = NULL;
    sluice_engine *plain = NULL, *drafting = NULL;
    o.backend = "cpu";
    o.threads = 1;
    o.context = 512;
    o.sequences = o.batch = 2;
    bool is_open = !sluice_model_open(&model, path) && !sluice_engine_open(&plain, model, &o);
    o.drafts = 7;
    o.block_drafts = block_drafts;
    if (!is_open || sluice_engine_open(&drafting, model, &o)) {
        test_fail(__FILE__, __LINE__, "%s%s", sluice_model_error(model),
                  sluice_engine_error(drafting));
    } else {
        uint64_t n = answer_all(model, plain, false, &without);
        uint64_t fewer = answer_all(model, drafting, block_drafts > 0, with);
        EXPECT(memcmp(with->tokens, without.tokens, sizeof with->tokens) == 0);
        EXPECT(with->n_kept > 0 && without.n_drafted == 0);
        test_note("%u of %u drafts kept; %llu submissions, %llu without", with->n_kept,
                  with->n_drafted, (unsigned long long)fewer, (unsigned long long)n);
    }
    sluice_engine_close(plain);
    sluice_engine_close(drafting);
    sluice_model_close(model);
}

/* Small models of random weights soon repeat themselves. */
TEST(serve_lookup_gives_the_same_tokens) {
    struct answers with;
    compare_answers(test_data("reference/qwen35-dense-a/model-f32.gguf"), 0, &with);
    compare_answers(test_data("reference/llama-a/model-q8_0.gguf"), 0, &with);
}

/* By the model's own block: how much is drafted depends on the time it takes, so only that some is.
 */
TEST(serve_draft_block_gives_the_same_tokens) {
    struct answers with;
    compare_answers(test_data("mtp/stories.gguf"), 3, &with);
    EXPECT(with.n_kept * 8 > with.n_drafted);
}
