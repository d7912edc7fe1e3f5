/* main.c - `sluice VERB [options]`. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/cpu.h"
#include "base/descriptor.h"
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
    fprintf(
        to,
        "\n`sluice help VERB` lists a verb's options, `sluice help environment` the environment\n"
        "variables, `sluice --version` the version. The default model is the small one that ships\n"
        "with Sluice; most verbs take another as MODEL or -m MODEL.\n\n"
        "Weights are in memory once: for the CPU they are put into the order of its kernels\n"
        "while the file is read, and the file's pages are released (with SLUICE_NO_MMAP they\n"
        "stay). `sluice inspect MODEL` says what a model takes, and loads nothing. One that is\n"
        "larger than memory runs with --weights-dir DIR.\n\n"
        "Exit status: 0 success, 1 error, 2 wrong command line, 130 interrupted by Ctrl-C.\n");
}

static const char environment[] =
    "SLUICE_MODEL            the model to use when none is given: a GGUF file or a folder\n"
    "SLUICE_BACKEND          what --backend auto means: a backend that `sluice devices` lists\n"
    "SLUICE_API_KEY          the key that clients of serve must send\n"
    "SLUICE_HISTORY          chat's history file; empty: no history is kept\n"
    "LISTEN_FDS, LISTEN_PID  set by systemd: how many sockets it passes to serve, and to which "
    "process\n"
    "NO_COLOR                if not empty: no colour on terminals\n"
    "SLUICE_VULKAN_CACHE     the folder of compiled Vulkan pipelines; empty: none are kept\n"
    "SLUICE_NO_MMAP          if set: files are read into memory instead of mapped\n"
    "\nFor diagnosis:\n"
    "SLUICE_CPU              the instruction sets to use: \"avx2\", \"avx2 avx512\", \"none\" ...\n"
    "SLUICE_CUDA_TRACE       1: kernel times stay readable after a CUDA fault\n"
    "SLUICE_CUDA_CAPABILITY  80: the kernels of older GPUs (compute capability 8.0)\n"
    "SLUICE_VULKAN_VALIDATE  1: Vulkan with the validation layer\n"
    "SLUICE_VULKAN_PLAIN     1: Vulkan without optional features\n"
    "SLUICE_VULKAN_IMPORT    0: Vulkan copies all weights, and uses no mapped file\n"
    "SLUICE_VULKAN_STAGES    0: Vulkan with a barrier between any two stages of a step\n"
    "SLUICE_VULKAN_STATISTICS  1: explain --kernels tells what the driver knows of shaders\n";

static void print_version(void) {
    printf("sluice %s\nbackends:", sluice_version());
    for (int i = 0; backend_at(i); i++)
        printf(" %s", backend_at(i)->name);
    printf("\ninstruction sets: %s\n", cpu_feature_names());
}

/* A failed write to stdout is a failure of the program. */
static int finish(int status) {
    bool was_lost = ferror(stdout); /* before; the reason is no longer known then */
    if (fflush(stdout) != 0 && status == 0)
        return say_lost();
    return was_lost && status == 0 ? complain(EXIT_WORLD, "cannot write to standard output")
                                   : status;
}

/* Verbs of other programs: what they are called here, or that there is none. */
static const struct {
    const char *theirs, *answer;
} answers[] = {
    {"pull", "models are not downloaded; every verb takes a GGUF file or a folder"},
    {"ls", "models are files and folders; `sluice inspect FILE` shows one"},
    {"list", "models are files and folders; `sluice inspect FILE` shows one"},
    {"show", "use `sluice inspect`"},
    {"info", "use `sluice inspect`"},
    {"create", "use `sluice convert` or `sluice quantize`"},
    {"generate", "use `sluice run`"},
    {"cli", "use `sluice run` or `sluice chat`"},
    {"server", "use `sluice serve`"},
    {"ps", "`sluice devices` lists what models can run on"},
    {"perplexity", "use `sluice ppl`"},
    {"embed", "use /v1/embeddings of `sluice serve`"},
    {"embedding", "use /v1/embeddings of `sluice serve`"},
};

static int unknown_verb(const char *word) {
    const char *names[N_VERBS];
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (strcmp(word, answers[i].theirs) == 0)
            return complain(EXIT_USAGE, "unknown verb '%s': %s", word, answers[i].answer);
    for (int i = 0; i < N_VERBS; i++)
        names[i] = verbs[i].name;
    if (word[0] == '-')
        return complain(EXIT_USAGE,
                        "the verb is '%s', expected one before the options: sluice VERB "
                        "[options]; sluice help lists the verbs",
                        word);
    if (access(word, F_OK) == 0)
        return complain(EXIT_USAGE,
                        "unknown verb '%s', which is a file or a folder: a verb goes before it, "
                        "such as sluice chat %s",
                        word, word);
    const char *nearest = opts_nearest(word, names, N_VERBS);
    if (nearest)
        return complain(EXIT_USAGE, "unknown verb '%s'; did you mean %s?", word, nearest);
    return complain(EXIT_USAGE, "unknown verb '%s'; sluice help lists them", word);
}

static int run_verb(int argc, char **argv) {
    for (int i = 0; i < N_VERBS; i++)
        if (strcmp(argv[0], verbs[i].name) == 0)
            return verbs[i].run(argc, argv);
    return unknown_verb(argv[0]);
}

/* sluice help [VERB | environment]. */
static int help(const char *about) {
    char *argv[] = {(char *)about, "--help", NULL};
    if (!about)
        print_help(stdout);
    else if (strcmp(about, "environment") == 0)
        fputs(environment, stdout);
    else
        return run_verb(2, argv);
    return 0;
}

static bool is_one_of(const char *word, const char *a, const char *b) {
    return strcmp(word, a) == 0 || strcmp(word, b) == 0;
}

int main(int argc, char **argv) {
    descriptors_reserve();
    faults_install();
    interrupt_install(NULL);
    log_set(say_log, NULL);
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    bool has_version = is_one_of(argv[1], "--version", "version");
    bool has_help = is_one_of(argv[1], "--help", "-h"), is_help = strcmp(argv[1], "help") == 0;
    int status = 0, max_args = is_help ? 3 : has_version || has_help ? 2 : argc;
    if (argc > max_args)
        status = complain(EXIT_USAGE, "%s: unexpected argument '%s'", argv[1], argv[max_args]);
    else if (has_version)
        print_version();
    else if (has_help)
        print_help(stdout);
    else if (is_help)
        status = help(argv[2]);
    else if (cpu_unknown_feature())
        status = complain(EXIT_USAGE, "SLUICE_CPU is '%s', expected none, or some of %s",
                          cpu_unknown_feature(), cpu_known_features());
    else
        status = run_verb(argc - 1, argv + 1);
    return finish(status);
}
