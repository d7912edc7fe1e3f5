/* arena.c - memory with one lifetime: a list of chunks, cut from the front. */
#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { CHUNK_BYTES = 64 << 10 };

struct arena_chunk {
    struct arena_chunk *next;
    size_t size, used;
    _Alignas(16) char bytes[];
};

static struct arena_chunk *add_chunk(struct arena *arena, size_t size) {
    /* Large blocks get a chunk of their own; calloc leaves its pages untouched until used. */
    size_t bytes = size > CHUNK_BYTES / 4 ? size : CHUNK_BYTES;
    uint64_t total;
    if (!size_add(bytes, sizeof(struct arena_chunk), &total) || total > SIZE_MAX)
        return NULL;
    struct arena_chunk *chunk = calloc(1, total);
    if (!chunk)
        return NULL;
    chunk->size = bytes;
    /* A full chunk goes after the one that still has room. */
    if (bytes == size && arena->chunks) {
        chunk->next = arena->chunks->next;
        arena->chunks->next = chunk;
    } else {
        chunk->next = arena->chunks;
        arena->chunks = chunk;
    }
    return chunk;
}

void *arena_alloc(struct arena *arena, size_t size) {
    uint64_t rounded, used;
    if (!size_align(size ? size : 1, 16, &rounded) || !size_add(arena->used, rounded, &used))
        return NULL;
    if (arena->limit && used > arena->limit)
        return NULL;
    struct arena_chunk *chunk = arena->chunks;
    if (!chunk || chunk->size - chunk->used < rounded)
        chunk = add_chunk(arena, rounded);
    if (!chunk)
        return NULL;
    void *p = chunk->bytes + chunk->used;
    chunk->used += rounded;
    arena->used = used;
    return p;
}

void *arena_array(struct arena *arena, uint64_t count, uint64_t size) {
    uint64_t bytes;
    if (!size_mul(count, size, &bytes) || bytes > SIZE_MAX / 2)
        return NULL;
    return arena_alloc(arena, bytes);
}

char *arena_strdup(struct arena *arena, struct str s) {
    uint64_t bytes;
    char *z = size_add(s.len, 1, &bytes) ? arena_alloc(arena, bytes) : NULL;
    if (z && s.len)
        memcpy(z, s.at, s.len);
    return z;
}

void arena_free(struct arena *arena) {
    while (arena->chunks) {
        struct arena_chunk *next = arena->chunks->next;
        free(arena->chunks);
        arena->chunks = next;
    }
    arena->used = 0;
}
