/* project_gemm.c - recording PROJECT on int8 tensor cores: rows of a row block, division of M16
 * tiles, warps, and shared memory. Tiles and K splits are those of the gemv kernels, so that the
 * order of sums, and with it a row's bits, is the same. */
#include "backend/cuda/ops/project_gemm.h"

#include <stdio.h>
#include <string.h>

#include "backend/cuda/ops/project_schedule.h"
#include "base/size.h"

enum {
    MAX_WARPS = 16,
    MAX_WARPS_32 = 12, /* with 32 rows a warp: 168 registers a thread */
    MIN_WARPS = 3,
    FEW_WARPS = 5,      /* so few that two share a tile of 32 rows */
    F32_WARPS = 4,      /* at least, and twice as many at most, where there are F32 segments */
    STAGES = 2,         /* with more, activations come late: they queue after weights */
    STREAM_K_TILES = 4, /* with fewer M16 tiles a thread block: stream-K */
    KBLOCK_COST = 2304, /* of a tile's K block, besides its bytes, when thread blocks are cut */
    SCHEDULERS = 4,     /* of an SM */
    MIN_THREADS = 128,
    QUANTIZE_THREADS = 512,
};

/* What the thread block with most work has. */
struct block_share {
    uint32_t n_blocks, tasks, m16_tiles, slabs;
    uint32_t n8_tiles;   /* of a row block */
    bool has_partials;   /* in shared memory */
    uint32_t max_shared; /* bytes that the device allows a thread block */
    bool has_bulk_copy;  /* whose mbarriers two warps can wait for */
};

/* ---- division of work --------------------------------------------------------------------- */

/* F32 segments (alpha and beta) are done by warps of their own. False: their tiles are too high. */
static bool split_off_f32(struct gemm_params *g) {
    struct project_params *p = &g->p;
    uint32_t n = 0, n_f32 = 0;
    for (uint32_t i = 0; i < p->n_segments; i++) {
        const struct project_segment *s = &p->segments[i];
        if (s->type == IS_F32) {
            if (s->row_shift != shift_of(GEMM_F32_TILE))
                return false;
            g->f32_tiles += s->n_tiles;
            g->f32_splits = max_u32(g->f32_splits, s->splits);
            g->f32_segments[n_f32++] = *s;
        } else {
            p->segments[n++] = *s;
        }
    }
    p->n_segments = n;
    return true;
}

/* Gate and up share M16 tiles: they must have the same type and tiles. */
static bool are_gate_up_alike(const struct project_params *p) {
    const struct project_segment *a = &p->segments[0], *b = &p->segments[1];
    return a->type == b->type && a->n == b->n && a->row_shift == b->row_shift && a->row_shift < 4;
}

/* From here on a segment's tiles are M16 tiles. */
static void count_m16_tiles(struct gemm_params *g) {
    struct project_params *p = &g->p;
    bool is_swiglu = p->epilogue == EPILOGUE_SWIGLU;
    uint32_t first = 0;
    if (is_swiglu)
        p->n_segments = 1;
    for (uint32_t i = 0; i < p->n_segments; i++) {
        struct project_segment *s = &p->segments[i];
        g->tiles_per_m16 = max_u32(g->tiles_per_m16, GEMM_M >> s->row_shift);
        s->first_tile = first;
        s->n_tiles = div_up(s->n, is_swiglu ? GEMM_M / 2 : GEMM_M);
        first += s->n_tiles;
    }
}

static void divide_tasks(struct gemm_params *g, uint32_t n_blocks) {
    const struct project_segment *s = &g->p.segments[0];
    uint32_t tasks = s->n_tiles * s->kblocks;
    g->is_stream_k = g->p.n_segments == 1 && g->p.epilogue != EPILOGUE_SWIGLU && s->n_tiles > 1 &&
                     s->n_tiles < STREAM_K_TILES * n_blocks && tasks <= UINT16_MAX;
    g->n_m16_tiles = s->n_tiles;
    g->m16_fastdiv = fastdiv_of(g->n_m16_tiles);
    g->kblocks = s->kblocks;
    if (g->is_stream_k) {
        for (uint32_t b = 0; b <= n_blocks; b++)
            g->p.bounds[b] = (uint16_t)((uint64_t)b * tasks / n_blocks);
        return;
    }
    struct project_segment segments[PROJECT_SEGMENTS]; /* with the K blocks of whole M16 tiles */
    memcpy(segments, g->p.segments, sizeof segments);
    for (uint32_t i = 0; i < g->p.n_segments; i++)
        segments[i].kblocks *= GEMM_M >> segments[i].row_shift;
    project_divide_tiles(segments, g->p.n_segments, n_blocks, KBLOCK_COST, g->p.bounds);
}

static uint32_t max_tasks(const struct gemm_params *g, uint32_t n_blocks) {
    return g->is_stream_k
               ? div_up(g->n_m16_tiles * g->kblocks, n_blocks)
               : project_max_tasks(g->p.segments, g->p.n_segments, n_blocks, g->p.bounds);
}

static uint32_t max_m16_tiles(const struct gemm_params *g, uint32_t n_blocks) {
    uint32_t most = 0;
    for (uint32_t b = 0; b < n_blocks; b++)
        most = max_u32(most, (uint32_t)g->p.bounds[b + 1] - g->p.bounds[b]);
    return most;
}

/* K slabs that a thread block needs: with stream-K those that its tasks' K blocks touch. */
static uint32_t max_slabs(const struct gemm_params *g, uint32_t n_blocks) {
    uint32_t tasks = max_tasks(g, n_blocks), tiles = g->n_m16_tiles;
    uint32_t kblocks = (tasks + tiles - 2) / tiles + 1;
    return g->is_stream_k ? min_u32(kblocks, g->kblocks) : g->qacts.n_slabs;
}

static struct block_share max_share(const struct gemm_params *g, uint32_t n_blocks) {
    struct block_share s = {.n_blocks = n_blocks,
                            .tasks = max_tasks(g, n_blocks),
                            .m16_tiles = g->is_stream_k ? 0 : max_m16_tiles(g, n_blocks),
                            .slabs = max_slabs(g, n_blocks)};
    for (uint32_t i = 0; i < g->p.n_segments; i++)
        s.has_partials |= g->p.segments[i].splits > 1 && !g->is_stream_k;
    return s;
}

/* ---- shared memory and warps -------------------------------------------------------------- */

/* Columns of the largest K block. */
static uint32_t max_kblock_columns(const struct project_params *p) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < p->n_segments; i++)
        most = max_u32(most, p->in.k / p->segments[i].kblocks);
    return most;
}

static void lay_out_qacts(struct gemm_qacts *q, const struct project_input *in, uint32_t rows) {
    uint32_t columns = 1u << q->slab_shift;
    q->rows = rows;
    q->scales_at = (columns + 16) * rows;
    q->sums_at = q->scales_at + columns / PROJECT_GROUP * rows * 4;
    q->slab_bytes = q->sums_at + columns / 32 * rows * 4;
    q->squares_at = q->n_slabs * q->slab_bytes;
    q->squares_pitch = in->prologue == PROLOGUE_NORM ? in->k / PROJECT_GROUP | 1 : 0;
    q->bytes = q->squares_at + rows * q->squares_pitch * 4;
}

/* Sets the offsets in shared memory; its bytes. */
static uint32_t lay_out_shared(struct gemm_params *g, const struct block_share *s) {
    struct project_params *p = &g->p;
    uint32_t rows = g->qacts.rows;
    uint32_t at = p->task_warps * p->stages * p->stage_bytes * g->tiles_per_m16;
    p->qact_at = at = div_up(at, 128) * 128;
    at += s->slabs * g->qacts.slab_bytes;
    p->partials_at = at = div_up(at, 128) * 128;
    at += s->has_partials ? s->tasks * s->n8_tiles * GEMM_PARTIAL_BYTES : 0;
    g->f32_sums_at = at;
    at += div_up(g->f32_tiles * div_up(rows, GEMM_F32_ROWS), s->n_blocks) * GEMM_F32_ROWS *
          g->f32_splits * GEMM_F32_TILE * 4;
    g->squares_at = at = div_up(at, 16) * 16;
    at += rows * (g->qacts.squares_pitch + 1) * 4;
    g->arrivals_at = at;
    at += s->has_partials ? s->m16_tiles * g->warps_per_tile * 4 : 0;
    g->releases_at = at;
    at += g->warps_per_tile > 1 || g->tail_warps ? p->task_warps * p->stages * 4 : 0;
    p->mbars_at = (at + 7) / 8 * 8;
    return p->mbars_at + (p->task_warps * p->stages + 2 + s->slabs) * 8;
}

static uint32_t max_warps(const struct gemm_params *g, const struct block_share *s) {
    return s->n8_tiles / g->warps_per_tile == 4 ? MAX_WARPS_32 : MAX_WARPS;
}

/* Every warp has a single K block: one stage is enough. */
static bool has_single_kblocks(const struct gemm_params *g, const struct block_share *s,
                               uint32_t warps) {
    return g->is_stream_k && s->tasks <= warps;
}

/* As many pipelines as fit `limit` bytes of shared memory, less those that would not save a round
 * of tasks. The bytes, or 0: too few fit. */
static uint32_t choose_pipelines(struct gemm_params *g, const struct block_share *s,
                                 uint32_t limit) {
    uint32_t most = max_warps(g, s) - (g->f32_tiles ? F32_WARPS : 0);
    uint32_t n = min_u32(most / g->warps_per_tile, s->tasks);
    for (;; n--) {
        g->p.task_warps = n;
        g->p.stages = has_single_kblocks(g, s, n) ? 1 : STAGES;
        if (n < min_u32(MIN_WARPS, s->tasks))
            return 0;
        if (lay_out_shared(g, s) <= limit)
            break;
    }
    while (n > 1 && div_up(s->tasks, n - 1) == div_up(s->tasks, n))
        n--;
    g->p.task_warps = n;
    return lay_out_shared(g, s);
}

/* With 8 rows, and if it costs no pipeline, thread blocks of two consecutive products fit one SM,
 * in two alternating sizes as for one row (README, rule 4). With more rows they do not: two of the
 * smaller size would share an SM and leave another empty (mix in of qwen35-4b, 16 rows: 15.9 us,
 * 13.4 alone). Returns the bytes, 0: nothing fits. */
static uint32_t choose_shared(struct gemm_params *g, const struct block_share *s) {
    uint32_t half = g->p.epilogue == EPILOGUE_ADD ? PROJECT_SHARED_WIDE : PROJECT_SHARED;
    uint32_t bytes = choose_pipelines(g, s, min_u32(PROJECT_SHARED_ALONE, s->max_shared));
    if (!bytes)
        return 0;
    struct gemm_params beside = *g;
    half = min_u32(half, s->max_shared);
    if (s->n8_tiles == 1 && choose_pipelines(&beside, s, half) &&
        beside.p.task_warps >= g->p.task_warps) {
        *g = beside;
        return half;
    }
    return max_u32(bytes, min_u32(PROJECT_SHARED_WIDE, s->max_shared));
}

/* Two warps a tile, each for 16 of 32 rows, where a thread block would have few warps: weights are
 * unpacked twice, but there are twice as many warps to hide latencies (32 rows of qwen35-4b 8658 to
 * 8775 tok/s; with 16 rows 5833 to 5730, so not there). */
static uint32_t choose_warps_per_tile(struct gemm_params *g, const struct block_share *s) {
    g->warps_per_tile = 1;
    uint32_t shared = choose_shared(g, s), bytes = 0;
    struct gemm_params two = *g;
    two.warps_per_tile = 2;
    if (shared && s->has_bulk_copy && s->n8_tiles == 4 && g->p.task_warps <= FEW_WARPS)
        bytes = choose_shared(&two, s);
    if (!bytes || two.p.task_warps < g->p.task_warps)
        return shared;
    *g = two;
    return bytes;
}

/* Where a block's tiles, a warp each, are one more than a multiple of the SM's four schedulers, one
 * of these would have a warp more than the others: so the last tile has a warp for every n8 tile.
 */
static uint32_t choose_tail(struct gemm_params *g, const struct block_share *s, uint32_t shared) {
    struct gemm_params tail = *g;
    uint32_t warps = g->p.task_warps;
    tail.tail_warps = s->n8_tiles;
    if (!shared || !s->has_bulk_copy || s->n8_tiles == 1 || g->warps_per_tile > 1 ||
        g->is_stream_k || s->has_partials || g->f32_tiles || s->tasks != warps ||
        warps % SCHEDULERS != 1 || warps - 1 + s->n8_tiles > max_warps(g, s) ||
        lay_out_shared(&tail, s) > min_u32(PROJECT_SHARED_ALONE, s->max_shared))
        return shared;
    *g = tail;
    return max_u32(shared, lay_out_shared(g, s));
}

/* The largest row block that fits, up to the bucket; the bytes of shared memory, 0: none does. */
static uint32_t choose_row_block(struct gemm_params *g, uint32_t bucket, struct block_share *s) {
    for (s->n8_tiles = bucket > 16 ? 4 : bucket > 8 ? 2 : 1; s->n8_tiles; s->n8_tiles /= 2) {
        lay_out_qacts(&g->qacts, &g->p.in, 8 * s->n8_tiles);
        uint32_t shared = choose_tail(g, s, choose_warps_per_tile(g, s));
        if (shared)
            return shared;
    }
    return 0;
}

/* ---- recording ---------------------------------------------------------------------------- */

static int record_quantize(struct recorder *r, const struct gemm_params *g, uint32_t bucket,
                           bool is_alone) {
    struct gemm_quantize_params q = {
        .io = g->p.io, .in = g->p.in, .qacts = g->qacts, .row_limit = bucket};
    uint32_t rows = div_up(bucket, g->qacts.rows) * g->qacts.rows;
    struct cuda_launch launch =
        project_quantize_launch(r, &g->p.in, "project_gemm_quantize", rows, QUANTIZE_THREADS);
    q.in.wants_f32 = 0;
    launch.is_alone = is_alone;
    return recorder_launch(r, &launch, &q, sizeof q);
}

static int record_gemm(struct recorder *r, const struct gemm_params *g, const struct block_share *s,
                       uint32_t row_blocks, uint32_t types) {
    uint32_t warps = g->p.task_warps * g->warps_per_tile + (g->tail_warps ? g->tail_warps - 1 : 0);
    uint32_t f32_warps = g->f32_tiles ? min_u32(2 * F32_WARPS, max_warps(g, s) - warps) : 0;
    const uint32_t pair = IS_Q4_K | IS_Q6_K; /* together below 9.0 */
    char name[48];
    snprintf(name, sizeof name, "project_gemm_%u_%s", 8 * s->n8_tiles / g->warps_per_tile,
             project_set_name(types & ~pair || r->b->capability >= 90 ? types : pair));
    struct cuda_launch launch = {
        .kernel = name,
        .grid = {g->p.n_blocks, row_blocks, 1},
        .threads = max_u32(32 * (warps + f32_warps), MIN_THREADS),
        .shared = g->p.shared_bytes,
    };
    return recorder_launch(r, &launch, g, sizeof *g);
}

static bool is_for_gemm(const struct project_params *p, uint32_t set) {
    bool is_swiglu = p->epilogue == EPILOGUE_SWIGLU;
    return p->row_limit >= GEMM_MIN_ROWS && set & GEMM_TYPES &&
           !(set & ~(uint32_t)(GEMM_TYPES | IS_F32)) && (!is_swiglu || are_gate_up_alike(p)) &&
           (!(set & IS_F32) || (p->f32_from_global && !is_swiglu));
}

/* Divides the work; the bytes of shared memory that a thread block needs. 0: not one for these
 * kernels. */
static uint32_t plan_gemm(const struct recorder *r, const struct gemm_op *op, struct gemm_params *g,
                          struct block_share *s) {
    *g = (struct gemm_params){.p = *op->p};
    if (!is_for_gemm(op->p, op->set) || !split_off_f32(g))
        return 0;
    count_m16_tiles(g);
    /* An odd multiple of 64 bytes: tiles that share a stage are in different banks. */
    g->p.stage_bytes = div_up(op->p->stage_bytes + 64, 128) * 128 - 64;
    g->qacts.slab_shift = shift_of(max_kblock_columns(&g->p));
    g->qacts.n_slabs = op->p->in.k >> g->qacts.slab_shift;
    divide_tasks(g, r->n_sms);
    *s = max_share(g, r->n_sms);
    s->max_shared = r->b->max_shared;
    s->has_bulk_copy = r->b->capability >= 90;
    return choose_row_block(g, op->p->row_limit, s);
}

/* Whether project_gemm_finish adds this product's partial sums and quantizes what the next op
 * reads; the next op's qacts then are in `f`. */
static bool can_finish(const struct recorder *r, const struct gemm_params *g,
                       const struct gemm_op *op, struct gemm_finish_params *f) {
    struct gemm_params next;
    struct block_share s;
    if (!op->p || r->b->capability < 90 || !g->is_stream_k || g->kblocks < 2 ||
        g->kblocks > PROJECT_FINISH_PARTS || g->p.epilogue != EPILOGUE_ADD ||
        g->p.in.prologue == PROLOGUE_NORM || g->p.has_bias || g->p.row_limit > g->qacts.rows ||
        g->p.segments[0].n % PROJECT_GROUP || !project_is_vec4(&op->p->in) ||
        op->p->in.prologue > PROLOGUE_NORM || !plan_gemm(r, op, &next, &s) ||
        next.p.row_limit > next.qacts.rows || next.qacts.bytes > r->products.handed_bytes)
        return false;
    f->in = next.p.in;
    f->in.wants_f32 = 0;
    f->qacts = next.qacts;
    return true;
}

static int record_finish(struct recorder *r, const struct gemm_params *g,
                         const struct block_share *s, struct gemm_finish_params *f) {
    f->io = g->p.io;
    f->partials = g->partials;
    f->out = g->p.out;
    f->out_stride = g->p.out_stride;
    f->row_limit = g->p.row_limit;
    f->kblocks = g->kblocks;
    f->split_ends = project_split_ends(&g->p.segments[0]);
    f->warps_per_tile = g->warps_per_tile;
    f->warp_n8 = s->n8_tiles / g->warps_per_tile;
    struct cuda_launch launch = {
        .kernel = "project_gemm_finish",
        .grid = {g->p.segments[0].n / PROJECT_GROUP, s->n8_tiles, 1},
        .threads = GEMM_FINISH_THREADS,
    };
    r->handed_op = r->op + 1;
    r->handed_to = 1 - r->handed_to;
    f->qacts.data = recorder_handed(r, r->handed_to);
    return recorder_launch(r, &launch, f, sizeof *f);
}

bool record_project_gemm(struct recorder *r, const struct gemm_op *op, const struct gemm_op *next,
                         int *status) {
    struct gemm_params g;
    struct block_share s;
    struct gemm_finish_params f = {0};
    uint32_t bucket = op->p->row_limit, shared = plan_gemm(r, op, &g, &s);
    if (!shared)
        return false;
    g.p.shared_bytes = shared;
    g.p.n_blocks = s.n_blocks;
    uint32_t row_blocks = div_up(bucket, g.qacts.rows);
    bool is_handed = r->op && r->handed_op == r->op;
    g.qacts.data = is_handed ? recorder_handed(r, r->handed_to)
                             : recorder_work(r, (uint64_t)row_blocks * g.qacts.bytes);
    if (g.is_stream_k) {
        uint64_t tiles = (uint64_t)row_blocks * g.n_m16_tiles;
        g.partials = recorder_work(r, tiles * g.kblocks * s.n8_tiles * GEMM_PARTIAL_BYTES);
        g.arrivals = recorder_counters(r, tiles * g.warps_per_tile);
    }
    g.leaves_partials = can_finish(r, &g, next, &f);
    *status = record_quantize(r, &g, bucket, is_handed);
    if (!*status)
        *status = record_gemm(r, &g, &s, row_blocks, op->set & GEMM_TYPES);
    if (!*status && g.leaves_partials)
        *status = record_finish(r, &g, &s, &f);
    return true;
}
