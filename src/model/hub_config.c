/* hub_config.c - a hub folder in our words: config.json and the keys made from it. */
#include "model/hub_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PI 3.14159265358979323846

static const struct {
    const char *model_type, *arch;
} archs[] = {
    {"llama", "llama"},
    {"qwen2", "qwen2"},
    {"qwen3", "qwen3"},
    {"qwen3_5", "qwen35"},
    {"qwen3_5_text", "qwen35"},
    {"qwen3_5_moe", "qwen35moe"},
    {"qwen3_5_moe_text", "qwen35moe"},
};

/* ---- values of config.json --------------------------------------------------------------------
 */

/* A whole number within [1, max]; *out keeps its value when the name is absent and a fallback
 * (not 0) was there. */
static int read_count(const struct hub *h, const char *name, uint32_t max, uint32_t *out,
                      struct err *err) {
    const json_t *v = json_object_get(h->folder->config, name);
    if ((!v || json_is_null(v)) && *out)
        return SLUICE_OK;
    if (!v)
        return err_set(err, SLUICE_ERR_FORMAT, "%s/config.json: %s is missing", h->folder->path,
                       name);
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > max)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s/config.json: %s is %lld, expected a number from 1 to %u",
                       h->folder->path, name, (long long)json_integer_value(v), max);
    *out = (uint32_t)json_integer_value(v);
    return SLUICE_OK;
}

/* A finite positive number of `object`; the fallback when it is absent. */
static int read_number(const struct hub *h, const json_t *object, const char *name, double fallback,
                       double *out, struct err *err) {
    const json_t *v = json_object_get(object, name);
    *out = v && !json_is_null(v) ? json_number_value(v) : fallback;
    if (!(*out > 0) || !isfinite(*out))
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s/config.json: %s is %s, expected a number above 0", h->folder->path, name,
                       v ? "something else" : "missing");
    return SLUICE_OK;
}

static bool flag(const struct hub *h, const char *name, bool fallback) {
    const json_t *v = json_object_get(h->folder->config, name);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

/* The parameters of rotary embeddings: newer files have rope_parameters, older ones rope_scaling
 * and a rope_theta at the root. */
static const json_t *rope_object(const struct hub *h) {
    const json_t *v = json_object_get(h->folder->config, "rope_parameters");
    if (!json_is_object(v))
        v = json_object_get(h->folder->config, "rope_scaling");
    return json_is_object(v) ? v : NULL;
}

static const char *rope_type(const struct hub *h) {
    const json_t *rope = rope_object(h);
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (!type)
        type = json_string_value(json_object_get(rope, "type"));
    return type ? type : "default";
}

static int read_theta(const struct hub *h, double *out, struct err *err) {
    double root;
    int status = read_number(h, h->folder->config, "rope_theta", 10000, &root, err);
    return status ? status : read_number(h, rope_object(h), "rope_theta", root, out, err);
}

/* ---- what the engine can't do -----------------------------------------------------------------
 */

static int refuse_text(const struct hub *h, const char *name, const char *expected,
                       struct err *err) {
    const char *v = json_string_value(json_object_get(h->folder->config, name));
    if (!v || strcmp(v, expected) == 0)
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s/config.json: %s is %s, expected %s",
                   h->folder->path, name, v, expected);
}

static int refuse_flag(const struct hub *h, const char *name, bool expected, struct err *err) {
    if (flag(h, name, expected) == expected)
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s/config.json: %s is %s, which is not supported",
                   h->folder->path, name, expected ? "false" : "true");
}

static int refuse_unsupported(const struct hub *h, bool is_hybrid, struct err *err) {
    int status = refuse_text(h, "hidden_act", "silu", err);
    if (!status)
        status = refuse_flag(h, "use_sliding_window", false, err);
    if (!status && is_hybrid)
        status = refuse_flag(h, "attn_output_gate", true, err);
    if (!status && is_hybrid)
        status = refuse_flag(h, "attention_bias", false, err);
    if (!status && is_hybrid)
        status = refuse_text(h, "output_gate_type", "swish", err);
    const char *rope = rope_type(h);
    bool is_known = !strcmp(rope, "default") || !strcmp(rope, "linear") || !strcmp(rope, "yarn") ||
                    (!is_hybrid && !strcmp(rope, "llama3"));
    if (!status && !is_known)
        status =
            err_set(err, SLUICE_ERR_UNSUPPORTED,
                    "%s/config.json: rope_type is %s, expected default, linear, llama3 or yarn",
                    h->folder->path, rope);
    return status;
}

/* ---- dimensions -------------------------------------------------------------------------------
 */

static int read_arch(struct hub *h, struct err *err) {
    const char *type = json_string_value(json_object_get(h->folder->config, "model_type"));
    for (size_t i = 0; type && i < sizeof archs / sizeof *archs; i++)
        if (strcmp(archs[i].model_type, type) == 0)
            h->arch = archs[i].arch;
    if (h->arch)
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_UNSUPPORTED,
                   "%s/config.json: model_type is %s, expected llama, qwen2, qwen3, qwen3_5 or "
                   "qwen3_5_moe",
                   h->folder->path, type ? type : "missing");
}

static int read_hybrid(struct hub *h, struct err *err) {
    int status = read_count(h, "linear_num_key_heads", 1 << 12, &h->key_heads, err);
    if (!status)
        status = read_count(h, "linear_num_value_heads", 1 << 12, &h->value_heads, err);
    if (!status)
        status = read_count(h, "linear_key_head_dim", 1 << 12, &h->key_dim, err);
    if (!status)
        status = read_count(h, "linear_value_head_dim", 1 << 12, &h->value_dim, err);
    h->conv_kernel = 4;
    if (!status)
        status = read_count(h, "linear_conv_kernel_dim", 8, &h->conv_kernel, err);
    if (!status && h->value_heads % h->key_heads != 0)
        status = err_set(err, SLUICE_ERR_FORMAT,
                         "%s/config.json: linear_num_value_heads is %u, expected a multiple of "
                         "linear_num_key_heads, %u",
                         h->folder->path, h->value_heads, h->key_heads);
    if (!status && strcmp(h->arch, "qwen35moe") == 0)
        status = read_count(h, "num_experts", 4096, &h->n_experts, err);
    return status;
}

int hub_read_config(struct hub *h, struct err *err) {
    int status = read_arch(h, err);
    if (status)
        return status;
    bool is_hybrid = strncmp(h->arch, "qwen35", 6) == 0;
    if ((status = refuse_unsupported(h, is_hybrid, err)) ||
        (status = read_count(h, "hidden_size", 1 << 17, &h->hidden, err)) ||
        (status = read_count(h, "num_hidden_layers", 1024, &h->n_layers, err)) ||
        (status = read_count(h, "num_attention_heads", 1 << 12, &h->n_heads, err)) ||
        (status = read_count(h, "vocab_size", 1 << 22, &h->vocab, err)))
        return status;
    h->n_kv_heads = h->n_heads;
    h->head_dim = h->hidden / h->n_heads;
    if ((status = read_count(h, "num_key_value_heads", 1 << 12, &h->n_kv_heads, err)) ||
        (status = read_count(h, "head_dim", 1024, &h->head_dim, err)))
        return status;
    if (h->head_dim == 0 || h->head_dim % 2 != 0)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s/config.json: head_dim is %u, expected an even number", h->folder->path,
                       h->head_dim);
    h->is_tied = flag(h, "tie_word_embeddings", false);
    h->n_mtp = 1; /* at most; hub_open looks whether the tensors are there */
    return is_hybrid ? read_hybrid(h, err) : SLUICE_OK;
}

/* ---- keys -------------------------------------------------------------------------------------
 */

/* Writes keys of one architecture and remembers the first failure. */
struct key_writer {
    const struct hub *hub;
    struct gguf_writer *w;
    struct err *err;
    int status;
};

static const char *full_name(struct key_writer *k, const char *name, char out[128]) {
    snprintf(out, 128, "%s.%s", k->hub->arch, name);
    return out;
}

static void put_u32(struct key_writer *k, const char *name, uint32_t value) {
    char full[128];
    if (!k->status)
        k->status = gguf_write_u32(k->w, full_name(k, name, full), value, k->err);
}

static void put_f32(struct key_writer *k, const char *name, double value) {
    char full[128];
    if (!k->status)
        k->status = gguf_write_f32(k->w, full_name(k, name, full), (float)value, k->err);
}

/* A count of config.json under our name. */
static void copy_count(struct key_writer *k, const char *theirs, const char *ours) {
    uint32_t v = 0;
    if (!k->status)
        k->status = read_count(k->hub, theirs, UINT32_MAX >> 1, &v, k->err);
    put_u32(k, ours, v);
}

static void put_rope_scaling(struct key_writer *k) {
    const char *type = rope_type(k->hub);
    if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        return; /* llama3 is in the divisors of rope_freqs.weight */
    static const struct {
        const char *theirs, *ours;
    } numbers[] = {{"beta_fast", "rope.scaling.yarn_beta_fast"},
                   {"beta_slow", "rope.scaling.yarn_beta_slow"}};
    const json_t *rope = rope_object(k->hub);
    char full[128];
    double factor = 1, v;
    if (!k->status)
        k->status =
            gguf_write_str(k->w, full_name(k, "rope.scaling.type", full), str_of(type), k->err);
    if (!k->status)
        k->status = read_number(k->hub, rope, "factor", 0, &factor, k->err);
    put_f32(k, "rope.scaling.factor", factor);
    const json_t *original = json_object_get(rope, "original_max_position_embeddings");
    if (json_is_integer(original) && json_integer_value(original) > 0)
        put_u32(k, "rope.scaling.original_context_length", (uint32_t)json_integer_value(original));
    /* Theirs replaces 1 + 0.1 ln(factor), ours multiplies it. */
    if (!k->status && json_is_number(json_object_get(rope, "attention_factor"))) {
        k->status = read_number(k->hub, rope, "attention_factor", 1, &v, k->err);
        put_f32(k, "rope.scaling.attn_factor", v / (1 + 0.1 * log(factor)));
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!k->status && json_is_number(json_object_get(rope, numbers[i].theirs))) {
            k->status = read_number(k->hub, rope, numbers[i].theirs, 1, &v, k->err);
            put_f32(k, numbers[i].ours, k->status ? 1 : v);
        }
}

/* Which layers are recurrent: an interval where there is one, a list of bools where not. */
static void put_layer_types(struct key_writer *k) {
    const json_t *kinds = json_object_get(k->hub->folder->config, "layer_types");
    uint32_t interval = 0;
    const json_t *given = json_object_get(k->hub->folder->config, "full_attention_interval");
    if (json_is_integer(given) && json_integer_value(given) > 0 && json_integer_value(given) < 1024)
        interval = (uint32_t)json_integer_value(given);
    const json_t *kind;
    size_t i;
    if (!interval && json_is_array(kinds))
        json_array_foreach(kinds, i, kind) {
            const char *text = json_string_value(kind);
            if (!interval && text && strcmp(text, "full_attention") == 0)
                interval = (uint32_t)i + 1;
        }
    if (!interval)
        interval = json_is_array(kinds) ? k->hub->n_layers + 1 : 4;
    put_u32(k, "full_attention_interval", interval);
    bool is_regular = true;
    uint8_t recurrent[1024] = {0};
    if (json_is_array(kinds) && json_array_size(kinds) != k->hub->n_layers && !k->status)
        k->status = err_set(k->err, SLUICE_ERR_FORMAT,
                            "%s/config.json: layer_types has %zu entries, expected %u",
                            k->hub->folder->path, json_array_size(kinds), k->hub->n_layers);
    if (k->status || !json_is_array(kinds))
        return;
    json_array_foreach(kinds, i, kind) {
        const char *text = json_string_value(kind);
        recurrent[i] = text && strcmp(text, "linear_attention") == 0;
        is_regular &= recurrent[i] == ((i + 1) % interval != 0);
    }
    char full[128];
    struct gguf_key list = {
        .name = str_of(full_name(k, "attention.recurrent_layers", full)),
        .type = GGUF_BOOL,
        .is_array = true,
        .count = k->hub->n_layers,
        .data = recurrent,
    };
    if (!is_regular)
        k->status = gguf_write_key(k->w, &list, k->err);
}

static void put_hybrid(struct key_writer *k) {
    const struct hub *h = k->hub;
    const json_t *rope = rope_object(h);
    double part = 0.25;
    if (!k->status)
        k->status = read_number(h, h->folder->config, "partial_rotary_factor", 0.25, &part, k->err);
    if (!k->status)
        k->status = read_number(h, rope, "partial_rotary_factor", part, &part, k->err);
    if (!k->status && part > 1)
        k->status = err_set(k->err, SLUICE_ERR_FORMAT,
                            "%s/config.json: partial_rotary_factor is %g, expected at most 1",
                            h->folder->path, part);
    put_u32(k, "rope.dimension_count", k->status ? 0 : (uint32_t)(h->head_dim * part));
    int32_t sections[4] = {11, 11, 10, 0};
    const json_t *given = json_object_get(rope, "mrope_section");
    for (size_t i = 0; json_is_array(given) && i < 3; i++)
        sections[i] = (int32_t)json_integer_value(json_array_get(given, i));
    char full[128];
    if (!k->status)
        k->status = gguf_write_i32s(k->w, full_name(k, "rope.dimension_sections", full), sections,
                                    4, k->err);
    put_layer_types(k);
    put_u32(k, "ssm.conv_kernel", h->conv_kernel);
    put_u32(k, "ssm.state_size", h->key_dim);
    put_u32(k, "ssm.group_count", h->key_heads);
    put_u32(k, "ssm.time_step_rank", h->value_heads);
    put_u32(k, "ssm.inner_size", h->value_heads * h->value_dim);
    if (h->n_mtp)
        put_u32(k, "nextn_predict_layers", h->n_mtp);
    if (!h->n_experts)
        return;
    put_u32(k, "expert_count", h->n_experts);
    copy_count(k, "num_experts_per_tok", "expert_used_count");
    copy_count(k, "moe_intermediate_size", "expert_feed_forward_length");
    copy_count(k, "shared_expert_intermediate_size", "expert_shared_feed_forward_length");
}

int hub_write_keys(const struct hub *h, struct gguf_writer *w, struct err *err) {
    struct key_writer k = {.hub = h, .w = w, .err = err};
    double eps = 0, theta = 0;
    k.status = gguf_write_str(w, "general.architecture", str_of(h->arch), err);
    if (!k.status)
        k.status = read_number(h, h->folder->config, "rms_norm_eps", 1e-6, &eps, err);
    if (!k.status)
        k.status = read_theta(h, &theta, err);
    copy_count(&k, "max_position_embeddings", "context_length");
    put_u32(&k, "embedding_length", h->hidden);
    put_u32(&k, "block_count", h->n_layers + h->n_mtp);
    put_u32(&k, "attention.head_count", h->n_heads);
    put_u32(&k, "attention.head_count_kv", h->n_kv_heads);
    put_u32(&k, "attention.key_length", h->head_dim);
    put_u32(&k, "attention.value_length", h->head_dim);
    put_f32(&k, "attention.layer_norm_rms_epsilon", eps);
    put_f32(&k, "rope.freq_base", theta);
    put_u32(&k, "vocab_size", h->vocab);
    if (!h->n_experts)
        copy_count(&k, "intermediate_size", "feed_forward_length");
    put_rope_scaling(&k);
    if (strncmp(h->arch, "qwen35", 6) == 0)
        put_hybrid(&k);
    else
        put_u32(&k, "rope.dimension_count", h->head_dim);
    return k.status;
}

/* ---- Llama 3's frequencies --------------------------------------------------------------------
 */

int hub_rope_divisors(struct hub *h, float **out, struct err *err) {
    *out = NULL;
    if (strcmp(rope_type(h), "llama3") != 0)
        return SLUICE_OK;
    const json_t *rope = rope_object(h);
    double theta, factor, low, high, original;
    int status;
    if ((status = read_theta(h, &theta, err)) ||
        (status = read_number(h, rope, "factor", 0, &factor, err)) ||
        (status = read_number(h, rope, "low_freq_factor", 1, &low, err)) ||
        (status = read_number(h, rope, "high_freq_factor", 4, &high, err)) ||
        (status = read_number(h, rope, "original_max_position_embeddings", 8192, &original, err)))
        return status;
    if (high <= low)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s/config.json: high_freq_factor is %g, expected more than "
                       "low_freq_factor, %g",
                       h->folder->path, high, low);
    float *d = arena_array(&h->arena, h->head_dim / 2, sizeof *d);
    if (!d)
        return err_memory(err, "rotary frequencies");
    for (uint32_t i = 0; i < h->head_dim / 2; i++) {
        double freq = pow(theta, -2.0 * i / h->head_dim);
        double keep = (original * freq / (2 * PI) - low) / (high - low);
        keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
        d[i] = (float)(1 / ((1 - keep) / factor + keep));
    }
    *out = d;
    return SLUICE_OK;
}
