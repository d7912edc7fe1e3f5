/* act_group.c - how many int8 activations share a scale in an op. */
#include "plan/plan.h"

enum { WIDE = 1, NARROW = 2, EIGHT_BITS = 4, OTHER = 8 };

/* What a matrix asks for. WIDE: groups of 128. NARROW: its rows do not allow them. EIGHT_BITS:
 * groups of 128 if no OTHER type is in the op. 0: nothing. */
static unsigned wanted_by(const struct operand *weight) {
    if (weight->n_dims == 0)
        return 0;
    switch (weight->type) {
    case DT_F32:
    case DT_F16:
    case DT_BF16:
        return 0;
    case DT_Q4_K:
    case DT_Q5_K:
    case DT_Q6_K:
        return WIDE; /* blocks of 256 */
    case DT_Q8_0:
        return weight->dims[0] % 128 ? NARROW : EIGHT_BITS;
    default:
        return weight->dims[0] % 128 ? NARROW : OTHER;
    }
}

static unsigned wanted_by_segments(const struct op_project *p) {
    unsigned wanted = 0;
    for (uint32_t i = 0; i < p->n_segments; i++)
        if (!p->segments[i].f32_act)
            wanted |= wanted_by(&p->segments[i].weight);
    return wanted;
}

uint32_t op_act_group(const struct op *op) {
    const struct op_experts_in *in = &op->experts_in;
    const struct op_experts_out *out = &op->experts_out;
    unsigned wanted = 0;
    if (op->kind == OP_PROJECT)
        wanted = wanted_by_segments(&op->project);
    if (op->kind == OP_EXPERTS_IN)
        wanted = wanted_by(&in->gate) | wanted_by(&in->up) | wanted_by(&in->shared_gate) |
                 wanted_by(&in->shared_up);
    if (op->kind == OP_EXPERTS_OUT)
        wanted = wanted_by(&out->down) | wanted_by(&out->shared_down);
    bool is_wide = wanted & WIDE || (wanted & EIGHT_BITS && !(wanted & OTHER));
    return is_wide && !(wanted & NARROW) ? 128 : 32;
}
