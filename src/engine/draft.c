/* draft.c - drafts: those the caller guessed, and those of the model's own draft block.
 *
 * A step of the block has one row a sequence: the last token known, at its position, from the
 * hidden state in the sequence's cell. It picks a token, and stores its own hidden state to a spare
 * cell, from which the next step continues with that token.
 * (1) Nothing of the sequence changes but its drafts: keys and values of the block at positions
 *     from `length` on are overwritten by the step that processes these tokens.
 * (2) Pages that the drafts needed are given back. The next step takes them again, if it can.
 *
 * The LM head is most of what a draft reads. Where the texts consist of the vocabulary's first
 * tokens a draft is one of these: a plan of its own reads their rows alone. */
#include <string.h>

#include "base/size.h"
#include "engine/engine.h"
#include "engine/state_internal.h"
#include "plan/io.h"

void draft_set(struct sluice_seq *seq, const int32_t *tokens, size_t n) {
    const struct sluice_engine *e = seq->engine;
    struct slot *s = &e->state.slots[seq->slot];
    uint32_t max = min_u32(e->setup.drafts, e->setup.context - s->n_tokens), n_drafts = 0;
    while (n_drafts < max && n_drafts < n && !sluice_token_is_end(e->model, tokens[n_drafts]))
        n_drafts++;
    s->n_drafts = s->length == s->n_tokens ? 0 : n_drafts;
    if (s->n_drafts)
        memcpy(s->tokens + s->n_tokens, tokens, s->n_drafts * sizeof *tokens);
}

/* ---- steps of the draft block ------------------------------------------------------------- */

/* The last of the n steps is at position length + n - 1, and its token needs the one after. IO has
 * room for one change of a page table a row: none is left for a page that has to be copied first,
 * which the next step does. */
static bool can_draft(const struct sluice_engine *e, const struct sluice_seq *seq, uint32_t n) {
    const struct slot *s = &e->state.slots[seq->slot];
    return s->n_tokens - s->length == 1 && (seq->wants & SLUICE_WANT_TOKEN) && !seq->has_mask &&
           n <= e->setup.context - s->n_tokens && !state_must_copy(&e->state, seq->slot) &&
           state_page_rows(&e->state, seq->slot) >= n;
}

/* Makes a part of every sequence that can draft, with pages for its rows. */
static int add_parts(struct sluice_engine *e, struct sluice_seq *const *seqs, size_t n_seqs,
                     uint32_t n, struct err *err) {
    uint32_t most = e->plans[engine_n_plans(e) - 1]->max_rows;
    int status = SLUICE_OK;
    e->n_parts = 0;
    for (size_t i = 0; i < n_seqs; i++)
        draft_set(seqs[i], NULL, 0);
    for (size_t i = 0; !status && i < n_seqs && e->n_parts < most; i++) {
        struct part part = {.slot = seqs[i]->slot, .rows = 1, .outputs = 1};
        if (!can_draft(e, seqs[i], n))
            continue;
        status = state_reserve(&e->state, part.slot, n, &part.first_change, err);
        e->parts[e->n_parts++] = part;
    }
    return status;
}

/* Whether the texts have so many tokens beyond the first block_vocab that leaving these out would
 * cost more drafts than it saves time: 1 in 16 of the latest. */
static bool needs_all_tokens(const struct sluice_engine *e) {
    enum { LATEST = 128, FEW = 16 };
    uint32_t n = 0, n_others = 0;
    for (uint32_t i = 0; i < e->n_parts && e->setup.block_vocab; i++) {
        const struct slot *s = &e->state.slots[e->parts[i].slot];
        uint32_t first = s->n_tokens > LATEST ? s->n_tokens - LATEST : 0;
        n += s->n_tokens - first;
        for (uint32_t k = first; k < s->n_tokens; k++)
            n_others += (uint32_t)s->tokens[k] >= e->setup.block_vocab;
    }
    return n_others * FEW > n;
}

static void fill_part(const struct sluice_engine *e, const struct plan *plan, uint32_t i,
                      struct io_header *h) {
    const struct part *part = &e->parts[i];
    const struct slot *s = &e->state.slots[part->slot];
    struct io_change *changes = engine_io(e, plan->io.changes);
    ((struct io_row *)engine_io(e, plan->io.rows))[i] =
        (struct io_row){s->tokens[s->length], s->length, part->slot, i};
    ((struct io_segment *)engine_io(e, plan->io.segments))[i] =
        (struct io_segment){s->cell, i, 1, s->length};
    ((uint32_t *)engine_io(e, plan->io.to))[i] = e->state.spare[i];
    ((struct io_output *)engine_io(e, plan->io.outputs))[i] = (struct io_output){
        .row = i,
        .flags = IO_WANTS_TOKEN,
        .top_p = 1,
        .repeat_penalty = 1,
        .n_vocab = min_u32(e->seqs[part->slot]->n_pick, plan->n_vocab),
        .token = -1,
    };
    CHECK(h->n_changes + s->n_pages - part->first_change <= plan->io.max_changes);
    for (uint32_t k = part->first_change; k < s->n_pages; k++)
        changes[h->n_changes++] = (struct io_change){part->slot, k, s->pages[k], 0};
}

static void fill_io(struct sluice_engine *e, const struct plan *plan) {
    struct io_header *h = engine_io(e, 0);
    *h = (struct io_header){
        .n_rows = e->n_parts,
        .n_segments = e->n_parts,
        .n_outputs = e->n_parts,
        .spare_cell = IO_NO_CELL,
    };
    for (uint32_t i = 0; i < e->n_parts; i++)
        fill_part(e, plan, i, h);
}

/* What a burst does between two steps: every row continues from its token and its cell. */
static void move_on(const struct sluice_engine *e, const struct plan *plan, uint32_t step) {
    struct io_header *h = engine_io(e, 0);
    struct io_row *rows = engine_io(e, plan->io.rows);
    struct io_segment *segments = engine_io(e, plan->io.segments);
    struct io_output *outputs = engine_io(e, plan->io.outputs);
    const uint32_t *to = engine_io(e, plan->io.to);
    int32_t *burst = engine_io(e, plan->io.burst);
    h->n_changes = 0;
    for (uint32_t i = 0; i < e->n_parts; i++) {
        burst[i * IO_BURST + step] = outputs[i].token;
        rows[i].token = outputs[i].token < 0 ? 0 : outputs[i].token;
        rows[i].position++;
        segments[i].first_position++;
        segments[i].cell = to[i];
        outputs[i].token = -1;
    }
}

static int submit(struct sluice_engine *e, bool is_burst, struct err *err) {
    struct io_header *h = engine_io(e, 0);
    h->step = e->n_steps + 1;
    int status = is_burst ? e->kind->submit_burst(e->backend, e->last_plan, err)
                          : e->kind->submit(e->backend, e->last_plan, err);
    if (!status)
        status = e->kind->wait(e->backend, err);
    e->n_steps++; /* whatever happened: the logits of the step before are gone */
    e->n_draft_steps++;
    return status;
}

/* n steps, in one submission where the backend can. */
static int run(struct sluice_engine *e, uint32_t n, struct err *err) {
    const struct plan *plan = e->plans[e->last_plan];
    bool is_burst = n > 1 && n == plan->burst_steps && e->kind->has_burst &&
                    e->kind->has_burst(e->backend, e->last_plan);
    int status = submit(e, is_burst, err);
    for (uint32_t i = 1; !status && !is_burst && i < n; i++) {
        move_on(e, plan, i - 1);
        status = submit(e, false, err);
    }
    return status;
}

/* The drafts of a part: up to the first that is no token. */
static void collect(const struct sluice_engine *e, uint32_t i, uint32_t n) {
    const struct plan *plan = e->plans[e->last_plan];
    const struct io_output *outputs = engine_io(e, plan->io.outputs);
    const int32_t *burst = engine_io(e, plan->io.burst);
    int32_t tokens[IO_BURST];
    uint32_t n_good = 0;
    memcpy(tokens, burst + (size_t)i * IO_BURST, (n - 1) * sizeof *tokens);
    tokens[n - 1] = outputs[i].token;
    while (n_good < n && tokens[n_good] >= 0)
        n_good++;
    draft_set(e->seqs[e->parts[i].slot], tokens, n_good);
}

int draft_step(struct sluice_engine *e, struct sluice_seq *const *seqs, size_t n_seqs, uint32_t n,
               struct err *err) {
    int status = batch_check_cancel(e, err);
    if (status)
        return status;
    status = add_parts(e, seqs, n_seqs, n, err);
    if (!status && e->n_parts > 0) {
        e->last_plan = engine_draft_plan_for(e, e->n_parts, needs_all_tokens(e));
        fill_io(e, e->plans[e->last_plan]);
        status = run(e, n, err);
    }
    for (uint32_t i = 0; i < e->n_parts; i++) {
        uint32_t slot = e->parts[i].slot;
        if (!status)
            collect(e, i, n);
        state_drop_pages(&e->state, slot, pages_for(e->state.slots[slot].length));
    }
    return status == SLUICE_ERR_CANCELLED ? batch_check_cancel(e, err) : status;
}
