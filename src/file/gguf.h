/* gguf.h - GGUF files: typed keys and named tensors, read in place.
 *
 * In: a path (or bytes, for tests).  Out: keys and tensors that point into the mapping.
 * (1) Everything a struct gguf returns is inside the mapping or its arena, checked at open:
 *     its users never check bounds again.
 * (2) Names of keys and tensors are valid UTF-8 without NUL and unique; string values may hold any
 *     byte, as the tokens of a vocabulary do.
 * (3) A split model (PREFIX-00001-of-000NN.gguf) is opened by its first part and looks like one
 *     file; its keys are those of the first part.
 *
 * Read-only once open, and may be shared by threads. Whoever opens it closes it. */
#ifndef FILE_GGUF_H
#define FILE_GGUF_H

#include "base/arena.h"
#include "base/err.h"
#include "base/filemap.h"
#include "base/str.h"
#include "file/tensor.h"

/* Numbers are read and written in host byte order. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF needs a little-endian host");

/* Limits of a file: the reader refuses more, the writer writes no more. */
enum {
    GGUF_MAX_RECORDS = 1000000, /* keys, and tensors */
    GGUF_MAX_KEY = 65535,       /* bytes of a key's name */
    GGUF_MAX_NAME = 63,         /* bytes of a tensor's name */
    GGUF_MAX_DIMS = 4,
    GGUF_MAX_LENGTH = 1 << 30, /* bytes of a string, elements of an array */
    GGUF_ALIGNMENT = 32,       /* the default */
    GGUF_MAX_ALIGNMENT = 1 << 20,
};

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT,
};

struct gguf_key {
    struct str name;
    enum gguf_type type; /* the type, or an array's element type */
    bool is_array;
    uint64_t count;            /* elements; 1 when no array */
    const uint8_t *data;       /* scalars: little-endian, unaligned; strings: NULL */
    const struct str *strings; /* count of them when type is GGUF_STRING, else NULL */
};

struct gguf {
    struct arena arena;
    uint32_t version, alignment; /* of the first part */
    struct gguf_key *keys;
    uint32_t n_keys;
    struct tensor *tensors; /* of all parts, in file order */
    uint32_t n_tensors;
    struct strmap key_map, tensor_map;
    struct filemap *parts; /* none when made by gguf_parse */
    uint32_t n_parts;
    uint64_t file_bytes; /* of all parts */
    const char *path;    /* of the first part, for messages */
};

/* Opens a file, or all parts of a split model. Errors begin with the path. */
int gguf_open(struct gguf **out, const char *path, struct err *err);

/* The same from memory, a single part whatever its split keys say; the bytes must outlive it. */
int gguf_parse(struct gguf **out, const void *bytes, size_t size, struct err *err);

void gguf_close(struct gguf *g); /* takes NULL */

/* NULL when there is none. */
const struct gguf_key *gguf_key(const struct gguf *g, const char *name);
const struct tensor *gguf_tensor(const struct gguf *g, const char *name);

/* "u32", "string" ... Static. */
const char *gguf_type_name(enum gguf_type type);
/* The same for a key, whose arrays are "u32[]", "string[]" ... Static. */
const char *gguf_key_type_name(const struct gguf_key *key);
/* Bytes of one value; 0 for strings and arrays, whose size is not fixed. */
uint32_t gguf_type_bytes(enum gguf_type type);

/* The rules for names and tensors, which reader and writer share. A name is valid UTF-8 without
 * NUL. gguf_describe fills in all of `t` but its data; the name stays borrowed. */
int gguf_check_key_name(struct str name, struct err *err);
int gguf_describe(struct tensor *t, struct str name, uint32_t type, const uint64_t *dims,
                  uint32_t n_dims, struct err *err);

/* Values of keys. Each returns 1 when the key is there and was read, 0 when it is absent (*out is
 * unchanged), or a negative status when its type or value is wrong: integers may have any width but
 * must fit and not be negative; floats must be finite; a bool is a bool. The error names the key,
 * the type found and the one expected. */
int gguf_get_u64(const struct gguf *g, const char *name, uint64_t *out, struct err *err);
int gguf_get_u32(const struct gguf *g, const char *name, uint32_t *out, struct err *err);
int gguf_get_f32(const struct gguf *g, const char *name, float *out, struct err *err);
int gguf_get_bool(const struct gguf *g, const char *name, bool *out, struct err *err);
int gguf_get_str(const struct gguf *g, const char *name, struct str *out, struct err *err);

/* Element i, below count, of an integer key (not bool; a u64 beyond INT64_MAX gives that), and of
 * an integer or float key. The float may be infinite or NaN. */
int64_t gguf_int_at(const struct gguf_key *key, uint64_t i);
/* The same of an unsigned key, all of its range. */
uint64_t gguf_unsigned_at(const struct gguf_key *key, uint64_t i);
double gguf_float_at(const struct gguf_key *key, uint64_t i);
static inline bool gguf_is_int(const struct gguf_key *key) {
    return key->type <= GGUF_I32 || key->type == GGUF_U64 || key->type == GGUF_I64;
}

#endif
