/* exchange.h - a request and its response, from the first header to the last byte.
 *
 * libmicrohttpd's threads bring the request and fetch the response; a route's handler either
 * answers at once (exchange_reply_json, exchange_refuse) or starts answers of the model
 * (exchange_converse). Then the writer's thread takes over: it alone touches `answers` and `draft`,
 * and what it moves to `out` is sent. While there is nothing to send the connection is suspended.
 *
 * (1) An exchange lives as long as the connection, the worker or the writer's queue refers to it.
 * (2) When the client goes away its job is cancelled; when it reads too slowly, it is cut off. */
#ifndef SERVE_HTTP_EXCHANGE_H
#define SERVE_HTTP_EXCHANGE_H

#include <microhttpd.h>
#include <time.h>

#include "serve/answer.h"
#include "serve/http/routes.h"
#include "serve/http/server.h"

struct exchange;

/* How an API writes the answers of the model. All but `begin` are called by the writer's thread, or
 * at the end by the background's, and append to draft; NULL ones are skipped. */
struct style {
    const char *stream_type;           /* of the content */
    void (*begin)(struct exchange *x); /* before the job is submitted; sent once it is accepted */
    void (*delta)(struct exchange *x, struct answer *a, const struct answer_delta *delta);
    void (*end)(struct exchange *x, struct answer *a);     /* at the end of an answer */
    void (*done)(struct exchange *x);                      /* at the end of all */
    void (*fail)(struct exchange *x, const char *message); /* in a stream that has begun */
    json_t *(*whole)(struct exchange *x); /* the response when it is not streamed */
    const char *ping;                     /* what clients skip, sent while nothing else is */
    bool has_all_deltas;                  /* `delta` is called for it, too */
    bool repeats_request;                 /* so its end takes long where the request is long */
    bool needs_all_digits; /* it has numbers of the client's, or of the model's in tool calls */
};

enum reply { REPLY_NONE, REPLY_WHOLE, REPLY_STREAM };

/* The query: "after=ID&limit=N&order=asc" for lists, and "stream=true". "": absent, "?": too long.
 */
struct query {
    char after[96], limit[8], order[8], stream[8];
};

struct exchange {
    struct server *server;
    struct MHD_Connection *connection; /* NULL: completed */
    struct peer *peer;
    const struct route *route; /* NULL: no such path */
    enum api api;              /* that the path belongs to */
    atomic_int refs;
    char id[32], method[12], *path;
    char *authority;                /* of a request with a whole address; NULL: see Host */
    char allowed[ROUTE_ALLOWED];    /* methods that the path allows, if not this one */
    char name[SNAPSHOT_MAX_ID + 1]; /* the id in the path; "": its route has none */
    struct query query;
    double arrived; /* seconds_now */
    time_t created;
    struct buffer body;
    bool is_too_long, is_handled;
    bool has_long_uri;                     /* its query was dropped */
    bool is_crowded;                       /* there are already too many long bodies */
    bool is_long;                          /* it, or its response, has many parts */
    struct exchange *next_long;            /* in the background's queue, under its lock */
    void (*long_task)(struct exchange *x); /* what it does there */
    bool is_left;                          /* nobody else refers to it */
    size_t tree_bytes;                     /* of its body as JSON, about */
    bool ends_connection;                  /* nothing is read after it */

    /* The model's answers. */
    struct ask *ask;
    const struct style *style;
    struct job job;
    bool has_job;
    struct answer *answers;
    uint32_t n_answers, n_ended;
    bool has_begun;         /* style->begin was called */
    bool has_ended;         /* the writer has nothing more to do */
    atomic_bool is_written; /* in the background: the writer leaves it alone until it is back */
    struct buffer draft;
    int block, n_blocks; /* for a style that numbers parts of its answer */
    void *own;           /* what else a style needs */
    void (*release_own)(void *own);
    struct job_news news;
    bool is_queued; /* in the writer's queue, under its lock */
    struct exchange *next_queued;
    struct exchange *next_stream,
        **at_stream;  /* in the writer's list of streams; NULL: it is not */
    double last_sent; /* there: seconds_now of its last text */

    pthread_mutex_t lock; /* guards all below */
    enum reply reply;
    int status;
    const char *type, *retry_after;
    bool has_page_policy; /* part of the chat page */
    char *location;       /* target of a redirect; NULL: none; owned */
    struct buffer out;
    size_t n_sent;    /* of out */
    size_t n_longest; /* of what was added to it at once: nobody reads that so fast */
    uint64_t bytes;
    bool is_over; /* nothing will be added to out */
    bool is_cut, is_gone, is_suspended;
    bool is_half; /* the client sends nothing more, and may be gone */
};

/* ---- for handlers ------------------------------------------------------------------------- */

/* Both take the JSON. Floats have the digits of our own, or all that they need (buffer.h). */
void exchange_reply_json(struct exchange *x, int status, json_t *body);
void exchange_reply_json_all_digits(struct exchange *x, int status, json_t *body);
void exchange_reply_body(struct exchange *x, int status, const char *type, struct str body);
/* The API's own error; `param` is the wrong field, NULL: none. */
void exchange_refuse(struct exchange *x, int status, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same for a wrong field, and for a failed call. What failed because of a file or the device
 * may name paths: then the log has the error, and the client the id under which it is there. */
void exchange_refuse_field(struct exchange *x, const struct fields *f);
void exchange_refuse_status(struct exchange *x, int status, const struct err *err);
/* Makes an ask of the request's body, and the fields to fill it from; NULL: already refused. */
struct ask *exchange_ask(struct exchange *x, struct fields *f);
/* Encodes the ask's messages, if any, after those of the snapshot that the field `snapshot` names.
 * False: refused, also because of a wrong field. */
bool exchange_encode(struct exchange *x, struct ask *ask, struct fields *f);
/* Takes the ask, encodes it, and starts its answers; or refuses it. */
void exchange_converse(struct exchange *x, struct ask *ask, struct fields *f,
                       const struct style *style);

/* Tokens of all answers so far, for usage. */
struct usage_counts {
    uint64_t prompt, cached, new_tokens, reasoning;
};
struct usage_counts exchange_usage(const struct exchange *x);
/* Tokens of the prompt found in the cache, by tier, and why not more. */
json_t *exchange_reuse(const struct sluice_reuse *reuse);

/* ---- for the writer and the server -------------------------------------------------------- */

struct exchange *exchange_open(struct server *server, struct MHD_Connection *connection,
                               const char *method, const char *path);
void exchange_release(struct exchange *x); /* one reference */
/* Its route handles it, in the background. */
void exchange_read(struct exchange *x);
/* New tokens and ends become text; the writer's thread. */
void exchange_write(struct exchange *x);
/* Sends the style's ping; the writer's thread. */
void exchange_ping(struct exchange *x);
/* Drops the request's body. */
void exchange_drop_body(struct exchange *x);
/* The client is gone: its answers end. Any thread. */
void exchange_abandon(struct exchange *x);
/* The client has closed its side: it is gone, or waits for the rest; there is no way to tell. An
 * immediate response is sent; answers of the model end, as libmicrohttpd (0.9.75) closes a
 * suspended connection when it sees that. Any thread. */
void exchange_half_close(struct exchange *x);
/* Sends what there is, or suspends the connection. libmicrohttpd's thread. */
enum MHD_Result exchange_respond(struct exchange *x);

#endif
