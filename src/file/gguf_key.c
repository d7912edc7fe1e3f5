/* gguf_key.c - the types and values of keys. */
#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "file/gguf.h"

static const struct {
    const char *name, *array_name;
    uint32_t bytes;
} types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"u8", "u8[]", 1},
    [GGUF_I8] = {"i8", "i8[]", 1},
    [GGUF_U16] = {"u16", "u16[]", 2},
    [GGUF_I16] = {"i16", "i16[]", 2},
    [GGUF_U32] = {"u32", "u32[]", 4},
    [GGUF_I32] = {"i32", "i32[]", 4},
    [GGUF_F32] = {"f32", "f32[]", 4},
    [GGUF_BOOL] = {"bool", "bool[]", 1},
    [GGUF_STRING] = {"string", "string[]", 0},
    [GGUF_ARRAY] = {"array", "array[]", 0},
    [GGUF_U64] = {"u64", "u64[]", 8},
    [GGUF_I64] = {"i64", "i64[]", 8},
    [GGUF_F64] = {"f64", "f64[]", 8},
};

const char *gguf_type_name(enum gguf_type type) {
    return (uint32_t)type < GGUF_TYPE_COUNT ? types[type].name : "unknown";
}

const char *gguf_key_type_name(const struct gguf_key *key) {
    if ((uint32_t)key->type >= GGUF_TYPE_COUNT)
        return "unknown";
    return key->is_array ? types[key->type].array_name : types[key->type].name;
}

uint32_t gguf_type_bytes(enum gguf_type type) {
    return (uint32_t)type < GGUF_TYPE_COUNT ? types[type].bytes : 0;
}

const struct gguf_key *gguf_key(const struct gguf *g, const char *name) {
    uint32_t i;
    return strmap_get(&g->key_map, str_of(name), &i) ? &g->keys[i] : NULL;
}

const struct tensor *gguf_tensor(const struct gguf *g, const char *name) {
    uint32_t i;
    return strmap_get(&g->tensor_map, str_of(name), &i) ? &g->tensors[i] : NULL;
}

/* ---- elements ---- */

static const uint8_t *element(const struct gguf_key *key, uint64_t i) {
    CHECK(i < key->count);
    return key->data + i * types[key->type].bytes;
}

/* The raw bits of an element, zero-extended. */
static uint64_t bits_at(const struct gguf_key *key, uint64_t i) {
    uint64_t bits = 0;
    memcpy(&bits, element(key, i), types[key->type].bytes);
    return bits;
}

int64_t gguf_int_at(const struct gguf_key *key, uint64_t i) {
    CHECK(gguf_is_int(key));
    uint64_t bits = bits_at(key, i);
    switch (key->type) {
    case GGUF_I8:
        return (int8_t)bits;
    case GGUF_I16:
        return (int16_t)bits;
    case GGUF_I32:
        return (int32_t)bits;
    case GGUF_I64:
        return (int64_t)bits;
    default:
        return bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
    }
}

uint64_t gguf_unsigned_at(const struct gguf_key *key, uint64_t i) {
    CHECK(key->type == GGUF_U8 || key->type == GGUF_U16 || key->type == GGUF_U32 ||
          key->type == GGUF_U64);
    return bits_at(key, i);
}

double gguf_float_at(const struct gguf_key *key, uint64_t i) {
    if (key->type == GGUF_F32) {
        float value;
        memcpy(&value, element(key, i), sizeof value);
        return value;
    }
    if (key->type == GGUF_F64) {
        double value;
        memcpy(&value, element(key, i), sizeof value);
        return value;
    }
    return key->type == GGUF_U64 ? (double)bits_at(key, i) : (double)gguf_int_at(key, i);
}

/* ---- values by name ---- */

static int wrong_type(const struct gguf *g, const struct gguf_key *key, const char *expected,
                      struct err *err) {
    return err_set(err, SLUICE_ERR_FORMAT, "%s: key %.*s is %s, expected %s", g->path,
                   STR_ARG(key->name), gguf_key_type_name(key), expected);
}

int gguf_get_u64(const struct gguf *g, const char *name, uint64_t *out, struct err *err) {
    const struct gguf_key *key = gguf_key(g, name);
    if (!key)
        return 0;
    if (key->is_array || !gguf_is_int(key))
        return wrong_type(g, key, "an integer", err);
    if (gguf_int_at(key, 0) < 0)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: key %s is %" PRId64 ", expected 0 or more",
                       g->path, name, gguf_int_at(key, 0));
    *out = bits_at(key, 0);
    return 1;
}

int gguf_get_u32(const struct gguf *g, const char *name, uint32_t *out, struct err *err) {
    uint64_t value = 0;
    int status = gguf_get_u64(g, name, &value, err);
    if (status != 1)
        return status;
    if (value > UINT32_MAX)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: key %s is %" PRIu64 ", expected at most %u",
                       g->path, name, value, UINT32_MAX);
    *out = (uint32_t)value;
    return 1;
}

int gguf_get_f32(const struct gguf *g, const char *name, float *out, struct err *err) {
    const struct gguf_key *key = gguf_key(g, name);
    if (!key)
        return 0;
    if (key->is_array || (key->type != GGUF_F32 && key->type != GGUF_F64))
        return wrong_type(g, key, "f32", err);
    double value = gguf_float_at(key, 0);
    if (!(fabs(value) <= (double)FLT_MAX))
        return err_set(err, SLUICE_ERR_FORMAT, "%s: key %s is %g, expected a finite f32", g->path,
                       name, value);
    *out = (float)value;
    return 1;
}

int gguf_get_bool(const struct gguf *g, const char *name, bool *out, struct err *err) {
    const struct gguf_key *key = gguf_key(g, name);
    if (!key)
        return 0;
    if (key->is_array || key->type != GGUF_BOOL)
        return wrong_type(g, key, "bool", err);
    *out = key->data[0] != 0;
    return 1;
}

int gguf_get_str(const struct gguf *g, const char *name, struct str *out, struct err *err) {
    const struct gguf_key *key = gguf_key(g, name);
    if (!key)
        return 0;
    if (key->is_array || key->type != GGUF_STRING)
        return wrong_type(g, key, "string", err);
    *out = key->strings[0];
    return 1;
}
