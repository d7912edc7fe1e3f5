/* project_fallback.c - recording PROJECT over weight rows as they lie in the file.
 *
 * One launch a weight type (and mode), behind one that prepares the rows. A plan of one row needs
 * none of those: every block prepares the row for itself while its weights are on their way. */
#include "backend/cuda/ops/project_fallback.h"

#include "backend/cuda/host/cuda.h"

static const char *const one_names[DT_COUNT][2] =
#define PREFIX "project_rows_one_"
    KERNEL_NAMES;
#undef PREFIX
static const char *const many_names[DT_COUNT][2] =
#define PREFIX "project_rows_many_"
    KERNEL_NAMES;
#undef PREFIX

enum { FUSED_BYTES = ROWS_MAX_SHARED - STREAM_RING_BYTES }; /* of activations, beside the ring */

bool rows_meet_f32(const struct recorder *r, const struct operand *weight) {
    return r->exact || weight->type == DT_F32 || weight->type == DT_F16 ||
           weight->type == DT_BF16 || weight->dims[0] % 32 != 0;
}

static bool meets_f32(const struct recorder *r, const struct segment *s) {
    return s->f32_act || rows_meet_f32(r, &s->weight);
}

static bool is_alike(const struct recorder *r, const struct segment *a, const struct segment *b) {
    return a->weight.type == b->weight.type && meets_f32(r, a) == meets_f32(r, b);
}

static uint32_t rows_of(const struct recorder *r, const struct op_project *p) {
    return p->is_lm_head ? r->plan->max_outputs : r->plan->max_rows;
}

/* Bytes of the rows in shared memory, as project_acts of project_rows.cu lays them out. */
static uint32_t fused_bytes(uint32_t k, bool needs_int8) {
    return (k + 3) / 4 * 16 + (needs_int8 ? ROWS_INT8_BYTES(k) : 0);
}

static struct rows_prepare_params prepare_of(struct recorder *r, const struct op *op) {
    const struct op_project *p = &op->project;
    static const uint32_t prologues[] = {[PROLOGUE_NONE] = ROWS_PLAIN,
                                         [PROLOGUE_NORM] = ROWS_NORM,
                                         [PROLOGUE_GATED_NORM] = ROWS_GATED_NORM,
                                         [PROLOGUE_SIGMOID_GATE] = ROWS_SIGMOID_GATE};
    struct rows_prepare_params out = {
        .io = r->io,
        .in = recorder_at(r, &p->in),
        .norm = recorder_at(r, &p->norm),
        .gate = recorder_at(r, &p->gate),
        .in_stride = p->in.stride,
        .gate_row_stride = p->gate.stride,
        .k = p->in.dims[0],
        .prologue = prologues[p->prologue],
        .head_width = p->head_width,
        .gate_stride = p->gate_stride,
        .eps = p->eps,
        .is_lm_head = p->is_lm_head,
        .act_group = op_act_group(op),
    };
    for (uint32_t i = 0; i < p->n_segments; i++)
        out.needs_int8 |= !meets_f32(r, &p->segments[i]);
    return out;
}

static int record_prepare(struct recorder *r, uint32_t rows, struct rows_prepare_params *p) {
    uint64_t n = rows, k = p->k;
    p->to.x_stride = (k + 3) / 4 * 4;
    p->to.x = recorder_work(r, n * p->to.x_stride * sizeof(float));
    if (p->needs_int8) {
        p->to.q = recorder_work(r, n * ROWS_INT8_STRIDE(k));
        p->to.runs = recorder_work(r, n * ROWS_INT8_STRIDE(k) / 16 * 2 * sizeof(float));
    }
    struct cuda_launch launch = {
        .kernel = "rows_prepare", .grid = {rows, 1, 1}, .threads = STREAM_BLOCK};
    return recorder_launch(r, &launch, p, sizeof *p);
}

static int record_product(struct recorder *r, const struct op_project *op,
                          const struct segment *like, const struct project_rows_params *p) {
    uint64_t tasks = 0;
    for (uint32_t i = 0; i < p->n_segments; i++)
        tasks += (p->segments[i].weight.n + 1) / 2;
    bool is_one = rows_of(r, op) == 1;
    struct cuda_launch launch = {
        .kernel = (is_one ? one_names : many_names)[like->weight.type][meets_f32(r, like)],
        .grid = {tasks < r->n_sms ? (uint32_t)tasks : r->n_sms, 1, 1},
        .threads = STREAM_BLOCK,
        .shared = STREAM_RING_BYTES +
                  (p->is_fused ? fused_bytes(p->prepare.k, p->prepare.needs_int8) : 0),
    };
    if (!launch.kernel)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED, "no CUDA kernel for weights of type %s",
                       dtype_name(like->weight.type));
    return recorder_launch(r, &launch, p, sizeof *p);
}

static void add_segment(struct recorder *r, const struct segment *s,
                        struct project_rows_params *p) {
    p->segments[p->n_segments++] = (struct rows_segment){.weight = recorder_matrix(r, &s->weight),
                                                         .bias = recorder_at(r, &s->bias),
                                                         .column = s->column};
}

/* The gate's results are stored first, and then gate the other's where they lie. */
static int record_mixed_swiglu(struct recorder *r, const struct op_project *op,
                               struct project_rows_params *p) {
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < 2; i++) {
        p->n_segments = 0;
        add_segment(r, &op->segments[i], p);
        p->epilogue = i == 0 ? ROWS_STORE : ROWS_GATE_OUT;
        status = record_product(r, op, &op->segments[i], p);
    }
    return status;
}

int record_project_rows(struct recorder *r, const struct op *op) {
    const struct op_project *o = &op->project;
    struct project_rows_params p = {.prepare = prepare_of(r, op),
                                    .epilogue = o->epilogue == EPILOGUE_SWIGLU ? ROWS_SWIGLU
                                                : o->epilogue == EPILOGUE_ADD  ? ROWS_ADD
                                                                               : ROWS_STORE,
                                    .out = recorder_at(r, &o->out),
                                    .out_stride = o->out.stride};
    p.is_fused =
        rows_of(r, o) == 1 && fused_bytes(p.prepare.k, p.prepare.needs_int8) <= FUSED_BYTES;
    int status = p.is_fused ? SLUICE_OK : record_prepare(r, rows_of(r, o), &p.prepare);
    if (!status && o->epilogue == EPILOGUE_SWIGLU && !is_alike(r, &o->segments[0], &o->segments[1]))
        return record_mixed_swiglu(r, o, &p);
    uint32_t done = 0; /* a bit a segment */
    for (uint32_t i = 0; !status && i < o->n_segments; i++) {
        p.n_segments = 0;
        for (uint32_t k = i; k < o->n_segments; k++) {
            const struct segment *s = &o->segments[k];
            if (done >> k & 1 || !is_alike(r, &o->segments[i], s) ||
                recorder_matrix(r, &s->weight).is_tiled)
                continue;
            add_segment(r, s, &p);
            done |= 1u << k;
        }
        if (p.n_segments)
            status = record_product(r, o, &o->segments[i], &p);
    }
    return status;
}
