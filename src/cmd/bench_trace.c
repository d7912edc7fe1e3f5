/* bench_trace.c - replays a trace of conversations through the scheduler. */
#include "cmd/bench_trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/filemap.h"
#include "base/hash.h"
#include "cmd/cmd.h"
#include "cmd/limits.h"
#include "serve/scheduler.h"

enum { MAX_REQUESTS = 1 << 20, MAX_LENGTH = 1 << 24 };

struct trace_part {
    char kind;     /* t, a, e */
    uint32_t what; /* the text's seed, or the request that was answered */
    uint32_t from, n;
};

struct trace_request {
    uint32_t conversation, n_new, n_prompt;
    uint32_t first_part, n_parts;
    bool is_left_out, is_sent, has_ended;
    int32_t *answer; /* (n_new) */
    uint32_t n_answer;
    struct sched_report report;
};

struct trace {
    struct trace_request *requests;
    uint32_t n;
    struct trace_part *parts;
    uint32_t n_parts;
    size_t capacity, part_capacity;
    uint32_t longest, n_conversations;
};

/* ---- reading ------------------------------------------------------------------------------ */

/* A whole number up to `max` at *at, which moves on; after it comes `next`, or anything for 0. */
static bool take_number(const char **at, uint32_t max, char next, uint32_t *out) {
    uint64_t v = 0;
    const char *p = *at;
    while (*p >= '0' && *p <= '9' && v <= max)
        v = 10 * v + (uint64_t)(*p++ - '0');
    if (p == *at || v > max || (next && *p != next))
        return false;
    *out = (uint32_t)v;
    *at = p + (next != 0);
    return true;
}

static bool take_part(const struct trace *t, const char **at, struct trace_part *p) {
    *p = (struct trace_part){.kind = *(*at)++, .n = 1};
    switch (p->kind) {
    case 'e':
        return true;
    case 't':
        return take_number(at, UINT32_MAX, ':', &p->what) && take_number(at, MAX_LENGTH, 0, &p->n);
    case 'a':
        return take_number(at, UINT32_MAX, ':', &p->what) && p->what < t->n &&
               take_number(at, MAX_LENGTH, ':', &p->from) &&
               take_number(at, MAX_LENGTH, 0, &p->n) &&
               p->from + p->n <= t->requests[p->what].n_new;
    default:
        return false;
    }
}

static void skip_spaces(const char **at) {
    while (**at == ' ' || **at == '\t' || **at == '\r')
        (*at)++;
}

static int read_line(struct trace *t, const char *at, struct err *err) {
    if (!array_grow(&t->requests, t->n, &t->capacity, sizeof *t->requests))
        return err_memory(err, "a trace");
    struct trace_request *r = &t->requests[t->n];
    *r = (struct trace_request){.first_part = t->n_parts};
    if (t->n == MAX_REQUESTS || !take_number(&at, MAX_REQUESTS, ' ', &r->conversation) ||
        !take_number(&at, MAX_LENGTH, 0, &r->n_new) || r->n_new == 0)
        return err_set(err, SLUICE_ERR_FORMAT, "expected CONVERSATION NEW PART ...");
    for (skip_spaces(&at); *at; skip_spaces(&at)) {
        struct trace_part part;
        if (!array_grow(&t->parts, t->n_parts, &t->part_capacity, sizeof *t->parts))
            return err_memory(err, "a trace");
        if (!take_part(t, &at, &part) || r->n_prompt + part.n > MAX_LENGTH)
            return err_set(err, SLUICE_ERR_FORMAT,
                           "part %u: expected tSEED:N, e, or aREQUEST:FROM:N of an earlier answer",
                           r->n_parts + 1);
        t->parts[t->n_parts++] = part;
        r->n_parts++;
        r->n_prompt += part.n;
    }
    if (r->n_prompt == 0)
        return err_set(err, SLUICE_ERR_FORMAT, "the prompt is empty, expected tokens");
    if (r->n_prompt + r->n_new > t->longest)
        t->longest = r->n_prompt + r->n_new;
    if (r->conversation >= t->n_conversations)
        t->n_conversations = r->conversation + 1;
    r->answer = malloc(r->n_new * sizeof *r->answer);
    t->n += r->answer != NULL;
    return r->answer ? SLUICE_OK : err_memory(err, "a trace");
}

static int read_lines(struct trace *t, char *text, const char *path, struct err *err) {
    int status = SLUICE_OK;
    for (uint32_t number = 1; !status && text; number++) {
        char *line = strsep(&text, "\n");
        if (line[0] && line[0] != '#')
            status = read_line(t, line, err);
        if (status)
            err_prefix(err, "%s, line %u", path, number);
    }
    if (!status && t->n == 0)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: no request, expected some", path);
    return status;
}

int trace_read(struct trace **out, const char *path, struct err *err) {
    struct filemap map = {.fd = -1};
    struct trace *t = *out = calloc(1, sizeof *t);
    int status = t ? filemap_read(&map, path, err) : err_memory(err, "a trace");
    char *text = status ? NULL : strndup((const char *)map.data, map.size);
    filemap_close(&map);
    if (!status)
        status = text ? read_lines(t, text, path, err) : err_memory(err, "a trace");
    free(text);
    return status;
}

void trace_free(struct trace *t) {
    for (uint32_t i = 0; t && i < t->n; i++)
        free(t->requests[i].answer);
    if (t) {
        free(t->requests);
        free(t->parts);
    }
    free(t);
}

uint32_t trace_longest(const struct trace *t) {
    return t->longest;
}

static bool needs_one_left_out(const struct trace *t, const struct trace_request *q) {
    for (uint32_t p = q->first_part; p < q->first_part + q->n_parts; p++)
        if (t->parts[p].kind == 'a' && t->requests[t->parts[p].what].is_left_out)
            return true;
    return false;
}

uint32_t trace_cut(struct trace *t, uint32_t conversations) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        struct trace_request *q = &t->requests[i];
        q->is_left_out = q->conversation >= conversations || needs_one_left_out(t, q);
        n += !q->is_left_out;
    }
    return n;
}

static const char *const reuse_names[] = {"none", "live", "all"};

bool trace_reuse_find(const char *name, enum trace_reuse *out) {
    for (int i = 0; i < 3; i++)
        if (strcmp(name, reuse_names[i]) == 0) {
            *out = i;
            return true;
        }
    return false;
}

/* ---- replaying ---------------------------------------------------------------------------- */

/* Seconds of steps. */
struct steps {
    double *seconds; /* (n) */
    uint32_t n;
    size_t capacity;
    double longest_move; /* longest of all steps: moving to and from the tiers below, blocking the
                          * step */
};

struct replay {
    const struct bench_trace *b;
    struct trace *trace;
    struct sched *sched;
    struct sluice_facts facts;
    int32_t *prompt;    /* (longest) */
    uint32_t *before;   /* (n) 1 + the request before it in its conversation; 0: none */
    uint32_t first;     /* first request neither sent nor left out */
    uint32_t n_running; /* of those sent */
    bool has_news;      /* some have ended since the last check */
    struct err failure; /* of the first that failed */
    struct steps steps;
};

/* Any token but one that ends a turn. */
static int32_t text_token(const struct replay *r, uint32_t seed, uint32_t i) {
    const uint32_t key[2] = {seed, i};
    int32_t n = r->facts.n_tokens;
    int32_t token = (int32_t)(hash64_of(key, sizeof key) % (uint64_t)n);
    while (sluice_token_is_end(r->b->model, token))
        token = (token + 1) % n;
    return token;
}

static void make_prompt(struct replay *r, const struct trace_request *q) {
    int32_t *at = r->prompt;
    for (uint32_t p = q->first_part; p < q->first_part + q->n_parts; p++) {
        const struct trace_part *part = &r->trace->parts[p];
        for (uint32_t i = 0; i < part->n; i++)
            *at++ = part->kind == 't'   ? text_token(r, part->what, i)
                    : part->kind == 'e' ? (r->facts.eos < 0 ? 0 : r->facts.eos)
                                        : r->trace->requests[part->what].answer[part->from + i];
    }
}

/* Marks turns as the engine does for models with an end-of-turn token: after the first turn and the
 * last two. So models without one, with random weights, are measured alike. */
static void mark_turns(const struct replay *r, const struct trace_request *q,
                       struct sched_request *request) {
    uint32_t at = 0, n = 0, ends[3] = {0};
    for (uint32_t p = q->first_part; p < q->first_part + q->n_parts; p++) {
        const struct trace_part *part = &r->trace->parts[p];
        at += part->n;
        if (part->kind != 'e' || at == q->n_prompt)
            continue;
        if (n == 3)
            ends[1] = ends[2];
        n += n < 3;
        ends[n - 1] = at;
    }
    memcpy(request->marks, ends, sizeof ends);
    request->n_marks = n;
}

struct sent {
    struct replay *replay;
    struct trace_request *request;
};

static bool on_token(void *user, const struct sched_token *token) {
    struct sent *s = user;
    s->request->answer[s->request->n_answer++] = token->token;
    return true;
}

static void on_end(void *user, const struct sched_report *report) {
    struct sent *s = user;
    s->request->report = *report;
    s->request->has_ended = s->replay->has_news = true;
    s->replay->n_running--;
    if (report->status && !s->replay->failure.code)
        err_set(&s->replay->failure, report->status, "%s", report->error);
    free(s);
}

static int send_one(struct replay *r, uint32_t number, struct err *err) {
    static const int32_t none[1];
    struct trace_request *q = &r->trace->requests[number];
    struct sent *s = malloc(sizeof *s);
    uint64_t id;
    if (!s)
        return err_memory(err, "a request");
    *s = (struct sent){r, q};
    make_prompt(r, q);
    struct sched_request request = {
        .prompt = r->prompt,
        .n_prompt = q->n_prompt,
        .max_tokens = q->n_new,
        .sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = number},
        .ends = none,
        .on_token = on_token,
        .on_end = on_end,
        .user = s,
    };
    mark_turns(r, q, &request);
    int status = sched_submit(r->sched, &request, &id, err);
    if (status)
        free(s);
    q->is_sent = true;
    r->n_running++;
    return status;
}

/* Whether everything it follows from has ended. */
static bool is_ready(const struct replay *r, uint32_t number) {
    const struct trace_request *all = r->trace->requests, *q = &all[number];
    if (r->before[number] && !all[r->before[number] - 1].has_ended)
        return false;
    for (uint32_t p = q->first_part; p < q->first_part + q->n_parts; p++)
        if (r->trace->parts[p].kind == 'a' && !all[r->trace->parts[p].what].has_ended)
            return false;
    return true;
}

/* Sends as many as run together: the first, in order of arrival, that do not wait for a running
 * one. Those that wait hold nobody else up. */
static int send_some(struct replay *r, uint32_t max_running, struct err *err) {
    const struct trace *t = r->trace;
    int status = SLUICE_OK;
    while (r->first < t->n && (t->requests[r->first].is_sent || t->requests[r->first].is_left_out))
        r->first++;
    for (uint32_t i = r->first; !status && i < t->n && r->n_running < max_running; i++)
        if (!t->requests[i].is_sent && !t->requests[i].is_left_out && is_ready(r, i))
            status = send_one(r, i, err);
    return status;
}

static double seconds_held_up(const struct replay *r) {
    struct sluice_counters c;
    sluice_engine_counters(r->b->engine, &c);
    return c.held_up_seconds;
}

/* A step, and what it took. */
static int step_once(struct replay *r, bool *worked, struct err *err) {
    struct steps *s = &r->steps;
    if (!array_grow(&s->seconds, s->n, &s->capacity, sizeof *s->seconds))
        return err_memory(err, "the times of steps");
    double moving = seconds_held_up(r), started = seconds_now();
    int status = sched_step(r->sched, worked);
    if (status)
        return err_set(err, status, "%s", sluice_engine_error(r->b->engine));
    s->seconds[s->n++] = seconds_now() - started;
    moving = seconds_held_up(r) - moving;
    s->longest_move = moving > s->longest_move ? moving : s->longest_move;
    return SLUICE_OK;
}

static int replay_all(struct replay *r, uint32_t max_running, struct err *err) {
    bool worked = true;
    int status = SLUICE_OK;
    while (!status && (r->first < r->trace->n || worked)) {
        status = send_some(r, max_running, err);
        if (!status)
            status = step_once(r, &worked, err);
        if (r->has_news && r->b->reuse == REUSE_LIVE)
            sluice_engine_forget(r->b->engine);
        r->has_news = false;
    }
    if (!status && r->failure.code)
        *err = r->failure;
    return status ? status : r->failure.code;
}

/* ---- what it took ------------------------------------------------------------------------- */

struct took {
    double seconds, first_p50, first_p99;
    double step_p50, step_p99, step_max;
    uint32_t n; /* requests */
    uint64_t n_prompt, n_new, n_reused, n_hits, device, host, disk;
    struct hash128 answers; /* of all tokens: the same whatever is reused */
    struct sluice_counters counters;
    struct limits limits; /* measured where anything was moved */
};

/* A quantile of the list, which gets sorted. */
static double quantile(double *list, uint32_t n, double part) {
    qsort(list, n, sizeof *list, compare_doubles);
    return n ? list[(uint32_t)(part * (n - 1))] : 0;
}

static struct took sum_up(struct replay *r, double *first) {
    struct took t = {0};
    struct hash h;
    hash_begin(&h);
    for (uint32_t i = 0; i < r->trace->n; i++) {
        const struct trace_request *q = &r->trace->requests[i];
        const struct sluice_reuse *reuse = &q->report.reuse;
        if (q->is_left_out)
            continue;
        t.n_prompt += q->n_prompt;
        t.n_new += q->n_answer;
        t.n_reused += reuse->tokens;
        t.n_hits += reuse->tokens > 0;
        t.device += reuse->device;
        t.host += reuse->host;
        t.disk += reuse->disk;
        first[t.n++] = q->report.first_seconds;
        hash_add(&h, q->answer, q->n_answer * sizeof *q->answer);
        say(SAY_ALL,
            "request %u: prompt %u, reused %u (%u host, %u disk), first token %.1f ms, answer "
            "%08x; %s",
            i, q->n_prompt, reuse->tokens, reuse->host, reuse->disk, 1e3 * q->report.first_seconds,
            (unsigned)hash64_of(q->answer, q->n_answer * sizeof *q->answer), reuse->why);
    }
    t.answers = hash128_end(&h);
    t.first_p50 = quantile(first, t.n, 0.5);
    t.first_p99 = quantile(first, t.n, 0.99);
    t.step_p50 = quantile(r->steps.seconds, r->steps.n, 0.5);
    t.step_p99 = quantile(r->steps.seconds, r->steps.n, 0.99);
    t.step_max = quantile(r->steps.seconds, r->steps.n, 1);
    sluice_engine_counters(r->b->engine, &t.counters);
    if (t.counters.spilled || t.counters.loaded)
        t.limits = limits_measure(r->b->cache_dir);
    return t;
}

static double rate_of(const struct sluice_moved *m) {
    return m->seconds > 0 ? (double)m->bytes / m->seconds / 1e9 : 0;
}

static json_t *moved_json(const struct sluice_moved *m) {
    return json_pack("{s:I, s:f}", "bytes", (json_int_t)m->bytes, "gb_s", rate_of(m));
}

static json_t *steps_json(const struct replay *r, const struct took *t) {
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "steps", (json_int_t)t->counters.steps,
                     "submissions", (json_int_t)t->counters.submissions, "rows",
                     (json_int_t)t->counters.rows, "p50_ms", 1e3 * t->step_p50, "p99_ms",
                     1e3 * t->step_p99, "longest_ms", 1e3 * t->step_max, "longest_move_ms",
                     1e3 * r->steps.longest_move);
}

static json_t *limits_json(const struct limits *l) {
    return json_pack("{s:f, s:f, s:f, s:f}", "memcpy_gb_s", l->copy, "first_memcpy_gb_s",
                     l->first_copy, "write_gb_s", l->write, "read_gb_s", l->read);
}

static void print_json(const struct replay *r, const struct took *t) {
    const struct sluice_counters *c = &t->counters;
    print_json_line(json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:o, s:I, s:I, s:I, "
        "s:I, s:o, s:o, s:o, s:o, s:o, s:I}",
        "reuse", reuse_names[r->b->reuse], "requests", (json_int_t)t->n, "hits",
        (json_int_t)t->n_hits, "prompt_tokens", (json_int_t)t->n_prompt, "reused_tokens",
        (json_int_t)t->n_reused, "device", (json_int_t)t->device, "host", (json_int_t)t->host,
        "disk", (json_int_t)t->disk, "new_tokens", (json_int_t)t->n_new, "seconds", t->seconds,
        "tok_s", (double)(t->n_prompt + t->n_new) / t->seconds, "first_p50_ms", 1e3 * t->first_p50,
        "first_p99_ms", 1e3 * t->first_p99, "step", steps_json(r, t), "snapshots",
        (json_int_t)c->snapshots_taken, "evicted", (json_int_t)c->evicted, "spilled",
        (json_int_t)c->spilled, "loaded", (json_int_t)c->loaded, "to_host", moved_json(&c->to_host),
        "from_host", moved_json(&c->from_host), "to_disk", moved_json(&c->to_disk), "from_disk",
        moved_json(&c->from_disk), "limits", limits_json(&t->limits), "answers",
        (json_int_t)(t->answers.low >> 1)));
}

static void print_moved(const char *name, const struct sluice_moved *m) {
    if (m->bytes)
        printf("%-10s %10s  %6.2f GB/s\n", name, human_bytes(m->bytes), rate_of(m));
}

static void print_limits(const struct limits *l) {
    if (l->copy > 0)
        printf("memcpy %.2f GB/s, %.2f into memory that was never used\n", l->copy, l->first_copy);
    if (l->write > 0)
        printf("a file there: written and synced %.2f GB/s, read %.2f\n", l->write, l->read);
}

static void print_text(const struct replay *r, const struct took *t) {
    const struct sluice_counters *c = &t->counters;
    printf(
        "reuse %s: %u requests, %.1f %% hit; %s prompt tokens, %.1f %% reused (%s device, %s host, "
        "%s disk); %s new\n",
        reuse_names[r->b->reuse], t->n, 100.0 * (double)t->n_hits / t->n, human_count(t->n_prompt),
        100.0 * (double)t->n_reused / (double)t->n_prompt, human_count(t->device),
        human_count(t->host), human_count(t->disk), human_count(t->n_new));
    printf("%.2f s, %.0f tok/s of prompts and answers; first token after %.1f ms (p50), %.1f ms "
           "(p99)\n",
           t->seconds, (double)(t->n_prompt + t->n_new) / t->seconds, 1e3 * t->first_p50,
           1e3 * t->first_p99);
    printf("%llu steps with %s rows in %llu submissions: %.1f ms (p50), %.1f (p99), %.1f at most, "
           "of which %.1f for moving state\n",
           (unsigned long long)c->steps, human_count(c->rows), (unsigned long long)c->submissions,
           1e3 * t->step_p50, 1e3 * t->step_p99, 1e3 * t->step_max, 1e3 * r->steps.longest_move);
    printf("%llu snapshots taken; %llu blocks and snapshots evicted, %llu spilled, %llu loaded; "
           "answers %016llx\n",
           (unsigned long long)c->snapshots_taken, (unsigned long long)c->evicted,
           (unsigned long long)c->spilled, (unsigned long long)c->loaded,
           (unsigned long long)t->answers.low);
    print_moved("to host", &c->to_host);
    print_moved("from host", &c->from_host);
    print_moved("to disk", &c->to_disk);
    print_moved("from disk", &c->from_disk);
    print_limits(&t->limits);
}

/* Fills in `before`. */
static bool list_befores(struct replay *r) {
    uint32_t *last = calloc(r->trace->n_conversations, sizeof *last);
    r->before = calloc(r->trace->n, sizeof *r->before);
    for (uint32_t i = 0; last && r->before && i < r->trace->n; i++) {
        uint32_t *at = &last[r->trace->requests[i].conversation];
        r->before[i] = *at;
        if (!r->trace->requests[i].is_left_out)
            *at = i + 1;
    }
    free(last);
    return last && r->before;
}

static int run(struct replay *r, struct err *err) {
    struct sluice_choice choice;
    double *first = malloc(r->trace->n * sizeof *first), started = seconds_now();
    r->prompt = malloc(r->trace->longest * sizeof *r->prompt);
    if (!first || !r->prompt || !list_befores(r)) {
        free(first);
        return err_memory(err, "a replay");
    }
    sluice_engine_choice(r->b->engine, &choice);
    int status = replay_all(r, choice.sequences, err);
    if (!status) {
        double seconds = seconds_now() - started;
        struct took took = sum_up(r, first);
        took.seconds = seconds;
        (r->b->as_json ? print_json : print_text)(r, &took);
    }
    free(first);
    return status;
}

int bench_trace(const struct bench_trace *b) {
    const struct sched_options options = {
        .has_no_bursts = !b->has_bursts,
        .has_no_reuse = b->reuse == REUSE_NONE,
    };
    struct replay r = {.b = b, .trace = b->trace};
    struct err err = {0};
    sluice_model_facts(b->model, &r.facts);
    int status = sched_open(&r.sched, b->model, b->engine, &options, &err);
    if (!status)
        status = run(&r, &err);
    sched_close(r.sched);
    free(r.prompt);
    free(r.before);
    free(r.steps.seconds);
    return status ? fail(&err) : 0;
}
