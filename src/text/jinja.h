/* jinja.h - chat templates: the part of Jinja2 that model files use, as an interpreter.
 *
 * In: a template's text, and variables as JSON.  Out: text, byte for byte what Jinja2 gives in the
 * environment that chat templates assume: trim_blocks and lstrip_blocks on, no escaping, the
 * immutable sandbox, `break`, `continue` and `generation` blocks, raise_exception, strftime_now,
 * and a `tojson` that leaves non-ASCII characters as they are.
 * (1) Templates are hostile: source, nesting, work, time, memory and output are all bounded; see
 *     jinja_cost.c.
 * (2) A compiled template is read-only and may be shared by threads.
 * (3) Errors are one line, "chat template, line N: what". */
#ifndef TEXT_JINJA_H
#define TEXT_JINJA_H

#include <jansson.h>
#include <stdatomic.h>
#include <time.h>

#include "base/err.h"
#include "base/str.h"
#include "text/tokenizer.h"

struct jinja;

/* Limits of one rendering; 0: the default. */
struct jinja_options {
    const struct tm *now; /* what strftime_now uses; NULL: the local time */
    uint64_t max_units;   /* of work, each worth about a nanosecond: see jinja_cost.c */
    uint64_t max_cpu_ms;  /* of the thread's CPU time, for slow machines */
    size_t max_output;    /* bytes */
    size_t max_memory;    /* bytes of values */
    uint64_t *used_units; /* gets the units used, also on failure; NULL: not wanted */

    /* Any thread may set it to end rendering with SLUICE_ERR_CANCELLED. NULL: none. */
    const atomic_bool *cancel;

    /* Who wrote what, for the tokenizer: one byte is appended for every byte of the output,
     * ORIGIN_OWN where it is the template's own text, ORIGIN_VALUE where it came from the variables
     * or was computed. NULL: not wanted. */
    struct text_buffer *origins;
    const json_t
        *own; /* more variables, an object or NULL, that count as the template's own text */
    const char *own_key; /* in any object: a value of letters, digits, _ and - counts, too */
};

enum jinja_origin { ORIGIN_VALUE, ORIGIN_OWN };

/* The source is copied. Statements that reach outside the template (include, import, extends,
 * block) give SLUICE_ERR_UNSUPPORTED, other mistakes SLUICE_ERR_FORMAT. */
int jinja_compile(struct jinja **out, struct str source, struct err *err);

/* Appends the text to *out; on error *out is unchanged. `variables` is a JSON object, borrowed and
 * not changed. raise_exception gives SLUICE_ERR_ARGUMENT and its message. */
int jinja_render(const struct jinja *jinja, const json_t *variables,
                 const struct jinja_options *options, struct text_buffer *out, struct err *err);

void jinja_close(struct jinja *jinja); /* takes NULL */

#endif
