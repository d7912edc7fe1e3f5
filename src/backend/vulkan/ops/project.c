/* project.c - PROJECT: out = epilogue(weights * prologue(in)), a product a segment. */
#include "backend/vulkan/ops/product.h"

static bool takes_f32(const struct vulkan_recorder *r, const struct segment *s) {
    return s->f32_act || vulkan_takes_f32(r, &s->weight);
}

static struct vulkan_part part_of(const struct segment *s) {
    return (struct vulkan_part){&s->weight, &s->bias, s->column};
}

/* Segment i into its columns of out; acts NULL: the product prepares its row itself. */
static int record_segment(struct vulkan_recorder *r, const struct op *op,
                          const struct vulkan_acts *acts, const struct vulkan_prologue *prologue,
                          uint32_t i, enum product_epilogue epilogue) {
    const struct op_project *p = &op->project;
    const struct segment *s = &p->segments[i], *next = s + 1;
    if (!acts) {
        bool is_pair = epilogue == PRODUCT_SWIGLU;
        struct vulkan_part parts[] = {part_of(s), part_of(is_pair ? next : s)};
        struct vulkan_row row = {.parts = parts,
                                 .n_parts = is_pair ? 2 : 1,
                                 .prologue = prologue,
                                 .epilogue = epilogue,
                                 .is_f32 = takes_f32(r, s),
                                 .is_head = p->is_lm_head,
                                 .out = &p->out};
        return vulkan_multiply_row(r, &row);
    }
    struct operand out = operand_columns(p->out, s->column, s->weight.dims[1]);
    struct vulkan_product product = {
        .weight = &s->weight,
        .bias = &s->bias,
        .acts = acts,
        .is_f32 = takes_f32(r, s),
        .act_group = op_act_group(op),
        .epilogue = epilogue,
        .rows = prologue->rows,
        .is_head = p->is_lm_head,
        .out_stride = p->out.stride,
    };
    if (epilogue == PRODUCT_SWIGLU) {
        product.second = &next->weight;
        product.second_bias = &next->bias;
    }
    bool is_read = epilogue == PRODUCT_ADD || epilogue == PRODUCT_GATED;
    product.out = vulkan_operand(r, &out, is_read ? VULKAN_READ | VULKAN_WRITE : VULKAN_WRITE,
                                 &product.out_first);
    return vulkan_multiply(r, &product);
}

/* The segments of one type and one type of activations. */
static int record_type(struct vulkan_recorder *r, const struct op *op,
                       const struct vulkan_prologue *prologue, enum product_epilogue epilogue,
                       uint32_t type, bool is_f32) {
    const struct op_project *p = &op->project;
    struct vulkan_part parts[MAX_SEGMENTS];
    struct vulkan_row row = {.parts = parts,
                             .prologue = prologue,
                             .epilogue = epilogue,
                             .is_f32 = is_f32,
                             .is_head = p->is_lm_head,
                             .out = &p->out};
    for (uint32_t i = 0; i < p->n_segments; i++)
        if (p->segments[i].weight.type == type && takes_f32(r, &p->segments[i]) == is_f32)
            parts[row.n_parts++] = part_of(&p->segments[i]);
    return row.n_parts ? vulkan_multiply_row(r, &row) : SLUICE_OK;
}

/* Segments with f32 activations are small, and should not begin when large ones end. */
static int record_rows(struct vulkan_recorder *r, const struct op *op,
                       const struct vulkan_prologue *prologue, enum product_epilogue epilogue) {
    int status = SLUICE_OK;
    for (uint32_t type = 0; !status && type < DT_COUNT; type++)
        status = record_type(r, op, prologue, epilogue, type, true);
    for (uint32_t type = 0; !status && type < DT_COUNT; type++)
        status = record_type(r, op, prologue, epilogue, type, false);
    return status;
}

/* Whether the input is overwritten: then it must be read before. */
static bool is_in_place(const struct op_project *p) {
    return p->in.region == p->out.region && p->in.offset < p->out.offset + operand_bytes(&p->out) &&
           p->out.offset < p->in.offset + operand_bytes(&p->in);
}

int vulkan_record_project(struct vulkan_recorder *r, const struct op *op) {
    const struct op_project *p = &op->project;
    struct vulkan_prologue q = {
        .in = p->in,
        .norm = p->norm,
        .gate = p->gate,
        .prologue = p->prologue,
        .head_width = p->head_width,
        .gate_stride = p->gate_stride,
        .eps = p->eps,
        .rows = p->is_lm_head ? r->plan->max_outputs : r->plan->max_rows,
        .is_head = p->is_lm_head,
        .act_group = op_act_group(op),
    };
    q.is_plain = true;
    for (uint32_t i = 0; i < p->n_segments; i++) {
        q.is_plain &= vulkan_is_plain(&p->segments[i].weight);
        q.needs_f32 |= takes_f32(r, &p->segments[i]);
        q.needs_int8 |= !takes_f32(r, &p->segments[i]);
    }
    struct vulkan_acts in_work, *acts = NULL;
    int status = SLUICE_OK;
    if (!vulkan_can_fuse(r, &q) || is_in_place(p)) {
        acts = &in_work;
        status = vulkan_quantize(r, &q, acts);
    }
    if (p->epilogue == EPILOGUE_SWIGLU) {
        const struct segment *a = &p->segments[0], *b = &p->segments[1];
        if (vulkan_is_pair(r, &a->weight, &b->weight) && takes_f32(r, a) == takes_f32(r, b) &&
            !a->bias.n_dims == !b->bias.n_dims)
            return status ? status : record_segment(r, op, acts, &q, 0, PRODUCT_SWIGLU);
        if (!status)
            status = record_segment(r, op, acts, &q, 0, PRODUCT_STORE);
        return status ? status : record_segment(r, op, acts, &q, 1, PRODUCT_GATED);
    }
    enum product_epilogue epilogue = p->epilogue == EPILOGUE_ADD ? PRODUCT_ADD : PRODUCT_STORE;
    if (!acts)
        return record_rows(r, op, &q, epilogue);
    /* As in record_rows. */
    for (uint32_t i = 0; !status && i < 2 * p->n_segments; i++)
        if (takes_f32(r, &p->segments[i % p->n_segments]) == (i < p->n_segments))
            status = record_segment(r, op, acts, &q, i % p->n_segments, epilogue);
    return status;
}
