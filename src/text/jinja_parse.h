/* jinja_parse.h - what the parser of statements and that of expressions share. */
#ifndef TEXT_JINJA_PARSE_H
#define TEXT_JINJA_PARSE_H

#include "text/jinja_ast.h"

struct parser {
    struct jinja *jinja;
    const struct jinja_token *tokens;
    size_t count, at;
    unsigned depth;
    unsigned loops;        /* around this place, inside the same function */
    struct node *function; /* the macro, call or generation around this place, or NULL */
    struct err *err;
    int code; /* of the error */
};

/* Functions that return bool or a node return false or NULL after setting the error. */
bool parse_fail(struct parser *p, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool parse_no_memory(struct parser *p);
bool parse_unexpected(struct parser *p);

const struct jinja_token *parse_token(const struct parser *p);
const struct jinja_token *parse_peek(const struct parser *p); /* the one after it */
const struct jinja_token *parse_next(struct parser *p);       /* returns it and advances */
bool token_is_name(const struct jinja_token *t, const char *name);
/* Take the token if it is of that kind; skip returns whether, expect fails otherwise. */
bool parse_skip(struct parser *p, enum token_kind kind);
bool parse_skip_name(struct parser *p, const char *name);
bool parse_expect(struct parser *p, enum token_kind kind);

struct node *parse_node(struct parser *p, enum node_kind kind, uint32_t line);
uint32_t parse_name_number(struct parser *p, struct str name);
bool parse_enter(struct parser *p); /* one level deeper; p->depth-- leaves it */

/* Fills in which names the scopes of a template hide, see jinja_names.c. */
bool parse_hidden(struct parser *p, struct node *root);

struct tuple_style {
    bool is_target;      /* only names and literals */
    bool has_attributes; /* targets: name.attribute too */
    bool is_plain;       /* no `a if b else c` */
    bool is_bracketed;   /* may be empty */
    const char *end;     /* a name that ends it, besides the end of the tag or bracket */
};
/* A string, or several side by side; a number. The token is of that kind. */
struct node *parse_string(struct parser *p);
struct node *parse_number(struct parser *p);
struct node *parse_expression(struct parser *p);
struct node *parse_tuple(struct parser *p, struct tuple_style style);
struct node *parse_target(struct parser *p, struct tuple_style style);
/* Filters after a '|' each; `is_inline`: the first stands without one. *out is what they filter
 * and becomes the last filter. */
bool parse_filters(struct parser *p, struct node **out, bool is_inline);

#endif
