/* test_plan.c - plans: what is refused, what is the same twice, what shares memory. */
#include "model/model.h"
#include "plan/build.h"
#include "plan/io.h"
#include "test.h"

#define SHIPPED "models/stories-27m-q4_k_m.gguf"

static struct plan_options options_for(const struct model *m, uint32_t rows) {
    return (struct plan_options){.max_rows = rows,
                                 .max_outputs = rows < 4 ? rows : 4,
                                 .n_slots = 3,
                                 .n_cells = 3,
                                 .n_pages = 12,
                                 .pages_per_seq = 8,
                                 .kv_type = DT_F16,
                                 .n_vocab = m->config.n_vocab};
}

static struct model *open_model(const char *path) {
    struct err err = {0};
    struct model *m = NULL;
    if (model_open(&m, path, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return m;
}

static struct plan *plan_of(const struct model *m, uint32_t rows) {
    struct err err = {0};
    struct plan *plan = NULL;
    struct plan_options options = options_for(m, rows);
    if (model_plan(&plan, m, &options, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return plan;
}

TEST(plan_is_the_same_twice) {
    struct model *m = open_model(SHIPPED), *again = open_model(SHIPPED);
    for (uint32_t rows = 1; rows <= 64; rows *= 8) {
        struct plan *a = plan_of(m, rows), *b = plan_of(again, rows);
        EXPECT_INT(a->n_ops, b->n_ops);
        EXPECT_INT(a->n_ops, 8 * 5 + 3); /* five a layer, embed, head, pick */
        EXPECT(memcmp(a->ops, b->ops, a->n_ops * sizeof *a->ops) == 0);
        EXPECT(memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0);
        plan_free(a);
        plan_free(b);
    }
    model_close(m);
    model_close(again);
}

/* All row buckets must agree on where STATE and WEIGHTS are. */
TEST(plan_buckets_share_state_and_weights) {
    struct model *m = open_model(SHIPPED);
    struct plan *one = plan_of(m, 1), *many = plan_of(m, 64);
    EXPECT_INT(one->bytes[REGION_STATE], many->bytes[REGION_STATE]);
    for (uint32_t i = 0; i < one->n_ops; i++) {
        struct operand_ref a[MAX_OPERANDS], b[MAX_OPERANDS];
        uint32_t n = op_operands(&one->ops[i], a);
        EXPECT_INT(op_operands(&many->ops[i], b), n);
        for (uint32_t k = 0; k < n; k++)
            if (a[k].at->region == REGION_STATE || a[k].at->region == REGION_WEIGHTS)
                EXPECT(memcmp(a[k].at, b[k].at, sizeof *a[k].at) == 0);
    }
    plan_free(one);
    plan_free(many);
    model_close(m);
}

static bool overlap(const struct operand *a, const struct operand *b) {
    return a->offset < b->offset + operand_bytes(b) && b->offset < a->offset + operand_bytes(a);
}

/* What an op writes must not overlap another operand of it, or a value still needed. */
TEST(plan_scratch_never_overlaps_what_is_alive) {
    struct model *m = open_model(SHIPPED);
    struct plan *plan = plan_of(m, 16);
    struct operand x = plan->ops[0].embed.x; /* alive from the first op to the head */
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        struct operand_ref refs[MAX_OPERANDS];
        uint32_t n = op_operands(&plan->ops[i], refs);
        for (uint32_t w = 0; w < n; w++) {
            if (!refs[w].is_written || refs[w].at->region != REGION_SCRATCH)
                continue;
            EXPECT(refs[w].at->offset + operand_bytes(refs[w].at) <= plan->bytes[REGION_SCRATCH]);
            bool is_x = refs[w].at->offset == x.offset;
            if (!is_x && plan->ops[i].kind != OP_PICK)
                EXPECT(!overlap(refs[w].at, &x));
            for (uint32_t r = 0; r < n; r++)
                if (r != w && refs[r].at->region == REGION_SCRATCH)
                    EXPECT(!overlap(refs[w].at, refs[r].at));
        }
    }
    /* Layers reuse each other's scratch. */
    struct plan *wide = plan_of(m, 1);
    EXPECT(wide->bytes[REGION_SCRATCH] < 8 * 1024 * 1024);
    plan_free(wide);
    plan_free(plan);
    model_close(m);
}

/* ---- int8 activations --------------------------------------------------------------------- */

static struct operand matrix_of(enum dtype type) {
    return operand_at(REGION_WEIGHTS, type, 0, (uint32_t[4]){256, 256});
}

/* Types of up to four matrices, and how many activations share a scale. */
struct group_case {
    enum dtype types[4];
    uint32_t group;
};

TEST(plan_act_group_of_projects) {
    static const struct group_case cases[] = {
        {{DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_Q4_K}, 128}, {{DT_Q4_K, DT_Q4_K, DT_Q8_0, DT_Q6_K}, 128},
        {{DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q5_K}, 128}, {{DT_Q8_0, DT_Q4_0, DT_Q3_K, DT_Q2_K}, 32},
        {{DT_F32, DT_Q6_K, DT_BF16, DT_F16}, 128},   {{DT_F32, DT_F16, DT_BF16, DT_F32}, 32},
        {{DT_F32, DT_F16, DT_BF16, DT_Q4_0}, 32},    {{DT_Q8_0, DT_F32, DT_BF16, DT_Q8_0}, 128},
        {{DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q4_1}, 32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct op op = {.kind = OP_PROJECT, .project = {.n_segments = 4}};
        for (int s = 0; s < 4; s++)
            op.project.segments[s].weight = matrix_of(cases[i].types[s]);
        EXPECT_INT(op_act_group(&op), cases[i].group);
    }
}

/* Each type alone. */
TEST(plan_act_group_of_types) {
    for (uint32_t t = 0; t < DT_COUNT; t++) {
        if (!dtype_info(t) || !dtype_info(t)->decode)
            continue;
        struct op op = {.kind = OP_PROJECT, .project = {.n_segments = 1}};
        op.project.segments[0].weight = matrix_of((enum dtype)t);
        bool is_wide = t == DT_Q4_K || t == DT_Q5_K || t == DT_Q6_K || t == DT_Q8_0;
        EXPECT_INT(op_act_group(&op), is_wide ? 128 : 32);
    }
}

/* Segments with f32_act do not count, nor do those after the last. */
TEST(plan_act_group_of_f32_segments) {
    struct op op = {.kind = OP_PROJECT, .project = {.n_segments = 2}};
    struct segment *s = op.project.segments;
    s[0].weight = matrix_of(DT_Q4_K);
    s[1].weight = matrix_of(DT_Q4_0);
    s[2].weight = matrix_of(DT_Q4_0);
    EXPECT_INT(op_act_group(&op), 128);
    s[1].f32_act = 1;
    EXPECT_INT(op_act_group(&op), 128);
    s[0].f32_act = 1;
    EXPECT_INT(op_act_group(&op), 32); /* nothing is multiplied with int8 */
    s[1].f32_act = 0;
    EXPECT_INT(op_act_group(&op), 32);
    s[2].weight = matrix_of(DT_Q4_K);
    EXPECT_INT(op_act_group(&op), 32);
}

/* DT_COUNT: there is none, and what type its operand has says nothing. */
static struct operand matrix_or_none(enum dtype type) {
    return type == DT_COUNT ? (struct operand){.type = DT_Q8_0} : matrix_of(type);
}

TEST(plan_act_group_of_experts) {
    static const struct group_case cases[] = {
        {{DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_Q4_K}, 128},
        {{DT_Q4_K, DT_Q4_K, DT_COUNT, DT_COUNT}, 128},
        {{DT_Q4_K, DT_Q8_0, DT_Q8_0, DT_Q8_0}, 128},
        {{DT_Q8_0, DT_Q4_K, DT_Q8_0, DT_Q8_0}, 128},
        {{DT_Q8_0, DT_Q8_0, DT_Q4_K, DT_Q8_0}, 128},
        {{DT_Q8_0, DT_Q8_0, DT_Q8_0, DT_Q4_K}, 128},
        {{DT_Q8_0, DT_Q4_0, DT_Q8_0, DT_Q5_1}, 32},
        {{DT_Q6_K, DT_Q6_K, DT_F32, DT_BF16}, 128},
        {{DT_F16, DT_F16, DT_F16, DT_F16}, 32},
        {{DT_F32, DT_F32, DT_Q5_K, DT_Q5_K}, 128},
        {{DT_Q8_0, DT_Q8_0, DT_COUNT, DT_COUNT}, 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct op op = {.kind = OP_EXPERTS_IN};
        op.experts_in.gate = matrix_or_none(cases[i].types[0]);
        op.experts_in.up = matrix_or_none(cases[i].types[1]);
        op.experts_in.shared_gate = matrix_or_none(cases[i].types[2]);
        op.experts_in.shared_up = matrix_or_none(cases[i].types[3]);
        EXPECT_INT(op_act_group(&op), cases[i].group);
    }
}

TEST(plan_act_group_of_experts_out) {
    static const struct group_case cases[] = {
        {{DT_Q4_K, DT_Q6_K}, 128}, {{DT_Q5_K, DT_COUNT}, 128}, {{DT_Q4_K, DT_F32}, 128},
        {{DT_F16, DT_Q4_K}, 128},  {{DT_Q4_K, DT_Q8_0}, 128},  {{DT_Q5_0, DT_Q4_K}, 128},
        {{DT_Q8_0, DT_Q4_0}, 32},  {{DT_F32, DT_BF16}, 32},    {{DT_Q8_0, DT_COUNT}, 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct op op = {.kind = OP_EXPERTS_OUT};
        op.experts_out.down = matrix_or_none(cases[i].types[0]);
        op.experts_out.shared_down = matrix_or_none(cases[i].types[1]);
        EXPECT_INT(op_act_group(&op), cases[i].group);
    }
}

/* Rows that are no whole groups of 128 keep 32 for all. */
TEST(plan_act_group_of_odd_rows) {
    struct op op = {.kind = OP_EXPERTS_OUT};
    op.experts_out.down = matrix_of(DT_Q8_0);
    op.experts_out.shared_down = matrix_of(DT_Q4_K);
    EXPECT_INT(op_act_group(&op), 128);
    op.experts_out.down.dims[0] = 96;
    EXPECT_INT(op_act_group(&op), 32);
    op.experts_out.down.type = DT_F32;
    EXPECT_INT(op_act_group(&op), 128);
}

TEST(plan_act_group_of_other_ops) {
    struct op op = {.kind = OP_EMBED};
    op.embed.table = matrix_of(DT_Q4_K);
    EXPECT_INT(op_act_group(&op), 32);
}

/* ---- wrong plans -------------------------------------------------------------------------- */

static struct operand weight(uint32_t k, uint32_t n, enum dtype type) {
    return operand_at(REGION_WEIGHTS, type, 0, (uint32_t[4]){k, n});
}

struct wrong {
    const char *expected;
    void (*spoil)(struct op *op);
};

static void spoil_norm(struct op *op) {
    op->project.norm = weight(32, 0, DT_F32);
}
static void spoil_weight(struct op *op) {
    op->project.segments[0].weight = weight(96, 32, DT_F32);
}
static void spoil_type(struct op *op) {
    op->project.segments[0].weight.type = DT_TQ1_0;
}
static void spoil_column(struct op *op) {
    op->project.segments[0].column = 1;
}
static void spoil_region(struct op *op) {
    op->project.segments[0].weight.region = REGION_STATE;
}
static void spoil_eps(struct op *op) {
    op->project.eps = 0;
}
static void spoil_bias(struct op *op) {
    op->project.segments[0].bias = weight(31, 0, DT_F32);
}
static void spoil_count(struct op *op) {
    op->project.n_segments = 0;
}
static void spoil_swiglu(struct op *op) {
    op->project.epilogue = EPILOGUE_SWIGLU;
}
static void spoil_gate(struct op *op) {
    op->project.prologue = PROLOGUE_SIGMOID_GATE;
    op->project.head_width = 60;
}
static void spoil_in(struct op *op) {
    op->project.in.dims[1] = 9;
}
static void spoil_kind(struct op *op) {
    op->kind = OP_KIND_COUNT;
}

TEST(plan_refuses_what_does_not_fit) {
    static const struct wrong cases[] = {
        {"norm is (32) F32, expected (64) F32", spoil_norm},
        {"weight is (32, 96) F32, expected (32, 64) F32", spoil_weight},
        {"weight is (32, 64) TQ1_0", spoil_type},
        {"column", spoil_column},
        {"weight is STATE, expected WEIGHTS", spoil_region},
        {"eps", spoil_eps},
        {"bias is (31) F32, expected (32) F32", spoil_bias},
        {"segments", spoil_count},
        {"segments is otherwise, expected 2 for SwiGLU", spoil_swiglu},
        {"head_width", spoil_gate},
        {"in is (9, 64) F32, expected (4, 64) F32", spoil_in},
        {"kind is unknown", spoil_kind},
    };
    struct plan_options options = {
        .max_rows = 4, .max_outputs = 1, .n_slots = 1, .n_cells = 1, .n_vocab = 10};
    for (size_t i = 0; i <= sizeof cases / sizeof *cases; i++) {
        struct plan *plan;
        struct err err = {0};
        EXPECT_INT(plan_new(&plan, &options, &err), SLUICE_OK);
        struct op op = {.kind = OP_PROJECT, .layer = 7, .role = "trial"};
        op.project = (struct op_project){.in = plan_scratch(plan, 64),
                                         .prologue = PROLOGUE_NORM,
                                         .norm = weight(64, 0, DT_F32),
                                         .eps = 1e-6f,
                                         .n_segments = 1,
                                         .segments = {{.weight = weight(64, 32, DT_F32)}},
                                         .out = plan_scratch(plan, 32)};
        if (i == sizeof cases / sizeof *cases) { /* unspoiled it is taken */
            EXPECT_INT(plan_add(plan, &op, &err), SLUICE_OK);
        } else {
            cases[i].spoil(&op);
            EXPECT(plan_add(plan, &op, &err) < 0);
            if (!strstr(err.text, cases[i].expected) || !strstr(err.text, "op 0, "))
                test_fail(__FILE__, __LINE__, "\"%s\", expected \"%s\" in it", err.text,
                          cases[i].expected);
        }
        plan_free(plan);
    }
}

/* All attention layers share the table that plan_page_table handed out. */
TEST(plan_has_one_page_table) {
    enum { HEAD = 64 };
    struct plan_options options = {
        .max_rows = 4, .max_outputs = 1, .n_slots = 2, .n_cells = 2, .n_vocab = 10};
    struct plan *plan;
    struct err err = {0};
    EXPECT_INT(plan_new(&plan, &options, &err), SLUICE_OK);
    const uint32_t cache[4] = {HEAD, IO_PAGE_POSITIONS, 1, 6}, table[4] = {3, 2};
    struct op op = {.kind = OP_ATTEND, .role = "trial"};
    op.attend = (struct op_attend){.in = plan_scratch(plan, 3 * HEAD),
                                   .keys = plan_state(plan, DT_F16, cache),
                                   .values = plan_state(plan, DT_F16, cache),
                                   .pages = plan_state(plan, DT_I32, table),
                                   .out = plan_scratch(plan, HEAD),
                                   .q_stride = HEAD,
                                   .k_column = HEAD,
                                   .v_column = 2 * HEAD,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_width = HEAD,
                                   .eps = 1e-6f,
                                   .scale = 1};
    EXPECT(plan_add(plan, &op, &err) < 0);
    EXPECT(strstr(err.text, "expected the plan's page table"));
    plan_page_table(plan, 3, 2);
    EXPECT(plan_add(plan, &op, &err) < 0);
    op.attend.pages = plan->pages;
    EXPECT_INT(plan_add(plan, &op, &err), SLUICE_OK);
    plan_free(plan);
}

/* ---- sizes that do not fit ---------------------------------------------------------------- */

static void expect_text(const struct err *err, const char *expected) {
    if (!strstr(err->text, expected))
        test_fail(__FILE__, __LINE__, "\"%s\", expected \"%s\" in it", err->text, expected);
}

/* A plan of ROUTE, EXPERTS_IN and EXPERTS_OUT; each may be left out, or its experts differ. */
struct experts_plan {
    bool has_route, has_in;
    uint32_t route_experts, in_experts, out_experts, used, ffn;
    uint64_t hidden;
    const char *expected; /* NULL: it is taken */
};

static int add_experts(struct plan *plan, const struct experts_plan *p, struct err *err) {
    enum { WIDTH = 64 };
    struct operand x = plan_scratch(plan, WIDTH), norm = weight(WIDTH, 0, DT_F32);
    const uint32_t list[4] = {p->used + 1, 4};
    struct operand choice = plan_scratch_of(plan, DT_I32, list);
    struct operand weights = plan_scratch_of(plan, DT_F32, list);
    struct operand hidden = plan_scratch(plan, p->hidden);
    const uint32_t in_dims[4] = {WIDTH, p->ffn, p->in_experts};
    const uint32_t out_dims[4] = {p->ffn, WIDTH, p->out_experts};
    struct operand matrices = operand_at(REGION_WEIGHTS, DT_F32, 0, in_dims);
    struct op route = {.kind = OP_ROUTE, .role = "trial"};
    route.route = (struct op_route){.in = x,
                                    .norm = norm,
                                    .router = weight(WIDTH, p->route_experts, DT_F32),
                                    .choice = choice,
                                    .weight = weights,
                                    .eps = 1e-6f,
                                    .used = p->used};
    struct op in = {.kind = OP_EXPERTS_IN, .role = "trial"};
    in.experts_in = (struct op_experts_in){.in = x,
                                           .norm = norm,
                                           .gate = matrices,
                                           .up = matrices,
                                           .choice = choice,
                                           .hidden = hidden,
                                           .eps = 1e-6f};
    struct op out = {.kind = OP_EXPERTS_OUT, .role = "trial"};
    out.experts_out =
        (struct op_experts_out){.hidden = hidden,
                                .choice = choice,
                                .weight = weights,
                                .x = x,
                                .down = operand_at(REGION_WEIGHTS, DT_F32, 0, out_dims)};
    int status = p->has_route ? plan_add(plan, &route, err) : SLUICE_OK;
    if (!status && p->has_in)
        status = plan_add(plan, &in, err);
    return status ? status : plan_add(plan, &out, err);
}

TEST(plan_refuses_experts_that_do_not_fit) {
    static const struct experts_plan cases[] = {
        {true, true, 8, 8, 8, 2, 32, 64, NULL},
        {true, false, 8, 8, 8, 2, 32, 64, "choice is otherwise, expected that of an EXPERTS_IN"},
        {false, true, 8, 8, 8, 2, 32, 64, "choice is otherwise, expected that of the ROUTE"},
        {true, true, 9, 8, 8, 2, 32, 64, "gate is otherwise, expected for as many as ROUTE"},
        {true, true, 8, 8, 7, 2, 32, 64, "down is otherwise, expected for as many as EXPERTS_IN"},
        {true, true, 8, 8, 8, 2, 32, 63, "hidden is (4, 63) F32, expected (4, 64) F32"},
        /* 4096 * 2^20 values are 2^32: a product of 32 bits says 0, and 64 with two more. */
        {true, true, 4096, 4096, 4096, 4096, 1 << 20, 1, "expected (4, 4294967296) F32"},
        {true, true, 4096, 4096, 4096, 4096, 1 << 20, 1ull << 32, "rows of more than 2^32 - 1"},
    };
    struct plan_options options = {
        .max_rows = 4, .max_outputs = 1, .n_slots = 1, .n_cells = 1, .n_vocab = 10};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan *plan;
        struct err err = {0};
        EXPECT_INT(plan_new(&plan, &options, &err), SLUICE_OK);
        int status = add_experts(plan, &cases[i], &err);
        EXPECT_INT(status < 0, cases[i].expected != NULL);
        expect_text(&err, cases[i].expected ? cases[i].expected : "");
        plan_free(plan);
    }
}

/* Operands outside their region, of every region whose end a plan knows. */
TEST(plan_refuses_operands_that_leave_their_region) {
    struct plan_options options = {
        .max_rows = 4, .max_outputs = 1, .n_slots = 1, .n_cells = 1, .n_vocab = 10};
    for (int i = 0; i < 4; i++) {
        struct plan *plan;
        struct err err = {0};
        EXPECT_INT(plan_new(&plan, &options, &err), SLUICE_OK);
        struct op op = {.kind = OP_PROJECT, .role = "trial"};
        op.project = (struct op_project){.in = plan_scratch(plan, 64),
                                         .n_segments = 1,
                                         .segments = {{.weight = weight(64, 32, DT_F32)}},
                                         .out = plan_scratch(plan, 32)};
        if (i == 0)
            op.project.out.offset += 4;
        if (i == 1)
            op.project.out.offset = 77ull << 40; /* no buffer of the plan */
        if (i == 2)
            op.project.out.region = REGION_STATE;
        if (i == 3)
            op.project.out.stride = 31;
        EXPECT(plan_add(plan, &op, &err) < 0);
        expect_text(&err, "op 0, project: out has ");
        EXPECT_INT(plan->n_ops, 0);
        plan_free(plan);
    }
}

/* More than 2^64 bytes of a region are an error, whichever it is. */
TEST(plan_refuses_sizes_that_cannot_be_counted) {
    const uint32_t most = UINT32_MAX;
    struct plan_options options = {
        .max_rows = 4, .max_outputs = 4, .n_slots = 1, .n_cells = 1, .n_vocab = 10};
    struct plan *plan;
    struct err err = {0};
    for (int i = 0; i < 3; i++) {
        EXPECT_INT(plan_new(&plan, &options, &err), SLUICE_OK);
        for (int k = 0; k < 4; k++)
            plan_state(plan, DT_F32, (uint32_t[4]){most, i ? 1u << 27 : 1u << 30, 1, 1});
        if (i == 2)
            plan_scratch_of(plan, DT_F32, (uint32_t[4]){most, most, most, most});
        EXPECT_INT(plan_finish(plan, &err), i == 1 ? SLUICE_OK : SLUICE_ERR_MEMORY);
        expect_text(&err, i == 0   ? "sequences whose state is more than 2^64 bytes"
                          : i == 2 ? "more than 2^64 bytes of scratch"
                                   : "");
        plan_free(plan);
    }
    options.n_taps = options.tap_width = most;
    EXPECT_INT(plan_new(&plan, &options, &err), SLUICE_OK);
    EXPECT_INT(plan_finish(plan, &err), SLUICE_ERR_MEMORY);
    expect_text(&err, "more than 2^64 bytes of input and output");
    plan_free(plan);
}
