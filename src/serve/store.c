/* store.c - bytes kept in memory under a name, at most this many of them. */
#include "serve/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 12, OVERHEAD = 64 };

struct stored {
    struct hash128 name;
    struct stored *next;          /* of its bucket */
    struct stored *newer, *older; /* by use */
    size_t n;
    unsigned char bytes[];
};

struct store {
    pthread_mutex_t lock;
    struct stored *buckets[BUCKETS];
    struct stored *newest, *oldest;
    size_t bytes, max_bytes;
};

struct store *store_open(size_t max_bytes) {
    struct store *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->max_bytes = max_bytes;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

void store_close(struct store *s) {
    if (!s)
        return;
    for (struct stored *e = s->newest, *older; e; e = older) {
        older = e->older;
        free(e);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static struct stored **find(struct store *s, struct hash128 name) {
    struct stored **e = &s->buckets[name.low % BUCKETS];
    while (*e && !hash128_equal((*e)->name, name))
        e = &(*e)->next;
    return e;
}

static void link_newest(struct store *s, struct stored *e) {
    e->newer = NULL;
    e->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = e;
    s->newest = e;
}

static void unlink_use(struct store *s, struct stored *e) {
    *(e->newer ? &e->newer->older : &s->newest) = e->older;
    *(e->older ? &e->older->newer : &s->oldest) = e->newer;
}

static void drop(struct store *s, struct stored **at) {
    struct stored *e = *at;
    *at = e->next;
    unlink_use(s, e);
    s->bytes -= OVERHEAD + e->n;
    free(e);
}

void store_put(struct store *s, struct hash128 name, const void *bytes, size_t n) {
    struct stored *e = n < s->max_bytes ? malloc(sizeof *e + n) : NULL;
    if (!e)
        return;
    e->name = name;
    e->n = n;
    e->next = NULL;
    if (n)
        memcpy(e->bytes, bytes, n);
    pthread_mutex_lock(&s->lock);
    struct stored **at = find(s, name);
    if (*at)
        drop(s, at);
    *find(s, name) = e;
    link_newest(s, e);
    s->bytes += OVERHEAD + n;
    while (s->bytes > s->max_bytes)
        drop(s, find(s, s->oldest->name));
    pthread_mutex_unlock(&s->lock);
}

void *store_get(struct store *s, struct hash128 name, size_t *n) {
    void *copy = NULL;
    pthread_mutex_lock(&s->lock);
    struct stored *e = *find(s, name);
    if (e && (copy = malloc(e->n + 1))) {
        memcpy(copy, e->bytes, e->n);
        *n = e->n;
        unlink_use(s, e);
        link_newest(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return copy;
}

bool store_drop(struct store *s, struct hash128 name) {
    pthread_mutex_lock(&s->lock);
    struct stored **at = find(s, name);
    bool is_there = *at != NULL;
    if (is_there)
        drop(s, at);
    pthread_mutex_unlock(&s->lock);
    return is_there;
}
