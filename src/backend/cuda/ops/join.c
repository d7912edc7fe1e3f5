/* join.c - recording JOIN and HIDDEN. */
#include "backend/cuda/ops/join.h"

#include "backend/cuda/host/cuda.h"

/* A thread block a row, also in plans of one row. With a block on every SM (README, rule 4) an LM
 * head that follows is spread unevenly, since those without a row end at once: 257 us instead of
 * 122 (qwen35-4b, H200, measured with HIDDEN right before it). */
static struct cuda_launch launch_of(const struct recorder *r, const char *kernel) {
    return (struct cuda_launch){
        .kernel = kernel, .grid = {r->plan->max_rows, 1, 1}, .threads = JOIN_THREADS};
}

int record_join(struct recorder *r, const struct op *op) {
    const struct op_join *o = &op->join;
    struct join_params p = {
        .io = r->io,
        .embed = recorder_at(r, &o->embed),
        .x = recorder_at(r, &o->x),
        .norm = recorder_at(r, &o->norm),
        .embed_norm = recorder_at(r, &o->embed_norm),
        .state_norm = recorder_at(r, &o->state_norm),
        .state = recorder_at(r, &o->state),
        .out = recorder_at(r, &o->out),
        .embed_stride = o->embed.stride,
        .x_stride = o->x.stride,
        .state_stride = o->state.stride,
        .out_stride = o->out.stride,
        .n_rows = r->plan->max_rows,
        .width = o->embed.dims[0],
        .eps = o->eps,
    };
    struct cuda_launch launch = launch_of(r, "join");
    return recorder_launch(r, &launch, &p, sizeof p);
}

int record_hidden(struct recorder *r, const struct op *op) {
    const struct op_hidden *o = &op->hidden;
    struct hidden_params p = {
        .io = r->io,
        .x = recorder_at(r, &o->x),
        .norm = recorder_at(r, &o->norm),
        .state = recorder_at(r, &o->state),
        .x_stride = o->x.stride,
        .state_stride = o->state.stride,
        .n_rows = r->plan->max_rows,
        .width = o->x.dims[0],
        .eps = o->eps,
    };
    struct cuda_launch launch = launch_of(r, "hidden");
    return recorder_launch(r, &launch, &p, sizeof p);
}
