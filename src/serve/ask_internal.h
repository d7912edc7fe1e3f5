/* ask_internal.h - what the files of ask.h share. */
#ifndef SERVE_ASK_INTERNAL_H
#define SERVE_ASK_INTERNAL_H

#include "serve/ask.h"

/* Zero-initialize; `at` is to be freed. */
struct token_list {
    int32_t *at;
    size_t n;
};

/* ---- ask_prompt.c ------------------------------------------------------------------------- */

/* The error of a prompt of n tokens that the context has no room for. */
int prompt_too_long(const struct ask_model *m, size_t n, struct err *err);
/* Takes the tokens as one more prompt, or frees them. */
int prompt_add(struct ask *ask, const struct ask_model *m, struct token_list ids, struct err *err);
int prompt_append_token(struct token_list *ids, int32_t token, struct err *err);
/* A text as sluice_encode makes tokens of it with these flags; at most a context of them. */
int prompt_append_text(const struct ask_model *m, struct token_list *prompt, struct str text,
                       unsigned flags, struct err *err);

/* ---- ask_format.c ------------------------------------------------------------------------- */

/* Sets *format, that of texts or of the required call, to a schema (NULL: any JSON object), which
 * errors call `name`. */
void ask_set_format_schema(struct ask *ask, struct format **format, struct fields *f,
                           const char *name, const struct ask_model *m, const json_t *schema);

#endif
