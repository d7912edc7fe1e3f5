/* test_synth.c - models without a file: the tensors of the tool's files, weights that are sane. */
#include <unistd.h>

#include "model/model.h"
#include "quant/random.h"
#include "sluice.h"
#include "test.h"

/* ---- blocks ------------------------------------------------------------------------------- */

TEST(synth_blocks_have_mean_0_and_a_deviation_of_0_02) {
    enum { BLOCKS = 512 };
    for (uint32_t type = 0; type < DT_COUNT; type++) {
        const struct dtype_info *info = dtype_info(type);
        if (!random_has(type))
            continue;
        uint32_t values = info->block_values * BLOCKS;
        uint8_t *blocks = malloc((size_t)info->block_bytes * BLOCKS);
        float *x = malloc(values * sizeof *x);
        double sum = 0, squares = 0;
        for (uint32_t i = 0; i < BLOCKS; i++)
            random_block(type, (uint64_t)i * info->block_bytes, blocks + i * info->block_bytes);
        info->decode(blocks, x, values);
        for (uint32_t i = 0; i < values; i++) {
            sum += x[i];
            squares += (double)x[i] * x[i];
        }
        double deviation = sqrt(squares / values);
        if (!(fabs(sum / values) < 0.003) || !(deviation > 0.018 && deviation < 0.022))
            test_fail(__FILE__, __LINE__, "%s: mean %g, deviation %g", info->name, sum / values,
                      deviation);
        free(blocks);
        free(x);
    }
}

TEST(synth_blocks_depend_on_their_number_alone) {
    struct q6_k a, b, c;
    random_block(DT_Q6_K, 210, &a);
    random_block(DT_Q6_K, 210, &b);
    random_block(DT_Q6_K, 420, &c);
    EXPECT(memcmp(&a, &b, sizeof a) == 0);
    EXPECT(memcmp(&a, &c, sizeof a) != 0);
}

/* ---- tensors ------------------------------------------------------------------------------ */

/* A tensor as the line that the tool prints of it. */
static void describe(const struct tensor *t, char *out, size_t size) {
    int used = snprintf(out, size, "%.*s %s", STR_ARG(t->name), t->type_name);
    for (uint32_t d = 0; d < t->n_dims; d++)
        used += snprintf(out + used, size - (size_t)used, " %llu", (unsigned long long)t->dims[d]);
}

/* The tool's list of a model's tensors, as "name TYPE dims..."; NULL where there is no Python. */
static FILE *ask_tool(const char *model, const char *type) {
    char command[512];
    snprintf(command, sizeof command,
             "python3 -B -c \"import sys; sys.path.insert(0, 'tools'); import synth_gguf as s; "
             "[print(n, t.upper(), *d) for n, d, t, _ in s.tensors(s.MODELS['%s'], '%s')]\" "
             "2>/dev/null",
             model, type);
    return popen(command, "r");
}

static int compare_with_tool(const char *model, const char *type) {
    char path[64], line[256], found[256];
    struct synth *s;
    struct err err = {0};
    snprintf(path, sizeof path, "synth:%s:%s", model, type);
    if (synth_open(&s, path, &err)) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return 0;
    }
    uint32_t n = 0;
    FILE *tool = ask_tool(model, type);
    while (tool && fgets(line, sizeof line, tool)) {
        line[strcspn(line, "\n")] = 0;
        char name[128] = "";
        sscanf(line, "%127s", name);
        const struct tensor *t = gguf_tensor(s->file, name);
        found[0] = 0;
        if (t)
            describe(t, found, sizeof found);
        if (strcmp(found, line) != 0)
            test_fail(__FILE__, __LINE__, "%s: found \"%s\", expected \"%s\"", path, found, line);
        n++;
    }
    if (tool && pclose(tool) == 0)
        EXPECT_INT(n, s->file->n_tensors);
    else
        n = 0;
    synth_close(s);
    return (int)n;
}

TEST(synth_has_the_tensors_of_the_tools_files) {
    static const char *const models[] = {
        "qwen35-tiny",  "qwen35-0.8b",    "qwen35-2b",     "qwen35-4b",         "qwen35-9b",
        "qwen35-27b",   "qwen35-35b-a3b", "qwen3-30b-a3b", "qwen3next-80b-a3b", "smollm2-135m",
        "smollm2-360m", "smollm2-1.7b",   "llama-8b"};
    static const char *const types[] = {"q4_k_m", "q8_0", "f16", "bf16", "f32"};
    int n = 0;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t k = 0; k < sizeof types / sizeof *types; k++)
            if (k == 0 || i == 0) /* the others have one type throughout */
                n += compare_with_tool(models[i], types[k]);
    n += compare_with_tool("qwen35-tiny", "iq2_xxs") + compare_with_tool("smollm2-135m", "iq3_s");
    if (n == 0)
        test_skip("no python3 to ask");
}

TEST(synth_refuses_what_it_does_not_have) {
    static const char *const cases[][2] = {
        {"synth:", "the model is ''"},
        {"synth:gpt-2:q4_k_m", "the model is 'gpt-2', expected one of qwen35-tiny "},
        {"synth:qwen35-tiny", "the type is '', expected one of F32 "},
        {"synth:qwen35-tiny:", "the type is ''"},
        {"synth:qwen35-tiny:q4_k_x", "the type is 'q4_k_x'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model *m;
        struct err err = {0};
        EXPECT_INT(model_open(&m, cases[i][0], &err), SLUICE_ERR_ARGUMENT);
        EXPECT(m == NULL);
        if (strncmp(err.text, cases[i][0], strlen(cases[i][0])) != 0 ||
            !strstr(err.text, cases[i][1]))
            test_fail(__FILE__, __LINE__, "%s: \"%s\"", cases[i][0], err.text);
    }
}

/* ---- models ------------------------------------------------------------------------------- */

TEST(synth_makes_matrices_only_where_the_host_needs_them) {
    struct model *m;
    struct err err = {0};
    if (model_open(&m, "synth:qwen35-tiny:q4_k_m", &err) || model_map(m, &err)) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return;
    }
    const struct weights *w = m->weights;
    uint64_t made = w->synthetic;
    EXPECT(made > 0 && made < w->file_bytes);
    EXPECT(m->embed.offset < made && m->final_norm.offset >= made);
    float one;
    memcpy(&one, w->base + m->final_norm.offset, sizeof one);
    EXPECT(one == 1);
    for (uint64_t i = 0; i < made; i++)
        if (w->base[i]) {
            test_fail(__FILE__, __LINE__, "byte %llu is not zero", (unsigned long long)i);
            break;
        }
    EXPECT_INT(model_load(m, &err), SLUICE_OK);
    EXPECT_INT(w->synthetic, 0);
    struct q6_k block;
    EXPECT_INT(m->embed.type, DT_Q6_K);
    random_block(DT_Q6_K, m->embed.offset + sizeof block, &block);
    EXPECT(memcmp(&block, w->base + m->embed.offset + sizeof block, sizeof block) == 0);
    model_close(m);
}

/* A text of bytes in, tokens out. */
static void generate(const char *path) {
    sluice_model *model = NULL;
    sluice_engine *engine = NULL;
    sluice_seq *seq = NULL;
    struct sluice_engine_options o = sluice_engine_options_default();
    struct sluice_facts facts;
    int32_t tokens[16];
    size_t n = 0;
    o.backend = "cpu";
    o.context = 256;
    EXPECT_INT(sluice_model_open(&model, path), SLUICE_OK);
    EXPECT_INT(sluice_encode(model, "a b", 3, SLUICE_ENCODE_BOS, tokens, 16, &n), SLUICE_OK);
    sluice_model_facts(model, &facts);
    EXPECT(n >= 4 && facts.eos < 0);
    EXPECT_INT(sluice_engine_open(&engine, model, &o), SLUICE_OK);
    EXPECT_INT(sluice_seq_open(&seq, engine), SLUICE_OK);
    for (int i = 0; i < 4; i++) {
        EXPECT_INT(sluice_seq_feed(seq, tokens, n), SLUICE_OK);
        EXPECT_INT(sluice_engine_step(engine, NULL), SLUICE_OK);
        tokens[0] = sluice_seq_token(seq);
        n = 1;
        EXPECT(tokens[0] >= 0 && tokens[0] < facts.n_tokens);
    }
    sluice_seq_close(seq);
    sluice_engine_close(engine);
    sluice_model_close(model);
}

TEST(synth_models_run) {
    generate("synth:qwen35-tiny:q4_k_m");
    generate("synth:qwen35-tiny:bf16");
}

TEST(synth_models_with_grids_run) {
    static const char *const types[] = {"iq1_s", "iq1_m",   "iq2_xxs", "iq2_xs",
                                        "iq2_s", "iq3_xxs", "iq3_s"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char path[64];
        snprintf(path, sizeof path, "synth:qwen35-tiny:%s", types[i]);
        generate(path);
    }
}
