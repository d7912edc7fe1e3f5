/* disk_fetch.c - the queue of files to be read into host memory, and the thread that reads them.
 *
 * (1) A job has its host object pinned until the thread is done with it, or it is dropped.
 * (2) Jobs are done in order. A job has a copy of all that names its file: the object may be freed,
 *     and the file removed, at any time.
 * (3) The thread holds the lock for tables alone, never for files. */
#include "engine/disk_fetch.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"

struct fetch {
    struct disk_meta meta;
    uint32_t host_object;
};

struct disk_fetch {
    struct disk_tier *disk;
    struct host_tier *host;
    uint32_t max_tokens;
    struct disk_reader reader; /* of the thread */
    struct fetch jobs[FETCH_JOBS];
    int32_t *tokens; /* (FETCH_JOBS, max_tokens) */
    pthread_mutex_t lock;
    pthread_cond_t work;
    uint32_t first, n; /* jobs: a ring */
    bool is_ending, has_thread;
    pthread_t thread;
    struct sluice_moved moved;
};

static int32_t *tokens_of(const struct disk_fetch *f, uint32_t job) {
    return f->tokens + (size_t)job * f->max_tokens;
}

static int take_bytes(void *user, uint64_t at, uint64_t n, const void *from, struct err *err) {
    const struct disk_fetch *f = user;
    (void)err;
    host_tier_write(f->host, f->jobs[f->first].host_object, at, n, from);
    return SLUICE_OK;
}

/* Does the first job. Called with the lock held, which is released meanwhile. */
static void do_job(struct disk_fetch *f) {
    const struct fetch *job = &f->jobs[f->first];
    struct err ignored;
    bool is_found = false;
    double started = seconds_now();
    pthread_mutex_unlock(&f->lock);
    bool is_wanted = host_tier_begin(f->host, job->host_object);
    if (is_wanted) {
        disk_tier_read(f->disk, &job->meta, tokens_of(f, f->first), &f->reader, take_bytes, f,
                       &is_found, &ignored);
        host_tier_end(f->host, job->host_object, is_found);
    }
    pthread_mutex_lock(&f->lock);
    if (is_found) {
        f->moved.bytes += job->meta.bytes;
        f->moved.seconds += seconds_now() - started;
    }
    f->first = (f->first + 1) % FETCH_JOBS;
    f->n--;
}

static void *thread_main(void *user) {
    struct disk_fetch *f = user;
    pthread_mutex_lock(&f->lock);
    while (!f->is_ending)
        if (f->n > 0)
            do_job(f);
        else
            pthread_cond_wait(&f->work, &f->lock);
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

int disk_fetch_open(struct disk_fetch **out, struct disk_tier *disk, struct host_tier *host,
                    uint32_t max_tokens, struct err *err) {
    struct disk_fetch *f = *out = calloc(1, sizeof *f);
    if (!f)
        return err_memory(err, "the thread that reads the cache on disk");
    f->disk = disk;
    f->host = host;
    f->max_tokens = max_tokens;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->work, NULL);
    f->tokens = calloc((size_t)FETCH_JOBS * max_tokens + 1, sizeof *f->tokens);
    f->has_thread = f->tokens && disk_reader_init(&f->reader, max_tokens) &&
                    thread_start(&f->thread, thread_main, f);
    if (f->has_thread)
        return SLUICE_OK;
    disk_fetch_close(f);
    *out = NULL;
    return err_memory(err, "the thread that reads the cache on disk");
}

void disk_fetch_close(struct disk_fetch *f) {
    if (!f)
        return;
    if (f->has_thread)
        thread_stop(f->thread, &f->lock, &f->work, &f->is_ending);
    for (; f->n > 0; f->n--, f->first = (f->first + 1) % FETCH_JOBS)
        if (host_tier_begin(f->host, f->jobs[f->first].host_object))
            host_tier_end(f->host, f->jobs[f->first].host_object, false);
    pthread_cond_destroy(&f->work);
    pthread_mutex_destroy(&f->lock);
    disk_reader_free(&f->reader);
    free(f->tokens);
    free(f);
}

bool disk_fetch_has_room(struct disk_fetch *f) {
    pthread_mutex_lock(&f->lock);
    bool has_room = f->n < FETCH_JOBS;
    pthread_mutex_unlock(&f->lock);
    return has_room;
}

void disk_fetch_begin(struct disk_fetch *f, uint32_t object, const int32_t *tokens,
                      uint32_t host_object) {
    const struct fetch made = {disk_tier_meta(f->disk, object), host_object};
    CHECK(made.meta.n_tokens <= f->max_tokens);
    pthread_mutex_lock(&f->lock);
    CHECK(f->n < FETCH_JOBS);
    uint32_t number = (f->first + f->n) % FETCH_JOBS;
    f->jobs[number] = made;
    if (made.meta.n_tokens)
        memcpy(tokens_of(f, number), tokens, made.meta.n_tokens * sizeof *tokens);
    f->n++;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
}

struct sluice_moved disk_fetch_moved(struct disk_fetch *f) {
    pthread_mutex_lock(&f->lock);
    struct sluice_moved moved = f->moved;
    pthread_mutex_unlock(&f->lock);
    return moved;
}
