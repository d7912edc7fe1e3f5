/* opts.h - command lines: one table per verb, which is also its help.
 *
 * Every verb takes --help, -q and -v as well. llama.cpp's names for our options work too. */
#ifndef CMD_OPTS_H
#define CMD_OPTS_H

#include <stdbool.h>

#include "cmd/say.h"

enum opt_kind {
    OPT_FLAG, /* this and the next three have no value */
    OPT_VERBOSE,
    OPT_QUIET,
    OPT_HELP,
    OPT_INT, /* from here on with one */
    OPT_INT64,
    OPT_SIZE, /* bytes: 512M, 4G */
    OPT_FLOAT,
    OPT_STRING,
    OPT_LIST,
};

/* The values of an option that may be given several times. */
struct opt_list {
    const char *at[64];
    int n;
};

struct opt {
    const char *name; /* "--json", or "-m" for one that has only a letter */
    char letter;      /* 0: none */
    enum opt_kind kind;
    void *value; /* bool, int, int64_t, uint64_t, float, const char * or struct opt_list, by kind
                  */
    const char *placeholder, *help;
};

struct usage {
    const char *verb, *synopsis, *about, *example;
    const struct opt *opts;
    int n_opts;
    int min_words, max_words; /* positional arguments */
    const char **model;       /* one more word may be the model, as with -m; NULL: not here */
};

enum { OPTS_GO_ON = -1 };

/* Reads argv (argv[0] is the verb) into the values; words receives the positional arguments, NULL
 * where there are fewer. Returns OPTS_GO_ON, or the exit status when the work is done (--help) or
 * the line is wrong (one line on stderr). */
int opts_parse(const struct usage *usage, int argc, char **argv, const char **words);

/* Edit distance with swaps of neighbours; 40 if one is longer than that. */
int opts_distance(const char *a, const char *b);
/* The one of n names that a mistyped word most likely meant; NULL when none is near. */
const char *opts_nearest(const char *word, const char *const *names, int n);

/* Our name ("--temp") of an option that llama.cpp calls "--temperature"; NULL: it is none of them.
 */
const char *opts_ours(const char *theirs);

/* Sets one option that takes a value; `who` begins the error line for a bad value. Returns as
 * opts_parse. */
int opts_set(const char *who, const struct opt *opt, const char *text);

#endif
