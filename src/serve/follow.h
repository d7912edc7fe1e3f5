/* follow.h - what may come next in an answer that follows a grammar. Thinking before it is not
 * constrained.
 *
 * In: every token of the answer, in order. Out: the mask of the next token, and whether there may
 * be one. The worker and the verbs that generate text use it alike.
 *
 * Used by one thread at a time; the format is shared with others (formats.h). */
#ifndef SERVE_FOLLOW_H
#define SERVE_FOLLOW_H

#include "serve/formats.h"

struct follow {
    /* Set by the caller after follow_open. */
    int32_t open, close;       /* tokens that begin and end thinking; -1: the model has none */
    bool may_open;             /* the answer may begin with thinking */
    bool is_thinking;          /* it is, or begins inside of it */
    bool ignores_ends;         /* none is sampled where the answer may go on */
    const uint32_t *no_ends;   /* all tokens but those that end an answer; borrowed */
    int32_t call;              /* begins a tool call, which the answer may be instead; -1: none */
    const sluice_model *model; /* with a call; borrowed */

    bool has_begun;          /* there was more than white space */
    bool is_free;            /* it is a tool call: not constrained */
    uint32_t n_tokens;       /* so far */
    struct matcher *matcher; /* NULL: anything is allowed */
    uint32_t *mask;          /* the matcher's mask, with more tokens allowed */
    uint32_t n_words;
};

enum follow_kind {
    FOLLOW_THOUGHT, /* a token of thinking, or one of its marks */
    FOLLOW_SAID,
    FOLLOW_LAST, /* nothing may follow it, or it does not fit */
};

/* The mask of all tokens that do not end an answer; NULL: memory ran out. To free. */
uint32_t *follow_no_ends(const sluice_model *model);

/* With format NULL anything is allowed. *f is set; follow_close in any case. The budget is
 * matcher_open's. */
int follow_open(struct follow *f, const struct format *format, int32_t n_tokens,
                struct matcher_budget *budget, struct err *err);
void follow_close(struct follow *f);

/* Sets is_thinking and may_open from the prompt: it ends in thinking, after it, or has none, so
 * that the model may begin. */
void follow_look(struct follow *f, const int32_t *prompt, size_t n);

/* What may come next; NULL: any token. Valid until the next call. */
const uint32_t *follow_mask(struct follow *f);
/* Tokens after which the mask stays the same; NULL: unknown. Valid until the next call. */
const uint32_t *follow_keeps(struct follow *f);
enum follow_kind follow_token(struct follow *f, int32_t token);
/* As matcher_fault: after one the mask is empty, which should end the answer. */
int follow_fault(const struct follow *f, struct err *err);

#endif
