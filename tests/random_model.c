/* random_model.c - small models of any shape with random weights, as GGUF files. */
#include "random_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/random.h"

enum { CONV_WIDTH = 4 };

/* Tensors are walked twice: described, then written. */
struct model_writer {
    const struct random_model *m;
    struct gguf_writer *to;
    bool writes_data;
    uint64_t number; /* of the tensor */
    int status;
    struct err *err;
};

/* ---- tensors ------------------------------------------------------------------------------ */

/* The wanted type, or any whose blocks divide a row. */
static enum dtype type_for(const struct random_model *m, uint64_t k, uint64_t *random) {
    static const enum dtype types[] = {DT_F32,  DT_F16,  DT_BF16, DT_Q4_0, DT_Q4_1, DT_Q5_0,
                                       DT_Q5_1, DT_Q8_0, DT_Q4_K, DT_Q5_K, DT_Q6_K};
    enum dtype type = m->type;
    if (type != DT_COUNT)
        return k % dtype_info(type)->block_values == 0 ? type : DT_F16;
    do
        type = types[random_next(random) % (sizeof types / sizeof *types)];
    while (k % dtype_info(type)->block_values != 0);
    return type;
}

/* Values of that size around a middle, row by row. */
static void write_rows(struct model_writer *w, const char *name, enum dtype type,
                       const uint64_t *dims, float size, float middle, uint64_t *random) {
    uint64_t k = dims[0], rows = (dims[1] ? dims[1] : 1) * (dims[2] ? dims[2] : 1), bytes = 0;
    float *x = malloc(k * sizeof *x);
    CHECK(dtype_bytes(type, k, &bytes));
    void *row = malloc(bytes);
    for (uint64_t r = 0; !w->status && r < rows; r++) {
        for (uint64_t i = 0; i < k; i++)
            x[i] = middle + 50 * size * random_normal(random); /* of a deviation of 0.02 */
        if (w->m->damaged && strcmp(w->m->damaged, name) == 0 && r == w->m->damaged_row)
            x[k / 2] = w->m->damage;
        dtype_info(type)->encode(x, row, k);
        w->status = gguf_write_data(w->to, row, bytes, w->err);
    }
    free(x);
    free(row);
}

static void tensor(struct model_writer *w, int layer, const char *part, bool is_matrix,
                   const uint64_t dims[3], float size, float middle) {
    uint64_t random = random_mix(w->m->seed * 1000 + w->number++);
    enum dtype type = is_matrix ? type_for(w->m, dims[0], &random) : DT_F32;
    char name[GGUF_MAX_NAME + 1];
    if (layer < 0)
        snprintf(name, sizeof name, "%s", part);
    else
        snprintf(name, sizeof name, "blk.%d.%s", layer, part);
    if (w->status)
        return;
    if (w->writes_data)
        write_rows(w, name, type, dims, size, middle, &random);
    else
        w->status = gguf_write_tensor(w->to, str_of(name), type, dims,
                                      dims[2]   ? 3
                                      : dims[1] ? 2
                                                : 1,
                                      w->err);
}

static void matrices(struct model_writer *w, int layer, const char *part, uint64_t k, uint64_t n,
                     uint64_t e) {
    tensor(w, layer, part, true, (uint64_t[]){k, n, e}, 1 / sqrtf((float)k), 0);
}

static void vector(struct model_writer *w, int layer, const char *part, uint64_t n, float size,
                   float middle) {
    tensor(w, layer, part, false, (uint64_t[]){n, 0, 0}, size, middle);
}

static bool has_delta(const struct random_model *m) {
    return strncmp(m->arch, "qwen35", 6) == 0 || strcmp(m->arch, "qwen3next") == 0;
}

static void attention(struct model_writer *w, int i) {
    const struct random_model *m = w->m;
    bool is_hybrid = has_delta(m), is_qwen2 = !strcmp(m->arch, "qwen2");
    uint64_t q = (uint64_t)m->heads * m->head_width, kv = (uint64_t)m->kv_heads * m->head_width;
    matrices(w, i, "attn_q.weight", m->hidden, is_hybrid ? 2 * q : q, 0);
    matrices(w, i, "attn_k.weight", m->hidden, kv, 0);
    matrices(w, i, "attn_v.weight", m->hidden, kv, 0);
    matrices(w, i, "attn_output.weight", q, m->hidden, 0);
    if (is_qwen2) {
        vector(w, i, "attn_q.bias", q, 0.1f, 0);
        vector(w, i, "attn_k.bias", kv, 0.1f, 0);
        vector(w, i, "attn_v.bias", kv, 0.1f, 0);
    }
    if (strncmp(m->arch, "qwen3", 5) == 0) {
        vector(w, i, "attn_q_norm.weight", m->head_width, 0.1f, 1);
        vector(w, i, "attn_k_norm.weight", m->head_width, 0.1f, 1);
    }
}

static void delta(struct model_writer *w, int i) {
    const struct random_model *m = w->m;
    uint64_t values = (uint64_t)m->value_heads * m->value_width;
    uint64_t channels = 2ull * m->key_heads * m->key_width + values;
    if (m->is_fused) {
        matrices(w, i, "ssm_in.weight", m->hidden, channels + values, 0);
    } else {
        matrices(w, i, "attn_qkv.weight", m->hidden, channels, 0);
        matrices(w, i, "attn_gate.weight", m->hidden, values, 0);
    }
    if (strcmp(m->arch, "qwen3next") == 0) {
        matrices(w, i, "ssm_ba.weight", m->hidden, 2ull * m->value_heads, 0);
    } else {
        matrices(w, i, "ssm_beta.weight", m->hidden, m->value_heads, 0);
        matrices(w, i, "ssm_alpha.weight", m->hidden, m->value_heads, 0);
    }
    tensor(w, i, "ssm_conv1d.weight", false, (uint64_t[]){CONV_WIDTH, channels, 0}, 0.5f, 0);
    vector(w, i, "ssm_a", m->value_heads, 0.1f, -1);
    vector(w, i, "ssm_dt.bias", m->value_heads, 0.1f, 0.5f);
    vector(w, i, "ssm_norm.weight", m->value_width, 0.1f, 1);
    matrices(w, i, "ssm_out.weight", values, m->hidden, 0);
}

static void feed_forward(struct model_writer *w, int i) {
    const struct random_model *m = w->m;
    if (!m->experts) {
        matrices(w, i, "ffn_gate.weight", m->hidden, m->ffn, 0);
        matrices(w, i, "ffn_up.weight", m->hidden, m->ffn, 0);
        matrices(w, i, "ffn_down.weight", m->ffn, m->hidden, 0);
        return;
    }
    tensor(w, i, "ffn_gate_inp.weight", false, (uint64_t[]){m->hidden, m->experts, 0}, 0.1f, 0);
    matrices(w, i, "ffn_gate_exps.weight", m->hidden, m->ffn, m->experts);
    matrices(w, i, "ffn_up_exps.weight", m->hidden, m->ffn, m->experts);
    matrices(w, i, "ffn_down_exps.weight", m->ffn, m->hidden, m->experts);
    if (!m->shared)
        return;
    vector(w, i, "ffn_gate_inp_shexp.weight", m->hidden, 0.1f, 0);
    matrices(w, i, "ffn_gate_shexp.weight", m->hidden, m->shared, 0);
    matrices(w, i, "ffn_up_shexp.weight", m->hidden, m->shared, 0);
    matrices(w, i, "ffn_down_shexp.weight", m->shared, m->hidden, 0);
}

static void layer(struct model_writer *w, int i) {
    const struct random_model *m = w->m;
    bool is_hybrid = has_delta(m);
    vector(w, i, "attn_norm.weight", m->hidden, 0.1f, 1);
    vector(w, i, is_hybrid ? "post_attention_norm.weight" : "ffn_norm.weight", m->hidden, 0.1f, 1);
    if (is_hybrid && i + 1 < (int)m->layers)
        delta(w, i);
    else
        attention(w, i);
    feed_forward(w, i);
}

static void draft_block(struct model_writer *w) {
    const struct random_model *m = w->m;
    int i = (int)m->layers;
    layer(w, i);
    matrices(w, i, "nextn.eh_proj.weight", 2 * m->hidden, m->hidden, 0);
    vector(w, i, "nextn.enorm.weight", m->hidden, 0.1f, 1);
    vector(w, i, "nextn.hnorm.weight", m->hidden, 0.1f, 1);
    if (m->draft_block == 1) {
        vector(w, i, "nextn.shared_head_norm.weight", m->hidden, 0.1f, 1);
        return;
    }
    tensor(w, i, "nextn.embed_tokens.weight", true, (uint64_t[]){m->hidden, m->vocab, 0}, 1, 0);
    matrices(w, i, "nextn.shared_head_head.weight", m->hidden, m->vocab, 0);
}

static void tensors(struct model_writer *w) {
    const struct random_model *m = w->m;
    w->number = 0;
    tensor(w, -1, "token_embd.weight", true, (uint64_t[]){m->hidden, m->vocab, 0}, 1, 0);
    matrices(w, -1, "output.weight", m->hidden, m->vocab, 0);
    vector(w, -1, "output_norm.weight", m->hidden, 0.1f, 1);
    for (int i = 0; i < (int)m->layers; i++)
        layer(w, i);
    if (m->draft_block)
        draft_block(w);
}

/* ---- keys --------------------------------------------------------------------------------- */

static void number(struct model_writer *w, const char *name, uint32_t value) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", w->m->arch, name);
    if (!w->status && value)
        w->status = gguf_write_u32(w->to, full, value, w->err);
}

static void keys(struct model_writer *w) {
    const struct random_model *m = w->m;
    char eps[64], name[64];
    snprintf(eps, sizeof eps, "%s.attention.layer_norm_rms_epsilon", m->arch);
    snprintf(name, sizeof name, "%.*s", (int)m->padding, "................................");
    if ((w->status = gguf_write_str(w->to, "general.architecture", str_of(m->arch), w->err)) ||
        (w->status = gguf_write_str(w->to, "general.name", str_of(name), w->err)) ||
        (w->status = gguf_write_str(w->to, "tokenizer.ggml.model", STR("no_vocab"), w->err)) ||
        (w->status = gguf_write_f32(w->to, eps, 1e-6f, w->err)))
        return;
    number(w, "block_count", m->layers + (m->draft_block > 0));
    number(w, "nextn_predict_layers", m->draft_block > 0);
    number(w, "embedding_length", m->hidden);
    number(w, "context_length", 4096);
    number(w, "attention.head_count", m->heads);
    number(w, "attention.head_count_kv", m->kv_heads);
    number(w, "attention.key_length", m->head_width);
    number(w, "attention.value_length", m->head_width);
    number(w, m->experts ? "expert_feed_forward_length" : "feed_forward_length", m->ffn);
    number(w, "expert_count", m->experts);
    number(w, "expert_used_count", m->used);
    number(w, "expert_shared_feed_forward_length", m->shared);
    number(w, "full_attention_interval", m->key_heads ? m->layers : 0);
    number(w, "ssm.group_count", m->key_heads);
    number(w, "ssm.time_step_rank", m->value_heads);
    number(w, "ssm.state_size", m->key_width);
    number(w, "ssm.inner_size", m->value_heads * m->value_width);
    number(w, "ssm.conv_kernel", m->key_heads ? CONV_WIDTH : 0);
}

/* ---- models ------------------------------------------------------------------------------- */

struct random_model random_tiny(const char *arch) {
    return (struct random_model){.seed = 5,
                                 .arch = arch,
                                 .hidden = 32,
                                 .layers = 2,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_width = 16,
                                 .ffn = 32,
                                 .vocab = 90,
                                 .key_heads = 1,
                                 .value_heads = 2,
                                 .key_width = 16,
                                 .value_width = 16,
                                 .type = DT_F32};
}

struct random_model random_moe(uint64_t seed) {
    static const uint32_t widths[] = {1, 8, 17, 32, 48, 64, 80, 96, 100, 160, 256};
    uint64_t random = random_mix(seed + 1);
    enum { WIDTHS = sizeof widths / sizeof *widths };
    struct random_model m = {.seed = seed, .arch = "qwen35moe", .type = DT_COUNT};
    if (seed % 3 == 2) {
        m.arch = "qwen3next";
        m.is_fused = seed % 2;
    }
    m.layers = 2;
    m.hidden = 32 * (uint32_t)(1 + random_next(&random) % 8) + random_next(&random) % 4 / 3 * 20;
    m.kv_heads = 1 + (uint32_t)(random_next(&random) % 2);
    m.heads = m.kv_heads * (1 + (uint32_t)(random_next(&random) % 3));
    m.head_width = 16 * (1 + (uint32_t)(random_next(&random) % 4));
    m.key_heads = 1 + (uint32_t)(random_next(&random) % 2);
    m.value_heads = m.key_heads * (1 + (uint32_t)(random_next(&random) % 2));
    m.key_width = 16 * (1 + (uint32_t)(random_next(&random) % 4));
    m.value_width = 16 * (1 + (uint32_t)(random_next(&random) % 4));
    m.vocab = 50 + (uint32_t)(random_next(&random) % 300);
    m.ffn = widths[random_next(&random) % WIDTHS];
    m.shared = random_next(&random) % 4 ? widths[random_next(&random) % WIDTHS] : 0;
    m.experts = 1 + (uint32_t)(random_next(&random) % 9);
    m.used = 1 + (uint32_t)(random_next(&random) % m.experts);
    return m;
}

int random_model_describe(const struct random_model *m, struct gguf_writer *to, struct err *err) {
    struct model_writer w = {.m = m, .to = to, .err = err};
    keys(&w);
    tensors(&w);
    return w.status;
}

int random_model_write(const struct random_model *m, const char *path, struct err *err) {
    struct model_writer w = {.m = m, .err = err, .writes_data = true};
    int status = gguf_writer_open(&w.to, path, m->alignment, err);
    if (status)
        return status;
    w.status = random_model_describe(m, w.to, err);
    tensors(&w);
    if (!w.status)
        return gguf_writer_close(w.to, err);
    gguf_writer_abort(w.to);
    return w.status;
}
