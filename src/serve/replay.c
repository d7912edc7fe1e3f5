/* replay.c - answers as they were sampled, to be found again in the next turn. */
#include "serve/replay.h"

#include <stdlib.h>
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

struct hash128 replay_start(const json_t *tools) {
    struct hash h;
    hash_begin_secret(&h);
    hash_json(&h, tools);
    return hash128_end(&h);
}

/* A template may render names; an answer has none of its own. */
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
    hash_begin_secret(&h);
    hash_add(&h, &before, sizeof before);
    hash_json(&h, json_object_get(message, "role"));
    hash_json(&h, json_object_get(message, "content"));
    hash_names(&h, message);
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        hash_json(&h, json_object_get(call, "function")); /* ids do not count */
    }
    return hash128_end(&h);
}

/* The tokens, then the variables as text, then the number of tokens. */
void replay_put(struct store *s, struct hash128 name, const struct replayed *r) {
    char *text = r->variables ? json_dumps(r->variables, JSON_COMPACT) : NULL;
    size_t n_text = text ? strlen(text) : 0, n_bytes = r->n * sizeof *r->tokens;
    char *all = malloc(n_bytes + n_text + sizeof r->n);
    if (all && r->n > 0 && (text || !r->variables)) {
        memcpy(all, r->tokens, n_bytes);
        if (n_text > 0)
            memcpy(all + n_bytes, text, n_text);
        memcpy(all + n_bytes + n_text, &r->n, sizeof r->n);
        store_put(s, name, all, n_bytes + n_text + sizeof r->n);
    }
    free(all);
    free(text);
}

bool replay_get(struct store *s, struct hash128 name, struct replayed *out) {
    size_t n_all = 0;
    *out = (struct replayed){0};
    char *all = store_get(s, name, &n_all);
    if (!all)
        return false;
    memcpy(&out->n, all + n_all - sizeof out->n, sizeof out->n);
    size_t n_bytes = out->n * sizeof *out->tokens, n_text = n_all - n_bytes - sizeof out->n;
    out->tokens = (int32_t *)(void *)all;
    if (n_text > 0 && !(out->variables = json_loadb(all + n_bytes, n_text, 0, NULL)))
        replayed_free(out); /* memory ran out */
    return out->tokens != NULL;
}

void replayed_free(struct replayed *r) {
    free(r->tokens);
    json_decref(r->variables);
    *r = (struct replayed){0};
}
