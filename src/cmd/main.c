/* main.c - `sluice VERB [options]`. */
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/faults.h"
#include "cmd/interrupt.h"

static const struct {
    const char *name;
    verb_fn *run;
    const char *summary;
} verbs[] = {
#define VERB(name, function, summary) {#name, function, summary},
#include "cmd/verbs.def"
#undef VERB
};

enum { N_VERBS = sizeof verbs / sizeof *verbs };

static void print_help(FILE *to) {
    fprintf(to, "usage: sluice VERB [options]\n\n");
    for (int i = 0; i < N_VERBS; i++)
        fprintf(to, "  %-12s %s\n", verbs[i].name, verbs[i].summary);
    fprintf(to, "\nsluice VERB --help tells more; sluice --version says which this is.\n");
}

/* What could not be written to stdout is a failure, however well the rest went. */
static int finish(int status) {
    if (fflush(stdout) != 0 && status == 0)
        return complain(EXIT_WORLD, "cannot write to standard output");
    return status;
}

int main(int argc, char **argv) {
    faults_install();
    interrupt_install(NULL);
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("sluice %s\n", sluice_version());
        return finish(0);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return finish(0);
    }
    for (int i = 0; i < N_VERBS; i++)
        if (strcmp(argv[1], verbs[i].name) == 0)
            return finish(verbs[i].run(argc - 1, argv + 1));
    return complain(EXIT_USAGE, "unknown verb '%s'; sluice --help lists them", argv[1]);
}
