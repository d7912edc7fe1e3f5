/* pace.h - how many guessed tokens are worth their rows.
 *
 * A draft costs rows of a step, and maybe time of its own; it pays by the chance that its tokens
 * are right. Both are measured: how long steps of this many rows take on this machine, and how
 * often the guesses of a source were right. So drafting stops where it does not pay, and is tried
 * again now and then.
 *
 * Used by one thread at a time. */
#ifndef SERVE_PACE_H
#define SERVE_PACE_H

#include <stdint.h>

enum { PACE_SIZES = 13 }; /* steps of up to 1, 2, 4 ... 4096 rows */

/* Of an engine. Begin with {0}. Seconds are moving averages; 0: none yet. */
struct pace {
    double seconds[PACE_SIZES];       /* of a step */
    double draft_seconds[PACE_SIZES]; /* of a step of the draft block, by sequences */
};

/* Notes how long a step of this many rows, none of a prompt, took. */
void pace_note(struct pace *p, uint32_t rows, double seconds);
/* Notes how long it took the draft block to draft n tokens for each of this many sequences. */
void pace_note_draft(struct pace *p, uint32_t n_seqs, uint32_t n, double seconds);

/* How long a step of this many rows takes; 0: not known. */
double pace_seconds(const struct pace *p, uint32_t rows);
/* How long the draft block takes for a token of each; a guess until it is known. */
double pace_draft_seconds(const struct pace *p, uint32_t n_seqs);

/* What is known of a source of guesses. Begin with {.rightness = 0.5f}. */
struct guess_record {
    float rightness;     /* share of guesses that were right, a moving average */
    uint32_t n_declined; /* guesses in a row that were not drafted; then one is, to learn of it */
    uint32_t n_taken;    /* guesses in a row that were; then one is not, to time a step without */
};

/* Of a guess of n tokens the first `right` were right, and the next was not, if there was one. */
void pace_learn(struct guess_record *r, uint32_t right, uint32_t n);

/* A step that is being composed. Begin with one row and one token per sequence. */
struct pace_step {
    uint32_t rows;
    double tokens; /* expected from it */
};

/* How many tokens of a guess, of which there are `max` for each of n_seqs sequences, to draft: as
 * many as give the most tokens per second; none while it is not known how long a step without them
 * takes. seconds_each: what it takes to guess one for every sequence. The step gets their rows. */
uint32_t pace_choose(const struct pace *p, struct pace_step *step, struct guess_record *r,
                     uint32_t n_seqs, uint32_t max, double seconds_each);

#endif
