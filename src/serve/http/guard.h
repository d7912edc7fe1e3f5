/* guard.h - who may use the server: API keys, host names, origins; no ambiguous requests. */
#ifndef SERVE_HTTP_GUARD_H
#define SERVE_HTTP_GUARD_H

#include <sys/socket.h>

#include "serve/http/exchange.h"

/* Whether an address is one of this machine alone; also an IPv4 address in the form of IPv6. */
bool guard_is_loopback(const struct sockaddr *address);

/* Checks the headers of a request; false: already refused. */
bool guard_admits(struct exchange *x);

/* Adds the CORS headers, where allowed, and those against content sniffing. */
void guard_add_headers(const struct exchange *x, struct MHD_Response *response);

#endif
