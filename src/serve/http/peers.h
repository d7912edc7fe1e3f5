/* peers.h - the connections, and a thread that watches them.
 *
 * libmicrohttpd notices neither that the client of a suspended connection disconnected, nor that
 * one sends its request one byte per minute. This does: the exchange of a disconnected client is
 * abandoned, and a connection that does not send a whole request in time is closed: sooner when
 * nearly all of them are taken. */
#ifndef SERVE_HTTP_PEERS_H
#define SERVE_HTTP_PEERS_H

#include "base/err.h"

struct peers;
struct peer;
struct exchange;

/* At most `max` connections at once. */
int peers_open(struct peers **out, unsigned max, double idle_seconds, struct err *err);
void peers_close(struct peers *p); /* takes NULL */

/* A connection with this socket begins, or ends. NULL when memory ran out: it is not watched. */
struct peer *peer_open(struct peers *p, int fd);
void peer_close(struct peers *p, struct peer *peer); /* takes NULL */

/* The connection now works on this exchange; NULL: it waits for a request again. False: the client
 * is gone already. `peer` may be NULL. */
bool peer_works(struct peers *p, struct peer *peer, struct exchange *x);

#endif
