/* disk_file.h - one object of the disk tier as a file: its name, its format, how it is written and
 * read.
 *
 *   POSITION-HASH.block or .snapshot, both numbers in hexadecimal
 *   header | tokens (i32) | payload | XXH3 of all before it (u64)
 *
 * Little-endian, as everything here. The header has a checksum of its own over itself and the
 * tokens, so that a scan need not read payloads. */
#ifndef ENGINE_DISK_FILE_H
#define ENGINE_DISK_FILE_H

#include <stdatomic.h>

#include "base/hash.h"
#include "engine/host_tier.h"

enum disk_kind { DISK_BLOCK, DISK_SNAPSHOT, DISK_KINDS };

/* What the header says. */
struct disk_meta {
    enum disk_kind kind;
    uint32_t position;     /* tokens from the beginning to the object's end */
    struct hash128 hash;   /* of all those tokens, one that nobody can choose twice: with kind and
                            * position it names the file */
    struct hash128 parent; /* that of the block before; zero: none */
    uint32_t n_tokens;     /* this many of those tokens, the last, are in the file */
    uint64_t bytes;        /* of the payload */
};

enum { DISK_NAME_BYTES = 64, DISK_FOLDER_BYTES = 33 };

void disk_file_name(const struct disk_meta *meta, char out[DISK_NAME_BYTES]);
/* Kind, position and hash from a name; false: not one of ours. */
bool disk_file_parse(const char *name, struct disk_meta *out);
/* Whether the name is one of disk_file_write's temporary names. */
bool disk_file_is_temporary(const char *name);
void disk_file_folder(struct hash128 identity, char out[DISK_FOLDER_BYTES]);
bool disk_file_is_folder(const char *name);

/* Bytes of a file; UINT64_MAX: they overflow. */
uint64_t disk_file_bytes(uint32_t n_tokens, uint64_t payload);

/* What a file says before its payload. */
struct disk_head {
    struct hash128 identity;
    const struct disk_meta *meta;
    const int32_t *tokens; /* (meta->n_tokens) */
};

/* Writes the file into the folder, whole or not at all. 0, or an errno; ECANCELED when *stop was
 * set or the object could not be filled. The temporary file is locked while it is written: one
 * without a lock was left by a dead process. */
int disk_file_write(int folder, const struct disk_head *head, struct host_tier *host,
                    uint32_t host_object, const atomic_bool *stop);

/* Opens a regular file without following links or blocking; -1: there is none. *bytes: its size. */
int disk_file_open(int folder, const char *name, uint64_t *bytes);

/* Header and tokens of an open file of this many bytes; meta's kind, position and hash are those of
 * its name. False: the file does not have this name, identity and format, has too many tokens, or
 * is truncated or damaged. */
bool disk_file_read_head(int fd, uint64_t file_bytes, struct hash128 identity,
                         struct disk_meta *meta, int32_t *tokens, uint32_t max_tokens);

struct disk_buffer {
    uint8_t *at;
    size_t bytes;
};
/* The payload after the head, which was read and is this one, through `buffer`, and the checksum.
 * *is_whole: it is complete and undamaged. The status is take's. */
int disk_file_read_payload(int fd, const struct disk_head *head, struct disk_buffer buffer,
                           tier_take_fn *take, void *user, bool *is_whole, struct err *err);

#endif
