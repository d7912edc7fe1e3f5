/* replay.c - answers as they were sampled, to be found again in the next turn. */
#include "serve/replay.h"

#include <string.h>

static int hash_piece(const char *at, size_t n, void *user) {
    hash_add(user, at, n);
    return 0;
}

static void hash_json(struct hash *h, const json_t *value) {
    if (value)
        json_dump_callback(value, hash_piece, h, JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY);
    hash_add(h, "", 1);
}

struct hash128 replay_start(const json_t *tools, const json_t *variables) {
    struct hash h;
    hash_begin(&h);
    hash_json(&h, tools);
    hash_json(&h, variables);
    return hash128_end(&h);
}

/* A template may write these; an answer's are not what was said. */
static void hash_names(struct hash *h, const json_t *message) {
    static const char *const names[] = {"name", "tool_name", "tool_call_id"};
    const char *role = json_string_value(json_object_get(message, "role"));
    if (role && strcmp(role, "assistant") == 0)
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        hash_json(h, json_object_get(message, names[i]));
}

struct hash128 replay_add(struct hash128 before, const json_t *message) {
    struct hash h;
    json_t *call;
    size_t i;
    hash_begin(&h);
    hash_add(&h, &before, sizeof before);
    hash_json(&h, json_object_get(message, "role"));
    hash_json(&h, json_object_get(message, "content"));
    hash_names(&h, message);
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        hash_json(&h, json_object_get(call, "function")); /* ids are not what was said */
    }
    return hash128_end(&h);
}

void replay_put(struct store *s, struct hash128 name, const int32_t *tokens, size_t n) {
    store_put(s, name, tokens, n * sizeof *tokens);
}

int32_t *replay_get(struct store *s, struct hash128 name, size_t *n) {
    size_t n_bytes = 0;
    int32_t *tokens = store_get(s, name, &n_bytes);
    *n = n_bytes / sizeof *tokens;
    return tokens;
}
