/* progress.c - a progress bar on the terminal. */
#include "cmd/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/say.h"

static bool is_watched(void) {
    return say_has_escapes() && say_shows(SAY_NORMAL);
}

/* Replaces the line before; cut to the terminal's width, as a wrapped line could not be replaced.
 */
static void show_line(const char *line) {
    fprintf(stderr, "\r%.*s\033[K", say_columns() - 1, line);
}

static void wipe_line(void) {
    fputs("\r\033[K", stderr);
}

/* ---- bytes -------------------------------------------------------------------------------- */

void progress_start(struct progress *p, const char *what, uint64_t total_bytes) {
    *p = (struct progress){.what = what, .total = total_bytes, .is_on = is_watched()};
    p->started = seconds_now();
    progress_update(p, 0);
}

/* "[###.....] ", as long as fits; "" where that would be too short. */
static const char *draw_bar(char bar[64], double part, int columns) {
    enum { MIN_WIDTH = 8, MAX_WIDTH = 30 };
    int n = columns - 3 < MAX_WIDTH ? columns - 3 : MAX_WIDTH;
    if (n < MIN_WIDTH)
        return "";
    bar[0] = '[';
    for (int i = 0; i < n; i++)
        bar[1 + i] = i < (int)(part * n) ? '#' : '.';
    strcpy(bar + 1 + n, "] ");
    return bar;
}

void progress_update(struct progress *p, uint64_t done) {
    double now = seconds_now();
    if (!p->is_on || (done < p->total && now - p->shown < 0.1))
        return;
    p->shown = now;
    double part = p->total ? (double)done / (double)p->total : 1;
    double seconds = now - p->started;
    char bar[64], figures[96], line[256];
    int n = snprintf(figures, sizeof figures, "%3.0f %%  %.2f of %.2f GB  %.2f GB/s", part * 100,
                     (double)done / 1e9, (double)p->total / 1e9,
                     seconds > 0 ? (double)done / 1e9 / seconds : 0);
    int columns = say_columns() - 1 - n - (int)strlen(p->what) - 1;
    snprintf(line, sizeof line, "%s %s%s", p->what, draw_bar(bar, part, columns), figures);
    show_line(line);
}

void progress_end(struct progress *p) {
    if (p->is_on)
        wipe_line();
    p->is_on = false;
}

/* ---- tokens ------------------------------------------------------------------------------- */

void token_bar_start(struct token_bar *bar, const char *what, uint64_t total) {
    *bar = (struct token_bar){
        .what = what, .total = total, .started = seconds_now(), .is_on = what && is_watched()};
}

void token_bar_update(struct token_bar *bar, uint64_t done) {
    double now = seconds_now();
    char line[160];
    if (!bar->is_on || now - bar->started < 0.5 || now - bar->shown < 0.1)
        return;
    bar->shown = now;
    bar->was_shown = true;
    snprintf(line, sizeof line, "%s %llu of %llu tokens, %.0f tok/s", bar->what,
             (unsigned long long)done, (unsigned long long)bar->total,
             (double)done / (now - bar->started));
    show_line(line);
}

void token_bar_end(struct token_bar *bar) {
    if (bar->was_shown)
        wipe_line();
    bar->was_shown = false;
}
