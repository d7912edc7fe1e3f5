/* project_fallback.c - recording PROJECT on weight rows as in the file: a kernel that applies the
 * prologue and quantizes the rows, then one launch for each weight type and kind of activations. */
#include "backend/cuda/ops/project_fallback.h"

#include "backend/cuda/host/cuda.h"
#include "base/size.h"

/* A pass is 1024 values, or 1024 bytes where a lane takes single values. */
static const struct fallback_format formats[DT_COUNT] = {
#define PLAIN_TYPE(NAME, name, id, bytes) [id] = {id, 0, 1024 / (bytes), 1024},
#define BLOCK_TYPE(NAME, name, id, values, bytes, run, encode)                                     \
    [id] = {id, run, 1024, 1024 / (values) * (bytes)},
#include "quant/types.def"
};

#define BLOCK_TYPE(NAME, name, id, values, bytes, run, encode)                                     \
    _Static_assert((values) % 32 == 0 && 1024 % (values) == 0 &&                                   \
                       1024 / (values) * (bytes) <= FALLBACK_PASS_BYTES,                           \
                   #NAME " fits a stage");
#include "quant/types.def"

bool fallback_is_f32(const struct recorder *r, const struct operand *weight) {
    return r->exact || !formats[weight->type].run;
}

int fallback_format(struct recorder *r, const struct operand *weight, struct fallback_format *out) {
    *out = formats[weight->type];
    return out->pass_bytes
               ? SLUICE_OK
               : err_set(r->err, SLUICE_ERR_UNSUPPORTED, "no CUDA kernel for weights of type %s",
                         dtype_name(weight->type));
}

int record_fallback_quantize(struct recorder *r, uint32_t rows, bool needs_int8,
                             struct fallback_quantize_params *p) {
    uint64_t n = rows, k = p->k;
    p->to.x_stride = (k + 3) / 4 * 4;
    p->to.x = recorder_work(r, n * p->to.x_stride * sizeof(float));
    if (needs_int8) {
        p->to.q_stride = k;
        p->to.q = recorder_work(r, n * k);
        p->to.scales = recorder_work(r, n * k / 32 * 4 * sizeof(float));
    }
    struct cuda_launch launch = {
        .kernel = "fallback_quantize", .grid = {rows, 1, 1}, .threads = FALLBACK_THREADS};
    return recorder_launch(r, &launch, p, sizeof *p);
}

static bool is_f32(const struct recorder *r, const struct segment *s) {
    return s->f32_act || fallback_is_f32(r, &s->weight);
}

static bool is_alike(const struct recorder *r, const struct segment *a, const struct segment *b) {
    return a->weight.type == b->weight.type && is_f32(r, a) == is_f32(r, b);
}

static uint32_t max_rows(const struct recorder *r, const struct op_project *p) {
    return p->is_lm_head ? r->plan->max_outputs : r->plan->max_rows;
}

static int record_quantize(struct recorder *r, const struct op *op,
                           struct project_fallback_params *out) {
    const struct op_project *p = &op->project;
    bool needs_int8 = false;
    for (uint32_t i = 0; i < p->n_segments; i++)
        needs_int8 |= !is_f32(r, &p->segments[i]);
    struct fallback_quantize_params q = {
        .io = r->io,
        .in = recorder_at(r, &p->in),
        .norm = recorder_at(r, &p->norm),
        .gate = recorder_at(r, &p->gate),
        .in_stride = p->in.stride,
        .gate_row_stride = p->gate.stride,
        .k = p->in.dims[0],
        .prologue = (uint32_t)p->prologue,
        .head_width = p->head_width,
        .gate_stride = p->gate_stride,
        .eps = p->eps,
        .is_lm_head = p->is_lm_head,
        .act_group = op_act_group(op),
    };
    int status = record_fallback_quantize(r, max_rows(r, p), needs_int8, &q);
    out->acts = q.to;
    return status;
}

/* The segments that p has so far, which are like `like`. */
static int record_product(struct recorder *r, const struct op_project *op,
                          const struct segment *like, struct project_fallback_params *p) {
    static const char *const kernels[2][2] = {
        {"project_fallback_int8_1", "project_fallback_int8_8"},
        {"project_fallback_f32_1", "project_fallback_f32_4"},
    };
    uint64_t rows = 0;
    for (uint32_t i = 0; i < p->n_segments; i++)
        rows += p->segments[i].weight.n;
    int status = fallback_format(r, &like->weight, &p->format);
    struct cuda_launch launch = {
        .kernel = kernels[is_f32(r, like)][max_rows(r, op) > 1],
        .grid = {rows < r->n_sms ? (uint32_t)rows : r->n_sms, 1, 1},
        .threads = FALLBACK_THREADS,
        .shared = FALLBACK_PIPELINE_BYTES,
    };
    return status ? status : recorder_launch(r, &launch, p, sizeof *p);
}

static void add_segment(struct recorder *r, const struct segment *s,
                        struct project_fallback_params *p) {
    p->segments[p->n_segments++] =
        (struct fallback_segment){.weight = recorder_matrix(r, &s->weight),
                                  .bias = recorder_at(r, &s->bias),
                                  .column = s->column};
}

/* The gate's results are stored in out, where the other's are then multiplied with them. */
static int record_swiglu(struct recorder *r, const struct op_project *op,
                         struct project_fallback_params *p) {
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < 2; i++) {
        p->n_segments = 0;
        add_segment(r, &op->segments[i], p);
        p->epilogue = i == 0 ? FALLBACK_STORE : FALLBACK_GATED;
        status = record_product(r, op, &op->segments[i], p);
    }
    return status;
}

int record_project_fallback(struct recorder *r, const struct op *op) {
    const struct op_project *o = &op->project;
    struct project_fallback_params p = {
        .io = r->io,
        .epilogue = o->epilogue == EPILOGUE_ADD ? FALLBACK_ADD : FALLBACK_STORE,
        .k = o->in.dims[0],
        .is_lm_head = o->is_lm_head,
        .out = recorder_at(r, &o->out),
        .out_stride = o->out.stride,
    };
    int status = record_quantize(r, op, &p);
    if (!status && o->epilogue == EPILOGUE_SWIGLU)
        return record_swiglu(r, o, &p);
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
