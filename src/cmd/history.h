/* history.h - what was typed in earlier runs, in a file.
 *
 * One entry per line, the oldest first; a line break within an entry is written as \n, a backslash
 * twice. The file has mode 0600 and is cut to the newest entries when it is read; a file that is
 * not text is left alone. Programs that run at the same time share it. */
#ifndef CMD_HISTORY_H
#define CMD_HISTORY_H

#include "base/err.h"
#include "base/str.h"

enum { HISTORY_ENTRIES = 1000, HISTORY_BYTES = 1 << 20, HISTORY_ENTRY_BYTES = 1 << 16 };

struct history {
    char *path; /* NULL: nothing is kept */
};

/* Where it is: SLUICE_HISTORY (empty: nothing is kept), else sluice/history in XDG_STATE_HOME or
 * ~/.local/state. Makes the folders of the latter. */
void history_open(struct history *history);
void history_close(struct history *history);

/* Hands over the entries, the oldest first. A file that is not there, or no regular one, has none.
 */
int history_read(const struct history *history, void (*each)(void *user, struct str entry),
                 void *user, struct err *err);

/* Entries beyond HISTORY_ENTRY_BYTES are left out. */
int history_append(const struct history *history, struct str entry, struct err *err);

#endif
