/* operands.c - the operands of each op: one table that layout, checks and explain share. */
#include <string.h>

#include "base/size.h"
#include "plan/build.h"
#include "plan/io.h"

enum { R = 1, W = 2 };

static const struct row {
    enum op_kind kind;
    const char *name;
    size_t at;
    unsigned access;
} rows[] = {
#define ROW(kind, member, field, access)                                                           \
    { OP_##kind, #field, offsetof(struct op, member.field), access }
    ROW(EMBED, embed, table, R),
    ROW(EMBED, embed, x, W),
    ROW(EMBED, embed, freqs, R),
    ROW(EMBED, embed, angles, W),
    ROW(PROJECT, project, in, R),
    ROW(PROJECT, project, norm, R),
    ROW(PROJECT, project, gate, R),
    ROW(PROJECT, project, out, W), /* EPILOGUE_ADD reads it too */
    ROW(DELTA, delta, in, R),
    ROW(DELTA, delta, conv, R),
    ROW(DELTA, delta, a, R),
    ROW(DELTA, delta, dt, R),
    ROW(DELTA, delta, state, R | W),
    ROW(DELTA, delta, window, R | W),
    ROW(DELTA, delta, out, W),
    ROW(ATTEND, attend, in, R),
    ROW(ATTEND, attend, q_norm, R),
    ROW(ATTEND, attend, k_norm, R),
    ROW(ATTEND, attend, angles, R),
    ROW(ATTEND, attend, keys, R | W),
    ROW(ATTEND, attend, values, R | W),
    ROW(ATTEND, attend, pages, R),
    ROW(ATTEND, attend, out, W),
    ROW(ROUTE, route, in, R),
    ROW(ROUTE, route, norm, R),
    ROW(ROUTE, route, router, R),
    ROW(ROUTE, route, shared_switch, R),
    ROW(ROUTE, route, choice, W),
    ROW(ROUTE, route, weight, W),
    ROW(EXPERTS_IN, experts_in, in, R),
    ROW(EXPERTS_IN, experts_in, norm, R),
    ROW(EXPERTS_IN, experts_in, gate, R),
    ROW(EXPERTS_IN, experts_in, up, R),
    ROW(EXPERTS_IN, experts_in, shared_gate, R),
    ROW(EXPERTS_IN, experts_in, shared_up, R),
    ROW(EXPERTS_IN, experts_in, choice, R),
    ROW(EXPERTS_IN, experts_in, hidden, W),
    ROW(EXPERTS_OUT, experts_out, hidden, R),
    ROW(EXPERTS_OUT, experts_out, choice, R),
    ROW(EXPERTS_OUT, experts_out, weight, R),
    ROW(EXPERTS_OUT, experts_out, down, R),
    ROW(EXPERTS_OUT, experts_out, shared_down, R),
    ROW(EXPERTS_OUT, experts_out, x, R | W),
    ROW(TAP, tap, x, R),
    ROW(TAP, tap, norm, R),
    ROW(TAP, tap, out, W),
    ROW(JOIN, join, embed, R),
    ROW(JOIN, join, x, R),
    ROW(JOIN, join, norm, R),
    ROW(JOIN, join, embed_norm, R),
    ROW(JOIN, join, state_norm, R),
    ROW(JOIN, join, state, R),
    ROW(JOIN, join, out, W),
    ROW(HIDDEN, hidden, x, R),
    ROW(HIDDEN, hidden, norm, R),
    ROW(HIDDEN, hidden, state, W),
    ROW(PICK, pick, logits, R),
    ROW(PICK, pick, wanted, W),
    ROW(PICK, pick, counts, R | W),
    ROW(PICK, pick, adjusted, R | W),
    ROW(PICK, pick, order, R | W),
#undef ROW
};

static const char *const segment_names[MAX_SEGMENTS][2] = {
    {"weight 0", "bias 0"}, {"weight 1", "bias 1"}, {"weight 2", "bias 2"},
    {"weight 3", "bias 3"}, {"weight 4", "bias 4"}, {"weight 5", "bias 5"},
};

static uint32_t add_ref(struct operand_ref *refs, uint32_t n, const char *name, struct operand *at,
                        unsigned access) {
    if (at->n_dims == 0)
        return n;
    CHECK(n < MAX_OPERANDS);
    refs[n] = (struct operand_ref){name, at, (access & R) != 0, (access & W) != 0};
    return n + 1;
}

uint32_t op_operands(struct op *op, struct operand_ref refs[MAX_OPERANDS]) {
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].kind == op->kind)
            n = add_ref(refs, n, rows[i].name, (struct operand *)((char *)op + rows[i].at),
                        rows[i].access);
    if (op->kind != OP_PROJECT)
        return n;
    if (op->project.epilogue == EPILOGUE_ADD)
        refs[n - 1].is_read = true; /* out is the last one */
    for (uint32_t s = 0; s < op->project.n_segments; s++) {
        n = add_ref(refs, n, segment_names[s][0], &op->project.segments[s].weight, R);
        n = add_ref(refs, n, segment_names[s][1], &op->project.segments[s].bias, R);
    }
    return n;
}

const char *op_name(enum op_kind kind) {
    static const char *const names[] = {
#define OP(kind, name, member) name,
#include "plan/ops.def"
#undef OP
    };
    return (unsigned)kind < OP_KIND_COUNT ? names[kind] : "unknown";
}

static uint64_t bytes_of(const struct operand *o, uint32_t n) {
    uint64_t bytes;
    return dtype_bytes((enum dtype)o->type, n, &bytes) ? bytes : UINT64_MAX;
}

uint64_t operand_row_bytes(const struct operand *o) {
    return bytes_of(o, o->dims[0]);
}

uint64_t operand_bytes(const struct operand *o) {
    if (o->n_dims == 0)
        return 0;
    uint64_t planes = size_times(o->dims[2], o->dims[3]);
    uint64_t before = size_plus(size_times(planes - 1, o->plane), o->dims[1] - 1);
    return size_plus(size_times(before, bytes_of(o, o->stride)), operand_row_bytes(o));
}

/* ---- traffic ------------------------------------------------------------------------------ */

static void add_bytes(struct op_traffic *t, const struct operand *o, uint64_t bytes) {
    if (o->region == REGION_WEIGHTS)
        t->weights += bytes;
    else if (o->region == REGION_STATE)
        t->state += bytes;
    else
        t->scratch += bytes;
}

/* Whether it runs over outputs, not rows. */
static bool is_of_outputs(const struct op *op) {
    return op->kind == OP_PICK || op->kind == OP_TAP ||
           (op->kind == OP_PROJECT && op->project.is_lm_head);
}

/* Maximum number of experts that this many rows read. */
static uint64_t experts_read(const struct op *op, uint32_t n_experts, uint32_t n_rows) {
    uint64_t used = (op->kind == OP_EXPERTS_IN ? op->experts_in.choice.dims[0]
                                               : op->experts_out.choice.dims[0]) -
                    1;
    return used * n_rows < n_experts ? used * n_rows : n_experts;
}

/* Bytes of an operand that one step reads, or writes. The KV cache of a sequence is read by each of
 * its rows; state is read and written once. PICK takes the best token: only the logits, once. */
static uint64_t touched(const struct op *op, const struct operand *o, bool is_write,
                        struct op_use use) {
    uint64_t row = operand_row_bytes(o);
    if (op->kind == OP_EMBED && o == &op->embed.table)
        return use.rows * row;
    if (op->kind == OP_PICK && o != &op->pick.logits)
        return 0;
    bool has_cells = op->kind == OP_DELTA || op->kind == OP_JOIN || op->kind == OP_HIDDEN;
    if (has_cells && o->region == REGION_STATE)
        return operand_bytes(o) / o->dims[o->n_dims - 1] * use.sequences;
    if (op->kind == OP_ATTEND && (o == &op->attend.keys || o == &op->attend.values))
        return o->dims[2] * row *
               (is_write           ? use.rows
                : op->attend.heads ? (uint64_t)use.context * use.sequences
                                   : 0);
    bool is_expert = (op->kind == OP_EXPERTS_IN || op->kind == OP_EXPERTS_OUT) && o->n_dims == 3 &&
                     o->region == REGION_WEIGHTS;
    if (is_expert)
        return operand_bytes(o) / o->dims[2] * experts_read(op, o->dims[2], use.rows);
    if (o->region == REGION_WEIGHTS)
        return operand_bytes(o);
    return row * (is_of_outputs(op) ? use.sequences : use.rows);
}

struct op_traffic op_traffic(const struct op *op, struct op_use use) {
    struct op_traffic t = {0};
    struct operand_ref refs[MAX_OPERANDS];
    uint32_t n = op_operands((struct op *)op, refs);
    for (uint32_t i = 0; i < n; i++) {
        const struct operand *o = refs[i].at;
        uint64_t read = refs[i].is_read ? touched(op, o, false, use) : 0;
        uint64_t written = refs[i].is_written ? touched(op, o, true, use) : 0;
        add_bytes(&t, o, read + written);
        t.read += read;
        t.written += written;
    }
    return t;
}

static double matrix_size(const struct operand *o) {
    return o->n_dims ? (double)o->dims[0] * o->dims[1] : 0;
}

/* Flops of a row: 2 for each weight it is multiplied with. */
static double experts_flops(const struct op *op) {
    if (op->kind == OP_EXPERTS_IN) {
        const struct op_experts_in *e = &op->experts_in;
        return 2 * ((e->choice.dims[0] - 1) * (matrix_size(&e->gate) + matrix_size(&e->up)) +
                    matrix_size(&e->shared_gate) + matrix_size(&e->shared_up));
    }
    const struct op_experts_out *e = &op->experts_out;
    return 2 * ((e->choice.dims[0] - 1) * matrix_size(&e->down) + matrix_size(&e->shared_down));
}

double op_flops(const struct op *op, struct op_use use) {
    double n = is_of_outputs(op) ? use.sequences : use.rows, sum = 0;
    switch (op->kind) {
    case OP_PROJECT:
        for (uint32_t i = 0; i < op->project.n_segments; i++)
            sum += 2 * matrix_size(&op->project.segments[i].weight);
        return n * sum;
    case OP_DELTA: /* k . S, q . S, decay and update of S */
        return n * 7 * op->delta.value_heads * op->delta.value_width * op->delta.key_width;
    case OP_ATTEND: /* a row sees half of its sequence's rows on average */
        sum = use.context + (n / use.sequences - 1) / 2;
        return n * 4 * op->attend.heads * op->attend.head_width * sum;
    case OP_ROUTE:
        return n * 2 * matrix_size(&op->route.router);
    case OP_EXPERTS_IN:
    case OP_EXPERTS_OUT:
        return n * experts_flops(op);
    default:
        return 0;
    }
}
