/* state_layout.c - STATE as the ops of a plan use it: which arrays there are, and where. */
#include "engine/state.h"
#include "plan/build.h"

static struct state_array array_of(const struct operand *o) {
    if (o->n_dims == 0)
        return (struct state_array){0};
    return (struct state_array){o->offset, operand_bytes(o) / o->dims[o->n_dims - 1], 1};
}

static void add_array(struct state_array *list, uint32_t *n, const struct operand *o,
                      uint64_t *sum) {
    struct state_array array = array_of(o);
    list[(*n)++] = array;
    *sum += array.bytes;
}

static void add_paged(struct state_layout *l, const struct operand *o) {
    add_array(l->paged, &l->n_paged, o, &l->page_bytes);
    l->paged[l->n_paged - 1].n_heads = o->dims[2];
    l->n_heads += o->dims[2];
}

int state_layout_of(struct state_layout *l, const struct plan *plan, struct arena *arena,
                    struct err *err) {
    *l = (struct state_layout){
        .recurrent = arena_array(arena, plan->n_ops, 2 * sizeof *l->recurrent),
        .paged = arena_array(arena, plan->n_ops, 2 * sizeof *l->paged),
    };
    if (!l->recurrent || !l->paged)
        return err_memory(err, "the layout of sequences");
    l->table = array_of(&plan->pages);
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const struct op *op = &plan->ops[i];
        if (op->kind == OP_DELTA) {
            add_array(l->recurrent, &l->n_recurrent, &op->delta.state, &l->recurrent_bytes);
            add_array(l->recurrent, &l->n_recurrent, &op->delta.window, &l->recurrent_bytes);
        } else if (op->kind == OP_HIDDEN) {
            add_array(l->recurrent, &l->n_recurrent, &op->hidden.state, &l->recurrent_bytes);
        } else if (op->kind == OP_ATTEND) {
            add_paged(l, &op->attend.keys);
            add_paged(l, &op->attend.values);
        } else if (op->kind == OP_PICK) {
            l->counts = array_of(&op->pick.counts);
        }
    }
    l->slot_bytes = l->recurrent_bytes + l->table.bytes + l->counts.bytes;
    return SLUICE_OK;
}
