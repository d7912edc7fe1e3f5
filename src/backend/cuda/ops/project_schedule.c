/* project_schedule.c - K splits, thread blocks, warps and pipeline stages of a PROJECT. */
#include "backend/cuda/ops/project_schedule.h"

#include <string.h>

#include "base/size.h"

enum {
    MAX_WARPS = 16,      /* of a block: registers of two kernels' blocks fit an SM */
    MAX_WARPS_WIDE = 20, /* of SwiGLU, whose neighbours have fewer; and of four rows, whose kernels
                            have an SM alone (2464 to 2477 tok/s, 4B) */
    MIN_WARPS = 4,
    MAX_STAGES = 6,
    KBLOCK_COST = 1024, /* time of a warp, as bytes */
    TASK_COST = 1536,
    MAX_SPLITS = 32,
    MAX_PARTIALS = 24 << 10, /* bytes of a block's partial sums for one row */
    RED_ROOM = 1536,         /* what the choice of K splits leaves for sums of squares */
    MBARS_BYTES = 8 * (MAX_STAGES + 1) * MAX_WARPS_WIDE,
};

bool project_has_deep_pipeline(uint32_t types) {
    return strcmp(project_set_name(types), "all") == 0 || types & DEEP_PIPELINE;
}

static bool is_swiglu(const struct project_schedule *s) {
    return s->shape.epilogue == EPILOGUE_SWIGLU;
}

static uint32_t qact_bytes(const struct project_shape *shape, bool has_f32) {
    return (shape->types & IS_INT8 ? project_int8_bytes(shape->k) : 0) +
           (has_f32 ? shape->k * 4 : 0) + 16;
}

/* ---- segments ----------------------------------------------------------------------------- */

static void set_segments(struct project_schedule *s) {
    const struct project_shape *shape = &s->shape;
    uint32_t tile = 0;
    for (uint32_t i = 0; i < shape->n_segments; i++) {
        uint32_t dtype = shape->segments[i].dtype, tile_rows = shape->segments[i].tile_rows;
        struct project_segment *seg = &s->segments[i];
        *seg = (struct project_segment){
            .type = project_type_bit(dtype),
            .n = shape->segments[i].n,
            .lane_shift = shift_of(project_lanes(dtype, tile_rows)),
            .row_shift = shift_of(tile_rows),
            .kblocks = shape->k / tile_columns(dtype, tile_rows),
            .kblock_bytes = tile_kblock_bytes(dtype),
            .first_tile = is_swiglu(s) ? 0 : tile,
            .n_tiles = div_up(shape->segments[i].n, tile_rows),
        };
        tile += seg->n_tiles;
        s->stage_bytes = max_u32(s->stage_bytes, seg->kblock_bytes);
    }
    bool wants_f32 = (shape->types & ~(uint32_t)IS_INT8) != 0;
    s->qact_bytes = qact_bytes(shape, wants_f32 && !shape->f32_from_global);
}

/* ---- K splits ----------------------------------------------------------------------------- */

/* Shared memory of a thread block that has a neighbour on its SM. Every other product of a layer
 * adds to the residual, so consecutive kernels have different sizes. */
static uint32_t paired_shared(const struct project_schedule *s) {
    uint32_t bytes = s->shape.epilogue == EPILOGUE_ADD ? PROJECT_SHARED_WIDE : PROJECT_SHARED;
    return min_u32(bytes, s->shape.max_shared);
}

/* Warps with two stages each that fit beside one row's qact: for one row in every bucket, and with
 * f32 values wherever they may be, since K splits follow from it. */
static uint32_t max_warps(const struct project_schedule *s) {
    uint32_t room = paired_shared(s) - RED_ROOM, warps = 0;
    uint32_t qact = qact_bytes(&s->shape, (s->shape.types & ~(uint32_t)IS_INT8) != 0);
    if (qact < room)
        warps = (room - qact) / (2 * s->stage_bytes);
    return max_u32(MIN_WARPS, min_u32(warps, is_swiglu(s) ? MAX_WARPS_WIDE : MAX_WARPS));
}

/* As many splits as keep a block's warps busy for about the same time, with `tiles` tiles a block.
 * The end of a task costs about three quarters of a K block. None where there are many tiles. */
static uint32_t choose_splits(const struct project_segment *seg, uint32_t tiles, uint32_t warps) {
    uint32_t best = 1, best_cost = UINT32_MAX;
    if (tiles >= 3 * warps)
        return 1;
    for (uint32_t splits = 1; splits <= seg->kblocks && splits <= MAX_SPLITS; splits++) {
        uint32_t cost = UINT32_MAX;
        for (uint32_t w = 1; w <= warps; w++) {
            uint32_t c = div_up(tiles * splits, w) * (4 * div_up(seg->kblocks, splits) + 3);
            cost = min_u32(cost, c);
        }
        if (cost < best_cost)
            best = splits, best_cost = cost;
    }
    return best;
}

static void split_k(struct project_schedule *s, uint32_t n_sms) {
    uint32_t warps = max_warps(s);
    uint64_t kblocks = 0;
    for (uint32_t i = 0; i < s->shape.n_segments; i++)
        kblocks += (uint64_t)s->segments[i].n_tiles * s->segments[i].kblocks;
    uint64_t sm_kblocks = (kblocks + n_sms - 1) / n_sms;
    s->is_direct = s->shape.is_lm_head;
    for (uint32_t i = 0; i < s->shape.n_segments; i++) {
        struct project_segment *seg = &s->segments[i];
        uint64_t tiles = (sm_kblocks + seg->kblocks - 1) / seg->kblocks;
        seg->splits = choose_splits(seg, (uint32_t)(tiles < 4096 ? tiles : 4096), warps);
        seg->split_fastdiv = div_up(65536, seg->splits);
        seg->split_kblocks = seg->kblocks / seg->splits;
        seg->split_extra = seg->kblocks % seg->splits;
        s->is_direct &= seg->splits == 1;
    }
}

/* ---- thread blocks ------------------------------------------------------------------------ */

/* Of all K blocks of a tile. */
static uint64_t tile_cost(const struct project_segment *seg, uint32_t kblock_cost) {
    return (uint64_t)seg->kblocks * (seg->kblock_bytes + kblock_cost);
}

/* Of tile i in the blocks' order: with SwiGLU gate's and up's. */
static uint64_t ordered_cost(const struct project_segment *segments, uint32_t n_segments,
                             uint32_t i, uint32_t kblock_cost) {
    uint64_t cost = 0;
    for (uint32_t s = 0; s < n_segments; s++)
        if (i >= segments[s].first_tile && i - segments[s].first_tile < segments[s].n_tiles)
            cost += tile_cost(&segments[s], kblock_cost);
    return cost;
}

/* Fills blocks up to a cost of max_cost; false: some tiles are left. */
static bool fill_blocks(const struct project_segment *segments, uint32_t n_segments,
                        uint32_t n_blocks, uint64_t max_cost, uint32_t kblock_cost,
                        uint16_t *bounds) {
    const struct project_segment *last = &segments[n_segments - 1];
    uint32_t tile = 0, n = last->first_tile + last->n_tiles;
    for (uint32_t b = 0; b < n_blocks; b++) {
        bounds[b] = (uint16_t)tile;
        for (uint64_t cost = 0; tile < n; tile++) {
            cost += ordered_cost(segments, n_segments, tile, kblock_cost);
            if (cost > max_cost)
                break;
        }
    }
    bounds[n_blocks] = (uint16_t)tile;
    return tile == n;
}

void project_divide_tiles(const struct project_segment *segments, uint32_t n_segments,
                          uint32_t n_blocks, uint32_t kblock_cost, uint16_t *bounds) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < n_segments; i++)
        all += segments[i].n_tiles * tile_cost(&segments[i], kblock_cost);
    uint64_t low = all / n_blocks, high = all + 1;
    while (high - low >= 64) {
        uint64_t middle = low + (high - low) / 2;
        if (fill_blocks(segments, n_segments, n_blocks, middle, kblock_cost, bounds))
            high = middle;
        else
            low = middle;
    }
    fill_blocks(segments, n_segments, n_blocks, high, kblock_cost, bounds);
}

/* Tiles of a segment that the block with these bounds of all segments has. */
static uint32_t joint_tiles(const struct project_segment *seg, const uint16_t *bounds) {
    uint32_t first = max_u32(bounds[0], seg->first_tile),
             last = min_u32(bounds[1], seg->first_tile + seg->n_tiles);
    return last > first ? last - first : 0;
}

uint32_t project_max_tasks(const struct project_segment *segments, uint32_t n_segments,
                           uint32_t n_blocks, const uint16_t *bounds) {
    uint32_t most = 0;
    for (uint32_t b = 0; b < n_blocks; b++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_segments; i++)
            n += joint_tiles(&segments[i], &bounds[b]) * segments[i].splits;
        most = max_u32(most, n);
    }
    return most;
}

bool project_can_share(const struct project_shape *shape, uint32_t n_sms) {
    return shape->n_segments * (n_sms + 1) <= PROJECT_BOUNDS;
}

/* Bounds of a segment's shares. */
static uint16_t *shares_of(struct project_schedule *s, uint32_t segment) {
    return s->bounds + segment * (s->n_blocks + 1);
}

/* Tiles of segment i that block b has. */
static uint32_t block_tiles(const struct project_schedule *s, uint32_t i, uint32_t b) {
    const uint16_t *shares = s->bounds + i * (s->n_blocks + 1) + b;
    return s->shape.has_shares ? (uint32_t)shares[1] - shares[0]
                               : joint_tiles(&s->segments[i], &s->bounds[b]);
}

static uint32_t max_tasks(const struct project_schedule *s) {
    uint32_t most = 0;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < s->shape.n_segments; i++)
            n += block_tiles(s, i, b) * s->segments[i].splits;
        most = max_u32(most, n);
    }
    return most;
}

/* Results of the block that has most. */
static uint32_t max_results(const struct project_schedule *s) {
    uint32_t most = 0;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < (is_swiglu(s) ? 1 : s->shape.n_segments); i++)
            n += block_tiles(s, i, b) << s->segments[i].row_shift;
        most = max_u32(most, n);
    }
    return most;
}

/* The largest cost of a warp, over all blocks, if each has this many with tasks. */
static uint64_t max_warp_cost(const struct project_schedule *s, uint32_t warps) {
    uint64_t most = 0;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        uint64_t cost[MAX_WARPS_WIDE] = {0};
        uint32_t task = 0;
        for (uint32_t i = 0; i < s->shape.n_segments; i++) {
            const struct project_segment *seg = &s->segments[i];
            uint32_t n = block_tiles(s, i, b) * seg->splits;
            for (uint32_t t = 0; t < n; t++, task++)
                cost[task % warps] += (seg->split_kblocks + (t % seg->splits < seg->split_extra)) *
                                          (uint64_t)(seg->kblock_bytes + KBLOCK_COST) +
                                      TASK_COST;
        }
        for (uint32_t w = 0; w < warps; w++)
            most = cost[w] > most ? cost[w] : most;
    }
    return most;
}

/* The same with the best number of warps. */
static uint64_t best_warp_cost(const struct project_schedule *s) {
    uint64_t best = UINT64_MAX;
    for (uint32_t w = MIN_WARPS; w <= max_warps(s); w++) {
        uint64_t cost = max_warp_cost(s, w);
        best = cost < best ? cost : best;
    }
    return best;
}

/* Each block gets tiles of all segments one after the other: most have tiles of one segment alone.
 */
static void divide_jointly(struct project_schedule *s, uint32_t kblock_cost) {
    uint16_t joint[PROJECT_BLOCKS + 1];
    project_divide_tiles(s->segments, s->shape.n_segments, s->n_blocks, kblock_cost, joint);
    if (!s->shape.has_shares) {
        memcpy(s->bounds, joint, (s->n_blocks + 1) * sizeof *joint);
        return;
    }
    for (uint32_t i = 0; i < s->shape.n_segments; i++) {
        const struct project_segment *seg = &s->segments[i];
        uint32_t first = seg->first_tile, end = first + seg->n_tiles;
        for (uint32_t b = 0; b <= s->n_blocks; b++)
            shares_of(s, i)[b] = (uint16_t)(min_u32(max_u32(joint[b], first), end) - first);
    }
}

/* The segments, those of the largest tiles first. */
static void order_segments(const struct project_schedule *s, uint32_t kblock_cost,
                           uint32_t order[PROJECT_SEGMENTS]) {
    for (uint32_t i = 0; i < s->shape.n_segments; i++) {
        uint64_t cost = tile_cost(&s->segments[i], kblock_cost);
        uint32_t at = i;
        for (; at && tile_cost(&s->segments[order[at - 1]], kblock_cost) < cost; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

/* Fills blocks up to a cost of max_cost: with their share of every segment but F32 ones, whose few
 * tiles have many tasks; then with whatever fits. False: some tiles are left. */
static bool fill_evenly(struct project_schedule *s, uint64_t max_cost, uint32_t kblock_cost) {
    uint32_t n = s->shape.n_segments, left[PROJECT_SEGMENTS], order[PROJECT_SEGMENTS], all = 0;
    order_segments(s, kblock_cost, order);
    for (uint32_t i = 0; i < n; i++) {
        left[i] = s->segments[i].n_tiles;
        all += left[i];
        shares_of(s, i)[0] = 0;
    }
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        uint64_t room = max_cost;
        uint32_t taken[PROJECT_SEGMENTS] = {0};
        for (uint32_t k = 0; k < 2 * n; k++) {
            uint32_t i = order[k % n];
            const struct project_segment *seg = &s->segments[i];
            uint64_t cost = tile_cost(seg, kblock_cost), take = room / cost;
            uint32_t share = seg->type == IS_F32 ? 0 : div_up(seg->n_tiles, s->n_blocks);
            uint32_t most = k < n ? min_u32(share, left[i]) : left[i];
            take = take < most ? take : most;
            taken[i] += (uint32_t)take, left[i] -= (uint32_t)take, all -= (uint32_t)take;
            room -= take * cost;
        }
        for (uint32_t i = 0; i < n; i++)
            shares_of(s, i)[b + 1] = (uint16_t)(shares_of(s, i)[b] + taken[i]);
    }
    return all == 0;
}

/* Each block gets its share of every segment, as far as that is even. */
static void divide_evenly(struct project_schedule *s, uint32_t kblock_cost) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < s->shape.n_segments; i++)
        all += s->segments[i].n_tiles * tile_cost(&s->segments[i], kblock_cost);
    uint64_t low = all / s->n_blocks, high = all + 1;
    while (high - low >= 64) {
        uint64_t middle = low + (high - low) / 2;
        if (fill_evenly(s, middle, kblock_cost))
            high = middle;
        else
            low = middle;
    }
    fill_evenly(s, high, kblock_cost);
}

/* Divides by bytes, by K blocks, or between: by what costs the busiest warp least; of shares
 * evenly, if that costs it no more. */
static void divide_tiles(struct project_schedule *s) {
    static const uint32_t kblock_costs[] = {0, 2304, 1 << 20};
    enum { N = sizeof kblock_costs / sizeof *kblock_costs };
    bool may_be_even = s->shape.has_shares && !is_swiglu(s);
    uint32_t chosen = 0;
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; i < (may_be_even ? 2 * N : N) && s->shape.n_segments > 1; i++) {
        (i < N ? divide_jointly : divide_evenly)(s, kblock_costs[i % N]);
        uint64_t cost = best_warp_cost(s);
        if (cost < best || (cost == best && i == N))
            best = cost, chosen = i;
    }
    (chosen < N ? divide_jointly : divide_evenly)(s, kblock_costs[chosen % N]);
}

/* One block an SM; more where its partial sums would not fit. */
static void choose_blocks(struct project_schedule *s, uint32_t n_sms) {
    s->n_blocks = n_sms;
    divide_tiles(s);
    while (!s->is_direct && s->n_blocks + n_sms <= PROJECT_BLOCKS &&
           (!s->shape.has_shares || project_can_share(&s->shape, s->n_blocks + n_sms)) &&
           max_tasks(s) * PROJECT_TILE_ROWS * 4 > MAX_PARTIALS) {
        s->n_blocks += n_sms;
        divide_tiles(s);
    }
    s->max_results = s->is_direct ? 0 : max_results(s);
}

/* ---- shared memory ------------------------------------------------------------------------ */

/* Sets the offsets after pipelines of this many bytes; returns the bytes of all. */
static uint32_t lay_out(struct project_schedule *s, uint32_t rows, uint32_t tasks,
                        uint32_t pipelines) {
    const struct project_shape *shape = &s->shape;
    uint32_t groups = shape->k / PROJECT_GROUP, at = pipelines;
    uint32_t heads = shape->prologue == PROLOGUE_GATED_NORM ? shape->k / shape->head_width : 0;
    s->qact_at = at;
    at += rows * s->qact_bytes;
    s->partials_at = at;
    at += s->is_direct ? 0 : tasks * PROJECT_TILE_ROWS * rows * 4;
    at += shape->types & IS_F16 ? PROJECT_WARPS * 4 : 0; /* maxima */
    at += PROJECT_MAX_ROWS * 4;                          /* the rows' factors */
    s->red_at = at;
    at += (rows * groups + heads) * 4;
    s->mbars_at = (at + 7) / 8 * 8;
    return s->mbars_at + MBARS_BYTES;
}

/* Most stages that fit for this many warps; 0: not even two. */
static uint32_t max_stages(struct project_schedule *s, uint32_t rows, uint32_t tasks,
                           uint32_t warps, uint32_t limit) {
    static const uint32_t choices[] = {MAX_STAGES, 4, 3, 2};
    for (uint32_t i = project_has_deep_pipeline(s->shape.types) ? 0 : 3; i < 4; i++)
        if (lay_out(s, rows, tasks, warps * choices[i] * s->stage_bytes) <= limit)
            return choices[i];
    return 0;
}

/* K blocks of the warp that has most. */
static uint32_t max_warp_kblocks(const struct project_schedule *s) {
    uint32_t most = 0;
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        uint32_t kblocks[MAX_WARPS_WIDE] = {0}, task = 0;
        for (uint32_t i = 0; i < s->shape.n_segments; i++) {
            const struct project_segment *seg = &s->segments[i];
            uint32_t n = block_tiles(s, i, b) * seg->splits;
            for (uint32_t t = 0; t < n; t++, task++)
                kblocks[task % s->task_warps] +=
                    seg->split_kblocks + (t % seg->splits < seg->split_extra);
        }
        for (uint32_t w = 0; w < s->task_warps; w++)
            most = max_u32(most, kblocks[w]);
    }
    return most;
}

/* Whether warps get a stage more as far as there is room. With K-quants that pays where a warp has
 * many K blocks (one row of qwen35-4b 1.8 %; smollm2-1.7b, of four at most, lost 2), or four while
 * other warps have none (qwen35-35b-a3b 0.8 %, qwen35-27b 0.8). */
static bool wants_extra_stages(const struct project_schedule *s) {
    uint32_t types = s->shape.types, many = s->task_warps < MAX_WARPS ? 4 : 5;
    return types & (IS_SPLIT | IS_Q8_0) || (types & IS_Q4_K && max_warp_kblocks(s) >= many);
}

/* Warps that may have tasks. SwiGLU of Q8_0 in one row is faster in two rounds of fewer warps,
 * which have longer pipelines (qwen35-4b 1.2 %). */
static uint32_t most_task_warps(const struct project_schedule *s, uint32_t rows) {
    bool is_wide = (is_swiglu(s) || rows > 1) && rows < PROJECT_MAX_ROWS;
    return is_wide && !(rows == 1 && s->shape.types & IS_Q8_0) ? MAX_WARPS_WIDE : MAX_WARPS;
}

/* Warps and stages within `limit` bytes of shared memory that cost the busiest warp least. False:
 * none fit. */
static bool choose_pipeline(struct project_schedule *s, uint32_t rows, uint32_t limit) {
    uint32_t tasks = max_tasks(s), warps = most_task_warps(s, rows);
    uint64_t best = UINT64_MAX;
    s->task_warps = s->extra_stages = 0;
    for (uint32_t w = min_u32(MIN_WARPS, tasks); w <= warps && w <= tasks; w++) {
        uint32_t stages = max_stages(s, rows, tasks, w, limit);
        uint64_t cost = stages ? max_warp_cost(s, w) : UINT64_MAX;
        if (cost < best)
            best = cost, s->task_warps = w, s->stages = stages;
    }
    if (!s->task_warps)
        return false;
    uint32_t n = s->task_warps * s->stages;
    if (rows == 1 && wants_extra_stages(s) && s->stages < MAX_STAGES)
        while (s->extra_stages < s->task_warps &&
               lay_out(s, rows, tasks, (n + s->extra_stages + 1) * s->stage_bytes) <= limit)
            s->extra_stages++;
    s->shared_bytes = lay_out(s, rows, tasks, (n + s->extra_stages) * s->stage_bytes);
    return true;
}

/* Rows at once: as many as fit. Those of one row leave room for a block of the next kernel (README,
 * rule 4); the others may have all of an SM's shared memory. */
static void choose_rows(struct project_schedule *s) {
    uint32_t bucket = max_u32(s->shape.row_limit, 1);
    uint32_t alone = min_u32(PROJECT_SHARED_ALONE, s->shape.max_shared);
    for (uint32_t rows = bucket > 4 ? 8 : bucket > 2 ? 4 : bucket; rows; rows /= 2) {
        if (rows == 1 && choose_pipeline(s, rows, paired_shared(s)))
            s->shared_bytes = paired_shared(s);
        else if (!choose_pipeline(s, rows, alone))
            continue;
        s->rows = rows;
        return;
    }
}

/* ---- the cache ---------------------------------------------------------------------------- */

const struct project_schedule *project_find_schedule(struct backend *b,
                                                     const struct project_shape *shape) {
    struct project_schedule *s = b->schedules;
    while (s && memcmp(&s->shape, shape, sizeof *shape) != 0)
        s = s->next;
    if (s)
        return s;
    if (!(s = arena_alloc(&b->arena, sizeof *s)))
        return NULL;
    *s = (struct project_schedule){.next = b->schedules, .shape = *shape};
    set_segments(s);
    split_k(s, b->n_sms);
    choose_blocks(s, b->n_sms);
    choose_rows(s);
    return b->schedules = s;
}
