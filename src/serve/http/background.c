/* background.c - threads for what takes long with a single request. */
#include "serve/http/background.h"

#include <malloc.h>

#include "base/thread.h"
#include "serve/http/exchange.h"

enum { THREADS = 2 };

struct background {
    pthread_t threads[THREADS];
    int n_threads;
    pthread_mutex_t lock;
    pthread_cond_t wakes;
    struct exchange *first, **end; /* by next_long */
    bool is_closing;
};

static struct exchange *take(struct background *b) {
    pthread_mutex_lock(&b->lock);
    while (!b->first && !b->is_closing)
        pthread_cond_wait(&b->wakes, &b->lock);
    struct exchange *x = b->first;
    if (x) {
        b->first = x->next_long;
        if (!b->first)
            b->end = &b->first;
    }
    pthread_mutex_unlock(&b->lock);
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

bool background_run(struct background *b, struct exchange *x, void (*task)(struct exchange *x)) {
    pthread_mutex_lock(&b->lock);
    bool is_good = !b->is_closing;
    if (is_good) {
        x->next_long = NULL;
        x->long_task = task;
        x->refs++;
        *b->end = x;
        b->end = &x->next_long;
        pthread_cond_signal(&b->wakes);
    }
    pthread_mutex_unlock(&b->lock);
    return is_good;
}

bool background_is_stopped(struct background *b) {
    pthread_mutex_lock(&b->lock);
    bool is = b->is_closing;
    pthread_mutex_unlock(&b->lock);
    return is;
}

int background_open(struct background **out, struct err *err) {
    struct background *b = calloc(1, sizeof *b);
    *out = b;
    if (!b)
        return err_memory(err, "threads for long requests");
    b->end = &b->first;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->wakes, NULL);
    while (b->n_threads < THREADS && thread_start(&b->threads[b->n_threads], work, b))
        b->n_threads++;
    if (b->n_threads > 0)
        return SLUICE_OK;
    background_close(b);
    *out = NULL;
    return err_memory(err, "a thread for long requests");
}

void background_stop(struct background *b) {
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->is_closing = true;
    pthread_cond_broadcast(&b->wakes);
    pthread_mutex_unlock(&b->lock);
    for (int i = 0; i < b->n_threads; i++)
        pthread_join(b->threads[i], NULL);
    b->n_threads = 0;
}

void background_close(struct background *b) {
    if (!b)
        return;
    background_stop(b);
    pthread_cond_destroy(&b->wakes);
    pthread_mutex_destroy(&b->lock);
    free(b);
}
