/* test_cuda_ops.c - every op of the CUDA backend against the CPU's, on random plans. */
#include "ops.h"

/* ---- PROJECT ------------------------------------------------------------------------------ */

TEST(cuda_project_types) {
    static const uint32_t rows[] = {1, 2, 3, 5, 8, 9, 16, 33, 130};
    for (uint32_t t = 0; t < FORMAT_TYPES; t++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct project_case c = {.k = i % 2 ? 768 : 2560,
                                     .rows = rows[i],
                                     .n_segments = 1,
                                     .n = {100 + 37 * (uint32_t)i},
                                     .types = {format_types[t]}};
            check_project(&c, t * 100 + i);
        }
}

TEST(cuda_project_shapes) {
    check_project_shapes(&(struct project_shapes){.n = 60,
                                                  .widths = 11,
                                                  .rows = 33,
                                                  .results = 300,
                                                  .types = format_types,
                                                  .n_types = FORMAT_TYPES});
}

TEST(cuda_project_odd_widths) {
    check_project_odd_widths();
}

/* Products of one plan may share a kernel, that of all their types; one of them may have only some,
 * and a head need not be followed by PICK. */
TEST(cuda_project_types_of_a_plan) {
    enum { PRODUCTS = 4, K = 1024 };
    static const struct {
        enum dtype types[2];
        uint32_t n[2];
        bool is_lm_head;
    } products[PRODUCTS] = {
        {{DT_Q4_K}, {300, 0}, false},
        {{DT_F32}, {70, 0}, false},
        {{DT_Q6_K, DT_F32}, {260, 33}, false},
        {{DT_Q6_K}, {501, 0}, true},
    };
    static const uint32_t rows[] = {1, 2, 4, 7, 33};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct plan_options options = {.max_rows = rows[i], .n_taps = PRODUCTS, .tap_width = 501};
        struct operand outs[PRODUCTS];
        struct rig r;
        rig_begin(&r, 3500 + i, &options);
        struct operand x = rig_rows(&r, K, 1), norm = rig_tensor(&r, DT_F32, (uint32_t[4]){K}, 1);
        for (uint32_t p = 0; p < PRODUCTS; p++) {
            struct op op = {.kind = OP_PROJECT, .layer = 0, .role = "product"};
            op.project = (struct op_project){.in = x,
                                             .norm = norm,
                                             .prologue = PROLOGUE_NORM,
                                             .eps = 1e-6f,
                                             .is_lm_head = products[p].is_lm_head};
            uint32_t width = 0;
            for (uint32_t s = 0; s < 2 && products[p].n[s]; s++) {
                struct segment *g = &op.project.segments[op.project.n_segments++];
                g->weight =
                    rig_tensor(&r, products[p].types[s], (uint32_t[4]){K, products[p].n[s]}, 0.05f);
                g->f32_act = products[p].types[s] == DT_F32;
                g->column = width;
                width += products[p].n[s];
            }
            op.project.out = outs[p] = plan_scratch(r.plan, width);
            rig_add(&r, &op);
        }
        for (uint32_t p = 0; p < PRODUCTS; p++)
            rig_tap(&r, p, outs[p]);
        bool is_open = rig_open(&r);
        for (int b = 0; is_open && b < RIG_BACKENDS; b++)
            rig_step(&r, b, &(struct rig_segment){0, 0, rows[i]}, 1, 5);
        for (uint32_t k = 0; is_open && k < PRODUCTS * rows[i]; k++) {
            uint32_t p = k % PRODUCTS, row = k / PRODUCTS;
            double d = rig_distance(rig_output(&r, RIG_CPU, p, row),
                                    rig_output(&r, RIG_DEVICE, p, row), outs[p].dims[0]);
            if (!(d < (products[p].types[0] == DT_F32 ? F32_BOUND : INT8_BOUND)))
                test_fail(__FILE__, __LINE__, "product %u, row %u of %u: off by %.2e", p, row,
                          rows[i], d);
        }
        rig_end(&r);
    }
}

/* A row's bits are its own: alone in a plan of one row, or among others in a wide one. */
TEST(cuda_project_rows_are_independent) {
    static const enum dtype types[] = {DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_Q8_0,
                                       DT_BF16, DT_Q4_0, DT_F32,  DT_F16};
    static const uint32_t buckets[] = {2, 4, 7, 8, 16, 32, 40, 200};
    for (size_t t = 0; t < 8; t++)
        for (size_t i = 0; i < 8; i++) {
            struct project_case c = {.k = 2048,
                                     .rows = 1,
                                     .n_segments = 2,
                                     .n = {333, 333},
                                     .types = {types[t], types[(t + i) % 8]},
                                     .prologue = PROLOGUE_NORM,
                                     .epilogue = i % 2 ? EPILOGUE_SWIGLU : EPILOGUE_STORE};
            struct rig one, many;
            build_project(&one, &c, 3000 + t);
            c.rows = buckets[i];
            build_project(&many, &c, 3000 + t);
            bool is_open = rig_open(&one);
            is_open = rig_open(&many) && is_open;
            if (is_open)
                rig_step(&many, RIG_DEVICE, &(struct rig_segment){0, 0, c.rows}, 1, 5);
            for (uint32_t row = 0; is_open && row < c.rows; row++) {
                if (differs_alone(&one, &many, (struct rig_segment){0, row, 1}, row, 5))
                    test_fail(__FILE__, __LINE__, "%s, row %u of %u has other bits alone",
                              dtype_name(types[t]), row, c.rows);
            }
            rig_end(&one);
            rig_end(&many);
        }
}

static void check_wide_rows(const struct project_case *wide, uint64_t seed) {
    check_some_rows(wide, seed, 24);
}

TEST(cuda_project_wide_rows_are_independent) {
    static const enum dtype types[] = {DT_Q4_K, DT_Q6_K, DT_Q5_K, DT_Q8_0};
    static const uint32_t widths[] = {256, 512, 768, 1024, 1280, 2048, 2560, 3584};
    struct rig r = {.random = 91};
    for (uint32_t i = 0; i < 16; i++) {
        struct project_case c = {.k = widths[rig_below(&r, 8)],
                                 .rows = i == 0 ? 3003 : 128 + rig_below(&r, 600),
                                 .n_segments = 1 + rig_below(&r, 3),
                                 .has_bias = rig_below(&r, 2),
                                 .head_width = 128};
        c.prologue = (enum prologue)rig_below(&r, 4);
        c.epilogue = (enum epilogue)rig_below(&r, 3);
        c.f32_last = c.prologue <= PROLOGUE_NORM && rig_below(&r, 3) == 0 && c.n_segments > 1;
        if (c.epilogue == EPILOGUE_SWIGLU)
            c.n_segments = 2, c.f32_last = false;
        if (c.epilogue == EPILOGUE_ADD)
            c.n_segments = 1, c.f32_last = false;
        for (uint32_t s = 0; s < c.n_segments; s++) {
            bool is_same = s && (c.epilogue == EPILOGUE_SWIGLU || rig_below(&r, 2));
            c.types[s] = is_same ? c.types[0] : i < 4 ? types[i] : types[rig_below(&r, 4)];
            c.n[s] = c.epilogue == EPILOGUE_SWIGLU && s ? c.n[0] : 1 + rig_below(&r, 700);
        }
        check_wide_rows(&c, 3700 + i);
    }
}

/* Tiles of 4, 8 and 16 rows, several K splits, several tiles a thread block. */
TEST(cuda_project_wide_shapes) {
    static const struct project_case cases[] = {
        {.k = 1024, .rows = 1500, .n_segments = 3, .n = {2048, 512, 64}, .f32_last = true},
        {.k = 3584, .rows = 3003, .n_segments = 1, .n = {1024}, .epilogue = EPILOGUE_ADD},
        {.k = 2048, .rows = 2990, .n_segments = 1, .n = {1024}, .epilogue = EPILOGUE_ADD},
        {.k = 1024, .rows = 400, .n_segments = 2, .n = {3584, 3584}, .epilogue = EPILOGUE_SWIGLU},
        /* tiles cut by K blocks: all of few; those after a round of whole ones; 4 rows a tile */
        {.k = 2560, .rows = 70, .n_segments = 2, .n = {2500, 2500}, .epilogue = EPILOGUE_SWIGLU},
        {.k = 2560, .rows = 180, .n_segments = 3, .n = {4000, 2100, 40}, .f32_last = true},
        {.k = 4096, .rows = 100, .n_segments = 1, .n = {2560}, .epilogue = EPILOGUE_ADD},
        {.k = 9216, .rows = 64, .n_segments = 1, .n = {2560}, .epilogue = EPILOGUE_ADD},
        /* and of 128 rows a tile */
        {.k = 9216, .rows = 300, .n_segments = 1, .n = {2560}, .epilogue = EPILOGUE_ADD},
    };
    static const enum dtype types[] = {DT_Q4_K, DT_Q6_K, DT_BF16, DT_Q8_0, DT_F16};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t type = 0; type < sizeof types / sizeof *types; type++) {
            struct project_case c = cases[i];
            c.prologue = c.epilogue == EPILOGUE_ADD ? PROLOGUE_NONE : PROLOGUE_NORM;
            for (uint32_t s = 0; s < c.n_segments; s++)
                c.types[s] = types[type];
            check_wide_rows(&c, 3900 + i);
        }
}

/* BF16 and F16 weights are multiplied by mma for few rows and by wgmma for many, F32 ones beside
 * them too: one definition (kernels/project_bf16.cuh). Tiles of 4, 8 and 16 rows, with and without
 * splits; inputs of sizes that F16 has no numbers for. */
TEST(cuda_project_16_bit_rows_are_independent) {
    static const uint32_t rows[] = {9, 16, 17, 33, 64, 65, 128, 129, 300, 513};
    static const uint32_t widths[] = {256, 512, 768, 1024, 1280, 2048, 2560, 3584, 9216};
    struct rig r = {.random = 92};
    for (uint32_t n = 0; n < 40; n++) {
        uint32_t i = n / 2;
        enum dtype type = n % 2 ? DT_F16 : DT_BF16;
        struct project_case c = {.k = widths[rig_below(&r, 9)],
                                 .rows = i < 10 ? rows[i] : 9 + rig_below(&r, 700),
                                 .n_segments = 1 + rig_below(&r, 3),
                                 .has_bias = rig_below(&r, 2),
                                 .is_lm_head = rig_below(&r, 8) == 0,
                                 .head_width = 128};
        c.prologue = (enum prologue)rig_below(&r, 4);
        c.epilogue = (enum epilogue)rig_below(&r, 3);
        if (i % 5 == 4) {
            c.prologue = PROLOGUE_NONE, c.epilogue = EPILOGUE_STORE;
            c.size = i % 2 ? 1e-12f : 1e12f, c.has_bias = false;
        }
        c.f32_last = rig_below(&r, 2) == 0 && c.n_segments > 1;
        if (c.epilogue == EPILOGUE_SWIGLU)
            c.n_segments = 2, c.f32_last = false;
        if (c.epilogue == EPILOGUE_ADD)
            c.n_segments = 1, c.f32_last = false;
        for (uint32_t s = 0; s < c.n_segments; s++) {
            c.types[s] = c.f32_last && s + 1 == c.n_segments && i % 2 ? DT_F32 : type;
            c.n[s] = c.epilogue == EPILOGUE_SWIGLU && s ? c.n[0] : 1 + rig_below(&r, 900);
        }
        check_wide_rows(&c, 3950 + n);
        check_project(&c, 3950 + n);
    }
}

/* One row, with a pipeline of two stages that are filled again: many times, since a stage that is
 * filled before all of it was read is wrong now and then. */
TEST(cuda_project_stages_are_filled_in_time) {
    static const enum dtype types[] = {DT_BF16, DT_F16, DT_Q8_0, DT_Q4_K, DT_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct project_case c = {.k = 9216,
                                 .rows = 65,
                                 .n_segments = 2,
                                 .n = {334, 334},
                                 .types = {types[i], types[i]},
                                 .prologue = PROLOGUE_NORM,
                                 .epilogue = EPILOGUE_SWIGLU};
        check_some_rows(&c, 4000 + i, 500);
    }
}

/* ---- DELTA -------------------------------------------------------------------------------- */

TEST(cuda_delta) {
    static const struct delta_case cases[] = {
        {16, 32, 128, 128, 4, HEADS_GROUPED, 1}, {16, 16, 128, 128, 4, HEADS_TILED, 9},
        {2, 6, 64, 32, 4, HEADS_GROUPED, 33},    {3, 6, 48, 40, 3, HEADS_TILED, 17},
        {1, 1, 20, 12, 2, HEADS_GROUPED, 5},     {4, 8, 256, 64, 8, HEADS_TILED, 12},
        {2, 4, 16, 16, 4, HEADS_GROUPED, 64},    {16, 32, 128, 128, 4, HEADS_GROUPED, 4},
        {16, 16, 128, 128, 4, HEADS_TILED, 3},   {16, 64, 128, 128, 4, HEADS_GROUPED, 8},
        {16, 32, 128, 128, 4, HEADS_TILED, 300}, {2, 6, 64, 32, 4, HEADS_GROUPED, 257},
        {3, 6, 48, 40, 3, HEADS_TILED, 130},     {4, 8, 256, 64, 8, HEADS_TILED, 100},
        {2, 2, 65, 33, 5, HEADS_TILED, 90},      {2, 4, 192, 200, 4, HEADS_GROUPED, 75},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_delta(&cases[i], 4000 + i);
}

/* Steps of many sequences, most of them with a single row; in every other one the last has more. */
TEST(cuda_delta_of_many_sequences) {
    enum { SLOTS = 25, MANY_SLOTS = 128 };
    static const struct delta_case cases[] = {
        {16, 32, 128, 128, 4, HEADS_GROUPED, 24}, {4, 8, 192, 96, 4, HEADS_TILED, 24},
        {16, 32, 128, 128, 4, HEADS_TILED, 128},  {16, 32, 128, 128, 4, HEADS_GROUPED, 70},
        {2, 4, 256, 192, 6, HEADS_GROUPED, 20},   {2, 2, 65, 33, 5, HEADS_TILED, 30},
        {16, 32, 128, 128, 4, HEADS_GROUPED, 8},  {16, 64, 128, 128, 4, HEADS_TILED, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct delta_case *c = &cases[i];
        struct rig r;
        uint32_t at[MANY_SLOTS] = {0}, slots = c->rows > 100 ? MANY_SLOTS : SLOTS;
        build_delta(&r, c, slots, 4100 + i);
        bool is_open = rig_open(&r);
        for (uint32_t step = 0; is_open && step < 5; step++) {
            struct rig_segment segments[MANY_SLOTS];
            uint32_t n = step % 2 ? c->rows - 5 : c->rows, rows = 0;
            n = n < slots ? n : slots;
            for (uint32_t k = 0; k < n; k++) { /* slots in another order than rows */
                uint32_t slot = (k * 7 + step) % slots,
                         length = k + 1 == n && step % 2 ? c->rows - rows : 1;
                segments[k] = (struct rig_segment){slot, at[slot], length};
                at[slot] += length;
                rows += length;
            }
            step_both(&r, segments, n);
            check_rows(&r, i, step, rows, F32_BOUND);
        }
        if (is_open)
            EXPECT_NEAR(state_distance(&r), 0, F32_BOUND);
        rig_end(&r);
    }
}

TEST(cuda_delta_stores_states_to_cells) {
    static const struct delta_case cases[] = {
        {16, 32, 128, 128, 4, HEADS_GROUPED, 16}, {4, 8, 128, 128, 4, HEADS_TILED, 64},
        {3, 6, 48, 40, 3, HEADS_TILED, 17},       {4, 8, 256, 64, 8, HEADS_TILED, 12},
        {2, 2, 65, 33, 5, HEADS_TILED, 40},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_cells(&cases[i], 1, 10, 4200 + i);
        check_cells(&cases[i], 5, 2, 4210 + i);
        check_cells(&cases[i], 11, 9, 4220 + i);
    }
}

TEST(cuda_delta_rows_are_independent) {
    static const uint32_t buckets[] = {2, 3, 4, 5, 8, 16, 24, 33, 200}, heads[] = {16, 32, 48, 64};
    for (size_t h = 0; h < 4; h++)
        for (size_t i = 0; i < 9; i++)
            check_delta_rows(&(struct delta_case){16, heads[h], 128, 128, 4,
                                                  i % 2 ? HEADS_TILED : HEADS_GROUPED, buckets[i]},
                             4200 + h);
}

TEST(cuda_delta_logs) {
    check_delta_logs(&(struct delta_case){16, 32, 128, 128, 4, HEADS_GROUPED, 20}, 40, 4300);
    check_delta_logs(&(struct delta_case){16, 16, 128, 128, 4, HEADS_TILED, 48}, 40, 4301);
}

/* ---- ATTEND ------------------------------------------------------------------------------- */

TEST(cuda_attend) {
    static const struct attend_case cases[] = {
        {16, 4, 256, 64, 1, 600, DT_F16, ROPE_HALVES, true},
        {32, 32, 64, 64, 1, 300, DT_F16, ROPE_NEIGHBOURS, false},
        {6, 2, 64, 32, 9, 700, DT_F32, ROPE_HALVES, true},
        {9, 3, 64, 64, 33, 900, DT_F16, ROPE_NEIGHBOURS, false},
        {4, 1, 128, 128, 17, 800, DT_Q8_0, ROPE_HALVES, true},
        {8, 8, 32, 0, 5, 300, DT_Q4_0, ROPE_HALVES, false},
        {5, 1, 80, 20, 7, 400, DT_F16, ROPE_HALVES, false},
        {14, 2, 24, 24, 3, 300, DT_F32, ROPE_NEIGHBOURS, true},
        {24, 4, 256, 64, 8, 500, DT_Q8_0, ROPE_HALVES, true},
        {9, 3, 64, 64, 12, 700, DT_F16, ROPE_HALVES, true},
        {16, 2, 128, 128, 8, 600, DT_F16, ROPE_HALVES, true},
        {24, 2, 256, 64, 5, 400, DT_F16, ROPE_HALVES, true},
        {20, 20, 64, 32, 32, 700, DT_F16, ROPE_NEIGHBOURS, false},
        {8, 2, 256, 64, 150, 1200, DT_F16, ROPE_HALVES, true},
        {6, 2, 64, 64, 140, 1300, DT_F16, ROPE_HALVES, false},
        {3, 1, 128, 128, 99, 1400, DT_F16, ROPE_HALVES, true},
        {8, 2, 256, 64, 150, 1200, DT_Q8_0, ROPE_HALVES, true},
        {16, 4, 128, 128, 99, 1400, DT_Q4_0, ROPE_HALVES, true},
        {6, 2, 64, 64, 140, 1300, DT_Q8_0, ROPE_NEIGHBOURS, false},
        {8, 2, 96, 96, 150, 1200, DT_F16, ROPE_HALVES, true},
        {6, 6, 96, 32, 40, 900, DT_Q8_0, ROPE_HALVES, false},
        {8, 2, 96, 96, 1, 300, DT_F16, ROPE_HALVES, true},
        {16, 4, 256, 64, 1, 600, DT_Q4_0, ROPE_HALVES, true},
        {20, 2, 128, 128, 1, 600, DT_Q8_0, ROPE_NEIGHBOURS, false},
        {6, 6, 64, 64, 1, 300, DT_Q8_0, ROPE_HALVES, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_attend(&cases[i], 5000 + i);
}

TEST(cuda_attend_rows_are_independent) {
    static const struct attend_case cases[] = {
        {16, 4, 256, 64, 33, 1700, DT_F16, ROPE_HALVES, true},
        {16, 4, 256, 64, 700, 2500, DT_F16, ROPE_HALVES, true},
        {8, 1, 256, 64, 200, 1100, DT_F16, ROPE_HALVES, true},
        {32, 8, 128, 128, 128, 2100, DT_F16, ROPE_HALVES, true},
        {7, 1, 128, 128, 450, 2600, DT_F16, ROPE_NEIGHBOURS, false},
        {9, 3, 64, 64, 300, 2400, DT_F16, ROPE_NEIGHBOURS, false},
        {24, 24, 64, 64, 140, 1500, DT_F16, ROPE_HALVES, false},
        {16, 2, 256, 64, 3, 700, DT_F16, ROPE_HALVES, true},
        {20, 4, 128, 128, 8, 1600, DT_F16, ROPE_HALVES, true},
        {6, 3, 64, 64, 32, 1300, DT_F16, ROPE_HALVES, true},
        {16, 4, 256, 64, 700, 2500, DT_Q8_0, ROPE_HALVES, true},
        {16, 4, 256, 64, 33, 1700, DT_Q4_0, ROPE_HALVES, true},
        {24, 4, 256, 64, 8, 700, DT_Q8_0, ROPE_HALVES, true},
        {32, 8, 128, 128, 128, 2100, DT_Q4_0, ROPE_HALVES, true},
        {7, 1, 128, 128, 450, 2600, DT_Q8_0, ROPE_NEIGHBOURS, false},
        {9, 3, 64, 64, 300, 2400, DT_Q8_0, ROPE_NEIGHBOURS, false},
        {24, 24, 64, 64, 140, 1500, DT_Q4_0, ROPE_HALVES, false},
        {8, 2, 96, 96, 300, 2400, DT_F16, ROPE_HALVES, true},
        {6, 6, 96, 96, 140, 1500, DT_Q8_0, ROPE_HALVES, false},
        {6, 2, 96, 96, 9, 700, DT_Q4_0, ROPE_HALVES, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_attend_rows(&cases[i], 5100 + i);
}

TEST(cuda_attend_far_positions) {
    static const struct attend_case cases[] = {
        {8, 1, 128, 128, 1, 262144, DT_F16, ROPE_HALVES, true},
        {4, 1, 256, 64, 1, 262144, DT_Q8_0, ROPE_HALVES, true},
        {2, 2, 64, 64, 1, 262144, DT_Q4_0, ROPE_HALVES, true},
        {4, 1, 256, 64, 1, 262144, DT_F16, ROPE_HALVES, true},
        {4, 1, 96, 96, 1, 140000, DT_F16, ROPE_HALVES, true},
    };
    static const uint32_t plans[] = {3, 20, 40}, ends[] = {65540, 131080, 140000, 262144};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t k = 0; k < sizeof plans / sizeof *plans; k++)
            for (size_t e = 0; e < sizeof ends / sizeof *ends; e++)
                if (ends[e] <= cases[i].context)
                    check_attend_far(&cases[i], plans[k], ends[e], 17, k == 0, 5300 + i);
}

TEST(cuda_attend_of_many_sequences) {
    static const struct attend_case cases[] = {
        {16, 4, 256, 64, 128, 700, DT_F16, ROPE_HALVES, true},
        {16, 4, 256, 64, 70, 1700, DT_F16, ROPE_HALVES, true},
        {32, 8, 128, 128, 33, 2000, DT_F16, ROPE_HALVES, true},
        {9, 3, 64, 64, 100, 900, DT_F16, ROPE_NEIGHBOURS, false},
        {16, 4, 256, 64, 64, 900, DT_Q8_0, ROPE_HALVES, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_attend_many(&cases[i], cases[i].rows + (uint32_t)i % 2, 5400 + i);
}

/* ---- ROUTE and EXPERTS -------------------------------------------------------------------- */

TEST(cuda_experts) {
    static const enum dtype types[] = {DT_Q4_K, DT_Q8_0, DT_BF16, DT_Q6_K, DT_F32, DT_Q4_0};
    for (uint32_t i = 0; i < 12; i++) {
        enum dtype type = types[i % 6];
        bool is_k = dtype_info(type)->block_values == 256;
        uint32_t rows = 1 + (i * 5) % 12, inner = is_k ? 256 : 96;
        const struct experts_case c = {.gate = type,
                                       .up = type,
                                       .down = type,
                                       .shared_in = type,
                                       .shared_down = type,
                                       .width = is_k ? 512 : 160,
                                       .inner = inner,
                                       .shared = i % 2 ? inner : 0,
                                       .experts = 5 + 3 * i,
                                       .used = 1 + i % 4};
        struct rig r;
        build_experts(&r, &c, rows, 6000 + i);
        if (rig_open(&r)) {
            for (int b = 0; b < RIG_BACKENDS; b++)
                rig_step(&r, b, &(struct rig_segment){0, 0, rows}, 1, 3);
            for (uint32_t row = 0; row < rows; row++) {
                EXPECT_NEAR(rig_distance(rig_output(&r, RIG_CPU, 1, row),
                                         rig_output(&r, RIG_DEVICE, 1, row), c.used + 1),
                            0, F32_BOUND);
                EXPECT_NEAR(rig_distance(rig_output(&r, RIG_CPU, 0, row),
                                         rig_output(&r, RIG_DEVICE, 0, row), c.width),
                            0, is_float(type) ? F32_BOUND : INT8_BOUND);
            }
        }
        rig_end(&r);
    }
}

/* Plans of few rows and of many (experts_wide.h), full and not. */
TEST(cuda_experts_mixed) {
    static const struct experts_case cases[] = {
        {DT_Q4_K, DT_Q4_K, DT_Q6_K, DT_Q4_K, DT_Q6_K, 1024, 512, 512, 5, 3, false},
        {DT_Q4_K, DT_Q4_K, DT_Q4_K, DT_Q8_0, DT_Q8_0, 512, 768, 256, 3, 2, false},
        {DT_Q4_K, DT_Q6_K, DT_Q5_K, DT_Q5_K, DT_Q6_K, 768, 512, 256, 3, 2, false},
        {DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q8_0, 256, 256, 512, 45, 40, true},
        {DT_Q6_K, DT_Q6_K, DT_Q8_0, DT_Q6_K, DT_Q8_0, 1280, 256, 0, 4, 1, false},
        {DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q8_0, 256, 256, 512, 4, 1, false},
        {DT_Q4_K, DT_Q4_K, DT_Q6_K, DT_Q4_K, DT_Q6_K, 768, 256, 512, 4, 1, false},
        {DT_Q4_K, DT_Q4_K, DT_Q4_K, DT_BF16, DT_Q4_K, 512, 256, 256, 4, 3, false},
        {DT_F32, DT_F32, DT_Q8_0, DT_F32, DT_F32, 96, 32, 64, 700, 9, false},
        {DT_Q5_K, DT_Q5_K, DT_Q5_K, DT_Q5_K, DT_Q5_K, 512, 256, 256, 100, 7, true},
        {DT_Q4_K, DT_Q4_K, DT_Q6_K, DT_Q8_0, DT_Q4_K, 1024, 256, 256, 33, 2, false},
        {DT_Q4_K, DT_Q4_K, DT_Q6_K, DT_Q4_K, DT_Q6_K, 2048, 512, 512, 12, 8, false},
        {DT_Q4_K, DT_Q4_K, DT_Q4_K, DT_Q4_K, DT_Q4_K, 2048, 512, 512, 12, 8, false},
    };
    static const uint32_t rows[] = {3, 12, 64, 70, 530};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig one;
        build_experts(&one, &cases[i], 1, 6500 + i);
        bool is_open = rig_open(&one);
        for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
            struct rig many;
            build_experts(&many, &cases[i], rows[n], 6500 + i);
            is_open = rig_open(&many) && is_open;
            if (is_open) {
                check_experts(&many, &one, &cases[i], rows[n]);
                check_experts(&many, &one, &cases[i], rows[n] / 2 + 1);
            }
            rig_end(&many);
        }
        rig_end(&one);
    }
}
