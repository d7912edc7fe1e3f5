/* writer.c - the thread that turns tokens into the text of responses. */
#include "serve/http/writer.h"

#include "base/thread.h"
#include "serve/http/exchange.h"

struct writer {
    pthread_t thread;
    bool has_thread, is_closing;
    pthread_mutex_t lock;
    pthread_cond_t wakes;
    struct exchange *first, **end;
};

static struct exchange *take(struct writer *w) {
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->is_closing)
        pthread_cond_wait(&w->wakes, &w->lock);
    struct exchange *x = w->first;
    if (x) {
        w->first = x->next_queued;
        if (!w->first)
            w->end = &w->first;
        x->is_queued = false;
    }
    pthread_mutex_unlock(&w->lock);
    return x;
}

static void *work(void *user) {
    struct exchange *x;
    while ((x = take(user))) {
        exchange_write(x);
        exchange_release(x);
    }
    return NULL;
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

int writer_open(struct writer **out, struct err *err) {
    struct writer *w = calloc(1, sizeof *w);
    *out = w;
    if (!w)
        return err_memory(err, "the writer");
    w->end = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wakes, NULL);
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
