/* bias.c - what --logit-bias says: a token and what is added to its logit. */
#include "cmd/bias.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A number and nothing else. */
static bool is_bias(const char *text, float *out) {
    char *end;
    if (*text == 0 || strchr(" \t\n\v\f\r", *text))
        return false;
    *out = strtof(text, &end);
    return *end == 0 && *out <= 1000 && (*out >= -1000 || isinf(*out));
}

/* The value begins after the last '=' or ':', which no number holds, or at the first sign that
 * begins one (1e-5 holds a second). What is before it is the token. */
static bool find_value(const char *word, float *bias, size_t *token_len) {
    const char *c = word + strlen(word);
    while (c-- > word)
        if ((*c == '=' || *c == ':') && is_bias(c + 1, bias)) {
            *token_len = (size_t)(c - word);
            return true;
        }
    for (c = word; *c; c++)
        if ((*c == '+' || *c == '-') && is_bias(c, bias)) {
            *token_len = (size_t)(c - word);
            return true;
        }
    return false;
}

bool bias_parse(const char *word, struct bias_spec *out) {
    size_t len = 0;
    *out = (struct bias_spec){.id = -1};
    if (!find_value(word, &out->bias, &len) || len == 0)
        return false;
    out->text = (struct str){word, len};
    bool is_quoted = len > 2 && word[0] == word[len - 1] && (word[0] == '"' || word[0] == '\'');
    if (is_quoted) {
        out->text = (struct str){word + 1, len - 2};
    } else if (strspn(word, "0123456789") >= len) {
        long long id = strtoll(word, NULL, 10);
        out->id = id > INT_MAX ? INT_MAX : (int32_t)id;
    }
    return true;
}

int32_t bias_token(const struct bias_spec *spec, const struct tokenizer *t, int32_t n_tokens,
                   struct err *err) {
    if (spec->id >= 0) {
        if (spec->id < n_tokens)
            return spec->id;
        err_set(err, SLUICE_ERR_ARGUMENT, "token %.*s, expected 0 to %d", STR_ARG(spec->text),
                n_tokens - 1);
        return -1;
    }
    struct ids ids = {0};
    int32_t id = -1;
    if (!t)
        err_set(err, SLUICE_ERR_UNSUPPORTED, "the model has no tokenizer; name tokens by id");
    else if (tokenizer_encode(t, spec->text, ENCODE_SPECIAL, &ids, err) == SLUICE_OK) {
        if (ids.len == 1)
            id = ids.at[0];
        else
            err_set(err, SLUICE_ERR_ARGUMENT, "'%.*s' is %zu tokens, expected one",
                    STR_ARG(spec->text), ids.len);
    }
    ids_free(&ids);
    return id;
}
