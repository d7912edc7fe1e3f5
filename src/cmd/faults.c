/* faults.c - signals that end the program. */
#include "cmd/faults.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/outfile.h"
#include "cmd/opts.h"

static _Atomic(const char *) dropped;

void faults_drop(const char *path) {
    atomic_store(&dropped, path);
}

void faults_clean(void) {
    const char *path = atomic_exchange(&dropped, NULL);
    outfile_abandon_all();
    if (path)
        unlink(path);
}

/* The signal is blocked while its handler runs: it ends the program on return. */
void faults_end_by(int number) {
    faults_clean();
    signal(number, SIG_DFL);
    raise(number);
}

/* Control bytes of a path become '?'. */
static size_t copy_printable(char *out, size_t size, const char *path) {
    size_t n = 0;
    for (; path[n] && n < size; n++)
        out[n] = (unsigned char)path[n] < 0x20 || path[n] == 0x7F ? '?' : path[n];
    return n;
}

/* A page of a mapped file is gone: the file was truncated, or the disk fails. */
static void on_bus_error(int number, siginfo_t *info, void *context) {
    static atomic_flag is_said = ATOMIC_FLAG_INIT;
    static const char before[] = "sluice: ",
                      after[] = ": was truncated while in use, or can be read no longer\n";
    const char *path = filemap_at(info->si_addr);
    (void)context;
    if (!path) {
        faults_end_by(number);
        return;
    }
    while (atomic_flag_test_and_set(&is_said))
        pause(); /* another thread reports it and ends the program */
    faults_clean();
    char line[sizeof before + 1024 + sizeof after];
    size_t n = sizeof before - 1;
    memcpy(line, before, n);
    n += copy_printable(line + n, 1024, path);
    memcpy(line + n, after, sizeof after - 1);
    n += sizeof after - 1;
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written; /* there is nobody else to tell */
    _exit(EXIT_WORLD);
}

void faults_install(void) {
    static const int signals[] = {SIGPIPE, SIGQUIT, SIGXCPU, SIGBUS};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction old, action = {.sa_handler = faults_end_by};
        if (signals[i] == SIGBUS) {
            action.sa_sigaction = on_bus_error;
            action.sa_flags = SA_SIGINFO;
        }
        sigemptyset(&action.sa_mask);
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN);
}
