/* writer.c - the thread that turns tokens into the text of responses. */
#include "serve/http/writer.h"

#include <errno.h>
#include <math.h>

#include "base/clock.h"
#include "base/thread.h"
#include "serve/http/exchange.h"

struct writer {
    pthread_t thread;
    bool has_thread, is_closing;
    pthread_mutex_t lock;
    pthread_cond_t wakes;
    struct exchange *first, **end;

    /* The thread's own. */
    double ping_seconds;
    struct exchange *streams;
    double next_ping; /* when to look at them again */
};

/* Until there is something to write, or a ping may be due. */
static void wait(struct writer *w) {
    double next = w->streams ? w->next_ping : 0, whole = floor(next);
    struct timespec until = {.tv_sec = (time_t)whole, .tv_nsec = (long)(1e9 * (next - whole))};
    int status = 0;
    while (!w->first && !w->is_closing && status != ETIMEDOUT)
        status = w->streams ? pthread_cond_timedwait(&w->wakes, &w->lock, &until)
                            : pthread_cond_wait(&w->wakes, &w->lock);
}

/* False: the writer closes. *out may be NULL. */
static bool take(struct writer *w, struct exchange **out) {
    pthread_mutex_lock(&w->lock);
    wait(w);
    struct exchange *x = *out = w->first;
    if (x) {
        w->first = x->next_queued;
        if (!w->first)
            w->end = &w->first;
        x->is_queued = false;
    }
    bool goes_on = x || !w->is_closing;
    pthread_mutex_unlock(&w->lock);
    return goes_on;
}

static void ping(struct writer *w) {
    double now = seconds_now();
    w->next_ping = INFINITY;
    for (struct exchange *x = w->streams; x; x = x->next_stream) {
        if (now - x->last_sent >= w->ping_seconds)
            exchange_ping(x);
        w->next_ping = fmin(w->next_ping, x->last_sent + w->ping_seconds);
    }
}

static void *work(void *user) {
    struct writer *w = user;
    struct exchange *x;
    while (take(w, &x)) {
        if (x) {
            exchange_write(x);
            exchange_release(x);
        }
        if (w->streams && seconds_now() >= w->next_ping)
            ping(w);
    }
    return NULL;
}

void writer_watch(struct writer *w, struct exchange *x) {
    if (x->at_stream || w->ping_seconds <= 0)
        return;
    x->last_sent = seconds_now();
    if (!w->streams)
        w->next_ping = x->last_sent + w->ping_seconds;
    x->refs++;
    x->next_stream = w->streams;
    x->at_stream = &w->streams;
    if (x->next_stream)
        x->next_stream->at_stream = &x->next_stream;
    w->streams = x;
}

void writer_leave(struct exchange *x) {
    if (!x->at_stream)
        return;
    *x->at_stream = x->next_stream;
    if (x->next_stream)
        x->next_stream->at_stream = x->at_stream;
    x->at_stream = NULL;
    exchange_release(x);
}

void writer_add(struct writer *w, struct exchange *x) {
    pthread_mutex_lock(&w->lock);
    if (!x->is_queued) {
        bool was_empty = !w->first;
        x->is_queued = true;
        x->next_queued = NULL;
        x->refs++;
        *w->end = x;
        w->end = &x->next_queued;
        if (was_empty)
            pthread_cond_signal(&w->wakes);
    }
    pthread_mutex_unlock(&w->lock);
}

int writer_open(struct writer **out, double ping_seconds, struct err *err) {
    pthread_condattr_t attributes;
    struct writer *w = calloc(1, sizeof *w);
    *out = w;
    if (!w)
        return err_memory(err, "the writer");
    w->end = &w->first;
    w->ping_seconds = ping_seconds;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* of seconds_now */
    pthread_cond_init(&w->wakes, &attributes);
    pthread_condattr_destroy(&attributes);
    w->has_thread = thread_start(&w->thread, work, w);
    if (w->has_thread)
        return SLUICE_OK;
    writer_close(w);
    *out = NULL;
    return err_memory(err, "the writer's thread");
}

void writer_close(struct writer *w) {
    if (!w)
        return;
    if (w->has_thread)
        thread_stop(w->thread, &w->lock, &w->wakes, &w->is_closing);
    pthread_cond_destroy(&w->wakes);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
