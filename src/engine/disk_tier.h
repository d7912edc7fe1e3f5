/* disk_tier.h - a folder for what should outlive the process: KV pages and snapshots, one file
 * each.
 *
 *   FOLDER/IDENTITY/POSITION-HASH.block and .snapshot, as in disk_file.h
 *
 * Only a store, like the host tier. IDENTITY is a hash of everything that a state's bits depend on
 * (weights, types, backend ...); files of one identity are never seen by another.
 *
 * (1) A file appears whole or not at all: written under a temporary name, synced, renamed. It never
 *     changes after that.
 * (2) Any file may vanish, be truncated or be damaged at any time, by any process: that is a miss,
 *     never an error. The checksum is verified by every get.
 * (3) The folder with all its identities holds at most max_bytes, and an eighth more for every
 *     other process that is writing to it. Files of others, of earlier runs and of other identities
 *     are removed when they were unused for longer than any of our own.
 * (4) Several processes may share a folder. One may remove what another knows of: see (2).
 * (5) Only regular files are opened; links are not followed. Conversations are private: folders are
 *     created for the owner alone.
 *
 * Files are written and removed by a thread of the tier. All calls come from one other thread, but
 * for disk_tier_read; nothing is allocated after open. */
#ifndef ENGINE_DISK_TIER_H
#define ENGINE_DISK_TIER_H

#include "engine/disk_file.h"

enum { DISK_NONE = UINT32_MAX };

struct disk_options {
    const char *folder; /* created if need be */
    struct hash128 identity;
    uint64_t max_bytes;
    uint32_t max_objects;
    uint32_t max_tokens;      /* of an object */
    uint64_t max_waiting;     /* bytes that may wait to be written; 0: any */
    struct host_tier *host;   /* where objects to be written are; borrowed */
    double seconds_for_close; /* after which close gives up on what is not written; 0: at once */
};

/* Counted since open. */
struct disk_counters {
    uint64_t written, read, removed; /* files */
    uint64_t written_bytes, read_bytes;
    double written_seconds; /* of the thread */
    uint64_t failed;        /* could not be written */
    uint64_t damaged;       /* found truncated, damaged or missing */
};

struct disk_tier;

/* SLUICE_ERR_IO when the folder cannot be created or written to. */
int disk_tier_open(struct disk_tier **out, const struct disk_options *options, struct err *err);
/* Writes what waits for at most seconds_for_close, drops the rest and ends the thread. The newest
 * conversations are what a user comes back to, so they are worth a wait, but not an endless one.
 * Takes NULL. */
void disk_tier_close(struct disk_tier *d);

/* Calls fn once for every object that is there, positions ascending, so that parents come before
 * children. When fn returns false the object stays in the folder, but is not ours. Headers and
 * tokens have been checked, payloads not. To be called at most once, before anything is put. */
typedef bool disk_scan_fn(void *user, uint32_t object, const struct disk_meta *meta,
                          const int32_t *tokens);
void disk_tier_scan(struct disk_tier *d, disk_scan_fn *fn, void *user);

/* Bytes of a file for this many tokens and payload bytes, and bytes that may still be put. */
uint64_t disk_tier_cost(uint32_t n_tokens, uint64_t bytes);
uint64_t disk_tier_free_bytes(struct disk_tier *d);
uint64_t disk_tier_bytes(struct disk_tier *d); /* of our own files */

/* The payload is that of an object in the host tier, which stays pinned until it is written.
 * DISK_NONE when there is no room: for the bytes, for one more object, or in the queue. meta->bytes
 * is the host object's size. */
uint32_t disk_tier_put(struct disk_tier *d, const struct disk_meta *meta, const int32_t *tokens,
                       uint32_t host_object);

/* *is_found: `take` got the complete, undamaged payload of an object of exactly these tokens (as
 * many as were put). If false, also after an error of `take`, what it got is to be thrown away. An
 * object that was not found must still be freed. */
int disk_tier_get(struct disk_tier *d, uint32_t object, const int32_t *tokens, tier_take_fn *take,
                  void *user, bool *is_found, struct err *err);
void disk_tier_free(struct disk_tier *d, uint32_t object);

/* Name and content of an object's file. */
struct disk_meta disk_tier_meta(struct disk_tier *d, uint32_t object);
/* The same from any thread, which brings its own buffers. A file that is missing or damaged is
 * noted in the tables. */
struct disk_reader {
    int32_t *head; /* (max_tokens) */
    struct disk_buffer buffer;
};
bool disk_reader_init(struct disk_reader *r, uint32_t max_tokens); /* false: memory ran out */
void disk_reader_free(struct disk_reader *r);
int disk_tier_read(struct disk_tier *d, const struct disk_meta *meta, const int32_t *tokens,
                   struct disk_reader *reader, tier_take_fn *take, void *user, bool *is_found,
                   struct err *err);

/* Waits until everything put so far is written or has failed. */
void disk_tier_flush(struct disk_tier *d);
/* False while the object waits to be written, or if that failed. */
bool disk_tier_is_written(struct disk_tier *d, uint32_t object);
void disk_tier_counters(struct disk_tier *d, struct disk_counters *out);

/* The first broken invariant of the tables in words, NULL when all hold. For tests. */
const char *disk_tier_broken(struct disk_tier *d);

#endif
