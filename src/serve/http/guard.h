/* guard.h - who may use the server: API keys, host names, origins. */
#ifndef SERVE_HTTP_GUARD_H
#define SERVE_HTTP_GUARD_H

#include "serve/http/exchange.h"

/* Looks at the headers of a request; false: it is refused already. */
bool guard_admits(struct exchange *x);

/* The headers for pages of other origins, where they are allowed, and those against sniffing. */
void guard_add_headers(const struct exchange *x, struct MHD_Response *response);

/* Whether the texts are equal, in a time that depends on the first one alone. */
bool guard_same_text(const char *given, const char *expected);
/* Whether "name:port" is a name of this machine alone. For tests too, as the next. */
bool guard_is_local_name(const char *host);
/* Whether an origin is that of the host it was sent to. */
bool guard_is_same_origin(const char *origin, const char *host);

#endif
