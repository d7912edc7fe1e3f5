/* writer.h - the thread that turns tokens into the text of responses.
 *
 * The worker only says which exchanges have news, so that the engine's next step does not wait for
 * JSON and sockets. */
#ifndef SERVE_HTTP_WRITER_H
#define SERVE_HTTP_WRITER_H

#include "base/err.h"

struct writer;
struct exchange;

/* Streams to which nothing was sent for so many seconds get a ping; 0: none do. */
int writer_open(struct writer **out, double ping_seconds, struct err *err);
void writer_close(
    struct writer *w); /* after the worker is closed; writes what is left. Takes NULL */

/* Queues an exchange_write for it; several calls before that count as one. Any thread. */
void writer_add(struct writer *w, struct exchange *x);

/* From now on the stream gets pings, until it leaves. In exchange_write alone. */
void writer_watch(struct writer *w, struct exchange *x);
void writer_leave(struct exchange *x); /* also where it is not watched */

#endif
