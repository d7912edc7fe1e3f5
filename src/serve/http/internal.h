/* internal.h - the server's struct, for its own files.
 *
 * What libmicrohttpd's threads, the background and the writer share is read-only after
 * server_start, atomic, or guarded by the lock of its own module. */
#ifndef SERVE_HTTP_INTERNAL_H
#define SERVE_HTTP_INTERNAL_H

#include "serve/http/background.h"
#include "serve/http/exchange.h"
#include "serve/http/peers.h"
#include "serve/http/writer.h"

struct server {
    struct server_options options;
    struct served served; /* once is_started; so are model and worker */
    struct ask_model model;
    struct metrics metrics;
    struct store *replay;
    struct store *responses; /* of /v1/responses, by their ids */
    struct snapshots *snapshots;
    struct worker *worker;
    struct writer *writer;
    struct background *background;
    atomic_size_t body_bytes; /* of all current requests */
    atomic_size_t tree_bytes; /* of all as JSON, about */
    struct peers *peers;
    struct access_log *log; /* NULL: none */
    pthread_mutex_t plan_lock;
    struct buffer plan; /* as JSON, under the lock; empty: there is none */
    double planned_at;  /* seconds_now */
    struct MHD_Daemon *daemon;
    int listener;
    bool is_loopback; /* reachable from this machine only: host names are checked */
    bool has_unlink;  /* of the Unix socket's path */
    time_t created;
    atomic_bool is_started, is_draining;
    char address[256];
};

/* The plan of a step (plan.c): makes its lock, and fills in what is known without running it. */
void plan_open(struct server *server);
int plan_start(struct server *server, struct err *err);
void plan_close(struct server *server);

#endif
