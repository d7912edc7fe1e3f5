/* sched_sim.h - a simulation of users: thousands of requests through a scheduler, each checked
 * token by token against a cold run of its own.
 *
 * Prompts come from a small set, in which many begin alike. For each of them and for each seed a
 * sequence of another engine, alone in it, gives the tokens that must come out, and a checksum of
 * the logits that each was sampled from. Requests arrive at random, want a random number of tokens
 * and answers, are cancelled from outside or from their own callback, stop in the middle. Used on
 * the CPU by test_serve.c and on a device by rig/test_device_serve.c. */
#ifndef TESTS_SCHED_SIM_H
#define TESTS_SCHED_SIM_H

#include "engine/engine.h"
#include "serve/scheduler.h"
#include "sluice.h"
#include "test.h"

enum { SIM_PROMPTS = 24, SIM_SEEDS = 3, SIM_MAX_NEW = 560, SIM_MAX_PROMPT = 700 };

struct sim_prompt {
    int32_t tokens[SIM_MAX_PROMPT];
    uint32_t n;
    /* Of the cold runs, by seed; they do not end. */
    int32_t expected[SIM_SEEDS][SIM_MAX_NEW];
    uint64_t logits[SIM_SEEDS][SIM_MAX_NEW]; /* checksums */
};

struct sim {
    sluice_model *model;
    sluice_engine *engine;
    struct sched *sched;
    struct sluice_facts facts;
    struct sim_prompt prompts[SIM_PROMPTS];
    uint64_t random;
    uint64_t steps;
    uint32_t n_live; /* answers */
    uint32_t max_new, n_prompts;
    bool compares_logits;
    /* Counted. */
    uint32_t n_accepted, n_ended, n_full, ends[SCHED_END_FAILED + 1];
    uint64_t max_steps; /* that an answer took, from its submission on ... */
    uint64_t bound;     /* ... and at most this much for each that was there before it, see below */
};

/* One request, and what must become of it. */
struct sim_job {
    struct sim *sim;
    const struct sim_prompt *prompt;
    uint64_t id;
    uint32_t answers, max_tokens;
    bool wants_logits;
    int32_t end;                 /* the token that ends it; -1: none does */
    uint32_t stop_at, cancel_at; /* tokens of an answer after which it does so; 0: never */
    bool is_cancelled;
    uint32_t n[SIM_SEEDS];
    bool has_ended[SIM_SEEDS];
    uint64_t submitted;
    uint32_t n_before; /* answers in the scheduler when it was submitted */
};

struct sim_options {
    struct sluice_engine_options engine;
    uint32_t queue;
    uint32_t min_prompt; /* but for a few that are short */
    uint32_t max_prompt; /* up to SIM_MAX_PROMPT */
    uint32_t max_new;    /* up to SIM_MAX_NEW */
    uint32_t pages;      /* of the KV cache; 0: enough for all */
    uint32_t prompts;    /* of which each has three cold runs; 0: SIM_PROMPTS */
    uint32_t prefill;    /* of the cold runs; 0: 256 */
    uint64_t seed;
};

static uint32_t sim_draw(struct sim *sim, uint32_t n) {
    sim->random = sim->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((sim->random >> 33) % n);
}

/* ---- cold runs ---------------------------------------------------------------------------- */

static uint64_t sim_checksum(const float *logits, int32_t n) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        sum = (sum ^ bits) * 0x100000001b3u;
    }
    return sum;
}

static struct sluice_sampling sim_sampling(uint64_t seed) {
    return (struct sluice_sampling){.temperature = 1.2f,
                                    .top_p = 1,
                                    .repeat_penalty = 1.1f,
                                    .frequency_penalty = 0.1f,
                                    .seed = seed};
}

static uint64_t sim_seed(const struct sim *sim, const struct sim_prompt *p) {
    return 100 * (uint64_t)(p - sim->prompts);
}

static bool sim_cold_run(struct sim *sim, sluice_engine *engine, struct sim_prompt *p,
                         uint32_t seed) {
    sluice_seq *seq;
    const float *logits;
    uint32_t rows;
    struct sluice_sampling sampling = sim_sampling(sim_seed(sim, p) + seed);
    bool is_fine = !sluice_seq_open(&seq, engine) && !sluice_seq_set_sampling(seq, &sampling) &&
                   !sluice_seq_want(seq, SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS) &&
                   !sluice_seq_feed(seq, p->tokens, p->n);
    for (uint32_t i = 0; is_fine && i < sim->max_new; i++) {
        is_fine = !sluice_seq_next(seq, &p->expected[seed][i]) &&
                  !sluice_seq_logits(seq, &logits, &rows) && rows == 1;
        if (is_fine)
            p->logits[seed][i] = sim_checksum(logits, sim->facts.n_logits);
    }
    if (!is_fine)
        test_fail(__FILE__, __LINE__, "cold run: %s", sluice_engine_error(engine));
    sluice_seq_close(seq);
    return is_fine;
}

/* Random tokens, many of them after the beginning of an earlier prompt. */
static void sim_make_prompt(struct sim *sim, uint32_t number, uint32_t min, uint32_t max) {
    struct sim_prompt *p = &sim->prompts[number];
    const struct sim_prompt *other = number ? &sim->prompts[sim_draw(sim, number)] : p;
    uint32_t common = number && sim_draw(sim, 3) ? sim_draw(sim, other->n + 1) : 0;
    p->n = 1 + (sim_draw(sim, 4) ? min + sim_draw(sim, max - min) : sim_draw(sim, 8));
    for (uint32_t i = 0; i < p->n; i++)
        p->tokens[i] =
            i < common ? other->tokens[i] : (int32_t)sim_draw(sim, (uint32_t)sim->facts.n_tokens);
}

static bool sim_make_prompts(struct sim *sim, const struct sim_options *o) {
    struct sluice_engine_options alone = o->engine;
    sluice_engine *engine = NULL;
    alone.sequences = alone.batch = 1;
    alone.prefill = o->prefill ? o->prefill : 256;
    bool is_fine = !sluice_engine_open(&engine, sim->model, &alone);
    if (!is_fine)
        test_fail(__FILE__, __LINE__, "%s", sluice_engine_error(engine));
    for (uint32_t i = 0; is_fine && i < sim->n_prompts; i++) {
        sim_make_prompt(sim, i, o->min_prompt, o->max_prompt);
        for (uint32_t seed = 0; is_fine && seed < SIM_SEEDS; seed++)
            is_fine = sim_cold_run(sim, engine, &sim->prompts[i], seed);
    }
    sluice_engine_close(engine);
    return is_fine;
}

/* ---- open and close ----------------------------------------------------------------------- */

/* The engine, with as many pages as wanted. */
static bool sim_open_engine(struct sim *sim, const struct sim_options *o) {
    struct sluice_engine_options options = o->engine;
    if (sluice_engine_open(&sim->engine, sim->model, &options))
        return false;
    if (o->pages == 0)
        return true;
    options.kv_bytes = o->pages * sim->engine->state.layout.page_bytes;
    sluice_engine_close(sim->engine);
    return !sluice_engine_open(&sim->engine, sim->model, &options);
}

/* Steps that the oldest answer of all takes at most. First it waits for a sequence and for pages:
 * nothing starts before it, and of those that run at least one goes on by a token, or is preempted,
 * in a step. Then it runs itself; others are preempted when it finds no page. Prompts take turns,
 * so it may get a row only once in as many steps as there are sequences. */
static uint64_t sim_bound(const struct sim_options *o) {
    uint64_t n = o->engine.sequences;
    return n * ((n + 1) * (o->max_prompt + o->max_new) + 2 * n);
}

static bool sim_open(struct sim *sim, const char *path, const struct sim_options *o) {
    const struct sched_options options = {.queue = o->queue};
    struct err err = {0};
    memset(sim, 0, sizeof *sim);
    sim->random = o->seed;
    sim->compares_logits = true;
    sim->max_new = o->max_new;
    sim->n_prompts = o->prompts ? o->prompts : SIM_PROMPTS;
    sim->bound = sim_bound(o);
    bool is_fine = !sluice_model_open(&sim->model, path) && sim_open_engine(sim, o) &&
                   !sched_open(&sim->sched, sim->model, sim->engine, &options, &err);
    if (!is_fine)
        test_fail(__FILE__, __LINE__, "%s%s%s", sluice_model_error(sim->model),
                  sluice_engine_error(sim->engine), err.text);
    sluice_model_facts(sim->model, &sim->facts);
    return is_fine && sim_make_prompts(sim, o);
}

static void sim_close(struct sim *sim) {
    sched_close(sim->sched);
    sluice_engine_close(sim->engine);
    sluice_model_close(sim->model);
}

/* ---- a request ---------------------------------------------------------------------------- */

static bool sim_on_token(void *user, const struct sched_token *t) {
    struct sim_job *job = user;
    struct sim *sim = job->sim;
    uint32_t i = job->n[t->answer]++;
    EXPECT_INT(t->request, job->id);
    EXPECT_INT(t->index, i);
    EXPECT(!job->is_cancelled && !job->has_ended[t->answer]);
    EXPECT_INT(t->token, job->prompt->expected[t->answer][i]);
    EXPECT_INT(t->logits != NULL, job->wants_logits);
    if (t->logits && sim->compares_logits)
        EXPECT(sim_checksum(t->logits, sim->facts.n_logits) == job->prompt->logits[t->answer][i]);
    if (job->cancel_at == i + 1) {
        EXPECT(sched_cancel(sim->sched, job->id));
        job->is_cancelled = true;
    }
    return job->stop_at != i + 1;
}

/* How many tokens an answer must get, and why it ends there, when nobody cancels it. */
static uint32_t sim_length(const struct sim_job *job, uint32_t answer, enum sched_end *why) {
    for (uint32_t i = 0; i < job->max_tokens; i++) {
        if (job->prompt->expected[answer][i] == job->end) {
            *why = SCHED_END_TOKEN;
            return i;
        }
        if (job->stop_at == i + 1) {
            *why = SCHED_END_STOPPED;
            return i + 1;
        }
    }
    *why = SCHED_END_MAX_TOKENS;
    return job->max_tokens;
}

static void sim_on_end(void *user, const struct sched_report *r) {
    struct sim_job *job = user;
    struct sim *sim = job->sim;
    enum sched_end why;
    uint32_t n = sim_length(job, r->answer, &why);
    EXPECT(!job->has_ended[r->answer]);
    job->has_ended[r->answer] = true;
    EXPECT_STR(r->error, "");
    EXPECT_INT(r->n_new, job->n[r->answer]);
    EXPECT_INT(r->n_prompt, job->prompt->n);
    if (r->end != SCHED_END_CANCELLED || !job->is_cancelled) {
        EXPECT_INT(r->end, why);
        EXPECT_INT(r->n_new, n);
        EXPECT_INT(r->end_token, why == SCHED_END_TOKEN ? job->end : -1);
    }
    EXPECT(r->first_seconds <= r->seconds && r->start_seconds <= r->seconds);
    sim->ends[r->end]++;
    sim->n_ended++;
    sim->n_live--;
    uint64_t steps = sim->steps - job->submitted;
    EXPECT(steps <= (job->n_before + 1) * sim->bound);
    if (steps > sim->max_steps)
        sim->max_steps = steps;
}

/* A job like any other; the caller may change it before it is submitted. */
static struct sim_job sim_job(struct sim *sim) {
    struct sim_job job = {
        .sim = sim,
        .prompt = &sim->prompts[sim_draw(sim, sim->n_prompts)],
        .answers = sim_draw(sim, 4) ? 1 : 1 + sim_draw(sim, SIM_SEEDS),
        .max_tokens = 1 + sim_draw(sim, sim->max_new),
        .wants_logits = sim_draw(sim, 8) == 0,
        .end = -1,
        .stop_at = sim_draw(sim, 10) ? 0 : 1 + sim_draw(sim, sim->max_new),
        .cancel_at = sim_draw(sim, 10) ? 0 : 1 + sim_draw(sim, sim->max_new),
    };
    if (sim_draw(sim, 8) == 0)
        job.end = job.prompt->expected[0][sim_draw(sim, sim->max_new)];
    return job;
}

/* Submits; false: the queue was full, as it must be then and only then. */
static bool sim_submit(struct sim_job *job, uint32_t capacity) {
    struct sim *sim = job->sim;
    struct err err = {0};
    const struct sched_request request = {
        .prompt = job->prompt->tokens,
        .n_prompt = job->prompt->n,
        .max_tokens = job->max_tokens,
        .answers = job->answers,
        .sampling = sim_sampling(sim_seed(sim, job->prompt)),
        .ends = &job->end,
        .n_ends = job->end >= 0,
        .wants_logits = job->wants_logits,
        .on_token = sim_on_token,
        .on_end = sim_on_end,
        .user = job,
    };
    bool is_full = sim->n_live + job->answers > capacity;
    int status = sched_submit(sim->sched, &request, &job->id, &err);
    EXPECT_INT(status, is_full ? SLUICE_ERR_MEMORY : SLUICE_OK);
    EXPECT(!status || strstr(err.text, "queue is full"));
    EXPECT((job->id != 0) == (status == 0));
    job->submitted = sim->steps;
    job->n_before = sim->n_live;
    sim->n_accepted += status ? 0 : job->answers;
    sim->n_live += status ? 0 : job->answers;
    sim->n_full += status != 0;
    return !status;
}

/* Cancels it from outside. */
static void sim_cancel(struct sim_job *job) {
    bool is_live = false;
    for (uint32_t i = 0; i < job->answers; i++)
        is_live |= job->id && !job->has_ended[i];
    bool is_new = is_live && !job->is_cancelled;
    EXPECT_INT(sched_cancel(job->sim->sched, job->id), is_new);
    job->is_cancelled |= is_new;
}

static void sim_step(struct sim *sim) {
    bool worked, has_live = sim->n_live > 0;
    EXPECT_INT(sched_step(sim->sched, &worked), SLUICE_OK);
    EXPECT_INT(worked, has_live);
    sim->steps++;
    const char *broken = sched_broken(sim->sched);
    EXPECT_STR(broken ? broken : "", "");
}

/* Runs n jobs that arrive at random: on average about as many as are worked off. */
static void sim_run(struct sim *sim, uint32_t n, uint32_t capacity) {
    struct sim_job *jobs = calloc(n, sizeof *jobs);
    uint32_t next = 0;
    while (next < n || sim->n_live > 0) {
        for (uint32_t k = sim_draw(sim, 5) ? 0 : sim_draw(sim, 4); k > 0 && next < n; k--) {
            jobs[next] = sim_job(sim);
            next += sim_submit(&jobs[next], capacity);
        }
        if (next > 0 && sim_draw(sim, 2 * sim->max_new) == 0)
            sim_cancel(&jobs[next - 1 - sim_draw(sim, next < 30 ? next : 30)]);
        sim_step(sim);
    }
    EXPECT_INT(sim->n_ended, sim->n_accepted); /* none is lost */
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < jobs[i].answers; k++)
            EXPECT(jobs[i].has_ended[k]);
    free(jobs);
}

#endif
