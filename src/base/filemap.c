/* filemap.c - a whole file as read-only memory: mapped, or read where mapping fails. */
#include "base/filemap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#ifdef __linux__
#include <sys/vfs.h>
#endif
#include <unistd.h>

#include "base/descriptor.h"
#include "base/locale.h"
#include "base/registry.h"

static struct registry mapped_files;

/* ---- what Linux has calls for ------------------------------------------------------------- */

#ifdef __linux__
/* By TMPFS_MAGIC and RAMFS_MAGIC of linux/magic.h, which comes with a kernel, not with a C library.
 */
static bool is_in_memory(const char *folder) {
    struct statfs fs;
    return statfs(folder, &fs) == 0 &&
           ((uint32_t)fs.f_type == 0x01021994 || (uint32_t)fs.f_type == 0x858458f6);
}

static bool reserve_blocks(int fd, uint64_t bytes) {
    return fallocate(fd, 0, 0, (off_t)bytes) == 0;
}

/* Begins to write the bytes to the disk; waits: until they are there. */
static bool write_out(int fd, uint64_t at, uint64_t n, bool waits) {
    unsigned wait = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER;
    return sync_file_range(fd, (off_t)at, (off_t)n, SYNC_FILE_RANGE_WRITE | (waits ? wait : 0)) ==
           0;
}
#else
static bool is_in_memory(const char *folder) {
    (void)folder;
    return false;
}

static bool reserve_blocks(int fd, uint64_t bytes) {
    (void)fd, (void)bytes;
    errno = EOPNOTSUPP;
    return false;
}

static bool write_out(int fd, uint64_t at, uint64_t n, bool waits) {
    (void)at, (void)n;
    return !waits || fsync(fd) == 0;
}
#endif

/* "a directory", "a FIFO" ... Static. */
static const char *file_kind(mode_t mode) {
    return S_ISREG(mode)    ? "a regular file"
           : S_ISDIR(mode)  ? "a directory"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISCHR(mode)  ? "a character device"
           : S_ISBLK(mode)  ? "a block device"
           : S_ISSOCK(mode) ? "a socket"
                            : "of an unknown kind";
}

/* False: the map is unchanged, and the file has to be read. */
static bool try_map(struct filemap *map, const char *path, size_t size) {
    if (getenv("SLUICE_NO_MMAP"))
        return false;
    struct registry_entry *entry = registry_add(&mapped_files, path, size);
    if (!entry)
        return false;
    void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, map->fd, 0);
    /* The size may have changed between fstat and mmap: an access after the end raises SIGBUS. */
    struct stat st;
    if (p == MAP_FAILED || fstat(map->fd, &st) != 0 || (uint64_t)st.st_size < size) {
        if (p != MAP_FAILED)
            munmap(p, size);
        registry_remove(&mapped_files, entry);
        return false;
    }
    atomic_store(&entry->ranges[0], p);
    map->entry = entry;
    map->data = p;
    map->size = size;
    map->is_mapped = true;
    return true;
}

/* ---- reading ------------------------------------------------------------------------------ */

static int cannot_open(const char *path, struct err *err) {
    return err_set(err, SLUICE_ERR_IO, "%s: cannot open: %s", path[0] ? path : "''",
                   locale_error(errno));
}

static int wrong_kind(const char *path, mode_t mode, struct err *err) {
    return err_set(err, SLUICE_ERR_IO, "%s: is %s, expected a file", path, file_kind(mode));
}

/* A stream or file that is read to its end. */
struct source {
    const char *path; /* for errors */
    int fd;
    size_t hint;       /* the size it claims */
    size_t max_bytes;  /* bytes it may have; 0: any number */
    bool is_awaited;   /* a terminal, pipe or socket: more may come */
    bool lacks_writer; /* a FIFO that we opened: its writer may not be there yet */
};

static struct source source_of(const char *path, int fd, const struct stat *st, bool is_own) {
    enum { MAX_DEVICE_BYTES = 1 << 20 };
    bool is_file = S_ISREG(st->st_mode) && st->st_size > 0; /* those of /proc claim 0 */
    bool is_device = S_ISCHR(st->st_mode) && !isatty(fd);
    return (struct source){
        .path = path,
        .fd = fd,
        .hint = is_file && !is_own ? (size_t)st->st_size : 0,
        .max_bytes = is_file     ? 0
                     : is_device ? MAX_DEVICE_BYTES
                                 : FILEMAP_MAX_STREAM,
        .is_awaited = !S_ISREG(st->st_mode) && !is_device,
        .lacks_writer = S_ISFIFO(st->st_mode) && !is_own,
    };
}

/* As read(), but waits until there are bytes or the end; negative: the error. */
static ssize_t read_some(struct source *s, void *at, size_t n, struct err *err) {
    struct pollfd p = {.fd = s->fd, .events = POLLIN};
    if (!s->is_awaited && poll(&p, 1, 0) == 0)
        return err_set(err, SLUICE_ERR_IO, "%s: does not end, expected a text", s->path);
    ssize_t got;
    do
        got = read(s->fd, at, n);
    while (got < 0 && (errno == EINTR || (s->is_awaited && wait_for(s->fd, POLLIN))));
    if (got < 0)
        return err_set(err, SLUICE_ERR_IO, "%s: cannot read: %s", s->path, locale_error(errno));
    bool may_come = s->lacks_writer && got == 0;
    s->lacks_writer = false;
    if (!may_come)
        return got;
    /* A FIFO without a writer looks like its end. If a writer comes, the next read waits for it; if
     * it comes and leaves, poll returns. */
    bool has_come = poll(&p, 1, FIFO_PATIENCE_MS) > 0;
    got = read_some(s, at, n, err);
    if (got == 0 && !has_come)
        return err_set(err, SLUICE_ERR_IO, "%s: is a FIFO that nobody writes to", s->path);
    return got;
}

static int read_all(struct filemap *map, struct source *s, struct err *err) {
    size_t capacity = s->hint + 1; /* one more, so that a file of that size ends in one read */
    if (capacity < 4096)
        capacity = 4096;
    uint8_t *data = malloc(capacity);
    size_t size = 0;
    while (data) {
        ssize_t n = read_some(s, data + size, capacity - size, err);
        if (n < 0) {
            free(data);
            return (int)n;
        }
        if (n == 0) {
            map->data = data;
            map->size = size;
            return SLUICE_OK;
        }
        size += (size_t)n;
        if (s->max_bytes && size > s->max_bytes) {
            free(data);
            return err_set(err, SLUICE_ERR_IO, "%s: does not end, expected at most %zu bytes",
                           s->path, s->max_bytes);
        }
        if (size < capacity)
            continue;
        uint8_t *more = capacity > SIZE_MAX / 2 ? NULL : realloc(data, capacity * 2);
        if (!more)
            free(data);
        data = more;
        capacity *= 2;
    }
    return err_set(err, SLUICE_ERR_MEMORY, "%s: out of memory reading %zu bytes", s->path,
                   capacity);
}

/* What an open descriptor holds: mapped, read whole, or read to the end of a stream. */
static int take_content(struct filemap *map, const char *path, bool may_stream, struct err *err) {
    struct stat st;
    if (fstat(map->fd, &st) != 0)
        return err_set(err, SLUICE_ERR_IO, "%s: cannot stat: %s", path, locale_error(errno));
    map->device = st.st_dev;
    map->inode = st.st_ino;
    map->modified = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    if (!S_ISREG(st.st_mode) && (S_ISDIR(st.st_mode) || !may_stream))
        return wrong_kind(path, st.st_mode, err);
    if (S_ISREG(st.st_mode) && st.st_size == 0 && !may_stream) {
        map->data = calloc(1, 1);
        return map->data ? SLUICE_OK : err_memory(err, path);
    }
    if (S_ISREG(st.st_mode) && st.st_size > 0 && (uint64_t)st.st_size <= SIZE_MAX / 2 &&
        try_map(map, path, (size_t)st.st_size))
        return SLUICE_OK;
    struct source source = source_of(path, map->fd, &st, false);
    return read_all(map, &source, err);
}

/* Checks the kind before opening: opening a FIFO blocks, and opening some devices has effects. */
static int open_path(struct filemap *map, const char *path, bool may_stream, struct err *err) {
    struct stat st;
    if (stat(path, &st) != 0)
        return cannot_open(path, err);
    bool is_stream = S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode);
    if (!S_ISREG(st.st_mode) && !(is_stream && may_stream))
        return wrong_kind(path, st.st_mode, err);
    map->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (map->fd < 0)
        return cannot_open(path, err);
    int status = take_content(map, path, may_stream, err);
    if (!map->is_mapped) {
        close(map->fd);
        map->fd = -1;
    }
    return status;
}

int filemap_open(struct filemap *map, const char *path, struct err *err) {
    *map = (struct filemap){.fd = -1};
    return open_path(map, path, false, err);
}

int filemap_read(struct filemap *map, const char *path, struct err *err) {
    *map = (struct filemap){.fd = -1};
    bool is_stdin = strcmp(path, "-") == 0;
    int own = is_stdin ? STDIN_FILENO : descriptor_of_path(path);
    if (own < 0)
        return open_path(map, path, true, err);
    /* Not mapped: a descriptor is read from its current position. */
    struct stat st;
    const char *name = is_stdin ? "standard input" : path;
    if (fstat(own, &st) != 0)
        return cannot_open(name, err);
    if (S_ISDIR(st.st_mode))
        return wrong_kind(name, st.st_mode, err);
    map->device = st.st_dev;
    map->inode = st.st_ino;
    struct source source = source_of(name, own, &st, true);
    return read_all(map, &source, err);
}

/* ---- files without a name ----------------------------------------------------------------- */

static int cannot_use(const char *folder, const char *what, struct err *err) {
    return err_set(err, SLUICE_ERR_IO, "%s: cannot be used for %s: %s", folder[0] ? folder : "''",
                   what, locale_error(errno));
}

int filemap_no_room(const char *folder, const char *what, uint64_t bytes, uint64_t room,
                    struct err *err) {
    return err_set(err, SLUICE_ERR_IO, "%s: %.3f GB of %s do not fit, %.3f GB are free", folder,
                   (double)bytes / 1e9, what, (double)room / 1e9);
}

int filemap_room(const char *folder, const char *what, uint64_t *bytes, struct err *err) {
    struct statvfs fs;
    struct stat st;
    if (stat(folder, &st) != 0 || statvfs(folder, &fs) != 0)
        return cannot_use(folder, what, err);
    errno = S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
    if (errno || access(folder, W_OK | X_OK) != 0)
        return cannot_use(folder, what, err);
    if (is_in_memory(folder))
        return err_set(err, SLUICE_ERR_IO,
                       "%s: is in memory (tmpfs), expected a folder on a disk for %s", folder,
                       what);
    *bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return SLUICE_OK;
}

/* Space is reserved: writes to a file with holes may fail when all seems well. */
static int reserve(int fd, const char *folder, const char *what, uint64_t bytes, uint64_t room,
                   struct err *err) {
    if (bytes > room)
        return filemap_no_room(folder, what, bytes, room, err);
    if (reserve_blocks(fd, bytes))
        return SLUICE_OK;
    if (errno == ENOSPC || errno == EDQUOT)
        return filemap_no_room(folder, what, bytes, room, err);
    /* Some file systems cannot reserve; writing tells. */
    return errno == EOPNOTSUPP && ftruncate(fd, (off_t)bytes) == 0 ? SLUICE_OK
                                                                   : cannot_use(folder, what, err);
}

static int map_shared(struct filemap *map, const char *folder, const char *what, uint64_t bytes,
                      struct err *err) {
    struct registry_entry *entry = registry_add(&mapped_files, folder, bytes);
    if (!entry)
        return err_memory(err, folder);
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, map->fd, 0);
    if (p == MAP_FAILED) {
        registry_remove(&mapped_files, entry);
        return cannot_use(folder, what, err);
    }
    atomic_store(&entry->ranges[0], p);
    map->entry = entry;
    map->data = p;
    map->size = bytes;
    map->is_mapped = true;
    return SLUICE_OK;
}

int filemap_make(struct filemap *map, const char *folder, const char *what, uint64_t bytes,
                 struct err *err) {
    char *path = NULL;
    uint64_t room;
    *map = (struct filemap){.fd = -1};
    int status = filemap_room(folder, what, &room, err);
    if (status)
        return status;
    if (asprintf(&path, "%s/sluice-XXXXXX", folder) < 0)
        return err_memory(err, folder);
    map->fd = mkostemp(path, O_CLOEXEC);
    status = map->fd < 0 ? cannot_use(folder, what, err) : SLUICE_OK;
    if (!status)
        unlink(path);
    free(path);
    if (!status)
        status = reserve(map->fd, folder, what, bytes, room, err);
    if (!status)
        status = map_shared(map, folder, what, bytes, err);
    if (status && map->fd >= 0) {
        close(map->fd);
        map->fd = -1;
    }
    return status;
}

int filemap_write(const struct filemap *map, const void *bytes, uint64_t n, uint64_t at) {
    const uint8_t *from = bytes;
    for (uint64_t done = 0; done < n;) {
        ssize_t written = pwrite(map->fd, from + done, n - done, (off_t)(at + done));
        if (written < 0 && errno != EINTR)
            return errno;
        done += written > 0 ? (uint64_t)written : 0;
    }
    /* Now, since pages can only be dropped once they are on the disk. */
    return write_out(map->fd, at, n, false) ? 0 : errno;
}

int filemap_settle(const struct filemap *map, uint64_t at, uint64_t n) {
    return write_out(map->fd, at, n, true) ? 0 : errno;
}

bool filemap_map_at(const struct filemap *map, void *at) {
    if (!map->is_mapped ||
        mmap(at, map->size, PROT_READ, MAP_PRIVATE | MAP_FIXED, map->fd, 0) == MAP_FAILED)
        return false;
    atomic_store(&map->entry->ranges[1], at);
    return true;
}

void filemap_forget_at(const struct filemap *map) {
    if (map->entry)
        atomic_store(&map->entry->ranges[1], NULL);
}

const char *filemap_at(const void *address) {
    return registry_find(&mapped_files, address);
}

void filemap_release(const struct filemap *files, uint32_t n, const void *at, uint64_t bytes) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)at;
    for (uint32_t i = 0; i < n; i++) {
        uintptr_t data = (uintptr_t)files[i].data;
        if (!files[i].is_mapped || begin < data || begin - data >= files[i].size)
            continue;
        uintptr_t first = begin / page * page;
        madvise((void *)first, begin - first + bytes, MADV_DONTNEED);
    }
}

bool filemap_is(const struct filemap *map, const char *path) {
    struct stat st;
    return map->inode != 0 && stat(path, &st) == 0 && st.st_dev == map->device &&
           st.st_ino == map->inode;
}

int filemap_protect(const struct filemap *files, uint32_t n, const char *path, struct err *err) {
    for (uint32_t i = 0; i < n; i++)
        if (filemap_is(&files[i], path))
            return err_set(err, SLUICE_ERR_ARGUMENT,
                           "%s: is a file of the input, expected another to write to", path);
    return SLUICE_OK;
}

int filemap_protect_path(const char *input, const char *path, struct err *err) {
    struct stat st;
    if ((strcmp(input, "-") == 0 ? fstat(STDIN_FILENO, &st) : stat(input, &st)) != 0)
        return SLUICE_OK;
    const struct filemap file = {.device = st.st_dev, .inode = S_ISREG(st.st_mode) ? st.st_ino : 0};
    return filemap_protect(&file, 1, path, err);
}

void filemap_close(struct filemap *map) {
    if (map->is_mapped) {
        registry_remove(&mapped_files, map->entry);
        munmap((void *)map->data, map->size);
        close(map->fd);
    } else {
        free((void *)map->data);
    }
    *map = (struct filemap){.fd = -1};
}
