/* background.c - threads for slow work of a single request. */
#include "serve/http/background.h"

#include "base/memory.h"
#include "base/thread.h"
#include "serve/http/exchange.h"

enum { ANY = 2, THREADS = ANY + 1 }; /* that take any task; and one for short tasks alone */

struct queue {
    struct exchange *first, **end; /* by next_long */
};

struct background {
    struct lane {
        struct background *of;
        bool takes_long;
        pthread_t thread;
    } lanes[THREADS];
    int n_threads;
    pthread_mutex_t lock;
    pthread_cond_t wakes;
    struct queue longs, others;
    bool is_closing;
};

static void add(struct queue *q, struct exchange *x) {
    x->next_long = NULL;
    *q->end = x;
    q->end = &x->next_long;
}

static struct exchange *first_of(struct queue *q) {
    struct exchange *x = q->first;
    if (x)
        q->first = x->next_long;
    if (!q->first)
        q->end = &q->first;
    return x;
}

/* NULL: stopped, and none is left. */
static struct exchange *take(struct lane *lane) {
    struct background *b = lane->of;
    struct exchange *x = NULL;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        if (lane->takes_long)
            x = first_of(&b->longs);
        if (!x)
            x = first_of(&b->others);
        if (x || b->is_closing)
            break;
        pthread_cond_wait(&b->wakes, &b->lock);
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
            memory_trim(); /* hundreds of megabytes */
    }
    return NULL;
}

bool background_run(struct background *b, struct exchange *x, void (*task)(struct exchange *x)) {
    pthread_mutex_lock(&b->lock);
    bool is_good = !b->is_closing;
    if (is_good) {
        x->long_task = task;
        x->refs++;
        add(x->is_long ? &b->longs : &b->others, x);
        pthread_cond_broadcast(&b->wakes); /* a single woken thread may be the wrong one */
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
    b->longs.end = &b->longs.first;
    b->others.end = &b->others.first;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->wakes, NULL);
    for (; b->n_threads < THREADS; b->n_threads++) {
        struct lane *lane = &b->lanes[b->n_threads];
        *lane = (struct lane){.of = b, .takes_long = b->n_threads < ANY};
        if (!thread_start(&lane->thread, work, lane))
            break;
    }
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
        pthread_join(b->lanes[i].thread, NULL);
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
