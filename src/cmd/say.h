/* say.h - what the program tells people: text on stdout, lines about it on stderr.
 *
 * (1) A line on stderr never runs into the text: a line that is still open on stdout is ended
 *     first.
 * (2) Names in a line on stderr (files, options) cannot control the terminal, nor begin another
 *     line: control characters and what is no UTF-8 are escaped, as \n or \xHH.
 * (3) Colour only on a terminal, and not when NO_COLOR is set or TERM is dumb; with the latter no
 *     escape sequence at all. */
#ifndef CMD_SAY_H
#define CMD_SAY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/log.h"

/* Files, models, memory, devices; the command line; Ctrl-C, as a shell puts it. */
enum { EXIT_WORLD = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

enum say_level {
    SAY_NOTHING,  /* -q: errors alone */
    SAY_WARNINGS, /* --json */
    SAY_NORMAL,
    SAY_ALL, /* -v */
};
void say_set_level(enum say_level level);
/* Whether lines of this level are shown. */
bool say_shows(enum say_level level);

/* Whether stderr is a terminal that knows escape sequences. */
bool say_has_escapes(void);

/* One line on stderr, if its level is shown. */
void say(enum say_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A text of our own or of the user's, which may have several lines. */
void say_lines(enum say_level level, const char *text);
/* One line: "sluice: warning: ...". */
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, always: "sluice: ...". Returns status. */
int complain(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints what the library logs: warnings, and with -v all of it; for log_set. Any thread. */
void say_log(void *user, enum log_level level, const char *line);

/* Writes text to stdout at once; on a terminal without control characters. Returns 0, EXIT_WORLD
 * when writing failed (reported), or EXIT_INTERRUPTED after a request to stop while the reader did
 * not read. */
int say_text(const char *at, size_t length);
/* Says, by errno, why that failed; returns EXIT_WORLD. */
int say_lost(void);
/* Ends the text's last line if it is open. */
void say_end_line(void);
bool say_line_is_open(void);
/* Columns of the terminal that stdout is; 0: it is none, or does not say. */
int say_text_columns(void);

/* Columns of the terminal that stderr is. */
int say_columns(void);

#endif
