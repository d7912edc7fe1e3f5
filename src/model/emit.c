/* emit.c - the ops that architectures share: attention and the feed-forward part. */
#include <math.h>

#include "base/size.h"
#include "model/arch.h"
#include "plan/io.h"

static uint32_t rows_of(const struct operand *o) {
    return o->n_dims ? o->dims[1] : 0;
}

struct op project_from_residual(const struct emit *e, uint32_t layer, const char *role,
                                struct operand norm) {
    return (struct op){
        .kind = OP_PROJECT,
        .layer = (int32_t)layer,
        .role = role,
        .project = {.in = e->x, .prologue = PROLOGUE_NORM, .norm = norm, .eps = e->m->config.eps},
    };
}

struct op project_to_residual(const struct emit *e, uint32_t layer, const char *role,
                              struct operand in, struct segment segment) {
    return (struct op){
        .kind = OP_PROJECT,
        .layer = (int32_t)layer,
        .role = role,
        .project = {.in = in,
                    .n_segments = 1,
                    .segments = {segment},
                    .epilogue = EPILOGUE_ADD,
                    .out = e->x},
    };
}

/* Norm, then q (with its gate), k and v into one row. */
static int emit_qkv(const struct emit *e, uint32_t layer, struct operand *qkv) {
    const struct layer *l = &e->m->layers[layer];
    uint32_t q = rows_of(&l->q), k = rows_of(&l->k), v = rows_of(&l->v);
    *qkv = plan_scratch(e->plan, size_plus(size_plus(q, k), v));
    struct op op = project_from_residual(e, layer, "mix in", l->norm);
    op.project.n_segments = 3;
    op.project.segments[0] = (struct segment){.weight = l->q, .bias = l->q_bias};
    op.project.segments[1] = (struct segment){.weight = l->k, .bias = l->k_bias, .column = q};
    op.project.segments[2] = (struct segment){.weight = l->v, .bias = l->v_bias, .column = q + k};
    op.project.out = *qkv;
    return plan_add(e->plan, &op, e->err);
}

void emit_cache(const struct emit *e, struct operand cache[2]) {
    const struct config *c = &e->m->config;
    const uint32_t dims[4] = {c->head_width, IO_PAGE_POSITIONS, c->kv_heads, e->options->n_pages};
    for (int i = 0; i < 2; i++)
        cache[i] = e->cache ? e->cache[i] : plan_state(e->plan, e->options->kv_type, dims);
}

/* What all ATTENDs have. Keys begin at k_column of `in`, values come after them. */
static struct op attend_of(const struct emit *e, uint32_t layer, struct operand in,
                           uint32_t k_column) {
    const struct layer *l = &e->m->layers[layer];
    const struct config *c = &e->m->config;
    struct operand cache[2];
    emit_cache(e, cache);
    struct op op = {
        .kind = OP_ATTEND,
        .layer = (int32_t)layer,
        .role = "mix",
        .attend = {.in = in,
                   .q_stride = c->head_width,
                   .k_column = k_column,
                   .v_column = k_column + rows_of(&l->k),
                   .kv_heads = c->kv_heads,
                   .head_width = c->head_width,
                   .rotary = c->rope.dims,
                   .pairing = c->rope.pairing,
                   .k_norm = l->k_norm,
                   .eps = c->eps,
                   .scale = 1 / sqrtf((float)c->head_width),
                   .angles = e->angles,
                   .keys = cache[0],
                   .values = cache[1],
                   .pages = e->plan->pages},
    };
    return op;
}

int emit_keys_and_values(const struct emit *e, uint32_t layer) {
    const struct layer *l = &e->m->layers[layer];
    uint32_t k = rows_of(&l->k), v = rows_of(&l->v);
    struct op op = project_from_residual(e, layer, "mix in", l->norm);
    op.project.n_segments = 2;
    op.project.segments[0] = (struct segment){.weight = l->k, .bias = l->k_bias};
    op.project.segments[1] = (struct segment){.weight = l->v, .bias = l->v_bias, .column = k};
    op.project.out = plan_scratch(e->plan, size_plus(k, v));
    struct op attend = attend_of(e, layer, op.project.out, 0);
    int status = plan_add(e->plan, &op, e->err);
    return status ? status : plan_add(e->plan, &attend, e->err);
}

int emit_attention(const struct emit *e, uint32_t layer, bool is_gated) {
    const struct layer *l = &e->m->layers[layer];
    const struct config *c = &e->m->config;
    uint32_t width = c->head_width, stride = is_gated ? 2 * width : width;
    struct operand qkv;
    int status = emit_qkv(e, layer, &qkv);
    if (status)
        return status;
    struct operand mixed = plan_scratch(e->plan, c->q_width);
    struct op attend = attend_of(e, layer, qkv, rows_of(&l->q));
    attend.attend.heads = c->heads;
    attend.attend.q_stride = stride;
    attend.attend.q_norm = l->q_norm;
    attend.attend.out = mixed;
    struct op out = project_to_residual(e, layer, "mix out", mixed,
                                        (struct segment){.weight = l->o, .bias = l->o_bias});
    out.project.head_width = width;
    out.project.gate_stride = stride;
    if (is_gated) { /* each head's gate is after its query */
        out.project.prologue = PROLOGUE_SIGMOID_GATE;
        out.project.gate = operand_columns(qkv, width, rows_of(&l->q) - width);
    }
    status = plan_add(e->plan, &attend, e->err);
    return status ? status : plan_add(e->plan, &out, e->err);
}

int emit_dense(const struct emit *e, uint32_t layer) {
    const struct layer *l = &e->m->layers[layer];
    struct operand hidden = plan_scratch(e->plan, rows_of(&l->gate));
    struct op in = project_from_residual(e, layer, "ffn in", l->ffn_norm);
    in.project.n_segments = 2;
    in.project.segments[0] = (struct segment){.weight = l->gate, .bias = l->gate_bias};
    in.project.segments[1] = (struct segment){.weight = l->up, .bias = l->up_bias};
    in.project.epilogue = EPILOGUE_SWIGLU;
    in.project.out = hidden;
    struct op out = project_to_residual(e, layer, "ffn out", hidden,
                                        (struct segment){.weight = l->down, .bias = l->down_bias});
    int status = plan_add(e->plan, &in, e->err);
    return status ? status : plan_add(e->plan, &out, e->err);
}

int emit_experts(const struct emit *e, uint32_t layer) {
    const struct layer *l = &e->m->layers[layer];
    const struct config *c = &e->m->config;
    const uint32_t list[4] = {c->experts_used + 1, e->plan->max_rows};
    struct operand choice = plan_scratch_of(e->plan, DT_I32, list);
    struct operand weight = plan_scratch_of(e->plan, DT_F32, list);
    struct operand hidden = plan_scratch(e->plan, c->experts_row);
    struct op route = {
        .kind = OP_ROUTE,
        .layer = (int32_t)layer,
        .role = "ffn route",
        .route = {.in = e->x,
                  .norm = l->ffn_norm,
                  .router = l->router,
                  .shared_switch = l->shared_switch,
                  .eps = c->eps,
                  .used = c->experts_used,
                  .is_unnormed = c->experts_unnormed,
                  .choice = choice,
                  .weight = weight},
    };
    struct op in = {
        .kind = OP_EXPERTS_IN,
        .layer = (int32_t)layer,
        .role = "ffn in",
        .experts_in = {.in = e->x,
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
                        .x = e->x},
    };
    int status = plan_add(e->plan, &route, e->err);
    if (!status)
        status = plan_add(e->plan, &in, e->err);
    return status ? status : plan_add(e->plan, &out, e->err);
}
