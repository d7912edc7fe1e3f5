/* test_ops.c - single ops of the CPU backend against figures from elsewhere. */
#include "backend/backend.h"
#include "plan/build.h"
#include "plan/io.h"
#include "test.h"

/* ---- the delta rule ---------------------------------------------------------------------------
 */

/* A plan of one DELTA op. Its input is written before each step, its output read behind it. */
struct delta_rig {
    struct plan *plan;
    struct backend *b;
    uint8_t *weights;
    uint32_t key_heads, value_heads, width; /* dk = dv */
};

enum { TAPS = 4, MAX_ROWS = 8 };

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
        .state = plan_state(r->plan, DT_F32, (uint32_t[4]){r->width, r->width, r->value_heads, 2}),
        .window = plan_state(r->plan, DT_F32, (uint32_t[4]){channels, TAPS, 2}),
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
    /* Taps lie at the end of IO of this plan. */
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

/* Rows [first, first + n) of the table; the output of the last. */
static const float *delta_step(struct delta_rig *r, uint32_t slot, uint32_t first, uint32_t n) {
    uint8_t *io = backend_cpu.io(r->b);
    *(struct io_header *)io = (struct io_header){.n_rows = n, .n_segments = 1, .n_outputs = 1};
    *(struct io_segment *)(io + r->plan->io.segments) =
        (struct io_segment){.slot = slot, .n_rows = n, .first_position = first};
    *(struct io_output *)(io + r->plan->io.outputs) = (struct io_output){.row = n - 1};
    for (uint32_t i = 0; i < n; i++)
        ((struct io_row *)(io + r->plan->io.rows))[i] =
            (struct io_row){.token = (int32_t)(first + i), .position = first + i, .slot = slot};
    EXPECT_INT(backend_cpu.submit(r->b, 0, NULL), SLUICE_OK);
    return (const float *)(io + r->plan->io.taps);
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
