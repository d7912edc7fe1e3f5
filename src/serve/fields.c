/* fields.c - the members of a request's JSON object, each with the type it must have. */
#include "serve/fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *json_text_of(const json_t *object, const char *name) {
    return json_string_value(json_object_get(object, name));
}

const char *json_kind(const json_t *value) {
    static const char *const kinds[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };
    return value ? kinds[json_typeof(value)] : "missing";
}

bool json_is_deeper(const json_t *value, unsigned levels) {
    bool is_deeper = false;
    const char *key;
    json_t *inner;
    size_t i;
    if (!json_is_array(value) && !json_is_object(value))
        return false;
    if (levels == 0)
        return true;
    json_array_foreach(value, i, inner) is_deeper = is_deeper || json_is_deeper(inner, levels - 1);
    json_object_foreach((json_t *)value, key, inner) is_deeper =
        is_deeper || json_is_deeper(inner, levels - 1);
    return is_deeper;
}

int fields_refuse(struct fields *f, const char *name, const char *format, ...) {
    char text[400];
    va_list args;
    if (f->wrong)
        return SLUICE_ERR_ARGUMENT;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    f->wrong = name;
    return err_set(&f->err, SLUICE_ERR_ARGUMENT, "%s", text);
}

const json_t *fields_any(const struct fields *f, const char *name) {
    const json_t *value = f->wrong ? NULL : json_object_get(f->object, name);
    return json_is_null(value) ? NULL : value;
}

void fields_float(struct fields *f, const char *name, double min, double max, float *value) {
    const json_t *v = fields_any(f, name);
    if (!v)
        return;
    double found = json_number_value(v);
    if (!json_is_number(v))
        fields_refuse(f, name, "%s is %s, expected a number from %g to %g", name, json_kind(v), min,
                      max);
    else if (!(found >= min && found <= max))
        fields_refuse(f, name, "%s is %g, expected %g to %g", name, found, min, max);
    else
        *value = (float)found;
}

/* 3 and 3.0: some clients have no integers. */
static bool is_whole(const json_t *v, int64_t *out) {
    double real = json_real_value(v);
    if (json_is_integer(v))
        *out = json_integer_value(v);
    else if (json_is_real(v) && fabs(real) < 9e15 && floor(real) == real)
        *out = (int64_t)real;
    else
        return false;
    return true;
}

void fields_int(struct fields *f, const char *name, int64_t min, int64_t max, int64_t *value) {
    const json_t *v = fields_any(f, name);
    int64_t found;
    if (!v)
        return;
    if (!is_whole(v, &found))
        fields_refuse(f, name, "%s is %s, expected a whole number", name,
                      json_is_real(v) ? "a fraction" : json_kind(v));
    else if (found < min && max >= INT32_MAX) /* that is no limit of ours to name */
        fields_refuse(f, name, "%s is %lld, expected %lld or more", name, (long long)found,
                      (long long)min);
    else if (found < min || found > max)
        fields_refuse(f, name, "%s is %lld, expected %lld to %lld", name, (long long)found,
                      (long long)min, (long long)max);
    else
        *value = found;
}

void fields_bool(struct fields *f, const char *name, bool *value) {
    const json_t *v = fields_any(f, name);
    if (v && !json_is_boolean(v))
        fields_refuse(f, name, "%s is %s, expected true or false", name, json_kind(v));
    else if (v)
        *value = json_is_true(v);
}

void fields_string(struct fields *f, const char *name, const char **value) {
    const json_t *v = fields_any(f, name);
    if (v && !json_is_string(v))
        fields_refuse(f, name, "%s is %s, expected a string", name, json_kind(v));
    else if (v && strlen(json_string_value(v)) != json_string_length(v))
        fields_refuse(f, name, "%s has a zero byte, expected a text without", name);
    else if (v)
        *value = json_string_value(v);
}

void fields_array(struct fields *f, const char *name, const json_t **value) {
    const json_t *v = fields_any(f, name);
    if (v && !json_is_array(v))
        fields_refuse(f, name, "%s is %s, expected an array", name, json_kind(v));
    else if (v)
        *value = v;
}

void fields_object(struct fields *f, const char *name, const json_t **value) {
    const json_t *v = fields_any(f, name);
    if (v && !json_is_object(v))
        fields_refuse(f, name, "%s is %s, expected an object", name, json_kind(v));
    else if (v)
        *value = v;
}
