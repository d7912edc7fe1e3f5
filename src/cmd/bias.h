/* bias.h - what --logit-bias says: a token and what is added to its logit.
 *
 *   15043=-2.5   15043+1   15043-inf   15043:0.5     by id
 *   ' Paris'=5   by text that is one token, with or without quotes: ' Paris=5' is the same,
 *                but "7"=1 is the token with the text 7. */
#ifndef CMD_BIAS_H
#define CMD_BIAS_H

#include "text/tokenizer.h"

struct bias_spec {
    struct str text; /* of the token; a slice of what was parsed */
    int32_t id;      /* -1: the text says which */
    float bias;
};

/* False if invalid: the bias must be from -1000 to 1000, or -inf. */
bool bias_parse(const char *word, struct bias_spec *out);

/* The token's id; -1 and an error when it is not one token of this vocabulary. The tokenizer may be
 * NULL. */
int32_t bias_token(const struct bias_spec *spec, const struct tokenizer *t, int32_t n_tokens,
                   struct err *err);

#endif
