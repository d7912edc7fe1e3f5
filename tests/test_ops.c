/* test_ops.c - single ops of the CPU backend against figures from elsewhere. */
#include "backend/backend.h"
#include "backend/cpu/vec.h"
#include "cells.h"
#include "pick_drafts.h"
#include "plan/build.h"
#include "plan/io.h"
#include "quant/f16.h"
#include "test.h"

/* Runs rows [first, first + n) of the table that EMBED reads; the tap of the last. */
static const float *run_rows(struct backend *b, const struct plan *plan, uint32_t slot,
                             uint32_t first, uint32_t n) {
    uint8_t *io = backend_cpu.io(b);
    *(struct io_header *)io = (struct io_header){.n_rows = n, .n_segments = 1, .n_outputs = 1};
    *(struct io_segment *)(io + plan->io.segments) =
        (struct io_segment){.cell = slot, .n_rows = n, .first_position = first};
    *(struct io_output *)(io + plan->io.outputs) = (struct io_output){.row = n - 1};
    for (uint32_t i = 0; i < n; i++)
        ((struct io_row *)(io + plan->io.rows))[i] =
            (struct io_row){.token = (int32_t)(first + i), .position = first + i, .slot = slot};
    update_in_place(io, plan);
    EXPECT_INT(backend_cpu.submit(b, 0, NULL), SLUICE_OK);
    return (const float *)(io + plan->io.taps);
}

/* ---- attention ---------------------------------------------------------------------------- */

/* Two rows of one head, 16 wide, of which the second comes out: query, key and value of each are
 * three vectors one after the other. */
static void attend_two(enum dtype type, const float *rows, float *out) {
    enum { WIDTH = 16 };
    struct plan_options options = {.max_rows = 2, .max_outputs = 1, .n_slots = 1, .n_vocab = 2};
    struct backend_options how = {.threads = 1};
    const uint32_t cache[4] = {WIDTH, IO_PAGE_POSITIONS, 1, 1};
    struct plan *plan = NULL;
    struct backend *b = NULL;
    struct err err = {0};
    EXPECT_INT(plan_new(&plan, &options, &err), SLUICE_OK);
    plan_page_table(plan, 1, 1);
    struct op embed = {.kind = OP_EMBED, .role = "rows"}, op = {.kind = OP_ATTEND, .role = "mix"};
    embed.embed.table = operand_at(REGION_WEIGHTS, DT_F32, 0, (uint32_t[4]){3 * WIDTH, 2});
    embed.embed.x = plan_scratch(plan, 3 * WIDTH);
    op.attend = (struct op_attend){.in = embed.embed.x,
                                   .keys = plan_state(plan, type, cache),
                                   .values = plan_state(plan, type, cache),
                                   .pages = plan->pages,
                                   .out = plan_scratch(plan, WIDTH),
                                   .q_stride = WIDTH,
                                   .k_column = WIDTH,
                                   .v_column = 2 * WIDTH,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_width = WIDTH,
                                   .eps = 1e-6f,
                                   .scale = 0.5f};
    EXPECT_INT(plan_add(plan, &embed, &err), SLUICE_OK);
    EXPECT_INT(plan_add(plan, &op, &err), SLUICE_OK);
    plan->n_taps = 1;
    plan->tap_width = WIDTH;
    plan->io.taps = plan->bytes[REGION_IO];
    plan->bytes[REGION_IO] += WIDTH * sizeof *out;
    struct op tap = {.kind = OP_TAP, .role = "tap"};
    tap.tap = (struct op_tap){.x = op.attend.out, .out = plan_tap(plan, 0)};
    EXPECT_INT(plan_add(plan, &tap, &err), SLUICE_OK);
    EXPECT_INT(plan_finish(plan, &err), SLUICE_OK);
    EXPECT_INT(backend_cpu.open(&b, &how, &err), SLUICE_OK);
    EXPECT_INT(backend_cpu.load(b, (struct backend_weights){.base = (uint8_t *)rows}, &plan, 1,
                                NULL, NULL, &err),
               SLUICE_OK);
    memcpy(out, run_rows(b, plan, 0, 0, 2), WIDTH * sizeof *out);
    backend_cpu.close(b);
    plan_free(plan);
}

/* Over f16 a query, once scaled, is the nearest f16, and the largest where it is beyond; so is the
 * weight of a position. Over f32 nothing is rounded. */
TEST(attend_rounds_queries_and_weights_to_f16) {
    static const struct {
        float query, f16; /* and what becomes of its half */
    } cases[] = {
        {4e6f, 65504}, {-4e6f, -65504}, {131100, 65504}, {131000, 65504}, {120000, 60000},
        {4098, 2048},  {4102, 2052},    {-4099, -2050},  {3e-8f, 0},      {1e-7f, 0x1p-24f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float rows[2 * 48] = {0}, *second = rows + 48, out[16], f16 = cases[i].f16;
        float size = fabsf(f16), key = size < 1 ? 0x1p14f : size < 1e4f ? 0x1p-11f : 0x1p-16f;
        second[0] = cases[i].query;
        second[16] = key;
        rows[32] = 1; /* the value of the first row */
        for (int is_f16 = 0; is_f16 < 2; is_f16++) {
            double score = (is_f16 ? f16 : 0.5 * cases[i].query) * key;
            double weight = exp(-fabs(score)), other = 1;
            if (is_f16)
                weight = f16_to_f32(f16_from_f32((float)weight));
            if (score < 0)
                other = weight, weight = 1;
            attend_two(is_f16 ? DT_F16 : DT_F32, rows, out);
            EXPECT_NEAR(out[0], weight / (weight + other), 1e-6);
        }
    }
}

/* ---- the delta rule ----------------------------------------------------------------------- */

/* A plan of one DELTA op. Its input is written before each step, its output read after it. */
struct delta_rig {
    struct plan *plan;
    struct backend *b;
    uint8_t *weights;
    uint32_t key_heads, value_heads, width; /* dk = dv */
};

enum { TAPS = 4, MAX_ROWS = 8, CELLS = 12 };

/* The convolution passes the newest value on; a = -1, dt = 0. An EMBED op in front brings the rows
 * into scratch, as a table lookup: token t is row t. */
static bool delta_open(struct delta_rig *r, const float *rows, uint32_t n_rows, uint32_t width) {
    uint32_t channels = (2 * r->key_heads + r->value_heads) * r->width;
    uint64_t table_bytes = (uint64_t)n_rows * width * 4, taps_bytes = (uint64_t)channels * TAPS * 4;
    uint64_t at_a = table_bytes + taps_bytes, at_dt = at_a + r->value_heads * 4;
    r->weights = calloc(1, at_dt + r->value_heads * 4);
    memcpy(r->weights, rows, table_bytes);
    float *taps = (float *)(r->weights + table_bytes), *a = (float *)(r->weights + at_a);
    for (uint32_t c = 0; c < channels; c++)
        taps[c * TAPS + TAPS - 1] = 1;
    for (uint32_t h = 0; h < r->value_heads; h++)
        a[h] = -1;
    struct plan_options options = {
        .max_rows = MAX_ROWS, .max_outputs = 1, .n_slots = 2, .n_vocab = n_rows};
    struct err err = {0};
    EXPECT_INT(plan_new(&r->plan, &options, &err), SLUICE_OK);
    struct operand in = plan_scratch(r->plan, width),
                   out = plan_scratch(r->plan, r->value_heads * r->width);
    struct op embed = {.kind = OP_EMBED, .role = "rows"};
    embed.embed.table = operand_at(REGION_WEIGHTS, DT_F32, 0, (uint32_t[4]){width, n_rows});
    embed.embed.x = in;
    struct op delta = {.kind = OP_DELTA, .role = "mix"};
    delta.delta = (struct op_delta){
        .in = in,
        .beta_column = channels,
        .alpha_column = channels + r->value_heads,
        .key_heads = r->key_heads,
        .value_heads = r->value_heads,
        .key_width = r->width,
        .value_width = r->width,
        .conv_width = TAPS,
        .conv = operand_at(REGION_WEIGHTS, DT_F32, table_bytes, (uint32_t[4]){TAPS, channels}),
        .a = operand_at(REGION_WEIGHTS, DT_F32, at_a, (uint32_t[4]){r->value_heads}),
        .dt = operand_at(REGION_WEIGHTS, DT_F32, at_dt, (uint32_t[4]){r->value_heads}),
        .state =
            plan_state(r->plan, DT_F32, (uint32_t[4]){r->width, r->width, r->value_heads, CELLS}),
        .window = plan_state(r->plan, DT_F32, (uint32_t[4]){channels, TAPS, CELLS}),
        .out = out,
    };
    /* The output leaves through a tap of every row that is an output: one a step. */
    EXPECT_INT(plan_add(r->plan, &embed, &err), SLUICE_OK);
    if (plan_add(r->plan, &delta, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return err.code == 0;
}

static void delta_finish(struct delta_rig *r) {
    struct err err = {0};
    uint32_t width = r->value_heads * r->width;
    struct operand out = r->plan->ops[1].delta.out;
    r->plan->n_taps = 1;
    r->plan->tap_width = width;
    /* Taps are at the end of IO of this plan. */
    r->plan->io.taps = r->plan->bytes[REGION_IO];
    r->plan->bytes[REGION_IO] += width * 4;
    struct op tap = {.kind = OP_TAP, .role = "tap"};
    tap.tap = (struct op_tap){.x = out, .out = plan_tap(r->plan, 0)};
    EXPECT_INT(plan_add(r->plan, &tap, &err), SLUICE_OK);
    EXPECT_INT(plan_finish(r->plan, &err), SLUICE_OK);
    struct backend_options how = {.threads = 2, .exact = true};
    EXPECT_INT(backend_cpu.open(&r->b, &how, &err), SLUICE_OK);
    EXPECT_INT(backend_cpu.load(r->b, (struct backend_weights){.base = r->weights}, &r->plan, 1,
                                NULL, NULL, &err),
               SLUICE_OK);
}

static const float *delta_step(struct delta_rig *r, uint32_t slot, uint32_t first, uint32_t n) {
    return run_rows(r->b, r->plan, slot, first, n);
}

static void delta_close(struct delta_rig *r) {
    backend_cpu.close(r->b);
    plan_free(r->plan);
    free(r->weights);
}

/* The m whose silu is y, for y that came out of one: silu falls below -1.2785 and rises above. */
static float silu_inverse(double y) {
    double m = y > 0 ? y + 0.5 : -0.5;
    for (int i = 0; i < 200; i++) {
        double e = 1 / (1 + exp(-m)), slope = e * (1 + m * (1 - e));
        double next = m - (m * e - y) / (fabs(slope) > 1e-3 ? slope : 1e-3);
        m = next < -1.2784 ? -1.2784 : next;
    }
    return (float)m;
}

static double logit(double p) {
    return log(p / (1 - p));
}

/* The test vector of the architecture's description: one head of four. */
TEST(delta_rule_of_the_written_example) {
    static const double expected[3][4] = {
        {0, -0.0534067, -0.0937376, -0.1111182},
        {-0.2037547, -0.1359038, -0.0347789, 0.0748611},
        {0.2060894, 0.3024609, 0.3247794, 0.2675806},
    };
    struct delta_rig r = {.key_heads = 1, .value_heads = 1, .width = 4};
    float rows[3][14];
    /* A vector below silu's minimum is reached by scaling: q and k are normed anyway, and v is
     * brought in by a value head whose beta takes the scale. Here all values are lifted by a
     * factor instead: q and k by 0.25, v by 0.25, so outputs are a quarter. */
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < 4; i++) {
            rows[t][i] = silu_inverse(0.25 * sin(1 + 4 * t + i));
            rows[t][4 + i] = silu_inverse(0.25 * cos(2 + 4 * t + i));
            rows[t][8 + i] = silu_inverse(0.25 * sin((4 * t + i) / 2.0));
        }
        rows[t][12] = (float)(t - 1);                   /* beta = sigmoid(t - 1) */
        rows[t][13] = (float)log(expm1(0.1 * (t + 1))); /* g = -0.1 (t + 1) */
    }
    if (!delta_open(&r, &rows[0][0], 3, 14))
        return;
    delta_finish(&r);
    for (uint32_t t = 0; t < 3; t++) {
        const float *o = delta_step(&r, 1, t, 1);
        for (int j = 0; j < 4; j++)
            EXPECT_NEAR(4 * o[j], expected[t][j], 2e-5); /* 1e-6 in the norms, lifted 16 times */
    }
    delta_close(&r);
}

/* The largest. (Written with an if: gcc 12 for aarch64 fails on a vectorised fmax here.) */
static double difference(const float *a, const float *b, int n) {
    double worst = 0;
    for (int i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (!(d <= worst))
            worst = d;
    }
    return worst;
}

/* Real activations of Qwen3.5-0.8B's first layer, five tokens: what the convolution gave goes in
 * through silu's inverse, what the rule gave is compared, in one segment and token by token. */
TEST(delta_rule_on_real_activations) {
    enum { HEADS = 16, WIDTH = 128, TOKENS = 5, CHANNELS = 3 * HEADS * WIDTH };
    enum { ROW = CHANNELS + 2 * HEADS };
    size_t size;
    float *conv =
        (float *)test_read_file(test_data("qwen35-0.8b-layer0/mixed_qkv_conv.bin"), &size);
    float *g = (float *)test_read_file(test_data("qwen35-0.8b-layer0/delta_g.bin"), &size);
    float *beta = (float *)test_read_file(test_data("qwen35-0.8b-layer0/delta_beta.bin"), &size);
    float *core = (float *)test_read_file(test_data("qwen35-0.8b-layer0/delta_core.bin"), &size);
    float *rows = calloc(TOKENS * ROW, sizeof *rows);
    struct delta_rig r = {.key_heads = HEADS, .value_heads = HEADS, .width = WIDTH};
    if (!conv || !g || !beta || !core || size != TOKENS * HEADS * WIDTH * sizeof *core) {
        test_fail(__FILE__, __LINE__, "the activations are not there");
        return;
    }
    for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < CHANNELS; c++)
            rows[t * ROW + c] = silu_inverse(conv[t * CHANNELS + c]);
        for (int h = 0; h < HEADS; h++) {
            double decay = -(double)g[t * HEADS + h];
            rows[t * ROW + CHANNELS + h] = (float)logit(beta[t * HEADS + h]);
            rows[t * ROW + CHANNELS + HEADS + h] =
                (float)(decay > 30 ? decay : log(expm1(decay > 1e-12 ? decay : 1e-12)));
        }
    }
    if (!delta_open(&r, rows, TOKENS, ROW))
        return;
    delta_finish(&r);
    double worst = 0;
    for (uint32_t t = 0; t < TOKENS; t++)
        worst = fmax(worst,
                     difference(delta_step(&r, 0, t, 1), core + t * HEADS * WIDTH, HEADS * WIDTH));
    worst = fmax(worst, difference(delta_step(&r, 1, 0, TOKENS),
                                   core + (TOKENS - 1) * HEADS * WIDTH, HEADS * WIDTH));
    EXPECT_NEAR(worst, 0,
                3e-8); /* the rule itself is good to 5e-9; silu's inverse costs the rest */
    delta_close(&r);
    free(conv), free(g), free(beta), free(core), free(rows);
}

/* ---- cells -------------------------------------------------------------------------------- */

/* The whole content of a cell, one after the other: state, window. */
static void read_cell(struct delta_rig *r, uint32_t cell, float *to) {
    const struct op_delta *d = &r->plan->ops[1].delta;
    uint64_t state = operand_bytes(&d->state) / CELLS, window = operand_bytes(&d->window) / CELLS;
    backend_cpu.read_state(r->b, d->state.offset + cell * state, state, to, NULL);
    backend_cpu.read_state(r->b, d->window.offset + cell * window, window, to + state / 4, NULL);
}

/* Rows [first, first + n) from a cell on; the state after row i is stored to to[i]. */
static void step_cells(struct delta_rig *r, uint32_t from, uint32_t first, uint32_t n,
                       const uint32_t *to) {
    uint8_t *io = backend_cpu.io(r->b);
    struct io_row *rows = (struct io_row *)(io + r->plan->io.rows);
    *(struct io_header *)io = (struct io_header){.n_rows = n, .n_segments = 1};
    *(struct io_segment *)(io + r->plan->io.segments) =
        (struct io_segment){.cell = from, .n_rows = n, .first_position = first};
    memcpy(io + r->plan->io.to, to, n * sizeof *to);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct io_row){.token = (int32_t)(first + i), .position = first + i};
    EXPECT_INT(backend_cpu.submit(r->b, 0, NULL), SLUICE_OK);
}

/* Cell 0 goes token by token, in place. Others begin with what it was at `first`, and every row of
 * theirs stores to a cell of its own or to none: each holds what cell 0 was there, and the cell
 * that was read is as it was. */
static void check_cells(uint32_t width) {
    enum { ROWS = 24, KEYS = 2, VALUES = 4 };
    uint32_t channels = (2 * KEYS + VALUES) * width, row = channels + 2 * VALUES;
    uint64_t values = (uint64_t)VALUES * width * width + TAPS * channels;
    struct delta_rig r = {.key_heads = KEYS, .value_heads = VALUES, .width = width};
    float *rows = malloc(ROWS * row * sizeof *rows), *seen = malloc(values * sizeof *seen);
    float *history = malloc((ROWS + 1) * values * sizeof *history);
    for (uint32_t i = 0; i < ROWS * row; i++)
        rows[i] = sinf((float)(i * i % 1009));
    if (!delta_open(&r, rows, ROWS, row))
        return;
    float *taps = (float *)(r.weights + (uint64_t)ROWS * row * sizeof *rows);
    for (uint32_t i = 0; i < channels * TAPS; i++)
        taps[i] = cosf((float)i);
    delta_finish(&r);
    read_cell(&r, 0, history);
    for (uint32_t t = 0; t < ROWS; t++) {
        step_cells(&r, 0, t, 1, (uint32_t[]){0});
        read_cell(&r, 0, history + (t + 1) * values);
    }
    for (uint32_t first = 0; first + MAX_ROWS <= ROWS; first++) {
        uint32_t to[MAX_ROWS], n = 1 + first % MAX_ROWS, begin = CELLS - 1;
        const struct backend_copy all = {0, BACKEND_ZEROS, r.plan->bytes[REGION_STATE]};
        backend_cpu.copy_state(r.b, &all, 1, NULL);
        for (uint32_t t = 0; t < first; t++)
            step_cells(&r, begin, t, 1, &begin);
        for (uint32_t i = 0; i < n; i++)
            to[i] = i + 1 < n && (first >> i % 3 & 1) ? IO_NO_CELL : i;
        if (first % 2)
            to[n - 1] = begin; /* in place after all */
        step_cells(&r, begin, first, n, to);
        for (uint32_t i = 0; i < n; i++) {
            if (to[i] == IO_NO_CELL)
                continue;
            read_cell(&r, to[i], seen);
            EXPECT(memcmp(seen, history + (first + i + 1) * values, values * sizeof *seen) == 0);
        }
        read_cell(&r, begin, seen);
        EXPECT(memcmp(seen, history + (first + (first % 2 ? n : 0)) * values,
                      values * sizeof *seen) == 0);
    }
    delta_close(&r);
    free(rows), free(seen), free(history);
}

TEST(delta_stores_states_to_cells) {
    check_cells(8);
    check_cells(16);
    check_cells(6); /* no multiple of the vector's lanes */
}

/* ---- how many int8 activations share a scale ---------------------------------------------- */

/* One op with two matrices, SIDE by SIDE; its input is a row in which a value in 128 is large, so
 * that the others show which of them share its scale. */
enum { SIDE = 256, AT_ROW = 0, AT_ZEROS = 2 * SIDE * 4, AT_ONES = 3 * SIDE * 4 };
enum { AT_MATRIX = 4 * SIDE * 4, MATRIX_BYTES = SIDE * SIDE * 4 };

struct share_rig {
    uint8_t weights[AT_MATRIX + 2 * MATRIX_BYTES];
    float row[2 * SIDE];            /* of the input */
    float values[2][SIDE * SIDE];   /* of the matrices */
    struct operand matrix[2], ones; /* (SIDE) */
    struct plan *plan;
};

static void share_weights(struct share_rig *r, const enum dtype types[2]) {
    float *ones = (float *)(r->weights + AT_ONES);
    memset(r->weights, 0, AT_MATRIX);
    for (int i = 0; i < 2 * SIDE; i++)
        r->row[i] = i % 128 == 37 ? 100 : 2 * sinf((float)i);
    memcpy(r->weights + AT_ROW, r->row, sizeof r->row);
    for (int i = 0; i < SIDE; i++)
        ones[i] = 1;
    r->ones = operand_at(REGION_WEIGHTS, DT_F32, AT_ONES, (uint32_t[4]){SIDE});
    for (int m = 0; m < 2; m++) {
        uint64_t at = AT_MATRIX + (uint64_t)m * MATRIX_BYTES;
        for (int i = 0; i < SIDE * SIDE; i++)
            r->values[m][i] = 0.1f * sinf(0.37f * (float)i * (float)(m + 1) + (float)(i / SIDE));
        dtype_info(types[m])->encode(r->values[m], r->weights + at, SIDE * SIDE);
        dtype_info(types[m])->decode(r->weights + at, r->values[m], SIDE * SIDE);
        r->matrix[m] = operand_at(REGION_WEIGHTS, types[m], at, (uint32_t[4]){SIDE, SIDE});
    }
}

static void share_add(struct share_rig *r, struct op op) {
    struct err err = {0};
    op.role = "trial";
    if (plan_add(r->plan, &op, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

static struct operand share_embed(struct share_rig *r, uint32_t width, uint64_t at) {
    struct operand x = plan_scratch(r->plan, width);
    share_add(r, (struct op){.kind = OP_EMBED,
                             .embed = {.table = operand_at(REGION_WEIGHTS, DT_F32, at,
                                                           (uint32_t[4]){width, 1}),
                                       .x = x}});
    return x;
}

/* The same matrix as that of an only expert. */
static struct operand of_expert(struct operand matrix) {
    return operand_at(matrix.region, matrix.type, matrix.offset, (uint32_t[4]){SIDE, SIDE, 1});
}

static struct operand share_project(struct share_rig *r, struct operand in) {
    struct op op = {.kind = OP_PROJECT};
    op.project = (struct op_project){
        .in = operand_columns(in, 0, SIDE),
        .n_segments = 2,
        .segments = {{.weight = r->matrix[0]}, {.weight = r->matrix[1], .column = SIDE}},
        .out = plan_scratch(r->plan, 2 * SIDE)};
    share_add(r, op);
    return op.project.out;
}

/* The first matrix is the routed expert's, the second the shared one's, whose gate is a half. */
static struct op_route share_route(struct share_rig *r, struct operand in) {
    struct op op = {.kind = OP_ROUTE};
    op.route = (struct op_route){
        .in = operand_columns(in, 0, SIDE),
        .norm = r->ones,
        .router = operand_at(REGION_WEIGHTS, DT_F32, AT_ONES, (uint32_t[4]){SIDE, 1}),
        .shared_switch = operand_at(REGION_WEIGHTS, DT_F32, AT_ZEROS, (uint32_t[4]){SIDE}),
        .choice = plan_scratch_of(r->plan, DT_I32, (uint32_t[4]){2, 1}),
        .weight = plan_scratch(r->plan, 2),
        .eps = 1e-6f,
        .used = 1};
    share_add(r, op);
    return op.route;
}

static struct operand share_experts_in(struct share_rig *r, const struct op_route *route) {
    struct op op = {.kind = OP_EXPERTS_IN};
    op.experts_in = (struct op_experts_in){.in = route->in,
                                           .norm = r->ones,
                                           .gate = of_expert(r->matrix[0]),
                                           .up = of_expert(r->matrix[0]),
                                           .shared_gate = r->matrix[1],
                                           .shared_up = r->matrix[1],
                                           .choice = route->choice,
                                           .hidden = plan_scratch(r->plan, 2 * SIDE),
                                           .eps = 1e-6f};
    share_add(r, op);
    return op.experts_in.hidden;
}

static struct operand share_experts_out(struct share_rig *r, struct operand in,
                                        const struct op_route *route) {
    struct op op = {.kind = OP_EXPERTS_OUT};
    op.experts_out = (struct op_experts_out){.hidden = in,
                                             .choice = route->choice,
                                             .weight = route->weight,
                                             .down = of_expert(r->matrix[0]),
                                             .shared_down = r->matrix[1],
                                             .x = share_embed(r, SIDE, AT_ZEROS)};
    share_add(r, op);
    return op.experts_out.x;
}

static struct operand share_op(struct share_rig *r, struct operand in, enum op_kind kind) {
    if (kind == OP_PROJECT)
        return share_project(r, in);
    struct op_route route = share_route(r, in);
    struct operand hidden = share_experts_in(r, &route); /* there in any case: room is cut by it */
    return kind == OP_EXPERTS_IN ? hidden : share_experts_out(r, in, &route);
}

/* Runs the op; `out` has room for 2 * SIDE values. Returns how many there are. */
static uint32_t share_run(struct share_rig *r, enum op_kind kind, float *out) {
    uint32_t width = kind == OP_EXPERTS_OUT ? SIDE : 2 * SIDE;
    struct plan_options options = {.max_rows = 1,
                                   .max_outputs = 1,
                                   .n_slots = 1,
                                   .n_vocab = 1,
                                   .n_taps = 1,
                                   .tap_width = width};
    struct backend_options how = {.threads = 2};
    struct backend *b = NULL;
    struct err err = {0};
    EXPECT_INT(plan_new(&r->plan, &options, &err), SLUICE_OK);
    struct operand in = share_embed(r, 2 * SIDE, AT_ROW);
    struct operand result = share_op(r, in, kind);
    share_add(r, (struct op){.kind = OP_TAP, .tap = {.x = result, .out = plan_tap(r->plan, 0)}});
    EXPECT_INT(plan_finish(r->plan, &err), SLUICE_OK);
    EXPECT_INT(backend_cpu.open(&b, &how, &err), SLUICE_OK);
    EXPECT_INT(backend_cpu.load(b, (struct backend_weights){.base = r->weights}, &r->plan, 1, NULL,
                                NULL, &err),
               SLUICE_OK);
    memcpy(out, run_rows(b, r->plan, 0, 0, 1), width * sizeof *out);
    backend_cpu.close(b);
    plan_free(r->plan);
    return width;
}

/* Matrix m times SIDE values, quantized by groups if it has blocks itself. */
static void share_product(const struct share_rig *r, int m, const float *x, uint32_t group,
                          float *out) {
    int8_t q[SIDE];
    float scale[SIDE / 32];
    int32_t sum[SIDE / 32];
    bool is_f32 = dtype_info(r->matrix[m].type)->block_values == 1;
    act_quantize(x, SIDE, group, q, scale, sum);
    for (int n = 0; n < SIDE; n++) {
        double total = 0;
        for (int k = 0; k < SIDE; k++)
            total += (double)r->values[m][n * SIDE + k] * (is_f32 ? x[k] : scale[k / 32] * q[k]);
        out[n] = (float)total;
    }
}

/* What the op should give if `group` activations share a scale. */
static void share_expect(const struct share_rig *r, enum op_kind kind, uint32_t group, float *out) {
    float x[2 * SIDE];
    double squares = 0;
    for (int i = 0; i < SIDE; i++)
        squares += (double)r->row[i] * r->row[i];
    float factor = kind == OP_EXPERTS_IN ? (float)(1 / sqrt(squares / SIDE + 1e-6)) : 1;
    for (int i = 0; i < 2 * SIDE; i++)
        x[i] = r->row[i] * factor;
    share_product(r, 0, x, group, out);
    share_product(r, 1, kind == OP_EXPERTS_OUT ? x + SIDE : x, group, out + SIDE);
    for (int i = 0; i < 2 * SIDE && kind == OP_EXPERTS_IN; i++)
        out[i] *= out[i] / (1 + expf(-out[i]));
    for (int i = 0; i < SIDE && kind == OP_EXPERTS_OUT; i++)
        out[i] += 0.5f * out[SIDE + i];
}

TEST(ops_share_scales_as_the_plan_says) {
    static const struct {
        enum dtype types[2];
        uint32_t group;
    } cases[] = {
        {{DT_Q4_K, DT_Q6_K}, 128}, {{DT_Q5_K, DT_F16}, 128},  {{DT_F32, DT_Q4_K}, 128},
        {{DT_Q4_K, DT_Q8_0}, 128}, {{DT_Q8_0, DT_Q6_K}, 128}, {{DT_Q4_1, DT_F32}, 32},
        {{DT_Q8_0, DT_Q4_1}, 32},  {{DT_Q8_0, DT_Q8_0}, 128},
    };
    static const enum op_kind kinds[] = {OP_PROJECT, OP_EXPERTS_IN, OP_EXPERTS_OUT};
    struct share_rig *r = malloc(sizeof *r);
    for (size_t i = 0; i < 3 * sizeof cases / sizeof *cases; i++) {
        enum op_kind kind = kinds[i % 3];
        uint32_t group = cases[i / 3].group;
        float found[2 * SIDE], expected[2 * SIDE], other[2 * SIDE];
        share_weights(r, cases[i / 3].types);
        uint32_t width = share_run(r, kind, found);
        share_expect(r, kind, group, expected);
        share_expect(r, kind, 160 - group, other); /* 128 or 32 */
        double right = difference(found, expected, (int)width);
        double wrong = difference(found, other, (int)width);
        if (!(right < 0.05 * wrong))
            test_fail(__FILE__, __LINE__, "%s of %s and %s: off by %g, by %g if %u share a scale",
                      op_name(kind), dtype_name(cases[i / 3].types[0]),
                      dtype_name(cases[i / 3].types[1]), right, wrong, 160 - group);
    }
    free(r);
}

/* ---- ROUTE -------------------------------------------------------------------------------- */

/* A router that is the identity, so that the logits are the row; three weights: those of the two
 * chosen experts, and none for a shared one. */
static void route_row(bool is_unnormed, float weights[3]) {
    enum { WIDTH = 4, USED = 2 };
    static const float values[] = {1, -1, 1, -1,   /* the row */
                                   1, 2,  0, 0.5f, /* the norm */
                                   1, 0,  0, 0,    0, 1, 0, 0,
                                   0, 0,  1, 0,    0, 0, 0, 1}; /* the router */
    struct plan_options options = {.max_rows = 1,
                                   .max_outputs = 1,
                                   .n_slots = 1,
                                   .n_vocab = 1,
                                   .n_taps = 1,
                                   .tap_width = USED + 1};
    const uint32_t list[4] = {USED + 1, 1};
    struct backend_options how = {.threads = 1};
    struct backend *b = NULL;
    struct plan *plan = NULL;
    struct err err = {0};
    EXPECT_INT(plan_new(&plan, &options, &err), SLUICE_OK);
    struct operand x = plan_scratch(plan, WIDTH), weight = plan_scratch(plan, USED + 1);
    const struct op ops[] = {
        {.kind = OP_EMBED,
         .role = "embed",
         .embed = {.table = operand_at(REGION_WEIGHTS, DT_F32, 0, (uint32_t[4]){WIDTH, 1}),
                   .x = x}},
        {.kind = OP_ROUTE,
         .role = "route",
         .route = {.in = x,
                   .norm = operand_at(REGION_WEIGHTS, DT_F32, 4 * WIDTH, (uint32_t[4]){WIDTH}),
                   .router =
                       operand_at(REGION_WEIGHTS, DT_F32, 8 * WIDTH, (uint32_t[4]){WIDTH, WIDTH}),
                   .choice = plan_scratch_of(plan, DT_I32, list),
                   .weight = weight,
                   .used = USED,
                   .is_unnormed = is_unnormed}},
        {.kind = OP_TAP, .role = "tap", .tap = {.x = weight, .out = plan_tap(plan, 0)}},
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        EXPECT_INT(plan_add(plan, &ops[i], &err), SLUICE_OK);
    EXPECT_INT(plan_finish(plan, &err), SLUICE_OK);
    EXPECT_INT(backend_cpu.open(&b, &how, &err), SLUICE_OK);
    EXPECT_INT(backend_cpu.load(b, (struct backend_weights){.base = (uint8_t *)values}, &plan, 1,
                                NULL, NULL, &err),
               SLUICE_OK);
    memcpy(weights, run_rows(b, plan, 0, 0, 1), 3 * sizeof *weights);
    backend_cpu.close(b);
    plan_free(plan);
}

/* Logits 1, -2, 0, -0.5: the first and the third are chosen. */
TEST(route_weights_are_normalized_or_those_of_all_experts) {
    const double chosen = exp(1) + exp(0), all = chosen + exp(-2) + exp(-0.5);
    for (int is_unnormed = 0; is_unnormed < 2; is_unnormed++) {
        float weights[3] = {0};
        route_row(is_unnormed, weights);
        EXPECT_NEAR(weights[0], exp(1) / (is_unnormed ? all : chosen), 1e-6);
        EXPECT_NEAR(weights[1], exp(0) / (is_unnormed ? all : chosen), 1e-6);
        EXPECT(weights[2] == 0);
    }
}

/* ---- JOIN and HIDDEN ---------------------------------------------------------------------- */

enum { JOIN_ROWS = 7, JOIN_WIDTH = 37, JOIN_CELLS = 6 };

/* Weights: two tables, of which token t's rows are the residual and the embedding, and the norms.
 */
struct join_rig {
    struct plan *plan;
    struct backend *b;
    struct operand state;
    struct {
        float x[JOIN_ROWS][JOIN_WIDTH], embed[JOIN_ROWS][JOIN_WIDTH];
        float norm[JOIN_WIDTH], embed_norm[JOIN_WIDTH], state_norm[JOIN_WIDTH];
    } weights;
    float states[JOIN_CELLS][JOIN_WIDTH]; /* before the step */
};

static struct operand join_weight(const struct join_rig *r, const void *at, uint32_t rows) {
    return operand_at(REGION_WEIGHTS, DT_F32, (uint64_t)((const char *)at - (char *)&r->weights),
                      (uint32_t[4]){JOIN_WIDTH, rows});
}

static void join_add(struct join_rig *r, const struct op *op) {
    struct err err = {0};
    if (plan_add(r->plan, op, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

static void join_open(struct join_rig *r, bool has_x, int threads) {
    const struct plan_options options = {.max_rows = JOIN_ROWS,
                                         .max_outputs = JOIN_ROWS,
                                         .n_slots = JOIN_CELLS,
                                         .n_vocab = JOIN_ROWS,
                                         .n_taps = 1,
                                         .tap_width = 2 * JOIN_WIDTH};
    struct backend_options how = {.threads = threads};
    struct err err = {0};
    float *values = (float *)&r->weights;
    uint64_t random = 11;
    for (size_t i = 0; i < sizeof r->weights / sizeof *values; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)(int32_t)(random >> 32) * 0x1p-30f;
        r->states[i % JOIN_CELLS][i % JOIN_WIDTH] = (float)(int32_t)(random >> 31) * 0x1p-29f;
    }
    EXPECT_INT(plan_new(&r->plan, &options, &err), SLUICE_OK);
    r->state = plan_state(r->plan, DT_F32, (uint32_t[4]){JOIN_WIDTH, JOIN_CELLS});
    struct operand x = plan_scratch(r->plan, JOIN_WIDTH), embed = plan_scratch(r->plan, JOIN_WIDTH),
                   norm = join_weight(r, r->weights.norm, 0), none = {0};
    struct op op = {.kind = OP_EMBED, .role = "rows"};
    op.embed.table = join_weight(r, r->weights.x, JOIN_ROWS);
    op.embed.x = x;
    join_add(r, &op);
    op.embed.table = join_weight(r, r->weights.embed, JOIN_ROWS);
    op.embed.x = embed;
    join_add(r, &op);
    op = (struct op){.kind = OP_JOIN, .role = "join"};
    op.join = (struct op_join){.embed = embed,
                               .x = has_x ? x : none,
                               .norm = has_x ? norm : none,
                               .embed_norm = join_weight(r, r->weights.embed_norm, 0),
                               .state_norm = join_weight(r, r->weights.state_norm, 0),
                               .state = r->state,
                               .out = plan_scratch(r->plan, 2 * JOIN_WIDTH),
                               .eps = 1e-3f};
    join_add(r, &op);
    const struct op tap = {
        .kind = OP_TAP, .role = "tap", .tap = {.x = op.join.out, .out = plan_tap(r->plan, 0)}};
    op = (struct op){.kind = OP_HIDDEN, .role = "hidden"};
    op.hidden = (struct op_hidden){.x = x, .norm = norm, .state = r->state, .eps = 1e-3f};
    join_add(r, &op);
    join_add(r, &tap);
    const struct backend_weights w = {.base = (const uint8_t *)&r->weights,
                                      .bytes = sizeof r->weights};
    if (plan_finish(r->plan, &err) || backend_cpu.open(&r->b, &how, &err) ||
        backend_cpu.load(r->b, w, &r->plan, 1, NULL, NULL, &err) ||
        backend_cpu.write_state(r->b, r->state.offset, sizeof r->states, r->states, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
}

/* RMS norm in doubles. */
static void norm_of(const double *x, const float *w, double *y) {
    double squares = 0;
    for (uint32_t i = 0; i < JOIN_WIDTH; i++)
        squares += x[i] * x[i];
    for (uint32_t i = 0; i < JOIN_WIDTH; i++)
        y[i] = x[i] / sqrt(squares / JOIN_WIDTH + 1e-3) * (double)w[i];
}

static void norm_of_floats(const float *x, const float *w, double *y) {
    double wide[JOIN_WIDTH];
    for (uint32_t i = 0; i < JOIN_WIDTH; i++)
        wide[i] = (double)x[i];
    norm_of(wide, w, y);
}

static void expect_near(const float *found, const double *expected) {
    for (uint32_t i = 0; i < JOIN_WIDTH; i++)
        EXPECT_NEAR(found[i], expected[i], 1e-5);
}

/* Segments of this many rows; segment s begins with the state of cell s, and row r stores its own
 * to to[r]. */
static void join_step(struct join_rig *r, const uint32_t *rows, uint32_t n, const uint32_t *to) {
    uint8_t *io = backend_cpu.io(r->b);
    struct io_header *header = (struct io_header *)io;
    *header = (struct io_header){.n_segments = n};
    for (uint32_t s = 0; s < n; s++) {
        ((struct io_segment *)(io + r->plan->io.segments))[s] =
            (struct io_segment){.cell = s, .first_row = header->n_rows, .n_rows = rows[s]};
        for (uint32_t i = 0; i < rows[s]; i++) {
            uint32_t row = header->n_rows++;
            ((struct io_row *)(io + r->plan->io.rows))[row] =
                (struct io_row){.token = (int32_t)row, .slot = s, .segment = s};
            ((struct io_output *)(io + r->plan->io.outputs))[row] = (struct io_output){.row = row};
        }
    }
    header->n_outputs = header->n_rows;
    memcpy(io + r->plan->io.to, to, header->n_rows * sizeof *to);
    EXPECT_INT(backend_cpu.submit(r->b, 0, NULL), SLUICE_OK);
    EXPECT_INT(backend_cpu.wait(r->b, NULL), SLUICE_OK);
}

/* The two halves of a row of JOIN; `before` is the row before it in its segment, -1: cell's. */
static void check_joined(const struct join_rig *r, uint32_t row, int before, uint32_t cell) {
    const float *found =
        (const float *)(backend_cpu.io(r->b) + r->plan->io.taps) + row * 2 * JOIN_WIDTH;
    double expected[JOIN_WIDTH];
    norm_of_floats(r->weights.embed[row], r->weights.embed_norm, expected);
    expect_near(found, expected);
    if (before < 0) {
        norm_of_floats(r->states[cell], r->weights.state_norm, expected);
    } else {
        norm_of_floats(r->weights.x[before], r->weights.norm, expected);
        norm_of(expected, r->weights.state_norm, expected);
    }
    expect_near(found + JOIN_WIDTH, expected);
}

/* The states after a step; the cells that no row stored to are as they were. */
static void check_states(const struct join_rig *r, const uint32_t *to, uint32_t n) {
    float found[JOIN_CELLS][JOIN_WIDTH];
    EXPECT_INT(backend_cpu.read_state(r->b, r->state.offset, sizeof found, found, NULL), SLUICE_OK);
    for (uint32_t cell = 0; cell < JOIN_CELLS; cell++) {
        double expected[JOIN_WIDTH];
        for (uint32_t i = 0; i < JOIN_WIDTH; i++)
            expected[i] = (double)r->states[cell][i];
        for (uint32_t row = 0; row < n; row++)
            if (to[row] == cell)
                norm_of_floats(r->weights.x[row], r->weights.norm, expected);
        expect_near(found[cell], expected);
    }
}

static void join_close(struct join_rig *r) {
    backend_cpu.close(r->b);
    plan_free(r->plan);
}

TEST(join_continues_from_the_row_before_or_the_cell) {
    static const uint32_t rows[] = {3, 1, 2}, to[] = {IO_NO_CELL, 4, 0, 5, IO_NO_CELL, 2};
    for (int threads = 1; threads <= 3; threads++) {
        struct join_rig r = {0};
        join_open(&r, true, threads);
        join_step(&r, rows, 3, to);
        check_joined(&r, 0, -1, 0);
        check_joined(&r, 1, 0, 0);
        check_joined(&r, 2, 1, 0);
        check_joined(&r, 3, -1, 1);
        check_joined(&r, 4, -1, 2);
        check_joined(&r, 5, 4, 2);
        check_states(&r, to, 6);
        join_close(&r);
    }
}

TEST(join_without_rows_continues_from_the_cell) {
    static const uint32_t rows[] = {1, 1, 1}, to[] = {3, 4, 2};
    struct join_rig r = {0};
    join_open(&r, false, 2);
    join_step(&r, rows, 3, to);
    for (uint32_t row = 0; row < 3; row++)
        check_joined(&r, row, -1, row);
    check_states(&r, to, 3);
    join_close(&r);
}

/* ---- PICK --------------------------------------------------------------------------------- */

TEST(pick_of_drafts_is_that_of_a_row_after_the_other) {
    check_picks_of_drafts(&backend_cpu, 1);
    check_picks_of_drafts(&backend_cpu, 3);
}

/* Four rows of logits of a vocabulary that is no multiple of anything, as columns of an LM head
 * whose activations are 1 in one place; PICK of all of them. */
enum { LARGE_VOCAB = 36013, LARGE_ROWS = 4, LARGE_WIDTH = 32 };

struct large_rig {
    struct plan *plan;
    struct backend *b;
    float logits[LARGE_ROWS][LARGE_VOCAB];
    struct {
        float tokens[LARGE_VOCAB][LARGE_WIDTH], head[LARGE_VOCAB][LARGE_WIDTH];
    } weights;
};

/* Row 0 has few likely tokens, row 1 nearly none that is not; rows 0 to 2 have many equal logits,
 * the best of row 2 at its end. */
static void fill_large_logits(struct large_rig *r) {
    uint64_t random = 7;
    for (uint32_t i = 0; i < LARGE_ROWS; i++)
        for (uint32_t k = 0; k < LARGE_VOCAB; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            float u = (float)(random >> 40) * 0x1p-24f;
            r->logits[i][k] = i == 0   ? 20 * u * u * u * u
                              : i == 1 ? (float)(int)(8 * u) / 8
                              : i == 2 ? (float)(int)(64 * u) / 16
                                       : 12 * u - 6;
        }
    for (uint32_t k = 1; k <= 3; k++)
        r->logits[2][LARGE_VOCAB - k] = 7;
    for (uint32_t i = 0; i < LARGE_ROWS; i++) {
        r->weights.tokens[i][i] = 1;
        for (uint32_t k = 0; k < LARGE_VOCAB; k++)
            r->weights.head[k][i] = r->logits[i][k];
    }
}

static bool large_open(struct large_rig *r, int threads) {
    struct plan_options options = {
        .max_rows = LARGE_ROWS, .max_outputs = LARGE_ROWS, .n_slots = 1, .n_vocab = LARGE_VOCAB};
    struct backend_options how = {.threads = threads};
    struct err err = {0};
    EXPECT_INT(plan_new(&r->plan, &options, &err), SLUICE_OK);
    struct op embed = {.kind = OP_EMBED, .role = "rows"};
    struct op head = {.kind = OP_PROJECT, .layer = -1, .role = "head"};
    struct op pick = {.kind = OP_PICK, .layer = -1, .role = "pick"};
    uint32_t dims[4] = {LARGE_WIDTH, LARGE_VOCAB};
    embed.embed.table = operand_at(REGION_WEIGHTS, DT_F32, 0, dims);
    embed.embed.x = head.project.in = plan_scratch(r->plan, LARGE_WIDTH);
    head.project.is_lm_head = true;
    head.project.n_segments = 1;
    head.project.segments[0].weight =
        operand_at(REGION_WEIGHTS, DT_F32, sizeof r->weights.tokens, dims);
    head.project.out = plan_scratch_of(r->plan, DT_F32, (uint32_t[4]){LARGE_VOCAB, LARGE_ROWS});
    pick.pick = (struct op_pick){
        .logits = head.project.out,
        .wanted = plan_logits(r->plan),
        .counts = plan_state(r->plan, DT_I16, (uint32_t[4]){LARGE_VOCAB, 1}),
        .adjusted = plan_scratch_of(r->plan, DT_F32, (uint32_t[4]){LARGE_VOCAB, LARGE_ROWS}),
        .order = plan_scratch_of(r->plan, DT_I64, (uint32_t[4]){LARGE_VOCAB, LARGE_ROWS}),
    };
    if (plan_add(r->plan, &embed, &err) || plan_add(r->plan, &head, &err) ||
        plan_add(r->plan, &pick, &err) || plan_finish(r->plan, &err) ||
        backend_cpu.open(&r->b, &how, &err) ||
        backend_cpu.load(
            r->b,
            (struct backend_weights){.base = (uint8_t *)&r->weights, .bytes = sizeof r->weights},
            &r->plan, 1, NULL, NULL, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return err.code == 0;
}

static void large_step(struct large_rig *r, struct io_output how, int32_t *picked) {
    uint8_t *io = backend_cpu.io(r->b);
    struct io_output *outputs = (struct io_output *)(io + r->plan->io.outputs);
    *(struct io_header *)io =
        (struct io_header){.n_rows = LARGE_ROWS, .n_segments = 1, .n_outputs = LARGE_ROWS};
    *(struct io_segment *)(io + r->plan->io.segments) = (struct io_segment){.n_rows = LARGE_ROWS};
    for (uint32_t i = 0; i < LARGE_ROWS; i++) {
        ((struct io_row *)(io + r->plan->io.rows))[i] =
            (struct io_row){.token = (int32_t)i, .position = i};
        outputs[i] = how;
        outputs[i].row = i;
    }
    update_in_place(io, r->plan);
    EXPECT_INT(backend_cpu.submit(r->b, 0, NULL), SLUICE_OK);
    EXPECT_INT(backend_cpu.wait(r->b, NULL), SLUICE_OK);
    for (uint32_t i = 0; i < LARGE_ROWS; i++)
        picked[i] = outputs[i].token;
}

static const float *sorted_logits;

static int by_logit(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    float x = sorted_logits[i], y = sorted_logits[k];
    return x != y ? (x < y) - (x > y) : (i > k) - (i < k);
}

/* The random number of a seed and a position, as io.h has it. */
static double random_of(uint64_t seed, uint32_t position) {
    uint64_t z = seed + 0x9E3779B97F4A7C15u * (position + 1ull);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Whether the token is that of sorted logits and doubles, or one next to it where the random number
 * is at their boundary. order: tokens from the best on. */
static bool is_drawn(const float *logits, const uint32_t *order, const struct io_output *o,
                     double random, int32_t picked) {
    static double p[LARGE_VOCAB];
    if (o->temperature <= 0)
        return picked == (int32_t)order[0];
    bool is_cut = o->top_k > 0 || o->top_p < 1 || o->min_p > 0;
    uint32_t limit = o->top_k ? o->top_k : LARGE_VOCAB, n = 0;
    double best = (double)logits[order[0]], total = 0, sum = 0, at = 0;
    for (uint32_t i = 0; i < limit; i++) { /* all: in the order of the vocabulary */
        p[i] = exp(((double)logits[is_cut ? order[i] : i] - best) / (double)o->temperature);
        total += p[i];
    }
    while (n < limit && (n == 0 || !is_cut || p[n] >= (double)o->min_p)) {
        sum += p[n++];
        if (o->top_p < 1 && sum >= (double)o->top_p * total)
            break;
    }
    for (uint32_t i = 0; i < n; at += p[i++])
        if (picked == (int32_t)(is_cut ? order[i] : i))
            return random * sum >= at - 1e-4 * sum && random * sum < at + p[i] + 1e-4 * sum;
    return false;
}

TEST(pick_of_a_large_vocabulary_is_what_sorting_finds) {
    static const struct io_output settings[] = {
        {.temperature = 0, .top_p = 1},
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.8f, .top_p = 0.95f},
        {.temperature = 0.1f, .top_p = 0.5f},
        {.temperature = 1, .top_p = 0.999f},
        {.temperature = 1, .top_p = 1, .top_k = 1},
        {.temperature = 1, .top_p = 1, .top_k = 40},
        {.temperature = 1.5f, .top_p = 0.9f, .top_k = 3000},
        {.temperature = 0.7f, .top_p = 0.8f, .top_k = 9, .min_p = 0.05f},
        {.temperature = 1, .top_p = 1, .min_p = 0.05f},
        {.temperature = 1, .top_p = 1, .min_p = 0.9f},
    };
    static uint32_t order[LARGE_ROWS][LARGE_VOCAB];
    struct large_rig *rigs[3];
    for (int t = 0; t < 3; t++) {
        rigs[t] = calloc(1, sizeof *rigs[t]);
        fill_large_logits(rigs[t]);
        if (!large_open(rigs[t], t + 1))
            return;
    }
    for (uint32_t k = 0; k < LARGE_ROWS; k++) {
        for (uint32_t i = 0; i < LARGE_VOCAB; i++)
            order[k][i] = i;
        sorted_logits = rigs[0]->logits[k];
        qsort(order[k], LARGE_VOCAB, sizeof **order, by_logit);
    }
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        for (uint64_t seed = 1; seed <= 12; seed++) {
            struct io_output o = settings[i];
            int32_t picked[3][LARGE_ROWS];
            o.flags = IO_WANTS_TOKEN;
            o.repeat_penalty = 1;
            o.n_vocab = LARGE_VOCAB;
            o.seed = seed;
            for (int t = 0; t < 3; t++)
                large_step(rigs[t], o, picked[t]);
            EXPECT(memcmp(picked[0], picked[1], sizeof *picked) == 0);
            EXPECT(memcmp(picked[0], picked[2], sizeof *picked) == 0);
            for (uint32_t k = 0; k < LARGE_ROWS; k++)
                if (!is_drawn(rigs[0]->logits[k], order[k], &o, random_of(seed, k), picked[0][k]))
                    test_fail(__FILE__, __LINE__, "setting %zu, seed %d, row %u: token %d", i,
                              (int)seed, k, picked[0][k]);
        }
    for (int t = 0; t < 3; t++) {
        backend_cpu.close(rigs[t]->b);
        plan_free(rigs[t]->plan);
        free(rigs[t]);
    }
}

/* What pick.c says it does, with all candidates sorted: no tolerance. */
static int32_t drawn_from_all(const float *logits, const uint32_t *order, const struct io_output *o,
                              double random) {
    static float p[LARGE_VOCAB], sorted[LARGE_VOCAB];
    float scale = 1 / o->temperature, shift = logits[order[0]] * scale;
    double total = (double)row_exp_sum(logits, scale, shift, LARGE_VOCAB), sum = 0;
    uint32_t n = 0, i = 0;
    for (uint32_t k = 0; k < LARGE_VOCAB; k++)
        sorted[k] = logits[order[k]];
    row_exp_of(p, sorted, scale, shift, LARGE_VOCAB);
    while (n < LARGE_VOCAB && (n == 0 || p[n] >= o->min_p * p[0])) {
        sum += (double)p[n++];
        if (o->top_p < 1 && sum >= (double)o->top_p * total)
            break;
    }
    random *= sum;
    for (sum = (double)p[0]; i + 1 < n && random >= sum; sum += (double)p[i])
        i++;
    return (int32_t)order[i];
}

TEST(pick_among_many_is_that_of_all_sorted) {
    static const struct io_output settings[] = {
        {.temperature = 0.8f, .top_p = 0.95f},
        {.temperature = 1, .top_p = 0.5f},
        {.temperature = 1, .top_p = 0.999f},
        {.temperature = 2, .top_p = 1, .min_p = 0.02f},
        {.temperature = 1, .top_p = 0.7f, .min_p = 0.004f},
    };
    static uint32_t order[LARGE_ROWS][LARGE_VOCAB];
    struct large_rig *r = calloc(1, sizeof *r);
    fill_large_logits(r);
    if (!large_open(r, 1))
        return;
    for (uint32_t k = 0; k < LARGE_ROWS; k++) {
        for (uint32_t i = 0; i < LARGE_VOCAB; i++)
            order[k][i] = i;
        sorted_logits = r->logits[k];
        qsort(order[k], LARGE_VOCAB, sizeof **order, by_logit);
    }
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        for (uint64_t seed = 1; seed <= 40; seed++) {
            struct io_output o = settings[i];
            int32_t picked[LARGE_ROWS];
            o.flags = IO_WANTS_TOKEN;
            o.repeat_penalty = 1;
            o.n_vocab = LARGE_VOCAB;
            o.seed = seed;
            large_step(r, o, picked);
            for (uint32_t k = 0; k < LARGE_ROWS; k++)
                EXPECT_INT(picked[k],
                           drawn_from_all(r->logits[k], order[k], &o, random_of(seed, k)));
        }
    backend_cpu.close(r->b);
    plan_free(r->plan);
    free(r);
}

/* A penalty makes -0 of a logit: as good as the 0 of a later token. */
TEST(pick_takes_minus_zero_for_zero) {
    struct io_output o = {
        .flags = IO_WANTS_TOKEN, .top_p = 1, .repeat_penalty = 0.25f, .n_vocab = LARGE_VOCAB};
    struct large_rig *r = calloc(1, sizeof *r);
    for (int threads = 1; threads <= 2; threads++) {
        int32_t picked[LARGE_ROWS];
        fill_large_logits(r);
        for (uint32_t k = 0; k < LARGE_ROWS; k++)
            for (uint32_t i = 0; i < LARGE_VOCAB; i++)
                r->weights.head[i][k] = i == 0 ? -0x1p-149f : i == 5000 ? 0 : -1;
        if (!large_open(r, threads))
            break;
        large_step(r, o, picked);
        for (uint32_t k = 0; k < LARGE_ROWS; k++)
            EXPECT_INT(picked[k], 0);
        backend_cpu.close(r->b);
        plan_free(r->plan);
    }
    free(r);
}

/* In a step the LM head ranks its logits for PICK. Run alone, PICK picks from what is there, even
 * if the head has never seen it. */
TEST(pick_alone_picks_from_the_logits_it_finds) {
    enum { PICK_OP = 2, BEST = 30001 };
    struct io_output o = {
        .flags = IO_WANTS_TOKEN, .top_p = 1, .repeat_penalty = 1, .n_vocab = LARGE_VOCAB};
    struct large_rig *r = calloc(1, sizeof *r);
    fill_large_logits(r);
    for (int threads = 1; threads <= 3 && large_open(r, threads); threads++) {
        int32_t picked[LARGE_ROWS];
        const struct operand *logits = &r->plan->ops[PICK_OP].pick.logits;
        const struct io_output *outputs =
            (const struct io_output *)(backend_cpu.io(r->b) + r->plan->io.outputs);
        large_step(r, o, picked);
        for (uint32_t k = 0; k < LARGE_ROWS; k++) {
            uint64_t at = logits->offset + ((uint64_t)k * logits->stride + BEST + k) * 4;
            EXPECT(picked[k] != (int32_t)(BEST + k));
            backend_cpu.poke(r->b, REGION_SCRATCH, at, 4, &(float){99}, NULL);
        }
        EXPECT_INT(backend_cpu.run_op(r->b, 0, PICK_OP, NULL), SLUICE_OK);
        for (uint32_t k = 0; k < LARGE_ROWS; k++)
            EXPECT_INT(outputs[k].token, BEST + k);
        backend_cpu.close(r->b);
        plan_free(r->plan);
    }
    free(r);
}

/* In the last place of a row, in a thread's first and last, and beside the best. */
TEST(pick_of_what_is_not_finite_is_none) {
    static const uint32_t places[] = {0, 127, 128, 18047, 18048, LARGE_VOCAB - 1};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    struct io_output o = {
        .flags = IO_WANTS_TOKEN, .top_p = 1, .repeat_penalty = 1, .n_vocab = LARGE_VOCAB};
    struct large_rig *r = calloc(1, sizeof *r);
    for (size_t i = 0; i < 18; i++) {
        int32_t picked[LARGE_ROWS];
        fill_large_logits(r);
        r->weights.head[places[i / 3]][1] = values[i % 3]; /* of every row: 0 times it is NaN */
        o.temperature = i % 2 ? 0.8f : 0;
        if (!large_open(r, 2))
            break;
        large_step(r, o, picked);
        for (uint32_t k = 0; k < LARGE_ROWS; k++)
            EXPECT_INT(picked[k], IO_NOT_FINITE);
        backend_cpu.close(r->b);
        plan_free(r->plan);
    }
    free(r);
}
