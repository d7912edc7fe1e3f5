/* row.c - products of one row, which each workgroup prepares for itself: project_row.comp and
 * project_plain_row.comp. */
#include <string.h>

#include "backend/vulkan/ops/product.h"
#include "base/size.h"

enum { MIN_THREADS = 256, MAX_THREADS = 640, THREADS_PER_CORE = 1152, MAX_PARTS = 4 };
enum { MAX_DEPTH = 2 }; /* pieces that are loaded first */
enum { SUMS = 8 };      /* rounds of outputs whose sums are added together */
/* PLAIN_BATCH: vectors that a lane loads at once; with more of them NVIDIA's driver runs out of
 * registers. */
enum { PLAIN_THREADS = 1024, PLAIN_BATCH = 6 };

struct row_push {
    uint32_t share, k, n, row_bytes, in_first, norm_first, gate_first, head_width, gate_stride;
    float eps;
    uint32_t epilogue, is_head, ends[3], weight_base[4], out_base[4];
};

/* Shared memory: the row as int8 or f32, sums of runs, neighbours' values; then sums of lanes. */
static uint64_t row_bytes(const struct vulkan_prologue *p, uint32_t threads) {
    uint64_t k = p->in.dims[0], runs = 4 * VULKAN_MAX_RUNS;
    if (p->is_plain)
        return div_up(k, 8) * 32 + runs;
    return div_up(k, 64) * (p->needs_f32 ? 256 : 80) + runs + 4ull * threads;
}

static uint64_t shared_bytes(const struct vulkan_prologue *p) {
    uint32_t threads = p->is_plain ? PLAIN_THREADS : MAX_THREADS;
    return row_bytes(p, threads) + 2ull * 4 * threads;
}

bool vulkan_can_fuse(const struct vulkan_recorder *r, const struct vulkan_prologue *p) {
    return r->plan->max_rows == 1 && !r->exact && r->can->max_threads >= MIN_THREADS &&
           shared_bytes(p) <= r->can->shared_bytes &&
           (p->prologue != PROLOGUE_GATED_NORM || p->head_width == VULKAN_RUN);
}

/* How rows are shared: threads of a workgroup, and workgroups. */
struct row_shape {
    uint32_t threads, groups;
};

/* Workgroups that each prepare the row should be few: as many as run at once, all with as much to
 * do. On the processor loops must be short (README, rule 9). */
static uint32_t groups_of(const struct vulkan_recorder *r, uint32_t groups, uint32_t threads) {
    enum { PROCESSOR_ROUNDS = 256 };
    uint32_t at_once = THREADS_PER_CORE / threads * r->can->n_cores;
    uint32_t rounds = div_up(groups, at_once);
    if (r->can->is_processor && rounds > PROCESSOR_ROUNDS)
        rounds = PROCESSOR_ROUNDS;
    return div_up(groups, rounds);
}

static uint32_t pair_of(const struct vulkan_row *p) {
    return p->epilogue == PRODUCT_SWIGLU ? 2 : 1;
}

/* n in the fewest equal rounds of up to `limit`, a multiple of 64. */
static uint32_t round_of(uint32_t n, uint32_t limit) {
    return div_up(div_up(n, div_up(n, limit)), 64) * 64;
}

/* Pieces of a team: units that each of its threads multiplies, one after the other. */
static uint32_t pieces_of(const struct vulkan_row *p, uint32_t outputs, uint32_t threads,
                          uint32_t lanes) {
    uint32_t units = div_up(p->parts[0].weight->dims[0], p->is_f32 ? 32 : 64);
    return div_up(outputs, threads / lanes / pair_of(p)) * div_up(units, lanes);
}

/* One workgroup a core, with as many threads as its rows need, or as prepare the row. */
static struct row_shape one_a_core(const struct vulkan_recorder *r, const struct vulkan_row *p,
                                   uint32_t rows, uint32_t lanes) {
    const struct operand *w = p->parts[0].weight;
    uint32_t pair = pair_of(p), outputs = rows / pair, cores = r->can->n_cores;
    uint32_t threads = round_of(div_up(outputs, cores) * lanes * pair, MAX_THREADS);
    uint32_t prologue = round_of(div_up(w->dims[0], 4), MAX_THREADS);
    return (struct row_shape){threads > prologue ? threads : prologue,
                              outputs < cores ? outputs : cores};
}

/* Where stages follow without barriers and all weights can be loaded before the row is there, one
 * workgroup a core: they are counted, and cores become free one by one. Else the largest of those
 * for which the fewest threads of a core have nothing to do. */
static struct row_shape shape_of(const struct vulkan_recorder *r, const struct vulkan_row *p,
                                 uint32_t rows, uint32_t lanes) {
    static const uint32_t sizes[] = {MAX_THREADS, 384, MIN_THREADS};
    struct row_shape best = {0};
    uint64_t least = UINT64_MAX;
    if (r->can->starts_in_order && r->can->max_threads >= MAX_THREADS && !p->is_f32) {
        struct row_shape one = one_a_core(r, p, rows, lanes);
        uint32_t outputs = div_up(rows / pair_of(p), one.groups);
        if (pieces_of(p, outputs, one.threads, lanes) <= MAX_DEPTH)
            return one;
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (sizes[i] > r->can->max_threads)
            continue;
        uint32_t threads = sizes[i], teams = threads / lanes, cores = r->can->n_cores;
        uint32_t groups = groups_of(r, div_up(rows, teams), threads);
        uint64_t rounds = div_up(rows, teams * groups);
        uint64_t cost = rounds * div_up(groups, cores) * threads;
        if (cost >= least)
            continue;
        least = cost;
        best = (struct row_shape){threads, groups};
    }
    return best;
}

/* Threads of a workgroup of project_plain_row, of which short rows let two on a core. 1024 have few
 * registers each: they are for matrices of which a team has one row at most. */
static uint32_t plain_threads(const struct vulkan_recorder *r, uint32_t k, uint32_t rows,
                              uint32_t team) {
    enum { SHORT_ROW = 2048, FEWER = 832 };
    if (k <= SHORT_ROW)
        return PLAIN_THREADS / 2;
    return rows <= PLAIN_THREADS / team * r->can->n_cores ? PLAIN_THREADS : FEWER;
}

/* Of weights in F32, F16 and BF16. */
static struct row_shape plain_shape_of(const struct vulkan_recorder *r, const struct vulkan_row *p,
                                       uint32_t rows, uint32_t lanes) {
    uint32_t cores = r->can->n_cores, team = 4;
    rows /= pair_of(p);
    while (team < lanes)
        team *= 2;
    uint32_t threads = plain_threads(r, p->parts[0].weight->dims[0], rows, team);
    bool is_small = rows < 8 * cores || r->can->max_threads < threads;
    threads = is_small ? MIN_THREADS : threads;
    uint32_t all = div_up(rows, threads / team), at_once = PLAIN_THREADS / threads * cores;
    if (r->can->is_processor)
        at_once = groups_of(r, all, threads);
    return (struct row_shape){threads, is_small && all < at_once ? all : at_once};
}

/* Units of a lane that are loaded at once: such that all batches are whole, if that is possible. */
static uint32_t plain_batch(const struct operand *w, uint32_t lanes) {
    uint32_t of_lane = div_up(div_up(w->dims[0], 8), lanes);
    uint32_t limit = w->type == DT_F32 ? PLAIN_BATCH / 2 : PLAIN_BATCH;
    for (uint32_t n = limit; n > limit / 2; n--)
        if (of_lane % n == 0)
            return n;
    return div_up(of_lane, div_up(of_lane, limit));
}

static const char *shader_of(const struct vulkan_recorder *r, const struct vulkan_row *p) {
    if (vulkan_is_plain(p->parts[0].weight))
        return "project_plain_row";
    return p->is_f32 ? "project_row_f32" : r->can->has_dot ? "project_row_dot" : "project_row";
}

static void set_plain_constants(struct vulkan_recorder *r, const struct vulkan_row *p,
                                const struct row_push *push, uint32_t threads, uint32_t lanes,
                                struct vulkan_dispatch *d) {
    const struct vulkan_prologue *q = p->prologue;
    const struct operand *w = p->parts[0].weight;
    const uint32_t constants[] = {
        threads,
        vulkan_weight_type(r, w),
        1,
        1,
        (uint32_t)q->prologue,
        0,
        0,
        push->k % 8 == 0,
        p->parts[0].bias->n_dims > 0,
        div_up(push->k, 8),
        lanes,
        vulkan_has_vectors(q, push->in_first, push->norm_first, push->gate_first),
        r->can->subgroup_size,
        plain_batch(w, lanes),
    };
    d->n_constants = sizeof constants / sizeof *constants;
    memcpy(d->constants, constants, sizeof constants);
}

/* Rounds whose sums are added together: SUMS of them, where there are as many, and room. */
static uint32_t sums_of(const struct vulkan_recorder *r, const struct vulkan_row *p,
                        uint32_t rounds, uint32_t threads, uint32_t lanes) {
    uint64_t bytes = row_bytes(p->prologue, threads) + SUMS * sizeof(float) * (threads + 4);
    bool has_room = bytes <= r->can->shared_bytes && lanes <= r->can->subgroup_size;
    return has_room && rounds >= SUMS && lanes >= SUMS && pair_of(p) == 1 ? SUMS : 1;
}

static void set_constants(struct vulkan_recorder *r, const struct vulkan_row *p,
                          const struct row_push *push, uint32_t threads, uint32_t lanes,
                          struct vulkan_dispatch *d) {
    const struct vulkan_prologue *q = p->prologue;
    uint32_t rounds = div_up(push->share, threads / lanes / pair_of(p));
    uint32_t pieces = pieces_of(p, push->share, threads, lanes);
    uint32_t depth = (pieces == MAX_DEPTH || p->is_head) && !p->is_f32 ? MAX_DEPTH : 1;
    const uint32_t constants[] = {
        threads,
        vulkan_weight_type(r, p->parts[0].weight),
        1,
        1,
        (uint32_t)q->prologue,
        0,
        0,
        q->act_group == 128,
        p->parts[0].bias->n_dims > 0,
        q->act_group,
        0,
        vulkan_has_vectors(q, push->in_first, push->norm_first, push->gate_first),
        r->can->subgroup_size,
        depth,
        push->k,
        lanes,
        (uint32_t)p->epilogue,
        p->n_parts,
        has_gate(q) ? q->head_width : push->k,
        rounds == 1,
        pieces > depth,
        sums_of(r, p, rounds, threads, lanes),
    };
    d->n_constants = sizeof constants / sizeof *constants;
    memcpy(d->constants, constants, sizeof constants);
}

static void bind_input(struct vulkan_recorder *r, const struct vulkan_prologue *q,
                       struct vulkan_dispatch *d, struct row_push *push) {
    push->head_width = has_gate(q) ? q->head_width : q->in.dims[0];
    push->gate_stride = q->gate_stride;
    push->eps = q->eps;
    d->binds[7] = vulkan_operand(r, &q->in, VULKAN_READ, &push->in_first);
    d->binds[8] = d->binds[5] = d->binds[7];
    if (has_gate(q))
        d->binds[5] = vulkan_operand(r, &q->gate, VULKAN_READ, &push->gate_first);
    if (has_norm(q))
        d->binds[8] = vulkan_operand(r, &q->norm, VULKAN_READ, &push->norm_first);
}

/* The columns of all parts. */
static struct vulkan_bind bind_output(struct vulkan_recorder *r, const struct vulkan_row *p,
                                      uint32_t *first_column, uint32_t *first) {
    uint32_t from = UINT32_MAX, end = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const struct vulkan_part *part = &p->parts[i];
        uint32_t last = part->column + part->weight->dims[1];
        from = part->column < from ? part->column : from;
        end = last > end ? last : end;
    }
    struct operand out = operand_columns(*p->out, from, end - from);
    bool is_read = p->epilogue == PRODUCT_ADD || p->epilogue == PRODUCT_GATED;
    *first_column = from;
    return vulkan_operand(r, &out, is_read ? VULKAN_READ | VULKAN_WRITE : VULKAN_WRITE, first);
}

static void find_segments(const struct vulkan_row *p, const uint32_t firsts[MAX_PARTS],
                          struct row_push *push) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < MAX_PARTS; i++) {
        if (i < p->n_parts) {
            uint32_t before = p->epilogue == PRODUCT_SWIGLU ? 0 : n;
            push->weight_base[i] = firsts[i] - before * push->row_bytes;
            push->out_base[i] += p->parts[i].column - before;
            n += p->parts[i].weight->dims[1];
        }
        if (i < 3)
            push->ends[i] = n;
    }
    push->n = n;
}

/* Rows of the only part, or all rows of all parts. */
struct row_range {
    uint32_t row, n;
    bool is_whole;
};

static void bind_weights(struct vulkan_recorder *r, const struct vulkan_row *p,
                         const struct row_range *range, struct vulkan_dispatch *d,
                         struct row_push *push) {
    const struct operand *weights[MAX_PARTS];
    uint32_t firsts[MAX_PARTS] = {0};
    for (uint32_t i = 0; i < p->n_parts; i++)
        weights[i] = p->parts[i].weight;
    if (range->is_whole)
        CHECK(vulkan_join(r, weights, p->n_parts, &d->binds[1], firsts));
    else
        d->binds[1] = vulkan_matrix_rows(r, weights[0], range->row, range->n);
    find_segments(p, firsts, push);
    if (!range->is_whole)
        push->n = range->n;
}

static void bind_biases(struct vulkan_recorder *r, const struct vulkan_row *p,
                        const struct row_range *range, struct vulkan_dispatch *d,
                        struct row_push *push) {
    if (p->parts[0].bias->n_dims == 0)
        return;
    d->binds[3] = vulkan_operand(r, p->parts[0].bias, VULKAN_READ, &push->out_base[2]);
    push->out_base[2] += range->row;
    if (p->epilogue == PRODUCT_SWIGLU)
        d->binds[4] = vulkan_operand(r, p->parts[1].bias, VULKAN_READ, &push->out_base[3]);
}

static int add_dispatch(struct vulkan_recorder *r, const struct vulkan_row *p,
                        const struct row_range *range) {
    const struct vulkan_prologue *q = p->prologue;
    const struct operand *w = p->parts[0].weight;
    uint32_t k = w->dims[0], column, out_first;
    uint32_t lanes = vulkan_is_plain(w) ? vulkan_plain_lanes(k) : vulkan_lanes(k, p->is_f32);
    struct row_push push = {.k = k,
                            .row_bytes = (uint32_t)vulkan_weight_row_bytes(r, w),
                            .epilogue = (uint32_t)p->epilogue,
                            .is_head = p->is_head};
    struct vulkan_dispatch d = {.shader = shader_of(r, p),
                                .needs_full_subgroups = true,
                                .has_stage = true,
                                .n_binds = 10,
                                .push = &push,
                                .push_bytes = sizeof push};
    d.binds[2] = vulkan_counter_words(r);
    d.binds[0] = d.binds[3] = d.binds[4] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[6] = bind_output(r, p, &column, &out_first);
    d.binds[9] = vulkan_grids(r);
    for (uint32_t i = 0; i < MAX_PARTS; i++)
        push.out_base[i] = out_first - column + range->row;
    bind_weights(r, p, range, &d, &push);
    bind_input(r, q, &d, &push);
    bind_biases(r, p, range, &d, &push);
    struct row_shape shape =
        vulkan_is_plain(w) ? plain_shape_of(r, p, push.n, lanes) : shape_of(r, p, push.n, lanes);
    uint32_t outputs = push.n / pair_of(p);
    push.share = div_up(outputs, shape.groups);
    d.groups[0] = vulkan_is_plain(w) ? shape.groups : div_up(outputs, push.share);
    d.groups[1] = d.groups[2] = 1;
    if (vulkan_is_plain(w))
        set_plain_constants(r, p, &push, shape.threads, lanes, &d);
    else
        set_constants(r, p, &push, shape.threads, lanes, &d);
    return vulkan_add(r, &d);
}

/* Ranges of rows that a bind can hold, each beginning at a multiple of 256 bytes. */
static int add_ranges(struct vulkan_recorder *r, const struct vulkan_row *p) {
    const struct operand *w = p->parts[0].weight;
    uint32_t total = w->dims[1], per_bind = vulkan_rows_per_bind(r, w);
    if (per_bind >= total)
        return add_dispatch(r, p, &(struct row_range){0, total, true});
    per_bind = per_bind / 256 * 256;
    if (per_bind == 0)
        return vulkan_err_too_large(r, w);
    int status = SLUICE_OK;
    for (uint32_t row = 0; !status && row < total; row += per_bind) {
        struct row_range range = {row, total - row < per_bind ? total - row : per_bind, false};
        status = add_dispatch(r, p, &range);
    }
    return status;
}

/* Whether the first n parts can be one dispatch. */
static bool can_join(struct vulkan_recorder *r, const struct vulkan_row *p, uint32_t n) {
    const struct operand *weights[MAX_PARTS];
    struct vulkan_bind ignored;
    uint32_t firsts[MAX_PARTS];
    if (n > MAX_PARTS)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        weights[i] = p->parts[i].weight;
        if (n > 1 && (p->parts[i].bias->n_dims > 0 ||
                      vulkan_weight_type(r, weights[i]) != vulkan_weight_type(r, weights[0]) ||
                      vulkan_rows_per_bind(r, weights[i]) < weights[i]->dims[1]))
            return false;
    }
    return vulkan_join(r, weights, n, &ignored, firsts);
}

int vulkan_multiply_row(struct vulkan_recorder *r, const struct vulkan_row *p) {
    const struct row_range whole = {.is_whole = true};
    struct vulkan_row rest = *p;
    int status = SLUICE_OK;
    if (p->epilogue == PRODUCT_SWIGLU)
        return add_dispatch(r, p, &whole);
    while (!status && rest.n_parts > 0) {
        struct vulkan_row now = rest;
        now.n_parts = 1;
        while (now.n_parts < rest.n_parts && can_join(r, &rest, now.n_parts + 1))
            now.n_parts++;
        status = now.n_parts > 1 ? add_dispatch(r, &now, &whole) : add_ranges(r, &now);
        rest.parts += now.n_parts;
        rest.n_parts -= now.n_parts;
    }
    return status;
}
