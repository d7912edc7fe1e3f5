/* attend.c - ATTEND as kernels: one for a plan of one row, or of few, and halves in the cache
 * (attend_row.cu, attend_rows.cu); else two, the first of which norms and turns queries and keys
 * and fills the cache. */
#include "backend/cuda/ops/attend.h"

#include "backend/cuda/host/cuda.h"
#include "base/size.h"

/* More parts than this are folded where they are made. */
static const uint64_t MAX_PART_BYTES = 64 << 20;

static uint32_t turn_of(const struct op_attend *a) {
    if (a->rotary == 0)
        return TURN_NONE;
    if (a->pairing == ROPE_NEIGHBOURS)
        return TURN_NEIGHBOURS;
    if (a->rotary == 64)
        return TURN_NEAR;
    return a->rotary == a->head_width && a->rotary % 128 == 0 ? TURN_FAR : TURN_ANY;
}

static struct attend_params params_of(struct recorder *r, const struct op_attend *a) {
    uint32_t group = a->heads / a->kv_heads, tiles = div_up(group, ATTEND_TILE);
    return (struct attend_params){
        .io = r->io,
        .in = recorder_at(r, &a->in),
        .q_norm = recorder_at(r, &a->q_norm),
        .k_norm = recorder_at(r, &a->k_norm),
        .angles = recorder_at(r, &a->angles),
        .keys = recorder_at(r, &a->keys),
        .values = recorder_at(r, &a->values),
        .pages = recorder_at(r, &a->pages),
        .out = recorder_at(r, &a->out),
        .in_stride = a->in.stride,
        .out_stride = a->out.stride,
        .q_stride = a->q_stride,
        .k_column = a->k_column,
        .v_column = a->v_column,
        .heads = a->heads,
        .kv_heads = a->kv_heads,
        .head_width = a->head_width,
        .rotary = a->rotary,
        .turn = turn_of(a),
        .type = a->keys.type,
        .row_bytes = (uint32_t)operand_row_bytes(&a->keys),
        .group = group,
        .tiles = tiles,
        .tile_rows = 1,
        .pages_per_slot = a->pages.dims[0],
        .n_slots = a->pages.dims[1],
        .n_pages = a->keys.dims[3],
        .max_rows = r->plan->max_rows,
        .eps = a->eps,
        .scale = a->scale,
    };
}

/* How positions are dealt out where the tensor cores are used: splits that fill some of
 * attend_row.cu's slots, and clusters of which there is room for one a unit. */
static void plan_fast_splits(struct attend_params *p) {
    p->short_positions = ATTEND_SHORT(p->head_width);
    p->short_shift = p->head_width > 128 ? 5 : 6;
    p->long_shift = ATTEND_LENGTH(p->head_width) == 128 ? 7 : 8;
    p->fold = p->kv_heads * p->tiles > 16 ? ATTEND_FOLD / 2 : ATTEND_FOLD;
}

/* Elsewhere: so that there are blocks enough from a few thousand positions on. */
static void plan_any_splits(struct attend_params *p) {
    uint32_t units = p->kv_heads * p->tiles;
    p->short_shift = 5;
    p->long_shift = units <= 4 ? 6 : units <= 8 ? 7 : 8;
    p->fold = ATTEND_FOLD;
}

/* The most splits that a row has. */
static uint32_t most_splits(const struct attend_params *p) {
    uint32_t n = (p->pages_per_slot * IO_PAGE_POSITIONS) >> p->long_shift;
    return n > p->fold ? n : p->fold;
}

/* Room for what blocks hand to the one that ends last, and how much a block does before. */
static void plan_parts(struct recorder *r, struct attend_params *p) {
    uint32_t splits = most_splits(p), groups = div_up(splits, p->fold);
    uint32_t queries = p->tiles > 1 ? ATTEND_TILE : p->group * p->tile_rows;
    uint64_t units = (uint64_t)r->plan->max_rows * p->kv_heads * p->tiles;
    p->part_values = (queries * (p->head_width + 2) + 3) / 4 * 4;
    uint64_t bytes = units * (splits + groups) * p->part_values * sizeof(float);
    bool is_wide = r->plan->max_rows == 1 || (r->plan->max_rows <= 8 && bytes <= MAX_PART_BYTES);
    p->run_splits = is_wide ? 1 : p->fold;
    p->slots = is_wide ? splits + groups : groups;
    p->counters_per_unit = 1 + groups;
    p->parts = recorder_work(r, units * p->slots * p->part_values * sizeof(float));
    p->counters = recorder_counters(r, units * p->counters_per_unit);
}

static int launch_splits(struct recorder *r, const struct attend_params *p, const char *kernel) {
    struct cuda_launch launch = {
        .kernel = kernel,
        .grid = {2 * r->n_sms, 1, 1},
        .threads = ATTEND_WARPS * 32,
    };
    return recorder_launch(r, &launch, p, sizeof *p);
}

/* A plan of one row: clusters of as many blocks as a group has splits. Each block of a group leaves
 * its slice of the result, and for each query in it the maximum and the sum. */
static int launch_row(struct recorder *r, struct attend_params *p, const char *kernel) {
    uint32_t units = p->kv_heads * p->tiles;
    p->slots = div_up(most_splits(p), p->fold);
    uint32_t clusters = r->n_sms / p->fold, needed = units * p->slots;
    if (needed >
        4 * clusters) /* long: two blocks to an SM, as far as clusters find room for that */
        clusters = clusters * 7 / 4;
    p->part_values = ATTEND_TILE * p->head_width + 2 * ATTEND_TILE * ATTEND_FOLD;
    p->counters_per_unit = p->fold;
    p->parts = recorder_work(r, (uint64_t)units * p->slots * p->part_values * sizeof(float));
    p->counters = recorder_counters(r, units * p->counters_per_unit);
    clusters = needed < clusters ? needed : clusters ? clusters : 1;
    struct cuda_launch launch = {
        .kernel = kernel,
        .grid = {p->fold * clusters, 1, 1},
        .threads = (ATTEND_WARPS + 1) * 32,
        .shared = ATTEND_ROW_SHARED(p->head_width),
    };
    return recorder_launch(r, &launch, p, sizeof *p);
}

/* Few rows: the same kernel makes heads and attends. */
static int launch_few(struct recorder *r, const struct attend_params *p, const char *kernel) {
    struct cuda_launch launch = {
        .kernel = kernel,
        .grid = {2 * r->n_sms, 1, 1},
        .threads = ATTEND_WARPS * 32,
        .shared = ATTEND_FEW_SHARED(p->head_width),
    };
    return recorder_launch(r, &launch, p, sizeof *p);
}

static int launch_prepare(struct recorder *r, const struct attend_params *p) {
    uint32_t heads = r->plan->max_rows * (p->heads + 2 * p->kv_heads);
    uint32_t blocks = div_up(heads, ATTEND_WARPS);
    struct cuda_launch launch = {
        .kernel = "attend_prepare",
        .grid = {blocks < 4 * r->n_sms ? blocks : 4 * r->n_sms, 1, 1},
        .threads = ATTEND_WARPS * 32,
    };
    return recorder_launch(r, &launch, p, sizeof *p);
}

/* Widths that the tensor cores are used for, with halves in the cache. */
static const struct {
    uint32_t width;
    const char *row[2];     /* kernels of one row, in clusters of 4 and 8 */
    const char *few, *rows; /* of few rows, of many */
} FAST[] = {
    {64, {"attend_row_64_4", "attend_row_64_8"}, "attend_few_64", "attend_rows_64"},
    {128, {"attend_row_128_4", "attend_row_128_8"}, "attend_few_128", "attend_rows_128"},
    {256, {"attend_row_256_4", "attend_row_256_8"}, "attend_few_256", "attend_rows_256"},
};

static const char *any_kernel(uint32_t type) {
    switch (type) {
    case DT_F32:
        return "attend_any_f32";
    case DT_F16:
        return "attend_any_f16";
    case DT_Q8_0:
        return "attend_any_q8_0";
    case DT_Q4_0:
        return "attend_any_q4_0";
    }
    return NULL;
}

int record_attend(struct recorder *r, const struct op *op) {
    const struct op_attend *a = &op->attend;
    if (a->head_width > ATTEND_MAX_WIDTH || a->head_width % 2 || !any_kernel(a->keys.type))
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "op %u, attend: heads %u wide over %s, the CUDA backend has even widths up "
                       "to %d over F32, F16, Q8_0 and Q4_0",
                       r->op, a->head_width, dtype_name(a->keys.type), ATTEND_MAX_WIDTH);
    if (r->plan->max_rows > ATTEND_MAX_ROWS)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "op %u, attend: %u rows a step, the CUDA backend has at most %d", r->op,
                       r->plan->max_rows, ATTEND_MAX_ROWS);
    struct attend_params p = params_of(r, a);
    const char *kernel = any_kernel(a->keys.type), *alone = NULL, *few = NULL;
    plan_any_splits(&p);
    for (size_t i = 0; i < sizeof FAST / sizeof *FAST; i++)
        if (a->keys.type == DT_F16 && a->head_width == FAST[i].width) {
            plan_fast_splits(&p);
            alone = FAST[i].row[p.fold == ATTEND_FOLD], kernel = FAST[i].rows;
            few = FAST[i].few;
        }
    if (alone && r->plan->max_rows == 1 && r->b->capability >= 90 &&
        ATTEND_ROW_SHARED(p.head_width) <= r->b->max_shared)
        return launch_row(r, &p, alone);
    if (alone && p.group < ATTEND_TILE)
        p.tile_rows = ATTEND_TILE / p.group;
    plan_parts(r, &p);
    if (few && r->plan->max_rows <= ATTEND_FEW_ROWS)
        return launch_few(r, &p, few);
    p.query =
        recorder_work(r, (uint64_t)r->plan->max_rows * a->heads * a->head_width * sizeof(float));
    int status = launch_prepare(r, &p);
    return status ? status : launch_splits(r, &p, kernel);
}
