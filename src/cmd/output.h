/* output.h - where verbs write to, and what that replaces. */
#ifndef CMD_OUTPUT_H
#define CMD_OUTPUT_H

#include <stdbool.h>

/* The path to open for a word of the command line: "-" is standard output. */
const char *output_path(const char *word);
/* Whether that is standard output, as "-" or /dev/stdout. */
bool output_is_stdout(const char *word);

/* Whether a binary file may go there; OPTS_GO_ON, or the exit status after one line: not to a
 * terminal. */
int output_check_binary(const char *verb, const char *word);

/* Call it before writing, print it afterwards: ", overwrote a file of 17.4 MB"; "": there was none.
 * Static. */
const char *output_replaces(const char *word);
/* The same, but only for a file that is a model. */
const char *output_replaces_model(const char *word);

#endif
