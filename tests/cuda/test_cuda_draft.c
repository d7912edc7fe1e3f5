/* test_cuda_draft.c - the ops and bursts of a draft block on the CUDA backend. */
#include "check_draft_bursts.h"
#include "check_join.h"

TEST(cuda_join) {
    static const uint32_t widths[] = {1, 33, 100, 256, 2050, 2560, 5121},
                          rows[] = {1, 2, 5, 33, 200};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            for (uint32_t has_x = 0; has_x < 2; has_x++)
                check_join(&(struct join_case){widths[i], rows[k], has_x}, 7000 + 20 * i + 2 * k);
}

TEST(cuda_join_rows_are_independent) {
    static const uint32_t widths[] = {33, 1024, 2560, 5120}, rows[] = {3, 17, 140};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            check_join_rows(&(struct join_case){widths[i], rows[k], true}, 7200 + 3 * i + k);
}

TEST(cuda_draft_bursts_are_steps_one_after_the_other) {
    for (uint32_t rows = 1; rows <= DRAFT_ROWS; rows++) {
        check_draft_bursts(rows, DT_Q4_K, DT_Q4_K, 7300 + rows);
        check_draft_bursts(rows, DT_Q4_K, DT_Q8_0, 7310 + rows);
        check_draft_bursts(rows, DT_BF16, DT_BF16, 7320 + rows);
    }
}
