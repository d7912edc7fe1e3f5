/* test_engine_cancel.c - sluice_engine_cancel: calls return soon, and what was fed goes on to the
 * same bits wherever it was cut off. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "engine/engine.h"
#include "sluice.h"
#include "test.h"

static const char *const models[] = {
    "reference/qwen35-dense-a/model-f32.gguf",
    "reference/llama-a/model-q8_0.gguf",
    "reference/qwen35-moe-a/model-f32.gguf",
};
enum { N_MODELS = sizeof models / sizeof *models, N_SEQS = 3, N_PROMPT = 70, N_NEW = 12 };

struct rig {
    sluice_model *model;
    sluice_engine *engine;
    struct sluice_facts facts;
};

static bool rig_open(struct rig *r, const char *path, const struct sluice_engine_options *o) {
    *r = (struct rig){0};
    int status = sluice_model_open(&r->model, path);
    if (!status)
        status = sluice_engine_open(&r->engine, r->model, o);
    if (status)
        test_fail(__FILE__, __LINE__, "%s%s", sluice_model_error(r->model),
                  sluice_engine_error(r->engine));
    else
        sluice_model_facts(r->model, &r->facts);
    return !status;
}

static void rig_close(struct rig *r) {
    sluice_engine_close(r->engine);
    sluice_model_close(r->model);
}

static struct sluice_engine_options options_for(uint32_t sequences) {
    struct sluice_engine_options o = sluice_engine_options_default();
    o.backend = "cpu";
    o.context = 128;
    o.sequences = o.batch = sequences;
    o.prefill = 48;
    o.threads = 2;
    return o;
}

static sluice_seq *open_seq(struct rig *r, uint32_t number) {
    sluice_seq *seq = NULL;
    int32_t tokens[N_PROMPT];
    struct sluice_sampling s = sluice_sampling_default(r->model);
    s.temperature = 1;
    s.top_p = 1;
    s.frequency_penalty = 0.5f; /* counts of tokens matter */
    s.seed = number;
    for (uint32_t i = 0; i < N_PROMPT; i++)
        tokens[i] = (int32_t)((i * 37 + number * 101) % (uint32_t)r->facts.n_tokens);
    EXPECT_INT(sluice_seq_open(&seq, r->engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_set_sampling(seq, &s), SLUICE_OK);
    EXPECT_INT(sluice_seq_want(seq, SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(seq, tokens, N_PROMPT - number), SLUICE_OK);
    return seq;
}

/* ---- the same bits ------------------------------------------------------------------------ */

struct result {
    int32_t tokens[N_SEQS][N_NEW];
    float *logits; /* (N_SEQS, n_logits) after the last token */
    uint32_t n_cancelled;
};

/* One step, and a look at what every sequence got from it. */
static int step_all(struct rig *r, sluice_seq *seqs[N_SEQS], uint32_t n[N_SEQS],
                    struct result *out) {
    int status = sluice_engine_step(r->engine, NULL);
    if (status)
        return status;
    for (uint32_t i = 0; i < N_SEQS; i++) {
        int32_t token = sluice_seq_token(seqs[i]);
        if (token < 0 || n[i] == N_NEW)
            continue;
        const float *logits;
        uint32_t rows;
        EXPECT_INT(sluice_seq_logits(seqs[i], &logits, &rows), SLUICE_OK);
        EXPECT_INT(rows, 1);
        out->tokens[i][n[i]++] = token;
        size_t width = (size_t)r->facts.n_logits;
        memcpy(out->logits + i * width, logits, width * sizeof *logits);
        if (n[i] < N_NEW)
            EXPECT_INT(sluice_seq_feed(seqs[i], &token, 1), SLUICE_OK);
    }
    return status;
}

static void generate(struct rig *r, struct result *out) {
    sluice_seq *seqs[N_SEQS];
    uint32_t n[N_SEQS] = {0}, n_done = 0;
    out->logits = calloc(N_SEQS * (size_t)r->facts.n_logits, sizeof *out->logits);
    out->n_cancelled = 0;
    for (uint32_t i = 0; i < N_SEQS; i++)
        seqs[i] = open_seq(r, i);
    for (int round = 0; n_done < N_SEQS * N_NEW && round < 100000; round++) {
        int status = step_all(r, seqs, n, out);
        n_done = n[0] + n[1] + n[2];
        out->n_cancelled += status == SLUICE_ERR_CANCELLED;
        if (status)
            EXPECT_INT(status, SLUICE_ERR_CANCELLED);
        const char *broken = state_broken(&r->engine->state);
        if (broken)
            test_fail(__FILE__, __LINE__, "%s", broken);
    }
    EXPECT_INT(n_done, N_SEQS * N_NEW);
    for (uint32_t i = 0; i < N_SEQS; i++)
        sluice_seq_close(seqs[i]);
}

/* Cancels at random moments, less and less often and not for ever, so that steps can finish. */
enum { MAX_CANCELS = 120 };
struct canceller {
    sluice_engine *engine;
    pthread_t thread;
    atomic_bool is_over;
    uint64_t random, max_ns;
};

static void *cancel_now_and_then(void *context) {
    struct canceller *c = context;
    for (int i = 0; i < MAX_CANCELS && !atomic_load(&c->is_over); i++) {
        c->random = c->random * 6364136223846793005u + 1442695040888963407u;
        uint64_t ns = (c->random >> 33) % c->max_ns;
        nanosleep(&(struct timespec){0, (long)ns}, NULL);
        sluice_engine_cancel(c->engine);
        c->max_ns += c->max_ns / 16; /* 0.3 s in the end */
    }
    return NULL;
}

static void expect_same(const struct rig *r, const struct result *found,
                        const struct result *expected, const char *model) {
    size_t bytes = N_SEQS * (size_t)r->facts.n_logits * sizeof(float);
    if (memcmp(found->tokens, expected->tokens, sizeof found->tokens) != 0)
        test_fail(__FILE__, __LINE__, "%s: other tokens after cancelling", model);
    if (memcmp(found->logits, expected->logits, bytes) != 0)
        test_fail(__FILE__, __LINE__, "%s: other logits after cancelling", model);
}

TEST(engine_cancelled_anywhere_goes_on_to_the_same_bits) {
    uint32_t n_cancelled = 0;
    for (int m = 0; m < N_MODELS; m++)
        for (int with_snapshots = 0; with_snapshots < 2; with_snapshots++) {
            struct rig r;
            struct sluice_engine_options o = options_for(N_SEQS);
            o.snapshot_every = 32;
            o.snapshot_bytes = with_snapshots ? 64 << 20 : 0;
            if (!rig_open(&r, test_data(models[m]), &o))
                return;
            struct result expected, found;
            generate(&r, &expected);
            struct canceller c = {.engine = r.engine, .random = (uint64_t)m, .max_ns = 200000};
            pthread_create(&c.thread, NULL, cancel_now_and_then, &c);
            generate(&r, &found);
            atomic_store(&c.is_over, true);
            pthread_join(c.thread, NULL);
            expect_same(&r, &found, &expected, models[m]);
            n_cancelled += found.n_cancelled;
            free(expected.logits);
            free(found.logits);
            rig_close(&r);
        }
    EXPECT(n_cancelled > 20);
    test_note("%u steps cancelled", n_cancelled);
}

/* ---- who reports it ----------------------------------------------------------------------- */

TEST(engine_cancel_is_reported_once) {
    struct rig r;
    struct sluice_engine_options o = options_for(1);
    uint32_t n = 7, waiting;
    int32_t token = 77;
    if (!rig_open(&r, test_data(models[0]), &o))
        return;
    sluice_engine_cancel(NULL);
    sluice_engine_cancel(r.engine);
    sluice_engine_cancel(r.engine);
    EXPECT_INT(sluice_engine_step(r.engine, &n), SLUICE_ERR_CANCELLED); /* nothing waits */
    EXPECT_INT(n, 0);
    EXPECT(strstr(sluice_engine_error(r.engine), "cancelled"));
    EXPECT_INT(sluice_engine_step(r.engine, &n), SLUICE_OK);
    sluice_seq *seq = open_seq(&r, 0);
    sluice_engine_cancel(r.engine);
    EXPECT_INT(sluice_engine_burst(r.engine, 8, &n), SLUICE_ERR_CANCELLED);
    EXPECT_INT(n, 0);
    sluice_engine_cancel(r.engine);
    EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_ERR_CANCELLED);
    EXPECT_INT(token, 77);
    sluice_seq_tokens(seq, NULL, &n, &waiting);
    EXPECT_INT(n, N_PROMPT);
    EXPECT_INT(waiting, N_PROMPT);
    EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
    EXPECT(token >= 0 && token < r.facts.n_tokens);
    rig_close(&r);
}

/* ---- how soon ----------------------------------------------------------------------------- */

static sluice_engine *interrupted;
static double cancelled_at; /* in processor time, which other programs do not take */

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void on_alarm(int number) {
    (void)number;
    cancelled_at = processor_seconds();
    sluice_engine_cancel(interrupted);
}

/* Sanitizers are slow: there a small model's step is long enough. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WIDE_MODEL "synth:qwen35-tiny:q4_0"
#else
#define WIDE_MODEL "synth:smollm2-135m:q4_0"
#endif

/* From a signal handler, in the middle of a step of 1024 rows, which takes many times as long as
 * the bound. */
TEST(engine_cancel_stops_a_wide_step_soon) {
    struct rig r;
    struct sluice_engine_options o = options_for(1);
    enum { N = 1024 };
    int32_t tokens[N], token;
    double worst = 0;
    o.context = o.prefill = N;
    if (!rig_open(&r, WIDE_MODEL, &o))
        return;
    for (uint32_t i = 0; i < N; i++)
        tokens[i] = (int32_t)(i * 7 % (uint32_t)r.facts.n_tokens);
    sluice_seq *seq;
    EXPECT_INT(sluice_seq_open(&seq, r.engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(seq, tokens, N), SLUICE_OK);
    interrupted = r.engine;
    struct sigaction action = {.sa_handler = on_alarm}, before;
    sigaction(SIGALRM, &action, &before);
    for (int i = 0; i < 5; i++) {
        const struct timespec delay = {0, 30000000 + i * 25000000};
        timer_t timer;
        EXPECT_INT(timer_create(CLOCK_PROCESS_CPUTIME_ID, NULL, &timer), 0);
        timer_settime(timer, 0, &(struct itimerspec){.it_value = delay}, NULL);
        EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_ERR_CANCELLED);
        double late = processor_seconds() - cancelled_at;
        worst = late > worst ? late : worst;
        timer_delete(timer);
    }
    sigaction(SIGALRM, &before, NULL);
    EXPECT(worst < 0.5);
    test_note("cancelled after %.1f ms at most", worst * 1e3);
    rig_close(&r);
}
