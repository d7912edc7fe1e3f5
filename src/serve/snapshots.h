/* snapshots.h - conversations that clients keep under ids they choose.
 *
 * A snapshot is a text (the caller's JSON). With a folder it is a file of its own,
 * FOLDER/snapshots/ID.json, for the owner alone, and is there again after a restart; without one it
 * is in memory. Unlike what a cache holds, none is ever dropped to make room: one that does not fit
 * is refused.
 *
 * (1) Ids are 1 to 64 letters, digits, _ and -: no other path is ever made of what a client sends.
 * (2) A file appears whole or not at all. */
#ifndef SERVE_SNAPSHOTS_H
#define SERVE_SNAPSHOTS_H

#include <jansson.h>
#include <time.h>

#include "base/err.h"
#include "base/str.h"

enum { SNAPSHOT_MAX_ID = 64 };

struct snapshots;

/* Lists what is in the folder (NULL: none). Keeps at most this many bytes. */
int snapshots_open(struct snapshots **out, const char *folder, uint64_t max_bytes, struct err *err);
void snapshots_close(struct snapshots *s); /* takes NULL */

bool snapshot_id_is_good(const char *id);

/* All calls below: any thread, valid ids only. */

/* Replaces the one with that id. SLUICE_ERR_MEMORY: no room. */
int snapshots_put(struct snapshots *s, const char *id, struct str text, struct err *err);
/* A copy to free, terminated; NULL: there is none, or it cannot be read. */
char *snapshots_get(struct snapshots *s, const char *id, size_t *n);
/* After an error it is still there. */
int snapshots_drop(struct snapshots *s, const char *id, bool *is_there, struct err *err);

/* An array of {"id", "object": "snapshot", "created_at", "bytes"}, the oldest first. */
json_t *snapshots_list(struct snapshots *s);

#endif
