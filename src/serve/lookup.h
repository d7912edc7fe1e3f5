/* lookup.h - drafts by prompt lookup: what followed the newest tokens where they occurred before
 * will probably follow them again.
 *
 * A lookup is an index over one text, prompt and answer. A draft is what came after the longest and
 * newest earlier position whose preceding tokens are the text's last three or more. How many tokens
 * of it are worth a row is decided by pace.h. Guesses that were not drafted are checked, too.
 *
 * Nothing is allocated: the caller provides a lookup's memory.
 *
 * Used by one thread at a time. */
#ifndef SERVE_LOOKUP_H
#define SERVE_LOOKUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serve/pace.h"

enum { LOOKUP_MAX = 32 }; /* tokens of a draft */

struct lookup {
    /* (buckets) by the hash of three tokens: 1 + the position after them; 0: none */
    uint32_t *newest;
    uint32_t *previous; /* (capacity) by such a position: the one before it, in the same bucket */
    uint32_t n_buckets; /* a power of two */
    uint32_t n;         /* tokens that are in the index */
    int32_t guess[LOOKUP_MAX]; /* of the tokens after the first guess_at */
    uint32_t n_guess, guess_at;
    struct guess_record record; /* of guesses in this text */
};

/* For a text of at most this many tokens; a multiple of 4. */
size_t lookup_bytes(uint32_t capacity);
/* memory: lookup_bytes of it, aligned to 4. */
void lookup_init(struct lookup *l, void *memory, uint32_t capacity);

/* Guesses what comes after these n tokens, which begin with those of earlier calls: see `guess`.
 * Returns how many tokens, 0 to `max`. Also scores the last guess. */
uint32_t lookup_guess(struct lookup *l, const int32_t *tokens, uint32_t n, uint32_t max);

#endif
