/* test_emulated_ops.c - every op of the CUDA backend on the emulated GPU, against the CPU's: small
 * ones, for machines without a GPU. tests/cuda has them in the sizes of models, on a real one. */
#include "check_pick.h"
#include "ops.h"
#include "pick_drafts.h"

/* Rows in turn: one and two, few with dot products, more on tensor cores. */
TEST(emulated_project_types) {
    static const uint32_t rows[] = {1, 2, 3, 7, 20};
    for (uint32_t t = 0; t < FORMAT_TYPES; t++) {
        struct project_case c = {.k = t % 2 ? 256 : 768,
                                 .rows = rows[t % 5],
                                 .n_segments = 1,
                                 .n = {40},
                                 .types = {format_types[t]}};
        check_project(&c, 100 + t);
    }
}

/* Types with kernels of their own, and every number of rows that they have one for. */
TEST(emulated_project_rows) {
    static const enum dtype types[] = {DT_Q4_K, DT_Q6_K, DT_Q8_0, DT_BF16, DT_F16};
    static const uint32_t rows[] = {1, 2, 4, 8, 17, 33};
    for (size_t t = 0; t < 5; t++)
        for (size_t i = t % 2; i < 6; i += 2) {
            struct project_case c = {.k = 512,
                                     .rows = rows[i],
                                     .n_segments = 2,
                                     .n = {50, 50},
                                     .types = {types[t], types[t]},
                                     .has_bias = i % 3 == 0,
                                     .prologue = PROLOGUE_NORM,
                                     .epilogue = i % 2 ? EPILOGUE_SWIGLU : EPILOGUE_STORE};
            check_project(&c, 200 + 10 * t + i);
        }
}

TEST(emulated_project_shapes) {
    static const enum dtype some[] = {DT_Q4_K, DT_Q6_K, DT_Q8_0, DT_F16, DT_Q4_0};
    check_project_shapes(&(struct project_shapes){
        .n = 10, .widths = 6, .rows = 18, .results = 60, .types = some, .n_types = 5});
}

TEST(emulated_project_rows_are_independent) {
    static const enum dtype types[] = {DT_Q4_K, DT_Q8_0, DT_BF16};
    for (size_t t = 0; t < 3; t++) {
        struct project_case c = {.k = 768,
                                 .rows = 18,
                                 .n_segments = 1,
                                 .n = {70},
                                 .types = {types[t]},
                                 .prologue = PROLOGUE_NORM};
        check_some_rows(&c, 300 + t, 4);
    }
}

/* Rows by the tile, which 9.0 has wgmma for, and K splits; F32 weights beside others. */
TEST(emulated_project_wide) {
    static const struct project_case cases[] = {
        {.k = 512, .rows = 70, .n_segments = 2, .n = {140, 140}, .epilogue = EPILOGUE_SWIGLU},
        {.k = 1024, .rows = 130, .n_segments = 3, .n = {90, 50, 64}, .f32_last = true},
        {.k = 768, .rows = 100, .n_segments = 1, .n = {150}, .epilogue = EPILOGUE_ADD},
    };
    static const enum dtype types[] = {DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_Q8_0, DT_BF16, DT_F16};
    for (size_t i = 0; i < 9; i++) {
        struct project_case c = cases[i % 3];
        c.prologue = c.epilogue == EPILOGUE_ADD ? PROLOGUE_NONE : PROLOGUE_NORM;
        for (uint32_t s = 0; s < c.n_segments; s++)
            c.types[s] = types[(i + i / 6) % 6];
        check_some_rows(&c, 350 + i, 3);
        check_project(&c, 350 + i);
    }
}

/* Enough tiles for all SMs: then a K split is a block's alone, and 16-bit weights go by two. */
TEST(emulated_project_wide_tiles) {
    static const enum dtype types[] = {DT_BF16, DT_F16, DT_Q4_K};
    for (size_t i = 0; i < 3; i++) {
        struct project_case c = {.k = 256,
                                 .rows = 250,
                                 .n_segments = 1,
                                 .n = {500},
                                 .types = {types[i]},
                                 .prologue = PROLOGUE_NORM};
        check_some_rows(&c, 360 + i, 5);
    }
}

/* delta_decode, delta_few, delta_batch and delta_scan: of 128 values, and of other shapes. */
TEST(emulated_delta) {
    static const struct delta_case cases[] = {
        {1, 2, 128, 128, 4, HEADS_GROUPED, 1}, {2, 2, 128, 128, 4, HEADS_TILED, 5},
        {1, 1, 128, 128, 4, HEADS_TILED, 34},  {2, 4, 16, 16, 4, HEADS_GROUPED, 9},
        {1, 1, 20, 12, 2, HEADS_GROUPED, 5},   {1, 2, 256, 64, 8, HEADS_TILED, 12},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_delta(&cases[i], 400 + i);
}

TEST(emulated_delta_stores_states_to_cells) {
    static const struct delta_case cases[] = {{1, 2, 128, 128, 4, HEADS_GROUPED, 16},
                                              {2, 2, 65, 33, 5, HEADS_TILED, 20}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_cells(&cases[i], 1, 10, 500 + i);
        check_cells(&cases[i], 3, 2, 510 + i);
    }
}

TEST(emulated_delta_rows_are_independent) {
    for (uint32_t rows = 3; rows <= 12; rows += 9)
        check_delta_rows(&(struct delta_case){1, 2, 128, 128, 4, HEADS_TILED, rows}, 600 + rows);
}

/* delta_log, where 9.0 has it: rows that leave their state as it is, and one that brings it on. */
TEST(emulated_delta_logs) {
    check_delta_logs(&(struct delta_case){1, 2, 128, 128, 4, HEADS_GROUPED, 20}, 16, 650);
}

TEST(emulated_attend) {
    static const struct attend_case cases[] = {
        {4, 2, 64, 64, 1, 150, DT_F16, ROPE_HALVES, true},
        {4, 1, 128, 64, 9, 130, DT_F16, ROPE_NEIGHBOURS, false},
        {3, 1, 64, 32, 20, 110, DT_Q8_0, ROPE_HALVES, true},
        {2, 2, 96, 96, 3, 120, DT_Q4_0, ROPE_HALVES, true},
        {5, 1, 80, 20, 7, 100, DT_F32, ROPE_HALVES, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_attend(&cases[i], 700 + i);
}

/* One row, whose splits 9.0 deals to clusters, and rows by the tile, which it has wgmma for. */
TEST(emulated_attend_of_9_0) {
    static const struct attend_case cases[] = {
        {8, 2, 128, 128, 1, 260, DT_F16, ROPE_HALVES, true},
        {6, 1, 256, 64, 1, 200, DT_Q8_0, ROPE_HALVES, true},
        {4, 2, 64, 32, 1, 300, DT_Q4_0, ROPE_NEIGHBOURS, false},
        {4, 1, 128, 128, 40, 130, DT_F16, ROPE_HALVES, true},
        {3, 1, 64, 64, 40, 130, DT_Q8_0, ROPE_HALVES, false},
        {2, 1, 256, 64, 20, 90, DT_F16, ROPE_HALVES, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_attend(&cases[i], 750 + i);
}

TEST(emulated_attend_rows_are_independent) {
    check_attend_rows(&(struct attend_case){4, 2, 64, 64, 18, 90, DT_F16, ROPE_HALVES, true}, 800);
    check_attend_rows(&(struct attend_case){2, 1, 128, 64, 5, 70, DT_Q8_0, ROPE_HALVES, true}, 801);
}

/* A few rows, and as many as go by the tile. */
static void check_experts_of(const struct experts_case *c, uint32_t rows, uint64_t seed) {
    struct rig one, many;
    build_experts(&one, c, 1, seed);
    build_experts(&many, c, rows, seed);
    bool is_open = rig_open(&one);
    if (rig_open(&many) && is_open)
        check_experts(&many, &one, c, rows);
    rig_end(&many);
    rig_end(&one);
}

TEST(emulated_experts) {
    static const struct experts_case cases[] = {
        {DT_Q4_K, DT_Q4_K, DT_Q6_K, DT_Q4_K, DT_Q6_K, 512, 256, 256, 5, 3, false},
        {DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_BF16, DT_Q8_0, 256, 256, 0, 9, 4, true},
        {DT_F32, DT_F32, DT_Q4_0, DT_F32, DT_F32, 96, 32, 64, 7, 2, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_experts_of(&cases[i], 6, 900 + i);
    check_experts_of(&cases[0], 66, 910);
    check_experts_of(&(struct experts_case){DT_Q5_K, DT_Q5_K, DT_Q8_0, DT_Q5_K, DT_Q8_0, 256, 256,
                                            256, 4, 2, false},
                     64, 911);
}

TEST(emulated_pick) {
    check_pick(1001, 1, DT_F32);
    check_pick(1001, 3, DT_F16);
}

TEST(emulated_pick_of_drafts_is_that_of_a_row_after_the_other) {
    check_picks_of_drafts(rig_kinds[RIG_DEVICE], 1);
}

TEST(emulated_pick_of_what_is_not_finite) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++)
        check_not_finite(1001, 1 + (uint32_t)i, DT_F32, false, values[i]);
}
