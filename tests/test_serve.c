/* test_serve.c - the scheduler: every request gets the tokens of a cold run of its own, none is
 * lost, none starves, nothing leaks. */
#include <malloc.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "random_model.h"
#include "sched_sim.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SLOW 1
#else
#define IS_SLOW 0
#endif

/* ---- models ------------------------------------------------------------------------------- */

static const char *write_tiny(const char *arch) {
    const struct random_model m = random_tiny(arch);
    const char *path = test_temporary(arch);
    struct err err = {0};
    if (random_model_write(&m, path, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return path;
}

static const char *const archs[] = {"qwen35", "llama"};
enum { N_ARCHS = 2 };

static struct sim_options options_of(uint32_t sequences, uint32_t queue, uint64_t seed) {
    struct sim_options o = {
        .engine = sluice_engine_options_default(),
        .queue = queue,
        .max_prompt = 200,
        .max_new = 40,
        .seed = seed,
    };
    o.engine.backend = "cpu";
    o.engine.threads = 1;
    o.engine.context = 1024;
    o.engine.sequences = sequences;
    o.engine.batch = sequences;
    o.engine.prefill = 64;
    return o;
}

/* ---- the simulation ----------------------------------------------------------------------- */

TEST(serve_simulation) {
    for (int m = 0; m < N_ARCHS; m++) {
        struct sim_options o = options_of(6, 20, 7 + (uint64_t)m);
        struct sim sim;
        if (sim_open(&sim, write_tiny(archs[m]), &o))
            sim_run(&sim, IS_SLOW ? 150 : 1500, 26);
        EXPECT(sim.n_full > 0);
        for (int end = 0; end < SCHED_END_FAILED; end++)
            EXPECT(end == SCHED_END_FULL || sim.ends[end] > 0);
        sim_close(&sim);
    }
}

/* So few pages that answers are preempted all the time. Prompts that fill a page nearly, so that
 * each answer soon needs a second one; and answers that need all pages in the end. */
TEST(serve_simulation_with_few_pages) {
    static const struct {
        uint32_t pages, min_prompt, max_prompt, max_new, n;
    } cases[] = {{4, 170, 256, 90, 500}, {4, 0, 260, SIM_MAX_NEW, 40}};
    for (int i = 0; i < 2 * N_ARCHS; i++) {
        struct sim_options o = options_of(8, 20, 17 + (uint64_t)i);
        struct sim sim;
        struct sched_counters c;
        const char *arch = archs[i % N_ARCHS];
        o.pages = cases[i / N_ARCHS].pages;
        o.min_prompt = cases[i / N_ARCHS].min_prompt;
        o.max_prompt = cases[i / N_ARCHS].max_prompt;
        o.max_new = cases[i / N_ARCHS].max_new;
        if (sim_open(&sim, write_tiny(arch), &o)) {
            sim_run(&sim, cases[i / N_ARCHS].n / (IS_SLOW ? 5 : 1), 28);
            sched_counters(sim.sched, &c);
            test_note("%s: %llu answers, %llu steps, %llu times preempted, at most %llu steps",
                      arch, (unsigned long long)c.answers, (unsigned long long)c.steps,
                      (unsigned long long)c.preempted, (unsigned long long)sim.max_steps);
            EXPECT(c.preempted > c.answers / 20);
        }
        sim_close(&sim);
    }
}

/* Steps that the engine is told to break off are done again. */
TEST(serve_simulation_with_steps_cut_off) {
    struct sim_options o = options_of(4, 8, 3);
    struct sim sim;
    struct sim_job jobs[40];
    uint32_t next = 0;
    if (!sim_open(&sim, write_tiny("qwen35"), &o))
        return;
    while (next < 40 || sim.n_live > 0) {
        if (next < 40 && sim_draw(&sim, 4) == 0) {
            jobs[next] = sim_job(&sim);
            next += sim_submit(&jobs[next], 12);
        }
        if (sim_draw(&sim, 4) == 0)
            sluice_engine_cancel(sim.engine);
        sim_step(&sim);
    }
    EXPECT_INT(sim.n_ended, sim.n_accepted);
    sim_close(&sim);
}

/* ---- one request at a time ---------------------------------------------------------------- */

/* What came of a request. */
struct result {
    struct sched *sched;
    struct result *cancels; /* when it ends */
    bool submits;           /* another like itself, when it ends */
    struct sched_request request;
    uint64_t id;
    int32_t tokens[256]; /* the first of them */
    uint32_t n, n_ended;
    struct sched_report report; /* of the answer that ended last */
    char error[200];
};

static bool note_token(void *user, const struct sched_token *t) {
    struct result *r = user;
    if (t->answer == 0 && t->index < sizeof r->tokens / sizeof *r->tokens)
        r->tokens[t->index] = t->token;
    r->n++;
    return true;
}

static void note_end(void *user, const struct sched_report *report) {
    struct result *r = user;
    struct err err = {0};
    r->report = *report;
    snprintf(r->error, sizeof r->error, "%s", report->error);
    r->n_ended++;
    if (r->cancels)
        EXPECT(sched_cancel(r->sched, r->cancels->id));
    if (r->submits) {
        r->submits = false;
        EXPECT_INT(sched_submit(r->sched, &r->request, &r->id, &err), SLUICE_OK);
    }
}

struct rig {
    sluice_model *model;
    sluice_engine *engine;
    struct sched *sched;
    struct sluice_facts facts;
};

static bool rig_open(struct rig *r, const char *path, const struct sim_options *o) {
    const struct sched_options options = {.queue = o->queue};
    struct err err = {0};
    *r = (struct rig){0};
    bool is_open = !sluice_model_open(&r->model, path) &&
                   !sluice_engine_open(&r->engine, r->model, &o->engine) &&
                   !sched_open(&r->sched, r->model, r->engine, &options, &err);
    if (!is_open)
        test_fail(__FILE__, __LINE__, "%s%s%s", sluice_model_error(r->model),
                  sluice_engine_error(r->engine), err.text);
    sluice_model_facts(r->model, &r->facts);
    return is_open;
}

static void rig_close(struct rig *r) {
    sched_close(r->sched);
    sluice_engine_close(r->engine);
    sluice_model_close(r->model);
}

static int32_t prompt[1100];

/* A request for `max_tokens` tokens after n_prompt random ones, sampled greedily, that nothing
 * ends. */
static struct sched_request request_of(const struct rig *r, uint32_t n_prompt,
                                       uint32_t max_tokens) {
    static const int32_t none[1];
    uint64_t x = 1;
    for (uint32_t i = 0; i < n_prompt; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        prompt[i] = (int32_t)((x >> 33) % (uint64_t)r->facts.n_tokens);
    }
    return (struct sched_request){
        .prompt = prompt,
        .n_prompt = n_prompt,
        .max_tokens = max_tokens,
        .sampling = {.top_p = 1, .repeat_penalty = 1},
        .ends = none,
        .on_token = note_token,
        .on_end = note_end,
    };
}

static int submit(struct rig *r, struct result *to, const struct sched_request *q) {
    struct err err = {0};
    *to = (struct result){.sched = r->sched, .request = *q};
    to->request.user = to;
    int status = sched_submit(r->sched, &to->request, &to->id, &err);
    snprintf(to->error, sizeof to->error, "%s", err.text);
    return status;
}

static void submit_plain(struct rig *r, struct result *to, uint32_t n_prompt, uint32_t max_tokens) {
    struct sched_request q = request_of(r, n_prompt, max_tokens);
    EXPECT_INT(submit(r, to, &q), SLUICE_OK);
}

static uint32_t step_all(struct rig *r) {
    uint32_t n = 0;
    for (bool worked = true; worked && n < 100000; n++)
        EXPECT_INT(sched_step(r->sched, &worked), SLUICE_OK);
    return n - 1;
}

TEST(serve_refuses_what_can_never_run_and_says_why) {
    struct rig r;
    struct result out, kept;
    struct sim_options o = options_of(2, 1, 0);
    if (!rig_open(&r, write_tiny("llama"), &o))
        return;
    struct sched_request good = request_of(&r, 1025, 5);
    good.n_prompt = 3;
    struct sched_request bad[9];
    for (int i = 0; i < 9; i++)
        bad[i] = good;
    bad[0].n_prompt = 0;
    bad[1].prompt = NULL;
    bad[2].max_tokens = 0;
    bad[3].prompt = (const int32_t[]){1, r.facts.n_logits, 2};
    bad[4].n_prompt = 1025;
    bad[5].answers = 4;
    bad[6].sampling.n_biases = 1;
    bad[7].n_marks = SCHED_MARKS + 1;
    bad[8].n_marks = 2;
    bad[8].marks[1] = 3;
    static const char *const errors[] = {
        "the prompt is empty, expected tokens",
        "the prompt is empty, expected tokens",
        "0 new tokens, expected at least 1",
        "token 90 at place 1, expected 0 to 89",
        ("the prompt has 1025 tokens, expected at most 1024: the context, or all pages of the KV "
         "cache"),
        "4 answers, expected at most 3",
        "1 logit biases, but their pointer is NULL",
        "5 marks, expected at most 4",
        "a mark after 3 tokens, expected fewer than the prompt's 3",
    };
    for (int i = 0; i < 9; i++) {
        EXPECT_INT(submit(&r, &out, &bad[i]), SLUICE_ERR_ARGUMENT);
        EXPECT_STR(out.error, errors[i]);
        EXPECT_INT(out.id, 0);
    }
    good.answers = 3;
    EXPECT_INT(submit(&r, &kept, &good), SLUICE_OK);
    good.answers = 0;
    EXPECT_INT(submit(&r, &out, &good), SLUICE_ERR_MEMORY);
    EXPECT_STR(out.error, "the queue is full: 3 answers wait or run, expected fewer than 3");
    EXPECT(!sched_cancel(r.sched, 0) && !sched_cancel(r.sched, kept.id + 1));
    step_all(&r);
    EXPECT_INT(kept.n_ended, 3);
    EXPECT_INT(submit(&r, &out, &good), SLUICE_OK);
    rig_close(&r);
}

TEST(serve_ends_where_the_context_is_full) {
    struct rig r;
    struct result out;
    struct sim_options o = options_of(1, 0, 0);
    o.engine.context = 60;
    if (!rig_open(&r, write_tiny("qwen35"), &o))
        return;
    submit_plain(&r, &out, 50, 1000);
    step_all(&r);
    EXPECT_INT(out.report.end, SCHED_END_FULL);
    EXPECT_INT(out.n, 11); /* ten fit after the prompt, and the last needs no place */
    submit_plain(&r, &out, 60, 1);
    step_all(&r);
    EXPECT_INT(out.report.end, SCHED_END_MAX_TOKENS);
    EXPECT_INT(out.n, 1);
    rig_close(&r);
}

static void rows_of(const struct rig *r, uint64_t *rows) {
    struct sluice_counters c;
    sluice_engine_counters(r->engine, &c);
    *rows = c.rows;
}

/* By where they were, as sums that agree with the reports. */
static void expect_counted(const struct rig *r, uint64_t reused) {
    struct sched_counters c;
    sched_counters(r->sched, &c);
    EXPECT_INT(c.reused, reused);
    EXPECT_INT(c.device + c.host + c.disk, reused);
}

/* But for its last token, which every answer needs a row of its own for. */
TEST(serve_reads_a_prompt_once_for_all_its_answers) {
    for (int m = 0; m < N_ARCHS; m++) {
        struct rig r;
        struct result out, alone;
        struct sim_options o = options_of(5, 0, 0);
        uint64_t rows;
        if (!rig_open(&r, write_tiny(archs[m]), &o))
            continue;
        struct sched_request q = request_of(&r, 400, 6);
        q.answers = 5;
        EXPECT_INT(submit(&r, &out, &q), SLUICE_OK);
        step_all(&r);
        rows_of(&r, &rows);
        EXPECT_INT(rows, 399 + 5 * 6);
        EXPECT_INT(out.n, 5 * 6);
        EXPECT_INT(out.report.reuse.tokens, 399);
        EXPECT_INT(out.report.reuse.device, 399);
        expect_counted(&r, 4 * 399);
        submit_plain(&r, &alone, 400, 6);
        step_all(&r);
        expect_counted(&r, 5 * 399);
        EXPECT(memcmp(alone.tokens, out.tokens, 6 * sizeof *alone.tokens) == 0);
        rig_close(&r);
    }
}

static void drop_rows(void *user, const struct sched_rows *rows) {
    (void)user, (void)rows;
}

/* Also when they have to take turns on fewer sequences, and when the first is asked for what comes
 * out of the prompt; with snapshots, where state is recurrent. */
TEST(serve_reads_a_prompt_once_for_answers_in_turns) {
    static const struct {
        uint32_t sequences;
        unsigned reads;
    } cases[] = {{2, 0}, {1, 0}, {5, SLUICE_WANT_HIDDEN}, {2, SLUICE_WANT_ALL_LOGITS}};
    for (uint32_t i = 0; i < 4 * N_ARCHS; i++) {
        struct rig r;
        struct result out;
        struct sim_options o = options_of(cases[i / N_ARCHS].sequences, 5, 0);
        uint64_t rows;
        o.engine.snapshot_bytes = 1 << 20;
        o.engine.hidden = true;
        if (!rig_open(&r, write_tiny(archs[i % N_ARCHS]), &o))
            continue;
        struct sched_request q = request_of(&r, 400, 6);
        q.answers = 5;
        q.reads = cases[i / N_ARCHS].reads;
        q.on_rows = drop_rows;
        EXPECT_INT(submit(&r, &out, &q), SLUICE_OK);
        step_all(&r);
        rows_of(&r, &rows);
        if (rows != 399 + 5 * 6)
            test_fail(__FILE__, __LINE__, "%s, case %u: %llu rows", archs[i % N_ARCHS], i / N_ARCHS,
                      (unsigned long long)rows);
        EXPECT_INT(out.n, 5 * 6);
        rig_close(&r);
    }
}

/* What came out of the tokens of a prompt. */
struct reading {
    struct result result; /* first: note_token and note_end take it for theirs */
    uint32_t width, n_rows, n_steps;
    float sums[700]; /* of a row */
};

static void note_rows(void *user, const struct sched_rows *rows) {
    struct reading *r = user;
    const float *at = rows->logits ? rows->logits : rows->hidden;
    EXPECT_INT(rows->first, r->n_rows); /* each once */
    r->n_rows = rows->first + rows->n;
    r->n_steps++;
    for (uint32_t i = 0; i < rows->n && rows->first + i < 700; i++)
        for (uint32_t k = 0; k < r->width; k++)
            r->sums[rows->first + i] += at[i * r->width + k] * (float)(k + 1);
}

/* One that wants them all is preempted while it reads its prompt: it goes on where it was, and all
 * rows come once, bit for bit those that come without others. */
TEST(serve_reads_on_after_preemption) {
    for (int kind = 0; kind < 2 * N_ARCHS; kind++) {
        struct rig r;
        struct result a;
        static struct reading alone, b;
        struct sim_options o = options_of(2, 0, 0);
        const char *path = write_tiny(archs[kind / 2]);
        o.engine.prefill = 16;
        o.engine.hidden = true;
        o.engine.snapshot_bytes = 1 << 20;
        if (!rig_open(&r, path, &o))
            return;
        o.engine.kv_bytes = 4 * r.engine->state.layout.page_bytes;
        rig_close(&r);
        for (int run = 0; run < 2; run++) {
            struct reading *to = run ? &b : &alone;
            if (!rig_open(&r, path, &o))
                return;
            if (run)
                submit_plain(&r, &a, 240, 300);
            struct sched_request q = request_of(&r, 660, 5);
            q.prompt = prompt + 7;
            q.n_prompt = 600;
            q.reads = kind % 2 ? SLUICE_WANT_ALL_HIDDEN : SLUICE_WANT_ALL_LOGITS;
            q.on_rows = note_rows;
            *to = (struct reading){.width = kind % 2 ? r.facts.width : (uint32_t)r.facts.n_logits};
            EXPECT_INT(submit(&r, &to->result, &q), SLUICE_OK);
            step_all(&r);
            EXPECT(to->n_rows >= 600 && to->result.n == 5);
            rig_close(&r);
        }
        EXPECT(b.result.report.times_preempted > 0);
        EXPECT(b.result.report.n_processed < 600 + 64); /* 895 if it starts over */
        EXPECT(memcmp(alone.sums, b.sums, 600 * sizeof *b.sums) == 0);
        EXPECT(memcmp(alone.result.tokens, b.result.tokens, 5 * sizeof *b.result.tokens) == 0);
    }
}

/* ---- nothing is read twice ---------------------------------------------------------------- */

/* Two requests that begin alike and arrive together: the second waits until the first has read what
 * they share, in full pages, and takes it over. */
TEST(serve_waits_for_a_prefix_that_is_being_read) {
    for (int m = 0; m < N_ARCHS; m++) {
        struct rig r;
        struct result a, b, other;
        struct sim_options o = options_of(4, 0, 0);
        struct sched_counters c;
        uint64_t rows;
        if (!rig_open(&r, write_tiny(archs[m]), &o))
            continue;
        submit_plain(&r, &a, 600, 4);
        struct sched_request q = request_of(&r, 700, 4);
        prompt[600] = (prompt[600] + 1) % 80;
        EXPECT_INT(submit(&r, &b, &q), SLUICE_OK);
        q.prompt = prompt + 1; /* begins otherwise: waits for nobody */
        q.n_prompt = 20;
        EXPECT_INT(submit(&r, &other, &q), SLUICE_OK);
        sched_step(r.sched, NULL);
        sched_counters(r.sched, &c);
        EXPECT(c.running == 2 && c.waiting == 1);
        step_all(&r);
        rows_of(&r, &rows);
        EXPECT(a.n == 4 && b.n == 4);
        EXPECT(b.report.reuse.tokens / IO_PAGE_POSITIONS >= 2);
        EXPECT_INT(b.report.n_processed, 700 + 3 - b.report.reuse.tokens);
        expect_counted(&r, b.report.reuse.tokens);
        EXPECT_INT(rows, 603 + 703 - b.report.reuse.tokens + 23);
        rig_close(&r);
    }
}

/* One that waits for another's prefix starts when that one is cancelled, and reads for itself. */
TEST(serve_waits_for_no_prefix_of_a_cancelled_request) {
    struct rig r;
    struct result a, b;
    struct sim_options o = options_of(4, 0, 0);
    struct sched_counters c;
    if (!rig_open(&r, write_tiny("qwen35"), &o))
        return;
    submit_plain(&r, &a, 900, 4);
    submit_plain(&r, &b, 900, 4);
    sched_step(r.sched, NULL);
    sched_counters(r.sched, &c);
    EXPECT(c.running == 1 && c.waiting == 1);
    EXPECT(sched_cancel(r.sched, a.id));
    sched_step(r.sched, NULL);
    sched_counters(r.sched, &c);
    EXPECT(c.running == 1 && c.waiting == 0 && a.n_ended == 1);
    step_all(&r);
    EXPECT_INT(b.n, 4);
    rig_close(&r);
}

/* Prompts that no page is left for go to host memory and come back from there. */
TEST(serve_counts_what_comes_from_host_memory) {
    for (int m = 0; m < N_ARCHS; m++) {
        struct rig r;
        struct result out, again;
        struct sim_options o = options_of(1, 0, 0);
        o.engine.cache_bytes = 8 << 20;
        o.engine.snapshot_bytes = 40 << 10;
        if (!rig_open(&r, write_tiny(archs[m]), &o))
            continue;
        submit_plain(&r, &out, 700, 4);
        step_all(&r);
        struct sched_request q = request_of(&r, 1000, 4);
        for (int i = 0; i < 3; i++) {
            prompt[0] = (prompt[0] + 1) % 80;
            EXPECT_INT(submit(&r, &out, &q), SLUICE_OK);
            step_all(&r);
        }
        submit_plain(&r, &again, 700, 4);
        step_all(&r);
        const struct sluice_reuse *reuse = &again.report.reuse;
        EXPECT(reuse->tokens > 500 && reuse->host > 0);
        EXPECT_INT(reuse->device + reuse->host + reuse->disk, reuse->tokens);
        EXPECT_INT(again.report.n_processed, 700 + 3 - reuse->tokens);
        expect_counted(&r, reuse->tokens);
        rig_close(&r);
    }
}

/* Nobody waits for a file but the answer that needs it; it does so when it is alone. What comes of
 * it, and what the report says, is the same. */
TEST(serve_reads_files_beside_the_steps_of_others) {
    for (int m = 0; m < N_ARCHS; m++)
        for (int is_alone = 0; is_alone < 2; is_alone++) {
            struct rig r;
            struct result first, other, again;
            struct sched_counters c;
            struct sim_options o = options_of(2, 2, 0);
            char *folder = strdup(test_temporary("serve-fetch"));
            o.engine.cache_dir = folder;
            o.engine.cache_dir_bytes = 64 << 20;
            const char *path = write_tiny(archs[m]);
            if (!rig_open(&r, path, &o))
                continue;
            submit_plain(&r, &first, 700, 4);
            step_all(&r);
            rig_close(&r);
            if (!rig_open(&r, path, &o))
                continue;
            r.engine->state.cache.lower.min_fetch = 0;
            struct sched_request q = request_of(&r, 1000, 300);
            q.prompt = prompt + 701;
            q.n_prompt = 20;
            other = (struct result){0};
            if (!is_alone) {
                EXPECT_INT(submit(&r, &other, &q), SLUICE_OK);
                EXPECT_INT(sched_step(r.sched, NULL), SLUICE_OK);
            }
            submit_plain(&r, &again, 700, 4);
            uint32_t n_before = other.n;
            EXPECT_INT(sched_step(r.sched, NULL), SLUICE_OK);
            sched_counters(r.sched, &c);
            EXPECT_INT(c.running, 1); /* the other one, or it alone */
            EXPECT_INT(c.waiting, !is_alone);
            while (c.waiting && !other.n_ended) { /* no step but brings the other one something */
                EXPECT(other.n > n_before);
                n_before = other.n;
                EXPECT_INT(sched_step(r.sched, NULL), SLUICE_OK);
                sched_counters(r.sched, &c);
            }
            while (!again.n_ended)
                EXPECT_INT(sched_step(r.sched, NULL), SLUICE_OK);
            EXPECT(again.report.reuse.tokens >= 699);
            EXPECT_INT(again.report.reuse.disk, again.report.reuse.tokens);
            EXPECT(memcmp(again.tokens, first.tokens, 4 * sizeof *first.tokens) == 0);
            EXPECT(state_broken(&r.engine->state) == NULL);
            rig_close(&r);
            char command[600];
            snprintf(command, sizeof command, "rm -rf '%s'", folder);
            EXPECT_INT(system(command), 0);
            free(folder);
        }
}

/* Where there are pages for all at full length, all start at once. */
TEST(serve_starts_all_that_can_never_run_out) {
    struct rig r;
    struct result out[8];
    struct sim_options o = options_of(8, 0, 0);
    struct sched_counters c;
    o.engine.context = 100; /* a page for each */
    if (!rig_open(&r, write_tiny("qwen35"), &o))
        return;
    for (int i = 0; i < 8; i++)
        submit_plain(&r, &out[i], 5, 20);
    sched_step(r.sched, NULL);
    sched_counters(r.sched, &c);
    EXPECT_INT(c.running, 8);
    step_all(&r);
    rig_close(&r);
}

/* The report is of an answer's first start; the counters are of all. */
TEST(serve_reports_the_first_start_of_one_preempted) {
    struct rig r;
    struct result a, b;
    struct sim_options o = options_of(2, 0, 0);
    struct sched_counters c;
    const char *path = write_tiny("qwen35");
    if (!rig_open(&r, path, &o))
        return;
    o.engine.kv_bytes = 4 * r.engine->state.layout.page_bytes;
    rig_close(&r);
    if (!rig_open(&r, path, &o))
        return;
    submit_plain(&r, &a, 400, 300);
    struct sched_request q = request_of(&r, 250, 300);
    q.prompt = prompt + 7;
    EXPECT_INT(submit(&r, &b, &q), SLUICE_OK);
    step_all(&r);
    sched_counters(r.sched, &c);
    EXPECT(b.report.times_preempted > 0);
    EXPECT_INT(b.report.reuse.tokens, 0);
    EXPECT(c.reused > 0 && c.device + c.host + c.disk == c.reused);
    EXPECT(b.report.n_processed >= b.report.n_prompt + b.report.n_new - 1);
    rig_close(&r);
}

/* The next turn of a conversation, and one that branches from its first question. */
TEST(serve_next_turn_reads_only_what_is_new) {
    for (int m = 0; m < N_ARCHS; m++) {
        struct rig r;
        struct result first, next, branch;
        struct sim_options o = options_of(2, 0, 0);
        if (!rig_open(&r, write_tiny(archs[m]), &o))
            continue;
        submit_plain(&r, &first, 300, 50);
        step_all(&r);
        struct sched_request q = request_of(&r, 400, 3);
        memcpy(prompt + 300, first.tokens, 50 * sizeof *prompt);
        EXPECT_INT(submit(&r, &next, &q), SLUICE_OK);
        step_all(&r);
        EXPECT_INT(next.report.reuse.tokens, 349); /* the 50th was never fed */
        EXPECT_INT(next.report.n_processed, 400 + 2 - 349);
        prompt[300] = (prompt[300] + 1) % 80;
        EXPECT_INT(submit(&r, &branch, &q), SLUICE_OK);
        step_all(&r);
        EXPECT_INT(branch.report.reuse.tokens, m ? 300 : 299); /* the prompt's end was marked */
        EXPECT_INT(submit(&r, &branch, &q), SLUICE_OK);
        step_all(&r);
        EXPECT_INT(branch.report.reuse.tokens, 399); /* the same prompt again reads one token */
        EXPECT_INT(sluice_engine_forget(r.engine), SLUICE_OK);
        EXPECT(state_broken(&r.engine->state) == NULL);
        EXPECT_INT(submit(&r, &branch, &q), SLUICE_OK);
        step_all(&r);
        EXPECT_INT(branch.report.reuse.tokens, 0);
        rig_close(&r);
    }
}

/* One that goes on from a place that the first was asked to mark, in the middle of its prompt. */
TEST(serve_keeps_snapshots_where_it_was_asked_to) {
    struct rig r;
    struct result first, branch;
    struct sim_options o = options_of(2, 0, 0);
    if (!rig_open(&r, write_tiny("qwen35"), &o))
        return;
    struct sched_request q = request_of(&r, 400, 3);
    q.marks[0] = 333;
    q.marks[1] = 100;
    q.n_marks = 2;
    q.answers = 2;
    EXPECT_INT(submit(&r, &first, &q), SLUICE_OK);
    step_all(&r);
    q.answers = 1;
    for (int i = 0; i < 2; i++) { /* the later place first, as each branch has marks of its own */
        prompt[340 - 200 * i] = (prompt[340 - 200 * i] + 1) % 80;
        EXPECT_INT(submit(&r, &branch, &q), SLUICE_OK);
        step_all(&r);
        EXPECT_INT(branch.report.reuse.tokens, i ? 100 : 333);
    }
    rig_close(&r);
}

TEST(serve_starts_in_order) {
    struct rig r;
    struct result out[6];
    struct sim_options o = options_of(1, 8, 0);
    struct sched_counters c;
    if (!rig_open(&r, write_tiny("llama"), &o))
        return;
    double first = seconds_now();
    for (uint32_t i = 0; i < 6; i++)
        submit_plain(&r, &out[i], 3 + i, 4);
    double later = seconds_now() - first; /* than the first, the last was submitted */
    for (uint32_t i = 0; i < 6; i++)
        while (out[i].n_ended == 0) {
            for (uint32_t k = i + 1; k < 6; k++)
                EXPECT_INT(out[k].n, 0);
            EXPECT_INT(sched_step(r.sched, NULL), SLUICE_OK);
        }
    sched_counters(r.sched, &c);
    EXPECT_INT(c.answers, 6);
    EXPECT_INT(c.tokens, 24);
    EXPECT(out[5].report.start_seconds + later >= out[0].report.seconds);
    rig_close(&r);
}

/* ---- cancel ------------------------------------------------------------------------------- */

TEST(serve_cancel_frees_at_the_next_step) {
    struct rig r;
    struct result a, b, waits, never;
    struct sim_options o = options_of(2, 2, 0);
    struct sched_counters c;
    if (!rig_open(&r, write_tiny("qwen35"), &o))
        return;
    submit_plain(&r, &a, 10, 100);
    submit_plain(&r, &b, 700, 100);
    submit_plain(&r, &waits, 5, 100);
    submit_plain(&r, &never, 5, 100);
    for (int i = 0; i < 3; i++)
        sched_step(r.sched, NULL);
    uint32_t n = a.n;
    EXPECT(n > 0 && waits.n == 0);
    EXPECT(sched_cancel(r.sched, a.id) && sched_cancel(r.sched, b.id));
    EXPECT(sched_cancel(r.sched, never.id) && !sched_cancel(r.sched, never.id));
    EXPECT_INT(a.n_ended + b.n_ended + never.n_ended, 0);
    sched_step(r.sched, NULL);
    EXPECT_INT(a.n, n);
    EXPECT_INT(a.report.end, SCHED_END_CANCELLED);
    EXPECT_INT(a.n_ended + b.n_ended + never.n_ended, 3);
    EXPECT(b.report.n_processed > 0 && b.report.n_processed < 700 && never.report.n_processed == 0);
    EXPECT_INT(waits.n, 1); /* it got the sequence in the same step */
    sched_counters(r.sched, &c);
    EXPECT_INT(c.running, 1);
    EXPECT_INT(r.engine->state.slots[1].is_open, false);
    rig_close(&r); /* ends the last one */
    EXPECT_INT(waits.report.end, SCHED_END_CANCELLED);
}

TEST(serve_callbacks_may_submit_and_cancel) {
    struct rig r;
    struct result a, b, c;
    struct sim_options o = options_of(1, 4, 0);
    if (!rig_open(&r, write_tiny("llama"), &o))
        return;
    submit_plain(&r, &a, 4, 3);
    submit_plain(&r, &b, 4, 3);
    submit_plain(&r, &c, 4, 3);
    a.submits = true;
    a.cancels = &b;
    b.cancels = &c; /* in the middle of the sweep */
    EXPECT_INT(sched_step(r.sched, NULL), SLUICE_OK);
    while (a.n_ended == 0)
        EXPECT_INT(sched_step(r.sched, NULL), SLUICE_OK);
    a.cancels = NULL;
    step_all(&r);
    EXPECT_INT(a.n_ended, 2);
    EXPECT_INT(a.n, 6);
    EXPECT_INT(b.report.end, SCHED_END_CANCELLED);
    EXPECT_INT(c.report.end, SCHED_END_CANCELLED);
    rig_close(&r);
}

/* ---- failures ----------------------------------------------------------------------------- */

TEST(serve_fails_bad_sampling_alone) {
    struct rig r;
    struct result bad, good;
    struct sim_options o = options_of(2, 2, 0);
    if (!rig_open(&r, write_tiny("llama"), &o))
        return;
    struct sched_request q = request_of(&r, 4, 3);
    q.sampling.temperature = -1;
    q.answers = 2;
    EXPECT_INT(submit(&r, &bad, &q), SLUICE_OK);
    submit_plain(&r, &good, 4, 3);
    step_all(&r);
    EXPECT_INT(bad.n_ended, 2);
    EXPECT_INT(bad.report.end, SCHED_END_FAILED);
    EXPECT_INT(bad.report.status, SLUICE_ERR_ARGUMENT);
    EXPECT_STR(bad.error, "temperature is -1, expected 0, or 1e-06 to 100");
    EXPECT_INT(good.report.end, SCHED_END_MAX_TOKENS);
    rig_close(&r);
}

/* A model with a damaged embedding: only requests with that token fail, whenever it comes. */
TEST(serve_fails_the_request_whose_logits_are_not_finite) {
    enum { BAD = 89, N = 9 };
    struct random_model m = random_tiny("qwen35");
    struct err err = {0};
    struct rig r;
    struct result out[N], alone;
    struct sim_options o = options_of(4, N, 0);
    const char *path = test_temporary("damaged.gguf");
    m.damaged = "token_embd.weight";
    m.damaged_row = BAD;
    m.damage = NAN;
    if (random_model_write(&m, path, &err) || !rig_open(&r, path, &o))
        return;
    struct sched_request q = request_of(&r, 120, 20);
    const struct sluice_bias never = {BAD, -INFINITY};
    q.sampling.biases = &never;
    q.sampling.n_biases = 1;
    for (int i = 0; i < 120; i++)
        prompt[i] %= BAD;
    for (int i = 0; i < N; i++) {
        q.n_prompt = 100 + (size_t)i;
        q.answers = i == 6 ? 3 : 0;
        int32_t *last = &prompt[q.n_prompt - 1], kept = *last;
        if (i == 1 || i == 5)
            *last = BAD;
        EXPECT_INT(submit(&r, &out[i], &q), SLUICE_OK);
        *last = kept;
    }
    step_all(&r);
    q.n_prompt = 100;
    q.answers = 0;
    EXPECT_INT(submit(&r, &alone, &q), SLUICE_OK);
    step_all(&r);
    for (int i = 0; i < N; i++) {
        bool fails = i == 1 || i == 5;
        EXPECT_INT(out[i].n_ended, i == 6 ? 3 : 1);
        EXPECT_INT(out[i].report.end, fails ? SCHED_END_FAILED : SCHED_END_MAX_TOKENS);
        EXPECT_INT(out[i].report.status, fails ? SLUICE_ERR_FORMAT : SLUICE_OK);
        EXPECT_INT(out[i].n, fails ? 0 : i == 6 ? 60 : 20);
    }
    EXPECT(memcmp(alone.tokens, out[0].tokens, 20 * sizeof *alone.tokens) == 0);
    rig_close(&r);
}

static int submit_in_vain(struct backend *b, uint32_t plan, struct err *err) {
    (void)b;
    (void)plan;
    return err_set(err, SLUICE_ERR_DEVICE, "the device fell off");
}

TEST(serve_ends_all_when_the_device_fails) {
    struct rig r;
    struct result out[3], late;
    struct sim_options o = options_of(2, 2, 0);
    if (!rig_open(&r, write_tiny("llama"), &o))
        return;
    for (int i = 0; i < 3; i++)
        submit_plain(&r, &out[i], 5, 5);
    EXPECT_INT(sched_step(r.sched, NULL), SLUICE_OK);
    struct backend_kind broken = *r.engine->kind;
    broken.submit = submit_in_vain;
    r.engine->kind = &broken;
    EXPECT_INT(sched_step(r.sched, NULL), SLUICE_ERR_DEVICE);
    for (int i = 0; i < 3; i++) {
        EXPECT_INT(out[i].report.end, SCHED_END_FAILED);
        EXPECT_STR(out[i].error, "the device fell off");
    }
    struct sched_request q = request_of(&r, 5, 5);
    EXPECT_INT(submit(&r, &late, &q), SLUICE_ERR_DEVICE);
    EXPECT_STR(late.error, "the device fell off");
    bool worked;
    EXPECT(sched_step(r.sched, &worked) == SLUICE_OK && !worked);
    rig_close(&r);
}

/* ---- bursts ------------------------------------------------------------------------------- */

/* The CPU with bursts, made of single steps. */
static struct {
    struct backend_kind kind;
    const struct backend_kind *cpu;
    const struct sluice_engine *engine;
    uint32_t n;
} bursts;

static bool has_burst(const struct backend *b, uint32_t plan) {
    (void)b;
    (void)plan;
    return true;
}

/* After a token that ends its burst a sequence stores to the spare cell, where there is one. */
static void stop_one(const struct plan *plan, uint8_t *io, uint32_t output, int32_t token) {
    const struct io_header *header = (const struct io_header *)io;
    const struct io_output *out = (const struct io_output *)(io + plan->io.outputs) + output;
    const struct io_row *row = (const struct io_row *)(io + plan->io.rows) + out->row;
    const uint32_t *keeps =
        (const uint32_t *)(io + plan->io.keeps) + (size_t)output * IO_MASK_WORDS(plan->n_vocab);
    bool is_last = out->flags & IO_KEEPS_MASK && !(keeps[token / 32] >> token % 32 & 1);
    for (uint32_t i = 0; i < header->n_ends; i++)
        is_last |= header->ends[i] == token;
    if (is_last && header->spare_cell != IO_NO_CELL)
        ((struct io_segment *)(io + plan->io.segments))[row->segment].cell =
            ((uint32_t *)(io + plan->io.to))[out->row] = header->spare_cell;
}

/* The last step is left to wait. */
static int submit_burst(struct backend *b, uint32_t number, struct err *err) {
    const struct plan *plan = bursts.engine->plans[number];
    uint8_t *io = bursts.cpu->io(b);
    struct io_header *header = (struct io_header *)io;
    struct io_row *rows = (struct io_row *)(io + plan->io.rows);
    struct io_segment *segments = (struct io_segment *)(io + plan->io.segments);
    struct io_output *outputs = (struct io_output *)(io + plan->io.outputs);
    int32_t *burst = (int32_t *)(io + plan->io.burst);
    int status = bursts.cpu->submit(b, number, err);
    for (uint32_t k = 0; !status && k + 1 < IO_BURST; k++) {
        status = bursts.cpu->wait(b, err);
        header->n_changes = 0;
        for (uint32_t i = 0; i < header->n_outputs; i++) {
            struct io_row *row = &rows[outputs[i].row];
            burst[i * IO_BURST + k] = row->token = outputs[i].token;
            row->position++;
            segments[row->segment].first_position++;
            stop_one(plan, io, i, row->token);
        }
        if (!status)
            status = bursts.cpu->submit(b, number, err);
    }
    bursts.n++;
    return status;
}

static void give_bursts(sluice_engine *engine) {
    bursts.kind = *engine->kind;
    bursts.cpu = engine->kind;
    bursts.engine = engine;
    bursts.n = 0;
    bursts.kind.has_burst = has_burst;
    bursts.kind.submit_burst = submit_burst;
    engine->kind = &bursts.kind;
}

TEST(serve_bursts_when_nobody_waits) {
    struct rig r;
    struct result a, b, c;
    struct sim_options o = options_of(2, 2, 0);
    struct sched_counters count;
    if (!rig_open(&r, write_tiny("qwen35"), &o))
        return;
    give_bursts(r.engine);
    submit_plain(&r, &a, 5, 1 + 8 + 3);
    step_all(&r);
    sched_counters(r.sched, &count);
    EXPECT_INT(a.n, 12);
    EXPECT_INT(count.steps, 12);
    EXPECT_INT(count.submissions, 5); /* the prompt, a burst, three single ones */
    /* With somebody in the queue there are none, nor with prompts to read, nor with logits. */
    submit_plain(&r, &a, 5, 20);
    submit_plain(&r, &b, 5, 20);
    submit_plain(&r, &c, 5, 1);
    uint32_t before = bursts.n;
    while (a.n_ended == 0)
        sched_step(r.sched, NULL);
    EXPECT_INT(bursts.n, before);
    step_all(&r);
    struct sched_request q = request_of(&r, 5, 40);
    q.wants_logits = true;
    EXPECT_INT(submit(&r, &a, &q), SLUICE_OK);
    step_all(&r);
    EXPECT_INT(bursts.n, before);
    /* Nor for a first token, which comes at once. */
    submit_plain(&r, &a, 1, 9);
    EXPECT_INT(sched_step(r.sched, NULL), SLUICE_OK);
    EXPECT_INT(a.n, 1);
    before = bursts.n;
    step_all(&r);
    EXPECT_INT(bursts.n, before + 1);
    before = bursts.n;
    /* Nor where they take too long, once that is known. */
    const struct sched_options brief = {.burst_seconds = 1e-9};
    struct err err;
    sched_close(r.sched);
    EXPECT_INT(sched_open(&r.sched, r.model, r.engine, &brief, &err), SLUICE_OK);
    submit_plain(&r, &a, 5, 60);
    step_all(&r);
    EXPECT_INT(a.n, 60);
    EXPECT(bursts.n <= before + 1);
    rig_close(&r);
}

TEST(serve_simulation_with_bursts) {
    struct sim_options o = options_of(3, 6, 9);
    struct sim sim;
    if (sim_open(&sim, write_tiny("qwen35"), &o)) {
        give_bursts(sim.engine);
        sim_run(&sim, IS_SLOW ? 60 : 300, 9);
        EXPECT(bursts.n > 0);
    }
    sim_close(&sim);
}

/* ---- masks -------------------------------------------------------------------------------- */

/* Two answers of a prompt. They are free for some tokens; then token t has to be followed by one of
 * t + 1 .. t + 3. */
struct masked {
    struct result result; /* first: note_token and note_end take it for theirs */
    uint32_t n_free, n_logits;
    int32_t last[2];
    uint32_t n[2], n_wrong;
    uint32_t mask[64];
};

static bool may_follow(const struct masked *m, int32_t before, int32_t token) {
    int32_t n = (int32_t)m->n_logits;
    return (token - before + n) % n >= 1 && (token - before + n) % n <= 3;
}

static const uint32_t *give_mask(void *user, uint32_t answer) {
    struct masked *m = user;
    if (m->n[answer] < m->n_free)
        return NULL;
    memset(m->mask, 0, sizeof m->mask);
    for (uint32_t i = 0; i < m->n_logits; i++)
        if (may_follow(m, m->last[answer], (int32_t)i))
            m->mask[i / 32] |= 1u << i % 32;
    return m->mask;
}

static bool check_token(void *user, const struct sched_token *t) {
    struct masked *m = user;
    if (m->n[t->answer] >= m->n_free)
        m->n_wrong += !may_follow(m, m->last[t->answer], t->token);
    m->last[t->answer] = t->token;
    m->n[t->answer]++;
    return note_token(user, t);
}

/* With bursts beside them and before them, and preempted for lack of pages. */
TEST(serve_answers_obey_their_masks) {
    for (int kind = 0; kind < 2 + 2 * IO_BURST;
         kind++) { /* masks begin after every step of a burst */
        struct rig r;
        struct result plain[3];
        struct sched_counters count;
        struct sim_options o = options_of(5, 8, 0);
        static struct masked alone, m;
        const char *path = write_tiny(archs[kind % 2]);
        if (!rig_open(&r, path, &o))
            return;
        o.engine.kv_bytes = 4 * r.engine->state.layout.page_bytes; /* all together need 7 */
        rig_close(&r);
        if (!rig_open(&r, path, &o))
            return;
        give_bursts(r.engine);
        struct sched_request q = request_of(&r, 200, 90);
        q.on_token = check_token;
        q.on_mask = give_mask;
        q.answers = 2;
        q.sampling.temperature = 1;
        for (int run = 0; run < 2; run++) {
            struct masked *to = run ? &m : &alone;
            *to = (struct masked){.n_free = kind < 2 ? 0 : 5 + (uint32_t)kind / 2,
                                  .n_logits = (uint32_t)r.facts.n_tokens};
            for (int i = 0; run && i < 3; i++)
                submit_plain(&r, &plain[i], 250, 100);
            EXPECT_INT(submit(&r, &to->result, &q), SLUICE_OK);
            step_all(&r);
            EXPECT_INT(to->result.n, 180);
            EXPECT_INT(to->n_wrong, 0);
        }
        sched_counters(r.sched, &count);
        EXPECT(count.preempted > 0);
        EXPECT(memcmp(alone.last, m.last, sizeof m.last) == 0);
        EXPECT(bursts.n > 0 || kind < 2);
        EXPECT(sched_broken(r.sched) == NULL);
        /* One that allows nothing fails its answer alone. */
        m = (struct masked){.n_free = 0, .n_logits = 0};
        EXPECT_INT(submit(&r, &m.result, &q), SLUICE_OK);
        submit_plain(&r, &plain[0], 5, 5);
        step_all(&r);
        EXPECT_INT(m.result.report.end, SCHED_END_FAILED);
        EXPECT_INT(plain[0].report.end, SCHED_END_MAX_TOKENS);
        rig_close(&r);
    }
}

/* Answers of two kinds of text, as inside and outside of strings: every seventh token changes the
 * kind. Those of kind 0 have no multiples of 3 besides, those of kind 1 have them alone. */
struct kinds {
    struct result result; /* first: note_token and note_end take it for theirs */
    uint32_t n_tokens, n_wrong, kind;
    uint32_t mask[64], keeps[64];
};

static bool fits_kind(const struct kinds *k, uint32_t token) {
    return token % 7 == 0 || (token % 3 == 0) == (k->kind == 1);
}

static const uint32_t *give_kind(void *user, uint32_t answer) {
    struct kinds *k = user;
    (void)answer;
    memset(k->mask, 0, sizeof k->mask);
    for (uint32_t i = 0; i < k->n_tokens; i++)
        if (fits_kind(k, i))
            k->mask[i / 32] |= 1u << i % 32;
    return k->mask;
}

static const uint32_t *give_keeps(void *user, uint32_t answer) {
    struct kinds *k = user;
    (void)answer;
    memset(k->keeps, 0, sizeof k->keeps);
    for (uint32_t i = 0; i < k->n_tokens; i++)
        if (i % 7 != 0)
            k->keeps[i / 32] |= 1u << i % 32;
    return k->keeps;
}

static bool check_kind(void *user, const struct sched_token *t) {
    struct kinds *k = user;
    k->n_wrong += !fits_kind(k, (uint32_t)t->token);
    k->kind ^= t->token % 7 == 0;
    return note_token(user, t);
}

/* Bursts under a mask stop where it changes, and give the tokens of single steps. */
TEST(serve_masks_that_hold_have_bursts) {
    enum { ANSWERS = 3, TOKENS = 90 };
    for (int kind = 0; kind < 2; kind++) {
        struct rig r;
        struct sim_options o = options_of(ANSWERS, 0, 0);
        static struct kinds runs[2][ANSWERS];
        uint32_t n_bursts[2];
        if (!rig_open(&r, write_tiny(archs[kind]), &o))
            return;
        give_bursts(r.engine);
        for (int run = 0; run < 2; run++) {
            uint32_t before = bursts.n;
            struct sched_request q = request_of(&r, 9, TOKENS);
            q.on_token = check_kind;
            q.on_mask = give_kind;
            q.on_keeps = run ? give_keeps : NULL;
            q.sampling.temperature = 1;
            for (int i = 0; i < ANSWERS; i++) {
                q.sampling.seed = (uint64_t)i;
                runs[run][i] = (struct kinds){.n_tokens = (uint32_t)r.facts.n_tokens};
                EXPECT_INT(submit(&r, &runs[run][i].result, &q), SLUICE_OK);
            }
            step_all(&r);
            n_bursts[run] = bursts.n - before;
        }
        for (int i = 0; i < ANSWERS; i++) {
            const struct result *one = &runs[0][i].result, *other = &runs[1][i].result;
            EXPECT_INT(other->n, TOKENS);
            EXPECT_INT(runs[1][i].n_wrong, 0);
            EXPECT(memcmp(one->tokens, other->tokens, TOKENS * sizeof *one->tokens) == 0);
        }
        EXPECT_INT(n_bursts[0], 0);
        EXPECT(n_bursts[1] > 5);
        EXPECT(sched_broken(r.sched) == NULL);
        rig_close(&r);
    }
}

/* ---- what is sampled ---------------------------------------------------------------------- */

/* A model with a vocabulary: its own end tokens count unless others are given. */
TEST(serve_knows_end_tokens) {
    const char *path = test_data("reference/qwen35-dense-a/model-f32.gguf");
    struct rig r;
    struct result out;
    struct sim_options o = options_of(1, 0, 0);
    if (!rig_open(&r, path, &o))
        return;
    int32_t end = 0;
    while (!sluice_token_is_end(r.model, end))
        end++;
    const struct sluice_bias always = {end, 1e9f};
    struct sched_request q = request_of(&r, 5, 7);
    q.sampling.biases = &always;
    q.sampling.n_biases = 1;
    EXPECT_INT(submit(&r, &out, &q), SLUICE_OK);
    step_all(&r);
    EXPECT_INT(out.n, 7);
    q.ends = NULL;
    EXPECT_INT(submit(&r, &out, &q), SLUICE_OK);
    step_all(&r);
    EXPECT_INT(out.n, 0);
    EXPECT_INT(out.report.end, SCHED_END_TOKEN);
    EXPECT_INT(out.report.end_token, end);
    rig_close(&r);
}

/* ---- memory ------------------------------------------------------------------------------- */

/* Short requests, of all kinds. */
static void run_many(struct rig *r, uint32_t n) {
    static struct result out[12];
    struct sched_request q = request_of(r, 40, 1);
    for (uint32_t i = 0; i < n; i++) {
        struct result *to = &out[i % 12];
        q.n_prompt = 1 + i * 7 % 40;
        q.max_tokens = 1 + i % 4;
        q.answers = i % 5 ? 1 : 3;
        while (submit(r, to, &q))
            EXPECT_INT(sched_step(r->sched, NULL), SLUICE_OK);
        if (i % 9 == 0)
            EXPECT(sched_cancel(r->sched, to->id));
        if (i % 3 == 0)
            EXPECT_INT(sched_step(r->sched, NULL), SLUICE_OK);
    }
    step_all(r);
}

TEST(serve_leaks_nothing_over_10000_requests) {
    struct rig r;
    struct sim_options o = options_of(4, 8, 0);
    struct sched_counters c;
    if (!rig_open(&r, write_tiny("llama"), &o))
        return;
    run_many(&r, 100);
    size_t before = mallinfo2().uordblks;
    const uint32_t n = IS_SLOW ? 1000 : 10000; /* a sanitizer looks by itself, at the end */
    run_many(&r, n - 100);
    if (!IS_SLOW) /* less than a byte a request: the allocator keeps some of what was freed */
        EXPECT(mallinfo2().uordblks < before + n / 2);
    sched_counters(r.sched, &c);
    EXPECT_INT(c.requests, n);
    EXPECT_INT(c.answers, n + n / 5 * 2);
    struct sluice_pages pages;
    sluice_engine_pages(r.engine, &pages);
    EXPECT_INT(pages.free, pages.total);
    rig_close(&r);
}

#if !IS_SLOW /* a sanitizer has its own allocator */
extern atomic_ullong n_allocations;

TEST(serve_step_allocates_nothing) {
    struct rig r;
    struct result out[8];
    struct sim_options o = options_of(4, 8, 0);
    bool worked = true;
    if (!rig_open(&r, write_tiny("qwen35"), &o))
        return;
    for (uint32_t i = 0; i < 8; i++)
        submit_plain(&r, &out[i], 1 + 50 * i, 30);
    unsigned long long before = n_allocations;
    while (worked)
        sched_step(r.sched, &worked);
    EXPECT_INT(n_allocations, before);
    rig_close(&r);
}

/* Nor do the threads of the tiers, when conversations go to host memory and disk and come back. */
TEST(serve_step_with_tiers_allocates_nothing) {
    struct rig r;
    struct result out[8];
    struct sched_counters c;
    struct sluice_counters moved;
    struct sim_options o = options_of(2, 8, 0);
    const char *folder = strdup(test_temporary("serve-tiers"));
    o.engine.snapshot_bytes = 100 << 10;
    o.engine.cache_bytes = 400 << 10; /* a part of it all: the rest is on disk alone */
    o.engine.cache_dir = folder;
    o.engine.cache_dir_bytes = 64 << 20;
    if (!rig_open(&r, write_tiny("qwen35"), &o))
        return;
    unsigned long long n = 0;
    for (uint32_t round = 0; round < 3; round++) {
        struct sched_request q = request_of(&r, 900, 4);
        for (uint32_t i = 0; i < 8; i++) {
            prompt[0] = (int32_t)i;
            EXPECT_INT(submit(&r, &out[i], &q), SLUICE_OK);
        }
        bool worked = true;
        unsigned long long before = n_allocations;
        while (worked)
            sched_step(r.sched, &worked);
        n += n_allocations - before;
    }
    EXPECT_INT(n, 0);
    sched_counters(r.sched, &c);
    sluice_engine_counters(r.engine, &moved);
    EXPECT(moved.spilled > 8 && c.host + c.disk > 0);
    test_note("%llu spilled; tokens from the device %llu, host %llu, disk %llu",
              (unsigned long long)moved.spilled, (unsigned long long)c.device,
              (unsigned long long)c.host, (unsigned long long)c.disk);
    rig_close(&r);
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    EXPECT_INT(system(command), 0);
    free((char *)folder);
}
#endif
