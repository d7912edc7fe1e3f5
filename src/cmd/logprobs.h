/* logprobs.h - how likely each token of a text was, and what else was likely there. */
#ifndef CMD_LOGPROBS_H
#define CMD_LOGPROBS_H

#include <jansson.h>

#include "text/tokenizer.h"

struct logprob {
    int32_t token;
    float value; /* natural logarithm */
};

/* Rows of 1 + n_top: the token that was picked, then the likeliest ones, best first. */
struct logprobs {
    uint32_t n_top;
    struct logprob *at;
    size_t n_rows, capacity; /* rows */
};
enum { MAX_LOGPROBS = 100 };

/* Adds the row of a token that was picked by these logits, before any sampling: (n). */
int logprobs_push(struct logprobs *l, const float *logits, int32_t n, int32_t token,
                  struct err *err);
void logprobs_free(struct logprobs *l);

/* An array of {"id", "token", "logprob", "top": [{"id", "token", "logprob"}, ...]}. */
json_t *logprobs_json(const struct logprobs *l, const struct tokenizer *t);
/* One line per token on stderr. */
void logprobs_say(const struct logprobs *l, const struct tokenizer *t);

#endif
