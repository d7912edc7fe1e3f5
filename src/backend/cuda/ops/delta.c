/* delta.c - which kernel a DELTA becomes, how value heads are tiled, and the workspace of prefill.
 *
 *   1 row         delta_decode_J_KEY
 *   2 to 32       delta_few_J_128, unless all segments have one row
 *   2 to 32       delta_batch_tile_J_KEY, or delta_batch_J_KEY
 *   more          delta_conv_KEY, delta_scan_C_KEY for prefill segments, then one of those two
 *
 * delta_log takes the place of delta_batch_tile from DELTA_LOG_ROWS rows on, where there are many
 * sequences (delta.h); prefill segments have kernels of their own then. Where delta_few could have
 * them it has a recording of its own, for steps that would settle few logs for it (host/step.c).
 *
 * delta_batch_tile: 128-wide keys, full tiles, conv_width 4, and room for all segments.
 *
 * J: columns of a warp in decode segments. C: columns of a lane. KEY: dk padded to 128 or 256. */
#include "backend/cuda/ops/delta.h"

#include <math.h>

#include "backend/cuda/host/cuda.h"
#include "base/size.h"

/* The smallest tiles, of `least` to `most` columns a warp, of which there are at most max_tiles. */
static struct delta_tiling tiling_for(const struct op_delta *d, uint32_t max_tiles, uint32_t least,
                                      uint32_t most) {
    struct delta_tiling t = {.columns = least};
    for (;; t.columns *= 2) {
        t.tiles = div_up(d->value_width, DELTA_WARPS * t.columns);
        if (t.columns == most || t.tiles == 1 || d->value_heads * t.tiles <= max_tiles)
            return t;
    }
}

static struct delta_params params_of(struct recorder *r, const struct op_delta *d) {
    return (struct delta_params){
        .io = r->io,
        .in = recorder_at(r, &d->in),
        .conv_weights = recorder_at(r, &d->conv),
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
        .is_modulo_map = d->head_map == HEADS_TILED,
        .n_cells = d->state.dims[3],
        .is_state_vec4 = d->key_width % 4 == 0 && (uintptr_t)recorder_at(r, &d->state) % 16 == 0,
        .max_rows = r->plan->max_rows,
        .max_segments = min_u32(r->plan->max_rows, d->state.dims[3]),
        .padded_key = d->key_width <= 128 ? 128 : 256,
        .q_scale = 1 / sqrtf((float)d->key_width),
    };
}

/* By columns of a warp (1, 2, 4) and padded key width. */
static const char *const DECODE_KERNELS[3][2] = {{"delta_decode_1_128", "delta_decode_1_256"},
                                                 {"delta_decode_2_128", "delta_decode_2_256"},
                                                 {"delta_decode_4_128", "delta_decode_4_256"}};
static const char *const FULL_DECODE_KERNELS[3] = {
    "delta_decode_full_1_128", "delta_decode_full_2_128", "delta_decode_full_4_128"};
/* By columns of a warp: 2 or 4. */
static const char *const BATCH_KERNELS[2][2] = {{"delta_batch_2_128", "delta_batch_2_256"},
                                                {"delta_batch_4_128", NULL}};
static const char *const BATCH_TILE_KERNELS[2] = {"delta_batch_tile_2_128",
                                                  "delta_batch_tile_4_128"};

/* What the host has to settle before a step of the plan. */
static void note_log(struct recorder *r, bool has_log) {
    if (r->is_counting)
        return;
    r->into->has_logs |= has_log;
    r->into->reads_states |= !has_log;
}

/* Shapes of delta_decode_full and delta_few; p->decode_tiling is set. */
static bool has_full_shape(const struct delta_params *p) {
    return p->is_state_vec4 && p->key_width == 128 && p->conv_width == 4 &&
           p->value_width % (DELTA_WARPS * p->decode_tiling.columns) == 0 &&
           (uintptr_t)p->conv_weights % 16 == 0;
}

static int record_decode(struct recorder *r, const struct op_delta *d) {
    struct delta_params p = params_of(r, d);
    note_log(r, false);
    p.decode_tiling = tiling_for(d, r->n_sms, 1, 4);
    uint32_t columns = p.decode_tiling.columns, channels = 2 * p.key_width + DELTA_WARPS * columns;
    bool is_full = has_full_shape(&p);
    struct cuda_launch launch = {
        .kernel = is_full ? FULL_DECODE_KERNELS[columns / 2]
                          : DECODE_KERNELS[columns / 2][p.padded_key / 256],
        .grid = {p.value_heads * p.decode_tiling.tiles, 1, 1},
        .threads = DELTA_WARPS * 32 + (is_full ? 32 : 0), /* a warp for the gates */
        .shared = channels * (is_full ? 1 : 2 * p.conv_width + 1) * (uint32_t)sizeof(float),
    };
    return recorder_launch(r, &launch, &p, sizeof p);
}

/* Workspace and counters of prefill segments. */
static void reserve_workspace(struct recorder *r, struct delta_params *p,
                              struct delta_tiling tiling) {
    uint64_t rows = p->max_rows;
    p->padded_value = tiling.tiles * DELTA_WARPS * tiling.columns;
    p->conv_qk = recorder_work(r, rows * p->key_heads * 2 * p->padded_key * sizeof(float));
    p->conv_v = recorder_work(r, rows * p->value_heads * p->padded_value * sizeof(float));
    p->norms = recorder_work(r, rows * p->key_heads * sizeof *p->norms);
    p->gates = recorder_work(r, rows * p->value_heads * sizeof *p->gates);
    p->counters = (struct delta_counters *)recorder_counters(r, sizeof *p->counters / 4);
}

/* Bytes as delta_batch.cu uses them: decode segments (struct decode_shared, block_tile), then
 * prefill segments in the same place. */
static uint32_t batch_shared(const struct delta_params *p) {
    uint32_t tile = DELTA_WARPS * p->decode_tiling.columns;
    uint32_t prefill_tile = DELTA_WARPS * p->prefill_tiling.columns;
    uint32_t channels = div_up(2 * p->key_width + tile, 4) * 4;
    uint32_t qkv_buffers = p->blocks_per_tile ? 3 : 2;
    uint32_t jobs = p->blocks_per_tile ? p->max_jobs * DELTA_TILE_JOB_BYTES
                                       : p->max_jobs * DELTA_JOB_BYTES +
                                             p->max_segments * (uint32_t)sizeof(struct io_segment);
    uint32_t decode = DELTA_STAGES * tile * p->key_width + qkv_buffers * channels;
    uint32_t prefill = 2 * DELTA_PREFILL_ROWS * (2 * p->padded_key + prefill_tile + 8);
    return max_u32(decode * (uint32_t)sizeof(float) + jobs, prefill * (uint32_t)sizeof(float));
}

/* The most columns of a warp in decode segments: wide keys leave registers for fewer. */
static uint32_t max_decode_columns(const struct delta_params *p) {
    return p->padded_key == 128 ? 4 : 2;
}

/* Two blocks an SM: one computes while the other's states are in flight. Small plans have one,
 * which starts beside PROJECT's block (4 rows of qwen35-4b: 9.0 us with one, 9.4 with two). */
static uint32_t batch_blocks_per_sm(const struct recorder *r, const struct delta_params *p) {
    uint32_t tiles = div_up(p->value_width, DELTA_WARPS * max_decode_columns(p));
    return p->max_rows * p->value_heads * tiles <= 2 * r->n_sms ? 1 : 2;
}

/* Blocks that divide a tile's segments in delta_batch_tile; 0: the plan has to use delta_batch.
 * That is so for other shapes, for more segments than a block has room for, and in small plans
 * where for some number of segments the slowest block would have more jobs than with delta_batch's
 * even division. */
static uint32_t find_blocks_per_tile(const struct delta_params *p, uint32_t blocks) {
    uint32_t tiles = p->value_heads * p->decode_tiling.tiles;
    uint32_t per_tile = min_u32(blocks / tiles, p->max_rows);
    bool has_shape = p->is_full && p->key_width == 128 && p->conv_width == 4;
    if (!has_shape || !per_tile || div_up(p->max_segments, per_tile) > DELTA_TILE_JOBS)
        return 0;
    for (uint32_t n = 1; n <= p->max_rows && p->max_rows <= DELTA_FUSED_ROWS; n++)
        if (div_up(n, per_tile) > div_up(n * tiles, blocks))
            return 0;
    return per_tile;
}

/* Logs of the cells that sequences have; a snapshot's state is always whole. */
static void plan_log(struct recorder *r, const struct op_delta *d, struct delta_params *p) {
    uint32_t slots = r->plan->pages.n_dims ? r->plan->pages.dims[1] : p->n_cells;
    uint32_t cells = min_u32(slots, p->n_cells);
    if (r->b->capability < 90 || !p->blocks_per_tile ||
        DELTA_WARPS * p->decode_tiling.columns != DELTA_LOG_TILE || p->max_rows < DELTA_LOG_ROWS ||
        cells < DELTA_LOG_CELLS || p->n_cells * p->state_stride > UINT32_MAX ||
        p->max_rows * p->in_stride > UINT32_MAX || p->max_rows * p->out_stride > UINT32_MAX)
        return;
    struct delta_log_heads heads = {
        .head_tiles = (uint16_t)p->decode_tiling.tiles,
        .key_heads = (uint16_t)p->key_heads,
        .heads_per_key = (uint16_t)(p->value_heads / p->key_heads),
        .is_modulo_map = (uint16_t)p->is_modulo_map,
    };
    const struct cuda_log *log =
        recorder_log(r, &d->state, p->value_heads * p->decode_tiling.tiles, cells, heads);
    if (!log)
        return;
    p->log_cells = cells;
    if (!r->is_counting) {
        p->log_counts = cuda_log_counts(r->b, log);
        p->log_keys = cuda_log_keys(r->b, log);
        p->log = cuda_log_entries(r->b, log);
    }
}

static void plan_batch_tilings(struct recorder *r, const struct op_delta *d, struct delta_params *p,
                               uint32_t blocks) {
    p->decode_tiling = tiling_for(d, blocks / p->max_rows, 2, max_decode_columns(p));
    p->is_full = p->is_state_vec4 && p->key_width == p->padded_key &&
                 p->value_width % (DELTA_WARPS * p->decode_tiling.columns) == 0;
    p->max_jobs = div_up(p->max_segments * p->value_heads * p->decode_tiling.tiles, blocks);
    p->blocks_per_tile = find_blocks_per_tile(p, blocks);
    if (p->blocks_per_tile)
        p->max_jobs = div_up(p->max_segments, p->blocks_per_tile);
    p->prefill_tiling = tiling_for(d, r->n_sms, DELTA_PREFILL_COLUMNS, DELTA_PREFILL_COLUMNS);
}

/* Columns of a lane in delta_scan: one where that gives an SM a tile at most, else two, of which
 * each is faster, since a lane then reads q and k from shared memory once for both (1024 rows of
 * qwen35-4b: 241 us with two, 289 with one, 628 with four; qwen35-0.8b: 232 with two, 193 with
 * one).
 */
static struct delta_tiling scan_tiling_for(const struct op_delta *d, uint32_t n_sms) {
    return tiling_for(d, n_sms, 1, d->key_width > 128 ? 1 : 2);
}

/* delta_conv and delta_scan, which has a block an SM: of its shared memory no two fit. */
static int record_scan(struct recorder *r, struct delta_params *p) {
    enum { ONE_PER_SM_SHARED = 116 << 10 };
    bool is_wide = p->padded_key == 256;
    uint32_t stages =
        DELTA_SCAN_STAGES * DELTA_SCAN_STAGE_BYTES(p->scan_tiling.columns, p->padded_key);
    uint32_t groups = min_u32(r->b->max_shared / stages, DELTA_SCAN_GROUPS);
    struct cuda_launch conv = {
        .kernel = is_wide ? "delta_conv_256" : "delta_conv_128",
        .grid = {div_up(p->key_heads + p->value_heads, DELTA_CONV_WARPS),
                 div_up(p->max_rows, DELTA_SCAN_ROWS), 1},
        .threads = DELTA_CONV_WARPS * 32,
    };
    struct cuda_launch scan = {
        .kernel = is_wide                       ? "delta_scan_1_256"
                  : p->scan_tiling.columns == 2 ? "delta_scan_2_128"
                                                : "delta_scan_1_128",
        .grid = {r->n_sms, 1, 1},
        .threads = max_u32(groups, 1) * DELTA_SCAN_WARPS * 32,
        .shared = max_u32(groups * stages, min_u32(ONE_PER_SM_SHARED, r->b->max_shared)),
    };
    int status = recorder_launch(r, &conv, p, sizeof *p);
    return status ? status : recorder_launch(r, &scan, p, sizeof *p);
}

/* How any segments are divided, and whether they leave rows to the log; returns blocks an SM. */
static uint32_t plan_batch(struct recorder *r, const struct op_delta *d, struct delta_params *p) {
    *p = params_of(r, d);
    uint32_t per_sm = batch_blocks_per_sm(r, p);
    p->is_conv_vec4 =
        p->is_state_vec4 && p->channels % 4 == 0 && p->in_stride % 4 == 0 &&
        ((uintptr_t)p->in | (uintptr_t)p->window | (uintptr_t)p->conv_weights) % 16 == 0;
    plan_batch_tilings(r, d, p, per_sm * r->n_sms);
    if (p->max_rows > DELTA_FUSED_ROWS && !p->blocks_per_tile && per_sm > 1) {
        per_sm = 1; /* delta_batch of mostly prefill */
        plan_batch_tilings(r, d, p, r->n_sms);
    }
    plan_log(r, d, p);
    return per_sm;
}

static bool leaves_rows_to_log(struct recorder *r, const struct op_delta *d) {
    struct delta_params p;
    plan_batch(r, d, &p);
    return p.log_cells != 0;
}

/* False: record_batch has to follow. It does for plans that are not for delta_few, and while memory
 * is counted, as other recordings of the plan use its kernels: for steps whose segments all have
 * one row, and, where rows are left to the log, for all that the recording for delta_few is not
 * for. */
static bool record_few(struct recorder *r, const struct op_delta *d, int *status) {
    static const char *const KERNELS[3] = {"delta_few_1_128", "delta_few_2_128", "delta_few_4_128"};
    struct delta_params p = params_of(r, d);
    p.decode_tiling = tiling_for(d, r->n_sms, 1, 4);
    uint32_t columns = p.decode_tiling.columns, channels = 2 * p.key_width + DELTA_WARPS * columns;
    uint32_t most = columns == 4 ? DELTA_FEW_ROWS_4 : DELTA_FEW_ROWS;
    if (p.max_rows > most || r->is_decode || !has_full_shape(&p))
        return false;
    p.arrivals = recorder_counters(r, (uint64_t)p.max_segments * p.key_heads);
    if (r->is_counting)
        return false;
    if (!r->is_few && leaves_rows_to_log(r, d)) {
        r->into->wants_few = true;
        return false;
    }
    note_log(r, false);
    r->into->has_few = true;
    struct cuda_launch launch = {
        .kernel = KERNELS[columns / 2],
        .grid = {p.value_heads * p.decode_tiling.tiles, min_u32(p.max_segments, DELTA_FEW_SEGMENTS),
                 1},
        .threads = DELTA_WARPS * 32 + 32, /* a warp for the gates */
        .shared = DELTA_FEW_SHARED(channels, p.max_rows),
    };
    *status = recorder_launch(r, &launch, &p, sizeof p);
    return true;
}

static int record_batch(struct recorder *r, const struct op_delta *d) {
    /* Shared memory of which two blocks do not fit an SM, but one and one of PROJECT's do, to the
     * byte: the kernels have 16 more, and 128 is the granularity. Without it the SMs that are free
     * first get two blocks and others none (16 rows of qwen35-4b: 33 us instead of 24). */
    enum { ONE_PER_SM_SHARED = 115968 - 128 };
    struct delta_params p;
    uint32_t per_sm = plan_batch(r, d, &p);
    note_log(r, p.log_cells != 0);
    p.has_scan = p.max_rows > DELTA_FUSED_ROWS || p.log_cells;
    p.scan_tiling = scan_tiling_for(d, r->n_sms);
    reserve_workspace(r, &p, p.has_scan ? p.scan_tiling : p.prefill_tiling);
    uint32_t shared = batch_shared(&p);
    p.scans_all = p.has_scan && shared > r->b->max_shared;
    if (p.has_scan && (!r->is_decode || p.scans_all)) {
        int status = record_scan(r, &p);
        if (status || p.scans_all)
            return status;
    }
    if (p.log_cells) {
        struct cuda_launch log = {
            .kernel = "delta_log",
            .grid = {p.blocks_per_tile * p.value_heads * p.decode_tiling.tiles, 1, 1},
            .threads = DELTA_WARPS * 32,
            .shared = DELTA_LOG_SHARED,
        };
        return recorder_launch(r, &log, &p, sizeof p);
    }
    uint32_t least = per_sm == 1 ? min_u32(ONE_PER_SM_SHARED, r->b->max_shared - 1024) : 0;
    struct cuda_launch launch = {
        .kernel = p.blocks_per_tile
                      ? BATCH_TILE_KERNELS[p.decode_tiling.columns / 4]
                      : BATCH_KERNELS[p.decode_tiling.columns / 4][p.padded_key / 256],
        .grid = {per_sm * r->n_sms, 1, 1},
        .threads = DELTA_WARPS * 32,
        .shared = max_u32(shared, least),
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
    if (r->plan->max_rows == 1)
        return record_decode(r, d);
    int status;
    return record_few(r, d, &status) ? status : record_batch(r, d);
}
