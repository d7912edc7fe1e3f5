/* server.c - the HTTP server: listening, requests to routes, draining. */
#include "serve/http/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "serve/http/access_log.h"
#include "serve/http/guard.h"
#include "serve/http/internal.h"

struct server_options server_options_default(void) {
    return (struct server_options){
        .host = "127.0.0.1",
        .port = 8080,
        .inherited_fd = -1,
        .prefix = "",
        .queue = 256,
        .max_answers = 16,
        .body_bytes = 16 << 20,
        .backlog_bytes = 1 << 20,
        .snapshot_bytes = 64 << 20,
        .connections = 1024,
        .idle_seconds = 60,
        .ping_seconds = 15,
    };
}

/* ---- requests ----------------------------------------------------------------------------- */

/* The path after the prefix; NULL: it has another. */
static const char *after_prefix(const struct server *s, const char *path) {
    size_t n = strlen(s->options.prefix);
    if (strncmp(path, s->options.prefix, n) != 0 || (path[n] != '/' && path[n] != 0))
        return NULL;
    return path[n] ? path + n : "/";
}

/* A browser retries by itself. */
static void refuse_until_started(struct exchange *x) {
    static const char page[] = "<!doctype html><meta charset=utf-8>"
                               "<meta http-equiv=refresh content=1><title>Loading</title>"
                               "<p>The model is loading.";
    if (strcmp(x->route->path, "/") == 0)
        exchange_reply_body(x, 503, "text/html; charset=utf-8", str_of(page));
    else
        exchange_refuse(x, 503, NULL, "the model is loading");
}

/* What a connection holds of a request: its line and headers, and a record for each header and
 * argument. */
enum { HEADER_BYTES = 32768, MAX_URI_BYTES = HEADER_BYTES / 2, MAX_ARGUMENTS = 64 };

static void copy_argument(const struct exchange *x, const char *name, char *out, size_t size) {
    const char *value = MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, name);
    snprintf(out, size, "%s", !value ? "" : strlen(value) < size ? value : "?");
}

/* Handlers that run in the background cannot access the connection. */
static void copy_query(struct exchange *x) {
    struct query *q = &x->query;
    copy_argument(x, "after", q->after, sizeof q->after);
    copy_argument(x, "limit", q->limit, sizeof q->limit);
    copy_argument(x, "order", q->order, sizeof q->order);
    copy_argument(x, "stream", q->stream, sizeof q->stream);
}

/* `path`: after the prefix; NULL: it has another. */
static void refuse_path(struct exchange *x, const char *path) {
    const char *hint = path ? route_hint(path) : NULL, *prefix = x->server->options.prefix;
    struct str meant = path && !hint ? route_meant(path) : STR("");
    size_t n_before = meant.len ? (size_t)(meant.at - path) : 0;
    bool is_twice =
        n_before < meant.len && memcmp(path, meant.at, n_before) == 0 && meant.at[n_before] == '/';
    if (!path)
        exchange_refuse(x, 404, NULL, "there is no %.200s: all paths begin with %s", x->path,
                        *prefix ? prefix : "/");
    else if (n_before)
        exchange_refuse(x, 404, NULL, "there is no %.200s: it has %.*s %s, expected %s%.*s",
                        x->path, (int)n_before, path, is_twice ? "twice" : "before the path",
                        prefix, (int)meant.len, meant.at);
    else if (meant.len)
        exchange_refuse(x, 404, NULL, "there is no %.200s: it ends with /, expected %s%.*s",
                        x->path, prefix, (int)meant.len, meant.at);
    else
        exchange_refuse(x, 404, NULL, "there is no %.200s%s%s", x->path, hint ? ": " : "",
                        hint ? hint : "");
}

/* The headers are there. False: the request is answered already. */
static bool admit(struct exchange *x) {
    const struct server *s = x->server;
    const char *path = after_prefix(s, x->path);
    const char *length =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Content-Length");
    const char *coding =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Content-Encoding");
    x->route = path ? route_find(x->method, path, x->allowed, x->name) : NULL;
    x->api = x->route ? x->route->api : api_of_path(path ? path : x->path);
    if (MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "anthropic-version"))
        x->api = API_ANTHROPIC; /* its clients list models under the same path */
    if (!guard_admits(x))
        return false;
    copy_query(x);
    if (x->has_long_uri)
        exchange_refuse(x, 414, NULL,
                        "the URI is too long, expected at most %d bytes and %d arguments",
                        MAX_URI_BYTES, MAX_ARGUMENTS);
    else if (strcmp(x->method, "OPTIONS") == 0 && s->options.n_cors > 0)
        exchange_reply_body(x, 204, NULL, STR(""));
    else if (!x->route && *x->allowed)
        exchange_refuse(x, 405, NULL, "%s takes %s, not %s", x->path, x->allowed, x->method);
    else if (!x->route)
        refuse_path(x, path);
    else if (!s->is_started)
        refuse_until_started(x);
    else if (s->is_draining && !x->route->is_open)
        exchange_refuse(x, 503, NULL, "the server is shutting down");
    else if (coding && *coding && strcasecmp(coding, "identity") != 0)
        exchange_refuse(x, 415, NULL, "Content-Encoding is %.40s, expected none", coding);
    else if (length && strtoull(length, NULL, 10) > s->options.body_bytes)
        exchange_refuse(x, 413, NULL, "the body has %.24s bytes, expected at most %zu", length,
                        s->options.body_bytes);
    else
        return true;
    return false;
}

/* This many bodies of maximum length may be in memory at once; short ones do not count. */
enum { MAX_BODIES = 8 };

static void take_body(struct exchange *x, const char *data, size_t n) {
    struct server *s = x->server;
    size_t max_bytes = s->options.body_bytes, length = x->body.len + n;
    x->is_too_long |= length > max_bytes;
    x->is_crowded |= length > BACKGROUND_BYTES && s->body_bytes + n > MAX_BODIES * max_bytes;
    if (x->is_too_long || x->is_crowded || !buffer_add(&x->body, data, n)) {
        exchange_drop_body(x);
        x->is_crowded |= !x->is_too_long;
        return;
    }
    s->body_bytes += n;
}

/* Whether it may take longer than milliseconds: by its length, by a stored conversation it names,
 * or by a schema that multiplies alternatives, also when keywords are written with escapes. */
static bool is_slow(const struct exchange *x) {
    static const char *const signs[] = {"snapshot", "previous_response_id", "allOf", "\\u00"};
    bool is = x->body.len > BACKGROUND_BYTES || *x->name ||
              strcmp(x->route->path, "/v1/snapshots") == 0; /* a file is written */
    for (size_t i = 0; !is && i < sizeof signs / sizeof *signs; i++)
        is = x->body.len && memmem(x->body.at, x->body.len, signs[i], strlen(signs[i]));
    return is;
}

static enum MHD_Result handle(struct exchange *x) {
    struct server *s = x->server;
    bool is_new = !x->is_handled;
    if (is_new && !peer_works(s->peers, x->peer, x))
        return MHD_NO;
    x->is_handled = true;
    if (is_new && x->is_too_long)
        exchange_refuse(x, 413, NULL, "the body has more than %zu bytes", s->options.body_bytes);
    else if (is_new && x->is_crowded)
        exchange_refuse(x, 429, NULL, "too many long requests are read already");
    else if (is_new && is_slow(x)) {
        x->is_long = x->body.len > BACKGROUND_BYTES;
        if (!background_run(s->background, x, exchange_read))
            exchange_read(x); /* which refuses it */
    } else if (is_new)
        x->route->handle(x);
    return exchange_respond(x);
}

static struct peer *peer_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* A response before the end of the body closes the connection, and a client that is still sending
 * may never see it: so a body of moderate length is read and dropped first. */
static bool is_answered_now(const struct exchange *x) {
    enum { MAX_DRAINED = 4 }; /* times the longest body that is accepted */
    const char *length =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Content-Length");
    return x->ends_connection ||
           MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Transfer-Encoding") ||
           MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Expect") ||
           (length && strtoull(length, NULL, 10) / MAX_DRAINED > x->server->options.body_bytes);
}

static char long_uri; /* its address marks a URI that is too long, until there is an exchange */

/* Called with the request line. libmicrohttpd (0.9.75) never answers a request whose arguments do
 * not fit its memory, so if there are many they are cut off here, and the request is refused with
 * its headers. The text is libmicrohttpd's own, which is about to parse it. */
static void *on_uri(void *user, const char *uri, struct MHD_Connection *connection) {
    size_t length = strlen(uri), n = 0;
    char *query = strchr(uri, '?');
    (void)user;
    (void)connection;
    for (const char *at = query; at; at = strchr(at + 1, '&'))
        n++;
    if (!query || (length <= MAX_URI_BYTES && n <= MAX_ARGUMENTS))
        return NULL;
    query[1] = 0;
    return &long_uri;
}

/* Called with the headers, with each part of the body, at its end, and when a suspended connection
 * goes on. */
static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **context) {
    bool has_long_uri = *context == &long_uri;
    struct exchange *x = has_long_uri ? NULL : *context;
    (void)version;
    if (!x) {
        x = *context = exchange_open(user, connection, method, url);
        if (!x || !x->path)
            return MHD_NO;
        x->has_long_uri = has_long_uri;
        x->peer = peer_of(connection);
        x->is_handled = !admit(x);
        return x->is_handled && is_answered_now(x) ? exchange_respond(x) : MHD_YES;
    }
    if (*n_data > 0) {
        if (!x->is_handled)
            take_body(x, data, *n_data);
        *n_data = 0;
        return MHD_YES;
    }
    return handle(x);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode code) {
    struct exchange *x = *context;
    struct server *s = user;
    (void)connection;
    if (!x || *context == &long_uri)
        return;
    peer_works(s->peers, x->peer, NULL);
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK)
        exchange_abandon(x);
    access_log_write(s->log, x);
    s->metrics.exchanges--;
    exchange_release(x);
}

static void on_connection(void *user, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code) {
    struct server *s = user;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *socket_context = info ? peer_open(s->peers, info->connect_fd) : NULL;
        s->metrics.connections++;
    } else {
        peer_close(s->peers, *socket_context);
        *socket_context = NULL;
        s->metrics.connections--;
    }
}

/* ---- listening ---------------------------------------------------------------------------- */

static int listen_unix(struct server *s, struct err *err) {
    const char *path = s->options.unix_path;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat before;
    if (strlen(path) >= sizeof address.sun_path)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "%s: %zu bytes, expected fewer than %zu for a socket", path, strlen(path),
                       sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path));
    s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listener < 0)
        return err_set(err, SLUICE_ERR_IO, "%s: %s", path, strerror(errno));
    bool is_there = lstat(path, &before) == 0;
    if (is_there && !S_ISSOCK(before.st_mode))
        return err_set(err, SLUICE_ERR_IO, "%s: exists and is not a socket", path);
    if (is_there) {
        bool is_taken = connect(s->listener, (struct sockaddr *)&address, sizeof address) == 0 ||
                        errno == EAGAIN; /* its queue is full */
        if (is_taken || errno != ECONNREFUSED)
            return err_set(err, SLUICE_ERR_IO, "%s: %s", path,
                           is_taken ? "another server listens there" : strerror(errno));
        unlink(path); /* left by a killed server */
    }
    if (bind(s->listener, (struct sockaddr *)&address, sizeof address) || listen(s->listener, 512))
        return err_set(err, SLUICE_ERR_IO, "%s: cannot listen: %s", path, strerror(errno));
    s->has_unlink = true;
    s->is_loopback = false;
    snprintf(s->address, sizeof s->address, "unix:%s", path);
    return SLUICE_OK;
}

static void write_address(struct server *s, const struct sockaddr *a, socklen_t size) {
    char host[128] = "?", port[16] = "?";
    getnameinfo(a, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    bool is_six = strchr(host, ':') != NULL;
    snprintf(s->address, sizeof s->address, "http://%s%s%s:%s%s", is_six ? "[" : "", host,
             is_six ? "]" : "", port, s->options.prefix);
}

static int listen_tcp(struct server *s, struct err *err) {
    const char *host = s->options.host;
    char port[16];
    struct addrinfo *found, want = {.ai_family = AF_UNSPEC,
                                    .ai_socktype = SOCK_STREAM,
                                    .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    int one = 1;
    snprintf(port, sizeof port, "%d", s->options.port);
    int problem = getaddrinfo(host, port, &want, &found);
    if (problem)
        return err_set(err, SLUICE_ERR_IO, "%s: %s", host, gai_strerror(problem));
    s->listener =
        socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, found->ai_protocol);
    bool is_good = s->listener >= 0 &&
                   setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                   bind(s->listener, found->ai_addr, found->ai_addrlen) == 0 &&
                   listen(s->listener, 512) == 0 &&
                   getsockname(s->listener, (struct sockaddr *)&bound, &size) == 0;
    int number = errno;
    s->is_loopback = guard_is_loopback(found->ai_addr);
    freeaddrinfo(found);
    if (!is_good)
        return err_set(err, SLUICE_ERR_IO, "%s port %s: cannot listen: %s%s", host, port,
                       strerror(number), number == EADDRINUSE ? "; --port chooses another" : "");
    write_address(s, (struct sockaddr *)&bound, size);
    return SLUICE_OK;
}

static int listen_inherited(struct server *s, struct err *err) {
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    int listens = 0;
    socklen_t int_size = sizeof listens;
    s->listener = s->options.inherited_fd;
    if (getsockname(s->listener, (struct sockaddr *)&bound, &size))
        return err_set(err, SLUICE_ERR_IO, "descriptor %d (LISTEN_FDS): %s", s->listener,
                       strerror(errno));
    getsockopt(s->listener, SOL_SOCKET, SO_ACCEPTCONN, &listens, &int_size);
    if (!listens)
        return err_set(err, SLUICE_ERR_IO, "descriptor %d (LISTEN_FDS) does not listen",
                       s->listener);
    s->is_loopback = guard_is_loopback((struct sockaddr *)&bound);
    if (bound.ss_family == AF_UNIX)
        snprintf(s->address, sizeof s->address, "unix:%.100s",
                 ((struct sockaddr_un *)&bound)->sun_path);
    else
        write_address(s, (struct sockaddr *)&bound, size);
    return SLUICE_OK;
}

static int start_listening(struct server *s, struct err *err) {
    return s->options.inherited_fd >= 0 ? listen_inherited(s, err)
           : s->options.unix_path       ? listen_unix(s, err)
                                        : listen_tcp(s, err);
}

/* ---- opening and closing ------------------------------------------------------------------ */

static void log_mhd(void *user, const char *format, va_list args) {
    char line[256];
    (void)user;
    vsnprintf(line, sizeof line, format, args);
    size_t n = strlen(line);
    if (n > 0 && line[n - 1] == '\n')
        line[n - 1] = 0;
    log_line(LOG_DEBUG, "http: %s", line);
}

/* A path with %00 stays escaped: the zero would end it. */
static size_t unescape(void *user, struct MHD_Connection *connection, char *text) {
    (void)user;
    (void)connection;
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

/* As many connections as there are file descriptors for; raises the limit if possible. Without
 * descriptors libmicrohttpd (0.9.75) would retry in a busy loop. */
static unsigned fit_connections(unsigned wanted) {
    enum { OTHERS = 64, FEW = 4 }; /* descriptors of files and threads */
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return wanted;
    rlim_t needed = (rlim_t)wanted + OTHERS, before = limit.rlim_cur;
    if (before < needed && before < limit.rlim_max) {
        limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit))
            limit.rlim_cur = before;
    }
    if (limit.rlim_cur >= needed)
        return wanted;
    return limit.rlim_cur > OTHERS + FEW ? (unsigned)limit.rlim_cur - OTHERS : FEW;
}

static int start_daemon(struct server *s, struct err *err) {
    enum { THREADS = 4 };
    unsigned timeout = s->options.idle_seconds > 1 ? (unsigned)s->options.idle_seconds : 1;
    sigset_t before = thread_block_signals();
    s->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | MHD_USE_ITC,
        0, NULL, NULL, on_request, s, MHD_OPTION_LISTEN_SOCKET, s->listener,
        MHD_OPTION_EXTERNAL_LOGGER, log_mhd, NULL, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
        MHD_OPTION_URI_LOG_CALLBACK, on_uri, NULL, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_CONNECTION_TIMEOUT, timeout,
        MHD_OPTION_CONNECTION_LIMIT, s->options.connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HEADER_BYTES, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)THREADS,
        MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return s->daemon ? SLUICE_OK
                     : err_set(err, SLUICE_ERR_IO, "%s: the HTTP server did not start", s->address);
}

static void fill_model(struct server *s) {
    struct sluice_choice choice;
    sluice_engine_choice(s->served.engine, &choice);
    s->model = (struct ask_model){
        .name = s->served.name,
        .template = s->served.template,
        .context = choice.context,
        .max_answers = s->options.max_answers,
        .has_hidden = choice.hidden,
        .sampling = s->served.sampling,
    };
    ask_model_fill(&s->model, s->served.model);
}

int server_open(struct server **out, const struct server_options *options, struct err *err) {
    enum { REPLAY_BYTES = 64 << 20, RESPONSES_BYTES = 64 << 20 };
    struct server *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_memory(err, "the server");
    s->options = *options;
    s->options.connections = fit_connections(options->connections);
    s->listener = -1;
    s->created = time(NULL);
    metrics_begin(&s->metrics);
    json_watch_memory();
    plan_open(s);
    int status = start_listening(s, err);
    if (!status && !(s->replay = store_open(REPLAY_BYTES)))
        status = err_memory(err, "earlier answers");
    if (!status && !(s->responses = store_open(RESPONSES_BYTES)))
        status = err_memory(err, "earlier responses");
    if (!status)
        status = snapshots_open(&s->snapshots, options->snapshot_dir, options->snapshot_bytes, err);
    if (!status && options->access_log)
        status = access_log_open(&s->log, options->access_log, options->logs_prompts, err);
    if (!status)
        status = writer_open(&s->writer, options->ping_seconds, err);
    if (!status)
        status = background_open(&s->background, err);
    if (!status)
        status = peers_open(&s->peers, s->options.connections, options->idle_seconds, err);
    if (!status)
        status = start_daemon(s, err);
    if (status)
        server_close(s);
    else
        *out = s;
    return status;
}

int server_start(struct server *s, const struct served *served, struct err *err) {
    struct worker_options w = {served->model, served->engine, s->options.queue, &s->metrics,
                               s->options.has_no_bursts};
    s->served = *served;
    fill_model(s);
    int status = plan_start(s, err);
    if (!status && !(s->model.formats = formats_open(served->model, FORMATS_BYTES)))
        status = err_memory(err, "formats of answers");
    if (!status)
        status = worker_open(&s->worker, &w, err);
    s->is_started = status == SLUICE_OK; /* the daemon's threads read the rest only after this */
    return status;
}

const char *server_address(const struct server *s) {
    return s->address;
}

unsigned server_connections(const struct server *s) {
    return s->options.connections;
}

int server_requests(const struct server *s) {
    return s->metrics.exchanges;
}

/* libmicrohttpd 0.9.75 takes the listening socket out of each thread's epoll set in two places: in
 * MHD_quiesce_daemon and in the thread itself, which may have seen that it is to stop. The first
 * ends the program if the other was faster, with no lock held: it is tried again then. */
static _Thread_local jmp_buf *quiescing;

static void on_panic(void *user, const char *file, unsigned line, const char *why) {
    (void)user;
    if (quiescing && errno == ENOENT)
        longjmp(*quiescing, 1);
    fprintf(stderr, "sluice: error in libmicrohttpd, %s:%u: %s\n", file, line, why ? why : "");
    abort();
}

/* No new connections from now on. */
static void stop_listening(struct server *s) {
    const struct timespec nap = {.tv_nsec = 1000 * 1000};
    jmp_buf again;
    MHD_set_panic_func(on_panic, NULL);
    if (setjmp(again))
        nanosleep(&nap, NULL);
    quiescing = &again;
    MHD_quiesce_daemon(s->daemon);
    quiescing = NULL;
    nanosleep(&nap, NULL); /* a thread may be about to take it out, too */
    close(s->listener);
    s->listener = -1;
}

void server_drain(struct server *s, double seconds) {
    const struct timespec nap = {.tv_nsec = 10 * 1000 * 1000};
    double end = seconds_now() + seconds;
    s->is_draining = true;
    if (s->daemon && s->listener >= 0)
        stop_listening(s);
    while (s->metrics.exchanges > 0 && seconds_now() < end)
        nanosleep(&nap, NULL);
}

/* The worker ends all answers and the writer writes their ends: then no connection is suspended, as
 * libmicrohttpd requires, and all responses are sent before it stops. */
void server_close(struct server *s) {
    if (!s)
        return;
    if (s->daemon)
        server_drain(s, 0);
    background_stop(s->background);
    worker_stop(s->worker);
    writer_close(s->writer);
    if (s->daemon) {
        server_drain(s, 1);
        MHD_stop_daemon(s->daemon);
    } else if (s->listener >= 0) {
        close(s->listener);
    }
    worker_close(s->worker);
    background_close(s->background);
    peers_close(s->peers);
    if (s->has_unlink)
        unlink(s->options.unix_path);
    access_log_close(s->log);
    store_close(s->replay);
    store_close(s->responses);
    snapshots_close(s->snapshots);
    formats_close(s->model.formats);
    plan_close(s);
    free(s);
}
