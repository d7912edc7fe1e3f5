/* experts_fallback.c - recording EXPERTS_IN and EXPERTS_OUT; here on weight rows as in the file. */
#include "backend/cuda/ops/experts_fallback.h"

#include "backend/cuda/host/cuda.h"
#include "backend/cuda/ops/experts.h"
#include "base/size.h"

static int launch(struct recorder *r, const char *kernel, uint32_t blocks, uint64_t shared,
                  const void *p, size_t bytes) {
    if (shared > FALLBACK_MAX_SHARED)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "%s needs %llu bytes of shared memory, a block has at most %d", kernel,
                       (unsigned long long)shared, FALLBACK_MAX_SHARED);
    struct cuda_launch l = {.kernel = kernel,
                            .grid = {blocks, r->plan->max_rows, 1},
                            .threads = FALLBACK_THREADS,
                            .shared = (uint32_t)shared};
    return recorder_launch(r, &l, p, bytes);
}

/* ---- EXPERTS_IN --------------------------------------------------------------------------- */

/* Gate or up of the routed experts, the shared one, or both; NULL: not. */
static int record_in(struct recorder *r, const struct op *op, const struct fallback_acts *acts,
                     const struct operand *routed, const struct operand *shared,
                     enum fallback_epilogue epilogue) {
    const struct op_experts_in *o = &op->experts_in;
    const struct operand *w = routed ? routed : shared;
    struct experts_in_fallback_params p = {
        .io = r->io,
        .acts = *acts,
        .choice = recorder_at(r, &o->choice),
        .hidden = recorder_at(r, &o->hidden),
        .choice_stride = o->choice.stride,
        .hidden_stride = o->hidden.stride,
        .k = o->in.dims[0],
        .used = o->choice.dims[0] - 1,
        .routed_width = o->gate.dims[1],
        .epilogue = (uint32_t)epilogue,
    };
    if (routed)
        p.routed = recorder_matrix(r, routed);
    if (shared)
        p.shared = recorder_matrix(r, shared);
    uint64_t rows = (uint64_t)p.used * p.routed.n + p.shared.n;
    int status = fallback_format(r, w, &p.format);
    return status ? status
                  : launch(r,
                           fallback_is_f32(r, w) ? "experts_in_fallback_f32"
                                                 : "experts_in_fallback_int8",
                           rows < r->n_sms ? (uint32_t)rows : r->n_sms, FALLBACK_PIPELINE_BYTES, &p,
                           sizeof p);
}

/* Gate or up of all experts, in one launch where their types allow it. */
static int record_in_all(struct recorder *r, const struct op *op, const struct fallback_acts *acts,
                         const struct operand *routed, const struct operand *shared,
                         enum fallback_epilogue epilogue) {
    if (!shared->n_dims)
        return record_in(r, op, acts, routed, NULL, epilogue);
    if (shared->type == routed->type)
        return record_in(r, op, acts, routed, shared, epilogue);
    int status = record_in(r, op, acts, routed, NULL, epilogue);
    return status ? status : record_in(r, op, acts, NULL, shared, epilogue);
}

static bool needs_int8(const struct recorder *r, const struct op_experts_in *o) {
    bool has_shared = o->shared_gate.n_dims;
    return !fallback_is_f32(r, &o->gate) || !fallback_is_f32(r, &o->up) ||
           (has_shared &&
            (!fallback_is_f32(r, &o->shared_gate) || !fallback_is_f32(r, &o->shared_up)));
}

int record_experts_in(struct recorder *r, const struct op *op) {
    const struct op_experts_in *o = &op->experts_in;
    int status;
    if (record_experts_in_tiled(r, op, &status))
        return status;
    struct fallback_quantize_params q = {
        .io = r->io,
        .in = recorder_at(r, &o->in),
        .norm = recorder_at(r, &o->norm),
        .in_stride = o->in.stride,
        .k = o->in.dims[0],
        .prologue = PROLOGUE_NORM,
        .eps = o->eps,
        .act_group = op_act_group(op),
    };
    status = record_fallback_quantize(r, r->plan->max_rows, needs_int8(r, o), &q);
    if (!status)
        status = record_in_all(r, op, &q.to, &o->gate, &o->shared_gate, FALLBACK_STORE);
    return status ? status : record_in_all(r, op, &q.to, &o->up, &o->shared_up, FALLBACK_GATED);
}

/* ---- EXPERTS_OUT -------------------------------------------------------------------------- */

/* The part of hidden that a launch reads: quantized, or as it is where f32 rows begin at multiples
 * of 16 bytes. */
static int record_activations(struct recorder *r, const struct op *op, const struct operand *weight,
                              uint64_t first, uint64_t n, struct fallback_acts *out) {
    const struct op_experts_out *o = &op->experts_out;
    float *hidden = recorder_at(r, &o->hidden);
    hidden = hidden ? hidden + first : NULL;
    bool is_f32 = fallback_is_f32(r, weight);
    if (is_f32 && first % 4 == 0 && o->hidden.stride % 4 == 0) {
        *out = (struct fallback_acts){.x = hidden, .x_stride = o->hidden.stride};
        return SLUICE_OK;
    }
    struct fallback_quantize_params q = {
        .io = r->io,
        .in = hidden,
        .in_stride = o->hidden.stride,
        .k = (uint32_t)n,
        .prologue = PROLOGUE_NONE,
        .act_group = op_act_group(op),
    };
    int status = record_fallback_quantize(r, r->plan->max_rows, !is_f32, &q);
    *out = q.to;
    return status;
}

static int record_out(struct recorder *r, const struct op *op, const struct operand *routed,
                      const struct operand *shared) {
    const struct op_experts_out *o = &op->experts_out;
    const struct operand *w = routed ? routed : shared;
    struct experts_out_fallback_params p = {
        .io = r->io,
        .choice = recorder_at(r, &o->choice),
        .weight = recorder_at(r, &o->weight),
        .x = recorder_at(r, &o->x),
        .choice_stride = o->choice.stride,
        .weight_stride = o->weight.stride,
        .x_stride = o->x.stride,
        .k = w->dims[0],
        .used = o->choice.dims[0] - 1,
        .width = o->x.dims[0],
    };
    if (routed)
        p.routed = recorder_matrix(r, routed);
    if (shared)
        p.shared = recorder_matrix(r, shared);
    p.block_outputs = div_up(p.width, r->n_sms);
    uint64_t places = (routed ? p.used : 0) + (shared ? 1 : 0);
    uint64_t first = routed ? 0 : o->hidden.dims[0] - shared->dims[0];
    int status = fallback_format(r, w, &p.format);
    if (!status)
        status = record_activations(r, op, w, first, places * p.k, &p.acts);
    return status ? status
                  : launch(r,
                           fallback_is_f32(r, w) ? "experts_out_fallback_f32"
                                                 : "experts_out_fallback_int8",
                           r->n_sms,
                           FALLBACK_PIPELINE_BYTES + places * p.block_outputs * sizeof(float), &p,
                           sizeof p);
}

/* Where two launches are needed the shared expert is added last, as in one. */
int record_experts_out(struct recorder *r, const struct op *op) {
    const struct op_experts_out *o = &op->experts_out;
    int status;
    if (record_experts_out_tiled(r, op, &status))
        return status;
    if (!o->shared_down.n_dims)
        return record_out(r, op, &o->down, NULL);
    if (o->shared_down.type == o->down.type && o->shared_down.dims[0] == o->down.dims[0])
        return record_out(r, op, &o->down, &o->shared_down);
    status = record_out(r, op, &o->down, NULL);
    return status ? status : record_out(r, op, NULL, &o->shared_down);
}
