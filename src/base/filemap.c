/* filemap.c - a whole file as read-only memory: mapped, or read where mapping fails. */
#include "base/filemap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool try_map(struct filemap *map, size_t size) {
    if (getenv("SLUICE_NO_MMAP"))
        return false;
    void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, map->fd, 0);
    if (p == MAP_FAILED)
        return false;
    /* The size may have changed between fstat and mmap: what lies behind the end raises SIGBUS. */
    struct stat st;
    if (fstat(map->fd, &st) != 0 || (uint64_t)st.st_size < size) {
        munmap(p, size);
        return false;
    }
    map->data = p;
    map->size = size;
    map->is_mapped = true;
    return true;
}

/* Reads to the end. `hint` is the size the file claims; a pipe claims 0. */
static int read_all(struct filemap *map, const char *path, size_t hint, struct err *err) {
    size_t capacity = hint + 1; /* one more, so that a file of that size ends in one read */
    if (capacity < 4096)
        capacity = 4096;
    uint8_t *data = malloc(capacity);
    size_t size = 0;
    while (data) {
        ssize_t n = read(map->fd, data + size, capacity - size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            free(data);
            return err_set(err, SLUICE_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
        }
        if (n == 0) {
            map->data = data;
            map->size = size;
            return SLUICE_OK;
        }
        size += (size_t)n;
        if (size < capacity)
            continue;
        uint8_t *more = capacity > SIZE_MAX / 2 ? NULL : realloc(data, capacity * 2);
        if (!more)
            free(data);
        data = more;
        capacity *= 2;
    }
    return err_set(err, SLUICE_ERR_MEMORY, "%s: out of memory reading %zu bytes", path, capacity);
}

int filemap_open(struct filemap *map, const char *path, struct err *err) {
    *map = (struct filemap){.fd = -1};
    map->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (map->fd < 0)
        return err_set(err, SLUICE_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    struct stat st;
    int status = SLUICE_OK;
    if (fstat(map->fd, &st) != 0)
        status = err_set(err, SLUICE_ERR_IO, "%s: cannot stat: %s", path, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        status = err_set(err, SLUICE_ERR_IO, "%s: is a directory, expected a file", path);
    else if (st.st_size > 0 && (uint64_t)st.st_size <= SIZE_MAX / 2 &&
             try_map(map, (size_t)st.st_size))
        return SLUICE_OK;
    else
        status = read_all(map, path, st.st_size > 0 ? (size_t)st.st_size : 0, err);
    close(map->fd);
    map->fd = -1;
    return status;
}

void filemap_close(struct filemap *map) {
    if (map->is_mapped) {
        munmap((void *)map->data, map->size);
        close(map->fd);
    } else {
        free((void *)map->data);
    }
    *map = (struct filemap){.fd = -1};
}
