/* test_conversations.c - what is known of a conversation's beginning is taken over, and gives the
 * bits that reading it all would give. */
#include <ftw.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conversations.h"
#include "random_model.h"

static const char *const models[] = {
    "reference/qwen35-dense-a/model-f32.gguf",
    "reference/llama-a/model-q8_0.gguf",
    "reference/qwen35-moe-a/model-f32.gguf",
};
enum { N_MODELS = sizeof models / sizeof *models, HYBRID = 0, PLAIN = 1 };

/* ---- random schedules --------------------------------------------------------------------- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { N_ANSWERS = 12 };
#else
enum { N_ANSWERS = 18 };
#endif

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    return remove(path);
}

static void remove_folder(const char *path) {
    nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Another byte in the middle of every file. */
static int damage_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)at;
    FILE *f = kind == FTW_F ? fopen(path, "r+b") : NULL;
    if (!f)
        return 0;
    fseek(f, (long)st->st_size / 2, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, (long)st->st_size / 2, SEEK_SET);
    fputc(byte ^ 1, f);
    fclose(f);
    return 0;
}

/* Small ones, so that a run is mostly the engine's own work: a hybrid, a plain transformer, a
 * mixture of experts. */
static bool write_small_model(uint32_t kind, const char *path) {
    static const char *const archs[] = {"qwen35", "llama", "qwen35moe"};
    const struct random_model m = {.seed = kind,
                                   .arch = archs[kind],
                                   .hidden = 64,
                                   .layers = 2,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .head_width = 32,
                                   .ffn = 64,
                                   .vocab = 151,
                                   .key_heads = 1,
                                   .value_heads = 2,
                                   .key_width = 16,
                                   .value_width = 16,
                                   .draft_block = kind == 2 ? 2 : kind == 0,
                                   .experts = kind == 2 ? 3 : 0,
                                   .used = kind == 2 ? 2 : 0,
                                   .type = kind == 1 ? DT_Q8_0 : DT_F32};
    struct err err = {0};
    if (random_model_write(&m, path, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return err.code == 0;
}

TEST(engine_conversations_in_any_schedule_as_in_a_cold_run) {
    char folder[] = "/tmp/sluice-talks-XXXXXX";
    static const char *const names[] = {"hybrid.gguf", "plain.gguf", "moe.gguf"};
    const char *paths[N_MODELS];
    EXPECT(mkdtemp(folder) != NULL);
    for (uint32_t i = 0; i < N_MODELS; i++)
        if (!write_small_model(i, paths[i] = test_temporary(names[i])))
            return;
    for (uint32_t i = 0; i < 4 * N_MODELS && !test_has_failed(); i++) {
        bool is_poor = i % (2 * N_MODELS) < N_MODELS, has_tiers = i >= 2 * N_MODELS;
        const struct talk_setup setup = {
            .path = paths[i % N_MODELS],
            .backend = "cpu",
            .pages = is_poor ? 7 : 24,
            .snapshots = is_poor ? 3 : 12,
            .every = is_poor ? 96 : 0,
            .host = has_tiers ? 10 : 0,
            .folder = has_tiers && !is_poor ? folder : NULL,
            .prefill = i % 2 ? 50 : 300,
            .drafts = is_poor ? 3 : 7,
            .threads = 1 + i % 2,
            .seed = 100 + i,
        };
        talk_run(&setup, getenv("SLUICE_TEST_SHORT") ? N_ANSWERS / 3 : N_ANSWERS);
    }
    remove_folder(folder);
}

/* ---- what clients send -------------------------------------------------------------------- */

struct rig {
    sluice_model *model;
    sluice_engine *engine;
    struct sluice_facts facts;
};

/* One thread and a small context; with a folder a cache in it, and snapshots. */
static struct sluice_engine_options options_with(const char *folder) {
    struct sluice_engine_options o = sluice_engine_options_default();
    o.backend = "cpu";
    o.threads = 1;
    o.context = 1000;
    if (!folder)
        return o;
    o.snapshot_bytes = 4 << 20;
    o.cache_dir = folder;
    o.cache_dir_bytes = 100 << 20;
    return o;
}

static bool rig_open(struct rig *r, const char *path, uint32_t sequences) {
    struct sluice_engine_options o = sluice_engine_options_default();
    *r = (struct rig){0};
    o.backend = "cpu";
    o.context = 1500;
    o.sequences = o.batch = sequences;
    o.threads = 1;
    o.kv_bytes = 64 << 20;
    int status = sluice_model_open(&r->model, test_data(path));
    if (!status)
        status = sluice_engine_open(&r->engine, r->model, &o);
    if (status)
        test_fail(__FILE__, __LINE__, "%s%s", sluice_model_error(r->model),
                  sluice_engine_error(r->engine));
    sluice_model_facts(r->model, &r->facts);
    return !status;
}

static void rig_close(struct rig *r) {
    sluice_engine_close(r->engine);
    sluice_model_close(r->model);
}

static void fill(struct rig *r, int32_t *tokens, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((seed >> 33) % (uint64_t)r->facts.n_tokens);
    }
}

/* A first conversation: 300 tokens of system prompt, a question up to 400, an answer up to 560, of
 * which the last token is sampled and not read. Snapshots are asked for after system prompt and
 * question. */
enum { SYSTEM = 300, QUESTION = 400, ANSWER = 560 };

static void first_turn(struct rig *r, int32_t *tokens) {
    sluice_seq *seq;
    uint32_t n;
    fill(r, tokens, QUESTION, 1);
    EXPECT_INT(sluice_seq_open(&seq, r->engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_resume(seq, tokens, QUESTION, NULL), SLUICE_OK);
    EXPECT_INT(sluice_seq_mark(seq, SYSTEM), SLUICE_OK);
    EXPECT_INT(sluice_seq_mark(seq, QUESTION), SLUICE_OK);
    for (n = QUESTION; n < ANSWER; n++)
        EXPECT_INT(sluice_seq_next(seq, &tokens[n]), SLUICE_OK);
    sluice_seq_close(seq);
}

static void make_other(struct rig *r, int32_t *tokens, uint32_t at) {
    tokens[at] = (tokens[at] + 1) % r->facts.n_tokens;
}

TEST(engine_what_clients_send_is_known) {
    static const struct {
        const char *what;
        uint32_t n, other;      /* tokens of the first turn, the one that is another; 0: none */
        uint32_t more;          /* new tokens after them */
        uint32_t plain, hybrid; /* expected reuse */
        const char *why, *hybrid_why;
    } cases[] = {
        {"tool results appended", ANSWER, 0, 50, ANSWER - 1, ANSWER - 1, "at token 559",
         "at token 559"},
        {"the same again", ANSWER, 0, 0, ANSWER - 1, ANSWER - 1, "", ""},
        {"the question again", QUESTION, 0, 0, QUESTION - 1, SYSTEM, "", "between 301 and 399"},
        {"a changed time near the end", ANSWER, 520, 9, 520, 512, "at token 520",
         "between 513 and 520"},
        {"thinking stripped", QUESTION + 20, 0, 80, QUESTION + 20, QUESTION, "at token 420",
         "between 401 and 420"},
        {"a branch from the middle", 350, 0, 40, 350, SYSTEM, "at token 350",
         "between 301 and 350"},
        {"the same system prompt", SYSTEM, 0, 200, SYSTEM, SYSTEM, "at token 300", "at token 300"},
        {"another system prompt", SYSTEM, 0, 200, 0, 0, "no conversation", "no conversation"},
    };
    for (int m = 0; m < 2; m++) {
        struct rig r;
        static int32_t tokens[ANSWER], prompt[1500];
        if (!rig_open(&r, models[m], 1))
            return;
        r.engine->state.options.snapshot_every = 256;
        first_turn(&r, tokens);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct sluice_reuse reuse;
            sluice_seq *seq;
            memcpy(prompt, tokens, cases[i].n * sizeof *prompt);
            fill(&r, prompt + cases[i].n, cases[i].more, 50 + i);
            if (cases[i].more)
                prompt[cases[i].n] = cases[i].n < ANSWER ? tokens[cases[i].n] : 0;
            if (cases[i].more)
                make_other(&r, prompt, cases[i].n); /* it differs from the first turn there */
            if (cases[i].other)
                make_other(&r, prompt, cases[i].other);
            if (cases[i].plain == 0)
                make_other(&r, prompt, 0);
            EXPECT_INT(sluice_seq_open(&seq, r.engine), SLUICE_OK);
            EXPECT_INT(sluice_seq_resume(seq, prompt, cases[i].n + cases[i].more, &reuse),
                       SLUICE_OK);
            uint32_t expected = m == HYBRID ? cases[i].hybrid : cases[i].plain;
            const char *why = m == HYBRID ? cases[i].hybrid_why : cases[i].why;
            if (reuse.tokens != expected || !strstr(reuse.why, why) || !why[0] != !reuse.why[0])
                test_fail(__FILE__, __LINE__,
                          "%s: %s: %u tokens reused (\"%s\"), expected %u (\"%s\")", models[m],
                          cases[i].what, reuse.tokens, reuse.why, expected, why);
            /* Nothing was read, so nothing more is known. */
            sluice_seq_close(seq);
        }
        rig_close(&r);
    }
}

/* A conversation that runs is known as well: its full pages, and where state is recurrent its
 * snapshots. */
TEST(engine_live_conversations_are_known) {
    for (int m = 0; m < 2; m++) {
        struct rig r;
        int32_t tokens[700], token;
        sluice_seq *one, *two;
        struct sluice_reuse reuse;
        struct sluice_pages before, after;
        if (!rig_open(&r, models[m], 2))
            return;
        fill(&r, tokens, 700, 3);
        EXPECT_INT(sluice_seq_open(&one, r.engine), SLUICE_OK);
        EXPECT_INT(sluice_seq_feed(one, tokens, 600), SLUICE_OK);
        EXPECT_INT(sluice_seq_mark(one, 590), SLUICE_OK);
        EXPECT_INT(sluice_seq_next(one, &token), SLUICE_OK);
        sluice_engine_pages(r.engine, &before);
        EXPECT_INT(sluice_seq_open(&two, r.engine), SLUICE_OK);
        EXPECT_INT(sluice_seq_resume(two, tokens, 700, &reuse), SLUICE_OK);
        EXPECT_INT(reuse.tokens, m == HYBRID ? 590 : 600);
        sluice_engine_pages(r.engine, &after);
        EXPECT_INT(after.free, before.free); /* shared, also the page that is begun */
        EXPECT_INT(sluice_seq_next(two, &token), SLUICE_OK);
        sluice_engine_pages(r.engine, &after);
        EXPECT_INT(after.free, before.free - 1); /* now it writes to it */
        EXPECT(state_broken(&r.engine->state) == NULL);
        rig_close(&r);
    }
}

/* Going back to a place with a snapshot and on from there reads nothing twice. */
TEST(engine_rewind_to_a_snapshot_reads_nothing_twice) {
    struct rig r;
    int32_t tokens[500], token;
    sluice_seq *seq;
    uint32_t waiting;
    if (!rig_open(&r, models[HYBRID], 1))
        return;
    fill(&r, tokens, 500, 4);
    EXPECT_INT(sluice_seq_open(&seq, r.engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(seq, tokens, 300), SLUICE_OK);
    EXPECT_INT(sluice_seq_mark(seq, 123), SLUICE_OK);
    EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
    EXPECT_INT(sluice_seq_rewind(seq, 123), SLUICE_OK);
    sluice_seq_tokens(seq, NULL, NULL, &waiting);
    EXPECT_INT(waiting, 123); /* one must be sampled after the last, and no snapshot is before it */
    EXPECT_INT(sluice_seq_feed(seq, tokens + 400, 7), SLUICE_OK);
    sluice_seq_tokens(seq, NULL, NULL, &waiting);
    EXPECT_INT(waiting, 7);
    rig_close(&r);
}

/* ---- what outlives the engine ------------------------------------------------------------- */

/* A conversation of an earlier engine is known, unless model or KV cache are others; and it is no
 * error when files are gone or damaged meanwhile. */
TEST(engine_conversations_survive_in_a_folder) {
    enum { N = 600 };
    char folder[] = "/tmp/sluice-kept-XXXXXX";
    EXPECT(mkdtemp(folder) != NULL);
    for (int m = 0; m < 2; m++) {
        float *logits[4] = {0};
        /* A first engine, the same again, one with another KV cache, one whose files are damaged.
         */
        for (int turn = 0; turn < 4; turn++) {
            struct sluice_engine_options o = sluice_engine_options_default();
            struct sluice_reuse reuse;
            struct rig r = {0};
            sluice_seq *seq = NULL;
            int32_t tokens[N], token;
            const float *at = NULL;
            uint32_t rows = 0;
            o.backend = "cpu";
            o.threads = 1;
            o.context = 700;
            o.kv_type = turn == 2 ? "f32" : "f16";
            o.cache_dir = folder;
            o.cache_dir_bytes = 100 << 20;
            if (turn == 3)
                nftw(folder, damage_one, 8, FTW_PHYS);
            EXPECT_INT(sluice_model_open(&r.model, test_data(models[m])), SLUICE_OK);
            EXPECT_INT(sluice_engine_open(&r.engine, r.model, &o), SLUICE_OK);
            sluice_model_facts(r.model, &r.facts);
            fill(&r, tokens, N, 9);
            EXPECT_INT(sluice_seq_open(&seq, r.engine), SLUICE_OK);
            EXPECT_INT(sluice_seq_want(seq, SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS), SLUICE_OK);
            EXPECT_INT(sluice_seq_resume(seq, tokens, N, &reuse), SLUICE_OK);
            EXPECT_INT(sluice_seq_mark(seq, N - 1), SLUICE_OK);
            EXPECT_INT(reuse.tokens, turn == 1 ? N - 1 : 0);
            EXPECT_INT(reuse.disk, turn == 1 ? N - 1 : 0);
            EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
            EXPECT_INT(sluice_seq_logits(seq, &at, &rows), SLUICE_OK);
            size_t bytes = (size_t)r.facts.n_logits * sizeof *at;
            logits[turn] = malloc(bytes);
            if (rows == 1)
                memcpy(logits[turn], at, bytes);
            if (turn % 2)
                EXPECT(memcmp(logits[0], logits[turn], bytes) == 0);
            if (turn == 0) /* else the engine's close does it */
                sluice_seq_close(seq);
            rig_close(&r);
        }
        for (int i = 0; i < 4; i++)
            free(logits[i]);
    }
    remove_folder(folder);
}

/* Two beginnings of 256 tokens with the same XXH3 (of 128 bits, after the 16 zeros of the root):
 * clients can make such pairs in no time. Found by lattice reduction: sixteen tokens apart the
 * differences, and their products with the hash's fixed secret, add up to zero. */
static void fill_alike(int32_t tokens[PAGE], int which) {
    static const uint8_t pairs[][2] = {{112, 114}, {75, 74}, {2, 0},     {57, 56},  {96, 96},
                                       {60, 61},   {9, 8},   {112, 115}, {56, 57},  {40, 41},
                                       {121, 125}, {14, 10}, {75, 72},   {106, 106}};
    for (uint32_t i = 0; i < PAGE; i++)
        tokens[i] = 7;
    for (uint32_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        tokens[16 + 16 * i] = pairs[i][which];
}

static struct hash128 xxh3_after_root(const int32_t tokens[PAGE]) {
    struct hash h;
    hash_begin(&h);
    hash_add(&h, &(struct hash128){0}, sizeof(struct hash128));
    hash_add(&h, tokens, PAGE * sizeof *tokens);
    return hash128_end(&h);
}

/* What one beginning was followed by is in files that are named for all tokens before, and holds
 * only its own. The other beginning, followed by the same, must not find it. */
TEST(engine_beginnings_with_one_xxh3_are_told_apart) {
    enum { N = 600 };
    char folder[] = "/tmp/sluice-alike-XXXXXX";
    int32_t tokens[2][N];
    EXPECT(mkdtemp(folder) != NULL);
    for (int m = 0; m < 2; m++) {
        float *cold = NULL;
        /* The second in a cold run; all of the first; the beginning of the second; all of it. */
        for (int turn = -1; turn < 3; turn++) {
            struct rig r = {0};
            struct sluice_engine_options o = options_with(turn < 0 ? NULL : folder);
            sluice_seq *seq = NULL;
            int32_t token;
            const float *at = NULL;
            uint32_t rows = 0, n = turn == 1 ? PAGE + 20 : N;
            EXPECT_INT(sluice_model_open(&r.model, test_data(models[m])), SLUICE_OK);
            EXPECT_INT(sluice_engine_open(&r.engine, r.model, &o), SLUICE_OK);
            sluice_model_facts(r.model, &r.facts);
            EXPECT(r.facts.n_tokens > 127);
            for (int which = 0; which < 2; which++) {
                fill(&r, tokens[which], N, 9);
                fill_alike(tokens[which], which);
            }
            EXPECT(memcmp(tokens[0], tokens[1], sizeof tokens[0]) != 0);
            EXPECT(hash128_equal(xxh3_after_root(tokens[0]), xxh3_after_root(tokens[1])));
            EXPECT_INT(sluice_seq_open(&seq, r.engine), SLUICE_OK);
            EXPECT_INT(sluice_seq_want(seq, SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS), SLUICE_OK);
            EXPECT_INT(sluice_seq_resume(seq, tokens[turn != 0], n, NULL), SLUICE_OK);
            EXPECT_INT(sluice_seq_mark(seq, n - 1), SLUICE_OK);
            EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
            EXPECT_INT(sluice_seq_logits(seq, &at, &rows), SLUICE_OK);
            size_t bytes = (size_t)r.facts.n_logits * sizeof *at;
            EXPECT_INT(rows, 1);
            if (turn < 0 && rows == 1 && (cold = malloc(bytes)))
                memcpy(cold, at, bytes);
            if (turn == 2 && rows == 1)
                EXPECT(cold && memcmp(cold, at, bytes) == 0);
            sluice_seq_close(seq);
            rig_close(&r);
        }
        free(cold);
    }
    remove_folder(folder);
}

/* One of six prompts, in pairs that begin alike; what it is followed by: token and logits. */
static int32_t ask_shared(struct rig *r, uint32_t which, float *logits,
                          struct sluice_reuse *reuse) {
    int32_t tokens[900], token = -1;
    uint32_t n = 400 + 90 * which, rows = 0;
    sluice_seq *seq = NULL;
    const float *at = NULL;
    fill(r, tokens, n, 1 + which / 2);
    EXPECT_INT(sluice_seq_open(&seq, r->engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_want(seq, SLUICE_WANT_TOKEN | SLUICE_WANT_LOGITS), SLUICE_OK);
    EXPECT_INT(sluice_seq_resume(seq, tokens, n, reuse), SLUICE_OK);
    EXPECT_INT(sluice_seq_mark(seq, n - 1), SLUICE_OK);
    EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
    EXPECT_INT(sluice_seq_logits(seq, &at, &rows), SLUICE_OK);
    if (rows == 1)
        memcpy(logits, at, (size_t)r->facts.n_logits * sizeof *at);
    sluice_seq_close(seq);
    return token;
}

/* Two engines write to one folder with room for few of their files: each removes what the other
 * knows of, and neither ever answers otherwise than alone. One that opens later knows them all. */
TEST(engine_two_on_one_folder_answer_as_alone) {
    enum { ROUNDS = 30, PROMPTS = 6 };
    for (int m = 0; m < 2; m++) {
        char folder[] = "/tmp/sluice-kept-XXXXXX";
        struct sluice_engine_options o = options_with(NULL);
        struct rig rigs[3] = {0}; /* the third is alone */
        float *right[PROMPTS], *logits;
        int32_t tokens[PROMPTS];
        struct sluice_reuse reuse;
        uint64_t random = 5, from_disk = 0;
        EXPECT(mkdtemp(folder) != NULL);
        EXPECT_INT(sluice_model_open(&rigs[0].model, test_data(models[m])), SLUICE_OK);
        sluice_model_facts(rigs[0].model, &rigs[0].facts);
        size_t bytes = (size_t)rigs[0].facts.n_logits * sizeof *logits;
        logits = calloc(1, bytes);
        for (int i = 2; i >= 0; i--) {
            rigs[i].model = rigs[0].model;
            rigs[i].facts = rigs[0].facts;
            o.cache_dir = i == 2 ? NULL : folder;
            o.kv_bytes = i == 2 ? 0 : 6 * rigs[2].engine->state.layout.page_bytes;
            o.snapshot_bytes = i == 2 ? 0 : 3 * rigs[2].engine->state.layout.recurrent_bytes;
            o.cache_dir_bytes = i == 2 ? 0
                                       : 12 * (rigs[2].engine->state.layout.page_bytes +
                                               rigs[2].engine->state.layout.recurrent_bytes);
            EXPECT_INT(sluice_engine_open(&rigs[i].engine, rigs[0].model, &o), SLUICE_OK);
        }
        for (uint32_t i = 0; i < PROMPTS; i++) {
            right[i] = calloc(1, bytes);
            tokens[i] = ask_shared(&rigs[2], i, right[i], &reuse);
            sluice_engine_forget(rigs[2].engine);
        }
        for (int i = 0; i < ROUNDS; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint32_t which = (uint32_t)(random >> 33) % PROMPTS, who = (uint32_t)(random >> 60) % 2;
            if (i == ROUNDS / 2) { /* the other one goes on */
                sluice_engine_close(rigs[1].engine);
                EXPECT_INT(sluice_engine_open(&rigs[1].engine, rigs[0].model, &o), SLUICE_OK);
            }
            EXPECT_INT(ask_shared(&rigs[who], which, logits, &reuse), tokens[which]);
            EXPECT(memcmp(logits, right[which], bytes) == 0);
            from_disk += reuse.disk;
        }
        EXPECT(from_disk > 0);
        for (int i = 0; i < 3; i++) {
            EXPECT(state_broken(&rigs[i].engine->state) == NULL);
            sluice_engine_close(rigs[i].engine);
        }
        sluice_model_close(rigs[0].model);
        for (uint32_t i = 0; i < PROMPTS; i++)
            free(right[i]);
        free(logits);
        remove_folder(folder);
    }
}

static uint32_t n_whole_files;

static int count_whole(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st;
    n_whole_files += kind == FTW_F && path[at->base] != '.';
    return 0;
}

/* Reads n tokens; `reuse` as resume says it. */
static void read_once(const char *path, const char *folder, uint32_t n, struct sluice_reuse *reuse,
                      bool is_killed) {
    struct sluice_engine_options o = options_with(folder);
    struct rig r = {0};
    sluice_seq *seq = NULL;
    int32_t tokens[1000], token;
    EXPECT_INT(sluice_model_open(&r.model, path), SLUICE_OK);
    EXPECT_INT(sluice_engine_open(&r.engine, r.model, &o), SLUICE_OK);
    sluice_model_facts(r.model, &r.facts);
    fill(&r, tokens, n, 9);
    EXPECT_INT(sluice_seq_open(&seq, r.engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_resume(seq, tokens, n, reuse), SLUICE_OK);
    EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
    sluice_seq_close(seq);
    while (is_killed)
        pause();
    rig_close(&r);
}

/* What was closed comes to disk without another call, and outlives a process that is killed. */
TEST(engine_closed_conversations_survive_kill) {
    enum { N = 900, SECONDS = 60 };
    for (int m = 0; m < 2; m++) {
        char folder[] = "/tmp/sluice-kept-XXXXXX";
        struct sluice_reuse reuse;
        EXPECT(mkdtemp(folder) != NULL);
        pid_t child = fork();
        if (child == 0) {
            read_once(test_data(models[m]), folder, N, &reuse, true);
            _exit(1);
        }
        const uint32_t expected = N / 256 + 1; /* blocks, and the end */
        for (int i = 0; n_whole_files < expected && i < SECONDS * 100; i++) {
            n_whole_files = 0;
            usleep(10000);
            nftw(folder, count_whole, 8, FTW_PHYS);
        }
        kill(child, SIGKILL);
        EXPECT_INT(waitpid(child, NULL, 0), child);
        EXPECT(n_whole_files >= expected);
        n_whole_files = 0;
        read_once(test_data(models[m]), folder, N + 50, &reuse, false); /* the next turn */
        EXPECT_INT(reuse.disk, N);
        remove_folder(folder);
    }
}

/* Snapshots that are computed sooner than read from a file are not written, and so are the blocks
 * that nothing else needs; what a file before them has is not counted. */
TEST(engine_writes_what_is_dear_to_read_again) {
    const struct {
        uint32_t n;
        double tokens; /* that are computed while a snapshot is read; 0: not known */
        bool is_written;
    } cases[] = {
        {40, 0, true}, {40, 30, true}, {40, 50, false}, {700, 800, false}, {700, 600, true},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[] = "/tmp/sluice-kept-XXXXXX";
        struct rig r = {0};
        sluice_seq *seq = NULL;
        int32_t tokens[700], token;
        EXPECT(mkdtemp(folder) != NULL);
        struct sluice_engine_options o = options_with(folder);
        EXPECT_INT(sluice_model_open(&r.model, test_data(models[HYBRID])), SLUICE_OK);
        EXPECT_INT(sluice_engine_open(&r.engine, r.model, &o), SLUICE_OK);
        const struct state_layout *l = &r.engine->state.layout;
        if (cases[i].tokens > 0)
            r.engine->state.cache.rates = (struct cache_rates){
                .token_seconds = 1 / cases[i].tokens,
                .disk_byte_seconds = 1.0 / (double)(l->page_bytes + l->recurrent_bytes),
            };
        sluice_model_facts(r.model, &r.facts);
        fill(&r, tokens, cases[i].n, 9);
        EXPECT_INT(sluice_seq_open(&seq, r.engine), SLUICE_OK);
        EXPECT_INT(sluice_seq_feed(seq, tokens, cases[i].n), SLUICE_OK);
        EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
        sluice_seq_close(seq);
        rig_close(&r);
        n_whole_files = 0;
        nftw(folder, count_whole, 8, FTW_PHYS);
        if ((n_whole_files > 0) != cases[i].is_written)
            test_fail(__FILE__, __LINE__, "case %u: %u files", i, n_whole_files);
        n_whole_files = 0;
        remove_folder(folder);
    }
}

/* As many pages as one sequence needs: the next turn finds the page that the last one ended in,
 * cannot copy it, and reads its tokens again. Nor does a folder that is too small for it hold it
 * up.
 */
TEST(engine_next_turn_with_no_page_to_spare) {
    for (int i = 0; i < 8; i++) {
        char folder[] = "/tmp/sluice-kept-XXXXXX";
        struct sluice_engine_options o = options_with(NULL);
        struct rig r = {0};
        sluice_seq *seq = NULL;
        int32_t tokens[900], token;
        EXPECT(mkdtemp(folder) != NULL);
        EXPECT_INT(sluice_model_open(&r.model, test_data(models[i % 2])), SLUICE_OK);
        EXPECT_INT(sluice_engine_open(&r.engine, r.model, &o), SLUICE_OK);
        const struct state_layout *l = &r.engine->state.layout;
        o.kv_bytes = 4 * l->page_bytes;
        o.cache_dir_bytes = (uint64_t)(i / 2) * (l->page_bytes + l->recurrent_bytes + 8192);
        o.cache_dir = i / 2 ? folder : NULL;
        o.snapshot_bytes = 4 << 20;
        sluice_engine_close(r.engine);
        EXPECT_INT(sluice_engine_open(&r.engine, r.model, &o), SLUICE_OK);
        sluice_model_facts(r.model, &r.facts);
        fill(&r, tokens, 900, 9);
        for (uint32_t n = 800; n <= 900; n += 50) {
            EXPECT_INT(sluice_seq_open(&seq, r.engine), SLUICE_OK);
            EXPECT_INT(sluice_seq_resume(seq, tokens, n, NULL), SLUICE_OK);
            if (sluice_seq_next(seq, &token))
                test_fail(__FILE__, __LINE__, "case %d, %u tokens: %s", i, n,
                          sluice_engine_error(r.engine));
            EXPECT_INT(sluice_seq_mark(seq, n), SLUICE_OK);
            EXPECT_INT(sluice_seq_rewind(seq, n - 20), SLUICE_OK);
            EXPECT_INT(sluice_seq_feed(seq, tokens, 10), SLUICE_OK);
            if (sluice_seq_next(seq, &token))
                test_fail(__FILE__, __LINE__, "case %d, back from %u: %s", i, n,
                          sluice_engine_error(r.engine));
            sluice_seq_close(seq);
        }
        EXPECT(state_broken(&r.engine->state) == NULL);
        rig_close(&r);
        remove_folder(folder);
    }
}

TEST(engine_refuses_tiers_that_hold_nothing) {
    sluice_model *model = NULL;
    EXPECT_INT(sluice_model_open(&model, test_data(models[0])), SLUICE_OK);
    for (int i = 0; i < 3; i++) {
        static const char *const says[] = {"(--cache-bytes) is 5", "(--cache-dir-bytes) is 0",
                                           "/dev/null"};
        struct sluice_engine_options o = sluice_engine_options_default();
        sluice_engine *engine = NULL;
        o.backend = "cpu";
        o.cache_bytes = i == 0 ? 5 : 0;
        o.cache_dir = i == 0 ? NULL : "/dev/null/x";
        o.cache_dir_bytes = i == 2 ? 1 << 30 : 0;
        EXPECT_INT(sluice_engine_open(&engine, model, &o),
                   i == 2 ? SLUICE_ERR_IO : SLUICE_ERR_ARGUMENT);
        if (!strstr(sluice_engine_error(engine), says[i]))
            test_fail(__FILE__, __LINE__, "\"%s\", expected %s in it", sluice_engine_error(engine),
                      says[i]);
        sluice_engine_close(engine);
    }
    sluice_model_close(model);
}
