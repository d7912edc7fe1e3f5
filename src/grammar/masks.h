/* masks.h - masks of tokens by the threads of a matcher, computed on first use and cached.
 *
 *   masks.c        from the top of the matcher's stack down: which parts a mask consists of
 *   mask_parts.h   parts of masks, each computed once and shared by all stacks that begin alike
 *   trie_walk.h    a part is a walk of the vocabulary's trie with an automaton
 *   dfa.h          the automaton: states are sets of threads, built lazily
 *   dfa_plain.c    states that read any plain text, so that these texts need no walk
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
