/* pick_sample.c - PICK: the best token, or one drawn from what temperature, top-k, top-p and min-p
 * leave. */
#include "backend/cpu/pick_row.h"

static int32_t argmax(const float *x, uint32_t n) {
    float best = row_max(x, n);
    for (uint32_t i = 0; i < n; i++)
        if (x[i] == best)
            return (int32_t)i;
    return 0; /* all are NaN, by their biases */
}

int32_t pick_best(const struct pick_row *r) {
    int32_t best = pick_best_rank(r);
    if (!pick_is_plain(r, best))
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

/* A number in [0, 1) of 53 random bits. */
static double draw(uint64_t seed, uint32_t position) {
    uint64_t z = seed + 0x9E3779B97F4A7C15u * (position + 1ull);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

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

/* Candidates in order, and their exponentials, in r->order's memory. */
struct candidates {
    uint64_t *keys; /* (n); the best are sorted by sort_best */
    float *p;
    uint32_t n;
    bool are_all; /* all of the vocabulary, else those that may be among the best */
};

/* Lists those that may be among the best m; false: too many. */
static bool list_few(const struct pick_row *r, uint32_t m, struct candidates *c) {
    c->keys = r->order + r->n_blocks; /* after best */
    c->p = (float *)r->order + r->n;
    c->n = m <= r->n_blocks / 4 ? pick_list_best(r, c->keys, m) : 0;
    return c->n > 0;
}

/* For cuts that leave many, or many of one logit. */
static void list_all(const struct pick_row *r, struct candidates *c) {
    c->keys = r->order;
    c->p = r->adjusted; /* keys have all that is needed of it */
    c->n = pick_list_all(r, c->keys);
    c->are_all = true;
}

/* Sorts the best m, and makes their exponentials. */
static void sort_best(const struct pick_row *r, struct candidates *c, uint32_t m, float shift) {
    pick_select(c->keys, c->n, m);
    pick_sort(c->keys, m);
    for (uint32_t i = 0; i < m; i++)
        c->p[i] = float_of(rank_in(c->keys[i]));
    row_exp_of(c->p, c->p, 1 / r->o->temperature, shift, m);
}

static double sum_of(const float *p, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += p[i];
    return sum;
}

/* Draws among the first n > 0. */
static int32_t draw_from(const struct candidates *c, uint32_t n, double random) {
    while (n > 1 && c->p[n - 1] == 0) /* not allowed */
        n--;
    random *= sum_of(c->p, n);
    double sum = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
        sum += c->p[i];
        if (random < sum)
            return (int32_t)index_of(c->keys[i]);
    }
    return (int32_t)index_of(c->keys[n - 1]);
}

/* Draws among what top-k, top-p and min-p leave: of more and more of the best, until what passes
 * is decided. total: of the exponentials of all, where top-k doesn't ask for its own. */
static int32_t draw_best(const struct pick_row *r, float shift, double total, double random) {
    const struct io_output *o = r->o;
    uint32_t limit = o->top_k && o->top_k < r->n ? o->top_k : r->n;
    uint32_t n = o->top_k ? limit : 64, n_passing = 0;
    struct candidates c = {0};
    for (; n_passing == 0; n *= 8) {
        n = n < limit ? n : limit;
        if (!c.are_all && !list_few(r, n, &c)) {
            int32_t token = o->top_k ? -1 : pick_by_buckets(r, shift, total, random);
            if (token >= 0)
                return token;
            list_all(r, &c);
        }
        sort_best(r, &c, n, shift);
        n_passing = passing(c.p, n, n == limit, o, o->top_k ? sum_of(c.p, n) : total);
    }
    return draw_from(&c, n_passing, random);
}

static float shift_of(const struct pick_row *r) {
    int32_t best = pick_best_rank(r);
    return (pick_is_plain(r, best) ? float_of(best) : row_max(r->x, r->n)) *
           (1 / r->o->temperature);
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
int32_t pick_sample(const struct pick_row *r, uint32_t position) {
    const struct io_output *o = r->o;
    bool is_cut = o->top_k > 0 || o->top_p < 1 || o->min_p > 0;
    bool needs_sum = !is_cut || (o->top_k == 0 && o->top_p < 1);
    float shift = shift_of(r);
    double random = draw(o->seed, position);
    double total = needs_sum ? row_exp_sum(r->x, 1 / o->temperature, shift, r->n) : 0;
    return is_cut ? draw_best(r, shift, total, random) : draw_any(r, shift, random * total);
}
