/* guard.h - who may use the server: API keys, host names, origins; no ambiguous requests. */
#ifndef SERVE_HTTP_GUARD_H
#define SERVE_HTTP_GUARD_H

#include "serve/http/exchange.h"

/* Looks at the headers of a request; false: it is refused already. */
bool guard_admits(struct exchange *x);

/* The headers for pages of other origins, where they are allowed, and those against sniffing. */
void guard_add_headers(const struct exchange *x, struct MHD_Response *response);

#endif
