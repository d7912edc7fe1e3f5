/* filemap.h - a whole file as read-only memory. */
#ifndef BASE_FILEMAP_H
#define BASE_FILEMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct filemap {
    const uint8_t *data; /* NULL when the file is empty */
    size_t size;
    bool is_mapped; /* mapped, or read into memory where that was not possible */
    int fd;         /* held while mapped, -1 otherwise */
};

/* Maps the file; reads it where it can't be mapped (a pipe, some file systems, or when the
 * environment says SLUICE_NO_MMAP). Directories and missing files are errors that name the path.
 * A mapped file that somebody else truncates later raises SIGBUS when read: nothing here can
 * prevent that. */
int filemap_open(struct filemap *map, const char *path, struct err *err);

/* Takes zeroed and closed maps too. */
void filemap_close(struct filemap *map);

#endif
