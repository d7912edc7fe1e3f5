/* project_many.c - PROJECT on tensor cores: rows a block takes at once, its warps and its shared
 * memory. Tiles, slices and blocks are those of fewer rows, so bits are too. */
#include "backend/cuda/project_many.h"

#include <stdio.h>

#include "base/size.h"

enum {
    WARPS_8 = 16, /* of a block that has 8 rows, or 16: as many as its registers allow */
    WARPS_16 = 12,
    FEWEST_WARPS = 3,
    THREADS = 256,    /* at least: they fetch the rows, too */
    UNIT_COST = 2304, /* a unit costs its bytes and this */
};

/* F32 segments are taken out: all blocks share them row by row. */
static void part_segments(struct many_params *m) {
    struct project_params *p = &m->p;
    uint32_t n = 0, n_plain = 0, tile = 0;
    for (uint32_t i = 0; i < p->n_segments; i++) {
        struct project_segment s = p->segments[i];
        if (s.type == IS_F32) {
            m->plain_tiles += s.n_tiles;
            m->plain[n_plain++] = s;
            continue;
        }
        s.first_tile = p->finish == FINISH_SWIGLU ? 0 : tile;
        tile += s.n_tiles;
        p->segments[n++] = s;
    }
    p->n_segments = n;
}

static void cut(struct project_params *p, uint32_t n_blocks) {
    project_cut_blocks(p, n_blocks, UNIT_COST);
}

/* Sets where things are; the bytes. */
static uint32_t lay_out(struct many_params *m, uint32_t eights, uint32_t tasks) {
    struct project_params *p = &m->p;
    uint32_t at = p->ring_warps * p->slots * p->slot_bytes;
    p->image_at = at;
    at += m->rows / eights * many_row_bytes(p->in.k, eights);
    m->pairs_at = at;
    at += m->rows * many_pair_bytes(p->in.k);
    m->scales_at = at = div_up(at, 128) * 128;
    at += p->ring_warps * MANY_SCALES;
    p->parts_at = at;
    at += max_u32(p->is_direct ? 0 : tasks * PROJECT_TASK_ROWS * 8 * eights * 4,
                  m->plain_tiles ? MANY_LEAST_PARTS : 0);
    m->factors_at = at;
    return at + 16 * 4;
}

/* Warps and slots within `limit` bytes: the fewest warps of those that take the fewest rounds. The
 * bytes, or 0: not even `least` warps fit. */
static uint32_t choose_ring(struct many_params *m, uint32_t eights, uint32_t tasks, uint32_t least,
                            uint32_t limit) {
    uint32_t most = min_u32(eights == 1 ? WARPS_8 : WARPS_16, tasks), w = most;
    m->p.slots = 2;
    for (;; w--) {
        m->p.ring_warps = w;
        if (w < min_u32(least, tasks))
            return 0;
        if (lay_out(m, eights, tasks) <= limit)
            break;
    }
    while (w > 1 && div_up(tasks, w - 1) == div_up(tasks, w))
        w--;
    m->p.ring_warps = w;
    for (m->p.slots = 4; lay_out(m, eights, tasks) > limit;)
        m->p.slots--;
    return lay_out(m, eights, tasks);
}

/* Two stages share a multiprocessor's memory where that takes no more rounds. */
static uint32_t choose_shared(struct many_params *m, uint32_t eights, uint32_t tasks) {
    bool is_wide = m->p.finish == FINISH_SWIGLU;
    uint32_t most = m->p.most_shared;
    uint32_t bytes =
        choose_ring(m, eights, tasks, FEWEST_WARPS, min_u32(PROJECT_SHARED_ALONE, most));
    if (!bytes)
        return 0;
    struct many_params both = *m;
    uint32_t less = choose_ring(&both, eights, tasks, FEWEST_WARPS,
                                min_u32(is_wide ? PROJECT_SHARED_WIDE : PROJECT_SHARED, most));
    if (!less || div_up(tasks, both.p.ring_warps) > div_up(tasks, m->p.ring_warps))
        return bytes;
    *m = both;
    return is_wide ? min_u32(PROJECT_SHARED_WIDE, most) : max_u32(less, PROJECT_SHARED_LEAST);
}

bool project_many(struct recorder *r, const struct project_params *p, uint32_t set, int *status) {
    uint32_t bucket = p->row_limit, int8 = set & MANY_SETS, eights, shared = 0;
    struct many_params m = {.p = *p};
    if (bucket < MANY_LEAST || !int8 || set & ~(uint32_t)(MANY_SETS | IS_F32) ||
        (set & IS_F32 && (!p->is_plain || p->finish == FINISH_SWIGLU)))
        return false;
    part_segments(&m);
    uint32_t n_blocks = project_choose_blocks(&m.p, r->n_sms, cut),
             tasks = project_most_tasks(&m.p, n_blocks);
    m.p.slot_bytes = div_up(p->slot_bytes, 128) * 128;
    for (eights = bucket > 8 ? 2 : 1; eights; eights--) {
        m.rows = bucket > 4 ? 8 * eights : 4;
        shared = choose_shared(&m, eights, tasks);
        if (shared)
            break;
    }
    if (!shared)
        return false;
    uint8_t *images = recorder_work(r, (uint64_t)bucket * p->image_bytes);
    m.p.images = images;
    *status = project_prepare_rows(r, p, images, bucket);
    if (*status)
        return true;
    char name[48];
    snprintf(name, sizeof name, "project_many_%u_%s", eights, project_set_name(int8));
    struct cuda_launch launch = {
        .kernel = name,
        .grid = {n_blocks, div_up(bucket, 8 * eights), 1},
        .threads = max_u32(32 * m.p.ring_warps, THREADS),
        .shared = shared,
    };
    *status = recorder_launch(r, &launch, &m, sizeof m);
    return true;
}
