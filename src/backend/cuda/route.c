/* route.c - recording ROUTE. */
#include "backend/cuda/route.h"

#include "backend/cuda/cuda.h"
#include "backend/cuda/project_rows.h"

int record_route(struct recorder *r, const struct op *op) {
    const struct op_route *o = &op->route;
    uint32_t rows = r->plan->max_rows, experts = o->router.dims[1], width = o->in.dims[0];
    uint32_t n = experts + (o->shared_gate.n_dims != 0);
    struct route_params p = {
        .io = r->io,
        .in = recorder_at(r, &o->in),
        .norm = recorder_at(r, &o->norm),
        .router = recorder_at(r, &o->router),
        .shared_gate = recorder_at(r, &o->shared_gate),
        .logits = recorder_work(r, (uint64_t)rows * (experts + 1) * sizeof(float)),
        .arrived = recorder_counters(r, rows),
        .choice = recorder_at(r, &o->choice),
        .weight = recorder_at(r, &o->weight),
        .in_stride = o->in.stride,
        .choice_stride = o->choice.stride,
        .weight_stride = o->weight.stride,
        .width = width,
        .experts = experts,
        .used = o->used,
        .eps = o->eps,
    };
    uint64_t shared =
        ((width + 3) / 4 * 4 + (experts + 3) / 4 * 4 + o->used) * (uint64_t)sizeof(float);
    if (shared > ROWS_MAX_SHARED)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "a router of %u experts and width %u does not fit shared memory", experts,
                       width);
    /* A block keeps its router rows in registers over the rows it takes. */
    struct cuda_launch launch = {
        .kernel = "route",
        .grid = {(n + ROUTE_PER_BLOCK - 1) / ROUTE_PER_BLOCK, rows < 8 ? rows : 8, 1},
        .threads = STREAM_BLOCK,
        .shared = (uint32_t)shared,
    };
    return recorder_launch(r, &launch, &p, sizeof p);
}
