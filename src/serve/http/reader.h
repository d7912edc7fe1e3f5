/* reader.h - threads for what takes long with a single request.
 *
 * Reading megabytes of JSON, making tokens of them, writing as much and freeing it takes seconds.
 * libmicrohttpd's threads and the writer's have other clients' streams to send meanwhile, so these
 * do it. */
#ifndef SERVE_HTTP_READER_H
#define SERVE_HTTP_READER_H

#include <stdbool.h>

#include "base/err.h"

enum { READER_LONG = 1 << 16 }; /* bytes of a body: fewer take milliseconds, and no thread */

struct reader;
struct exchange;

int reader_open(struct reader **out, struct err *err);
/* Ends when all tasks are done. Takes NULL. */
void reader_stop(struct reader *r);
void reader_close(struct reader *r); /* stopped or not; nobody may use it then. Takes NULL. */

/* One of its threads calls `task` with the exchange, which it refers to meanwhile. False: the
 * reader is stopped, and the caller does it. Any thread; one task of an exchange at a time. */
bool reader_run(struct reader *r, struct exchange *x, void (*task)(struct exchange *x));

/* Whether what waits is to be refused. */
bool reader_is_stopped(struct reader *r);

#endif
