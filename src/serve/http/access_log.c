/* access_log.c - one line of JSON per response. */
#include "serve/http/access_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/outfile.h"
#include "serve/http/exchange.h"

struct access_log {
    int fd;
    bool has_prompts;
    char *path;
    atomic_bool is_cut; /* the last line was not written to its end */
    atomic_llong told;  /* when the last failure to write was reported, in seconds; 0: never */
};

static const char line_begin[] = "{\"time\":";

/* Does not wait for the reader of a FIFO, neither here nor when writing. */
static int open_file(const char *path) {
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
}

int access_log_open(struct access_log **out, const char *path, bool has_prompts, struct err *err) {
    bool is_stderr = strcmp(path, "-") == 0;
    *out = NULL;
    int status = is_stderr ? SLUICE_OK
                           : outfile_check_like(path, line_begin, sizeof line_begin - 1,
                                                "an access log", err);
    if (status)
        return status;
    struct access_log *log = calloc(1, sizeof *log);
    if (!log)
        return err_memory(err, "the access log");
    log->has_prompts = has_prompts;
    log->path = strdup(is_stderr ? "standard error" : path);
    log->fd = is_stderr ? dup(STDERR_FILENO) : open_file(path);
    if (log->fd < 0) {
        int why = errno;
        free(log->path);
        free(log);
        return err_set(err, SLUICE_ERR_IO, "%s: cannot open: %s", path,
                       why == ENXIO ? "nobody reads this FIFO" : strerror(why));
    }
    *out = log;
    return SLUICE_OK;
}

void access_log_close(struct access_log *log) {
    if (!log)
        return;
    close(log->fd);
    free(log->path);
    free(log);
}

static void add_tokens(const struct exchange *x, json_t *line) {
    struct usage_counts u = exchange_usage(x);
    const struct job_end *end = x->n_answers > 0 ? x->answers[0].end : NULL;
    double first = end ? end->report.first_seconds : 0;
    json_object_set_new(line, "prompt_tokens", json_integer((json_int_t)u.prompt));
    json_object_set_new(line, "cached_tokens", json_integer((json_int_t)u.cached));
    if (end)
        json_object_set_new(line, "cache_from", exchange_reuse(&end->report.reuse));
    json_object_set_new(line, "new_tokens", json_integer((json_int_t)u.new_tokens));
    json_object_set_new(line, "answers", json_integer(x->n_answers));
    json_object_set_new(line, "streamed", json_boolean(x->ask->is_streamed));
    if (first > 0)
        json_object_set_new(line, "first_token_seconds", json_real(first));
}

/* At most one line per minute. */
static void tell(struct access_log *log, int why) {
    long long now = 1 + (long long)seconds_now(), before = log->told;
    if ((before == 0 || now - before >= 60) &&
        atomic_compare_exchange_strong(&log->told, &before, now))
        log_line(LOG_WARN, "%s: cannot write to the access log: %s; lines are lost",
                 log->path ? log->path : "", strerror(why));
}

/* One write per line, so that lines of several threads do not mix. A full disk or pipe must not end
 * answers; after a partial line a new one is begun. */
static void write_line(struct access_log *log, const struct buffer *line) {
    const char *newline = atomic_exchange(&log->is_cut, false) ? "\n" : "";
    const struct iovec parts[] = {{(char *)newline, strlen(newline)}, {line->at, line->len}};
    errno = ENOSPC; /* a partial write does not set it */
    ssize_t n = writev(log->fd, parts, 2);
    if (n == (ssize_t)(parts[0].iov_len + line->len))
        return;
    log->is_cut = n > 0 || *newline;
    tell(log, errno);
}

void access_log_write(struct access_log *log, struct exchange *x) {
    char when[32];
    struct tm utc;
    struct buffer text = {0};
    if (!log)
        return;
    gmtime_r(&x->created, &utc);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    pthread_mutex_lock(&x->lock);
    json_t *line =
        json_pack("{s:s, s:s, s:s, s:o, s:i, s:f, s:I}", "time", when, "id", x->id, "method",
                  x->method, "path", json_of_text(str_of(x->path ? x->path : "")), "status",
                  x->status, "seconds", seconds_now() - x->arrived, "bytes", (json_int_t)x->bytes);
    if (line && x->has_job && x->is_over && x->n_ended == x->n_answers)
        add_tokens(x, line);
    if (line && (x->is_gone || x->is_cut))
        json_object_set_new(line, "cut", json_string(x->is_cut ? "slow reader" : "client gone"));
    if (line && log->has_prompts && x->body.len > 0)
        json_object_set_new(line, "request", json_of_text(buffer_str(&x->body)));
    pthread_mutex_unlock(&x->lock);
    buffer_json(&text, line);
    buffer_add(&text, "\n", 1);
    if (!text.has_failed)
        write_line(log, &text);
    buffer_free(&text);
}
