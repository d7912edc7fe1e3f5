/* pick_buckets.c - PICK: drawing where the cuts leave many candidates.
 *
 * Sorting them all costs more than all the rest. So candidates are put into buckets by how far they
 * are below the best; the sums of whole buckets say in which one the cut is, and the draw, and only
 * these two are sorted. Sums of buckets differ from the definition's, one candidate after the
 * other, by rounding: what is nearer to a boundary than that is not decided here. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/pick_row.h"

struct buckets {
    const struct pick_row *r;
    float scale, shift, per_unit;
    double sum[ROW_BUCKETS], all;
    double margin; /* of any sum */
    uint16_t *of;  /* (n, and a block) */
    uint64_t *keys;
    float *p;
    uint32_t max; /* keys */
};

/* How many buckets a difference of one takes, if all of them reach from the best logit, over the
 * temperature, twice as far as to the mean of some; 0: no useful number. */
static float buckets_per_unit(const struct pick_row *r, float scale, float best) {
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
    float p[PART], best = float_of(pick_best_rank(r));
    *b = (struct buckets){.r = r, .scale = 1 / r->o->temperature, .shift = shift, .max = r->n / 4};
    b->of = (uint16_t *)(r->order + r->n_blocks); /* after best */
    b->keys = r->order + r->n_blocks + (r->n + RANK_BLOCK) / 4 + 1;
    b->p = (float *)(b->keys + b->max);
    b->per_unit = pick_is_plain(r, pick_best_rank(r)) ? buckets_per_unit(r, b->scale, best) : 0;
    if (b->per_unit == 0 || r->n < PART)
        return false;
    for (uint32_t at = 0; at < r->n; at += PART) {
        uint32_t n = r->n - at < PART ? r->n - at : PART;
        row_exp_buckets(p, b->of + at, r->x + at, b->scale, shift, b->per_unit, n);
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
    pick_sort(b->keys, *count);
    for (uint32_t i = 0; i < *count; i++)
        b->p[i] = float_of(rank_in(b->keys[i]));
    row_exp_of(b->p, b->p, b->scale, b->shift, *count);
    return true;
}

/* The last candidate that passes top-p and min-p. */
struct cut {
    uint32_t bucket;
    uint64_t key;
    double sum; /* up to and with it */
};

/* The last candidate that passes; false: not decided. */
static bool find_cut(struct buckets *b, double total, struct cut *to) {
    const struct io_output *o = b->r->o;
    const float least = o->min_p; /* times the best one's, which is 1 */
    const double limit = o->top_p < 1 ? (double)o->top_p * total : INFINITY;
    /* In buckets up to here exponentials are surely not less: they have errors of 1e-7. */
    double safe = least > 0 ? (-log((double)least) - 1e-4) * (double)b->per_unit - 1 : ROW_BUCKETS;
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
    *to = (struct cut){0};
    for (; at < ROW_BUCKETS; at++) {
        if (b->sum[at] > 0 && !open_bucket(b, at, &count))
            return false;
        for (uint32_t i = 0; b->sum[at] > 0 && i < count; i++) {
            if (to->key && b->p[i] < least)
                return true;
            sum += (double)b->p[i];
            *to = (struct cut){at, b->keys[i], sum};
            if (fabs(sum - limit) <= b->margin)
                return false;
            if (sum >= limit)
                return true;
        }
    }
    return true;
}

/* Returns -1: not decided. */
static int32_t draw_up_to(struct buckets *b, struct cut cut, double random) {
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
int32_t pick_by_buckets(const struct pick_row *r, float shift, double total, double random) {
    struct buckets b;
    struct cut cut;
    bool is_found = fill_buckets(&b, r, shift) && find_cut(&b, total, &cut);
    return is_found ? draw_up_to(&b, cut, random) : -1;
}
