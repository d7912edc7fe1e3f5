/* embed.c - recording EMBED and TAP. */
#include "backend/cuda/embed.h"

#include "backend/cuda/cuda.h"

/* EMBED is the step's first kernel: it also brings IO onto the device and changes the page table,
 * which all attention layers share. */
static const struct operand *pages_of(const struct plan *plan) {
    for (uint32_t i = 0; i < plan->n_ops; i++)
        if (plan->ops[i].kind == OP_ATTEND)
            return &plan->ops[i].attend.pages;
    return NULL;
}

int record_embed(struct recorder *r, const struct op *op) {
    const struct op_embed *e = &op->embed;
    const struct operand *pages = pages_of(r->plan);
    struct embed_params p = {
        .io = r->io,
        .host_io = (const uint8_t *)(uintptr_t)(r->step ? r->b->io_copy.at : r->b->io_device),
        .io_copy = (uint8_t *)(uintptr_t)r->b->io_copy.at,
        .copy_bytes = r->step ? 0 : (uint32_t)r->plan->io.changes,
        .rows_at = (uint32_t)r->plan->io.rows,
        .changes_at = (uint32_t)r->plan->io.changes,
        .pages_per_slot = pages ? pages->dims[0] : 0,
        .pages = pages && !r->step ? recorder_at(r, pages) : NULL,
        .table = recorder_matrix(r, &e->table),
        .x = recorder_at(r, &e->x),
        .x_stride = e->x.stride,
        .freqs = recorder_at(r, &e->freqs),
        .n_freqs = e->freqs.n_dims ? e->freqs.dims[0] : 0,
        .rope_scale = e->rope_scale,
        .angles = recorder_at(r, &e->angles),
    };
    struct cuda_launch launch = {
        .kernel = "embed",
        .grid = {(e->table.dims[0] + 511) / 512 + 2, r->plan->max_rows, 1},
        .threads = 128,
    };
    return recorder_launch(r, &launch, &p, sizeof p);
}

/* Between two steps of a burst. A barrier: kernels may read STATE before they wait, and the step
 * before this one writes it. */
int record_advance(struct recorder *r) {
    const struct backend *b = r->b;
    struct advance_params p = {
        .io = r->io,
        .rows = (struct io_row *)r->io.rows,
        .segments = (struct io_segment *)r->io.segments,
        .burst = r->is_counting ? NULL : (int32_t *)(uintptr_t)(b->io_device + r->plan->io.burst),
        .step = r->step,
    };
    struct cuda_launch launch = {
        .kernel = "advance", .grid = {1, 1, 1}, .threads = 128, .is_barrier = true};
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
