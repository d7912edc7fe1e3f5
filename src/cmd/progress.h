/* progress.h - a progress bar on the terminal.
 *
 * Only if stderr is a terminal, without -q and --json, and never wider than that terminal. */
#ifndef CMD_PROGRESS_H
#define CMD_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

/* Bytes. */
struct progress {
    const char *what;
    uint64_t total;
    double started, shown; /* seconds */
    bool is_on;
};

void progress_start(struct progress *p, const char *what, uint64_t total_bytes);
void progress_update(struct progress *p, uint64_t done_bytes);
void progress_end(struct progress *p); /* wipes the bar */

/* Tokens; shown once it takes long. */
struct token_bar {
    const char *what;
    uint64_t total;
    double started, shown; /* seconds */
    bool is_on, was_shown;
};
/* what NULL: no bar. */
void token_bar_start(struct token_bar *bar, const char *what, uint64_t total);
void token_bar_update(struct token_bar *bar, uint64_t done);
void token_bar_end(struct token_bar *bar); /* wipes it */

#endif
