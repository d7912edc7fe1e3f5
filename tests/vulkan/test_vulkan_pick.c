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

TEST(vulkan_pick_of_what_is_not_finite) {
    static const uint32_t rows[] = {1, 3, 16};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 9; i += 2)
        check_not_finite(1001, rows[i % 3], DT_F32, false, values[i / 3]);
}
