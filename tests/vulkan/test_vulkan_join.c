/* test_vulkan_join.c - JOIN and HIDDEN of the Vulkan backend against the CPU's, alone and in plans
 * that have a draft block at their end, beside those of that block. */
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
    if (is_open)
        EXPECT(has_same_state(&one, &many));
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

/* ---- plans with a draft block ------------------------------------------------------------- */

enum { D = 64, HEADS = 2, HEAD = 32, F = 100, VOCAB = 90, SLOTS = 2, STEPS = 4 };
enum { TRUNK_1, TRUNK_8, DRAFT_1, DRAFT_2, N_PLANS };
enum { DRAFTS = 2, SPARE = 4 }; /* cells: of sequence s, s, and of its drafts, DRAFTS + s */

struct block {
    struct operand table, freqs, norm, embed_norm, state_norm, both, attend_norm, q, k, v, out,
        ffn_norm, gate, up, down, draft_norm, head, draft_head;
};

/* The same weights and STATE for all plans. */
struct draft_rig {
    struct rig r; /* its plan is the one that is built */
    struct block w;
    struct plan *plans[N_PLANS];
    struct backend *b[RIG_BACKENDS];
    struct operand cells;
};

static struct operand matrix(struct rig *r, uint32_t k, uint32_t n) {
    return rig_tensor(r, DT_F32, (uint32_t[4]){k, n}, 0.2f);
}

static void make_weights(struct rig *r, struct block *w) {
    struct operand *norms[] = {&w->norm,        &w->embed_norm, &w->state_norm,
                               &w->attend_norm, &w->ffn_norm,   &w->draft_norm};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        *norms[i] = rig_tensor(r, DT_F32, (uint32_t[4]){D}, 1);
    w->table = rig_tensor(r, DT_Q8_0, (uint32_t[4]){D, VOCAB}, 1);
    w->freqs = rig_tensor(r, DT_F64, (uint32_t[4]){HEAD / 2}, 1);
    for (uint32_t i = 0; i < HEAD / 2; i++)
        ((double *)(r->weights + w->freqs.offset))[i] = pow(100, -(double)i / (HEAD / 2));
    w->both = matrix(r, 2 * D, D);
    w->q = matrix(r, D, HEADS * HEAD);
    w->k = matrix(r, D, HEAD);
    w->v = matrix(r, D, HEAD);
    w->out = matrix(r, HEADS * HEAD, D);
    w->gate = matrix(r, D, F);
    w->up = matrix(r, D, F);
    w->down = matrix(r, F, D);
    w->head = matrix(r, D, VOCAB);
    w->draft_head = matrix(r, D, VOCAB);
}

static void add_product(struct rig *r, struct operand in, struct operand norm, struct operand out,
                        enum epilogue epilogue, const struct operand *weights, uint32_t n) {
    struct op op = {.kind = OP_PROJECT, .layer = 0, .role = "product"};
    op.project = (struct op_project){.in = in,
                                     .norm = norm,
                                     .out = out,
                                     .n_segments = n,
                                     .prologue = norm.n_dims ? PROLOGUE_NORM : PROLOGUE_NONE,
                                     .epilogue = epilogue,
                                     .eps = 1e-5f,
                                     .is_lm_head = out.dims[0] == VOCAB};
    for (uint32_t i = 0, column = 0; i < n; i++) {
        op.project.segments[i] = (struct segment){.weight = weights[i], .column = column};
        column += epilogue == EPILOGUE_SWIGLU ? 0 : weights[i].dims[1];
    }
    rig_add(r, &op);
}

static void add_attend(struct rig *r, struct operand in, struct operand angles, struct operand out,
                       const struct operand cache[2]) {
    struct op op = {.kind = OP_ATTEND, .layer = 0, .role = "attend"};
    op.attend = (struct op_attend){.in = in,
                                   .angles = angles,
                                   .keys = cache[0],
                                   .values = cache[1],
                                   .pages = r->plan->pages,
                                   .out = out,
                                   .q_stride = HEAD,
                                   .k_column = HEADS * HEAD,
                                   .v_column = HEADS * HEAD + HEAD,
                                   .heads = HEADS,
                                   .kv_heads = 1,
                                   .head_width = HEAD,
                                   .rotary = HEAD,
                                   .scale = 0.2f};
    rig_add(r, &op);
}

static void add_pick(struct rig *r, struct operand logits, struct operand counts) {
    uint32_t shape[4] = {VOCAB, r->plan->max_outputs};
    struct op op = {.kind = OP_PICK, .layer = -1, .role = "pick"};
    op.pick = (struct op_pick){.logits = logits,
                               .wanted = plan_logits(r->plan),
                               .counts = counts,
                               .adjusted = plan_scratch_of(r->plan, DT_F32, shape),
                               .order = plan_scratch_of(r->plan, DT_I64, shape)};
    rig_add(r, &op);
}

static struct operand add_embed(struct rig *r, const struct block *w, struct operand angles) {
    struct op op = {.kind = OP_EMBED, .layer = -1, .role = "embed"};
    op.embed.table = w->table;
    op.embed.x = plan_scratch(r->plan, D);
    op.embed.rope_scale = 1;
    if (angles.n_dims) {
        op.embed.freqs = w->freqs;
        op.embed.angles = angles;
    }
    rig_add(r, &op);
    return op.embed.x;
}

/* A trunk without layers, the block after it, and the trunk's head; or the block with its own. */
static struct plan *make_plan(struct draft_rig *d, uint32_t rows, bool is_draft) {
    struct rig *r = &d->r;
    const struct block *w = &d->w;
    struct plan_options options = {.max_rows = rows,
                                   .max_outputs = rows,
                                   .n_slots = SLOTS,
                                   .burst_steps = is_draft ? STEPS : 0,
                                   .n_vocab = VOCAB};
    struct err err = {0};
    EXPECT_INT(plan_new(&r->plan, &options, &err), SLUICE_OK);
    plan_page_table(r->plan, 1, SLOTS);
    uint32_t kv[4] = {HEAD, IO_PAGE_POSITIONS, 1, SLOTS};
    const struct operand none = {0},
                         cache[2] = {plan_state(r->plan, DT_F32, kv),
                                     plan_state(r->plan, DT_F32, kv)},
                         angles =
                             plan_scratch_of(r->plan, DT_F32, (uint32_t[4]){2, HEAD / 2, rows});
    struct op join = {.kind = OP_JOIN, .layer = 0, .role = "join"},
              hidden = {.kind = OP_HIDDEN, .layer = 0, .role = "hidden"};
    d->cells = plan_state(r->plan, DT_F32, (uint32_t[4]){D, SPARE + 1});
    struct operand counts = plan_state(r->plan, DT_I16, (uint32_t[4]){VOCAB, SLOTS});
    struct operand x = add_embed(r, w, angles);
    join.join = (struct op_join){.embed = is_draft ? x : add_embed(r, w, none),
                                 .embed_norm = w->embed_norm,
                                 .state_norm = w->state_norm,
                                 .state = d->cells,
                                 .out = plan_scratch(r->plan, 2 * D),
                                 .eps = 1e-5f};
    if (!is_draft) {
        join.join.x = x;
        join.join.norm = w->norm;
    }
    rig_add(r, &join);
    struct operand y = plan_scratch(r->plan, D), qkv = plan_scratch(r->plan, (HEADS + 2) * HEAD),
                   mixed = plan_scratch(r->plan, HEADS * HEAD), wide = plan_scratch(r->plan, F);
    add_product(r, join.join.out, none, y, EPILOGUE_STORE, &w->both, 1);
    const struct operand heads[] = {w->q, w->k, w->v}, inner[] = {w->gate, w->up};
    add_product(r, y, w->attend_norm, qkv, EPILOGUE_STORE, heads, 3);
    add_attend(r, qkv, angles, mixed, cache);
    add_product(r, mixed, none, y, EPILOGUE_ADD, &w->out, 1);
    add_product(r, y, w->ffn_norm, wide, EPILOGUE_SWIGLU, inner, 2);
    add_product(r, wide, none, y, EPILOGUE_ADD, &w->down, 1);
    hidden.hidden = (struct op_hidden){.x = is_draft ? y : x,
                                       .norm = is_draft ? w->draft_norm : w->norm,
                                       .state = d->cells,
                                       .eps = 1e-5f};
    rig_add(r, &hidden);
    struct operand logits = plan_scratch_of(r->plan, DT_F32, (uint32_t[4]){VOCAB, rows});
    add_product(r, hidden.hidden.x, hidden.hidden.norm, logits, EPILOGUE_STORE,
                is_draft ? &w->draft_head : &w->head, 1);
    add_pick(r, logits, is_draft ? none : counts);
    EXPECT_INT(plan_finish(r->plan, &err), SLUICE_OK);
    return r->plan;
}

static bool open_drafts(struct draft_rig *d) {
    static const struct {
        uint32_t rows;
        bool is_draft;
    } plans[N_PLANS] = {{1, false}, {8, false}, {1, true}, {2, true}};
    const struct plan_options any = {.max_rows = 1, .n_slots = 1};
    struct err err = {0};
    *d = (struct draft_rig){0};
    rig_begin(&d->r, 8000, &any);
    plan_free(d->r.plan);
    make_weights(&d->r, &d->w);
    for (uint32_t i = 0; i < N_PLANS; i++)
        d->plans[i] = make_plan(d, plans[i].rows, plans[i].is_draft);
    const struct backend_weights weights = {.base = d->r.weights, .bytes = d->r.used};
    for (int b = 0; b < RIG_BACKENDS; b++) {
        struct backend_options how = {.threads = 2};
        if (rig_kinds[b]->open(&d->b[b], &how, &err) ||
            rig_kinds[b]->load(d->b[b], weights, d->plans, N_PLANS, NULL, NULL, &err)) {
            test_fail(__FILE__, __LINE__, "%s", err.text);
            return false;
        }
    }
    return true;
}

static void close_drafts(struct draft_rig *d) {
    for (int b = 0; b < RIG_BACKENDS; b++)
        rig_kinds[b]->close(d->b[b]);
    for (uint32_t i = 0; i < N_PLANS; i++)
        plan_free(d->plans[i]);
    free(d->r.weights);
    rig_check_validation();
}

static struct io_output wants(float temperature) {
    return (struct io_output){.flags = IO_WANTS_TOKEN,
                              .temperature = temperature,
                              .top_p = 1,
                              .repeat_penalty = 1,
                              .n_vocab = VOCAB,
                              .seed = 11};
}

/* The tokens picked for the last row of every part. */
static void draft_step(struct draft_rig *d, int backend, uint32_t plan, const struct part *parts,
                       uint32_t n, float temperature, int32_t *tokens) {
    const struct io_output want = wants(temperature);
    uint8_t *io = rig_kinds[backend]->io(d->b[backend]);
    const struct io_output *outputs = (struct io_output *)(io + d->plans[plan]->io.outputs);
    const struct io_segment *segments = (struct io_segment *)(io + d->plans[plan]->io.segments);
    fill_parts(io, d->plans[plan], parts, n, &want, 0);
    if (parts[0].first_position == 0) { /* pages, which the other slot has in reverse */
        struct io_change *changes = (struct io_change *)(io + d->plans[plan]->io.changes);
        ((struct io_header *)io)->n_changes = n;
        for (uint32_t i = 0; i < n; i++)
            changes[i] = (struct io_change){parts[i].slot, 0, SLOTS - 1 - parts[i].slot, 0};
    }
    run_plan(rig_kinds[backend], d->b[backend], plan, false);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = outputs[segments[i].first_row + segments[i].n_rows - 1].token;
}

static void read_cells(struct draft_rig *d, int backend, float *cells) {
    struct err err = {0};
    EXPECT_INT(rig_kinds[backend]->read_state(d->b[backend], d->cells.offset,
                                              operand_bytes(&d->cells), cells, &err),
               SLUICE_OK);
}

/* Prompts of both sequences from nothing: as one step, or a row after the other. */
static void run_prompts(struct draft_rig *d, int backend, bool is_one, int32_t tokens[SLOTS]) {
    static const struct part parts[SLOTS] = {{0, 0, 5, 0, 0, NULL}, {1, 0, 3, 1, 1, NULL}};
    const struct backend_copy zeros = {d->cells.offset, BACKEND_ZEROS, operand_bytes(&d->cells)};
    struct err err = {0};
    EXPECT_INT(rig_kinds[backend]->copy_state(d->b[backend], &zeros, 1, &err), SLUICE_OK);
    if (is_one) {
        draft_step(d, backend, TRUNK_8, parts, SLOTS, 0, tokens);
        return;
    }
    for (uint32_t s = 0; s < SLOTS; s++)
        for (uint32_t i = 0; i < parts[s].n_rows; i++) {
            const struct part row = {s, i, 1, s, s, NULL};
            draft_step(d, backend, TRUNK_1, &row, 1, 0, &tokens[s]);
        }
}

/* Drafts of the n sequences from `first` on, a step after the other, each with the token before. */
static void run_drafts(struct draft_rig *d, int backend, uint32_t first, uint32_t n, uint32_t steps,
                       float temperature, const int32_t start[SLOTS],
                       int32_t drafts[SLOTS][STEPS]) {
    int32_t tokens[SLOTS], picked[SLOTS];
    memcpy(tokens, start, sizeof tokens);
    for (uint32_t step = 0; step < steps; step++) {
        struct part parts[SLOTS];
        for (uint32_t i = 0; i < n; i++) {
            uint32_t s = first + i, own = DRAFTS + s, at = s ? 3 : 5;
            parts[i] = (struct part){s, at + step, 1, step ? own : s, own, &tokens[s]};
        }
        draft_step(d, backend, n > 1 ? DRAFT_2 : DRAFT_1, parts, n, temperature, picked);
        for (uint32_t i = 0; i < n; i++)
            tokens[first + i] = drafts[first + i][step] = picked[i];
    }
}

/* The same as one burst; a sequence is over after end_token. */
static void run_draft_burst(struct draft_rig *d, uint32_t first, uint32_t n, float temperature,
                            int32_t end_token, const int32_t start[SLOTS],
                            int32_t drafts[SLOTS][STEPS]) {
    const struct backend_kind *kind = rig_kinds[RIG_DEVICE];
    uint32_t number = n > 1 ? DRAFT_2 : DRAFT_1;
    const struct plan *plan = d->plans[number];
    uint8_t *io = kind->io(d->b[RIG_DEVICE]);
    const struct io_output *outputs = (struct io_output *)(io + plan->io.outputs),
                           want = wants(temperature);
    const int32_t *burst = (const int32_t *)(io + plan->io.burst);
    struct io_header *header = (struct io_header *)io;
    struct part parts[SLOTS];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = first + i;
        parts[i] = (struct part){s, s ? 3 : 5, 1, s, DRAFTS + s, &start[s]};
    }
    fill_parts(io, plan, parts, n, &want, 0);
    memset(io + plan->io.burst, 0x55, n * IO_BURST * sizeof *burst);
    header->spare_cell = SPARE;
    header->n_ends = end_token >= 0;
    header->ends[0] = end_token;
    run_plan(kind, d->b[RIG_DEVICE], number, true);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(drafts[first + i], burst + i * IO_BURST, (STEPS - 1) * sizeof *burst);
        drafts[first + i][STEPS - 1] = outputs[i].token;
        for (uint32_t k = STEPS - 1; k < IO_BURST; k++)
            EXPECT_INT(burst[i * IO_BURST + k], 0x55555555);
    }
}

#define CELL_BYTES (D * sizeof(float))

/* Both backends: tokens and hidden states of prompts and of drafts. */
TEST(vulkan_drafts_are_those_of_the_cpu) {
    float cells[RIG_BACKENDS + 1][(SPARE + 1) * D] = {{0}};
    int32_t start[RIG_BACKENDS + 1][SLOTS], drafts[RIG_BACKENDS][SLOTS][STEPS];
    struct draft_rig d;
    if (open_drafts(&d)) {
        run_prompts(&d, RIG_DEVICE, false, start[2]);
        read_cells(&d, RIG_DEVICE, cells[2]);
        for (int b = 0; b < RIG_BACKENDS; b++) {
            run_prompts(&d, b, true, start[b]);
            run_drafts(&d, b, 0, SLOTS, STEPS, 0, start[b], drafts[b]);
            read_cells(&d, b, cells[b]);
        }
        EXPECT(memcmp(start[0], start[1], sizeof start[0]) == 0);
        EXPECT(memcmp(start[1], start[2], sizeof start[0]) == 0);
        EXPECT(memcmp(cells[1], cells[2], SLOTS * CELL_BYTES) == 0);
        EXPECT(memcmp(drafts[0], drafts[1], sizeof drafts[0]) == 0);
        EXPECT_NEAR(rig_distance(cells[0], cells[1], (SPARE + 1) * D), 0, 1e-4);
        EXPECT(drafts[0][0][0] != drafts[0][0][1] || drafts[0][0][1] != drafts[0][0][2]);
    }
    close_drafts(&d);
}

/* A burst of n sequences from `first` on, and its steps one by one. */
static void check_draft_burst(struct draft_rig *d, uint32_t first, uint32_t n, float temperature,
                              bool has_end) {
    enum { END = 1 }; /* the step that picks the end token of the last sequence */
    float before[(SPARE + 1) * D], apart[(SPARE + 1) * D], together[(SPARE + 1) * D];
    int32_t start[SLOTS], expected[SLOTS][STEPS], found[SLOTS][STEPS];
    uint32_t last = first + n - 1;
    run_prompts(d, RIG_DEVICE, true, start);
    read_cells(d, RIG_DEVICE, before);
    run_drafts(d, RIG_DEVICE, first, n, STEPS, temperature, start, expected);
    read_cells(d, RIG_DEVICE, apart);
    int32_t end_token = has_end ? expected[last][END] : -1;
    if (has_end) { /* what its cell has after that step */
        float cells[(SPARE + 1) * D];
        int32_t ignored[SLOTS][STEPS];
        run_drafts(d, RIG_DEVICE, last, 1, END + 1, temperature, start, ignored);
        read_cells(d, RIG_DEVICE, cells);
        memcpy(apart + (DRAFTS + last) * D, cells + (DRAFTS + last) * D, CELL_BYTES);
    }
    run_draft_burst(d, first, n, temperature, end_token, start, found);
    read_cells(d, RIG_DEVICE, together);
    for (uint32_t s = first; s <= last; s++) {
        bool is_over = false;
        for (uint32_t k = 0; k < STEPS && !is_over; k++) {
            EXPECT_INT(found[s][k], expected[s][k]);
            is_over = found[s][k] == end_token;
        }
        EXPECT(!has_end || s != last || is_over);
        EXPECT(memcmp(together + s * D, before + s * D, CELL_BYTES) == 0);
        if (s == last || !is_over)
            EXPECT(memcmp(together + (DRAFTS + s) * D, apart + (DRAFTS + s) * D, CELL_BYTES) == 0);
    }
}

TEST(vulkan_bursts_of_drafts_are_steps_one_after_the_other) {
    struct draft_rig d;
    if (open_drafts(&d)) {
        const struct backend_kind *kind = rig_kinds[RIG_DEVICE];
        EXPECT(kind->has_burst(d.b[RIG_DEVICE], DRAFT_1));
        EXPECT(kind->has_burst(d.b[RIG_DEVICE], DRAFT_2));
        for (uint32_t i = 0; i < 4; i++) {
            check_draft_burst(&d, 0, 2, i % 2 ? 0.7f : 0, i / 2);
            check_draft_burst(&d, i % 2, 1, i / 2 ? 0.7f : 0, i % 2);
        }
    }
    close_drafts(&d);
}
