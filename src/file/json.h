/* json.h - JSON of unknown origin, parsed by jansson under limits.
 *
 * A cheap scan before the parse bounds nesting and the number of values, so that a hostile text
 * cannot make the parser take many times its size in memory. */
#ifndef FILE_JSON_H
#define FILE_JSON_H

#include <jansson.h>

#include "base/err.h"
#include "base/str.h"

struct json_limits {
    size_t max_bytes, max_values, max_depth; /* 0: the defaults of json.c */
};

/* Parses one JSON text (duplicate names in an object are refused). `what` begins error messages,
 * e.g. a path. The result belongs to the caller (json_decref). NULL on error. */
json_t *json_parse(struct str text, const char *what, const struct json_limits *limits,
                   struct err *err);

/* The same from a file. `required` false: a missing file gives NULL and no error (err->code 0). */
json_t *json_read(const char *path, const struct json_limits *limits, bool required,
                  struct err *err);

/* A JSON string as a slice borrowed from it; false: not a string. */
bool json_str(const json_t *value, struct str *out);

#endif
