/* outfile.c - a file that appears whole or not at all. */
#include "base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20 };

int outfile_open(struct outfile *out, const char *path, struct err *err) {
    *out = (struct outfile){.fd = -1};
    out->path = strdup(path);
    out->buffer = malloc(BUFFER_BYTES);
    /* The name is hidden and its owner's process number in it, so that two writers don't meet. */
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path + 1) : 0;
    if (!out->path || !out->buffer ||
        asprintf(&out->temporary, "%.*s.%s.%ld.tmp", folder, path, path + folder, (long)getpid()) <
            0) {
        out->temporary = NULL;
        outfile_abort(out);
        return err_memory(err, path);
    }
    out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out->fd < 0) {
        int code = err_set(err, SLUICE_ERR_IO, "%s: cannot create: %s", path, strerror(errno));
        free(out->temporary);
        out->temporary = NULL;
        outfile_abort(out);
        return code;
    }
    return SLUICE_OK;
}

static int write_fully(struct outfile *out, const uint8_t *p, size_t size, struct err *err) {
    while (size > 0) {
        ssize_t n = write(out->fd, p, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, SLUICE_ERR_IO, "%s: cannot write: %s", out->path, strerror(errno));
        p += n;
        size -= (size_t)n;
    }
    return SLUICE_OK;
}

static int flush(struct outfile *out, struct err *err) {
    int status = write_fully(out, out->buffer, out->buffered, err);
    out->buffered = 0;
    return status;
}

int outfile_write(struct outfile *out, const void *bytes, size_t size, struct err *err) {
    out->written += size;
    if (out->buffered + size > BUFFER_BYTES) {
        int status = flush(out, err);
        if (status)
            return status;
    }
    if (size >= BUFFER_BYTES)
        return write_fully(out, bytes, size, err);
    if (size)
        memcpy(out->buffer + out->buffered, bytes, size);
    out->buffered += size;
    return SLUICE_OK;
}

int outfile_pad(struct outfile *out, uint64_t align, struct err *err) {
    static const uint8_t zeros[4096];
    uint64_t left = (align - out->written % align) % align;
    while (left > 0) {
        size_t n = left < sizeof zeros ? (size_t)left : sizeof zeros;
        int status = outfile_write(out, zeros, n, err);
        if (status)
            return status;
        left -= n;
    }
    return SLUICE_OK;
}

/* A rename is only safe from a power cut once the folder is synced as well. */
static void sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path + 1)) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

int outfile_commit(struct outfile *out, struct err *err) {
    int status = flush(out, err);
    if (!status && fsync(out->fd) != 0 && errno != EINVAL && errno != EROFS)
        status = err_set(err, SLUICE_ERR_IO, "%s: cannot sync: %s", out->path, strerror(errno));
    if (!status && rename(out->temporary, out->path) != 0)
        status =
            err_set(err, SLUICE_ERR_IO, "%s: cannot rename to it: %s", out->path, strerror(errno));
    if (!status) {
        sync_folder(out->path);
        free(out->temporary);
        out->temporary = NULL;
    }
    outfile_abort(out);
    return status;
}

void outfile_abort(struct outfile *out) {
    if (out->fd >= 0 && out->path)
        close(out->fd);
    if (out->temporary)
        unlink(out->temporary);
    free(out->temporary);
    free(out->path);
    free(out->buffer);
    *out = (struct outfile){.fd = -1};
}
