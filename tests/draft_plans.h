/* draft_plans.h - plans with a draft block, written by hand: steps of a small trunk that keep the
 * block's state, and steps of the block alone. */
#ifndef TESTS_DRAFT_PLANS_H
#define TESTS_DRAFT_PLANS_H

#include "plan/build.h"
#include "plan/io.h"
#include "test.h"

enum { DRAFT_MOST_LAYERS = 4 };

struct draft_layer {
    struct operand attn_norm, qkv[3], out, ffn_norm;
    struct operand gate, up, down; /* of one feed-forward part, or of all experts */
    struct operand router;         /* none: dense */
};

/* Shapes, which the caller fills in, then weights. */
struct draft_model {
    uint32_t width, heads, kv_heads, head_width, inner, vocab, n_layers;
    uint32_t experts, used;      /* 0: dense */
    enum dtype type, draft_type; /* of the trunk's matrices, and of the block's */
    uint32_t n_slots, n_cells, pages_per_seq;
    struct operand embed, freqs, final_norm, head;
    struct draft_layer layers[DRAFT_MOST_LAYERS]; /* the trunk's, then the block's */
    struct operand join, embed_norm, state_norm, norm, draft_embed, draft_head;
};

/* Where weights come from: `size` is about that of their values. */
typedef struct operand draft_tensor(void *user, enum dtype type, const uint32_t dims[4],
                                    float size);

static inline void draft_layer_weights(const struct draft_model *m, struct draft_layer *l,
                                       enum dtype type, draft_tensor *tensor, void *user) {
    uint32_t q = m->heads * m->head_width, kv = m->kv_heads * m->head_width, e = m->experts;
    float in = 1.5f / sqrtf((float)m->width), out = 1.5f / sqrtf((float)m->inner);
    l->attn_norm = tensor(user, DT_F32, (uint32_t[4]){m->width}, 1);
    l->ffn_norm = tensor(user, DT_F32, (uint32_t[4]){m->width}, 1);
    for (uint32_t i = 0; i < 3; i++)
        l->qkv[i] = tensor(user, type, (uint32_t[4]){m->width, i ? kv : q}, in);
    l->out = tensor(user, type, (uint32_t[4]){q, m->width}, in);
    l->gate = tensor(user, type, (uint32_t[4]){m->width, m->inner, e}, in);
    l->up = tensor(user, type, (uint32_t[4]){m->width, m->inner, e}, in);
    l->down = tensor(user, type, (uint32_t[4]){m->inner, m->width, e}, out);
    if (e)
        l->router = tensor(user, DT_F32, (uint32_t[4]){m->width, e}, in);
}

static inline void draft_weights(struct draft_model *m, draft_tensor *tensor, void *user) {
    const uint32_t row[4] = {m->width}, table[4] = {m->width, m->vocab};
    float in = 1.5f / sqrtf((float)m->width);
    m->embed = tensor(user, m->type, table, 1);
    m->freqs = tensor(user, DT_F64, (uint32_t[4]){m->head_width / 2}, 1);
    m->final_norm = tensor(user, DT_F32, row, 1);
    m->head = tensor(user, m->type, table, in);
    for (uint32_t i = 0; i <= m->n_layers; i++)
        draft_layer_weights(m, &m->layers[i], i < m->n_layers ? m->type : m->draft_type, tensor,
                            user);
    m->join = tensor(user, m->draft_type, (uint32_t[4]){2 * m->width, m->width}, in);
    m->embed_norm = tensor(user, DT_F32, row, 1);
    m->state_norm = tensor(user, DT_F32, row, 1);
    m->norm = tensor(user, DT_F32, row, 1);
    m->draft_embed = tensor(user, m->draft_type, table, 1);
    m->draft_head = tensor(user, m->draft_type, table, in);
}

/* ---- ops ---------------------------------------------------------------------------------- */

struct draft_writer {
    const struct draft_model *m;
    struct plan *plan;
    struct operand angles, hidden; /* hidden: (cells, D) in STATE */
    struct operand cache[DRAFT_MOST_LAYERS][2];
};

static inline void draft_add(const struct draft_writer *w, struct op op) {
    struct err err = {0};
    op.layer = -1;
    if (plan_add(w->plan, &op, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

static inline void draft_add_embed(const struct draft_writer *w, struct operand table,
                                   struct operand x, bool has_angles) {
    struct op op = {.kind = OP_EMBED, .role = "embed", .embed = {.table = table, .x = x}};
    if (has_angles)
        op.embed.freqs = w->m->freqs, op.embed.angles = w->angles, op.embed.rope_scale = 1;
    draft_add(w, op);
}

/* A product with a norm, or none, stored, or added to `out`. */
static inline void draft_add_product(const struct draft_writer *w, struct operand in,
                                     struct operand norm, struct operand weight, struct operand out,
                                     enum epilogue epilogue) {
    draft_add(w, (struct op){.kind = OP_PROJECT,
                             .role = "product",
                             .project = {.in = in,
                                         .norm = norm,
                                         .prologue = norm.n_dims ? PROLOGUE_NORM : PROLOGUE_NONE,
                                         .epilogue = epilogue,
                                         .eps = norm.n_dims ? 1e-6f : 0,
                                         .n_segments = 1,
                                         .segments = {{.weight = weight}},
                                         .out = out}});
}

/* Without heads keys and values are stored, and nothing else. */
static inline void draft_add_attention(const struct draft_writer *w, uint32_t layer,
                                       struct operand x, bool has_heads) {
    const struct draft_model *m = w->m;
    const struct draft_layer *l = &m->layers[layer];
    uint32_t heads = has_heads ? m->heads : 0, q = heads * m->head_width,
             kv = m->kv_heads * m->head_width;
    struct operand qkv = plan_scratch(w->plan, q + 2 * kv), none = {0},
                   mixed = has_heads ? plan_scratch(w->plan, q) : none;
    struct op in = {
        .kind = OP_PROJECT,
        .role = "mix in",
        .project = {
            .in = x, .norm = l->attn_norm, .prologue = PROLOGUE_NORM, .eps = 1e-6f, .out = qkv}};
    for (uint32_t i = has_heads ? 0 : 1; i < 3; i++)
        in.project.segments[in.project.n_segments++] =
            (struct segment){.weight = l->qkv[i], .column = i ? q + (i - 1) * kv : 0};
    draft_add(w, in);
    draft_add(w, (struct op){.kind = OP_ATTEND,
                             .role = "mix",
                             .attend = {.in = qkv,
                                        .angles = w->angles,
                                        .keys = w->cache[layer][0],
                                        .values = w->cache[layer][1],
                                        .pages = w->plan->pages,
                                        .out = mixed,
                                        .q_stride = m->head_width,
                                        .k_column = q,
                                        .v_column = q + kv,
                                        .heads = heads,
                                        .kv_heads = m->kv_heads,
                                        .head_width = m->head_width,
                                        .rotary = m->head_width,
                                        .eps = 1e-6f,
                                        .scale = 1 / sqrtf((float)m->head_width)}});
    if (has_heads)
        draft_add_product(w, mixed, none, l->out, x, EPILOGUE_ADD);
}

static inline void draft_add_dense(const struct draft_writer *w, const struct draft_layer *l,
                                   struct operand x) {
    struct operand inner = plan_scratch(w->plan, w->m->inner);
    struct op in = {.kind = OP_PROJECT,
                    .role = "ffn in",
                    .project = {.in = x,
                                .norm = l->ffn_norm,
                                .prologue = PROLOGUE_NORM,
                                .epilogue = EPILOGUE_SWIGLU,
                                .eps = 1e-6f,
                                .n_segments = 2,
                                .segments = {{.weight = l->gate}, {.weight = l->up}},
                                .out = inner}};
    draft_add(w, in);
    draft_add_product(w, inner, (struct operand){0}, l->down, x, EPILOGUE_ADD);
}

static inline void draft_add_experts(const struct draft_writer *w, const struct draft_layer *l,
                                     struct operand x) {
    const struct draft_model *m = w->m;
    const uint32_t list[4] = {m->used + 1, w->plan->max_rows};
    struct operand choice = plan_scratch_of(w->plan, DT_I32, list),
                   weight = plan_scratch_of(w->plan, DT_F32, list),
                   inner = plan_scratch(w->plan, m->used * m->inner);
    draft_add(w, (struct op){.kind = OP_ROUTE,
                             .role = "route",
                             .route = {.in = x,
                                       .norm = l->ffn_norm,
                                       .router = l->router,
                                       .choice = choice,
                                       .weight = weight,
                                       .eps = 1e-6f,
                                       .used = m->used}});
    draft_add(w, (struct op){.kind = OP_EXPERTS_IN,
                             .role = "experts in",
                             .experts_in = {.in = x,
                                            .norm = l->ffn_norm,
                                            .gate = l->gate,
                                            .up = l->up,
                                            .choice = choice,
                                            .hidden = inner,
                                            .eps = 1e-6f}});
    draft_add(
        w, (struct op){
               .kind = OP_EXPERTS_OUT,
               .role = "experts out",
               .experts_out = {
                   .hidden = inner, .choice = choice, .weight = weight, .down = l->down, .x = x}});
}

static inline void draft_add_layer(const struct draft_writer *w, uint32_t layer, struct operand x) {
    draft_add_attention(w, layer, x, true);
    if (w->m->experts)
        draft_add_experts(w, &w->m->layers[layer], x);
    else
        draft_add_dense(w, &w->m->layers[layer], x);
}

/* The block up to its residual, y; with x, the trunk's, up to its keys and values. */
static inline void draft_add_block(const struct draft_writer *w, struct operand x,
                                   struct operand y) {
    const struct draft_model *m = w->m;
    struct operand embed = plan_scratch(w->plan, m->width), none = {0},
                   joined = plan_scratch(w->plan, 2 * m->width);
    draft_add_embed(w, m->draft_embed, embed, !x.n_dims);
    draft_add(w, (struct op){.kind = OP_JOIN,
                             .role = "join",
                             .join = {.embed = embed,
                                      .x = x,
                                      .norm = x.n_dims ? m->final_norm : none,
                                      .embed_norm = m->embed_norm,
                                      .state_norm = m->state_norm,
                                      .state = w->hidden,
                                      .out = joined,
                                      .eps = 1e-6f}});
    draft_add_product(w, joined, none, m->join, y, EPILOGUE_STORE);
    if (x.n_dims)
        draft_add_attention(w, m->n_layers, y, false);
    else
        draft_add_layer(w, m->n_layers, y);
}

static inline void draft_add_end(const struct draft_writer *w, struct operand x,
                                 struct operand norm, struct operand head, bool has_counts) {
    struct plan *plan = w->plan;
    const uint32_t outputs[4] = {w->m->vocab, plan->max_outputs};
    struct operand logits = plan_scratch_of(plan, DT_F32, outputs), counts = {0};
    if (has_counts)
        counts = plan_state(plan, DT_I16, (uint32_t[4]){w->m->vocab, w->m->n_slots});
    draft_add(w, (struct op){.kind = OP_HIDDEN,
                             .role = "hidden",
                             .hidden = {.x = x, .norm = norm, .state = w->hidden, .eps = 1e-6f}});
    draft_add(w, (struct op){.kind = OP_PROJECT,
                             .role = "head",
                             .project = {.in = x,
                                         .norm = norm,
                                         .prologue = PROLOGUE_NORM,
                                         .eps = 1e-6f,
                                         .n_segments = 1,
                                         .segments = {{.weight = head}},
                                         .out = logits,
                                         .is_lm_head = true}});
    draft_add(w, (struct op){.kind = OP_PICK,
                             .role = "pick",
                             .pick = {.logits = logits,
                                      .wanted = plan_logits(plan),
                                      .counts = counts,
                                      .adjusted = plan_scratch_of(plan, DT_F32, outputs),
                                      .order = plan_scratch_of(plan, DT_I64, outputs)}});
}

/* ---- plans -------------------------------------------------------------------------------- */

/* A step of the trunk (burst_steps 0), or of the block. STATE of both begins alike: page table,
 * caches, hidden states. */
static inline struct plan *draft_plan(const struct draft_model *m, uint32_t rows, uint32_t outputs,
                                      uint32_t burst_steps) {
    const struct plan_options options = {
        .max_rows = rows, .max_outputs = outputs, .n_vocab = m->vocab, .burst_steps = burst_steps};
    struct draft_writer w = {.m = m};
    struct err err = {0};
    if (plan_new(&w.plan, &options, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    plan_page_table(w.plan, m->pages_per_seq, m->n_slots);
    for (uint32_t i = 0; i <= m->n_layers; i++)
        for (uint32_t k = 0; k < 2; k++)
            w.cache[i][k] = plan_state(w.plan, DT_F16,
                                       (uint32_t[4]){m->head_width, IO_PAGE_POSITIONS, m->kv_heads,
                                                     m->n_slots * m->pages_per_seq});
    w.hidden = plan_state(w.plan, DT_F32, (uint32_t[4]){m->width, m->n_cells});
    w.angles = plan_scratch_of(w.plan, DT_F32, (uint32_t[4]){2, m->head_width / 2, rows});
    struct operand x = plan_scratch(w.plan, m->width), none = {0};
    if (burst_steps) {
        draft_add_block(&w, none, x);
        draft_add_end(&w, x, m->norm, m->draft_head, false);
    } else {
        draft_add_embed(&w, m->embed, x, true);
        for (uint32_t i = 0; i < m->n_layers; i++)
            draft_add_layer(&w, i, x);
        draft_add_block(&w, x, plan_scratch(w.plan, m->width));
        draft_add_end(&w, x, m->final_norm, m->head, true);
    }
    if (plan_finish(w.plan, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return w.plan;
}

#endif
