/* snapshot.h - requests that go on from a snapshot (api_snapshots.c). */
#ifndef SERVE_HTTP_SNAPSHOT_H
#define SERVE_HTTP_SNAPSHOT_H

#include "serve/http/inside.h"

/* The field `snapshot`: the ask's conversation begins with that of the snapshot. */
void snapshot_begin(const struct server *s, struct ask *ask, struct fields *f);

#endif
