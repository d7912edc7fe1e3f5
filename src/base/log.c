/* log.c - the log hook. */
#include "base/log.h"

#include <stdarg.h>
#include <stddef.h>

#include "base/locale.h"

static log_fn *hook;
static void *hook_user;

void log_set(log_fn *fn, void *user) {
    hook = fn;
    hook_user = user;
}

void log_line(enum log_level level, const char *format, ...) {
    if (!hook)
        return;
    char line[1024];
    va_list args;
    va_start(args, format);
    locale_vprint(line, sizeof line, format, args);
    va_end(args);
    hook(hook_user, level, line);
}
