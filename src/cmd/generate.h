/* generate.h - the token loop that run and chat share.
 *
 * In: a sequence with its prompt processed, so that a token is picked. Out: text, as it comes. */
#ifndef CMD_GENERATE_H
#define CMD_GENERATE_H

#include "cmd/constraint.h"
#include "sluice.h"

/* Why a text ended. */
enum generate_end {
    GENERATE_END_TOKEN,
    GENERATE_STOP_STRING,
    GENERATE_MAX_TOKENS,
    GENERATE_INTERRUPTED,
    GENERATE_LOOP, /* the same tokens over and over */
    GENERATE_CONTEXT_FULL,
    GENERATE_FAILED,
};

struct generate {
    /* Set by the caller. */
    const sluice_model *model;
    sluice_engine *engine;
    sluice_seq *seq;
    sluice_text *text;             /* reset first; has the stop strings */
    size_t max_tokens;             /* tokens; SIZE_MAX: no limit */
    bool is_endless;               /* continues after end tokens and in loops (--ignore-eos) */
    struct constraint *constraint; /* of the text; begun before the prompt was processed */
    /* Whole characters, as they are known. Nonzero ends the loop with that exit status. */
    int (*show)(void *user, const char *at, size_t length);
    /* May be NULL. Every token that counts, before its text is shown, while the logits it was
     * picked from are still there (where the sequence wants them). Nonzero as above. */
    int (*see)(void *user, int32_t token);
    /* May be NULL: then a full context is the end. Shortens the sequence, processes what it holds
     * then, and returns true when there is room; its last tokens stay. *exit as above. */
    bool (*make_room)(void *user, int *exit);
    void *user;

    /* Set by generate. */
    size_t n_new; /* tokens, without the one that ended it */
    double seconds;
    uint64_t submissions;
    enum generate_end end;
};

/* Generates until something ends it. Returns 0, whatever that was, or the exit status of a failure,
 * which was reported. The sequence may hold tokens that were made after the end. */
int generate(struct generate *g);

#endif
