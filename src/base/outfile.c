/* outfile.c - a file that appears whole or not at all. */
#include "base/outfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/entropy.h"
#include "base/filemap.h"
#include "base/locale.h"
#include "base/registry.h"

enum { BUFFER_BYTES = 1 << 20 };

static struct registry temporaries;

/* ---- where it goes ------------------------------------------------------------------------ */

/* Length of the path's folder, with its slash; 0: the current one. */
static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path + 1) : 0;
}

/* The folder itself; NULL when memory ran out. To be freed. */
static char *folder_of(const char *path) {
    size_t n = folder_length(path);
    return n ? strndup(path, n) : strdup(".");
}

/* Follows symlinks, also to a file that does not exist yet, but stops at a descriptor's name. NULL
 * and errno on failure. */
static char *follow_links(const char *path) {
    enum { MAX_LINKS = 40 };
    char link[PATH_MAX], *at = strdup(path);
    for (int i = 0; at && i < MAX_LINKS; i++) {
        ssize_t n = descriptor_of_path(at) >= 0 ? -1 : readlink(at, link, sizeof link - 1);
        if (n < 0)
            return at;
        link[n] = 0;
        char *next;
        int folder = link[0] == '/' ? 0 : (int)folder_length(at);
        if (asprintf(&next, "%.*s%s", folder, at, link) < 0)
            next = NULL;
        free(at);
        at = next;
    }
    errno = at ? ELOOP : ENOMEM;
    free(at);
    return NULL;
}

/* Owner and permissions of the file that will be replaced. Those of a new one are the umask's. */
static void keep_mode(int fd, const struct stat *old) {
    if (fchown(fd, old->st_uid, old->st_gid) != 0)
        errno = 0; /* only root may give files away */
    fchmod(fd, old->st_mode & 0777);
}

/* ".sluice-", 16 digits of a hexadecimal number, ".tmp". */
static bool is_temporary_name(const char *name) {
    static const char begin[] = ".sluice-", end[] = ".tmp";
    enum { BEGIN = sizeof begin - 1, DIGITS = 16 };
    return strncmp(name, begin, BEGIN) == 0 && strspn(name + BEGIN, "0123456789abcdef") == DIGITS &&
           strcmp(name + BEGIN + DIGITS, end) == 0;
}

/* Removes a temporary file that no process writes any more: its writer was killed. */
static void remove_abandoned(int folder, const char *name) {
    struct stat st;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(folder, name, 0);
    close(fd);
}

static void remove_all_abandoned(const char *target) {
    char *path = folder_of(target);
    DIR *folder = path ? opendir(path) : NULL;
    struct dirent *e;
    while (folder && (e = readdir(folder)))
        if (is_temporary_name(e->d_name))
            remove_abandoned(dirfd(folder), e->d_name);
    if (folder)
        closedir(folder);
    free(path);
}

/* Marks a temporary file as being written; it is so until it is closed, however that comes. False:
 * another process took it for abandoned before. */
static bool lock_temporary(int fd) {
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) /* some file systems have no locks: none is removed */
        return errno != EWOULDBLOCK;
    return fstat(fd, &st) == 0 && st.st_nlink > 0;
}

/* A new file beside the target, which is `old` or, NULL, not there yet. -1 and errno on failure. */
static int open_temporary(struct outfile *out, const struct stat *old) {
    enum { MAX_TRIES = 100 };
    remove_all_abandoned(out->target);
    for (int i = 0; i < MAX_TRIES; i++) {
        char *name;
        uint64_t number;
        entropy_fill(&number, sizeof number); /* O_EXCL makes sure that no name is used twice */
        if (asprintf(&name, "%.*s.sluice-%016llx.tmp", (int)folder_length(out->target), out->target,
                     (unsigned long long)number) < 0)
            break;
        /* Listed before it exists, so that a signal handler always finds it. */
        out->temporary = registry_add(&temporaries, name, 0);
        free(name);
        if (!out->temporary)
            break;
        int fd = open(out->temporary->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                      old ? 0600 : 0666);
        bool is_lost = fd >= 0 && !lock_temporary(fd);
        if (fd >= 0 && old)
            keep_mode(fd, old);
        if (fd >= 0 && !is_lost)
            return fd;
        int why = is_lost ? EEXIST : errno;
        if (is_lost)
            close(fd);
        registry_remove(&temporaries, out->temporary);
        out->temporary = NULL;
        errno = why;
        if (errno != EEXIST)
            return -1;
    }
    errno = ENOMEM;
    return -1;
}

/* Waits for a FIFO's reader; EINTR ends that. -1 and errno on failure. */
static int open_fifo(const char *path) {
    enum { STEP_MS = 20 };
    for (int waited = 0;; waited += STEP_MS) {
        int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0 || errno != ENXIO || waited >= FIFO_PATIENCE_MS)
            return fd;
        if (poll(NULL, 0, STEP_MS) < 0)
            return -1;
    }
}

/* The descriptor to write to; -1 and errno on failure. */
static int open_target(struct outfile *out) {
    struct stat st;
    int own = descriptor_of_path(out->target);
    if (own >= 0)
        return fcntl(own, F_DUPFD_CLOEXEC, 0);
    if (stat(out->target, &st) != 0)
        return errno == ENOENT && out->target[0] ? open_temporary(out, NULL) : -1;
    if (S_ISFIFO(st.st_mode))
        return open_fifo(out->target);
    if (!S_ISREG(st.st_mode))
        return open(out->target, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    /* rename() only checks the folder; a write-protected file must stay. */
    if (faccessat(AT_FDCWD, out->target, W_OK, AT_EACCESS) != 0)
        return -1;
    return open_temporary(out, &st);
}

static int cannot_create(const char *path, struct err *err) {
    struct stat st;
    if (errno == ENXIO && stat(path, &st) == 0 && S_ISFIFO(st.st_mode))
        return err_set(err, SLUICE_ERR_IO, "%s: is a FIFO that nobody reads", path);
    return err_set(err, errno == ENOMEM ? SLUICE_ERR_MEMORY : SLUICE_ERR_IO,
                   "%s: cannot create: %s", path[0] ? path : "''", locale_error(errno));
}

/* The target is the caller's to set; is_begun says whether there was memory for all. */
static void begin(struct outfile *out, const char *path) {
    *out = (struct outfile){.fd = -1};
    out->path = strdup(path);
    out->buffer = malloc(BUFFER_BYTES);
}

static bool is_begun(const struct outfile *out) {
    return out->path && out->buffer && out->target;
}

/* The error of what has just failed. */
static int fail_to_open(struct outfile *out, const char *path, struct err *err) {
    int code = cannot_create(path, err);
    outfile_abort(out);
    return code;
}

int outfile_open(struct outfile *out, const char *path, struct err *err) {
    begin(out, path);
    out->target = follow_links(path);
    if (is_begun(out))
        out->fd = open_target(out);
    return out->fd >= 0 ? SLUICE_OK : fail_to_open(out, path, err);
}

int outfile_open_own(struct outfile *out, const char *path, struct err *err) {
    begin(out, path);
    out->target = strdup(path);
    if (is_begun(out))
        out->fd = open_temporary(out, NULL);
    bool is_good = out->fd >= 0 && fchmod(out->fd, 0600) == 0;
    return is_good ? SLUICE_OK : fail_to_open(out, path, err);
}

int outfile_check(const char *path, struct err *err) {
    struct outfile out;
    struct stat st;
    if (descriptor_of_path(path) < 0 && stat(path, &st) == 0 && S_ISFIFO(st.st_mode))
        return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0 ? SLUICE_OK
                                                                : cannot_create(path, err);
    int status = outfile_open(&out, path, err);
    outfile_abort(&out);
    return status;
}

/* ---- bytes -------------------------------------------------------------------------------- */

static int write_fully(struct outfile *out, const uint8_t *p, size_t size, struct err *err) {
    while (size > 0) {
        ssize_t n = write(out->fd, p, size);
        if (n < 0 && (errno == EINTR || wait_for(out->fd, POLLOUT)))
            continue;
        /* The bytes came from a mapped file that was truncated: not an error of the output. */
        const char *source = n < 0 && errno == EFAULT ? filemap_at(p) : NULL;
        if (source)
            return err_set(err, SLUICE_ERR_IO, "%s: was truncated while in use", source);
        if (n < 0)
            return err_set(err, SLUICE_ERR_IO, "%s: cannot write: %s", out->path,
                           locale_error(errno));
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

/* ---- the end ------------------------------------------------------------------------------ */

/* A rename is only safe from a power cut once the folder is synced as well. */
static void sync_folder(const char *path) {
    char *folder = folder_of(path);
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

static int put_in_place(struct outfile *out, struct err *err) {
    if (fsync(out->fd) != 0 && errno != EINVAL && errno != EROFS && errno != ENOTSUP)
        return err_set(err, SLUICE_ERR_IO, "%s: cannot sync: %s", out->path, locale_error(errno));
    if (rename(out->temporary->path, out->target) != 0)
        return err_set(err, SLUICE_ERR_IO, "%s: cannot rename to it: %s", out->path,
                       locale_error(errno));
    registry_remove(&temporaries, out->temporary);
    out->temporary = NULL;
    sync_folder(out->target);
    return SLUICE_OK;
}

int outfile_commit(struct outfile *out, struct err *err) {
    int status = flush(out, err);
    if (!status && out->temporary)
        status = put_in_place(out, err);
    outfile_abort(out);
    return status;
}

void outfile_abort(struct outfile *out) {
    if (out->fd >= 0 && out->path)
        close(out->fd);
    if (out->temporary)
        unlink(out->temporary->path);
    registry_remove(&temporaries, out->temporary);
    free(out->target);
    free(out->path);
    free(out->buffer);
    *out = (struct outfile){.fd = -1};
}

int outfile_check_like(const char *path, const char *begin, size_t n, const char *what,
                       struct err *err) {
    struct stat st;
    struct filemap map;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
        return SLUICE_OK;
    int status = filemap_open(&map, path, err);
    if (status)
        return status;
    bool is_alike = map.size >= n && memcmp(map.data, begin, n) == 0;
    filemap_close(&map);
    return is_alike ? SLUICE_OK
                    : err_set(err, SLUICE_ERR_ARGUMENT,
                              "%s: exists and is not %s; it is left as it is", path, what);
}

static void unlink_file(const char *path) {
    unlink(path);
}

void outfile_abandon_all(void) {
    int kept = errno;
    registry_take_all(&temporaries, unlink_file);
    errno = kept;
}
