/* experts_fallback.c - recording EXPERTS_IN and EXPERTS_OUT; here on rows as they lie in the file.
 */
#include "backend/cuda/ops/experts_fallback.h"

#include "backend/cuda/host/cuda.h"
#include "backend/cuda/ops/experts.h"
#include "base/size.h"

static const char *const in_names[DT_COUNT][2] =
#define PREFIX "experts_in_"
    KERNEL_NAMES;
#undef PREFIX
static const char *const out_names[DT_COUNT][2] =
#define PREFIX "experts_out_"
    KERNEL_NAMES;
#undef PREFIX

static int launch(struct recorder *r, const struct operand *weight, const char *kernel,
                  uint32_t blocks, uint64_t shared, const void *p, size_t bytes) {
    if (!kernel)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED, "no CUDA kernel for experts of type %s",
                       dtype_name(weight->type));
    if (shared > ROWS_MAX_SHARED)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "experts of width %u need %llu bytes of shared memory, at most %d are there",
                       weight->dims[0], (unsigned long long)shared, ROWS_MAX_SHARED);
    struct cuda_launch l = {.kernel = kernel,
                            .grid = {blocks, r->plan->max_rows, 1},
                            .threads = EXPERTS_BLOCK,
                            .shared = (uint32_t)shared};
    return recorder_launch(r, &l, p, bytes);
}

/* ---- EXPERTS_IN -------------------------------------------------------------------------------
 */

/* Gate and up (SwiGLU), or one of them, of the routed experts, the shared one, or both. */
struct in_part {
    const struct operand *routed[2], *shared[2]; /* NULL: none */
    enum rows_epilogue epilogue;
};

static int record_in(struct recorder *r, const struct op *op, const struct in_part *part) {
    const struct op_experts_in *o = &op->experts_in;
    struct experts_in_params p = {
        .io = r->io,
        .in = recorder_at(r, &o->in),
        .norm = recorder_at(r, &o->norm),
        .choice = recorder_at(r, &o->choice),
        .hidden = recorder_at(r, &o->hidden),
        .in_stride = o->in.stride,
        .choice_stride = o->choice.stride,
        .hidden_stride = o->hidden.stride,
        .k = o->in.dims[0],
        .used = o->choice.dims[0] - 1,
        .routed_width = o->gate.dims[1],
        .epilogue = part->epilogue,
        .act_group = op_act_group(op),
        .eps = o->eps,
    };
    uint64_t values = 0;
    for (uint32_t i = 0; i < 2; i++) {
        if (part->routed[i])
            p.routed[i] = recorder_matrix(r, part->routed[i]);
        if (part->shared[i])
            p.shared[i] = recorder_matrix(r, part->shared[i]);
    }
    values = (uint64_t)p.used * p.routed[0].n + p.shared[0].n;
    const struct operand *w = part->routed[0] ? part->routed[0] : part->shared[0];
    bool is_f32 = rows_meet_f32(r, w);
    p.needs_int8 = !is_f32;
    uint64_t shared = STREAM_RING_BYTES +
                      (is_f32 ? ((uint64_t)p.k + 3) / 4 * 16 : ROWS_INT8_BYTES((uint64_t)p.k));
    /* Two blocks never share an SM, whatever lies unevenly before them. */
    uint32_t wide = min_u32(PROJECT_SHARED_WIDE, r->b->max_shared - 1024); /* some is static */
    if (r->plan->max_rows == 1 && shared < wide)
        shared = wide;
    return launch(r, w, in_names[w->type][is_f32], values < r->n_sms ? (uint32_t)values : r->n_sms,
                  shared, &p, sizeof p);
}

/* One launch, or two where gate and up differ in type. */
static int record_in_pair(struct recorder *r, const struct op *op, const struct in_part *pair) {
    const struct operand *const *w = pair->routed[0] ? pair->routed : pair->shared;
    if (w[0]->type == w[1]->type)
        return record_in(r, op, pair);
    struct in_part gate = {{pair->routed[0]}, {pair->shared[0]}, ROWS_STORE};
    struct in_part up = {{pair->routed[1]}, {pair->shared[1]}, ROWS_GATE_OUT};
    int status = record_in(r, op, &gate);
    return status ? status : record_in(r, op, &up);
}

int record_experts_in(struct recorder *r, const struct op *op) {
    const struct op_experts_in *o = &op->experts_in;
    int tiled_status;
    if (record_experts_in_gemv(r, op, &tiled_status))
        return tiled_status;
    struct in_part routed = {{&o->gate, &o->up}, {NULL}, ROWS_SWIGLU};
    struct in_part shared = {{NULL}, {&o->shared_gate, &o->shared_up}, ROWS_SWIGLU};
    if (!o->shared_gate.n_dims)
        return record_in_pair(r, op, &routed);
    if (o->shared_gate.type == o->gate.type && o->shared_up.type == o->up.type) {
        struct in_part both = {{&o->gate, &o->up}, {&o->shared_gate, &o->shared_up}, ROWS_SWIGLU};
        return record_in_pair(r, op, &both);
    }
    int status = record_in_pair(r, op, &routed);
    return status ? status : record_in_pair(r, op, &shared);
}

/* ---- EXPERTS_OUT ------------------------------------------------------------------------------
 */

static int record_out(struct recorder *r, const struct op *op, const struct operand *routed,
                      const struct operand *shared) {
    const struct op_experts_out *o = &op->experts_out;
    const struct operand *w = routed ? routed : shared;
    uint64_t skip = routed ? 0 : o->hidden.dims[0] - shared->dims[0];
    float *hidden = recorder_at(r, &o->hidden);
    bool is_f32 = rows_meet_f32(r, w);
    struct experts_out_params p = {
        .io = r->io,
        .hidden = hidden ? hidden + skip : NULL,
        .choice = recorder_at(r, &o->choice),
        .weight = recorder_at(r, &o->weight),
        .x = recorder_at(r, &o->x),
        .hidden_stride = o->hidden.stride,
        .choice_stride = o->choice.stride,
        .weight_stride = o->weight.stride,
        .x_stride = o->x.stride,
        .k = w->dims[0],
        .used = o->choice.dims[0] - 1,
        .width = o->x.dims[0],
        .needs_int8 = !is_f32,
        .act_group = op_act_group(op),
    };
    if (routed)
        p.routed = recorder_matrix(r, routed);
    if (shared)
        p.shared = recorder_matrix(r, shared);
    /* Outputs in fours, as a warp takes them at usual widths. A block on every SM, also where some
     * have nothing to do, and only one: then the next kernel's blocks spread evenly. */
    p.tile = (div_up(p.width, r->n_sms) + 3) / 4 * 4;
    uint64_t places = (routed ? p.used : 0) + (shared ? 1 : 0);
    uint64_t bytes = STREAM_RING_BYTES +
                     ((places + 1) * p.tile + (places + 3) / 4 * 4) * sizeof(float) +
                     (is_f32 ? 0 : ROWS_INT8_BYTES(places * p.k));
    return launch(r, w, out_names[w->type][is_f32], r->n_sms, bytes, &p, sizeof p);
}

/* Where two launches are needed the shared expert is added last, as in one. */
int record_experts_out(struct recorder *r, const struct op *op) {
    const struct op_experts_out *o = &op->experts_out;
    int tiled_status;
    if (record_experts_out_gemv(r, op, &tiled_status))
        return tiled_status;
    if (!o->shared_down.n_dims)
        return record_out(r, op, &o->down, NULL);
    if (o->shared_down.type == o->down.type && o->shared_down.dims[0] == o->down.dims[0])
        return record_out(r, op, &o->down, &o->shared_down);
    int status = record_out(r, op, &o->down, NULL);
    return status ? status : record_out(r, op, NULL, &o->shared_down);
}
