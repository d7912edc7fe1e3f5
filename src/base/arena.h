/* arena.h - memory with one lifetime.
 *
 * Blocks come from an arena and are freed together with it. A limit keeps a hostile file from
 * taking more memory than its reader allows.
 *
 * An arena is used by one thread at a time. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

struct arena {
    struct arena_chunk *chunks; /* newest first */
    size_t used;                /* bytes handed out */
    size_t limit;               /* maximum bytes to hand out; 0: no limit */
};

/* Zeroed memory aligned to 16, or NULL when memory or the limit ran out. size 0 is fine. */
void *arena_alloc(struct arena *arena, size_t size);

/* The same for count elements, the product checked. */
void *arena_array(struct arena *arena, uint64_t count, uint64_t size);

/* A copy of a slice with a zero byte after it, or NULL. */
char *arena_strdup(struct arena *arena, struct str s);

/* Frees everything. The arena may be used again. */
void arena_free(struct arena *arena);

#endif
