/* lines.c - the lines of a file descriptor, of any length. */
#include "cmd/lines.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reserves some more bytes; lines handed out before become invalid. */
static bool reserve(struct lines *l) {
    enum { MIN_FREE = 1 << 16 };
    if (l->start > 0) {
        memmove(l->at, l->at + l->start, l->len - l->start);
        l->len -= l->start;
        l->scanned -= l->start;
        l->start = 0;
    }
    if (l->capacity - l->len >= MIN_FREE)
        return true;
    size_t capacity = 2 * l->capacity + MIN_FREE;
    char *more = realloc(l->at, capacity);
    if (!more)
        return false;
    l->at = more;
    l->capacity = capacity;
    return true;
}

/* Reads more bytes. Waits for a non-blocking descriptor. */
static int fill(struct lines *l, struct err *err) {
    if (!reserve(l))
        return err_memory(err, "a line of standard input");
    for (;;) {
        ssize_t n = read(l->fd, l->at + l->len, l->capacity - l->len);
        if (n >= 0) {
            l->len += (size_t)n;
            l->is_end = n == 0;
            return SLUICE_OK;
        }
        if (errno == EAGAIN)
            poll(&(struct pollfd){.fd = l->fd, .events = POLLIN}, 1, -1);
        else if (errno != EINTR)
            return err_set(err, SLUICE_ERR_IO, "cannot read standard input: %s", strerror(errno));
    }
}

static struct str take(struct lines *l, size_t end, size_t next) {
    struct str line = {l->at + l->start, end - l->start};
    l->start = l->scanned = next;
    if (line.len > 0 && line.at[line.len - 1] == '\r')
        line.len--;
    return line;
}

int lines_next(struct lines *l, struct str *line, struct err *err) {
    for (;;) {
        const char *end =
            l->len > l->scanned ? memchr(l->at + l->scanned, '\n', l->len - l->scanned) : NULL;
        if (end) {
            size_t at = (size_t)(end - l->at);
            *line = take(l, at, at + 1);
            return 1;
        }
        l->scanned = l->len;
        if (l->is_end) {
            bool has_more = l->len > l->start;
            if (has_more)
                *line = take(l, l->len, l->len);
            return has_more;
        }
        int status = fill(l, err);
        if (status)
            return status;
    }
}

void lines_free(struct lines *l) {
    free(l->at);
    *l = (struct lines){.fd = -1};
}
