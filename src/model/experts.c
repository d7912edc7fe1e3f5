/* experts.c - what models with experts share: keys, tensors, names in a hub folder. */
#include <stdio.h>

#include "base/size.h"
#include "model/arch.h"

/* ROUTE takes the best of all by softmax. */
static int read_routing(struct config *c, const struct gguf *keys, struct err *err) {
    enum { SOFTMAX = 1 };
    char scale[64], gating[64], norm[64], groups[64];
    snprintf(scale, sizeof scale, "%s.expert_weights_scale", c->arch);
    snprintf(gating, sizeof gating, "%s.expert_gating_func", c->arch);
    snprintf(norm, sizeof norm, "%s.expert_weights_norm", c->arch);
    snprintf(groups, sizeof groups, "%s.expert_group_count", c->arch);
    float factor = 1;
    uint32_t function = SOFTMAX, n_groups = 1;
    bool is_normed = true;
    int got;
    if ((got = gguf_get_f32(keys, scale, &factor, err)) < 0 ||
        (got = gguf_get_u32(keys, gating, &function, err)) < 0 ||
        (got = gguf_get_u32(keys, groups, &n_groups, err)) < 0 ||
        (got = gguf_get_bool(keys, norm, &is_normed, err)) < 0)
        return got;
    if (factor != 0 && factor != 1)
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s: key %s is %g, expected 1", keys->path,
                       scale, (double)factor);
    if (function != 0 && function != SOFTMAX)
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s: key %s is %u, expected %d: softmax",
                       keys->path, gating, function, SOFTMAX);
    if (n_groups > 1)
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "%s: key %s is %u, expected 1", keys->path,
                       groups, n_groups);
    c->experts_unnormed = !is_normed;
    return SLUICE_OK;
}

int config_experts(struct model *m, struct err *err) {
    struct config *c = &m->config;
    int status = read_routing(c, m->keys, err);
    if (status)
        return status;
    if ((status = config_u32(c, m->keys, "expert_count", MAX_EXPERTS, true, &c->experts, err)) ||
        (status = config_u32(c, m->keys, "expert_used_count", c->experts, true, &c->experts_used,
                             err)) ||
        (status = config_u32(c, m->keys, "expert_feed_forward_length", 1 << 22, true,
                             &c->expert_ffn, err)) ||
        (status = config_count(c, m->keys, "expert_shared_feed_forward_length", 1 << 22,
                               &c->shared_ffn, err)))
        return status;
    uint64_t row = size_plus(size_times(c->experts_used, c->expert_ffn), c->shared_ffn);
    return config_width(c, m->keys, "experts in use", row, &c->experts_row, err);
}

/* Gate and up are two tensors, or of each expert one matrix: gate's rows, then up's. */
static int bind_gate_and_up(struct model *m, int i, struct layer *l, struct err *err) {
    uint32_t d = m->config.hidden, f = m->config.expert_ffn, e = m->config.experts;
    struct operand both = {0};
    int status =
        bind_matrices(m, i, "ffn_gate_up_exps.weight", d, 2 * f, e, BIND_OPTIONAL, &both, err);
    if (status)
        return status;
    if (both.n_dims) {
        l->expert_gate = operand_at(REGION_WEIGHTS, both.type, both.offset, (uint32_t[4]){d, f, e});
        l->expert_gate.plane = 2 * f;
        l->expert_up = l->expert_gate;
        l->expert_up.offset += f * operand_row_bytes(&both);
        return SLUICE_OK;
    }
    status = bind_matrices(m, i, "ffn_gate_exps.weight", d, f, e, 0, &l->expert_gate, err);
    return status ? status
                  : bind_matrices(m, i, "ffn_up_exps.weight", d, f, e, 0, &l->expert_up, err);
}

int bind_experts(struct model *m, int i, struct layer *l, struct err *err) {
    const struct config *c = &m->config;
    uint32_t d = c->hidden, f = c->expert_ffn, e = c->experts, s = c->shared_ffn;
    int status;
    if ((status = bind_vector(m, i, "ffn_gate_inp.weight", e, d, 0, &l->router, err)) ||
        (status = bind_gate_and_up(m, i, l, err)) ||
        (status = bind_matrices(m, i, "ffn_down_exps.weight", f, d, e, 0, &l->expert_down, err)))
        return status;
    if (s == 0)
        return SLUICE_OK;
    if ((status =
             bind_vector(m, i, "ffn_gate_inp_shexp.weight", d, 0, 0, &l->shared_switch, err)) ||
        (status = bind_matrix(m, i, "ffn_gate_shexp.weight", d, s, 0, &l->shared_gate, err)) ||
        (status = bind_matrix(m, i, "ffn_up_shexp.weight", d, s, 0, &l->shared_up, err)) ||
        (status = bind_matrix(m, i, "ffn_down_shexp.weight", s, d, 0, &l->shared_down, err)))
        return status;
    return SLUICE_OK;
}

/* ---- hub folders -------------------------------------------------------------------------- */

/* Layers without experts among others: none of the models that are released have any. */
static int refuse_dense_layers(const struct hub *h, struct err *err) {
    const json_t *step = json_object_get(h->folder->config, "decoder_sparse_step");
    const json_t *list = json_object_get(h->folder->config, "mlp_only_layers");
    if (json_is_integer(step) && json_integer_value(step) != 1)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "%s/config.json: decoder_sparse_step is %lld, expected 1: experts in every "
                       "layer",
                       h->folder->path, (long long)json_integer_value(step));
    if (json_array_size(list) > 0)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "%s/config.json: mlp_only_layers has %zu layers, expected none: experts in "
                       "every layer",
                       h->folder->path, json_array_size(list));
    return SLUICE_OK;
}

int hub_experts(struct hub *h, struct err *err) {
    /* transformers 5 writes the second name for some families, and reads both. */
    static const char *const names[] = {"num_experts", "num_local_experts"};
    bool is_local = !json_object_get(h->folder->config, names[0]) &&
                    json_object_get(h->folder->config, names[1]);
    int status = refuse_dense_layers(h, err);
    return status ? status : hub_count(h, names[is_local], MAX_EXPERTS, &h->n_experts, err);
}

void hub_put_experts(struct hub_keys *k) {
    hub_put_u32(k, "expert_count", k->hub->n_experts);
    hub_copy_count(k, "num_experts_per_tok", "expert_used_count");
    hub_copy_count(k, "moe_intermediate_size", "expert_feed_forward_length");
}

void hub_put_norm(struct hub_keys *k, bool fallback) {
    static const char name[] = "norm_topk_prob";
    bool is_normed = fallback;
    if (json_is_null(json_object_get(k->hub->folder->config, name)))
        fallback = false; /* to transformers */
    if (!k->status)
        k->status = hub_flag(k->hub, name, fallback, &is_normed, k->err);
    if (!is_normed)
        hub_put_bool(k, "expert_weights_norm", false);
}

/* clang-format off */
const struct hub_name hub_expert_names[] = {
    {.theirs = "mlp.gate.weight",                .ours = "ffn_gate_inp.weight"},
    {.theirs = "mlp.experts.down_proj",          .ours = "ffn_down_exps.weight"},
    {.theirs = "mlp.experts.gate_up_proj",       .ours = "ffn_gate_exps.weight", .part = PART_FIRST_HALF},
    {.theirs = "mlp.experts.gate_up_proj",       .ours = "ffn_up_exps.weight",   .part = PART_SECOND_HALF},
    {.theirs = "mlp.experts.*.gate_proj.weight", .ours = "ffn_gate_exps.weight"},
    {.theirs = "mlp.experts.*.up_proj.weight",   .ours = "ffn_up_exps.weight"},
    {.theirs = "mlp.experts.*.down_proj.weight", .ours = "ffn_down_exps.weight"},
    {0},
};

const struct hub_name hub_shared_expert_names[] = {
    {.theirs = "mlp.shared_expert_gate.weight",      .ours = "ffn_gate_inp_shexp.weight", .is_squeezed = true},
    {.theirs = "mlp.shared_expert.gate_proj.weight", .ours = "ffn_gate_shexp.weight"},
    {.theirs = "mlp.shared_expert.up_proj.weight",   .ours = "ffn_up_shexp.weight"},
    {.theirs = "mlp.shared_expert.down_proj.weight", .ours = "ffn_down_shexp.weight"},
    {0},
};
/* clang-format on */
