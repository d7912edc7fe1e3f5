/* progress.c - a bar on the terminal while something long goes on. */
#include "cmd/progress.h"

#include <stdio.h>
#include <unistd.h>

void progress_start(struct progress *p, const char *what, uint64_t total_bytes) {
    *p = (struct progress){.what = what, .total = total_bytes, .is_on = isatty(2)};
    p->started = seconds_now();
    progress_update(p, 0);
}

void progress_update(struct progress *p, uint64_t done) {
    double now = seconds_now();
    if (!p->is_on || (done < p->total && now - p->shown < 0.1))
        return;
    p->shown = now;
    double part = p->total ? (double)done / (double)p->total : 1;
    double seconds = now - p->started;
    char bar[31];
    for (int i = 0; i < 30; i++)
        bar[i] = i < (int)(part * 30) ? '#' : '.';
    bar[30] = 0;
    fprintf(stderr, "\r%s [%s] %3.0f %%  %.2f of %.2f GB  %.2f GB/s ", p->what, bar, part * 100,
            (double)done / 1e9, (double)p->total / 1e9,
            seconds > 0 ? (double)done / 1e9 / seconds : 0);
}

void progress_end(struct progress *p) {
    if (p->is_on)
        fprintf(stderr, "\r\033[K");
    p->is_on = false;
}
