/* masks.h - masks of tokens by state, computed when first asked for and kept.
 *
 * What tokens the threads of a node allow is found part by part. The first part is the walk of the
 * trie with the threads alone: tokens that fit, and the *exits*, nodes of the trie at which the
 * threads' rule has ended with bytes left. The next part walks from these exits on with the edges
 * of the node, and so on until there are no exits. A part depends on the edges down to it and on
 * nothing else, so it is shared by all that begin alike: the inside of a string is walked once, not
 * once a property. Where several parts lead to one node, those with about as many exits are joined
 * first: so a mask has no more parts than a few for each edge, and what few exits add to many is
 * walked alone.
 *
 * Walks run on sets of threads that nothing follows, made into states of a deterministic automaton
 * as they occur, so that a node of the trie costs a lookup.
 *
 * Two things make the first walk of a state cheap. Bytes that no instruction tells apart are one
 * class, and what one of them leads to is known for all. And texts of plain characters (texts.h)
 * are not walked where every plain character leads from the state to one and the same state, as
 * inside of strings: the vocabulary knows the masks of those with at most n characters.
 *
 * Counts of loops are rounded where that cannot be seen: with 8 or more rounds left, a token may
 * have no more of them than the power of two that is left. Masks then lack a token that would just
 * fit, and never have one that does not. They may also lack plain texts of more than 32 characters.
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
size_t masks_bytes(const struct masks *m); /* about; waits for nobody */

/* Adds the tokens that these threads allow to `mask`. They are sorted (thread_set_finish); `nodes`
 * has their nodes. *steps: what it may cost, and what it did. After a fault some are missing. */
enum fault masks_add(struct masks *m, const struct thread *threads, uint32_t n,
                     const struct nodes *nodes, uint32_t *mask, uint64_t *steps);

/* Whether these threads are where they were after any text of plain characters (texts.h), as inside
 * of a string: false also where that is not known. */
bool masks_are_steady(struct masks *m, const struct thread *threads, uint32_t n, uint64_t steps);

#endif
