/* schema.h - JSON schemas to expressions: what the files of the compiler share.
 *
 * schema.c walks a schema; schema_merge.c merges schemas that must all hold ($ref with siblings,
 * allOf, the parts of anyOf) and knows when two exclude each other (oneOf); schema_object.c writes
 * objects, schema_array.c arrays, schema_text.c strings, schema_number.c numbers; format.c has
 * the formats of strings. */
#ifndef GRAMMAR_SCHEMA_H
#define GRAMMAR_SCHEMA_H

#include <jansson.h>

#include "grammar/expr.h"
#include "grammar/regex.h"

struct schema {
    struct builder *b;
    const json_t *root;
    json_t *made; /* an array that owns all schemas made on the way */
    struct err *err;
    int status; /* the first failure */
    char path[256];
    uint32_t depth, n_compiled, n_merged;
    uint64_t work;    /* comparisons of parts with each other */
    struct ref *refs; /* targets that have a rule */
    uint32_t n_refs;
    size_t ref_capacity;
    /* Rules that all schemas share; UINT32_MAX: not made yet. */
    uint32_t value, string, character, integer, number, indent;
};

/* Notes the first failure, with the place in the schema, and returns an expression that never
 * matches. */
const struct expr *schema_fail(struct schema *s, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Types as bits. */
enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8, /* with TYPE_INTEGER: an integer is a number */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ANY = 127,
};

/* Counts comparisons, which may be quadratic in the schema's length. False: too many, which is a
 * failure. */
bool schema_work(struct schema *s, uint64_t n);

/* Refuses keywords that are not supported, by name. */
bool schema_check(struct schema *s, const json_t *schema);
/* A key's count, at most 2^24; *out is unchanged if the key is missing. False: not a count. */
bool schema_count(struct schema *s, const json_t *flat, const char *key, uint32_t *out);

/* ---- schema.c ---- */

/* Values that are valid for a schema; for one without $ref and allOf. */
const struct expr *schema_compile(struct schema *s, const json_t *schema);
const struct expr *schema_compile_flat(struct schema *s, const json_t *flat);
const struct expr *schema_any_value(struct schema *s);
/* Goes down to a member, for errors; returns the length of the path before, which schema_leave
 * needs. */
size_t schema_enter(struct schema *s, const char *key, const char *name);
void schema_leave(struct schema *s, size_t n);
/* Makes a rule of an expression that is used in several places. */
const struct expr *schema_as_rule(struct schema *s, const struct expr *e);
/* White space where JSON may have it; a text with it before or after; what is between a key and its
 * value. */
const struct expr *schema_blank(struct schema *s);
const struct expr *schema_before(struct schema *s, const char *text);
const struct expr *schema_after(struct schema *s, const char *text);
const struct expr *schema_colon(struct schema *s);

/* ---- schema_object.c, schema_array.c ---- */

const struct expr *schema_object(struct schema *s, const json_t *flat);
const struct expr *schema_array(struct schema *s, const json_t *flat);

/* ---- schema_merge.c ---- */

/* The schema, an object, without $ref and allOf. Lives as long as s; {} after a failure. */
const json_t *schema_flatten(struct schema *s, const json_t *schema);
/* Merges two flat schemas: both must hold. */
const json_t *schema_merge(struct schema *s, const json_t *a, const json_t *b);
/* The types that `type`, enum and const allow. */
unsigned schema_types(struct schema *s, const json_t *flat);
/* The target of a $ref; NULL after a failure. */
const json_t *schema_resolve(struct schema *s, const char *ref);
/* The required names, as the keys of an object. Lives as long as s; {} after a failure. */
const json_t *schema_required(struct schema *s, const json_t *flat);
/* True when no value generated for `a` is valid for `b`; both flat. */
bool schema_excludes(struct schema *s, const json_t *a, const json_t *b);
/* Whether a value is valid by the simple keywords (type, lengths, limits). */
bool schema_value_fits(struct schema *s, const json_t *flat, const json_t *value);
/* The same object without a key. Lives as long as s. */
const json_t *schema_without(struct schema *s, const json_t *object, const char *key);

/* ---- schema_text.c ---- */

const struct expr *text_character(struct schema *s); /* one of a string, escaped or not */
const struct expr *text_string(struct schema *s);    /* any string, with its quotes */
const struct expr *text_of(struct schema *s, const json_t *flat); /* a string by its keywords */
/* These characters as in a JSON string; those that must be escaped have one form. */
const struct expr *text_class(struct builder *b, const struct char_range *ranges, uint32_t n,
                              bool is_negated);
const struct expr *text_literal(struct builder *b, struct str text); /* without quotes */
/* A string, with quotes and without escapes, that is none of these keys. */
const struct expr *text_other_key(struct schema *s, const struct str *keys, uint32_t n);

/* Strings that a regular expression matches, anywhere in the string unless anchored: what is
 * between their quotes. */
bool pattern_read(struct schema *s, const char *regex, struct sized_expr *out);

/* ---- schema_number.c ---- */

const struct expr *number_of(struct schema *s, const json_t *flat, bool is_integer);
/* A number of the schema as text. */
void number_write(const json_t *value, char out[40]);

/* ---- format.c ---- */

bool format_find(struct schema *s, const char *name, struct sized_expr *out);

#endif
