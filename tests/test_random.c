/* test_random.c - models of random shapes and types through the engine: the same numbers wherever
 * tensors lie in a file, and in every mode. */
#include <sys/stat.h>

#include "random_model.h"
#include "sluice.h"
#include "test.h"

/* ---- helpers ----------------------------------------------------------------------------------
 */

enum { N_TOKENS = 24 };

/* The logits after each of N_TOKENS tokens, in steps of `rows` rows; NULL when something failed.
 * free() them. */
static float *logits_of(const char *path, bool exact, uint32_t rows, uint64_t *n_logits) {
    struct sluice_engine_options o = sluice_engine_options_default();
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    sluice_seq *seq = NULL;
    struct sluice_facts facts;
    float *out = NULL;
    int32_t tokens[N_TOKENS];
    uint64_t used = 0;
    o.context = 256;
    o.threads = 2;
    o.prefill = o.all_outputs = rows;
    o.exact = exact;
    o.backend = "cpu";
    if (sluice_model_open(&model, path)) {
        test_fail(__FILE__, __LINE__, "%s", sluice_model_error(model));
        goto out;
    }
    sluice_model_facts(model, &facts);
    *n_logits = (uint64_t)facts.n_logits;
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = i * 7919 % 50; /* every model has as many */
    if (sluice_engine_open(&engine, model, &o) || sluice_seq_open(&seq, engine) ||
        sluice_seq_feed(seq, tokens, N_TOKENS)) {
        test_fail(__FILE__, __LINE__, "%s: %s", path, sluice_engine_error(engine));
        goto out;
    }
    sluice_seq_want(seq, SLUICE_WANT_ALL_LOGITS);
    out = calloc(N_TOKENS * *n_logits, sizeof *out);
    while (used < N_TOKENS * *n_logits) {
        const float *logits = NULL;
        uint32_t n = 0;
        int status = sluice_engine_step(engine, NULL);
        if (!status)
            status = sluice_seq_logits(seq, &logits, &n);
        if (status || n == 0) {
            test_fail(__FILE__, __LINE__, "%s: %s", path, sluice_engine_error(engine));
            break;
        }
        memcpy(out + used, logits, n * *n_logits * sizeof *out);
        used += n * *n_logits;
    }
out:
    sluice_seq_close(seq);
    sluice_engine_close(engine);
    sluice_model_close(model);
    return out;
}

/* ---- where tensors lie ------------------------------------------------------------------------
 */

static void expect_same_logits(const char *a, const char *b, bool exact, uint32_t rows) {
    uint64_t n_a = 0, n_b = 0;
    float *x = logits_of(a, exact, rows, &n_a), *y = logits_of(b, exact, rows, &n_b);
    EXPECT_INT(n_a, n_b);
    if (x && y && n_a == n_b && memcmp(x, y, N_TOKENS * n_a * sizeof *x) != 0)
        test_fail(__FILE__, __LINE__, "%s and %s differ in steps of %u%s", a, b, rows,
                  exact ? ", exact" : "");
    free(x);
    free(y);
}

/* Tensors of every type at every offset modulo 4: the same bits as from an aligned file. */
TEST(random_models_at_odd_offsets) {
    static const enum dtype types[] = {DT_F32,  DT_F16,  DT_BF16, DT_Q4_0, DT_Q4_1, DT_Q5_0,
                                       DT_Q5_1, DT_Q8_0, DT_Q4_K, DT_Q5_K, DT_Q6_K};
    for (uint32_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct random_model m = {.seed = i,
                                 .arch = i % 2 ? "qwen2" : "qwen3",
                                 .hidden = 256,
                                 .layers = 1,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_width = 64,
                                 .ffn = 512,
                                 .vocab = 101,
                                 .type = types[i]};
        const char *even = test_temporary("even.gguf"), *odd = test_temporary("odd.gguf");
        bool is_written = random_model_write(&m, even);
        m.alignment = 1;
        m.padding = i % 4;
        if (is_written && random_model_write(&m, odd)) {
            expect_same_logits(even, odd, i % 3 == 0, 1);
            expect_same_logits(even, odd, i % 3 == 0, N_TOKENS);
        }
    }
}

TEST(random_moe_models_at_odd_offsets) {
    for (uint32_t seed = 0; seed < 8; seed++) {
        struct random_model m = random_moe(seed);
        const char *even = test_temporary("even.gguf"), *odd = test_temporary("odd.gguf");
        bool is_written = random_model_write(&m, even);
        m.alignment = 1;
        m.padding = seed % 4;
        if (is_written && random_model_write(&m, odd))
            expect_same_logits(even, odd, seed % 2, 7);
    }
}

static void copy_file(const char *from, const char *to, size_t padding) {
    size_t size = 0;
    uint64_t header;
    char *bytes = test_read_file(from, &size);
    FILE *f = fopen(to, "wb");
    if (bytes && f && padding && size > 8) { /* spaces after a safetensors header */
        memcpy(&header, bytes, 8);
        uint64_t longer = header + padding;
        fwrite(&longer, 8, 1, f);
        fwrite(bytes + 8, header, 1, f);
        fprintf(f, "%*s", (int)padding, "");
        fwrite(bytes + 8 + header, size - 8 - header, 1, f);
    } else if (bytes && f) {
        fwrite(bytes, size, 1, f);
    }
    EXPECT(bytes && f && fclose(f) == 0);
    free(bytes);
}

/* A header may have any length, and the data begin right after it. */
TEST(random_safetensors_headers_of_any_length) {
    static const char *const names[] = {"qwen35-moe-a", "qwen2-a", "llama-b"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t padding = 1; padding < 4; padding++) {
            char folder[64], from[256], to[256];
            snprintf(folder, sizeof folder, "reference/%s", names[i]);
            const char *even = test_data(folder), *odd = test_temporary("odd-header");
            mkdir(odd, 0777);
            snprintf(from, sizeof from, "%s/config.json", even);
            snprintf(to, sizeof to, "%s/config.json", odd);
            copy_file(from, to, 0);
            snprintf(from, sizeof from, "%s/model.safetensors", even);
            snprintf(to, sizeof to, "%s/model.safetensors", odd);
            copy_file(from, to, padding);
            expect_same_logits(even, odd, true, padding == 2 ? 1 : N_TOKENS);
            remove(to);
            snprintf(to, sizeof to, "%s/config.json", odd);
            remove(to);
            remove(odd);
        }
}
