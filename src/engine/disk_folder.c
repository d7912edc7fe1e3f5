/* disk_folder.c - the folder of the disk tier: opening it, and the files of others in it.
 *
 * A walk looks at every file: it counts those of other processes, earlier runs and other
 * identities, and removes the longest unused where the folder holds too much. The tier's thread
 * walks. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/folders.h"
#include "base/size.h"
#include "engine/disk_internal.h"

#ifndef __GLIBC__ /* musl has the call by this name */
#define getdents64 getdents
#endif

/* ---- folders ------------------------------------------------------------------------------ */

static int open_folder(int at, const char *name, int flags) {
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
}

bool disk_open_folders(struct disk_tier *d, int *root, int *own) {
    char name[DISK_FOLDER_BYTES];
    disk_file_folder(d->options.identity, name);
    folders_make(d->folder);
    mkdir(d->folder, 0700);
    *own = -1;
    *root = open_folder(AT_FDCWD, d->folder, 0);
    if (*root >= 0 && (mkdirat(*root, name, 0700) == 0 || errno == EEXIST))
        *own = open_folder(*root, name, O_NOFOLLOW);
    return *own >= 0;
}

bool disk_renew_folders(struct disk_tier *d) {
    int root, own;
    bool is_made = disk_open_folders(d, &root, &own) && dup3(root, d->root, O_CLOEXEC) >= 0 &&
                   dup3(own, d->own_fd, O_CLOEXEC) >= 0;
    if (own >= 0)
        close(own);
    if (root >= 0)
        close(root);
    return is_made;
}

void disk_each_name(struct disk_tier *d, int folder,
                    void (*fn)(struct disk_tier *d, int folder, const char *name, void *user),
                    void *user) {
    ssize_t n;
    lseek(folder, 0, SEEK_SET);
    while ((n = getdents64(folder, (void *)d->entries, ENTRY_BYTES)) > 0)
        for (ssize_t at = 0; at < n;) {
            struct dirent *entry = (struct dirent *)(d->entries + at);
            at += entry->d_reclen;
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
                fn(d, folder, entry->d_name, user);
        }
}

bool disk_stat_file(int folder, const char *name, struct stat *st) {
    return fstatat(folder, name, st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st->st_mode);
}

/* ---- files that are not ours -------------------------------------------------------------- */

enum { MAX_OLDEST = 64 };

/* A file of another process, an earlier run or another identity. */
struct foreign_file {
    int64_t used;
    uint64_t bytes;
    struct hash128 identity;
    char name[DISK_NAME_BYTES];
};

struct walk {
    uint32_t number;
    uint64_t bytes; /* of all foreign files */
    struct hash128 identity;
    uint32_t n;
    struct foreign_file oldest[MAX_OLDEST]; /* the longest unused first */
};

/* One that is larger than max_bytes goes before any other. */
static void note_foreign(struct walk *w, const char *name, const struct stat *st,
                         uint64_t max_bytes) {
    struct foreign_file s = {disk_nanoseconds(st->st_mtim), (uint64_t)st->st_size, w->identity, ""};
    if (s.bytes > max_bytes)
        s.used = INT64_MIN;
    w->bytes = size_plus(w->bytes, s.bytes);
    memcpy(s.name, name, strnlen(name, DISK_NAME_BYTES - 1));
    uint32_t i = w->n;
    if (i == MAX_OLDEST && w->oldest[--i].used <= s.used)
        return;
    for (; i > 0 && w->oldest[i - 1].used > s.used; i--)
        w->oldest[i] = w->oldest[i - 1];
    w->oldest[i] = s;
    w->n += w->n < MAX_OLDEST;
}

/* Whether no process is writing this temporary file. Where files cannot be locked, age decides. */
static bool is_abandoned(int folder, const char *name, const struct stat *st) {
    const int64_t hour = 3600ll * NS;
    int fd = openat(folder, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return false;
    int status = flock(fd, LOCK_EX | LOCK_NB), why = errno;
    close(fd);
    return status == 0 || (why != EWOULDBLOCK && disk_now() - disk_nanoseconds(st->st_mtim) > hour);
}

static bool is_ours(struct disk_tier *d, const struct disk_meta *meta, uint32_t walk) {
    pthread_mutex_lock(&d->lock);
    uint32_t i = disk_find(d, meta);
    if (i != DISK_NONE)
        d->objects[i].walk = walk;
    pthread_mutex_unlock(&d->lock);
    return i != DISK_NONE;
}

static void look_at_file(struct disk_tier *d, int folder, const char *name, void *user) {
    struct walk *w = user;
    struct disk_meta meta;
    struct stat st;
    bool is_temporary = disk_file_is_temporary(name);
    if ((!is_temporary && !disk_file_parse(name, &meta)) || !disk_stat_file(folder, name, &st))
        return;
    if (is_temporary && is_abandoned(folder, name, &st))
        unlinkat(folder, name, 0);
    else if (is_temporary)
        w->bytes = size_plus(w->bytes, (uint64_t)st.st_size);
    else if (!hash128_equal(w->identity, d->options.identity) || !is_ours(d, &meta, w->number))
        note_foreign(w, name, &st, d->options.max_bytes);
}

static struct hash128 identity_of(const char *folder_name) {
    struct hash128 h = {0};
    char half[17] = "";
    memcpy(half, folder_name, 16);
    h.high = strtoull(half, NULL, 16);
    h.low = strtoull(folder_name + 16, NULL, 16);
    return h;
}

/* Folders are listed first: one buffer serves all listings. */
enum { MAX_FOLDERS = 256 };
struct folders {
    uint32_t n;
    struct hash128 identities[MAX_FOLDERS];
};

static void note_folder(struct disk_tier *d, int folder, const char *name, void *user) {
    struct folders *f = user;
    (void)d, (void)folder;
    if (disk_file_is_folder(name) && f->n < MAX_FOLDERS)
        f->identities[f->n++] = identity_of(name);
}

static void look_at_folder(struct disk_tier *d, struct walk *w, struct hash128 identity) {
    char name[DISK_FOLDER_BYTES];
    disk_file_folder(identity, name);
    int fd = open_folder(d->root, name, O_NOFOLLOW);
    if (fd < 0)
        return;
    w->identity = identity;
    disk_each_name(d, fd, look_at_file, w);
    close(fd);
    if (!hash128_equal(identity, d->options.identity))
        unlinkat(d->root, name, AT_REMOVEDIR); /* stays unless it is empty */
}

/* Looks at every file in the folder: counts those of others, cleans up after dead writers, and
 * finds which of ours have vanished. */
static void walk_folder(struct disk_tier *d, struct walk *w) {
    struct folders folders = {0};
    *w = (struct walk){.number = ++d->n_walks};
    disk_each_name(d, d->root, note_folder, &folders);
    for (uint32_t i = 0; i < folders.n; i++)
        look_at_folder(d, w, folders.identities[i]);
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->options.max_objects; i++) {
        struct disk_object *o = &d->objects[i];
        if (o->state == WRITTEN && o->walk != w->number)
            disk_lose(d, o);
    }
    d->others = w->bytes;
    d->since_walk = 0;
    d->last_walk = disk_now();
    pthread_mutex_unlock(&d->lock);
}

static int64_t oldest_own(const struct disk_tier *d) {
    int64_t oldest = INT64_MAX;
    for (uint32_t i = 0; i < d->options.max_objects; i++)
        if (d->objects[i].state == WRITTEN && d->objects[i].used < oldest)
            oldest = d->objects[i].used;
    return oldest;
}

static bool is_over(const struct disk_tier *d) {
    return size_plus(size_plus(d->own, d->others), d->wanted) > d->options.max_bytes;
}

static void remove_one_foreign(struct disk_tier *d, const struct foreign_file *s) {
    char name[DISK_FOLDER_BYTES];
    disk_file_folder(s->identity, name);
    int fd = open_folder(d->root, name, O_NOFOLLOW);
    if (fd < 0)
        return;
    unlinkat(fd, s->name, 0);
    close(fd);
}

/* Frees space by removing files of others that were unused for longer than any of ours. Returns
 * whether there may be more of them. */
static bool remove_foreign(struct disk_tier *d, const struct walk *w) {
    pthread_mutex_lock(&d->lock);
    int64_t limit = oldest_own(d);
    uint32_t n = 0;
    for (; n < w->n && w->oldest[n].used < limit && is_over(d); n++) {
        d->others -= w->oldest[n].bytes < d->others ? w->oldest[n].bytes : d->others;
        d->count.removed++;
        pthread_mutex_unlock(&d->lock);
        remove_one_foreign(d, &w->oldest[n]);
        pthread_mutex_lock(&d->lock);
    }
    bool is_more = n == MAX_OLDEST && is_over(d);
    pthread_mutex_unlock(&d->lock);
    return is_more;
}

void disk_make_room(struct disk_tier *d) {
    struct walk w;
    do
        walk_folder(d, &w);
    while (remove_foreign(d, &w));
    pthread_mutex_lock(&d->lock);
    d->wanted = 0;
    pthread_mutex_unlock(&d->lock);
}

bool disk_is_walk_due(const struct disk_tier *d) {
    const int64_t pause = 5ll * NS;
    int64_t since = disk_now() - d->last_walk;
    return d->since_walk > d->options.max_bytes / 8 ||
           (d->wanted && (since > pause || since < 0 || d->n_walks < 2));
}
