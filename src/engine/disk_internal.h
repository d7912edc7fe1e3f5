/* disk_internal.h - the disk tier's struct, for its own files: disk_tier.c has the table and the
 * thread, disk_scan.c finds what is there already, disk_folder.c has the files of others. */
#ifndef ENGINE_DISK_INTERNAL_H
#define ENGINE_DISK_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/disk_tier.h"

enum { MAX_WAITING = 1024, READ_BYTES = 1 << 20, NS = 1000000000, ENTRY_BYTES = 32768 };

enum object_state { FREE, WAITING, WRITING, WRITTEN, LOST, REMOVING };

struct disk_object {
    enum object_state state;
    bool is_freed; /* by its owner, before the thread was done with it */
    struct disk_meta meta;
    int64_t used;         /* when it was written or read last, in nanoseconds */
    uint32_t host_object; /* while WAITING or WRITING */
    uint32_t tokens_row;  /* of its tokens, likewise */
    uint32_t next;        /* in the queue, or free */
    uint32_t chain;       /* in the index */
    uint32_t walk;        /* the last one that saw its file */
};

struct disk_tier {
    struct disk_options options;
    char *folder;     /* its path */
    int root, own_fd; /* descriptors of the folder, and of our identity's in it */
    struct disk_object *objects;
    uint32_t *buckets, mask;          /* the index by name */
    int32_t *tokens;                  /* (MAX_WAITING, max_tokens) */
    uint32_t *free_rows, n_free_rows; /* a stack: rows of `tokens` that nothing uses */
    struct disk_reader reader;        /* of the calls' own thread */
    char *entries;                    /* for listing folders */

    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    uint32_t first_free, first, last; /* objects: free, and in the queue */
    uint64_t own, others, waiting;    /* bytes */
    uint64_t since_walk;              /* bytes written */
    uint64_t wanted;                  /* bytes that put found no room for */
    int64_t last_walk;
    uint32_t n_walks;
    int64_t last_news; /* of the thread alone */
    bool is_busy, has_thread;
    atomic_bool stop; /* no file is begun or continued */
    bool is_ending;
    pthread_t thread;
    struct disk_counters count;
};

static inline int64_t disk_nanoseconds(struct timespec t) {
    return (int64_t)t.tv_sec * NS + t.tv_nsec;
}

/* The clock that file systems use; a precise one would be milliseconds ahead of it. */
static inline int64_t disk_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME_COARSE, &t);
    return disk_nanoseconds(t);
}

static inline uint64_t disk_object_bytes(const struct disk_object *o) {
    return disk_file_bytes(o->meta.n_tokens, o->meta.bytes);
}

/* ---- disk_tier.c, under the lock ---------------------------------------------------------- */

/* The object of a name; DISK_NONE: none. */
uint32_t disk_find(struct disk_tier *d, const struct disk_meta *m);
/* A free object gets this name, and is in the index; DISK_NONE: there is none. And back. */
uint32_t disk_take_object(struct disk_tier *d, const struct disk_meta *meta);
void disk_release(struct disk_tier *d, uint32_t i);
/* The file is gone or was never written: it no longer counts. */
void disk_lose(struct disk_tier *d, struct disk_object *o);

/* ---- disk_folder.c ------------------------------------------------------------------------ */

/* Opens our folders, creating what is missing. False and errno on failure. */
bool disk_open_folders(struct disk_tier *d, int *root, int *own);
/* After somebody deleted the folder: creates it again under the same descriptors, which the other
 * thread may be using. */
bool disk_renew_folders(struct disk_tier *d);
/* Calls fn for every name in a folder, but for "." and "..". */
void disk_each_name(struct disk_tier *d, int folder,
                    void (*fn)(struct disk_tier *d, int folder, const char *name, void *user),
                    void *user);
/* False: there is none, or it is not a regular file. */
bool disk_stat_file(int folder, const char *name, struct stat *st);
/* Walks the folder and removes foreign files until its bound is kept: (3) in disk_tier.h. */
void disk_make_room(struct disk_tier *d);
/* Whether it is time for a walk, which costs one stat per file: every few seconds at most while the
 * folder is full, and now and then to see what others write. */
bool disk_is_walk_due(const struct disk_tier *d);

#endif
