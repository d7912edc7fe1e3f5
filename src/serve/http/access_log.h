/* access_log.h - a line of JSON for every response. Prompts are not in it unless asked for. */
#ifndef SERVE_HTTP_ACCESS_LOG_H
#define SERVE_HTTP_ACCESS_LOG_H

#include "base/err.h"

struct access_log;
struct exchange;

/* path "-": stderr. The file is appended to; one that is no access log is left alone. */
int access_log_open(struct access_log **out, const char *path, bool has_prompts, struct err *err);
void access_log_close(struct access_log *log); /* takes NULL */

/* Of an exchange that is completed, for whatever reason. `log` may be NULL. */
void access_log_write(struct access_log *log, struct exchange *x);

#endif
