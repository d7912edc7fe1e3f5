/* check_join.h - JOIN and HIDDEN of any backend against the CPU's, on rows that two EMBEDs bring.
 */
#ifndef TESTS_RIG_CHECK_JOIN_H
#define TESTS_RIG_CHECK_JOIN_H

#include "ops.h"

enum { JOIN_CELLS = 48 };

struct join_case {
    uint32_t width, rows;
    bool has_x; /* else every segment has one row */
};

static inline void build_join(struct rig *r, const struct join_case *c, uint64_t seed) {
    const struct plan_options options = {
        .max_rows = c->rows, .n_slots = JOIN_CELLS, .n_taps = 1, .tap_width = 2 * c->width};
    const uint32_t row[4] = {c->width};
    rig_begin(r, seed, &options);
    struct operand x = rig_rows(r, c->width, 1), embed = rig_rows(r, c->width, 3), none = {0};
    struct operand norm = rig_tensor(r, DT_F32, row, 1),
                   state = plan_state(r->plan, DT_F32, (uint32_t[4]){c->width, JOIN_CELLS});
    struct op op = {.kind = OP_JOIN, .layer = -1, .role = "join"};
    op.join = (struct op_join){.embed = embed,
                               .x = c->has_x ? x : none,
                               .norm = c->has_x ? norm : none,
                               .embed_norm = rig_tensor(r, DT_F32, row, 1),
                               .state_norm = rig_tensor(r, DT_F32, row, 1),
                               .state = state,
                               .out = plan_scratch(r->plan, 2 * c->width),
                               .eps = 1e-6f};
    struct operand out = op.join.out;
    rig_add(r, &op);
    op = (struct op){.kind = OP_HIDDEN, .layer = -1, .role = "hidden"};
    op.hidden = (struct op_hidden){.x = x, .norm = norm, .state = state, .eps = 1e-6f};
    rig_add(r, &op);
    rig_tap(r, 0, out);
}

/* STATE is nothing but hidden states. */
static inline bool open_join(struct rig *r) {
    uint64_t n = r->plan->bytes[REGION_STATE] / sizeof(float);
    if (!rig_open(r))
        return false;
    float *states = malloc(n * sizeof *states);
    struct err err = {0};
    for (uint64_t i = 0; i < n; i++)
        states[i] = 2 * rig_uniform(r);
    for (int b = 0; b < RIG_BACKENDS; b++)
        EXPECT_INT(rig_kinds[b]->write_state(r->b[b], 0, n * sizeof *states, states, &err),
                   SLUICE_OK);
    free(states);
    return true;
}

/* Cells in an order of their own: nothing of a step uses one twice. */
static inline void deal_cells(struct rig *r, uint32_t cells[JOIN_CELLS]) {
    for (uint32_t i = 0; i < JOIN_CELLS; i++)
        cells[i] = i;
    for (uint32_t i = JOIN_CELLS; i > 1; i--) {
        uint32_t k = rig_below(r, i), cell = cells[i - 1];
        cells[i - 1] = cells[k];
        cells[k] = cell;
    }
}

/* Segments of random lengths, of which the last may leave rows unused; cells that are updated in
 * place, and others, and rows between that store, too. */
static inline void join_step(struct rig *r, const struct join_case *c, uint64_t seed) {
    enum { MOST_SEGMENTS = 8, MOST_ROWS = 512 };
    struct rig_segment segments[MOST_SEGMENTS];
    uint32_t from[MOST_SEGMENTS], to[MOST_ROWS], cells[JOIN_CELLS], used = 0, n = 0, row = 0;
    CHECK(c->rows <= MOST_ROWS);
    deal_cells(r, cells);
    while (n < MOST_SEGMENTS && row < c->rows) {
        uint32_t rows = c->has_x ? 1 + rig_below(r, c->rows - row) : 1;
        segments[n] = (struct rig_segment){n, 10 * n + rig_below(r, 9), rows};
        from[n++] = cells[used++];
        for (uint32_t i = 0; i < rows; i++, row++) {
            bool is_last = i + 1 == rows, is_stored = is_last || rig_below(r, 3) == 0;
            if (is_last && rig_below(r, 2))
                to[row] = from[n - 1];
            else if (is_stored && (is_last || used + 2 * MOST_SEGMENTS < JOIN_CELLS))
                to[row] = cells[used++];
            else
                to[row] = IO_NO_CELL;
        }
    }
    for (int b = 0; b < RIG_BACKENDS; b++)
        rig_step_cells(r, b, segments, n, from, to, seed);
    check_rows(r, seed, c->width, row, F32_BOUND);
}

static inline void check_join(const struct join_case *c, uint64_t seed) {
    struct rig r;
    build_join(&r, c, seed);
    bool is_open = open_join(&r);
    for (uint32_t step = 0; is_open && step < 6; step++)
        join_step(&r, c, seed + step);
    if (is_open)
        EXPECT_NEAR(state_distance(&r), 0, F32_BOUND);
    rig_end(&r);
}

/* A row's bits are its own: after a row of its step, or from the state that this one stored. */
static inline void check_join_rows(const struct join_case *c, uint64_t seed) {
    struct join_case alone = *c;
    struct rig one, many;
    alone.rows = 1;
    build_join(&one, &alone, seed);
    build_join(&many, c, seed);
    bool is_open = open_join(&one);
    is_open = open_join(&many) && is_open;
    uint32_t first = c->rows / 3;
    const struct rig_segment segments[] = {{3, 5, first}, {0, 7, 1}, {2, 9, c->rows - first - 1}};
    if (is_open)
        rig_step(&many, RIG_DEVICE, segments, 3, 9);
    for (uint32_t k = 0, row = 0; is_open && k < 3; k++)
        for (uint32_t i = 0; i < segments[k].n_rows; i++, row++)
            if (differs_alone(
                    &one, &many,
                    (struct rig_segment){segments[k].slot, segments[k].first_position + i, 1}, row,
                    9))
                test_fail(__FILE__, __LINE__, "width %u: row %u of %u has other bits alone",
                          c->width, row, c->rows);
    if (is_open)
        EXPECT(has_same_state(&one, &many));
    rig_end(&one);
    rig_end(&many);
}

#endif
