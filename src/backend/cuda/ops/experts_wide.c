/* experts_wide.c - recording EXPERTS_IN and EXPERTS_OUT for many rows: the order of pairs,
 * quantized activations, a product for each type, the sum of a row's experts. Grids and memory are
 * for the most tiles that this many rows can have. */
#include "backend/cuda/ops/experts_wide.h"

#include <stdio.h>

#include "backend/cuda/ops/experts.h"
#include "base/size.h"

enum {
    MAX_EXPERTS = 4096,  /* whose counts fit the sort's shared memory */
    PLACES_64_FROM = 48, /* pairs of an expert, on average, from which tiles have 64 places */
};

/* An op and what its kernels share. */
struct experts_op {
    const struct op *op;
    bool is_in;
    struct cuda_matrix routed[2], shared[2]; /* gate and up, or down */
    const struct operand *choice;
    uint32_t rows, used, experts, n_experts; /* n_experts: of a row, with the shared one */
    uint32_t tile, n_tiles;                  /* places of a tile; tiles at most */
    struct experts_order order;
    uint8_t *qact;
    float *factors;
};

/* ---- which ops ---------------------------------------------------------------------------- */

/* Places of a tile. Weights are unpacked half as often for 64, but of 32 two thread blocks fit an
 * SM (not with Q8_0), and fewer places are empty. IN, whose tiles are long, is then never slower.
 */
static uint32_t choose_tile(const struct experts_op *v) {
    bool has_k_quants =
        v->routed[0].type != DT_Q8_0 || (v->shared[0].k && v->shared[0].type != DT_Q8_0);
    bool is_many = (uint64_t)v->rows * v->used >= (uint64_t)PLACES_64_FROM * v->experts;
    return is_many && !(v->is_in && has_k_quants) ? 64 : 32;
}

static struct experts_op view(struct recorder *r, const struct op *op) {
    struct experts_op v = {.op = op, .is_in = op->kind == OP_EXPERTS_IN, .rows = r->plan->max_rows};
    const struct op_experts_in *in = &op->experts_in;
    const struct op_experts_out *out = &op->experts_out;
    v.routed[0] = recorder_matrix(r, v.is_in ? &in->gate : &out->down);
    v.shared[0] = recorder_matrix(r, v.is_in ? &in->shared_gate : &out->shared_down);
    if (v.is_in) {
        v.routed[1] = recorder_matrix(r, &in->up);
        v.shared[1] = recorder_matrix(r, &in->shared_up);
    }
    v.choice = v.is_in ? &in->choice : &out->choice;
    v.used = v.choice->dims[0] - 1;
    v.experts = (v.is_in ? &in->gate : &out->down)->dims[2];
    v.n_experts = v.used + (v.shared[0].k != 0);
    v.tile = choose_tile(&v);
    uint64_t pairs = (uint64_t)v.rows * v.used;
    v.n_tiles = (uint32_t)(pairs / v.tile + (pairs < v.experts ? pairs : v.experts)) +
                (v.shared[0].k ? div_up(v.rows, v.tile) : 0);
    return v;
}

/* Whether there are kernels for a matrix, or for gate and up. */
static bool has_kernels(const struct cuda_matrix m[2]) {
    uint32_t tile_rows = m[1].k ? WIDE_N / 2 : WIDE_N;
    return m[0].is_tiled && project_type_bit(m[0].type) & WIDE_TYPES && m[0].n % tile_rows == 0 &&
           (!m[1].k || (m[1].is_tiled && m[1].type == m[0].type));
}

bool experts_is_wide(struct recorder *r, const struct op *op) {
    if (r->b->capability != 90 || r->b->max_shared < PROJECT_SHARED_ALONE ||
        r->plan->max_rows < EXPERTS_WIDE_MIN_ROWS)
        return false;
    struct experts_op v = view(r, op);
    const struct operand *x = &op->experts_out.x;
    uint64_t choices = (uint64_t)v.rows * (v.used + 1);
    return has_kernels(v.routed) && (!v.shared[0].k || has_kernels(v.shared)) &&
           v.experts <= MAX_EXPERTS && v.choice->stride == v.used + 1 &&
           choices * (v.used + 1) <= UINT32_MAX &&
           (v.is_in || (x->offset % 16 == 0 && x->stride % 4 == 0));
}

/* ---- before the products ------------------------------------------------------------------ */

static int record_sort(struct recorder *r, struct experts_op *v) {
    uint64_t choices = (uint64_t)v->rows * (v->used + 1);
    v->order = (struct experts_order){
        .pairs = recorder_work(r, (uint64_t)v->n_tiles * v->tile * sizeof(struct experts_pair)),
        .places = recorder_work(r, choices * sizeof(uint32_t)),
        .experts = recorder_work(r, v->n_tiles * sizeof(uint32_t)),
        .n_tiles = recorder_work(r, 2 * sizeof(uint32_t)),
    };
    struct experts_sort_params p = {.io = r->io,
                                    .choice = recorder_at(r, v->choice),
                                    .order = v->order,
                                    .used = v->used,
                                    .experts = v->experts,
                                    .has_shared = v->n_experts > v->used,
                                    .row_fastdiv = fastdiv_of(v->used + 1),
                                    .tile_shift = shift_of(v->tile)};
    struct cuda_launch launch = {.kernel = "experts_wide_sort",
                                 .grid = {v->experts + 1, 1, 1},
                                 .threads = EXPERTS_SORT_THREADS,
                                 .shared = (2 * v->experts + 1) * sizeof(uint32_t)};
    return recorder_launch(r, &launch, &p, sizeof p);
}

static uint64_t group_bytes(const struct experts_op *v) {
    return (uint64_t)v->n_tiles * v->tile * WIDE_ROW_BYTES;
}

static int record_quantize(struct recorder *r, const struct experts_op *v, bool is_q8_0) {
    struct experts_wide_quantize_params p = {
        .io = r->io,
        .in = experts_input(r, v->op),
        .order = v->order,
        .qact = v->qact,
        .factors = v->factors,
        .group_bytes = group_bytes(v),
        .qact_rows = v->n_tiles * v->tile,
        .row_limit = v->rows,
        .is_q8_0 = is_q8_0,
        .used = v->used,
        .n_experts = v->n_experts,
        .expert_groups = v->is_in ? 0 : v->routed[0].k / WIDE_GROUP,
    };
    p.group_fastdiv = fastdiv_of(p.expert_groups);
    uint32_t floats = p.in.k / PROJECT_GROUP + p.n_experts;
    struct cuda_launch launch = {.kernel = "experts_wide_quantize",
                                 .grid = {v->rows, 1, 1},
                                 .threads = EXPERTS_ROW_THREADS,
                                 .shared = (project_int8_bytes(p.in.k) + 15) / 16 * 16 +
                                           floats * (uint32_t)sizeof(float)};
    return recorder_launch(r, &launch, &p, sizeof p);
}

/* ---- products ----------------------------------------------------------------------------- */

static struct experts_wide_matrix matrix_of(const struct cuda_matrix m[2]) {
    return (struct experts_wide_matrix){.data = {m[0].data, m[1].data},
                                        .expert_bytes = {m[0].plane_bytes, m[1].plane_bytes}};
}

/* The routed experts' product, or the shared one's, or both. */
static int record_product(struct recorder *r, const struct experts_op *v, float *out, bool routed,
                          bool shared) {
    const struct cuda_matrix *m = routed ? v->routed : v->shared;
    uint32_t type = project_type_bit(m[0].type), width = v->routed[0].n;
    struct experts_wide_params p = {
        .w = {.io = r->io,
              .qact = v->qact,
              .qact_rows = v->n_tiles * v->tile,
              .group_bytes = group_bytes(v),
              .stage_bytes = wide_stage_bytes(type, v->tile)},
        .order = v->order,
        .routed = matrix_of(v->routed),
        .shared = matrix_of(v->shared),
        .has_routed = routed,
        .has_shared = shared,
        .experts = v->experts,
        .kblocks = m[0].k / tile_columns(m[0].type, m[0].tile_rows),
        .kblock_bytes = tile_kblock_bytes(m[0].type),
        .row_shift = shift_of(m[0].tile_rows),
        .n_blocks = m[0].n / (v->is_in ? WIDE_N / 2 : WIDE_N),
        .factors = v->factors,
        .out = out,
        .row_stride = v->is_in ? v->op->experts_in.hidden.stride : (uint64_t)(v->used + 1) * width,
        .pair_stride = width,
    };
    uint32_t blocks = EXPERTS_WIDE_BLOCKS(type, v->tile);
    uint32_t room = (blocks == 2 ? PROJECT_SHARED : PROJECT_SHARED_ALONE) - WIDE_STAGES_AT;
    uint32_t sums = v->is_in ? 0 : 2 * v->tile * EXPERTS_WIDE_PITCH;
    p.w.stages = min_u32((room - sums) / p.w.stage_bytes, WIDE_MAX_STAGES);
    p.sums_at = WIDE_STAGES_AT + p.w.stages * p.w.stage_bytes;
    char name[48];
    snprintf(name, sizeof name, "experts_wide_%s_%s_%u", v->is_in ? "in" : "out",
             type == IS_Q5_K ? "q5" : project_set_name(type), v->tile);
    struct cuda_launch launch = {.kernel = name,
                                 .grid = {blocks * r->n_sms, 1, 1},
                                 .threads = WIDE_THREADS,
                                 .shared = WIDE_STAGES_AT + p.w.stages * p.w.stage_bytes + sums};
    return recorder_launch(r, &launch, &p, sizeof p);
}

/* All products whose activations have the same form: that of Q8_0, or of the K-quants. */
static int record_products(struct recorder *r, const struct experts_op *v, float *out,
                           bool is_q8_0) {
    const struct cuda_matrix *a = v->routed, *b = v->shared;
    bool routed = (a->type == DT_Q8_0) == is_q8_0, shared = b->k && (b->type == DT_Q8_0) == is_q8_0;
    if (!routed && !shared)
        return SLUICE_OK;
    int status = record_quantize(r, v, is_q8_0);
    if (routed && shared && (a->type != b->type || a->k != b->k || a->n != b->n)) {
        status = status ? status : record_product(r, v, out, true, false);
        return status ? status : record_product(r, v, out, false, true);
    }
    return status ? status : record_product(r, v, out, routed, shared);
}

static int record_all(struct recorder *r, struct experts_op *v, float *out) {
    uint64_t groups = max_u32(v->routed[0].k, v->shared[0].k) / WIDE_GROUP;
    int status = record_sort(r, v);
    v->qact = recorder_work(r, groups * group_bytes(v));
    if (v->is_in)
        v->factors = recorder_work(r, v->rows * sizeof(float));
    for (int is_q8_0 = 0; is_q8_0 < 2 && !status; is_q8_0++)
        status = record_products(r, v, out, is_q8_0);
    return status;
}

/* ---- recording ---------------------------------------------------------------------------- */

int record_experts_in_wide(struct recorder *r, const struct op *op) {
    struct experts_op v = view(r, op);
    return record_all(r, &v, recorder_at(r, &op->experts_in.hidden));
}

int record_experts_out_wide(struct recorder *r, const struct op *op) {
    const struct op_experts_out *o = &op->experts_out;
    struct experts_op v = view(r, op);
    uint32_t width = v.routed[0].n;
    float *sums = recorder_work(r, (uint64_t)v.rows * (v.used + 1) * width * sizeof(float));
    int status = record_all(r, &v, sums);
    struct experts_combine_params p = {.io = r->io,
                                       .sums = sums,
                                       .weight = recorder_at(r, &o->weight),
                                       .x = recorder_at(r, &o->x),
                                       .x_stride = o->x.stride,
                                       .weight_stride = o->weight.stride,
                                       .width = width,
                                       .used = v.used,
                                       .n_experts = v.n_experts};
    struct cuda_launch launch = {
        .kernel = "experts_wide_combine", .grid = {v.rows, 1, 1}, .threads = EXPERTS_ROW_THREADS};
    return status ? status : recorder_launch(r, &launch, &p, sizeof p);
}
