/* routes.c - the table of paths: routes.def. */
#include "serve/http/routes.h"

#include <string.h>

static const struct route routes[] = {
#define ROUTE(method, path, function, api, is_open) {method, path, function, api, is_open},
#include "serve/http/routes.def"
#undef ROUTE
};

/* A * at the end of a route's path stands for an id: letters, digits, _ and -. Nothing else of a
 * request names anything the server keeps. */
static bool matches(const char *route, const char *path, const char **id) {
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    size_t n = strcspn(route, "*");
    *id = NULL;
    if (route[n] == 0)
        return strcmp(route, path) == 0;
    if (strncmp(route, path, n) != 0)
        return false;
    size_t length = strlen(path + n);
    *id = path + n;
    return length >= 1 && length <= ROUTE_MAX_ID && strspn(path + n, alphabet) == length;
}

const struct route *route_find(const char *method, const char *path, const char **allowed,
                               const char **id) {
    *allowed = NULL;
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!matches(routes[i].path, path, id))
            continue;
        if (strcmp(method, routes[i].method) == 0)
            return &routes[i];
        *allowed = routes[i].method;
    }
    return NULL;
}

enum api api_of_path(const char *path) {
    return strncmp(path, "/v1/messages", 12) == 0 ? API_ANTHROPIC
           : strncmp(path, "/api/", 5) == 0       ? API_OLLAMA
                                                  : API_OPENAI;
}
