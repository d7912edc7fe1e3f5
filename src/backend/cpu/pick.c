/* pick.c - PICK on the CPU: a token for every output that wants one.
 *
 * In this order: logit biases; penalties by how often a token occurs in the sequence; the mask of
 * what is allowed; temperature; top-k; top-p of what is left; min-p. Then one draw: a function of
 * (seed, position) alone, so that the same request gives the same tokens whatever shares its steps.
 *
 * Penalties count the tokens up to the output's own row. Those of drafted rows are in the counts
 * only after the step, where the row is kept. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/pick_row.h"

/* ---- what changes logits ----------------------------------------------------------------------
 *
 * Each thread changes its own share of a row.
 */

static bool is_in(struct share share, int32_t token) {
    return token >= 0 && (uint32_t)token >= share.begin && (uint32_t)token < share.end;
}

static void apply_biases(const struct cpu_step *s, const struct io_output *o, struct share share,
                         float *x) {
    const uint8_t *io = s->b->region[REGION_IO];
    const struct io_bias *bias = (const struct io_bias *)(io + s->plan->io.biases) + o->first_bias;
    for (uint32_t i = 0; i < o->n_bias; i++)
        if (is_in(share, bias[i].token))
            x[bias[i].token] += bias[i].bias;
}

static bool has_penalties(const struct io_output *o) {
    return o->repeat_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0;
}

static float penalized(const struct io_output *o, float x, uint32_t count) {
    x = x > 0 ? x / o->repeat_penalty : x * o->repeat_penalty;
    return x - (o->presence_penalty + o->frequency_penalty * (float)count);
}

static void apply_penalties(const struct io_output *o, const uint16_t *counts, struct share share,
                            float *x) {
    enum { GROUP = 16 }; /* nearly all are of tokens that are not in the sequence */
    for (uint32_t at = share.begin; at < share.end; at += GROUP) {
        uint32_t n = share.end - at < GROUP ? share.end - at : GROUP;
        uint64_t some[GROUP / 4] = {0};
        memcpy(some, counts + at, n * sizeof *counts);
        if (!(some[0] | some[1] | some[2] | some[3]))
            continue;
        for (uint32_t i = at; i < at + n; i++)
            if (counts[i])
                x[i] = penalized(o, x[i], counts[i]);
    }
}

/* How often the token is in the drafted rows up to output i's own. */
static uint32_t count_drafts(const struct cpu_step *s, uint32_t i, int32_t token) {
    uint32_t n = 0;
    for (; s->outputs[i].flags & IO_DRAFTED; i--)
        n += s->rows[s->outputs[i].row].token == token;
    return n;
}

/* The logits of tokens in the drafted rows up to output i's own, computed again. */
static void penalize_drafts(const struct cpu_step *s, uint32_t i, const uint16_t *counts,
                            struct share share, const float *logits, float *x) {
    const struct io_output *o = &s->outputs[i];
    for (uint32_t k = i; s->outputs[k].flags & IO_DRAFTED; k--) {
        int32_t token = s->rows[s->outputs[k].row].token;
        if (!is_in(share, token))
            continue;
        uint32_t count = counts[token] + count_drafts(s, i, token);
        x[token] = logits[token];
        apply_biases(s, o, (struct share){(uint32_t)token, (uint32_t)token + 1}, x);
        x[token] = penalized(o, x[token], count < UINT16_MAX ? count : UINT16_MAX);
    }
}

static void apply_mask(const struct cpu_step *s, const struct io_output *o, struct share share,
                       float *x) {
    uint32_t words = IO_MASK_WORDS(s->plan->n_vocab);
    const uint8_t *io = s->b->region[REGION_IO];
    const uint32_t *mask =
        (const uint32_t *)(io + s->plan->io.masks) + (uint64_t)(o - s->outputs) * words;
    for (uint32_t at = share.begin; at < share.end; at += 32) { /* shares begin at whole words */
        uint32_t n = share.end - at < 32 ? share.end - at : 32, word = mask[at / 32];
        for (uint32_t i = 0; i < n; i++) {
            float least = x[at + i] >= IO_LEAST_ALLOWED ? x[at + i] : IO_LEAST_ALLOWED;
            x[at + i] = word >> i & 1 ? least : -INFINITY;
        }
    }
}

/* ---- a row -------------------------------------------------------------------------------- */

/* NaN's: the first rank of a part of which some logit is not finite. */
enum { RANK_NOT_FINITE = INT32_MAX };

static int32_t *ranks_of(const struct cpu_step *s, uint32_t i) {
    return s->b->ranks + (uint64_t)i * rank_blocks(s->plan->n_vocab);
}

void cpu_rank_logits(struct cpu_step *s, uint32_t i, const float *logits, struct share part) {
    uint32_t n = s->outputs[i].n_vocab, end = part.end < n ? part.end : n;
    int32_t *ranks = ranks_of(s, i) + part.begin / RANK_BLOCK;
    if (part.begin < end && !row_ranks(logits + part.begin, ranks, end - part.begin))
        *ranks = RANK_NOT_FINITE;
}

static struct pick_row row_at(const struct cpu_step *s, const struct op_pick *p, uint32_t i) {
    const struct io_output *o = &s->outputs[i];
    struct pick_row r = {.o = o, .n = o->n_vocab, .adjusted = row_of(s, &p->adjusted, i)};
    r.n_blocks = rank_blocks(r.n);
    r.is_changed =
        (o->flags & IO_WANTS_TOKEN) && (o->flags & IO_HAS_MASK || o->n_bias || has_penalties(o));
    r.logits = row_of(s, &p->logits, i);
    r.x = r.is_changed ? r.adjusted : (float *)r.logits;
    r.order = (uint64_t *)at(s, &p->order) + (uint64_t)i * p->order.stride;
    r.ranks = ranks_of(s, i);
    r.best = r.is_changed ? (int32_t *)r.order : r.ranks;
    return r;
}

static uint16_t *counts_of(struct cpu_step *s, const struct op_pick *p, uint32_t slot) {
    return (uint16_t *)at(s, &p->counts) + (uint64_t)slot * p->counts.stride;
}

/* ---- a row, in two parts ------------------------------------------------------------------ */

/* This thread's share of a row: handed on, ranked and changed, as far as it has to be. */
static void prepare_row(struct cpu_step *s, const struct op_pick *p, uint32_t i) {
    struct pick_row r = row_at(s, p, i);
    if (r.o->flags & IO_WANTS_LOGITS) {
        struct share all = share_of(s, p->logits.dims[0], RANK_BLOCK);
        memcpy(row_of(s, &p->wanted, i) + all.begin, r.logits + all.begin,
               (all.end - all.begin) * sizeof(float));
    }
    struct share share = share_of(s, r.n, RANK_BLOCK);
    if (!s->op->is_ranked)
        cpu_rank_logits(s, i, r.logits, share);
    if (!r.is_changed || share.begin == share.end)
        return;
    uint32_t n = share.end - share.begin;
    memcpy(r.x + share.begin, r.logits + share.begin, n * sizeof *r.x);
    apply_biases(s, r.o, share, r.x);
    if (p->counts.n_dims && has_penalties(r.o)) {
        const uint16_t *counts = counts_of(s, p, s->rows[r.o->row].slot);
        apply_penalties(r.o, counts, share, r.x);
        penalize_drafts(s, i, counts, share, r.logits, r.x);
    }
    if (r.o->flags & IO_HAS_MASK)
        apply_mask(s, r.o, share, r.x);
    row_ranks(r.x + share.begin, r.best + share.begin / RANK_BLOCK, n);
}

static void pick_token(struct cpu_step *s, const struct op_pick *p, uint32_t i) {
    struct pick_row r = row_at(s, p, i);
    struct io_output *o = &s->outputs[i];
    if (pick_best_of(r.ranks, r.n_blocks) == RANK_NOT_FINITE)
        o->token = IO_NOT_FINITE;
    else if (o->flags & IO_WANTS_TOKEN)
        o->token = o->temperature <= 0 ? pick_best(&r) : pick_sample(&r, s->rows[o->row].position);
}

static void count_token(struct cpu_step *s, const struct op_pick *p, const struct io_row *row) {
    uint16_t *count = counts_of(s, p, row->slot) + row->token;
    *count += *count < UINT16_MAX;
}

/* Of all rows but drafted ones. Outputs are in the order of rows. */
static void count_tokens(struct cpu_step *s, const struct op_pick *p) {
    for (uint32_t r = 0, i = 0; p->counts.n_dims && r < s->io->n_rows; r++) {
        while (i < s->io->n_outputs && s->outputs[i].row < r)
            i++;
        bool is_output = i < s->io->n_outputs && s->outputs[i].row == r;
        if (!is_output || !(s->outputs[i].flags & IO_DRAFTED))
            count_token(s, p, &s->rows[r]);
    }
}

/* Of drafted rows that are kept, when all tokens are picked. */
static void count_kept_drafts(struct cpu_step *s, const struct op_pick *p) {
    bool is_kept = true;
    for (uint32_t i = 0; p->counts.n_dims && i < s->io->n_outputs; i++) {
        const struct io_row *row = &s->rows[s->outputs[i].row];
        bool is_drafted = s->outputs[i].flags & IO_DRAFTED;
        is_kept = !is_drafted || (is_kept && s->outputs[i - 1].token == row->token);
        if (is_drafted && is_kept)
            count_token(s, p, row);
    }
}

static bool any_penalties(const struct cpu_step *s) {
    for (uint32_t i = 0; i < s->io->n_outputs; i++)
        if (has_penalties(&s->outputs[i]))
            return true;
    return false;
}

/* Whether threads have to prepare rows before one of them can pick: the same for all threads. */
static bool needs_work(const struct cpu_step *s, const struct op_pick *p) {
    for (uint32_t i = 0; i < s->io->n_outputs; i++)
        if (row_at(s, p, i).is_changed)
            return true;
    return !s->op->is_ranked;
}

/* Each row is prepared by all threads, and its token picked by one. */
void cpu_pick(struct cpu_step *s) {
    const struct op_pick *p = &s->op->op->pick;
    if (s->thread == 0)
        count_tokens(s, p);
    if (any_penalties(s))
        barrier(s);
    uint32_t n = s->io->n_outputs;
    for (uint32_t i = 0; i < n; i++)
        prepare_row(s, p, i);
    if (needs_work(s, p))
        barrier(s);
    for (uint32_t i = (uint32_t)s->thread; i < n && !is_cancelled(s); i += (uint32_t)s->threads)
        pick_token(s, p, i);
    if (s->io->n_drafts == 0)
        return;
    barrier(s);
    if (s->thread == 0)
        count_kept_drafts(s, p);
}
