/* replay.c - answers as they were sampled, to be found again in the next turn. */
#include "serve/replay.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 12, OVERHEAD = 64 };

struct entry {
    struct hash128 name;
    struct entry *next;          /* of its bucket */
    struct entry *newer, *older; /* by use */
    size_t n;
    int32_t tokens[];
};

struct replay {
    pthread_mutex_t lock;
    struct entry *buckets[BUCKETS];
    struct entry *newest, *oldest;
    size_t bytes, most_bytes;
};

struct replay *replay_open(size_t most_bytes) {
    struct replay *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->most_bytes = most_bytes;
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

void replay_close(struct replay *r) {
    if (!r)
        return;
    for (struct entry *e = r->newest, *older; e; e = older) {
        older = e->older;
        free(e);
    }
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* ---- names ------------------------------------------------------------------------------------
 */

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

struct hash128 replay_add(struct hash128 before, const json_t *message) {
    struct hash h;
    json_t *call;
    size_t i;
    hash_begin(&h);
    hash_add(&h, &before, sizeof before);
    hash_json(&h, json_object_get(message, "role"));
    hash_json(&h, json_object_get(message, "content"));
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        hash_json(&h, json_object_get(call, "function")); /* ids are not what was said */
    }
    return hash128_end(&h);
}

/* ---- the table --------------------------------------------------------------------------------
 */

static struct entry **find(struct replay *r, struct hash128 name) {
    struct entry **e = &r->buckets[name.low % BUCKETS];
    while (*e && !hash128_equal((*e)->name, name))
        e = &(*e)->next;
    return e;
}

static void link_newest(struct replay *r, struct entry *e) {
    e->newer = NULL;
    e->older = r->newest;
    *(r->newest ? &r->newest->newer : &r->oldest) = e;
    r->newest = e;
}

static void unlink_use(struct replay *r, struct entry *e) {
    *(e->newer ? &e->newer->older : &r->newest) = e->older;
    *(e->older ? &e->older->newer : &r->oldest) = e->newer;
}

static size_t size_of(const struct entry *e) {
    return OVERHEAD + e->n * sizeof *e->tokens;
}

static void drop(struct replay *r, struct entry **at) {
    struct entry *e = *at;
    *at = e->next;
    unlink_use(r, e);
    r->bytes -= size_of(e);
    free(e);
}

void replay_put(struct replay *r, struct hash128 name, const int32_t *tokens, size_t n) {
    struct entry *e = malloc(sizeof *e + n * sizeof *tokens);
    if (!e)
        return; /* the next turn is read again, that is all */
    e->name = name;
    e->n = n;
    memcpy(e->tokens, tokens, n * sizeof *tokens);
    pthread_mutex_lock(&r->lock);
    struct entry **at = find(r, name);
    if (*at)
        drop(r, at);
    at = find(r, name);
    e->next = NULL;
    *at = e;
    link_newest(r, e);
    r->bytes += size_of(e);
    while (r->bytes > r->most_bytes)
        drop(r, find(r, r->oldest->name));
    pthread_mutex_unlock(&r->lock);
}

int32_t *replay_get(struct replay *r, struct hash128 name, size_t *n) {
    int32_t *copy = NULL;
    pthread_mutex_lock(&r->lock);
    struct entry *e = *find(r, name);
    if (e && (copy = malloc(e->n * sizeof *copy))) {
        memcpy(copy, e->tokens, e->n * sizeof *copy);
        *n = e->n;
        unlink_use(r, e);
        link_newest(r, e);
    }
    pthread_mutex_unlock(&r->lock);
    return copy;
}
