/* replay.h - answers as they were sampled, to be found again in the next turn.
 *
 * A client sends its whole conversation with every turn, and a template may render an answer in
 * other tokens than were sampled (thinking left out, calls written anew): then nothing after that
 * place would be known to the engine's cache. So the tokens of a conversation up to the end of each
 * answer are kept in a store, found by the hash of its messages. */
#ifndef SERVE_REPLAY_H
#define SERVE_REPLAY_H

#include <jansson.h>

#include "serve/store.h"

/* A conversation's name: that of nothing with these tools and variables (each may be NULL), and of
 * `before` with one message more. Of a message role, content and tool calls count, and the names in
 * all but answers. */
struct hash128 replay_start(const json_t *tools, const json_t *variables);
struct hash128 replay_add(struct hash128 before, const json_t *message);

/* As store_put and store_get, of tokens. */
void replay_put(struct store *s, struct hash128 name, const int32_t *tokens, size_t n);
int32_t *replay_get(struct store *s, struct hash128 name, size_t *n);

#endif
