/* store.h - bytes kept in memory under a name, up to a limit, then the least recently used go. Any
 * thread. */
#ifndef SERVE_STORE_H
#define SERVE_STORE_H

#include "base/hash.h"

struct store;

/* Keeps at most this many bytes. NULL when memory ran out. */
struct store *store_open(size_t max_bytes);
void store_close(struct store *s); /* takes NULL */

/* Keeps a copy, in place of what it has under that name; does nothing when memory ran out or n is
 * over the limit. */
void store_put(struct store *s, struct hash128 name, const void *bytes, size_t n);
/* A copy to free, or NULL: it is not there, or memory ran out. */
void *store_get(struct store *s, struct hash128 name, size_t *n);
bool store_drop(struct store *s, struct hash128 name); /* false: it is not there */

#endif
