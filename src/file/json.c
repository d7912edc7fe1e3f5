/* json.c - JSON of unknown origin, parsed by jansson under limits. */
#include "file/json.h"

#include <errno.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/locale.h"

static const struct json_limits defaults = {
    .max_bytes = 512u << 20, .max_values = 8000000, .max_depth = 64};

static size_t or_default(size_t value, size_t standard) {
    return value ? value : standard;
}

/* The byte after the string that begins with the quote at `at`; the text's end if it is not closed.
 */
static size_t skip_string(struct str text, size_t at) {
    for (at++; at < text.len && text.at[at] != '"'; at++)
        if (text.at[at] == '\\')
            at++;
    return at < text.len ? at + 1 : text.len;
}

/* Bounds nesting and the number of values without parsing the text: every value but the first
 * follows a bracket or a comma, so brackets and commas are counted. So the parser, which recurses
 * with nesting and takes some hundred bytes per value, never sees more. */
static int check_limits(struct str text, const char *what, const struct json_limits *limits,
                        struct err *err) {
    size_t max_depth = or_default(limits ? limits->max_depth : 0, defaults.max_depth);
    size_t max_values = or_default(limits ? limits->max_values : 0, defaults.max_values);
    size_t max_bytes = or_default(limits ? limits->max_bytes : 0, defaults.max_bytes);
    if (text.len > max_bytes)
        return err_set(err, SLUICE_ERR_FORMAT, "%s: has %zu bytes of JSON, expected at most %zu",
                       what, text.len, max_bytes);
    size_t depth = 0, values = 1;
    for (size_t i = 0; i < text.len;) {
        char c = text.at[i];
        if (c == '"') {
            i = skip_string(text, i);
            continue;
        }
        bool opens = c == '[' || c == '{', closes = c == ']' || c == '}';
        depth += opens;
        depth -= closes && depth > 0;
        values += opens || c == ',';
        if (depth > max_depth)
            return err_set(err, SLUICE_ERR_FORMAT,
                           "%s: JSON is nested deeper than %zu levels at byte %zu", what, max_depth,
                           i);
        if (values > max_values)
            return err_set(err, SLUICE_ERR_FORMAT, "%s: JSON has more than %zu values", what,
                           max_values);
        i++;
    }
    return SLUICE_OK;
}

json_t *json_parse(struct str text, const char *what, const struct json_limits *limits,
                   struct err *err) {
    if (check_limits(text, what, limits, err))
        return NULL;
    json_error_t error;
    locale_t before = locale_enter();
    json_t *value = json_loadb(text.len ? text.at : "", text.len,
                               JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    locale_leave(before);
    if (!value && json_error_code(&error) == json_error_out_of_memory)
        err_set(err, SLUICE_ERR_MEMORY, "%s: out of memory for JSON of %zu bytes", what, text.len);
    else if (!value)
        err_set(err, SLUICE_ERR_FORMAT, "%s: line %d, column %d: %s", what, error.line,
                error.column, error.text);
    return value;
}

json_t *json_read(const char *path, const struct json_limits *limits, bool required,
                  struct err *err) {
    struct filemap map;
    if (!required && access(path, F_OK) != 0 && errno == ENOENT) {
        if (err)
            *err = (struct err){0};
        return NULL;
    }
    if (filemap_open(&map, path, err))
        return NULL;
    json_t *value = json_parse((struct str){(const char *)map.data, map.size}, path, limits, err);
    filemap_close(&map);
    return value;
}

bool json_str(const json_t *value, struct str *out) {
    if (!json_is_string(value))
        return false;
    *out = (struct str){json_string_value(value), json_string_length(value)};
    return true;
}
