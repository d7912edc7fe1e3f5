/* test_model.c - mixtures, recoding, and hub folders against GGUF files made by others. */
#include <dirent.h>
#include <inttypes.h>
#include <math.h>

#include "base/pool.h"
#include "file/folder.h"
#include "file/gguf.h"
#include "model/config.h"
#include "model/hub.h"
#include "model/imatrix.h"
#include "model/mixture.h"
#include "model/recode.h"
#include "test.h"

/* ---- mixtures ----------------------------------------------------------------------------- */

/* The layers of spec/quants.md section 7 that get Q6_K in a file of n layers. */
static const struct {
    uint32_t n;
    const char *layers;
    int count;
} more_bits[] = {
    {24, " 0 1 2 5 8 11 14 17 20 21 22 23 ", 12},
    {25, " 0 1 2 5 8 11 14 17 20 21 22 23 24 ", 13},
    {30, " 0 1 2 5 8 11 14 17 20 23 26 27 28 29 ", 14},
    {32, " 0 1 2 3 6 9 12 15 18 21 24 27 28 29 30 31 ", 16},
    {40, " 0 1 2 3 4 7 10 13 16 19 22 25 28 31 34 35 36 37 38 39 ", 20},
    {48, " 0 1 2 3 4 5 8 11 14 17 20 23 26 29 32 35 38 41 42 43 44 45 46 47 ", 24},
    {64,
     " 0 1 2 3 4 5 6 7 10 13 16 19 22 25 28 31 34 37 40 43 46 49 52 55 56 57 58 59 60 61 62 63 ",
     32},
};

TEST(mixture_medium_gives_half_the_layers_more) {
    const struct mixture *m = mixture_find("q4_k_m");
    for (size_t c = 0; c < sizeof more_bits / sizeof *more_bits; c++) {
        struct mixture_file file = {.n_layers = more_bits[c].n, .n_values = more_bits[c].n};
        int count = 0;
        for (uint32_t i = 0; i < file.n_layers; i++) {
            char down[64], value[64], number[16];
            snprintf(down, sizeof down, "blk.%u.ffn_down.weight", i);
            snprintf(value, sizeof value, "blk.%u.attn_qkv.weight", i);
            snprintf(number, sizeof number, " %u ", i);
            bool is_listed = strstr(more_bits[c].layers, number) != NULL;
            enum dtype expected = is_listed ? DT_Q6_K : DT_Q4_K;
            EXPECT_INT(mixture_type(m, &file, str_of(down), 1024, 0), expected);
            EXPECT_INT(mixture_type(m, &file, str_of(value), 1024, i), expected);
            count += is_listed;
        }
        EXPECT_INT(count, more_bits[c].count);
    }
}

TEST(mixture_types_of_single_tensors) {
    static const struct {
        const char *mixture, *name;
        uint64_t row;
        bool has_output;
        uint32_t value_index;
        enum dtype expected;
    } cases[] = {
        {"q4_k_m", "output.weight", 1024, true, 0, DT_Q6_K},
        {"q4_k_m", "token_embd.weight", 1024, true, 0, DT_Q4_K},
        {"q4_k_m", "token_embd.weight", 1024, false, 0, DT_Q6_K},
        {"q4_k_m", "token_embd.weight", 576, false, 0, DT_Q8_0},
        {"q4_k_m", "blk.9.attn_q.weight", 576, false, 0, DT_Q5_0},
        {"q5_k_m", "blk.9.attn_q.weight", 576, false, 0, DT_Q5_1},
        {"q4_k_m", "blk.9.attn_q.weight", 48, false, 0, DT_F16},
        {"q4_k_m", "blk.9.attn_output.weight", 2048, false, 0, DT_Q4_K},
        {"q4_k_m", "blk.0.ffn_down_exps.weight", 512, true, 0, DT_Q6_K},
        {"q4_k_m", "blk.0.ffn_down_shexp.weight", 512, true, 0, DT_Q6_K},
        {"q4_k_m", "blk.9.ssm_alpha.weight", 1024, true, 0, DT_Q4_K},
        {"q5_k_m", "blk.0.ffn_down.weight", 1024, true, 0, DT_Q6_K},
        {"q5_k_m", "blk.0.ffn_up.weight", 1024, true, 0, DT_Q5_K},
        {"q5_k_s", "blk.0.ffn_down.weight", 1024, true, 0, DT_Q5_K},
        {"q5_k_s", "output.weight", 1024, true, 0, DT_Q6_K},
        {"q4_k_s", "blk.1.ffn_down.weight", 1024, true, 0, DT_Q5_K},
        {"q4_k_s", "blk.3.ffn_down.weight", 1024, true, 0, DT_Q4_K},
        {"q4_k_s", "blk.3.attn_v.weight", 1024, true, 3, DT_Q5_K},
        {"q4_k_s", "blk.4.attn_v.weight", 1024, true, 4, DT_Q4_K},
        {"q8_0", "output.weight", 1024, true, 0, DT_Q8_0},
        {"q8_0", "blk.0.ffn_down.weight", 80, true, 0, DT_F16},
        {"q6_k", "blk.0.ffn_up.weight", 1024, true, 0, DT_Q6_K},
        {"q4_0", "output.weight", 1024, true, 0, DT_Q6_K},
        {"q4_0", "blk.0.ffn_down.weight", 1024, true, 0, DT_Q4_0},
        {"q3_k_s", "blk.0.attn_v.weight", 1024, true, 0, DT_Q3_K},
        {"q3_k_m", "blk.1.attn_v.weight", 1024, true, 1, DT_Q5_K},
        {"q3_k_m", "blk.2.attn_qkv.weight", 1024, true, 2, DT_Q4_K},
        {"q3_k_m", "blk.0.ffn_down.weight", 1024, true, 0, DT_Q5_K},
        {"q3_k_m", "blk.1.ffn_down_exps.weight", 1024, true, 0, DT_Q4_K},
        {"q3_k_m", "blk.1.attn_output.weight", 1024, true, 0, DT_Q4_K},
        {"q3_k_m", "blk.1.ssm_out.weight", 1024, true, 0, DT_Q3_K},
        {"q3_k_m", "token_embd.weight", 1024, true, 0, DT_Q3_K},
        {"q3_k_l", "blk.9.attn_v.weight", 1024, true, 9, DT_Q5_K},
        {"q3_k_l", "blk.9.ffn_down.weight", 1024, true, 0, DT_Q5_K},
        {"q3_k_l", "blk.9.attn_output.weight", 1024, true, 0, DT_Q5_K},
        {"q3_k_l", "blk.9.attn_q.weight", 1024, true, 0, DT_Q3_K},
        {"q2_k", "blk.9.attn_v.weight", 1024, true, 9, DT_Q4_K},
        {"q2_k", "blk.9.ffn_down.weight", 1024, true, 0, DT_Q3_K},
        {"q2_k", "blk.9.attn_output.weight", 1024, true, 0, DT_Q3_K},
        {"q2_k", "blk.9.ffn_up.weight", 1024, true, 0, DT_Q2_K},
        {"q2_k", "blk.9.ffn_up.weight", 576, true, 0, DT_Q4_0},
        {"q2_k", "output.weight", 1024, true, 0, DT_Q6_K},
        {"q2_k_s", "blk.2.ffn_down.weight", 1024, true, 0, DT_Q4_K},
        {"q2_k_s", "blk.3.ffn_down.weight", 1024, true, 0, DT_Q2_K},
        {"q2_k_s", "blk.3.attn_v.weight", 1024, true, 3, DT_Q4_K},
        {"iq2_xxs", "output.weight", 1024, true, 0, DT_Q6_K},
        {"iq2_xxs", "blk.0.ffn_down.weight", 1024, true, 0, DT_IQ2_XXS},
        {"iq1_m", "blk.0.ffn_down.weight", 576, true, 0, DT_Q4_0},
        {"BF16", "output.weight", 1024, true, 0, DT_BF16},
        {"f16", "blk.0.attn_v.weight", 33, true, 0, DT_F16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mixture_file file = {
            .n_layers = 24, .n_values = 24, .has_output = cases[i].has_output, .gqa = 4};
        enum dtype found = mixture_type(mixture_find(cases[i].mixture), &file,
                                        str_of(cases[i].name), cases[i].row, cases[i].value_index);
        if (found != cases[i].expected)
            test_fail(__FILE__, __LINE__, "%s %s is %s, expected %s", cases[i].mixture,
                      cases[i].name, dtype_name(found), dtype_name(cases[i].expected));
    }
    struct mixture_file alone = {.n_layers = 24, .n_values = 24, .gqa = 3};
    struct str value = STR("blk.9.attn_v.weight");
    EXPECT_INT(mixture_type(mixture_find("q2_k"), &alone, value, 1024, 9), DT_Q3_K);
    EXPECT_INT(mixture_type(mixture_find("q2_k_s"), &alone, value, 1024, 9), DT_Q2_K);
    EXPECT(mixture_find("q4_k") == mixture_find("Q4_K_M"));
    EXPECT(mixture_find("q4") == NULL);
    EXPECT(mixture_find("") == NULL);
}

TEST(mixture_keeps_what_must_stay) {
    static const struct {
        const char *name;
        uint32_t n_dims;
        uint64_t dims[4];
        bool is_kept;
    } cases[] = {
        {"output_norm.weight", 1, {64, 1, 1, 1}, true},
        {"blk.0.attn_q.bias", 1, {64, 1, 1, 1}, true},
        {"blk.0.ffn_gate_inp.weight", 2, {64, 8, 1, 1}, true},
        {"blk.0.ffn_gate_inp_shexp.weight", 2, {64, 1, 1, 1}, true},
        {"blk.0.ssm_conv1d.weight", 2, {4, 512, 1, 1}, true},
        {"blk.0.ssm_a", 1, {16, 1, 1, 1}, true},
        {"blk.0.ssm_alpha.weight", 2, {64, 16, 1, 1}, false},
        {"blk.0.attn_q.weight", 2, {64, 64, 1, 1}, false},
        {"blk.0.ffn_up_exps.weight", 3, {64, 32, 8, 1}, false},
        {"token_embd.weight", 2, {64, 448, 1, 1}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        EXPECT_INT(mixture_keeps(str_of(cases[i].name), cases[i].n_dims, cases[i].dims),
                   cases[i].is_kept);
}

TEST(mixture_finds_the_block_of_a_name) {
    uint32_t n = 99;
    EXPECT(block_index(STR("blk.12.attn_q.weight"), &n) && n == 12);
    EXPECT(!block_index(STR("blk.attn_q.weight"), &n));
    EXPECT(!block_index(STR("blk.12"), &n));
    EXPECT(!block_index(STR("token_embd.weight"), &n));
    EXPECT(!block_index(STR("blk.99999999999999.x"), &n));
}

/* The quantized reference files were made by another program: the rules must give their types. */
TEST(mixture_agrees_with_files_made_by_others) {
    static const char *const files[] = {"qwen35-dense-k", "llama-k"};
    for (int f = 0; f < 2; f++) {
        char path[128];
        snprintf(path, sizeof path, "reference/%s/model-q4_k_m.gguf", files[f]);
        struct gguf *g;
        struct err err = {0};
        if (gguf_open(&g, test_data(path), &err))
            return test_fail(__FILE__, __LINE__, "%s", err.text);
        struct mixture_file file = {.n_layers = 2, .n_values = 2};
        file.has_output = gguf_tensor(g, "output.weight") != NULL;
        for (uint32_t i = 0; i < g->n_tensors; i++) {
            const struct tensor *t = &g->tensors[i];
            uint32_t layer = 0;
            block_index(t->name, &layer);
            enum dtype expected =
                mixture_keeps(t->name, t->n_dims, t->dims)
                    ? DT_F32
                    : mixture_type(mixture_find("q4_k_m"), &file, t->name, t->dims[0], layer);
            if (t->type != (int)expected)
                test_fail(__FILE__, __LINE__, "%.*s is %s, expected %s", STR_ARG(t->name),
                          t->type_name, dtype_name(expected));
        }
        gguf_close(g);
    }
}

/* ---- recoding ----------------------------------------------------------------------------- */

struct sink {
    uint8_t *bytes;
    uint64_t len;
};

static void count_up(const void *source, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count * 64; i++)
        out[i] = (float)((first * 64 + i) % 1000);
    const uint64_t *bad_row = source;
    if (bad_row && *bad_row >= first && *bad_row < first + count)
        out[(*bad_row - first) * 64 + 5] = NAN;
}

static int collect(void *sink, const void *bytes, uint64_t size, struct err *err) {
    (void)err;
    struct sink *s = sink;
    memcpy(s->bytes + s->len, bytes, size);
    s->len += size;
    return SLUICE_OK;
}

TEST(recode_keeps_the_order_with_any_number_of_threads) {
    enum { ROWS = 100003 }; /* several batches, the last not full */
    struct sink s = {.bytes = malloc(ROWS * 64 * 2)};
    for (int threads = 1; threads <= 3; threads++) {
        struct pool *pool;
        struct err err = {0};
        EXPECT_INT(pool_open(&pool, threads, &err), SLUICE_OK);
        s.len = 0;
        struct recode r = {.name = "t",
                           .width = 64,
                           .rows = ROWS,
                           .to = DT_BF16,
                           .read = count_up,
                           .write = collect,
                           .sink = &s};
        EXPECT_INT(recode_tensor(&r, pool, &err), SLUICE_OK);
        EXPECT_INT(s.len, ROWS * 64 * 2);
        bool is_right = true;
        for (uint64_t i = 0; i < ROWS * 64; i++) {
            float v, x = (float)(i % 1000);
            dtype_info(DT_BF16)->decode(s.bytes + 2 * i, &v, 1);
            is_right &= fabsf(v - x) <= x / 256;
        }
        EXPECT(is_right);
        uint64_t bad_row = 70001;
        s.len = 0;
        r.source = &bad_row;
        EXPECT_INT(recode_tensor(&r, pool, &err), SLUICE_ERR_FORMAT);
        EXPECT_STR(err.text, "tensor t, row 70001: a value is not finite or does not fit BF16");
        pool_close(pool);
    }
    free(s.bytes);
}

/* ---- hub folders -------------------------------------------------------------------------- */

static struct hub *open_hub(const char *name, struct folder **folder) {
    struct err err = {0};
    struct hub *hub = NULL;
    char path[128];
    snprintf(path, sizeof path, "reference/%s", name);
    if (folder_open(folder, test_data(path), true, &err) || hub_open(&hub, *folder, true, &err))
        test_fail(__FILE__, __LINE__, "%s: %s", name, err.text);
    return hub;
}

static float *read_whole(const struct hub *hub, const struct hub_tensor *t, uint64_t *n) {
    uint64_t rows = t->dims[1] * t->dims[2] * t->dims[3];
    *n = rows * t->dims[0];
    float *x = malloc(*n * sizeof *x);
    /* In two pieces, so that a start in the middle is tried too. */
    hub_read_rows(hub, t, 0, rows / 2, x);
    hub_read_rows(hub, t, rows / 2, rows - rows / 2, x + rows / 2 * t->dims[0]);
    return x;
}

static void compare_with_gguf(const char *name, const struct hub *hub, const struct gguf *g) {
    EXPECT_INT(hub->n_tensors, g->n_tensors);
    for (uint32_t i = 0; i < hub->n_tensors; i++) {
        const struct hub_tensor *t = &hub->tensors[i];
        const struct tensor *other = gguf_tensor(g, t->name);
        if (!other || other->type != DT_F32 || other->n_dims != t->n_dims ||
            memcmp(other->dims, t->dims, sizeof t->dims) != 0) {
            test_fail(__FILE__, __LINE__, "%s: %s is not there in the same shape", name, t->name);
            continue;
        }
        uint64_t n;
        float *x = read_whole(hub, t, &n);
        if (memcmp(x, other->data, n * sizeof *x) != 0)
            test_fail(__FILE__, __LINE__, "%s: %s has other values", name, t->name);
        free(x);
    }
}

TEST(hub_equals_the_gguf_file_of_the_same_model) {
    static const char *const names[] = {"qwen35-dense-a", "qwen35-dense-b", "qwen35-moe-a",
                                        "llama-a",        "llama-b",        "qwen3-a",
                                        "qwen2-a",        "qwen3moe-a",     "qwen3next-a"};
    int compared = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct folder *folder = NULL;
        struct gguf *g = NULL;
        char path[128];
        snprintf(path, sizeof path, "reference/%s/model-f32.gguf", names[i]);
        /* One is too big to ship: its checksums are compared below. */
        if (gguf_open(&g, test_data(path), NULL))
            continue;
        struct hub *hub = open_hub(names[i], &folder);
        if (hub)
            compare_with_gguf(names[i], hub, g);
        compared++;
        hub_close(hub);
        folder_close(folder);
        gguf_close(g);
    }
    EXPECT(compared >= 8);
}

static uint64_t fnv1a(const void *bytes, uint64_t n) {
    uint64_t h = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
    return h;
}

TEST(hub_equals_the_checksums_of_a_vision_checkpoint) {
    struct folder *folder = NULL;
    struct hub *hub = open_hub("qwen35-dense-b", &folder);
    FILE *sums = fopen("tests/data/qwen35-dense-b.sums", "r");
    char name[64], type[8], dims[64];
    uint64_t expected;
    uint32_t found = 0;
    while (hub && sums &&
           fscanf(sums, "%63s %7s %63s %" SCNx64, name, type, dims, &expected) == 4) {
        for (uint32_t i = 0; i < hub->n_tensors; i++) {
            if (strcmp(hub->tensors[i].name, name) != 0)
                continue;
            uint64_t n;
            float *x = read_whole(hub, &hub->tensors[i], &n);
            if (fnv1a(x, n * sizeof *x) != expected)
                test_fail(__FILE__, __LINE__, "%s has other values", name);
            free(x);
            found++;
        }
    }
    EXPECT_INT(found, hub ? hub->n_tensors : 0);
    EXPECT(found > 100);
    if (sums)
        fclose(sums);
    hub_close(hub);
    folder_close(folder);
}

/* What config.json may say, one member at a time ("": it is absent); NULL: it is taken. */
TEST(hub_refuses_configs_that_cannot_be_run) {
    static const struct {
        const char *folder, *name, *value, *expected;
    } cases[] = {
        {"llama-a", "model_type", "\"gpt9\"",
         "model_type is gpt9, expected llama, qwen2, qwen3, qwen3_moe, qwen3_next, qwen3_5 or "
         "qwen3_5_moe"},
        {"llama-a", "model_type", "null", "model_type is missing, expected llama"},
        {"llama-a", "hidden_act", "\"gelu\"", "hidden_act is gelu, expected silu"},
        {"qwen3moe-a", "use_sliding_window", "true", "use_sliding_window is true, which is not"},
        {"qwen2-a", "is_causal", "false", "is_causal is false, which is not supported"},
        {"llama-a", "rope_parameters", "{\"rope_type\":\"dynamic\"}", "rope_type is dynamic"},
        {"qwen35-dense-a", "rope_parameters", "{\"rope_type\":\"llama3\"}", "rope_type is llama3"},
        {"qwen35-dense-a", "attn_output_gate", "false", "attn_output_gate is false"},
        {"qwen35-dense-a", "model_type", "\"qwen3_5_text\"", NULL},
        {"qwen3-a", "model_type", "\"llama\"", "is unknown to the architecture llama"},
        {"qwen35-dense-a", "linear_num_value_heads", "3", "expected a multiple of"},
        {"qwen35-moe-a", "num_experts", "0", "num_experts is 0, expected a number from 1"},
        {"qwen3moe-a", "num_experts", "", "num_experts is missing"},
        {"qwen3moe-a", "norm_topk_prob", "false", NULL},
        {"qwen3moe-a", "norm_topk_prob", "", NULL},
        {"qwen3moe-a", "norm_topk_prob", "1", "norm_topk_prob is 1, expected true or false"},
        {"qwen35-moe-a", "norm_topk_prob", "false", "norm_topk_prob is false, which is not"},
        {"qwen3moe-a", "decoder_sparse_step", "2", "decoder_sparse_step is 2, expected 1: experts"},
        {"qwen3moe-a", "mlp_only_layers", "[0, 2]", "mlp_only_layers has 2 layers, expected none"},
        {"qwen3moe-a", "mlp_only_layers", "null", NULL},
        {"qwen3next-a", "norm_topk_prob", "false", NULL},
        {"qwen3next-a", "norm_topk_prob", "", NULL},
        {"qwen3next-a", "linear_num_key_heads", "2",
         "linear_attn.in_proj_qkvz.weight has 576 rows in 2 dimensions, expected 512 in 2"},
        {"qwen3next-a", "decoder_sparse_step", "3", "decoder_sparse_step is 3, expected 1"},
        {"qwen35-dense-a", "rope_parameters", "{\"partial_rotary_factor\":1e30}",
         "partial_rotary_factor is 1e+30, expected at most 1"},
        {"qwen3-a", "rope_parameters", "\"x\"", "rope_parameters is \"x\", expected an object"},
        {"llama-a", "rope_parameters", "{\"rope_type\":5}", "rope_type is 5, expected default"},
        {"qwen3-a", "rope_scaling", "null", NULL},
        {"qwen3-a", "rope_scaling", "[]", "rope_scaling is [], expected an object"},
        {"qwen3-a", "layer_types", "[\"full_attention\",\"sliding_attention\"]",
         "layer 1 is \"sliding_attention\", expected full_attention or linear_attention"},
        {"qwen3-a", "layer_types", "7", "layer_types is 7, expected an array"},
        {"qwen3-a", "vocab_size", "432.5", "vocab_size is 432.5, expected a number from 1"},
        {"qwen3-a", "num_hidden_layers", "\"x\"", "num_hidden_layers is \"x\", expected a number"},
        {"qwen3-a", "num_hidden_layers",
         "[1,2,\"a text of more than forty characters, which is cut\"]",
         "num_hidden_layers is [1,2,\"..., expected a number"},
        {"qwen3-a", "rms_norm_eps", "-1", "rms_norm_eps is -1, expected a number above 0"},
        {"qwen3-a", "rope_parameters",
         "{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":4294967297}",
         "original_max_position_embeddings is 4294967297, expected a number from 1"},
        {"qwen3-a", "rope_parameters", "{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":false}",
         "truncate is false, expected true"},
        {"qwen3-a", "rope_parameters", "{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":true}",
         NULL},
        {"qwen3-a", "rope_parameters",
         "{\"rope_type\":\"yarn\",\"factor\":4,\"attention_factor\":\"1\"}",
         "attention_factor is \"1\", expected a number above 0"},
        {"qwen3-a", "rope_parameters", "{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":[]}",
         "beta_fast is [], expected a number above 0"},
        {"qwen3-a", "rope_parameters", "{\"full_attention\":{\"rope_theta\":1}}",
         "the rotary value full_attention is {\"rope_theta\":1}, expected the same values for all"},
        {"qwen3-a", "rope_scaling", "{\"rope_type\":\"linear\",\"factor\":2}",
         "rope_parameters and rope_scaling differ, expected one of them"},
        {"qwen3-a", "rope_scaling", "{\"rope_type\":\"default\",\"rope_theta\":1000000.0}", NULL},
        {"qwen3-a", "rope_scaling", "{}", NULL},
        {"qwen3-a", "use_sliding_window", "1", "use_sliding_window is 1, which is not supported"},
        {"qwen3-a", "use_sliding_window", "null", NULL},
        {"qwen3-a", "tie_word_embeddings", "1", "tie_word_embeddings is 1, expected true or false"},
        {"qwen3moe-a", "norm_topk_prob", "null", NULL},
        {"qwen3-a", "layer_types", "[\"full_attention\",\"linear_attention\"]",
         "layer 1 is linear_attention, expected full_attention for qwen3"},
        {"qwen35-dense-a", "full_attention_interval", "0",
         "full_attention_interval is 0, expected"},
        {"qwen35-dense-a", "full_attention_interval", "2000", NULL},
        {"qwen35-dense-a", "full_attention_interval", "null", NULL},
        {"qwen2-a", "is_causal", "false", "is_causal is false, which is not supported"},
        {"qwen2-a", "is_causal", "true", NULL},
        {"llama-a", "per_layer_config", "{\"1\":{\"rms_norm_eps\":0.1}}",
         "per_layer_config is {\"1\":{\"rms_norm_eps\":..., expected the same values"},
        {"llama-a", "per_layer_config", "{}", NULL},
        {"qwen3-a", "partial_rotary_factor", "0.5", "partial_rotary_factor is 0.5, expected 1 for"},
        {"qwen3-a", "partial_rotary_factor", "1", NULL},
        {"qwen2-a", "rope_parameters", "{\"partial_rotary_factor\":0.25}",
         "partial_rotary_factor is 0.25, expected 1 for qwen2"},
        {"qwen3moe-a", "partial_rotary_factor", "0.5", "partial_rotary_factor is 0.5, expected 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder *folder = NULL;
        struct hub *hub = NULL;
        struct gguf_writer *w = NULL;
        struct err err = {0};
        char path[64];
        snprintf(path, sizeof path, "reference/%s", cases[i].folder);
        EXPECT_INT(folder_open(&folder, test_data(path), true, &err), SLUICE_OK);
        EXPECT_INT(gguf_writer_open(&w, NULL, 0, &err), SLUICE_OK);
        if (*cases[i].value)
            json_object_set_new(folder->config, cases[i].name,
                                json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(folder->config, cases[i].name);
        int status = hub_open(&hub, folder, true, &err);
        if (!status)
            status = hub_write_keys(hub, w, &err);
        if (!cases[i].expected != !status || (status && !strstr(err.text, cases[i].expected)))
            test_fail(__FILE__, __LINE__, "%s of %s: \"%s\"", cases[i].value, cases[i].name,
                      err.text);
        gguf_writer_abort(w);
        hub_close(hub);
        folder_close(folder);
    }
}

TEST(hub_takes_the_name_that_transformers_5_gives_num_experts) {
    struct folder *folder = NULL;
    struct hub *hub = NULL;
    struct err err = {0};
    EXPECT_INT(folder_open(&folder, test_data("reference/qwen3moe-a"), true, &err), SLUICE_OK);
    json_t *n = json_object_get(folder->config, "num_experts");
    json_object_set(folder->config, "num_local_experts", n);
    json_object_del(folder->config, "num_experts");
    EXPECT_INT(hub_open(&hub, folder, true, &err), SLUICE_OK);
    EXPECT_INT(hub ? hub->n_experts : 0, 11);
    hub_close(hub);
    folder_close(folder);
}

/* As transformers 5.23 reads them: Qwen2's and Qwen3's configs make layer_types of the other values
 * if it is not given, Qwen3-MoE's model asks for sliding_window alone. The folders have layer_types
 * without windows (Qwen3-MoE's: none), 2 layers (Qwen2), and 3. */
TEST(hub_takes_sliding_windows_that_no_layer_has) {
    static const struct {
        const char *folder, *values;
        bool is_taken;
    } cases[] = {
        {"qwen3-a", "{\"max_window_layers\":0,\"sliding_window\":64}", true},
        {"qwen3-a", "{\"layer_types\":null}", true},
        {"qwen3-a", "{\"layer_types\":null,\"max_window_layers\":3,\"sliding_window\":64}", true},
        {"qwen3-a", "{\"layer_types\":null,\"max_window_layers\":2,\"sliding_window\":64}", false},
        {"qwen2-a", "{\"layer_types\":null,\"max_window_layers\":2}", true},
        {"qwen2-a", "{\"layer_types\":null,\"max_window_layers\":1}", false},
        {"qwen2-a", "{\"layer_types\":null,\"max_window_layers\":0,\"sliding_window\":null}", true},
        {"qwen2-a", "{\"layer_types\":null,\"max_window_layers\":0,\"sliding_window\":0}", false},
        {"qwen2-a", "{\"layer_types\":null,\"max_window_layers\":null}", false},
        {"qwen2-a", "{\"layer_types\":null,\"max_window_layers\":\"99\"}", false},
        {"qwen2-a", "{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", false},
        {"qwen3moe-a", "{\"max_window_layers\":99}", false},
        {"qwen3moe-a",
         "{\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"]}", false},
        {"qwen3moe-a", "{\"sliding_window\":null}", true},
        {"llama-a", "{\"max_window_layers\":99}", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder *folder = NULL;
        struct hub *hub = NULL;
        struct err err = {0};
        char path[64];
        json_t *values = json_loads(cases[i].values, 0, NULL);
        snprintf(path, sizeof path, "reference/%s", cases[i].folder);
        EXPECT_INT(folder_open(&folder, test_data(path), true, &err), SLUICE_OK);
        json_object_set_new(folder->config, "use_sliding_window", json_true());
        EXPECT_INT(json_object_update(folder->config, values), 0);
        bool is_taken = hub_open(&hub, folder, true, &err) == SLUICE_OK;
        bool is_named = strstr(err.text, "use_sliding_window is true, which is not supported") ||
                        strstr(err.text, "layer 1 is \"sliding_attention\", expected");
        if (is_taken != cases[i].is_taken || is_taken == is_named)
            test_fail(__FILE__, __LINE__, "%s %s: \"%s\"", cases[i].folder, cases[i].values,
                      err.text);
        json_decref(values);
        hub_close(hub);
        folder_close(folder);
    }
}

/* ---- rotary values of folders ------------------------------------------------------------- */

/* The rotary part of what a GGUF file of the folder says. */
static struct rope rope_of(const char *name, const char *rope, const char *more) {
    struct config c = {0};
    struct folder *folder = NULL;
    struct hub *hub = NULL;
    struct gguf_writer *w = NULL;
    struct gguf *g = NULL;
    struct err err = {0};
    void *bytes = NULL;
    size_t size = 0;
    json_t *members = json_loads(more, 0, NULL);
    int status = folder_open(&folder, test_data(name), true, &err);
    json_object_set_new(folder->config, "rope_parameters", json_loads(rope, 0, NULL));
    json_object_update(folder->config, members);
    if (status || (status = hub_open(&hub, folder, true, &err)) ||
        (status = gguf_writer_open(&w, NULL, 0, &err)) || (status = hub_write_keys(hub, w, &err)) ||
        (status = gguf_writer_header(w, &bytes, &size, &err)) ||
        (status = gguf_parse(&g, bytes, size, &err)) || (status = config_read_arch(&c, g, &err)) ||
        (status = config_read(&c, g, &err)))
        test_fail(__FILE__, __LINE__, "%s: %s", rope, err.text);
    json_decref(members);
    gguf_close(g);
    free(bytes);
    gguf_writer_abort(w);
    hub_close(hub);
    folder_close(folder);
    return c.rope;
}

/* The pair that turns `turns` times over the original length, as transformers has it. */
static double pair_that_turns(double turns, int dims, double theta, double original) {
    return dims * log(original / (turns * 6.283185307179586)) / (2 * log(theta));
}

/* Heads of 32, as YaRN has them in transformers' modeling_rope_utils.py; attention is its
 * attention_factor. */
TEST(hub_folders_scale_by_yarn_as_transformers) {
    enum { DIMS = 32 };
    static const struct {
        const char *rope, *more;
        double theta, factor, original, fast, slow, attention;
    } cases[] = {
        {"{\"rope_type\":\"yarn\",\"rope_theta\":1e6,\"factor\":4,"
         "\"original_max_position_embeddings\":256}",
         "{}", 1e6, 4, 256, 32, 1, 1.138629436111989},
        {"{\"type\":\"yarn\",\"factor\":2.5,\"beta_fast\":16,\"beta_slow\":null}",
         "{\"rope_theta\":5000}", 5000, 2.5, 1024, 16, 1, 1.0916290731874155},
        {"{\"rope_type\":\"yarn\",\"factor\":4,\"attention_factor\":0.7,\"mscale\":2,"
         "\"mscale_all_dim\":1}",
         "{\"original_max_position_embeddings\":100}", 1e4, 4, 100, 32, 1, 0.7},
        {"{\"rope_type\":\"yarn\",\"factor\":8,\"mscale\":0.707,\"mscale_all_dim\":0.707,"
         "\"beta_slow\":0.5}",
         "{}", 1e4, 8, 1024, 32, 0.5, 1},
        {"{\"rope_type\":\"yarn\",\"factor\":8,\"mscale\":1,\"mscale_all_dim\":0.5,"
         "\"original_max_position_embeddings\":77}",
         "{\"original_max_position_embeddings\":128}", 1e4, 8, 128, 32, 1, 1.0941799881},
        {"{\"rope_type\":\"yarn\",\"factor\":8,\"mscale\":3,\"mscale_all_dim\":0}", "{}", 1e4, 8,
         1024, 32, 1, 1.2079441541679836},
        {"{\"rope_type\":\"yarn\",\"factor\":0.5,\"attention_factor\":1.3}", "{}", 1e4, 0.5, 1024,
         32, 1, 1.3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double freqs[DIMS / 2], theta = cases[i].theta, original = cases[i].original;
        struct rope r = rope_of("reference/qwen3-a", cases[i].rope, cases[i].more);
        double attention = config_rope_freqs(&r, NULL, freqs);
        double low = floor(pair_that_turns(cases[i].fast, DIMS, theta, original));
        double high = ceil(pair_that_turns(cases[i].slow, DIMS, theta, original));
        low = low < 0 ? 0 : low;
        high = high > DIMS - 1 ? DIMS - 1 : high;
        EXPECT_NEAR(attention, cases[i].attention, 1e-6);
        for (int p = 0; p < DIMS / 2; p++) {
            double ramp = (p - low) / (high - low), whole = pow(theta, -2.0 * p / DIMS);
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            double expected = whole / cases[i].factor * ramp + whole * (1 - ramp);
            if (!(fabs(freqs[p] / expected - 1) < 1e-6))
                test_fail(__FILE__, __LINE__, "%s: pair %d turns by %.9g, expected %.9g",
                          cases[i].rope, p, freqs[p], expected);
        }
    }
}

static const struct hub_tensor *hub_tensor(const struct hub *h, const char *name) {
    for (uint32_t i = 0; i < h->n_tensors; i++)
        if (strcmp(h->tensors[i].name, name) == 0)
            return &h->tensors[i];
    return NULL;
}

/* Llama 3's divisors come from the length before scaling, wherever it is. */
TEST(hub_folders_scale_by_llama3_from_the_original_length) {
    static const struct {
        const char *name, *value;
        double original;
    } cases[] = {{"rope_theta", "10000.0", 96}, /* llama-b's own */
                 {"original_max_position_embeddings", "200", 200},
                 {"rope_scaling",
                  "{\"rope_type\":\"llama3\",\"factor\":4,\"low_freq_factor\":1,"
                  "\"high_freq_factor\":4}",
                  1024}}; /* max_position_embeddings */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder *folder = NULL;
        struct hub *hub = NULL;
        struct err err = {0};
        EXPECT_INT(folder_open(&folder, test_data("reference/llama-b"), true, &err), SLUICE_OK);
        json_object_set_new(folder->config, cases[i].name,
                            json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        json_object_set_new(folder->config, "rope_theta", json_real(10000));
        EXPECT_INT(hub_open(&hub, folder, true, &err), SLUICE_OK);
        const struct hub_tensor *t = hub ? hub_tensor(hub, "rope_freqs.weight") : NULL;
        EXPECT(t && t->dims[0] == 16);
        for (int p = 0; t && p < 16; p++) {
            double wave = 6.283185307179586 * pow(10000, p / 16.0);
            double smooth = (cases[i].original / wave - 1) / (4 - 1);
            smooth = smooth < 0 ? 0 : smooth > 1 ? 1 : smooth;
            EXPECT_NEAR(t->values[p], 1 / ((1 - smooth) / 4 + smooth), 1e-5);
        }
        hub_close(hub);
        folder_close(folder);
    }
}

/* A head that is stored although it is tied counts where it is not the embedding. */
TEST(hub_tied_heads_that_are_stored_are_used_if_they_differ) {
    for (int i = 0; i < 4; i++) {
        struct folder *folder = NULL;
        struct hub *hub = NULL;
        struct err err = {0};
        bool is_tied = i % 2, is_same = i / 2;
        EXPECT_INT(folder_open(&folder, test_data("reference/llama-a"), true, &err), SLUICE_OK);
        json_object_set_new(folder->config, "tie_word_embeddings", json_boolean(is_tied));
        struct tensor *head =
            (struct tensor *)safetensors_find(folder->weights, STR("lm_head.weight"));
        const struct tensor *embed =
            safetensors_find(folder->weights, STR("model.embed_tokens.weight"));
        EXPECT(head && embed && head->bytes == embed->bytes);
        if (is_same)
            head->data = embed->data;
        EXPECT_INT(hub_open(&hub, folder, true, &err), SLUICE_OK);
        EXPECT((hub_tensor(hub, "output.weight") == NULL) == (is_tied && is_same));
        hub_close(hub);
        folder_close(folder);
    }
}

/* By config.json there is none, or by the tensors one is missing. */
TEST(hub_knows_a_draft_block) {
    static const char *const names[] = {"mtp/qwen35-mtp", "mtp/qwen35moe-mtp"};
    for (int i = 0; i < 6; i++) {
        struct folder *folder = NULL;
        struct hub *hub = NULL;
        struct err err = {0};
        char missing[HUB_NAME];
        EXPECT_INT(folder_open(&folder, test_data(names[i % 2]), true, &err), SLUICE_OK);
        json_object_set_new(folder->config, "mtp_num_hidden_layers",
                            i < 2   ? json_integer(1)
                            : i < 4 ? json_integer(0)
                                    : json_null());
        EXPECT_INT(hub_open(&hub, folder, true, &err), SLUICE_OK);
        EXPECT_INT(hub->n_mtp, i < 2 || i >= 4);
        EXPECT((hub->n_skipped > 0) == (hub->n_mtp == 0));
        EXPECT(!hub_draft_lacks(hub, missing));
        hub->n_tensors -= hub->n_mtp; /* the last tensor, of the block */
        EXPECT(hub_draft_lacks(hub, missing) == (hub->n_mtp == 1));
        EXPECT(!hub->n_mtp || strcmp(missing, hub->tensors[hub->n_tensors].name) == 0);
        hub_close(hub);
        folder_close(folder);
    }
}

/* ---- importance matrices ------------------------------------------------------------------ */

/* Two entries: one of three columns, one of two experts of which the second was never chosen. */
static struct imatrix_entry importance[] = {
    {STR("blk.0.a.weight"), 3, 1, (float[]){30, 0, 60}, (float[]){10}},
    {STR("blk.0.b.weight"), 4, 2, (float[]){1, 3, 0, 0}, (float[]){5, 0}},
};

static size_t write_importance(const char *path, char **bytes) {
    struct imatrix m = {.entries = importance,
                        .n_entries = 2,
                        .dataset = STR("texts"),
                        .n_chunks = 7,
                        .chunk_size = 512};
    struct err err = {0};
    size_t size = 0;
    EXPECT_INT(imatrix_write(&m, path, &err), SLUICE_OK);
    *bytes = test_read_file(path, &size);
    return size;
}

/* The weights of a tensor of that name and shape; 0 when that fails, -1 when there are none. */
static int weights_for(const struct imatrix *m, struct str name, const uint64_t *dims, float *out,
                       struct err *err) {
    struct tensor t = {.name = name, .n_dims = 3, .dims = {dims[0], dims[1], dims[2], 1}};
    float *weights;
    uint64_t n;
    if (imatrix_weights(m, &t, &weights, &n, err))
        return 0;
    if (!weights)
        return -1;
    memcpy(out, weights, n * dims[0] * sizeof *out);
    free(weights);
    return (int)n;
}

TEST(imatrix_comes_back_and_weighs) {
    const char *path = test_temporary("imatrix.gguf");
    char *bytes;
    struct imatrix *m;
    struct err err = {0};
    float w[8];
    write_importance(path, &bytes);
    free(bytes);
    if (imatrix_open(&m, path, &err)) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return;
    }
    EXPECT_INT(m->n_entries, 2);
    EXPECT(str_is(m->dataset, "texts") && m->n_chunks == 7 && m->chunk_size == 512);
    for (int i = 0; i < 2; i++) {
        EXPECT(str_equal(m->entries[i].name, importance[i].name));
        EXPECT(memcmp(m->entries[i].sums, importance[i].sums,
                      importance[i].n_sums * sizeof(float)) == 0);
        EXPECT(memcmp(m->entries[i].counts, importance[i].counts,
                      importance[i].n_counts * sizeof(float)) == 0);
    }
    EXPECT_INT(weights_for(m, importance[0].name, (uint64_t[]){3, 9, 1}, w, &err), 1);
    EXPECT(w[0] == 1 && w[1] > 0 && w[1] < 0.001 && w[2] == 2);
    EXPECT_INT(weights_for(m, importance[1].name, (uint64_t[]){2, 9, 2}, w, &err), 2);
    EXPECT(w[0] == 0.5f && w[1] == 1.5f && w[2] == 1 && w[3] == 1);
    EXPECT_INT(weights_for(m, STR("blk.1.a.weight"), (uint64_t[]){3, 9, 1}, w, &err), -1);
    EXPECT_INT(weights_for(m, importance[0].name, (uint64_t[]){4, 9, 1}, w, &err), 0);
    EXPECT(strstr(err.text, "3 sums and 1 counts for blk.0.a.weight"));
    EXPECT_INT(weights_for(m, importance[1].name, (uint64_t[]){4, 9, 1}, w, &err), 0);
    imatrix_close(m);
}

/* An older file: entries of a name, calls, values; then chunks and the text's name. */
static size_t old_importance(uint8_t *to) {
    static const struct {
        int32_t n_entries, length;
        char name[16];
        int32_t calls, n_values;
        float values[4];
        int32_t chunks, text_length;
        char text[4];
    } file = {1, 16, "blk.0.ab.weight!", 3, 4, {1, 3, 0, 4}, 9, 4, "text"};
    memcpy(to, &file, sizeof file);
    return sizeof file;
}

TEST(imatrix_reads_the_older_form) {
    uint8_t file[128];
    struct imatrix *m;
    struct err err = {0};
    float w[4];
    size_t size = old_importance(file);
    if (imatrix_parse(&m, file, size, &err)) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return;
    }
    EXPECT_INT(m->n_entries, 1);
    EXPECT(str_is(m->dataset, "text") && m->n_chunks == 9);
    EXPECT_INT(weights_for(m, STR("blk.0.ab.weight!"), (uint64_t[]){4, 9, 1}, w, &err), 1);
    EXPECT(w[0] == 0.5f && w[1] == 1.5f && w[3] == 2);
    EXPECT_INT(weights_for(m, STR("blk.0.ab.weight!"), (uint64_t[]){2, 9, 2}, w, &err), 2);
    EXPECT(w[0] == 0.5f && w[1] == 1.5f && w[3] == 2);
    imatrix_close(m);
}

static void expect_refused(const void *bytes, size_t size, const char *expected) {
    struct imatrix *m;
    struct err err = {0};
    uint8_t *copy = malloc(size + 1); /* of its own, so that sanitizers see its end */
    memcpy(copy, bytes, size);
    if (imatrix_parse(&m, copy, size, &err) == SLUICE_OK)
        test_fail(__FILE__, __LINE__, "%zu bytes are taken", size);
    else if (!strstr(err.text, expected))
        test_fail(__FILE__, __LINE__, "\"%s\", expected \"%s\" in it", err.text, expected);
    EXPECT(m == NULL);
    imatrix_close(m);
    free(copy);
}

TEST(imatrix_refuses_what_is_wrong) {
    uint8_t old[128], wrong[128];
    char *bytes;
    size_t size = write_importance(test_temporary("whole.gguf"), &bytes);
    for (size_t n = 0; bytes && n + GGUF_ALIGNMENT <= size; n++) /* the end is padding */
        expect_refused(bytes, n, "");
    free(bytes);
    size = old_importance(old);
    for (size_t n = 0; n < size - 12; n++) /* what comes after the entries may be missing */
        expect_refused(old, n, "");
    static const struct {
        size_t at;
        uint32_t value;
        const char *expected;
    } cases[] = {
        {0, 0, "neither GGUF nor an older"},
        {0, 0x7fffffff, "neither GGUF nor an older"},
        {4, 0, "its name is not a text"},
        {4, 0x80000000, "its name is not a text"},
        {24, 0xffffffff, "its counts are wrong"},
        {28, 0, "its counts are wrong"},
        {28, 0x7fffffff, "its counts are wrong"},
        {32, 0xbf800000, "sum 0 is -1, expected 0 or more"},
        {36, 0x7fc00000, "sum 1 is nan"},
        {36, 0x7f800000, "sum 1 is inf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(wrong, old, size);
        memcpy(wrong + cases[i].at, &cases[i].value, 4);
        expect_refused(wrong, size, cases[i].expected);
    }
    struct imatrix *m;
    struct err err = {0};
    EXPECT(imatrix_open(&m, test_data("reference/llama-a/model-f32.gguf"), &err) < 0);
    EXPECT(strstr(err.text, "expected 'imatrix'"));
}
