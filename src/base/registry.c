/* registry.c - file names that a signal handler may read. */
#include "base/registry.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRY_FREE, ENTRY_LIVE, ENTRY_TAKEN };

/* Held only to add and remove; handlers do not take it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* At least the usual path length, so that entries can be reused. */
static struct registry_entry *new_entry(struct registry *r, size_t path_bytes) {
    size_t capacity = path_bytes < 256 ? 256 : path_bytes;
    struct registry_entry *e = calloc(1, sizeof *e + capacity);
    if (!e)
        return NULL;
    e->capacity = capacity;
    e->next = atomic_load(&r->first);
    atomic_store(&r->first, e);
    return e;
}

struct registry_entry *registry_add(struct registry *r, const char *path, size_t size) {
    size_t path_bytes = strlen(path) + 1;
    pthread_mutex_lock(&lock);
    struct registry_entry *e = r->first_free;
    if (e && e->capacity >= path_bytes)
        r->first_free = e->next_free;
    else
        e = new_entry(r, path_bytes);
    pthread_mutex_unlock(&lock);
    if (!e)
        return NULL;
    memcpy(e->path, path, path_bytes);
    e->size = size;
    for (int i = 0; i < REGISTRY_RANGES; i++)
        atomic_store(&e->ranges[i], NULL);
    atomic_store(&e->state, ENTRY_LIVE);
    return e;
}

void registry_remove(struct registry *r, struct registry_entry *e) {
    int live = ENTRY_LIVE;
    if (!e || !atomic_compare_exchange_strong(&e->state, &live, ENTRY_FREE))
        return;
    pthread_mutex_lock(&lock);
    e->next_free = r->first_free;
    r->first_free = e;
    pthread_mutex_unlock(&lock);
}

const char *registry_find(const struct registry *r, const void *address) {
    for (const struct registry_entry *e = atomic_load(&r->first); e; e = e->next)
        for (int i = 0; atomic_load(&e->state) == ENTRY_LIVE && i < REGISTRY_RANGES; i++) {
            const uint8_t *at = atomic_load(&e->ranges[i]);
            if (at && (uintptr_t)address - (uintptr_t)at < e->size)
                return e->path;
        }
    return NULL;
}

void registry_take_all(struct registry *r, void (*each)(const char *path)) {
    for (struct registry_entry *e = atomic_load(&r->first); e; e = e->next) {
        int live = ENTRY_LIVE;
        if (atomic_compare_exchange_strong(&e->state, &live, ENTRY_TAKEN))
            each(e->path);
    }
}
