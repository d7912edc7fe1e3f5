/* check_pick.h - PICK of any backend: on the same logits it gives the CPU's tokens, but where a
 * draw falls between two that rounding cannot tell apart. */
#ifndef TESTS_RIG_CHECK_PICK_H
#define TESTS_RIG_CHECK_PICK_H

#include "cells.h"
#include "rig.h"

/* Logits are rows of a table, or what a head makes of them. */
static inline struct operand build_pick(struct rig *r, uint32_t vocab, uint32_t rows,
                                        enum dtype type, bool has_head, float size, uint64_t seed) {
    enum { WIDTH = 256, SLOTS = 3 };
    struct plan_options options = {.max_rows = rows, .n_slots = SLOTS, .n_vocab = vocab};
    rig_begin(r, seed, &options);
    r->n_tokens = vocab;
    struct op op = {.kind = OP_EMBED, .layer = -1, .role = "rows"};
    uint32_t width = has_head ? WIDTH : vocab;
    op.embed.table = rig_tensor(r, has_head ? DT_F16 : type, (uint32_t[4]){width, vocab}, size);
    op.embed.x = plan_scratch(r->plan, width);
    rig_add(r, &op);
    struct operand logits = op.embed.x;
    if (has_head) {
        struct op head = {.kind = OP_PROJECT, .layer = -1, .role = "head"};
        head.project.in = op.embed.x;
        head.project.is_lm_head = true;
        head.project.n_segments = 1;
        head.project.segments[0].weight = rig_tensor(r, type, (uint32_t[4]){width, vocab}, 1);
        logits = head.project.out = plan_scratch_of(r->plan, DT_F32, (uint32_t[4]){vocab, rows});
        rig_add(r, &head);
    }
    struct op pick = {.kind = OP_PICK, .layer = -1, .role = "pick"};
    pick.pick = (struct op_pick){
        .logits = logits,
        .wanted = plan_logits(r->plan),
        .counts = plan_state(r->plan, DT_I16, (uint32_t[4]){vocab, SLOTS}),
        .adjusted = plan_scratch_of(r->plan, DT_F32, (uint32_t[4]){vocab, rows}),
        .order = plan_scratch_of(r->plan, DT_I64, (uint32_t[4]){vocab, rows}),
    };
    rig_add(r, &pick);
    return pick.pick.wanted;
}

/* What row `i` of a step asks for; the same for both backends. */
static inline struct io_output ask(struct rig *r, uint32_t i, uint32_t kind, uint64_t step) {
    static const float ps[] = {1, 0.95f, 0.5f}, mins[] = {0, 0, 0.05f};
    static const uint32_t ks[] = {0, 20, 300};
    struct io_output o = {
        .row = i,
        .flags = kind == 0 ? IO_WANTS_TOKEN | IO_WANTS_LOGITS : (i + (uint32_t)step) % 4,
        .top_p = ps[(i + step) % 3],
        .min_p = mins[(i + step / 3) % 3],
        .top_k = ks[(i + step / 9) % 3],
        .repeat_penalty = 1,
        .n_vocab = r->plan->n_vocab - i % 2 * 5,
        .seed = step * 1000 + i,
        .token = -1,
    };
    if (kind >= 2 && i % 3 == 0)
        o.repeat_penalty = 1.5f, o.frequency_penalty = 0.25f;
    if (kind >= 2 && i % 4 == 1)
        o.n_bias = 3, o.first_bias = 3 * i;
    if (kind >= 2 && i % 5 == 2)
        o.flags |= IO_HAS_MASK;
    o.temperature = kind == 3 ? 0.8f : 0;
    return o;
}

/* Few tokens, all but a few, or one. */
static inline void fill_mask(struct rig *r, uint8_t *io, uint32_t i, uint64_t step) {
    uint32_t words = IO_MASK_WORDS(r->plan->n_vocab);
    uint32_t *mask = (uint32_t *)(io + r->plan->io.masks) + i * words;
    for (uint32_t w = 0; w < words; w++) {
        uint32_t some = (uint32_t)((step + i + w) * 2654435761u);
        mask[w] = step % 3 == 0   ? some & some >> 7 & some << 9
                  : step % 3 == 1 ? ~some | some << 3
                                  : 0;
    }
    mask[step % 30] |= 1u << i % 32;
}

/* Rows of which some steps ask for nothing: their tokens are counted anyway. */
static inline uint32_t outputs_of(uint32_t n, uint64_t step) {
    return step % 5 == 4 ? 0 : n;
}

static inline void pick_step(struct rig *r, int backend, uint32_t n, uint32_t kind, uint64_t step) {
    uint8_t *io = rig_kinds[backend]->io(r->b[backend]);
    struct io_row *rows = (struct io_row *)(io + r->plan->io.rows);
    struct io_segment *segments = (struct io_segment *)(io + r->plan->io.segments);
    struct io_output *outputs = (struct io_output *)(io + r->plan->io.outputs);
    struct io_bias *biases = (struct io_bias *)(io + r->plan->io.biases);
    struct err err = {0};
    *(struct io_header *)io = (struct io_header){
        .step = step, .n_rows = n, .n_segments = n, .n_outputs = outputs_of(n, step)};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = i % r->options.n_slots;
        uint32_t token = (uint32_t)(step * 7919 + i / 3 * 31) % r->plan->n_vocab;
        rows[i] = (struct io_row){(int32_t)token, (uint32_t)step, slot, i};
        segments[i] = (struct io_segment){slot, i, 1, (uint32_t)step};
        outputs[i] = ask(r, i, kind, step);
        fill_mask(r, io, i, step);
        for (uint32_t k = 0; k < 3; k++)
            biases[3 * i + k] = (struct io_bias){(int32_t)(token + k), 9.0f - (float)k};
    }
    update_in_place(io, r->plan);
    int status = rig_kinds[backend]->submit(r->b[backend], 0, &err);
    if (!status)
        status = rig_kinds[backend]->wait(r->b[backend], &err);
    if (status)
        test_fail(__FILE__, __LINE__, "%s: %s", rig_kinds[backend]->name, err.text);
}

static inline int32_t token_of(struct rig *r, int backend, uint32_t i) {
    const uint8_t *io = rig_kinds[backend]->io(r->b[backend]);
    return ((const struct io_output *)(io + r->plan->io.outputs))[i].token;
}

static inline bool is_allowed(struct rig *r, uint32_t i, int32_t token) {
    const uint8_t *io = rig_kinds[RIG_CPU]->io(r->b[RIG_CPU]);
    const uint32_t *mask =
        (const uint32_t *)(io + r->plan->io.masks) + i * IO_MASK_WORDS(r->plan->n_vocab);
    return token >= 0 && mask[token / 32] >> token % 32 & 1;
}

static const float *logits_of(struct rig *r, int backend, const struct operand *wanted,
                              uint32_t i) {
    return (const float *)(rig_kinds[backend]->io(r->b[backend]) + wanted->offset) +
           (size_t)i * wanted->stride;
}

static inline int32_t best_of(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

/* STATE is nothing but counts. */
static inline void expect_same_counts(struct rig *r) {
    uint64_t bytes = r->plan->bytes[REGION_STATE];
    uint8_t *counts = malloc(RIG_BACKENDS * bytes);
    struct err err = {0};
    for (int b = 0; b < RIG_BACKENDS; b++)
        EXPECT_INT(rig_kinds[b]->read_state(r->b[b], 0, bytes, counts + b * bytes, &err),
                   SLUICE_OK);
    EXPECT(memcmp(counts, counts + bytes, bytes) == 0);
    free(counts);
}

/* The same logits on both sides: the same tokens, the same counts, logits where they were asked
 * for. */
static inline void check_pick_of(uint32_t vocab, uint32_t rows, enum dtype type, float size) {
    struct rig r;
    struct operand wanted = build_pick(&r, vocab, rows, type, false, size, vocab + rows);
    uint32_t differ = 0, sampled = 0;
    bool is_open = rig_open(&r);
    for (uint64_t step = 1; is_open && step < 25; step++) {
        uint32_t kind = step % 4, n = step % 10 == 9 ? 0 : rows - step % 2 * (rows / 2);
        for (int b = 0; b < RIG_BACKENDS; b++)
            pick_step(&r, b, n, kind, step);
        for (uint32_t i = 0; i < outputs_of(n, step); i++) {
            struct io_output o = ask(&r, i, kind, step);
            int32_t a = token_of(&r, RIG_CPU, i), b = token_of(&r, RIG_DEVICE, i);
            sampled += kind == 3;
            differ += a != b;
            if (o.flags & IO_HAS_MASK && o.flags & IO_WANTS_TOKEN && !is_allowed(&r, i, b))
                test_fail(__FILE__, __LINE__, "V %u, row %u of %u, kind %u: token %d is masked",
                          vocab, i, n, kind, b);
            if (a != b && kind != 3)
                test_fail(__FILE__, __LINE__, "V %u, row %u of %u, kind %u: token %d, not %d",
                          vocab, i, n, kind, b, a);
            if (o.flags & IO_WANTS_LOGITS)
                EXPECT(memcmp(logits_of(&r, RIG_CPU, &wanted, i),
                              logits_of(&r, RIG_DEVICE, &wanted, i), vocab * sizeof(float)) == 0);
        }
    }
    EXPECT(differ <= 1 + sampled / 50);
    if (is_open)
        expect_same_counts(&r);
    rig_end(&r);
}

static inline void check_pick(uint32_t vocab, uint32_t rows, enum dtype type) {
    check_pick_of(vocab, rows, type, 4);
}

/* Logits straight from the head: what the host gets is what the token is the best of. */
static inline void check_head(uint32_t vocab, uint32_t rows, enum dtype type) {
    struct rig r;
    struct operand wanted = build_pick(&r, vocab, rows, type, true, 4, vocab + rows);
    bool is_open = rig_open(&r);
    for (uint64_t step = 1; is_open && step < 4; step++) {
        uint32_t kind = step > 1;
        float before = 0;
        for (int b = 0; b < RIG_BACKENDS; b++) {
            if (rows > 1)
                before = logits_of(&r, b, &wanted, 1)[vocab - 1];
            pick_step(&r, b, rows, kind, step);
        }
        for (uint32_t i = 0; i < rows; i++) {
            struct io_output o = ask(&r, i, kind, step);
            const float *x = logits_of(&r, RIG_DEVICE, &wanted, i);
            if (o.flags == (IO_WANTS_LOGITS | IO_WANTS_TOKEN))
                EXPECT_INT(token_of(&r, RIG_DEVICE, i), best_of(x, o.n_vocab));
            if (o.flags & IO_WANTS_LOGITS)
                EXPECT(rig_distance(logits_of(&r, RIG_CPU, &wanted, i), x, vocab) < 1e-2);
            else if (i == 1)
                EXPECT(x[vocab - 1] == before);
        }
    }
    rig_end(&r);
}

/* Puts one value that is not finite into row `row` of a matrix of floats, or into a scale of it. */
static inline void damage(struct rig *r, const struct operand *m, uint32_t row, uint32_t column,
                          float value) {
    uint8_t *at = r->weights + m->offset + row * operand_row_bytes(m);
    uint16_t half = isnan(value) ? 0x7e00 : value > 0 ? 0x7c00 : 0xfc00;
    if (m->type == DT_F32)
        memcpy(at + column * sizeof value, &value, sizeof value);
    else if (m->type == DT_F16)
        memcpy(at + column * sizeof half, &half, sizeof half);
    else /* Q8_0, Q4_0: the first block's scale */
        memcpy(at, &half, sizeof half);
}

/* Rows whose logits are not all finite have no token, on both backends, whatever they ask for. */
static inline void check_not_finite(uint32_t vocab, uint32_t rows, enum dtype type, bool has_head,
                                    float value) {
    struct rig r;
    build_pick(&r, vocab, rows, type, has_head, 4, vocab + rows);
    if (has_head) /* one logit of every row */
        damage(&r, &r.plan->ops[1].project.segments[0].weight, vocab / 3, 7, value);
    else /* of every other token */
        for (uint32_t i = 0; i < vocab; i += 2)
            damage(&r, &r.plan->ops[0].embed.table, i, i * 31 % (vocab - 5), value);
    bool is_open = rig_open(&r);
    uint32_t marked = 0, picked = 0;
    for (uint64_t step = 1; is_open && step < 25; step++) {
        for (int b = 0; b < RIG_BACKENDS; b++)
            pick_step(&r, b, rows, step % 4, step);
        for (uint32_t i = 0; i < rows; i++) {
            bool is_marked[RIG_BACKENDS];
            for (int b = 0; b < RIG_BACKENDS; b++)
                is_marked[b] = token_of(&r, b, i) == IO_NOT_FINITE;
            marked += is_marked[RIG_CPU];
            picked += !is_marked[RIG_CPU];
            if (is_marked[RIG_DEVICE] != is_marked[RIG_CPU])
                test_fail(__FILE__, __LINE__, "V %u of %s, %g, row %u of %u, step %d: token %d",
                          vocab, dtype_name(type), (double)value, i, rows, (int)step,
                          token_of(&r, RIG_DEVICE, i));
        }
    }
    EXPECT(marked > 0 && (has_head || picked > 0));
    rig_end(&r);
}

#endif
