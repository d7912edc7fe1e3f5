/* project_gemm.c - PROJECT on tensor cores: rows that a block takes at once, who has which
 * m16_tiles, warps and shared memory. Tiles and splits are those of one row, so bits are too. */
#include "backend/cuda/ops/project_gemm.h"

#include <stdio.h>
#include <string.h>

#include "backend/cuda/ops/project_schedule.h"
#include "base/size.h"

enum {
    WARPS = 16, /* of a block; for 32 rows at once as many as its registers allow */
    WARPS_32 = 12,
    FEWEST_WARPS = 3,
    FEW_WARPS = 5,   /* so few that two share a task of 32 rows */
    PLAIN_WARPS = 4, /* at least, and twice as many at most, where there are plain segments */
    SLOTS = 2,       /* a warp; with more, rows come late: they queue behind what was asked for */
    SPREAD = 4,      /* m16_tiles a block: with fewer, kblocks are spread */
    LEAST_THREADS = 128,
    MANY_PREPARE_THREADS = 512,
};

/* F32 segments are taken out: all blocks share them. False: their tiles are too high. */
static bool part_segments(struct many_params *m) {
    struct project_params *p = &m->p;
    uint32_t n = 0, n_plain = 0;
    for (uint32_t i = 0; i < p->n_segments; i++) {
        const struct project_segment *s = &p->segments[i];
        if (s->type == IS_F32) {
            if (s->row_shift != shift_of(MANY_PLAIN))
                return false;
            m->plain_tiles += s->n_tiles;
            m->plain_slices = max_u32(m->plain_slices, s->splits);
            m->plain[n_plain++] = *s;
        } else {
            p->segments[n++] = *s;
        }
    }
    p->n_segments = n;
    return true;
}

/* Gate and up must be alike to share m16_tiles. */
static bool is_alike(const struct project_params *p) {
    const struct project_segment *a = &p->segments[0], *b = &p->segments[1];
    return a->type == b->type && a->n == b->n && a->row_shift == b->row_shift && a->row_shift < 4;
}

static void cut_strips(struct many_params *m) {
    struct project_params *p = &m->p;
    bool is_swiglu = p->epilogue == EPILOGUE_SWIGLU;
    uint32_t first = 0;
    if (is_swiglu)
        p->n_segments = 1;
    for (uint32_t i = 0; i < p->n_segments; i++) {
        struct project_segment *s = &p->segments[i];
        m->tiles = max_u32(m->tiles, MANY_STRIP >> s->row_shift);
        s->first_tile = first; /* m16_tiles stand for tiles from here on */
        s->n_tiles = div_up(s->n, is_swiglu ? MANY_STRIP / 2 : MANY_STRIP);
        first += s->n_tiles;
    }
}

/* A kblock of a tile costs its bytes, and this. */
enum { MANY_UNIT_COST = 2304 };

static void cut_blocks(struct many_params *m, uint32_t n_blocks) {
    const struct project_segment *s = &m->p.segments[0];
    uint32_t tasks = s->n_tiles * s->kblocks;
    m->is_spread = m->p.n_segments == 1 && m->p.epilogue != EPILOGUE_SWIGLU && s->n_tiles > 1 &&
                   s->n_tiles < SPREAD * n_blocks && tasks <= UINT16_MAX;
    m->m16_tiles = s->n_tiles;
    m->strip_magic = fastdiv_of(m->m16_tiles);
    m->kblocks = s->kblocks;
    if (m->is_spread) {
        for (uint32_t b = 0; b <= n_blocks; b++)
            m->p.bounds[b] = (uint16_t)((uint64_t)b * tasks / n_blocks);
        return;
    }
    struct project_segment segments[PROJECT_SEGMENTS]; /* kblocks of m16_tiles, not of tiles */
    memcpy(segments, m->p.segments, sizeof segments);
    for (uint32_t i = 0; i < m->p.n_segments; i++)
        segments[i].kblocks *= MANY_STRIP >> segments[i].row_shift;
    project_divide_tiles(segments, m->p.n_segments, n_blocks, MANY_UNIT_COST, m->p.bounds);
}

/* Tasks of the block that has most. */
static uint32_t max_tasks(const struct many_params *m, uint32_t n_blocks) {
    return m->is_spread ? div_up(m->m16_tiles * m->kblocks, n_blocks)
                        : project_max_tasks(m->p.segments, m->p.n_segments, n_blocks, m->p.bounds);
}

static uint32_t most_strips(const struct many_params *m, uint32_t n_blocks) {
    uint32_t most = 0;
    for (uint32_t b = 0; b < n_blocks; b++)
        most = max_u32(most, (uint32_t)m->p.bounds[b + 1] - m->p.bounds[b]);
    return most;
}

/* Bands of the qact that a block needs at most. */
static uint32_t most_bands(const struct many_params *m, uint32_t n_blocks) {
    uint32_t tasks = max_tasks(m, n_blocks), m16_tiles = m->m16_tiles;
    uint32_t kblocks = (tasks + m16_tiles - 2) / m16_tiles + 1;
    return m->is_spread ? min_u32(kblocks, m->kblocks) : m->qacts.k_slabs;
}

/* Columns of the largest kblock. */
static uint32_t unit_columns(const struct project_params *p) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < p->n_segments; i++)
        most = max_u32(most, p->in.k / p->segments[i].kblocks);
    return most;
}

static void lay_out_image(struct many_image *m, const struct project_input *in, uint32_t rows) {
    uint32_t columns = 1u << m->band_shift;
    m->rows = rows;
    m->scales_at = (columns + 16) * rows;
    m->sums_at = m->scales_at + columns / m->group * rows * 4;
    m->band_bytes = m->sums_at + columns / 32 * rows * 4;
    m->squares_at = m->k_slabs * m->band_bytes;
    m->squares_pitch = in->prologue == PROLOGUE_NORM ? in->k / PROJECT_GROUP | 1 : 0;
    m->bytes = m->squares_at + rows * m->squares_pitch * 4;
}

struct shape {
    uint32_t n_blocks, tasks, m16_tiles, k_slabs, n8_tiles;
    bool has_parts;      /* of m16_tiles, in shared memory */
    uint32_t max_shared; /* bytes that the device allows a block */
    bool can_share;      /* a warp can wait for what another has asked for: by the copy engine */
};

/* Sets where things are; the bytes. */
static uint32_t lay_out(struct many_params *m, const struct shape *s) {
    struct project_params *p = &m->p;
    uint32_t rows = m->qacts.rows, at = p->task_warps * p->stages * p->stage_bytes * m->tiles;
    p->qact_at = at = div_up(at, 128) * 128;
    at += s->k_slabs * m->qacts.band_bytes;
    p->partials_at = at = div_up(at, 128) * 128;
    at += s->has_parts ? s->tasks * s->n8_tiles * MANY_PART : 0;
    m->plain_at = at;
    at += div_up(m->plain_tiles * div_up(rows, MANY_PLAIN_ROWS), s->n_blocks) * MANY_PLAIN_ROWS *
          m->plain_slices * MANY_PLAIN * 4;
    m->squares_at = at = div_up(at, 16) * 16;
    at += rows * (m->qacts.squares_pitch + 1) * 4;
    m->counters_at = at;
    at += s->has_parts ? s->m16_tiles * m->tile_warps * 4 : 0;
    m->left_at = at;
    at += m->tile_warps > 1 ? p->task_warps * p->stages * 4 : 0;
    p->mbars_at = (at + 7) / 8 * 8;
    return p->mbars_at + (p->task_warps * p->stages + 2 + s->k_slabs) * 8;
}

static uint32_t most_warps(const struct many_params *m, const struct shape *s) {
    return s->n8_tiles / m->tile_warps == 4 ? WARPS_32 : WARPS;
}

/* Every warp has but one kblock to wait for. */
static bool is_single(const struct many_params *m, const struct shape *s, uint32_t warps) {
    return m->is_spread && s->tasks <= warps;
}

/* Warps within `limit` bytes: the fewest of those that take the fewest rounds. The bytes, or 0: too
 * few warps fit. */
static uint32_t choose_ring(struct many_params *m, const struct shape *s, uint32_t limit) {
    uint32_t most = most_warps(m, s) - (m->plain_tiles ? PLAIN_WARPS : 0);
    uint32_t w = min_u32(most / m->tile_warps, s->tasks);
    for (;; w--) {
        m->p.task_warps = w;
        m->p.stages = is_single(m, s, w) ? 1 : SLOTS;
        if (w < min_u32(FEWEST_WARPS, s->tasks))
            return 0;
        if (lay_out(m, s) <= limit)
            break;
    }
    while (w > 1 && div_up(s->tasks, w - 1) == div_up(s->tasks, w))
        w--;
    m->p.task_warps = w;
    return lay_out(m, s);
}

/* Two stages of few rows share a multiprocessor's memory where that takes no more rounds: products
 * take turns in two sizes, as those of one row do. Those of more rows are alone: two of the lesser
 * size would lie on one multiprocessor and none on another (mix in of 4B, 16 rows: 15.9 us,
 * alone 13.4). */
static uint32_t choose_shared(struct many_params *m, const struct shape *s) {
    uint32_t half = m->p.epilogue == EPILOGUE_ADD ? PROJECT_SHARED_WIDE : PROJECT_SHARED;
    uint32_t bytes = choose_ring(m, s, min_u32(PROJECT_SHARED_ALONE, s->max_shared));
    if (!bytes)
        return 0;
    struct many_params both = *m;
    half = min_u32(half, s->max_shared);
    if (s->n8_tiles == 1 && choose_ring(&both, s, half) && both.p.task_warps >= m->p.task_warps) {
        *m = both;
        return half;
    }
    return max_u32(bytes, min_u32(PROJECT_SHARED_WIDE, s->max_shared));
}

/* Two warps a task, each for 16 of 32 rows, where a block would have but a few warps: its weights
 * are opened twice, but a multiprocessor has twice as many to choose from. */
static uint32_t choose_members(struct many_params *m, const struct shape *s) {
    m->tile_warps = 1;
    uint32_t shared = choose_shared(m, s), bytes = 0;
    struct many_params two = *m;
    two.tile_warps = 2;
    if (shared && s->can_share && s->n8_tiles == 4 && m->p.task_warps <= FEW_WARPS)
        bytes = choose_shared(&two, s);
    if (!bytes || two.p.task_warps < m->p.task_warps)
        return shared;
    *m = two;
    return bytes;
}

/* Rows at once, and all that follows from them; the shared memory, 0: nothing fits. */
static uint32_t choose(struct many_params *m, uint32_t bucket, uint32_t n_sms, struct shape *s) {
    bool has_slices = false;
    for (uint32_t i = 0; i < m->p.n_segments; i++)
        has_slices |= m->p.segments[i].splits > 1;
    s->n_blocks = n_sms;
    cut_blocks(m, n_sms);
    s->tasks = max_tasks(m, n_sms);
    s->m16_tiles = m->is_spread ? 0 : most_strips(m, n_sms);
    s->k_slabs = most_bands(m, n_sms);
    s->has_parts = has_slices && !m->is_spread;
    for (s->n8_tiles = bucket > 16 ? 4 : bucket > 8 ? 2 : 1; s->n8_tiles; s->n8_tiles /= 2) {
        lay_out_image(&m->qacts, &m->p.in, 8 * s->n8_tiles);
        uint32_t shared = choose_members(m, s);
        if (shared)
            return shared;
    }
    return 0;
}

static int prepare_rows(struct recorder *r, const struct many_params *m, uint32_t bucket) {
    struct many_prepare_params before = {
        .io = m->p.io, .in = m->p.in, .qacts = m->qacts, .row_limit = bucket};
    uint32_t rows = div_up(bucket, m->qacts.rows) * m->qacts.rows;
    struct cuda_launch launch =
        project_quantize_launch(r, &m->p.in, "project_many_prepare", rows, MANY_PREPARE_THREADS);
    before.in.wants_f32 = 0;
    return recorder_launch(r, &launch, &before, sizeof before);
}

bool project_many(struct recorder *r, const struct project_params *p, uint32_t set, int *status) {
    uint32_t bucket = p->row_limit, int8 = set & MANY_SETS;
    struct many_params m = {.p = *p};
    if (bucket < MANY_LEAST || !int8 || set & ~(uint32_t)(MANY_SETS | IS_F32) ||
        (p->epilogue == EPILOGUE_SWIGLU && !is_alike(p)) ||
        (set & IS_F32 && (!p->f32_from_global || p->epilogue == EPILOGUE_SWIGLU)))
        return false;
    if (!part_segments(&m))
        return false;
    cut_strips(&m);
    /* So that rows of tiles that lie side by side are in different banks. */
    m.p.stage_bytes = div_up(p->stage_bytes + 64, 128) * 128 - 64;
    m.qacts.group = p->in.act_group;
    m.qacts.band_shift = shift_of(unit_columns(&m.p));
    m.qacts.k_slabs = p->in.k >> m.qacts.band_shift;
    struct shape s = {.max_shared = r->b->max_shared, .can_share = r->b->capability >= 90};
    uint32_t shared = choose(&m, bucket, r->n_sms, &s);
    if (!shared)
        return false;
    m.p.shared_bytes = shared;
    m.p.n_blocks = s.n_blocks;
    uint32_t groups = div_up(bucket, m.qacts.rows);
    m.qacts.at = recorder_work(r, (uint64_t)groups * m.qacts.bytes);
    if (m.is_spread) {
        uint64_t m16_tiles = (uint64_t)groups * m.m16_tiles;
        m.parts = recorder_work(r, m16_tiles * m.kblocks * s.n8_tiles * MANY_PART);
        m.counters = recorder_counters(r, m16_tiles * m.tile_warps);
    }
    *status = prepare_rows(r, &m, bucket);
    if (*status)
        return true;
    uint32_t warps = m.p.task_warps * m.tile_warps;
    uint32_t plain = m.plain_tiles ? min_u32(2 * PLAIN_WARPS, most_warps(&m, &s) - warps) : 0;
    char name[48];
    snprintf(name, sizeof name, "project_many_%u_%s", s.n8_tiles / m.tile_warps,
             project_set_name(int8));
    struct cuda_launch launch = {
        .kernel = name,
        .grid = {s.n_blocks, groups, 1},
        .threads = max_u32(32 * (warps + plain), LEAST_THREADS),
        .shared = shared,
    };
    *status = recorder_launch(r, &launch, &m, sizeof m);
    return true;
}
