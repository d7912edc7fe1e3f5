/* check_draft_bursts.h - bursts of plans with a draft block, and of the block's own, against one
 * step after the other on the same backend. */
#ifndef TESTS_RIG_CHECK_DRAFT_BURSTS_H
#define TESTS_RIG_CHECK_DRAFT_BURSTS_H

#include "draft_plans.h"
#include "rig.h"

enum { DRAFT_ROWS = 4, DRAFT_STEPS = 3, DRAFT_PLANS = 3 };

struct draft_rig {
    struct rig weights; /* of its plan nothing is used */
    struct draft_model m;
    struct plan *plans[DRAFT_PLANS]; /* the trunk's, the block's, the same without a burst */
    struct backend *b[RIG_BACKENDS];
    uint8_t *state; /* before every run */
    uint64_t state_bytes, hidden_at, step;
    uint32_t n; /* rows */
};

/* What a run gives. */
struct draft_run {
    int32_t tokens[DRAFT_ROWS][IO_BURST];
    float *hidden[DRAFT_ROWS][IO_BURST]; /* of a row's cell after a step; of bursts the last */
};

static struct operand draft_rig_tensor(void *user, enum dtype type, const uint32_t dims[4],
                                       float size) {
    struct rig *r = user;
    struct operand o = rig_tensor(r, type, dims, size);
    double *freqs = (double *)(r->weights + o.offset);
    for (uint32_t i = 0; type == DT_F64 && i < dims[0]; i++)
        freqs[i] = pow(1e4, -(double)i / dims[0]);
    return o;
}

static inline void fill_draft_state(struct draft_rig *d) {
    const struct plan *plan = d->plans[1];
    const struct op *hidden = plan->ops;
    while (hidden->kind != OP_HIDDEN)
        hidden++;
    d->hidden_at = hidden->hidden.state.offset;
    d->state_bytes = plans_bytes(d->plans, DRAFT_PLANS, REGION_STATE);
    d->state = calloc(1, d->state_bytes);
    int32_t *pages = (int32_t *)(d->state + plan->pages.offset);
    uint32_t n_pages = d->m.n_slots * d->m.pages_per_seq;
    for (uint32_t i = 0; i < n_pages; i++)
        pages[i] = (int32_t)(i * 3 % n_pages); /* not a multiple of 3 */
    float *states = (float *)(d->state + d->hidden_at);
    for (uint32_t i = 0; i < d->m.width * d->m.n_cells; i++)
        states[i] = rig_uniform(&d->weights);
}

static inline bool open_draft(struct draft_rig *d, uint32_t n, enum dtype type,
                              enum dtype draft_type, uint64_t seed) {
    const struct plan_options ignored = {.max_rows = 1};
    struct err err = {0};
    *d = (struct draft_rig){.n = n,
                            .m = {.width = 256,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_width = 64,
                                  .inner = 512,
                                  .vocab = 301,
                                  .n_layers = 1,
                                  .type = type,
                                  .draft_type = draft_type,
                                  .n_slots = DRAFT_ROWS,
                                  .n_cells = 3 * DRAFT_ROWS,
                                  .pages_per_seq = 2}};
    rig_begin(&d->weights, seed, &ignored);
    draft_weights(&d->m, draft_rig_tensor, &d->weights);
    for (uint32_t i = 0; i < DRAFT_PLANS; i++)
        d->plans[i] = draft_plan(&d->m, n, n, i == 0 ? 0 : i == 1 ? DRAFT_STEPS : 1);
    fill_draft_state(d);
    const struct backend_weights w = {.base = d->weights.weights, .bytes = d->weights.used};
    const struct backend_options how = {.threads = 4};
    int status = SLUICE_OK;
    for (int b = 0; !status && b < RIG_BACKENDS; b++) {
        status = rig_kinds[b]->open(&d->b[b], &how, &err);
        if (!status)
            status = rig_kinds[b]->load(d->b[b], w, d->plans, DRAFT_PLANS, NULL, NULL, &err);
    }
    if (status)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return status == SLUICE_OK;
}

static inline void close_draft(struct draft_rig *d) {
    for (int b = 0; b < RIG_BACKENDS; b++)
        rig_kinds[b]->close(d->b[b]);
    for (uint32_t i = 0; i < DRAFT_PLANS; i++)
        plan_free(d->plans[i]);
    free(d->state);
    rig_end(&d->weights);
}

/* ---- steps -------------------------------------------------------------------------------- */

/* Row i is of slot i, near the end of its first page; its state is in cell i, and the block's goes
 * to another. */
static inline void draft_io(struct draft_rig *d, int backend, uint32_t number) {
    enum { NEAR_END = IO_PAGE_POSITIONS - 4 };
    const struct plan *plan = d->plans[number];
    uint8_t *io = rig_kinds[backend]->io(d->b[backend]);
    *(struct io_header *)io = (struct io_header){.n_rows = d->n,
                                                 .n_segments = d->n,
                                                 .n_outputs = d->n,
                                                 .spare_cell = d->m.n_cells - 1,
                                                 .step = ++d->step};
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t position = NEAR_END + i;
        ((struct io_row *)(io + plan->io.rows))[i] =
            (struct io_row){(int32_t)(7 + 50 * i), position, i, i};
        ((struct io_segment *)(io + plan->io.segments))[i] = (struct io_segment){i, i, 1, position};
        ((uint32_t *)(io + plan->io.to))[i] = number ? DRAFT_ROWS + i : i;
        ((struct io_output *)(io + plan->io.outputs))[i] =
            (struct io_output){.row = i,
                               .flags = IO_WANTS_TOKEN,
                               .temperature = i % 2 ? 0.7f : 0,
                               .top_p = 1,
                               .repeat_penalty = 1,
                               .n_vocab = d->m.vocab,
                               .seed = 5};
    }
}

static inline void draft_submit(struct draft_rig *d, int backend, uint32_t number, bool is_burst) {
    const struct backend_kind *kind = rig_kinds[backend];
    struct backend *b = d->b[backend];
    struct err err = {0};
    int status = is_burst ? kind->submit_burst(b, number, &err) : kind->submit(b, number, &err);
    if (!status)
        status = kind->wait(b, &err);
    if (status)
        test_fail(__FILE__, __LINE__, "%s: %s", kind->name, err.text);
}

static inline void draft_reset(struct draft_rig *d, int backend) {
    struct err err = {0};
    EXPECT_INT(rig_kinds[backend]->write_state(d->b[backend], 0, d->state_bytes, d->state, &err),
               SLUICE_OK);
}

static inline uint8_t *draft_state(struct draft_rig *d, int backend, uint64_t at, uint64_t bytes) {
    struct err err = {0};
    uint8_t *state = malloc(bytes);
    EXPECT_INT(rig_kinds[backend]->read_state(d->b[backend], at, bytes, state, &err), SLUICE_OK);
    return state;
}

static inline float *draft_hidden(struct draft_rig *d, int backend, uint32_t cell) {
    uint64_t bytes = d->m.width * sizeof(float);
    return (float *)draft_state(d, backend, d->hidden_at + cell * bytes, bytes);
}

/* What the host does between two steps. */
static inline void draft_move_on(struct draft_rig *d, const struct plan *plan, uint8_t *io) {
    struct io_header *header = (struct io_header *)io;
    struct io_row *rows = (struct io_row *)(io + plan->io.rows);
    struct io_segment *segments = (struct io_segment *)(io + plan->io.segments);
    header->step = ++d->step;
    for (uint32_t i = 0; i < d->n; i++) {
        rows[i].token = ((struct io_output *)(io + plan->io.outputs))[i].token;
        rows[i].position++;
        segments[i].first_position++;
        segments[i].cell = ((uint32_t *)(io + plan->io.to))[i];
    }
}

static inline void run_draft_steps(struct draft_rig *d, int backend, uint32_t number, uint32_t n,
                                   struct draft_run *out) {
    const struct plan *plan = d->plans[number];
    uint8_t *io = rig_kinds[backend]->io(d->b[backend]);
    draft_reset(d, backend);
    draft_io(d, backend, number);
    for (uint32_t k = 0; k < n; k++) {
        if (k)
            draft_move_on(d, plan, io);
        draft_submit(d, backend, number, false);
        for (uint32_t i = 0; i < d->n; i++) {
            out->tokens[i][k] = ((struct io_output *)(io + plan->io.outputs))[i].token;
            EXPECT(out->tokens[i][k] >= 0);
            out->hidden[i][k] = draft_hidden(d, backend, ((uint32_t *)(io + plan->io.to))[i]);
        }
    }
}

/* end: a token that ends, or -1. */
static inline void run_draft_burst(struct draft_rig *d, uint32_t number, uint32_t n, int32_t end,
                                   struct draft_run *out) {
    const struct plan *plan = d->plans[number];
    uint8_t *io = rig_kinds[RIG_DEVICE]->io(d->b[RIG_DEVICE]);
    struct io_header *header = (struct io_header *)io;
    draft_reset(d, RIG_DEVICE);
    draft_io(d, RIG_DEVICE, number);
    header->n_ends = end >= 0;
    header->ends[0] = end;
    draft_submit(d, RIG_DEVICE, number, true);
    for (uint32_t i = 0; i < d->n; i++) {
        memcpy(out->tokens[i], (int32_t *)(io + plan->io.burst) + i * IO_BURST,
               (n - 1) * sizeof **out->tokens);
        out->tokens[i][n - 1] = ((struct io_output *)(io + plan->io.outputs))[i].token;
        out->hidden[i][n - 1] = draft_hidden(d, RIG_DEVICE, number ? DRAFT_ROWS + i : i);
    }
}

static inline void free_draft_run(struct draft_run *run) {
    for (uint32_t i = 0; i < DRAFT_ROWS; i++)
        for (uint32_t k = 0; k < IO_BURST; k++)
            free(run->hidden[i][k]);
}

/* ---- checks ------------------------------------------------------------------------------- */

/* Tokens up to the first that ends, and the hidden state after its step. */
static inline void compare_draft_runs(struct draft_rig *d, uint32_t n, int32_t end,
                                      const struct draft_run *steps,
                                      const struct draft_run *burst) {
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t k = 0;
        while (k + 1 < n && steps->tokens[i][k] != end &&
               steps->tokens[i][k] == burst->tokens[i][k])
            k++;
        EXPECT_INT(burst->tokens[i][k], steps->tokens[i][k]);
        if (memcmp(burst->hidden[i][n - 1], steps->hidden[i][k], d->m.width * sizeof(float)) != 0)
            test_fail(__FILE__, __LINE__, "row %u of %u: the hidden state after step %u differs", i,
                      d->n, k);
    }
}

/* A wrong cell or row is far off; rounding is not. */
static inline void check_first_step(struct draft_rig *d, uint32_t number,
                                    const struct draft_run *device) {
    struct draft_run cpu = {0};
    run_draft_steps(d, RIG_CPU, number, 1, &cpu);
    for (uint32_t i = 0; i < d->n; i++)
        EXPECT(rig_distance(cpu.hidden[i][0], device->hidden[i][0], d->m.width) < 0.1);
    free_draft_run(&cpu);
}

static inline void check_draft_plan(struct draft_rig *d, uint32_t number) {
    uint32_t n = plan_burst_steps(d->plans[number]);
    uint64_t bytes = d->plans[number]->bytes[REGION_STATE];
    struct draft_run steps = {0}, burst = {0}, ended = {0};
    EXPECT(rig_kinds[RIG_DEVICE]->has_burst(d->b[RIG_DEVICE], number));
    run_draft_steps(d, RIG_DEVICE, number, n, &steps);
    uint8_t *one = draft_state(d, RIG_DEVICE, 0, bytes);
    run_draft_burst(d, number, n, -1, &burst);
    uint8_t *many = draft_state(d, RIG_DEVICE, 0, bytes);
    compare_draft_runs(d, n, -1, &steps, &burst);
    EXPECT(memcmp(one, many, bytes) == 0);
    check_first_step(d, number, &steps);
    run_draft_burst(d, number, n, steps.tokens[0][1], &ended);
    compare_draft_runs(d, n, steps.tokens[0][1], &steps, &ended);
    free(one);
    free(many);
    free_draft_run(&steps);
    free_draft_run(&burst);
    free_draft_run(&ended);
}

static inline void check_draft_bursts(uint32_t rows, enum dtype type, enum dtype draft_type,
                                      uint64_t seed) {
    struct draft_rig d;
    if (open_draft(&d, rows, type, draft_type, seed)) {
        check_draft_plan(&d, 0);
        check_draft_plan(&d, 1);
        EXPECT(!rig_kinds[RIG_DEVICE]->has_burst(d.b[RIG_DEVICE], 2));
        check_draft_plan(&d, 0); /* after the block's */
    }
    close_draft(&d);
}

#endif
