/* experts.c - EXPERTS_IN and EXPERTS_OUT: a product for every place of a row, with the matrix of
 * the expert chosen there; the shared expert is a product of all rows. */
#include "backend/vulkan/ops/product.h"
#include "base/size.h"

enum { MIX_THREADS = 128 };

/* *pairs stays NULL where they are not sorted. */
static int sort_pairs(struct vulkan_recorder *r, const struct operand *choice,
                      const struct operand *weight, struct vulkan_pairs *sorted,
                      struct vulkan_pairs **pairs) {
    if (vulkan_takes_f32(r, weight) || !vulkan_can_sort(r, choice->dims[0] - 1, weight->dims[2]))
        return SLUICE_OK;
    *pairs = sorted;
    return vulkan_sort(r, choice, weight->dims[2], sorted);
}

/* ---- EXPERTS_IN --------------------------------------------------------------------------- */

/* Columns of hidden from gate and up: one product, or where their types differ two. */
static int record_in(struct vulkan_recorder *r, const struct op *op, const struct vulkan_acts *acts,
                     const struct vulkan_pairs *pairs, const struct operand *gate,
                     const struct operand *up, bool is_shared) {
    const struct op_experts_in *o = &op->experts_in;
    uint32_t used = o->choice.dims[0] - 1, routed = used * o->gate.dims[1];
    struct operand out =
        operand_columns(o->hidden, is_shared ? routed : 0, is_shared ? gate->dims[1] : routed);
    struct vulkan_product p = {
        .weight = gate,
        .acts = acts,
        .is_f32 = vulkan_takes_f32(r, gate),
        .act_group = op_act_group(op),
        .rows = r->plan->max_rows,
        .out_stride = o->hidden.stride,
        .choice = is_shared ? NULL : &o->choice,
        .pairs = pairs,
        .places = used,
        .out_place = is_shared ? 0 : o->gate.dims[1],
    };
    p.out = vulkan_operand(r, &out, VULKAN_WRITE, &p.out_first);
    if (vulkan_is_pair(r, gate, up)) {
        p.second = up;
        p.epilogue = PRODUCT_SWIGLU;
        return vulkan_multiply(r, &p);
    }
    int status = vulkan_multiply(r, &p);
    p.weight = up;
    p.is_f32 = vulkan_takes_f32(r, up);
    p.epilogue = PRODUCT_GATED;
    p.out = vulkan_as(p.out, VULKAN_READ | VULKAN_WRITE);
    return status ? status : vulkan_multiply(r, &p);
}

int vulkan_record_experts_in(struct vulkan_recorder *r, const struct op *op) {
    const struct op_experts_in *o = &op->experts_in;
    const struct operand *weights[] = {&o->gate, &o->up, &o->shared_gate, &o->shared_up};
    struct vulkan_prologue q = {
        .in = o->in,
        .norm = o->norm,
        .prologue = PROLOGUE_NORM,
        .eps = o->eps,
        .rows = r->plan->max_rows,
        .act_group = op_act_group(op),
    };
    for (uint32_t i = 0; i < (o->shared_gate.n_dims ? 4 : 2); i++) {
        q.needs_f32 |= vulkan_takes_f32(r, weights[i]);
        q.needs_int8 |= !vulkan_takes_f32(r, weights[i]);
    }
    struct vulkan_acts acts;
    struct vulkan_pairs sorted, *pairs = NULL;
    int status = sort_pairs(r, &o->choice, &o->gate, &sorted, &pairs);
    q.has_pairs = !pairs;
    if (!status)
        status = vulkan_quantize(r, &q, &acts);
    if (!status)
        status = record_in(r, op, &acts, pairs, &o->gate, &o->up, false);
    if (!status && o->shared_gate.n_dims)
        status = record_in(r, op, &acts, NULL, &o->shared_gate, &o->shared_up, true);
    return status;
}

/* ---- EXPERTS_OUT -------------------------------------------------------------------------- */

/* Results of the routed places to `out`, (rows, used, D), or of the shared one, (rows, D). */
static int record_out(struct vulkan_recorder *r, const struct op *op, const struct operand *down,
                      bool is_shared, struct vulkan_bind *out) {
    const struct op_experts_out *o = &op->experts_out;
    uint32_t used = o->choice.dims[0] - 1, k = down->dims[0], width = o->x.dims[0];
    uint32_t routed = used * o->down.dims[0];
    bool is_f32 = vulkan_takes_f32(r, down);
    struct vulkan_prologue q = {
        .in = operand_columns(o->hidden, is_shared ? routed : 0, is_shared ? k : routed),
        .rows = r->plan->max_rows,
        .act_group = op_act_group(op),
        .needs_int8 = !is_f32,
        .needs_f32 = is_f32,
    };
    uint32_t places = is_shared ? 1 : used;
    struct vulkan_acts acts;
    struct vulkan_pairs sorted, *pairs = NULL;
    int status = is_shared ? SLUICE_OK : sort_pairs(r, &o->choice, down, &sorted, &pairs);
    *out = vulkan_work(r, (uint64_t)q.rows * places * width * sizeof(float));
    struct vulkan_product p = {
        .weight = down,
        .acts = &acts,
        .is_f32 = is_f32,
        .act_group = q.act_group,
        .rows = q.rows,
        .out = vulkan_as(*out, VULKAN_WRITE),
        .out_stride = places * width,
        .choice = is_shared ? NULL : &o->choice,
        .pairs = pairs,
        .places = used,
        .act_place = is_shared ? 0 : k,
        .out_place = is_shared ? 0 : width,
    };
    q.has_pairs = !is_shared && !pairs;
    if (!status)
        status = vulkan_quantize(r, &q, &acts);
    return status ? status : vulkan_multiply(r, &p);
}

int vulkan_record_experts_out(struct vulkan_recorder *r, const struct op *op) {
    const struct op_experts_out *o = &op->experts_out;
    uint32_t width = o->x.dims[0], rows = r->plan->max_rows;
    bool has_shared = o->shared_down.n_dims != 0;
    struct vulkan_bind y, shared;
    int status = record_out(r, op, &o->down, false, &y);
    shared = y;
    if (!status && has_shared)
        status = record_out(r, op, &o->shared_down, true, &shared);
    if (status)
        return status;
    struct {
        uint32_t width, places, x_first, x_stride, weight_first, weight_stride;
    } push = {.width = width,
              .places = o->choice.dims[0] - 1,
              .x_stride = o->x.stride,
              .weight_stride = o->weight.stride};
    struct vulkan_dispatch d = {
        .shader = "experts_mix",
        .groups = {div_up(width, MIX_THREADS), rows, 1},
        .constants = {MIX_THREADS, has_shared},
        .n_constants = 2,
        .n_binds = 5,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = vulkan_as(y, VULKAN_READ);
    d.binds[2] = vulkan_operand(r, &o->weight, VULKAN_READ, &push.weight_first);
    d.binds[3] = vulkan_operand(r, &o->x, VULKAN_READ | VULKAN_WRITE, &push.x_first);
    d.binds[4] = vulkan_as(shared, VULKAN_READ);
    return vulkan_add(r, &d);
}
