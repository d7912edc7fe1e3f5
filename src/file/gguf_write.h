/* gguf_write.h - making a GGUF v3 file.
 *
 * Keys and tensor descriptions first, then the payloads in the same order as described, streamed,
 * so that a model need never be in memory. The file appears under its name only when closed
 * without error.
 *
 * A writer is used by one thread at a time. It copies keys, names and values; payloads are
 * borrowed during the call. */
#ifndef FILE_GGUF_WRITE_H
#define FILE_GGUF_WRITE_H

#include "base/outfile.h"
#include "file/gguf.h"

struct gguf_writer;

/* alignment: a power of two up to GGUF_MAX_ALIGNMENT, GGUF_ALIGNMENT by default (0). Only the
 * writer puts it into the file: a key general.alignment, e.g. copied from another file, is left
 * out. path NULL: no file, for gguf_writer_header alone. */
int gguf_writer_open(struct gguf_writer **out, const char *path, uint32_t alignment,
                     struct err *err);

/* Adds a key; a second one of that name replaces the first. The bytes are copied. */
int gguf_write_u32(struct gguf_writer *w, const char *name, uint32_t value, struct err *err);
int gguf_write_f32(struct gguf_writer *w, const char *name, float value, struct err *err);
int gguf_write_bool(struct gguf_writer *w, const char *name, bool value, struct err *err);
int gguf_write_str(struct gguf_writer *w, const char *name, struct str value, struct err *err);
int gguf_write_strs(struct gguf_writer *w, const char *name, const struct str *values,
                    uint64_t count, struct err *err);
int gguf_write_i32s(struct gguf_writer *w, const char *name, const int32_t *values, uint64_t count,
                    struct err *err);
int gguf_write_f32s(struct gguf_writer *w, const char *name, const float *values, uint64_t count,
                    struct err *err);
/* Copies a key of another file. */
int gguf_write_key(struct gguf_writer *w, const struct gguf_key *key, struct err *err);

/* Describes the next tensor. Name, type and dims are checked by the reader's rules; that names are
 * unique is checked when the header is written. All are described before the first payload. */
int gguf_write_tensor(struct gguf_writer *w, struct str name, enum dtype type, const uint64_t *dims,
                      uint32_t n_dims, struct err *err);

/* Payload bytes of the tensors, in order; one tensor may come in many pieces, a piece belongs to
 * one tensor. The header is written before the first. Too few or too many bytes for a tensor fail a
 * CHECK. */
int gguf_write_data(struct gguf_writer *w, const void *bytes, uint64_t size, struct err *err);

/* The header as in the file, without padding; free() it. */
int gguf_writer_header(struct gguf_writer *w, void **bytes, size_t *size, struct err *err);

/* Bytes the finished file will have, by what was added so far. */
uint64_t gguf_writer_size(const struct gguf_writer *w);

/* Ends the file, syncs and renames; frees the writer either way. */
int gguf_writer_close(struct gguf_writer *w, struct err *err);
/* Throws everything away. Takes NULL. */
void gguf_writer_abort(struct gguf_writer *w);

#endif
