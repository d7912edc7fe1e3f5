/* test_random.c - models of random shapes and types through the engine: the same numbers wherever
 * tensors are in a file, and in every mode. */
#include <sys/stat.h>
#include <unistd.h>

#include "engine/engine.h"
#include "file/safetensors.h"
#include "random_model.h"
#include "sluice.h"
#include "test.h"

/* ---- helpers ------------------------------------------------------------------------------ */

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

static bool write_model(const struct random_model *m, const char *path) {
    struct err err = {0};
    if (random_model_write(m, path, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return err.code == 0;
}

/* ---- where tensors are -------------------------------------------------------------------- */

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
        bool is_written = write_model(&m, even);
        m.alignment = 1;
        m.padding = i % 4;
        if (is_written && write_model(&m, odd)) {
            expect_same_logits(even, odd, i % 3 == 0, 1);
            expect_same_logits(even, odd, i % 3 == 0, N_TOKENS);
        }
    }
}

TEST(random_moe_models_at_odd_offsets) {
    for (uint32_t seed = 0; seed < 8; seed++) {
        struct random_model m = random_moe(seed);
        const char *even = test_temporary("even.gguf"), *odd = test_temporary("odd.gguf");
        bool is_written = write_model(&m, even);
        m.alignment = 1;
        m.padding = seed % 4;
        if (is_written && write_model(&m, odd))
            expect_same_logits(even, odd, seed % 2, 7);
    }
}

/* ---- folders ------------------------------------------------------------------------------ */

/* A safetensors file in the making. */
struct shard {
    char *header;
    uint8_t *data;
    size_t header_size, data_size;
};

/* rows 0: a vector. */
static void shard_add(struct shard *s, const char *name, enum dtype type, uint32_t rows,
                      uint32_t width, const void *bytes, size_t size) {
    char entry[512], shape[32];
    if (rows)
        snprintf(shape, sizeof shape, "%u,%u", rows, width);
    else
        snprintf(shape, sizeof shape, "%u", width);
    int n = snprintf(entry, sizeof entry,
                     "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                     s->header_size ? ',' : '{', name, dtype_name(type), shape, s->data_size,
                     s->data_size + size);
    s->header = realloc(s->header, s->header_size + (size_t)n);
    s->data = realloc(s->data, s->data_size + size);
    memcpy(s->header + s->header_size, entry, (size_t)n);
    memcpy(s->data + s->data_size, bytes, size);
    s->header_size += (size_t)n;
    s->data_size += size;
}

/* A matrix of a tensor, as it is or as F32. */
static void shard_add_matrix(struct shard *s, const char *name, const struct tensor *t,
                             uint64_t first_row, uint64_t rows, bool is_f32) {
    uint64_t width = t->dims[0], n = rows * width;
    uint64_t value = dtype_info((uint32_t)t->type)->block_bytes;
    const uint8_t *from = t->data + first_row * width * value;
    float *x = malloc(n * sizeof *x);
    dtype_info((uint32_t)t->type)->decode(from, x, n);
    if (is_f32)
        shard_add(s, name, DT_F32, (uint32_t)rows, (uint32_t)width, x, n * sizeof *x);
    else
        shard_add(s, name, (enum dtype)t->type, (uint32_t)rows, (uint32_t)width, from, n * value);
    free(x);
}

/* Writes the file and frees what it is made of. */
static void shard_write(struct shard *s, const char *path, int padding) {
    uint64_t length = s->header_size + 1 + (uint64_t)padding;
    FILE *f = fopen(path, "wb");
    EXPECT(f && fwrite(&length, sizeof length, 1, f) == 1 &&
           fwrite(s->header, s->header_size, 1, f) == 1 &&
           fprintf(f, "}%*s", padding, "") == 1 + padding &&
           fwrite(s->data, s->data_size, 1, f) == 1 && fclose(f) == 0);
    free(s->header);
    free(s->data);
}

/* The experts of a fused tensor one by one; `is_f32` has a bit for each. */
static void shard_add_experts(struct shard *s, const struct tensor *t, unsigned is_f32) {
    bool is_down = str_ends(t->name, "down_proj");
    uint64_t rows = t->dims[1], part = is_down ? rows : rows / 2;
    int prefix = (int)(t->name.len - strlen(is_down ? "down_proj" : "gate_up_proj"));
    for (uint64_t e = 0; e < t->dims[2]; e++)
        for (uint64_t first = 0; first < rows; first += part) {
            char name[128];
            snprintf(name, sizeof name, "%.*s%u.%s_proj.weight", prefix, t->name.at, (unsigned)e,
                     is_down ? "down"
                     : first ? "up"
                             : "gate");
            shard_add_matrix(s, name, t, e * rows + first, part, is_f32 >> e & 1);
        }
}

/* A copy of a reference's folder: experts one by one, those of `is_f32` as F32; the header
 * `padding` spaces longer. */
static void write_folder(const char *from, const char *to, bool has_experts, unsigned is_f32,
                         int padding) {
    char path[256], copy[256];
    struct safetensors *st = NULL;
    struct shard shard = {0};
    size_t size = 0;
    snprintf(path, sizeof path, "%s/config.json", from);
    char *config = test_read_file(path, &size);
    snprintf(copy, sizeof copy, "%s/config.json", to);
    FILE *f = fopen(copy, "wb");
    EXPECT(f && config && fwrite(config, size, 1, f) == 1 && fclose(f) == 0);
    free(config);
    EXPECT_INT(safetensors_open(&st, from, NULL), SLUICE_OK);
    for (uint32_t i = 0; st && i < st->n_tensors; i++) {
        const struct tensor *t = &st->tensors[i];
        char name[128];
        snprintf(name, sizeof name, "%.*s", STR_ARG(t->name));
        if (has_experts && t->n_dims == 3 && str_contains(t->name, "mlp.experts."))
            shard_add_experts(&shard, t, is_f32);
        else if (t->n_dims == 3) /* the convolution's {4, 1, channels} */
            shard_add(&shard, name, (enum dtype)t->type, (uint32_t)t->dims[2], (uint32_t)t->dims[0],
                      t->data, t->bytes);
        else
            shard_add(&shard, name, (enum dtype)t->type, (uint32_t)(t->n_dims > 1 ? t->dims[1] : 0),
                      (uint32_t)t->dims[0], t->data, t->bytes);
    }
    safetensors_close(st);
    snprintf(copy, sizeof copy, "%s/model.safetensors", to);
    shard_write(&shard, copy, padding);
}

static void remove_folder(const char *path) {
    char file[256];
    snprintf(file, sizeof file, "%s/config.json", path);
    remove(file);
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    remove(file);
    remove(path);
}

/* A header may have any length, and the data begin right after it. */
TEST(random_safetensors_headers_of_any_length) {
    static const char *const names[] = {"qwen35-moe-a", "qwen2-a", "llama-b"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int padding = 0; padding < 4; padding++) {
            char folder[64];
            snprintf(folder, sizeof folder, "reference/%s", names[i]);
            const char *even = test_data(folder), *odd = test_temporary("odd-header");
            mkdir(odd, 0777);
            write_folder(even, odd, i == 0, 0, padding);
            expect_same_logits(even, odd, true, padding == 2 ? 1 : N_TOKENS);
            remove_folder(odd);
        }
}

/* A number that no count can hold. */
TEST(random_folders_with_a_rotary_part_beyond_a_head) {
    const char *from = test_data("reference/qwen35-moe-a"), *to = test_temporary("rotary-part");
    char path[256], *config;
    size_t size = 0;
    sluice_model *model = NULL;
    mkdir(to, 0777);
    write_folder(from, to, true, 0, 0);
    snprintf(path, sizeof path, "%s/config.json", to);
    config = test_read_file(path, &size);
    char *at = config ? strstr(config, "\"partial_rotary_factor\": 0.25") : NULL;
    EXPECT(at != NULL);
    FILE *f = at ? fopen(path, "wb") : NULL;
    if (f) {
        memcpy(strchr(at, ':') + 2, "9e99", 4);
        EXPECT(fwrite(config, size, 1, f) == 1 && fclose(f) == 0);
        EXPECT_INT(sluice_model_open(&model, to), SLUICE_ERR_FORMAT);
        if (!strstr(sluice_model_error(model), "partial_rotary_factor is 9e+99, expected at most"))
            test_fail(__FILE__, __LINE__, "%s", sluice_model_error(model));
        sluice_model_close(model);
    }
    free(config);
    remove_folder(to);
}

/* ---- modes -------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How far two rows of logits are apart, in units of the spread of the first. */
static double apart(const float *a, const float *b, uint64_t n) {
    double sum = 0, squares = 0, worst = 0;
    for (uint64_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        worst = !(d <= worst) ? d : worst;
        sum += a[i];
        squares += (double)a[i] * a[i];
    }
    return worst / (sqrt(squares / (double)n - sum / (double)n * (sum / (double)n)) + 1e-12);
}

/* int8 activations against f32 ones, for experts and shared experts of any widths: the median over
 * positions, as a choice of experts that is nearly a tie may fall either way. Numbers of another
 * row, or of none, are 3 apart and more. */
TEST(random_moe_models_agree_with_exact_ones) {
    enum { MODELS = 48 };
    double worst = 0;
    for (uint32_t seed = 0; seed < MODELS; seed++) {
        struct random_model m = random_moe(seed);
        const char *path = test_temporary("moe.gguf");
        uint64_t n = 0;
        double each[N_TOKENS];
        float *exact = NULL, *found = NULL;
        if (write_model(&m, path) && (exact = logits_of(path, true, N_TOKENS, &n)) &&
            (found = logits_of(path, false, 1 + seed % N_TOKENS, &n))) {
            for (int t = 0; t < N_TOKENS; t++)
                each[t] = apart(exact + (uint64_t)t * n, found + (uint64_t)t * n, n);
            qsort(each, N_TOKENS, sizeof *each, by_value);
            worst = fmax(worst, each[N_TOKENS / 2]);
            if (!(each[N_TOKENS / 2] < 0.15))
                test_fail(__FILE__, __LINE__,
                          "seed %u, %u of %u experts of %u and %u, hidden %u: apart by %.2g", seed,
                          m.used, m.experts, m.ffn, m.shared, m.hidden, each[N_TOKENS / 2]);
        }
        free(exact);
        free(found);
    }
    test_note("random mixtures: logits within %.2g of their spread of the exact ones", worst);
}

/* Experts of a folder may differ in type, in any order: the values are what counts. */
TEST(random_folders_with_experts_of_different_types) {
    static const unsigned are_f32[] = {0x00, 0xff, 0x01, 0xfe, 0xaa, 0x80};
    const char *uniform = test_data("reference/qwen35-moe-a");
    uint64_t n = 0;
    float *expected = logits_of(uniform, true, N_TOKENS, &n);
    for (size_t i = 0; expected && i < sizeof are_f32 / sizeof *are_f32; i++) {
        const char *mixed = test_temporary("mixed-experts");
        mkdir(mixed, 0777);
        write_folder(uniform, mixed, true, are_f32[i], 0);
        float *found = logits_of(mixed, true, N_TOKENS, &n);
        for (int t = 0; found && t < N_TOKENS; t++)
            EXPECT_NEAR(apart(expected + (uint64_t)t * n, found + (uint64_t)t * n, n), 0, 1e-5);
        free(found);
        remove_folder(mixed);
    }
    free(expected);
}

/* ---- damaged weights ---------------------------------------------------------------------- */

static const struct random_model small = {.arch = "qwen35moe",
                                          .layers = 2,
                                          .hidden = 64,
                                          .heads = 2,
                                          .kv_heads = 1,
                                          .head_width = 32,
                                          .key_heads = 1,
                                          .value_heads = 2,
                                          .key_width = 16,
                                          .value_width = 16,
                                          .ffn = 32,
                                          .experts = 4,
                                          .used = 2,
                                          .shared = 32,
                                          .vocab = 64,
                                          .type = DT_F32};

/* Vectors are looked at when a model is loaded; a second try finds the same. */
TEST(random_vectors_that_are_not_finite) {
    static const struct {
        const char *name;
        uint32_t row;
        float value;
        const char *text;
    } cases[] = {
        {"output_norm.weight", 0, NAN, "tensor output_norm.weight has nan at 32"},
        {"blk.0.attn_norm.weight", 0, INFINITY, "tensor blk.0.attn_norm.weight has inf at 32"},
        {"blk.1.attn_q_norm.weight", 0, -INFINITY, "tensor blk.1.attn_q_norm.weight has -inf at"},
        {"blk.0.ssm_conv1d.weight", 5, NAN, "tensor blk.0.ssm_conv1d.weight has nan at 22"},
        {"blk.1.ffn_gate_inp.weight", 3, NAN, "tensor blk.1.ffn_gate_inp.weight has nan at 224"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct random_model m = small;
        const char *path = test_temporary("damaged.gguf");
        sluice_model *model = NULL;
        m.damaged = cases[i].name;
        m.damaged_row = cases[i].row;
        m.damage = cases[i].value;
        m.alignment = i % 2; /* 0: the usual one; 1: copies are looked at */
        if (!write_model(&m, path))
            continue;
        EXPECT_INT(sluice_model_open(&model, path), SLUICE_OK);
        for (int again = 0; again < 2; again++) {
            struct sluice_engine_options o = sluice_engine_options_default();
            sluice_engine *engine = NULL;
            o.backend = "cpu";
            o.threads = 1;
            EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_ERR_FORMAT);
            if (!strstr(sluice_engine_error(engine), cases[i].text))
                test_fail(__FILE__, __LINE__, "%s, expected %s", sluice_engine_error(engine),
                          cases[i].text);
            sluice_engine_close(engine);
        }
        sluice_model_close(model);
    }
}

/* A token whose embedding is damaged fails its step, which changes nothing: without that token the
 * sequence goes on as if it had never been fed. */
static void expect_failing_step(sluice_engine *engine, unsigned wants) {
    static const int32_t good[] = {1, 2, 3, 4}, bad[] = {5, 7, 6};
    sluice_seq *seq = NULL, *other = NULL;
    int32_t found = -1, expected = -1;
    EXPECT_INT(sluice_seq_open(&seq, engine), SLUICE_OK);
    EXPECT_INT(sluice_seq_open(&other, engine), SLUICE_OK);
    sluice_seq_want(seq, wants);
    EXPECT_INT(sluice_seq_feed(seq, good, 3), SLUICE_OK);
    EXPECT_INT(sluice_engine_step(engine, NULL), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(seq, bad, 3), SLUICE_OK);
    for (int again = 0; again < 2; again++) {
        int status = SLUICE_OK;
        uint32_t rows = 1;
        while (!status && rows) /* tokens before the bad one may come first again */
            status = sluice_engine_step(engine, &rows);
        EXPECT_INT(status, SLUICE_ERR_FORMAT);
        const char *text = sluice_engine_error(engine);
        if (!strstr(text, "the logits at position ") || !strstr(text, "are NaN or infinite"))
            test_fail(__FILE__, __LINE__, "%s", text);
    }
    EXPECT_INT(sluice_seq_rewind(seq, 3), SLUICE_OK);
    sluice_seq_want(seq, SLUICE_WANT_TOKEN);
    EXPECT_INT(sluice_seq_feed(seq, good + 3, 1), SLUICE_OK);
    EXPECT_INT(sluice_seq_feed(other, good, 4), SLUICE_OK);
    EXPECT_INT(sluice_seq_next(seq, &found), SLUICE_OK);
    EXPECT_INT(sluice_seq_next(other, &expected), SLUICE_OK);
    EXPECT_INT(found, expected);
    sluice_seq_close(seq);
    sluice_seq_close(other);
}

TEST(random_steps_whose_logits_are_not_finite) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 6; i++) {
        struct random_model m = small;
        const char *path = test_temporary("damaged.gguf");
        struct sluice_engine_options o = sluice_engine_options_default();
        sluice_model *model = NULL;
        sluice_engine *engine = NULL;
        m.damaged = "token_embd.weight";
        m.damaged_row = 7;
        m.damage = values[i % 3];
        o.backend = "cpu";
        o.threads = 2;
        o.context = 256;
        o.sequences = o.batch = 2;
        o.exact = i % 2;
        if (!write_model(&m, path))
            continue;
        EXPECT_INT(sluice_model_open(&model, path), SLUICE_OK);
        EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_OK);
        expect_failing_step(engine, i < 3 ? SLUICE_WANT_TOKEN : SLUICE_WANT_LOGITS);
        sluice_engine_close(engine);
        sluice_model_close(model);
    }
}

/* Of a matrix by which keys and values are made: no type of the KV cache hides it. */
TEST(random_caches_of_values_that_are_not_finite) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    static const char *const types[] = {"f32", "f16", "q8_0", "q4_0"};
    for (int i = 0; i < 24; i++) {
        struct random_model m = small;
        const char *path = test_temporary("damaged.gguf");
        struct sluice_engine_options o = sluice_engine_options_default();
        sluice_model *model = NULL;
        sluice_engine *engine = NULL;
        sluice_seq *seq = NULL;
        int32_t tokens[] = {1, 2, 3}, token;
        m.damaged = i / 12 ? "blk.1.attn_v.weight" : "blk.1.attn_k.weight";
        m.damage = values[i % 3];
        o.backend = "cpu";
        o.threads = 1;
        o.context = 256;
        o.kv_type = types[i / 3 % 4];
        if (!write_model(&m, path))
            continue;
        EXPECT_INT(sluice_model_open(&model, path), SLUICE_OK);
        EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_OK);
        EXPECT_INT(sluice_seq_open(&seq, engine), SLUICE_OK);
        EXPECT_INT(sluice_seq_feed(seq, tokens, 3), SLUICE_OK);
        int status = sluice_seq_next(seq, &token);
        if (status != SLUICE_ERR_FORMAT)
            test_fail(__FILE__, __LINE__, "%s of %g, %s: %d, expected %d", m.damaged,
                      (double)m.damage, o.kv_type, status, SLUICE_ERR_FORMAT);
        sluice_seq_close(seq);
        sluice_engine_close(engine);
        sluice_model_close(model);
    }
}

/* ---- sizes -------------------------------------------------------------------------------- */

/* Keys and tensors of a file that its model alone would not have. */
struct odd_parts {
    uint32_t blocks, drafts;     /* block_count and nextn_predict_layers; 0: as they are */
    bool has_no_drafts;          /* and says so: nextn_predict_layers is 0 */
    const char *tensors[3];      /* of one value each */
    const char *none;            /* a count that is written, as 0 */
    const char *no, *two, *half; /* keys with the values false, 2 and 0.5 */
};

static int describe_odd(const struct random_model *m, const struct odd_parts *odd,
                        struct gguf_writer *w, struct err *err) {
    char blocks[64], drafts[64];
    snprintf(blocks, sizeof blocks, "%s.block_count", m->arch);
    snprintf(drafts, sizeof drafts, "%s.nextn_predict_layers", m->arch);
    int status = random_model_describe(m, w, err);
    if (!status && odd->blocks)
        status = gguf_write_u32(w, blocks, odd->blocks, err);
    if (!status && (odd->drafts || odd->has_no_drafts))
        status = gguf_write_u32(w, drafts, odd->drafts, err);
    snprintf(drafts, sizeof drafts, "%s.%s", m->arch, odd->none);
    if (!status && odd->none)
        status = gguf_write_u32(w, drafts, 0, err);
    snprintf(drafts, sizeof drafts, "%s.%s", m->arch, odd->no);
    if (!status && odd->no)
        status = gguf_write_bool(w, drafts, false, err);
    snprintf(drafts, sizeof drafts, "%s.%s", m->arch, odd->two);
    if (!status && odd->two)
        status = gguf_write_u32(w, drafts, 2, err);
    snprintf(drafts, sizeof drafts, "%s.%s", m->arch, odd->half);
    if (!status && odd->half)
        status = gguf_write_f32(w, drafts, 0.5f, err);
    for (int i = 0; !status && i < 3 && odd->tensors[i]; i++)
        status = gguf_write_tensor(w, str_of(odd->tensors[i]), DT_F32, (uint64_t[]){1}, 1, err);
    return status;
}

/* The header of a model, and nothing but holes after it. */
static bool write_holes(const struct random_model *m, const struct odd_parts *odd,
                        const char *path) {
    struct gguf_writer *w = NULL;
    struct err err = {0};
    void *header = NULL;
    size_t size = 0;
    FILE *f = fopen(path, "wb");
    bool is_there = f && !gguf_writer_open(&w, NULL, 0, &err) && !describe_odd(m, odd, w, &err) &&
                    !gguf_writer_header(w, &header, &size, &err) &&
                    fwrite(header, size, 1, f) == 1 && fflush(f) == 0 &&
                    ftruncate(fileno(f), (off_t)gguf_writer_size(w)) == 0;
    EXPECT(is_there && fclose(f) == 0);
    gguf_writer_abort(w);
    free(header);
    return is_there;
}

/* What a model and options need may be more than 64 bits can count: an error that names them. */
TEST(random_models_of_impossible_size) {
    const struct random_model m = {.arch = "llama",
                                   .layers = 16,
                                   .hidden = 2,
                                   .heads = 4096,
                                   .kv_heads = 4096,
                                   .head_width = 1024,
                                   .ffn = 1,
                                   .vocab = 50,
                                   .type = DT_F32};
    const char *path = test_temporary("impossible.gguf");
    struct sluice_engine_options o = sluice_engine_options_default();
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    o.backend = "cpu";
    o.threads = 1;
    o.exact = true;
    o.context = 1 << 24;
    o.sequences = o.batch = 4096;
    if (!write_holes(&m, &(struct odd_parts){0}, path))
        return;
    EXPECT_INT(sluice_model_open(&model, path), SLUICE_OK);
    EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_ERR_MEMORY);
    const char *text = sluice_engine_error(engine);
    if (!strstr(text, "a context of 16777216 (-c) with 4096 sequences (--batch)") ||
        !strstr(text, "state is more than 2^64 bytes"))
        test_fail(__FILE__, __LINE__, "%s", text);
    sluice_engine_close(engine);
    sluice_model_close(model);
    remove(path);
}

/* ---- what would be left out --------------------------------------------------------------- */

/* A file with tensors that the model would run without is refused; draft blocks may be left out. */
TEST(random_files_with_more_than_the_model) {
    static const struct {
        const char *arch;
        struct odd_parts odd;
        const char *error; /* NULL: it opens */
    } cases[] = {
        {"llama", {0}, NULL},
        {"llama", {.blocks = 1}, "llama.block_count is 1, expected 2, as there is a tensor blk.1."},
        {"llama", {.tensors = {"blk.2.attn_q.weight"}}, "block_count is 2, expected 3, as there"},
        {"qwen3", {.tensors = {"blk.5000.x"}}, "block_count is 2, expected 5001, as there"},
        {"llama",
         {.tensors = {"blk.1.attn_sinks.weight"}},
         "tensor blk.1.attn_sinks.weight is unknown to the architecture llama"},
        {"llama", {.tensors = {"blk.0.nextn.enorm.weight", "blk.0.x"}}, "blk.0.nextn.enorm.weight"},
        {"llama", {.tensors = {"v.blk.7.attn_q.weight", "mm.0.weight", "cls.output.weight"}}, NULL},
        {"llama", {.tensors = {"blk.x"}}, "tensor blk.x is unknown to the architecture llama"},
        {"llama", {.tensors = {"blk..y"}}, "tensor blk..y is unknown to the architecture llama"},
        {"llama", {.tensors = {"blk.+0.attn_q.weight"}}, "blk.+0.attn_q.weight is unknown to"},
        {"llama", {.tensors = {"token_embd_norm.weight"}}, "token_embd_norm.weight is unknown to"},
        {"qwen35",
         {.tensors = {"rope_factors_long.weight"}},
         "rope_factors_long.weight is unknown"},
        {"qwen35", {0}, NULL},
        {"qwen35", {.blocks = 3, .drafts = 1}, NULL}, /* there are such files */
        {"qwen35", {.has_no_drafts = true}, NULL},
        {"qwen35", {.drafts = 9}, "qwen35.nextn_predict_layers is 9, expected at most 8"},
        {"qwen35",
         {.blocks = 3, .drafts = 1, .tensors = {"blk.2.nextn.enorm.weight", "blk.2.x"}},
         NULL},
        {"qwen35", {.tensors = {"blk.2.x", "blk.2.nextn.enorm.weight"}}, NULL},
        {"qwen35", {.blocks = 2, .drafts = 1}, "qwen35.block_count is 2, expected 3, as there"},
        {"qwen35",
         {.blocks = 3, .drafts = 1, .tensors = {"blk.2.attn_q.weight"}},
         "qwen35.block_count is 3, expected 4, as there is a tensor blk.2.attn_q.weight"},
    };
    const char *path = test_temporary("more.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct random_model m = random_tiny(cases[i].arch);
        sluice_model *model = NULL;
        if (!write_holes(&m, &cases[i].odd, path))
            continue;
        int status = sluice_model_open(&model, path);
        const char *text = status ? sluice_model_error(model) : "";
        if (!cases[i].error != !status || (status && !strstr(text, cases[i].error)))
            test_fail(__FILE__, __LINE__, "case %zu: %d %s, expected %s", i, status, text,
                      cases[i].error ? cases[i].error : "success");
        sluice_model_close(model);
    }
    remove(path);
}

/* Keys that ask for something else than what is computed. */
TEST(random_files_with_keys_that_are_not_supported) {
    static const struct {
        const char *arch;
        struct odd_parts odd;
        const char *error; /* NULL: it opens */
    } cases[] = {
        {"qwen3moe", {0}, NULL},
        {"qwen2", {.no = "attention.causal"}, "qwen2.attention.causal is false, which is not"},
        {"llama", {.two = "attention.causal"}, "llama.attention.causal is u32, expected bool"},
        {"llama", {.half = "logit_scale"}, "llama.logit_scale is 0.5, which is not supported"},
        {"llama", {.half = "attention.scale"}, "llama.attention.scale is 0.5, which is not"},
        {"llama", {.half = "attention.max_alibi_bias"}, "max_alibi_bias is 0.5, which is not"},
        {"llama", {.half = "embedding_scale"}, "llama.embedding_scale is 0.5, which is not"},
        {"llama", {.half = "residual_scale"}, "llama.residual_scale is 0.5, which is not"},
        {"llama", {.no = "expert_weights_norm"}, NULL}, /* it has no experts */
        {"qwen3moe", {.no = "expert_weights_norm"}, NULL},
        {"qwen35moe", {.two = "expert_gating_func"}, "expert_gating_func is 2, expected 1: softm"},
        {"qwen35moe", {.two = "expert_group_count"}, "expert_group_count is 2, expected 1"},
        {"qwen3moe", {.half = "expert_weights_scale"}, "expert_weights_scale is 0.5, expected 1"},
    };
    const char *path = test_temporary("keys.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct random_model m = random_tiny(cases[i].arch);
        sluice_model *model = NULL;
        if (strstr(m.arch, "moe"))
            m.experts = 3, m.used = 2;
        if (!write_holes(&m, &cases[i].odd, path))
            continue;
        int status = sluice_model_open(&model, path);
        const char *text = status ? sluice_model_error(model) : "";
        if (!cases[i].error != !status || (status && !strstr(text, cases[i].error)))
            test_fail(__FILE__, __LINE__, "case %zu: %d %s, expected %s", i, status, text,
                      cases[i].error ? cases[i].error : "success");
        sluice_model_close(model);
    }
    remove(path);
}

/* A count of 0 is none, as where the key is missing; where there must be one it is refused. */
TEST(random_files_with_counts_of_0) {
    static const struct {
        const char *arch, *none, *error;
    } cases[] = {
        {"llama", "expert_count", NULL},
        {"qwen35", "nextn_predict_layers", NULL},
        {"qwen3moe", "expert_shared_feed_forward_length", NULL},
        {"qwen35moe", "expert_shared_feed_forward_length", NULL},
        {"llama", "attention.head_count_kv", "head_count_kv is 0, expected 1 to 4096"},
    };
    const char *path = test_temporary("none.gguf");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct random_model m = random_tiny(cases[i].arch);
        struct odd_parts odd = {.none = cases[i].none};
        sluice_model *model = NULL;
        if (strstr(m.arch, "moe"))
            m.experts = 3, m.used = 2;
        m.kv_heads = cases[i].error ? 0 : m.kv_heads; /* the key has only the value 0 */
        if (!write_holes(&m, &odd, path))
            continue;
        int status = sluice_model_open(&model, path);
        const char *text = status ? sluice_model_error(model) : "";
        if (!cases[i].error != !status || (status && !strstr(text, cases[i].error)))
            test_fail(__FILE__, __LINE__, "%s of %s: %s", cases[i].none, m.arch, text);
        sluice_model_close(model);
    }
    remove(path);
}

/* ---- who observes products ---------------------------------------------------------------- */

/* Rows and squares by the matrices' offsets. */
struct seen {
    pthread_mutex_t lock;
    struct {
        uint64_t offset, rows;
        double squares;
        uint32_t matrices; /* of a stack, one more than the highest */
    } at[64];
    uint32_t n;
};

static void note_rows(void *user, const struct operand *weight, uint32_t matrix, const float *x,
                      uint32_t n) {
    struct seen *seen = user;
    pthread_mutex_lock(&seen->lock);
    uint32_t i = 0;
    while (i < seen->n && seen->at[i].offset != weight->offset)
        i++;
    seen->n += i == seen->n;
    seen->at[i].offset = weight->offset;
    seen->at[i].rows += n;
    seen->at[i].matrices = matrix >= seen->at[i].matrices ? matrix + 1 : seen->at[i].matrices;
    for (uint64_t k = 0; k < (uint64_t)n * weight->dims[0]; k++)
        seen->at[i].squares += (double)x[k] * x[k];
    pthread_mutex_unlock(&seen->lock);
}

/* Runs N_TOKENS in steps of 8 rows with an observer. */
static void observe_model(const char *path, int threads, struct seen *seen) {
    struct sluice_engine_options o = sluice_engine_options_default();
    const struct backend_observer observer = {note_rows, seen};
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    sluice_seq *seq = NULL;
    int32_t tokens[N_TOKENS];
    uint32_t rows = 1;
    o.backend = "cpu";
    o.context = 256;
    o.threads = threads;
    o.prefill = 8;
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = i * 7919 % 50;
    int status = sluice_model_open(&model, path) || sluice_engine_open(&engine, model, &o) ||
                 sluice_seq_open(&seq, engine) || sluice_seq_feed(seq, tokens, N_TOKENS);
    EXPECT_INT(status, 0);
    if (!status)
        engine->kind->observe(engine->backend, &observer);
    while (!status && rows > 0)
        status = sluice_engine_step(engine, &rows);
    EXPECT_INT(status, 0);
    sluice_seq_close(seq);
    sluice_engine_close(engine);
    sluice_model_close(model);
}

/* Every product of every layer is heard of once a row, an expert's for the rows that chose it; the
 * LM head's is not. The same numbers for any number of threads, but for the order of sums here. */
TEST(random_models_products_are_observed) {
    struct random_model m = random_moe(3);
    const char *path = test_temporary("observed.gguf");
    m.experts = 7;
    m.used = 3;
    static struct seen seen[2];
    if (!write_model(&m, path))
        return;
    for (int i = 0; i < 2; i++) {
        seen[i].n = 0;
        pthread_mutex_init(&seen[i].lock, NULL);
        observe_model(path, 1 + 2 * i, &seen[i]);
        pthread_mutex_destroy(&seen[i].lock);
    }
    EXPECT_INT(seen[0].n, seen[1].n);
    EXPECT(seen[0].n > 8);
    uint32_t stacks = 0;
    for (uint32_t i = 0; i < seen[0].n; i++) {
        bool is_stack = seen[0].at[i].matrices > 1;
        stacks += is_stack;
        EXPECT_INT(seen[0].at[i].rows, is_stack ? N_TOKENS * m.used : N_TOKENS);
        EXPECT(seen[0].at[i].matrices <= m.experts || !is_stack);
        EXPECT(seen[0].at[i].squares > 0 && isfinite(seen[0].at[i].squares));
        for (uint32_t k = 0; k < seen[1].n; k++)
            if (seen[1].at[k].offset == seen[0].at[i].offset) {
                EXPECT_INT(seen[1].at[k].rows, seen[0].at[i].rows);
                EXPECT_NEAR(seen[1].at[k].squares / seen[0].at[i].squares, 1, 1e-9);
            }
    }
    EXPECT_INT(stacks, 3 * m.layers);
}
