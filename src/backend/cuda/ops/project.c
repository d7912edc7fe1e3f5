/* project.c - PROJECT on tiled weights: how its work is cut.
 *
 * Slices of K are chosen from the matrices' shapes and the number of multiprocessors; blocks, warps
 * and pipeline depth may differ from bucket to bucket, since no bit depends on them. */
#include "backend/cuda/ops/project.h"

#include <stdio.h>
#include <string.h>

#include "backend/cuda/ops/project_fallback.h"
#include "backend/cuda/ops/project_gemm.h"
#include "base/size.h"

enum {
    WARPS = 16,      /* of a block, so that two stages' registers fit a multiprocessor */
    WARPS_WIDE = 20, /* of SwiGLU, the widest stage, whose neighbours have fewer; and of four rows,
                        where stages are alone */
    MIN_WARPS = 4,
    UNIT_COST = 1024, /* of a warp, in bytes */
    TASK_COST = 1536,
    PREPARE_THREADS = 64, /* of a block that makes rows ready, and lies beside products */
    MAX_SLICES = 32,
    MAX_PARTS = 24 << 10,
    SHARED_SUMS = 1536,
    SHARED_BARRIERS = 8 * 6 * 20, /* of all stages of all warps */
};

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
    };
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].set == set)
            return names[i].name;
    return "all";
}

/* ---- splits -----------------------------------------------------------------------------------
 */

/* Units of all tiles. */
static uint64_t stage_units(const struct project_params *p) {
    uint64_t kblocks = 0;
    for (uint32_t i = 0; i < p->n_segments; i++)
        kblocks += (uint64_t)p->segments[i].n_tiles * p->segments[i].kblocks;
    return kblocks;
}

/* So many splits that the tasks of a block keep its warps busy for about the same time. A task's
 * end costs about three quarters of a kblock. Where there are many tiles, none: a row is one
 * warp's.
 */
static uint32_t choose_slices(const struct project_segment *s, uint32_t tiles, uint32_t warps) {
    uint32_t best = 1, best_cost = UINT32_MAX;
    if (tiles >= 3 * warps)
        return 1;
    for (uint32_t splits = 1; splits <= s->kblocks && splits <= MAX_SLICES; splits++) {
        uint32_t cost = UINT32_MAX;
        for (uint32_t w = 1; w <= warps; w++) {
            uint32_t c = div_up(tiles * splits, w) * (4 * div_up(s->kblocks, splits) + 3);
            cost = min_u32(cost, c);
        }
        if (cost < best_cost)
            best = splits, best_cost = cost;
    }
    return best;
}

/* Shared memory of a stage's block. Every other product of a layer adds to the residual, so that
 * neighbours are of different sizes. */
static uint32_t stage_shared(const struct project_params *p) {
    uint32_t bytes = p->epilogue == EPILOGUE_ADD ? PROJECT_SHARED_WIDE : PROJECT_SHARED;
    return min_u32(bytes, p->max_shared);
}

/* Warps of which two kblocks each fit beside a row's qact and the sums: for one row, since splits,
 * and with them a row's bits, must not depend on how many there are. */
static uint32_t most_warps(const struct project_params *p) {
    struct project_input in = p->in;
    in.wants_f32 |= p->is_plain;
    uint32_t room = stage_shared(p) - SHARED_SUMS, qact = project_qact_bytes(&in), warps = 0;
    if (qact < room)
        warps = (room - qact) / (2 * p->stage_bytes);
    return max_u32(MIN_WARPS, min_u32(warps, p->epilogue == EPILOGUE_SWIGLU ? WARPS_WIDE : WARPS));
}

static void cut_slices(struct project_params *p, uint32_t n_sms) {
    uint32_t warps = most_warps(p);
    uint64_t share = (stage_units(p) + n_sms - 1) / n_sms;
    p->is_direct = p->epilogue != EPILOGUE_SWIGLU;
    for (uint32_t i = 0; i < p->n_segments; i++) {
        struct project_segment *s = &p->segments[i];
        uint64_t tiles = (share + s->kblocks - 1) / s->kblocks;
        s->splits = choose_slices(s, (uint32_t)(tiles < 4096 ? tiles : 4096), warps);
        s->split_fastdiv = div_up(65536, s->splits);
        s->split_kblocks = s->kblocks / s->splits;
        s->split_extra = s->kblocks % s->splits;
        p->is_direct &= s->splits == 1;
    }
}

/* ---- blocks -----------------------------------------------------------------------------------
 */

/* Tiles in the order in which blocks are cut. SwiGLU: gate and up side by side. */
static uint32_t ordered_tiles(const struct project_params *p) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < (p->epilogue == EPILOGUE_SWIGLU ? 1 : p->n_segments); i++)
        n += p->segments[i].n_tiles;
    return n;
}

/* What a tile costs a block: its bytes, and `more` a kblock. */
static uint64_t tile_cost(const struct project_segment *s, uint32_t more) {
    return (uint64_t)s->kblocks * (s->kblock_bytes + more);
}

static uint64_t ordered_cost(const struct project_params *p, uint32_t tile, uint32_t more) {
    uint64_t cost = 0;
    for (uint32_t i = 0; i < p->n_segments; i++) {
        const struct project_segment *s = &p->segments[i];
        if (tile >= s->first_tile && tile - s->first_tile < s->n_tiles)
            cost += tile_cost(s, more);
    }
    return cost;
}

/* Fills blocks up to a cost of `most`; false: they are too few. */
static bool fill_blocks(struct project_params *p, uint32_t n_blocks, uint64_t most, uint32_t more) {
    uint32_t tile = 0, n = ordered_tiles(p);
    for (uint32_t b = 0; b < n_blocks; b++) {
        p->bounds[b] = (uint16_t)tile;
        for (uint64_t cost = 0; tile < n; tile++) {
            cost += ordered_cost(p, tile, more);
            if (cost > most)
                break;
        }
    }
    p->bounds[n_blocks] = (uint16_t)tile;
    return tile == n;
}

void project_cut_blocks(struct project_params *p, uint32_t n_blocks, uint32_t more) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < p->n_segments; i++)
        all += p->segments[i].n_tiles * tile_cost(&p->segments[i], more);
    uint64_t low = all / n_blocks, high = all + 1;
    while (high - low >= 64) {
        uint64_t middle = low + (high - low) / 2;
        if (fill_blocks(p, n_blocks, middle, more))
            high = middle;
        else
            low = middle;
    }
    fill_blocks(p, n_blocks, high, more);
}

/* Tiles of segment s that block b has. */
static uint32_t block_tiles(const struct project_params *p, const struct project_segment *s,
                            uint32_t b) {
    uint32_t first = max_u32(p->bounds[b], s->first_tile),
             last = min_u32(p->bounds[b + 1], s->first_tile + s->n_tiles);
    return last > first ? last - first : 0;
}

uint32_t project_max_tasks(const struct project_params *p, uint32_t n_blocks) {
    uint32_t most = 0;
    for (uint32_t b = 0; b < n_blocks; b++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < p->n_segments; i++)
            n += block_tiles(p, &p->segments[i], b) * p->segments[i].splits;
        most = max_u32(most, n);
    }
    return most;
}

/* Results of the block that has most. */
static uint32_t max_results(const struct project_params *p, uint32_t n_blocks) {
    uint32_t most = 0;
    for (uint32_t b = 0; b < n_blocks; b++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < (p->epilogue == EPILOGUE_SWIGLU ? 1 : p->n_segments); i++)
            n += block_tiles(p, &p->segments[i], b) << p->segments[i].row_shift;
        most = max_u32(most, n);
    }
    return most;
}

/* What the warp that has most costs, over all blocks: its bytes, and something a kblock and a task.
 */
static uint64_t most_of_warps(const struct project_params *p, uint32_t n_blocks, uint32_t warps) {
    uint64_t most = 0;
    for (uint32_t b = 0; b < n_blocks; b++) {
        uint64_t load[WARPS_WIDE] = {0};
        uint32_t task = 0;
        for (uint32_t i = 0; i < p->n_segments; i++) {
            const struct project_segment *s = &p->segments[i];
            uint32_t n = block_tiles(p, s, b) * s->splits;
            for (uint32_t t = 0; t < n; t++, task++)
                load[task % warps] += (s->split_kblocks + (t % s->splits < s->split_extra)) *
                                          (uint64_t)(s->kblock_bytes + UNIT_COST) +
                                      TASK_COST;
        }
        for (uint32_t w = 0; w < warps; w++)
            most = load[w] > most ? load[w] : most;
    }
    return most;
}

/* ---- shared memory ----------------------------------------------------------------------------
 */

/* Bytes beside the pipeline; sets where things are behind a pipeline of `pipeline` bytes. */
static uint32_t lay_out(struct project_params *p, uint32_t rows, uint32_t tasks,
                        uint32_t pipeline) {
    uint32_t chunks = p->in.k / PROJECT_GROUP, at = pipeline;
    uint32_t heads = p->in.kind == PROLOGUE_GATED_NORM ? p->in.k / p->in.width : 0;
    p->qact_at = at;
    at += rows * p->qact_bytes;
    p->partials_at = at;
    at += p->is_direct ? 0 : tasks * PROJECT_TASK_ROWS * rows * 4;
    at += PROJECT_ROWS * 4;
    p->red_at = at;
    at += (rows * chunks + heads) * 4;
    p->mbars_at = (at + 7) / 8 * 8;
    return p->mbars_at + SHARED_BARRIERS;
}

/* Most stages of a pipeline for so many warps; 0: not even two fit. */
static uint32_t most_slots(struct project_params *p, uint32_t rows, uint32_t tasks, uint32_t warps,
                           uint32_t limit) {
    static const uint32_t choices[] = {6, 4, 3, 2};
    for (uint32_t i = p->has_deep_pipeline ? 0 : 3; i < 4; i++)
        if (lay_out(p, rows, tasks, warps * choices[i] * p->stage_bytes) <= limit)
            return choices[i];
    return 0;
}

/* Warps and stages within `limit` bytes of shared memory: those that give the fullest warp least to
 * do. Returns the bytes, 0 where none fit. */
static uint32_t choose_ring(struct project_params *p, uint32_t rows, uint32_t n_blocks,
                            uint32_t limit) {
    bool is_wide =
        (p->epilogue == EPILOGUE_SWIGLU || rows > PROJECT_FUSED_ROWS) && rows < PROJECT_ROWS;
    uint32_t tasks = project_max_tasks(p, n_blocks), warps = is_wide ? WARPS_WIDE : WARPS;
    uint64_t best = UINT64_MAX;
    p->task_warps = 0;
    for (uint32_t w = min_u32(MIN_WARPS, tasks); w <= warps && w <= tasks; w++) {
        uint32_t stages = most_slots(p, rows, tasks, w, limit);
        uint64_t most = stages ? most_of_warps(p, n_blocks, w) : UINT64_MAX;
        if (most < best)
            best = most, p->task_warps = w, p->stages = stages;
    }
    return p->task_warps ? lay_out(p, rows, tasks, p->task_warps * p->stages * p->stage_bytes) : 0;
}

/* ---- recording --------------------------------------------------------------------------------
 */

static bool is_aligned(const struct operand *o) {
    return o->n_dims == 0 || (o->offset % 16 == 0 && o->stride % 4 == 0);
}

/* What quantize_row_vec4 leaves to the general way: gates of very long rows, for which gate_at does
 * not divide exactly; and heads with gates, or with neither gates nor a norm: which row a head has
 * is known only behind the wait, and what is read beside it is found before. */
static bool is_vec4(const struct op_project *op, uint32_t width) {
    uint64_t chunks = op->in.dims[0] / PROJECT_GROUP, head_chunks = width / PROJECT_GROUP;
    bool are_gates_near = op->gate.n_dims == 0 || chunks * head_chunks <= 65536;
    return are_gates_near && (!op->is_lm_head || op->prologue == PROLOGUE_NORM);
}

static struct project_input input_of(struct recorder *r, const struct op_project *op) {
    uint32_t width = op->head_width ? op->head_width : op->in.dims[0];
    return (struct project_input){
        .x = recorder_at(r, &op->in),
        .norm = recorder_at(r, &op->norm),
        .gate = recorder_at(r, &op->gate),
        .k = op->in.dims[0],
        .x_stride = op->in.stride,
        .gate_row_stride = op->gate.stride,
        .kind = (uint32_t)op->prologue,
        .width = width,
        .head_stride = op->gate_stride,
        .head_fastdiv = div_up(65536, max_u32(width / PROJECT_GROUP, 1)),
        .head_gap = op->gate.n_dims ? (op->gate_stride - width) / 4 : 0,
        .is_aligned = is_aligned(&op->in) && is_aligned(&op->gate) && op->gate_stride % 4 == 0 &&
                      op->head_width % 4 == 0 && is_vec4(op, width),
        .is_lm_head = op->is_lm_head,
        .eps = op->eps,
    };
}

/* Fills the segments; the set of their types, or 0 where one is not tiled. */
static uint32_t set_segments(struct recorder *r, const struct op_project *op,
                             struct project_params *p) {
    uint32_t set = 0, tile = 0;
    for (uint32_t i = 0; i < op->n_segments; i++) {
        struct cuda_matrix m = recorder_matrix(r, &op->segments[i].weight);
        if (!m.is_tiled)
            return 0;
        struct project_segment *s = &p->segments[i];
        *s = (struct project_segment){
            .data = m.data,
            .bias = recorder_at(r, &op->segments[i].bias),
            .type = project_type_bit(m.type),
            .n = m.n,
            .column = op->segments[i].column,
            .lane_shift = shift_of(project_lanes(m.type, m.tile_rows)),
            .row_shift = shift_of(m.tile_rows),
            .kblocks = m.k / tile_columns(m.type, m.tile_rows),
            .kblock_bytes = tile_kblock_bytes(m.type),
            .first_tile = op->epilogue == EPILOGUE_SWIGLU ? 0 : tile,
            .n_tiles = div_up(m.n, m.tile_rows),
        };
        set |= s->type;
        p->has_bias |= op->segments[i].bias.n_dims != 0;
        tile += s->n_tiles;
        p->stage_bytes = max_u32(p->stage_bytes, s->kblock_bytes);
        p->in.wants_int8 |= tile_is_int8(m.type);
        p->in.wants_f32 |= !tile_is_int8(m.type);
    }
    p->n_segments = op->n_segments;
    return tile < UINT16_MAX ? set : 0;
}

/* Where F32 segments stand beside int8 ones, they are few rows of weights, and qacts of floats
 * would take the pipeline's room from all blocks. For one row or two they are quicker than reading
 * activations from afar. */
static bool is_plain(const struct project_params *p, uint32_t set) {
    return p->row_limit > PROJECT_FUSED_ROWS && set & IS_F32 && p->in.wants_int8 &&
           !(set & (IS_BF16 | IS_F16)) && p->in.is_aligned && p->in.kind <= PROLOGUE_NORM &&
           !p->in.is_lm_head;
}

/* Rows that one block does at once, and its shared memory: as many as fit. Kernels for four rows
 * and more have too many registers for two on a multiprocessor, so they may as well have all of its
 * memory. */
static uint32_t choose_rows(struct project_params *p, uint32_t bucket, uint32_t n_blocks,
                            uint32_t *shared) {
    uint32_t rows = bucket > 4 ? 8 : bucket > 2 ? 4 : bucket;
    for (; rows; rows /= 2) {
        *shared = rows > PROJECT_FUSED_ROWS ? 0 : choose_ring(p, rows, n_blocks, stage_shared(p));
        *shared =
            *shared ? stage_shared(p)
                    : choose_ring(p, rows, n_blocks, min_u32(PROJECT_SHARED_ALONE, p->max_shared));
        if (*shared)
            return rows;
    }
    return 0;
}

/* Blocks of a row: as many as have a place each, where columns do not depend on each other. */
static uint32_t prepare_shares(const struct project_input *in, uint32_t rows, uint32_t threads,
                               uint32_t n_sms) {
    uint32_t pieces = in->k / PROJECT_COLS, most = in->kind == PROLOGUE_NONE ? 3 : 2, shares = 1;
    for (uint32_t batch = 1; project_is_vec4(in) && batch <= most; batch++) {
        shares = div_up(pieces, batch * threads);
        if (shares * rows <= n_sms)
            break;
    }
    return shares;
}

struct cuda_launch project_quantize_launch(const struct recorder *r, const struct project_input *in,
                                           const char *kernel, uint32_t rows, uint32_t threads) {
    return (struct cuda_launch){
        .kernel = kernel,
        .grid = {rows, prepare_shares(in, rows, threads, r->n_sms), 1},
        .threads = threads,
        .shared = in->k / in->width * 4, /* general way: a factor a head */
    };
}

/* The rows' qacts. */
static int prepare_rows(struct recorder *r, struct project_params *p, uint32_t bucket,
                        uint32_t rows) {
    uint32_t n = div_up(bucket, rows) * rows;
    struct quantize_params params = {
        .io = p->io,
        .in = p->in,
        .qacts = recorder_work(r, (uint64_t)n * p->qact_bytes),
        .squares = recorder_work(r, (uint64_t)n * (p->in.k / PROJECT_GROUP) * 4),
        .qact_bytes = p->qact_bytes,
    };
    struct cuda_launch launch =
        project_quantize_launch(r, &p->in, "project_quantize", bucket, PREPARE_THREADS);
    p->qacts = params.qacts;
    p->squares = params.squares;
    return recorder_launch(r, &launch, &params, sizeof params);
}

/* What the fullest warp costs, with as many warps as suit. */
static uint64_t fullest(const struct project_params *p, uint32_t n_blocks) {
    uint64_t best = UINT64_MAX;
    for (uint32_t w = MIN_WARPS; w <= most_warps(p); w++) {
        uint64_t cost = most_of_warps(p, n_blocks, w);
        best = cost < best ? cost : best;
    }
    return best;
}

/* Cuts by bytes, by kblocks, or by something between: whatever gives the fullest warp least. */
static void cut_best(struct project_params *p, uint32_t n_blocks) {
    static const uint32_t choices[] = {0, 2304, 1 << 20};
    uint64_t best = UINT64_MAX;
    uint32_t more = 0;
    for (uint32_t i = 0; i < sizeof choices / sizeof *choices && p->n_segments > 1; i++) {
        project_cut_blocks(p, n_blocks, choices[i]);
        uint64_t cost = fullest(p, n_blocks);
        if (cost < best)
            best = cost, more = choices[i];
    }
    project_cut_blocks(p, n_blocks, more);
}

uint32_t project_choose_blocks(struct project_params *p, uint32_t n_sms, project_cut_fn *cut) {
    uint32_t n = n_sms;
    cut(p, n);
    while (!p->is_direct && n + n_sms <= PROJECT_BLOCKS &&
           project_max_tasks(p, n) * PROJECT_TASK_ROWS * 4 > MAX_PARTS) {
        n += n_sms;
        cut(p, n);
    }
    p->max_results = p->is_direct ? 0 : max_results(p, n);
    return n;
}

/* ---- cuts that were made before ---------------------------------------------------------------
 */

/* How a stage was cut. It takes milliseconds and is of shapes alone, so that all layers of a model,
 * and every walk over its plans, share it. */
struct project_cut {
    struct project_cut *next;
    struct project_params key, p; /* without addresses: before and after */
    uint32_t n_blocks, rows, shared;
};

/* `to` gets what addresses `from` has. */
static void set_addresses(struct project_params *to, const struct project_params *from) {
    to->io = from->io;
    to->in.x = from->in.x;
    to->in.norm = from->in.norm;
    to->in.gate = from->in.gate;
    to->out = from->out;
    for (uint32_t i = 0; i < PROJECT_SEGMENTS; i++) {
        to->segments[i].data = from->segments[i].data;
        to->segments[i].bias = from->segments[i].bias;
    }
}

static void make_cut(struct project_cut *c, uint32_t n_sms) {
    uint32_t bucket = max_u32(c->p.row_limit, 1);
    cut_slices(&c->p, n_sms);
    c->n_blocks = project_choose_blocks(&c->p, n_sms, cut_best);
    c->rows = choose_rows(&c->p, bucket, c->n_blocks, &c->shared);
}

/* NULL: out of memory. */
static const struct project_cut *find_cut(struct recorder *r, const struct project_params *p) {
    static const struct project_params nowhere;
    struct project_params key = *p;
    set_addresses(&key, &nowhere);
    struct project_cut *c = r->b->cuts;
    while (c && memcmp(&c->key, &key, offsetof(struct project_params, bounds)) != 0)
        c = c->next;
    if (c)
        return c;
    if (!(c = arena_alloc(&r->b->arena, sizeof *c)))
        return NULL;
    *c = (struct project_cut){.next = r->b->cuts, .key = key, .p = key};
    make_cut(c, r->n_sms);
    return r->b->cuts = c;
}

/* Where PICK comes next, the head of a single row writes the logits that the host asks for, and
 * finds the best, into words of the device's IO header that are zero when the step begins. */
static bool find_pick(struct recorder *r, const struct op_project *o,
                      struct project_head_params *h) {
    const struct op *next = r->op + 1 < r->plan->n_ops ? &r->plan->ops[r->op + 1] : NULL;
    if (!o->is_lm_head || r->plan->max_outputs != 1 || !next || next->kind != OP_PICK ||
        o->out.offset != next->pick.logits.offset || o->n_segments != 1 || o->segments[0].column)
        return false;
    r->has_wanted = true;
    h->wanted = recorder_at(r, &next->pick.wanted);
    if (!r->is_counting)
        h->best = r->head_best = (uint64_t *)r->io.header->reserved;
    return true;
}

/* The cut, with qacts that have floats where those are wanted and F32 segments are not plain. */
static const struct project_cut *cut_images(struct recorder *r, struct project_params *p,
                                            bool are_plain) {
    uint32_t wants_f32 = p->in.wants_f32 | p->is_plain;
    p->is_plain = are_plain;
    p->in.wants_f32 = are_plain ? 0 : wants_f32;
    p->qact_bytes = project_qact_bytes(&p->in);
    return find_cut(r, p);
}

/* For more rows of int8 activations there is project_many; kernels for eight are what is left where
 * that is none, so they know one set. */
static const char *kernel_set(uint32_t set, uint32_t rows) {
    return rows == PROJECT_ROWS && set & IS_INT8 ? "all" : project_set_name(set);
}

void project_survey(struct recorder *r) {
    r->products = (struct plan_products){0};
    for (uint32_t i = 0; i < r->plan->n_ops; i++) {
        const struct op *op = &r->plan->ops[i];
        r->products.has_experts |= op->kind == OP_EXPERTS_IN;
        if (op->kind != OP_PROJECT || op->project.is_lm_head)
            continue;
        for (uint32_t k = 0; k < op->project.n_segments; k++) {
            struct cuda_matrix m = recorder_matrix(r, &op->project.segments[k].weight);
            r->products.set |= m.is_tiled ? project_type_bit(m.type) : 0;
        }
    }
}

/* The set of a product's kernel. Code that runs once in a stage takes long to come from memory,
 * unless the stage before has just run it: so all products of one row have one kernel, that of all
 * their types, if there is one that has this one's types and its rings. (A head's types need not be
 * among them.) Where experts come between them that gains nothing. */
static uint32_t shared_set(const struct recorder *r, const struct project_params *p, uint32_t set) {
    uint32_t all = r->products.set, has_deep_pipeline = (all & DEEP_PIPELINE) != 0;
    bool is_known = strcmp(project_set_name(all), "all") != 0 && !r->products.has_experts;
    return is_known && !(set & ~all) && p->has_deep_pipeline == has_deep_pipeline ? all : set;
}

int record_project(struct recorder *r, const struct op *op) {
    const struct op_project *o = &op->project;
    struct project_params p = {
        .io = r->io,
        .in = input_of(r, o),
        .out = recorder_at(r, &o->out),
        .out_stride = o->out.stride,
        .epilogue = (uint32_t)o->epilogue,
        .row_limit = o->is_lm_head ? r->plan->max_outputs : r->plan->max_rows,
        .max_shared = r->b->max_shared,
    };
    p.in.act_group = op_act_group(op);
    uint32_t set = r->exact || r->n_sms > PROJECT_BLOCKS ? 0 : set_segments(r, o, &p);
    if (!set)
        return record_project_rows(r, op);
    p.has_deep_pipeline = strcmp(kernel_set(set, 1), "all") == 0 || set & DEEP_PIPELINE;
    const struct project_cut *cut = cut_images(r, &p, is_plain(&p, set));
    if (!cut)
        return err_memory(r->err, "the cut of a product");
    struct project_params whole = cut->p;
    set_addresses(&whole, &p);
    int many_status;
    if (project_many(r, &whole, set, &many_status))
        return many_status;
    if (p.is_plain && cut->rows <= PROJECT_FUSED_ROWS) { /* kernels for so few want floats */
        if (!(cut = cut_images(r, &p, false)))
            return err_memory(r->err, "the cut of a product");
        whole = cut->p;
        set_addresses(&whole, &p);
    }
    p = whole;
    uint32_t bucket = max_u32(p.row_limit, 1), n_blocks = cut->n_blocks, rows = cut->rows;
    if (!rows)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                       "a product of %u columns needs more shared memory than a block may have",
                       p.in.k);
    struct project_head_params head = {0};
    bool is_lm_head = find_pick(r, o, &head);
    char name[48];
    uint32_t known = rows == 1 && !is_lm_head ? shared_set(r, &p, set) : set; /* to the kernel */
    snprintf(name, sizeof name, "project_%s%u_%s", is_lm_head ? "head_" : "", rows,
             kernel_set(known, rows));
    if (rows > PROJECT_FUSED_ROWS) {
        int status = prepare_rows(r, &p, bucket, rows);
        if (status)
            return status;
    }
    struct cuda_launch launch = {
        .kernel = name,
        .grid = {n_blocks, div_up(bucket, rows), 1},
        .threads = 32 * max_u32(p.task_warps, min_u32(WARPS, p.in.k / PROJECT_GROUP)),
        .shared = cut->shared,
    };
    head.p = p;
    return is_lm_head ? recorder_launch(r, &launch, &head, sizeof head)
                      : recorder_launch(r, &launch, &p, sizeof p);
}
