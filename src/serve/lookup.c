/* lookup.c - drafts by prompt lookup.
 *
 * In: the tokens of a text, as it grows.  Out: guesses of what follows.
 *
 * (1) Every position of the text but the last that has three tokens before it is in the index: in
 *     the list of the bucket of their hash, newest first.
 * (2) Buckets are not verified: what is found is compared token by token. */
#include "serve/lookup.h"

#include <string.h>

#include "base/size.h"

enum {
    MIN_MATCH = 3,  /* tokens in common: fewer are right too seldom */
    LONGEST = 32,   /* that are compared */
    MAX_TRIED = 16, /* positions of a bucket that are compared */
};

/* ---- the index ---------------------------------------------------------------------------- */

static uint32_t buckets_for(uint32_t capacity) {
    uint32_t n = 16;
    while (n < capacity && n < 1u << 30)
        n *= 2;
    return n;
}

size_t lookup_bytes(uint32_t capacity) {
    return ((size_t)buckets_for(capacity) + capacity) * sizeof(uint32_t);
}

void lookup_init(struct lookup *l, void *memory, uint32_t capacity) {
    *l = (struct lookup){
        .newest = memory, .n_buckets = buckets_for(capacity), .record.rightness = 0.5f};
    l->previous = l->newest + l->n_buckets;
    memset(l->newest, 0, l->n_buckets * sizeof *l->newest);
}

/* Of the three tokens before `at`. */
static uint32_t *bucket_of(const struct lookup *l, const int32_t *at) {
    uint64_t x = (uint32_t)at[-1] + 0x9E3779B97F4A7C15u * (uint32_t)at[-2];
    x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9u + (uint32_t)at[-3];
    x = (x ^ x >> 32) * 0x94D049BB133111EBu;
    return &l->newest[x >> 33 & (l->n_buckets - 1)];
}

/* Adds all positions before the last of n tokens to the index. */
static void extend(struct lookup *l, const int32_t *tokens, uint32_t n) {
    for (l->n = max_u32(l->n, MIN_MATCH); l->n < n; l->n++) {
        uint32_t *bucket = bucket_of(l, tokens + l->n);
        l->previous[l->n] = *bucket;
        *bucket = l->n + 1;
    }
}

/* How many tokens before a are those before b, where b < a. */
static uint32_t common(const int32_t *tokens, uint32_t a, uint32_t b) {
    uint32_t n = 0;
    while (n < b && n < LONGEST && tokens[a - 1 - n] == tokens[b - 1 - n])
        n++;
    return n;
}

/* The position with the longest match of the text's last tokens before it, the newest of several;
 * 0: none. */
static uint32_t find(const struct lookup *l, const int32_t *tokens, uint32_t n) {
    uint32_t best = 0, longest = MIN_MATCH - 1, at = *bucket_of(l, tokens + n);
    for (uint32_t i = 0; i < MAX_TRIED && at && longest < LONGEST; i++, at = l->previous[at - 1]) {
        uint32_t same = common(tokens, n, at - 1);
        if (same > longest) {
            longest = same;
            best = at - 1;
        }
    }
    return best;
}

/* ---- guesses ------------------------------------------------------------------------------ */

/* Compares the last guess with what came. */
static void learn(struct lookup *l, const int32_t *tokens, uint32_t n) {
    uint32_t known = n > l->guess_at ? min_u32(l->n_guess, n - l->guess_at) : 0, right = 0;
    while (right < known && l->guess[right] == tokens[l->guess_at + right])
        right++;
    pace_learn(&l->record, right, known);
    l->n_guess = 0;
}

/* A guess that reaches the text's end continues with its own tokens: the text repeats itself. */
uint32_t lookup_guess(struct lookup *l, const int32_t *tokens, uint32_t n, uint32_t max) {
    learn(l, tokens, n);
    if (n <= MIN_MATCH)
        return 0;
    extend(l, tokens, n);
    uint32_t at = find(l, tokens, n), period = n - at;
    if (at == 0)
        return 0;
    l->n_guess = min_u32(max, LOOKUP_MAX);
    l->guess_at = n;
    for (uint32_t i = 0; i < l->n_guess; i++)
        l->guess[i] = i < period ? tokens[at + i] : l->guess[i - period];
    return l->n_guess;
}
