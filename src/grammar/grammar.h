/* grammar.h - structured output: which tokens may come next so that an answer follows a grammar.
 *
 * A grammar is GBNF, a JSON schema or a regular expression, compiled to a pushdown automaton over
 * bytes (program.h). The vocabulary's texts are a trie (texts.h). A matcher tracks the state of one
 * answer and computes the mask of its next token by walking the trie with the automaton; the
 * grammar caches masks by state (masks.h).
 *
 * Free text before the constrained part (thinking, the words before a tool call) is up to the
 * caller, who opens a matcher, or starts to use it, after the last token of free text. From there
 * on it is fed every token.
 *
 * Threads. Grammars and texts may be shared by threads; a matcher belongs to one at a time. A
 * grammar must outlive its matchers, and so must the texts. */
#ifndef GRAMMAR_GRAMMAR_H
#define GRAMMAR_GRAMMAR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* ---- grammars ---------------------------------------------------------------------------------
 *
 * SLUICE_ERR_FORMAT: it is not a grammar; SLUICE_ERR_UNSUPPORTED: it is one, but not for us. The
 * text of the error is one line that names the rule and line, the keyword and its place, or the
 * character. *out is NULL on failure. Hostile input costs a fraction of a second and 64 MB. */

struct grammar;

/* GBNF as in llama.cpp: rules `name ::= ...`, the first is "root". Literals, classes, `.`, groups,
 * `|`, `* + ?`, `{n} {n,} {,m} {n,m}`, comments. Left recursion is refused. */
int grammar_of_gbnf(struct grammar **out, const char *text, size_t length, struct err *err);

/* Texts that a regular expression matches as a whole, in Python's notation (regex.h). */
int grammar_of_regex(struct grammar **out, const char *text, size_t length, struct err *err);

/* Values that are valid for a JSON schema; docs/usage.md lists the keywords. What is not supported
 * is refused by name. The schema is not needed after it. */
int grammar_of_schema(struct grammar **out, const json_t *schema, struct err *err);

/* Any JSON object. */
int grammar_of_json_object(struct grammar **out, struct err *err);

void grammar_close(struct grammar *g); /* takes NULL */
/* About how many bytes it takes, with its cached masks, which grow with use. */
size_t grammar_bytes(const struct grammar *g);

/* ---- the vocabulary ----------------------------------------------------------------------- */

struct token_texts;

/* Call it once per model: it walks all tokens, some 0.1 s at 248k. SLUICE_ERR_UNSUPPORTED for a
 * model without a tokenizer. The model is not needed after it. */
int token_texts_open(struct token_texts **out, const sluice_model *model, struct err *err);
void token_texts_close(struct token_texts *t); /* takes NULL */

/* ---- an answer ---------------------------------------------------------------------------- */

struct matcher;

/* Steps of settling (threads.h) that all answers to one request may take together: some at the
 * beginning, when no mask is cached, and some more with every token, 2 ms for all answers that run
 * at once. */
struct matcher_budget {
    uint64_t steps_left;
    uint32_t steps_per_token;
};
void matcher_budget_begin(struct matcher_budget *b, uint32_t answers); /* at least 1 */

/* budget: borrowed, and used by all its matchers in one thread at a time; NULL: one of its own. */
int matcher_open(struct matcher **out, const struct grammar *g, const struct token_texts *t,
                 struct matcher_budget *budget, struct err *err);
void matcher_close(struct matcher *m); /* takes NULL */

/* Bit t % 32 of word t / 32: token t may come next; end tokens where the answer may end. Valid
 * until the next call with this matcher. All zero only if no token fits what must follow, or after
 * a fault. */
const uint32_t *matcher_mask(struct matcher *m);

/* Tokens after each of which the mask stays the same, in the same form; NULL: unknown. With it
 * several tokens can be sampled under one mask. Lives as long as the texts. */
const uint32_t *matcher_keeps(struct matcher *m);

/* Advances by this token. False: it is not allowed, and nothing has changed. Every token of the
 * mask is allowed; of those that are not in it a few are too (masks.h). */
bool matcher_accept(struct matcher *m, int32_t token);

/* SLUICE_OK, or why matching had to stop: SLUICE_ERR_UNSUPPORTED: the grammar is so ambiguous that
 * matching would take too long (one line names the limit); or SLUICE_ERR_MEMORY. After it masks are
 * zero and no token is accepted. Until then a mask or a token costs some 50 ms at most, and all of
 * the budget 200 ms and 2 ms per token on average. */
int matcher_fault(const struct matcher *m, struct err *err);
/* What the last mask or token cost, in steps of settling (threads.h). For tests. */
uint64_t matcher_steps(const struct matcher *m);

bool matcher_may_end(const struct matcher *m);  /* the text so far is complete */
bool matcher_must_end(const struct matcher *m); /* nothing but the end may follow */

#endif
