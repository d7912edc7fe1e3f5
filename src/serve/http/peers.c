/* peers.c - the connections, and a thread that watches them.
 *
 * (1) A peer is in the list from peer_open to peer_close, and its socket is open in that time.
 * (2) Events name peers by number, as a peer may be gone when its event is looked at. */
#include "serve/http/peers.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "serve/http/exchange.h"

struct peer {
    int fd;
    uint64_t number;
    double since; /* since when it waits for a request */
    bool is_gone, is_shut;
    bool is_half; /* it sends nothing more; whether it still reads is unknown */
    struct exchange *exchange;
    struct peer *next, *previous;
};

struct peers {
    pthread_t thread;
    bool has_thread;
    int epoll, poke;
    double idle_seconds;
    unsigned max; /* connections */
    pthread_mutex_t lock;
    struct peer *list;
    uint64_t last;
    bool is_closing;
};

static void wake(struct peers *p) {
    uint64_t one = 1;
    ssize_t n = write(p->poke, &one, sizeof one);
    (void)n; /* full: it is awake */
}

struct peer *peer_open(struct peers *p, int fd) {
    struct peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return NULL;
    pthread_mutex_lock(&p->lock);
    bool was_empty = !p->list;
    *peer = (struct peer){.fd = fd, .number = ++p->last, .since = seconds_now(), .next = p->list};
    if (p->list)
        p->list->previous = peer;
    p->list = peer;
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.u64 = peer->number};
    epoll_ctl(p->epoll, EPOLL_CTL_ADD, fd, &event);
    pthread_mutex_unlock(&p->lock);
    if (was_empty)
        wake(p);
    return peer;
}

void peer_close(struct peers *p, struct peer *peer) {
    if (!peer)
        return;
    pthread_mutex_lock(&p->lock);
    epoll_ctl(p->epoll, EPOLL_CTL_DEL, peer->fd, NULL);
    if (peer->next)
        peer->next->previous = peer->previous;
    *(peer->previous ? &peer->previous->next : &p->list) = peer->next;
    pthread_mutex_unlock(&p->lock);
    free(peer);
}

/* Makes libmicrohttpd see an end that came together with a request: it has read only the request,
 * and would wait for another. What was sent can still be read. */
static void end_reading(const struct peer *peer) {
    shutdown(peer->fd, SHUT_RD);
}

bool peer_works(struct peers *p, struct peer *peer, struct exchange *x) {
    if (!peer)
        return true;
    pthread_mutex_lock(&p->lock);
    bool is_there = !peer->is_gone;
    peer->exchange = x;
    if (!x)
        peer->since = seconds_now();
    if (x && peer->is_half)
        exchange_half_close(x);
    else if (peer->is_half)
        end_reading(peer);
    pthread_mutex_unlock(&p->lock);
    return is_there;
}

/* A client that closed its sending side may be gone altogether. */
static void on_event(struct peers *p, uint64_t number, uint32_t events) {
    bool is_gone = events & (EPOLLHUP | EPOLLERR);
    pthread_mutex_lock(&p->lock);
    for (struct peer *peer = p->list; peer; peer = peer->next) {
        if (peer->number != number)
            continue;
        peer->is_gone |= is_gone;
        peer->is_half = true;
        if (peer->exchange && is_gone)
            exchange_abandon(peer->exchange);
        else if (peer->exchange)
            exchange_half_close(peer->exchange);
        else
            end_reading(peer);
    }
    pthread_mutex_unlock(&p->lock);
}

static bool is_waiting(const struct peer *peer) {
    return !peer->exchange && !peer->is_shut;
}

static void shut(struct peer *peer) {
    peer->is_shut = true;
    shutdown(peer->fd, SHUT_RDWR); /* libmicrohttpd sees it and closes */
}

/* While nearly all connections are taken, those that have waited longest for a request, a
 * second at least, make room: else a thousand that send nothing would keep everybody out. */
static void make_room(struct peers *p, double now) {
    enum { MAX_WORK = 1 << 20 }; /* peers looked at */
    unsigned n = 0, spare = p->max / 8 + 1;
    for (const struct peer *peer = p->list; peer; peer = peer->next)
        n += !peer->is_shut;
    for (unsigned work = 0; n + spare > p->max && work < MAX_WORK; work += n--) {
        struct peer *oldest = NULL;
        for (struct peer *peer = p->list; peer; peer = peer->next)
            if (is_waiting(peer) && (!oldest || peer->since < oldest->since))
                oldest = peer;
        if (!oldest || now - oldest->since < 1)
            break;
        shut(oldest);
    }
}

/* Closes idle connections; returns the milliseconds until the next check, -1: none to check. */
static int shut_idle(struct peers *p) {
    double now = seconds_now();
    pthread_mutex_lock(&p->lock);
    for (struct peer *peer = p->list; peer; peer = peer->next)
        if (is_waiting(peer) && now - peer->since > p->idle_seconds)
            shut(peer);
    make_room(p, now);
    int milliseconds = p->list ? 500 : -1;
    pthread_mutex_unlock(&p->lock);
    return milliseconds;
}

static bool is_closing(struct peers *p) {
    pthread_mutex_lock(&p->lock);
    bool is = p->is_closing;
    pthread_mutex_unlock(&p->lock);
    return is;
}

static void *watch(void *user) {
    struct peers *p = user;
    struct epoll_event events[32];
    while (!is_closing(p)) {
        int n = epoll_wait(p->epoll, events, 32, shut_idle(p));
        for (int i = 0; i < n; i++) {
            uint64_t ignored;
            if (events[i].data.u64)
                on_event(p, events[i].data.u64, events[i].events);
            else if (read(p->poke, &ignored, sizeof ignored) < 0)
                break;
        }
    }
    return NULL;
}

int peers_open(struct peers **out, unsigned max, double idle_seconds, struct err *err) {
    struct peers *p = calloc(1, sizeof *p);
    struct epoll_event event = {.events = EPOLLIN};
    *out = p;
    if (!p)
        return err_memory(err, "the connections");
    p->max = max;
    p->idle_seconds = idle_seconds;
    pthread_mutex_init(&p->lock, NULL);
    p->epoll = epoll_create1(EPOLL_CLOEXEC);
    p->poke = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bool is_good =
        p->epoll >= 0 && p->poke >= 0 && epoll_ctl(p->epoll, EPOLL_CTL_ADD, p->poke, &event) == 0;
    p->has_thread = is_good && thread_start(&p->thread, watch, p);
    if (p->has_thread)
        return SLUICE_OK;
    peers_close(p);
    *out = NULL;
    return err_memory(err, "the thread that watches connections");
}

void peers_close(struct peers *p) {
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->is_closing = true;
    pthread_mutex_unlock(&p->lock);
    wake(p);
    if (p->has_thread)
        pthread_join(p->thread, NULL);
    while (p->list) {
        struct peer *next = p->list->next;
        free(p->list);
        p->list = next;
    }
    if (p->epoll >= 0)
        close(p->epoll);
    if (p->poke >= 0)
        close(p->poke);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
