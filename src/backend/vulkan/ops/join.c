/* join.c - recording JOIN and HIDDEN. */
#include "backend/vulkan/host/vulkan.h"
#include "base/size.h"

enum { THREADS = 512 };

/* The same in every plan: a row's bits depend on it. */
static uint32_t threads_of(const struct vulkan_recorder *r) {
    uint32_t threads = THREADS;
    while (threads > r->can->max_threads)
        threads /= 2;
    return threads;
}

int vulkan_record_join(struct vulkan_recorder *r, const struct op *op) {
    const struct op_join *j = &op->join;
    struct {
        uint32_t embed_first, embed_stride, x_first, x_stride, state_first, state_stride, out_first,
            out_stride;
        float eps;
    } push = {.embed_stride = j->embed.stride,
              .x_stride = j->x.stride,
              .state_stride = j->state.stride,
              .out_stride = j->out.stride,
              .eps = j->eps};
    bool has_x = j->x.n_dims != 0;
    struct vulkan_dispatch d = {
        .shader = "join",
        .has_stage = true,
        .groups = {r->plan->max_rows, 1, 1},
        .constants = {threads_of(r), j->embed.dims[0], threads_of(r), has_x},
        .n_constants = 4,
        .n_binds = 9,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = vulkan_operand(r, &j->embed, VULKAN_READ, &push.embed_first);
    d.binds[2] = vulkan_operand_or(r, &j->x, &j->embed, VULKAN_READ, &push.x_first);
    d.binds[3] = vulkan_operand(r, &j->state, VULKAN_READ, &push.state_first);
    d.binds[4] = vulkan_operand_or(r, &j->norm, &j->embed_norm, VULKAN_READ, NULL);
    d.binds[5] = vulkan_operand(r, &j->embed_norm, VULKAN_READ, NULL);
    d.binds[6] = vulkan_operand(r, &j->state_norm, VULKAN_READ, NULL);
    d.binds[7] = vulkan_operand(r, &j->out, VULKAN_WRITE, &push.out_first);
    d.binds[8] = vulkan_counter_words(r);
    return vulkan_add(r, &d);
}

int vulkan_record_hidden(struct vulkan_recorder *r, const struct op *op) {
    const struct op_hidden *h = &op->hidden;
    struct {
        uint32_t x_first, x_stride, state_first, state_stride;
        float eps;
    } push = {.x_stride = h->x.stride, .state_stride = h->state.stride, .eps = h->eps};
    struct vulkan_dispatch d = {
        .shader = "hidden",
        .has_stage = true,
        .groups = {r->plan->max_rows, 1, 1},
        .constants = {threads_of(r), h->x.dims[0], threads_of(r)},
        .n_constants = 3,
        .n_binds = 5,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = vulkan_operand(r, &h->x, VULKAN_READ, &push.x_first);
    d.binds[2] = vulkan_operand(r, &h->norm, VULKAN_READ, NULL);
    d.binds[3] = vulkan_operand(r, &h->state, VULKAN_WRITE, &push.state_first);
    d.binds[4] = vulkan_counter_words(r);
    return vulkan_add(r, &d);
}
