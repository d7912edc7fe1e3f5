/* arch_qwen35.c - the Gated DeltaNet hybrids: Qwen3.5, dense and with experts.
 *
 * Three delta-net layers to one of gated full attention. GGUF stores value heads tiled (value head
 * v belongs to key head v % A), the hub grouped (v / (B / A)): a flag of the op, no row moves. */
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "model/model.h"

static int config_layers(struct model *m, struct err *err) {
    struct config *c = &m->config;
    char name[64];
    uint32_t interval = 4;
    int status = config_u32(c, m->keys, "full_attention_interval", 1 << 20, false, &interval, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->is_recurrent[i] = (i + 1) % interval != 0;
    snprintf(name, sizeof name, "%s.attention.recurrent_layers", c->arch);
    const struct gguf_key *list = gguf_key(m->keys, name);
    if (!list)
        return SLUICE_OK;
    if (!list->is_array || list->type != GGUF_BOOL || list->count < c->n_layers)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: key %s has %llu values, expected %u bools",
                       m->path, name, (unsigned long long)list->count, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->is_recurrent[i] = list->data[i] != 0;
    return SLUICE_OK;
}

/* What goes into the delta rule: q, k and v (the channels), z, and beta and alpha of each head. */
static int config_delta_widths(struct model *m, struct err *err) {
    struct config *c = &m->config;
    uint64_t values = size_times(c->value_heads, c->value_width);
    uint64_t keys = size_times(size_times(2, c->key_heads), c->key_width);
    uint64_t channels = size_plus(keys, values);
    uint64_t row = size_plus(size_plus(channels, values), size_times(2, c->value_heads));
    int status;
    if ((status = config_width(c, m->keys, "value heads", values, &c->delta_values, err)) ||
        (status =
             config_width(c, m->keys, "key and value heads", channels, &c->delta_channels, err)) ||
        (status = config_width(c, m->keys, "delta-net inputs", row, &c->delta_row, err)))
        return status;
    return SLUICE_OK;
}

static int config_delta(struct model *m, struct err *err) {
    struct config *c = &m->config;
    uint32_t inner = 0;
    int status;
    if ((status = config_u32(c, m->keys, "ssm.group_count", 1 << 12, true, &c->key_heads, err)) ||
        (status =
             config_u32(c, m->keys, "ssm.time_step_rank", 1 << 12, true, &c->value_heads, err)) ||
        (status = config_u32(c, m->keys, "ssm.state_size", 1 << 10, true, &c->key_width, err)) ||
        (status = config_u32(c, m->keys, "ssm.inner_size", 1 << 20, true, &inner, err)) ||
        (status = config_u32(c, m->keys, "ssm.conv_kernel", 8, true, &c->conv_width, err)))
        return status;
    if (c->value_heads % c->key_heads != 0 || inner % c->value_heads != 0 || c->conv_width < 2)
        return err_set(
            err, SLUICE_ERR_FORMAT,
            "%s: %s has %u key heads, %u value heads, inner size %u and kernel %u, which "
            "do not fit",
            m->path, c->arch, c->key_heads, c->value_heads, inner, c->conv_width);
    c->value_width = inner / c->value_heads;
    c->head_map = m->hub ? HEADS_GROUPED : HEADS_TILED;
    return config_delta_widths(m, err);
}

static int config_experts(struct model *m, struct err *err) {
    struct config *c = &m->config;
    int status;
    if ((status = config_u32(c, m->keys, "expert_count", 4096, true, &c->experts, err)) ||
        (status = config_u32(c, m->keys, "expert_used_count", c->experts, true, &c->experts_used,
                             err)) ||
        (status = config_u32(c, m->keys, "expert_feed_forward_length", 1 << 22, true,
                             &c->expert_ffn, err)) ||
        (status = config_u32(c, m->keys, "expert_shared_feed_forward_length", 1 << 22, false,
                             &c->shared_ffn, err)))
        return status;
    uint64_t row = size_plus(size_times(c->experts_used, c->expert_ffn), c->shared_ffn);
    return config_width(c, m->keys, "experts in use", row, &c->experts_row, err);
}

static int config(struct model *m, struct err *err) {
    struct config *c = &m->config;
    int status = config_u32(c, m->keys, "nextn_predict_layers", 8, false, &c->n_mtp, err);
    if (status)
        return status;
    if (c->n_mtp >= c->n_layers)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: %u of %u blocks are draft blocks, expected fewer", m->path, c->n_mtp,
                       c->n_layers);
    c->n_layers -= c->n_mtp;
    c->rope.pairing = ROPE_HALVES;
    status = config_layers(m, err);
    if (!status)
        status = config_delta(m, err);
    if (!status)
        status = strcmp(c->arch, "qwen35moe") == 0
                     ? config_experts(m, err)
                     : config_u32(c, m->keys, "feed_forward_length", 1 << 22, true, &c->ffn, err);
    return status;
}

/* ---- tensors ----------------------------------------------------------------------------------
 */

static int bind_delta(struct model *m, int i, struct layer *l, struct err *err) {
    const struct config *c = &m->config;
    uint32_t values = c->delta_values, channels = c->delta_channels;
    int status;
    if ((status = bind_matrix(m, i, "attn_qkv.weight", c->hidden, channels, 0, &l->qkv, err)) ||
        (status = bind_matrix(m, i, "attn_gate.weight", c->hidden, values, 0, &l->z, err)) ||
        (status =
             bind_matrix(m, i, "ssm_beta.weight", c->hidden, c->value_heads, 0, &l->beta, err)) ||
        (status =
             bind_matrix(m, i, "ssm_alpha.weight", c->hidden, c->value_heads, 0, &l->alpha, err)) ||
        (status =
             bind_vector(m, i, "ssm_conv1d.weight", channels, c->conv_width, 0, &l->conv, err)) ||
        (status = bind_vector(m, i, "ssm_a", c->value_heads, 0, 0, &l->a, err)) ||
        (status = bind_vector(m, i, "ssm_dt.bias", c->value_heads, 0, 0, &l->dt, err)) ||
        (status = bind_vector(m, i, "ssm_norm.weight", c->value_width, 0, 0, &l->head_norm, err)) ||
        (status = bind_matrix(m, i, "ssm_out.weight", values, c->hidden, 0, &l->out, err)))
        return status;
    return SLUICE_OK;
}

static int bind_attention(struct model *m, int i, struct layer *l, struct err *err) {
    const struct config *c = &m->config;
    uint32_t q = c->q_width, kv = c->kv_width;
    int status;
    if ((status = bind_matrix(m, i, "attn_q.weight", c->hidden, 2 * q, 0, &l->q, err)) ||
        (status = bind_matrix(m, i, "attn_k.weight", c->hidden, kv, 0, &l->k, err)) ||
        (status = bind_matrix(m, i, "attn_v.weight", c->hidden, kv, 0, &l->v, err)) ||
        (status = bind_matrix(m, i, "attn_output.weight", q, c->hidden, 0, &l->o, err)) ||
        (status = bind_vector(m, i, "attn_q_norm.weight", c->head_width, 0, 0, &l->q_norm, err)) ||
        (status = bind_vector(m, i, "attn_k_norm.weight", c->head_width, 0, 0, &l->k_norm, err)))
        return status;
    return SLUICE_OK;
}

static int bind_dense(struct model *m, int i, struct layer *l, struct err *err) {
    const struct config *c = &m->config;
    int status;
    if ((status = bind_matrix(m, i, "ffn_gate.weight", c->hidden, c->ffn, 0, &l->gate, err)) ||
        (status = bind_matrix(m, i, "ffn_up.weight", c->hidden, c->ffn, 0, &l->up, err)) ||
        (status = bind_matrix(m, i, "ffn_down.weight", c->ffn, c->hidden, 0, &l->down, err)))
        return status;
    return SLUICE_OK;
}

static int bind_experts(struct model *m, int i, struct layer *l, struct err *err) {
    const struct config *c = &m->config;
    uint32_t d = c->hidden, f = c->expert_ffn, e = c->experts, s = c->shared_ffn;
    int status;
    if ((status = bind_vector(m, i, "ffn_gate_inp.weight", e, d, 0, &l->router, err)) ||
        (status = bind_matrices(m, i, "ffn_gate_exps.weight", d, f, e, 0, &l->expert_gate, err)) ||
        (status = bind_matrices(m, i, "ffn_up_exps.weight", d, f, e, 0, &l->expert_up, err)) ||
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

static int bind(struct model *m, struct err *err) {
    const struct config *c = &m->config;
    for (uint32_t n = 0; n < c->n_layers; n++) {
        struct layer *l = &m->layers[n];
        int status, i = (int)n;
        if ((status = bind_vector(m, i, "attn_norm.weight", c->hidden, 0, 0, &l->norm, err)) ||
            (status = bind_vector(m, i, "post_attention_norm.weight", c->hidden, 0, 0, &l->ffn_norm,
                                  err)) ||
            (status =
                 c->is_recurrent[n] ? bind_delta(m, i, l, err) : bind_attention(m, i, l, err)) ||
            (status = c->experts ? bind_experts(m, i, l, err) : bind_dense(m, i, l, err)))
            return status;
    }
    return SLUICE_OK;
}

/* ---- ops --------------------------------------------------------------------------------------
 */

/* What goes into the delta rule: qkv, z, beta, alpha, side by side in a row. */
struct delta_columns {
    uint32_t channels, values, z, beta, alpha, width;
};

static struct delta_columns columns_of(const struct config *c) {
    struct delta_columns w = {
        .values = c->delta_values, .channels = c->delta_channels, .width = c->delta_row};
    w.z = w.channels;
    w.beta = w.z + w.values;
    w.alpha = w.beta + c->value_heads;
    return w;
}

static int emit_delta_in(const struct model *m, struct plan *plan, uint32_t layer, struct operand x,
                         struct operand out, struct err *err) {
    const struct layer *l = &m->layers[layer];
    struct delta_columns w = columns_of(&m->config);
    struct op op = {
        .kind = OP_PROJECT,
        .layer = (int32_t)layer,
        .role = "mix in",
        .project =
            {
                .in = x,
                .prologue = PROLOGUE_NORM,
                .norm = l->norm,
                .eps = m->config.eps,
                .n_segments = 4,
                .segments = {{.weight = l->qkv},
                             {.weight = l->z, .column = w.z},
                             {.weight = l->beta, .column = w.beta, .f32_act = true},
                             {.weight = l->alpha, .column = w.alpha, .f32_act = true}},
                .out = out,
            },
    };
    return plan_add(plan, &op, err);
}

static int emit_delta_out(const struct model *m, struct plan *plan, uint32_t layer,
                          struct operand mixed, struct operand z, struct operand x,
                          struct err *err) {
    const struct layer *l = &m->layers[layer];
    struct op op = {
        .kind = OP_PROJECT,
        .layer = (int32_t)layer,
        .role = "mix out",
        .project =
            {
                .in = mixed,
                .prologue = PROLOGUE_GATED_NORM,
                .norm = l->head_norm,
                .gate = z,
                .head_width = m->config.value_width,
                .gate_stride = m->config.value_width,
                .eps = m->config.eps,
                .n_segments = 1,
                .segments = {{.weight = l->out}},
                .epilogue = EPILOGUE_ADD,
                .out = x,
            },
    };
    return plan_add(plan, &op, err);
}

static int emit_delta(const struct model *m, struct plan *plan, const struct plan_options *options,
                      uint32_t layer, struct operand x, struct err *err) {
    const struct layer *l = &m->layers[layer];
    const struct config *c = &m->config;
    struct delta_columns w = columns_of(c);
    struct operand in = plan_scratch(plan, w.width), mixed = plan_scratch(plan, w.values);
    struct op delta = {
        .kind = OP_DELTA,
        .layer = (int32_t)layer,
        .role = "mix",
        .delta =
            {
                .in = in,
                .beta_column = w.beta,
                .alpha_column = w.alpha,
                .key_heads = c->key_heads,
                .value_heads = c->value_heads,
                .key_width = c->key_width,
                .value_width = c->value_width,
                .conv_width = c->conv_width,
                .head_map = c->head_map,
                .conv = l->conv,
                .a = l->a,
                .dt = l->dt,
                .state = plan_state(
                    plan, DT_F32,
                    (uint32_t[4]){c->key_width, c->value_width, c->value_heads, options->n_slots}),
                .window = plan_state(plan, DT_F32,
                                     (uint32_t[4]){w.channels, c->conv_width, options->n_slots}),
                .out = mixed,
            },
    };
    int status = emit_delta_in(m, plan, layer, x, in, err);
    if (!status)
        status = plan_add(plan, &delta, err);
    if (!status)
        status = emit_delta_out(m, plan, layer, mixed, operand_columns(in, w.z, w.values), x, err);
    return status;
}

static int emit_mixer(const struct model *m, struct plan *plan, const struct plan_options *options,
                      uint32_t layer, struct operand x, struct operand angles, struct operand pages,
                      struct err *err) {
    return m->config.is_recurrent[layer]
               ? emit_delta(m, plan, options, layer, x, err)
               : emit_attention(m, plan, options, layer, true, x, angles, pages, err);
}

const struct arch arch_qwen35 = {"qwen35", config, bind, emit_mixer};
const struct arch arch_qwen35moe = {"qwen35moe", config, bind, emit_mixer};
