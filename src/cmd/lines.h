/* lines.h - the lines of a file descriptor, of any length. */
#ifndef CMD_LINES_H
#define CMD_LINES_H

#include "base/err.h"
#include "base/str.h"

/* Begin with zeros and the descriptor; lines_free when done, which does not close it. */
struct lines {
    int fd;
    char *at;
    size_t start, scanned, len, capacity; /* the next line begins at `start` */
    bool is_end;
};

/* 1: a line without its end (LF or CRLF), which lives until the next call; 0: there are no more; or
 * a negative status. */
int lines_next(struct lines *lines, struct str *line, struct err *err);
void lines_free(struct lines *lines);

#endif
