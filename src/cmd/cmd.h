/* cmd.h - the verbs of the program, and what several of them share. */
#ifndef CMD_CMD_H
#define CMD_CMD_H

#include "base/err.h"
#include "cmd/opts.h"
#include "text/tokenizer.h"

/* argv[0] is the verb. Returns the exit status. */
typedef int verb_fn(int argc, char **argv);

#define VERB(name, function, summary) verb_fn function;
#include "cmd/verbs.def"
#undef VERB

/* Complains with the error's text; returns the exit status for it. */
int fail(const struct err *err);

/* The model given, or the one that ships with the program when `path` is NULL; NULL and an error
 * when that is not to be found. Static. */
const char *model_path(const char *path, struct err *err);

/* The tokenizer of a GGUF file or a folder. */
int tokenizer_of_model(struct tokenizer **out, const char *path, struct err *err);

/* For qsort: the smallest first. */
int compare_doubles(const void *a, const void *b);

/* "17.4 MB". Static ring of 8. */
const char *human_bytes(uint64_t bytes);
/* "26,798,384". Static ring of 8. */
const char *human_count(uint64_t n);

#endif
