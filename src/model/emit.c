/* emit.c - the ops that all architectures share: attention and the feed-forward part. */
#include <math.h>

#include "base/size.h"
#include "model/model.h"
#include "plan/io.h"

static uint32_t rows_of(const struct operand *o) {
    return o->n_dims ? o->dims[1] : 0;
}

/* Norm, then q (with its gate), k and v into one row. */
static int emit_qkv(const struct model *m, struct plan *plan, uint32_t layer, struct operand x,
                    struct operand *qkv, struct err *err) {
    const struct layer *l = &m->layers[layer];
    uint32_t q = rows_of(&l->q), k = rows_of(&l->k), v = rows_of(&l->v);
    *qkv = plan_scratch(plan, size_plus(size_plus(q, k), v));
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
                .n_segments = 3,
                .segments = {{.weight = l->q, .bias = l->q_bias},
                             {.weight = l->k, .bias = l->k_bias, .column = q},
                             {.weight = l->v, .bias = l->v_bias, .column = q + k}},
                .out = *qkv,
            },
    };
    return plan_add(plan, &op, err);
}

int emit_attention(const struct model *m, struct plan *plan, const struct plan_options *options,
                   uint32_t layer, bool is_gated, struct operand x, struct operand angles,
                   struct operand pages, struct err *err) {
    const struct layer *l = &m->layers[layer];
    const struct config *c = &m->config;
    uint32_t width = c->head_width, stride = is_gated ? 2 * width : width;
    const uint32_t cache[4] = {width, IO_PAGE_POSITIONS, c->kv_heads, options->n_pages};
    struct operand qkv, keys = plan_state(plan, options->kv_type, cache);
    struct operand values = plan_state(plan, options->kv_type, cache);
    int status = emit_qkv(m, plan, layer, x, &qkv, err);
    if (status)
        return status;
    struct operand mixed = plan_scratch(plan, c->q_width);
    struct op attend = {
        .kind = OP_ATTEND,
        .layer = (int32_t)layer,
        .role = "mix",
        .attend =
            {
                .in = qkv,
                .q_stride = stride,
                .k_column = rows_of(&l->q),
                .v_column = rows_of(&l->q) + rows_of(&l->k),
                .heads = c->heads,
                .kv_heads = c->kv_heads,
                .head_width = width,
                .rotary = c->rope.dims,
                .pairing = c->rope.pairing,
                .q_norm = l->q_norm,
                .k_norm = l->k_norm,
                .eps = c->eps,
                .scale = 1 / sqrtf((float)width),
                .angles = angles,
                .keys = keys,
                .values = values,
                .pages = pages,
                .out = mixed,
            },
    };
    struct op out = {
        .kind = OP_PROJECT,
        .layer = (int32_t)layer,
        .role = "mix out",
        .project =
            {
                .in = mixed,
                .prologue = is_gated ? PROLOGUE_SIGMOID_GATE : PROLOGUE_NONE,
                .head_width = width,
                .gate_stride = stride,
                .n_segments = 1,
                .segments = {{.weight = l->o, .bias = l->o_bias}},
                .epilogue = EPILOGUE_ADD,
                .out = x,
            },
    };
    if (is_gated) /* each head's gate stands behind its query */
        out.project.gate = operand_columns(qkv, width, rows_of(&l->q) - width);
    status = plan_add(plan, &attend, err);
    return status ? status : plan_add(plan, &out, err);
}

static int emit_dense(const struct model *m, struct plan *plan, uint32_t layer, struct operand x,
                      struct err *err) {
    const struct layer *l = &m->layers[layer];
    struct operand hidden = plan_scratch(plan, rows_of(&l->gate));
    struct op in = {
        .kind = OP_PROJECT,
        .layer = (int32_t)layer,
        .role = "ffn in",
        .project =
            {
                .in = x,
                .prologue = PROLOGUE_NORM,
                .norm = l->ffn_norm,
                .eps = m->config.eps,
                .n_segments = 2,
                .segments = {{.weight = l->gate, .bias = l->gate_bias},
                             {.weight = l->up, .bias = l->up_bias}},
                .epilogue = EPILOGUE_SWIGLU,
                .out = hidden,
            },
    };
    struct op out = {
        .kind = OP_PROJECT,
        .layer = (int32_t)layer,
        .role = "ffn out",
        .project =
            {
                .in = hidden,
                .n_segments = 1,
                .segments = {{.weight = l->down, .bias = l->down_bias}},
                .epilogue = EPILOGUE_ADD,
                .out = x,
            },
    };
    int status = plan_add(plan, &in, err);
    return status ? status : plan_add(plan, &out, err);
}

static int emit_experts(const struct model *m, struct plan *plan, uint32_t layer, struct operand x,
                        struct err *err) {
    const struct layer *l = &m->layers[layer];
    const struct config *c = &m->config;
    const uint32_t list[4] = {c->experts_used + 1, plan->max_rows};
    struct operand choice = plan_scratch_of(plan, DT_I32, list);
    struct operand weight = plan_scratch_of(plan, DT_F32, list);
    struct operand hidden = plan_scratch(plan, c->experts_row);
    struct op route = {
        .kind = OP_ROUTE,
        .layer = (int32_t)layer,
        .role = "ffn route",
        .route = {.in = x,
                  .norm = l->ffn_norm,
                  .router = l->router,
                  .shared_gate = l->shared_switch,
                  .eps = c->eps,
                  .used = c->experts_used,
                  .choice = choice,
                  .weight = weight},
    };
    struct op in = {
        .kind = OP_EXPERTS_IN,
        .layer = (int32_t)layer,
        .role = "ffn in",
        .experts_in = {.in = x,
                       .norm = l->ffn_norm,
                       .gate = l->expert_gate,
                       .up = l->expert_up,
                       .shared_gate = l->shared_gate,
                       .shared_up = l->shared_up,
                       .eps = c->eps,
                       .choice = choice,
                       .hidden = hidden},
    };
    struct op out = {
        .kind = OP_EXPERTS_OUT,
        .layer = (int32_t)layer,
        .role = "ffn out",
        .experts_out = {.hidden = hidden,
                        .choice = choice,
                        .weight = weight,
                        .down = l->expert_down,
                        .shared_down = l->shared_down,
                        .x = x},
    };
    int status = plan_add(plan, &route, err);
    if (!status)
        status = plan_add(plan, &in, err);
    return status ? status : plan_add(plan, &out, err);
}

int emit_ffn(const struct model *m, struct plan *plan, uint32_t layer, struct operand x,
             struct err *err) {
    return m->config.experts ? emit_experts(m, plan, layer, x, err)
                             : emit_dense(m, plan, layer, x, err);
}
