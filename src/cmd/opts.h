/* opts.h - command lines: one table a verb, which is also its help. */
#ifndef CMD_OPTS_H
#define CMD_OPTS_H

#include <stdbool.h>

/* Files, models, memory, devices; the command line; Ctrl-C, as a shell puts it. */
enum { EXIT_WORLD = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

enum opt_kind { OPT_FLAG, OPT_INT, OPT_FLOAT, OPT_STRING, OPT_LIST };

/* The values of an option that may be given several times. */
struct opt_list {
    const char *at[16];
    int n;
};

struct opt {
    const char *name; /* "--json", or "-m" for one that has only a letter */
    char letter;      /* 0: none */
    enum opt_kind kind;
    void *value; /* bool, int, float, const char * or struct opt_list, by kind */
    const char *placeholder, *help;
};

struct usage {
    const char *verb, *synopsis, *about, *example;
    const struct opt *opts;
    int n_opts;
    int min_words, max_words; /* positional arguments */
};

enum { OPTS_GO_ON = -1 };

/* Reads argv (argv[0] is the verb) into the values; words receives the positional arguments, NULL
 * where there are fewer. Returns OPTS_GO_ON, or the exit status when the work is done (--help) or
 * the line is wrong (one line on stderr). */
int opts_parse(const struct usage *usage, int argc, char **argv, const char **words);

/* One line on stderr, "sluice: ...". Returns status. */
int complain(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
