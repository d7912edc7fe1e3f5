/* log.h - the library's only output besides its return values. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN };

/* Called with one line, no newline. May be called from any thread. */
typedef void log_fn(void *user, enum log_level level, const char *line);

/* NULL: silent, the default. Must not be called while others log. */
void log_set(log_fn *fn, void *user);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
