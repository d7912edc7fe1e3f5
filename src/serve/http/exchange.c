/* exchange.c - a request and its response, from the first header to the last byte. */
#include "serve/http/exchange.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "serve/http/guard.h"
#include "serve/http/internal.h"
#include "serve/http/snapshot.h"

/* A path, or a whole address as sent to a proxy: http://authority/path. */
static void take_target(struct exchange *x, const char *target) {
    size_t n = strncasecmp(target, "http://", 7) == 0    ? 7
               : strncasecmp(target, "https://", 8) == 0 ? 8
                                                         : 0;
    size_t n_name = n ? strcspn(target + n, "/") : 0;
    if (n)
        x->authority = strndup(target + n, n_name);
    if (!n || x->authority)
        x->path = strdup(target[n + n_name] ? target + n + n_name : "/");
}

struct exchange *exchange_open(struct server *server, struct MHD_Connection *connection,
                               const char *method, const char *path) {
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->server = server;
    x->connection = connection;
    x->refs = 1;
    x->arrived = seconds_now();
    x->created = time(NULL);
    take_target(x, path);
    snprintf(x->method, sizeof x->method, "%s", method);
    answer_make_id("", x->id);
    pthread_mutex_init(&x->lock, NULL);
    job_begin(&x->job);
    server->metrics.exchanges++;
    return x;
}

void exchange_drop_body(struct exchange *x) {
    x->server->body_bytes -= x->body.len;
    buffer_free(&x->body);
}

static void leave(struct exchange *x) {
    (void)x;
}

/* JSON with millions of values is freed in the background: it takes up to a second. */
void exchange_release(struct exchange *x) {
    if (atomic_fetch_sub(&x->refs, 1) > 1)
        return;
    bool is_first = !x->is_left;
    x->is_left = true;
    if (is_first && x->is_long && background_run(x->server->background, x, leave))
        return;
    x->server->tree_bytes -= x->tree_bytes;
    for (uint32_t i = 0; i < x->n_answers; i++)
        answer_close(&x->answers[i]);
    free(x->answers);
    if (x->own)
        x->release_own(x->own);
    ask_close(x->ask);
    job_news_free(&x->news);
    job_free(&x->job);
    exchange_drop_body(x);
    buffer_free(&x->draft);
    buffer_free(&x->out);
    free(x->path);
    free(x->authority);
    free(x->location);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

/* ---- replies ------------------------------------------------------------------------------ */

/* Under the lock. */
static void resume(struct exchange *x) {
    if (!x->is_suspended)
        return;
    x->is_suspended = false;
    MHD_resume_connection(x->connection);
}

void exchange_reply_body(struct exchange *x, int status, const char *type, struct str body) {
    pthread_mutex_lock(&x->lock);
    x->out.len = x->n_sent = 0;
    buffer_add(&x->out, body.at, body.len);
    x->reply = REPLY_WHOLE;
    x->status = x->out.has_failed ? 500 : status;
    x->type = type;
    x->is_over = true;
    resume(x);
    pthread_mutex_unlock(&x->lock);
}

static void reply_json(struct exchange *x, int status, struct buffer *text) {
    if (text->has_failed) {
        text->len = 0;
        status = 500;
    }
    exchange_reply_body(x, status, "application/json", buffer_str(text));
    buffer_free(text);
}

void exchange_reply_json(struct exchange *x, int status, json_t *body) {
    struct buffer text = {0};
    buffer_json(&text, body);
    reply_json(x, status, &text);
}

void exchange_reply_json_all_digits(struct exchange *x, int status, json_t *body) {
    struct buffer text = {0};
    buffer_json_all_digits(&text, body);
    reply_json(x, status, &text);
}

void exchange_refuse(struct exchange *x, int status, const char *param, const char *format, ...) {
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    size_t n = strlen(message); /* a character may have been cut */
    while (n > 0 && !utf8_valid((struct str){message, n}))
        message[--n] = 0;
    if (status == 429 || status == 503)
        x->retry_after = "1";
    exchange_reply_json(x, status, api_error(x->api, status, message, param));
}

void exchange_refuse_field(struct exchange *x, const struct fields *f) {
    exchange_refuse(x, 400, f->wrong, "%s", f->err.text);
}

/* Whether an error is the client's fault: the request is wrong or not supported. */
static bool is_the_clients(int status) {
    return status == SLUICE_ERR_ARGUMENT || status == SLUICE_ERR_UNSUPPORTED;
}

/* What the client is told of an error: its text or, written to `out`, where to find it. */
static const char *told(const struct exchange *x, int status, const char *error, char out[160]) {
    const char *what = status == SLUICE_ERR_IO       ? "a file cannot be read or written"
                       : status == SLUICE_ERR_FORMAT ? "the model or a file is damaged"
                       : status == SLUICE_ERR_DEVICE ? "the device failed"
                                                     : NULL;
    if (!what)
        return error;
    log_line(LOG_WARN, "request %s: %s", x->id, error);
    snprintf(out, 160, "%s: the server's log says more, under request %s", what, x->id);
    return out;
}

void exchange_refuse_status(struct exchange *x, int status, const struct err *err) {
    char out[160];
    int code = is_the_clients(status)           ? 400
               : status == SLUICE_ERR_MEMORY    ? 429
               : status == SLUICE_ERR_DEVICE    ? 503
               : status == SLUICE_ERR_CANCELLED ? 503
                                                : 500;
    exchange_refuse(x, code, NULL, "%s", told(x, status, err->text, out));
}

/* What the memory of one request as JSON, and that of all, are limited to: so many times this. */
enum { ONE_TREE = 16, ALL_TREES = 64 };

static size_t tree_unit(const struct server *s) {
    enum { MIN_BYTES = 1 << 20 };
    return s->options.body_bytes > MIN_BYTES ? s->options.body_bytes : MIN_BYTES;
}

/* Checks the memory that the body takes as JSON. */
static bool fits_as_json(struct exchange *x) {
    struct server *s = x->server;
    size_t max_bytes = tree_unit(s);
    x->tree_bytes = json_tree_bytes(buffer_str(&x->body));
    s->tree_bytes += x->tree_bytes;
    if (x->tree_bytes / ONE_TREE > max_bytes)
        exchange_refuse(x, 413, NULL, "the body takes %zu bytes as JSON, expected at most %zu",
                        x->tree_bytes, ONE_TREE * max_bytes);
    else if (s->tree_bytes / ALL_TREES > max_bytes)
        exchange_refuse(x, 429, NULL, "too many long requests are there already");
    else
        return true;
    return false;
}

/* A valid JSON number that fits neither a 64-bit integer nor a double; `where` is its end. */
static void refuse_number(struct exchange *x, struct str body, const json_error_t *where) {
    size_t end = where->position > 0 ? (size_t)where->position : 0, n = 0;
    end = end < body.len ? end : body.len;
    while (n < end && memchr("0123456789+-.eE", body.at[end - n - 1], 15))
        n++;
    const char *at = body.at + end - n;
    bool is_real = memchr(at, '.', n) || memchr(at, 'e', n) || memchr(at, 'E', n);
    exchange_refuse(x, 400, NULL, "the number %.*s in line %d is too large, expected at most %s",
                    n < 40 ? (int)n : 40, at, where->line,
                    is_real ? "1.8e308" : "9223372036854775807");
}

/* The request's body, which must be an object; NULL: it is refused already. To json_decref. */
static json_t *read_body(struct exchange *x) {
    json_error_t where;
    struct str body = buffer_str(&x->body);
    if (!fits_as_json(x))
        return NULL;
    bool lacks_memory;
    json_t *root = json_load_whole(body, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY,
                                   &where, &lacks_memory);
    if (root && json_is_object(root))
        return root;
    if (lacks_memory)
        exchange_refuse(x, 429, NULL, "out of memory for a request");
    else if (root)
        exchange_refuse(x, 400, NULL, "the body is %s, expected a JSON object", json_kind(root));
    else if (json_error_code(&where) == json_error_numeric_overflow)
        refuse_number(x, body, &where);
    else
        exchange_refuse(x, 400, NULL, "the body cannot be read as JSON: line %d, column %d: %s",
                        where.line, where.column, where.text);
    json_decref(root);
    return NULL;
}

/* ---- answers ------------------------------------------------------------------------------ */

static struct exchange *of_job(struct job *job) {
    return (struct exchange *)((char *)job - offsetof(struct exchange, job));
}

static void on_wake(struct job *job) {
    struct exchange *x = of_job(job);
    writer_add(x->server->writer, x);
}

static void on_release(struct job *job) {
    exchange_release(of_job(job));
}

static void on_delta(void *user, struct answer *a, const struct answer_delta *delta) {
    struct exchange *x = user;
    if (x->ask->is_streamed || x->style->has_all_deltas)
        x->style->delta(x, a, delta);
}

static void fill_job(struct exchange *x) {
    const struct ask_model *m = &x->server->model;
    const struct ask *ask = x->ask;
    struct job *job = &x->job;
    job->prompts = ask->prompts;
    job->n_prompts = ask->n_prompts;
    job->answers = (uint32_t)ask->n;
    job->max_tokens = ask->max_tokens > 0 && ask->max_tokens < m->context
                          ? (uint32_t)ask->max_tokens
                          : m->context;
    job->sampling = ask->sampling;
    job->n_top = (int)ask->n_top;
    job->ignores_ends = ask->ignores_ends;
    job->format = ask->call ? ask->call : ask->format;
    bool may_call = ask->tools && ask->tool_choice == TOOLS_AUTO && !ask->is_call_begun;
    job->call = may_call && !ask->is_strict ? m->tool_call : -1;
    job->hidden = ask->hidden;
    job->pools_mean = m->facts.pooling == SLUICE_POOL_MEAN;
    job->wake = on_wake;
    job->release = on_release;
    job->thinking = (struct job_thinking){
        .budget = ask->thinking_budget,
        .is_open = ask->starts_thinking,
        .may_open = ask->may_think,
        .open = m->think_open,
        .close = m->think_close,
        .closing = m->closing,
        .n_closing = m->n_closing,
    };
}

static int open_answers(struct exchange *x) {
    uint32_t n = x->ask->n_prompts * (uint32_t)x->ask->n;
    int status = SLUICE_OK;
    x->answers = calloc(n, sizeof *x->answers);
    if (!x->answers)
        return SLUICE_ERR_MEMORY;
    while (!status && x->n_answers < n) {
        struct answer *a = &x->answers[x->n_answers];
        status = answer_open(a, &x->server->model, x->ask, x->n_answers++, on_delta, x);
    }
    return status;
}

/* Under the lock. */
static void abandon(struct exchange *x) {
    if (x->has_job && !x->is_over && !x->is_gone) {
        x->server->metrics.gone++;
        worker_cancel(&x->job);
    }
    x->is_gone |= !x->is_over; /* a client that has everything may leave */
}

void exchange_abandon(struct exchange *x) {
    pthread_mutex_lock(&x->lock);
    abandon(x);
    pthread_mutex_unlock(&x->lock);
}

void exchange_half_close(struct exchange *x) {
    pthread_mutex_lock(&x->lock);
    x->is_half = true;
    if (x->has_job)
        abandon(x);
    pthread_mutex_unlock(&x->lock);
}

/* Takes the ask. */
static void start(struct exchange *x, struct ask *ask, const struct style *style) {
    struct server *s = x->server;
    struct err err = {0};
    x->ask = ask;
    x->style = style;
    if (ask->n > s->options.max_answers) { /* ask_read_n checks it; 0: a server without worker */
        exchange_refuse(x, 400, "n", "n is %lld, expected at most %u", (long long)ask->n,
                        s->options.max_answers);
        return;
    }
    if (ask->n * ask->n_prompts > ASK_MAX_ANSWERS) {
        exchange_refuse(x, 400, "n", "%u prompts with %lld answers each, expected at most %d",
                        ask->n_prompts, (long long)ask->n, ASK_MAX_ANSWERS);
        return;
    }
    if (open_answers(x)) {
        exchange_refuse(x, 500, NULL, "out of memory for a request");
        return;
    }
    fill_job(x);
    if (ask->is_streamed && style->begin) /* here, as it may repeat megabytes of the request */
        style->begin(x);
    x->refs++;
    int status = worker_submit(s->worker, &x->job, &err);
    if (status) {
        x->refs--;
        exchange_refuse_status(x, status, &err);
        return;
    }
    pthread_mutex_lock(&x->lock);
    x->has_job = true;
    if (x->is_gone)
        worker_cancel(&x->job);
    else if (x->is_half)
        abandon(x);
    pthread_mutex_unlock(&x->lock);
}

struct ask *exchange_ask(struct exchange *x, struct fields *f) {
    json_t *root = read_body(x);
    struct ask *ask = root ? ask_open(root, &x->server->model) : NULL;
    const char *any; /* there is one model; any name will do */
    *f = (struct fields){.object = root, .max_tree_bytes = ONE_TREE * tree_unit(x->server)};
    if (root && !ask)
        exchange_refuse(x, 500, NULL, "out of memory for a request");
    fields_string(f, "model", &any);
    json_decref(root); /* the ask has it */
    return ask;
}

bool exchange_encode(struct exchange *x, struct ask *ask, struct fields *f) {
    const struct server *s = x->server;
    struct err err = {0};
    int status = SLUICE_OK;
    if (!f->wrong) { /* texts in it are read by now */
        x->tree_bytes += f->tree_bytes;
        x->server->tree_bytes += f->tree_bytes;
    }
    if (!f->wrong && ask->messages && !ask->has_snapshot)
        snapshot_begin(s, ask, f);
    if (!f->wrong && ask->messages)
        status = ask_encode(ask, &s->model, s->replay, &err);
    if (!f->wrong && !status && ask->n_prompts == 0) /* there were no messages for want of memory */
        status = err_memory(&err, "a request");
    x->is_long |= json_array_size(ask->messages) > 4096;
    if (f->wrong)
        exchange_refuse_field(x, f);
    else if (status) /* a template fails because of its input */
        exchange_refuse_status(x, status == SLUICE_ERR_FORMAT ? SLUICE_ERR_ARGUMENT : status, &err);
    return !f->wrong && !status;
}

static bool is_gone(struct exchange *x) {
    pthread_mutex_lock(&x->lock);
    bool is = x->is_gone;
    pthread_mutex_unlock(&x->lock);
    return is;
}

void exchange_read(struct exchange *x) {
    if (background_is_stopped(x->server->background))
        exchange_refuse(x, 503, NULL, "the server is shutting down");
    else if (is_gone(x))
        exchange_refuse(x, 400, NULL, "the client is gone"); /* nobody receives it */
    else
        x->route->handle(x);
}

void exchange_converse(struct exchange *x, struct ask *ask, struct fields *f,
                       const struct style *style) {
    if (exchange_encode(x, ask, f))
        start(x, ask, style);
    else
        ask_close(ask);
}

struct usage_counts exchange_usage(const struct exchange *x) {
    struct usage_counts u = {0};
    for (uint32_t p = 0; p < x->ask->n_prompts; p++)
        u.prompt += x->ask->prompts[p].n;
    for (uint32_t i = 0; i < x->n_answers; i++) {
        const struct answer *a = &x->answers[i];
        u.new_tokens += a->n_tokens;
        u.reasoning += a->n_reasoning_tokens;
        if (a->end && i % x->ask->n == 0) /* answers of a prompt share it */
            u.cached += a->end->report.reuse.tokens;
    }
    if (x->n_ended < x->n_answers)
        u.cached = x->job.n_cached;
    return u;
}

json_t *exchange_reuse(const struct sluice_reuse *r) {
    return json_pack("{s:I, s:I, s:I, s:s}", "device", (json_int_t)r->device, "host",
                     (json_int_t)r->host, "disk", (json_int_t)r->disk, "why_not_more", r->why);
}

/* ---- writing ------------------------------------------------------------------------------ */

/* Whether the client may have chosen what the answer thinks, or earlier ones thought. A grammar
 * begins after the thinking, if that began with its token; else it may have written the tag, and
 * all after it. */
static bool is_steered(const struct exchange *x, const struct answer *a) {
    const struct ask_model *m = &x->server->model;
    bool has_begun = x->ask->starts_thinking || (a->n_tokens && a->tokens[0] == m->think_open);
    return !x->ask->is_named_whole || ask_is_steered(x->ask, m) ||
           (x->ask->is_strict && a->reasoning.len > 0 && !has_begun);
}

/* Stores the conversation with this answer for the next turn. That may be anybody's: what it was
 * thinking is not part of the messages. */
static void remember(struct exchange *x, const struct answer *a) {
    if (!x->ask->messages || is_steered(x, a) || a->has_stopped || a->has_failed ||
        a->finish == FINISH_FAILED || a->finish == FINISH_CUT)
        return;
    const struct job_prompt *p = &x->ask->prompts[0];
    int32_t *tokens = malloc((p->n + a->n_tokens) * sizeof *tokens);
    json_t *message = answer_message(a);
    if (tokens && message) {
        memcpy(tokens, p->tokens, p->n * sizeof *tokens);
        if (a->n_tokens)
            memcpy(tokens + p->n, a->tokens, a->n_tokens * sizeof *tokens);
        replay_put(x->server->replay, replay_add(x->ask->name, message),
                   &(struct replayed){tokens, p->n + a->n_tokens, x->ask->variables});
    }
    json_decref(message);
    free(tokens);
}

static void take_event(struct exchange *x, struct job_event *event) {
    struct answer *a = &x->answers[event->choice];
    if (event->token != JOB_END) {
        answer_add_token(a, event->token, event->logprobs);
        event->logprobs = NULL;
        if (a->has_stopped || a->has_failed)
            x->job.is_enough[event->choice] = true;
        return;
    }
    answer_end(a, &x->job.ends[event->choice]);
    x->n_ended++;
    remember(x, a);
    if (x->ask->is_streamed && x->style->end)
        x->style->end(x, a);
}

/* Whether the server shut down before an answer began, or before all vectors were done. */
static bool is_too_late(const struct exchange *x) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->n_answers; i++) {
        const struct answer *a = &x->answers[i];
        n += a->finish == FINISH_CUT && a->end->report.n_new == 0;
    }
    return n > 0 && (n == x->n_answers || x->ask->hidden);
}

/* Why there can be no response, as the client is told; NULL: there can. */
static const char *failure_of(const struct exchange *x, char out[160]) {
    if (is_too_late(x))
        return "the server is shutting down";
    for (uint32_t i = 0; i < x->n_answers; i++) {
        const struct answer *a = &x->answers[i];
        if (a->has_failed || a->finish == FINISH_NOT_YET) /* its end was lost */
            return "out of memory for an answer";
        if (a->finish == FINISH_FAILED)
            return told(x, a->end->report.status, a->end->error, out);
    }
    return NULL;
}

static int failure_code(const struct exchange *x) {
    if (is_too_late(x))
        return 503;
    for (uint32_t i = 0; i < x->n_answers; i++)
        if (x->answers[i].finish == FINISH_FAILED)
            return is_the_clients(x->answers[i].end->report.status) ? 400 : 500;
    return 500;
}

static void finish(struct exchange *x) {
    char out[160];
    const char *failure = failure_of(x, out);
    if (is_gone(x)) {
        return; /* its connection is closed without a response */
    } else if (x->job.status) {
        struct err err = {0};
        memcpy(err.text, x->job.error, sizeof x->job.error);
        exchange_refuse_status(x, x->job.status, &err);
    } else if (x->ask->is_streamed && failure) {
        x->style->fail(x, failure);
    } else if (x->ask->is_streamed) {
        if (x->style->done)
            x->style->done(x);
    } else if (failure) {
        exchange_refuse(x, failure_code(x), NULL, "%s", failure);
    } else if (x->style->needs_all_digits) {
        exchange_reply_json_all_digits(x, 200, x->style->whole(x));
    } else {
        exchange_reply_json(x, 200, x->style->whole(x));
    }
}

/* Moves the draft to `out`; `is_over`: nothing follows. */
static void flush(struct exchange *x, bool is_over) {
    if (x->draft.len > 0)
        x->last_sent = seconds_now();
    pthread_mutex_lock(&x->lock);
    bool is_wanted = !x->is_gone && !x->is_cut;
    if (x->has_begun && is_wanted) {
        x->reply = REPLY_STREAM;
        x->status = 200;
        x->type = x->style->stream_type;
        if (x->draft.len > x->n_longest)
            x->n_longest = x->draft.len;
        buffer_add(&x->out, x->draft.at, x->draft.len);
        size_t n_unread = x->out.len - x->n_sent;
        bool is_slow = n_unread > x->server->options.backlog_bytes + x->n_longest && !is_over;
        if (x->draft.has_failed || x->out.has_failed || is_slow) {
            x->is_cut = true;
            x->server->metrics.cut++;
            worker_cancel(&x->job);
        }
    }
    if (x->has_begun || is_over)
        x->draft.len = 0;
    x->is_over |= is_over;
    if (x->out.len > x->n_sent || x->is_over || x->is_cut)
        resume(x);
    pthread_mutex_unlock(&x->lock);
}

/* Ends the response. */
static void end(struct exchange *x) {
    finish(x);
    flush(x, true);
}

/* Numbers and texts that are written at once. More than SLOW take longer than other clients' tokens
 * should wait (4096: 10 to 25 ms); what is LONG takes memory that is given back. */
enum { SLOW = 1 << 12, LONG = 1 << 14 };

/* Of a token with its log probabilities. */
static uint64_t values_of_token(const struct ask *ask) {
    return 1 + (ask->n_top > 0 ? (uint64_t)ask->n_top : 0);
}

/* Of the end of the response. */
static uint64_t values_of_end(const struct exchange *x) {
    const struct ask *ask = x->ask;
    if (x->style->repeats_request && x->body.len > BACKGROUND_BYTES)
        return UINT64_MAX;
    uint64_t each = values_of_token(ask);
    uint64_t n = ask->hidden ? (uint64_t)ask->n_prompts * x->server->model.facts.width : 0;
    for (uint32_t i = 0; i < x->n_answers; i++)
        n += x->answers[i].n_tokens * each;
    for (uint32_t i = 0; i < ask->n_prompts; i++)
        n += ask->prompts[i].logprobs ? ask->prompts[i].n * each : 0;
    return ask->is_streamed ? 0 : n;
}

/* Of the news, in a stream: the first text of an answer has its prompt's log probabilities. */
static uint64_t values_of_news(const struct exchange *x) {
    const struct ask *ask = x->ask;
    uint64_t n = 0;
    for (size_t i = 0; i < x->news.n_events && ask->is_streamed; i++) {
        const struct job_event *event = &x->news.events[i];
        const struct job_prompt *p = &ask->prompts[event->choice / (size_t)ask->n];
        bool brings_prompt = p->logprobs && !x->answers[event->choice].is_echoed;
        n += (event->logprobs ? 1 : 0) + (brings_prompt ? p->n : 0);
    }
    return n * values_of_token(ask);
}

/* False: that many values are written at once, here. */
static bool write_in_background(struct exchange *x, uint64_t values,
                                void (*task)(struct exchange *x)) {
    x->is_long |= values > LONG;
    return values > SLOW && background_run(x->server->background, x, task);
}

void exchange_ping(struct exchange *x) {
    buffer_puts(&x->draft, x->style->ping);
    flush(x, false);
}

static void write_news(struct exchange *x) {
    for (size_t i = 0; i < x->news.n_events; i++)
        take_event(x, &x->news.events[i]);
    x->news.n_events = 0;
    if (!x->news.is_over)
        flush(x, false);
}

/* The end may have come meanwhile, and other news: the writer looks. */
static void write_long(struct exchange *x) {
    write_news(x);
    x->is_written = false;
    writer_add(x->server->writer, x);
}

void exchange_write(struct exchange *x) {
    if (x->has_ended || x->is_written) /* the last news was already taken, before its wake-up */
        return;
    if (!x->news.is_over) {
        job_take(&x->job, &x->news);
        x->has_begun |= x->news.is_accepted && x->ask->is_streamed;
        uint64_t values = values_of_news(x);
        x->is_written = values > SLOW;
        if (x->is_written)
            writer_leave(x); /* no pings meanwhile */
        if (write_in_background(x, values, write_long))
            return;
        x->is_written = false;
        write_news(x);
    }
    if (!x->news.is_over) {
        if (x->has_begun && x->style->ping)
            writer_watch(x->server->writer, x);
        return;
    }
    x->has_ended = true;
    writer_leave(x);
    if (!write_in_background(x, values_of_end(x), end))
        end(x);
}

/* ---- sending ------------------------------------------------------------------------------ */

static ssize_t read_out(void *user, uint64_t position, char *to, size_t max) {
    struct exchange *x = user;
    ssize_t n = 0;
    (void)position;
    pthread_mutex_lock(&x->lock);
    size_t there = x->out.len - x->n_sent;
    if (x->is_cut) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (there > 0) {
        n = (ssize_t)(there < max ? there : max);
        memcpy(to, x->out.at + x->n_sent, (size_t)n);
        x->n_sent += (size_t)n;
        x->bytes += (size_t)n;
        if (x->n_sent == x->out.len)
            x->out.len = x->n_sent = 0;
        else if (x->n_sent > 65536) {
            buffer_drop(&x->out, x->n_sent);
            x->n_sent = 0;
        }
    } else if (x->is_over) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->is_suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

/* Under the lock. NULL: memory ran out. */
static struct MHD_Response *make_response(struct exchange *x) {
    enum { BLOCK = 16384 };
    struct MHD_Response *response =
        x->reply == REPLY_STREAM
            ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_out, x, NULL)
            : MHD_create_response_from_buffer(x->out.len, x->out.at ? x->out.at : "",
                                              MHD_RESPMEM_MUST_COPY);
    if (!response)
        return NULL;
    if (x->type)
        MHD_add_response_header(response, "Content-Type", x->type);
    MHD_add_response_header(response, x->api == API_ANTHROPIC ? "request-id" : "X-Request-Id",
                            x->id);
    if (x->retry_after)
        MHD_add_response_header(response, "Retry-After", x->retry_after);
    if (x->location)
        MHD_add_response_header(response, "Location", x->location);
    if (x->status == 405)
        MHD_add_response_header(response, "Allow", x->allowed);
    if (x->status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (x->reply == REPLY_STREAM) /* or nginx would buffer the stream */
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    if (x->server->is_draining || x->ends_connection)
        MHD_add_response_header(response, "Connection", "close");
    guard_add_headers(x, response);
    x->bytes += x->reply == REPLY_WHOLE ? x->out.len : 0;
    if (x->status > 0 && x->status < METRICS_CODES)
        x->server->metrics.answers_by_code[x->status]++;
    return response;
}

/* The response is queued without the lock: libmicrohttpd calls read_out with the response's lock
 * held, and takes that lock here. */
enum MHD_Result exchange_respond(struct exchange *x) {
    struct MHD_Response *response = NULL;
    pthread_mutex_lock(&x->lock);
    bool has_reply = x->reply != REPLY_NONE;
    bool waits = !has_reply && !x->is_over && !x->is_cut; /* or else the client is gone */
    unsigned status = (unsigned)x->status;
    if (has_reply)
        response = make_response(x);
    if (waits) {
        x->is_suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    if (!response)
        return waits ? MHD_YES : MHD_NO;
    enum MHD_Result result = MHD_queue_response(x->connection, status, response);
    MHD_destroy_response(response);
    return result;
}
