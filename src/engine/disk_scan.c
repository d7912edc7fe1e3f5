/* disk_scan.c - what earlier runs and other processes left in the disk tier's folder, taken over
 * when it is opened. */
#include <stdlib.h>
#include <unistd.h>

#include "engine/disk_internal.h"

struct found {
    struct disk_meta meta;
    int64_t used;
    uint64_t bytes;
};

struct collection {
    struct found *list;
    uint32_t n, capacity;
};

static void collect(struct disk_tier *d, int folder, const char *name, void *user) {
    struct collection *c = user;
    struct found f = {0};
    struct stat st;
    (void)d;
    if (c->n == c->capacity || !disk_file_parse(name, &f.meta) ||
        !disk_stat_file(folder, name, &st))
        return;
    f.used = disk_nanoseconds(st.st_mtim);
    f.bytes = (uint64_t)st.st_size;
    c->list[c->n++] = f;
}

static int by_age(const void *a, const void *b) {
    int64_t x = ((const struct found *)a)->used, y = ((const struct found *)b)->used;
    return (x < y) - (x > y); /* the newest first */
}

static int by_position(const void *a, const void *b) {
    const struct disk_meta *x = &((const struct found *)a)->meta;
    const struct disk_meta *y = &((const struct found *)b)->meta;
    if (x->position != y->position)
        return x->position < y->position ? -1 : 1;
    return (int)x->kind - (int)y->kind; /* a snapshot after its block */
}

static bool check_found(struct disk_tier *d, struct found *f) {
    char name[DISK_NAME_BYTES];
    uint64_t bytes;
    disk_file_name(&f->meta, name);
    int fd = disk_file_open(d->own_fd, name, &bytes);
    if (fd < 0)
        return false;
    bool is_good = disk_file_read_head(fd, bytes, d->options.identity, &f->meta, d->reader.head,
                                       d->options.max_tokens);
    close(fd);
    return is_good;
}

/* Takes over a file that fits, if the cache wants it. */
static void adopt(struct disk_tier *d, struct found *f, disk_scan_fn *fn, void *user) {
    if (!check_found(d, f))
        return;
    pthread_mutex_lock(&d->lock);
    uint32_t i = disk_take_object(d, &f->meta);
    pthread_mutex_unlock(&d->lock);
    if (i == DISK_NONE)
        return;
    struct disk_object *o = &d->objects[i];
    o->used = f->used;
    bool is_wanted = fn(user, i, &o->meta, d->reader.head);
    pthread_mutex_lock(&d->lock);
    if (is_wanted) {
        o->state = WRITTEN;
        d->own += f->bytes;
        d->others -= f->bytes < d->others ? f->bytes : d->others;
    } else {
        disk_release(d, i);
    }
    pthread_mutex_unlock(&d->lock);
}

void disk_tier_scan(struct disk_tier *d, disk_scan_fn *fn, void *user) {
    struct collection c = {.capacity = 4 * d->options.max_objects};
    c.list = calloc(c.capacity, sizeof *c.list);
    if (!c.list)
        return;
    disk_each_name(d, d->own_fd, collect, &c);
    qsort(c.list, c.n, sizeof *c.list, by_age);
    uint64_t left = d->options.max_bytes;
    uint32_t n = 0; /* the newest ones, as many as the bounds allow */
    for (uint32_t i = 0; i < c.n && n < d->options.max_objects; i++)
        if (c.list[i].bytes <= left) {
            left -= c.list[i].bytes;
            c.list[n++] = c.list[i];
        }
    qsort(c.list, n, sizeof *c.list, by_position);
    for (uint32_t i = 0; i < n; i++)
        adopt(d, &c.list[i], fn, user);
    free(c.list);
}
