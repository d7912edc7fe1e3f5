/* route.c - recording ROUTE: thread blocks, and shared memory of the top-k. */
#include "backend/cuda/ops/route.h"

#include "backend/cuda/host/cuda.h"
#include "backend/cuda/ops/project.h"
#include "backend/cuda/ops/project_fallback.h"
#include "base/size.h"

enum {
    GROUP_ROWS = 8, /* rows that share thread blocks, which keep router rows in registers */
    MAX_ROW_GROUPS = 8,
    MAX_TOPK_BLOCKS = 64, /* they wait for others, so they must never fill the device */
    WIDE_MIN_ROWS = 512,
};

static bool is_aligned(const struct op_route *o) {
    return o->in.offset % 16 == 0 && o->in.stride % 4 == 0 && o->in.dims[0] % 4 == 0;
}

/* For many rows. False: not for this op. */
static bool record_wide(struct recorder *r, const struct route_params *p, int *status) {
    enum { MAX_SHARED = 160 << 10 };
    uint64_t words = (uint64_t)ROUTE_THREADS * 4 * ROUTE_WIDE_SLOTS +
                     (uint64_t)ROUTE_THREADS / 32 * ROUTE_WIDE_BATCH * ROUTE_WIDE_ROWS +
                     (uint64_t)ROUTE_WIDE_ROWS * (p->experts + 1 + p->used);
    if (p->row_limit < WIDE_MIN_ROWS || p->width > 4 * ROUTE_THREADS || !p->is_aligned ||
        words * sizeof(uint32_t) > min_u32(MAX_SHARED, r->b->max_shared))
        return false;
    struct cuda_launch launch = {.kernel = "route_wide",
                                 .grid = {div_up(p->row_limit, ROUTE_WIDE_ROWS), 1, 1},
                                 .threads = ROUTE_THREADS,
                                 .shared = (uint32_t)(words * sizeof(uint32_t))};
    *status = recorder_launch(r, &launch, p, sizeof *p);
    return true;
}

int record_route(struct recorder *r, const struct op *op) {
    const struct op_route *o = &op->route;
    uint32_t rows = r->plan->max_rows, experts = o->router.dims[1], width = o->in.dims[0];
    uint32_t n = experts + (o->shared_switch.n_dims != 0),
             row_groups = min_u32(div_up(rows, GROUP_ROWS), MAX_ROW_GROUPS);
    struct route_params p = {
        .io = r->io,
        .in = recorder_at(r, &o->in),
        .norm = recorder_at(r, &o->norm),
        .router = recorder_at(r, &o->router),
        .shared_gate = recorder_at(r, &o->shared_switch),
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
        .topk_blocks = max_u32(min_u32(MAX_TOPK_BLOCKS, r->n_sms / 2) / row_groups, 1),
        .is_aligned = is_aligned(o),
        .is_unnormed = o->is_unnormed,
        .eps = o->eps,
    };
    int status;
    if (record_wide(r, &p, &status))
        return status;
    uint64_t warps = div_up(experts, ROUTE_WARP_EXPERTS),
             kept = min_u32(o->used, ROUTE_WARP_EXPERTS);
    uint64_t shared = (warps * (ROUTE_WARP_EXPERTS + 2 * kept) + o->used) * sizeof(uint32_t);
    if (shared > FALLBACK_MAX_SHARED)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "a router of %u experts does not fit shared memory", experts);
    /* With one row: a thread block on every SM, and only one (README, rule 4). */
    struct cuda_launch launch = {
        .kernel = "route",
        .grid = {max_u32(div_up(n, ROUTE_BLOCK_LOGITS), r->n_sms), row_groups, 1},
        .threads = ROUTE_THREADS,
        .shared = rows == 1 ? max_u32((uint32_t)shared, PROJECT_SHARED_LEAST) : (uint32_t)shared,
    };
    return recorder_launch(r, &launch, &p, sizeof p);
}
