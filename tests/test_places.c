/* test_places.c - tables of where weights are. */
#include "backend/places.h"
#include "test.h"

struct place {
    struct operand operand;
    int number;
};

static struct place place_at(uint64_t offset, uint32_t rows, int number) {
    return (struct place){
        .operand = {.offset = offset, .dims = {64, rows, 1, 1}, .n_dims = rows > 1 ? 2 : 1},
        .number = number};
}

TEST(places_keep_the_first_of_a_weight) {
    struct place list[] = {place_at(512, 4, 0), place_at(0, 8, 1),   place_at(512, 4, 2),
                           place_at(512, 1, 3), place_at(256, 2, 4), place_at(0, 8, 5)};
    enum { N = sizeof list / sizeof *list };
    static const int found[] = {0, 1, 0, 3, 4, 1}; /* of each that was there */
    struct place before[N];
    memcpy(before, list, sizeof list);
    uint32_t n = places_sort(list, N, sizeof *list);
    EXPECT_INT(n, 4);
    for (uint32_t i = 1; i < n; i++)
        EXPECT(list[i - 1].operand.offset <= list[i].operand.offset);
    for (uint32_t i = 0; i < N; i++) {
        const struct place *p = places_find(list, n, sizeof *list, &before[i].operand);
        EXPECT_INT(p->number, found[i]);
    }
    const struct operand taller = place_at(512, 5, 0).operand, later = place_at(513, 4, 0).operand;
    struct operand other = place_at(512, 3, 0).operand;
    const struct place *whole = places_look_up(list, n, sizeof *list, &other);
    EXPECT(whole && whole->number == 0); /* its first rows */
    EXPECT(places_look_up(list, n, sizeof *list, &taller) == NULL);
    EXPECT(places_look_up(list, n, sizeof *list, &later) == NULL);
    other.dims[0] = 32;
    EXPECT(places_look_up(list, n, sizeof *list, &other) == NULL);
    EXPECT(places_look_up(NULL, 0, sizeof *list, &other) == NULL);
    EXPECT_INT(places_sort(list, 0, sizeof *list), 0);
}
