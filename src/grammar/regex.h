/* regex.h - regular expressions to expressions: the part of them that describes a regular language.
 *
 *   choice   ::= sequence ("|" sequence)*
 *   sequence ::= (atom ("*" | "+" | "?" | "{n}" | "{n,}" | "{n,m}") "?"?)*
 *   atom     ::= character | "." | [class] | \d \w \s \D \W \S | "(" choice ")" | "(?:" choice ")"
 *
 * There are two kinds. That of `pattern` in a schema is searched in a JSON string: where it has no
 * ^ or $, any characters may stand, and these two stand outside groups. The other kind is matched
 * by the whole of a plain text, as by Python's re.fullmatch: there ^ and $ change nothing, and may
 * stand wherever nothing can precede or follow them. It has {,m}, too, a ] that begins a class, and
 * braces that count nothing as characters.
 *
 * Where dialects differ (which letters \w means, what . leaves out) only what all agree on is
 * generated. */
#ifndef GRAMMAR_REGEX_H
#define GRAMMAR_REGEX_H

#include "grammar/expr.h"

/* An expression, and how many characters a text of it may have. */
struct sized_expr {
    const struct expr *e;
    uint64_t min, max;       /* max: UINT32_MAX and more: no limit */
    bool has_start, has_end; /* a ^, a $: nothing may precede, or follow */
};

/* `anything`: what may stand around an expression that is searched in a JSON string; NULL: the
 * whole of a plain text matches it. False: *err says at which character, and what is wrong. */
bool regex_read(struct builder *b, struct str regex, const struct expr *anything,
                struct sized_expr *out, struct err *err);

#endif
