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

/* Appends the character that `s` begins with, escaped if it is a control character or no UTF-8;
 * returns its length. `out` has 4 bytes for each of its bytes, and one more. */
static size_t add_escaped(char **out, struct str s) {
    uint32_t c = 0;
    size_t n = utf8_decode(s, &c);
    bool is_plain = n > 0 && !utf8_is_control(c);
    n = n ? n : 1;
    if (is_plain)
        *out += sprintf(*out, "%.*s", (int)n, s.at);
    else if (c == '\n' || c == '\r' || c == '\t')
        *out += sprintf(*out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else
        for (size_t i = 0; i < n; i++)
            *out += sprintf(*out, "\\x%02x", (unsigned char)s.at[i]);
    return n;
}

/* As one line, or with its line breaks; malloced, NULL: no memory. */
static char *printable(const char *text, bool has_lines) {
    struct str rest = str_of(text);
    char *out = malloc(4 * rest.len + 1), *end = out;
    while (out && rest.len > 0) {
        size_t n = has_lines ? strspn(rest.at, "\n") : 0;
        memcpy(end, rest.at, n);
        end += n;
        rest = str_skip(rest, n);
        if (rest.len > 0)
            rest = str_skip(rest, add_escaped(&end, rest));
    }
    if (out)
        *end = 0;
    return out;
}

/* `head` in that colour, the rest plain; without a head all of it is coloured. */
static void print_text(const char *colour, const char *head, const char *text, bool has_lines) {
    bool is_coloured = has_colour();
    char *safe = text ? printable(text, has_lines) : NULL;
    flockfile(stderr); /* lines of several threads do not mix */
    say_end_line();
    fputs(is_coloured ? colour : "", stderr);
    fputs(head, stderr);
    fputs(is_coloured && *head ? PLAIN : "", stderr);
    fputs(safe ? safe : "out of memory", stderr);
    fputs(is_coloured && !*head ? PLAIN "\n" : "\n", stderr);
    funlockfile(stderr);
    free(safe);
}

static void print_line(const char *colour, const char *head, const char *format, va_list args) {
    char *text;
    bool is_good = vasprintf(&text, format, args) >= 0;
    print_text(colour, head, is_good ? text : NULL, false);
    if (is_good)
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

void say_lines(enum say_level level, const char *text) {
    if (say_shows(level))
        print_text(DIM, "", text, true);
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
