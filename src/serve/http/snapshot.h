/* snapshot.h - requests that go on from a snapshot (api_snapshots.c). */
#ifndef SERVE_HTTP_SNAPSHOT_H
#define SERVE_HTTP_SNAPSHOT_H

#include "serve/http/inside.h"

/* The field `snapshot`: the ask's conversation begins with that of the snapshot. */
void snapshot_begin(const struct server *s, struct ask *ask, struct fields *f);

/* The same in parts, for those who make messages of something else. What the field names, to
 * json_decref: its `messages` are as ask_read_messages takes them; NULL: nothing, or it is refused.
 * Then, with these messages in the ask: its tools where there are no others, and, where the ask
 * begins with the messages as they are, the tokens they were sampled as. */
json_t *snapshot_named(const struct server *s, struct fields *f);
void snapshot_fill(const struct server *s, struct ask *ask, struct fields *f,
                   const json_t *snapshot, bool begins_so);

#endif
