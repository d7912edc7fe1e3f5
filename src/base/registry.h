/* registry.h - file names that a signal handler may read.
 *
 * Mapped files and temporary files are listed here, so that a handler can say which file a fault
 * belongs to and can unlink what is half-written.
 * (1) Entries are never freed, only used again: a handler walks the list without a lock.
 * (2) What an entry says changes only while it is not live. */
#ifndef BASE_REGISTRY_H
#define BASE_REGISTRY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { REGISTRY_RANGES = 2 };

struct registry_entry {
    struct registry_entry *next; /* set once */
    struct registry_entry *next_free;
    atomic_int state;
    size_t size;                                      /* bytes of each range */
    _Atomic(const uint8_t *) ranges[REGISTRY_RANGES]; /* where it is mapped, NULL: nowhere */
    size_t capacity;
    char path[];
};

struct registry {
    _Atomic(struct registry_entry *) first;
    struct registry_entry *first_free; /* under registry.c's lock */
};

/* A live entry for a file of `size` bytes, mapped nowhere yet; the path is copied. NULL when memory
 * ran out. */
struct registry_entry *registry_add(struct registry *r, const char *path, size_t size);

/* The entry may be used again, unless a handler has taken it. Takes NULL. */
void registry_remove(struct registry *r, struct registry_entry *entry);

/* For signal handlers: the path of the live entry with a range that holds the address, or NULL. */
const char *registry_find(const struct registry *r, const void *address);

/* For signal handlers: calls `each` once for every live entry, and ends its life. */
void registry_take_all(struct registry *r, void (*each)(const char *path));

#endif
