/* batch.c - a step: who gets which rows, IO filled in, one submission, results handed out.
 *
 * Every sequence whose tokens wait is a part: one row for one that is generating, several rows for
 * one that is still processing its prompt. Generating ones come first, so that they never wait for
 * a long prompt.
 * (1) A part's rows are consecutive positions of its sequence, from its length on.
 * (2) A token is sampled only after the last waiting token; with SLUICE_WANT_ALL_LOGITS or
 *     SLUICE_WANT_ALL_HIDDEN every row is an output. Outputs are in the order of parts.
 * (3) Drafts are rows after the last waiting token, each an output that wants a token, if there are
 *     rows that no other sequence needs.
 * (4) What a row computes does not depend on the other rows, so neither does any result on how
 *     parts are cut. */
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "engine/engine.h"
#include "plan/io.h"

/* ---- who gets which rows ------------------------------------------------------------------ */

/* What is left for a step. */
struct budget {
    uint32_t rows, outputs, drafts;
};

static uint32_t waiting(const struct slot *s) {
    return s->is_open ? s->n_tokens - s->length : 0;
}

/* The part that fits the budget; no rows when none does. `pages`: rows that there are pages for.
 */
static struct part part_of(const struct sluice_engine *e, uint32_t slot, uint32_t pages,
                           struct budget budget) {
    const struct slot *s = &e->state.slots[slot];
    unsigned wants = e->seqs[slot]->wants;
    uint32_t all = waiting(s), rows = min_u32(min_u32(all, budget.rows), pages);
    struct part part = {.slot = slot, .rows = rows};
    if (wants & (SLUICE_WANT_ALL_LOGITS | SLUICE_WANT_ALL_HIDDEN))
        part.rows = part.outputs = min_u32(part.rows, budget.outputs);
    else if (part.rows == all && wants && budget.outputs == 0)
        part.rows--; /* the last row has to wait for the next step */
    else
        part.outputs = part.rows == all && wants;
    return part;
}

/* Rows for drafts after `rows` others: up to the end of the page, or of the next one if pages are
 * left for every other sequence. */
static uint32_t max_draft_rows(const struct state *st, uint32_t slot, uint32_t rows) {
    const struct slot *s = &st->slots[slot];
    uint32_t end = s->length + rows, in_page = pages_for(end) * PAGE - end;
    uint32_t needed = pages_for(end) - s->n_pages + state_must_copy(st, slot);
    return pages_available(&st->pages) < needed + st->options.n_slots ? in_page : in_page + PAGE;
}

/* Adds the sequence's drafts to its part, if that samples a token. */
static void add_drafts(struct sluice_engine *e, struct part *part, uint32_t pages,
                       struct budget budget) {
    const struct slot *s = &e->state.slots[part->slot];
    const struct sluice_seq *seq = e->seqs[part->slot];
    bool is_sampled = part->outputs > 0 && part->rows == waiting(s) &&
                      (seq->wants & SLUICE_WANT_TOKEN) && !seq->has_mask;
    uint32_t n = is_sampled ? min_u32(s->n_drafts, budget.drafts) : 0;
    n = min_u32(n, min_u32(budget.rows, pages) - part->rows);
    n = min_u32(n, max_draft_rows(&e->state, part->slot, part->rows));
    part->drafted = state_plan_drafts(&e->state, part->slot, n);
    part->rows += part->drafted;
    part->outputs += part->drafted;
}

/* The sequence's part, with its pages, where budget and pages allow. */
static int add_part(struct sluice_engine *e, uint32_t slot, struct budget *budget,
                    struct err *err) {
    uint32_t pages = state_page_rows(&e->state, slot);
    struct part part = part_of(e, slot, pages, *budget);
    e->state.slots[slot].is_starved = pages == 0;
    e->n_starved += pages == 0;
    if (part.rows == 0)
        return SLUICE_OK;
    add_drafts(e, &part, pages, *budget);
    int status = state_reserve(&e->state, slot, part.rows, &part.first_change, err);
    state_plan_snapshots(&e->state, slot, part.rows - part.drafted);
    e->parts[e->n_parts++] = part;
    budget->rows -= part.rows;
    budget->outputs -= part.outputs - part.drafted;
    budget->drafts -= part.drafted;
    return status;
}

/* Adds the parts of all sequences that generate (one token waits), or of all others. */
static int add_parts(struct sluice_engine *e, bool is_generating, struct budget *budget,
                     struct err *err) {
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < e->setup.n_seqs && budget->rows > 0; i++) {
        uint32_t slot = (e->first_slot + i) % e->setup.n_seqs;
        uint32_t n = waiting(&e->state.slots[slot]);
        if (n > 0 && (n == 1) == is_generating)
            status = add_part(e, slot, budget, err);
    }
    return status;
}

/* Pages are taken here. If a later stage fails they stay with their slots, which need them next. */
static int compose(struct sluice_engine *e, struct budget *used, struct err *err) {
    const struct budget all = {e->plans[e->n_plans - 1]->max_rows, e->setup.outputs,
                               e->setup.drafts};
    struct budget left = all;
    for (uint32_t i = 0; i < e->setup.n_seqs; i++)
        e->state.slots[i].is_starved = false;
    e->n_parts = e->n_starved = 0;
    state_begin_step(&e->state);
    int status = add_parts(e, true, &left, err);
    if (!status)
        status = add_parts(e, false, &left, err);
    e->first_slot = (e->first_slot + 1) % e->setup.n_seqs;
    uint32_t drafts = all.drafts - left.drafts;
    *used = (struct budget){all.rows - left.rows, all.outputs - left.outputs + drafts, drafts};
    if (!status && e->n_starved && e->n_parts == 0)
        status = state_out_of_pages(&e->state, err);
    return status;
}

/* ---- IO ----------------------------------------------------------------------------------- */

/* IO as a plan lays it out. */
struct io_view {
    struct io_header *header;
    struct io_row *rows;
    struct io_segment *segments;
    uint32_t *to;
    struct io_output *outputs;
    struct io_change *changes;
    struct io_bias *biases;
    uint32_t *masks, *keeps;
};

static struct io_view view_io(const struct sluice_engine *e, uint32_t plan) {
    const struct io_layout *io = &e->plans[plan]->io;
    return (struct io_view){
        .header = engine_io(e, 0),
        .rows = engine_io(e, io->rows),
        .segments = engine_io(e, io->segments),
        .to = engine_io(e, io->to),
        .outputs = engine_io(e, io->outputs),
        .changes = engine_io(e, io->changes),
        .biases = engine_io(e, io->biases),
        .masks = engine_io(e, io->masks),
        .keeps = engine_io(e, io->keeps),
    };
}

/* Where the states after the part's rows go. */
static void fill_cells(const struct state *st, const struct part *part, uint32_t *to) {
    const struct slot *s = &st->slots[part->slot];
    for (uint32_t i = 0; i < part->rows; i++)
        to[i] = i + 1 < part->rows ? IO_NO_CELL : s->cell;
    for (uint32_t i = 0; i < s->n_planned; i++) {
        const struct planned *p = &st->planned[s->first_planned + i];
        to[p->position - s->length - 1] = p->cell;
    }
    for (uint32_t i = 0; st->layout.n_recurrent && i < part->drafted; i++)
        to[part->rows - 1 - part->drafted + i] = st->spare[s->first_spare + i];
}

static void fill_rows(const struct state *st, const struct part *part, struct io_view *v) {
    const struct slot *s = &st->slots[part->slot];
    struct io_header *h = v->header;
    for (uint32_t i = 0; i < part->rows; i++)
        v->rows[h->n_rows + i] = (struct io_row){
            .token = s->tokens[s->length + i],
            .position = s->length + i,
            .slot = part->slot,
            .segment = h->n_segments,
        };
    fill_cells(st, part, v->to + h->n_rows);
    v->segments[h->n_segments++] = (struct io_segment){
        .cell = s->cell,
        .first_row = h->n_rows,
        .n_rows = part->rows,
        .first_position = s->length,
    };
    h->n_rows += part->rows;
}

static void fill_mask(const struct sluice_seq *seq, struct io_output *out, struct io_view *v) {
    const struct sluice_engine *e = seq->engine;
    size_t first = (size_t)(out - v->outputs) * IO_MASK_WORDS(e->model->model->config.n_vocab);
    size_t bytes = e->mask_words * sizeof *v->masks;
    if (!seq->has_mask)
        return;
    out->flags |= IO_HAS_MASK;
    memcpy(v->masks + first, engine_mask(e, seq->slot), bytes);
    if (!seq->keeps_mask)
        return;
    out->flags |= IO_KEEPS_MASK;
    memcpy(v->keeps + first, engine_keeps(e, seq->slot), bytes);
}

/* Outputs of the part's last rows; these rows are the last ones filled in. */
static void fill_outputs(struct sluice_seq *seq, const struct part *part, bool is_last,
                         struct io_view *v, uint32_t *n_biases) {
    struct io_header *h = v->header;
    bool wants_logits = seq->wants & (SLUICE_WANT_LOGITS | SLUICE_WANT_ALL_LOGITS);
    bool wants_token = is_last && (seq->wants & SLUICE_WANT_TOKEN);
    uint32_t first_bias = *n_biases;
    seq->first_output = h->n_outputs;
    seq->n_logits = wants_logits ? part->outputs : 0;
    seq->n_hidden = seq->wants & (SLUICE_WANT_HIDDEN | SLUICE_WANT_ALL_HIDDEN) ? part->outputs : 0;
    h->n_drafts += part->drafted;
    for (uint32_t i = part->outputs; i > 0; i--) {
        struct io_output *out = &v->outputs[h->n_outputs++];
        *out = (struct io_output){
            .row = h->n_rows - i,
            .flags = (wants_logits ? IO_WANTS_LOGITS : 0) | (i <= part->drafted ? IO_DRAFTED : 0),
            .first_bias = first_bias,
            .n_vocab = seq->engine->model->model->config.n_vocab,
            .token = -1,
        };
        if (i > part->drafted + 1 || !wants_token)
            continue;
        out->flags |= IO_WANTS_TOKEN;
        *n_biases = first_bias + sampler_fill(seq, out, v->biases + first_bias);
        fill_mask(seq, out, v);
    }
}

static void fill_changes(const struct slot *s, const struct part *part, uint32_t max,
                         struct io_view *v) {
    CHECK(v->header->n_changes + s->n_pages - part->first_change <= max);
    for (uint32_t i = part->first_change; i < s->n_pages; i++)
        v->changes[v->header->n_changes++] = (struct io_change){part->slot, i, s->pages[i], 0};
}

static void fill_io(struct sluice_engine *e, struct io_view *v) {
    uint32_t n_biases = 0;
    *v->header = (struct io_header){.step = e->n_steps + 1};
    for (uint32_t i = 0; i < e->n_parts; i++) {
        const struct part *part = &e->parts[i];
        const struct slot *s = &e->state.slots[part->slot];
        struct sluice_seq *seq = e->seqs[part->slot];
        fill_changes(s, part, e->plans[e->last_plan]->io.max_changes, v);
        fill_rows(&e->state, part, v);
        fill_outputs(seq, part, part->rows - part->drafted == waiting(s), v, &n_biases);
        seq->logits_step = e->n_steps + 1;
    }
}

/* ---- the step ----------------------------------------------------------------------------- */

int batch_check_cancel(struct sluice_engine *e, struct err *err) {
    if (!atomic_exchange(&e->cancel, false))
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_CANCELLED, "cancelled by sluice_engine_cancel");
}

static int logits_error(const struct sluice_engine *e, uint32_t position, struct err *err) {
    return err_set(err, SLUICE_ERR_FORMAT,
                   "%s: the logits at position %u are NaN or infinite, expected numbers: "
                   "the weights are damaged, or too large for this mode",
                   e->model->model->path, position);
}

/* Whether this token ends the burst for its output. */
static bool is_last(const struct sluice_engine *e, const struct io_view *v, uint32_t output,
                    int32_t token) {
    uint32_t words = IO_MASK_WORDS(e->model->model->config.n_vocab);
    const uint32_t *keeps = v->keeps + (size_t)output * words;
    bool is_one = v->outputs[output].flags & IO_KEEPS_MASK && token >= 0 &&
                  !(keeps[token / 32] >> token % 32 & 1);
    for (uint32_t i = 0; i < v->header->n_ends; i++)
        is_one |= token == v->header->ends[i];
    return is_one;
}

/* Steps of a burst that count for an output. */
static uint32_t steps_of(const struct sluice_engine *e, const struct io_view *v, uint32_t output,
                         uint32_t steps) {
    const int32_t *burst = engine_io(e, e->plans[e->last_plan]->io.burst);
    for (uint32_t k = 0; k + 1 < steps; k++)
        if (is_last(e, v, output, burst[output * IO_BURST + k]))
            return k + 1;
    return steps;
}

/* How many of the part's drafts were right: the tokens that were picked. */
static uint32_t count_kept(const struct sluice_engine *e, const struct part *part,
                           const struct io_view *v) {
    const struct slot *s = &e->state.slots[part->slot];
    const struct io_output *out = v->outputs + e->seqs[part->slot]->first_output + part->outputs;
    uint32_t n = 0;
    while (n < part->drafted && (out - part->drafted - 1 + n)->token == s->tokens[s->n_tokens + n])
        n++;
    return n;
}

/* Outputs of the part without those of wrong drafts. */
static uint32_t true_outputs(const struct part *part) {
    return part->outputs - part->drafted + part->kept;
}

/* Nothing can be sampled from logits that are NaN or infinite. They come from bad weights or from
 * activations that overflow. The backend marks them IO_NOT_FINITE. */
static int check_part(const struct sluice_engine *e, const struct part *part,
                      const struct io_view *v, uint32_t steps, struct err *err) {
    const int32_t *burst = engine_io(e, e->plans[e->last_plan]->io.burst);
    uint32_t first = e->seqs[part->slot]->first_output;
    for (uint32_t i = first; i < first + true_outputs(part); i++) {
        uint32_t position = v->rows[v->outputs[i].row].position, n = steps_of(e, v, i, steps);
        for (uint32_t k = 0; k + 1 < n; k++)
            if (burst[i * IO_BURST + k] == IO_NOT_FINITE)
                return logits_error(e, position + k, err);
        if (n == steps && v->outputs[i].token == IO_NOT_FINITE)
            return logits_error(e, position + steps - 1, err);
    }
    return SLUICE_OK;
}

static int check_outputs(struct sluice_engine *e, uint32_t steps, struct err *err) {
    struct io_view v = view_io(e, e->last_plan);
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < e->n_parts; i++) {
        e->parts[i].kept = count_kept(e, &e->parts[i], &v);
        status = check_part(e, &e->parts[i], &v, steps, err);
    }
    return status;
}

/* After a step that failed with `status`: sequences are as before it if it was cancelled or its
 * results are not numbers. */
static int undo(struct sluice_engine *e, int status, struct err *err) {
    for (uint32_t i = 0; i < e->n_parts; i++)
        e->seqs[e->parts[i].slot]->n_logits = e->seqs[e->parts[i].slot]->n_hidden = 0;
    if (status != SLUICE_ERR_CANCELLED && status != SLUICE_ERR_FORMAT)
        return status;
    for (uint32_t i = 0; i < e->n_parts; i++) {
        int failed = state_undo(&e->state, e->parts[i].slot, err);
        if (failed)
            return failed;
    }
    return status == SLUICE_ERR_CANCELLED ? batch_check_cancel(e, err) : status;
}

static int submit_and_wait(struct sluice_engine *e, uint32_t steps, struct err *err) {
    double started = seconds_now();
    uint32_t rows = 0;
    int status = steps > 1 ? e->kind->submit_burst(e->backend, e->last_plan, err)
                           : e->kind->submit(e->backend, e->last_plan, err);
    if (!status)
        state_copy_ahead(&e->state);
    if (!status)
        status = e->kind->wait(e->backend, err);
    for (uint32_t i = 0; i < e->n_parts; i++)
        rows += e->parts[i].rows;
    if (!status && steps == 1)
        state_note_step(&e->state, rows, seconds_now() - started);
    return status;
}

static int run(struct sluice_engine *e, uint32_t steps, double *seconds, struct err *err) {
    int status = seconds ? e->kind->time_ops(e->backend, e->last_plan, seconds, err)
                         : submit_and_wait(e, steps, err);
    if (!status)
        status = check_outputs(e, steps, err);
    return status ? undo(e, status, err) : SLUICE_OK;
}

static int collect(struct sluice_engine *e, const struct io_view *v, struct err *err) {
    for (uint32_t i = 0; i < e->n_parts; i++) {
        const struct part *part = &e->parts[i];
        struct sluice_seq *seq = e->seqs[part->slot];
        seq->token = -1;
        if (part->outputs > 0) {
            const struct io_output *last = &v->outputs[seq->first_output + true_outputs(part) - 1];
            seq->token = last->flags & IO_WANTS_TOKEN ? last->token : -1;
        }
        seq->is_given = false;
        seq->n_logits = seq->n_logits ? true_outputs(part) : 0;
        seq->n_hidden = seq->n_hidden ? true_outputs(part) : 0;
        uint32_t rows = part->rows - part->drafted;
        seq->picked_at = e->state.slots[part->slot].length + rows + part->kept;
        e->n_rows += part->rows;
        e->n_drafted += part->drafted;
        e->n_kept += part->kept;
        int status = state_advance(&e->state, part->slot, rows, part->kept, err);
        if (status)
            return status;
    }
    return SLUICE_OK;
}

static void begin(struct sluice_engine *e, uint32_t steps) {
    struct io_view v = view_io(e, e->last_plan);
    e->n_steps += steps - 1; /* logits and flag are those of the last one */
    fill_io(e, &v);
    e->n_steps++;
}

int batch_begin(struct sluice_engine *e, uint32_t *rows, struct err *err) {
    struct budget used;
    int status = compose(e, &used, err);
    *rows = status ? 0 : used.rows;
    if (*rows == 0)
        return status;
    e->last_plan = engine_plan_for(e, used.rows, used.outputs);
    begin(e, 1);
    return SLUICE_OK;
}

int batch_end(struct sluice_engine *e, struct err *err) {
    struct io_view v = view_io(e, e->last_plan);
    return collect(e, &v, err);
}

int batch_step(struct sluice_engine *e, uint32_t *rows, double *seconds, struct err *err) {
    *rows = 0;
    uint32_t n = 0;
    int status = batch_check_cancel(e, err);
    if (!status)
        status = batch_begin(e, &n, err);
    if (n == 0)
        return status;
    status = run(e, 1, seconds, err);
    if (!status)
        status = batch_end(e, err);
    *rows = status ? 0 : n;
    return status;
}

/* ---- bursts ------------------------------------------------------------------------------- */

/* Whether every waiting sequence generates (one token waits, the next is wanted) and a burst fits.
 */
static bool can_burst(const struct sluice_engine *e) {
    uint32_t n_pages = 0;
    for (uint32_t i = 0; i < e->n_parts; i++) {
        const struct part *part = &e->parts[i];
        const struct slot *s = &e->state.slots[part->slot];
        const struct sluice_seq *seq = e->seqs[part->slot];
        if (waiting(s) != 1 || part->outputs != 1 || seq->wants != SLUICE_WANT_TOKEN ||
            (seq->has_mask && !seq->keeps_mask) ||
            state_rows_to_snapshot(&e->state, part->slot) < IO_BURST ||
            part->first_change < pages_for(s->length) || /* IO has room for a change a row */
            e->setup.context - s->n_tokens < IO_BURST - 1)
            return false;
        n_pages += pages_for(s->length + IO_BURST) - s->n_pages;
    }
    return !e->n_starved && n_pages <= pages_available(&e->state.pages) && e->kind->has_burst &&
           e->kind->has_burst(e->backend, e->last_plan);
}

/* Takes the pages of all steps; those of the first are there already. */
static int reserve_burst(struct sluice_engine *e, struct err *err) {
    int status = SLUICE_OK;
    for (uint32_t i = 0; !status && i < e->n_parts; i++) {
        uint32_t ignored;
        status = state_reserve(&e->state, e->parts[i].slot, IO_BURST, &ignored, err);
    }
    return status;
}

/* Tokens that end an answer end the burst of its sequence, if its state can stay as it is then: the
 * next turn continues from there. */
static void fill_ends(struct sluice_engine *e, uint32_t spare_cell) {
    struct io_header *h = engine_io(e, 0);
    h->spare_cell = spare_cell;
    if (e->state.layout.n_recurrent && spare_cell == NO_CELL)
        return;
    h->n_ends = e->n_ends;
    memcpy(h->ends, e->ends, sizeof h->ends);
}

/* Whether a burst may run without a spare cell: sequences then stop early only where an answer has
 * ended. */
static bool can_run_on(const struct sluice_engine *e) {
    bool has_masks = false;
    for (uint32_t i = 0; i < e->n_parts; i++)
        has_masks |= e->seqs[e->parts[i].slot]->has_mask;
    return !has_masks || e->state.layout.n_recurrent == 0;
}

/* The burst's tokens become part of their sequences; the last one is the token picked. */
static int collect_burst(struct sluice_engine *e, struct err *err) {
    struct io_view v = view_io(e, e->last_plan);
    const int32_t *burst = engine_io(e, e->plans[e->last_plan]->io.burst);
    for (uint32_t i = 0; i < e->n_parts; i++) {
        struct slot *s = &e->state.slots[e->parts[i].slot];
        uint32_t output = e->seqs[e->parts[i].slot]->first_output;
        uint32_t n = steps_of(e, &v, output, IO_BURST);
        for (uint32_t k = 0; k + 1 < n; k++)
            s->tokens[s->n_tokens++] = burst[output * IO_BURST + k];
        if (n < IO_BURST)
            v.outputs[output].token = burst[output * IO_BURST + n - 1];
        e->parts[i].rows = n;
    }
    return collect(e, &v, err);
}

int batch_burst(struct sluice_engine *e, uint32_t n, uint32_t *steps, struct err *err) {
    *steps = 0;
    int status = batch_check_cancel(e, err);
    if (status)
        return status;
    struct budget used;
    if ((status = compose(e, &used, err)) || used.rows == 0)
        return status;
    e->last_plan = engine_plan_for(e, used.rows, used.outputs);
    bool can = n >= IO_BURST && can_burst(e);
    uint32_t spare = can ? state_borrow_cell(&e->state) : NO_CELL;
    uint32_t together = can && (spare != NO_CELL || can_run_on(e)) ? IO_BURST : 1;
    if (together > 1 && (status = reserve_burst(e, err))) {
        state_return_cell(&e->state, spare);
        return status;
    }
    begin(e, together);
    if (together > 1)
        fill_ends(e, spare);
    status = run(e, together, NULL, err);
    state_return_cell(&e->state, spare);
    if (!status)
        status = together > 1 ? collect_burst(e, err) : batch_end(e, err);
    *steps = status ? 0 : together;
    return status;
}

const float *batch_tap(const struct sluice_engine *e, const struct sluice_seq *seq,
                       uint32_t number) {
    const struct plan *plan = e->plans[e->last_plan];
    struct operand tap = plan_tap(plan, number);
    uint32_t row = seq->first_output + (seq->n_logits ? seq->n_logits : 1) - 1;
    const float *rows = engine_io(e, tap.offset);
    return rows + (size_t)row * plan->tap_width;
}
