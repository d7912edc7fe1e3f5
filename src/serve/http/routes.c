/* routes.c - the table of paths: routes.def. */
#include "serve/http/routes.h"

#include <stdio.h>
#include <string.h>

static const struct route routes[] = {
#define ROUTE(method, path, function, api, is_open) {method, path, function, api, is_open},
#include "serve/http/routes.def"
#undef ROUTE
};

/* A * in a route's path matches an id, a > at its end any rest, which is ignored. Nothing else in a
 * path names anything the server keeps. */
static bool matches(const char *route, const char *path, char id[SNAPSHOT_MAX_ID + 1]) {
    size_t n = strcspn(route, "*>");
    *id = 0;
    if (route[n] == 0)
        return strcmp(route, path) == 0;
    if (strncmp(route, path, n) != 0)
        return false;
    if (route[n] == '>')
        return path[n] != 0;
    size_t length = strcspn(path + n, "/");
    if (length > SNAPSHOT_MAX_ID)
        return false;
    memcpy(id, path + n, length);
    id[length] = 0;
    return snapshot_id_is_good(id) && strcmp(route + n + 1, path + n + length) == 0;
}

const struct route *route_find(const char *method, const char *path, char allowed[ROUTE_ALLOWED],
                               char id[SNAPSHOT_MAX_ID + 1]) {
    *allowed = 0;
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!matches(routes[i].path, path, id))
            continue;
        if (strcmp(method, routes[i].method) == 0)
            return &routes[i];
        snprintf(allowed + strlen(allowed), ROUTE_ALLOWED - strlen(allowed), "%s%s%s",
                 *allowed ? ", " : "", routes[i].method,
                 strcmp(routes[i].method, "GET") == 0 ? ", HEAD" : "");
    }
    return NULL;
}

const char *route_hint(const char *path) {
    static const char no_store[] = "the model is the one that the server was started with";
    static const char no_ranking[] = "models are not used for reranking here";
    static const char *const hints[][2] = {
        {"/slots", "use /metrics"},
        {"/embedding", "use /v1/embeddings"},
        {"/v1/complete", "use /v1/messages"},
        {"/rerank", no_ranking},
        {"/reranking", no_ranking},
        {"/v1/rerank", no_ranking},
        {"/v1/reranking", no_ranking},
        {"/v1", "use /v1/models, /v1/chat/completions ..."},
        {"/v1/", "use /v1/models, /v1/chat/completions ..."},
        {"/api/pull", no_store},
        {"/api/push", no_store},
        {"/api/create", no_store},
        {"/api/copy", no_store},
        {"/api/delete", no_store},
    };
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (strcmp(path, hints[i][0]) == 0)
            return hints[i][1];
    return NULL;
}

static bool is_known(const char *path) {
    char id[SNAPSHOT_MAX_ID + 1];
    bool is = false;
    for (size_t i = 0; !is && i < sizeof routes / sizeof *routes; i++)
        is = matches(routes[i].path, path, id);
    return is;
}

struct str route_meant(const char *path) {
    enum { MAX_PATH = 128 };
    size_t n = strlen(path);
    char own[MAX_PATH];
    while (n > 0 && path[n - 1] == '/')
        n--;
    if (n == 0 || n >= sizeof own)
        return STR("");
    memcpy(own, path, n);
    own[n] = 0;
    for (const char *at = own; at; at = strchr(at + 1, '/'))
        if (is_known(at))
            return (struct str){path + (at - own), n - (size_t)(at - own)};
    return STR("");
}

enum api api_of_path(const char *path) {
    return strncmp(path, "/v1/messages", 12) == 0 ? API_ANTHROPIC
           : strncmp(path, "/api/", 5) == 0       ? API_OLLAMA
                                                  : API_OPENAI;
}
