/* delta.c - DELTA as kernels: one for a plan of one row; for more, a convolution and the rule. */
#include "backend/cuda/delta.h"

#include <math.h>

#include "backend/cuda/cuda.h"

static uint32_t divide_up(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

/* Columns that a warp has, at most 4: as few as leave every SM one block; for many rows, where
 * the sums' latency counts, some blocks more. */
static uint32_t columns_of(const struct recorder *r, const struct op_delta *d) {
    uint32_t most = r->plan->max_rows == 1 ? r->n_sms : r->n_sms * 5 / 2, columns = 1;
    while (columns < 4 && DELTA_WARPS * columns < d->value_width &&
           d->value_heads * divide_up(d->value_width, DELTA_WARPS * columns) > most)
        columns *= 2;
    return columns;
}

static struct delta_params params_of(struct recorder *r, const struct op_delta *d, uint32_t tile) {
    uint32_t tiles = divide_up(d->value_width, tile);
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
        .tiles = tiles,
        .padded_key = d->key_width <= 128 ? 128 : 256,
        .padded_value = tiles * tile,
        .q_scale = 1 / sqrtf((float)d->key_width),
    };
}

/* Kernels are made for 1, 2 and 4 columns a warp, and keys up to 128 and 256 wide. */
static const char *const ROW_KERNELS[3][2] = {{"delta_row_1_128", "delta_row_1_256"},
                                              {"delta_row_2_128", "delta_row_2_256"},
                                              {"delta_row_4_128", "delta_row_4_256"}};
static const char *const RULE_KERNELS[3][2] = {{"delta_rule_1_128", "delta_rule_1_256"},
                                               {"delta_rule_2_128", "delta_rule_2_256"},
                                               {"delta_rule_4_128", "delta_rule_4_256"}};

static int record_one(struct recorder *r, const struct delta_params *p, uint32_t columns) {
    uint32_t channels = 2 * p->key_width + DELTA_WARPS * columns;
    struct cuda_launch launch = {
        .kernel = ROW_KERNELS[columns / 2][p->padded_key / 256],
        .grid = {p->value_heads * p->tiles, 1, 1},
        .threads = DELTA_WARPS * 32,
        .shared = channels * (2 * p->conv_width + 1) * (uint32_t)sizeof(float),
    };
    return recorder_launch(r, &launch, p, sizeof *p);
}

static int record_many(struct recorder *r, struct delta_params *p, uint32_t columns) {
    uint64_t rows = r->plan->max_rows;
    uint32_t warps = 8, items = (uint32_t)rows * (p->key_heads + p->value_heads);
    uint32_t blocks = divide_up(items, warps);
    p->qk = recorder_work(r, rows * p->key_heads * 2 * p->padded_key * sizeof(float));
    p->v = recorder_work(r, rows * p->value_heads * p->padded_value * sizeof(float));
    p->keys = recorder_work(r, rows * p->key_heads * sizeof *p->keys);
    p->gates = recorder_work(r, rows * p->value_heads * sizeof *p->gates);
    struct cuda_launch conv = {
        .kernel = "delta_conv",
        .grid = {blocks < 4 * r->n_sms ? blocks : 4 * r->n_sms, 1, 1},
        .threads = warps * 32,
    };
    int status = recorder_launch(r, &conv, p, sizeof *p);
    if (status)
        return status;
    /* Segments beyond the grid are looped over: most steps have few of them. */
    uint32_t row_values = 2 * p->padded_key + DELTA_WARPS * columns + 8;
    struct cuda_launch rule = {
        .kernel = RULE_KERNELS[columns / 2][p->padded_key / 256],
        .grid = {p->value_heads * p->tiles, rows < 8 ? (uint32_t)rows : 8, 1},
        .threads = DELTA_WARPS * 32,
        .shared = 2 * DELTA_STAGE_ROWS * row_values * (uint32_t)sizeof(float),
    };
    return recorder_launch(r, &rule, p, sizeof *p);
}

int record_delta(struct recorder *r, const struct op *op) {
    const struct op_delta *d = &op->delta;
    if (d->key_width > DELTA_MAX_WIDTH || d->value_width > DELTA_MAX_WIDTH)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "op %u, delta: heads of %u keys and %u values, the CUDA backend has at most "
                       "%d",
                       r->op, d->key_width, d->value_width, DELTA_MAX_WIDTH);
    uint32_t columns = columns_of(r, d);
    struct delta_params p = params_of(r, d, DELTA_WARPS * columns);
    return r->plan->max_rows == 1 ? record_one(r, &p, columns) : record_many(r, &p, columns);
}
