/* say.c - what the program tells people: text on stdout, lines about it on stderr. */
#include "cmd/say.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/err.h"
#include "base/str.h"
#include "cmd/interrupt.h"

static enum say_level shown = SAY_NORMAL;
static atomic_bool is_line_open; /* on stdout; warnings come from other threads, too */

void say_set_level(enum say_level level) {
    shown = level;
}

bool say_shows(enum say_level level) {
    return level <= shown;
}

/* ---- stderr ------------------------------------------------------------------------------- */

bool say_has_escapes(void) {
    const char *terminal = getenv("TERM");
    return isatty(2) && !(terminal && strcmp(terminal, "dumb") == 0);
}

static bool has_colour(void) {
    const char *no_colour = getenv("NO_COLOR");
    return say_has_escapes() && !(no_colour && *no_colour);
}

#define RED "\033[31m"
#define YELLOW "\033[33m"
#define DIM "\033[2m"
#define PLAIN "\033[0m"

/* The message without control characters, as one line or with its line breaks; malloced, NULL: no
 * memory. */
static char *printable(const char *format, va_list args, bool has_lines) {
    char *text;
    if (vasprintf(&text, format, args) < 0)
        return NULL;
    for (char *line = text, *end; line; line = end) {
        end = has_lines ? strchr(line, '\n') : NULL;
        if (end)
            *end = 0;
        err_make_printable(line);
        if (end)
            *end++ = '\n';
    }
    return text;
}

/* `head` in that colour, the rest plain; without a head all of it is coloured. */
static void print_line(const char *colour, const char *head, const char *format, va_list args) {
    bool is_coloured = has_colour();
    char *text = printable(format, args, !*head);
    flockfile(stderr); /* lines of several threads do not mix */
    say_end_line();
    fputs(is_coloured ? colour : "", stderr);
    fputs(head, stderr);
    fputs(is_coloured && *head ? PLAIN : "", stderr);
    fputs(text ? text : "out of memory", stderr);
    fputs(is_coloured && !*head ? PLAIN "\n" : "\n", stderr);
    funlockfile(stderr);
    free(text);
}

void say(enum say_level level, const char *format, ...) {
    va_list args;
    if (!say_shows(level))
        return;
    va_start(args, format);
    print_line(DIM, "", format, args);
    va_end(args);
}

void warn(const char *format, ...) {
    va_list args;
    if (!say_shows(SAY_WARNINGS))
        return;
    va_start(args, format);
    print_line(YELLOW, "sluice: warning: ", format, args);
    va_end(args);
}

int complain(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    print_line(RED, "sluice: ", format, args);
    va_end(args);
    return status;
}

void say_log(void *user, enum log_level level, const char *line) {
    (void)user;
    if (level == LOG_WARN)
        warn("%s", line);
    else if (level == LOG_INFO)
        say(SAY_ALL, "%s", line);
}

int say_columns(void) {
    struct winsize size;
    if (ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return 80;
}

/* ---- stdout ------------------------------------------------------------------------------- */

/* Writes all of it, even if the reader is slow; -1 on failure, or after an interrupt. */
static int write_all(const char *at, size_t length) {
    while (length > 0) {
        ssize_t n = write(1, at, length);
        if (n < 0 && errno == EAGAIN) /* another process made it non-blocking */
            n = poll(&(struct pollfd){.fd = 1, .events = POLLOUT}, 1, -1) < 0 ? -1 : 0;
        if (n < 0 && (errno != EINTR || interrupt_asked()))
            return -1;
        if (n > 0) {
            at += n;
            length -= (size_t)n;
        }
    }
    return 0;
}

/* For a terminal, without control characters. Carriage returns are dropped, as they overwrite the
 * line; other control characters become '?'. Unlike utf8_is_control, direction marks stay:
 * right-to-left texts need them. */
static int write_tame(const char *at, size_t length) {
    struct str rest = {at, length};
    char part[1024];
    size_t n_part = 0;
    while (rest.len > 0) {
        uint32_t c = 0;
        size_t n = utf8_decode(rest, &c);
        bool steers = (n == 0 || c < 0x20 || (c >= 0x7F && c < 0xA0)) && c != '\n' && c != '\t';
        n = n ? n : 1;
        if (!steers)
            memcpy(part + n_part, rest.at, n);
        else if (c != '\r')
            part[n_part] = '?';
        n_part += !steers ? n : c != '\r';
        rest = str_skip(rest, n);
        bool is_full = n_part + 4 > sizeof part;
        if ((is_full || rest.len == 0) && write_all(part, n_part))
            return -1;
        n_part = is_full ? 0 : n_part;
    }
    return 0;
}

int say_text(const char *at, size_t length) {
    if (length == 0)
        return 0;
    is_line_open = at[length - 1] != '\n';
    if (fflush(stdout) == 0 && (isatty(1) ? write_tame : write_all)(at, length) == 0)
        return 0;
    is_line_open = false; /* there is nothing to end it on */
    if (errno == EINTR && interrupt_asked())
        return EXIT_INTERRUPTED;
    return say_lost();
}

int say_lost(void) {
    return complain(EXIT_WORLD, "cannot write to standard output: %s", strerror(errno));
}

bool say_line_is_open(void) {
    return is_line_open;
}

int say_text_columns(void) {
    struct winsize size;
    return isatty(1) && ioctl(1, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void say_end_line(void) {
    if (atomic_exchange(&is_line_open, false)) {
        putchar('\n');
        fflush(stdout);
    }
}
