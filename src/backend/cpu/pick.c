/* pick.c - PICK on the CPU: a token for every output that wants one.
 *
 * In this order: logit biases; penalties by how often a token occurs in the sequence; the mask of
 * what is allowed; temperature; top-k; top-p of what is left; min-p. Then one draw: a function of
 * (seed, position) alone, so that the same request gives the same tokens whatever shares its steps.
 *
 * Penalties count the tokens up to the output's own row. Those of drafted rows are in the counts
 * only after the step, where the row is kept. */
#include <float.h>
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

/* ---- the best first ----------------------------------------------------------------------- */

/* A key that sorts like (logit, then lower index first), largest first. */
static uint64_t key_of(int32_t rank, uint32_t i) {
    return (uint64_t)((uint32_t)rank ^ 0x80000000u) << 32 | (uint32_t)~i;
}

static int32_t rank_in(uint64_t key) {
    return (int32_t)((uint32_t)(key >> 32) ^ 0x80000000u);
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

/* ---- sampling ----------------------------------------------------------------------------- */

/* How many of the n sorted candidates pass top-p (of `total`) and min-p; 0: not decided yet, more
 * candidates are needed. */
static uint32_t passing(const float *p, uint32_t n, bool is_all, const struct io_output *o,
                        double total) {
    double sum = 0;
    float least = o->min_p * p[0];
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0 && p[i] < least)
            return i;
        sum += p[i];
        if (o->top_p < 1 && sum >= (double)o->top_p * total)
            return i + 1;
    }
    return is_all ? n : 0;
}

/* A row in work. order: first the best rank of each block, where logits are changed; then
 * candidates; in its upper half their exponentials. */
struct pick_row {
    const struct io_output *o;
    uint32_t n, n_blocks;
    bool is_changed;
    const float *logits;
    float *x; /* adjusted, or the logits themselves */
    float *adjusted;
    uint64_t *order;
    int32_t *ranks; /* (n_blocks): the best of each block of the logits */
    int32_t *best;  /* (n_blocks): the same of x */
};

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

/* All are candidates: for cuts that leave many, or many of one logit. */
static uint32_t list_all(const struct pick_row *r, uint64_t *keys) {
    for (uint32_t i = 0; i < r->n; i++)
        keys[i] = key_of(rank_of(r->x[i]), i);
    return r->n;
}

/* Those that may be among the best m: not less than the best of the m-th best block. Returns how
 * many there are, 0: too many. */
static uint32_t list_best(const struct pick_row *r, uint64_t *keys, uint32_t m) {
    uint32_t count = 0, max = r->n / 2 - r->n_blocks;
    for (uint32_t b = 0; b < r->n_blocks; b++)
        keys[b] = key_of(r->best[b], b);
    select_top(keys, r->n_blocks, m);
    int32_t least = INT32_MAX;
    for (uint32_t i = 0; i < m; i++)
        least = rank_in(keys[i]) < least ? rank_in(keys[i]) : least;
    for (uint32_t b = 0; b < r->n_blocks; b++) {
        if (r->best[b] < least)
            continue;
        uint32_t begin = b * RANK_BLOCK,
                 end = r->n - begin < RANK_BLOCK ? r->n : begin + RANK_BLOCK;
        if (max - count < RANK_BLOCK)
            return 0;
        for (uint32_t i = begin; i < end; i++) {
            int32_t rank = rank_of(r->x[i]);
            keys[count] = key_of(rank, i);
            count += rank >= least;
        }
    }
    return count;
}

static int32_t best_of(const int32_t *ranks, uint32_t n) {
    enum { CHAINS = 4 }; /* one would wait for itself */
    int32_t best[CHAINS];
    for (uint32_t i = 0; i < CHAINS; i++)
        best[i] = ranks[0];
    uint32_t b = 0;
    for (; b + CHAINS <= n; b += CHAINS)
        for (uint32_t i = 0; i < CHAINS; i++)
            best[i] = ranks[b + i] > best[i] ? ranks[b + i] : best[i];
    for (; b < n; b++)
        best[0] = ranks[b] > best[0] ? ranks[b] : best[0];
    for (uint32_t i = 1; i < CHAINS; i++)
        best[0] = best[i] > best[0] ? best[i] : best[0];
    return best[0];
}

static int32_t best_rank(const struct pick_row *r) {
    return best_of(r->best, r->n_blocks);
}

/* Ranks say what is best unless biases made NaN. */
static bool is_plain(const struct pick_row *r, int32_t best) {
    return float_of(best) == float_of(best) && r->x[0] == r->x[0];
}

/* ---- cuts that leave many ---------------------------------------------------------------------
 *
 * Sorting them all costs more than all the rest. So candidates are put into buckets by how far they
 * are below the best; the sums of whole buckets say in which one the cut is, and the draw, and only
 * these two are sorted. Sums of buckets differ from the definition's, one candidate after the
 * other, by rounding: what is nearer to a boundary than that is not decided here.
 */

struct buckets {
    const struct pick_row *r;
    float scale, shift, per;
    double sum[ROW_BUCKETS], all;
    double margin; /* of any sum */
    uint16_t *of;  /* (n, and a block) */
    uint64_t *keys;
    float *p;
    uint32_t max; /* keys */
};

/* Buckets for twice the way from the best to the mean of some: per bucket, one divided by its
 * width; 0: no good ones. */
static float bucket_width(const struct pick_row *r, float scale, float best) {
    enum { EVERY = 61 };
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n; i += EVERY)
        if (r->x[i] > -FLT_MAX) { /* allowed */
            sum += (double)r->x[i];
            n++;
        }
    double way = n ? 2 * ((double)best - sum / n) * (double)scale : 0;
    return way > 1e-3 && way < 1e6 ? (float)(ROW_BUCKETS / way) : 0;
}

static bool fill_buckets(struct buckets *b, const struct pick_row *r, float shift) {
    enum { PART = 1024 };
    float p[PART], best = float_of(best_rank(r));
    *b = (struct buckets){.r = r, .scale = 1 / r->o->temperature, .shift = shift, .max = r->n / 4};
    b->of = (uint16_t *)(r->order + r->n_blocks); /* after best */
    b->keys = r->order + r->n_blocks + (r->n + RANK_BLOCK) / 4 + 1;
    b->p = (float *)(b->keys + b->max);
    b->per = is_plain(r, best_rank(r)) ? bucket_width(r, b->scale, best) : 0;
    if (b->per == 0 || r->n < PART)
        return false;
    for (uint32_t at = 0; at < r->n; at += PART) {
        uint32_t n = r->n - at < PART ? r->n - at : PART;
        row_exp_buckets(p, b->of + at, r->x + at, b->scale, shift, b->per, n);
        for (uint32_t i = 0; i < n; i++)
            b->sum[b->of[at + i]] += (double)p[i];
    }
    memset(b->of + r->n, 0xff, RANK_BLOCK * sizeof *b->of);
    for (uint32_t i = 0; i < ROW_BUCKETS; i++)
        b->all += b->sum[i];
    b->margin = b->all * r->n * 0x1p-50;
    return true;
}

typedef uint16_t eight_buckets __attribute__((vector_size(16)));

/* Which of eight candidates are in a bucket. */
static eight_buckets find_in_eight(const uint16_t *of, eight_buckets bucket) {
    eight_buckets eight;
    memcpy(&eight, of, sizeof eight);
    return (eight_buckets)(eight == bucket);
}

static bool has_any(eight_buckets eight) {
    uint64_t words[2];
    memcpy(words, &eight, sizeof words);
    return words[0] | words[1];
}

static bool is_in_block(const uint16_t *of, eight_buckets bucket) {
    eight_buckets some = {0};
    for (uint32_t i = 0; i < RANK_BLOCK; i += 8)
        some |= find_in_eight(of + i, bucket);
    return has_any(some);
}

/* The candidates of a bucket, best first, and their exponentials; false: too many. The last block
 * is filled up with no bucket's number. */
static bool open_bucket(struct buckets *b, uint32_t bucket, uint32_t *count) {
    const struct pick_row *r = b->r;
    const eight_buckets same = (eight_buckets){0} + (uint16_t)bucket;
    *count = 0;
    for (uint32_t at = 0; at < r->n; at += RANK_BLOCK) {
        if (!is_in_block(b->of + at, same))
            continue;
        if (b->max - *count < RANK_BLOCK)
            return false;
        for (uint32_t i = at; i < at + RANK_BLOCK; i += 8) {
            if (!has_any(find_in_eight(b->of + i, same)))
                continue;
            for (uint32_t k = i; k < i + 8; k++)
                if (b->of[k] == bucket)
                    b->keys[(*count)++] = key_of(rank_of(r->x[k]), k);
        }
    }
    sort_down(b->keys, *count);
    for (uint32_t i = 0; i < *count; i++)
        b->p[i] = float_of(rank_in(b->keys[i]));
    row_exp_of(b->p, b->p, b->scale, b->shift, *count);
    return true;
}

/* Where a walk through the candidates ends. */
struct place {
    uint32_t bucket;
    uint64_t key;
    double sum; /* up to and with it */
};

/* The last candidate that passes; false: not decided. */
static bool find_cut(struct buckets *b, double total, struct place *to) {
    const struct io_output *o = b->r->o;
    const float least = o->min_p; /* times the best one's, which is 1 */
    const double limit = o->top_p < 1 ? (double)o->top_p * total : INFINITY;
    /* In buckets up to here exponentials are surely not less: they have errors of 1e-7. */
    double safe = least > 0 ? (-log((double)least) - 1e-4) * (double)b->per - 1 : ROW_BUCKETS;
    uint32_t at = 0, last = 0, count;
    double sum = 0, before = 0;
    for (; at < safe && at < ROW_BUCKETS && sum + b->sum[at] + b->margin < limit; at++)
        if (b->sum[at] > 0) {
            last = at;
            before = sum;
            sum += b->sum[at];
        }
    if (least > 0) { /* the one before the first that is too small has to be known */
        at = last;
        sum = before;
    }
    *to = (struct place){0};
    for (; at < ROW_BUCKETS; at++) {
        if (b->sum[at] > 0 && !open_bucket(b, at, &count))
            return false;
        for (uint32_t i = 0; b->sum[at] > 0 && i < count; i++) {
            if (to->key && b->p[i] < least)
                return true;
            sum += (double)b->p[i];
            *to = (struct place){at, b->keys[i], sum};
            if (fabs(sum - limit) <= b->margin)
                return false;
            if (sum >= limit)
                return true;
        }
    }
    return true;
}

/* Returns -1: not decided. */
static int32_t draw_up_to(struct buckets *b, struct place cut, double random) {
    double sum = 0;
    uint32_t at = 0, count;
    random *= cut.sum;
    while (at < cut.bucket && sum + b->sum[at] + b->margin < random)
        sum += b->sum[at++];
    for (; at <= cut.bucket; at++) {
        if (!open_bucket(b, at, &count))
            return -1;
        for (uint32_t i = 0; i < count; i++) {
            sum += (double)b->p[i];
            if (b->keys[i] == cut.key)
                return (int32_t)index_of(cut.key);
            if (fabs(sum - random) <= b->margin)
                return -1;
            if (random < sum)
                return (int32_t)index_of(b->keys[i]);
        }
    }
    return -1;
}

/* Draws among what top-p and min-p leave of all. Returns -1: not decided. */
static int32_t draw_by_buckets(const struct pick_row *r, float shift, double total, double random) {
    struct buckets b;
    struct place cut;
    bool is_found = fill_buckets(&b, r, shift) && find_cut(&b, total, &cut);
    return is_found ? draw_up_to(&b, cut, random) : -1;
}

/* total: of the exponentials of all, where top-k doesn't ask for its own. */
static int32_t draw_best(const struct pick_row *r, float shift, double total, double random) {
    const struct io_output *o = r->o;
    float scale = 1 / o->temperature, *p = NULL;
    uint32_t limit = o->top_k && o->top_k < r->n ? o->top_k : r->n;
    uint32_t taken = o->top_k ? limit : 64, count = 0, listed = 0;
    uint64_t *keys = r->order;
    for (bool are_all = false; !count; taken *= 8) {
        taken = taken < limit ? taken : limit;
        if (!are_all) {
            keys = r->order + r->n_blocks; /* after best */
            p = (float *)r->order + r->n;
            listed = taken <= r->n_blocks / 4 ? list_best(r, keys, taken) : 0;
        }
        if (!listed) {
            int32_t token = are_all || o->top_k ? -1 : draw_by_buckets(r, shift, total, random);
            if (token >= 0)
                return token;
            are_all = true;
            keys = r->order;
            p = r->adjusted; /* keys have all that is needed of it */
            listed = list_all(r, keys);
        }
        select_top(keys, listed, taken);
        sort_down(keys, taken);
        for (uint32_t i = 0; i < taken; i++)
            p[i] = float_of(rank_in(keys[i]));
        row_exp_of(p, p, scale, shift, taken);
        if (o->top_k) {
            total = 0;
            for (uint32_t i = 0; i < taken; i++)
                total += p[i];
        }
        count = passing(p, taken, taken == limit, o, total);
    }
    while (count > 1 && p[count - 1] == 0) /* not allowed */
        count--;
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += p[i];
    random *= sum;
    sum = 0;
    for (uint32_t i = 0; i + 1 < count; i++) {
        sum += p[i];
        if (random < sum)
            return (int32_t)index_of(keys[i]);
    }
    return (int32_t)index_of(keys[count - 1]);
}

static float shift_of(const struct pick_row *r) {
    int32_t best = best_rank(r);
    return (is_plain(r, best) ? float_of(best) : row_max(r->x, r->n)) * (1 / r->o->temperature);
}

/* Draws among all, in the order of the vocabulary. Exponentials are made again: cheaper than to
 * write and read them. */
static int32_t draw_any(const struct pick_row *r, float shift, double random) {
    enum { PART = 1024 };
    float p[PART], scale = 1 / r->o->temperature;
    double sum = 0;
    int32_t last = 0;
    for (uint32_t at = 0; at < r->n; at += PART) {
        uint32_t n = r->n - at < PART ? r->n - at : PART;
        row_exp_of(p, r->x + at, scale, shift, n);
        for (uint32_t i = 0; i < n; i++) {
            sum += p[i];
            last = p[i] > 0 ? (int32_t)(at + i) : last;
            if (random < sum)
                return (int32_t)(at + i);
        }
    }
    return last; /* rounding left it beyond the sum */
}

/* The sum of all exponentials is one chain of additions, which threads can't share. */
static int32_t sample(const struct pick_row *r, uint32_t position) {
    const struct io_output *o = r->o;
    bool is_cut = o->top_k > 0 || o->top_p < 1 || o->min_p > 0;
    bool needs_sum = !is_cut || (o->top_k == 0 && o->top_p < 1);
    float shift = shift_of(r);
    double random = draw(o->seed, position);
    double total = needs_sum ? row_exp_sum(r->x, 1 / o->temperature, shift, r->n) : 0;
    return is_cut ? draw_best(r, shift, total, random) : draw_any(r, shift, random * total);
}

static int32_t find_best(const struct pick_row *r) {
    int32_t best = best_rank(r);
    if (!is_plain(r, best))
        return argmax(r->x, r->n);
    int32_t least = best == 0 ? -1 : best; /* -0, of rank -1, is 0 */
    uint32_t b = 0;
    while (r->best[b] < least)
        b++;
    for (uint32_t i = b * RANK_BLOCK; i < r->n; i++)
        if (r->x[i] == float_of(best))
            return (int32_t)i;
    return 0; /* not reached */
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
    if (best_of(r.ranks, r.n_blocks) == RANK_NOT_FINITE)
        o->token = IO_NOT_FINITE;
    else if (o->flags & IO_WANTS_TOKEN)
        o->token = o->temperature <= 0 ? find_best(&r) : sample(&r, s->rows[o->row].position);
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
