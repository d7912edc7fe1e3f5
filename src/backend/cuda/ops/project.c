/* project.c - recording PROJECT on tiled weights: its shape, the schedule for it
 * (project_schedule.c), and the kernels' arguments and names.
 *
 *   rows of the plan        Q4_K, Q5_K, Q6_K, Q8_0     BF16, F16
 *   1; 2                    project_gemv_1; _2         the same
 *   3 and 4                 project_gemv_4             the same
 *   5 to 8                  project_gemm               project_gemv_8
 *   9 to 63 (mixed: 127)    project_gemm               project_wide_bf16   (9.0 alone)
 *   64 (mixed: 128) on      project_wide (9.0 alone)   project_wide_bf16   (9.0 alone)
 *
 * mixed: several types that are not just Q4_K and Q6_K. On older devices project_gemm stands in for
 * project_wide; what a kernel does not take (BF16 beside Q4_K, gate and up of different types) the
 * gemv kernels do, eight rows at a time. Other types, rows as in the file and --exact have
 * project_fallback.c. From 2 rows on a kernel before the product quantizes the activations. */
#include "backend/cuda/ops/project.h"

#include <stdio.h>
#include <string.h>

#include "backend/cuda/ops/project_fallback.h"
#include "backend/cuda/ops/project_gemm.h"
#include "backend/cuda/ops/project_schedule.h"
#include "backend/cuda/ops/project_wide.h"
#include "backend/cuda/ops/project_wide_bf16.h"
#include "base/size.h"

enum {
    QUANTIZE_WARPS = 16,      /* of a gemv block, at most, where they have no tasks */
    QUANTIZE_WARPS_WIDE = 20, /* of SwiGLU, whose neighbours have fewer */
    QUANTIZE_THREADS = 64,    /* of project_quantize: small blocks fit beside those of products */
    F16_THREADS = 512,        /* of project_quantize_f16, at most */
};

/* ---- sets of types ------------------------------------------------------------------------ */

uint32_t project_type_bit(uint32_t type) {
    switch (type) {
    case DT_Q4_K:
        return IS_Q4_K;
    case DT_Q5_K:
        return IS_Q5_K;
    case DT_Q6_K:
        return IS_Q6_K;
    case DT_Q8_0:
        return IS_Q8_0;
    case DT_BF16:
        return IS_BF16;
    case DT_F16:
        return IS_F16;
    default:
        return IS_F32;
    }
}

const char *project_set_name(uint32_t set) {
    static const struct {
        uint32_t set;
        const char *name;
    } names[] = {
        {IS_Q4_K, "q4"},
        {IS_Q6_K, "q6"},
        {IS_Q4_K | IS_Q6_K, "q4_q6"},
        {IS_Q4_K | IS_F32, "q4_f32"},
        {IS_Q4_K | IS_Q6_K | IS_F32, "q4_q6_f32"},
        {IS_Q8_0, "q8"},
        {IS_Q8_0 | IS_F32, "q8_f32"},
        {IS_BF16, "bf16"},
        {IS_BF16 | IS_F32, "bf16_f32"},
        {IS_F16, "f16"},
        {IS_F16 | IS_F32, "f16_f32"},
    };
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].set == set)
            return names[i].name;
    return "all";
}

/* Where the draft block has no other types than the trunk it shares the trunk's kernel. */
void project_survey(struct recorder *r) {
    uint32_t set[2] = {0, 0};
    r->products = (struct plan_products){.draft_from = r->plan->n_ops};
    for (uint32_t i = 0; i < r->plan->n_ops; i++) {
        const struct op *op = &r->plan->ops[i];
        if (op->kind == OP_JOIN)
            r->products.draft_from = i;
        r->products.has_experts |= op->kind == OP_EXPERTS_IN;
        if (op->kind != OP_PROJECT || op->project.is_lm_head)
            continue;
        for (uint32_t k = 0; k < op->project.n_segments; k++) {
            struct cuda_matrix m = recorder_matrix(r, &op->project.segments[k].weight);
            set[i > r->products.draft_from] |= m.is_tiled ? project_type_bit(m.type) : 0;
        }
        uint32_t rows = r->plan->max_rows, k = op->project.in.dims[0];
        uint64_t bytes = rows < GEMM_MIN_ROWS       ? 0
                         : rows <= GEMM_MAX_ROWS    ? gemm_most_qact_bytes(k, GEMM_MAX_ROWS)
                         : rows <= WIDE_HANDED_ROWS ? wide_handed_bytes(k, rows)
                                                    : 0;
        if (bytes > r->products.handed_bytes)
            r->products.handed_bytes = bytes;
    }
    r->products.set = set[0];
    r->products.draft_set = set[1] & ~set[0] ? set[1] : set[0];
}

uint32_t project_all_types(const struct recorder *r) {
    return r->op > r->products.draft_from ? r->products.draft_set : r->products.set;
}

/* The set of the kernel of one row, or two of K-quants. Instructions that the previous kernel has
 * not run come from memory: so all products of the trunk have one kernel, that of all their types,
 * if there is one, and it has this product's types and kind of pipeline, and of activations: those
 * of BF16 and F16 are split. So have all of a draft block. (The LM head's types need not be among
 * them.) Measured: README, rule 5. With experts between the products it gains nothing. */
static uint32_t shared_set(const struct recorder *r, uint32_t set) {
    uint32_t all = project_all_types(r);
    bool has_kernel = strcmp(project_set_name(all), "all") != 0 && !r->products.has_experts;
    return has_kernel && !(set & ~all) && (set & IS_SPLIT) == (all & IS_SPLIT) &&
                   project_has_deep_pipeline(set) == project_has_deep_pipeline(all)
               ? all
               : set;
}

/* Whether a product needs what only `all` has, but for F16: the gemv kernel quantizes rows that do
 * not take quantize.cuh's fast path, or is the LM head of one row. */
static bool needs_all(const struct project_input *in, uint32_t set, uint32_t rows) {
    return !(set & IS_F16) && rows == 1 && (!project_is_vec4(in) || in->is_lm_head);
}

/* The set of a gemv kernel; IS_ANY: `all`. Two rows have Q4_K and Q6_K together; devices below 9.0
 * also with F32, and Q8_0 with it. Eight rows of int8 activations are here only where gemm does not
 * take them: one kernel for all. */
static uint32_t kernel_set(const struct recorder *r, const struct project_input *in,
                           const struct project_shape *shape, uint32_t rows) {
    const uint32_t pair = IS_Q4_K | IS_Q6_K;
    uint32_t set = shape->types;
    if ((rows == PROJECT_MAX_ROWS && set & IS_INT8) || needs_all(in, set, rows))
        return IS_ANY;
    if (rows == 1 || (rows == 2 && set & pair))
        set = shared_set(r, set);
    if (rows == 2 && (set == IS_Q4_K || set == IS_Q6_K || set == (IS_Q4_K | IS_F32)))
        set |= pair;
    if (r->b->capability < 90 && strcmp(project_set_name(set), "all") != 0)
        set |= set & pair ? pair | IS_F32 : set & IS_Q8_0 ? IS_F32 : 0;
    bool lacks_room = rows == 1 && PROJECT_HAS_SHARES(set) && !project_can_share(shape, r->n_sms);
    return lacks_room || strcmp(project_set_name(set), "all") == 0 ? IS_ANY : set;
}

/* ---- input -------------------------------------------------------------------------------- */

static bool is_aligned(const struct operand *o) {
    return o->n_dims == 0 || (o->offset % 16 == 0 && o->stride % 4 == 0);
}

static uint32_t head_width(const struct op_project *op) {
    return op->head_width ? op->head_width : op->in.dims[0];
}

/* Not for the fast path: unaligned rows; gates of rows so long that head_fastdiv is not exact; an
 * LM head without a norm, since its second load's address is computed before pdl_wait, and its row
 * is known after it. */
static bool can_vec4(const struct op_project *op) {
    uint64_t groups = op->in.dims[0] / PROJECT_GROUP, head_groups = head_width(op) / PROJECT_GROUP;
    bool is_fastdiv_exact = op->gate.n_dims == 0 || groups * head_groups <= 65536;
    return is_aligned(&op->in) && is_aligned(&op->gate) && op->gate_stride % 4 == 0 &&
           op->head_width % 4 == 0 && is_fastdiv_exact &&
           (!op->is_lm_head || op->prologue == PROLOGUE_NORM);
}

static struct project_input input_of(struct recorder *r, const struct op *op,
                                     const struct project_shape *shape) {
    const struct op_project *o = &op->project;
    uint32_t width = head_width(o), f32_types = shape->types & ~(uint32_t)IS_INT8;
    return (struct project_input){
        .x = recorder_at(r, &o->in),
        .norm = recorder_at(r, &o->norm),
        .gate = recorder_at(r, &o->gate),
        .k = o->in.dims[0],
        .x_stride = o->in.stride,
        .gate_row_stride = o->gate.stride,
        .prologue = (uint32_t)o->prologue,
        .head_width = width,
        .gate_head_stride = o->gate_stride,
        .head_fastdiv = div_up(65536, max_u32(width / PROJECT_GROUP, 1)),
        .gate_gap = o->gate.n_dims ? (o->gate_stride - width) / 4 : 0,
        .can_vec4 = can_vec4(o),
        .is_lm_head = o->is_lm_head,
        .wants_int8 = (shape->types & IS_INT8) != 0,
        .wants_f32 = f32_types && !shape->f32_from_global,
        .is_split = (shape->types & IS_BF16) != 0,
        .eps = o->eps,
    };
}

/* ---- shape and arguments ------------------------------------------------------------------ */

/* Beside int8 segments, F32 ones are few rows of weights (alpha and beta of the delta rule), and
 * f32 values in the qacts would take room from every block's pipeline. For one row the qact is
 * faster (4B 1.5 %, 0.8B 2.7 %). */
static bool is_f32_from_global(const struct op_project *op, const struct project_shape *shape) {
    return shape->row_limit > 1 && shape->types & IS_F32 && shape->types & IS_INT8 &&
           !(shape->types & (IS_BF16 | IS_F16)) && can_vec4(op) && op->prologue <= PROLOGUE_NORM &&
           !op->is_lm_head;
}

/* False: a segment is not tiled, or there are too many tiles for bounds. */
static bool find_shape(struct recorder *r, const struct op_project *op, struct project_shape *out) {
    uint32_t tiles = 0;
    *out = (struct project_shape){
        .k = op->in.dims[0],
        .head_width = head_width(op),
        .prologue = (uint32_t)op->prologue,
        .epilogue = (uint32_t)op->epilogue,
        .row_limit = op->is_lm_head ? r->plan->max_outputs : r->plan->max_rows,
        .is_lm_head = op->is_lm_head,
        .max_shared = r->b->max_shared,
        .n_segments = op->n_segments,
    };
    for (uint32_t i = 0; i < op->n_segments; i++) {
        struct cuda_matrix m = recorder_matrix(r, &op->segments[i].weight);
        if (!m.is_tiled)
            return false;
        out->segments[i].dtype = m.type;
        out->segments[i].n = m.n;
        out->segments[i].tile_rows = m.tile_rows;
        out->types |= project_type_bit(m.type);
        tiles += div_up(m.n, m.tile_rows);
    }
    out->f32_from_global = is_f32_from_global(op, out);
    return tiles < UINT16_MAX;
}

static struct project_params arguments_of(struct recorder *r, const struct op *op,
                                          const struct project_schedule *s) {
    const struct op_project *o = &op->project;
    struct project_params p = {
        .io = r->io,
        .in = input_of(r, op, &s->shape),
        .out = recorder_at(r, &o->out),
        .out_stride = o->out.stride,
        .epilogue = (uint32_t)o->epilogue,
        .n_segments = o->n_segments,
        .row_limit = s->shape.row_limit,
        .is_direct = s->is_direct,
        .max_results = s->max_results,
        .task_warps = s->task_warps,
        .stages = s->stages,
        .extra_stages = s->extra_stages,
        .stage_bytes = s->stage_bytes,
        .shared_bytes = s->shared_bytes,
        .partials_at = s->partials_at,
        .qact_at = s->qact_at,
        .red_at = s->red_at,
        .mbars_at = s->mbars_at,
        .qact_bytes = s->qact_bytes,
        .n_blocks = s->n_blocks,
        .f32_from_global = s->shape.f32_from_global,
    };
    for (uint32_t i = 0; i < o->n_segments; i++) {
        p.segments[i] = s->segments[i];
        p.segments[i].data = recorder_matrix(r, &o->segments[i].weight).data;
        p.segments[i].bias = recorder_at(r, &o->segments[i].bias);
        p.segments[i].column = o->segments[i].column;
        p.has_bias |= o->segments[i].bias.n_dims != 0;
    }
    memcpy(p.bounds, s->bounds, sizeof p.bounds);
    return p;
}

/* ---- quantizing rows ---------------------------------------------------------------------- */

/* Thread blocks of a row. On the fast path they divide its columns, and a thread has one col8, or
 * two or three where there would be more blocks than SMs; on the generic path there is one. */
static uint32_t blocks_per_row(const struct project_input *in, uint32_t rows, uint32_t threads,
                               uint32_t n_sms) {
    uint32_t col8s = in->k / PROJECT_COLS, most = in->prologue == PROLOGUE_NONE ? 3 : 2, blocks = 1;
    for (uint32_t n = 1; project_is_vec4(in) && n <= most; n++) {
        blocks = div_up(col8s, n * threads);
        if (blocks * rows <= n_sms)
            break;
    }
    return blocks;
}

struct cuda_launch project_quantize_launch(const struct recorder *r, const struct project_input *in,
                                           const char *kernel, uint32_t rows, uint32_t threads) {
    return (struct cuda_launch){
        .kernel = kernel,
        .grid = {rows, blocks_per_row(in, rows, threads, r->n_sms), 1},
        .threads = threads,
        .shared = in->k / in->head_width * 4, /* generic path: a factor a head */
    };
}

/* Records project_quantize, for a product that takes `rows` rows at once; of F16 weights the kernel
 * that has a thread block a row. */
static int quantize_rows(struct recorder *r, struct project_params *p, uint32_t bucket,
                         uint32_t rows, bool is_f16) {
    uint32_t n = div_up(bucket, rows) * rows;
    struct quantize_params params = {
        .io = p->io,
        .in = p->in,
        .qacts = recorder_work(r, (uint64_t)n * p->qact_bytes),
        .squares = recorder_work(r, (uint64_t)n * (p->in.k / PROJECT_GROUP) * 4),
        .qact_bytes = p->qact_bytes,
    };
    struct cuda_launch launch =
        project_quantize_launch(r, &p->in, "project_quantize", bucket, QUANTIZE_THREADS);
    if (is_f16)
        launch = (struct cuda_launch){
            .kernel = "project_quantize_f16",
            .grid = {bucket, 1, 1},
            .threads = min_u32(F16_THREADS, p->in.k / PROJECT_COLS),
            .shared = (p->in.k + p->in.k / p->in.head_width) * 4,
        };
    p->qacts = params.qacts;
    p->squares = params.squares;
    return recorder_launch(r, &launch, &params, sizeof params);
}

/* ---- recording ---------------------------------------------------------------------------- */

/* Where a PICK follows, the LM head of a single row writes the logits that the host asks for, and
 * finds the argmax, in words of the device's IO header that are zero when the step begins. */
static bool find_pick(struct recorder *r, const struct op_project *o,
                      struct project_lm_head_params *h) {
    const struct op *pick = o->is_lm_head ? plan_pick_of(r->plan, r->op) : NULL;
    if (!pick || r->plan->max_outputs != 1 || o->n_segments != 1 || o->segments[0].column)
        return false;
    r->has_wanted = true;
    h->logits = recorder_at(r, &pick->pick.wanted);
    if (!r->is_counting)
        h->argmax = r->head_best = (uint64_t *)r->io.header->reserved;
    return true;
}

/* Warps of a gemv block: those with tasks, and as many as quantize its row best. One row of SwiGLU
 * may have more, if it is quantized in fewer rounds then (qwen35-27b 0.6 %). */
static uint32_t gemv_warps(const struct project_schedule *s) {
    uint32_t k = s->shape.k, warps = min_u32(QUANTIZE_WARPS, k / PROJECT_GROUP);
    if (s->rows == 1 && s->shape.epilogue == EPILOGUE_SWIGLU)
        warps = max_u32(warps, min_u32(QUANTIZE_WARPS_WIDE, k / (32 * PROJECT_COLS)));
    return max_u32(s->task_warps, warps);
}

/* Shared memory of a gemv block. In a plan of several rows an LM head of one follows a kernel whose
 * blocks end at different times, and SMs that are free first must not get two of its blocks, others
 * none (README, rule 4; the last step of a prompt of qwen35-4b: 124 us, with two 230 to 258). */
static uint32_t gemv_shared(const struct recorder *r, const struct op_project *o,
                            const struct project_schedule *s) {
    bool is_apart = o->is_lm_head && s->rows == 1 && r->plan->max_rows > 1;
    uint32_t least = is_apart ? min_u32(PROJECT_SHARED_WIDE, s->shape.max_shared) : 0;
    return max_u32(s->shared_bytes, least);
}

static int record_gemv(struct recorder *r, const struct op_project *o,
                       const struct project_schedule *s, struct project_params *p) {
    uint32_t bucket = max_u32(p->row_limit, 1), set = s->shape.types;
    struct project_lm_head_params head = {0};
    bool is_lm_head = find_pick(r, o, &head);
    char name[48];
    if (is_lm_head)
        snprintf(name, sizeof name, "project_lm_head_%s",
                 r->b->capability < 90 && set & IS_INT8 ? "all" : project_set_name(set));
    else
        snprintf(name, sizeof name, "project_gemv_%u_%s", s->rows,
                 project_set_name(kernel_set(r, &p->in, &s->shape, s->rows)));
    if (s->rows > 1) {
        int status = quantize_rows(r, p, bucket, s->rows, set & IS_F16);
        if (status)
            return status;
    }
    struct cuda_launch launch = {
        .kernel = name,
        .grid = {s->n_blocks, div_up(bucket, s->rows), 1},
        .threads = 32 * gemv_warps(s),
        .shared = gemv_shared(r, o, s),
    };
    head.p = *p;
    return is_lm_head ? recorder_launch(r, &launch, &head, sizeof head)
                      : recorder_launch(r, &launch, p, sizeof *p);
}

/* The next op, where it is a product of this one's output, all of it and nothing else. */
static const struct op *find_reader(const struct recorder *r, const struct op_project *o) {
    const struct op *next = recorder_neighbour(r, 1);
    bool is_whole = o->n_segments == 1 || o->epilogue == EPILOGUE_SWIGLU;
    if (!next || next->kind != OP_PROJECT || next->project.is_lm_head || o->is_lm_head || !is_whole)
        return NULL;
    const struct operand *in = &next->project.in;
    return in->region == o->out.region && in->offset == o->out.offset &&
                   in->stride == o->out.stride && o->segments[0].column == 0 &&
                   in->dims[0] == o->segments[0].weight.dims[1]
               ? next
               : NULL;
}

/* Its arguments, if there is one; else types is 0. */
static int find_reader_params(struct recorder *r, const struct op *op, struct project_params *p,
                              uint32_t *types) {
    struct project_shape shape;
    const struct op *next = find_reader(r, &op->project);
    *types = 0;
    if (!next || !find_shape(r, &next->project, &shape))
        return SLUICE_OK;
    const struct project_schedule *s = project_find_schedule(r->b, &shape);
    if (!s)
        return err_memory(r->err, "the schedule of a product");
    *p = arguments_of(r, next, s);
    *types = shape.types;
    return SLUICE_OK;
}

int record_project(struct recorder *r, const struct op *op) {
    const struct op_project *o = &op->project;
    struct project_shape shape;
    if (r->exact || r->n_sms > PROJECT_BLOCKS || !find_shape(r, o, &shape))
        return record_project_fallback(r, op);
    const struct project_schedule *s = project_find_schedule(r->b, &shape);
    if (!s)
        return err_memory(r->err, "the schedule of a product");
    struct project_params p = arguments_of(r, op, s), next;
    uint32_t types;
    int status = find_reader_params(r, op, &next, &types);
    if (status)
        return status;
    struct wide_product wide = {&p, shape.types}, wide_next = {types ? &next : NULL, types};
    struct gemm_op gemm = {&p, shape.types}, gemm_next = {types ? &next : NULL, types};
    if (record_project_wide(r, &wide, &wide_next, &status) ||
        record_project_wide_bf16(r, &p, shape.types, &status) ||
        record_project_gemm(r, &gemm, &gemm_next, &status))
        return status;
    shape.f32_from_global &= s->rows > 1; /* one row needs the qact's */
    shape.has_shares = s->rows == 1 && PROJECT_HAS_SHARES(kernel_set(r, &p.in, &shape, 1));
    if (memcmp(&shape, &s->shape, sizeof shape) != 0) {
        if (!(s = project_find_schedule(r->b, &shape)))
            return err_memory(r->err, "the schedule of a product");
        p = arguments_of(r, op, s);
    }
    if (!s->rows)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "a product of %u columns needs more shared memory than a block may have",
                       p.in.k);
    return record_gemv(r, o, s, &p);
}
