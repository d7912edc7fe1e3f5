/* pick.c - PICK on the CPU: a token for every output that wants one.
 *
 * In this order: logit biases; penalties by how often a token stands in the sequence; the mask of
 * what is allowed; temperature; top-k; top-p of what is left; min-p. Then one draw: a function of
 * (seed, position) alone, so that the same request gives the same tokens whatever shares its steps.
 *
 * Penalties count the tokens up to the output's own row. Those of drafted rows are in the counts
 * only after the step, where the row is kept. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/vec.h"

static int32_t argmax(const float *x, uint32_t n) {
    float best = row_max(x, n);
    for (uint32_t i = 0; i < n; i++)
        if (x[i] == best)
            return (int32_t)i;
    return 0; /* all are NaN, by their biases */
}

/* A number in [0, 1) of 53 random bits. */
static double draw(uint64_t seed, uint32_t position) {
    uint64_t z = seed + 0x9E3779B97F4A7C15u * (position + 1ull);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

/* ---- what changes logits ----------------------------------------------------------------------
 */

enum { ALL_TOKENS = -1 };

/* Of one token, or of all. */
static void apply_biases(const struct cpu_step *s, const struct io_output *o, int32_t token,
                         float *x) {
    const uint8_t *io = s->b->region[REGION_IO];
    const struct io_bias *bias = (const struct io_bias *)(io + s->plan->io.biases) + o->first_bias;
    for (uint32_t i = 0; i < o->n_bias; i++)
        if (bias[i].token >= 0 && (uint32_t)bias[i].token < o->n_vocab &&
            (token == ALL_TOKENS || token == bias[i].token))
            x[bias[i].token] += bias[i].bias;
}

static bool has_penalties(const struct io_output *o) {
    return o->repeat_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0;
}

static float penalized(const struct io_output *o, float x, uint32_t count) {
    x = x > 0 ? x / o->repeat_penalty : x * o->repeat_penalty;
    return x - (o->presence_penalty + o->frequency_penalty * (float)count);
}

static void apply_penalties(const struct io_output *o, const uint16_t *counts, float *x) {
    for (uint32_t i = 0; i < o->n_vocab; i++)
        if (counts[i])
            x[i] = penalized(o, x[i], counts[i]);
}

/* How often the token is in the drafted rows up to output i's own. */
static uint32_t count_drafts(const struct cpu_step *s, uint32_t i, int32_t token) {
    uint32_t n = 0;
    for (; s->outputs[i].flags & IO_DRAFTED; i--)
        n += s->rows[s->outputs[i].row].token == token;
    return n;
}

/* The logits of tokens in the drafted rows up to output i's own, made anew. */
static void penalize_drafts(const struct cpu_step *s, uint32_t i, const uint16_t *counts,
                            const float *logits, float *x) {
    const struct io_output *o = &s->outputs[i];
    for (uint32_t k = i; s->outputs[k].flags & IO_DRAFTED; k--) {
        int32_t token = s->rows[s->outputs[k].row].token;
        if ((uint32_t)token >= o->n_vocab)
            continue;
        uint32_t count = counts[token] + count_drafts(s, i, token);
        x[token] = logits[token];
        apply_biases(s, o, token, x);
        x[token] = penalized(o, x[token], count < UINT16_MAX ? count : UINT16_MAX);
    }
}

static void apply_mask(const struct cpu_step *s, const struct io_output *o, float *x) {
    uint32_t words = IO_MASK_WORDS(s->plan->n_vocab);
    const uint8_t *io = s->b->region[REGION_IO];
    const uint32_t *mask =
        (const uint32_t *)(io + s->plan->io.masks) + (uint64_t)(o - s->outputs) * words;
    for (uint32_t i = 0; i < o->n_vocab; i++) {
        bool is_allowed = mask[i / 32] >> i % 32 & 1;
        x[i] = is_allowed ? fmaxf(x[i], IO_LEAST_ALLOWED) : -INFINITY;
    }
}

/* ---- the best first ---------------------------------------------------------------------------
 */

/* A key that sorts like (logit, then lower index first), largest first. */
static uint64_t key_of(float x, uint32_t i) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~i;
}

static uint32_t index_of(uint64_t key) {
    return ~(uint32_t)key;
}

/* Moves the m largest of n keys to the front, in no order. */
static void select_top(uint64_t *keys, uint32_t n, uint32_t m) {
    uint32_t low = 0, high = n;
    while (high - low > 1) {
        uint64_t a = keys[low], b = keys[low + (high - low) / 2], c = keys[high - 1];
        uint64_t pivot = a > b ? (b > c ? b : a > c ? c : a) : (a > c ? a : b > c ? c : b);
        uint32_t i = low, j = high - 1;
        for (;; i++, j--) { /* keys differ, so both stop at the pivot */
            while (keys[i] > pivot)
                i++;
            while (keys[j] < pivot)
                j--;
            if (i >= j)
                break;
            uint64_t t = keys[i];
            keys[i] = keys[j];
            keys[j] = t;
        }
        uint32_t middle = j + 1;
        if (middle >= high) /* the pivot was the smallest */
            middle = high - 1;
        if (m <= middle)
            high = middle;
        else
            low = middle;
        if (m == middle)
            return;
    }
}

/* The largest first. A heap sort: in place, and never slow. */
static void sift(uint64_t *keys, uint32_t root, uint32_t n) {
    for (uint32_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && keys[child + 1] < keys[child])
            child++;
        if (keys[root] <= keys[child])
            return;
        uint64_t t = keys[root];
        keys[root] = keys[child];
        keys[child] = t;
    }
}

static void sort_down(uint64_t *keys, uint32_t n) {
    for (uint32_t i = n / 2; i-- > 0;)
        sift(keys, i, n);
    for (uint32_t i = n; i-- > 1;) {
        uint64_t t = keys[0];
        keys[0] = keys[i];
        keys[i] = t;
        sift(keys, 0, i);
    }
}

/* ---- sampling ---------------------------------------------------------------------------------
 */

/* Draws among all, in the order of the vocabulary. */
static int32_t draw_any(const float *p, uint32_t n, double r) {
    double sum = 0;
    int32_t last = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += p[i];
        last = p[i] > 0 ? (int32_t)i : last;
        if (r < sum)
            return (int32_t)i;
    }
    return last; /* rounding left r beyond the sum */
}

/* How many of the n sorted candidates pass top-p (of `total`) and min-p; 0: not decided yet, more
 * candidates are needed. */
static uint32_t passing(const float *p, const uint64_t *keys, uint32_t n, bool is_all,
                        const struct io_output *o, double total) {
    double sum = 0;
    float least = o->min_p * p[index_of(keys[0])];
    for (uint32_t i = 0; i < n; i++) {
        float each = p[index_of(keys[i])];
        if (i > 0 && each < least)
            return i;
        sum += each;
        if (o->top_p < 1 && sum >= (double)o->top_p * total)
            return i + 1;
    }
    return is_all ? n : 0;
}

/* p: exponentials of the logits, their largest 1. */
static int32_t draw_best(const float *p, uint64_t *keys, uint32_t n, const struct io_output *o,
                         double total, double r) {
    uint32_t limit = o->top_k && o->top_k < n ? o->top_k : n;
    uint32_t taken = o->top_k ? limit : 64, count = 0;
    while (!count) {
        taken = taken < limit ? taken : limit;
        select_top(keys, n, taken);
        sort_down(keys, taken);
        if (o->top_k) {
            total = 0;
            for (uint32_t i = 0; i < taken; i++)
                total += p[index_of(keys[i])];
        }
        count = passing(p, keys, taken, taken == limit, o, total);
        taken *= 8;
    }
    while (count > 1 && p[index_of(keys[count - 1])] == 0) /* not allowed */
        count--;
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += p[index_of(keys[i])];
    r *= sum;
    sum = 0;
    for (uint32_t i = 0; i + 1 < count; i++) {
        sum += p[index_of(keys[i])];
        if (r < sum)
            return (int32_t)index_of(keys[i]);
    }
    return (int32_t)index_of(keys[count - 1]);
}

static int32_t sample(const struct io_output *o, float *x, uint64_t *keys, uint32_t position) {
    uint32_t n = o->n_vocab;
    float scale = 1 / o->temperature;
    bool is_cut = o->top_k > 0 || o->top_p < 1 || o->min_p > 0;
    for (uint32_t i = 0; is_cut && i < n; i++)
        keys[i] = key_of(x[i], i);
    for (uint32_t i = 0; i < n; i++)
        x[i] *= scale;
    double total = row_exp(x, row_max(x, n), n), r = draw(o->seed, position);
    return is_cut ? draw_best(x, keys, n, o, total, r) : draw_any(x, n, r * total);
}

static uint16_t *counts_of(struct cpu_step *s, const struct op_pick *p, uint32_t slot) {
    return (uint16_t *)at(s, &p->counts) + (uint64_t)slot * p->counts.stride;
}

static int32_t pick_token(struct cpu_step *s, const struct op_pick *p, uint32_t i) {
    const struct io_output *o = &s->outputs[i];
    const struct io_row *row = &s->rows[o->row];
    const float *logits = row_of(s, &p->logits, i);
    bool has_mask = o->flags & IO_HAS_MASK, is_changed = has_mask || o->n_bias || has_penalties(o);
    if (o->temperature <= 0 && !is_changed)
        return argmax(logits, o->n_vocab);
    float *x = row_of(s, &p->room, i);
    memcpy(x, logits, o->n_vocab * sizeof *x);
    apply_biases(s, o, ALL_TOKENS, x);
    if (p->counts.n_dims && has_penalties(o)) {
        const uint16_t *counts = counts_of(s, p, row->slot);
        apply_penalties(o, counts, x);
        penalize_drafts(s, i, counts, logits, x);
    }
    if (has_mask)
        apply_mask(s, o, x);
    if (o->temperature <= 0)
        return argmax(x, o->n_vocab);
    return sample(o, x, (uint64_t *)at(s, &p->order) + (uint64_t)i * p->order.stride,
                  row->position);
}

static void count_token(struct cpu_step *s, const struct op_pick *p, const struct io_row *row) {
    uint16_t *count = counts_of(s, p, row->slot) + row->token;
    *count += *count < UINT16_MAX;
}

/* Of all rows but drafted ones. Outputs stand in the order of rows. */
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

void cpu_pick(struct cpu_step *s) {
    const struct op_pick *p = &s->op->op->pick;
    if (s->thread == 0)
        count_tokens(s, p);
    barrier(s);
    struct share share = share_of(s, s->io->n_outputs, 1);
    for (uint32_t i = share.begin; i < share.end && !is_cancelled(s); i++) {
        struct io_output *o = &s->outputs[i];
        const float *logits = row_of(s, &p->logits, i);
        if (o->flags & IO_WANTS_LOGITS)
            memcpy(row_of(s, &p->wanted, i), logits, p->logits.dims[0] * sizeof(float));
        if (find_not_finite(logits, o->n_vocab) < o->n_vocab)
            o->token = IO_NOT_FINITE;
        else if (o->flags & IO_WANTS_TOKEN)
            o->token = pick_token(s, p, i);
    }
    if (s->io->n_drafts == 0)
        return;
    barrier(s);
    if (s->thread == 0)
        count_kept_drafts(s, p);
}
