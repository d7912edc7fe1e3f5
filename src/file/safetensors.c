/* safetensors.c - safetensors files, single or sharded, read in place.
 *
 * A file is a header length, a JSON header and a buffer; an index.json says which tensor of a
 * sharded model is in which file.  In: hostile bytes.  Out: tensors, checked once.
 * (1) All headers are parsed first, so that the table of tensors is made once, for all shards;
 *     shard s owns tensors [first, first + count).
 * (2) The tensors of a shard cover its buffer: no holes, no overlaps.
 * (3) Names are copied, as JSON may have escapes; payloads stay in the mapping. */
#include "file/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/size.h"
#include "file/json.h"
#include "file/path.h"

enum {
    LENGTH_BYTES = 8,
    MAX_HEADER = 100000000, /* the format's own cap */
    MAX_TENSORS = 1000000,
};

static const uint64_t MAX_DIM = 1ull << 48, MAX_VALUES = 1ull << 62;

static const struct element {
    const char *name;
    int32_t type; /* an enum dtype, or -1 */
    uint32_t bytes;
} elements[] = {
    {"F64", DT_F64, 8}, {"F32", DT_F32, 4}, {"F16", DT_F16, 2}, {"BF16", DT_BF16, 2},
    {"I64", DT_I64, 8}, {"I32", DT_I32, 4}, {"I16", DT_I16, 2}, {"I8", DT_I8, 1},
    {"U64", -1, 8},     {"U32", -1, 4},     {"U16", -1, 2},     {"U8", -1, 1},
    {"F8_E4M3", -1, 1}, {"F8_E5M2", -1, 1}, {"BOOL", -1, 1},
};

struct shard {
    const char *path; /* begins error messages */
    json_t *header;
    const uint8_t *buffer;
    uint64_t buffer_bytes;
    uint32_t first, count; /* its tensors */
};

/* A tensor's bytes in its buffer. */
struct tensor_range {
    uint64_t begin, end;
    const struct tensor *tensor;
};

/* ---- one tensor ---- */

static const struct element *find_element(struct str name) {
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++)
        if (str_is(name, elements[i].name))
            return &elements[i];
    return NULL;
}

/* A non-negative JSON integer. */
static bool get_count(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static int read_shape(struct tensor *t, const json_t *shape, struct err *err) {
    if (!json_is_array(shape) || json_array_size(shape) > TENSOR_MAX_DIMS)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "tensor %.*s: shape is not an array of at most %d integers",
                       STR_ARG(t->name), TENSOR_MAX_DIMS);
    t->n_dims = (uint32_t)json_array_size(shape);
    t->n_values = 1;
    for (uint32_t i = 0; i < TENSOR_MAX_DIMS; i++)
        t->dims[i] = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        uint64_t dim;
        if (!get_count(json_array_get(shape, i), &dim) || dim > MAX_DIM)
            return err_set(
                err, SLUICE_ERR_FORMAT,
                "tensor %.*s: dimension %u of its shape is not an integer from 0 to %" PRIu64,
                STR_ARG(t->name), i, MAX_DIM);
        t->dims[t->n_dims - 1 - i] = dim;
        if (!size_mul(t->n_values, dim, &t->n_values) || t->n_values > MAX_VALUES)
            return err_set(err, SLUICE_ERR_FORMAT,
                           "tensor %.*s: its shape has more than %" PRIu64 " values",
                           STR_ARG(t->name), MAX_VALUES);
    }
    return SLUICE_OK;
}

static int read_range(const struct shard *shard, const struct tensor *t, const json_t *offsets,
                      struct tensor_range *range, struct err *err) {
    range->tensor = t;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !get_count(json_array_get(offsets, 0), &range->begin) ||
        !get_count(json_array_get(offsets, 1), &range->end))
        return err_set(err, SLUICE_ERR_FORMAT,
                       "tensor %.*s: data_offsets are not two integers of 0 or more",
                       STR_ARG(t->name));
    if (range->begin > range->end || range->end > shard->buffer_bytes)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "tensor %.*s: data from %" PRIu64 " to %" PRIu64
                       ", expected a range inside the %" PRIu64 " bytes of data%s",
                       STR_ARG(t->name), range->begin, range->end, shard->buffer_bytes,
                       range->begin > range->end ? "" : "; is it complete?");
    if (range->end - range->begin != t->bytes)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "tensor %.*s: has %" PRIu64 " bytes of data, expected %" PRIu64
                       " by its shape and type %s",
                       STR_ARG(t->name), range->end - range->begin, t->bytes, t->type_name);
    return SLUICE_OK;
}

static int read_tensor(const struct shard *shard, struct tensor *t, const json_t *entry,
                       struct tensor_range *range, struct err *err) {
    struct str dtype;
    int status;
    if (!json_is_object(entry))
        return err_set(err, SLUICE_ERR_FORMAT, "tensor %.*s: is not a JSON object",
                       STR_ARG(t->name));
    if (!json_str(json_object_get(entry, "dtype"), &dtype))
        return err_set(err, SLUICE_ERR_FORMAT, "tensor %.*s: dtype is not a string",
                       STR_ARG(t->name));
    const struct element *element = find_element(dtype);
    if (!element)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "tensor %.*s: has dtype %.*s, expected F64, F32, F16, BF16, I*, U*, F8_* or "
                       "BOOL",
                       STR_ARG(t->name), STR_ARG(dtype));
    t->type = element->type;
    t->type_name = element->name;
    if ((status = read_shape(t, json_object_get(entry, "shape"), err)))
        return status;
    if (!size_mul(t->n_values, element->bytes, &t->bytes))
        return err_set(err, SLUICE_ERR_FORMAT,
                       "tensor %.*s: its shape has more bytes than can be counted",
                       STR_ARG(t->name));
    if ((status = read_range(shard, t, json_object_get(entry, "data_offsets"), range, err)))
        return status;
    t->data = shard->buffer + range->begin;
    return SLUICE_OK;
}

/* ---- one shard ---- */

/* An empty tensor comes before the one that begins at the same byte. */
static int by_begin(const void *a, const void *b) {
    const struct tensor_range *x = a, *y = b;
    int begin = (x->begin > y->begin) - (x->begin < y->begin);
    return begin ? begin : (x->end > y->end) - (x->end < y->end);
}

static int check_cover(const struct shard *shard, struct tensor_range *ranges, struct err *err) {
    uint64_t at = 0;
    if (shard->count > 0)
        qsort(ranges, shard->count, sizeof *ranges, by_begin);
    for (uint32_t i = 0; i < shard->count; at = ranges[i++].end)
        if (ranges[i].begin != at)
            return err_set(err, SLUICE_ERR_FORMAT,
                           "tensor %.*s: begins at %" PRIu64 " of the data, expected %" PRIu64
                           ", where the one before ends",
                           STR_ARG(ranges[i].tensor->name), ranges[i].begin, at);
    if (at != shard->buffer_bytes)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "has %" PRIu64 " bytes of data, its tensors end at %" PRIu64,
                       shard->buffer_bytes, at);
    return SLUICE_OK;
}

static int check_metadata(const json_t *metadata, struct err *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return err_set(err, SLUICE_ERR_FORMAT, "__metadata__ is not a JSON object");
    json_object_foreach((json_t *)metadata, key, value) {
        if (!json_is_string(value))
            return err_set(err, SLUICE_ERR_FORMAT, "__metadata__ entry %s is not a string", key);
    }
    return SLUICE_OK;
}

/* Finds header and buffer in a file's bytes and parses the header. */
static int parse_header(struct shard *shard, const uint8_t *bytes, size_t size, struct err *err) {
    uint64_t length;
    if (size < LENGTH_BYTES)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: has %zu bytes, expected %d of header length at least", shard->path,
                       size, LENGTH_BYTES);
    if (is_lfs_pointer(bytes, size))
        return err_set(err, SLUICE_ERR_FORMAT, "%s: " LFS_POINTER, shard->path);
    memcpy(&length, bytes, LENGTH_BYTES);
    uint64_t max = size - LENGTH_BYTES < MAX_HEADER ? size - LENGTH_BYTES : MAX_HEADER;
    if (length > max)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: says its header has %" PRIu64 " bytes, expected at most %" PRIu64,
                       shard->path, length, max);
    struct str text = {(const char *)bytes + LENGTH_BYTES, (size_t)length};
    if (!str_starts(text, "{"))
        return err_set(err, SLUICE_ERR_FORMAT, "%s: its header does not begin with '{'",
                       shard->path);
    struct err own;
    shard->header = json_parse(text, shard->path, NULL, err ? err : &own);
    if (!shard->header)
        return err ? err->code : own.code;
    shard->buffer = bytes + LENGTH_BYTES + length;
    shard->buffer_bytes = size - LENGTH_BYTES - length;
    return SLUICE_OK;
}

/* Reads the tensors of a shard after those already there. */
static int read_tensors(struct safetensors *st, struct shard *shard, struct tensor_range *ranges,
                        struct err *err) {
    const char *name;
    json_t *entry;
    shard->first = st->n_tensors;
    json_object_foreach(shard->header, name, entry) {
        struct tensor *t = &st->tensors[st->n_tensors];
        int status;
        if (strcmp(name, "__metadata__") == 0) {
            if ((status = check_metadata(entry, err)))
                return status;
            continue;
        }
        t->name = (struct str){arena_strdup(&st->arena, str_of(name)), strlen(name)};
        if (!t->name.at)
            return err_memory(err, "a tensor's name");
        if ((status = read_tensor(shard, t, entry, &ranges[shard->count], err)))
            return status;
        if (!strmap_add(&st->tensor_map, t->name, st->n_tensors))
            return err_set(err, SLUICE_ERR_FORMAT, "tensor %.*s: is in an earlier shard already",
                           STR_ARG(t->name));
        st->n_tensors++;
        shard->count++;
    }
    return check_cover(shard, ranges, err);
}

/* The tensors of all shards, whose headers are parsed. */
static int read_shards(struct safetensors *st, struct shard *shards, uint32_t count,
                       struct err *err) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += json_object_size(shards[i].header);
    if (total > MAX_TENSORS)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: %u file(s) hold %" PRIu64 " tensors, expected at most %d",
                       shards[0].path, count, total, MAX_TENSORS);
    st->tensors = arena_array(&st->arena, total, sizeof *st->tensors);
    struct tensor_range *ranges = calloc(total ? total : 1, sizeof *ranges);
    int status = SLUICE_OK;
    if (!st->tensors || !ranges || !strmap_init(&st->tensor_map, &st->arena, total))
        status = err_memory(err, "the table of tensors");
    for (uint32_t i = 0; !status && i < count; i++)
        if ((status = read_tensors(st, &shards[i], ranges, err)))
            err_prefix(err, "%s", shards[i].path);
    free(ranges);
    return status;
}

static int new_safetensors(struct safetensors **out, struct err *err) {
    *out = calloc(1, sizeof **out);
    return *out ? SLUICE_OK : err_memory(err, "safetensors");
}

int safetensors_parse(struct safetensors **out, const void *bytes, size_t size, struct err *err) {
    struct shard shard = {.path = "(memory)"};
    int status = new_safetensors(out, err);
    if (!status)
        status = parse_header(&shard, bytes, size, err);
    if (!status)
        status = read_shards(*out, &shard, 1, err);
    json_decref(shard.header);
    if (status) {
        safetensors_close(*out);
        *out = NULL;
    }
    return status;
}

/* ---- folders ---- */

/* A shard's name must not lead out of the folder. */
static bool is_plain(struct str name) {
    return name.len > 0 && !memchr(name.at, 0, name.len) && !memchr(name.at, '/', name.len) &&
           !memchr(name.at, '\\', name.len) && !str_contains(name, "..");
}

/* The different file names of the map: count of them, in `files`. */
static int list_shards(struct safetensors *st, const char *index_path, const json_t *map,
                       struct strmap *files, const char **names, struct err *err) {
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)map, tensor, value) {
        struct str name;
        if (!json_str(value, &name))
            return err_set(err, SLUICE_ERR_FORMAT, "%s: the file of tensor %s is not a string",
                           index_path, tensor);
        if (!is_plain(name))
            return err_set(err, SLUICE_ERR_FORMAT,
                           "%s: the file of tensor %s is '%.*s', expected a plain file name",
                           index_path, tensor, STR_ARG(name));
        if (!strmap_add(files, name, (uint32_t)files->count))
            continue;
        char *copy = arena_strdup(&st->arena, name);
        if (!copy)
            return err_memory(err, "a shard's name");
        names[files->count - 1] = copy;
    }
    return SLUICE_OK;
}

/* Opens and reads `count` files of a folder; a folder of NULL: their names are paths. */
static int open_shards(struct safetensors *st, struct shard *shards, const char *folder,
                       const char *const *names, uint32_t count, struct err *err) {
    int status = SLUICE_OK;
    st->shards = arena_array(&st->arena, count, sizeof *st->shards);
    if (!st->shards)
        return err_memory(err, "the shards");
    for (uint32_t i = 0; !status && i < count; i++) {
        struct filemap *map = &st->shards[i];
        shards[i].path = folder ? path_join(&st->arena, folder, names[i])
                                : arena_strdup(&st->arena, str_of(names[i]));
        if (!shards[i].path)
            return err_memory(err, "a shard's path");
        if ((status = filemap_open(map, shards[i].path, err)))
            return status;
        st->n_shards = i + 1;
        status = parse_header(&shards[i], map->data, map->size, err);
    }
    return status ? status : read_shards(st, shards, count, err);
}

/* Every tensor of the map must be in the file it names. Tensors that the map lacks are used anyway:
 * some indexes are incomplete. */
static int check_map(const struct safetensors *st, const char *index_path, const json_t *map,
                     const struct strmap *files, const struct shard *shards, struct err *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)map, name, value) {
        struct str file;
        uint32_t i, shard;
        CHECK(json_str(value, &file) && strmap_get(files, file, &shard));
        if (!strmap_get(&st->tensor_map, str_of(name), &i) ||
            i - shards[shard].first >= shards[shard].count)
            return err_set(err, SLUICE_ERR_FORMAT, "%s: tensor %s is not in %s, where it should be",
                           index_path, name, shards[shard].path);
    }
    size_t mapped = json_object_size(map);
    if (mapped < st->n_tensors)
        log_line(LOG_WARN, "%s: names %zu tensors, its files hold %u", index_path, mapped,
                 st->n_tensors);
    return SLUICE_OK;
}

static int open_sharded(struct safetensors *st, const char *folder, const char *index_path,
                        const json_t *index, struct err *err) {
    const json_t *map = json_object_get(index, "weight_map");
    size_t size = json_object_size(map);
    if (!json_is_object(map) || size == 0 || size > MAX_TENSORS)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: weight_map has %zu tensors, expected an object of 1 to %d", index_path,
                       size, MAX_TENSORS);
    struct strmap files;
    const char **names = calloc(size, sizeof *names);
    struct shard *shards = NULL;
    int status = SLUICE_ERR_MEMORY;
    if (!names || !strmap_init(&files, &st->arena, size)) {
        err_memory(err, "the shards");
        goto done;
    }
    if ((status = list_shards(st, index_path, map, &files, names, err)))
        goto done;
    uint32_t count = (uint32_t)files.count;
    if (!(shards = calloc(count, sizeof *shards)))
        status = err_memory(err, "the shards");
    if (!status)
        status = open_shards(st, shards, folder, names, count, err);
    if (!status)
        status = check_map(st, index_path, map, &files, shards, err);
    for (uint32_t i = 0; shards && i < count; i++)
        json_decref(shards[i].header);
done:
    free(shards);
    free(names);
    return status;
}

static int open_single(struct safetensors *st, const char *folder, const char *name,
                       struct err *err) {
    struct shard shard = {0};
    int status = open_shards(st, &shard, folder, &name, 1, err);
    json_decref(shard.header);
    return status;
}

static int open_folder(struct safetensors *st, const char *folder, struct err *err) {
    struct err own = {0};
    const char *path = path_join(&st->arena, folder, "model.safetensors.index.json");
    if (!path)
        return err_memory(err, "a path");
    json_t *index = json_read(path, NULL, false, &own);
    if (!index && own.code)
        return err_set(err, own.code, "%s", own.text);
    int status = index ? open_sharded(st, folder, path, index, err)
                       : open_single(st, folder, "model.safetensors", err);
    json_decref(index);
    return status;
}

int safetensors_open(struct safetensors **out, const char *path, struct err *err) {
    struct stat info;
    int status = new_safetensors(out, err);
    if (!status && stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        status = open_folder(*out, path, err);
    else if (!status)
        status = open_single(*out, NULL, path, err);
    if (status) {
        safetensors_close(*out);
        *out = NULL;
    }
    return status;
}

void safetensors_close(struct safetensors *st) {
    if (!st)
        return;
    for (uint32_t i = 0; i < st->n_shards; i++)
        filemap_close(&st->shards[i]);
    arena_free(&st->arena);
    free(st);
}

const struct tensor *safetensors_find(const struct safetensors *st, struct str name) {
    uint32_t i;
    return strmap_get(&st->tensor_map, name, &i) ? &st->tensors[i] : NULL;
}
