/* server.h - the HTTP server: its options, opening, draining, closing.
 *
 * It listens before there is a model: problems with addresses, files and folders are reported
 * before minutes of loading. Until server_start requests are answered with 503.
 *
 * Threads: the caller's, a few of libmicrohttpd's that read requests, render prompts and send
 * responses (exchange.h), three for slow work of a single request (background.h), the worker that
 * runs the engine (worker.h), the writer that turns tokens into the text of responses (writer.h),
 * and one that watches connections (peers.h). All sleep when there is nothing to do. */
#ifndef SERVE_HTTP_SERVER_H
#define SERVE_HTTP_SERVER_H

#include <jansson.h>

#include "base/err.h"
#include "sluice.h"

enum { SERVER_MAX_NAMES = 64 };

/* Begin with server_options_default. All is borrowed until server_close. */
struct server_options {
    const char *host; /* an address or name; NULL where unix_path or inherited_fd is given */
    int port;         /* 0: any free one */
    const char *unix_path;
    int inherited_fd;                   /* a socket that listens already (systemd); -1: none */
    const char *prefix;                 /* before all paths: "/llm"; "": none */
    const char *api_key;                /* NULL: none required */
    const char *cors[SERVER_MAX_NAMES]; /* origins of pages that may use it; "*": all */
    int n_cors;
    const char *allowed[SERVER_MAX_NAMES]; /* more host names it answers to; "*": all */
    int n_allowed;

    uint32_t queue;       /* answers that may wait */
    bool has_no_bursts;   /* every submission is one step */
    uint32_t max_answers; /* of one request: `n` */
    size_t body_bytes;    /* of a request at most */
    size_t backlog_bytes; /* that a client may leave unread before it is cut off: not counting the
                           * longest event, and what ends the stream */
    unsigned connections; /* at most */
    double idle_seconds;  /* time for a connection to send a whole request */
    double ping_seconds;  /* streams with nothing to send get a ping after so long; 0: none */

    const char *snapshot_dir; /* folder for that of /v1/snapshots; NULL: they are in memory */
    uint64_t snapshot_bytes;  /* of them at most */
    const char *access_log;   /* a file, "-": stderr, NULL: none */
    bool logs_prompts;
};
struct server_options server_options_default(void);

/* What is served. All is borrowed until server_close. */
struct served {
    const sluice_model *model;
    sluice_engine *engine;           /* the server's until it is closed */
    const char *name;                /* of the model, for clients */
    const char *template;            /* a chat template's text; NULL: the model's own */
    struct sluice_sampling sampling; /* defaults of requests */
    /* The plan of a step as JSON, NULL: it failed. is_timed: it is run for that, by the thread that
     * owns the engine. NULL: the server has none to show. */
    json_t *(*plan)(void *user, bool is_timed);
    void *plan_user;
};

struct server;

/* Listens from here on. *out is NULL on failure. */
int server_open(struct server **out, const struct server_options *options, struct err *err);
/* Serves from here on, until it is closed. After a failure server_close is all that is left. */
int server_start(struct server *server, const struct served *served, struct err *err);
/* Where it listens: "http://127.0.0.1:8080", "unix:/run/sluice.sock". */
const char *server_address(const struct server *server);
/* Maximum connections: fewer than asked for if the process may not have the descriptors. */
unsigned server_connections(const struct server *server);
/* Requests that are not answered yet. */
int server_requests(const struct server *server);
/* No new connections, no new requests; returns when all running ones are answered, or after this
 * many seconds, when they are cut off. */
void server_drain(struct server *server, double seconds);
/* What still runs is cut off. Takes NULL. */
void server_close(struct server *server);

#endif
