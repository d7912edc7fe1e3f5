/* test_vulkan_products.c - PROJECT, ROUTE, EXPERTS_IN and EXPERTS_OUT of the Vulkan backend against
 * the CPU's, on random plans. Bounds as in tests/cuda/test_cuda_ops.c; sizes are small, since the
 * driver of `make test` runs on the processor. */
#include "formats.h"
#include "rig.h"

#define INT8_BOUND 6e-3
#define F32_BOUND 2e-4

static bool is_float(enum dtype t) {
    return t == DT_F32 || t == DT_F16 || t == DT_BF16;
}

/* ---- PROJECT ----------------------------------------------------------------------------------
 */

struct project_case {
    uint32_t k, rows, n[6];
    enum dtype types[6];
    uint32_t n_segments;
    bool f32_last; /* the last segment meets f32 activations */
    bool has_bias, is_lm_head, exact;
    enum prologue prologue;
    enum epilogue epilogue;
    uint32_t head_width;
};

static void build_project(struct rig *r, const struct project_case *c, uint64_t seed) {
    uint32_t total = 0, column = 0;
    for (uint32_t s = 0; s < c->n_segments; s++)
        total += c->n[s];
    uint32_t width = c->epilogue == EPILOGUE_SWIGLU ? c->n[0] : total;
    struct plan_options options = {.max_rows = c->rows, .n_taps = 1, .tap_width = width};
    rig_begin(r, seed, &options);
    r->exact = c->exact;
    struct op op = {.kind = OP_PROJECT, .layer = 0, .role = "product"};
    struct op_project *p = &op.project;
    struct operand both = rig_rows(r, 2 * c->k, 1);
    p->in = operand_columns(both, 0, c->k);
    p->prologue = c->prologue;
    p->epilogue = c->epilogue;
    p->eps = 1e-6f;
    p->is_lm_head = c->is_lm_head;
    p->n_segments = c->n_segments;
    if (c->prologue == PROLOGUE_NORM)
        p->norm = rig_tensor(r, DT_F32, (uint32_t[4]){c->k}, 1);
    if (c->prologue == PROLOGUE_GATED_NORM)
        p->norm = rig_tensor(r, DT_F32, (uint32_t[4]){c->head_width}, 1);
    if (c->prologue == PROLOGUE_GATED_NORM || c->prologue == PROLOGUE_SIGMOID_GATE) {
        p->gate = operand_columns(both, c->k, c->k);
        p->head_width = p->gate_stride = c->head_width;
    }
    p->out = c->epilogue == EPILOGUE_ADD ? rig_rows(r, width, 1) : plan_scratch(r->plan, width);
    for (uint32_t s = 0; s < c->n_segments; s++) {
        struct segment *g = &p->segments[s];
        g->weight = rig_tensor(r, c->types[s], (uint32_t[4]){c->k, c->n[s]}, 0.05f);
        if (c->has_bias)
            g->bias = rig_tensor(r, DT_F32, (uint32_t[4]){c->n[s]}, 1);
        g->f32_act = c->f32_last && s + 1 == c->n_segments;
        g->column = c->epilogue == EPILOGUE_SWIGLU ? 0 : column;
        column += c->n[s];
    }
    rig_add(r, &op);
    rig_tap(r, 0, p->out);
}

static void check_project(const struct project_case *c, uint64_t seed) {
    struct rig r;
    bool is_int8 = false;
    for (uint32_t s = 0; s < c->n_segments; s++)
        is_int8 |= !is_float(c->types[s]) && !c->exact;
    build_project(&r, c, seed);
    if (rig_open(&r)) {
        for (int i = 0; i < RIG_BACKENDS; i++)
            rig_step(&r, i, &(struct run){0, 0, c->rows}, 1, seed);
        double worst = 0;
        for (uint32_t row = 0; row < c->rows; row++) {
            double d = rig_distance(rig_output(&r, RIG_CPU, 0, row),
                                    rig_output(&r, RIG_DEVICE, 0, row), r.options.tap_width);
            worst = d > worst || isnan(d) ? d : worst;
        }
        if (!(worst < (is_int8 ? INT8_BOUND : F32_BOUND)))
            test_fail(__FILE__, __LINE__,
                      "K %u, N %u of %s, %u segments, %u rows, prologue %d, epilogue %d%s: off by "
                      "%.2e",
                      c->k, c->n[0], dtype_name(c->types[0]), c->n_segments, c->rows, c->prologue,
                      c->epilogue, c->exact ? ", exact" : "", worst);
    }
    rig_end(&r);
}

TEST(vulkan_project_types) {
    static const uint32_t rows[] = {1, 3, 17};
    for (uint32_t t = 0; t < FORMAT_TYPES; t++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct project_case c = {.k = i == 1 ? 2560 : 768,
                                     .rows = rows[i],
                                     .n_segments = 1,
                                     .n = {21 + 37 * (uint32_t)i},
                                     .types = {format_types[t]},
                                     .exact = i == 1 && t % 2};
            check_project(&c, t * 100 + i);
            c.exact = !c.exact && i == 1;
            if (c.exact)
                check_project(&c, t * 100 + i);
        }
}

TEST(vulkan_project_shapes) {
    struct rig r = {.random = 77};
    for (uint64_t i = 0; i < 40; i++) {
        static const uint32_t widths[] = {32, 64, 96, 160, 256, 288, 512, 576, 1024, 1536, 4096};
        struct project_case c = {.k = widths[rig_below(&r, 11)],
                                 .rows = 1 + rig_below(&r, i % 4 ? 9 : 33),
                                 .n_segments = 1 + rig_below(&r, 6),
                                 .has_bias = rig_below(&r, 2),
                                 .is_lm_head = rig_below(&r, 4) == 0};
        c.prologue = (enum prologue)rig_below(&r, 4);
        c.epilogue = (enum epilogue)rig_below(&r, 3);
        c.head_width = c.k % 64 ? 32 : 64;
        c.f32_last = rig_below(&r, 3) == 0;
        if (c.epilogue == EPILOGUE_SWIGLU)
            c.n_segments = 2, c.f32_last = false;
        if (c.epilogue == EPILOGUE_ADD)
            c.n_segments = 1;
        for (uint32_t s = 0; s < c.n_segments; s++) {
            enum dtype t = format_types[rig_below(&r, FORMAT_TYPES)];
            c.types[s] = c.k % dtype_info(t)->block_values ? DT_Q8_0 : t;
            if (s == 1 && i % 2) /* gate and up of one type */
                c.types[1] = c.types[0];
            c.n[s] = c.epilogue == EPILOGUE_SWIGLU && s ? c.n[0] : 1 + rig_below(&r, 90);
        }
        check_project(&c, 1000 + i);
    }
}

/* Widths without whole groups of 32, f32 throughout. */
TEST(vulkan_project_odd_widths) {
    static const uint32_t widths[] = {1, 7, 33, 100, 257};
    for (size_t i = 0; i < 5; i++) {
        struct project_case c = {.k = widths[i],
                                 .rows = 3,
                                 .n_segments = 1,
                                 .n = {19},
                                 .types = {i % 2 ? DT_F16 : DT_F32},
                                 .prologue = PROLOGUE_NORM};
        check_project(&c, 2000 + i);
    }
}

/* A row's bits are its own: alone in a plan of one row, or among others in a wide one. */
TEST(vulkan_project_rows_are_independent) {
    static const enum dtype types[] = {DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_Q8_0,
                                       DT_BF16, DT_Q4_0, DT_F32,  DT_IQ2_S};
    static const uint32_t buckets[] = {2, 4, 7, 8, 16, 32, 40, 70};
    for (size_t i = 0; i < 8; i++) {
        struct project_case c = {.k = i % 2 ? 2560 : 512,
                                 .rows = 1,
                                 .n_segments = 2,
                                 .n = {77, 77},
                                 .types = {types[i], types[i < 4 ? i : i / 2]},
                                 .prologue = PROLOGUE_NORM,
                                 .epilogue = i % 2 ? EPILOGUE_SWIGLU : EPILOGUE_STORE};
        struct rig one;
        build_project(&one, &c, 3000 + i);
        bool is_open = rig_open(&one);
        for (size_t b = i % 2; b < 8; b += 2) {
            struct rig many;
            c.rows = buckets[b];
            build_project(&many, &c, 3000 + i);
            is_open = rig_open(&many) && is_open;
            if (is_open)
                rig_step(&many, RIG_DEVICE, &(struct run){0, 0, c.rows}, 1, 5);
            for (uint32_t row = 0; is_open && row < c.rows; row += c.rows > 8 ? 5 : 1) {
                rig_step(&one, RIG_DEVICE, &(struct run){0, row, 1}, 1, 5);
                if (memcmp(rig_output(&one, RIG_DEVICE, 0, 0),
                           rig_output(&many, RIG_DEVICE, 0, row),
                           one.options.tap_width * sizeof(float)) != 0)
                    test_fail(__FILE__, __LINE__, "%s, row %u of %u has other bits alone",
                              dtype_name(types[i]), row, c.rows);
            }
            rig_end(&many);
        }
        rig_end(&one);
    }
}

/* ---- ROUTE and EXPERTS ------------------------------------------------------------------------
 */

/* Types and widths of every matrix on its own, as files mix them. */
struct experts_case {
    enum dtype gate, up, down, shared_in, shared_down;
    uint32_t width, inner, shared, experts, used;
};

static void build_experts(struct rig *r, const struct experts_case *c, uint32_t rows,
                          uint64_t seed) {
    struct plan_options options = {.max_rows = rows, .n_taps = 2, .tap_width = c->width};
    rig_begin(r, seed, &options);
    struct operand none = {0}, x = rig_rows(r, c->width, 1);
    struct operand norm = rig_tensor(r, DT_F32, (uint32_t[4]){c->width}, 1);
    struct operand choice = plan_scratch_of(r->plan, DT_I32, (uint32_t[4]){c->used + 1, rows});
    struct operand weight = plan_scratch_of(r->plan, DT_F32, (uint32_t[4]){c->used + 1, rows});
    struct operand hidden = plan_scratch(r->plan, c->used * c->inner + c->shared);
    struct op route = {.kind = OP_ROUTE, .layer = 0, .role = "route"};
    route.route = (struct op_route){
        .in = x,
        .norm = norm,
        .choice = choice,
        .weight = weight,
        .eps = 1e-6f,
        .used = c->used,
        .router = rig_tensor(r, DT_F32, (uint32_t[4]){c->width, c->experts}, 0.3f),
        .shared_gate = c->shared ? rig_tensor(r, DT_F32, (uint32_t[4]){c->width}, 0.3f) : none};
    struct op in = {.kind = OP_EXPERTS_IN, .layer = 0, .role = "experts in"};
    const uint32_t in_dims[4] = {c->width, c->inner, c->experts},
                   shared_dims[4] = {c->width, c->shared};
    in.experts_in = (struct op_experts_in){
        .in = x,
        .norm = norm,
        .choice = choice,
        .hidden = hidden,
        .eps = 1e-6f,
        .gate = rig_tensor(r, c->gate, in_dims, 0.1f),
        .up = rig_tensor(r, c->up, in_dims, 0.1f),
        .shared_gate = c->shared ? rig_tensor(r, c->shared_in, shared_dims, 0.1f) : none,
        .shared_up = c->shared ? rig_tensor(r, c->shared_in, shared_dims, 0.1f) : none};
    struct op out = {.kind = OP_EXPERTS_OUT, .layer = 0, .role = "experts out"};
    out.experts_out = (struct op_experts_out){
        .hidden = hidden,
        .choice = choice,
        .weight = weight,
        .x = x,
        .down = rig_tensor(r, c->down, (uint32_t[4]){c->inner, c->width, c->experts}, 0.1f),
        .shared_down = c->shared
                           ? rig_tensor(r, c->shared_down, (uint32_t[4]){c->shared, c->width}, 0.1f)
                           : none};
    rig_add(r, &route);
    rig_add(r, &in);
    rig_add(r, &out);
    rig_tap(r, 0, x);
    rig_tap(r, 1, weight);
}

/* A step of n rows against the CPU; and a row alone has the bits that it has among others. */
static void check_experts(struct rig *many, struct rig *one, const struct experts_case *c,
                          uint32_t n) {
    bool is_f32 = is_float(c->gate) && is_float(c->up) && is_float(c->down) &&
                  is_float(c->shared_in) && is_float(c->shared_down);
    for (int b = 0; b < RIG_BACKENDS; b++)
        rig_step(many, b, &(struct run){0, 0, n}, 1, 5);
    for (uint32_t row = 0; row < n; row++) {
        const float *mine = rig_output(many, RIG_DEVICE, 0, row);
        EXPECT_NEAR(rig_distance(rig_output(many, RIG_CPU, 1, row),
                                 rig_output(many, RIG_DEVICE, 1, row), c->used + 1),
                    0, F32_BOUND);
        EXPECT_NEAR(rig_distance(rig_output(many, RIG_CPU, 0, row), mine, c->width), 0,
                    is_f32 ? F32_BOUND : INT8_BOUND);
        if (row % 4)
            continue;
        rig_step(one, RIG_DEVICE, &(struct run){0, row, 1}, 1, 5);
        if (memcmp(rig_output(one, RIG_DEVICE, 0, 0), mine, c->width * sizeof(float)) != 0)
            test_fail(__FILE__, __LINE__,
                      "width %u, %u of %u experts: row %u of %u has other bits alone", c->width,
                      c->used, c->experts, row, n);
    }
}

TEST(vulkan_experts) {
    static const struct experts_case cases[] = {
        {DT_Q4_K, DT_Q4_K, DT_Q6_K, DT_Q4_K, DT_Q6_K, 512, 256, 256, 5, 3},
        {DT_Q4_K, DT_Q6_K, DT_Q5_K, DT_Q5_K, DT_Q6_K, 256, 512, 256, 3, 2},
        {DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q8_0, 256, 128, 512, 45, 40},
        {DT_Q6_K, DT_Q6_K, DT_Q8_0, DT_Q6_K, DT_Q8_0, 768, 256, 0, 4, 1},
        {DT_Q4_K, DT_Q4_K, DT_Q4_K, DT_BF16, DT_Q8_0, 512, 256, 96, 4, 3},
        {DT_F32, DT_F32, DT_Q8_0, DT_F32, DT_F32, 96, 32, 64, 300, 9},
        {DT_F32, DT_F16, DT_BF16, DT_F32, DT_F32, 100, 30, 64, 7, 2},
        {DT_IQ2_XS, DT_IQ2_XS, DT_IQ4_NL, DT_Q5_0, DT_MXFP4, 256, 96, 64, 6, 2},
    };
    static const uint32_t rows[] = {1, 9};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig one;
        build_experts(&one, &cases[i], 1, 6500 + i);
        bool is_open = rig_open(&one);
        for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
            struct rig many;
            build_experts(&many, &cases[i], rows[n], 6500 + i);
            is_open = rig_open(&many) && is_open;
            if (is_open)
                check_experts(&many, &one, &cases[i], rows[n] / 2 + 1);
            rig_end(&many);
        }
        rig_end(&one);
    }
}
