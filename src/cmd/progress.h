/* progress.h - a bar on the terminal while something long goes on. */
#ifndef CMD_PROGRESS_H
#define CMD_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

struct progress {
    const char *what;
    uint64_t total;
    double started, shown; /* seconds */
    bool is_on;            /* only when stderr is a terminal */
};

void progress_start(struct progress *p, const char *what, uint64_t total_bytes);
void progress_update(struct progress *p, uint64_t done_bytes);
void progress_end(struct progress *p); /* wipes the bar */

#endif
