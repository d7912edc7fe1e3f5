/* route.c - recording ROUTE. */
#include "backend/cuda/ops/route.h"

#include "backend/cuda/host/cuda.h"
#include "backend/cuda/ops/project.h"
#include "backend/cuda/ops/project_fallback.h"
#include "base/size.h"

enum { ROWS_OF_BLOCK = 8, MAX_GROUPS = 8, MAX_CHOOSERS = 64 };

/* Rows are dealt to so many sets of blocks. */
static uint32_t row_groups(uint32_t rows) {
    return min_u32(div_up(rows, ROWS_OF_BLOCK), MAX_GROUPS);
}

static bool is_aligned(const struct op_route *o) {
    return o->in.offset % 16 == 0 && o->in.stride % 4 == 0 && o->in.dims[0] % 4 == 0;
}

int record_route(struct recorder *r, const struct op *op) {
    const struct op_route *o = &op->route;
    uint32_t rows = r->plan->max_rows, experts = o->router.dims[1], width = o->in.dims[0];
    uint32_t n = experts + (o->shared_gate.n_dims != 0), n_groups = row_groups(rows);
    struct route_params p = {
        .io = r->io,
        .in = recorder_at(r, &o->in),
        .norm = recorder_at(r, &o->norm),
        .router = recorder_at(r, &o->router),
        .shared_gate = recorder_at(r, &o->shared_gate),
        .keys = recorder_counters(r, (uint64_t)rows * (experts + 1)),
        .choice = recorder_at(r, &o->choice),
        .weight = recorder_at(r, &o->weight),
        .in_stride = o->in.stride,
        .choice_stride = o->choice.stride,
        .weight_stride = o->weight.stride,
        .width = width,
        .experts = experts,
        .used = o->used,
        .row_limit = rows,
        .choosers = max_u32(min_u32(MAX_CHOOSERS, r->n_sms / 2) / n_groups, 1),
        .is_aligned = is_aligned(o),
        .eps = o->eps,
    };
    uint64_t groups = div_up(experts, ROUTE_GROUP);
    uint64_t shared = (groups * (ROUTE_GROUP + 2ull * min_u32(o->used, ROUTE_GROUP)) + o->used) *
                      sizeof(uint32_t);
    if (shared > ROWS_MAX_SHARED)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "a router of %u experts does not fit shared memory", experts);
    /* A block keeps its router rows in registers over the rows it takes. Of one row there is a
     * block on every multiprocessor, and only one: then the next kernel's spread evenly. */
    struct cuda_launch launch = {
        .kernel = "route",
        .grid = {max_u32(div_up(n, ROUTE_PER_BLOCK), r->n_sms), n_groups, 1},
        .threads = ROUTE_BLOCK,
        .shared = rows == 1 ? max_u32((uint32_t)shared, PROJECT_SHARED_LEAST) : (uint32_t)shared,
    };
    return recorder_launch(r, &launch, &p, sizeof p);
}
