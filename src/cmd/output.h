/* output.h - where verbs write to, and what that replaces. */
#ifndef CMD_OUTPUT_H
#define CMD_OUTPUT_H

#include <stdbool.h>

/* The path to open for what the command line says: "-" is standard output. */
const char *output_path(const char *word);
/* Whether that is standard output, be it called "-" or /dev/stdout. */
bool output_is_stdout(const char *word);

/* Asked before writing, said afterwards: ", overwrote a file of 17.4 MB"; "" when there is none.
 * Static. */
const char *output_replaces(const char *word);
/* The same where it is worth a word only when that file is a model. */
const char *output_replaces_model(const char *word);

#endif
