/* test_engine.c - the engine through its public face: the same bits however sequences are cut,
 * batched, forked, rewound or saved; memory known to the byte; nothing allocated in a step. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "engine/engine.h"
#include "random_model.h"
#include "sluice.h"
#include "test.h"

#define STORIES "models/stories-27m-q4_k_m.gguf"

/* ---- a guard over allocations -----------------------------------------------------------------
 *
 * Sanitizers have their own allocators; there the guard is off. */

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#endif

atomic_ullong n_allocations; /* other tests look at it too */
atomic_size_t failing_bytes; /* and set this: a malloc of exactly this size fails; 0: none does */
static __attribute__((unused)) atomic_ullong mapped_bytes;

#ifndef IS_SANITIZED
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);

void *malloc(size_t n) {
    atomic_fetch_add(&n_allocations, 1);
    return n > 0 && n == atomic_load(&failing_bytes) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
    atomic_fetch_add(&n_allocations, 1);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    atomic_fetch_add(&n_allocations, 1);
    return __libc_realloc(p, n);
}

/* Counts what is anonymous and may be written: regions, not files. */
void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    atomic_fetch_add(&n_allocations, 1);
    if ((flags & MAP_ANONYMOUS) && (protection & PROT_WRITE))
        atomic_fetch_add(&mapped_bytes, n);
    return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}
#endif

/* ---- helpers ------------------------------------------------------------------------------ */

struct rig {
    sluice_model *model;
    sluice_engine *engine;
    struct sluice_facts facts;
};

static bool rig_open_file(struct rig *r, const char *full,
                          const struct sluice_engine_options *options) {
    *r = (struct rig){0};
    if (sluice_model_open(&r->model, full)) {
        test_fail(__FILE__, __LINE__, "%s", sluice_model_error(r->model));
        return false;
    }
    sluice_model_facts(r->model, &r->facts);
    if (sluice_engine_open(&r->engine, r->model, options)) {
        test_fail(__FILE__, __LINE__, "%s", sluice_engine_error(r->engine));
        return false;
    }
    return true;
}

/* One that must open; the path of a reference is relative to the test data. */
static bool rig_open(struct rig *r, const char *path, const struct sluice_engine_options *options) {
    return rig_open_file(r, path[0] == 'm' ? path : test_data(path), options);
}

static void rig_close(struct rig *r) {
    sluice_engine_close(r->engine);
    sluice_model_close(r->model);
}

static struct sluice_engine_options options_for(uint32_t context, uint32_t sequences) {
    struct sluice_engine_options o = sluice_engine_options_default();
    o.context = context;
    o.sequences = o.batch = sequences;
    o.threads = 1;
    return o;
}

/* Random tokens that depend on the seed alone. */
static void fill_tokens(int32_t *tokens, size_t n, uint64_t seed, int32_t n_vocab) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((seed >> 33) % (uint64_t)n_vocab);
    }
}

static sluice_seq *open_seq(struct rig *r, uint64_t seed, size_t n_prompt) {
    sluice_seq *seq = NULL;
    int32_t prompt[1024];
    struct sluice_sampling s = sluice_sampling_default(r->model);
    s.temperature = 1.5f;
    s.top_p = 1;
    s.top_k = 0;
    s.frequency_penalty = 0.1f;
    s.repeat_penalty = 1.1f;
    s.seed = seed;
    fill_tokens(prompt, n_prompt, seed, r->facts.n_tokens);
    EXPECT_INT(sluice_seq_open(&seq, r->engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_set_sampling(seq, &s), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(seq, prompt, n_prompt), SLUICE_OK);
    return seq;
}

static void generate(sluice_seq *seq, int32_t *tokens, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (sluice_seq_next(seq, &tokens[i])) {
            test_fail(__FILE__, __LINE__, "%s", sluice_engine_error(seq->engine));
            return;
        }
}

static void expect_tokens(const int32_t *found, const int32_t *expected, size_t n,
                          const char *what) {
    for (size_t i = 0; i < n; i++)
        if (found[i] != expected[i]) {
            test_fail(__FILE__, __LINE__, "%s: token %zu is %d, expected %d", what, i, found[i],
                      expected[i]);
            return;
        }
}

static const char *const models[] = {
    "reference/qwen35-dense-a/model-f32.gguf",    "reference/llama-a/model-q8_0.gguf",
    "reference/qwen35-moe-a/model-f32.gguf",      "reference/qwen3-a/model-f32.gguf",
    "reference/qwen35-dense-k/model-q4_k_m.gguf", STORIES,
};
/* Sanitizers are slow: there the first ones must do. */
#ifdef IS_SANITIZED
enum { N_MODELS = 3, N_SMALL = 3, N_CHANGES = 200, N_STEPS = 200 };
#else
enum {
    N_MODELS = sizeof models / sizeof *models,
    N_SMALL = N_MODELS - 1,
    N_CHANGES = 700,
    N_STEPS = 1000
};
#endif

/* ---- the same bits ------------------------------------------------------------------------ */

enum { N_TOGETHER = 5, N_NEW = 20 };
static const size_t prompt_lengths[N_TOGETHER] = {1, 70, 3, 130, 17};

TEST(engine_batched_equals_alone) {
    for (int m = 0; m < N_MODELS; m++) {
        int32_t alone[N_TOGETHER][N_NEW], together[N_TOGETHER][N_NEW];
        struct rig r;
        struct sluice_engine_options o = options_for(200, 1);
        for (int i = 0; i < N_TOGETHER && rig_open(&r, models[m], &o); i++) {
            generate(open_seq(&r, (uint64_t)i, prompt_lengths[i]), alone[i], N_NEW);
            rig_close(&r);
        }
        o = options_for(200, N_TOGETHER);
        o.threads = 2;
        o.prefill = 64;
        if (!rig_open(&r, models[m], &o))
            continue;
        sluice_seq *seqs[N_TOGETHER];
        size_t n[N_TOGETHER] = {0};
        for (int i = 0; i < N_TOGETHER; i++)
            seqs[i] = open_seq(&r, (uint64_t)i, prompt_lengths[i]);
        for (uint32_t rows = 1; rows > 0;) {
            EXPECT_INT(sluice_engine_step(r.engine, &rows), SLUICE_OK);
            for (int i = 0; i < N_TOGETHER; i++) {
                int32_t token = sluice_seq_token(seqs[i]);
                if (token < 0 || n[i] == N_NEW)
                    continue;
                together[i][n[i]++] = token;
                if (n[i] < N_NEW)
                    sluice_seq_feed(seqs[i], &token, 1);
            }
        }
        for (int i = 0; i < N_TOGETHER; i++) {
            EXPECT_INT(n[i], N_NEW);
            expect_tokens(together[i], alone[i], N_NEW, models[m]);
        }
        rig_close(&r);
    }
}

/* All logits of a prompt of n tokens. */
static float *logits_with(const char *path, uint32_t n, uint32_t prefill, bool exact, int threads,
                          size_t *count) {
    struct rig r;
    struct sluice_engine_options o = options_for(n, 1);
    o.threads = threads;
    int32_t tokens[2048];
    o.prefill = prefill;
    o.all_outputs = prefill;
    o.exact = exact;
    if (!rig_open(&r, path, &o))
        return NULL;
    size_t width = (size_t)r.facts.n_logits, done = 0;
    float *all = malloc(n * width * sizeof *all);
    sluice_seq *seq = open_seq(&r, 7, 0);
    fill_tokens(tokens, n, 7, r.facts.n_tokens);
    EXPECT_INT(sluice_seq_want(seq, SLUICE_WANT_ALL_LOGITS), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(seq, tokens, n), SLUICE_OK);
    while (done < n) {
        const float *at;
        uint32_t rows = 0;
        EXPECT_INT(sluice_engine_step(r.engine, NULL), SLUICE_OK);
        EXPECT_INT(sluice_seq_logits(seq, &at, &rows), SLUICE_OK);
        if (rows == 0)
            break;
        memcpy(all + done * width, at, rows * width * sizeof *all);
        done += rows;
    }
    EXPECT_INT(done, n);
    *count = n * width;
    rig_close(&r);
    return all;
}

static float *logits_of(const char *path, uint32_t n, uint32_t prefill, bool exact, size_t *count) {
    return logits_with(path, n, prefill, exact, 1, count);
}

TEST(engine_prefill_equals_token_by_token) {
    static const uint32_t widths[] = {3, 64, 256};
    enum { N = 270 };
    for (int m = 0; m < N_SMALL; m++)
        for (int exact = 0; exact < 2; exact++) {
            size_t n, n_other = 0;
            float *single = logits_of(models[m], N, 1, exact, &n);
            for (size_t w = 0; single && w < sizeof widths / sizeof *widths; w++) {
                float *chunked = logits_of(models[m], N, widths[w], exact, &n);
                for (size_t i = 0; chunked && i < n; i++) {
                    n_other += memcmp(&single[i], &chunked[i], sizeof(float)) != 0;
                    EXPECT_NEAR(chunked[i], single[i], 1e-4);
                }
                free(chunked);
            }
            EXPECT_INT(n_other, 0); /* on the CPU even the bits are the same */
            free(single);
        }
}

/* Few rows deep in a sequence, where threads share out positions, and many, where they share out
 * rows. */
TEST(engine_threads_give_the_same_bits) {
    static const struct {
        int threads;
        uint32_t prefill;
    } others[] = {{2, 1}, {5, 3}, {3, 64}, {4, 256}};
    const int n_tokens = test_is_slow() ? 280 : 420; /* more than the widest step */
    size_t n;
    for (int m = 0; m < N_SMALL; m++) {
        float *one = logits_with(models[m], n_tokens, 256, false, 1, &n);
        for (size_t i = 0; one && i < sizeof others / sizeof *others; i++) {
            float *other =
                logits_with(models[m], n_tokens, others[i].prefill, false, others[i].threads, &n);
            if (other && memcmp(one, other, n * sizeof *one) != 0)
                test_fail(__FILE__, __LINE__, "%s: %d threads, %u rows: other bits", models[m],
                          others[i].threads, others[i].prefill);
            free(other);
        }
        free(one);
    }
}

/* So many positions that what threads found of them is combined in several turns. */
TEST(engine_threads_give_the_same_bits_far_in) {
    enum { N = 1300 };
    size_t n;
    float *one = logits_with(models[0], N, 256, false, 1, &n);
    float *other = logits_with(models[0], N, 3, false, 2, &n);
    EXPECT(one && other && memcmp(one, other, n * sizeof *one) == 0);
    free(one);
    free(other);
}

/* ---- resume ------------------------------------------------------------------------------- */

enum { N_PROMPT = 530, N_FIRST = 8, N_MORE = 12 };

/* What a straight run of the first sequence gives. */
static void straight(const char *path, int32_t *tokens) {
    struct rig r;
    struct sluice_engine_options o = options_for(700, 1);
    if (!rig_open(&r, path, &o))
        return;
    generate(open_seq(&r, 11, N_PROMPT), tokens, N_FIRST + N_MORE);
    rig_close(&r);
}

static void resume_from_file(const char *path, const int32_t *expected) {
    int32_t tokens[N_FIRST + N_MORE];
    struct rig r;
    struct sluice_engine_options o = options_for(700, 1);
    const char *file = test_temporary("seq");
    if (!rig_open(&r, path, &o))
        return;
    sluice_seq *seq = open_seq(&r, 11, N_PROMPT);
    struct sluice_sampling sampling = seq->sampling;
    generate(seq, tokens, N_FIRST);
    EXPECT_INT(sluice_seq_save(seq, file), SLUICE_OK);
    rig_close(&r);
    o = options_for(800, 3); /* another engine, in which the sequence is in another place */
    if (!rig_open(&r, path, &o))
        return;
    open_seq(&r, 99, 300);
    EXPECT_INT(sluice_engine_step(r.engine, NULL), SLUICE_OK);
    EXPECT_INT(sluice_seq_load(&seq, r.engine, file), SLUICE_OK);
    sampling.biases = NULL;
    EXPECT_INT(sluice_seq_set_sampling(seq, &sampling), SLUICE_OK);
    EXPECT_INT(sluice_seq_token(seq), tokens[N_FIRST - 1]);
    generate(seq, tokens + N_FIRST, N_MORE);
    expect_tokens(tokens, expected, N_FIRST + N_MORE, "loaded");
    unlink(file);
    rig_close(&r);
}

static void resume_by_rewind(const char *path, const int32_t *expected, uint64_t budget) {
    static const uint32_t targets[] = {N_PROMPT + 3, 513, 512, 300, 0};
    int32_t tokens[N_FIRST + N_MORE];
    struct rig r;
    struct sluice_engine_options o = options_for(700, 1);
    o.snapshot_bytes = budget;
    if (!rig_open(&r, path, &o))
        return;
    sluice_seq *seq = open_seq(&r, 11, N_PROMPT);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        const int32_t *history;
        int32_t copy[N_PROMPT];
        generate(seq, tokens, N_FIRST + N_MORE);
        expect_tokens(tokens, expected, N_FIRST + N_MORE, "rewound");
        sluice_seq_tokens(seq, &history, NULL, NULL);
        memcpy(copy, history, sizeof copy);
        EXPECT_INT(sluice_seq_rewind(seq, targets[i]), SLUICE_OK);
        if (targets[i] < N_PROMPT)
            sluice_seq_feed(seq, copy + targets[i], N_PROMPT - targets[i]);
        else
            EXPECT_INT(sluice_seq_rewind(seq, N_PROMPT - 1) ||
                           sluice_seq_feed(seq, copy + N_PROMPT - 1, 1),
                       SLUICE_OK);
    }
    rig_close(&r);
}

static void resume_by_fork(const char *path, const int32_t *expected) {
    int32_t tokens[N_FIRST + N_MORE], other[N_MORE], third[N_MORE];
    struct rig r;
    struct sluice_engine_options o = options_for(700, 3);
    sluice_seq *fork, *fork_of_fork;
    if (!rig_open(&r, path, &o))
        return;
    sluice_seq *seq = open_seq(&r, 11, N_PROMPT);
    generate(seq, tokens, N_FIRST);
    EXPECT_INT(sluice_seq_fork(&fork, seq), SLUICE_OK);
    generate(seq, tokens + N_FIRST, N_MORE);
    EXPECT_INT(sluice_seq_fork(&fork_of_fork, fork), SLUICE_OK);
    sluice_seq_close(seq); /* pages they share stay */
    generate(fork, other, N_MORE);
    generate(fork_of_fork, third, N_MORE);
    expect_tokens(tokens, expected, N_FIRST + N_MORE, "forked from");
    expect_tokens(other, expected + N_FIRST, N_MORE, "forked");
    expect_tokens(third, expected + N_FIRST, N_MORE, "forked twice");
    EXPECT(state_broken(&r.engine->state) == NULL);
    rig_close(&r);
}

TEST(engine_resume_gives_the_same_tokens) {
    for (int m = 0; m < (test_is_slow() ? N_SMALL : N_MODELS); m++) {
        int32_t expected[N_FIRST + N_MORE] = {0};
        straight(models[m], expected);
        resume_from_file(models[m], expected);
        if (m < N_SMALL)
            resume_by_rewind(models[m], expected, 0);
        resume_by_rewind(models[m], expected, 64 << 20);
        resume_by_fork(models[m], expected);
    }
}

TEST(engine_snapshots_are_used_and_forgotten) {
    struct rig r;
    struct sluice_counters c;
    int32_t token;
    struct sluice_engine_options o = options_for(2048, 1);
    o.snapshot_every = 32;
    if (!rig_open(&r, "reference/qwen35-dense-a/model-f32.gguf", &o))
        return;
    uint64_t recurrent_bytes = r.engine->state.layout.recurrent_bytes;
    rig_close(&r);
    o.snapshot_bytes = 3 * recurrent_bytes;
    if (!rig_open(&r, "reference/qwen35-dense-a/model-f32.gguf", &o))
        return;
    EXPECT_INT(r.engine->setup.n_snapshots, 3);
    sluice_seq *seq = open_seq(&r, 1, 200);
    sluice_seq_next(seq, &token);
    sluice_engine_counters(r.engine, &c);
    EXPECT_INT(c.steps, 1);           /* places for snapshots do not cut it */
    EXPECT_INT(c.snapshots_taken, 2); /* half of the cells, for the last places: 160 and 192 */
    EXPECT_INT(sluice_seq_rewind(seq, 170), SLUICE_OK);
    EXPECT_INT(r.engine->state.slots[0].length, 160);
    EXPECT_INT(sluice_seq_rewind(seq, 100), SLUICE_OK);
    EXPECT_INT(r.engine->state.slots[0].length, 0);
    sluice_engine_counters(r.engine, &c);
    EXPECT_INT(c.snapshots_used, 1);
    EXPECT(state_broken(&r.engine->state) == NULL);
    rig_close(&r);
}

/* ---- nothing allocates, nothing changes --------------------------------------------------- */

#ifndef IS_SANITIZED /* a sanitizer has its own allocator */
TEST(engine_allocates_nothing_after_open) {
    struct rig r;
    struct sluice_engine_options o = options_for(700, 4);
    sluice_seq *fork;
    int32_t tokens[40];
    if (!rig_open(&r, STORIES, &o))
        return;
    unsigned long long before = n_allocations;
    sluice_seq *seq = open_seq(&r, 5, 600);
    generate(seq, tokens, 20);
    sluice_seq_fork(&fork, seq);
    generate(fork, tokens, 20);
    sluice_seq_rewind(fork, 300);
    generate(fork, tokens, 20);
    sluice_seq_close(seq);
    EXPECT_INT(n_allocations - before, 0);
    rig_close(&r);
}
#endif

/* All blocks are made in open; what goes to and from the host is counted, and a step adds none. */
TEST(engine_counts_allocations_and_host_copies) {
    struct rig r;
    struct sluice_counters opened, ran, saved;
    struct sluice_engine_options o = options_for(200, 2);
    const char *file = test_temporary("seq");
    int32_t tokens[8];
    if (!rig_open(&r, "reference/qwen35-dense-a/model-f32.gguf", &o))
        return;
    sluice_engine_counters(r.engine, &opened);
    EXPECT(opened.allocations > 0);
    sluice_seq *seq = open_seq(&r, 3, 20);
    generate(seq, tokens, 2);
    sluice_engine_counters(r.engine, &ran);
    EXPECT_INT(ran.allocations, opened.allocations);
    EXPECT_INT(ran.host_copies, opened.host_copies); /* the slot is cleared where it is */
    generate(seq, tokens, 8);
    sluice_engine_counters(r.engine, &saved);
    EXPECT_INT(saved.host_copies, ran.host_copies);
    EXPECT_INT(sluice_seq_save(seq, file), SLUICE_OK);
    sluice_engine_counters(r.engine, &saved);
    EXPECT(saved.host_copies > ran.host_copies);
    EXPECT(saved.host_copy_bytes - ran.host_copy_bytes >= r.engine->state.layout.slot_bytes);
    EXPECT_INT(saved.allocations, opened.allocations);
    unlink(file);
    rig_close(&r);
}

static uint64_t hash_bytes(uint64_t h, const void *bytes, size_t n) {
    for (const uint8_t *p = bytes; n > 0; n--, p++)
        h = (h ^ *p) * 0x100000001B3u;
    return h;
}

/* Plans and recordings, byte for byte. */
static uint64_t hash_plans(const struct sluice_engine *e) {
    uint64_t h = 0xCBF29CE484222325u;
    for (uint32_t i = 0; i < e->n_plans; i++) {
        h = hash_bytes(h, e->plans[i], sizeof *e->plans[i]);
        h = hash_bytes(h, e->plans[i]->ops, e->plans[i]->n_ops * sizeof *e->plans[i]->ops);
        h = hash_bytes(h, e->backend->recordings[i].ops,
                       e->plans[i]->n_ops * sizeof *e->backend->recordings[i].ops);
    }
    return h;
}

TEST(engine_plans_and_recordings_are_untouched_over_many_steps) {
    struct rig r;
    struct sluice_counters c;
    struct sluice_engine_options o = options_for(1100, 2);
    if (!rig_open(&r, "reference/qwen35-dense-a/model-f32.gguf", &o))
        return;
    uint64_t before = hash_plans(r.engine);
    sluice_seq *a = open_seq(&r, 1, 40), *b = open_seq(&r, 2, 3);
    for (int i = 0; i < N_STEPS; i++) {
        EXPECT_INT(sluice_engine_step(r.engine, NULL), SLUICE_OK);
        int32_t x = sluice_seq_token(a), y = sluice_seq_token(b);
        sluice_seq_feed(a, &x, 1);
        sluice_seq_feed(b, &y, 1);
    }
    EXPECT(hash_plans(r.engine) == before);
    sluice_engine_counters(r.engine, &c);
    EXPECT_INT(c.steps, N_STEPS);
    EXPECT_INT(c.submissions, N_STEPS);
    EXPECT_INT(c.waits, N_STEPS);
    EXPECT_INT(c.rows, 43 + 2 * (N_STEPS - 1));
    rig_close(&r);
}

/* ---- memory ------------------------------------------------------------------------------- */

TEST(engine_memory_is_as_predicted_and_as_allocated) {
    static const struct {
        const char *kv;
        uint32_t context, sequences;
        bool exact;
    } cases[] = {{"f16", 300, 1, false}, {"q8_0", 700, 3, false}, {"f32", 256, 2, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sluice_engine_options o = options_for(cases[i].context, cases[i].sequences);
        struct sluice_engine *e = NULL;
        sluice_model *model = NULL;
        struct sluice_memory predicted, found;
        struct err err = {0};
        o.kv_type = cases[i].kv;
        o.exact = cases[i].exact;
        EXPECT_INT(sluice_model_open(&model, STORIES), SLUICE_OK);
        EXPECT_INT(engine_prepare(&e, model, &o, false, &err), SLUICE_OK);
        sluice_engine_memory(e, &predicted);
        unsigned long long before = mapped_bytes;
        EXPECT_INT(engine_load(e, &o, &err), SLUICE_OK);
        unsigned long long mapped = mapped_bytes - before;
        sluice_engine_memory(e, &found);
        EXPECT(memcmp(&predicted, &found, sizeof found) == 0);
        EXPECT_INT(found.total, found.weights + found.state + found.scratch + found.io +
                                    found.packed + found.workspace);
#ifndef IS_SANITIZED
        EXPECT_INT(mapped, found.total - found.weights);
#else
        (void)mapped;
#endif
        engine_close(e);
        sluice_model_close(model);
    }
}

#ifndef IS_SANITIZED
/* A line "NAME  N kB" of this process's status, in bytes. */
static double status_bytes(const char *name) {
    char line[256];
    double kilobytes = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0)
            kilobytes = atof(line + strlen(name));
    if (f)
        fclose(f);
    return 1024 * kilobytes;
}

/* From here on the peak is counted from zero. */
static bool forget_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "we");
    bool is_done = f && fputs("5", f) >= 0;
    return f && fclose(f) == 0 && is_done;
}

/* Weights are in memory once: packed, and the file's pages released. */
TEST(engine_weights_are_in_memory_once) {
    const struct random_model m = {
        .seed = 5,
        .arch = "llama",
        .hidden = 512,
        .layers = 10, /* a tenth of it is more than what code and tables take */
        .heads = 8,
        .kv_heads = 2,
        .head_width = 64,
        .ffn = 2048,
        .vocab = 2048,
        .type = DT_Q8_0};
    const char *path = test_temporary("once.gguf");
    struct sluice_engine_options o = options_for(64, 1);
    struct sluice_memory memory;
    struct rig r;
    struct err err;
    EXPECT_INT(random_model_write(&m, path, &err), SLUICE_OK);
    o.prefill = 32;
    o.backend = "cpu"; /* to look for devices loads their drivers */
    struct stat file = {0};
    EXPECT_INT(stat(path, &file), 0);
    double before = status_bytes("VmRSS:");
    if (!forget_peak()) {
        test_skip("the peak of resident memory cannot be set back here");
        return;
    }
    if (!rig_open_file(&r, path, &o))
        return;
    double peak = status_bytes("VmHWM:") - before, size = (double)file.st_size;
    sluice_engine_memory(r.engine, &memory);
    double rest = (double)(memory.state + memory.scratch + memory.io + memory.workspace);
    if (!(peak <= 1.1 * (size + rest)))
        test_fail(__FILE__, __LINE__, "%.1f MB at the peak, expected the file's %.1f and %.1f",
                  peak / 1e6, size / 1e6, rest / 1e6);
    EXPECT((double)(memory.weights + memory.packed) <= 1.05 * size);
    int32_t token = 0;
    generate(open_seq(&r, 1, 5), &token, 1); /* EMBED reads the file again */
    rig_close(&r);
    unlink(path);
}
#endif

/* The tokens of two engines of one model, one opened after the other was closed. */
static void expect_tokens_twice(const char *path, int32_t *tokens, size_t n) {
    struct sluice_engine_options o = options_for(64, 1);
    struct rig r;
    int32_t again[8];
    EXPECT(n <= 8);
    if (!rig_open_file(&r, path, &o))
        return;
    generate(open_seq(&r, 1, 5), tokens, n);
    sluice_engine_close(r.engine);
    EXPECT_INT(sluice_engine_open(&r.engine, r.model, &o), SLUICE_OK);
    generate(open_seq(&r, 1, 5), again, n);
    for (size_t i = 0; i < n; i++)
        EXPECT_INT(again[i], tokens[i]);
    rig_close(&r);
}

/* Packing drops the file's pages. Where there is no mapping that can be read again, they must
 * stay: EMBED reads them, and so does the next engine. */
TEST(engine_weights_that_are_not_mapped_stay) {
    int32_t mapped[8], copied[8];
    expect_tokens_twice(STORIES, mapped, 8);
    setenv("SLUICE_NO_MMAP", "1", 1);
    expect_tokens_twice(STORIES, copied, 8);
    unsetenv("SLUICE_NO_MMAP");
    for (int i = 0; i < 8; i++)
        EXPECT_INT(copied[i], mapped[i]);
    expect_tokens_twice("synth:qwen35-tiny:q4_k_m", mapped, 8);
}

TEST(engine_refuses_what_does_not_fit_and_says_what_would) {
    struct rig r;
    struct sluice_memory m;
    struct sluice_engine_options o = options_for(512, 1);
    if (!rig_open(&r, STORIES, &o))
        return;
    sluice_engine_memory(r.engine, &m);
    rig_close(&r);
    o.memory_limit = m.total + 1000000;
    o.context = 1 << 20;
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    EXPECT_INT(sluice_model_open(&model, STORIES), SLUICE_OK);
    EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_ERR_MEMORY);
    EXPECT(strstr(sluice_engine_error(engine), "-c 512") != NULL);
    EXPECT(model->model->weights->base == NULL); /* nothing was loaded */
    sluice_engine_close(engine);
    o.memory_limit = 1000;
    EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_ERR_MEMORY);
    EXPECT(strstr(sluice_engine_error(engine), "the weights alone do not fit") != NULL);
    EXPECT(strstr(sluice_engine_error(engine), "--batch") == NULL); /* there is one sequence */
    sluice_engine_close(engine);
    sluice_model_close(model);
}

/* Fewer pages first, then fewer sequences; what is left of the options still opens. */
TEST(engine_shrinks_to_what_fits) {
    enum { BATCH = 8, CONTEXT = 1024 };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        sluice_model *model = NULL;
        sluice_engine *engine = NULL;
        struct err err;
        struct sluice_memory whole, single;
        struct sluice_engine_options o = options_for(CONTEXT, BATCH), one = options_for(CONTEXT, 1);
        const char *path = models[i][0] == 'm' ? models[i] : test_data(models[i]);
        EXPECT_INT(sluice_model_open(&model, path), SLUICE_OK);
        o.snapshot_bytes = one.snapshot_bytes = 0;
        EXPECT_INT(engine_prepare(&engine, model, &one, false, &err), SLUICE_OK);
        single = engine_memory_of(engine, &engine->predicted);
        engine_close(engine);
        EXPECT_INT(engine_prepare(&engine, model, &o, false, &err), SLUICE_OK);
        whole = engine_memory_of(engine, &engine->predicted);
        for (int step = 0; step < 16; step++) { /* from all there is to less than for one */
            struct sluice_engine_options less = o;
            less.memory_limit = single.total + (whole.total - single.total) * step / 15;
            less.memory_limit = step ? less.memory_limit * 8 / 7 + 8 : single.weights + 1;
            bool keeps_batch = step % 2;
            if (!fit_shrink(engine, &less, !keeps_batch)) {
                EXPECT(step == 0 || keeps_batch);
                continue;
            }
            EXPECT(step > 0);
            sluice_engine *smaller;
            EXPECT(less.batch == less.sequences && (!keeps_batch || less.batch == BATCH));
            EXPECT_INT(sluice_engine_open(&smaller, model, &less), SLUICE_OK);
            EXPECT(smaller->setup.n_pages >= smaller->setup.pages_per_seq);
            EXPECT(engine_memory_of(smaller, &smaller->predicted).total <=
                   less.memory_limit - less.memory_limit / 8);
            EXPECT(step < 15 || (less.kv_bytes == 0 && less.batch == BATCH));
            sluice_engine_close(smaller);
        }
        engine_close(engine);
        sluice_model_close(model);
    }
}

/* ---- hidden states ------------------------------------------------------------------------ */

/* The largest difference of a row of logits from head x hidden, beside the largest logit. */
static double head_difference(const struct rig *r, const float *logits, const float *hidden) {
    const struct model *m = r->model->model;
    const float *head = (const float *)(m->weights->base + m->head.offset);
    double worst = 0, largest = 0;
    for (int32_t v = 0; v < r->facts.n_logits; v++, head += r->facts.width) {
        double sum = 0;
        for (uint32_t i = 0; i < r->facts.width; i++)
            sum += (double)head[i] * (double)hidden[i];
        worst = fmax(worst, fabs(sum - (double)logits[v]));
        largest = fmax(largest, fabs((double)logits[v]));
    }
    return worst / largest;
}

/* The hidden states of 11 tokens, read as the wants say; (11, width). Returns how many came. */
static uint32_t read_hidden(const struct rig *r, unsigned wants, float *out, double *worst) {
    int32_t tokens[11];
    const float *logits = NULL, *hidden = NULL;
    uint32_t n = 0, rows = 0, n_logits, n_hidden;
    sluice_seq *seq;
    fill_tokens(tokens, 11, 3, r->facts.n_tokens);
    EXPECT_INT(sluice_seq_open(&seq, r->engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_want(seq, wants), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(seq, tokens, 11), SLUICE_OK);
    while (sluice_engine_step(r->engine, &rows) == SLUICE_OK && rows) {
        EXPECT_INT(sluice_seq_logits(seq, &logits, &n_logits), SLUICE_OK);
        EXPECT_INT(sluice_seq_hidden(seq, &hidden, &n_hidden), SLUICE_OK);
        for (uint32_t i = 0; i < n_hidden && n < 11; i++, n++) {
            const float *row = hidden + (size_t)i * r->facts.width;
            memcpy(out + (size_t)n * r->facts.width, row, r->facts.width * sizeof *row);
            if (i < n_logits)
                *worst = fmax(
                    *worst,
                    head_difference(r, logits + (size_t)(i * (uint32_t)r->facts.n_logits), row));
        }
    }
    sluice_seq_close(seq);
    return n;
}

/* What the head makes logits of, the same bits for the last row alone and in an engine that hands
 * out the residual of every layer (which is compared with references). */
TEST(engine_hidden_states_are_what_the_head_reads) {
    static const char *const archs[] = {"llama", "qwen35"};
    const char *path = test_temporary("hidden.gguf");
    struct sluice_engine_options o = options_for(64, 1);
    struct rig r;
    struct err err;
    float all[11 * 32], last[32], taps[11 * 32];
    o.exact = o.hidden = true;
    o.all_outputs = 4;
    for (int i = 0; i < 2; i++) {
        struct random_model m = random_tiny(archs[i]);
        double worst = 0;
        EXPECT_INT(random_model_write(&m, path, &err), SLUICE_OK);
        if (!rig_open_file(&r, path, &o))
            return;
        const unsigned both = SLUICE_WANT_ALL_HIDDEN | SLUICE_WANT_ALL_LOGITS;
        EXPECT_INT(r.facts.pooling, SLUICE_POOL_LAST);
        EXPECT_INT(read_hidden(&r, both, all, &worst), 11);
        EXPECT(worst < 1e-5);
        EXPECT_INT(read_hidden(&r, SLUICE_WANT_HIDDEN, last, &worst), 1);
        EXPECT(memcmp(last, all + 10 * 32, sizeof last) == 0);
        EXPECT_INT(read_hidden(&r, SLUICE_WANT_TOKEN, last, &worst), 0);
        sluice_engine_close(r.engine);
        EXPECT_INT(engine_prepare(&r.engine, r.model, &o, true, &err), SLUICE_OK);
        EXPECT_INT(engine_load(r.engine, &o, &err), SLUICE_OK);
        EXPECT_INT(read_hidden(&r, SLUICE_WANT_ALL_HIDDEN, taps, &worst), 11);
        EXPECT(memcmp(taps, all, sizeof all) == 0);
        rig_close(&r);
    }
    o.hidden = false;
    sluice_seq *seq;
    if (!rig_open_file(&r, path, &o))
        return;
    EXPECT_INT(sluice_seq_open(&seq, r.engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_want(seq, SLUICE_WANT_HIDDEN), SLUICE_ERR_ARGUMENT);
    rig_close(&r);
    unlink(path);
}

/* ---- the allocator of slots and pages ----------------------------------------------------- */

enum { N_SLOTS = 4 };

struct churn {
    struct rig r;
    sluice_seq *seqs[N_SLOTS];
    uint64_t random;
};

static uint32_t draw(struct churn *c, uint32_t n) {
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(c->random >> 33) % n;
}

static void churn_once(struct churn *c) {
    uint32_t i = draw(c, N_SLOTS), n = 0;
    int32_t tokens[300];
    if (!c->seqs[i]) {
        sluice_seq *from = c->seqs[draw(c, N_SLOTS)];
        int status = from && draw(c, 2) ? sluice_seq_fork(&c->seqs[i], from)
                                        : sluice_seq_open(&c->seqs[i], c->r.engine);
        EXPECT_INT(status, SLUICE_OK);
        return;
    }
    sluice_seq_tokens(c->seqs[i], NULL, &n, NULL);
    switch (draw(c, 6)) {
    case 0:
        sluice_seq_close(c->seqs[i]);
        c->seqs[i] = NULL;
        break;
    case 1:
        EXPECT_INT(sluice_seq_rewind(c->seqs[i], draw(c, n + 1)), SLUICE_OK);
        break;
    case 2:
    case 3:
        n = 1 + draw(c, draw(c, 2) ? 300 : 3);
        fill_tokens(tokens, n, draw(c, 1000), c->r.facts.n_tokens);
        sluice_seq_feed(c->seqs[i], tokens, n); /* may be too much: then nothing changes */
        break;
    default:
        EXPECT_INT(sluice_engine_step(c->r.engine, NULL), SLUICE_OK);
    }
}

/* The state of a sequence is what its tokens make of an empty one. */
static void expect_as_fresh(struct churn *c, const sluice_seq *seq) {
    struct rig fresh;
    struct sluice_engine_options o = options_for(1000, 1);
    sluice_seq *copy;
    const int32_t *tokens;
    uint32_t n, waiting;
    const struct state *st = &c->r.engine->state;
    sluice_seq_tokens(seq, &tokens, &n, &waiting);
    if (n == waiting || !rig_open(&fresh, "reference/qwen35-dense-a/model-f32.gguf", &o))
        return;
    sluice_seq_open(&copy, fresh.engine);
    sluice_seq_feed(copy, tokens, n - waiting);
    for (uint32_t rows = 1; rows > 0;)
        sluice_engine_step(fresh.engine, &rows);
    const struct state *fresh_state = &fresh.engine->state;
    for (uint32_t i = 0; i < st->layout.n_recurrent; i++) {
        struct state_array a = st->layout.recurrent[i], b = fresh_state->layout.recurrent[i];
        EXPECT(memcmp(c->r.engine->backend->region[REGION_STATE] + a.offset +
                          st->slots[seq->slot].cell * a.bytes,
                      fresh.engine->backend->region[REGION_STATE] + b.offset, a.bytes) == 0);
    }
    struct state_array a = st->layout.counts, b = fresh_state->layout.counts;
    EXPECT(memcmp(c->r.engine->backend->region[REGION_STATE] + a.offset + seq->slot * a.bytes,
                  fresh.engine->backend->region[REGION_STATE] + b.offset, a.bytes) == 0);
    rig_close(&fresh);
}

TEST(engine_state_keeps_its_invariants) {
    struct churn c = {.random = 1};
    struct sluice_engine_options o = options_for(1000, N_SLOTS);
    o.snapshot_every = 64;
    o.snapshot_bytes = 3 << 20;
    if (!rig_open(&c.r, "reference/qwen35-dense-a/model-f32.gguf", &o))
        return;
    EXPECT(c.r.engine->setup.n_snapshots >= 2);
    for (int i = 0; i < N_CHANGES; i++) {
        churn_once(&c);
        const char *broken = state_broken(&c.r.engine->state);
        if (broken) {
            test_fail(__FILE__, __LINE__, "after %d changes: %s", i, broken);
            break;
        }
    }
    for (int i = 0; i < N_SLOTS; i++)
        if (c.seqs[i])
            expect_as_fresh(&c, c.seqs[i]);
    for (int i = 0; i < N_SLOTS; i++)
        sluice_seq_close(c.seqs[i]);
    EXPECT_INT(pages_available(&c.r.engine->state.pages), c.r.engine->state.pages.n);
    rig_close(&c.r);
}

/* ---- fewer pages than sequences could fill ------------------------------------------------ */

static uint64_t page_bytes_of(const char *path) {
    struct rig r;
    struct sluice_engine_options o = options_for(256, 1);
    if (!rig_open(&r, path, &o))
        return 1;
    uint64_t bytes = r.engine->state.layout.page_bytes;
    rig_close(&r);
    return bytes;
}

/* Sequences take pages as they grow. Those that find none wait, and go on to the same tokens. */
TEST(engine_sequences_share_too_few_pages) {
    enum { N = 3, N_LONG = 600 };
    for (int m = 0; m < 2; m++) {
        static int32_t alone[N][N_LONG], tokens[N][N_LONG];
        struct rig r;
        struct sluice_engine_options o = options_for(700, 1);
        struct sluice_pages pages;
        sluice_seq *seqs[N];
        uint32_t n[N] = {0}, n_starved = 0, n_preempted = 0, rows;
        for (int i = 0; i < N && rig_open(&r, models[m], &o); i++) {
            generate(open_seq(&r, (uint64_t)i, 40), alone[i], N_LONG);
            rig_close(&r);
        }
        o = options_for(700, N);
        o.kv_bytes = 5 * page_bytes_of(models[m]) + 1; /* all would need 9 */
        if (!rig_open(&r, models[m], &o))
            return;
        sluice_engine_pages(r.engine, &pages);
        EXPECT(pages.total == 5 && pages.free == 5 && pages.tokens == 256);
        for (int i = 0; i < N; i++)
            seqs[i] = open_seq(&r, (uint64_t)i, 40);
        for (int open = N; open > 0;) {
            int status = sluice_engine_step(r.engine, &rows);
            for (int i = 0; i < N; i++) {
                int32_t token = seqs[i] ? sluice_seq_token(seqs[i]) : -1;
                n_starved += sluice_seq_is_starved(seqs[i]);
                if (token >= 0)
                    tokens[i][n[i]++] = token;
                if (token >= 0 && n[i] < N_LONG)
                    EXPECT_INT(sluice_seq_feed(seqs[i], &token, 1), SLUICE_OK);
                if (!seqs[i] || n[i] < N_LONG)
                    continue;
                sluice_seq_close(seqs[i]);
                seqs[i] = NULL;
                open--;
            }
            if (!status)
                continue;
            sluice_engine_pages(r.engine, &pages);
            EXPECT_INT(status, SLUICE_ERR_MEMORY);
            EXPECT_STR(sluice_engine_error(r.engine),
                       "all 5 pages of the KV cache are in use, expected a free one: close a "
                       "sequence or open the engine with more (kv_bytes)");
            EXPECT(pages.free == 0 && pages.starved > 0 && rows == 0);
            int last = N - 1; /* none can go on: the last one that has two pages begins again */
            while (last > 0 && (!seqs[last] || n[last] <= 256))
                last--;
            if (!seqs[last] || n_preempted++ == 100)
                test_fail(__FILE__, __LINE__, "no sequence ever ends");
            if (!seqs[last] || n_preempted > 100)
                break;
            EXPECT_INT(sluice_seq_rewind(seqs[last], 40), SLUICE_OK);
            n[last] = 0;
        }
        EXPECT(n_starved > 0);
        for (int i = 0; i < N; i++)
            expect_tokens(tokens[i], alone[i], N_LONG, models[m]);
        EXPECT(state_broken(&r.engine->state) == NULL);
        rig_close(&r);
    }
}

TEST(engine_refuses_less_than_a_page) {
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    struct sluice_engine_options o = options_for(64, 1);
    o.kv_bytes = 100;
    EXPECT_INT(sluice_model_open(&model, test_data(models[0])), SLUICE_OK);
    EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_ERR_ARGUMENT);
    EXPECT(strstr(sluice_engine_error(engine), "kv_bytes (--kv-bytes) is 100, expected at least"));
    sluice_engine_close(engine);
    o.memory_limit = 300000000;
    o.snapshot_bytes = 0;
    o.kv_bytes = 1ull << 33;
    EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_ERR_MEMORY);
    EXPECT(strstr(sluice_engine_error(engine), "--kv-bytes 268435456"));
    sluice_engine_close(engine);
    sluice_model_close(model);
}

/* ---- saved sequences ---------------------------------------------------------------------- */

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    EXPECT(f && fwrite(bytes, 1, n, f) == n);
    if (f)
        fclose(f);
}

static void expect_refused(struct rig *r, const char *path, const char *why) {
    sluice_seq *seq;
    int status = sluice_seq_load(&seq, r->engine, path);
    if (status >= 0 || seq)
        test_fail(__FILE__, __LINE__, "a file with %s is loaded", why);
    EXPECT(strchr(sluice_engine_error(r->engine), '\n') == NULL);
    EXPECT(strstr(sluice_engine_error(r->engine), path) != NULL);
    EXPECT(state_broken(&r->engine->state) == NULL);
    EXPECT(!r->engine->state.slots[0].is_open);
}

TEST(engine_refuses_damaged_sequences) {
    struct rig r;
    struct sluice_engine_options o = options_for(300, 1);
    const char *good = test_temporary("good"), *bad = test_temporary("bad");
    int32_t token;
    size_t size = 0;
    if (!rig_open(&r, "reference/qwen35-dense-a/model-f32.gguf", &o))
        return;
    sluice_seq *seq = open_seq(&r, 1, 40);
    sluice_seq_next(seq, &token);
    EXPECT_INT(sluice_seq_save(seq, good), SLUICE_OK);
    EXPECT(sluice_seq_save(seq, "/nowhere/at/all") == SLUICE_ERR_IO);
    write_file(bad, "a text", 6);
    EXPECT(sluice_seq_save(seq, bad) == SLUICE_ERR_ARGUMENT);
    EXPECT(strstr(sluice_engine_error(r.engine), "left as it is") != NULL);
    write_file(bad, "", 0);
    EXPECT_INT(sluice_seq_save(seq, bad), SLUICE_OK);
    sluice_seq_close(seq);
    char *bytes = test_read_file(good, &size);
    for (size_t i = 0; bytes && i < size; i += i < 300 ? 1 : size / 50) {
        bytes[i] ^= 0x10;
        write_file(bad, bytes, size);
        expect_refused(&r, bad, "a changed byte");
        bytes[i] ^= 0x10;
    }
    for (size_t n = 0; bytes && n < size; n = n < 70 ? n + 7 : 2 * n) {
        write_file(bad, bytes, n);
        expect_refused(&r, bad, "its end cut off");
    }
    write_file(bad, bytes, size + 1);
    expect_refused(&r, bad, "a byte too many");
    bytes[8] = 1; /* the version */
    write_file(bad, bytes, size);
    expect_refused(&r, bad, "the version before");
    EXPECT(strstr(sluice_engine_error(r.engine), "has version 1, expected 3") != NULL);
    unlink(bad);
    expect_refused(&r, bad, "no bytes at all");
    EXPECT_INT(sluice_seq_load(&seq, r.engine, good), SLUICE_OK);
    free(bytes);
    unlink(good);
    rig_close(&r);
}

TEST(engine_refuses_foreign_sequences) {
    static const struct {
        const char *model, *kv;
        bool exact;
        uint32_t context;
        const char *says;
    } cases[] = {
        {"reference/qwen35-dense-b", "f16", false, 300, "another model"},
        {"reference/qwen35-dense-a/model-q8_0.gguf", "f16", false, 300, "another model"},
        {"reference/qwen35-dense-a/model-f32.gguf", "f32", false, 300, "--kv"},
        {"reference/qwen35-dense-a/model-f32.gguf", "f32", true, 300, "--kv"},
        {"reference/qwen35-dense-a/model-f32.gguf", "f16", false, 20, "-c"},
    };
    struct rig r;
    struct sluice_engine_options o = options_for(300, 1);
    const char *file = test_temporary("own");
    int32_t token;
    if (!rig_open(&r, "reference/qwen35-dense-a/model-f32.gguf", &o))
        return;
    sluice_seq *seq = open_seq(&r, 1, 40);
    sluice_seq_next(seq, &token);
    EXPECT_INT(sluice_seq_save(seq, file), SLUICE_OK);
    rig_close(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        o = options_for(cases[i].context, 1);
        o.kv_type = cases[i].kv;
        o.exact = cases[i].exact;
        if (!rig_open(&r, cases[i].model, &o))
            continue;
        expect_refused(&r, file, cases[i].says);
        if (!strstr(sluice_engine_error(r.engine), cases[i].says))
            test_fail(__FILE__, __LINE__, "\"%s\", expected %s in it",
                      sluice_engine_error(r.engine), cases[i].says);
        rig_close(&r);
    }
    unlink(file);
}

/* ---- sampling ----------------------------------------------------------------------------- */

static int32_t pick_one(struct rig *r, const struct sluice_sampling *s, const float **logits) {
    static const int32_t prompt[] = {5, 6, 7};
    sluice_seq *seq;
    int32_t token = -1;
    uint32_t rows;
    EXPECT_INT(sluice_seq_open(&seq, r->engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_set_sampling(seq, s), SLUICE_OK);
    EXPECT_INT(sluice_seq_want(seq, SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(seq, prompt, 3), SLUICE_OK);
    EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
    EXPECT_INT(sluice_seq_logits(seq, logits, &rows), SLUICE_OK);
    EXPECT_INT(rows, 1);
    sluice_seq_close(seq);
    return token;
}

TEST(engine_sampling_parameters_reach_the_pick) {
    struct rig r;
    struct sluice_engine_options o = options_for(64, 1);
    const struct sluice_sampling best = {.top_p = 1, .repeat_penalty = 1};
    const float *logits;
    if (!rig_open(&r, "reference/qwen35-dense-a/model-f32.gguf", &o))
        return;
    EXPECT_INT(r.facts.n_logits, 448);
    EXPECT_INT(r.facts.n_tokens, 446);
    int32_t first = pick_one(&r, &best, &logits), argmax = 0;
    for (int32_t i = 1; i < r.facts.n_tokens; i++)
        argmax = logits[i] > logits[argmax] ? i : argmax;
    EXPECT_INT(first, argmax);
    struct sluice_sampling s = best;
    s.temperature = 5;
    s.top_k = 1;
    EXPECT_INT(pick_one(&r, &s, &logits), argmax);
    s.top_k = 0;
    s.top_p = 0;
    EXPECT_INT(pick_one(&r, &s, &logits), argmax);
    s.top_p = 1;
    s.min_p = 1;
    EXPECT_INT(pick_one(&r, &s, &logits), argmax);
    struct sluice_bias biases[] = {{argmax, -100}, {17, 1000}};
    s = best;
    s.biases = biases;
    s.n_biases = 2;
    EXPECT_INT(pick_one(&r, &s, &logits), 17);
    s.n_biases = 1;
    EXPECT(pick_one(&r, &s, &logits) != argmax);
    s = best;
    s.temperature = 100;
    int32_t seen[8];
    for (uint64_t i = 0; i < 8; i++) {
        s.seed = i;
        seen[i] = pick_one(&r, &s, &logits);
        EXPECT(seen[i] < r.facts.n_tokens);
        EXPECT_INT(pick_one(&r, &s, &logits), seen[i]);
    }
    EXPECT(seen[0] != seen[1] || seen[1] != seen[2] || seen[2] != seen[3]);
    rig_close(&r);
}

/* Every token is of the mask, greedy and sampled, whatever the biases; a fork has it too. */
TEST(engine_sampling_obeys_the_mask) {
    struct rig r;
    struct sluice_engine_options o = options_for(64, 3);
    if (!rig_open(&r, "reference/qwen35-dense-a/model-f32.gguf", &o))
        return;
    static const int32_t prompt[] = {5, 6, 7}, allowed[] = {3, 64, 97, 445};
    struct sluice_bias biases[] = {
        {3, -INFINITY}, {64, -INFINITY}, {97, -INFINITY}, {445, -INFINITY}};
    uint32_t mask[14] = {0}, other[14] = {[1] = 1u << 9};
    for (int i = 0; i < 4; i++)
        mask[allowed[i] / 32] |= 1u << allowed[i] % 32;
    for (int kind = 0; kind < 24; kind++) {
        struct sluice_sampling s = {.temperature = kind % 2 ? 1 + (float)kind : 0,
                                    .top_k = kind % 3 == 1 ? 20 : 0,
                                    .top_p = kind % 4 < 2 ? 1 : 0.9f,
                                    .min_p = kind % 5 == 0 ? 0.01f : 0,
                                    .repeat_penalty = kind % 3 == 2 ? 2 : 1,
                                    .seed = (uint64_t)kind,
                                    .biases = biases,
                                    .n_biases = kind % 7 == 3 ? 4 : 0};
        sluice_seq *seq, *plain, *fork;
        int32_t token, free_token, best = allowed[0];
        const float *logits;
        uint32_t rows;
        EXPECT_INT(sluice_seq_open(&seq, r.engine), SLUICE_OK);
        EXPECT_INT(sluice_seq_open(&plain, r.engine), SLUICE_OK);
        EXPECT_INT(sluice_seq_set_sampling(seq, &s), SLUICE_OK);
        EXPECT_INT(sluice_seq_set_mask(seq, mask), SLUICE_OK);
        EXPECT_INT(sluice_seq_want(seq, SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS), SLUICE_OK);
        EXPECT_INT(sluice_seq_feed(seq, prompt, 3), SLUICE_OK);
        EXPECT_INT(sluice_seq_feed(plain, prompt, 3), SLUICE_OK);
        EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
        EXPECT_INT(sluice_seq_next(plain, &free_token), SLUICE_OK);
        EXPECT(mask[token / 32] >> token % 32 & 1);
        EXPECT_INT(sluice_seq_logits(seq, &logits, &rows), SLUICE_OK);
        for (int i = 1; rows && i < 4; i++)
            best = logits[allowed[i]] > logits[best] ? allowed[i] : best;
        if (rows && s.temperature == 0 && s.n_biases == 0)
            EXPECT_INT(token, best);
        EXPECT_INT(sluice_seq_fork(&fork, seq), SLUICE_OK);
        EXPECT_INT(sluice_seq_set_mask(seq, other), SLUICE_OK);
        for (int i = 0; i < 4; i++) {
            EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
            EXPECT_INT(token, i ? 41 : token); /* the first was sampled before */
            EXPECT_INT(sluice_seq_next(fork, &token), SLUICE_OK);
            EXPECT(mask[token / 32] >> token % 32 & 1);
        }
        sluice_seq_close(seq);
        sluice_seq_close(plain);
        sluice_seq_close(fork);
    }
    sluice_seq *seq;
    uint32_t none[14] = {[13] = 3u << 30}; /* only of what is no token */
    EXPECT_INT(sluice_seq_open(&seq, r.engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_set_mask(seq, none), SLUICE_ERR_ARGUMENT);
    EXPECT_STR(sluice_engine_error(r.engine), "the mask allows no token, expected one");
    EXPECT_INT(sluice_seq_set_mask(seq, mask), SLUICE_OK);
    EXPECT_INT(sluice_seq_keep_mask(seq, mask), SLUICE_OK);
    EXPECT_INT(sluice_seq_keep_mask(seq, NULL), SLUICE_OK);
    EXPECT_INT(sluice_seq_set_mask(seq, NULL), SLUICE_OK);
    EXPECT_INT(sluice_seq_keep_mask(seq, mask), SLUICE_ERR_ARGUMENT);
    EXPECT_STR(sluice_engine_error(r.engine), "the sequence has no mask to keep, expected one");
    EXPECT_INT(sluice_seq_set_mask(NULL, mask), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_seq_keep_mask(NULL, mask), SLUICE_ERR_ARGUMENT);
    rig_close(&r);
}

TEST(engine_sampling_defaults_come_from_the_file) {
    static const struct {
        const char *path;
        float temperature, top_p;
        uint32_t top_k;
    } cases[] = {{STORIES, 0.8f, 0.95f, 0}, {"reference/llama-a", 0.8f, 0.95f, 20}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sluice_model *model = NULL;
        const char *path = cases[i].path;
        EXPECT_INT(sluice_model_open(&model, path[0] == 'm' ? path : test_data(path)), SLUICE_OK);
        struct sluice_sampling s = sluice_sampling_default(model);
        EXPECT_NEAR(s.temperature, cases[i].temperature, 1e-6);
        EXPECT_NEAR(s.top_p, cases[i].top_p, 1e-6);
        EXPECT_INT(s.top_k, cases[i].top_k);
        sluice_model_close(model);
    }
}

/* ---- bad input ---------------------------------------------------------------------------- */

TEST(engine_refuses_bad_options) {
    static const struct {
        struct sluice_engine_options o;
        int status;
        const char *says;
    } cases[] = {
#define BASE .context = 64, .sequences = 1, .batch = 1, .prefill = 8, .snapshot_every = 256
        {{BASE, .kv_type = "q6_k"}, SLUICE_ERR_ARGUMENT, "q6_k"},
        {{BASE, .kv_type = "nonsense"}, SLUICE_ERR_ARGUMENT, "nonsense"},
        {{BASE, .kv_type = "q8_0"}, SLUICE_ERR_UNSUPPORTED, "16 values"},
        {{BASE, .backend = "abacus"}, SLUICE_ERR_ARGUMENT, "abacus"},
        {{.sequences = 1, .batch = 1, .prefill = 8, .snapshot_every = 1, .context = 1ll << 40},
         SLUICE_ERR_ARGUMENT,
         "-c"},
        {{.sequences = 0, .batch = 1, .prefill = 8, .snapshot_every = 1},
         SLUICE_ERR_ARGUMENT,
         "sequences"},
        {{.sequences = 1, .batch = 0, .prefill = 8, .snapshot_every = 1},
         SLUICE_ERR_ARGUMENT,
         "batch"},
        {{.sequences = 1, .batch = 1, .prefill = 4097, .snapshot_every = 1},
         SLUICE_ERR_ARGUMENT,
         "prefill"},
#undef BASE
    };
    sluice_model *model = NULL;
    EXPECT_INT(sluice_model_open(&model, test_data("reference/llama-a/model-f32.gguf")), SLUICE_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sluice_engine *engine = NULL;
        EXPECT_INT(sluice_engine_open(&engine, model, &cases[i].o), cases[i].status);
        if (!strstr(sluice_engine_error(engine), cases[i].says))
            test_fail(__FILE__, __LINE__, "\"%s\", expected %s in it", sluice_engine_error(engine),
                      cases[i].says);
        sluice_engine_close(engine);
    }
    sluice_model_close(model);
    EXPECT_INT(sluice_model_open(&model, "no/such/file"), SLUICE_ERR_IO);
    EXPECT(strstr(sluice_model_error(model), "no/such/file") != NULL);
    sluice_model_close(model);
    EXPECT_INT(sluice_model_open(&model, NULL), SLUICE_ERR_ARGUMENT);
    sluice_model_close(model);
    sluice_model_close(NULL);
    sluice_engine_close(NULL);
    sluice_seq_close(NULL);
    sluice_text_close(NULL);
}

TEST(engine_refuses_bad_calls_and_changes_nothing) {
    struct rig r;
    struct sluice_engine_options o = options_for(20, 1);
    sluice_seq *seq, *other;
    int32_t token, tokens[32] = {0};
    uint32_t n;
    if (!rig_open(&r, "reference/llama-a/model-f32.gguf", &o))
        return;
    EXPECT_INT(sluice_seq_open(&seq, r.engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_open(&other, r.engine), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_seq_fork(&other, seq), SLUICE_ERR_ARGUMENT);
    EXPECT(other == NULL);
    EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_engine_step(r.engine, &n), SLUICE_OK);
    EXPECT_INT(n, 0);
    const int32_t outside[] = {3, -1}, beyond[] = {3, r.facts.n_logits};
    EXPECT_INT(sluice_seq_feed(seq, outside, 2), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_seq_feed(seq, beyond, 2), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_seq_feed(seq, tokens, 21), SLUICE_ERR_ARGUMENT);
    EXPECT_STR(sluice_engine_error(r.engine),
               "21 tokens to add to 0, expected at most 20 in all, the context (-c)");
    sluice_seq_tokens(seq, NULL, &n, NULL);
    EXPECT_INT(n, 0);
    EXPECT_INT(sluice_seq_feed(seq, tokens, 20), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(seq, tokens, 1), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_seq_rewind(seq, 21), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_seq_want(seq, 64), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
    EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_ERR_ARGUMENT); /* full */
    struct sluice_bias bias = {r.facts.n_tokens, 1};
    const struct sluice_sampling bad[] = {
        {.temperature = -1, .top_p = 1, .repeat_penalty = 1},
        {.temperature = NAN, .top_p = 1, .repeat_penalty = 1},
        {.top_p = 2, .repeat_penalty = 1},
        {.top_p = 1, .min_p = -1, .repeat_penalty = 1},
        {.top_p = 1, .repeat_penalty = 0},
        {.top_p = 1, .repeat_penalty = 1, .frequency_penalty = INFINITY},
        {.top_p = 1, .repeat_penalty = 1, .biases = &bias, .n_biases = 1},
        {.top_p = 1, .repeat_penalty = 1, .biases = &bias, .n_biases = 257},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT_INT(sluice_seq_set_sampling(seq, &bad[i]), SLUICE_ERR_ARGUMENT);
    rig_close(&r);
}

/* ---- threads ------------------------------------------------------------------------------ */

struct worker {
    sluice_model *model;
    int32_t tokens[N_NEW];
    int status;
};

static void *work(void *context) {
    struct worker *w = context;
    struct sluice_engine_options o = options_for(64, 1);
    sluice_engine *engine = NULL;
    sluice_seq *seq = NULL;
    int32_t prompt[16];
    size_t n = 0;
    w->status = sluice_engine_open(&engine, w->model, &o);
    if (!w->status)
        w->status = sluice_encode(w->model, "a fox", 5, 0, prompt, 16, &n);
    if (!w->status)
        w->status = sluice_seq_open(&seq, engine);
    if (!w->status)
        w->status = sluice_seq_feed(seq, prompt, n);
    for (int i = 0; !w->status && i < N_NEW; i++)
        w->status = sluice_seq_next(seq, &w->tokens[i]);
    sluice_engine_close(engine);
    return NULL;
}

TEST(engine_threads_share_a_model) {
    enum { N = 3 };
    pthread_t threads[N];
    struct worker workers[N] = {0};
    sluice_model *model = NULL;
    EXPECT_INT(sluice_model_open(&model, test_data("reference/qwen35-dense-a/model-f32.gguf")),
               SLUICE_OK);
    for (int i = 0; i < N; i++) {
        workers[i].model = model;
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        EXPECT_INT(workers[i].status, SLUICE_OK);
        expect_tokens(workers[i].tokens, workers[0].tokens, N_NEW, "a thread");
    }
    sluice_model_close(model);
}
