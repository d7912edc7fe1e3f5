/* test_engine_api.c - the engine's API by its contract: what must fail fails, says why and changes
 * nothing; whatever the order of calls, results are those of a fresh sequence. */
#include "api_oracle.h"
#include "test.h"

static const char *const models[] = {
    "reference/qwen35-dense-a/model-f32.gguf",
    "reference/llama-a/model-f32.gguf",
};
enum { N_MODELS = sizeof models / sizeof *models };

/* ---- any order of calls ------------------------------------------------------------------- */

static uint64_t seed_now;
static uint32_t n_differ;

static void oracle_differs(int line, const char *what) {
    n_differ++;
    test_fail("tests/api_oracle.h", line, "%s (seed %llu)", what, (unsigned long long)seed_now);
}

static void fill_random(uint8_t *bytes, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(seed >> 40);
    }
}

/* Of each model; they take 0.1 s, and half a second under sanitizers. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { RUNS = 4 };
#else
enum { RUNS = 16 };
#endif

TEST(engine_api_keeps_its_contract_in_any_order_of_calls) {
    uint32_t n_seeds = 0;
    for (int m = 0; m < N_MODELS; m++) {
        struct oracle o;
        if (!oracle_open(&o, test_data(models[m]))) {
            test_fail(__FILE__, __LINE__, "%s%s", sluice_model_error(o.model),
                      sluice_engine_error(o.engine));
            return;
        }
        for (uint64_t seed = 0; n_differ == 0 && seed < RUNS; seed++, n_seeds++) {
            uint8_t bytes[600];
            seed_now = seed;
            fill_random(bytes, sizeof bytes, seed);
            oracle_run(&o, bytes, sizeof bytes);
        }
        oracle_close(&o);
    }
    test_note("%u runs of random calls", n_seeds);
}

/* ---- a second sequence -------------------------------------------------------------------- */

/* Steps for one sequence sample for the others too: no token of theirs is lost. */
TEST(engine_next_of_two_sequences_loses_no_token) {
    enum { N = 6 };
    int32_t alone[N], together[2][N];
    const int32_t prompt[] = {5, 6, 7};
    for (int m = 0; m < N_MODELS; m++) {
        struct sluice_engine_options o = sluice_engine_options_default();
        sluice_model *model = NULL;
        sluice_engine *engine = NULL;
        sluice_seq *seqs[3] = {0};
        o.sequences = o.batch = 3;
        o.context = 64;
        o.threads = 1;
        EXPECT_INT(sluice_model_open(&model, test_data(models[m])), SLUICE_OK);
        EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_OK);
        for (int i = 0; i < 3; i++) {
            struct sluice_sampling s = {.top_p = 1, .repeat_penalty = 1};
            EXPECT_INT(sluice_seq_open(&seqs[i], engine), SLUICE_OK);
            EXPECT_INT(sluice_seq_set_sampling(seqs[i], &s), SLUICE_OK);
        }
        EXPECT_INT(sluice_seq_feed(seqs[2], prompt, 3), SLUICE_OK);
        for (int i = 0; i < N; i++)
            EXPECT_INT(sluice_seq_next(seqs[2], &alone[i]), SLUICE_OK);
        EXPECT_INT(sluice_seq_feed(seqs[0], prompt, 3), SLUICE_OK);
        EXPECT_INT(sluice_seq_feed(seqs[1], prompt, 3), SLUICE_OK);
        for (int i = 0; i < N; i++)
            for (int k = 0; k < 2; k++)
                EXPECT_INT(sluice_seq_next(seqs[k], &together[k][i]), SLUICE_OK);
        for (int k = 0; k < 2; k++)
            EXPECT(memcmp(together[k], alone, sizeof alone) == 0);
        sluice_engine_close(engine);
        sluice_model_close(model);
    }
}

/* ---- calls that must fail ----------------------------------------------------------------- */

TEST(engine_next_without_a_wanted_token_feeds_nothing) {
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    sluice_seq *seq = NULL;
    const int32_t prompt[] = {5, 6, 7};
    int32_t token = -1;
    uint32_t n = 0;
    EXPECT_INT(sluice_model_open(&model, test_data(models[1])), SLUICE_OK);
    EXPECT_INT(sluice_engine_open(&engine, model, NULL), SLUICE_OK);
    EXPECT_INT(sluice_seq_open(&seq, engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(seq, prompt, 3), SLUICE_OK);
    EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
    EXPECT_INT(sluice_seq_want(seq, SLUICE_WANT_LOGITS), SLUICE_OK);
    EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_ERR_ARGUMENT);
    EXPECT_STR(sluice_engine_error(engine),
               "the sequence wants no token, expected SLUICE_WANT_TOKEN");
    sluice_seq_tokens(seq, NULL, &n, NULL);
    EXPECT_INT(n, 3);
    sluice_engine_close(engine);
    sluice_model_close(model);
}

TEST(engine_handles_that_did_not_open_say_why) {
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    sluice_seq *seq = (sluice_seq *)&model;
    sluice_text *text = (sluice_text *)&model;
    struct sluice_facts facts;
    struct sluice_memory memory;
    struct sluice_counters counters;
    struct sluice_choice choice;
    uint32_t n = 7;
    size_t length;
    EXPECT_INT(sluice_model_open(NULL, "x"), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_model_open(&model, "no/such/file"), SLUICE_ERR_IO);
    EXPECT_INT(sluice_engine_open(NULL, model, NULL), SLUICE_ERR_ARGUMENT);
    for (int i = 0; i < 2; i++) {
        sluice_model *given = i ? model : NULL;
        EXPECT_INT(sluice_engine_open(&engine, given, NULL), SLUICE_ERR_ARGUMENT);
        EXPECT(strstr(sluice_engine_error(engine), i ? "no/such/file" : "not open"));
        EXPECT_INT(sluice_engine_step(engine, &n), SLUICE_ERR_ARGUMENT);
        EXPECT_INT(sluice_engine_burst(engine, 1, &n), SLUICE_ERR_ARGUMENT);
        EXPECT_INT(sluice_seq_open(&seq, engine), SLUICE_ERR_ARGUMENT);
        EXPECT(seq == NULL);
        EXPECT_INT(sluice_seq_load(&seq, engine, "x"), SLUICE_ERR_ARGUMENT);
        sluice_engine_cancel(engine);
        sluice_engine_memory(engine, &memory);
        sluice_engine_counters(engine, &counters);
        sluice_engine_choice(engine, &choice);
        EXPECT(memory.total == 0 && counters.steps == 0 && choice.backend[0] == 0);
        sluice_engine_close(engine);
        sluice_model_facts(given, &facts);
        EXPECT(facts.architecture[0] == 0 && facts.n_tokens == 0 && facts.bos == -1);
        EXPECT(!sluice_token_is_end(given, 0));
        EXPECT_NEAR(sluice_sampling_default(given).temperature, 0.8, 1e-6);
        EXPECT(sluice_encode(given, "a", 1, 0, NULL, 0, &length) < 0);
        EXPECT(sluice_encode_chat(given, "{}", NULL, 0, &length, NULL, 0) < 0);
        EXPECT(sluice_text_open(&text, given, NULL, 0) < 0);
        EXPECT(text == NULL);
    }
    sluice_model_close(model);
    EXPECT_INT(sluice_engine_step(NULL, NULL), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_engine_burst(NULL, 1, NULL), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_seq_open(&seq, NULL), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_seq_load(&seq, NULL, "x"), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_text_push(NULL, 0, NULL, NULL), SLUICE_ERR_ARGUMENT);
    EXPECT(!sluice_text_has_stopped(NULL));
    EXPECT_STR(sluice_model_error(NULL), "");
    EXPECT_STR(sluice_engine_error(NULL), "");
    sluice_model_facts(NULL, NULL);
    sluice_engine_memory(NULL, &memory);
    sluice_engine_counters(NULL, &counters);
    sluice_engine_choice(NULL, &choice);
}

TEST(engine_refuses_calls_without_what_they_need) {
    sluice_model *model = NULL;
    sluice_text *text = NULL;
    int32_t tokens[8];
    size_t n = 3;
    char error[64] = "";
    const char *stops[] = {"x", NULL, ""}, *at;
    EXPECT_INT(sluice_model_open(&model, test_data(models[0])), SLUICE_OK);
    EXPECT_INT(sluice_encode(model, NULL, 3, 0, tokens, 8, &n), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_encode(model, "a", 1, 0, NULL, 8, &n), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_encode(model, "a", 1, 0, tokens, 8, NULL), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_encode(model, "a", 1, 64, tokens, 8, &n), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(n, 3);
    EXPECT_INT(sluice_encode(model, NULL, 0, 0, NULL, 0, &n), SLUICE_OK);
    EXPECT_INT(sluice_encode_chat(model, NULL, tokens, 8, &n, error, sizeof error),
               SLUICE_ERR_ARGUMENT);
    EXPECT(error[0]);
    EXPECT_INT(sluice_text_open(NULL, model, NULL, 0), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_text_open(&text, model, NULL, 1), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_text_open(&text, model, stops, 2), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_text_open(&text, model, stops + 2, 1), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_text_open(&text, model, stops, 1), SLUICE_OK);
    EXPECT_INT(sluice_text_push(text, 5, NULL, &n), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_text_push(text, 1 << 30, &at, &n), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_text_push(text, -2, &at, &n), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(sluice_text_push(text, 5, &at, &n), SLUICE_OK);
    sluice_text_close(text);
    sluice_model_close(model);
}

/* ---- options ------------------------------------------------------------------------------ */

TEST(engine_refuses_senseless_options) {
    static const struct {
        const char *says;
        int64_t context;
        uint32_t sequences, batch, prefill, every;
        int threads, device;
    } cases[] = {
        {"threads (-t) is 1025, expected 0 to 1024", 64, 1, 1, 8, 8, 1025, 0},
        {"threads (-t) is 2147483647", 64, 1, 1, 8, 8, INT32_MAX, 0},
        {"threads (-t) is -1", 64, 1, 1, 8, 8, -1, 0},
        {"device (--device) is -1", 64, 1, 1, 8, 8, 1, -1},
        {"context (-c) is 16777217, expected", (1 << 24) + 1, 1, 1, 8, 8, 1, 0},
        {"context (-c) is 9223372036854775807", INT64_MAX, 1, 1, 8, 8, 1, 0},
        {"sequences is 4097", 64, 4097, 1, 8, 8, 1, 0},
        {"sequences is 4294967295", 64, UINT32_MAX, 1, 8, 8, 1, 0},
        {"batch (--batch) is 4097", 64, 1, 4097, 8, 8, 1, 0},
        {"prefill is 4097", 64, 1, 1, 4097, 8, 1, 0},
        {"snapshot_every is 4294967295", 64, 1, 1, 8, UINT32_MAX, 1, 0},
    };
    sluice_model *model = NULL;
    EXPECT_INT(sluice_model_open(&model, test_data(models[0])), SLUICE_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sluice_engine_options o = sluice_engine_options_default();
        sluice_engine *engine = NULL;
        o.context = cases[i].context;
        o.sequences = cases[i].sequences;
        o.batch = cases[i].batch;
        o.prefill = cases[i].prefill;
        o.snapshot_every = cases[i].every;
        o.threads = cases[i].threads;
        o.device = cases[i].device;
        EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_ERR_ARGUMENT);
        if (!strstr(sluice_engine_error(engine), cases[i].says))
            test_fail(__FILE__, __LINE__, "\"%s\", expected %s in it", sluice_engine_error(engine),
                      cases[i].says);
        sluice_engine_close(engine);
    }
    sluice_model_close(model);
}

/* The largest values there are never crash: they fit, or the error says what would. */
TEST(engine_largest_options_fit_or_are_refused) {
    sluice_model *model = NULL;
    EXPECT_INT(sluice_model_open(&model, test_data(models[0])), SLUICE_OK);
    for (int i = 0; i < 8; i++) {
        struct sluice_engine_options o = sluice_engine_options_default();
        sluice_engine *engine = NULL;
        o.backend = "cpu";
        o.threads = 1;
        o.context = i & 1 ? 1 << 24 : 64;
        o.sequences = o.batch = i & 2 ? 4096 : 1;
        o.snapshot_bytes = UINT64_MAX;
        o.snapshot_every = i & 4 ? 1 : 1 << 24;
        o.all_outputs = UINT32_MAX;
        o.memory_limit = 64 << 20;
        int status = sluice_engine_open(&engine, model, &o);
        EXPECT(status == SLUICE_OK || status == SLUICE_ERR_MEMORY ||
               status == SLUICE_ERR_UNSUPPORTED);
        EXPECT(!status == !sluice_engine_error(engine)[0]);
        sluice_engine_close(engine);
    }
    sluice_model_close(model);
}

/* ---- sampling ----------------------------------------------------------------------------- */

TEST(engine_sampling_at_its_limits_picks_what_it_should) {
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    sluice_seq *seq = NULL;
    const int32_t prompt[] = {5, 6, 7};
    int32_t best = -1, token = -1;
    EXPECT_INT(sluice_model_open(&model, test_data(models[1])), SLUICE_OK);
    EXPECT_INT(sluice_engine_open(&engine, model, NULL), SLUICE_OK);
    EXPECT_INT(sluice_seq_open(&seq, engine), SLUICE_OK);
    for (int i = 0; i < 4; i++) {
        struct sluice_bias biases[2] = {{best, -INFINITY}, {17, 1e9f}};
        struct sluice_sampling s = {.top_p = 1, .repeat_penalty = 1};
        if (i == 1 || i == 3)
            s.temperature = 1e-6f; /* as good as 0 */
        if (i >= 2) {
            s.biases = biases + (i == 3);
            s.n_biases = 1;
        }
        EXPECT_INT(sluice_seq_rewind(seq, 0), SLUICE_OK);
        EXPECT_INT(sluice_seq_set_sampling(seq, &s), SLUICE_OK);
        EXPECT_INT(sluice_seq_feed(seq, prompt, 3), SLUICE_OK);
        EXPECT_INT(sluice_seq_next(seq, &token), SLUICE_OK);
        if (i == 0)
            best = token;
        EXPECT(i == 0 || (token == best) == (i == 1));
        EXPECT(i != 3 || token == 17);
    }
    sluice_engine_close(engine);
    sluice_model_close(model);
}
