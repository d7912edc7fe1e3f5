/* texts.h - the texts of a vocabulary as a trie, laid out in the order in which it is walked.
 *
 * Read-only once made, and may be shared by threads. */
#ifndef GRAMMAR_TEXTS_H
#define GRAMMAR_TEXTS_H

#include "base/arena.h"
#include "base/str.h"
#include "grammar/grammar.h"

/* Node 0 is the root. Nodes are in depth-first order, so the next node is the first child, if it
 * has one, and `skip` is the node after its subtree. */
struct text_node {
    uint32_t skip;
    uint32_t first_token; /* in `sorted`; up to the next node's: the tokens that end here */
    uint16_t depth : 15;
    uint16_t has_other : 1; /* some text at or below it is not of plain characters alone */
    uint8_t byte;
    uint8_t plain; /* characters of the longest text below, all of them plain; or TEXT_NOT_PLAIN */
};

/* A plain character needs no escape in JSON and is in nearly every class of characters: U+0020 to
 * U+007E but quote and backslash, and all from U+0080 on, complete. */
enum {
    TEXT_NOT_PLAIN = 255,
    TEXT_MAX_CHARS = 254, /* characters of a plain text */
    TEXT_MAX_PLAIN = 32,  /* of those that have masks; longer ones are few, and in a list */
};

struct long_text {
    int32_t token;
    uint32_t n; /* plain characters */
};

/* For the first byte of a plain character: its number of bytes, and the range of the second; 0:
 * none begins so. Bytes after the second are 0x80 to 0xBF. */
uint32_t text_plain_begin(uint8_t byte, uint8_t *low, uint8_t *high);

struct token_texts {
    struct arena arena;
    uint64_t id; /* unique in this process, for caches */
    int32_t n_tokens;
    uint32_t n_words;        /* of a mask */
    struct str *texts;       /* (n_tokens) empty: never part of an answer */
    struct text_node *nodes; /* (n_nodes + 1) */
    uint32_t n_nodes, max_depth;
    int32_t *sorted; /* tokens by their texts */
    /* Texts of plain characters alone. */
    uint32_t *plain; /* (TEXT_MAX_PLAIN + 1, n_words) the mask of those with at most this many */
    struct long_text *longs;
    uint32_t n_longs;
    uint32_t *char_nodes; /* nodes of one plain character without has_other, with more below */
    uint32_t n_char_nodes;
    int32_t *ends; /* tokens that end an answer */
    uint32_t n_ends;
};

/* Adds the texts of at most n plain characters to a mask. */
void token_texts_add_plain(const struct token_texts *t, uint32_t n, uint32_t *mask);

/* From n texts, which are copied; ends as in the struct. */
int token_texts_make(struct token_texts **out, const struct str *texts, int32_t n,
                     const int32_t *ends, uint32_t n_ends, struct err *err);

#endif
