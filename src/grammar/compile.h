/* compile.h - how expressions become a grammar, for the readers of GBNF, JSON schemas and
 * regular expressions. */
#ifndef GRAMMAR_COMPILE_H
#define GRAMMAR_COMPILE_H

#include "grammar/expr.h"
#include "grammar/grammar.h"

int grammar_compile(struct grammar **out, struct builder *b, uint32_t root, struct err *err);

#endif
