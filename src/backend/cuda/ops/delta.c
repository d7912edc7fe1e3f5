/* delta.c - DELTA as kernels: one for a plan of one row, another for more. */
#include "backend/cuda/ops/delta.h"

#include <math.h>

#include "backend/cuda/host/cuda.h"
#include "base/size.h"

/* A warp has as few columns, from `least` to `most`, as leave no more than n_blocks blocks. */
static struct delta_cut cut_for(const struct op_delta *d, uint32_t n_blocks, uint32_t least,
                                uint32_t most) {
    struct delta_cut cut = {.columns = least};
    for (;; cut.columns *= 2) {
        cut.tiles = div_up(d->value_width, DELTA_WARPS * cut.columns);
        if (cut.columns == most || cut.tiles == 1 || d->value_heads * cut.tiles <= n_blocks)
            return cut;
    }
}

static struct delta_params params_of(struct recorder *r, const struct op_delta *d) {
    return (struct delta_params){
        .io = r->io,
        .in = recorder_at(r, &d->in),
        .conv = recorder_at(r, &d->conv),
        .a = recorder_at(r, &d->a),
        .dt = recorder_at(r, &d->dt),
        .state = recorder_at(r, &d->state),
        .window = recorder_at(r, &d->window),
        .out = recorder_at(r, &d->out),
        .in_stride = d->in.stride,
        .out_stride = d->out.stride,
        .state_stride = (uint64_t)d->value_heads * d->value_width * d->key_width,
        .beta_column = d->beta_column,
        .alpha_column = d->alpha_column,
        .key_heads = d->key_heads,
        .value_heads = d->value_heads,
        .key_width = d->key_width,
        .value_width = d->value_width,
        .conv_width = d->conv_width,
        .channels = d->window.dims[0],
        .is_tiled = d->head_map == HEADS_TILED,
        .slots = d->state.dims[3],
        .is_even = d->key_width % 4 == 0 && (uintptr_t)recorder_at(r, &d->state) % 16 == 0,
        .rows = r->plan->max_rows,
        .padded_key = d->key_width <= 128 ? 128 : 256,
        .q_scale = 1 / sqrtf((float)d->key_width),
    };
}

/* Kernels are made for 1, 2 and 4 columns a warp, and keys up to 128 and 256 wide. */
static const char *const ROW_KERNELS[3][2] = {{"delta_row_1_128", "delta_row_1_256"},
                                              {"delta_row_2_128", "delta_row_2_256"},
                                              {"delta_row_4_128", "delta_row_4_256"}};

static int record_one(struct recorder *r, const struct op_delta *d) {
    struct delta_params p = params_of(r, d);
    p.cut = cut_for(d, r->n_sms, 1, 4);
    uint32_t channels = 2 * p.key_width + DELTA_WARPS * p.cut.columns;
    struct cuda_launch launch = {
        .kernel = ROW_KERNELS[p.cut.columns / 2][p.padded_key / 256],
        .grid = {p.value_heads * p.cut.tiles, 1, 1},
        .threads = DELTA_WARPS * 32,
        .shared = channels * (2 * p.conv_width + 1) * (uint32_t)sizeof(float),
    };
    return recorder_launch(r, &launch, &p, sizeof p);
}

/* These for as many columns of single rows. */
static const char *const MANY_KERNELS[3][2] = {{NULL, "delta_many_1_256"},
                                               {"delta_many_2_128", "delta_many_2_256"},
                                               {"delta_many_4_128", NULL}};
static const char *const FEW_KERNELS[3] = {NULL, "delta_few_2_128", "delta_few_4_128"};

/* What rows of runs become between convolution and rule. */
static void ask_for_work(struct recorder *r, struct delta_params *p) {
    uint64_t rows = r->plan->max_rows;
    p->padded_value = p->run_cut.tiles * DELTA_WARPS * p->run_cut.columns;
    p->qk = recorder_work(r, rows * p->key_heads * 2 * p->padded_key * sizeof(float));
    p->v = recorder_work(r, rows * p->value_heads * p->padded_value * sizeof(float));
    p->keys = recorder_work(r, rows * p->key_heads * sizeof *p->keys);
    p->gates = recorder_work(r, rows * p->value_heads * sizeof *p->gates);
    p->counters = (struct delta_counters *)recorder_counters(r, sizeof *p->counters / 4);
}

/* As delta_many.cu lays it out, for single rows and for runs. */
static uint32_t shared_of(const struct delta_params *p) {
    uint32_t tile = DELTA_WARPS * p->cut.columns, run_tile = DELTA_WARPS * p->run_cut.columns;
    uint32_t channels = div_up(2 * p->key_width + tile, 4) * 4, ys = p->lanes ? 3 : 2;
    uint32_t table =
        p->lanes ? p->most_items * DELTA_TURN_BYTES
                 : p->most_items * DELTA_ITEM_BYTES + p->rows * (uint32_t)sizeof(struct io_segment);
    uint32_t singles =
        (DELTA_STAGES * tile * p->key_width + ys * channels) * (uint32_t)sizeof(float) + table;
    uint32_t runs = 2 * DELTA_STAGE_ROWS * (2 * p->padded_key + run_tile + 8);
    return max_u32(singles, runs * (uint32_t)sizeof(float));
}

/* Most columns of a warp for single rows: wide keys leave registers for fewer. */
static uint32_t most_columns(const struct delta_params *p) {
    return p->padded_key == 128 ? 4 : 2;
}

/* Where single rows are what there is to do, two blocks a multiprocessor: while one computes, the
 * other's states come. Where they are few, and in wide plans, whose steps are mostly runs, one: it
 * begins beside PROJECT's, and two that walk runs on one multiprocessor wait for each other. */
static bool is_alone(const struct recorder *r, const struct delta_params *p) {
    enum { MOST_SINGLE = 32 };
    uint32_t tiles = div_up(p->value_width, DELTA_WARPS * most_columns(p));
    return p->rows > MOST_SINGLE || p->rows * p->value_heads * tiles <= 2 * r->n_sms;
}

/* In plans of few rows a block may keep one tile, so that all the tile decides is there before the
 * wait: then so many blocks share a tile's segments. 0: not in this plan, or some number of
 * segments would give a block more than an even share of all tiles does. */
static uint32_t lanes_of(const struct delta_params *p, uint32_t blocks) {
    uint32_t tiles = p->value_heads * p->cut.tiles, lanes = min_u32(blocks / tiles, p->rows);
    bool is_usual = p->is_full && p->key_width == 128 && p->conv_width == 4;
    if (p->rows > DELTA_FEW_ROWS || !is_usual || !lanes)
        return 0;
    for (uint32_t n = 1; n <= p->rows; n++)
        if (div_up(n, lanes) > div_up(n * tiles, blocks))
            return 0;
    return lanes;
}

static int record_many(struct recorder *r, const struct op_delta *d) {
    /* Of shared memory: two such blocks do not fit, one and one of PROJECT's do, to the byte; 16
     * more are in the kernels, and it is handed out by 128. Without it the multiprocessors that are
     * free first get two, and others none. */
    enum { ALONE = 115968 - 128 };
    struct delta_params p = params_of(r, d);
    uint32_t per_sm = is_alone(r, &p) ? 1 : 2, blocks = per_sm * r->n_sms;
    p.cut = cut_for(d, blocks / p.rows, most_columns(&p) / 2, most_columns(&p));
    p.is_aligned = p.is_even && p.channels % 4 == 0 && p.in_stride % 4 == 0 &&
                   ((uintptr_t)p.in | (uintptr_t)p.window | (uintptr_t)p.conv) % 16 == 0;
    p.is_full = p.is_even && p.key_width == p.padded_key &&
                p.value_width % (DELTA_WARPS * p.cut.columns) == 0;
    p.most_items = div_up(p.rows * p.value_heads * p.cut.tiles, blocks);
    p.lanes = lanes_of(&p, blocks);
    p.run_cut =
        p.lanes ? cut_for(d, r->n_sms, DELTA_FEW_RUN, DELTA_FEW_RUN) : cut_for(d, r->n_sms, 1, 4);
    ask_for_work(r, &p);
    struct cuda_launch launch = {
        .kernel = p.lanes ? FEW_KERNELS[p.cut.columns / 2]
                          : MANY_KERNELS[p.cut.columns / 2][p.padded_key / 256],
        .grid = {blocks, 1, 1},
        .threads = DELTA_WARPS * 32,
        .shared = max_u32(shared_of(&p), per_sm == 1 ? min_u32(ALONE, r->b->max_shared - 1024) : 0),
    };
    return recorder_launch(r, &launch, &p, sizeof p);
}

int record_delta(struct recorder *r, const struct op *op) {
    const struct op_delta *d = &op->delta;
    if (d->key_width > DELTA_MAX_WIDTH || d->value_width > DELTA_MAX_WIDTH)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "op %u, delta: heads of %u keys and %u values, the CUDA backend has at most "
                       "%d",
                       r->op, d->key_width, d->value_width, DELTA_MAX_WIDTH);
    return r->plan->max_rows == 1 ? record_one(r, d) : record_many(r, d);
}
