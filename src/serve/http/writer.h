/* writer.h - the thread that turns tokens into the text of responses.
 *
 * The worker only says which exchanges have news, so that the engine's next step does not wait for
 * JSON and sockets. */
#ifndef SERVE_HTTP_WRITER_H
#define SERVE_HTTP_WRITER_H

#include "base/err.h"

struct writer;
struct exchange;

int writer_open(struct writer **out, struct err *err);
void writer_close(
    struct writer *w); /* after the worker is closed; writes what is left. Takes NULL */

/* Queues an exchange_write for it; several calls before that count as one. Any thread. */
void writer_add(struct writer *w, struct exchange *x);

#endif
