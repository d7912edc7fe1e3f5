/* gguf.c - reading GGUF files: header, keys, tensor table, split models.
 *
 * In: mapped files, every byte of which may be hostile.  Out: a struct gguf, checked once.
 * (1) All reading goes through a cursor, which checks bounds.
 * (2) A count is compared with the bytes left before anything is allocated by it, and the arena has
 *     a limit that grows with the file: METADATA_FACTOR covers the worst a record can cost.
 * (3) Nothing recurses on what a file says, and no product of its values goes unchecked.
 * (4) Parsing names no path in its errors; the caller that knows the path puts it in front. */
#include "file/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/size.h"
#include "file/path.h"

enum {
    HEADER_BYTES = 24,
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,        /* name length, name, type, value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8, /* name length, name, dims, type, offset */
    METADATA_FACTOR = 16,
    METADATA_SPARE = 64 << 10,
    METADATA_MAX = 1 << 30,
    MAX_PARTS = 65535,
};

static const uint64_t MAX_DIM = 1ull << 48, MAX_VALUES = 1ull << 62;

/* ---- the cursor ---- */

struct cursor {
    const uint8_t *at, *end;
    const char *kind;    /* what is being read, for messages: "key", */
    uint64_t number;     /* which one, from 1, */
    struct str name;     /* and its name, once that is known */
    struct arena *arena; /* for what can't stay in the mapping */
    struct err *err;
};

static uint64_t bytes_left(const struct cursor *c) {
    return (uint64_t)(c->end - c->at);
}

/* The next bytes; NULL, and the error set to SLUICE_ERR_FORMAT, when fewer are left. */
static const uint8_t *take(struct cursor *c, uint64_t size) {
    if (size > bytes_left(c)) {
        err_set(c->err, SLUICE_ERR_FORMAT,
                "%s %" PRIu64 "%s%.*s needs %" PRIu64 " bytes, the file has %" PRIu64 " left",
                c->kind, c->number, c->name.len ? " " : "", STR_ARG(c->name), size, bytes_left(c));
        return NULL;
    }
    const uint8_t *bytes = c->at;
    c->at += size;
    return bytes;
}

static int take_number(struct cursor *c, void *value, size_t size) {
    const uint8_t *bytes = take(c, size);
    if (!bytes)
        return SLUICE_ERR_FORMAT;
    memcpy(value, bytes, size);
    return SLUICE_OK;
}

static int take_u32(struct cursor *c, uint32_t *value) {
    return take_number(c, value, sizeof *value);
}

static int take_u64(struct cursor *c, uint64_t *value) {
    return take_number(c, value, sizeof *value);
}

static int take_str(struct cursor *c, struct str *s) {
    uint64_t len = 0;
    if (take_u64(c, &len))
        return SLUICE_ERR_FORMAT;
    if (len > GGUF_MAX_LENGTH && len <= bytes_left(c))
        return err_set(c->err, SLUICE_ERR_FORMAT,
                       "%s %.*s holds a string of %" PRIu64 " bytes, expected at most %d", c->kind,
                       STR_ARG(c->name), len, GGUF_MAX_LENGTH);
    const uint8_t *bytes = take(c, len);
    if (!bytes)
        return SLUICE_ERR_FORMAT;
    *s = (struct str){(const char *)bytes, (size_t)len};
    return SLUICE_OK;
}

/* ---- rules for names and shapes ---- */

static int check_name(const char *kind, struct str name, size_t max, struct err *err) {
    if (name.len < 1 || name.len > max)
        return err_set(err, SLUICE_ERR_FORMAT, "%s name %.*s has %zu bytes, expected 1 to %zu",
                       kind, STR_ARG(name), name.len, max);
    if (memchr(name.at, 0, name.len))
        return err_set(err, SLUICE_ERR_FORMAT, "%s name %.*s holds a zero byte, expected none",
                       kind, STR_ARG(name));
    if (!utf8_valid(name))
        return err_set(err, SLUICE_ERR_FORMAT, "%s name %.*s is not UTF-8", kind, STR_ARG(name));
    return SLUICE_OK;
}

int gguf_check_key_name(struct str name, struct err *err) {
    return check_name("key", name, GGUF_MAX_KEY, err);
}

/* The product of the dims, each within its bounds. */
static int count_values(struct tensor *t, struct err *err) {
    t->n_values = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] < 1 || t->dims[i] > MAX_DIM)
            return err_set(err, SLUICE_ERR_FORMAT,
                           "tensor %.*s has dimension %u of %" PRIu64 ", expected 1 to %" PRIu64,
                           STR_ARG(t->name), i, t->dims[i], MAX_DIM);
        if (!size_mul(t->n_values, t->dims[i], &t->n_values) || t->n_values > MAX_VALUES)
            return err_set(err, SLUICE_ERR_FORMAT, "tensor %.*s has more than %" PRIu64 " values",
                           STR_ARG(t->name), MAX_VALUES);
    }
    return SLUICE_OK;
}

int gguf_describe(struct tensor *t, struct str name, uint32_t type, const uint64_t *dims,
                  uint32_t n_dims, struct err *err) {
    *t = (struct tensor){.name = name, .n_dims = n_dims};
    int status = check_name("tensor", name, GGUF_MAX_NAME, err);
    if (status)
        return status;
    if (n_dims > GGUF_MAX_DIMS)
        return err_set(err, SLUICE_ERR_FORMAT, "tensor %.*s has %u dimensions, expected at most %d",
                       STR_ARG(name), n_dims, GGUF_MAX_DIMS);
    for (uint32_t i = 0; i < TENSOR_MAX_DIMS; i++)
        t->dims[i] = i < n_dims ? dims[i] : 1;
    if ((status = count_values(t, err)))
        return status;
    const struct dtype_info *info = dtype_info(type);
    if (!info)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "tensor %.*s has type id %u, which is retired or unknown", STR_ARG(name),
                       type);
    t->type = (int32_t)type;
    t->type_name = info->name;
    if (t->dims[0] % info->block_values != 0)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "tensor %.*s has rows of %" PRIu64
                       " values, expected a multiple of %u for %s",
                       STR_ARG(name), t->dims[0], info->block_values, info->name);
    if (!size_mul(t->n_values / info->block_values, info->block_bytes, &t->bytes))
        return err_set(err, SLUICE_ERR_FORMAT,
                       "tensor %.*s of %" PRIu64 " %s values has more bytes than can be counted",
                       STR_ARG(name), t->n_values, info->name);
    return SLUICE_OK;
}

/* ---- keys ---- */

static int take_scalars(struct cursor *c, struct gguf_key *key) {
    uint64_t size;
    if (!size_mul(key->count, gguf_type_bytes(key->type), &size))
        return err_set(c->err, SLUICE_ERR_FORMAT,
                       "key %.*s has %" PRIu64 " values of %s, more than can be counted",
                       STR_ARG(key->name), key->count, gguf_type_name(key->type));
    key->data = take(c, size);
    return key->data ? SLUICE_OK : SLUICE_ERR_FORMAT;
}

static int take_strings(struct cursor *c, struct gguf_key *key) {
    /* Each string has at least its length in the file. */
    if (key->count > bytes_left(c) / 8)
        return err_set(c->err, SLUICE_ERR_FORMAT,
                       "key %.*s has %" PRIu64 " strings, the %" PRIu64
                       " bytes left in the file hold at most %" PRIu64,
                       STR_ARG(key->name), key->count, bytes_left(c), bytes_left(c) / 8);
    struct str *strings = arena_array(c->arena, key->count, sizeof *strings);
    if (!strings)
        return err_memory(c->err, "the strings of a key");
    for (uint64_t i = 0; i < key->count; i++) {
        int status = take_str(c, &strings[i]);
        if (status)
            return status;
    }
    key->strings = strings;
    return SLUICE_OK;
}

/* The type of a value and, for an array, of its elements and how many there are. */
static int take_type(struct cursor *c, struct gguf_key *key) {
    uint32_t type = 0;
    int status = take_u32(c, &type);
    if (status)
        return status;
    key->count = 1;
    key->is_array = type == GGUF_ARRAY;
    if (key->is_array) {
        if ((status = take_u32(c, &type)) || (status = take_u64(c, &key->count)))
            return status;
        if (type == GGUF_ARRAY)
            return err_set(c->err, SLUICE_ERR_UNSUPPORTED,
                           "key %.*s is an array of arrays, expected one of numbers or strings",
                           STR_ARG(key->name));
        if (key->count > GGUF_MAX_LENGTH)
            return err_set(c->err, SLUICE_ERR_FORMAT,
                           "key %.*s has %" PRIu64 " elements, expected at most %d",
                           STR_ARG(key->name), key->count, GGUF_MAX_LENGTH);
    }
    if (type >= GGUF_TYPE_COUNT)
        return err_set(c->err, SLUICE_ERR_FORMAT, "key %.*s has type id %u, expected at most %d",
                       STR_ARG(key->name), type, GGUF_TYPE_COUNT - 1);
    key->type = (enum gguf_type)type;
    return SLUICE_OK;
}

static int take_key(struct cursor *c, struct gguf *g) {
    struct gguf_key *key = &g->keys[g->n_keys];
    int status;
    c->number = g->n_keys + 1;
    c->name = STR("");
    if ((status = take_str(c, &key->name)) || (status = gguf_check_key_name(key->name, c->err)))
        return status;
    c->name = key->name;
    if ((status = take_type(c, key)))
        return status;
    status = key->type == GGUF_STRING ? take_strings(c, key) : take_scalars(c, key);
    if (status)
        return status;
    if (!strmap_add(&g->key_map, key->name, g->n_keys))
        return err_set(c->err, SLUICE_ERR_FORMAT, "key %.*s appears twice", STR_ARG(key->name));
    g->n_keys++;
    return SLUICE_OK;
}

/* Whether `count` records of at least `min_bytes` each fit into what is left. */
static int check_count(const struct cursor *c, uint64_t count, uint64_t min_bytes) {
    if (count > GGUF_MAX_RECORDS)
        return err_set(c->err, SLUICE_ERR_FORMAT,
                       "the header says %" PRIu64 " %ss, expected at most %d", count, c->kind,
                       GGUF_MAX_RECORDS);
    if (count > bytes_left(c) / min_bytes)
        return err_set(c->err, SLUICE_ERR_FORMAT,
                       "the header says %" PRIu64 " %ss, the %" PRIu64
                       " bytes left in the file hold at most %" PRIu64,
                       count, c->kind, bytes_left(c), bytes_left(c) / min_bytes);
    return SLUICE_OK;
}

static int take_keys(struct cursor *c, struct gguf *g, uint64_t count) {
    c->kind = "key";
    int status = check_count(c, count, MIN_KEY_BYTES);
    if (status)
        return status;
    g->keys = arena_array(&g->arena, count, sizeof *g->keys);
    if (!g->keys || !strmap_init(&g->key_map, &g->arena, count))
        return err_memory(c->err, "the table of keys");
    while (!status && g->n_keys < count)
        status = take_key(c, g);
    return status;
}

static int find_alignment(struct gguf *g, struct err *err) {
    g->alignment = GGUF_ALIGNMENT;
    const struct gguf_key *key = gguf_key(g, "general.alignment");
    if (!key)
        return SLUICE_OK;
    if (key->is_array || key->type != GGUF_U32)
        return err_set(err, SLUICE_ERR_FORMAT, "key general.alignment is %s, expected u32",
                       gguf_key_type_name(key));
    uint32_t value = (uint32_t)gguf_int_at(key, 0);
    if (value == 0 || (value & (value - 1)) != 0 || value > GGUF_MAX_ALIGNMENT)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "key general.alignment is %u, expected a power of two up to %d", value,
                       GGUF_MAX_ALIGNMENT);
    g->alignment = value;
    return SLUICE_OK;
}

/* ---- tensors ---- */

/* A tensor's bytes in the data section. */
struct tensor_range {
    uint64_t begin, end;
    uint32_t tensor;
};

/* The worst cases of (2): a record is as short as can be and takes four slots in its map. */
enum { MAP_BYTES = 4 * 24 };
_Static_assert(sizeof(struct gguf_key) + MAP_BYTES <= METADATA_FACTOR * MIN_KEY_BYTES, "keys");
_Static_assert(sizeof(struct tensor) + sizeof(struct tensor_range) + MAP_BYTES <=
                   METADATA_FACTOR * MIN_TENSOR_BYTES,
               "tensors");

static int take_tensor(struct cursor *c, struct gguf *g, struct tensor_range *range) {
    struct tensor *t = &g->tensors[g->n_tensors];
    struct str name = {0};
    uint32_t n_dims = 0, type = 0;
    uint64_t dims[GGUF_MAX_DIMS] = {0};
    int status;
    c->number = g->n_tensors + 1;
    c->name = STR("");
    if ((status = take_str(c, &name)))
        return status;
    c->name = name;
    if ((status = take_u32(c, &n_dims)))
        return status;
    /* Too many dims are refused below, with a better message. */
    for (uint32_t i = 0; i < n_dims && i < GGUF_MAX_DIMS; i++)
        if ((status = take_u64(c, &dims[i])))
            return status;
    if ((status = take_u32(c, &type)) || (status = take_u64(c, &range->begin)) ||
        (status = gguf_describe(t, name, type, dims, n_dims, c->err)))
        return status;
    if (!strmap_add(&g->tensor_map, name, g->n_tensors))
        return err_set(c->err, SLUICE_ERR_FORMAT, "tensor %.*s appears twice", STR_ARG(name));
    range->tensor = g->n_tensors++;
    return SLUICE_OK;
}

static int by_begin(const void *a, const void *b) {
    const struct tensor_range *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* No two tensors may share a byte. Gaps are allowed. */
static int check_overlaps(const struct gguf *g, struct tensor_range *ranges, struct err *err) {
    if (g->n_tensors > 0)
        qsort(ranges, g->n_tensors, sizeof *ranges, by_begin);
    for (uint32_t i = 1; i < g->n_tensors; i++)
        if (ranges[i].begin < ranges[i - 1].end)
            return err_set(err, SLUICE_ERR_FORMAT,
                           "tensor %.*s begins at offset %" PRIu64
                           " of the data, inside %.*s, which ends at %" PRIu64,
                           STR_ARG(g->tensors[ranges[i].tensor].name), ranges[i].begin,
                           STR_ARG(g->tensors[ranges[i - 1].tensor].name), ranges[i - 1].end);
    return SLUICE_OK;
}

/* Points a tensor at its bytes in the data section. */
static int place_tensor(const struct gguf *g, struct tensor_range *range, const uint8_t *data,
                        uint64_t data_bytes, struct err *err) {
    struct tensor *t = &g->tensors[range->tensor];
    if (range->begin % g->alignment != 0)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "tensor %.*s is at offset %" PRIu64
                       " of the data, expected a multiple of %u",
                       STR_ARG(t->name), range->begin, g->alignment);
    if (range->begin > data_bytes || t->bytes > data_bytes - range->begin)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "tensor %.*s has %" PRIu64 " bytes at offset %" PRIu64
                       " of the data, the file has %" PRIu64 " bytes of data; is it complete?",
                       STR_ARG(t->name), t->bytes, range->begin, data_bytes);
    range->end = range->begin + t->bytes;
    t->data = data + range->begin;
    return SLUICE_OK;
}

static int take_tensors(struct cursor *c, struct gguf *g, uint64_t count, const uint8_t *start) {
    c->kind = "tensor";
    int status = check_count(c, count, MIN_TENSOR_BYTES);
    if (status || count == 0)
        return status;
    g->tensors = arena_array(&g->arena, count, sizeof *g->tensors);
    struct tensor_range *ranges = arena_array(&g->arena, count, sizeof *ranges);
    if (!g->tensors || !ranges || !strmap_init(&g->tensor_map, &g->arena, count))
        return err_memory(c->err, "the table of tensors");
    while (!status && g->n_tensors < count)
        status = take_tensor(c, g, &ranges[g->n_tensors]);
    if (status)
        return status;
    uint64_t size = (uint64_t)(c->end - start), data_at = 0;
    if (!size_align((uint64_t)(c->at - start), g->alignment, &data_at) || data_at > size)
        return err_set(c->err, SLUICE_ERR_FORMAT,
                       "the file has %" PRIu64 " bytes, its data begins at %" PRIu64, size,
                       data_at);
    for (uint32_t i = 0; !status && i < count; i++)
        status = place_tensor(g, &ranges[i], start + data_at, size - data_at, c->err);
    return status ? status : check_overlaps(g, ranges, c->err);
}

/* ---- one file ---- */

static int check_version(uint32_t version, struct err *err) {
    if (version == 2 || version == 3)
        return SLUICE_OK;
    if (version != 0 && (version & 0xFFFF) == 0)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "is a big-endian GGUF file, expected little-endian");
    return err_set(err, SLUICE_ERR_UNSUPPORTED, "is GGUF version %u, expected 2 or 3", version);
}

/* Memory for what `size` bytes of file can describe. */
static size_t metadata_limit(uint64_t size) {
    return size > METADATA_MAX / METADATA_FACTOR ? METADATA_MAX
                                                 : size * METADATA_FACTOR + METADATA_SPARE;
}

static int parse(struct gguf *g, const uint8_t *bytes, size_t size, struct err *err) {
    struct cursor c = {
        .at = bytes, .kind = "header", .name = STR(""), .arena = &g->arena, .err = err};
    uint64_t n_tensors = 0, n_keys = 0;
    int status;
    if (size < HEADER_BYTES)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "has %zu bytes, expected the %d of a GGUF header at least", size,
                       HEADER_BYTES);
    c.end = bytes + size;
    g->arena.limit = g->arena.used + metadata_limit(size);
    const uint8_t *magic = take(&c, 4);
    if (is_lfs_pointer(bytes, size))
        return err_set(err, SLUICE_ERR_FORMAT, LFS_POINTER);
    if (memcmp(magic, "GGUF", 4) != 0)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "is not a GGUF file: begins with %02x %02x %02x %02x, expected 47 47 55 46",
                       magic[0], magic[1], magic[2], magic[3]);
    if ((status = take_u32(&c, &g->version)) || (status = check_version(g->version, err)) ||
        (status = take_u64(&c, &n_tensors)) || (status = take_u64(&c, &n_keys)) ||
        (status = take_keys(&c, g, n_keys)) || (status = find_alignment(g, err)) ||
        (status = take_tensors(&c, g, n_tensors, bytes)))
        return status;
    g->file_bytes = size;
    return SLUICE_OK;
}

int gguf_parse(struct gguf **out, const void *bytes, size_t size, struct err *err) {
    *out = NULL;
    struct gguf *g = calloc(1, sizeof *g);
    if (!g)
        return err_memory(err, "a GGUF file");
    g->path = "(memory)";
    int status = parse(g, bytes, size, err);
    if (status) {
        gguf_close(g);
        err_prefix(err, "(memory)");
        return status;
    }
    *out = g;
    return SLUICE_OK;
}

/* Opens one file, a part or a whole model. */
static int open_part(struct gguf **out, const char *path, struct err *err) {
    int status = SLUICE_ERR_MEMORY;
    struct gguf *g = *out = calloc(1, sizeof *g);
    if (g)
        g->path = arena_strdup(&g->arena, str_of(path));
    if (g && g->path)
        g->parts = arena_array(&g->arena, 1, sizeof *g->parts);
    if (!g || !g->parts) {
        err_memory(err, path);
        goto fail;
    }
    if ((status = filemap_open(g->parts, path, err)))
        goto fail;
    g->n_parts = 1;
    if ((status = parse(g, g->parts->data, g->parts->size, err))) {
        err_prefix(err, "%s", path);
        goto fail;
    }
    return SLUICE_OK;

fail:
    gguf_close(g);
    *out = NULL;
    return status;
}

void gguf_close(struct gguf *g) {
    if (!g)
        return;
    for (uint32_t i = 0; i < g->n_parts; i++)
        filemap_close(&g->parts[i]);
    arena_free(&g->arena);
    free(g);
}

/* ---- split models ---- */

struct split {
    uint32_t no, count; /* 0 and 0 for a file that is whole */
};

static int read_split(const struct gguf *g, struct split *split, struct err *err) {
    *split = (struct split){0};
    int status;
    if ((status = gguf_get_u32(g, "split.no", &split->no, err)) < 0 ||
        (status = gguf_get_u32(g, "split.count", &split->count, err)) < 0)
        return status;
    if (split->count > MAX_PARTS)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: key split.count is %u, expected at most %d",
                       g->path, split->count, MAX_PARTS);
    if (split->no >= (split->count ? split->count : 1))
        return err_set(err, SLUICE_ERR_FORMAT, "%s: key split.no is %u, but split.count is %u",
                       g->path, split->no, split->count);
    return SLUICE_OK;
}

/* The suffix of a part's file name. */
static void write_suffix(char out[32], uint32_t no, uint32_t count) {
    snprintf(out, 32, "-%05u-of-%05u.gguf", no + 1, count);
}

/* The path of another part, given the part `here`; NULL when that is not named like one. */
static char *part_path(struct arena *arena, const char *path, struct split here, uint32_t no) {
    char suffix[32], *out;
    size_t len = strlen(path);
    write_suffix(suffix, here.no, here.count);
    if (!str_ends(str_of(path), suffix))
        return NULL;
    if ((out = arena_strdup(arena, str_of(path))))
        write_suffix(suffix, no, here.count); /* as long as the one it replaces */
    if (out)
        memcpy(out + len - strlen(suffix), suffix, strlen(suffix));
    return out;
}

/* The file opened must be the first part, and its name must follow the pattern. */
static int check_first(struct gguf *g, struct split split, struct err *err) {
    char suffix[32];
    write_suffix(suffix, 0, split.count);
    const char *first = part_path(&g->arena, g->path, split, 0);
    if (split.no != 0)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: is part %u of %u, expected the first: %s%s",
                       g->path, split.no + 1, split.count, first ? first : "a name that ends in ",
                       first ? "" : suffix);
    if (!first)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: is part 1 of %u, expected a name that ends in %s", g->path, split.count,
                       suffix);
    return SLUICE_OK;
}

static int open_sibling(struct gguf **out, struct gguf *first, struct split split, uint32_t no,
                        struct err *err) {
    struct split found;
    int status;
    const char *path = part_path(&first->arena, first->path, split, no);
    if (!path)
        return err_memory(err, "the name of a part");
    if ((status = open_part(out, path, err)) || (status = read_split(*out, &found, err)))
        return status;
    if (found.no != no || found.count != split.count)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: says it is part %u of %u, expected %u of %u",
                       path, found.no + 1, found.count, no + 1, split.count);
    return SLUICE_OK;
}

/* Counts the tensors of all parts, and raises the arena's limit for one table of them. */
static int count_tensors(struct gguf *g, struct gguf **parts, uint32_t count, uint64_t *total,
                         struct err *err) {
    uint64_t expected = 0;
    int status = gguf_get_u64(g, "split.tensors.count", &expected, err);
    if (status < 0)
        return status;
    if (status == 0)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: has no key split.tensors.count, expected one",
                       g->path);
    for (uint32_t i = 0; i < count; i++) {
        *total += parts[i]->n_tensors; /* can't overflow: each is at most GGUF_MAX_RECORDS */
        g->arena.limit += metadata_limit(parts[i]->file_bytes);
    }
    if (*total != expected)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: its %u parts hold %" PRIu64 " tensors, expected %" PRIu64
                       " by split.tensors.count",
                       g->path, count, *total, expected);
    if (*total > GGUF_MAX_RECORDS)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s: its %u parts hold %" PRIu64 " tensors, expected at most %d", g->path,
                       count, *total, GGUF_MAX_RECORDS);
    return SLUICE_OK;
}

/* Makes one table of the tensors of all parts. parts[0] is g, which takes over the files of the
 * others once nothing can fail any more. */
static int merge_parts(struct gguf *g, struct gguf **parts, uint32_t count, struct err *err) {
    uint64_t total = 0;
    int status = count_tensors(g, parts, count, &total, err);
    if (status)
        return status;
    struct tensor *tensors = arena_array(&g->arena, total, sizeof *tensors);
    struct filemap *files = arena_array(&g->arena, count, sizeof *files);
    struct strmap map;
    if (!tensors || !files || !strmap_init(&map, &g->arena, total))
        return err_memory(err, "the table of tensors");
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < parts[i]->n_tensors; k++, n++) {
            tensors[n] = parts[i]->tensors[k];
            if (!strmap_add(&map, tensors[n].name, n))
                return err_set(err, SLUICE_ERR_FORMAT,
                               "%s: tensor %.*s is in an earlier part already", parts[i]->path,
                               STR_ARG(tensors[n].name));
        }
    for (uint32_t i = 0; i < count; i++) {
        files[i] = parts[i]->parts[0];
        parts[i]->n_parts = 0;
        g->file_bytes += i ? parts[i]->file_bytes : 0;
    }
    g->parts = files;
    g->n_parts = count;
    g->tensors = tensors;
    g->n_tensors = n;
    g->tensor_map = map;
    return SLUICE_OK;
}

static int open_siblings(struct gguf *g, struct err *err) {
    struct split split;
    int status = read_split(g, &split, err);
    if (status || split.count <= 1)
        return status;
    g->arena.limit += (split.count + 1) * (strlen(g->path) + 32); /* for the parts' paths */
    if ((status = check_first(g, split, err)))
        return status;
    struct gguf **parts = calloc(split.count, sizeof *parts);
    if (!parts)
        return err_memory(err, "the parts of a split model");
    parts[0] = g;
    for (uint32_t i = 1; !status && i < split.count; i++)
        status = open_sibling(&parts[i], g, split, i, err);
    if (!status)
        status = merge_parts(g, parts, split.count, err);
    for (uint32_t i = 1; i < split.count; i++)
        gguf_close(parts[i]);
    free(parts);
    return status;
}

int gguf_open(struct gguf **out, const char *path, struct err *err) {
    struct gguf *g;
    *out = NULL;
    int status = open_part(&g, path, err);
    if (!status)
        status = open_siblings(g, err);
    if (status)
        gguf_close(g);
    else
        *out = g;
    return status;
}
