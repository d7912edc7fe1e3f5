/* arch_llama.c - the plain transformers: Llama and SmolLM2, Qwen2, Qwen3.
 *
 * The same pre-norm decoder with grouped-query attention and SwiGLU. They differ in how GGUF
 * stores rotary pairs, in biases (Qwen2), and in a norm of each query and key head (Qwen3). */
#include <string.h>

#include "model/model.h"

static int config(struct model *m, struct err *err) {
    struct config *c = &m->config;
    bool is_llama = strcmp(c->arch, "llama") == 0;
    uint32_t experts = 0;
    int status = config_u32(c, m->keys, "expert_count", 4096, false, &experts, err);
    if (!status && experts)
        status = err_set(err, SLUICE_ERR_UNSUPPORTED,
                         "%s: %s.expert_count is %u, expected a model without experts", m->path,
                         c->arch, experts);
    if (!status)
        status = config_u32(c, m->keys, "feed_forward_length", 1 << 22, true, &c->ffn, err);
    /* GGUF's llama has rotary pairs side by side; the hub, and all others, a half head apart. */
    c->rope.pairing = is_llama && !m->hub ? ROPE_NEIGHBOURS : ROPE_HALVES;
    return status;
}

static int bind_attention(struct model *m, int i, struct layer *l, struct err *err) {
    const struct config *c = &m->config;
    uint32_t q = c->q_width, kv = c->kv_width;
    unsigned bias = strcmp(c->arch, "qwen2") == 0 ? 0 : BIND_OPTIONAL;
    unsigned norm = strcmp(c->arch, "qwen3") == 0 ? 0 : BIND_OPTIONAL;
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

static int bind(struct model *m, struct err *err) {
    const struct config *c = &m->config;
    for (uint32_t n = 0; n < c->n_layers; n++) {
        struct layer *l = &m->layers[n];
        int status, i = (int)n;
        if ((status = bind_attention(m, i, l, err)) ||
            (status = bind_vector(m, i, "ffn_norm.weight", c->hidden, 0, 0, &l->ffn_norm, err)) ||
            (status = bind_matrix(m, i, "ffn_gate.weight", c->hidden, c->ffn, 0, &l->gate, err)) ||
            (status = bind_matrix(m, i, "ffn_up.weight", c->hidden, c->ffn, 0, &l->up, err)) ||
            (status = bind_matrix(m, i, "ffn_down.weight", c->ffn, c->hidden, 0, &l->down, err)) ||
            (status = bind_vector(m, i, "ffn_gate.bias", c->ffn, 0, BIND_OPTIONAL, &l->gate_bias,
                                  err)) ||
            (status =
                 bind_vector(m, i, "ffn_up.bias", c->ffn, 0, BIND_OPTIONAL, &l->up_bias, err)) ||
            (status = bind_vector(m, i, "ffn_down.bias", c->hidden, 0, BIND_OPTIONAL, &l->down_bias,
                                  err)))
            return status;
    }
    return SLUICE_OK;
}

static int emit_mixer(const struct model *m, struct plan *plan, const struct plan_options *options,
                      uint32_t layer, struct operand x, struct operand angles, struct operand pages,
                      struct err *err) {
    return emit_attention(m, plan, options, layer, false, x, angles, pages, err);
}

const struct arch arch_llama = {"llama", config, bind, emit_mixer};
const struct arch arch_qwen2 = {"qwen2", config, bind, emit_mixer};
const struct arch arch_qwen3 = {"qwen3", config, bind, emit_mixer};
