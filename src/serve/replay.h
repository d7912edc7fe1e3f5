/* replay.h - answers as they were sampled, to be found again in the next turn.
 *
 * A client sends its whole conversation with every turn, and a template may render an answer in
 * other tokens than were sampled (thinking left out, calls written anew): then nothing after that
 * place would be found in the engine's cache. So the tokens of a conversation up to the end of each
 * answer are kept in a store, found by the hash of its messages. */
#ifndef SERVE_REPLAY_H
#define SERVE_REPLAY_H

#include <jansson.h>

#include "serve/store.h"

/* A conversation's name: that of nothing with these tools (may be NULL), and of `before` with one
 * message more. Of a message role, content and tool calls count, and the names in all but answers.
 */
struct hash128 replay_start(const json_t *tools);
struct hash128 replay_add(struct hash128 before, const json_t *message);

/* Tokens, and the variables of the template that they were made with, an object or NULL. Whether
 * they are what other variables give is for the finder to see: thinking, for one, may be switched
 * on and off from turn to turn without a change to the turns before. */
struct replayed {
    int32_t *tokens; /* NULL: there are none */
    size_t n;
    json_t *variables;
};
/* Keeps a copy; may drop others, or it. */
void replay_put(struct store *s, struct hash128 name, const struct replayed *r);
bool replay_get(struct store *s, struct hash128 name, struct replayed *out);
void replayed_free(struct replayed *r);

#endif
