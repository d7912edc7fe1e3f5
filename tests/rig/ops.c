/* ops.c - see ops.h. */
#include "ops.h"

bool is_float(enum dtype t) {
    return t == DT_F32 || t == DT_F16 || t == DT_BF16;
}

/* ---- PROJECT ------------------------------------------------------------------------------ */

void build_project(struct rig *r, const struct project_case *c, uint64_t seed) {
    uint32_t total = 0;
    for (uint32_t s = 0; s < c->n_segments; s++)
        total += c->n[s];
    uint32_t width = c->epilogue == EPILOGUE_SWIGLU ? c->n[0] : total;
    struct plan_options options = {.max_rows = c->rows, .n_taps = 1, .tap_width = width};
    rig_begin(r, seed, &options);
    r->exact = c->exact;
    struct op op = {.kind = OP_PROJECT, .layer = 0, .role = "product"};
    struct op_project *p = &op.project;
    struct operand both = rig_rows(r, 2 * c->k, c->size > 0 ? c->size : 1);
    p->in = operand_columns(both, 0, c->k);
    p->prologue = c->prologue;
    p->epilogue = c->epilogue;
    p->eps = 1e-6f;
    p->is_lm_head = c->is_lm_head;
    p->n_segments = c->n_segments;
    if (c->prologue == PROLOGUE_NORM)
        p->norm = rig_tensor(r, DT_F32, (uint32_t[4]){c->k}, 1);
    if (c->prologue == PROLOGUE_GATED_NORM)
        p->norm = rig_tensor(r, DT_F32, (uint32_t[4]){c->head_width}, 1);
    if (c->prologue == PROLOGUE_GATED_NORM || c->prologue == PROLOGUE_SIGMOID_GATE) {
        p->gate = operand_columns(both, c->k, c->k);
        p->head_width = p->gate_stride = c->head_width;
    }
    p->out = c->epilogue == EPILOGUE_ADD ? rig_rows(r, width, 1) : plan_scratch(r->plan, width);
    uint32_t column = 0;
    for (uint32_t s = 0; s < c->n_segments; s++) {
        struct segment *g = &p->segments[s];
        g->weight = rig_tensor(r, c->types[s], (uint32_t[4]){c->k, c->n[s]}, 0.05f);
        if (c->has_bias)
            g->bias = rig_tensor(r, DT_F32, (uint32_t[4]){c->n[s]}, 1);
        g->f32_act = c->f32_last && s + 1 == c->n_segments;
        g->column = c->epilogue == EPILOGUE_SWIGLU ? 0 : column;
        column += c->n[s];
    }
    rig_add(r, &op);
    rig_tap(r, 0, p->out);
}

void check_project(const struct project_case *c, uint64_t seed) {
    struct rig r;
    bool is_int8 = false;
    for (uint32_t s = 0; s < c->n_segments; s++)
        is_int8 |= !is_float(c->types[s]) && c->k % 32 == 0 && !c->exact;
    build_project(&r, c, seed);
    if (rig_open(&r)) {
        struct rig_segment segment = {0, 0, c->rows};
        for (int i = 0; i < RIG_BACKENDS; i++)
            rig_step(&r, i, &segment, 1, seed);
        double worst = 0;
        for (uint32_t row = 0; row < c->rows; row++) {
            double d = rig_distance(rig_output(&r, RIG_CPU, 0, row),
                                    rig_output(&r, RIG_DEVICE, 0, row), r.options.tap_width);
            worst = d > worst || isnan(d) ? d : worst;
        }
        if (!(worst < (is_int8 ? INT8_BOUND : F32_BOUND)))
            test_fail(__FILE__, __LINE__,
                      "K %u, N %u %u %u of %s, %u rows, prologue %d, epilogue %d: off by %.2e",
                      c->k, c->n[0], c->n[1], c->n[2], dtype_name(c->types[0]), c->rows,
                      c->prologue, c->epilogue, worst);
    }
    rig_end(&r);
}

bool differs_alone(struct rig *one, struct rig *many, struct rig_segment own, uint32_t row,
                   uint64_t token_seed) {
    rig_step(one, RIG_DEVICE, &own, 1, token_seed);
    return memcmp(rig_output(one, RIG_DEVICE, 0, 0), rig_output(many, RIG_DEVICE, 0, row),
                  one->options.tap_width * sizeof(float)) != 0;
}

void check_project_shapes(const struct project_shapes *all) {
    static const uint32_t widths[] = {32, 64, 96, 160, 256, 288, 512, 576, 1024, 1536, 4096};
    struct rig r = {.random = 77};
    for (uint64_t i = 0; i < all->n; i++) {
        struct project_case c = {.k = widths[rig_below(&r, all->widths)],
                                 .rows = 1 + rig_below(&r, all->rows),
                                 .n_segments = 1 + rig_below(&r, 3),
                                 .has_bias = rig_below(&r, 2),
                                 .is_lm_head = rig_below(&r, 4) == 0};
        c.prologue = (enum prologue)rig_below(&r, 4);
        c.epilogue = (enum epilogue)rig_below(&r, 3);
        c.head_width = c.k % 64 ? 32 : 64;
        c.f32_last = rig_below(&r, 3) == 0;
        if (c.epilogue == EPILOGUE_SWIGLU)
            c.n_segments = 2, c.f32_last = false;
        if (c.epilogue == EPILOGUE_ADD)
            c.n_segments = 1;
        for (uint32_t s = 0; s < c.n_segments; s++) {
            enum dtype t = all->types[rig_below(&r, all->n_types)];
            c.types[s] = c.k % dtype_info(t)->block_values ? DT_Q8_0 : t;
            c.n[s] = c.epilogue == EPILOGUE_SWIGLU && s ? c.n[0] : 1 + rig_below(&r, all->results);
        }
        check_project(&c, 1000 + i);
    }
}

void check_project_odd_widths(void) {
    static const uint32_t widths[] = {1, 7, 33, 100, 257};
    for (size_t i = 0; i < 5; i++) {
        struct project_case c = {.k = widths[i],
                                 .rows = 3,
                                 .n_segments = 1,
                                 .n = {19},
                                 .types = {i % 2 ? DT_F16 : DT_F32},
                                 .prologue = PROLOGUE_NORM};
        check_project(&c, 2000 + i);
    }
}

/* A product of many rows: some of them, alone, have the same bits. */
void check_some_rows(const struct project_case *wide, uint64_t seed, uint32_t n_rows) {
    struct project_case c = *wide;
    struct rig one, many, random = {.random = seed};
    build_project(&many, &c, seed);
    c.rows = 1;
    build_project(&one, &c, seed);
    bool is_open = rig_open(&one);
    is_open = rig_open(&many) && is_open;
    if (is_open)
        rig_step(&many, RIG_DEVICE, &(struct rig_segment){0, 0, wide->rows}, 1, 5);
    for (uint32_t i = 0; is_open && i < n_rows; i++) {
        uint32_t row = i == 0 ? wide->rows - 1 : rig_below(&random, wide->rows), n = 0;
        rig_step(&one, RIG_DEVICE, &(struct rig_segment){0, row, 1}, 1, 5);
        const float *a = rig_output(&one, RIG_DEVICE, 0, 0),
                    *b = rig_output(&many, RIG_DEVICE, 0, row);
        while (n < one.options.tap_width && memcmp(&a[n], &b[n], sizeof *a) == 0)
            n++;
        if (n < one.options.tap_width) {
            test_fail(__FILE__, __LINE__,
                      "K %u, N %u %u %u of %s %s %s, %u rows, prologue %d, epilogue %d: row %u, "
                      "column %u is %.9g alone, %.9g here",
                      c.k, c.n[0], c.n[1], c.n[2], dtype_name(c.types[0]), dtype_name(c.types[1]),
                      dtype_name(c.types[2]), wide->rows, c.prologue, c.epilogue, row, n,
                      (double)a[n], (double)b[n]);
            break;
        }
    }
    rig_end(&one);
    rig_end(&many);
}

/* ---- DELTA -------------------------------------------------------------------------------- */

void build_delta(struct rig *r, const struct delta_case *c, uint32_t slots, uint64_t seed) {
    uint32_t values = c->value_heads * c->value_width;
    uint32_t channels = 2 * c->key_heads * c->key_width + values;
    struct plan_options options = {
        .max_rows = c->rows, .n_slots = slots, .n_taps = 1, .tap_width = values};
    rig_begin(r, seed, &options);
    struct op op = {.kind = OP_DELTA, .layer = 0, .role = "mix"};
    op.delta = (struct op_delta){
        .in = rig_rows(r, channels + values + 2 * c->value_heads, 1),
        .beta_column = channels + values,
        .alpha_column = channels + values + c->value_heads,
        .key_heads = c->key_heads,
        .value_heads = c->value_heads,
        .key_width = c->key_width,
        .value_width = c->value_width,
        .conv_width = c->taps,
        .head_map = c->map,
        .conv = rig_tensor(r, DT_F32, (uint32_t[4]){c->taps, channels}, 1),
        .a = rig_tensor(r, DT_F32, (uint32_t[4]){c->value_heads}, 0.5f),
        .dt = rig_tensor(r, DT_F32, (uint32_t[4]){c->value_heads}, 1),
        .state = plan_state(
            r->plan, DT_F32,
            (uint32_t[4]){c->key_width, c->value_width, c->value_heads, options.n_slots}),
        .window = plan_state(r->plan, DT_F32, (uint32_t[4]){channels, c->taps, options.n_slots}),
        .out = plan_scratch(r->plan, values),
    };
    float *a = (float *)(r->weights + op.delta.a.offset);
    for (uint32_t h = 0; h < c->value_heads; h++)
        a[h] = -fabsf(a[h]);
    rig_add(r, &op);
    rig_tap(r, 0, op.delta.out);
}

void step_both(struct rig *r, const struct rig_segment *segments, uint32_t n) {
    for (int b = 0; b < RIG_BACKENDS; b++)
        rig_step(r, b, segments, n, 9);
}

/* The first output of every row, against the CPU's. */
void check_rows(struct rig *r, size_t i, uint32_t step, uint32_t rows, double bound) {
    for (uint32_t row = 0; row < rows; row++) {
        double d = rig_distance(rig_output(r, RIG_CPU, 0, row), rig_output(r, RIG_DEVICE, 0, row),
                                r->options.tap_width);
        if (!(d < bound))
            test_fail(__FILE__, __LINE__, "case %zu, step %u, row %u: off by %.2e", i, step, row,
                      d);
    }
}

double state_distance(struct rig *r) {
    uint64_t bytes = r->plan->bytes[REGION_STATE];
    float *state[RIG_BACKENDS];
    struct err err = {0};
    for (int i = 0; i < RIG_BACKENDS; i++) {
        state[i] = malloc(bytes);
        if (rig_kinds[i]->read_state(r->b[i], 0, bytes, state[i], &err))
            test_fail(__FILE__, __LINE__, "%s", err.text);
    }
    double d = rig_distance(state[0], state[1], bytes / sizeof(float));
    for (int i = 0; i < RIG_BACKENDS; i++)
        free(state[i]);
    return d;
}

/* Steps of up to three sequences, each with a segment of its own length, and STATE after them. */
void check_delta(const struct delta_case *c, uint64_t seed) {
    struct rig r;
    uint32_t at[4] = {0};
    build_delta(&r, c, 4, seed);
    bool is_open = rig_open(&r);
    for (uint32_t step = 0; is_open && step < 6; step++) {
        /* Up to three sequences, each with a segment of its own length. */
        struct rig_segment segments[3];
        uint32_t n = 0, left = c->rows;
        for (uint32_t slot = 0; slot < 3 && left; slot++) {
            uint32_t rows = slot == 2 ? left : 1 + rig_below(&r, left);
            segments[n++] = (struct rig_segment){slot + 1, at[slot + 1], rows};
            at[slot + 1] += rows;
            left -= rows;
        }
        step_both(&r, segments, n);
        check_rows(&r, seed, step, c->rows, F32_BOUND);
    }
    if (is_open)
        EXPECT_NEAR(state_distance(&r), 0, F32_BOUND);
    rig_end(&r);
}

void *read_state(struct rig *r) {
    uint64_t bytes = r->plan->bytes[REGION_STATE];
    void *state = malloc(bytes);
    struct err err = {0};
    if (rig_kinds[RIG_DEVICE]->read_state(r->b[RIG_DEVICE], 0, bytes, state, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return state;
}

bool has_same_state(struct rig *a, struct rig *b) {
    void *states[] = {read_state(a), read_state(b)};
    bool is_same = memcmp(states[0], states[1], a->plan->bytes[REGION_STATE]) == 0;
    free(states[0]);
    free(states[1]);
    return is_same;
}

/* The case as it is, and with a plan of one row. */
static bool open_alone(const struct delta_case *c, uint32_t slots, uint64_t seed, struct rig *one,
                       struct rig *many) {
    struct delta_case alone = *c;
    alone.rows = 1;
    build_delta(one, &alone, slots, seed);
    build_delta(many, c, slots, seed);
    bool is_open = rig_open(one);
    return rig_open(many) && is_open;
}

/* A step of the whole plan; then each of its rows alone, with the same bits. */
static void step_and_alone(struct rig *one, struct rig *many, const struct rig_segment *segments,
                           uint32_t n, const struct delta_case *c, uint32_t step) {
    rig_step(many, RIG_DEVICE, segments, n, 9);
    for (uint32_t k = 0, row = 0; k < n; k++)
        for (uint32_t i = 0; i < segments[k].n_rows; i++, row++) {
            struct rig_segment own = {segments[k].slot, segments[k].first_position + i, 1};
            if (differs_alone(one, many, own, row, 9))
                test_fail(__FILE__, __LINE__,
                          "%u value heads, step %u: row %u of %u has other bits alone",
                          c->value_heads, step, row, c->rows);
        }
}

/* A row's bits are its own: alone in a plan of one row, or among other sequences, as many as there
 * is room for or fewer; every third step the last of them has all rows that are left. Where there
 * is more room than sequences, every other one has several rows. */
void check_delta_rows(const struct delta_case *c, uint64_t seed) {
    enum { SLOTS = 24, STEPS = 7 };
    struct rig one, many;
    uint32_t at[SLOTS] = {0};
    bool is_open = open_alone(c, SLOTS, seed, &one, &many);
    for (uint32_t step = 0; is_open && step < STEPS; step++) {
        struct rig_segment segments[SLOTS];
        uint32_t most = c->rows < SLOTS ? c->rows : SLOTS, n = most - step % most;
        uint32_t rows = 0;
        for (uint32_t k = 0; k < n; k++) {
            uint32_t slot = (k * 5 + step) % SLOTS, some = 1 + (7 * k + step) % (c->rows / n);
            segments[k] = (struct rig_segment){slot, at[slot],
                                               k + 1 == n && step % 3 == 2 ? c->rows - rows
                                               : k % 2                     ? some
                                                                           : 1};
            at[slot] += segments[k].n_rows;
            rows += segments[k].n_rows;
        }
        step_and_alone(&one, &many, segments, n, c, step);
    }
    if (is_open && one.plan->bytes[REGION_STATE] == many.plan->bytes[REGION_STATE] &&
        !has_same_state(&one, &many))
        test_fail(__FILE__, __LINE__, "%u value heads, %u rows: STATE has other bits alone",
                  c->value_heads, c->rows);
    rig_end(&one);
    rig_end(&many);
}

/* State and window of a cell. */
static uint8_t *read_cell(struct rig *r, const struct op_delta *d, uint32_t cell) {
    uint32_t cells = d->state.dims[3];
    uint64_t state = operand_bytes(&d->state) / cells, window = operand_bytes(&d->window) / cells;
    uint8_t *bytes = malloc(state + window);
    struct err err = {0};
    const struct backend_kind *kind = rig_kinds[RIG_DEVICE];
    if (kind->read_state(r->b[RIG_DEVICE], d->state.offset + cell * state, state, bytes, &err) ||
        kind->read_state(r->b[RIG_DEVICE], d->window.offset + cell * window, window, bytes + state,
                         &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return bytes;
}

/* n rows after `before` ones, of which all or every third store to a cell of their own: each cell
 * has the bits that a shorter run leaves in place, and the segment's own is as it was. */
void check_cells(const struct delta_case *c, uint32_t before, uint32_t n, uint64_t seed) {
    enum { CELLS = 12 };
    struct rig r;
    uint32_t to[CELLS];
    uint8_t *stored[CELLS] = {0};
    build_delta(&r, c, CELLS, seed);
    const struct op_delta *d = &r.plan->ops[r.plan->n_ops - 2].delta;
    uint64_t bytes = (operand_bytes(&d->state) + operand_bytes(&d->window)) / CELLS;
    bool is_open = rig_open(&r);
    if (is_open)
        rig_step(&r, RIG_DEVICE, &(struct rig_segment){0, 0, before}, 1, 9);
    for (uint32_t i = 0; i < n; i++)
        to[i] = i % 3 == 2 || seed % 2 || i + 1 == n ? 1 + i : IO_NO_CELL;
    if (is_open)
        rig_step_to(&r, RIG_DEVICE, &(struct rig_segment){0, before, n}, to, 9);
    for (uint32_t i = 0; is_open && i <= n; i++)
        stored[i] = i == 0 || to[i - 1] != IO_NO_CELL ? read_cell(&r, d, i) : NULL;
    for (uint32_t i = 0; is_open && i <= n; i++) {
        if (!stored[i])
            continue;
        const struct backend_copy all = {0, BACKEND_ZEROS, r.plan->bytes[REGION_STATE]};
        rig_kinds[RIG_DEVICE]->copy_state(r.b[RIG_DEVICE], &all, 1, NULL);
        rig_step(&r, RIG_DEVICE, &(struct rig_segment){0, 0, before}, 1, 9);
        if (i > 0)
            rig_step(&r, RIG_DEVICE, &(struct rig_segment){0, before, i}, 1, 9);
        uint8_t *expected = read_cell(&r, d, 0);
        if (memcmp(stored[i], expected, bytes) != 0)
            test_fail(__FILE__, __LINE__, "seed %u, %u rows after %u: the state after %u differs",
                      (unsigned)seed, n, before, i);
        free(expected);
        free(stored[i]);
    }
    rig_end(&r);
}

/* Rows of sequence k in a step, of which `n` sequences are part. Two sequences have all 20 rows,
 * and one of 7 or 12 sometimes more than one: after 7 or fewer logs delta_few has them. */
static uint32_t rows_of_segment(uint32_t step, uint32_t n, uint32_t k) {
    static const uint32_t two[2][2] = {{11, 9}, {19, 1}};
    if (n == 2)
        return two[step / 8 % 2][k];
    return k == 3 && (n == 12 || (n == 7 && step % 2)) ? 4 : 1;
}

/* On the device, in both plans. */
static void copy_states(struct rig *one, struct rig *many, uint32_t to, uint32_t from,
                        uint32_t slots) {
    const struct op_delta *d = &many->plan->ops[many->plan->n_ops - 2].delta;
    uint64_t state = operand_bytes(&d->state) / slots, window = operand_bytes(&d->window) / slots;
    struct backend_copy copies[2] = {
        {d->state.offset + to * state, d->state.offset + from * state, state},
        {d->window.offset + to * window, d->window.offset + from * window, window}};
    struct err err = {0};
    rig_kinds[RIG_DEVICE]->copy_state(one->b[RIG_DEVICE], copies, 2, &err);
    rig_kinds[RIG_DEVICE]->copy_state(many->b[RIG_DEVICE], copies, 2, &err);
}

void check_delta_logs(const struct delta_case *c, uint32_t steps, uint64_t seed) {
    enum { SLOTS = 20, KEPT = SLOTS - 1 }; /* the last cell is no sequence's */
    struct rig one, many;
    uint32_t at[SLOTS] = {0};
    bool is_open = open_alone(c, SLOTS, seed, &one, &many);
    for (uint32_t step = 0; is_open && step < steps; step++) {
        struct rig_segment segments[SLOTS];
        uint32_t n = step % 8 == 5 ? 2 : step % 8 == 2 ? 12 : step % 5 == 3 ? 7 : SLOTS - 1;
        for (uint32_t k = 0; k < n; k++) {
            uint32_t slot = (k + step / 4) % (SLOTS - 1);
            segments[k] = (struct rig_segment){slot, at[slot], rows_of_segment(step, n, k)};
            at[slot] += segments[k].n_rows;
        }
        step_and_alone(&one, &many, segments, n, c, step);
        if (step % 7 == 6)
            copy_states(&one, &many, KEPT, step % 6, SLOTS);
        if (step % 7 == 0 && step)
            copy_states(&one, &many, 2, KEPT, SLOTS);
    }
    if (is_open)
        EXPECT(has_same_state(&one, &many));
    rig_end(&one);
    rig_end(&many);
}

/* ---- ATTEND ------------------------------------------------------------------------------- */

struct operand build_attend(struct rig *r, const struct attend_case *c, uint32_t slots,
                            uint64_t seed) {
    uint32_t q = c->heads * c->width, kv = c->kv_heads * c->width;
    uint32_t pages = (c->context + IO_PAGE_POSITIONS - 1) / IO_PAGE_POSITIONS;
    struct plan_options options = {.max_rows = c->rows,
                                   .n_slots = slots,
                                   .n_pages = slots * pages,
                                   .pages_per_seq = pages,
                                   .kv_type = c->kv,
                                   .n_taps = 1,
                                   .tap_width = q};
    rig_begin(r, seed, &options);
    struct op embed = {.kind = OP_EMBED, .layer = -1, .role = "rows"};
    embed.embed.table = rig_tensor(r, DT_F32, (uint32_t[4]){q + 2 * kv, r->n_tokens}, 1);
    embed.embed.x = plan_scratch(r->plan, q + 2 * kv);
    if (c->rotary) {
        r->used = (r->used + 63) / 64 * 64;
        double *freqs = (double *)(r->weights + r->used);
        for (uint32_t i = 0; i < c->rotary / 2; i++)
            freqs[i] = pow(1e4, -2.0 * i / c->rotary);
        embed.embed.freqs =
            operand_at(REGION_WEIGHTS, DT_F64, r->used, (uint32_t[4]){c->rotary / 2});
        r->used += c->rotary / 2 * sizeof *freqs;
        embed.embed.angles =
            plan_scratch_of(r->plan, DT_F32, (uint32_t[4]){2, c->rotary / 2, c->rows});
        embed.embed.rope_scale = 1;
    }
    rig_add(r, &embed);
    uint32_t cache[4] = {c->width, IO_PAGE_POSITIONS, c->kv_heads, options.n_pages};
    plan_page_table(r->plan, pages, slots);
    struct op op = {.kind = OP_ATTEND, .layer = 0, .role = "mix"};
    op.attend = (struct op_attend){
        .in = embed.embed.x,
        .angles = embed.embed.angles,
        .keys = plan_state(r->plan, c->kv, cache),
        .values = plan_state(r->plan, c->kv, cache),
        .pages = r->plan->pages,
        .out = plan_scratch(r->plan, q),
        .q_stride = c->width,
        .k_column = q,
        .v_column = q + kv,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_width = c->width,
        .rotary = c->rotary,
        .pairing = c->pairing,
        .eps = 1e-6f,
        .scale = 1 / sqrtf((float)c->width),
    };
    if (c->has_norms) {
        op.attend.q_norm = rig_tensor(r, DT_F32, (uint32_t[4]){c->width}, 1);
        op.attend.k_norm = rig_tensor(r, DT_F32, (uint32_t[4]){c->width}, 1);
    }
    rig_add(r, &op);
    rig_tap(r, 0, op.attend.out);
    return op.attend.pages;
}

/* Pages in an order of their own. */
void deal_pages(struct rig *r, const struct operand *pages) {
    uint32_t n = pages->dims[0] * pages->dims[1];
    int32_t *table = malloc(n * sizeof *table);
    struct err err = {0};
    for (uint32_t i = 0; i < n; i++)
        table[i] = (int32_t)i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = rig_below(r, i);
        int32_t t = table[i - 1];
        table[i - 1] = table[k];
        table[k] = t;
    }
    for (int b = 0; b < RIG_BACKENDS; b++)
        EXPECT_INT(
            rig_kinds[b]->write_state(r->b[b], pages->offset, n * sizeof *table, table, &err),
            SLUICE_OK);
    free(table);
}

/* Steps of up to three sequences until the first has its context. */
void check_attend(const struct attend_case *c, uint64_t seed) {
    struct rig r;
    struct operand pages = build_attend(&r, c, 3, seed);
    bool is_open = rig_open(&r);
    uint32_t at[3] = {0}, steps = 0;
    if (is_open)
        deal_pages(&r, &pages);
    while (is_open && at[0] + c->rows < c->context && steps++ < 700) {
        struct rig_segment segments[3];
        uint32_t n = 0, left = c->rows;
        for (uint32_t slot = 0; slot < 3 && left; slot++) {
            uint32_t rows = slot == 2 || c->rows == 1 ? left : 1 + rig_below(&r, left);
            if (at[slot] + rows > c->context)
                continue;
            segments[n++] = (struct rig_segment){slot, at[slot], rows};
            at[slot] += rows;
            left -= rows;
        }
        uint32_t rows = c->rows - left;
        step_both(&r, segments, n);
        /* A key that rounds the other way in the cache is what differs. */
        check_rows(&r, seed, steps, rows, c->kv == DT_F32 ? 5e-4 : c->kv == DT_F16 ? 3e-3 : 6e-2);
    }
    rig_end(&r);
}

/* Segments of random lengths, rows that generate among them, as long as the first slot has room. */
uint32_t random_segments(struct rig *r, const struct attend_case *c, uint32_t at[3],
                         struct rig_segment *segments) {
    uint32_t n = 0, left = c->rows;
    for (uint32_t slot = 0; slot < 3 && left; slot++) {
        uint32_t most = slot == 2 ? left : rig_below(r, 3) ? 1 + rig_below(r, left) : 1;
        uint32_t rows = c->context - at[slot] < most ? c->context - at[slot] : most;
        if (!rows)
            continue;
        segments[n++] = (struct rig_segment){slot, at[slot], rows};
        at[slot] += rows;
        left -= rows;
    }
    return n;
}

/* A row's bits are its own: alone, or in any step among others. */
void check_attend_rows(const struct attend_case *c, uint64_t seed) {
    struct attend_case alone = *c;
    struct rig one, many;
    uint32_t at[3] = {0}, n;
    struct rig_segment segments[3];
    alone.rows = 1;
    struct operand pages = build_attend(&one, &alone, 3, seed);
    build_attend(&many, c, 3, seed);
    bool is_open = rig_open(&one);
    is_open = rig_open(&many) && is_open;
    if (is_open) {
        deal_pages(&one, &pages);
        many.random = one.random;
        deal_pages(&many, &pages);
    }
    while (is_open && (n = random_segments(&many, c, at, segments)) > 0) {
        uint32_t row = 0, differing = 0;
        rig_step(&many, RIG_DEVICE, segments, n, 9);
        for (uint32_t k = 0; k < n; k++)
            for (uint32_t i = 0; i < segments[k].n_rows; i++, row++)
                if (differs_alone(
                        &one, &many,
                        (struct rig_segment){segments[k].slot, segments[k].first_position + i, 1},
                        row, 9) &&
                    differing++ == 0)
                    test_fail(__FILE__, __LINE__,
                              "%u heads of %u, steps of %u rows: position %u has other bits alone",
                              c->heads, c->width, c->rows, segments[k].first_position + i);
        is_open = differing == 0;
    }
    rig_end(&one);
    rig_end(&many);
}

/* Keys and values of all positions, of a size that gives neither all nor one of them the weight.
 * They repeat after a prime number of blocks: no wrong bit of an address finds the same value. */
static void fill_cache(struct rig *r, const struct operand *cache) {
    uint32_t block = cache->type == DT_F16 ? 2 : cache->type == DT_Q8_0 ? 34 : 18;
    uint64_t bytes = operand_bytes(cache), period = 65521u * (uint64_t)block;
    uint8_t *to = malloc(bytes + period);
    struct err err = {0};
    for (uint64_t i = 0; i < period; i += 2) {
        uint32_t bits = rig_below(r, 65536);
        if (cache->type == DT_F16)
            bits = (bits & 0x83ffu) | 0x3c00u; /* 1 to 2, either sign */
        else if (i % block == 0)
            bits = (bits & 0x3ffu) | (cache->type == DT_Q8_0 ? 0x2000u : 0x3000u);
        memcpy(to + i, &(uint16_t){(uint16_t)bits}, 2);
    }
    for (uint64_t at = period; at < bytes; at += period)
        memcpy(to + at, to, period);
    for (int b = 0; b < RIG_BACKENDS; b++)
        EXPECT_INT(rig_kinds[b]->write_state(r->b[b], cache->offset, bytes, to, &err), SLUICE_OK);
    free(to);
}

/* A plan whose caches hold other conversations' positions and this one's. */
bool open_far(struct rig *r, const struct attend_case *c, uint32_t slots, uint64_t seed) {
    struct operand pages = build_attend(r, c, slots, seed);
    const struct op_attend *a = &r->plan->ops[r->plan->n_ops - 2].attend;
    struct operand keys = a->keys, values = a->values;
    if (!rig_open(r))
        return false;
    r->random = seed;
    deal_pages(r, &pages);
    fill_cache(r, &keys);
    fill_cache(r, &values);
    return true;
}

/* Rows that end before position `end` of a long context, alone and in a plan of `rows`: the same
 * bits, and what the CPU has. */
void check_attend_far(const struct attend_case *alone, uint32_t rows, uint32_t end, uint32_t most,
                      bool has_cpu, uint64_t seed) {
    struct attend_case c = *alone;
    struct rig one, many;
    bool is_open = open_far(&one, &c, 3, seed);
    c.rows = rows;
    is_open = open_far(&many, &c, 3, seed) && is_open;
    uint32_t n = rows < most ? rows : most, first = end - n;
    if (is_open)
        rig_step(&many, RIG_DEVICE, &(struct rig_segment){1, first, n}, 1, 9);
    for (uint32_t row = 0; is_open && row < n; row++) {
        struct rig_segment segment = {1, first + row, 1};
        if (differs_alone(&one, &many, segment, row, 9))
            test_fail(__FILE__, __LINE__,
                      "heads of %u over %s: position %u of a plan of %u rows has other bits alone",
                      c.width, dtype_name(c.kv), first + row, c.rows);
        if (!has_cpu) /* it takes its time */
            continue;
        rig_step(&one, RIG_CPU, &segment, 1, 9);
        double d = rig_distance(rig_output(&one, RIG_CPU, 0, 0), rig_output(&one, RIG_DEVICE, 0, 0),
                                one.options.tap_width);
        if (!(d < (c.kv == DT_F16 ? 3e-3 : 2e-2)))
            test_fail(__FILE__, __LINE__, "heads of %u over %s, position %u: off by %.2e", c.width,
                      dtype_name(c.kv), first + row, d);
    }
    rig_end(&many);
    rig_end(&one);
}

/* Steps of a row of many sequences each, all but a few, at positions of their own. */
void check_attend_many(const struct attend_case *c, uint32_t slots, uint64_t seed) {
    enum { MOST = 128, STEPS = 3 };
    struct attend_case alone = *c;
    struct rig one, many;
    alone.rows = 1;
    bool is_open = open_far(&one, &alone, slots, seed);
    is_open = open_far(&many, c, slots, seed) && is_open;
    for (uint32_t step = 0; is_open && step < STEPS; step++) {
        struct rig_segment segments[MOST];
        uint32_t n = c->rows - 3 * step, differing = 0;
        for (uint32_t k = 0; k < n; k++) {
            uint32_t slot = (5 * k + step) % slots;
            segments[k] =
                (struct rig_segment){slot, slot * slot * 37 % (c->context - STEPS) + step, 1};
        }
        rig_step(&many, RIG_DEVICE, segments, n, 9);
        for (uint32_t k = 0; k < n; k++) {
            if (differs_alone(&one, &many, segments[k], k, 9) && differing++ == 0)
                test_fail(__FILE__, __LINE__,
                          "heads of %u, %u sequences: row %u, position %u has other bits alone",
                          c->width, n, k, segments[k].first_position);
        }
    }
    rig_end(&many);
    rig_end(&one);
}

/* ---- ROUTE and EXPERTS -------------------------------------------------------------------- */

void build_experts(struct rig *r, const struct experts_case *c, uint32_t rows, uint64_t seed) {
    struct plan_options options = {.max_rows = rows, .n_taps = 2, .tap_width = c->width};
    rig_begin(r, seed, &options);
    struct operand none = {0}, x = rig_rows(r, c->width, 1);
    struct operand norm = rig_tensor(r, DT_F32, (uint32_t[4]){c->width}, 1);
    struct operand choice = plan_scratch_of(r->plan, DT_I32, (uint32_t[4]){c->used + 1, rows});
    struct operand weight = plan_scratch_of(r->plan, DT_F32, (uint32_t[4]){c->used + 1, rows});
    struct operand hidden = plan_scratch(r->plan, c->used * c->inner + c->shared);
    struct op route = {.kind = OP_ROUTE, .layer = 0, .role = "route"};
    route.route = (struct op_route){
        .in = x,
        .norm = norm,
        .choice = choice,
        .weight = weight,
        .eps = 1e-6f,
        .used = c->used,
        .is_unnormed = c->is_unnormed,
        .router = rig_tensor(r, DT_F32, (uint32_t[4]){c->width, c->experts}, 0.3f),
        .shared_switch = c->shared ? rig_tensor(r, DT_F32, (uint32_t[4]){c->width}, 0.3f) : none};
    struct op in = {.kind = OP_EXPERTS_IN, .layer = 0, .role = "experts in"};
    const uint32_t in_dims[4] = {c->width, c->inner, c->experts},
                   shared_dims[4] = {c->width, c->shared};
    in.experts_in = (struct op_experts_in){
        .in = x,
        .norm = norm,
        .choice = choice,
        .hidden = hidden,
        .eps = 1e-6f,
        .gate = rig_tensor(r, c->gate, in_dims, 0.1f),
        .up = rig_tensor(r, c->up, in_dims, 0.1f),
        .shared_gate = c->shared ? rig_tensor(r, c->shared_in, shared_dims, 0.1f) : none,
        .shared_up = c->shared ? rig_tensor(r, c->shared_in, shared_dims, 0.1f) : none};
    struct op out = {.kind = OP_EXPERTS_OUT, .layer = 0, .role = "experts out"};
    out.experts_out = (struct op_experts_out){
        .hidden = hidden,
        .choice = choice,
        .weight = weight,
        .x = x,
        .down = rig_tensor(r, c->down, (uint32_t[4]){c->inner, c->width, c->experts}, 0.1f),
        .shared_down = c->shared
                           ? rig_tensor(r, c->shared_down, (uint32_t[4]){c->shared, c->width}, 0.1f)
                           : none};
    rig_add(r, &route);
    rig_add(r, &in);
    rig_add(r, &out);
    rig_tap(r, 0, x);
    rig_tap(r, 1, weight);
}

/* A step of n rows, in a plan for at least as many: a row alone has the bits that it has among
 * others; and up to 70 rows against the CPU. Of many rows every seventh, and the last. */
void check_experts(struct rig *many, struct rig *one, const struct experts_case *c, uint32_t n) {
    uint32_t step = n > 16 ? 7 : 1;
    bool has_cpu = n <= 70;
    for (int b = has_cpu ? RIG_CPU : RIG_DEVICE; b < RIG_BACKENDS; b++)
        rig_step(many, b, &(struct rig_segment){0, 0, n}, 1, 5);
    for (uint32_t row = (n - 1) % step; row < n; row += step) {
        const float *device = rig_output(many, RIG_DEVICE, 0, row);
        if (has_cpu) {
            EXPECT_NEAR(rig_distance(rig_output(many, RIG_CPU, 1, row),
                                     rig_output(many, RIG_DEVICE, 1, row), c->used + 1),
                        0, F32_BOUND);
            EXPECT_NEAR(rig_distance(rig_output(many, RIG_CPU, 0, row), device, c->width), 0,
                        INT8_BOUND);
        }
        rig_step(one, RIG_DEVICE, &(struct rig_segment){0, row, 1}, 1, 5);
        if (memcmp(rig_output(one, RIG_DEVICE, 0, 0), device, c->width * sizeof(float)) != 0)
            test_fail(__FILE__, __LINE__,
                      "width %u, %u of %u experts: row %u of %u has other bits alone", c->width,
                      c->used, c->experts, row, n);
    }
}
