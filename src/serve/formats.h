/* formats.h - the grammars that answers must follow, compiled once and kept.
 *
 * Clients send the same schema with every request, and a grammar keeps the masks of its states: so
 * the most recently used ones are kept, and shared by all answers that follow them. Their number
 * and bytes are limited, except for the one requested last. */
#ifndef SERVE_FORMATS_H
#define SERVE_FORMATS_H

#include "base/str.h"
#include "grammar/grammar.h"

struct formats;

enum format_kind { FORMAT_GBNF, FORMAT_REGEX, FORMAT_JSON, FORMAT_SCHEMA };

/* One of them; shared, and closed with its last reference. */
struct format {
    const struct grammar *grammar;
    const struct token_texts *texts; /* of the model */
};

enum { FORMATS_BYTES = 256 << 20 }; /* kept by a server */

/* Keeps at most this many bytes of grammars. NULL when memory ran out. The model is borrowed. */
struct formats *formats_open(const sluice_model *model, size_t max_bytes);
void formats_close(struct formats *f); /* after all references are released; takes NULL */

/* Any thread. `text`: the grammar, expression or schema; of FORMAT_JSON (any JSON object) none. A
 * reference for format_release in *out. */
int formats_find(struct formats *f, enum format_kind kind, struct str text, struct format **out,
                 struct err *err);
void format_release(struct format *format); /* takes NULL */
size_t formats_bytes(struct formats *f);    /* of the grammars that are kept, about */

#endif
