/* pick_drafts.h - PICK of drafted rows against PICK of one row after the other, on one backend: the
 * same tokens, and the same counts after it. */
#ifndef TESTS_PICK_DRAFTS_H
#define TESTS_PICK_DRAFTS_H

#include "backend/backend.h"
#include "cells.h"
#include "plan/build.h"
#include "test.h"

enum { PICK_VOCAB = 37, PICK_ROWS = 8 };

/* A plan of PICK alone: the logits after a token are that token's row of a table. */
struct pick_rig {
    const struct backend_kind *kind;
    struct plan *plan;
    struct backend *b;
    float table[PICK_VOCAB * PICK_VOCAB];
    struct operand counts;
    uint64_t step;
};

static bool pick_open(struct pick_rig *r, uint32_t threads) {
    struct plan_options options = {
        .max_rows = PICK_ROWS, .max_outputs = PICK_ROWS, .n_slots = 2, .n_vocab = PICK_VOCAB};
    struct err err = {0};
    uint64_t random = 1;
    for (uint32_t i = 0; i < PICK_VOCAB * PICK_VOCAB; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        r->table[i] = (float)(random >> 40) * 0x1p-22f - 2;
    }
    EXPECT_INT(plan_new(&r->plan, &options, &err), SLUICE_OK);
    struct op embed = {.kind = OP_EMBED, .role = "rows"};
    embed.embed.table =
        operand_at(REGION_WEIGHTS, DT_F32, 0, (uint32_t[4]){PICK_VOCAB, PICK_VOCAB});
    embed.embed.x = plan_scratch(r->plan, PICK_VOCAB);
    struct op pick = {.kind = OP_PICK, .role = "pick"};
    pick.pick = (struct op_pick){
        .logits = embed.embed.x,
        .wanted = plan_logits(r->plan),
        .counts = r->counts = plan_state(r->plan, DT_I16, (uint32_t[4]){PICK_VOCAB, 2}),
        .adjusted = plan_scratch_of(r->plan, DT_F32, (uint32_t[4]){PICK_VOCAB, PICK_ROWS}),
        .order = plan_scratch_of(r->plan, DT_I64, (uint32_t[4]){PICK_VOCAB, PICK_ROWS}),
    };
    struct backend_options how = {.threads = (int)threads};
    if (plan_add(r->plan, &embed, &err) || plan_add(r->plan, &pick, &err) ||
        plan_finish(r->plan, &err) || r->kind->open(&r->b, &how, &err) ||
        r->kind->load(
            r->b, (struct backend_weights){.base = (uint8_t *)r->table, .bytes = sizeof r->table},
            &r->plan, 1, NULL, NULL, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return err.code == 0;
}

/* One step of a slot: tokens from a position on, all but the first of them drafts. */
static void pick_rows(struct pick_rig *r, uint32_t slot, uint32_t position, const int32_t *tokens,
                      uint32_t n, float temperature, int32_t *picked) {
    uint8_t *io = r->kind->io(r->b);
    struct io_row *rows = (struct io_row *)(io + r->plan->io.rows);
    struct io_output *outputs = (struct io_output *)(io + r->plan->io.outputs);
    struct io_bias *biases = (struct io_bias *)(io + r->plan->io.biases);
    *(struct io_header *)io = (struct io_header){
        .n_rows = n, .n_segments = 1, .n_outputs = n, .n_drafts = n - 1, .step = ++r->step};
    *(struct io_segment *)(io + r->plan->io.segments) =
        (struct io_segment){.n_rows = n, .first_position = position};
    biases[0] = (struct io_bias){5, 0.5f};
    biases[1] = (struct io_bias){5, 0.125f};
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (struct io_row){.token = tokens[i], .position = position + i, .slot = slot};
        outputs[i] = (struct io_output){.row = i,
                                        .flags = IO_WANTS_TOKEN | (i ? IO_DRAFTED : 0),
                                        .temperature = temperature,
                                        .top_p = 1,
                                        .repeat_penalty = 1.3f,
                                        .presence_penalty = 0.1f,
                                        .frequency_penalty = 0.4f,
                                        .n_bias = 2,
                                        .n_vocab = PICK_VOCAB,
                                        .seed = 9};
    }
    update_in_place(io, r->plan);
    struct err err = {0};
    if (r->kind->submit(r->b, 0, &err) || r->kind->wait(r->b, &err))
        test_fail(__FILE__, __LINE__, "%s", err.text);
    for (uint32_t i = 0; i < n; i++)
        picked[i] = outputs[i].token;
}

static void pick_counts(struct pick_rig *r, uint32_t slot, bool is_set, uint16_t *counts) {
    struct err err = {0};
    uint64_t bytes = PICK_VOCAB * sizeof *counts, at = r->counts.offset + slot * bytes;
    EXPECT_INT(is_set ? r->kind->write_state(r->b, at, bytes, counts, &err)
                      : r->kind->read_state(r->b, at, bytes, counts, &err),
               SLUICE_OK);
}

/* Slot 0 goes token by token; slot 1 drafts the same, of which the first `right` are what slot 0
 * picked. `start`: what the counts are before, up to those that can count no further. */
static void check_pick_of_drafts(struct pick_rig *r, uint32_t right, float temperature,
                                 uint16_t start) {
    uint16_t counts[2][PICK_VOCAB];
    int32_t tokens[PICK_ROWS + 1] = {7}, picked[PICK_ROWS];
    for (uint32_t i = 0; i < PICK_VOCAB; i++)
        counts[0][i] = i % 3 ? start : 0;
    pick_counts(r, 0, true, counts[0]);
    pick_counts(r, 1, true, counts[0]);
    for (uint32_t i = 0; i <= right; i++)
        pick_rows(r, 0, 100 + i, &tokens[i], 1, temperature, &tokens[i + 1]);
    int32_t next = tokens[right + 1];
    for (uint32_t i = right + 1; i < PICK_ROWS; i++)
        tokens[i] = (tokens[i - 1] + 1 + (tokens[i - 1] + 1 == next)) % PICK_VOCAB;
    pick_rows(r, 1, 100, tokens, PICK_ROWS, temperature, picked);
    EXPECT(memcmp(picked, tokens + 1, right * sizeof *picked) == 0);
    EXPECT_INT(picked[right], next);
    pick_counts(r, 0, false, counts[0]);
    pick_counts(r, 1, false, counts[1]);
    EXPECT(memcmp(counts[0], counts[1], sizeof counts[0]) == 0);
}

/* On one backend. */
static void check_picks_of_drafts(const struct backend_kind *kind, uint32_t threads) {
    static const uint16_t starts[] = {0, 1, UINT16_MAX - 1};
    struct pick_rig r = {.kind = kind};
    if (!pick_open(&r, threads))
        return;
    for (uint32_t right = 0; right < PICK_ROWS; right++)
        for (uint32_t i = 0; i < 6; i++)
            check_pick_of_drafts(&r, right, i % 2 ? 0.7f : 0, starts[i / 2]);
    kind->close(r.b);
    plan_free(r.plan);
}

#endif
