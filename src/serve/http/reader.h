/* reader.h - threads that read long requests.
 *
 * Reading megabytes of JSON and making tokens of them takes seconds. libmicrohttpd's threads have
 * other clients' streams to send meanwhile, so these do it. */
#ifndef SERVE_HTTP_READER_H
#define SERVE_HTTP_READER_H

#include "base/err.h"

enum { READER_LONG = 1 << 16 }; /* bytes of a body: fewer take milliseconds, and no thread */

struct reader;
struct exchange;

int reader_open(struct reader **out, struct err *err);
/* What waits is refused from here on. Takes NULL. */
void reader_stop(struct reader *r);
void reader_close(struct reader *r); /* stopped or not; nobody may use it then. Takes NULL. */

/* The exchange's route will handle it; its connection is suspended until then. Any thread. */
void reader_add(struct reader *r, struct exchange *x);

#endif
