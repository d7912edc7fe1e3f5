/* access_log.h - one line of JSON per response. Without prompts unless asked for.
 *
 * Any thread. */
#ifndef SERVE_HTTP_ACCESS_LOG_H
#define SERVE_HTTP_ACCESS_LOG_H

#include "base/err.h"

struct access_log;
struct exchange;

/* path "-": stderr. The file is appended to; a file that is not an access log is left alone. */
int access_log_open(struct access_log **out, const char *path, bool has_prompts, struct err *err);
void access_log_close(struct access_log *log); /* takes NULL */

/* Logs an exchange that is completed, for whatever reason. `log` may be NULL. */
void access_log_write(struct access_log *log, struct exchange *x);

#endif
