/* pick.c - PICK: one kernel, which also ends the step. */
#include "backend/cuda/ops/pick.h"

#include "backend/cuda/host/cuda.h"
#include "base/size.h"

/* The last step of a burst sets the completion flag; the others move IO on to the next step. */
static void set_end(struct recorder *r, struct pick_params *p) {
    const struct backend *b = r->b;
    if (r->is_counting || r->op + 1 < r->plan->n_ops)
        return;
    p->step = r->step;
    if (r->step + 1 < r->n_steps) {
        p->burst = (int32_t *)(uintptr_t)(b->io_device + r->plan->io.burst);
    } else {
        p->done = (uint64_t *)(uintptr_t)b->done_device;
        p->end_stamp = recorder_end_stamp(r);
    }
}

int record_pick(struct recorder *r, const struct op *op) {
    const struct op_pick *o = &op->pick;
    uint64_t outputs = r->plan->max_outputs;
    struct pick_params p = {
        .io = r->io,
        .logits = recorder_at(r, &o->logits),
        .wanted = r->has_wanted ? NULL : recorder_at(r, &o->wanted),
        .counts = recorder_at(r, &o->counts),
        .adjusted = recorder_at(r, &o->adjusted),
        .candidates = recorder_at(r, &o->order),
        .histograms = recorder_work(r, outputs * PICK_BINS * sizeof *p.histograms),
        .states = (void *)recorder_counters(r, outputs * sizeof *p.states / sizeof(uint32_t)),
        .rows_done = recorder_counters(r, 1),
        .lm_head_best = r->head_best,
        .vocab = o->logits.dims[0],
        .max_outputs = r->plan->max_outputs,
        .logits_stride = o->logits.stride,
        .wanted_stride = o->wanted.stride,
        .counts_stride = o->counts.stride,
        .adjusted_stride = o->adjusted.stride,
        .candidates_stride = o->order.stride,
    };
    const struct cuda_launch launch = {
        .kernel = "pick",
        .grid = {r->n_sms < PICK_BINS ? r->n_sms : PICK_BINS, 1, 1},
        .threads = PICK_THREADS,
        /* The step's tokens, for penalties; the compiler reads four at once. */
        .shared = (uint32_t)size_aligned(r->plan->max_rows * sizeof(int32_t), 16),
    };
    set_end(r, &p);
    return recorder_launch(r, &launch, &p, sizeof p);
}
