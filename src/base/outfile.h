/* outfile.h - a file that appears whole or not at all.
 *
 * (1) Bytes go to a temporary file of a random name in the target's folder; commit syncs and
 *     renames. Abort, or a failed write, leaves whatever was there under the name before. With two
 *     writers of one path each file is whole; the later one stays. What a killed writer leaves is
 *     removed by the next one in that folder: nobody holds its lock.
 * (2) Symlinks are followed: the file they lead to is replaced, the links stay. An existing file's
 *     permissions are kept.
 * (3) FIFOs and devices are written directly, and so is a descriptor of our own (/dev/stdout,
 *     /dev/fd/N). A FIFO without a reader is an error.
 *
 * A file is used by one thread at a time; it owns copies of its paths. */
#ifndef BASE_OUTFILE_H
#define BASE_OUTFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct outfile {
    int fd;
    char *path;                       /* as it was given */
    char *target;                     /* with its symlinks followed */
    struct registry_entry *temporary; /* holds its path; NULL: written directly */
    uint64_t written;                 /* bytes handed to outfile_write so far */
    uint8_t *buffer;
    size_t buffered;
};

int outfile_open(struct outfile *out, const char *path, struct err *err);
/* For a folder of our own, where nobody means a link or a FIFO to be written through: commit
 * replaces what has the name, whatever it is but a folder. For the owner alone. */
int outfile_open_own(struct outfile *out, const char *path, struct err *err);
/* Returns the error that opening the path would give, to fail early. Leaves no file, does not
 * block. */
int outfile_check(const char *path, struct err *err);
int outfile_write(struct outfile *out, const void *bytes, size_t size, struct err *err);
/* Zero bytes up to a multiple of align. */
int outfile_pad(struct outfile *out, uint64_t align, struct err *err);
/* Flushes, syncs, renames. The file is closed either way. */
int outfile_commit(struct outfile *out, struct err *err);
/* Drops what was written. Takes zeroed, committed and aborted files too. */
void outfile_abort(struct outfile *out);

/* An error when the path has a file that is not empty and does not begin with these bytes: only
 * files of the same kind are replaced or extended. `what` names that kind. */
int outfile_check_like(const char *path, const char *begin, size_t n, const char *what,
                       struct err *err);

/* Unlinks the temporary files of all that are open now; they can't be committed any more.
 * Async-signal-safe: for the handlers of a program that is about to end. */
void outfile_abandon_all(void);

#endif
