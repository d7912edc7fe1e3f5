/* filemap.h - a whole file as read-only memory.
 *
 * An open map is read-only and may be read by any thread. Whoever opens it closes it. */
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
    uint64_t device, inode;
    int64_t modified;             /* when, in nanoseconds */
    struct registry_entry *entry; /* its name, for signal handlers; NULL unless mapped */
};

/* Maps a regular file; reads it where it cannot be mapped (some file systems, or with
 * SLUICE_NO_MMAP in the environment). Anything else (a directory, a FIFO, a device) and missing
 * files are errors that name the path. A mapped file that is truncated later raises SIGBUS when
 * read: nothing here can prevent that, but filemap_at says which file it was. */
int filemap_open(struct filemap *map, const char *path, struct err *err);

/* The same for a text, which may be a stream too: pipes, FIFOs, terminals and devices are read to
 * their end, at most FILEMAP_MAX_STREAM bytes. "-" is standard input. A path that means a
 * descriptor of our own (/dev/stdin, /dev/fd/N) is read from its current position, and may be a
 * socket. Errors, instead of waiting: a FIFO without a writer, and files and devices without an
 * end, such as /proc/kmsg. */
enum { FILEMAP_MAX_STREAM = 1 << 30 };
int filemap_read(struct filemap *map, const char *path, struct err *err);

/* A file without a name in a folder, of so many bytes for which there is room on the disk, mapped;
 * it is gone once it is closed, or the program has ended. It is read through the mapping, and
 * written by filemap_write, which any thread may call. An error names the folder, what is to be
 * kept there ("cannot be used for WHAT"), and where the disk is full the bytes that are free. */
int filemap_make(struct filemap *map, const char *folder, const char *what, uint64_t bytes,
                 struct err *err);
/* Returns an errno, 0: written. */
int filemap_write(const struct filemap *map, const void *bytes, uint64_t n, uint64_t at);
/* Waits until these bytes are on the disk, so that their pages can be dropped; an errno. */
int filemap_settle(const struct filemap *map, uint64_t at, uint64_t n);
/* Bytes that filemap_make could have in this folder. A folder that it cannot use is an error. */
int filemap_room(const char *folder, const char *what, uint64_t *bytes, struct err *err);
/* The error that so many bytes are more than there is room for. */
int filemap_no_room(const char *folder, const char *what, uint64_t bytes, uint64_t room,
                    struct err *err);

/* Takes zeroed and closed maps too. */
void filemap_close(struct filemap *map);

/* Maps a mapped file a second time, at an address range that the caller has reserved and will
 * unmap. False on failure. */
bool filemap_map_at(const struct filemap *map, void *at);
/* To be called before that range is unmapped. */
void filemap_forget_at(const struct filemap *map);

/* Gives pages of one of these files back to the kernel, whole ones and those that the range begins
 * and ends in: they stay readable, and are read again if need be. For who reads a large file once,
 * from its beginning to its end; files that were not mapped stay in memory. */
void filemap_release(const struct filemap *files, uint32_t n, const void *at, uint64_t bytes);

/* The path of the mapped file that an address belongs to, NULL: none. Async-signal-safe. */
const char *filemap_at(const void *address);

/* Whether the path names this very file, also through a symlink or a hard link. */
bool filemap_is(const struct filemap *map, const char *path);

/* Refuses a path that is to be written and names one of these files, which are being read. */
int filemap_protect(const struct filemap *files, uint32_t n, const char *path, struct err *err);
/* The same for one input that is no longer open; "-" is standard input. */
int filemap_protect_path(const char *input, const char *path, struct err *err);

#endif
