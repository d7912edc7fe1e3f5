/* route.c - ROUTE: the router's logits as products, then the choice of every row. */
#include "backend/vulkan/ops/product.h"

enum { ROUTE_THREADS = 128, MAX_EXPERTS = 2048 };

static int record_logits(struct vulkan_recorder *r, const struct vulkan_acts *acts,
                         const struct operand *weight, struct vulkan_bind out) {
    struct vulkan_product p = {
        .weight = weight,
        .acts = acts,
        .is_f32 = true,
        .rows = r->plan->max_rows,
        .out = vulkan_as(out, VULKAN_WRITE),
        .out_stride = weight->dims[1],
    };
    return vulkan_multiply(r, &p);
}

int vulkan_record_route(struct vulkan_recorder *r, const struct op *op) {
    const struct op_route *o = &op->route;
    uint32_t experts = o->router.dims[1], rows = r->plan->max_rows;
    bool has_shared = o->shared_switch.n_dims != 0;
    if (experts > MAX_EXPERTS)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED, "%u experts, expected %d at most", experts,
                       MAX_EXPERTS);
    struct vulkan_prologue q = {
        .in = o->in,
        .norm = o->norm,
        .prologue = PROLOGUE_NORM,
        .eps = o->eps,
        .rows = rows,
        .needs_f32 = true,
    };
    struct vulkan_acts acts;
    int status = vulkan_quantize(r, &q, &acts);
    struct vulkan_bind logits = vulkan_work(r, (uint64_t)rows * experts * sizeof(float));
    struct vulkan_bind gates = logits;
    if (!status)
        status = record_logits(r, &acts, &o->router, logits);
    if (!status && has_shared) {
        gates = vulkan_work(r, (uint64_t)rows * sizeof(float));
        status = record_logits(r, &acts, &o->shared_switch, gates);
    }
    if (status)
        return status;
    struct {
        uint32_t used, choice_first, choice_stride, weight_first, weight_stride;
    } push = {
        .used = o->used, .choice_stride = o->choice.stride, .weight_stride = o->weight.stride};
    struct vulkan_dispatch d = {
        .shader = "route",
        .groups = {rows, 1, 1},
        .constants = {ROUTE_THREADS, experts, has_shared, o->is_unnormed},
        .n_constants = 4,
        .n_binds = 5,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = vulkan_as(logits, VULKAN_READ);
    d.binds[2] = vulkan_operand(r, &o->choice, VULKAN_WRITE, &push.choice_first);
    d.binds[3] = vulkan_operand(r, &o->weight, VULKAN_READ | VULKAN_WRITE, &push.weight_first);
    d.binds[4] = vulkan_as(gates, VULKAN_READ);
    return vulkan_add(r, &d);
}
