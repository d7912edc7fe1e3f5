/* arch_qwen35.c - the Gated DeltaNet hybrids: Qwen3.5, dense and with experts, and Qwen3-Next.
 *
 * Three delta-net layers to one of gated full attention. GGUF stores Qwen3.5's value heads tiled
 * (value head v belongs to key head v % A), the hub grouped (v / (B / A)): a flag of the op; no row
 * is moved. Qwen3-Next's are grouped in both, and so are the inputs of the delta rule, which are
 * one matrix or two (row_parts.h): q, k, v and z in the hub and in files of 2025, beta and alpha in
 * all. */
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "model/arch.h"

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

/* Widths of the delta rule's inputs: q, k and v (the channels), z, and beta and alpha of each head.
 */
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
    c->head_map = m->hub || m->arch == &arch_qwen3next ? HEADS_GROUPED : HEADS_TILED;
    return config_delta_widths(m, err);
}

static int config(struct model *m, struct err *err) {
    struct config *c = &m->config;
    int status = config_count(c, m->keys, "nextn_predict_layers", 8, &c->n_mtp, err);
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
        status = m->arch == &arch_qwen35
                     ? config_u32(c, m->keys, "feed_forward_length", 1 << 22, true, &c->ffn, err)
                     : config_experts(m, err);
    return status;
}

/* ---- tensors ------------------------------------------------------------------------------ */

static int bind_qkv_and_z(struct model *m, int i, struct layer *l, struct err *err) {
    const struct config *c = &m->config;
    int status =
        bind_matrix(m, i, "attn_qkv.weight", c->hidden, c->delta_channels, 0, &l->qkv, err);
    return status
               ? status
               : bind_matrix(m, i, "attn_gate.weight", c->hidden, c->delta_values, 0, &l->z, err);
}

static int bind_delta_in(struct model *m, int i, struct layer *l, struct err *err) {
    uint32_t d = m->config.hidden, heads = m->config.value_heads;
    int status;
    if ((status = bind_qkv_and_z(m, i, l, err)) ||
        (status = bind_matrix(m, i, "ssm_beta.weight", d, heads, 0, &l->beta, err)) ||
        (status = bind_matrix(m, i, "ssm_alpha.weight", d, heads, 0, &l->alpha, err)))
        return status;
    return SLUICE_OK;
}

/* Of Qwen3-Next. */
static int bind_grouped_in(struct model *m, int i, struct layer *l, struct err *err) {
    const struct config *c = &m->config;
    const struct delta_heads h = {c->key_heads, c->value_heads, c->key_width, c->value_width};
    const struct row_parts qkv = row_parts_qkv(&h), z = row_parts_z(&h), beta = row_parts_beta(&h),
                           alpha = row_parts_alpha(&h);
    uint32_t d = c->hidden;
    int status;
    if ((status = bind_row_parts(m, i, "ssm_in.weight", d, &qkv, BIND_OPTIONAL, &l->qkv, err)) ||
        (status = bind_row_parts(m, i, "ssm_in.weight", d, &z, BIND_OPTIONAL, &l->z, err)) ||
        (!l->qkv.n_dims && (status = bind_qkv_and_z(m, i, l, err))) ||
        (status = bind_row_parts(m, i, "ssm_ba.weight", d, &beta, 0, &l->beta, err)) ||
        (status = bind_row_parts(m, i, "ssm_ba.weight", d, &alpha, 0, &l->alpha, err)))
        return status;
    return SLUICE_OK;
}

static int bind_delta(struct model *m, int i, struct layer *l, struct err *err) {
    const struct config *c = &m->config;
    uint32_t values = c->delta_values, channels = c->delta_channels;
    int status =
        m->arch == &arch_qwen3next ? bind_grouped_in(m, i, l, err) : bind_delta_in(m, i, l, err);
    if (status ||
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

static int bind_layer(struct model *m, int i, struct err *err) {
    const struct config *c = &m->config;
    struct layer *l = &m->layers[i];
    int status;
    if ((status = bind_vector(m, i, "attn_norm.weight", c->hidden, 0, 0, &l->norm, err)) ||
        (status =
             bind_vector(m, i, "post_attention_norm.weight", c->hidden, 0, 0, &l->ffn_norm, err)) ||
        (status = c->is_recurrent[i] ? bind_delta(m, i, l, err) : bind_attention(m, i, l, err)) ||
        (status = c->experts ? bind_experts(m, i, l, err) : bind_dense(m, i, l, err)))
        return status;
    return SLUICE_OK;
}

/* The draft block: always full attention, whatever the interval says. */
static int bind_draft(struct model *m, struct err *err) {
    const struct config *c = &m->config;
    struct draft_block *b = &m->draft;
    uint32_t d = c->hidden, vocab = c->n_vocab;
    int i = (int)c->n_layers, status;
    if ((status = bind_layer(m, i, err)) ||
        (status = bind_matrix(m, i, "nextn.eh_proj.weight", 2 * d, d, 0, &b->join, err)) ||
        (status = bind_vector(m, i, "nextn.enorm.weight", d, 0, 0, &b->embed_norm, err)) ||
        (status = bind_vector(m, i, "nextn.hnorm.weight", d, 0, 0, &b->state_norm, err)) ||
        (status = bind_vector(m, i, "nextn.shared_head_norm.weight", d, 0, BIND_OPTIONAL, &b->norm,
                              err)) ||
        (status = bind_matrix(m, i, "nextn.embed_tokens.weight", d, vocab, BIND_OPTIONAL, &b->embed,
                              err)) ||
        (status = bind_matrix(m, i, "nextn.shared_head_head.weight", d, vocab, BIND_OPTIONAL,
                              &b->head, err)))
        return status;
    b->norm = b->norm.n_dims ? b->norm : m->final_norm;
    b->embed = b->embed.n_dims ? b->embed : m->embed;
    b->head = b->head.n_dims ? b->head : m->head;
    return SLUICE_OK;
}

static int bind(struct model *m, struct err *err) {
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < m->config.n_layers; i++)
        status = bind_layer(m, (int)i, err);
    m->weights->is_draft = true; /* what is made from here on */
    if (status || m->config.n_mtp != 1)
        return status;
    /* The trunk does not need the block: without it, or with a damaged one, nothing is drafted. */
    if (bind_draft(m, &m->draft_fault))
        m->draft = (struct draft_block){0};
    return m->draft_fault.code == SLUICE_ERR_MEMORY
               ? err_set(err, SLUICE_ERR_MEMORY, "%s", m->draft_fault.text)
               : SLUICE_OK;
}

/* ---- ops ---------------------------------------------------------------------------------- */

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

static int emit_delta_in(const struct emit *e, uint32_t layer, struct operand out) {
    const struct layer *l = &e->m->layers[layer];
    struct delta_columns w = columns_of(&e->m->config);
    struct op op = project_from_residual(e, layer, "mix in", l->norm);
    op.project.n_segments = 4;
    op.project.segments[0] = (struct segment){.weight = l->qkv};
    op.project.segments[1] = (struct segment){.weight = l->z, .column = w.z};
    op.project.segments[2] = (struct segment){.weight = l->beta, .column = w.beta, .f32_act = true};
    op.project.segments[3] =
        (struct segment){.weight = l->alpha, .column = w.alpha, .f32_act = true};
    op.project.out = out;
    return plan_add(e->plan, &op, e->err);
}

static int emit_delta_out(const struct emit *e, uint32_t layer, struct operand mixed,
                          struct operand z) {
    const struct layer *l = &e->m->layers[layer];
    struct op op =
        project_to_residual(e, layer, "mix out", mixed, (struct segment){.weight = l->out});
    op.project.prologue = PROLOGUE_GATED_NORM;
    op.project.norm = l->head_norm;
    op.project.gate = z;
    op.project.head_width = op.project.gate_stride = e->m->config.value_width;
    op.project.eps = e->m->config.eps;
    return plan_add(e->plan, &op, e->err);
}

static int emit_delta(const struct emit *e, uint32_t layer) {
    const struct layer *l = &e->m->layers[layer];
    const struct config *c = &e->m->config;
    struct delta_columns w = columns_of(c);
    struct operand in = plan_scratch(e->plan, w.width), mixed = plan_scratch(e->plan, w.values);
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
                .state = plan_state(e->plan, DT_F32,
                                    (uint32_t[4]){c->key_width, c->value_width, c->value_heads,
                                                  e->options->n_cells}),
                .window = plan_state(e->plan, DT_F32,
                                     (uint32_t[4]){w.channels, c->conv_width, e->options->n_cells}),
                .out = mixed,
            },
    };
    int status = emit_delta_in(e, layer, in);
    if (!status)
        status = plan_add(e->plan, &delta, e->err);
    if (!status)
        status = emit_delta_out(e, layer, mixed, operand_columns(in, w.z, w.values));
    return status;
}

static int emit_layer(const struct emit *e, uint32_t layer) {
    const struct config *c = &e->m->config;
    int status = c->is_recurrent[layer] ? emit_delta(e, layer) : emit_attention(e, layer, true);
    if (!status)
        status = c->experts ? emit_experts(e, layer) : emit_dense(e, layer);
    return status;
}

/* ---- hub folders -------------------------------------------------------------------------- */

static int refuse_unsupported(const struct hub *h, struct err *err) {
    int status;
    if ((status = hub_refuse_flag(h, "attn_output_gate", true, err)) ||
        (status = hub_refuse_flag(h, "attention_bias", false, err)) ||
        (status = hub_refuse_text(h, "output_gate_type", "swish", err)))
        return status;
    if (strcmp(hub_rope_type(h), "llama3") == 0) /* its divisors are for whole heads */
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "%s/config.json: rope_type is llama3, expected default, linear or yarn",
                       h->folder->path);
    return SLUICE_OK;
}

static int hub_config(struct hub *h, struct err *err) {
    int status;
    h->conv_kernel = 4;
    if ((status = refuse_unsupported(h, err)) ||
        (status = hub_count(h, "linear_num_key_heads", 1 << 12, &h->key_heads, err)) ||
        (status = hub_count(h, "linear_num_value_heads", 1 << 12, &h->value_heads, err)) ||
        (status = hub_count(h, "linear_key_head_dim", 1 << 12, &h->key_dim, err)) ||
        (status = hub_count(h, "linear_value_head_dim", 1 << 12, &h->value_dim, err)) ||
        (status = hub_count(h, "linear_conv_kernel_dim", 8, &h->conv_kernel, err)))
        return status;
    if (h->value_heads % h->key_heads != 0)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s/config.json: linear_num_value_heads is %u, expected a multiple of "
                       "linear_num_key_heads, %u",
                       h->folder->path, h->value_heads, h->key_heads);
    if (h->arch == &arch_qwen35moe) /* always normalized, whatever config.json says */
        status = hub_refuse_flag(h, "norm_topk_prob", true, err);
    return status || h->arch == &arch_qwen35 ? status : hub_experts(h, err);
}

/* Partial rotary embedding: how many values of a head rotate. */
static void put_rotary(struct hub_keys *k) {
    const struct hub *h = k->hub;
    const json_t *rope = hub_rope(h);
    double part = 0.25;
    if (!k->status)
        k->status = hub_number(h, h->folder->config, "partial_rotary_factor", 0.25, &part, k->err);
    if (!k->status)
        k->status = hub_number(h, rope, "partial_rotary_factor", part, &part, k->err);
    if (!k->status && part > 1)
        k->status = err_set(k->err, SLUICE_ERR_FORMAT,
                            "%s/config.json: partial_rotary_factor is %g, expected at most 1",
                            h->folder->path, part);
    hub_put_u32(k, "rope.dimension_count", k->status ? 0 : (uint32_t)(h->head_dim * part));
    if (h->arch == &arch_qwen3next)
        return;
    int32_t sections[4] = {11, 11, 10, 0};
    const json_t *given = json_object_get(rope, "mrope_section");
    for (size_t i = 0; json_is_array(given) && i < 3; i++)
        sections[i] = (int32_t)json_integer_value(json_array_get(given, i));
    hub_put_i32s(k, "rope.dimension_sections", sections, 4);
}

/* Which layers are recurrent: an interval where there is one, a list of bools where not. */
static void put_layer_types(struct hub_keys *k) {
    const json_t *kinds = json_object_get(k->hub->folder->config, "layer_types");
    static const char name[] = "full_attention_interval";
    uint32_t interval = 0;
    const json_t *given = json_object_get(k->hub->folder->config, name), *kind;
    if (given && !json_is_null(given) && !k->status)
        k->status = hub_count(k->hub, name, 1 << 20, &interval, k->err);
    size_t i;
    if (!interval && json_is_array(kinds))
        json_array_foreach(kinds, i, kind) {
            const char *text = json_string_value(kind);
            if (!interval && text && strcmp(text, "full_attention") == 0)
                interval = (uint32_t)i + 1;
        }
    if (!interval)
        interval = json_is_array(kinds) ? k->hub->n_layers + 1 : 4;
    hub_put_u32(k, "full_attention_interval", interval);
    bool is_regular = true;
    uint8_t recurrent[MAX_LAYERS] = {0};
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
    if (!is_regular)
        hub_put_bools(k, "attention.recurrent_layers", recurrent, k->hub->n_layers);
}

static void hub_keys(struct hub_keys *k) {
    const struct hub *h = k->hub;
    if (h->arch == &arch_qwen35 || json_object_get(h->folder->config, "intermediate_size"))
        hub_copy_count(k, "intermediate_size", "feed_forward_length");
    put_rotary(k);
    put_layer_types(k);
    hub_put_u32(k, "ssm.conv_kernel", h->conv_kernel);
    hub_put_u32(k, "ssm.state_size", h->key_dim);
    hub_put_u32(k, "ssm.group_count", h->key_heads);
    hub_put_u32(k, "ssm.time_step_rank", h->value_heads);
    hub_put_u32(k, "ssm.inner_size", h->value_heads * h->value_dim);
    if (h->n_mtp)
        hub_put_u32(k, "nextn_predict_layers", h->n_mtp);
    if (h->arch == &arch_qwen35)
        return;
    hub_put_experts(k);
    if (h->arch == &arch_qwen3next)
        hub_put_norm(k, true);
    hub_copy_count(k, "shared_expert_intermediate_size", "expert_shared_feed_forward_length");
}

/* clang-format off */
static const struct hub_name global_names[] = {
    {.theirs = "embed_tokens.weight", .ours = "token_embd.weight"},
    {.theirs = "norm.weight",         .ours = "output_norm.weight", .change = CHANGE_PLUS_ONE},
    {.theirs = "lm_head.weight",      .ours = "output.weight"},
    {0},
};

static const struct hub_name attention_names[] = {
    {.theirs = "input_layernorm.weight",          .ours = "attn_norm.weight",           .change = CHANGE_PLUS_ONE},
    {.theirs = "post_attention_layernorm.weight", .ours = "post_attention_norm.weight", .change = CHANGE_PLUS_ONE},
    {.theirs = "self_attn.q_proj.weight",         .ours = "attn_q.weight"},
    {.theirs = "self_attn.k_proj.weight",         .ours = "attn_k.weight"},
    {.theirs = "self_attn.v_proj.weight",         .ours = "attn_v.weight"},
    {.theirs = "self_attn.o_proj.weight",         .ours = "attn_output.weight"},
    {.theirs = "self_attn.q_norm.weight",         .ours = "attn_q_norm.weight", .change = CHANGE_PLUS_ONE},
    {.theirs = "self_attn.k_norm.weight",         .ours = "attn_k_norm.weight", .change = CHANGE_PLUS_ONE},
    {0},
};

static const struct hub_name tiled_delta_names[] = {
    {.theirs = "linear_attn.in_proj_qkv.weight",  .ours = "attn_qkv.weight",    .order = ORDER_TILE_TAIL},
    {.theirs = "linear_attn.in_proj_z.weight",    .ours = "attn_gate.weight",   .order = ORDER_TILE},
    {.theirs = "linear_attn.in_proj_b.weight",    .ours = "ssm_beta.weight",    .order = ORDER_TILE_HEADS},
    {.theirs = "linear_attn.in_proj_a.weight",    .ours = "ssm_alpha.weight",   .order = ORDER_TILE_HEADS},
    {.theirs = "linear_attn.conv1d.weight",       .ours = "ssm_conv1d.weight",  .order = ORDER_TILE_TAIL, .is_squeezed = true},
    {.theirs = "linear_attn.A_log",               .ours = "ssm_a",              .order = ORDER_TILE_HEADS, .change = CHANGE_NEG_EXP},
    {.theirs = "linear_attn.dt_bias",             .ours = "ssm_dt.bias",        .order = ORDER_TILE_HEADS},
    {.theirs = "linear_attn.norm.weight",         .ours = "ssm_norm.weight"},
    {.theirs = "linear_attn.out_proj.weight",     .ours = "ssm_out.weight",     .order = ORDER_TILE_COLUMNS},
    {0},
};

static const struct hub_name grouped_delta_names[] = {
    {.theirs = "linear_attn.in_proj_qkvz.weight", .ours = "attn_qkv.weight",   .part = PART_QKV},
    {.theirs = "linear_attn.in_proj_qkvz.weight", .ours = "attn_gate.weight",  .part = PART_Z},
    {.theirs = "linear_attn.in_proj_ba.weight",   .ours = "ssm_ba.weight"},
    {.theirs = "linear_attn.conv1d.weight",       .ours = "ssm_conv1d.weight", .is_squeezed = true},
    {.theirs = "linear_attn.A_log",               .ours = "ssm_a",             .change = CHANGE_NEG_EXP},
    {.theirs = "linear_attn.dt_bias",             .ours = "ssm_dt.bias"},
    {.theirs = "linear_attn.norm.weight",         .ours = "ssm_norm.weight"},
    {.theirs = "linear_attn.out_proj.weight",     .ours = "ssm_out.weight"},
    {0},
};

static const struct hub_name dense_names[] = {
    {.theirs = "mlp.gate_proj.weight", .ours = "ffn_gate.weight"},
    {.theirs = "mlp.up_proj.weight",   .ours = "ffn_up.weight"},
    {.theirs = "mlp.down_proj.weight", .ours = "ffn_down.weight"},
    {0},
};

static const struct hub_name draft_names[] = {
    {.theirs = "mtp.fc.weight",                    .ours = "nextn.eh_proj.weight"},
    {.theirs = "mtp.norm.weight",                  .ours = "nextn.shared_head_norm.weight", .change = CHANGE_PLUS_ONE},
    {.theirs = "mtp.pre_fc_norm_embedding.weight", .ours = "nextn.enorm.weight",            .change = CHANGE_PLUS_ONE},
    {.theirs = "mtp.pre_fc_norm_hidden.weight",    .ours = "nextn.hnorm.weight",            .change = CHANGE_PLUS_ONE},
    {0},
};
/* clang-format on */

const struct arch arch_qwen35 = {
    .name = "qwen35",
    .config = config,
    .bind = bind,
    .emit_layer = emit_layer,
    .model_types = {"qwen3_5", "qwen3_5_text"},
    .global_names = global_names,
    .layer_names = {attention_names, tiled_delta_names, dense_names},
    .draft_names = draft_names,
    .hub_config = hub_config,
    .hub_keys = hub_keys,
};

const struct arch arch_qwen35moe = {
    .name = "qwen35moe",
    .config = config,
    .bind = bind,
    .emit_layer = emit_layer,
    .model_types = {"qwen3_5_moe", "qwen3_5_moe_text"},
    .global_names = global_names,
    .layer_names = {attention_names, tiled_delta_names, hub_expert_names, hub_shared_expert_names},
    .draft_names = draft_names,
    .hub_config = hub_config,
    .hub_keys = hub_keys,
};

const struct arch arch_qwen3next = {
    .name = "qwen3next",
    .config = config,
    .bind = bind,
    .emit_layer = emit_layer,
    .model_types = {"qwen3_next"},
    .global_names = global_names,
    .layer_names = {attention_names, grouped_delta_names, hub_expert_names,
                    hub_shared_expert_names},
    .draft_names = draft_names,
    .hub_config = hub_config,
    .hub_keys = hub_keys,
};
