/* history.c - what was typed in earlier runs, in a file. */
#include "cmd/history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/folders.h"

/* ---- where -------------------------------------------------------------------------------- */

void history_open(struct history *h) {
    const char *given = getenv("SLUICE_HISTORY");
    *h = (struct history){0};
    if (given)
        h->path = *given ? strdup(given) : NULL;
    else
        h->path = folders_user_file("XDG_STATE_HOME", ".local/state", "history");
}

void history_close(struct history *h) {
    free(h->path);
    *h = (struct history){0};
}

/* Whether it is text, judged by its beginning: a model's first bytes contain zeros. */
static bool is_text(int fd) {
    char begin[64];
    ssize_t n = pread(fd, begin, sizeof begin, 0);
    return n < 0 || !memchr(begin, 0, (size_t)n);
}

/* Opened and locked; -1 without an error: no regular file, or none to be read. */
static int open_locked(const struct history *h, int flags, struct err *err) {
    struct stat facts;
    int fd = open(h->path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags, 0600);
    if (fd < 0 && errno == ENOENT && !(flags & O_CREAT))
        return -1;
    if (fd < 0) {
        err_set(err, SLUICE_ERR_IO, "%s: cannot open: %s", h->path, strerror(errno));
        return -1;
    }
    if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        close(fd);
        return -1;
    }
    if (!is_text(fd)) {
        close(fd);
        err_set(err, SLUICE_ERR_FORMAT, "%s: is not a history file; it is left as it is", h->path);
        return -1;
    }
    if ((facts.st_mode & 077) != 0)
        fchmod(fd, 0600);
    while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
        continue;
    return fd;
}

/* ---- entries ------------------------------------------------------------------------------ */

/* Escapes an entry for the file; `out` has twice its length plus one. */
static size_t escape(struct str entry, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < entry.len; i++) {
        char c = entry.at[i];
        if (c == '\n' || c == '\\')
            out[n++] = '\\';
        out[n++] = c == '\n' ? 'n' : c;
    }
    out[n++] = '\n';
    return n;
}

/* In place. */
static struct str unescape(char *at, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        bool is_escaped = at[i] == '\\' && i + 1 < len;
        char c = at[i += is_escaped];
        at[n++] = is_escaped && c == 'n' ? '\n' : c;
    }
    return (struct str){at, n};
}

/* ---- reading ------------------------------------------------------------------------------ */

/* The file's last bytes, from the beginning of an entry on; malloced. */
static char *read_tail(int fd, size_t *len, bool *is_whole) {
    off_t size = lseek(fd, 0, SEEK_END);
    *is_whole = size <= HISTORY_BYTES;
    off_t from = *is_whole ? 0 : size - HISTORY_BYTES;
    char *at = malloc(HISTORY_BYTES);
    ssize_t n = at && size >= 0 ? pread(fd, at, HISTORY_BYTES, from) : -1;
    if (n < 0) {
        free(at);
        return NULL;
    }
    *len = (size_t)n;
    if (!*is_whole) {
        char *end = memchr(at, '\n', *len);
        size_t skipped = end ? (size_t)(end - at) + 1 : *len;
        memmove(at, at + skipped, *len -= skipped);
    }
    return at;
}

/* Where the newest HISTORY_ENTRIES lines begin. */
static size_t newest(const char *at, size_t len) {
    size_t lines = 0;
    for (size_t i = len; i > 0; i--)
        if (at[i - 1] == '\n' && i < len && ++lines == HISTORY_ENTRIES)
            return i;
    return 0;
}

/* Keeps these bytes alone. */
static bool cut(int fd, const char *at, size_t len) {
    return pwrite(fd, at, len, 0) == (ssize_t)len && ftruncate(fd, (off_t)len) == 0;
}

int history_read(const struct history *h, void (*each)(void *user, struct str entry), void *user,
                 struct err *err) {
    size_t len = 0;
    bool is_whole;
    err->code = SLUICE_OK;
    int fd = h->path ? open_locked(h, 0, err) : -1;
    if (fd < 0)
        return err->code;
    char *text = read_tail(fd, &len, &is_whole);
    size_t start = text ? newest(text, len) : 0;
    bool is_good = text && ((is_whole && start == 0) || cut(fd, text + start, len - start));
    if (!is_good)
        err_set(err, SLUICE_ERR_IO, "%s: cannot %s: %s", h->path, text ? "shorten" : "read",
                strerror(errno));
    close(fd);
    for (size_t end; text && start < len; start = end + 1) {
        const char *found = memchr(text + start, '\n', len - start);
        end = found ? (size_t)(found - text) : len;
        each(user, unescape(text + start, end - start));
    }
    free(text);
    return err->code;
}

/* All or nothing: half an entry would become part of the next. */
static bool append(int fd, const char *line, size_t len) {
    off_t size = lseek(fd, 0, SEEK_END);
    if (size >= 0 && write(fd, line, len) == (ssize_t)len)
        return true;
    int why = errno;
    bool is_restored = size >= 0 && ftruncate(fd, size) == 0;
    errno = is_restored ? why : errno;
    return false;
}

int history_append(const struct history *h, struct str entry, struct err *err) {
    err->code = SLUICE_OK;
    if (!h->path || entry.len > HISTORY_ENTRY_BYTES)
        return SLUICE_OK;
    char *line = malloc(2 * entry.len + 1);
    if (!line)
        return err_memory(err, "the history");
    int fd = open_locked(h, O_CREAT, err);
    if (fd >= 0 && !append(fd, line, escape(entry, line)))
        err_set(err, SLUICE_ERR_IO, "%s: cannot write: %s", h->path, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(line);
    return err->code;
}
