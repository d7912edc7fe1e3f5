/* cmd.h - the verbs of the program, and what several of them share. */
#ifndef CMD_CMD_H
#define CMD_CMD_H

#include <jansson.h>

#include "base/err.h"
#include "cmd/opts.h"
#include "text/tokenizer.h"

/* argv[0] is the verb. Returns the exit status. */
typedef int verb_fn(int argc, char **argv);

#define VERB(name, function, summary) verb_fn function;
#include "cmd/verbs.def"
#undef VERB

#define MODEL_HELP "GGUF file or folder; default: $SLUICE_MODEL, or the model that ships"

/* Complains with the error's text; returns the exit status for it. */
int fail(const struct err *err);

/* Adds "; HINT" to the error of opening a path that does not exist. Returns its code. */
int hint_if_missing(struct err *err, const char *path, const char *hint);
/* The same for the path of a model, also for common mistakes. */
int hint_of_model(struct err *err, const char *path);
/* Adds what a folder has that has no config.json or no safetensors. */
void hint_of_folder(struct err *err, const char *path);

/* The value of --chat-template, a file or the text of a template; free it. */
int template_read(const char *given, char **out, struct err *err);

/* The model named: `path`, or SLUICE_MODEL of the environment; NULL: none. */
const char *model_named(const char *path);
/* The same, or else the model that ships with the program; NULL and an error if that is missing.
 * Static. */
const char *model_path(const char *path, struct err *err);

/* The tokenizer of a GGUF file or a folder. */
int tokenizer_of_model(struct tokenizer **out, const char *path, struct err *err);

/* Maximum tokens of an option: sums of a few fit an int. */
enum { MAX_TOKENS = 1 << 24 };

/* OPTS_GO_ON, or the exit status after one line when an option's value is outside its range. */
int check_range(const char *verb, const char *option, int value, int min, int max);
/* The file type of that name, which must be one that can be written. `what` names it in errors.
 * OPTS_GO_ON, or the exit status after one line. */
struct mixture;
int find_written_type(const char *verb, const char *what, const char *name,
                      const struct mixture **out);

/* For qsort: the smallest first. */
int compare_doubles(const void *a, const void *b);

/* Length of the common prefix of the sequence and these tokens. */
uint32_t common_prefix(const sluice_seq *seq, const int32_t *tokens, size_t n);

/* A JSON string of any bytes: those that are not UTF-8 become U+FFFD. */
json_t *json_text(struct str s);
/* A JSON number; null for NaN and infinity, which JSON lacks. */
json_t *json_number_or_null(double value);
/* Prints a value on stdout, with jansson's flags; control characters are escaped, all of them. */
void print_json_value(const json_t *value, size_t flags);
/* Prints a value on stdout, on one line, and drops it. */
void print_json_line(json_t *value);

/* The first character of `s`, which is not empty, safe for a terminal; how many bytes it took. */
size_t quote_one(struct str s, char out[8]);
/* Bytes between quotes, safe for a terminal: control characters and what is no UTF-8 as \n, \xHH.
 * Cut where `out` ends. Returns out. */
const char *quoted(struct str s, char *out, size_t size);

/* "17.4 MB". Static ring of 8. */
const char *human_bytes(uint64_t bytes);
/* "26,798,384". Static ring of 8. */
const char *human_count(uint64_t n);

#endif
