/* routes.c - the table of paths: routes.def. */
#include "serve/http/routes.h"

#include <string.h>

static const struct route routes[] = {
#define ROUTE(method, path, function, api, is_open) {method, path, function, api, is_open},
#include "serve/http/routes.def"
#undef ROUTE
};

const struct route *route_find(const char *method, const char *path, const char **allowed) {
    *allowed = NULL;
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(path, routes[i].path) != 0)
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
