/* texts.h - the texts of a vocabulary as a trie, laid out in the order in which it is walked. */
#ifndef GRAMMAR_TEXTS_H
#define GRAMMAR_TEXTS_H

#include "base/arena.h"
#include "base/str.h"
#include "grammar/grammar.h"

/* Node 0 is the root. Nodes stand in depth-first order, so the next node is the first child, if it
 * has one, and `skip` is the node after all below it. */
struct text_node {
    uint32_t skip;
    uint32_t first_token; /* in `sorted`; up to the next node's: the tokens that end here */
    uint16_t depth;
    uint8_t byte;
    uint8_t zero;
};

struct token_texts {
    struct arena arena;
    uint64_t id; /* of all texts of this process, so that caches know them apart */
    int32_t n_tokens;
    uint32_t n_words;        /* of a mask */
    struct str *texts;       /* (n_tokens) empty: never part of an answer */
    struct text_node *nodes; /* (n_nodes + 1) */
    uint32_t n_nodes, max_depth;
    int32_t *sorted; /* tokens by their texts */
    int32_t *ends;   /* tokens that end an answer */
    uint32_t n_ends;
};

/* Of n texts, which are copied; ends as in the struct. */
int token_texts_make(struct token_texts **out, const struct str *texts, int32_t n,
                     const int32_t *ends, uint32_t n_ends, struct err *err);

#endif
