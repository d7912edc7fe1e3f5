/* trie_walk.c - depth first, along the trie's own order of nodes: the node after a subtree is known
 * (`skip`), so nothing is kept but the states on the path. */
#include "grammar/trie_walk.h"

#include <stdlib.h>
#include <string.h>

enum { VISITS_A_STEP = 2 }; /* nodes that cost as much as a step of settling (threads.h) */

bool trie_walk_open(struct trie_walk *w, struct dfa *dfa, const struct token_texts *texts) {
    *w = (struct trie_walk){.dfa = dfa, .texts = texts};
    w->path = calloc(texts->max_depth + 1ul, sizeof *w->path);
    w->tokens = calloc((size_t)texts->n_tokens + 1, sizeof *w->tokens);
    w->exits = calloc(texts->n_nodes + 1ul, sizeof *w->exits);
    return w->path && w->tokens && w->exits;
}

void trie_walk_close(struct trie_walk *w) {
    free(w->path);
    free(w->tokens);
    free(w->exits);
}

/* Where a walk begins, and which of these nodes is the next. */
struct starts {
    struct trie_start all;
    uint32_t next;
};

/* Those from `first` up to `end` in the trie's order. */
static void add_tokens(struct trie_walk *w, uint32_t first, uint32_t end) {
    memcpy(w->tokens + w->n_found, w->texts->sorted + first, (end - first) * sizeof *w->tokens);
    w->n_found += end - first;
}

/* Moves to a start from above it; no state has reached the depths between. */
static uint32_t descend(struct trie_walk *w, uint32_t depth, uint32_t to) {
    for (; depth < w->texts->nodes[to].depth; depth++)
        w->path[depth] = DFA_DEAD;
    return to;
}

/* After a node below which the state finds nothing: the next start there, or the node after its
 * subtree. */
static uint32_t skip_node(struct trie_walk *w, const struct starts *s, uint32_t i) {
    const struct text_node *node = &w->texts->nodes[i];
    bool is_below = s->next < s->all.n && s->all.nodes[s->next] < node->skip;
    return is_below ? descend(w, node->depth, s->all.nodes[s->next]) : node->skip;
}

/* Whether the state reads every text below the node. */
static bool reads_all_below(struct trie_walk *w, uint32_t transition,
                            const struct text_node *node) {
    return !(transition & DFA_ENDS) && node->plain != TEXT_NOT_PLAIN &&
           dfa_reads_plain(w->dfa, transition, node->plain);
}

/* Visits a node; returns the next. */
static uint32_t visit(struct trie_walk *w, struct starts *s, uint32_t i) {
    const struct text_node *nodes = w->texts->nodes, *node = &nodes[i];
    bool is_start = s->next < s->all.n && s->all.nodes[s->next] == i;
    s->next += is_start;
    if (s->all.skips_plain && !node->has_other)
        return node->skip;
    uint32_t at = node->depth ? dfa_next(w->dfa, w->path[node->depth - 1], node->byte) : DFA_DEAD;
    if (at != DFA_DEAD)
        add_tokens(w, node->first_token, nodes[i + 1].first_token);
    if (is_start)
        at = dfa_unite(w->dfa, at, s->all.state);
    if (at == DFA_DEAD)
        return skip_node(w, s, i);
    if (reads_all_below(w, at, node)) {
        add_tokens(w, nodes[i + 1].first_token, nodes[node->skip].first_token);
        return node->skip;
    }
    if (at & DFA_ENDS && node->skip > i + 1)
        w->exits[w->n_exits++] = i;
    if (at & DFA_ONLY_ENDS)
        return skip_node(w, s, i);
    w->path[node->depth] = at & DFA_STATE;
    return i + 1;
}

void trie_walk_run(struct trie_walk *w, const struct trie_start *start) {
    struct starts s = {.all = *start};
    uint32_t i = 0, end = 0, visits = 0; /* end: of the subtree that is walked */
    for (;; visits++) {
        while (s.next < s.all.n && s.all.nodes[s.next] < i)
            s.next++; /* it was in a subtree that was skipped */
        if (i >= end) {
            if (s.next == s.all.n)
                break;
            i = descend(w, 0, s.all.nodes[s.next]);
            end = w->texts->nodes[i].skip;
        }
        i = visit(w, &s, i);
        if (dfa_is_cut(w->dfa))
            break;
    }
    nodes_work(&w->dfa->nodes, visits / VISITS_A_STEP);
}
