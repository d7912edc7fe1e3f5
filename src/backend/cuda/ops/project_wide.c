/* project_wide.c - recording PROJECT on wgmma: quantized activations, a product for each type, F32
 * segments. Tiles and K splits are those of the gemv kernels, so that the order of sums, and with
 * it a row's bits, is the same. */
#include "backend/cuda/ops/project_wide.h"

#include <stdio.h>

#include "base/size.h"

enum {
    QUANTIZE_THREADS = 512, /* at most */
    DIVIDED_THREADS = 256,  /* of rows that several thread blocks quantize, at most */
    GROUP_128 = 25,         /* time of a group of columns of a tile of 128 rows, and of one of 64 */
    GROUP_64 = 17,
    Q8_128_FROM = 256,   /* rows of a bucket, from which tiles of Q8_0 have 128 */
    EARLY_ROWS = 128,    /* largest bucket whose first weights are copied before pdl_wait */
    LEAST_FREE = 32,     /* thread blocks with a task less, for F32 segments or cut tiles */
    PARTS_PER_BLOCK = 4, /* of tiles that thread blocks share: their sums go through memory */
};

/* What the kernels of an op share. */
struct wide_op {
    const struct project_params *p;
    uint8_t *qact;
    float *factors; /* NULL: no norm */
    float *squares; /* not NULL: the op before has quantized; of the norm */
    bool is_handed;
    bool wants_f32; /* F32 segments are still to be done */
};

/* ---- quantized activations ---------------------------------------------------------------- */

/* Threads of a row: as few rounds as QUANTIZE_THREADS allow, then as few threads. */
static uint32_t quantize_threads(const struct project_input *in) {
    uint32_t col8s = in->k / PROJECT_COLS, rounds = div_up(col8s, QUANTIZE_THREADS);
    return div_up(div_up(col8s, rounds), 32) * 32;
}

/* Rows of a tile of Q8_0: those of 128 are made of int8. */
static uint32_t q8_tile_rows(const struct project_params *p) {
    return p->row_limit >= Q8_128_FROM ? 128 : 64;
}

static int record_quantize(struct recorder *r, const struct wide_op *w, bool is_q8_0) {
    const struct project_input *in = &w->p->in;
    struct wide_quantize_params q = {.io = w->p->io,
                                     .in = *in,
                                     .qact = w->qact,
                                     .factors = w->factors,
                                     .squares = w->squares,
                                     .row_limit = w->p->row_limit,
                                     .qact_rows = wide_qact_rows(w->p->row_limit),
                                     .is_q8_0 = is_q8_0,
                                     .is_int8 = is_q8_0 && q8_tile_rows(w->p) == 128};
    bool is_divided = in->prologue != PROLOGUE_NORM && project_is_vec4(in);
    uint32_t threads =
        is_divided ? min_u32(DIVIDED_THREADS, quantize_threads(in)) : quantize_threads(in);
    struct cuda_launch launch = {
        .kernel = "project_wide_quantize",
        .grid = {w->p->row_limit, is_divided ? div_up(in->k / PROJECT_COLS, threads) : 1, 1},
        .threads = threads,
        .shared = max_u32(in->k / PROJECT_GROUP, in->k / in->head_width) * 4,
        .is_alone = w->is_handed,
    };
    q.in.wants_f32 = 0;
    return recorder_launch(r, &launch, &q, sizeof q);
}

/* ---- products ----------------------------------------------------------------------------- */

uint32_t wide_stage_bytes(uint32_t type, uint32_t rows) {
    bool is_int8 = type == IS_Q8_0 && rows == 128;
    uint32_t bytes = rows * ((is_int8 ? 128 : 256) + (type == IS_Q8_0 ? 4 : 20));
    bytes = div_up(bytes, 128) * 128 + (type == IS_Q8_0 ? 8 : 4) * WIDE_CHUNK;
    switch (type) {
    case IS_Q4_K:
        bytes += WIDE_N * 10;
        break;
    case IS_Q5_K:
        bytes += WIDE_CHUNK + WIDE_N * 10;
        break;
    case IS_Q6_K:
        bytes += 2 * WIDE_CHUNK + WIDE_N * 12;
        break;
    default:
        bytes += WIDE_N * 8;
    }
    return div_up(bytes, 1024) * 1024;
}

uint32_t wide_n_blocks(uint32_t epilogue, uint32_t n) {
    return div_up(n, epilogue == EPILOGUE_SWIGLU ? WIDE_N / 2 : WIDE_N);
}

uint32_t wide_count_tiles(const struct project_segment *segments, uint32_t n_segments,
                          uint32_t epilogue, uint32_t rows, uint32_t bucket) {
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < n_segments; i++)
        blocks += wide_n_blocks(epilogue, segments[i].n);
    return blocks * div_up(bucket, rows);
}

/* About how long a product takes that has tiles of this many rows: divide_step's estimate. */
static uint32_t product_cost(const struct wide_params *w, uint32_t rows, uint32_t bucket,
                             uint32_t n_sms) {
    const struct project_segment *s = &w->segments[0];
    uint32_t tiles = wide_count_tiles(w->segments, w->n_segments, w->epilogue, rows, bucket),
             rest = tiles % n_sms, in_kblock = 32u >> s->row_shift, groups = s->kblocks * in_kblock;
    uint32_t cut = div_up(rest * s->kblocks, n_sms) * in_kblock + WIDE_CUT_COST;
    return (tiles / n_sms * groups + (rest ? min_u32(groups, cut) : 0)) *
           (rows == 64 ? GROUP_64 : GROUP_128);
}

/* Rows of activations of a tile: with 128 weights are unpacked half as often, with 64 fewer SMs are
 * idle at the end. Q6_K has several sums at once: 64. */
static uint32_t choose_rows(const struct wide_params *w, const struct project_params *p,
                            uint32_t type, uint32_t n_sms) {
    uint32_t bucket = p->row_limit;
    if (type == IS_Q8_0)
        return q8_tile_rows(p);
    if (type & IS_Q6_K || bucket <= 64)
        return 64;
    return product_cost(w, 64, bucket, n_sms) < product_cost(w, 128, bucket, n_sms) ? 64 : 128;
}

static uint32_t count_parts(const struct project_segment *s, uint32_t cut) {
    return cut == WIDE_BY_KBLOCKS ? s->kblocks : cut == WIDE_BY_SPLITS ? s->splits : 1;
}

/* As the kernel's cut_cost. */
static uint32_t cut_cost(const struct wide_params *w, uint32_t row_blocks, uint32_t n_sms,
                         uint32_t whole, uint32_t cut, uint32_t *n_parts) {
    uint32_t first = 0, parts = 0, groups = 0;
    for (uint32_t i = 0; i < w->n_segments; i++) {
        const struct project_segment *s = &w->segments[i];
        uint32_t n = count_parts(s, cut),
                 end = first + row_blocks * wide_n_blocks(w->epilogue, s->n);
        parts += (end - min_u32(max_u32(first, whole), end)) * n;
        groups = max_u32(groups, div_up(s->kblocks, n) * (32u >> s->row_shift));
        first = end;
    }
    uint32_t rounds = div_up(parts, n_sms) * groups;
    *n_parts = parts;
    return cut == WIDE_UNCUT ? rounds : parts > w->max_parts ? UINT32_MAX : rounds + WIDE_CUT_COST;
}

/* As the kernel's divide_step, for all rows of the bucket. */
static struct wide_division divide_bucket(const struct wide_params *w, uint32_t rows,
                                          uint32_t bucket, uint32_t n_sms) {
    uint32_t tiles = wide_count_tiles(w->segments, w->n_segments, w->epilogue, rows, bucket);
    struct wide_division d = {.rows = bucket, .whole = tiles - tiles % n_sms};
    uint32_t best = UINT32_MAX;
    for (uint32_t cut = WIDE_UNCUT; cut <= WIDE_BY_KBLOCKS; cut++) {
        uint32_t parts, cost = cut_cost(w, div_up(bucket, rows), n_sms, d.whole, cut, &parts);
        if (cost < best)
            best = cost, d.cut = cut, d.parts = parts;
    }
    return d;
}

/* Whether thread blocks that have less to multiply add the parts of cut tiles. */
static void leave_parts(struct wide_params *w, uint32_t row_blocks, uint32_t n_sms) {
    const struct wide_division *d = &w->division;
    const struct project_segment *last = &w->segments[w->n_segments - 1];
    uint32_t tiles = 0, of_last = row_blocks * wide_n_blocks(w->epilogue, last->n);
    for (uint32_t i = 0; i < w->n_segments; i++)
        tiles += row_blocks * wide_n_blocks(w->epilogue, w->segments[i].n);
    uint32_t n_cut = tiles - d->whole, free = n_sms - w->n_tasks % n_sms;
    if (!d->whole || d->cut == WIDE_UNCUT || !n_cut || n_cut > of_last || free == n_sms ||
        free < LEAST_FREE)
        return;
    w->n_cut = n_cut;
    w->combine_from = w->n_tasks % n_sms;
}

/* The product of all segments of a type. Returns the rows of a tile. */
static uint32_t plan_product(const struct recorder *r, const struct project_params *p,
                             uint32_t type, struct wide_params *w) {
    for (uint32_t i = 0; i < p->n_segments; i++)
        if (p->segments[i].type & type)
            w->segments[w->n_segments++] = p->segments[i];
    w->epilogue = p->epilogue;
    w->n_segments = p->epilogue == EPILOGUE_SWIGLU ? 1 : w->n_segments;
    w->max_parts = PARTS_PER_BLOCK * r->n_sms;
    uint32_t rows = choose_rows(w, p, type, r->n_sms);
    w->n_tasks = UINT32_MAX;
    if (p->row_limit <= EARLY_ROWS && !p->in.is_lm_head) {
        w->early_rows = p->row_limit;
        w->division = divide_bucket(w, rows, p->row_limit, r->n_sms);
        w->n_tasks = w->division.whole + w->division.parts;
        leave_parts(w, div_up(p->row_limit, rows), r->n_sms);
    }
    return rows;
}

/* The types of the kernel of a product. In small buckets those of a model with Q4_K and Q6_K share
 * the one for both: instructions that the kernel before has not run come from memory, and a kernel
 * of 64 rows is too short to hide that. */
static uint32_t kernel_types(const struct recorder *r, const struct wide_params *w, uint32_t type,
                             uint32_t rows) {
    bool is_shared = w->early_rows && rows == 64 && !(type & ~(uint32_t)WIDE_PAIR) &&
                     (project_all_types(r) & WIDE_PAIR) == WIDE_PAIR;
    return is_shared ? WIDE_PAIR : type;
}

/* The F32 segments become the product's where enough thread blocks have less to multiply than the
 * others. False: they need a kernel of their own. */
static bool add_f32_segments(const struct recorder *r, const struct project_params *p,
                             struct wide_params *w) {
    uint32_t n = w->n_segments, splits = 0;
    for (uint32_t i = 0; i < p->n_segments; i++)
        if (p->segments[i].type == IS_F32)
            splits = max_u32(splits, p->segments[i].splits);
    if (!w->early_rows || p->in.prologue != PROLOGUE_NORM || p->in.is_split ||
        p->epilogue != EPILOGUE_STORE || r->n_sms - w->n_tasks % r->n_sms < LEAST_FREE ||
        p->in.k * 32 + splits * 512 > w->stages * w->stage_bytes)
        return false;
    for (uint32_t i = 0; i < p->n_segments; i++)
        if (p->segments[i].type == IS_F32) {
            w->n_f32_tiles += p->segments[i].n_tiles;
            w->segments[n++] = p->segments[i];
        }
    w->f32_from = w->n_tasks % r->n_sms;
    return true;
}

/* All segments of a type. finish: not NULL, another kernel adds the parts. */
static int record_product(struct recorder *r, struct wide_op *op, uint32_t type,
                          struct wide_finish_params *finish) {
    const struct project_params *p = op->p;
    struct wide_params w = {.io = p->io,
                            .in = p->in,
                            .qact = op->qact,
                            .qact_rows = wide_qact_rows(p->row_limit),
                            .group_bytes = (uint64_t)wide_qact_rows(p->row_limit) * WIDE_ROW_BYTES,
                            .factors = op->factors,
                            .squares = op->squares,
                            .out = p->out,
                            .out_stride = p->out_stride,
                            .has_bias = p->has_bias};
    uint32_t rows = plan_product(r, p, type, &w), max_splits = 0;
    for (uint32_t i = 0; i < w.n_segments; i++)
        max_splits = max_u32(max_splits, w.segments[i].splits);
    uint32_t splits = max_splits > 1 ? rows * WIDE_N * 4 : 0,
             factors = op->squares ? WIDE_HANDED_ROWS * sizeof(float) : 0;
    w.partials = recorder_work(r, (uint64_t)w.max_parts * rows * WIDE_N * 4);
    if (finish)
        finish->partials = w.partials;
    else if (!w.early_rows || w.division.cut != WIDE_UNCUT)
        w.arrivals = recorder_counters(r, r->n_sms);
    w.stage_bytes = wide_stage_bytes(type & IS_Q6_K ? IS_Q6_K : type, rows);
    w.stages = min_u32((PROJECT_SHARED_ALONE - WIDE_STAGES_AT - splits - factors) / w.stage_bytes,
                       WIDE_MAX_STAGES);
    w.splits_at = WIDE_STAGES_AT + w.stages * w.stage_bytes;
    w.factors_at = w.splits_at + splits;
    if (op->wants_f32 && kernel_types(r, &w, type, rows) & IS_Q4_K && add_f32_segments(r, p, &w))
        op->wants_f32 = false;
    char name[48];
    snprintf(name, sizeof name, "project_wide_%s_%u",
             type == IS_Q5_K ? "q5" : project_set_name(kernel_types(r, &w, type, rows)), rows);
    struct cuda_launch launch = {.kernel = name,
                                 .grid = {r->n_sms, 1, 1},
                                 .threads = WIDE_THREADS,
                                 .shared = w.factors_at + factors};
    return recorder_launch(r, &launch, &w, sizeof w);
}

/* ---- F32 segments ------------------------------------------------------------------------- */

int record_project_wide_f32(struct recorder *r, const struct project_params *p,
                            const float *factors) {
    struct wide_f32_params w = {.io = p->io,
                                .in = p->in,
                                .factors = factors,
                                .out = p->out,
                                .out_stride = p->out_stride,
                                .epilogue = p->epilogue};
    uint32_t splits = 1;
    for (uint32_t i = 0; i < p->n_segments; i++)
        if (p->segments[i].type == IS_F32) {
            w.n_tiles += p->segments[i].n_tiles;
            splits = max_u32(splits, p->segments[i].splits);
            w.segments[w.n_segments++] = p->segments[i];
        }
    /* 16 rows a block, and 8 warps, a tile each; where that leaves SMs idle 4 rows and 4 tiles, and
     * warps for their splits of K. */
    uint32_t warps_4 = WIDE_F32_FEW_TILES * min_u32(splits, WIDE_F32_FEW_SPLITS);
    uint32_t shared_4 = ((WIDE_F32_FEW_ROWS + 1) * p->in.k +
                         WIDE_F32_FEW_ROWS * splits * WIDE_F32_FEW_TILES * WIDE_F32_TILE) *
                        4;
    bool is_16 =
        div_up(p->row_limit, 16) * div_up(w.n_tiles, 8) >= r->n_sms || shared_4 > r->b->max_shared;
    struct cuda_launch launch = {.kernel = is_16 ? "project_wide_f32_16" : "project_wide_f32_4",
                                 .grid = {div_up(p->row_limit, is_16 ? 16 : WIDE_F32_FEW_ROWS),
                                          div_up(w.n_tiles, is_16 ? 8 : WIDE_F32_FEW_TILES), 1},
                                 .threads = (is_16 ? 8 : warps_4) * 32,
                                 .shared = is_16 ? 16 * WIDE_F32_COLUMNS * 4 : shared_4};
    return recorder_launch(r, &launch, &w, sizeof w);
}

/* ---- recording ---------------------------------------------------------------------------- */

/* Gate and up share tiles. */
static bool are_gate_up_alike(const struct project_params *p) {
    const struct project_segment *a = &p->segments[0], *b = &p->segments[1];
    return a->type == b->type && a->n == b->n && a->row_shift == b->row_shift &&
           a->splits == b->splits;
}

bool project_can_do_f32(const struct project_params *p) {
    if (!p->in.can_vec4 || p->in.prologue > PROLOGUE_NORM || p->in.is_lm_head ||
        p->epilogue == EPILOGUE_SWIGLU)
        return false;
    for (uint32_t i = 0; i < p->n_segments; i++)
        if (p->segments[i].type == IS_F32 && p->segments[i].row_shift != shift_of(WIDE_F32_TILE))
            return false;
    return true;
}

static bool is_for_wide(const struct recorder *r, const struct project_params *p, uint32_t set) {
    bool is_swiglu = p->epilogue == EPILOGUE_SWIGLU;
    uint32_t types = set & WIDE_TYPES,
             least = types & (types - 1) && types != WIDE_PAIR ? WIDE_MIXED_ROWS : WIDE_MIN_ROWS;
    return r->b->capability == 90 && r->b->max_shared >= PROJECT_SHARED_ALONE &&
           p->row_limit >= least && types && !(set & ~(uint32_t)(WIDE_TYPES | IS_F32)) &&
           (!is_swiglu || are_gate_up_alike(p)) &&
           (!(set & IS_F32) || (p->f32_from_global && project_can_do_f32(p)));
}

/* ---- handing on to the next op ------------------------------------------------------------ */

static uint64_t qact_bytes(uint32_t k, uint32_t rows) {
    return (uint64_t)(k / WIDE_GROUP) * wide_qact_rows(rows) * WIDE_ROW_BYTES;
}

uint64_t wide_handed_bytes(uint32_t k, uint32_t rows) {
    uint64_t squares = (uint64_t)(k / WIDE_GROUP) * wide_qact_rows(rows) * sizeof(float);
    return (qact_bytes(k, rows) + squares + 255) / 256 * 256;
}

/* Whether project_wide_finish adds this product's parts and quantizes what the next op reads. */
static bool can_finish(const struct recorder *r, const struct wide_product *product,
                       const struct wide_product *next, struct wide_finish_params *f) {
    const struct project_params *p = product->p, *n = next->p;
    uint32_t type = product->set;
    struct wide_params w = {0};
    if (!n || p->n_segments != 1 || !(type & IS_K_QUANT) || p->epilogue != EPILOGUE_ADD ||
        p->in.prologue == PROLOGUE_NORM || p->has_bias || p->segments[0].n % WIDE_GROUP ||
        !is_for_wide(r, n, next->set) || next->set & IS_Q8_0 || !project_is_vec4(&n->in) ||
        n->in.prologue > PROLOGUE_NORM || n->in.k > 32 * WIDE_GROUP ||
        wide_handed_bytes(n->in.k, n->row_limit) > r->products.handed_bytes)
        return false;
    uint32_t rows = plan_product(r, p, type, &w);
    uint32_t parts = count_parts(&w.segments[0], w.division.cut);
    if (!w.early_rows || w.division.whole || parts == 1 || parts > PROJECT_FINISH_PARTS)
        return false;
    *f = (struct wide_finish_params){
        .io = p->io,
        .in = n->in,
        .qact_rows = wide_qact_rows(p->row_limit),
        .row_limit = p->row_limit,
        .out = p->out,
        .out_stride = p->out_stride,
        .tile_rows = rows,
        .row_blocks = div_up(p->row_limit, rows),
        .tiles = wide_count_tiles(w.segments, 1, p->epilogue, rows, p->row_limit),
        .parts = parts,
        .split_ends =
            parts == w.segments[0].splits ? ~(uint64_t)0 : project_split_ends(&w.segments[0]),
    };
    f->in.wants_f32 = 0;
    return true;
}

/* Where the next op finds what this one hands to it. */
static float *handed_squares(uint8_t *qact, const struct project_input *in, uint32_t rows) {
    return qact ? (float *)(qact + qact_bytes(in->k, rows)) : NULL;
}

static int record_finish(struct recorder *r, struct wide_finish_params *f) {
    struct cuda_launch launch = {
        .kernel = "project_wide_finish",
        .grid = {f->in.k / WIDE_GROUP, div_up(f->row_limit, 8), 1},
        .threads = 2 * WIDE_N,
    };
    r->handed_op = r->op + 1;
    r->handed_to = 1 - r->handed_to;
    f->qact = recorder_handed(r, r->handed_to);
    f->squares = handed_squares(f->qact, &f->in, f->row_limit);
    return recorder_launch(r, &launch, f, sizeof *f);
}

bool record_project_wide(struct recorder *r, const struct wide_product *product,
                         const struct wide_product *next, int *status) {
    const struct project_params *p = product->p;
    uint32_t set = product->set;
    if (!is_for_wide(r, p, set))
        return false;
    struct wide_finish_params f;
    bool finishes = can_finish(r, product, next, &f);
    struct wide_op op = {
        .p = p, .is_handed = r->op && r->handed_op == r->op, .wants_f32 = set & IS_F32};
    op.qact = op.is_handed ? recorder_handed(r, r->handed_to)
                           : recorder_work(r, qact_bytes(p->in.k, p->row_limit));
    if (p->in.prologue == PROLOGUE_NORM) {
        op.factors = recorder_work(r, wide_qact_rows(p->row_limit) * sizeof(float));
        if (op.is_handed)
            op.squares = handed_squares(op.qact, &p->in, p->row_limit);
    }
    *status = 0;
    for (int is_q8_0 = 0; is_q8_0 < 2 && !*status; is_q8_0++) {
        uint32_t types = set & (is_q8_0 ? IS_Q8_0 : IS_K_QUANT);
        if (types)
            *status = record_quantize(r, &op, is_q8_0);
        bool is_pair = types == WIDE_PAIR && p->row_limit <= EARLY_ROWS;
        for (uint32_t left = types, type; left && !*status; left &= ~type) {
            type = is_pair ? types : left & (0 - left);
            *status = record_product(r, &op, type, finishes ? &f : NULL);
        }
    }
    if (finishes && !*status)
        *status = record_finish(r, &f);
    if (op.wants_f32 && !*status)
        *status = record_project_wide_f32(r, p, op.factors);
    return true;
}
