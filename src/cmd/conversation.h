/* conversation.h - the messages of a conversation, and its forks.
 *
 * A turn is a question (role user) and what follows it up to the next. Messages before the first
 * question (the system message) belong to no turn. */
#ifndef CMD_CONVERSATION_H
#define CMD_CONVERSATION_H

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"

enum { MAX_FORKS = 64 };

/* Begin with zeros and conversation_clear. */
struct conversation {
    json_t *messages; /* objects with "role" and "content", for the template */
    json_t *forks[MAX_FORKS];
    int n_forks;
};

/* Removes all messages but the system's. */
int conversation_clear(struct conversation *c, struct err *err);
void conversation_free(struct conversation *c);

size_t conversation_size(const struct conversation *c);

/* At the end. Bytes that are not UTF-8 become U+FFFD. */
int conversation_add(struct conversation *c, const char *role, struct str text, struct err *err);

/* The system message; NULL: there is none. */
const char *conversation_system(const struct conversation *c);
/* Replaces it, or removes it for an empty text. */
int conversation_set_system(struct conversation *c, struct str text, struct err *err);

/* Removes the last turn, or all of it but the question; false when there is none. */
bool conversation_undo(struct conversation *c);
bool conversation_undo_answer(struct conversation *c);
/* Removes the oldest turn; false when that is the last one, too. */
bool conversation_drop_oldest(struct conversation *c);

/* The messages as they are now, to be given to conversation_restore or json_decref; NULL when
 * memory ran out. */
json_t *conversation_snapshot(const struct conversation *c);
void conversation_restore(struct conversation *c, json_t *snapshot);

/* Keeps the messages as they are, for conversation_back. */
int conversation_fork(struct conversation *c, struct err *err);
bool conversation_back(struct conversation *c); /* false: there is no fork */

/* Saves the messages as a JSON file; and loads such a file, for conversation_restore: NULL and an
 * error if it has no messages. */
int conversation_save(const struct conversation *c, const char *path, struct err *err);
json_t *conversation_read(const char *path, struct err *err);
/* An error when the path has a file that conversation_save did not write. */
int conversation_check_replaced(const char *path, struct err *err);

#endif
