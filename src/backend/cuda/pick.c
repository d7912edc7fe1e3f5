/* pick.c - PICK as kernels: the best of every row, then what sampling takes.
 *
 * Three launches, because all blocks must know a row's largest logit before they can weigh the
 * others, and all weights before the candidates are few. Where no row samples, the second and the
 * third return at once. */
#include "backend/cuda/pick.h"

#include "backend/cuda/cuda.h"

int record_pick(struct recorder *r, const struct op *op) {
    static const char *const kernels[] = {"pick_best", "pick_weigh", "pick_draw"};
    const struct op_pick *o = &op->pick;
    uint64_t outputs = r->plan->max_outputs;
    uint32_t blocks = r->n_sms < PICK_BINS ? r->n_sms : PICK_BINS;
    const struct pick_params p = {
        .io = r->io,
        .logits = recorder_at(r, &o->logits),
        .wanted = recorder_at(r, &o->wanted),
        .counts = recorder_at(r, &o->counts),
        .room = recorder_at(r, &o->room),
        .order = recorder_at(r, &o->order),
        .bests = recorder_work(r, outputs * blocks * sizeof *p.bests),
        .weights = recorder_work(r, outputs * PICK_BINS * sizeof *p.weights),
        .counters = recorder_counters(r, outputs * 2),
        .vocab = o->logits.dims[0],
        .max_outputs = r->plan->max_outputs,
        .logits_stride = o->logits.stride,
        .wanted_stride = o->wanted.stride,
        .counts_stride = o->counts.stride,
        .room_stride = o->room.stride,
        .order_stride = o->order.stride,
    };
    int status = SLUICE_OK;
    for (int i = 0; !status && i < 3; i++) {
        const struct cuda_launch launch = {
            .kernel = kernels[i],
            .grid = {blocks, 1, 1},
            .threads = PICK_THREADS,
            /* The best: tokens of the step, for their penalties. */
            .shared = i == 0 ? r->plan->max_rows * (uint32_t)sizeof(int32_t) : 0,
        };
        status = recorder_launch(r, &launch, &p, sizeof p);
    }
    return status;
}
