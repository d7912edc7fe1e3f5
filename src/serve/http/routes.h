/* routes.h - the table of paths: routes.def. */
#ifndef SERVE_HTTP_ROUTES_H
#define SERVE_HTTP_ROUTES_H

#include <jansson.h>
#include <stdbool.h>

#include "base/str.h"
#include "serve/snapshots.h"

struct exchange;

/* The API whose error format is used. */
enum api { API_OPENAI, API_ANTHROPIC, API_OLLAMA, API_COUNT };

/* Replies at once or starts answers; the body is complete. */
typedef void route_fn(struct exchange *x);

struct route {
    const char *method, *path;
    route_fn *handle;
    enum api api;
    bool is_open; /* needs no API key */
};

#define ROUTE(method, path, function, api, is_open) route_fn function;
#include "serve/http/routes.def"
#undef ROUTE

enum { ROUTE_ALLOWED = 32 };

/* The route of a method and path; NULL: none. Then `allowed` are the methods that the path takes,
 * "" when there is no such path. HEAD is GET. `id`: what matched the path's *, "" if it has none.
 */
const struct route *route_find(const char *method, const char *path, char allowed[ROUTE_ALLOWED],
                               char id[SNAPSHOT_MAX_ID + 1]);
/* What to use instead of a path that other servers have; NULL: nothing is known. */
const char *route_hint(const char *path);
/* The part of a path that would be right: without what stands before it (a base URL that ends with
 * /v1 where the client adds it) and slashes at its end. .len 0: there is none. */
struct str route_meant(const char *path);
/* The API that a path belongs to, even if there is no such route. */
enum api api_of_path(const char *path);

/* An error in the format of an API (errors.c). `param` is the wrong field; NULL: none. */
json_t *api_error(enum api api, int status, const char *message, const char *param);

#endif
