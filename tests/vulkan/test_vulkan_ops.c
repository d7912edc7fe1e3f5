/* test_vulkan_ops.c - every op of the Vulkan backend against the CPU's, on random plans. On the
 * driver that runs on the processor, which needs most of a second to make a pipeline, few and small
 * ones: every type alone, and the numbers of rows for some types. */
#include "backend/vulkan/host/host.h"
#include "ops.h"

/* A type that the CPU reads and types.glsl does not would be refused at load. */
TEST(vulkan_has_every_type_of_the_cpu) {
    for (uint32_t type = 0; type < DT_COUNT; type++)
        if (dtype_info(type) && dtype_info(type)->decode && !vulkan_has_type[type])
            test_fail(__FILE__, __LINE__, "%s is not in types.glsl", dtype_name(type));
}

TEST(vulkan_weights_of_an_unknown_type_are_refused) {
    struct project_case c = {
        .k = 256, .n = {64, 64}, .n_segments = 2, .types = {DT_Q4_K, DT_F16}, .rows = 1};
    struct backend_options how = {.threads = 1};
    struct err err = {0};
    struct backend *b = NULL;
    struct rig r;
    build_project(&r, &c, 50);
    EXPECT_INT(plan_finish(r.plan, &err), SLUICE_OK);
    r.plan->ops[1].project.segments[1].weight.type = DT_TQ1_0;
    EXPECT_INT(rig_kinds[RIG_DEVICE]->open(&b, &how, &err), SLUICE_OK);
    int status =
        rig_kinds[RIG_DEVICE]->load(b, (struct backend_weights){.base = r.weights, .bytes = r.used},
                                    &r.plan, 1, NULL, NULL, &err);
    EXPECT_INT(status, SLUICE_ERR_UNSUPPORTED);
    EXPECT(strstr(err.text, "op 1") && strstr(err.text, "weights in TQ1_0"));
    EXPECT(strstr(err.text, " Q4_K ") && !strchr(err.text, '\n'));
    test_note("%s", err.text);
    rig_kinds[RIG_DEVICE]->close(b);
    rig_end(&r);
}

TEST(vulkan_project_types) {
    static const uint32_t rows[] = {1, 2, 5, 33};
    for (uint32_t t = 0; t < FORMAT_TYPES; t++)
        for (size_t i = 0; i < (rig_is_slow() ? 1 : sizeof rows / sizeof *rows); i++) {
            struct project_case c = {.k = i % 2 ? 768 : 1280,
                                     .rows = rows[i],
                                     .n_segments = 1,
                                     .n = {40 + 37 * (uint32_t)i},
                                     .types = {format_types[t]}};
            check_project(&c, t * 100 + i);
        }
}

TEST(vulkan_project_shapes) {
    static const enum dtype some[] = {DT_Q4_K, DT_Q8_0, DT_F16};
    bool is_slow = rig_is_slow();
    check_project_shapes(&(struct project_shapes){.n = is_slow ? 8 : 60,
                                                  .widths = 10,
                                                  .rows = is_slow ? 4 : 33,
                                                  .results = 100,
                                                  .types = is_slow ? some : format_types,
                                                  .n_types = is_slow ? 3 : FORMAT_TYPES});
}

TEST(vulkan_project_odd_widths) {
    check_project_odd_widths();
}

TEST(vulkan_project_exact) {
    for (uint32_t t = 0; t < FORMAT_TYPES; t += rig_is_slow() ? 5 : 1) {
        struct project_case c = {.k = 256 + t % 3 * 512,
                                 .rows = 1 + t % 4,
                                 .n_segments = 1,
                                 .n = {33},
                                 .types = {format_types[t]},
                                 .exact = true};
        check_project(&c, 2500 + t);
    }
}

TEST(vulkan_project_segments) {
    struct project_case c = {.k = 512,
                             .n_segments = 6,
                             .n = {30, 1, 64, 17, 5, 8},
                             .types = {DT_Q4_K, DT_Q6_K, DT_Q8_0, DT_F32, DT_BF16, DT_IQ3_S},
                             .has_bias = true,
                             .f32_last = true,
                             .prologue = PROLOGUE_NORM};
    for (c.rows = 1; c.rows < (rig_is_slow() ? 5 : 10); c.rows += 4)
        check_project(&c, 2600 + c.rows);
}

/* Segments of a type are one dispatch, which prepares the row itself: against the CPU, and the bits
 * of a row among others, which a dispatch before prepares. */
TEST(vulkan_project_segments_of_a_type) {
    static const enum prologue prologues[] = {PROLOGUE_NONE, PROLOGUE_NORM, PROLOGUE_GATED_NORM,
                                              PROLOGUE_SIGMOID_GATE};
    for (uint32_t i = 0; i < 4; i++) {
        struct project_case c = {.k = i % 2 ? 1280 : 2048,
                                 .rows = 1,
                                 .n_segments = 5,
                                 .n = {70, 9, 33, 1, 40},
                                 .types = {DT_Q4_K, DT_Q6_K, DT_Q4_K, DT_Q6_K, DT_Q4_K},
                                 .f32_last = true,
                                 .head_width = 128,
                                 .prologue = prologues[i]};
        check_project(&c, 2700 + i);
        c.rows = i % 2 ? 4 : 17;
        check_some_rows(&c, 2710 + i, 3);
    }
}

/* Of one row, which the product prepares itself, and the same row among others: a last unit of one
 * group, few and many blocks, more than four segments of a type, every epilogue, so many rows that
 * their sums are added together. */
TEST(vulkan_project_row_shapes) {
    static const struct {
        uint32_t k, rows, n_segments;
        enum dtype type;
        enum prologue prologue;
        enum epilogue epilogue;
        uint32_t head_width, n; /* n: 0, a few */
    } cases[] = {
        {32, 3, 1, DT_Q8_0, PROLOGUE_NORM, EPILOGUE_STORE, 0, 0},
        {160, 12, 2, DT_MXFP4, PROLOGUE_NORM, EPILOGUE_SWIGLU, 0, 0},
        {672, 4, 1, DT_Q8_0, PROLOGUE_SIGMOID_GATE, EPILOGUE_STORE, 6, 0},
        {768, 20, 2, DT_Q6_K, PROLOGUE_NORM, EPILOGUE_SWIGLU, 0, 0},
        {800, 4, 6, DT_Q5_0, PROLOGUE_NORM, EPILOGUE_ADD, 0, 0},
        {1792, 40, 1, DT_Q6_K, PROLOGUE_SIGMOID_GATE, EPILOGUE_ADD, 64, 0},
        {4352, 3, 2, DT_Q6_K, PROLOGUE_NORM, EPILOGUE_STORE, 0, 0},
        {12544, 2, 1, DT_Q4_K, PROLOGUE_NORM, EPILOGUE_STORE, 0, 0},
        {12544, 2, 1, DT_Q6_K, PROLOGUE_GATED_NORM, EPILOGUE_STORE, 128, 0},
        {512, 2, 1, DT_Q8_0, PROLOGUE_NORM, EPILOGUE_ADD, 0, 3011},
        {640, 2, 2, DT_Q8_0, PROLOGUE_NONE, EPILOGUE_STORE, 0, 1700},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct project_case c = {.k = cases[i].k,
                                 .rows = cases[i].rows,
                                 .n_segments = cases[i].n_segments,
                                 .prologue = cases[i].prologue,
                                 .epilogue = cases[i].epilogue,
                                 .has_bias = cases[i].epilogue == EPILOGUE_SWIGLU,
                                 .head_width = cases[i].head_width};
        for (uint32_t s = 0; s < c.n_segments; s++) {
            c.types[s] = cases[i].type;
            c.n[s] = cases[i].n ? cases[i].n : c.epilogue == EPILOGUE_SWIGLU ? 67 : 17 + 9 * s;
        }
        check_some_rows(&c, 2800 + i, 2);
        c.rows = 1;
        check_project(&c, 2800 + i);
    }
}

/* A row's bits are its own: alone in a plan of one row, or among others in a wide one. */
TEST(vulkan_project_rows_are_independent) {
    static const enum dtype types[] = {DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_Q8_0,
                                       DT_BF16, DT_Q4_0, DT_F32,  DT_F16};
    static const uint32_t buckets[] = {2, 4, 8, 16, 32, 70};
    for (uint32_t t = 0; t < 8; t += rig_is_slow() ? 4 : 1)
        for (uint32_t i = rig_is_slow(); i < 6; i += rig_is_slow() ? 2 : 1)
            check_some_rows(
                &(struct project_case){.k = 768,
                                       .rows = buckets[i],
                                       .n_segments = 2,
                                       .n = {67, 67},
                                       .types = {types[t], types[rig_is_slow() ? t : (t + i) % 8]},
                                       .prologue = PROLOGUE_NORM,
                                       .epilogue = i % 2 ? EPILOGUE_SWIGLU : EPILOGUE_STORE},
                3000 + t, 5);
}

/* Prompts: by matrices, where the device has them or SLUICE_VULKAN_PLAIN=matrix. */
TEST(vulkan_project_matrices) {
    static const enum dtype types[] = {DT_Q4_K, DT_Q5_K, DT_Q6_K};
    for (uint32_t t = 0; t < 3; t++)
        check_some_rows(&(struct project_case){.k = t == 1 ? 768 : 2816,
                                               .rows = 70,
                                               .n_segments = 2,
                                               .n = {67, 67},
                                               .types = {types[t], types[t]},
                                               .prologue = PROLOGUE_NORM,
                                               .epilogue = t ? EPILOGUE_STORE : EPILOGUE_SWIGLU},
                        3100 + t, 3);
}

TEST(vulkan_delta) {
    static const struct delta_case cases[] = {
        {4, 8, 128, 128, 4, HEADS_GROUPED, 1}, {2, 6, 64, 32, 4, HEADS_GROUPED, 33},
        {3, 6, 48, 40, 3, HEADS_TILED, 17},    {1, 1, 20, 12, 2, HEADS_GROUPED, 5},
        {2, 4, 16, 16, 4, HEADS_GROUPED, 64},  {2, 2, 65, 33, 5, HEADS_TILED, 90},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_delta(&cases[i], 4000 + i);
}

TEST(vulkan_delta_rows_are_independent) {
    static const uint32_t buckets[] = {2, 5, 24, 70};
    for (size_t i = 0; i < sizeof buckets / sizeof *buckets; i++)
        check_delta_rows(
            &(struct delta_case){2, 4, 64, 64, 4, i % 2 ? HEADS_TILED : HEADS_GROUPED, buckets[i]},
            4200);
}

TEST(vulkan_delta_stores_states_to_cells) {
    static const struct delta_case cases[] = {{2, 4, 64, 64, 4, HEADS_GROUPED, 16},
                                              {2, 2, 65, 33, 5, HEADS_TILED, 40}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_cells(&cases[i], 1, 10, 4200 + i);
        check_cells(&cases[i], 11, 9, 4220 + i);
    }
}

TEST(vulkan_attend) {
    static const struct attend_case cases[] = {
        {4, 1, 256, 64, 1, 70, DT_F16, ROPE_HALVES, true},
        {6, 2, 64, 32, 9, 100, DT_F32, ROPE_HALVES, true},
        {9, 3, 64, 64, 33, 250, DT_F16, ROPE_NEIGHBOURS, false},
        {4, 1, 128, 128, 17, 150, DT_Q8_0, ROPE_HALVES, true},
        {8, 8, 32, 0, 5, 120, DT_Q4_0, ROPE_HALVES, false},
        {5, 1, 80, 20, 7, 120, DT_F16, ROPE_HALVES, false},
        {14, 2, 24, 24, 3, 60, DT_F32, ROPE_NEIGHBOURS, true},
        {8, 2, 64, 64, 150, 500, DT_F16, ROPE_HALVES, true},
        {12, 1, 96, 32, 8, 120, DT_Q8_0, ROPE_HALVES, true},
        {2, 1, 512, 64, 40, 200, DT_F16, ROPE_HALVES, true},
        {24, 2, 4, 0, 70, 230, DT_F16, ROPE_HALVES, false}, /* the most turns of loops */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_attend(&cases[i], 5000 + i);
}

/* Mean distance from the CPU's rows of one sequence, with this many times the usual scale. */
static double attend_distance(const struct attend_case *c, float times, uint64_t seed) {
    struct rig r;
    struct operand pages = build_attend(&r, c, 1, seed);
    double sum = 0;
    r.plan->ops[r.plan->n_ops - 2].attend.scale *= times;
    if (rig_open(&r)) {
        deal_pages(&r, &pages);
        for (uint32_t at = 0; at < c->context; at += c->rows) {
            step_both(&r, &(struct rig_segment){0, at, c->rows}, 1);
            for (uint32_t row = 0; row < c->rows; row++)
                sum += rig_distance(rig_output(&r, RIG_CPU, 0, row),
                                    rig_output(&r, RIG_DEVICE, 0, row), r.options.tap_width);
        }
    }
    rig_end(&r);
    return sum / c->context;
}

/* Over F16 queries and softmax weights are the F16 values that the CPU has. Without norms and
 * rotation both start from the same bits. A large scale shows the queries, whose scores differ by
 * whole numbers where they are not rounded alike; few positions, which have the CPU's maximum, show
 * the weights. */
TEST(vulkan_attend_f16_values) {
    static const struct {
        struct attend_case c;
        float times;
        double bound;
    } cases[] = {
        {{4, 1, 64, 0, 1, 96, DT_F16, ROPE_HALVES, false}, 256, 1e-4},
        {{4, 1, 64, 0, 4, 96, DT_F16, ROPE_HALVES, false}, 256, 1e-4},
        {{4, 1, 64, 0, 48, 96, DT_F16, ROPE_HALVES, false}, 256, 1e-4},
        {{4, 1, 64, 0, 1, 32, DT_F16, ROPE_HALVES, false}, 1, 2e-4},
        {{4, 1, 64, 0, 4, 32, DT_F16, ROPE_HALVES, false}, 1, 2e-4},
        {{4, 1, 64, 0, 33, 33, DT_F16, ROPE_HALVES, false}, 1, 2e-4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double d = attend_distance(&cases[i].c, cases[i].times, 5100 + i);
        test_note("case %zu: %.3e", i, d);
        if (!(d < cases[i].bound))
            test_fail(__FILE__, __LINE__, "case %zu: off by %.2e", i, d);
    }
}

TEST(vulkan_attend_rows_are_independent) {
    static const struct attend_case cases[] = {
        {4, 1, 64, 64, 33, 200, DT_F16, ROPE_HALVES, true},
        {4, 2, 64, 64, 140, 300, DT_Q8_0, ROPE_HALVES, true},
        {3, 1, 32, 32, 3, 100, DT_Q4_0, ROPE_NEIGHBOURS, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_attend_rows(&cases[i], 5300 + i);
}

/* Where parts become longer, and far beyond. */
TEST(vulkan_attend_far_positions) {
    static const struct attend_case f16 = {4, 1, 64, 64, 1, 66000, DT_F16, ROPE_HALVES, true},
                                    q8 = {8, 2, 96, 32, 1, 5000, DT_Q8_0, ROPE_HALVES, true};
    check_attend_far(&f16, 5, 1027, 5, true, 5400);
    check_attend_far(&f16, 40, 1030, 11, false, 5401);
    check_attend_far(&f16, 3, 65538, 3, true, 5402);
    check_attend_far(&f16, 33, 65538, 3, false, 5402);
    check_attend_far(&q8, 33, 4100, 7, true, 5403);
}

TEST(vulkan_experts) {
    static const struct experts_case cases[] = {
        {DT_Q4_K, DT_Q4_K, DT_Q6_K, DT_Q4_K, DT_Q6_K, 512, 256, 256, 5, 3, false},
        {DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q8_0, 256, 64, 0, 20, 4, false},
        {DT_Q4_K, DT_Q6_K, DT_Q5_K, DT_BF16, DT_Q6_K, 256, 256, 256, 3, 2, false},
        {DT_F32, DT_F32, DT_Q8_0, DT_F32, DT_F32, 96, 32, 64, 300, 9, true},
        {DT_Q4_K, DT_Q4_K, DT_Q4_K, DT_BF16, DT_Q8_0, 512, 256, 96, 4, 3, true}, /* groups of 32 */
        {DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q8_0, 256, 128, 512, 45, 40, false},
        {DT_IQ2_XS, DT_IQ2_XS, DT_IQ4_NL, DT_Q5_0, DT_MXFP4, 256, 96, 64, 6, 2, false},
    };
    static const uint32_t rows[] = {3, 12, 70};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += rig_is_slow() ? 4 : 1) {
        struct rig one;
        build_experts(&one, &cases[i], 1, 6500 + i);
        bool is_open = rig_open(&one);
        for (size_t n = 0; is_open && n < sizeof rows / sizeof *rows; n += rig_is_slow() ? 2 : 1) {
            struct rig many;
            build_experts(&many, &cases[i], rows[n], 6500 + i);
            if (rig_open(&many))
                check_experts(&many, &one, &cases[i], rows[n]);
            rig_end(&many);
        }
        rig_end(&one);
    }
}
