/* test_vulkan_pick.c - PICK of the Vulkan backend: the CPU's tokens for the same logits. */
#include "check_pick.h"
#include "pick_drafts.h"

TEST(vulkan_pick_of_drafts_is_that_of_a_row_after_the_other) {
    check_picks_of_drafts(rig_kinds[RIG_DEVICE], 1);
}

TEST(vulkan_pick) {
    static const uint32_t rows[] = {1, 3, 16};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_pick(1001, rows[i], DT_F32);
        check_pick(6000, rows[i], DT_F16);
    }
}

/* Logits of which none weighs much: a sum that is off by a thousandth draws other tokens. */
TEST(vulkan_pick_of_flat_logits) {
    check_pick_of(1501, 16, DT_F32, 0.5f);
}

TEST(vulkan_pick_of_what_is_not_finite) {
    static const uint32_t rows[] = {1, 3, 16};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 9; i += 2)
        check_not_finite(1001, rows[i % 3], DT_F32, false, values[i / 3]);
}

/* ---- bursts ------------------------------------------------------------------------------- */

/* Two sequences, each from a token of its own, as one burst. */
static void run_burst(struct pick_rig *r, const int32_t start[2], int32_t end_token,
                      int32_t picked[2][IO_BURST]) {
    uint8_t *io = r->kind->io(r->b);
    struct io_header *header = (struct io_header *)io;
    struct io_row *rows = (struct io_row *)(io + r->plan->io.rows);
    struct io_segment *segments = (struct io_segment *)(io + r->plan->io.segments);
    struct io_output *outputs = (struct io_output *)(io + r->plan->io.outputs);
    const int32_t *burst = (const int32_t *)(io + r->plan->io.burst);
    struct io_output wanted = outputs[0]; /* as pick_rows() left it */
    *header = (struct io_header){.n_rows = 2,
                                 .n_segments = 2,
                                 .n_outputs = 2,
                                 .step = ++r->step,
                                 .spare_cell = IO_NO_CELL,
                                 .n_ends = 1,
                                 .ends = {end_token}};
    for (uint32_t i = 0; i < 2; i++) {
        rows[i] = (struct io_row){start[i], 100, i, i};
        segments[i] = (struct io_segment){i, i, 1, 100};
        outputs[i] = wanted;
        outputs[i].row = i;
    }
    update_in_place(io, r->plan);
    struct err err = {0};
    if (r->kind->submit_burst(r->b, 0, &err) || r->kind->wait(r->b, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    for (uint32_t i = 0; i < 2; i++) {
        memcpy(picked[i], burst + i * IO_BURST, (IO_BURST - 1) * sizeof **picked);
        picked[i][IO_BURST - 1] = outputs[i].token;
    }
}

/* After that token a sequence is over: what it would go on with is not counted. */
static void check_burst(struct pick_rig *r, float temperature, bool has_end) {
    static const int32_t start[2] = {7, 20};
    uint16_t expected[2][PICK_VOCAB] = {{0}}, counts[PICK_VOCAB];
    int32_t tokens[2][IO_BURST + 1], picked[2][IO_BURST];
    for (uint32_t s = 0; s < 2; s++) {
        memset(counts, 0, sizeof counts);
        pick_counts(r, s, true, counts);
        tokens[s][0] = start[s];
        for (uint32_t i = 0; i < IO_BURST; i++)
            pick_rows(r, s, 100 + i, &tokens[s][i], 1, temperature, &tokens[s][i + 1]);
        memset(counts, 0, sizeof counts);
        pick_counts(r, s, true, counts);
    }
    int32_t end_token = has_end ? tokens[1][4] : -1;
    run_burst(r, start, end_token, picked);
    for (uint32_t s = 0; s < 2; s++) {
        bool is_over = false;
        for (uint32_t i = 0; i < IO_BURST && !is_over; i++) {
            expected[s][tokens[s][i]]++;
            EXPECT_INT(picked[s][i], tokens[s][i + 1]);
            is_over = tokens[s][i + 1] == end_token;
        }
        pick_counts(r, s, false, counts);
        EXPECT(memcmp(counts, expected[s], sizeof counts) == 0);
    }
}

TEST(vulkan_bursts_are_steps_one_after_the_other) {
    struct pick_rig r = {.kind = rig_kinds[RIG_DEVICE]};
    if (!pick_open(&r, 1))
        return;
    EXPECT(r.kind->has_burst(r.b, 0));
    for (uint32_t i = 0; i < 4; i++)
        check_burst(&r, i % 2 ? 0.7f : 0, i / 2);
    r.kind->close(r.b);
    plan_free(r.plan);
}
