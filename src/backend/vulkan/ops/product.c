/* product.c - see product.h. */
#include "backend/vulkan/ops/product.h"

#include "base/size.h"

enum { QUANTIZE_THREADS = 256, PRODUCT_THREADS = 128, MAX_LANES = 32, MAX_SUMS = 16 };
enum { TILE_THREADS = 256, TILE_SHARED = 30 << 10, MATRIX_SHARED = 42 << 10 };
enum { SORT_THREADS = 128 };

/* ---- activations -------------------------------------------------------------------------- */

bool vulkan_is_plain(const struct operand *w) {
    return w->type == DT_F32 || w->type == DT_F16 || w->type == DT_BF16;
}

bool vulkan_takes_f32(const struct vulkan_recorder *r, const struct operand *weight) {
    return r->exact || vulkan_is_plain(weight);
}

static bool can_tile(const struct vulkan_recorder *r) {
    return r->can->shared_bytes >= TILE_SHARED && r->can->max_threads >= TILE_THREADS;
}

struct quantize_push {
    uint32_t k, in_first, in_stride, norm_first, gate_first, gate_row_stride;
    uint32_t head_width, gate_stride, f32_stride;
    float eps;
};

bool vulkan_has_vectors(const struct vulkan_prologue *p, uint32_t in_first, uint32_t norm_first,
                        uint32_t gate_first) {
    uint32_t all = p->in.dims[0] | p->in.stride | in_first;
    if (has_norm(p))
        all |= norm_first;
    if (has_gate(p))
        all |= gate_first | p->gate.stride | p->gate_stride | p->head_width;
    return all % 4 == 0;
}

int vulkan_quantize(struct vulkan_recorder *r, const struct vulkan_prologue *p,
                    struct vulkan_acts *out) {
    uint32_t k = p->in.dims[0];
    uint32_t threads = r->can->max_threads < QUANTIZE_THREADS ? 128 : QUANTIZE_THREADS;
    *out = (struct vulkan_acts){
        .k = k,
        .x_stride = (k + 7) / 8 * 8,
        .is_tiled = p->rows > 8 && can_tile(r) && !p->has_pairs,
    };
    uint64_t rows = out->is_tiled ? div_up(p->rows, 64) * 64ull : p->rows;
    if (has_gate(p) && p->head_width < 4)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED, "heads of %u values, expected 4 or more",
                       p->head_width);
    if (k > VULKAN_RUN * VULKAN_MAX_RUNS)
        return err_set(r->err, SLUICE_ERR_UNSUPPORTED, "rows of %u values, expected %d at most", k,
                       VULKAN_RUN * VULKAN_MAX_RUNS);
    if (p->needs_int8) {
        out->q = vulkan_work(r, rows * k);
        out->scales = vulkan_work(r, rows * (k / 32) * 8);
    }
    if (p->needs_f32)
        out->x = vulkan_work(r, (uint64_t)p->rows * out->x_stride * sizeof(float));
    struct quantize_push push = {.k = k,
                                 .in_stride = p->in.stride,
                                 .head_width = p->head_width,
                                 .gate_stride = p->gate_stride,
                                 .f32_stride = out->x_stride,
                                 .eps = p->eps};
    struct vulkan_dispatch d = {
        .shader = "quantize",
        .groups = {div_up(k, 4 * threads), p->rows, 1},
        .constants = {threads, (uint32_t)p->prologue, p->needs_int8 ? p->act_group : 0,
                      p->needs_f32, p->is_head, 0, out->is_tiled, r->can->subgroup_size},
        .n_constants = 8,
        .needs_full_subgroups = true,
        .n_binds = 7,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = vulkan_operand(r, &p->in, VULKAN_READ, &push.in_first);
    d.binds[2] = d.binds[3] = d.binds[0];
    if (has_norm(p))
        d.binds[2] = vulkan_operand(r, &p->norm, VULKAN_READ, &push.norm_first);
    if (has_gate(p)) {
        d.binds[3] = vulkan_operand(r, &p->gate, VULKAN_READ, &push.gate_first);
        push.gate_row_stride = p->gate.stride;
    }
    d.constants[5] = vulkan_has_vectors(p, push.in_first, push.norm_first, push.gate_first);
    struct vulkan_bind some = p->needs_int8 ? out->q : out->x;
    d.binds[4] = vulkan_as(some, VULKAN_WRITE);
    d.binds[5] = vulkan_as(p->needs_int8 ? out->scales : some, VULKAN_WRITE);
    d.binds[6] = vulkan_as(p->needs_f32 ? out->x : some, VULKAN_WRITE);
    return vulkan_add(r, &d);
}

/* ---- products ----------------------------------------------------------------------------- */

struct product_push {
    uint32_t units, lanes, k, n, row_bytes, bias_first, bias2_first;
    uint32_t out_first, out_stride, act_stride, plane_bytes, places, choice_first, choice_stride;
    uint32_t first_expert, n_experts, act_place, out_place;
};

/* How a dispatch shares the work; lanes follows from K alone (product.glsl). */
struct shape {
    uint32_t units, lanes, threads, rows, weights;
    uint32_t group_rows, group_outputs; /* of a workgroup */
    bool is_tile, is_matrix;
};

/* As in units.glsl. */
static bool has_integers(const struct vulkan_product *p) {
    uint32_t type = p->weight->type;
    return p->act_group == 128 && (type == DT_Q4_K || type == DT_Q5_K || type == DT_Q6_K);
}

/* Many rows of int8. */
static bool has_tile(const struct vulkan_product *p) {
    return p->acts->is_tiled && !p->is_f32;
}

static bool has_aligned_rows(const struct operand *w) {
    return w->offset % 16 == 0 && w->dims[0] % 8 == 0;
}

/* Many rows of f32. */
static bool has_plain_tile(const struct vulkan_recorder *r, const struct vulkan_product *p) {
    return p->rows > 8 && can_tile(r) && vulkan_is_plain(p->weight) && !p->choice &&
           has_aligned_rows(p->weight) &&
           (p->epilogue != PRODUCT_SWIGLU || has_aligned_rows(p->second));
}

bool vulkan_can_sort(const struct vulkan_recorder *r, uint32_t places, uint32_t experts) {
    return can_tile(r) && r->plan->max_rows > 8 && r->plan->max_rows * places >= 2 * experts;
}

int vulkan_sort(struct vulkan_recorder *r, const struct operand *choice, uint32_t experts,
                struct vulkan_pairs *out) {
    uint32_t used = choice->dims[0] - 1, pairs = r->plan->max_rows * used, mean = pairs / experts;
    out->rows = mean > 32 ? 64 : mean > 12 ? 32 : 16;
    out->n_tiles = pairs / out->rows + (pairs < experts ? pairs : experts);
    out->tiles = vulkan_work(r, (uint64_t)out->n_tiles * (out->rows + 1) * sizeof(uint32_t));
    struct {
        uint32_t used, choice_first, choice_stride, n_tiles;
    } push = {.used = used, .choice_stride = choice->stride, .n_tiles = out->n_tiles};
    struct vulkan_dispatch d = {
        .shader = "experts_sort",
        .groups = {experts, 1, 1},
        .constants = {SORT_THREADS, experts, out->rows},
        .n_constants = 3,
        .n_binds = 3,
        .push = &push,
        .push_bytes = sizeof push,
    };
    d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = vulkan_operand(r, choice, VULKAN_READ, &push.choice_first);
    d.binds[2] = vulkan_as(out->tiles, VULKAN_WRITE);
    return vulkan_add(r, &d);
}

static bool has_matrices(const struct vulkan_recorder *r) {
    return r->can->has_plain_matrix ||
           (r->can->has_matrix && r->can->shared_bytes >= MATRIX_SHARED);
}

static const char *shader_of(const struct vulkan_recorder *r, const struct vulkan_product *p,
                             const struct shape *s) {
    if (vulkan_is_plain(p->weight))
        return s->is_tile ? "project_plain_tile" : "project_plain";
    if (p->is_f32)
        return "project_f32";
    if (s->is_matrix)
        return r->can->has_plain_matrix ? "project_matrix_plain" : "project_matrix";
    if (s->is_tile)
        return r->can->has_dot ? "project_tile_dot" : "project_tile";
    return r->can->has_dot ? "project_int8_dot" : "project_int8";
}

uint32_t vulkan_lanes(uint32_t k, bool is_f32) {
    /* Of a subgroup, such that nearly all have as many units. */
    uint32_t units = div_up(k, 64), lanes = MAX_LANES;
    while (!is_f32 && lanes > 8 && 8 * units < 7 * lanes * div_up(units, lanes))
        lanes /= 2;
    return lanes;
}

uint32_t vulkan_plain_lanes(uint32_t k) {
    uint32_t units = div_up(k, 8);
    return div_up(units, div_up(units, MAX_LANES));
}

static struct shape shape_of(const struct vulkan_recorder *r, const struct vulkan_product *p) {
    uint32_t k = p->weight->dims[0], n = p->weight->dims[1];
    uint32_t least = p->epilogue == PRODUCT_SWIGLU ? 2 : 1;
    struct shape s = {.units = div_up(k, vulkan_is_plain(p->weight) ? 8
                                         : p->is_f32                ? 32
                                                                    : 64),
                      .rows = 1,
                      .weights = 4};
    s.lanes = vulkan_is_plain(p->weight) ? vulkan_plain_lanes(k) : vulkan_lanes(k, p->is_f32);
    if (has_plain_tile(r, p)) {
        s.is_tile = true;
        s.threads = TILE_THREADS;
        s.group_rows = 64;
        s.group_outputs = 128 / least;
        return s;
    }
    s.is_tile = has_tile(p);
    if (s.is_tile) {
        s.threads = TILE_THREADS;
        s.rows = p->choice ? p->pairs->rows / 16 : p->rows > 32 ? 4 : p->rows > 16 ? 2 : 1;
        s.is_matrix = s.rows == 4 && has_integers(p) && has_matrices(r);
        s.group_rows = 16 * s.rows;
        s.group_outputs = 64 / least;
        return s;
    }
    s.threads = PRODUCT_THREADS;
    uint32_t teams = s.lanes < s.threads ? s.threads / s.lanes : 1;
    while (!p->choice && s.rows < 8 && s.rows < p->rows)
        s.rows *= 2;
    while (s.weights * s.rows > MAX_SUMS)
        s.weights /= 2;
    if (s.rows == 1) /* several units of each are in registers */
        s.weights = p->weight->type == DT_Q6_K ? least : 2;
    /* Enough threads for every core, then fewer loads of activations. */
    uint64_t pairs = p->choice ? (uint64_t)p->rows * p->places : div_up(p->rows, s.rows);
    while (s.weights > least && pairs * n / s.weights * least * s.lanes < 1024ull * r->can->n_cores)
        s.weights /= 2;
    /* Rows share what is unpacked, but no core should have nothing to do. */
    while (!p->choice && s.rows > 1 &&
           (uint64_t)div_up(n, teams * s.weights / least) * div_up(p->rows, s.rows) <
               4ull * r->can->n_cores)
        s.rows /= 2;
    s.threads = teams * s.lanes;
    s.group_rows = s.rows;
    s.group_outputs = teams * s.weights / least;
    return s;
}

/* A part of the matrices that a bind can hold: rows, or experts. */
struct matrix_range {
    uint32_t first, n;
    bool is_whole;
};

static struct vulkan_bind bind_weight(struct vulkan_recorder *r, const struct operand *w,
                                      const struct matrix_range *range) {
    uint32_t scale = w->n_dims > 2 ? w->plane : 1;
    return range->is_whole ? vulkan_operand(r, w, VULKAN_READ, NULL)
                           : vulkan_matrix_rows(r, w, range->first * scale, range->n * scale);
}

static struct vulkan_bind bind_bias(struct vulkan_recorder *r, const struct operand *bias,
                                    struct vulkan_bind other, uint32_t *first) {
    return bias && bias->n_dims ? vulkan_operand(r, bias, VULKAN_READ, first) : other;
}

/* What differs where activations come from workspace, or the product prepares its row itself. */
static void bind_acts(struct vulkan_recorder *r, const struct vulkan_product *p,
                      const struct matrix_range *range, struct vulkan_dispatch *d,
                      struct product_push *push) {
    const struct operand *w = p->weight;
    uint32_t in_acts = p->is_f32 ? 1 : 32;
    push->out_stride = p->out_stride;
    push->act_stride = p->is_f32 ? p->acts->x_stride : p->acts->k / 32;
    push->act_place = p->act_place / in_acts;
    push->out_place = p->out_place;
    if (p->choice) {
        push->plane_bytes = (uint32_t)(w->plane * vulkan_weight_row_bytes(r, w));
        push->places = p->places;
        push->first_expert = range->first;
        push->n_experts = range->n;
        push->choice_stride = p->choice->stride;
        d->binds[5] = has_tile(p) ? vulkan_as(p->pairs->tiles, VULKAN_READ)
                                  : vulkan_operand(r, p->choice, VULKAN_READ, &push->choice_first);
    }
    d->binds[7] = vulkan_as(p->is_f32 ? p->acts->x : p->acts->q, VULKAN_READ);
    d->binds[8] = vulkan_as(p->is_f32 ? p->acts->x : p->acts->scales, VULKAN_READ);
}

static int multiply_range(struct vulkan_recorder *r, const struct vulkan_product *p,
                          const struct matrix_range *range) {
    const struct operand *w = p->weight;
    bool is_stack = p->choice != NULL, has_bias = p->bias && p->bias->n_dims;
    struct shape s = shape_of(r, p);
    uint32_t n = is_stack ? w->dims[1] : range->n, groups = div_up(n, s.group_outputs);
    struct product_push push = {
        .units = s.units,
        .lanes = s.lanes,
        .k = w->dims[0],
        .n = n,
        .row_bytes = (uint32_t)vulkan_weight_row_bytes(r, w),
        .out_first = p->out_first + (is_stack ? 0 : range->first),
    };
    struct vulkan_dispatch d = {
        .shader = shader_of(r, p, &s),
        .groups = {groups,
                   !is_stack   ? div_up(p->rows, s.group_rows)
                   : s.is_tile ? p->pairs->n_tiles
                               : p->rows * p->places,
                   1},
        .needs_full_subgroups = s.is_matrix,
        .n_binds = 10,
        .push = &push,
        .push_bytes = sizeof push,
    };
    struct vulkan_bind io = d.binds[0] = vulkan_io_copy(r, VULKAN_READ);
    d.binds[1] = bind_weight(r, w, range);
    d.binds[2] = p->epilogue == PRODUCT_SWIGLU ? bind_weight(r, p->second, range) : d.binds[1];
    d.binds[3] = bind_bias(r, p->bias, io, &push.bias_first);
    d.binds[4] = bind_bias(r, p->second_bias, io, &push.bias2_first);
    push.bias_first += is_stack ? 0 : range->first;
    push.bias2_first += is_stack ? 0 : range->first;
    d.binds[5] = io;
    d.binds[6] = p->out;
    d.binds[9] = vulkan_grids(r);
    bind_acts(r, p, range, &d, &push);
    const uint32_t constants[] = {
        s.threads,
        vulkan_weight_type(r, w),
        s.rows,
        s.weights,
        (uint32_t)p->epilogue,
        p->is_head,
        is_stack,
        vulkan_is_plain(w) ? w->dims[0] % 8 == 0 : p->act_group == 128,
        has_bias,
        has_integers(p) ? 5 : 7,
    };
    d.n_constants = s.is_tile ? 10 : 9;
    for (uint32_t i = 0; i < d.n_constants; i++)
        d.constants[i] = constants[i];
    return vulkan_add(r, &d);
}

/* Rows of a bind, so many that the next range begins at a multiple of 256 bytes. */
static uint32_t rows_of_range(const struct vulkan_recorder *r, const struct vulkan_product *p,
                              uint32_t total) {
    uint32_t n_rows = vulkan_rows_per_bind(r, p->weight);
    if (p->epilogue == PRODUCT_SWIGLU) {
        uint32_t second = vulkan_rows_per_bind(r, p->second);
        n_rows = second < n_rows ? second : n_rows;
    }
    uint32_t step = 256;
    if (p->choice) { /* whole experts */
        uint64_t plane = p->weight->plane * vulkan_weight_row_bytes(r, p->weight);
        n_rows /= p->weight->plane;
        for (step = 1; step < 256 && step * plane % 256; step *= 2)
            ;
    }
    return n_rows >= total ? total : n_rows / step * step;
}

int vulkan_err_too_large(struct vulkan_recorder *r, const struct operand *w) {
    return err_set(r->err, SLUICE_ERR_UNSUPPORTED,
                   "a matrix of %u x %u of %s does not fit the device's buffers of %llu bytes",
                   w->dims[0], w->dims[1], dtype_name(w->type),
                   (unsigned long long)r->can->max_range);
}

int vulkan_multiply(struct vulkan_recorder *r, const struct vulkan_product *p) {
    uint32_t total = p->choice ? p->weight->dims[2] : p->weight->dims[1];
    uint32_t n_rows = rows_of_range(r, p, total);
    if (n_rows == 0)
        return vulkan_err_too_large(r, p->weight);
    for (uint32_t first = 0; first < total; first += n_rows) {
        struct matrix_range range = {first, total - first < n_rows ? total - first : n_rows,
                                     n_rows == total};
        int status = multiply_range(r, p, &range);
        if (status)
            return status;
    }
    return SLUICE_OK;
}

bool vulkan_is_pair(struct vulkan_recorder *r, const struct operand *a, const struct operand *b) {
    struct vulkan_bind ignored;
    uint32_t firsts[2];
    if (vulkan_weight_type(r, a) != vulkan_weight_type(r, b) || a->plane != b->plane)
        return false;
    return r->plan->max_rows > 1 || a->n_dims > 2 ||
           (vulkan_rows_per_bind(r, a) >= a->dims[1] &&
            vulkan_join(r, (const struct operand *[]){a, b}, 2, &ignored, firsts));
}
