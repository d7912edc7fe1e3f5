/* constraint.h - --grammar and --json-schema: constrained output of run and chat.
 *
 * The sequence is given the mask of its next token before the step that picks it; thinking before
 * an answer is not constrained, as in the server (serve/follow.h). */
#ifndef CMD_CONSTRAINT_H
#define CMD_CONSTRAINT_H

#include "cmd/opts.h"
#include "serve/follow.h"

/* Begin with {0}. */
struct constraint {
    const char *grammar; /* the options: a file, or the text itself; NULL: not given */
    const char *schema;

    struct formats *formats;
    struct format *format; /* NULL: texts are free */
    uint32_t *no_ends;
    int32_t n_tokens, think_open, think_close;
    struct follow follow; /* of the text that is written */
};

enum { N_CONSTRAINT_OPTS = 2 };
/* Their rows; returns the number of rows after them. */
int constraint_opts(struct opt *opts, int n, struct constraint *c);
/* OPTS_GO_ON or the exit status. */
int constraint_check(const struct constraint *c, const char *verb, bool ignores_ends);

/* Compiles it. Exit status; constraint_close in any case. The model is borrowed. */
int constraint_open(struct constraint *c, const sluice_model *model);
void constraint_close(struct constraint *c);

/* Begins a text after this prompt, whose last token was not fed yet. may_think: it may begin with
 * thinking. Exit status. */
int constraint_begin(struct constraint *c, sluice_seq *seq, const int32_t *prompt, size_t n,
                     bool may_think);
/* Advances by this token; *is_last: nothing may follow. Exit status. */
int constraint_take(struct constraint *c, sluice_seq *seq, int32_t token, bool *is_last);

#endif
