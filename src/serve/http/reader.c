/* reader.c - threads for what takes long with a single request. */
#include "serve/http/reader.h"

#include <malloc.h>

#include "base/thread.h"
#include "serve/http/exchange.h"

enum { THREADS = 2 };

struct reader {
    pthread_t threads[THREADS];
    int n_threads;
    pthread_mutex_t lock;
    pthread_cond_t wakes;
    struct exchange *first, **end; /* by next_long */
    bool is_closing;
};

static struct exchange *take(struct reader *r) {
    pthread_mutex_lock(&r->lock);
    while (!r->first && !r->is_closing)
        pthread_cond_wait(&r->wakes, &r->lock);
    struct exchange *x = r->first;
    if (x) {
        r->first = x->next_long;
        if (!r->first)
            r->end = &r->first;
    }
    pthread_mutex_unlock(&r->lock);
    return x;
}

static void *work(void *user) {
    struct exchange *x;
    while ((x = take(user))) {
        bool is_long = x->is_long;
        x->long_task(x);
        exchange_release(x);
        if (is_long)
            malloc_trim(0); /* or hundreds of megabytes stay with the process */
    }
    return NULL;
}

bool reader_run(struct reader *r, struct exchange *x, void (*task)(struct exchange *x)) {
    pthread_mutex_lock(&r->lock);
    bool is_good = !r->is_closing;
    if (is_good) {
        x->next_long = NULL;
        x->long_task = task;
        x->refs++;
        *r->end = x;
        r->end = &x->next_long;
        pthread_cond_signal(&r->wakes);
    }
    pthread_mutex_unlock(&r->lock);
    return is_good;
}

bool reader_is_stopped(struct reader *r) {
    pthread_mutex_lock(&r->lock);
    bool is = r->is_closing;
    pthread_mutex_unlock(&r->lock);
    return is;
}

int reader_open(struct reader **out, struct err *err) {
    struct reader *r = calloc(1, sizeof *r);
    *out = r;
    if (!r)
        return err_memory(err, "the reader");
    r->end = &r->first;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wakes, NULL);
    while (r->n_threads < THREADS && thread_start(&r->threads[r->n_threads], work, r))
        r->n_threads++;
    if (r->n_threads > 0)
        return SLUICE_OK;
    reader_close(r);
    *out = NULL;
    return err_memory(err, "the reader's thread");
}

void reader_stop(struct reader *r) {
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->is_closing = true;
    pthread_cond_broadcast(&r->wakes);
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < r->n_threads; i++)
        pthread_join(r->threads[i], NULL);
    r->n_threads = 0;
}

void reader_close(struct reader *r) {
    if (!r)
        return;
    reader_stop(r);
    pthread_cond_destroy(&r->wakes);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
