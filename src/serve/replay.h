/* replay.h - answers as they were sampled, to be found again in the next turn.
 *
 * A client sends its whole conversation with every turn, and a template may render an answer in
 * other tokens than were sampled (thinking left out, calls rewritten): then nothing after that
 * place would be found in the engine's cache. So the tokens of a conversation up to the end of each
 * answer are kept in a store, found by the hash of its messages.
 *
 * Any thread: the store has a lock. */
#ifndef SERVE_REPLAY_H
#define SERVE_REPLAY_H

#include <jansson.h>

#include "serve/store.h"

/* A conversation's name: of an empty one with these tools (may be NULL), and of `before` with one
 * more message. A message's role, content and tool calls count, and its name unless it is an
 * answer. */
struct hash128 replay_start(const json_t *tools);
struct hash128 replay_add(struct hash128 before, const json_t *message);

/* Tokens, and the variables of the template that they were made with, an object or NULL. The caller
 * checks whether other variables give the same tokens: thinking, for one, may be switched on and
 * off between turns without changing earlier ones. */
struct replayed {
    int32_t *tokens; /* NULL: there are none */
    size_t n;
    json_t *variables;
};
/* Keeps a copy; may drop older ones, or this one. */
void replay_put(struct store *s, struct hash128 name, const struct replayed *r);
bool replay_get(struct store *s, struct hash128 name, struct replayed *out);
void replayed_free(struct replayed *r);

#endif
