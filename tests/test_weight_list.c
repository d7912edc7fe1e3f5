/* test_weight_list.c - the list of weights of a device backend. */
#include "backend/weight_list.h"
#include "test.h"

struct weight {
    struct operand operand;
    int number;
};

static struct weight weight_at(uint64_t offset, uint32_t rows, int number) {
    return (struct weight){
        .operand = {.offset = offset, .dims = {64, rows, 1, 1}, .n_dims = rows > 1 ? 2 : 1},
        .number = number};
}

TEST(weight_list_keeps_the_first_of_a_weight) {
    struct weight list[] = {weight_at(512, 4, 0), weight_at(0, 8, 1),   weight_at(512, 4, 2),
                            weight_at(512, 1, 3), weight_at(256, 2, 4), weight_at(0, 8, 5)};
    enum { N = sizeof list / sizeof *list };
    static const int found[] = {0, 1, 0, 3, 4, 1}; /* of each that was there */
    struct weight before[N];
    memcpy(before, list, sizeof list);
    uint32_t n = weight_list_sort(list, N, sizeof *list);
    EXPECT_INT(n, 4);
    for (uint32_t i = 1; i < n; i++)
        EXPECT(list[i - 1].operand.offset <= list[i].operand.offset);
    for (uint32_t i = 0; i < N; i++) {
        const struct weight *p = weight_list_find(list, n, sizeof *list, &before[i].operand);
        EXPECT_INT(p->number, found[i]);
    }
    const struct operand taller = weight_at(512, 5, 0).operand,
                         later = weight_at(513, 4, 0).operand;
    struct operand other = weight_at(512, 3, 0).operand;
    const struct weight *whole = weight_list_look_up(list, n, sizeof *list, &other);
    EXPECT(whole && whole->number == 0); /* its first rows */
    EXPECT(weight_list_look_up(list, n, sizeof *list, &taller) == NULL);
    EXPECT(weight_list_look_up(list, n, sizeof *list, &later) == NULL);
    other.dims[0] = 32;
    EXPECT(weight_list_look_up(list, n, sizeof *list, &other) == NULL);
    EXPECT(weight_list_look_up(NULL, 0, sizeof *list, &other) == NULL);
    EXPECT_INT(weight_list_sort(list, 0, sizeof *list), 0);
}
