/* expr.h - a grammar as a tree of expressions, before it is compiled: what GBNF and JSON schemas
 * are read into.
 *
 * All of it lives in the builder's arena. Results need not be checked: if memory or the limit ran
 * out the builder notes it, and compiling fails.
 *
 * A builder is used by one thread. */
#ifndef GRAMMAR_EXPR_H
#define GRAMMAR_EXPR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum expr_kind {
    EXPR_BYTES,    /* these bytes */
    EXPR_CLASS,    /* one character of these ranges; none: never matches */
    EXPR_SEQUENCE, /* one after the other; none: the empty text */
    EXPR_CHOICE,   /* one of them; none: never matches */
    EXPR_REPEAT,
    EXPR_RULE, /* what the rule says */
};

/* Characters first to last. */
struct char_range {
    uint32_t first, last;
};

enum { REPEAT_NO_LIMIT = UINT32_MAX };

struct expr {
    enum expr_kind kind;
    uint32_t n;                /* ranges, or parts */
    uint32_t rule;             /* EXPR_RULE */
    uint32_t min, max;         /* EXPR_REPEAT of parts[0] */
    struct str bytes;          /* EXPR_BYTES */
    struct char_range *ranges; /* sorted, not touching */
    const struct expr **parts;
};

struct rule {
    struct str name;
    const struct expr *body; /* NULL: not defined yet */
    uint32_t line;           /* where it was first named; 0: not from a text */
};

struct builder {
    struct arena arena;
    struct rule *rules;
    uint32_t n_rules, rule_capacity;
    bool is_out_of_memory;
};

/* A growing list of parts. Zero-initialize. */
struct expr_list {
    const struct expr **at;
    uint32_t n, capacity;
};

void builder_begin(struct builder *b);
void builder_end(struct builder *b); /* frees all */
/* Where is_out_of_memory is set, or an allocation from the arena failed: the limit, or memory. */
int builder_fail(const struct builder *b, struct err *err);

void expr_push(struct builder *b, struct expr_list *list, const struct expr *e);

/* The bytes are copied. */
const struct expr *expr_bytes(struct builder *b, struct str bytes);
const struct expr *expr_text(struct builder *b, const char *z);
/* Several of EXPR_BYTES, or of none, as one: choices of such share their beginnings. */
const struct expr *expr_joined(struct builder *b, const struct expr *const *parts, uint32_t n);
/* Any ranges, in any order; is_negated: all other characters. */
const struct expr *expr_class(struct builder *b, const struct char_range *ranges, uint32_t n,
                              bool is_negated);
const struct expr *expr_sequence(struct builder *b, const struct expr_list *list);
const struct expr *expr_choice(struct builder *b, const struct expr_list *list);
const struct expr *expr_repeat(struct builder *b, const struct expr *e, uint32_t min, uint32_t max);
const struct expr *expr_rule(struct builder *b, uint32_t rule);
const struct expr *expr_never(struct builder *b);

/* Two or three parts at once, and optional ones. */
const struct expr *expr_pair(struct builder *b, const struct expr *x, const struct expr *y);
const struct expr *expr_triple(struct builder *b, const struct expr *x, const struct expr *y,
                               const struct expr *z);
const struct expr *expr_either(struct builder *b, const struct expr *x, const struct expr *y);
const struct expr *expr_optional(struct builder *b, const struct expr *e);

/* True for one that matches no text at all; rules are not followed and count as matching. */
bool expr_is_never(const struct expr *e);

/* A new rule without a body; the name is copied. */
uint32_t builder_rule(struct builder *b, struct str name);

#endif
