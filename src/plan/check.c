/* check.c - whether an op's operands fit together. */
#include "plan/check.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "plan/build.h"
#include "plan/io.h"

/* The state of a check; the first fault stays. */
struct checker {
    const struct plan *plan;
    const struct op *op;
    struct err *err;
    int status;
};

enum { ANY_TYPE = -1, CACHE_TYPE = -2 };

enum { SHAPE_TEXT = 128 };

static void shape_text(char out[SHAPE_TEXT], uint32_t n_dims, const uint64_t dims[4],
                       uint32_t type) {
    int n = snprintf(out, SHAPE_TEXT, "(");
    for (uint32_t i = n_dims; i-- > 0;)
        n += snprintf(out + n, SHAPE_TEXT - (size_t)n, "%llu%s", (unsigned long long)dims[i],
                      i ? ", " : "");
    snprintf(out + n, SHAPE_TEXT - (size_t)n, ") %s", dtype_name(type));
}

static void fault(struct checker *c, const char *operand, const char *found, const char *expected) {
    if (c->status)
        return;
    c->status =
        err_set(c->err, SLUICE_ERR_FORMAT, "op %u, %s (%s, layer %d): %s is %s, expected %s",
                c->plan->n_ops, op_name(c->op->kind), c->op->role ? c->op->role : "-", c->op->layer,
                operand, found, expected);
}

static bool type_fits(const struct operand *o, int type) {
    if (type == ANY_TYPE)
        return dtype_info(o->type) && dtype_info(o->type)->decode;
    if (type == CACHE_TYPE)
        return o->type == DT_F32 || o->type == DT_F16 || o->type == DT_Q8_0 || o->type == DT_Q4_0;
    return o->type == type;
}

/* The operand must be there with these dims (contiguous first, up to the first 0) and that type. A
 * dim whose computation overflowed is UINT64_MAX, which no operand has. */
static void want(struct checker *c, const char *name, const struct operand *o, int type,
                 const uint64_t dims[4]) {
    uint32_t n = 0;
    while (n < 4 && dims[n])
        n++;
    bool fits = o->n_dims == n && type_fits(o, type);
    for (uint32_t i = 0; i < n; i++)
        fits &= o->dims[i] == dims[i];
    if (fits)
        return;
    char found[SHAPE_TEXT], expected[SHAPE_TEXT];
    shape_text(found, o->n_dims < 4 ? o->n_dims : 4,
               (uint64_t[4]){o->dims[0], o->dims[1], o->dims[2], o->dims[3]}, o->type);
    shape_text(expected, n, dims, (uint32_t)(type < 0 ? o->type : type));
    fault(c, name, o->n_dims ? found : "absent", expected);
}

/* The same, or the operand is absent. */
static void may_have(struct checker *c, const char *name, const struct operand *o, int type,
                     const uint64_t dims[4]) {
    if (o->n_dims)
        want(c, name, o, type, dims);
}

static void in_region(struct checker *c, const char *name, const struct operand *o,
                      enum region region) {
    static const char *const names[] = {"WEIGHTS", "STATE", "SCRATCH", "IO"};
    if (o->n_dims && o->region != region)
        fault(c, name, o->region < REGION_COUNT ? names[o->region] : "in no region", names[region]);
}

static void that(struct checker *c, const char *name, bool holds, const char *expected) {
    if (!holds)
        fault(c, name, "otherwise", expected);
}

#define DIMS(...) ((uint64_t[4]){__VA_ARGS__})

/* Whether `count` pieces of `width` values, each `stride` after the one before, end within a row.
 */
static bool within(const struct operand *row, uint64_t first, uint64_t count, uint64_t stride,
                   uint64_t width) {
    uint64_t last = size_plus(first, count ? size_times(count - 1, stride) : 0);
    return size_plus(last, width) <= row->dims[0];
}

/* The latest op of a kind; NULL: none. */
static const struct op *op_before(const struct checker *c, enum op_kind kind) {
    for (uint32_t i = c->plan->n_ops; i-- > 0;)
        if (c->plan->ops[i].kind == kind)
            return &c->plan->ops[i];
    return NULL;
}

static bool is_same(const struct operand *a, const struct operand *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

/* ---- one function per op ------------------------------------------------------------------ */

static void check_embed(struct checker *c, const struct op_embed *e) {
    uint32_t rows = c->plan->max_rows;
    want(c, "table", &e->table, ANY_TYPE, DIMS(e->table.dims[0], e->table.dims[1]));
    that(c, "table", e->table.dims[1] >= c->plan->n_vocab, "a row for every token");
    in_region(c, "table", &e->table, REGION_WEIGHTS);
    want(c, "x", &e->x, DT_F32, DIMS(e->table.dims[0], rows));
    may_have(c, "freqs", &e->freqs, DT_F64, DIMS(e->freqs.dims[0]));
    if (e->freqs.n_dims)
        want(c, "angles", &e->angles, DT_F32, DIMS(2, e->freqs.dims[0], rows));
}

static void check_prologue(struct checker *c, const struct op_project *p) {
    uint32_t k = p->in.dims[0];
    bool is_gated = p->prologue == PROLOGUE_GATED_NORM || p->prologue == PROLOGUE_SIGMOID_GATE;
    if (p->prologue == PROLOGUE_NORM)
        want(c, "norm", &p->norm, DT_F32, DIMS(k));
    if (p->prologue == PROLOGUE_GATED_NORM)
        want(c, "norm", &p->norm, DT_F32, DIMS(p->head_width));
    if (p->prologue == PROLOGUE_NORM || p->prologue == PROLOGUE_GATED_NORM)
        that(c, "eps", p->eps > 0 && p->eps < 1, "between 0 and 1");
    if (!is_gated)
        return;
    that(c, "head_width", p->head_width && k % p->head_width == 0,
         "a divisor of the input's width");
    that(c, "gate_stride", p->gate_stride >= p->head_width, "at least a head's width");
    if (c->status)
        return;
    that(c, "gate",
         p->gate.n_dims == 2 && p->gate.type == DT_F32 && p->gate.dims[1] == c->plan->max_rows &&
             within(&p->gate, 0, k / p->head_width, p->gate_stride, p->head_width),
         "f32 rows that hold a gate for every head");
}

static void check_segment(struct checker *c, const struct op_project *p, uint32_t i) {
    const struct segment *s = &p->segments[i];
    uint32_t n = s->weight.dims[1];
    want(c, "weight", &s->weight, ANY_TYPE, DIMS(p->in.dims[0], n));
    in_region(c, "weight", &s->weight, REGION_WEIGHTS);
    may_have(c, "bias", &s->bias, DT_F32, DIMS(n));
    if (p->epilogue == EPILOGUE_SWIGLU)
        that(c, "weight", n == p->out.dims[0], "as many rows as the output has columns");
    else
        that(c, "column", s->column <= p->out.dims[0] && n <= p->out.dims[0] - s->column,
             "inside the output row");
}

static void check_project(struct checker *c, const struct op_project *p) {
    want(c, "in", &p->in, DT_F32, DIMS(p->in.dims[0], c->plan->max_rows));
    want(c, "out", &p->out, DT_F32,
         DIMS(p->out.dims[0], p->is_lm_head ? c->plan->max_outputs : c->plan->max_rows));
    that(c, "segments", p->n_segments >= 1 && p->n_segments <= MAX_SEGMENTS, "1 to 6");
    if (p->epilogue == EPILOGUE_SWIGLU)
        that(c, "segments", p->n_segments == 2, "2 for SwiGLU");
    check_prologue(c, p);
    for (uint32_t i = 0; !c->status && i < p->n_segments; i++)
        check_segment(c, p, i);
}

static void check_delta(struct checker *c, const struct op_delta *d) {
    uint64_t values = size_times(d->value_heads, d->value_width);
    uint64_t keys = size_times(size_times(2, d->key_heads), d->key_width);
    uint64_t channels = size_plus(keys, values);
    that(c, "heads", d->key_heads && d->value_heads % d->key_heads == 0,
         "value heads a multiple of key heads");
    that(c, "conv_width", d->conv_width >= 2 && d->conv_width <= 8, "2 to 8");
    want(c, "in", &d->in, DT_F32, DIMS(d->in.dims[0], c->plan->max_rows));
    that(c, "in",
         d->in.dims[0] >= channels && within(&d->in, d->beta_column, d->value_heads, 1, 1) &&
             within(&d->in, d->alpha_column, d->value_heads, 1, 1),
         "wide enough for q, k, v, beta and alpha");
    want(c, "conv", &d->conv, DT_F32, DIMS(d->conv_width, channels));
    want(c, "a", &d->a, DT_F32, DIMS(d->value_heads));
    want(c, "dt", &d->dt, DT_F32, DIMS(d->value_heads));
    want(c, "state", &d->state, DT_F32,
         DIMS(d->key_width, d->value_width, d->value_heads, d->state.dims[3]));
    in_region(c, "state", &d->state, REGION_STATE);
    want(c, "window", &d->window, DT_F32, DIMS(channels, d->conv_width, d->state.dims[3]));
    in_region(c, "window", &d->window, REGION_STATE);
    want(c, "out", &d->out, DT_F32, DIMS(values, c->plan->max_rows));
}

static void check_attend(struct checker *c, const struct op_attend *a) {
    uint32_t width = a->head_width, rows = c->plan->max_rows;
    that(c, "heads", a->kv_heads && a->heads % a->kv_heads == 0, "a multiple of kv_heads");
    that(c, "rotary", a->rotary % 2 == 0 && a->rotary <= width, "even, at most a head's width");
    want(c, "in", &a->in, DT_F32, DIMS(a->in.dims[0], rows));
    that(c, "in",
         a->q_stride >= width && within(&a->in, 0, a->heads, a->q_stride, width) &&
             within(&a->in, a->k_column, a->kv_heads, width, width) &&
             within(&a->in, a->v_column, a->kv_heads, width, width),
         "wide enough for q, k and v");
    may_have(c, "q_norm", &a->q_norm, DT_F32, DIMS(width));
    may_have(c, "k_norm", &a->k_norm, DT_F32, DIMS(width));
    if (a->rotary)
        want(c, "angles", &a->angles, DT_F32, DIMS(2, a->rotary / 2, rows));
    want(c, "keys", &a->keys, CACHE_TYPE,
         DIMS(width, IO_PAGE_POSITIONS, a->kv_heads, a->keys.dims[3]));
    want(c, "values", &a->values, a->keys.type,
         DIMS(width, IO_PAGE_POSITIONS, a->kv_heads, a->keys.dims[3]));
    in_region(c, "keys", &a->keys, REGION_STATE);
    in_region(c, "values", &a->values, REGION_STATE);
    want(c, "pages", &a->pages, DT_I32, DIMS(a->pages.dims[0], a->pages.dims[1]));
    that(c, "pages", is_same(&a->pages, &c->plan->pages), "the plan's page table");
    if (a->heads)
        want(c, "out", &a->out, DT_F32, DIMS(size_times(a->heads, width), rows));
}

static void check_route(struct checker *c, const struct op_route *r) {
    uint32_t width = r->in.dims[0], rows = c->plan->max_rows;
    want(c, "in", &r->in, DT_F32, DIMS(width, rows));
    want(c, "norm", &r->norm, DT_F32, DIMS(width));
    want(c, "router", &r->router, DT_F32, DIMS(width, r->router.dims[1]));
    may_have(c, "shared_switch", &r->shared_switch, DT_F32, DIMS(width));
    that(c, "used", r->used >= 1 && r->used <= r->router.dims[1], "at most the number of experts");
    want(c, "choice", &r->choice, DT_I32, DIMS(size_plus(r->used, 1), rows));
    want(c, "weight", &r->weight, DT_F32, DIMS(size_plus(r->used, 1), rows));
}

/* Values of a row of `hidden`: those of each expert used, then those of the shared one. */
static uint64_t hidden_width(const struct operand *choice, uint32_t routed, uint32_t shared) {
    return size_plus(size_times(choice->dims[0] - 1, routed), shared);
}

static void check_experts_in(struct checker *c, const struct op_experts_in *e) {
    const struct op *route = op_before(c, OP_ROUTE);
    uint32_t width = e->in.dims[0], rows = c->plan->max_rows;
    want(c, "in", &e->in, DT_F32, DIMS(width, rows));
    want(c, "norm", &e->norm, DT_F32, DIMS(width));
    want(c, "gate", &e->gate, ANY_TYPE, DIMS(width, e->gate.dims[1], e->gate.dims[2]));
    want(c, "up", &e->up, ANY_TYPE, DIMS(width, e->gate.dims[1], e->gate.dims[2]));
    may_have(c, "shared_gate", &e->shared_gate, ANY_TYPE, DIMS(width, e->shared_gate.dims[1]));
    may_have(c, "shared_up", &e->shared_up, ANY_TYPE, DIMS(width, e->shared_gate.dims[1]));
    that(c, "shared_up", !e->shared_up.n_dims == !e->shared_gate.n_dims, "there with shared_gate");
    that(c, "choice", route && is_same(&route->route.choice, &e->choice),
         "that of the ROUTE before it");
    if (c->status)
        return;
    that(c, "gate", e->gate.dims[2] == route->route.router.dims[1], "for as many as ROUTE has");
    uint32_t shared = e->shared_gate.n_dims ? e->shared_gate.dims[1] : 0;
    want(c, "hidden", &e->hidden, DT_F32,
         DIMS(hidden_width(&e->choice, e->gate.dims[1], shared), rows));
}

static void check_experts_out(struct checker *c, const struct op_experts_out *e) {
    const struct op *in = op_before(c, OP_EXPERTS_IN), *route = op_before(c, OP_ROUTE);
    uint32_t rows = c->plan->max_rows, width = e->x.dims[0];
    want(c, "x", &e->x, DT_F32, DIMS(width, rows));
    want(c, "down", &e->down, ANY_TYPE, DIMS(e->down.dims[0], width, e->down.dims[2]));
    may_have(c, "shared_down", &e->shared_down, ANY_TYPE, DIMS(e->shared_down.dims[0], width));
    that(c, "choice", in && is_same(&in->experts_in.choice, &e->choice),
         "that of an EXPERTS_IN before it");
    that(c, "weight", route && is_same(&route->route.weight, &e->weight),
         "that of the ROUTE before it");
    if (c->status)
        return;
    that(c, "down", e->down.dims[2] == in->experts_in.gate.dims[2],
         "for as many as EXPERTS_IN has");
    uint32_t shared = e->shared_down.n_dims ? e->shared_down.dims[0] : 0;
    want(c, "hidden", &e->hidden, DT_F32,
         DIMS(hidden_width(&e->choice, e->down.dims[0], shared), rows));
}

static void check_tap(struct checker *c, const struct op_tap *t) {
    want(c, "x", &t->x, DT_F32, DIMS(t->x.dims[0], c->plan->max_rows));
    may_have(c, "norm", &t->norm, DT_F32, DIMS(t->x.dims[0]));
    want(c, "out", &t->out, DT_F32, DIMS(t->x.dims[0], c->plan->max_outputs));
}

static void check_join(struct checker *c, const struct op_join *j) {
    uint32_t rows = c->plan->max_rows, width = j->embed.dims[0];
    want(c, "embed", &j->embed, DT_F32, DIMS(width, rows));
    may_have(c, "x", &j->x, DT_F32, DIMS(width, rows));
    if (j->x.n_dims)
        want(c, "norm", &j->norm, DT_F32, DIMS(width));
    want(c, "embed_norm", &j->embed_norm, DT_F32, DIMS(width));
    want(c, "state_norm", &j->state_norm, DT_F32, DIMS(width));
    want(c, "state", &j->state, DT_F32, DIMS(width, j->state.dims[1]));
    in_region(c, "state", &j->state, REGION_STATE);
    want(c, "out", &j->out, DT_F32, DIMS(size_times(2, width), rows));
    that(c, "eps", j->eps > 0 && j->eps < 1, "between 0 and 1");
}

static void check_hidden(struct checker *c, const struct op_hidden *h) {
    uint32_t width = h->x.dims[0];
    want(c, "x", &h->x, DT_F32, DIMS(width, c->plan->max_rows));
    want(c, "norm", &h->norm, DT_F32, DIMS(width));
    want(c, "state", &h->state, DT_F32, DIMS(width, h->state.dims[1]));
    in_region(c, "state", &h->state, REGION_STATE);
    that(c, "eps", h->eps > 0 && h->eps < 1, "between 0 and 1");
}

static void check_pick(struct checker *c, const struct op_pick *p) {
    want(c, "logits", &p->logits, DT_F32, DIMS(c->plan->n_vocab, c->plan->max_outputs));
    want(c, "wanted", &p->wanted, DT_F32, DIMS(c->plan->n_vocab, c->plan->max_outputs));
    in_region(c, "wanted", &p->wanted, REGION_IO);
    may_have(c, "counts", &p->counts, DT_I16, DIMS(c->plan->n_vocab, p->counts.dims[1]));
    want(c, "adjusted", &p->adjusted, DT_F32, DIMS(c->plan->n_vocab, c->plan->max_outputs));
    want(c, "order", &p->order, DT_I64, DIMS(c->plan->n_vocab, c->plan->max_outputs));
}

int op_check(const struct plan *plan, const struct op *op, struct err *err) {
    struct checker c = {.plan = plan, .op = op, .err = err};
    switch (op->kind) {
#define OP(kind, name, member)                                                                     \
    case OP_##kind:                                                                                \
        check_##member(&c, &op->member);                                                           \
        break;
#include "plan/ops.def"
#undef OP
    default:
        fault(&c, "kind", "unknown", "an op of ops.def");
    }
    return c.status;
}
