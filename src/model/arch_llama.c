/* arch_llama.c - the plain transformers: Llama and SmolLM2, Qwen2, Qwen3 dense and with experts.
 *
 * The same pre-norm decoder with grouped-query attention and SwiGLU. They differ in how GGUF
 * stores rotary pairs, in biases (Qwen2), in a norm of each query and key head (Qwen3), and in the
 * feed-forward part (Qwen3 MoE: experts in every layer, none of them shared). */
#include <string.h>

#include "model/arch.h"

static int config_dense(struct model *m, struct err *err) {
    struct config *c = &m->config;
    uint32_t experts = 0;
    int status = config_count(c, m->keys, "expert_count", UINT32_MAX, &experts, err);
    if (!status && experts)
        status = err_set(err, SLUICE_ERR_UNSUPPORTED,
                         "%s: %s.expert_count is %u, expected a model without experts", m->path,
                         c->arch, experts);
    return status ? status
                  : config_u32(c, m->keys, "feed_forward_length", 1 << 22, true, &c->ffn, err);
}

static int config(struct model *m, struct err *err) {
    /* GGUF's llama has rotary pairs side by side; the hub, and all others, a half head apart. */
    bool is_side_by_side = m->arch == &arch_llama && !m->hub;
    m->config.rope.pairing = is_side_by_side ? ROPE_NEIGHBOURS : ROPE_HALVES;
    return m->arch == &arch_qwen3moe ? config_experts(m, err) : config_dense(m, err);
}

static int bind_attention(struct model *m, int i, struct layer *l, struct err *err) {
    const struct config *c = &m->config;
    uint32_t q = c->q_width, kv = c->kv_width;
    unsigned bias = m->arch == &arch_qwen2 ? 0 : BIND_OPTIONAL;
    bool has_norm = m->arch == &arch_qwen3 || m->arch == &arch_qwen3moe;
    unsigned norm = has_norm ? 0 : BIND_OPTIONAL;
    int status;
    if ((status = bind_vector(m, i, "attn_norm.weight", c->hidden, 0, 0, &l->norm, err)) ||
        (status = bind_matrix(m, i, "attn_q.weight", c->hidden, q, 0, &l->q, err)) ||
        (status = bind_matrix(m, i, "attn_k.weight", c->hidden, kv, 0, &l->k, err)) ||
        (status = bind_matrix(m, i, "attn_v.weight", c->hidden, kv, 0, &l->v, err)) ||
        (status = bind_matrix(m, i, "attn_output.weight", q, c->hidden, 0, &l->o, err)) ||
        (status = bind_vector(m, i, "attn_q.bias", q, 0, bias, &l->q_bias, err)) ||
        (status = bind_vector(m, i, "attn_k.bias", kv, 0, bias, &l->k_bias, err)) ||
        (status = bind_vector(m, i, "attn_v.bias", kv, 0, bias, &l->v_bias, err)) ||
        (status =
             bind_vector(m, i, "attn_output.bias", c->hidden, 0, BIND_OPTIONAL, &l->o_bias, err)) ||
        (status =
             bind_vector(m, i, "attn_q_norm.weight", c->head_width, 0, norm, &l->q_norm, err)) ||
        (status = bind_vector(m, i, "attn_k_norm.weight", c->head_width, 0, norm, &l->k_norm, err)))
        return status;
    return SLUICE_OK;
}

static int bind_dense(struct model *m, int i, struct layer *l, struct err *err) {
    uint32_t d = m->config.hidden, f = m->config.ffn;
    int status;
    if ((status = bind_matrix(m, i, "ffn_gate.weight", d, f, 0, &l->gate, err)) ||
        (status = bind_matrix(m, i, "ffn_up.weight", d, f, 0, &l->up, err)) ||
        (status = bind_matrix(m, i, "ffn_down.weight", f, d, 0, &l->down, err)) ||
        (status = bind_vector(m, i, "ffn_gate.bias", f, 0, BIND_OPTIONAL, &l->gate_bias, err)) ||
        (status = bind_vector(m, i, "ffn_up.bias", f, 0, BIND_OPTIONAL, &l->up_bias, err)) ||
        (status = bind_vector(m, i, "ffn_down.bias", d, 0, BIND_OPTIONAL, &l->down_bias, err)))
        return status;
    return SLUICE_OK;
}

static int bind(struct model *m, struct err *err) {
    const struct config *c = &m->config;
    for (uint32_t n = 0; n < c->n_layers; n++) {
        struct layer *l = &m->layers[n];
        int status, i = (int)n;
        if ((status = bind_attention(m, i, l, err)) ||
            (status = bind_vector(m, i, "ffn_norm.weight", c->hidden, 0, 0, &l->ffn_norm, err)) ||
            (status = c->experts ? bind_experts(m, i, l, err) : bind_dense(m, i, l, err)))
            return status;
    }
    return SLUICE_OK;
}

static int emit_layer(const struct emit *e, uint32_t layer) {
    int status = emit_attention(e, layer, false);
    if (!status)
        status = e->m->config.experts ? emit_experts(e, layer) : emit_dense(e, layer);
    return status;
}

/* ---- hub folders -------------------------------------------------------------------------- */

static int refuse_linear_layers(const struct hub *h, struct err *err) {
    const json_t *kind;
    size_t i;
    json_array_foreach(json_object_get(h->folder->config, "layer_types"), i, kind) {
        if (strcmp(json_string_value(kind), "full_attention") != 0)
            return err_set(err, SLUICE_ERR_UNSUPPORTED,
                           "%s/config.json: layer_types: layer %zu is %s, expected full_attention "
                           "for %s",
                           h->folder->path, i, json_string_value(kind), h->arch->name);
    }
    return SLUICE_OK;
}

/* Heads of these rotate as a whole: some programs ignore such a value, others obey it. */
static int hub_config(struct hub *h, struct err *err) {
    double part = 1;
    int status = hub_number(h, h->folder->config, "partial_rotary_factor", 1, &part, err);
    if (!status)
        status = hub_number(h, hub_rope(h), "partial_rotary_factor", part, &part, err);
    if (!status && part != 1)
        status = err_set(err, SLUICE_ERR_UNSUPPORTED,
                         "%s/config.json: partial_rotary_factor is %g, expected 1 for %s",
                         h->folder->path, part, h->arch->name);
    return status ? status : refuse_linear_layers(h, err);
}

static int hub_config_experts(struct hub *h, struct err *err) {
    int status = hub_config(h, err);
    return status ? status : hub_experts(h, err);
}

static void hub_keys(struct hub_keys *k) {
    hub_copy_count(k, "intermediate_size", "feed_forward_length");
    hub_put_u32(k, "rope.dimension_count", k->hub->head_dim);
    if (!k->hub->n_experts)
        return;
    hub_put_experts(k);
    hub_put_norm(k, false);
}

/* clang-format off */
static const struct hub_name global_names[] = {
    {.theirs = "embed_tokens.weight", .ours = "token_embd.weight"},
    {.theirs = "norm.weight",         .ours = "output_norm.weight"},
    {.theirs = "lm_head.weight",      .ours = "output.weight"},
    {0},
};

static const struct hub_name norm_names[] = {
    {.theirs = "input_layernorm.weight",          .ours = "attn_norm.weight"},
    {.theirs = "post_attention_layernorm.weight", .ours = "ffn_norm.weight"},
    {0},
};

static const struct hub_name paired_qk_names[] = { /* llama: see config */
    {.theirs = "self_attn.q_proj.weight", .ours = "attn_q.weight", .order = ORDER_PAIR_Q},
    {.theirs = "self_attn.k_proj.weight", .ours = "attn_k.weight", .order = ORDER_PAIR_K},
    {.theirs = "self_attn.q_proj.bias",   .ours = "attn_q.bias",   .order = ORDER_PAIR_Q},
    {.theirs = "self_attn.k_proj.bias",   .ours = "attn_k.bias",   .order = ORDER_PAIR_K},
    {0},
};

static const struct hub_name qk_names[] = {
    {.theirs = "self_attn.q_proj.weight", .ours = "attn_q.weight"},
    {.theirs = "self_attn.k_proj.weight", .ours = "attn_k.weight"},
    {.theirs = "self_attn.q_proj.bias",   .ours = "attn_q.bias"},
    {.theirs = "self_attn.k_proj.bias",   .ours = "attn_k.bias"},
    {0},
};

static const struct hub_name vo_names[] = {
    {.theirs = "self_attn.v_proj.weight", .ours = "attn_v.weight"},
    {.theirs = "self_attn.v_proj.bias",   .ours = "attn_v.bias"},
    {.theirs = "self_attn.o_proj.weight", .ours = "attn_output.weight"},
    {.theirs = "self_attn.o_proj.bias",   .ours = "attn_output.bias"},
    {0},
};

static const struct hub_name qk_norm_names[] = {
    {.theirs = "self_attn.q_norm.weight", .ours = "attn_q_norm.weight"},
    {.theirs = "self_attn.k_norm.weight", .ours = "attn_k_norm.weight"},
    {0},
};

static const struct hub_name ffn_names[] = {
    {.theirs = "mlp.gate_proj.weight", .ours = "ffn_gate.weight"},
    {.theirs = "mlp.up_proj.weight",   .ours = "ffn_up.weight"},
    {.theirs = "mlp.down_proj.weight", .ours = "ffn_down.weight"},
    {.theirs = "mlp.gate_proj.bias",   .ours = "ffn_gate.bias"},
    {.theirs = "mlp.up_proj.bias",     .ours = "ffn_up.bias"},
    {.theirs = "mlp.down_proj.bias",   .ours = "ffn_down.bias"},
    {0},
};
/* clang-format on */

const struct arch arch_llama = {
    .name = "llama",
    .config = config,
    .bind = bind,
    .emit_layer = emit_layer,
    .model_types = {"llama"},
    .global_names = global_names,
    .layer_names = {norm_names, paired_qk_names, vo_names, ffn_names},
    .hub_config = hub_config,
    .hub_keys = hub_keys,
};

const struct arch arch_qwen2 = {
    .name = "qwen2",
    .config = config,
    .bind = bind,
    .emit_layer = emit_layer,
    .model_types = {"qwen2"},
    .has_some_windows = true,
    .global_names = global_names,
    .layer_names = {norm_names, qk_names, vo_names, qk_norm_names, ffn_names},
    .hub_config = hub_config,
    .hub_keys = hub_keys,
};

const struct arch arch_qwen3 = {
    .name = "qwen3",
    .config = config,
    .bind = bind,
    .emit_layer = emit_layer,
    .model_types = {"qwen3"},
    .has_some_windows = true,
    .global_names = global_names,
    .layer_names = {norm_names, qk_names, vo_names, qk_norm_names, ffn_names},
    .hub_config = hub_config,
    .hub_keys = hub_keys,
};

const struct arch arch_qwen3moe = {
    .name = "qwen3moe",
    .config = config,
    .bind = bind,
    .emit_layer = emit_layer,
    .model_types = {"qwen3_moe"},
    .global_names = global_names,
    .layer_names = {norm_names, qk_names, vo_names, qk_norm_names, hub_expert_names},
    .hub_config = hub_config_experts,
    .hub_keys = hub_keys,
};
