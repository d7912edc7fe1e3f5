/* trie_walk.h - walks the trie of a vocabulary (texts.h) with the automaton.
 *
 * A walk begins with a state at some nodes of the trie. It finds the tokens below them whose texts
 * the state reads, and the *exits*: nodes at which the state's rule has ended while texts go on, so
 * that whatever follows the rule decides about them. Texts of plain characters are not walked one
 * by one where the state reads all of them.
 *
 * (1) A walk visits a node once, so it finds no token and no exit twice. Where it begins at a node
 *     below another one, that node has the threads of both.
 * (2) After a walk that was cut short (dfa_is_cut) what was found is incomplete. */
#ifndef GRAMMAR_TRIE_WALK_H
#define GRAMMAR_TRIE_WALK_H

#include "grammar/dfa.h"
#include "grammar/texts.h"

struct trie_walk {
    struct dfa *dfa;
    const struct token_texts *texts;
    uint32_t *path;  /* (max_depth + 1) scratch: the state at each depth above the node */
    int32_t *tokens; /* (n_found) what walks have found since trie_walk_clear */
    uint32_t *exits; /* (n_exits) nodes of the trie, ascending */
    uint32_t n_found, n_exits;
};

/* False when memory ran out; trie_walk_close in any case. Automaton and texts are borrowed. */
bool trie_walk_open(struct trie_walk *w, struct dfa *dfa, const struct token_texts *texts);
void trie_walk_close(struct trie_walk *w);

static inline void trie_walk_clear(struct trie_walk *w) {
    w->n_found = w->n_exits = 0;
}

struct trie_start {
    const uint32_t *nodes; /* (n) of the trie, ascending */
    uint32_t n;
    uint32_t state;   /* at each of them */
    bool skips_plain; /* texts of plain characters alone are not walked: they are known */
};
void trie_walk_run(struct trie_walk *w, const struct trie_start *start);

#endif
