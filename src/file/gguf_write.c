/* gguf_write.c - making a GGUF v3 file.
 *
 * In: keys, tensor descriptions, payloads, in that order.  Out: a file that gguf_open takes.
 * (1) Keys are kept as their bytes in the file, so that the header is a walk over them.
 * (2) Offsets run on in the order of description, each payload padded to the alignment, the last
 *     one too; `tensors_done` are complete, and `bytes_left` are missing from the next.
 * (3) The file's size is known before the first payload byte is written. */
#include "file/gguf_write.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/array.h"
#include "base/size.h"

struct written_key {
    struct str name;
    uint8_t *bytes; /* type and value as in the file */
    size_t size;
};

struct written_tensor {
    struct tensor tensor;
    uint64_t offset; /* in the data section */
};

struct gguf_writer {
    struct arena arena; /* names and values */
    struct outfile out;
    uint32_t alignment;
    struct written_key *keys;
    struct strmap key_map; /* their names; rebuilt, twice as large, when it is full */
    struct written_tensor *tensors;
    uint32_t n_keys, n_tensors;
    size_t key_capacity, tensor_capacity;
    uint64_t header_bytes, data_bytes; /* the header without, the data with padding */
    bool has_header;                   /* is in the file: nothing can be added any more */
    uint32_t tensors_done;
    uint64_t bytes_left;
};

int gguf_writer_open(struct gguf_writer **out, const char *path, uint32_t alignment,
                     struct err *err) {
    *out = NULL;
    if (alignment == 0)
        alignment = GGUF_ALIGNMENT;
    if ((alignment & (alignment - 1)) != 0 || alignment > GGUF_MAX_ALIGNMENT)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "%s: alignment is %u, expected a power of two up to %d",
                       path ? path : "(memory)", alignment, GGUF_MAX_ALIGNMENT);
    struct gguf_writer *w = calloc(1, sizeof *w);
    if (!w)
        return err_memory(err, "a GGUF writer");
    w->alignment = alignment;
    w->header_bytes = 4 + 4 + 8 + 8;
    w->out.fd = -1;
    int status = path ? outfile_open(&w->out, path, err) : SLUICE_OK;
    if (status) {
        gguf_writer_abort(w);
        return status;
    }
    *out = w;
    return SLUICE_OK;
}

void gguf_writer_abort(struct gguf_writer *w) {
    if (!w)
        return;
    outfile_abort(&w->out);
    free(w->keys);
    free(w->tensors);
    arena_free(&w->arena);
    free(w);
}

/* ---- keys ---- */

static struct written_key *find_key(struct gguf_writer *w, struct str name) {
    uint32_t i;
    return strmap_get(&w->key_map, name, &i) ? &w->keys[i] : NULL;
}

/* Adds the last key to the map of names; false when memory ran out. */
static bool index_key(struct gguf_writer *w) {
    uint32_t first = w->n_keys - 1;
    if (w->key_map.count == w->key_map.capacity) {
        struct strmap larger;
        if (!strmap_init(&larger, &w->arena, w->n_keys < 32 ? 64 : 2 * w->n_keys))
            return false;
        w->key_map = larger;
        first = 0;
    }
    for (uint32_t i = first; i < w->n_keys; i++)
        CHECK(strmap_add(&w->key_map, w->keys[i].name, i));
    return true;
}

/* Bytes of a key's record beside type and value. */
static uint64_t name_bytes(const struct written_key *key) {
    return 8 + key->name.len;
}

/* Bytes of a value: its type, and for an array the elements' type and their number. */
static bool value_size(const struct gguf_key *key, uint64_t *size) {
    uint64_t head = key->is_array ? 4 + 4 + 8 : 4;
    if (key->type != GGUF_STRING)
        return size_mul(key->count, gguf_type_bytes(key->type), size) &&
               size_add(*size, head, size);
    *size = head;
    for (uint64_t i = 0; i < key->count; i++)
        if (!size_add(*size, 8, size) || !size_add(*size, key->strings[i].len, size))
            return false;
    return true;
}

static uint8_t *put(uint8_t *at, const void *bytes, size_t size) {
    if (size)
        memcpy(at, bytes, size);
    return at + size;
}

static uint8_t *put_str(uint8_t *at, struct str s) {
    uint64_t len = s.len;
    return put(put(at, &len, sizeof len), s.at, s.len);
}

static void put_value(uint8_t *at, const struct gguf_key *key) {
    uint32_t array = GGUF_ARRAY, type = key->type;
    if (key->is_array)
        at = put(at, &array, sizeof array);
    at = put(at, &type, sizeof type);
    if (key->is_array)
        at = put(at, &key->count, sizeof key->count);
    if (key->type == GGUF_STRING)
        for (uint64_t i = 0; i < key->count; i++)
            at = put_str(at, key->strings[i]);
    else
        put(at, key->data, (size_t)key->count * gguf_type_bytes(key->type));
}

static int check_key(const struct gguf_writer *w, const struct gguf_key *key, struct err *err) {
    CHECK(!w->has_header);
    CHECK((uint32_t)key->type < GGUF_TYPE_COUNT && key->type != GGUF_ARRAY);
    CHECK(key->is_array || key->count == 1);
    int status = gguf_check_key_name(key->name, err);
    if (status) {
        err_prefix(err, "%s", w->out.path);
        return status;
    }
    bool is_long = key->count > GGUF_MAX_LENGTH;
    for (uint64_t i = 0; !is_long && key->type == GGUF_STRING && i < key->count; i++)
        is_long = key->strings[i].len > GGUF_MAX_LENGTH;
    if (is_long)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "%s: key %.*s has over %d elements or a string of more bytes", w->out.path,
                       STR_ARG(key->name), GGUF_MAX_LENGTH);
    if (w->n_keys >= GGUF_MAX_RECORDS)
        return err_set(err, SLUICE_ERR_ARGUMENT, "%s: has more keys than %d", w->out.path,
                       GGUF_MAX_RECORDS);
    return SLUICE_OK;
}

int gguf_write_key(struct gguf_writer *w, const struct gguf_key *key, struct err *err) {
    int status = check_key(w, key, err);
    if (status || str_is(key->name, "general.alignment"))
        return status;
    uint64_t size;
    struct written_key made;
    if (!value_size(key, &size) ||
        !array_grow(&w->keys, w->n_keys, &w->key_capacity, sizeof *w->keys))
        return err_memory(err, "a key");
    made.size = (size_t)size;
    made.bytes = arena_alloc(&w->arena, made.size);
    made.name = (struct str){arena_strdup(&w->arena, key->name), key->name.len};
    if (!made.bytes || !made.name.at)
        return err_memory(err, "a key");
    put_value(made.bytes, key);
    struct written_key *old = find_key(w, key->name); /* not before array_grow, which moves keys */
    if (old) {
        w->header_bytes -= old->size;
        w->header_bytes += made.size;
        *old = made;
        return SLUICE_OK;
    }
    w->header_bytes += name_bytes(&made) + made.size;
    w->keys[w->n_keys++] = made;
    return index_key(w) ? SLUICE_OK : err_memory(err, "the table of keys");
}

static int write_scalar(struct gguf_writer *w, const char *name, enum gguf_type type,
                        const void *value, struct err *err) {
    struct gguf_key key = {.name = str_of(name), .type = type, .count = 1, .data = value};
    return gguf_write_key(w, &key, err);
}

static int write_array(struct gguf_writer *w, const char *name, enum gguf_type type,
                       const void *values, uint64_t count, struct err *err) {
    struct gguf_key key = {
        .name = str_of(name), .type = type, .is_array = true, .count = count, .data = values};
    return gguf_write_key(w, &key, err);
}

int gguf_write_u32(struct gguf_writer *w, const char *name, uint32_t value, struct err *err) {
    return write_scalar(w, name, GGUF_U32, &value, err);
}

int gguf_write_f32(struct gguf_writer *w, const char *name, float value, struct err *err) {
    return write_scalar(w, name, GGUF_F32, &value, err);
}

int gguf_write_bool(struct gguf_writer *w, const char *name, bool value, struct err *err) {
    uint8_t byte = value;
    return write_scalar(w, name, GGUF_BOOL, &byte, err);
}

int gguf_write_str(struct gguf_writer *w, const char *name, struct str value, struct err *err) {
    struct gguf_key key = {
        .name = str_of(name), .type = GGUF_STRING, .count = 1, .strings = &value};
    return gguf_write_key(w, &key, err);
}

int gguf_write_strs(struct gguf_writer *w, const char *name, const struct str *values,
                    uint64_t count, struct err *err) {
    struct gguf_key key = {.name = str_of(name),
                           .type = GGUF_STRING,
                           .is_array = true,
                           .count = count,
                           .strings = values};
    return gguf_write_key(w, &key, err);
}

int gguf_write_i32s(struct gguf_writer *w, const char *name, const int32_t *values, uint64_t count,
                    struct err *err) {
    return write_array(w, name, GGUF_I32, values, count, err);
}

int gguf_write_f32s(struct gguf_writer *w, const char *name, const float *values, uint64_t count,
                    struct err *err) {
    return write_array(w, name, GGUF_F32, values, count, err);
}

/* ---- tensors ---- */

int gguf_write_tensor(struct gguf_writer *w, struct str name, enum dtype type, const uint64_t *dims,
                      uint32_t n_dims, struct err *err) {
    CHECK(!w->has_header);
    struct written_tensor made;
    int status = gguf_describe(&made.tensor, name, type, dims, n_dims, err);
    if (status) {
        err_prefix(err, "%s", w->out.path);
        return status;
    }
    made.offset = w->data_bytes;
    uint64_t end;
    if (!size_add(made.offset, made.tensor.bytes, &end) || end > INT64_MAX / 2 ||
        !size_align(end, w->alignment, &end) || w->n_tensors >= GGUF_MAX_RECORDS)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "%s: has no room for tensor %.*s of %" PRIu64 " bytes after %u others",
                       w->out.path, STR_ARG(name), made.tensor.bytes, w->n_tensors);
    made.tensor.name.at = arena_strdup(&w->arena, name);
    if (!made.tensor.name.at ||
        !array_grow(&w->tensors, w->n_tensors, &w->tensor_capacity, sizeof *w->tensors))
        return err_memory(err, "a tensor's description");
    w->tensors[w->n_tensors++] = made;
    w->data_bytes = end;
    w->header_bytes += 8 + name.len + 4 + 8 * (uint64_t)n_dims + 4 + 8;
    return SLUICE_OK;
}

/* Bytes of the record general.alignment, which comes first; 0 for the default alignment. */
static uint64_t alignment_bytes(const struct gguf_writer *w) {
    return w->alignment == GGUF_ALIGNMENT ? 0 : 8 + sizeof "general.alignment" - 1 + 4 + 4;
}

uint64_t gguf_writer_size(const struct gguf_writer *w) {
    uint64_t header = w->header_bytes + alignment_bytes(w);
    if (w->n_tensors == 0)
        return header; /* no data section, no padding */
    CHECK(size_align(header, w->alignment, &header));
    return header + w->data_bytes;
}

/* ---- the file ---- */

static int check_unique(struct gguf_writer *w, struct err *err) {
    struct strmap map;
    if (!strmap_init(&map, &w->arena, w->n_tensors))
        return err_memory(err, "the names of tensors");
    for (uint32_t i = 0; i < w->n_tensors; i++)
        if (!strmap_add(&map, w->tensors[i].tensor.name, i))
            return err_set(err, SLUICE_ERR_ARGUMENT, "%s: tensor %.*s is described twice",
                           w->out.path, STR_ARG(w->tensors[i].tensor.name));
    return SLUICE_OK;
}

static uint8_t *put_tensor(uint8_t *at, const struct written_tensor *t) {
    uint32_t type = (uint32_t)t->tensor.type;
    at = put_str(at, t->tensor.name);
    at = put(at, &t->tensor.n_dims, sizeof t->tensor.n_dims);
    at = put(at, t->tensor.dims, t->tensor.n_dims * sizeof *t->tensor.dims);
    at = put(at, &type, sizeof type);
    return put(at, &t->offset, sizeof t->offset);
}

static uint8_t *put_alignment(uint8_t *at, const struct gguf_writer *w) {
    uint32_t type = GGUF_U32;
    at = put_str(at, STR("general.alignment"));
    return put(put(at, &type, sizeof type), &w->alignment, sizeof w->alignment);
}

int gguf_writer_header(struct gguf_writer *w, void **bytes, size_t *size, struct err *err) {
    int status = check_unique(w, err);
    if (status)
        return status;
    bool has_alignment = alignment_bytes(w) > 0;
    uint64_t n_tensors = w->n_tensors, n_keys = (uint64_t)w->n_keys + has_alignment;
    uint32_t version = 3;
    *size = w->header_bytes + alignment_bytes(w);
    uint8_t *header = *bytes = malloc(*size), *at = header;
    if (!header)
        return err_memory(err, "a GGUF header");
    at = put(at, "GGUF", 4);
    at = put(at, &version, sizeof version);
    at = put(at, &n_tensors, sizeof n_tensors);
    at = put(at, &n_keys, sizeof n_keys);
    if (has_alignment)
        at = put_alignment(at, w);
    for (uint32_t i = 0; i < w->n_keys; i++) {
        at = put_str(at, w->keys[i].name);
        at = put(at, w->keys[i].bytes, w->keys[i].size);
    }
    for (uint32_t i = 0; i < w->n_tensors; i++)
        at = put_tensor(at, &w->tensors[i]);
    CHECK((size_t)(at - header) == *size);
    return SLUICE_OK;
}

static int write_header(struct gguf_writer *w, struct err *err) {
    void *header = NULL;
    size_t size = 0;
    CHECK(w->out.path); /* a writer without a path has no file */
    int status = gguf_writer_header(w, &header, &size, err);
    if (!status)
        status = outfile_write(&w->out, header, size, err);
    free(header);
    if (!status && w->n_tensors > 0)
        status = outfile_pad(&w->out, w->alignment, err);
    w->has_header = true;
    w->bytes_left = w->n_tensors ? w->tensors[0].tensor.bytes : 0;
    return status;
}

int gguf_write_data(struct gguf_writer *w, const void *bytes, uint64_t size, struct err *err) {
    int status = w->has_header ? SLUICE_OK : write_header(w, err);
    if (status || size == 0)
        return status;
    CHECK(w->tensors_done < w->n_tensors && size <= w->bytes_left);
    if ((status = outfile_write(&w->out, bytes, (size_t)size, err)))
        return status;
    w->bytes_left -= size;
    if (w->bytes_left > 0)
        return SLUICE_OK;
    if (++w->tensors_done < w->n_tensors)
        w->bytes_left = w->tensors[w->tensors_done].tensor.bytes;
    return outfile_pad(&w->out, w->alignment, err);
}

int gguf_writer_close(struct gguf_writer *w, struct err *err) {
    int status = w->has_header ? SLUICE_OK : write_header(w, err);
    if (!status) {
        CHECK(w->tensors_done == w->n_tensors);
        CHECK(w->out.written == gguf_writer_size(w));
        status = outfile_commit(&w->out, err);
    }
    gguf_writer_abort(w);
    return status;
}
