/* lookup.h - drafts by prompt lookup: what followed the newest tokens where they occurred before
 * will probably follow them again.
 *
 * A lookup is an index over one text, prompt and answer. A draft is what came after the longest and
 * newest earlier place whose tokens are the text's last three or more. How many tokens of it are
 * worth a row is decided by a pace: how often guesses in this text were right, and how long
 * steps of so many rows take, both measured. Guesses that were not drafted are checked, too: so
 * drafting stops where it does not pay, and starts again where it would.
 *
 * Nothing is allocated: the caller provides a lookup's memory.
 *
 * A lookup and a pace are used by one thread at a time. */
#ifndef SERVE_LOOKUP_H
#define SERVE_LOOKUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOOKUP_MAX = 32 }; /* tokens of a draft */

struct lookup {
    uint32_t *newest; /* (buckets) by the hash of three tokens: 1 + the place after them; 0: none */
    uint32_t *previous; /* (capacity) by such a place: the one before it, in the same bucket */
    uint32_t n_buckets; /* a power of two */
    uint32_t n;         /* tokens that are in the index */
    float rightness;    /* share of guesses that were right, a moving average */
    int32_t guess[LOOKUP_MAX]; /* of the tokens after the first guess_at */
    uint32_t n_guess, guess_at;
    uint32_t n_declined; /* guesses in a row that were not worth a draft */
};

/* For a text of at most so many tokens; a multiple of 4. */
size_t lookup_bytes(uint32_t capacity);
/* memory: lookup_bytes of it, aligned to 4. */
void lookup_init(struct lookup *l, void *memory, uint32_t capacity);

/* Guesses what comes after these n tokens, which begin with those of earlier calls: see `guess`.
 * Returns how many tokens, 0 to `max`. Also scores the last guess. */
uint32_t lookup_guess(struct lookup *l, const int32_t *tokens, uint32_t n, uint32_t max);

/* ---- how much to draft -------------------------------------------------------------------- */

enum { PACE_SIZES = 13 }; /* steps of up to 1, 2, 4 ... 4096 rows */

/* Of an engine. Begin with {0}. */
struct pace {
    double seconds[PACE_SIZES]; /* of a step, a moving average; 0: none yet */
};

/* A step that is being composed. Begin with one row and one token per sequence. */
struct pace_step {
    uint32_t rows;
    double tokens; /* expected from it */
};

/* Notes how long a step of so many rows, none of a prompt, took. */
void pace_note(struct pace *p, uint32_t rows, double seconds);

/* How long a step of so many rows takes; 0: not known. */
double pace_seconds(const struct pace *p, uint32_t rows);

/* How many tokens of the lookup's guess to draft: as many as give the most tokens per second. They
 * are added to the step. */
uint32_t pace_choose(const struct pace *p, struct pace_step *step, struct lookup *l);

#endif
