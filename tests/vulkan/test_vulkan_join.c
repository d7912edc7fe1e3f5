/* test_vulkan_join.c - JOIN and HIDDEN of the Vulkan backend against the CPU's. */
#include "ops.h"

/* Rows of one sequence: which cell they begin with, and where the state after the last one goes. */
struct part {
    uint32_t slot, first_position, n_rows, cell, to;
    const int32_t *tokens; /* NULL: any */
};

/* IO for a step in which every row is an output. Where a segment is long every third row stores to
 * a cell of its own, from `spare` on; 0: none does. Returns the rows. */
static uint32_t fill_parts(uint8_t *io, const struct plan *plan, const struct part *parts,
                           uint32_t n, const struct io_output *want, uint32_t spare) {
    static uint64_t step;
    struct io_header *header = (struct io_header *)io;
    struct io_row *rows = (struct io_row *)(io + plan->io.rows);
    struct io_segment *segments = (struct io_segment *)(io + plan->io.segments);
    struct io_output *outputs = (struct io_output *)(io + plan->io.outputs);
    uint32_t *to = (uint32_t *)(io + plan->io.to), row = 0;
    for (uint32_t s = 0; s < n; s++) {
        const struct part *part = &parts[s];
        segments[s] = (struct io_segment){part->cell, row, part->n_rows, part->first_position};
        for (uint32_t i = 0; i < part->n_rows; i++, row++) {
            uint32_t position = part->first_position + i;
            int32_t any = (int32_t)((position * 7 + part->slot * 13) % plan->n_vocab);
            rows[row] =
                (struct io_row){part->tokens ? part->tokens[i] : any, position, part->slot, s};
            to[row] = spare && i % 3 == 2 ? spare++ : IO_NO_CELL;
            outputs[row] = *want;
            outputs[row].row = row;
        }
        to[row - 1] = part->to;
    }
    *header = (struct io_header){
        .n_rows = row, .n_segments = n, .n_outputs = row, .spare_cell = IO_NO_CELL, .step = ++step};
    return row;
}

static void run_plan(const struct backend_kind *kind, struct backend *b, uint32_t plan,
                     bool is_burst) {
    struct err err = {0};
    int status = is_burst ? kind->submit_burst(b, plan, &err) : kind->submit(b, plan, &err);
    if (!status)
        status = kind->wait(b, &err);
    if (status)
        test_fail(__FILE__, __LINE__, "%s: %s", kind->name, err.text);
}

/* ---- the two ops -------------------------------------------------------------------------- */

enum { CELLS = 12 };

struct join_case {
    uint32_t width, rows;
    bool has_x;
    enum dtype type; /* of the second table */
};

/* Rows, a second EMBED in the middle of the plan, JOIN of both, HIDDEN. */
static void build_join(struct rig *r, const struct join_case *c, uint64_t seed) {
    const struct plan_options options = {
        .max_rows = c->rows, .n_slots = 3, .n_taps = 1, .tap_width = 2 * c->width};
    rig_begin(r, seed, &options);
    plan_page_table(r->plan, 2, 3);
    uint32_t one[4] = {c->width};
    struct op embed = {.kind = OP_EMBED, .layer = 0, .role = "rows"},
              join = {.kind = OP_JOIN, .layer = 0, .role = "join"},
              hidden = {.kind = OP_HIDDEN, .layer = 0, .role = "hidden"};
    struct operand x = rig_rows(r, c->width, 3);
    embed.embed.table = rig_tensor(r, c->type, (uint32_t[4]){c->width, r->n_tokens}, 0.1f);
    embed.embed.x = plan_scratch(r->plan, c->width);
    join.join = (struct op_join){
        .embed = embed.embed.x,
        .embed_norm = rig_tensor(r, DT_F32, one, 1),
        .state_norm = rig_tensor(r, DT_F32, one, 1),
        .state = plan_state(r->plan, DT_F32, (uint32_t[4]){c->width, CELLS}),
        .out = plan_scratch(r->plan, 2 * c->width),
        .eps = 1e-5f,
    };
    hidden.hidden = (struct op_hidden){
        .x = x, .norm = rig_tensor(r, DT_F32, one, 1), .state = join.join.state, .eps = 1e-5f};
    if (c->has_x) {
        join.join.x = x;
        join.join.norm = hidden.hidden.norm;
    }
    rig_add(r, &embed);
    rig_add(r, &join);
    rig_add(r, &hidden);
    rig_tap(r, 0, join.join.out);
}

static const struct operand *cells_of(const struct rig *r) {
    return &r->plan->ops[2].join.state;
}

/* Random hidden states on both backends. */
static void fill_states(struct rig *r) {
    const struct operand *o = cells_of(r);
    uint64_t bytes = operand_bytes(o);
    float *values = malloc(bytes);
    struct err err = {0};
    for (uint64_t i = 0; i < bytes / sizeof *values; i++)
        values[i] = 2 * rig_uniform(r);
    for (int b = 0; b < RIG_BACKENDS; b++)
        EXPECT_INT(rig_kinds[b]->write_state(r->b[b], o->offset, bytes, values, &err), SLUICE_OK);
    free(values);
}

static uint32_t join_step(struct rig *r, int backend, const struct part *parts, uint32_t n,
                          uint32_t spare) {
    static const struct io_output want = {.top_p = 1, .repeat_penalty = 1};
    uint8_t *io = rig_kinds[backend]->io(r->b[backend]);
    uint32_t rows = fill_parts(io, r->plan, parts, n, &want, spare);
    run_plan(rig_kinds[backend], r->b[backend], 0, false);
    return rows;
}

static void check_join(const struct join_case *c, uint64_t seed) {
    struct rig r;
    build_join(&r, c, seed);
    bool is_open = rig_open(&r);
    if (is_open)
        fill_states(&r);
    for (uint32_t step = 0; is_open && step < 4; step++) {
        /* In place and to another cell; fewer rows than the plan has, then all. */
        uint32_t many = c->has_x ? c->rows - 2 - step % 2 : 1;
        struct part parts[] = {{0, 5, 1, step, step, NULL},
                               {1, 9 + step, many, 4, 5 - step % 2, NULL},
                               {2, 0, 1, 6, 7, NULL}};
        uint32_t n = c->rows == 1 ? 1 : 3, rows = 0;
        for (int b = 0; b < RIG_BACKENDS; b++)
            rows = join_step(&r, b, parts, n, step == 1 ? 8 : 0);
        check_rows(&r, seed, step, rows, 1e-5);
        EXPECT_NEAR(state_distance(&r), 0, 1e-5);
    }
    rig_end(&r);
}

TEST(vulkan_join_and_hidden) {
    static const struct join_case cases[] = {
        {64, 9, true, DT_F32},    {100, 5, true, DT_F16},  {33, 4, true, DT_F32},
        {1, 4, true, DT_F32},     {1030, 1, true, DT_F16}, {1056, 1, false, DT_Q8_0},
        {2048, 7, true, DT_Q6_K}, {96, 3, false, DT_Q8_0}, {1537, 12, true, DT_BF16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_join(&cases[i], 7000 + i);
}

/* A row's bits are its own: what JOIN makes of the row before is what HIDDEN stores of it. */
static void check_join_rows(const struct join_case *c, uint64_t seed) {
    const struct join_case alone = {c->width, 1, true, c->type};
    const struct part parts[] = {{0, 3, 2, 0, 2, NULL}, {1, 8, c->rows - 2, 1, 1, NULL}};
    struct rig one, many;
    build_join(&many, c, seed);
    build_join(&one, &alone, seed);
    bool is_open = rig_open(&many);
    is_open = rig_open(&one) && is_open;
    if (is_open) {
        fill_states(&many);
        fill_states(&one);
        join_step(&many, RIG_DEVICE, parts, 2, 0);
    }
    for (uint32_t row = 0; is_open && row < c->rows; row++) {
        struct part p = parts[row >= 2];
        uint32_t i = row < 2 ? row : row - 2;
        p.first_position += i;
        p.n_rows = 1;
        p.cell = i ? p.to : p.cell;
        join_step(&one, RIG_DEVICE, &p, 1, 0);
        if (memcmp(rig_output(&one, RIG_DEVICE, 0, 0), rig_output(&many, RIG_DEVICE, 0, row),
                   2 * c->width * sizeof(float)) != 0)
            test_fail(__FILE__, __LINE__, "width %u: row %u has other bits alone", c->width, row);
    }
    if (is_open) {
        void *a = read_state(&one), *b = read_state(&many);
        EXPECT(memcmp(a, b, one.plan->bytes[REGION_STATE]) == 0);
        free(a);
        free(b);
    }
    rig_end(&one);
    rig_end(&many);
}

TEST(vulkan_join_rows_are_independent) {
    check_join_rows(&(struct join_case){100, 6, true, DT_F32}, 7100);
    check_join_rows(&(struct join_case){2048, 9, true, DT_Q8_0}, 7101);
}

/* What belongs to a step's beginning is the first EMBED's alone. */
TEST(vulkan_embed_in_the_middle_only_decodes) {
    const struct join_case c = {64, 4, true, DT_Q8_0};
    const struct backend_kind *kind = rig_kinds[RIG_DEVICE];
    struct backend_kernel k;
    struct rig r;
    build_join(&r, &c, 7200);
    if (rig_open(&r)) {
        struct backend *b = r.b[RIG_DEVICE];
        EXPECT(kind->op_kernel(b, 0, 0, 0, &k) && strcmp(k.name, "pages") == 0);
        EXPECT(kind->op_kernel(b, 0, 1, 0, &k) && strncmp(k.name, "embed", 5) == 0);
        EXPECT(!kind->op_kernel(b, 0, 1, 1, &k));
    }
    rig_end(&r);
}
