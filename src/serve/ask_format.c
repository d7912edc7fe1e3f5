/* ask_format.c - the format that the answers of a request must follow: as OpenAI's clients, those
 * of llama.cpp and those of vLLM ask for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/ask_internal.h"

/* A format as it is given, in the field of that name, which errors name. */
struct given {
    const char *name;
    enum format_kind kind;
    struct str text;
};

/* Sets *format, that of texts or of the required call. */
static void set_format(struct ask *ask, struct format **format, struct fields *f,
                       const struct ask_model *m, struct given g) {
    struct err err = {0};
    bool is_grammar = g.kind == FORMAT_GBNF;
    if (f->wrong)
        return;
    ask->is_strict |= is_grammar || g.kind == FORMAT_REGEX;
    if (*format || (ask->is_strict && (ask->format || ask->call)))
        fields_refuse(f, g.name, "%s: another format is given too, expected one of them", g.name);
    else if (formats_find(m->formats, g.kind, g.text, format, &err))
        fields_refuse(f, g.name, "%s%s%s", is_grammar ? "" : g.name, is_grammar ? "" : ": ",
                      err.text); /* a grammar's says so itself */
}

void ask_set_format_schema(struct ask *ask, struct format **format, struct fields *f,
                           const char *name, const struct ask_model *m, const json_t *schema) {
    char *text = schema ? json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY) : strdup("");
    if (text)
        set_format(ask, format, f, m,
                   (struct given){name, schema ? FORMAT_SCHEMA : FORMAT_JSON, str_of(text)});
    else
        fields_refuse(f, name, "out of memory for a schema");
    free(text);
}

void ask_set_schema(struct ask *ask, struct fields *f, const char *name, const struct ask_model *m,
                    const json_t *schema) {
    ask_set_format_schema(ask, &ask->format, f, name, m, schema);
}

/* ---- vLLM's fields ------------------------------------------------------------------------ */

/* A grammar that allows one of these texts. */
static void put_choices(struct buffer *to, const json_t *texts) {
    const json_t *text;
    size_t i;
    buffer_puts(to, "root ::= ");
    json_array_foreach(texts, i, text) {
        buffer_puts(to, i > 0 ? " | \"" : "\"");
        for (const char *at = json_string_value(text); *at; at++) {
            if (*at == '"' || *at == '\\')
                buffer_puts(to, "\\");
            buffer_add(to, at, 1);
        }
        buffer_puts(to, "\"");
    }
}

static void read_choices(struct ask *ask, struct fields *f, const struct ask_model *m,
                         const char *field, const char *name, const json_t *texts) {
    struct buffer grammar = {0};
    const json_t *text;
    size_t i;
    if (json_array_size(texts) == 0)
        fields_refuse(f, field, "%s is %s, expected an array of strings", name,
                      json_is_array(texts) ? "empty" : json_kind(texts));
    json_array_foreach(texts, i, text) {
        if (!json_is_string(text))
            fields_refuse(f, field, "%s has %s, expected strings", name, json_kind(text));
        else if (strlen(json_string_value(text)) != json_string_length(text))
            fields_refuse(f, field, "%s has a zero byte, expected texts without", name);
    }
    if (!f->wrong)
        put_choices(&grammar, texts);
    if (grammar.has_failed)
        fields_refuse(f, field, "out of memory for a grammar");
    set_format(ask, &ask->format, f, m, (struct given){field, FORMAT_GBNF, buffer_str(&grammar)});
    buffer_free(&grammar);
}

/* A schema, or its text. */
static void read_schema(struct ask *ask, struct fields *f, const struct ask_model *m,
                        const char *field, const char *name, const json_t *given) {
    enum {
        MAX_TEXT = 1 << 20
    }; /* it takes up to 80 times that, which the body's size leaves out */
    const char *text = json_string_value(given);
    size_t n = json_string_length(given);
    json_t *read = !text           ? json_incref((json_t *)given)
                   : n <= MAX_TEXT ? json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL)
                                   : NULL;
    if (n > MAX_TEXT)
        fields_refuse(f, field, "%s has %zu bytes, expected at most %d", name, n, MAX_TEXT);
    else if (json_is_object(read))
        ask_set_schema(ask, f, field, m, read);
    else
        fields_refuse(f, field, "%s is %s, expected a schema", name,
                      text ? "a text that is no JSON object" : json_kind(given));
    json_decref(read);
}

/* One constraint, in `field`, where errors call it `name`. Its kinds have the same names in both
 * forms. null and false: it is not asked for. */
static void read_constraint(struct ask *ask, struct fields *f, const struct ask_model *m,
                            const char *field, const char *name, const char *kind,
                            const json_t *value) {
    const char *text = json_string_value(value);
    bool is_regex = strcmp(kind, "regex") == 0;
    bool is_text = is_regex || strcmp(kind, "grammar") == 0;
    if (f->wrong || json_is_null(value) || json_is_false(value))
        return;
    if (strcmp(kind, "json") == 0)
        read_schema(ask, f, m, field, name, value);
    else if (strcmp(kind, "json_object") == 0 && json_is_true(value))
        ask_set_schema(ask, f, field, m, NULL);
    else if (strcmp(kind, "choice") == 0)
        read_choices(ask, f, m, field, name, value);
    else if (is_text && text)
        set_format(ask, &ask->format, f, m,
                   (struct given){field,
                                  is_regex ? FORMAT_REGEX : FORMAT_GBNF,
                                  {text, json_string_length(value)}});
    else if (is_text || strcmp(kind, "json_object") == 0)
        fields_refuse(f, field, "%s is %s, expected %s", name, json_kind(value),
                      is_text ? "a string" : "true or false");
    else
        fields_refuse(f, field,
                      "%.60s is not supported, expected json, json_object, choice, regex or "
                      "grammar",
                      name);
}

/* guided_json ... of earlier versions, and {"json": ...} in structured_outputs of later ones. What
 * they name and is not supported is refused: without it the answer would be another. */
static void read_constraints(struct ask *ask, struct fields *f, const struct ask_model *m) {
    static const char before[] = "guided_", later[] = "structured_outputs";
    const size_t n_before = sizeof before - 1;
    const json_t *inner = fields_any(f, later);
    const char *key;
    json_t *value;
    char name[80];
    json_object_foreach((json_t *)f->object, key, value) {
        if (strncmp(key, before, n_before) == 0 && strcmp(key, "guided_decoding_backend") != 0)
            read_constraint(ask, f, m, key, key, key + n_before, value);
    }
    json_object_foreach((json_t *)inner, key, value) {
        snprintf(name, sizeof name, "%s%.50s", before, key);
        bool is_read = json_equal(value, json_object_get(f->object, name)); /* in both forms */
        snprintf(name, sizeof name, "%s.%.50s", later, key);
        if (!is_read)
            read_constraint(ask, f, m, later, name, key, value);
    }
}

void ask_read_format(struct ask *ask, struct fields *f, const struct ask_model *m) {
    static const char name[] = "response_format";
    const json_t *format = NULL, *plain = NULL;
    const char *grammar = NULL;
    fields_object(f, name, &format);
    fields_object(f, "json_schema", &plain); /* llama.cpp's */
    fields_string(f, "grammar", &grammar);
    const char *type = json_string_value(json_object_get(format, "type"));
    const json_t *schema = json_object_get(json_object_get(format, "json_schema"), "schema");
    if (!schema) /* where llama.cpp's server has it, for both types */
        schema = json_object_get(format, "schema");
    if (json_is_null(schema))
        schema = NULL;
    if (grammar && *grammar && !f->wrong) /* llama.cpp's clients send "" for none */
        set_format(ask, &ask->format, f, m,
                   (struct given){"grammar", FORMAT_GBNF, str_of(grammar)});
    if (plain && !f->wrong)
        ask_set_schema(ask, f, "json_schema", m, plain);
    read_constraints(ask, f, m);
    if (!format || f->wrong)
        return;
    if (type && strcmp(type, "json_object") == 0)
        ask_set_schema(ask, f, name, m, schema);
    else if (type && strcmp(type, "json_schema") == 0 && schema)
        ask_set_schema(ask, f, name, m, schema);
    else if (type && strcmp(type, "json_schema") == 0)
        fields_refuse(f, name, "response_format.json_schema has no schema");
    else if (!type || strcmp(type, "text") != 0)
        fields_refuse(f, name,
                      "response_format.type is '%.40s', expected text, json_object or json_schema",
                      type ? type : "");
}
