/* mask_parts.h - masks in parts, each computed once.
 *
 * The first part of a mask is what a state alone allows: the tokens that a walk of the trie
 * (trie_walk.h) finds, and its exits. The next part walks on from these exits with what an edge of
 * the stack continues with, and so on until a part has no exits. A part depends on the state and
 * on the edges down to it, not on what is below them, so all stacks that begin alike share it: the
 * inside of a string is walked once, not once per property.
 *
 * Edges are a node of the automaton's own (mask_parts_edges), which leads to NODE_BASE.
 *
 * (1) Parts are only added, until mask_parts_reset drops all; dfa_reset goes with it.
 * (2) Numbers of parts are 1 and up; 0: there was no room, or a fault (dfa_is_cut). */
#ifndef GRAMMAR_MASK_PARTS_H
#define GRAMMAR_MASK_PARTS_H

#include "grammar/trie_walk.h"

struct mask_part {
    uint32_t *bits;  /* (n_words) the tokens as a mask; NULL: they are few */
    int32_t *tokens; /* (n_tokens) then */
    uint32_t *exits; /* (n_exits) nodes of the trie, ascending */
    uint32_t n_tokens, n_exits;
    uint8_t n_plain;      /* it also has all texts of up to this many plain characters */
    bool has_char_exits;  /* every plain character is an exit: the trie's char_nodes are, too */
    uint32_t from, edges; /* it continues from this part's exits with these edges; 0: from none */
    uint32_t same;        /* of a join: the part that has all exits of both; 0: neither has */
    uint32_t last_mask;   /* the last that it was added to (masks.c) */
};

struct mask_parts {
    struct dfa *dfa;
    const struct token_texts *texts;
    struct trie_walk walk;
    struct arena arena;      /* of what parts have */
    struct mask_part *parts; /* (capacity) */
    uint32_t n, capacity;
    uint32_t *slots;      /* (2 * capacity) a hash table by `from` and `edges`, 0: free */
    uint32_t *starts;     /* (n_nodes of the trie) scratch: exits of two kinds, merged */
    struct edge *rounded; /* (rounded_capacity) scratch: edges of a node */
    size_t rounded_capacity;
};

/* False when memory ran out; mask_parts_close in any case. Automaton and texts are borrowed. */
bool mask_parts_open(struct mask_parts *parts, struct dfa *dfa, const struct token_texts *texts);
void mask_parts_close(struct mask_parts *parts);
void mask_parts_reset(struct mask_parts *parts);
bool mask_parts_are_large(
    const struct mask_parts *parts); /* they should be reset before more are added */
size_t mask_parts_bytes(const struct mask_parts *parts);

/* What a state allows. */
uint32_t mask_parts_first(struct mask_parts *parts, uint32_t state);
/* What the edges allow after a part. */
uint32_t mask_parts_next(struct mask_parts *parts, uint32_t part, uint32_t edges);
/* A part with the exits of both and no tokens, or one of the two if it has all exits. */
uint32_t mask_parts_join(struct mask_parts *parts, uint32_t a, uint32_t b);

/* Edges of a stack that lead to the same node, as a node of the automaton's; 0: a fault. */
uint32_t mask_parts_edges(struct mask_parts *parts, const struct edge *edges, uint32_t n);

uint32_t mask_parts_count_exits(const struct mask_parts *parts, uint32_t part);
void mask_parts_add_tokens(const struct mask_parts *parts, uint32_t part, uint32_t *mask);

#endif
