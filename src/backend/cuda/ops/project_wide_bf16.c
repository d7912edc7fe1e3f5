/* project_wide_bf16.c - recording PROJECT of BF16 or F16 weights on wgmma: split activations, the
 * product, F32 segments. */
#include "backend/cuda/ops/project_wide_bf16.h"

#include <stdio.h>

#include "base/size.h"

enum {
    SPLIT_THREADS = 512, /* at most */
    GROUP_ROWS = 8,      /* with 8 blocks of rows by 8 pairs of tiles at once, all SMs are busy */
    MAX_STRIPES = 64,    /* of a tile over thread blocks: their sums go through memory */
};

/* What the kernels of an op share. */
struct bf16_op {
    const struct project_params *p;
    uint8_t *acts;
    float *factors; /* NULL: none */
    uint32_t type;  /* IS_BF16 or IS_F16 */
    uint32_t act_rows;
};

static int record_split(struct recorder *r, const struct bf16_op *op) {
    const struct project_input *in = &op->p->in;
    struct wide_split_params s = {.io = op->p->io,
                                  .in = *in,
                                  .acts = op->acts,
                                  .factors = op->factors,
                                  .row_limit = op->p->row_limit,
                                  .act_rows = op->act_rows};
    /* As few rounds as SPLIT_THREADS allow, then as few threads. */
    uint32_t col8s = in->k / PROJECT_COLS, rounds = div_up(col8s, SPLIT_THREADS);
    bool is_f16 = op->type == IS_F16;
    struct cuda_launch launch = {
        .kernel = is_f16 ? "project_wide_split_f16" : "project_wide_split",
        .grid = {op->p->row_limit, 1, 1},
        .threads = div_up(div_up(col8s, rounds), 32) * 32,
        .shared = (max_u32(in->k / PROJECT_GROUP, in->k / in->head_width) + is_f16 * in->k) * 4,
    };
    s.in.wants_int8 = 0;
    s.in.wants_f32 = s.in.is_split = 1;
    return recorder_launch(r, &launch, &s, sizeof s);
}

/* ---- the product -------------------------------------------------------------------------- */

static uint32_t count_tiles(const struct wide_bf16_params *w, uint32_t rows, uint32_t bucket) {
    return wide_count_tiles(w->segments, w->n_segments, w->epilogue, rows, bucket);
}

/* Rows of activations of a tile: with 128 weights are read half as often, with 64 fewer SMs are
 * idle at the end. */
static uint32_t choose_rows(const struct wide_bf16_params *w, uint32_t bucket, uint32_t n_sms) {
    uint32_t rounds_64 = div_up(count_tiles(w, 64, bucket), n_sms);
    uint32_t rounds_128 = div_up(count_tiles(w, 128, bucket), n_sms);
    if (bucket <= 64)
        return bucket <= 16 ? 16 : bucket <= 32 ? 32 : 64;
    return rounds_64 * 4 < rounds_128 * 7 ? 64 : 128;
}

/* Stripes over thread blocks, where there are fewer tiles than SMs. */
static void split_over_blocks(struct recorder *r, struct wide_bf16_params *w, uint32_t rows,
                              uint32_t bucket) {
    uint32_t tiles = count_tiles(w, rows, bucket), first = 0;
    w->row_blocks = div_up(bucket, rows);
    w->is_split_k = w->max_stripes > 1 && w->max_stripes <= MAX_STRIPES &&
                    tiles * 2 <= r->n_sms * (rows <= 32 ? 8 : 3);
    if (!w->is_split_k)
        return;
    for (uint32_t i = 0; i < w->n_segments; i++) {
        w->segments[i].first_tile = first;
        first += w->row_blocks * wide_n_blocks(w->epilogue, w->segments[i].n);
    }
    w->partials = recorder_work(r, (uint64_t)tiles * w->max_stripes * rows * WIDE_N * 4);
    w->arrivals = recorder_counters(r, tiles);
}

static int record_product(struct recorder *r, const struct bf16_op *op) {
    const struct project_params *p = op->p;
    struct wide_bf16_params w = {.io = p->io,
                                 .in = p->in,
                                 .acts = op->acts,
                                 .act_rows = op->act_rows,
                                 .factors = op->factors,
                                 .out = p->out,
                                 .out_stride = p->out_stride,
                                 .epilogue = p->epilogue,
                                 .has_bias = p->has_bias,
                                 .group_rows = GROUP_ROWS};
    for (uint32_t i = 0; i < p->n_segments; i++)
        if (p->segments[i].type == op->type) {
            w.max_stripes =
                max_u32(w.max_stripes, p->segments[i].splits << (4 - p->segments[i].row_shift));
            w.segments[w.n_segments++] = p->segments[i];
        }
    w.n_segments = p->epilogue == EPILOGUE_SWIGLU ? 1 : w.n_segments;
    uint32_t rows = choose_rows(&w, p->row_limit, r->n_sms);
    split_over_blocks(r, &w, rows, p->row_limit);
    bool is_paired = rows == 128 && !w.is_split_k;
    uint32_t per_sm = rows <= 32 ? 2 : 1;
    uint32_t shared = per_sm > 1 ? PROJECT_SHARED : PROJECT_SHARED_ALONE;
    w.stages = min_u32((shared - BF16_STAGES_AT) / wide_bf16_stage_bytes(rows), BF16_MAX_STAGES);
    char name[48];
    snprintf(name, sizeof name, "project_wide_%s_%u%s", project_set_name(op->type), rows,
             is_paired ? "_pairs" : "");
    struct cuda_launch launch = {
        .kernel = name,
        .grid = {is_paired ? r->n_sms / 2 * 2 : per_sm * r->n_sms, 1, 1},
        .threads = BF16_THREADS,
        .shared = BF16_STAGES_AT + w.stages * wide_bf16_stage_bytes(rows),
    };
    return recorder_launch(r, &launch, &w, sizeof w);
}

/* ---- recording ---------------------------------------------------------------------------- */

/* Gate and up share tiles. */
static bool are_gate_up_alike(const struct project_params *p) {
    const struct project_segment *a = &p->segments[0], *b = &p->segments[1];
    return a->type == b->type && a->n == b->n && a->row_shift == b->row_shift &&
           a->splits == b->splits;
}

/* F32 segments are done beside BF16 ones. */
static bool is_for_wide(const struct recorder *r, const struct project_params *p, uint32_t set) {
    bool is_swiglu = p->epilogue == EPILOGUE_SWIGLU;
    return r->b->capability == 90 && r->b->max_shared >= PROJECT_SHARED_ALONE &&
           p->row_limit >= BF16_MIN_ROWS &&
           (set == IS_F16 || (set & IS_BF16 && !(set & ~(uint32_t)(IS_BF16 | IS_F32)))) &&
           (!is_swiglu || are_gate_up_alike(p)) && (!(set & IS_F32) || project_can_do_f32(p));
}

bool record_project_wide_bf16(struct recorder *r, const struct project_params *p, uint32_t set,
                              int *status) {
    if (!is_for_wide(r, p, set))
        return false;
    uint32_t rows = div_up(p->row_limit, BF16_MAX_TILE) * BF16_MAX_TILE;
    struct bf16_op op = {.p = p,
                         .acts = recorder_work(r, (uint64_t)p->in.k * 4 * rows),
                         .act_rows = rows,
                         .type = set & IS_SPLIT};
    if (p->in.prologue == PROLOGUE_NORM || op.type == IS_F16)
        op.factors = recorder_work(r, rows * sizeof(float));
    *status = record_split(r, &op);
    if (!*status)
        *status = record_product(r, &op);
    if (set & IS_F32 && !*status)
        *status = record_project_wide_f32(r, p, op.factors);
    return true;
}
