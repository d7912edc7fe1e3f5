/* snapshot.h - requests that continue a snapshot (api_snapshots.c). */
#ifndef SERVE_HTTP_SNAPSHOT_H
#define SERVE_HTTP_SNAPSHOT_H

#include "serve/http/internal.h"

/* The field `snapshot`: the ask's conversation begins with that of the snapshot. */
void snapshot_begin(const struct server *s, struct ask *ask, struct fields *f);

/* The same in two parts, for APIs that make messages of something else. First: the snapshot that
 * the field names, to json_decref; its `messages` are as ask_read_messages takes them; NULL: none,
 * or refused. Then, with these messages in the ask: takes over its tools if there are no others,
 * and, if the ask begins with the same messages, the tokens they were sampled as. */
json_t *snapshot_named(const struct server *s, struct fields *f);
void snapshot_fill(const struct server *s, struct ask *ask, struct fields *f,
                   const json_t *snapshot, bool begins_so);

#endif
