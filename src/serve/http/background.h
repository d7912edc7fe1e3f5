/* background.h - threads for what takes long with a single request.
 *
 * Reading megabytes of JSON, making tokens of them, writing as much and freeing it takes seconds, a
 * schema with thousands of combinations half of one. libmicrohttpd's threads and the writer's have
 * other clients' streams to send meanwhile, so these do it. Short exchanges (not is_long) need not
 * wait for long ones. */
#ifndef SERVE_HTTP_BACKGROUND_H
#define SERVE_HTTP_BACKGROUND_H

#include <stdbool.h>

#include "base/err.h"

enum { BACKGROUND_BYTES = 1 << 16 }; /* bytes of a body: fewer take milliseconds, and no thread */

struct background;
struct exchange;

int background_open(struct background **out, struct err *err);
/* Ends when all tasks are done. Takes NULL. */
void background_stop(struct background *b);
void background_close(
    struct background *b); /* stopped or not; nobody may use it then. Takes NULL. */

/* One of its threads calls `task` with the exchange, which it refers to meanwhile. False: the
 * threads are stopped, and the caller does it. Any thread; one task of an exchange at a time. */
bool background_run(struct background *b, struct exchange *x, void (*task)(struct exchange *x));

/* Whether what waits is to be refused. */
bool background_is_stopped(struct background *b);

#endif
