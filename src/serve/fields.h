/* fields.h - the members of a request's JSON object, each with the type it must have.
 *
 * A member that is missing, or null, leaves the value unchanged. An error names it: "temperature is
 * a string, expected a number from 0 to 2".
 *
 * Used by one thread at a time; the JSON is borrowed. */
#ifndef SERVE_FIELDS_H
#define SERVE_FIELDS_H

#include <jansson.h>

#include "base/err.h"

/* Members are read one by one; after an error the other calls do nothing. */
struct fields {
    const json_t *object;
    const char *wrong; /* the first wrong member's name; NULL: none so far. Borrowed. */
    struct err err;
    size_t tree_bytes, max_tree_bytes; /* of texts in it that are read as JSON, about; the limit */
};

void fields_float(struct fields *f, const char *name, double min, double max, float *value);
void fields_int(struct fields *f, const char *name, int64_t min, int64_t max, int64_t *value);
void fields_bool(struct fields *f, const char *name, bool *value);
/* Borrowed, and without zero bytes. */
void fields_string(struct fields *f, const char *name, const char **value);
/* Borrowed, never null; NULL when it is not there. */
void fields_array(struct fields *f, const char *name, const json_t **value);
void fields_object(struct fields *f, const char *name, const json_t **value);

/* Any member, NULL also for null. */
const json_t *fields_any(const struct fields *f, const char *name);
/* Notes the first wrong member. Returns SLUICE_ERR_ARGUMENT. */
int fields_refuse(struct fields *f, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A member that is a string; NULL: it is not one. */
const char *json_text_of(const json_t *object, const char *name);
/* Whether arrays and objects are in each other deeper than that; a number is 0 levels deep. */
bool json_is_deeper(const json_t *value, unsigned levels);
/* "a string", "an array" ... for messages; "missing" for NULL. */
const char *json_kind(const json_t *value);

#endif
