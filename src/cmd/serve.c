/* serve.c - the verb serve: a server for existing clients. */
#include "built_with.h"
#ifndef SLUICE_SERVER

#include "cmd/cmd.h"

int cmd_serve(int argc, char **argv) {
    (void)argc;
    (void)argv;
    return complain(EXIT_WORLD, "serve: this build has no server (SERVER=0)");
}

#else

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "cmd/faults.h"
#include "cmd/interrupt.h"
#include "cmd/open.h"
#include "cmd/step_facts.h"
#include "serve/http/server.h"
#include "text/chat.h"

enum { NOT_GIVEN = INT_MIN };

struct serve {
    struct common common;
    struct server_options server;
    const char *template;    /* a file, or its text */
    const char *name, *host; /* NULL: not given */
    int port, batch, queue, drain, idle, ping, max_answers, connections;
    uint64_t body_bytes;
    bool embeddings;
    struct opt_list cors, allowed;
};

/* ---- options ------------------------------------------------------------------------------ */

/* scheme://host[:port], as browsers send it. */
static bool is_origin(const char *z) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    static const char scheme[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-";
    size_t n = strspn(z, scheme);
    if (strspn(z, letters) == 0 || strncmp(z + n, "://", 3) != 0)
        return false;
    const char *host = z + n + 3;
    const char *end = host[0] == '[' ? strchr(host, ']') : host + strcspn(host, ":/?#@, ");
    if (!end || end == host)
        return false;
    end += *end == ']';
    return !*end || (*end == ':' && end[1] && !end[1 + strspn(end + 1, "0123456789")]);
}

/* Segments of URI characters (RFC 3986), each after a /. Requests are compared decoded, so there
 * are no %XX, and a client drops . and .. before it sends a path. */
static bool is_path(const char *z) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "-._~!$&'()*+,;=:@";
    while (*z == '/') {
        size_t n = strspn(z + 1, allowed), n_dots = strspn(z + 1, ".");
        if (n == 0 || (n == n_dots && n <= 2))
            return false;
        z += 1 + n;
    }
    return !*z;
}

static int batch_of(const struct serve *s) {
    enum { USUAL_BATCH = 16 };
    return s->batch == NOT_GIVEN ? USUAL_BATCH : s->batch;
}

static int check(struct serve *s) {
    const struct {
        const char *name;
        int value, min, max;
    } ints[] = {
        {"--port", s->port == NOT_GIVEN ? 0 : s->port, 0, 65535},
        {"--batch", batch_of(s), 1, 4096},
        {"--queue", s->queue, 0, 1 << 20},
        {"--drain", s->drain, 0, 86400},
        {"--idle", s->idle, 1, 86400},
        {"--ping", s->ping, 0, 86400},
        {"--max-n", s->max_answers, 1, 4096},
        {"--connections", s->connections, 4, 65536},
    };
    const char *prefix = s->server.prefix;
    if (s->server.unix_path && (s->host || s->port != NOT_GIVEN))
        return complain(EXIT_USAGE, "serve: --unix and --%s are both given, expected one of them",
                        s->host ? "host" : "port");
    if (s->server.logs_prompts && !s->server.access_log)
        return complain(EXIT_USAGE, "serve: --log-prompts needs --access-log FILE");
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        int exit = check_range("serve", ints[i].name, ints[i].value, ints[i].min, ints[i].max);
        if (exit != OPTS_GO_ON)
            return exit;
    }
    if (s->body_bytes < 1024 || s->body_bytes > 1 << 30)
        return complain(EXIT_USAGE, "serve: --max-body is %llu, expected 1K to 1G",
                        (unsigned long long)s->body_bytes);
    if (!is_path(prefix))
        return complain(EXIT_USAGE,
                        "serve: --prefix is '%s', expected a path such as /llm or /a/b, of "
                        "letters, digits and -._~!$&'()*+,;=:@",
                        prefix);
    const struct {
        const char *name, *value, *expected;
    } texts[] = {
        {"--host", s->host, "an address"},
        {"--unix", s->server.unix_path, "a path"},
        {"--name", s->name, "a name"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].value && !*texts[i].value)
            return complain(EXIT_USAGE, "serve: %s is '', expected %s", texts[i].name,
                            texts[i].expected);
    for (int i = 0; i < s->cors.n; i++)
        if (strcmp(s->cors.at[i], "*") != 0 && !is_origin(s->cors.at[i]))
            return complain(EXIT_USAGE, "serve: --cors is '%s', expected scheme://host[:port] or *",
                            s->cors.at[i]);
    return OPTS_GO_ON;
}

/* The one of the command line, or of the environment. A header's value has no control characters,
 * and blanks around it are not part of it: with such a key every client would be refused. */
static int choose_key(struct serve *s) {
    const char *name = s->server.api_key ? "--api-key" : "SLUICE_API_KEY";
    const char *key = s->server.api_key ? s->server.api_key : getenv("SLUICE_API_KEY");
    size_t n = key ? strlen(key) : 0;
    if (key && n == 0)
        return complain(EXIT_USAGE, "serve: %s is '', expected a text", name);
    bool is_good = n == 0 || (key[0] != ' ' && key[n - 1] != ' ');
    for (size_t i = 0; i < n; i++)
        is_good &= (unsigned char)key[i] >= ' ' && key[i] != 0x7f;
    if (!is_good)
        return complain(EXIT_USAGE,
                        "serve: %s is a key that no client can send, expected one without line "
                        "ends, control characters and blanks around it",
                        name);
    s->server.api_key = key;
    return OPTS_GO_ON;
}

static int parse(struct serve *s, int argc, char **argv) {
    /* clang-format off */
    struct opt opts[MAX_COMMON_OPTS + 24] = {
        {"--host", 0, OPT_STRING, &s->host, "ADDRESS", "address to listen on; default: 127.0.0.1, this machine only"},
        {"--port", 0, OPT_INT, &s->port, "N", "port to listen on; 0: any free one; default: 8080"},
        {"--unix", 0, OPT_STRING, &s->server.unix_path, "PATH", "listen on a Unix socket instead"},
        {"--api-key", 0, OPT_STRING, &s->server.api_key, "KEY", "key that clients must send; better in $SLUICE_API_KEY"},
        {"--cors", 0, OPT_LIST, &s->cors, "ORIGIN", "let web pages of ORIGIN use the server; '*': all; repeatable"},
        {"--allow-host", 0, OPT_LIST, &s->allowed, "NAME", "accept this host name as well; '*': all; repeatable"},
        {"--prefix", 0, OPT_STRING, &s->server.prefix, "PATH", "prefix of all paths, for a reverse proxy: /llm"},
        {"--name", 0, OPT_STRING, &s->name, "NAME", "the model's name for clients; default: the file's"},
        {"--chat-template", 0, OPT_STRING, &s->template, "FILE|TEXT", "Jinja template to use instead of the model's"},
        {"--batch", 0, OPT_INT, &s->batch, "N", "answers generated at the same time; default: 16, or what fits"},
        {"--queue", 0, OPT_INT, &s->queue, "N", "answers that may wait; more are refused with 429; default: 256"},
        {"--no-burst", 0, OPT_FLAG, &s->server.has_no_bursts, NULL, "one token per submission: on a GPU, new requests wait less"},
        {"--max-body", 0, OPT_SIZE, &s->body_bytes, "SIZE", "largest request; default: 16M"},
        {"--max-n", 0, OPT_INT, &s->max_answers, "N", "maximum answers per request; default: 16"},
        {"--connections", 0, OPT_INT, &s->connections, "N", "maximum connections at the same time; default: 1024"},
        {"--idle", 0, OPT_INT, &s->idle, "SECONDS", "time a connection has to send a whole request; default: 60"},
        {"--ping", 0, OPT_INT, &s->ping, "SECONDS", "streams with nothing to send get a comment after so long; 0: none; default: 15"},
        {"--drain", 0, OPT_INT, &s->drain, "SECONDS", "time running answers have to finish after SIGTERM; default: 30"},
        {"--access-log", 0, OPT_STRING, &s->server.access_log, "FILE", "log each request as a line of JSON; -: standard error"},
        {"--embeddings", 0, OPT_FLAG, &s->embeddings, NULL, "offer /v1/embeddings; always on with the CPU backend"},
        {"--log-prompts", 0, OPT_FLAG, &s->server.logs_prompts, NULL, "with --access-log: log requests in full"},
    };
    /* clang-format on */
    const struct usage usage = {
        .verb = "serve",
        .synopsis = "[MODEL] [--host ADDRESS] [--port N] [options]",
        .about =
            "Serves the OpenAI, Anthropic, Ollama and llama.cpp APIs, and a page to chat on, "
            "over HTTP.\nListens on this machine only unless --host says otherwise. Sampling "
            "options are the defaults\nof requests that leave them out. SIGTERM and Ctrl-C let "
            "running answers finish; a second one\nends the server at once.",
        .example = "sluice serve model.gguf --port 8080",
        .opts = opts,
        .n_opts = common_opts(opts, 21, &s->common,
                              WITH_ENGINE | WITH_SAMPLING | WITH_CACHE | WITH_DRAFT),
        .model = &s->common.model,
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit == OPTS_GO_ON)
        exit = common_check(&s->common, "serve");
    return exit == OPTS_GO_ON ? check(s) : exit;
}

/* A socket that systemd listens on for us; -1: none. */
static int inherited_socket(void) {
    enum { FIRST = 3 };
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    bool is_ours = pid && n && strtol(pid, NULL, 10) == (long)getpid() && strtol(n, NULL, 10) >= 1;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    return is_ours ? FIRST : -1;
}

/* ---- running ------------------------------------------------------------------------------ */

/* A signal may arrive in any thread: its handler only wakes the one that waits. */
static int stop_pipe[2] = {-1, -1};

static void on_stop(int number) {
    (void)number;
    ssize_t n = write(stop_pipe[1], "", 1);
    (void)n; /* full: it knows already */
}

static int catch_signals(void) {
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    if (stop_pipe[0] < 0 && pipe2(stop_pipe, O_CLOEXEC))
        return complain(EXIT_WORLD, "serve: cannot make a pipe for signals");
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        /* No SA_RESTART: the thread sanitizer calls handlers when the read it waits in returns. */
        struct sigaction old, action = {.sa_handler = on_stop};
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    }
    return 0;
}

/* A second signal while it drains ends the program. */
static void wait_and_drain(struct server *server, int seconds) {
    char byte;
    while (read(stop_pipe[0], &byte, 1) < 0 && errno == EINTR)
        ;
    int n = server_requests(server);
    if (n > 0)
        say(SAY_NORMAL, "shutting down: %d %s %d s to finish", n,
            n == 1 ? "request has" : "requests have", seconds);
    else
        say(SAY_NORMAL, "shutting down");
    interrupt_install(NULL);
    server_drain(server, seconds);
}

/* The plan of a step with one row, which is what a reader of one answer waits for. */
static json_t *plan_of(void *user, bool is_timed) {
    sluice_engine *engine = user;
    struct step_facts f = {.engine = engine, .rows = 1, .sequences = 1, .repeats = 5};
    struct sluice_choice choice;
    f.has_kernels = engine->kind->op_kernel != NULL;
    step_facts_find(&f);
    json_t *plan = is_timed && step_facts_time(&f) ? NULL : step_facts_json(&f, false);
    sluice_engine_choice(engine, &choice);
    if (plan) {
        json_object_set_new(plan, "timed", json_boolean(is_timed));
        json_object_set_new(plan, "backend", json_string(choice.backend));
        json_object_set_new(plan, "device", json_string(choice.device));
    }
    step_facts_free(&f);
    return plan;
}

/* The text of --chat-template, for free(); NULL without one. A bad template would fail every
 * request, so it fails here. */
static int read_template(const struct serve *s, const sluice_model *model, char **out) {
    struct err err = {0};
    struct chat *chat = NULL;
    *out = NULL;
    if (!s->template)
        return 0;
    int status = template_read(s->template, out, &err);
    if (!status && (status = chat_from_template(&chat, model->tokenizer, str_of(*out), &err)))
        err_prefix(&err, "--chat-template");
    chat_close(chat);
    return status ? fail(&err) : 0;
}

static void warn_of_strangers(const struct serve *s, const char *address) {
    static const char *const ours[] = {"unix:", "http://127.",
                                       "http://[::1]:", "http://[::ffff:127."};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (s->server.api_key || strncmp(address, ours[i], strlen(ours[i])) == 0)
            return;
    warn("anyone who can reach %s can use it; require a key with --api-key or SLUICE_API_KEY",
         address);
}

static int serve(struct serve *s, struct server *server, const struct served *served) {
    struct err err = {0};
    int exit = catch_signals();
    if (!exit && server_start(server, served, &err))
        exit = fail(&err);
    if (!exit) {
        warn_of_strangers(s, server_address(server));
        if (server_connections(server) < s->server.connections)
            warn("%u connections at most, not %u: the process may not have more descriptors",
                 server_connections(server), s->server.connections);
        say(SAY_NORMAL, "listening on %s", server_address(server));
        wait_and_drain(server, s->drain);
    }
    return exit;
}

/* Snapshots get a part of the folder's budget. */
static uint64_t snapshot_bytes(const struct sluice_engine_options *o) {
    return o->cache_dir_bytes / 16;
}

static struct sluice_engine_options engine_options(const struct serve *s) {
    struct sluice_engine_options o = common_engine(&s->common);
    const struct backend_kind *kind = backend_find(o.backend);
    o.sequences = o.batch = (uint32_t)batch_of(s);
    o.cache_dir_bytes -= o.cache_dir ? snapshot_bytes(&o) : 0;
    o.hidden = s->embeddings || (kind && !kind->has_burst); /* hidden states disable bursts */
    if (s->common.snapshot_bytes == UINT64_MAX)
        o.snapshot_bytes = 512 << 20; /* every turn of a conversation continues from one */
    return o;
}

/* What was asked for stays as it is; defaults are made smaller until the model fits. */
static enum shrink may_shrink(const struct serve *s) {
    return s->common.kv_bytes != UINT64_MAX ? SHRINK_NOTHING
           : s->batch != NOT_GIVEN          ? SHRINK_PAGES
                                            : SHRINK_PAGES_AND_BATCH;
}

/* The file's or folder's name without its ending. */
static char *model_name(const char *path) {
    char *copy = strdup(path);
    size_t n = copy ? strlen(copy) : 0;
    while (n > 1 && copy[n - 1] == '/')
        copy[--n] = 0;
    char *slash = copy ? strrchr(copy, '/') : NULL;
    char *name = strdup(slash && slash[1] ? slash + 1 : copy ? copy : "model");
    free(copy);
    if (name && strlen(name) > 5 && strcmp(name + strlen(name) - 5, ".gguf") == 0)
        name[strlen(name) - 5] = 0;
    return name;
}

static int load_and_serve(struct serve *s, struct server *server) {
    sluice_model *model;
    sluice_engine *engine = NULL;
    char *template = NULL, *name = NULL;
    int exit = common_open_model(&s->common, &model);
    if (!exit && !model->tokenizer)
        exit = complain(EXIT_WORLD, "%s", sluice_model_error(model));
    if (!exit)
        exit = read_template(s, model, &template); /* before the weights are loaded */
    if (!exit) {
        struct sluice_engine_options o = engine_options(s);
        exit = common_open_engine_shrunk(model, &o, false, may_shrink(s), &engine);
    }
    if (!exit) {
        common_announce(&s->common, model, engine);
        name = s->name ? strdup(s->name) : model_name(model->model->path);
        if (name)
            err_make_printable(name); /* JSON must be UTF-8 */
        exit = serve(s, server,
                     &(struct served){.model = model,
                                      .engine = engine,
                                      .name = name ? name : "model",
                                      .template = template,
                                      .sampling = common_sampling(&s->common, model),
                                      .plan = plan_of,
                                      .plan_user = engine});
    }
    server_close(server); /* before what it borrows */
    sluice_engine_close(engine);
    sluice_model_close(model);
    free(template);
    free(name);
    return exit;
}

/* Problems with addresses, files and folders are reported before the model is loaded. */
static int open_and_serve(struct serve *s) {
    struct sluice_engine_options o = common_engine(&s->common);
    struct server *server;
    struct err err = {0};
    if (o.cache_dir) {
        s->server.snapshot_dir = o.cache_dir;
        s->server.snapshot_bytes = snapshot_bytes(&o);
    }
    int exit = common_make_cache_dir(&s->common);
    if (exit)
        return exit;
    signal(SIGPIPE, SIG_IGN); /* a client that disconnected becomes a write error */
    if (server_open(&server, &s->server, &err))
        return fail(&err);
    if (s->server.inherited_fd < 0)
        faults_drop(s->server.unix_path);
    exit = load_and_serve(s, server);
    faults_drop(NULL);
    return exit;
}

int cmd_serve(int argc, char **argv) {
    static struct serve s;
    s = (struct serve){
        .common = common_default(),
        .server = server_options_default(),
        .port = NOT_GIVEN,
        .batch = NOT_GIVEN,
        .queue = 256,
        .drain = 30,
        .idle = 60,
        .ping = 15,
        .max_answers = 16,
        .connections = 1024,
        .body_bytes = 16 << 20,
    };
    s.common.draft = USUAL_DRAFT;
    int exit = parse(&s, argc, argv);
    if (exit != OPTS_GO_ON)
        return exit;
    exit = choose_key(&s);
    if (exit != OPTS_GO_ON)
        return exit;
    s.server.host = s.host ? s.host : s.server.host;
    s.server.port = s.port == NOT_GIVEN ? s.server.port : s.port;
    s.server.inherited_fd = inherited_socket();
    s.server.queue = (uint32_t)s.queue;
    s.server.max_answers = (uint32_t)s.max_answers;
    s.server.connections = (unsigned)s.connections;
    s.server.idle_seconds = s.idle;
    s.server.ping_seconds = s.ping;
    s.server.body_bytes = (size_t)s.body_bytes;
    for (int i = 0; i < s.cors.n; i++)
        s.server.cors[s.server.n_cors++] = s.cors.at[i];
    for (int i = 0; i < s.allowed.n; i++)
        s.server.allowed[s.server.n_allowed++] = s.allowed.at[i];
    return open_and_serve(&s);
}

#endif
