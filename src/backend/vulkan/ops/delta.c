/* delta.c - DELTA: one dispatch in plans of one row; in others one before it, which convolves the
 * segments of several rows. */
#include <math.h>

#include "backend/vulkan/host/vulkan.h"
#include "base/size.h"

enum {
    LANES = 4,      /* of a row of S; */
    ONE_LANES = 16, /* in plans of one row */
    COLUMNS = 32,   /* rows of S that a workgroup has */
    CONV_ROWS = 4,  /* of a workgroup in delta_conv.comp */
    MAX_WIDTH = 256,
    MAX_PARALLEL = 32, /* segments that are computed at once; a workgroup loops over more */
};

struct delta_push {
    uint32_t in_first, in_stride, conv_first, a_first, dt_first, out_first, out_stride;
    uint32_t beta_column, alpha_column;
    float q_scale;
};

static int check(struct vulkan_recorder *r, const struct op_delta *d) {
    if (d->key_width > MAX_WIDTH || d->value_width > MAX_WIDTH)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "op %u, delta: heads of %u keys and %u values, the Vulkan backend has at "
                       "most %d",
                       r->op, d->key_width, d->value_width, MAX_WIDTH);
    if (operand_bytes(&d->state) > r->can->max_range)
        return err_set(
            r->err, SLUICE_ERR_UNSUPPORTED,
            "op %u, delta: %llu MiB of states a layer, the device has buffers of at most "
            "%llu MiB: fewer sequences or snapshots would fit",
            r->op, (unsigned long long)(operand_bytes(&d->state) >> 20),
            (unsigned long long)(r->can->max_range >> 20));
    return 0;
}

/* What both dispatches begin with. */
static struct vulkan_dispatch begin(struct vulkan_recorder *r, const struct op_delta *d,
                                    struct delta_push *push) {
    *push = (struct delta_push){.in_stride = d->in.stride,
                                .out_stride = d->out.stride,
                                .beta_column = d->beta_column,
                                .alpha_column = d->alpha_column,
                                .q_scale = 1 / sqrtf((float)d->key_width)};
    bool is_one = r->plan->max_rows == 1;
    uint32_t limit = min_u32(r->can->subgroup_size, r->can->max_threads / COLUMNS);
    uint32_t lanes = is_one ? min_u32(ONE_LANES, limit) : LANES;
    struct vulkan_dispatch dispatch = {
        .constants = {lanes * COLUMNS, d->key_heads, d->value_heads, d->key_width, d->value_width,
                      d->conv_width, d->head_map == HEADS_TILED, is_one, d->key_width % 4 == 0,
                      d->state.dims[3], lanes, COLUMNS},
        .n_constants = 12,
        .push = push,
        .push_bytes = sizeof *push,
    };
    uint32_t zero;
    dispatch.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    dispatch.binds[1] = vulkan_operand(r, &d->in, VULKAN_READ, &push->in_first);
    dispatch.binds[2] = vulkan_operand(r, &d->conv, VULKAN_READ, &push->conv_first);
    dispatch.binds[3] = vulkan_operand(r, &d->window, VULKAN_READ, &zero);
    return dispatch;
}

static int add_conv(struct vulkan_recorder *r, const struct op_delta *d, struct vulkan_bind y,
                    struct vulkan_bind qk) {
    struct delta_push push;
    struct vulkan_dispatch conv = begin(r, d, &push);
    conv.shader = "delta_conv";
    conv.groups[0] = d->key_heads + d->value_heads;
    conv.groups[1] = div_up(r->plan->max_rows, CONV_ROWS);
    conv.groups[2] = 1;
    conv.binds[4] = vulkan_as(y, VULKAN_WRITE);
    conv.binds[5] = vulkan_as(qk, VULKAN_WRITE);
    conv.n_binds = 6;
    return vulkan_add(r, &conv);
}

static int add_rule(struct vulkan_recorder *r, const struct op_delta *d, struct vulkan_bind y,
                    struct vulkan_bind qk) {
    struct delta_push push;
    struct vulkan_dispatch rule = begin(r, d, &push);
    uint32_t zero;
    rule.shader = "delta";
    rule.needs_full_subgroups = true;
    rule.groups[0] = d->value_heads * div_up(d->value_width, COLUMNS);
    rule.groups[1] = min_u32(min_u32(r->plan->max_rows, d->state.dims[3]), MAX_PARALLEL);
    rule.groups[2] = 1;
    rule.binds[3] = vulkan_as(rule.binds[3], VULKAN_READ | VULKAN_WRITE);
    rule.binds[4] = vulkan_as(y, VULKAN_READ);
    rule.binds[5] = vulkan_as(qk, VULKAN_READ);
    rule.binds[6] = vulkan_operand(r, &d->state, VULKAN_READ | VULKAN_WRITE, &zero);
    rule.binds[7] = vulkan_operand(r, &d->a, VULKAN_READ, &push.a_first);
    rule.binds[8] = vulkan_operand(r, &d->dt, VULKAN_READ, &push.dt_first);
    rule.binds[9] = vulkan_operand(r, &d->out, VULKAN_WRITE, &push.out_first);
    rule.binds[10] = vulkan_counter_words(r);
    rule.n_binds = 11;
    rule.has_stage = r->plan->max_rows == 1;
    return vulkan_add(r, &rule);
}

int vulkan_record_delta(struct vulkan_recorder *r, const struct op *op) {
    const struct op_delta *d = &op->delta;
    int status = check(r, d);
    if (status)
        return status;
    bool is_fused = r->plan->max_rows == 1;
    uint64_t rows = r->plan->max_rows, key = div_up(d->key_width, 64) * 64;
    uint64_t values = 2 * d->key_heads * key + (uint64_t)d->value_heads * d->value_width;
    struct vulkan_bind y = vulkan_work(r, is_fused ? 16 : rows * values * sizeof(float)),
                       qk = vulkan_work(r, is_fused ? 16 : rows * d->key_heads * sizeof(float));
    if (!is_fused)
        status = add_conv(r, d, y, qk);
    return status ? status : add_rule(r, d, y, qk);
}
