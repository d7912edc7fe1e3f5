/* embed.c - recording EMBED and TAP. */
#include "backend/cuda/ops/embed.h"

#include "backend/cuda/host/cuda.h"
#include "base/size.h"

static bool is_float(uint32_t type) {
    return type == DT_F32 || type == DT_F16 || type == DT_BF16;
}

/* A step's first op is an EMBED, and brings IO to the device. In the later steps of a burst IO is
 * there already. There the kernel is no programmatic dependent but waits for the whole step before:
 * kernels may read STATE before their pdl_wait, and that step writes it. A later EMBED of a step
 * (of a draft block) reads rows of its table and nothing else. */
int record_embed(struct recorder *r, const struct op *op) {
    const struct op_embed *e = &op->embed;
    const struct operand *pages = &r->plan->pages;
    bool begins_step = r->op == 0, copies_io = begins_step && r->step == 0;
    struct embed_params p = {
        .io = r->io,
        .host_io = (const uint8_t *)(uintptr_t)(copies_io ? r->b->io_device : r->b->io_copy.at),
        .io_copy = (uint8_t *)(uintptr_t)r->b->io_copy.at,
        .n_rows = r->plan->max_rows,
        .rows_at = (uint32_t)r->plan->io.rows,
        .changes_at = (uint32_t)r->plan->io.changes,
        .max_changes = r->plan->io.max_changes,
        .pages_per_slot = pages->dims[0],
        .clears_argmax = begins_step && !copies_io,
        .page_table = recorder_at(r, pages),
        .table = recorder_matrix(r, &e->table),
        .x = recorder_at(r, &e->x),
        .x_stride = e->x.stride,
        .freqs = recorder_at(r, &e->freqs),
        .n_freqs = e->freqs.n_dims ? e->freqs.dims[0] : 0,
        .rope_scale = e->rope_scale,
        .angles = recorder_at(r, &e->angles),
    };
    uint32_t values_per_thread = p.table.is_tiled || is_float(p.table.type) ? 4 : 32;
    struct cuda_launch launch = {
        .kernel = "embed",
        .grid = {div_up(e->table.dims[0], values_per_thread * EMBED_ROW_THREADS),
                 p.n_rows + copies_io, 1},
        .threads = EMBED_THREADS,
        .is_barrier = begins_step && !copies_io,
    };
    return recorder_launch(r, &launch, &p, sizeof p);
}

int record_tap(struct recorder *r, const struct op *op) {
    const struct op_tap *t = &op->tap;
    struct tap_params p = {
        .io = r->io,
        .x = recorder_at(r, &t->x),
        .norm = recorder_at(r, &t->norm),
        .out = recorder_at(r, &t->out),
        .x_stride = t->x.stride,
        .out_stride = t->out.stride,
        .width = t->x.dims[0],
        .eps = t->eps,
    };
    struct cuda_launch launch = {
        .kernel = "tap", .grid = {r->plan->max_outputs, 1, 1}, .threads = 256};
    return recorder_launch(r, &launch, &p, sizeof p);
}
