/* background.h - threads for slow work of a single request.
 *
 * Parsing megabytes of JSON, tokenizing them, writing as much and freeing it takes seconds; a
 * schema with thousands of combinations half a second. libmicrohttpd's threads and the writer's
 * must send other clients' streams meanwhile, so these threads do it. Short exchanges (not is_long)
 * need not wait for long ones. */
#ifndef SERVE_HTTP_BACKGROUND_H
#define SERVE_HTTP_BACKGROUND_H

#include <stdbool.h>

#include "base/err.h"

enum {
    BACKGROUND_BYTES = 1 << 16
}; /* bytes of a body; smaller ones take milliseconds and need no thread */

struct background;
struct exchange;

int background_open(struct background **out, struct err *err);
/* Ends when all tasks are done. Takes NULL. */
void background_stop(struct background *b);
void background_close(
    struct background *b); /* stopped or not; nobody may use it then. Takes NULL. */

/* One of its threads calls `task` with the exchange, and holds a reference meanwhile. False: the
 * threads are stopped, and the caller must do it. Any thread; one task of an exchange at a time. */
bool background_run(struct background *b, struct exchange *x, void (*task)(struct exchange *x));

/* Whether waiting requests should be refused. */
bool background_is_stopped(struct background *b);

#endif
