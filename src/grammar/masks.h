/* masks.h - masks of tokens by state, computed on first use and cached.
 *
 * What tokens the threads of a node allow is found part by part. The first part is the walk of the
 * trie with the threads alone: tokens that fit, and the *exits*, nodes of the trie at which the
 * threads' rule has ended with bytes left. The next part walks on from these exits with the edges
 * of the node, and so on until there are no exits. A part depends only on the edges down to it, so
 * all sets of threads that begin alike share it: the inside of a string is walked once, not once
 * per property. Where several parts lead to one node, those with about as many exits are joined
 * first: so a mask has only a few parts per edge, and a few new exits do not cause a walk of all.
 *
 * Walks use states of a deterministic automaton, made lazily from sets of threads without their
 * nodes, so that a node of the trie costs a lookup.
 *
 * Two things make the first walk of a state cheap. Bytes that no instruction distinguishes are one
 * class: one lookup serves all. And texts of plain characters (texts.h) are not walked where every
 * plain character leads from the state to one and the same state, as inside of strings: the
 * vocabulary knows the masks of those with at most n characters.
 *
 * Loop counts are rounded to share masks: with 8 or more rounds left, a token may use no more than
 * the largest power of two of them. Masks may then lack a token that would just fit, but never have
 * one that does not. They may also lack plain texts of more than 32 characters.
 *
 * (1) All memory is bounded: a cache that has grown too large is emptied before the next mask.
 * (2) A lock guards it all: grammars are shared by threads. */
#ifndef GRAMMAR_MASKS_H
#define GRAMMAR_MASKS_H

#include "grammar/program.h"
#include "grammar/texts.h"
#include "grammar/threads.h"

struct masks;

int masks_open(struct masks **out, const struct program *p, const struct token_texts *t,
               struct err *err);
void masks_close(struct masks *m);         /* takes NULL */
size_t masks_bytes(const struct masks *m); /* about; takes no lock */

/* Adds the tokens that these threads allow to `mask`. They are sorted (thread_set_finish); `nodes`
 * has their nodes. *steps: in, what it may cost; out, what it cost. After a fault some are missing.
 */
enum fault masks_add(struct masks *m, const struct thread *threads, uint32_t n,
                     const struct nodes *nodes, uint32_t *mask, uint64_t *steps);

/* Whether any text of plain characters (texts.h) leaves these threads as they are, as inside a
 * string; false if unknown. */
bool masks_are_steady(struct masks *m, const struct thread *threads, uint32_t n, uint64_t steps);

#endif
