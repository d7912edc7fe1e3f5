/* outfile.h - a file that appears whole or not at all.
 *
 * Bytes go to a temporary name in the same folder; commit syncs and renames. Abort, or a failed
 * write, leaves whatever stood under the name before. */
#ifndef BASE_OUTFILE_H
#define BASE_OUTFILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct outfile {
    int fd;
    char *path, *temporary;
    uint64_t written; /* bytes handed to outfile_write so far */
    uint8_t *buffer;
    size_t buffered;
};

int outfile_open(struct outfile *out, const char *path, struct err *err);
int outfile_write(struct outfile *out, const void *bytes, size_t size, struct err *err);
/* Zero bytes up to a multiple of align. */
int outfile_pad(struct outfile *out, uint64_t align, struct err *err);
/* Flushes, syncs, renames. The file is closed either way. */
int outfile_commit(struct outfile *out, struct err *err);
/* Drops what was written. Takes zeroed, committed and aborted files too. */
void outfile_abort(struct outfile *out);

#endif
