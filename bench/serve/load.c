/* load.c - streams of completions against a server, and how long their tokens take.
 *
 * usage: load --port N [--streams N] [--rounds N] [--tokens N] [--prompt N] [--words N] [--apart]
 *             [--seed N] [--fields TEXT]
 *
 * Every stream is a connection that is kept and sends POST /v1/completions with "stream": true,
 * greedy, end tokens ignored; the prompt is N tokens by number, others in every request.
 * --fields '"grammar": "..."' adds fields to every request.
 *
 *   together (usual)   all streams begin at once, and again when all have ended: --rounds times,
 *                      after one that is not counted. Tokens a second are those of a whole round,
 *                      first send to last byte; the median round is told.
 *   --apart            a stream sends its next request when its last has ended, of half to one and
 *                      a half times as many tokens: requests arrive while others are answered.
 *
 * One line of JSON: tok_s, tokens (served: with those of the first round), first token and time
 * between two reads that brought tokens (p50, p99, ms) and the processor seconds of this program.
 * One thread, epoll; it needs some 2 us a token. */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    MAX_STREAMS = 4096,
    MAX_ROUNDS = 1000,
    READ_BYTES = 65536,
    HEAD_BYTES = 512,
    LINE_BYTES = 16
};

struct stream {
    int fd;
    bool is_busy;
    double sent, last;      /* when: the request, the newest token */
    uint32_t n_events;      /* of this request, so far */
    uint32_t wanted;        /* tokens */
    int left;               /* requests that it still sends */
    char begun[LINE_BYTES]; /* of the line that is read: enough to know it */
    size_t n_line;          /* bytes of it */
};

/* Times in seconds. */
struct times {
    double *at;
    size_t n, capacity;
};

struct load {
    int port, n_streams, n_rounds, n_tokens, n_prompt, n_words;
    bool is_apart;
    const char *fields;
    uint64_t random;
    int epoll;
    struct stream streams[MAX_STREAMS];
    int n_busy;
    uint64_t n_done; /* of answers that have ended */
    struct times first, between, rates;
};

static void die(const char *what) {
    fprintf(stderr, "load: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static uint32_t draw(struct load *l, uint32_t below) {
    l->random = l->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((l->random >> 33) % below);
}

static void times_add(struct times *t, double value) {
    if (t->n == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 4096;
        t->at = realloc(t->at, t->capacity * sizeof *t->at);
        if (!t->at)
            die("out of memory for times");
    }
    t->at[t->n++] = value;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double quantile(struct times *t, double q) {
    if (t->n == 0)
        return 0;
    qsort(t->at, t->n, sizeof *t->at, compare);
    return t->at[(size_t)(q * (double)(t->n - 1) + 0.5)];
}

/* ---- requests ----------------------------------------------------------------------------- */

static void stream_open(struct load *l, struct stream *s) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)l->port)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
    int one = 1;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0 || connect(s->fd, (struct sockaddr *)&to, sizeof to) ||
        setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) ||
        epoll_ctl(l->epoll, EPOLL_CTL_ADD, s->fd, &event))
        die("no connection");
}

static size_t write_request(struct load *l, const struct stream *s, char *to, size_t most) {
    char *body = to + HEAD_BYTES;
    size_t n = (size_t)snprintf(body, most,
                                "{\"stream\":true,\"temperature\":0,\"ignore_eos\":true,"
                                "\"max_tokens\":%u,%s%s\"prompt\":[",
                                s->wanted, l->fields, *l->fields ? "," : "");
    for (int i = 0; i < l->n_prompt; i++)
        n += (size_t)sprintf(body + n, "%s%u", i ? "," : "", draw(l, (uint32_t)l->n_words));
    n += (size_t)sprintf(body + n, "]}");
    char head[HEAD_BYTES];
    size_t n_head =
        (size_t)snprintf(head, sizeof head,
                         "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                         "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                         n);
    memmove(to + n_head, body, n);
    memcpy(to, head, n_head);
    return n_head + n;
}

static void stream_send(struct load *l, struct stream *s) {
    size_t most = HEAD_BYTES + 256 + strlen(l->fields) + 12 * (size_t)l->n_prompt;
    char *request = malloc(most);
    if (!request)
        die("out of memory for a request");
    s->wanted = (uint32_t)l->n_tokens;
    if (l->is_apart)
        s->wanted = s->wanted / 2 + draw(l, s->wanted + 1);
    if (s->wanted == 0)
        s->wanted = 1;
    size_t n = write_request(l, s, request, most - HEAD_BYTES);
    s->n_events = 0;
    s->is_busy = true;
    s->left--;
    l->n_busy++;
    s->sent = seconds_now();
    if (write(s->fd, request, n) != (ssize_t)n)
        die("a request was not sent");
    free(request);
}

/* ---- answers ------------------------------------------------------------------------------ */

static bool begins(const struct stream *s, const char *with) {
    size_t n = strlen(with);
    return s->n_line >= n && memcmp(s->begun, with, n) == 0;
}

/* A whole line of the response has been seen; its beginning says what it is. Lines with the sizes
 * of chunks and headers are passed over. True: the answer is complete. */
static bool take_line(struct stream *s) {
    errno = 0;
    if (begins(s, "HTTP/1.1 ") && !begins(s, "HTTP/1.1 200"))
        die("the server refused a request");
    if (begins(s, "data: {\"error"))
        die("an answer failed");
    bool is_over = begins(s, "data: [DONE]");
    s->n_events += begins(s, "data: {");
    s->n_line = 0;
    return is_over;
}

static void stream_end(struct load *l, struct stream *s) {
    l->n_done += s->wanted;
    s->is_busy = false;
    l->n_busy--;
}

static void stream_read(struct load *l, struct stream *s) {
    static char bytes[READ_BYTES];
    ssize_t n = read(s->fd, bytes, sizeof bytes);
    double now = seconds_now();
    uint32_t before = s->n_events;
    bool is_over = false;
    if (n <= 0)
        die("a connection was closed");
    for (const char *at = bytes, *end = bytes + n; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop ? stop : end) - at);
        for (size_t i = 0; i < length && s->n_line + i < LINE_BYTES; i++)
            s->begun[s->n_line + i] = at[i];
        s->n_line += length;
        at += length + (stop != NULL);
        is_over |= stop && take_line(s);
    }
    if (s->n_events > before && before == 0)
        times_add(&l->first, now - s->sent);
    else if (s->n_events > before && !is_over)
        times_add(&l->between, now - s->last);
    if (s->n_events > before)
        s->last = now;
    if (is_over)
        stream_end(l, s);
    if (is_over && l->is_apart && s->left > 0)
        stream_send(l, s);
}

/* ---- rounds ------------------------------------------------------------------------------- */

/* All streams send, and are read until none is busy. Tokens a second. */
static double round_of(struct load *l, int requests) {
    struct epoll_event events[256];
    uint64_t before = l->n_done;
    double began = seconds_now();
    for (int i = 0; i < l->n_streams; i++) {
        l->streams[i].left = requests;
        stream_send(l, &l->streams[i]);
    }
    while (l->n_busy > 0) {
        int n = epoll_wait(l->epoll, events, sizeof events / sizeof *events, -1);
        for (int i = 0; i < n; i++)
            stream_read(l, events[i].data.ptr);
    }
    return (double)(l->n_done - before) / (seconds_now() - began);
}

static double processor_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void run(struct load *l) {
    round_of(l, 1); /* warms up */
    uint64_t warm = l->n_done;
    l->first.n = l->between.n = 0;
    l->n_done = 0;
    double busy = processor_seconds(), began = seconds_now();
    if (l->is_apart)
        times_add(&l->rates, round_of(l, l->n_rounds));
    for (int i = 0; !l->is_apart && i < l->n_rounds; i++)
        times_add(&l->rates, round_of(l, 1));
    printf("{\"streams\": %d, \"tokens\": %llu, \"served\": %llu, \"seconds\": %.3f, \"tok_s\": "
           "%.2f, ",
           l->n_streams, (unsigned long long)l->n_done, (unsigned long long)(l->n_done + warm),
           seconds_now() - began, quantile(&l->rates, 0.5));
    printf("\"first_p50_ms\": %.3f, \"first_p99_ms\": %.3f, ", 1e3 * quantile(&l->first, 0.5),
           1e3 * quantile(&l->first, 0.99));
    printf("\"between_p50_ms\": %.3f, \"between_p99_ms\": %.3f, ", 1e3 * quantile(&l->between, 0.5),
           1e3 * quantile(&l->between, 0.99));
    printf("\"client_seconds\": %.3f}\n", processor_seconds() - busy);
}

int main(int argc, char **argv) {
    static struct load l = {.port = 8080, .n_streams = 1, .n_rounds = 3, .n_tokens = 128};
    int seed = 1, is_apart = 0, number;
    const struct option options[] = {
        {"port", 1, NULL, 'p'},   {"streams", 1, NULL, 's'},
        {"rounds", 1, NULL, 'r'}, {"tokens", 1, NULL, 'n'},
        {"prompt", 1, NULL, 'i'}, {"words", 1, NULL, 'w'},
        {"seed", 1, NULL, 'e'},   {"apart", 0, NULL, 'a'},
        {"fields", 1, NULL, 'f'}, {0},
    };
    l.n_prompt = 1;
    l.n_words = 256;
    l.fields = "";
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'f') {
            l.fields = optarg;
            continue;
        }
        number = optarg ? atoi(optarg) : 1;
        if (c == '?' || number < 1)
            die("the options are in the head of load.c, numbers are 1 or more");
        *(c == 'p'   ? &l.port
          : c == 's' ? &l.n_streams
          : c == 'r' ? &l.n_rounds
          : c == 'n' ? &l.n_tokens
          : c == 'i' ? &l.n_prompt
          : c == 'w' ? &l.n_words
          : c == 'e' ? &seed
                     : &is_apart) = number;
    }
    if (l.n_streams > MAX_STREAMS || l.n_rounds > MAX_ROUNDS)
        die("at most 4096 streams and 1000 rounds");
    l.is_apart = is_apart;
    l.random = (uint64_t)seed;
    l.epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < l.n_streams; i++)
        stream_open(&l, &l.streams[i]);
    run(&l);
    return 0;
}
