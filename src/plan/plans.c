/* plans.c - facts about plans that every device backend needs. */
#include <stdio.h>

#include "plan/build.h"
#include "plan/io.h"

uint64_t plans_bytes(struct plan *const *plans, uint32_t n_plans, enum region region) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_plans; i++)
        bytes = plans[i]->bytes[region] > bytes ? plans[i]->bytes[region] : bytes;
    return bytes;
}

uint64_t plans_copied_io(struct plan *const *plans, uint32_t n_plans) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_plans; i++)
        bytes = plans[i]->io.changes > bytes ? plans[i]->io.changes : bytes;
    return bytes;
}

const struct op *plan_pick_of(const struct plan *plan, uint32_t head) {
    const struct op *op = &plan->ops[head];
    for (uint32_t i = head + 1; i < plan->n_ops; i++)
        if (plan->ops[i].kind == OP_PICK &&
            plan->ops[i].pick.logits.offset == op->project.out.offset)
            return &plan->ops[i];
    return NULL;
}

bool plan_wants_burst(const struct plan *plan) {
    enum { MAX_ROWS = 32 };
    return 2 * plan->max_outputs > plan->max_rows && plan->max_rows <= MAX_ROWS && !plan->n_taps &&
           plan_burst_steps(plan) > 1 && plan->n_ops > 0 &&
           plan->ops[plan->n_ops - 1].kind == OP_PICK;
}

uint32_t plan_burst_steps(const struct plan *plan) {
    return plan->burst_steps ? plan->burst_steps : IO_BURST;
}

const char *plan_op_text(const struct plan *plan, uint32_t i, char *text, size_t size) {
    const struct op *op = i < plan->n_ops ? &plan->ops[i] : NULL;
    if (!op)
        snprintf(text, size, "the step's end");
    else if (op->layer < 0)
        snprintf(text, size, "op %u (%s)", i, op->role);
    else
        snprintf(text, size, "op %u (%s of layer %d)", i, op->role, op->layer);
    return text;
}
