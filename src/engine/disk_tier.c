/* disk_tier.c - a folder for KV pages and snapshots: the table of our files, the thread that writes
 * and removes them, and the bound on their bytes.
 *
 * (1) An object is free, or it is in the index. `own` is the bytes of all files that exist or will:
 *     states WAITING, WRITING and WRITTEN, unless freed.
 * (2) The thread's work is a FIFO queue of objects, WAITING to be written or REMOVING; so a file
 *     that is removed and put again exists in the end.
 * (3) While it is WAITING or WRITING an object's host object is pinned, and its tokens a row of
 *     `tokens`.
 * (4) The thread holds the lock for tables alone, never for files. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/folders.h"
#include "base/locale.h"
#include "base/log.h"
#include "base/size.h"
#include "base/thread.h"
#include "engine/disk_internal.h"

/* ---- tables, under the lock --------------------------------------------------------------- */

static uint32_t *bucket_of(struct disk_tier *d, const struct disk_meta *m) {
    return &d->buckets[(m->hash.low ^ m->position * 2654435761u ^ m->kind) & d->mask];
}

uint32_t disk_find(struct disk_tier *d, const struct disk_meta *m) {
    for (uint32_t i = *bucket_of(d, m); i != DISK_NONE; i = d->objects[i].chain) {
        const struct disk_meta *other = &d->objects[i].meta;
        if (hash128_equal(other->hash, m->hash) && other->position == m->position &&
            other->kind == m->kind)
            return i;
    }
    return DISK_NONE;
}

uint32_t disk_take_object(struct disk_tier *d, const struct disk_meta *meta) {
    uint32_t i = d->first_free, *bucket = bucket_of(d, meta);
    if (i == DISK_NONE)
        return i;
    struct disk_object *o = &d->objects[i];
    d->first_free = o->next;
    *o = (struct disk_object){.meta = *meta, .next = DISK_NONE, .chain = *bucket};
    *bucket = i;
    return i;
}

void disk_release(struct disk_tier *d, uint32_t i) {
    uint32_t *at = bucket_of(d, &d->objects[i].meta);
    while (*at != i)
        at = &d->objects[*at].chain;
    *at = d->objects[i].chain;
    d->objects[i] = (struct disk_object){.next = d->first_free};
    d->first_free = i;
}

static void enqueue(struct disk_tier *d, uint32_t i) {
    d->objects[i].next = DISK_NONE;
    if (d->first == DISK_NONE)
        d->first = i;
    else
        d->objects[d->last].next = i;
    d->last = i;
    pthread_cond_signal(&d->work);
}

static uint32_t dequeue(struct disk_tier *d) {
    uint32_t i = d->first;
    d->first = d->objects[i].next;
    return i;
}

void disk_lose(struct disk_tier *d, struct disk_object *o) {
    if (!o->is_freed)
        d->own -= disk_object_bytes(o);
    o->state = LOST;
}

/* ---- the thread --------------------------------------------------------------------------- */

/* A full disk fails every file: log one line per minute. */
static bool is_news(struct disk_tier *d) {
    const int64_t minute = 60ll * NS;
    int64_t at = disk_now();
    bool is_due = d->last_news == 0 || at - d->last_news > minute || at < d->last_news;
    if (is_due)
        d->last_news = at;
    return is_due;
}

static void write_object(struct disk_tier *d, struct disk_object *o) {
    const int32_t *tokens = d->tokens + (uint64_t)o->tokens_row * d->options.max_tokens;
    const struct disk_head head = {d->options.identity, &o->meta, tokens};
    int why = ECANCELED;
    double started = seconds_now();
    for (int tries = 0; !atomic_load(&d->stop) && tries < 2; tries++) {
        why = disk_file_write(d->own_fd, &head, d->options.host, o->host_object, &d->stop);
        if (why != ENOENT || !disk_renew_folders(d))
            break;
    }
    pthread_mutex_lock(&d->lock);
    o->state = WRITTEN;
    o->used = disk_now();
    if (why) {
        disk_lose(d, o);
        d->count.failed += why != ECANCELED;
    } else {
        d->count.written++;
        d->count.written_bytes += disk_object_bytes(o);
        d->count.written_seconds += seconds_now() - started;
        d->since_walk += disk_object_bytes(o);
    }
    pthread_mutex_unlock(&d->lock);
    if (why && why != ECANCELED && is_news(d))
        log_line(LOG_WARN, "%s: cannot write to the cache: %s; conversations go on without it",
                 d->folder, locale_error(why));
}

static void remove_object(struct disk_tier *d, const struct disk_meta *meta) {
    char name[DISK_NAME_BYTES];
    disk_file_name(meta, name);
    unlinkat(d->own_fd, name, 0);
}

/* Handles one object of the queue. Called with the lock held, which is released meanwhile. */
static void serve(struct disk_tier *d) {
    uint32_t i = dequeue(d);
    struct disk_object *o = &d->objects[i];
    bool has_host = o->state == WAITING, is_due = has_host && !o->is_freed;
    if (is_due && size_plus(d->own, d->others) > d->options.max_bytes) {
        is_due = false; /* others have written more than we knew when it was put */
        disk_lose(d, o);
    }
    if (is_due)
        o->state = WRITING;
    pthread_mutex_unlock(&d->lock);
    if (is_due)
        write_object(d, o);
    pthread_mutex_lock(&d->lock);
    bool is_removed = o->state == REMOVING || (o->state == WRITTEN && o->is_freed);
    d->count.removed += is_removed;
    pthread_mutex_unlock(&d->lock);
    if (is_removed)
        remove_object(d, &o->meta);
    if (has_host)
        host_tier_unpin(d->options.host, o->host_object);
    pthread_mutex_lock(&d->lock);
    if (has_host) {
        d->waiting -= o->meta.bytes;
        d->free_rows[d->n_free_rows++] = o->tokens_row;
    }
    if (is_removed || o->is_freed)
        disk_release(d, i);
}

/* With SIGXFSZ blocked, exceeding the file size limit is an error instead of the end of the
 * process. */
static void *thread_main(void *user) {
    struct disk_tier *d = user;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        bool is_due = !d->is_ending && disk_is_walk_due(d);
        d->is_busy = is_due || d->first != DISK_NONE;
        if (!d->is_busy) {
            pthread_cond_broadcast(&d->idle);
            if (d->is_ending)
                break;
            pthread_cond_wait(&d->work, &d->lock);
        } else if (is_due) {
            pthread_mutex_unlock(&d->lock);
            disk_make_room(d);
            pthread_mutex_lock(&d->lock);
        } else {
            serve(d);
        }
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- open and close ----------------------------------------------------------------------- */

bool disk_reader_init(struct disk_reader *r, uint32_t max_tokens) {
    r->head = calloc((size_t)max_tokens + 1, sizeof *r->head);
    r->buffer = (struct disk_buffer){malloc(READ_BYTES), READ_BYTES};
    return r->head && r->buffer.at;
}

void disk_reader_free(struct disk_reader *r) {
    free(r->head);
    free(r->buffer.at);
}

static bool make_tables(struct disk_tier *d) {
    const struct disk_options *o = &d->options;
    uint32_t n_buckets = 1u << shift_of(o->max_objects);
    d->mask = n_buckets - 1;
    d->objects = calloc(o->max_objects, sizeof *d->objects);
    d->buckets = malloc(n_buckets * sizeof *d->buckets);
    d->tokens = calloc(MAX_WAITING * (size_t)o->max_tokens + 1, sizeof *d->tokens);
    d->free_rows = malloc(MAX_WAITING * sizeof *d->free_rows);
    d->entries = malloc(ENTRY_BYTES);
    if (!d->objects || !d->buckets || !d->tokens || !d->free_rows || !d->entries ||
        !disk_reader_init(&d->reader, o->max_tokens))
        return false;
    memset(d->buckets, 0xFF, n_buckets * sizeof *d->buckets);
    for (uint32_t i = 0; i < o->max_objects; i++)
        d->objects[i].next = i + 1 < o->max_objects ? i + 1 : DISK_NONE;
    while (d->n_free_rows < MAX_WAITING) {
        d->free_rows[d->n_free_rows] = d->n_free_rows;
        d->n_free_rows++;
    }
    return true;
}

static struct disk_tier *make_tier(const struct disk_options *options) {
    struct disk_tier *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    d->options = *options;
    d->root = d->own_fd = -1;
    d->first = d->last = DISK_NONE;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->idle, &clock);
    pthread_condattr_destroy(&clock);
    d->folder = strdup(options->folder);
    if (d->folder && make_tables(d))
        return d;
    disk_tier_close(d);
    return NULL;
}

int disk_tier_open(struct disk_tier **out, const struct disk_options *options, struct err *err) {
    CHECK(options->max_objects > 0 && options->max_objects < DISK_NONE / 4);
    *out = NULL;
    struct disk_tier *d = make_tier(options);
    if (!d)
        return err_memory(err, "the tables of the cache on disk");
    int status = SLUICE_OK;
    if (options->folder[0] == 0 || !disk_open_folders(d, &d->root, &d->own_fd) ||
        faccessat(d->own_fd, ".", W_OK, AT_EACCESS) != 0)
        status =
            err_set(err, SLUICE_ERR_IO, "%s: cannot use it as the cache's folder: %s",
                    options->folder, options->folder[0] ? locale_error(errno) : "it has no name");
    const char *writer = status ? NULL : folders_writer(d->own_fd);
    if (writer) /* checksums find damage, not what is changed on purpose */
        log_line(LOG_WARN, "%s: what is cached there may be changed by %s", options->folder,
                 writer);
    if (!status) {
        disk_make_room(d);
        d->has_thread = thread_start(&d->thread, thread_main, d);
        if (!d->has_thread)
            status = err_memory(err, "the thread of the cache on disk");
    }
    if (status) {
        disk_tier_close(d);
        return status;
    }
    *out = d;
    return SLUICE_OK;
}

/* Waits until nothing is left to do, or until `seconds` have passed (below 0: any). */
static void wait_idle(struct disk_tier *d, double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t until = disk_nanoseconds(t) + (int64_t)(seconds * NS);
    t = (struct timespec){.tv_sec = until / NS, .tv_nsec = until % NS};
    int status = 0;
    while ((d->is_busy || d->first != DISK_NONE || (!d->is_ending && disk_is_walk_due(d))) &&
           status != ETIMEDOUT)
        status = seconds < 0 ? pthread_cond_wait(&d->idle, &d->lock)
                             : pthread_cond_timedwait(&d->idle, &d->lock, &t);
}

static void end_thread(struct disk_tier *d) {
    pthread_mutex_lock(&d->lock);
    d->is_ending = true;
    wait_idle(d, d->options.seconds_for_close);
    atomic_store(&d->stop, true);
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
}

void disk_tier_close(struct disk_tier *d) {
    if (!d)
        return;
    if (d->has_thread)
        end_thread(d);
    if (d->own_fd >= 0)
        close(d->own_fd);
    if (d->root >= 0)
        close(d->root);
    pthread_cond_destroy(&d->idle);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    free(d->folder);
    free(d->objects);
    free(d->buckets);
    free(d->tokens);
    free(d->free_rows);
    disk_reader_free(&d->reader);
    free(d->entries);
    free(d);
}

/* ---- put, get, free ----------------------------------------------------------------------- */

uint64_t disk_tier_cost(uint32_t n_tokens, uint64_t bytes) {
    return disk_file_bytes(n_tokens, bytes);
}

static uint64_t free_bytes(const struct disk_tier *d) {
    uint64_t used = size_plus(d->own, d->others);
    return used < d->options.max_bytes ? d->options.max_bytes - used : 0;
}

uint64_t disk_tier_free_bytes(struct disk_tier *d) {
    pthread_mutex_lock(&d->lock);
    uint64_t bytes = free_bytes(d);
    pthread_mutex_unlock(&d->lock);
    return bytes;
}

uint64_t disk_tier_bytes(struct disk_tier *d) {
    pthread_mutex_lock(&d->lock);
    uint64_t bytes = d->own;
    pthread_mutex_unlock(&d->lock);
    return bytes;
}

/* Whether an object may be put. If others take the bytes, asks the thread to free some. */
static bool can_put(struct disk_tier *d, const struct disk_meta *meta) {
    uint64_t bytes = disk_file_bytes(meta->n_tokens, meta->bytes);
    if (bytes > free_bytes(d)) {
        uint64_t share = d->options.max_bytes / 16; /* at least, to keep walks rare */
        if (d->others)
            d->wanted = bytes > share ? bytes : share;
        pthread_cond_signal(&d->work);
        return false;
    }
    uint64_t max_waiting = d->options.max_waiting ? d->options.max_waiting : UINT64_MAX;
    return d->n_free_rows > 0 &&
           (d->waiting == 0 || size_plus(d->waiting, meta->bytes) <= max_waiting);
}

uint32_t disk_tier_put(struct disk_tier *d, const struct disk_meta *meta, const int32_t *tokens,
                       uint32_t host_object) {
    CHECK(meta->n_tokens <= d->options.max_tokens && meta->kind < DISK_KINDS);
    CHECK(host_tier_bytes(d->options.host, host_object) == meta->bytes);
    pthread_mutex_lock(&d->lock);
    uint32_t i = can_put(d, meta) ? disk_take_object(d, meta) : DISK_NONE;
    if (i != DISK_NONE) {
        struct disk_object *o = &d->objects[i];
        o->state = WAITING;
        o->host_object = host_object;
        o->tokens_row = d->free_rows[--d->n_free_rows];
        if (meta->n_tokens)
            memcpy(d->tokens + (uint64_t)o->tokens_row * d->options.max_tokens, tokens,
                   meta->n_tokens * sizeof *tokens);
        host_tier_pin(d->options.host, host_object);
        d->own += disk_object_bytes(o);
        d->waiting += meta->bytes;
        enqueue(d, i);
    }
    pthread_mutex_unlock(&d->lock);
    return i;
}

/* Reads the file of an object. The status is take's. */
static int read_file(struct disk_tier *d, const struct disk_meta *meta, const int32_t *tokens,
                     struct disk_reader *reader, tier_take_fn *take, void *user, bool *is_found,
                     struct err *err) {
    char name[DISK_NAME_BYTES];
    struct disk_meta found = *meta;
    uint64_t bytes;
    int status = SLUICE_OK;
    disk_file_name(meta, name);
    int fd = disk_file_open(d->own_fd, name, &bytes);
    *is_found =
        fd >= 0 &&
        disk_file_read_head(fd, bytes, d->options.identity, &found, reader->head,
                            d->options.max_tokens) &&
        found.n_tokens == meta->n_tokens && found.bytes == meta->bytes &&
        hash128_equal(found.parent, meta->parent) &&
        (!meta->n_tokens || memcmp(reader->head, tokens, meta->n_tokens * sizeof *tokens) == 0);
    if (*is_found) {
        const struct disk_head head = {d->options.identity, meta, tokens};
        status = disk_file_read_payload(fd, &head, reader->buffer, take, user, is_found, err);
        futimens(fd, NULL); /* used now */
    }
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && !status && !*is_found) {
        log_line(LOG_WARN, "%s: %s is damaged; it is removed", d->folder, name);
        unlinkat(d->own_fd, name, 0);
    }
    return status;
}

int disk_tier_read(struct disk_tier *d, const struct disk_meta *meta, const int32_t *tokens,
                   struct disk_reader *reader, tier_take_fn *take, void *user, bool *is_found,
                   struct err *err) {
    int status = read_file(d, meta, tokens, reader, take, user, is_found, err);
    pthread_mutex_lock(&d->lock);
    uint32_t i = disk_find(d, meta); /* it may have been freed meanwhile */
    struct disk_object *o = i == DISK_NONE ? NULL : &d->objects[i];
    if (*is_found) {
        d->count.read++;
        d->count.read_bytes += disk_file_bytes(meta->n_tokens, meta->bytes);
        if (o)
            o->used = disk_now();
    } else if (!status && o && o->state == WRITTEN) {
        d->count.damaged++;
        disk_lose(d, o);
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}

struct disk_meta disk_tier_meta(struct disk_tier *d, uint32_t object) {
    pthread_mutex_lock(&d->lock);
    struct disk_meta meta = d->objects[object].meta;
    pthread_mutex_unlock(&d->lock);
    return meta;
}

int disk_tier_get(struct disk_tier *d, uint32_t object, const int32_t *tokens, tier_take_fn *take,
                  void *user, bool *is_found, struct err *err) {
    struct disk_object *o = &d->objects[object];
    *is_found = false;
    pthread_mutex_lock(&d->lock);
    CHECK(o->state != FREE && !o->is_freed);
    bool is_waiting = o->state == WAITING || o->state == WRITING, is_there = o->state == WRITTEN;
    if (is_waiting) /* so that it stays when the thread is done with it meanwhile */
        host_tier_pin(d->options.host, o->host_object);
    uint32_t host_object = o->host_object;
    pthread_mutex_unlock(&d->lock);
    if (is_waiting) {
        int status = SLUICE_OK;
        if ((*is_found = host_tier_wait(d->options.host, host_object)))
            status = host_tier_get(d->options.host, host_object, take, user, err);
        host_tier_unpin(d->options.host, host_object);
        *is_found &= !status;
        return status;
    }
    return is_there ? disk_tier_read(d, &o->meta, tokens, &d->reader, take, user, is_found, err)
                    : SLUICE_OK;
}

void disk_tier_free(struct disk_tier *d, uint32_t object) {
    struct disk_object *o = &d->objects[object];
    pthread_mutex_lock(&d->lock);
    CHECK(o->state != FREE && !o->is_freed);
    if (o->state == LOST) {
        disk_release(d, object);
    } else {
        o->is_freed = true;
        d->own -= disk_object_bytes(o);
        if (o->state == WRITTEN) {
            o->state = REMOVING;
            enqueue(d, object);
        }
    }
    pthread_mutex_unlock(&d->lock);
}

/* ---- for observers ------------------------------------------------------------------------ */

void disk_tier_flush(struct disk_tier *d) {
    pthread_mutex_lock(&d->lock);
    pthread_cond_signal(&d->work);
    wait_idle(d, -1);
    pthread_mutex_unlock(&d->lock);
}

bool disk_tier_is_written(struct disk_tier *d, uint32_t object) {
    pthread_mutex_lock(&d->lock);
    bool is_written = d->objects[object].state == WRITTEN;
    pthread_mutex_unlock(&d->lock);
    return is_written;
}

void disk_tier_counters(struct disk_tier *d, struct disk_counters *out) {
    pthread_mutex_lock(&d->lock);
    *out = d->count;
    pthread_mutex_unlock(&d->lock);
}

static const char *find_broken(struct disk_tier *d) {
    uint64_t own = 0, waiting = 0;
    uint32_t n_free = 0, n_used = 0, n_rows = 0;
    for (uint32_t i = d->first_free; i != DISK_NONE; i = d->objects[i].next, n_free++)
        if (n_free > d->options.max_objects || d->objects[i].state != FREE)
            return "(1) the free list is damaged";
    for (uint32_t i = 0; i < d->options.max_objects; i++) {
        const struct disk_object *o = &d->objects[i];
        bool has_host = o->state == WAITING || o->state == WRITING;
        n_used += o->state != FREE;
        n_rows += has_host;
        waiting += has_host ? o->meta.bytes : 0;
        own += !o->is_freed && (has_host || o->state == WRITTEN) ? disk_object_bytes(o) : 0;
        uint32_t at = o->state == FREE ? i : *bucket_of(d, &o->meta);
        while (at != i && at != DISK_NONE)
            at = d->objects[at].chain;
        if (at != i)
            return "(1) an object is not in the index";
    }
    if (n_free + n_used != d->options.max_objects)
        return "(1) an object is lost";
    if (own != d->own)
        return "(1) the bytes of our files are miscounted";
    if (waiting != d->waiting || n_rows + d->n_free_rows != MAX_WAITING)
        return "(3) what waits is miscounted";
    return NULL;
}

/* The thread may be holding an object that is not in the queue: waits for it. */
const char *disk_tier_broken(struct disk_tier *d) {
    disk_tier_flush(d);
    pthread_mutex_lock(&d->lock);
    const char *what = find_broken(d);
    pthread_mutex_unlock(&d->lock);
    return what;
}
