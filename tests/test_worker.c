/* test_worker.c - the worker's thread: tokens, cancelling, thinking with a budget; and answers made
 * of its tokens. */
#include <math.h>

#include "base/clock.h"
#include "grammar/texts.h"
#include "random_model.h"
#include "serve/answer.h"
#include "test.h"

/* ---- a worker on a tiny model ------------------------------------------------------------- */

struct rig {
    sluice_model *model;
    sluice_engine *engine;
    struct worker *worker;
    struct metrics metrics;
};

static bool rig_open_for(struct rig *r, uint32_t sequences) {
    const struct random_model m = random_tiny("qwen35");
    const char *path = test_temporary("worker");
    struct sluice_engine_options o = sluice_engine_options_default();
    struct err err = {0};
    o.backend = "cpu";
    o.threads = 1;
    o.context = 256;
    o.sequences = o.batch = sequences;
    o.hidden = true;
    *r = (struct rig){0};
    metrics_begin(&r->metrics);
    bool is_good = !random_model_write(&m, path, &err) && !sluice_model_open(&r->model, path) &&
                   !sluice_engine_open(&r->engine, r->model, &o);
    const struct worker_options options = {r->model, r->engine, 4, &r->metrics, false};
    is_good = is_good && !worker_open(&r->worker, &options, &err);
    if (!is_good)
        test_fail(__FILE__, __LINE__, "%s%s", err.text, sluice_engine_error(r->engine));
    return is_good;
}

static bool rig_open(struct rig *r) {
    return rig_open_for(r, 4);
}

static void rig_close(struct rig *r) {
    worker_close(r->worker);
    sluice_engine_close(r->engine);
    sluice_model_close(r->model);
}

/* A job and what came of it. */
struct watch {
    struct job job; /* first */
    atomic_bool is_released;
    struct watch *first; /* or NULL; whether that one was released before: */
    atomic_bool is_after;
    pthread_mutex_t *gate; /* or NULL; while it is locked, the worker waits at the first token */
};

static void on_wake(struct job *job) {
    struct watch *w = (struct watch *)job;
    if (w->gate) {
        pthread_mutex_lock(w->gate);
        pthread_mutex_unlock(w->gate);
    }
}

static void on_release(struct job *job) {
    struct watch *w = (struct watch *)job;
    w->is_after = w->first && w->first->is_released;
    atomic_store(&w->is_released, true);
}

static uint64_t count_of(const struct histogram *h) {
    uint64_t n = 0;
    for (int i = 0; i <= h->n_bounds; i++)
        n += h->counts[i];
    return n;
}

static const int32_t prompt_tokens[] = {3, 5, 8, 13, 21, 34};
static const struct job_prompt prompt = {.tokens = prompt_tokens, .n = 6};

static void watch_begin(struct watch *w, uint32_t max_tokens) {
    memset(w, 0, sizeof *w);
    job_begin(&w->job);
    w->job.prompts = &prompt;
    w->job.n_prompts = 1;
    w->job.max_tokens = max_tokens;
    w->job.ignores_ends = true;
    w->job.sampling = sluice_sampling_default(NULL);
    w->job.sampling.seed = 11;
    w->job.wake = on_wake;
    w->job.release = on_release;
}

static void wait_for(const struct watch *w) {
    const struct timespec nap = {.tv_nsec = 1000 * 1000};
    double end = seconds_now() + 300;
    while (!w->is_released && seconds_now() < end)
        nanosleep(&nap, NULL);
    EXPECT(w->is_released);
}

/* Runs the job; its tokens of choice 0, at most `max_tokens`. */
static uint32_t run(struct rig *r, struct watch *w, int32_t *tokens, uint32_t max_tokens) {
    struct err err = {0};
    struct job_news news = {0};
    uint32_t n = 0, n_ends = 0;
    EXPECT_INT(worker_submit(r->worker, &w->job, &err), SLUICE_OK);
    wait_for(w);
    job_take(&w->job, &news);
    EXPECT(news.is_over && news.is_accepted);
    for (size_t i = 0; i < news.n_events; i++) {
        n_ends += news.events[i].token == JOB_END;
        if (news.events[i].choice == 0 && news.events[i].token != JOB_END && n < max_tokens)
            tokens[n++] = news.events[i].token;
    }
    EXPECT_INT(n_ends, w->job.n_choices);
    job_news_free(&news);
    return n;
}

TEST(serve_worker_hands_out_all_answers) {
    struct rig r;
    struct watch one, several;
    int32_t a[32], b[32];
    if (rig_open(&r)) {
        watch_begin(&one, 20);
        watch_begin(&several, 20);
        several.job.answers = 3;
        several.job.n_top = 2;
        EXPECT_INT(run(&r, &one, a, 32), 20);
        EXPECT_INT(run(&r, &several, b, 32), 20);
        EXPECT(memcmp(a, b, 20 * sizeof *a) == 0);
        EXPECT_INT(one.job.ends[0].report.n_new, 20);
        EXPECT_INT(one.job.ends[0].report.end, SCHED_END_MAX_TOKENS);
        job_free(&one.job);
        job_free(&several.job);
    }
    rig_close(&r);
}

/* Hidden states of all the prompt's tokens, (n, 32), by an engine of its own. */
static void read_hidden(sluice_model *model, const struct job_prompt *p, float *out) {
    struct sluice_engine_options o = sluice_engine_options_default();
    const float *at;
    uint32_t rows, n = 0;
    sluice_engine *engine = NULL;
    sluice_seq *seq = NULL;
    o.backend = "cpu";
    o.threads = 1;
    o.context = 256;
    o.hidden = true;
    EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_OK);
    EXPECT_INT(sluice_seq_open(&seq, engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_want(seq, SLUICE_WANT_ALL_HIDDEN), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(seq, p->tokens, p->n), SLUICE_OK);
    while (n < p->n && !sluice_engine_step(engine, NULL) && !sluice_seq_hidden(seq, &at, &rows)) {
        memcpy(out + (size_t)n * 32, at, rows * 32 * sizeof *at);
        n += rows;
    }
    EXPECT_INT(n, p->n);
    sluice_engine_close(engine);
}

/* Runs a job over two prompts, without an answer. */
static void pool_hidden(struct rig *r, struct watch *w, const struct job_prompt prompts[2],
                        bool is_mean, float *found) {
    watch_begin(w, 1);
    w->job.prompts = prompts;
    w->job.n_prompts = 2;
    w->job.hidden = found;
    w->job.pools_mean = is_mean;
    run(r, w, NULL, 0);
}

extern atomic_size_t failing_bytes; /* sanitizers have their own allocators: there nothing fails */

/* No token is handed out without the log probabilities that were asked for: the answer fails. */
TEST(serve_worker_fails_when_memory_runs_out) {
    enum { N_TOP = 77 };
    for (int of_prompt = 0; of_prompt < 2; of_prompt++) {
        struct job_logprobs *logprobs[6] = {NULL};
        const struct job_prompt told = {prompt_tokens, 6, of_prompt ? logprobs : NULL};
        const size_t bytes = sizeof **logprobs + N_TOP * sizeof *logprobs[0]->top;
        void *volatile probe;
        struct rig r;
        struct watch w;
        int32_t tokens[32];
        if (!rig_open(&r))
            return;
        watch_begin(&w, 20);
        w.job.prompts = &told;
        w.job.n_top = N_TOP;
        atomic_store(&failing_bytes, bytes);
        probe = malloc(bytes);
        bool fails = !probe;
        free(probe);
        uint32_t n = run(&r, &w, tokens, 32);
        atomic_store(&failing_bytes, 0);
        EXPECT_INT(n, fails ? 0 : 20);
        EXPECT_INT(w.job.ends[0].report.end, fails ? SCHED_END_FAILED : SCHED_END_MAX_TOKENS);
        EXPECT_INT(w.job.ends[0].report.status, fails ? SLUICE_ERR_MEMORY : SLUICE_OK);
        EXPECT_STR(w.job.ends[0].error, fails ? "out of memory for a token" : "");
        for (int i = 0; i < 6; i++)
            free(logprobs[i]);
        job_free(&w.job);
        rig_close(&r);
    }
}

TEST(serve_worker_pools_hidden_states) {
    int32_t tokens[40];
    const struct job_prompt prompts[] = {{.tokens = prompt_tokens, .n = 6},
                                         {.tokens = tokens, .n = 40}};
    float rows[40 * 32];
    struct rig r;
    for (int i = 0; i < 40; i++)
        tokens[i] = 3 + i * 7 % 80;
    for (int round = 0; rig_open(&r) && round < 3; round++, rig_close(&r)) {
        float found[2 * 32] = {0};
        bool is_mean = round > 0;
        struct watch w;
        pool_hidden(&r, &w, prompts, is_mean, found);
        if (round == 2) { /* what is known by now makes no difference */
            job_free(&w.job);
            pool_hidden(&r, &w, prompts, true, found);
        }
        for (int p = 0; p < 2; p++) {
            size_t n = prompts[p].n;
            double worst = 0;
            read_hidden(r.model, &prompts[p], rows);
            for (int i = 0; i < 32; i++) {
                double sum = 0;
                for (size_t k = is_mean ? 0 : n - 1; k < n; k++)
                    sum += (double)rows[k * 32 + (size_t)i];
                worst =
                    fmax(worst, fabs(sum / (is_mean ? (double)n : 1) - (double)found[p * 32 + i]));
            }
            EXPECT(worst < (is_mean ? 1e-5 : 1e-30));
        }
        job_free(&w.job);
    }
    rig_close(&r);
}

TEST(serve_worker_refuses_and_cancels) {
    struct rig r;
    struct watch running[8], many, more;
    struct err err = {0};
    struct worker_state state;
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    if (rig_open(&r)) {
        watch_begin(&many, 10);
        many.job.answers = 9;
        EXPECT_INT(worker_submit(r.worker, &many.job, &err), SLUICE_ERR_ARGUMENT);
        pthread_mutex_lock(&gate); /* none of them ends before all are there */
        for (int i = 0; i < 8; i++) {
            watch_begin(&running[i], 200);
            running[i].gate = &gate;
            EXPECT_INT(worker_submit(r.worker, &running[i].job, &err), SLUICE_OK);
        }
        watch_begin(&more, 10);
        EXPECT_INT(worker_submit(r.worker, &more.job, &err), SLUICE_ERR_MEMORY);
        for (int i = 0; i < 8; i++)
            worker_cancel(&running[i].job);
        pthread_mutex_unlock(&gate);
        for (int i = 0; i < 8; i++) {
            wait_for(&running[i]);
            job_free(&running[i].job);
        }
        worker_state(r.worker, &state);
        EXPECT_INT(state.n_answers, 0);
        job_free(&many.job);
        job_free(&more.job);
    }
    rig_close(&r);
    pthread_mutex_destroy(&gate);
}

/* More prompts than there is room for: one follows another, and others find room beside them. */
TEST(serve_worker_takes_many_prompts) {
    enum { MANY = 40 };
    static const int how[] = {0, 1, 2}; /* they run, are cancelled, the worker closes */
    struct job_prompt prompts[MANY];
    for (int i = 0; i < MANY; i++)
        prompts[i] = (struct job_prompt){.tokens = prompt_tokens, .n = 1 + (size_t)i % 6};
    for (size_t k = 0; k < sizeof how / sizeof *how; k++) {
        struct rig r;
        struct watch many, one;
        struct err err = {0};
        struct worker_state state;
        struct job_news news = {0};
        pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
        uint32_t n_ends = 0, n_whole = 0;
        if (!rig_open(&r))
            return;
        watch_begin(&many, 3);
        watch_begin(&one, 3);
        many.job.prompts = prompts;
        many.job.n_prompts = MANY;
        many.job.answers = 2;
        many.gate = &gate;
        pthread_mutex_lock(&gate);
        EXPECT_INT(worker_submit(r.worker, &many.job, &err), SLUICE_OK);
        do /* until it has started, and waits at the gate */
            worker_state(r.worker, &state);
        while (state.sched.running == 0);
        EXPECT_INT(worker_submit(r.worker, &one.job, &err), SLUICE_OK);
        worker_state(r.worker, &state);
        EXPECT_INT(state.n_answers, 5);
        if (how[k] == 1)
            worker_cancel(&many.job);
        pthread_mutex_unlock(&gate);
        if (how[k] == 2)
            worker_stop(r.worker);
        wait_for(&many);
        wait_for(&one);
        job_take(&many.job, &news);
        for (size_t i = 0; i < news.n_events; i++)
            n_ends += news.events[i].token == JOB_END;
        for (uint32_t i = 0; i < 2 * MANY; i++)
            n_whole += many.job.ends[i].report.end == SCHED_END_MAX_TOKENS;
        EXPECT(news.is_over && news.is_accepted);
        EXPECT_INT(n_ends, 2 * MANY);
        EXPECT(how[k] == 0 ? n_whole == 2 * MANY : how[k] == 2 || n_whole < 2 * MANY);
        worker_state(r.worker, &state);
        EXPECT_INT(state.n_answers, 0);
        job_news_free(&news);
        job_free(&many.job);
        job_free(&one.job);
        rig_close(&r);
        pthread_mutex_destroy(&gate);
    }
}

TEST(serve_worker_ends_thinking_by_its_budget) {
    static const int32_t closing[] = {7, 9};
    struct rig r;
    struct watch free_, bound;
    int32_t a[64], b[64];
    if (rig_open(&r)) {
        watch_begin(&free_, 5);
        EXPECT_INT(run(&r, &free_, a, 64), 5);
        watch_begin(&bound, 20);
        bound.job.thinking = (struct job_thinking){.budget = 5,
                                                   .is_open = true,
                                                   .open = 89,
                                                   .close = 7,
                                                   .closing = closing,
                                                   .n_closing = 2};
        EXPECT_INT(run(&r, &bound, b, 64), 20);
        EXPECT(memcmp(a, b, 5 * sizeof *a) == 0);
        EXPECT_INT(b[5], 7);
        EXPECT_INT(b[6], 9);
        EXPECT_INT(bound.job.ends[0].report.n_new, 20);
        EXPECT_INT(bound.job.ends[0].report.n_prompt, 6);
        job_free(&free_.job);
        job_free(&bound.job);
    }
    rig_close(&r);
}

/* What is processed for an answer whose thinking is cut, with log probabilities of its prompt or
 * without. */
static uint32_t n_processed_with_budget(bool wants_logprobs) {
    static const int32_t closing[] = {7, 9};
    enum { LONG = 100 };
    int32_t tokens[LONG], out[64];
    struct job_logprobs *logprobs[LONG] = {0};
    struct job_prompt p = {tokens, LONG, wants_logprobs ? logprobs : NULL};
    struct rig r;
    struct watch w;
    uint32_t n = 0;
    for (int i = 0; i < LONG; i++)
        tokens[i] = 3 + i % 80;
    if (rig_open(&r)) {
        watch_begin(&w, 20);
        w.job.prompts = &p;
        w.job.n_top = 1;
        w.job.thinking = (struct job_thinking){.budget = 5,
                                               .is_open = true,
                                               .open = 89,
                                               .close = 7,
                                               .closing = closing,
                                               .n_closing = 2};
        EXPECT_INT(run(&r, &w, out, 64), 20);
        n = w.job.ends[0].report.n_processed;
        for (int i = 1; i < LONG; i++)
            EXPECT(!wants_logprobs || (logprobs[i] && logprobs[i]->logprob <= 0));
        for (int i = 0; i < LONG; i++)
            free(logprobs[i]);
        job_free(&w.job);
    }
    rig_close(&r);
    return n;
}

TEST(serve_worker_reads_a_prompt_once_where_thinking_is_cut) {
    uint32_t n = n_processed_with_budget(false);
    EXPECT(n >= 100 + 20 - 1 && n < 200);
    EXPECT_INT(n_processed_with_budget(true), n);
}

/* Its second part neither waits for those that came later nor counts as an answer of its own. */
TEST(serve_worker_keeps_the_place_of_thinking_that_was_cut) {
    static const int32_t closing[] = {7, 9};
    struct rig r;
    struct watch thinks, waits;
    struct err err = {0};
    struct worker_state state;
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    if (rig_open_for(&r, 1)) {
        watch_begin(&thinks, 60);
        watch_begin(&waits, 60);
        thinks.job.thinking = (struct job_thinking){.budget = 30,
                                                    .is_open = true,
                                                    .open = 89,
                                                    .close = 7,
                                                    .closing = closing,
                                                    .n_closing = 2};
        thinks.gate = &gate;
        waits.first = &thinks;
        pthread_mutex_lock(&gate);
        EXPECT_INT(worker_submit(r.worker, &thinks.job, &err), SLUICE_OK);
        EXPECT_INT(worker_submit(r.worker, &waits.job, &err), SLUICE_OK);
        pthread_mutex_unlock(&gate);
        wait_for(&thinks);
        wait_for(&waits);
        const struct sched_report *t = &thinks.job.ends[0].report;
        EXPECT(waits.is_after);
        EXPECT(0 < t->start_seconds && t->start_seconds <= t->first_seconds &&
               t->first_seconds < t->seconds);
        EXPECT(t->steps >= 58); /* all but what was put in */
        worker_state(r.worker, &state);
        EXPECT_INT(state.sched.requests, 2);
        EXPECT_INT(state.sched.answers, 2);
        EXPECT_INT(count_of(&r.metrics.first_token), 2);
        EXPECT_INT(count_of(&r.metrics.whole), 2);
        job_free(&thinks.job);
        job_free(&waits.job);
    }
    rig_close(&r);
}

/* Where the end of the thinking finds no room in the context it is not put in. */
TEST(serve_worker_thinks_to_the_end_of_the_context) {
    static const int32_t closing[] = {7, 9};
    int32_t tokens[256], out[64];
    struct rig r;
    struct watch w;
    for (int i = 0; i < 256; i++)
        tokens[i] = 3 + i % 80;
    if (rig_open(&r)) {
        for (uint32_t n = 245; n <= 256; n++) {
            const struct job_prompt p = {.tokens = tokens, .n = n};
            watch_begin(&w, 256);
            w.job.prompts = &p;
            w.job.thinking = (struct job_thinking){.budget = 4,
                                                   .is_open = true,
                                                   .open = 89,
                                                   .close = 7,
                                                   .closing = closing,
                                                   .n_closing = 2};
            EXPECT_INT(run(&r, &w, out, 64), 257 - n);
            EXPECT_INT(w.job.ends[0].report.end, SCHED_END_FULL);
            job_free(&w.job);
        }
    }
    rig_close(&r);
}

/* What ends thinking is no part of what has to follow the grammar. */
TEST(serve_worker_follows_a_format_after_thinking_that_was_cut) {
    static const int32_t closing[] = {7, 9};
    struct rig r;
    struct watch w;
    struct err err = {0};
    struct grammar *grammar;
    struct token_texts *texts;
    struct str words[90];
    int32_t tokens[32];
    static const char gbnf[] = "root ::= [x] [y] [x] [y] [x]";
    for (int i = 0; i < 90; i++)
        words[i] = i == 50 ? STR("x") : i == 60 ? STR("y") : STR("other");
    EXPECT_INT(grammar_of_gbnf(&grammar, gbnf, sizeof gbnf - 1, &err), SLUICE_OK);
    EXPECT_INT(token_texts_make(&texts, words, 90, NULL, 0, &err), SLUICE_OK);
    const struct format format = {grammar, texts};
    if (rig_open(&r)) {
        watch_begin(&w, 20);
        w.job.format = &format;
        w.job.thinking = (struct job_thinking){.budget = 3,
                                               .is_open = true,
                                               .open = 89,
                                               .close = 7,
                                               .closing = closing,
                                               .n_closing = 2};
        EXPECT_INT(run(&r, &w, tokens, 32), 3 + 2 + 5);
        for (int i = 0; i < 7; i++)
            EXPECT_INT(tokens[3 + i], i < 2 ? closing[i] : i % 2 ? 60 : 50);
        EXPECT_INT(w.job.ends[0].report.end, SCHED_END_STOPPED);
        job_free(&w.job);
    }
    rig_close(&r);
    token_texts_close(texts);
    grammar_close(grammar);
}

/* x, then a rule that is the next one twice, and so on: too much to follow, and said so. */
TEST(serve_worker_ends_what_is_too_much_to_follow) {
    enum { LEVELS = 2000 };
    static char gbnf[LEVELS * 32];
    struct rig r;
    struct watch w, other;
    struct err err = {0};
    struct grammar *grammar;
    struct token_texts *texts;
    struct str words[90];
    int32_t tokens[32];
    size_t n = (size_t)sprintf(gbnf, "root ::= \"x\" r0\n");
    for (int i = 0; i < LEVELS; i++)
        n += (size_t)sprintf(gbnf + n, "r%d ::= r%d r%d\n", i, i + 1, i + 1);
    n += (size_t)sprintf(gbnf + n, "r%d ::= \"x\"?\n", LEVELS);
    for (int i = 0; i < 90; i++)
        words[i] = i == 50 ? STR("x") : STR("other");
    EXPECT_INT(grammar_of_gbnf(&grammar, gbnf, n, &err), SLUICE_OK);
    EXPECT_INT(token_texts_make(&texts, words, 90, NULL, 0, &err), SLUICE_OK);
    const struct format format = {grammar, texts};
    if (rig_open(&r)) {
        watch_begin(&w, 20);
        watch_begin(&other, 20);
        w.job.format = &format;
        EXPECT_INT(worker_submit(r.worker, &other.job, &err), SLUICE_OK);
        EXPECT_INT(run(&r, &w, tokens, 32), 0);
        EXPECT_INT(w.job.ends[0].report.end, SCHED_END_FAILED);
        EXPECT_INT(w.job.ends[0].report.status, SLUICE_ERR_UNSUPPORTED);
        EXPECT_STR(w.job.ends[0].error, "the grammar can be read in too many ways: what comes next "
                                        "takes more than 1048576 steps to find");
        wait_for(&other);
        EXPECT_INT(other.job.ends[0].report.end, SCHED_END_MAX_TOKENS);
        job_free(&w.job);
        job_free(&other.job);
    }
    rig_close(&r);
    token_texts_close(texts);
    grammar_close(grammar);
}

/* A task: how many answers there were when it was run, and whether the engine could be used. */
struct note {
    struct worker_task task; /* first */
    struct worker *worker;
    atomic_int n_runs;
    uint32_t n_answers;
    bool has_engine;
};

static void run_note(struct worker_task *task, bool has_engine) {
    struct note *n = (struct note *)task;
    struct worker_state state;
    worker_state(n->worker, &state);
    n->n_answers = state.n_answers;
    n->has_engine = has_engine;
    n->n_runs++;
}

TEST(serve_worker_runs_tasks_when_nothing_is_asked) {
    struct rig r;
    struct watch w;
    struct note notes[2], late;
    struct err err = {0};
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    const struct timespec nap = {.tv_nsec = 1000 * 1000};
    if (rig_open(&r)) {
        watch_begin(&w, 20);
        w.gate = &gate;
        pthread_mutex_lock(&gate);
        EXPECT_INT(worker_submit(r.worker, &w.job, &err), SLUICE_OK);
        for (int i = 0; i < 2; i++) {
            notes[i] = (struct note){.task.run = run_note, .worker = r.worker};
            worker_add_task(r.worker, &notes[i].task);
        }
        EXPECT_INT(notes[0].n_runs, 0);
        pthread_mutex_unlock(&gate);
        wait_for(&w);
        for (double end = seconds_now() + 300; !notes[1].n_runs && seconds_now() < end;)
            nanosleep(&nap, NULL);
        for (int i = 0; i < 2; i++)
            EXPECT(notes[i].n_runs == 1 && notes[i].n_answers == 0 && notes[i].has_engine);
        worker_stop(r.worker);
        late = (struct note){.task.run = run_note, .worker = r.worker, .has_engine = true};
        worker_add_task(r.worker, &late.task);
        EXPECT(late.n_runs == 1 && !late.has_engine);
        job_free(&w.job);
    }
    rig_close(&r);
    pthread_mutex_destroy(&gate);
}

TEST(serve_worker_closes_with_jobs_that_run) {
    struct rig r;
    struct watch w, late;
    struct err err = {0};
    if (rig_open(&r)) {
        watch_begin(&w, 200);
        watch_begin(&late, 200);
        EXPECT_INT(worker_submit(r.worker, &w.job, &err), SLUICE_OK);
        worker_stop(r.worker);
        EXPECT(w.is_released);
        EXPECT_INT(worker_submit(r.worker, &late.job, &err), SLUICE_ERR_CANCELLED);
        job_free(&w.job);
        job_free(&late.job);
    }
    rig_close(&r);
}

/* ---- answers ------------------------------------------------------------------------------ */

static void note_delta(void *user, struct answer *a, const struct answer_delta *delta) {
    struct buffer *all = user;
    static const char *const names[] = {"C", "R", "T"};
    (void)a;
    buffer_puts(all, names[delta->kind]);
    if (delta->kind == DELTA_CALL)
        buffer_puts(all, delta->call->name);
    else
        buffer_add(all, delta->text.at, delta->text.len);
}

/* What an answer with this text is split into. */
static void expect_split(const struct ask_model *m, const struct ask *ask, const char *text,
                         const char *reasoning, const char *content, size_t n_calls) {
    struct answer a = {0};
    struct buffer deltas = {0};
    struct job_end end = {.report = {.end = SCHED_END_TOKEN}};
    int32_t tokens[512];
    size_t n = 0;
    EXPECT_INT(sluice_encode(m->model, text, strlen(text), 0, tokens, 512, &n), SLUICE_OK);
    EXPECT_INT(answer_open(&a, m, ask, 0, note_delta, &deltas), SLUICE_OK);
    for (size_t i = 0; i < n; i++)
        answer_add_token(&a, tokens[i], NULL);
    answer_end(&a, &end);
    buffer_add(&a.reasoning, "", 1);
    buffer_add(&a.content, "", 1);
    EXPECT_STR(a.reasoning.at, reasoning);
    EXPECT_STR(a.content.at, content);
    EXPECT_INT(a.n_calls, n_calls);
    EXPECT_INT(a.finish, n_calls ? FINISH_CALLS : FINISH_END);
    answer_close(&a);
    buffer_free(&deltas);
}

/* The grammar of a text of 100,000 letters, asked for twice; what is kept then takes so much. */
static size_t ask_for_large(struct formats *f, int number) {
    enum { N = 100000 };
    static char text[N + 64];
    struct format *one, *again;
    struct err err = {0};
    int n = snprintf(text, sizeof text, "root ::= \"%d", number);
    memset(text + n, 'a', N);
    snprintf(text + n + N, sizeof text - (size_t)n - N, "\"");
    EXPECT_INT(formats_find(f, FORMAT_GBNF, str_of(text), &one, &err), SLUICE_OK);
    EXPECT_INT(formats_find(f, FORMAT_GBNF, str_of(text), &again, &err), SLUICE_OK);
    EXPECT(one == again);
    format_release(one);
    format_release(again);
    return formats_bytes(f);
}

/* There is an end to the bytes that are kept, and the one asked for last is among them. */
TEST(serve_formats_keep_so_many_bytes) {
    sluice_model *model;
    if (sluice_model_open(&model, "models/stories-27m-q4_k_m.gguf"))
        test_fail(__FILE__, __LINE__, "%s", sluice_model_error(model));
    struct formats *f = formats_open(model, 1);
    size_t alone = ask_for_large(f, 0);
    EXPECT(alone > 1 << 20);
    for (int i = 1; i < 4; i++)
        EXPECT_INT(ask_for_large(f, i), alone);
    formats_close(f);
    f = formats_open(model, 3 * alone + alone / 2);
    for (int i = 0; i < 8; i++)
        EXPECT_INT(ask_for_large(f, i), alone * (i < 3 ? (size_t)i + 1 : 3));
    formats_close(f);
    sluice_model_close(model);
}

TEST(serve_answer_splits_thinking_and_calls) {
    sluice_model *model;
    struct ask_model m = {0};
    if (sluice_model_open(&model, "models/stories-27m-q4_k_m.gguf"))
        test_fail(__FILE__, __LINE__, "%s", sluice_model_error(model));
    ask_model_fill(&m, model);
    m.think_open = m.think_close = m.facts.n_tokens; /* as of a model that thinks */
    struct ask ask = {.messages = json_array(), .n = 1};
    static const char call[] = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    char text[256];
    expect_split(&m, &ask, "Hello.", "", "Hello.", 0);
    expect_split(&m, &ask, "<think>\nhm, so\n</think>\n\nHello.", "hm, so", "Hello.", 0);
    expect_split(&m, &ask, " \n<think>a < b</think>c", "a < b", "c", 0);
    expect_split(&m, &ask, "<think></think>\n\nHello\n\nyou.", "", "Hello\n\nyou.", 0);
    expect_split(&m, &ask, "<think>never ends \n", "never ends \n", "", 0);
    expect_split(&m, &ask, "<thi", "", "<thi", 0);
    expect_split(&m, &ask, "Say <think>x</think>", "", "Say <think>x</think>", 0);
    expect_split(&m, &ask, call, "", call, 0); /* no tools were given */
    ask.tools = json_loads("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", 0, NULL);
    expect_split(&m, &ask, call, "", "", 1);
    snprintf(text, sizeof text, "<think>I call %s now</think>\nYes.\n%s", call, call);
    char reasoning[128];
    snprintf(reasoning, sizeof reasoning, "I call %s now", call);
    expect_split(&m, &ask, text, reasoning, "Yes.", 1); /* never inside of thinking */
    ask.starts_thinking = true;
    expect_split(&m, &ask, "hm\n</think>\n\nHello.", "hm", "Hello.", 0);
    expect_split(&m, &ask, "\nhm", "hm", "", 0);
    json_decref(ask.tools);
    json_decref(ask.messages);
    sluice_model_close(model);
}
