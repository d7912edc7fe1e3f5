/* err.c - error texts, kept to one printable line. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"
#include "base/str.h"
#include "version.h" /* made by the Makefile from git */

const char *sluice_version(void) {
    return SLUICE_VERSION;
}

const char *sluice_status_text(int status) {
    static const char *const text[] = {
        "ok",          "bad argument",  "i/o error",    "bad format",
        "unsupported", "out of memory", "device error", "cancelled",
    };
    unsigned i = status <= 0 ? 0u - (unsigned)status : sizeof text / sizeof *text;
    return i < sizeof text / sizeof *text ? text[i] : "unknown status";
}

/* A character cut in half by the buffer's end becomes '?' as well. */
void err_make_printable(char *s) {
    size_t len = strlen(s);
    for (size_t i = 0; i < len;) {
        uint32_t c = 0;
        size_t n = utf8_decode((struct str){s + i, len - i}, &c);
        if (n == 0 || utf8_is_control(c))
            for (size_t end = i + (n ? n : 1); i < end; i++)
                s[i] = '?';
        else
            i += n;
    }
}

int err_set(struct err *err, int code, const char *format, ...) {
    if (!err)
        return code;
    err->code = code;
    va_list args;
    va_start(args, format);
    locale_vprint(err->text, sizeof err->text, format, args);
    va_end(args);
    err_make_printable(err->text);
    return code;
}

int err_memory(struct err *err, const char *what) {
    return err_set(err, SLUICE_ERR_MEMORY, "out of memory for %s", what);
}

int err_prefix(struct err *err, const char *format, ...) {
    if (!err)
        return SLUICE_ERR_ARGUMENT;
    char was[sizeof err->text];
    memcpy(was, err->text, sizeof was);
    va_list args;
    va_start(args, format);
    int n = locale_vprint(err->text, sizeof err->text, format, args);
    va_end(args);
    if (n > 0 && (size_t)n < sizeof err->text)
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", was);
    err_make_printable(err->text);
    return err->code;
}

_Noreturn void check_failed(const char *cond, const char *file, int line) {
    fprintf(stderr, "sluice: internal error at %s:%d: %s does not hold\n", file, line, cond);
    abort();
}
