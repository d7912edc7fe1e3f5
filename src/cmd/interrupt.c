/* interrupt.c - Ctrl-C and the like: the one place that handles SIGINT, SIGTERM and SIGHUP. */
#include "cmd/interrupt.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "cmd/faults.h"
#include "cmd/say.h"

static atomic_bool flag, lets_finish, has_cancelled, loads, has_bar;
static _Atomic(sluice_engine *) running;

/* While weights are loaded nothing polls the flag, and nothing has to be saved. */
static void end_loading(void) {
    static const char line[] = "\r\033[Ksluice: interrupted while loading\n";
    const char *at = atomic_load(&has_bar) ? line : line + 4;
    faults_clean();
    ssize_t written = write(STDERR_FILENO, at, (size_t)(line + sizeof line - 1 - at));
    (void)written; /* nothing else can be done */
    _exit(EXIT_INTERRUPTED);
}

static void handle(int number) {
    int kept = errno;
    sluice_engine *engine = atomic_load(&running);
    if (number == SIGINT && atomic_load(&loads))
        end_loading();
    if (number != SIGINT || !engine || atomic_load(&has_cancelled))
        faults_end_by(number);
    else if (atomic_exchange(&flag, true) || !atomic_load(&lets_finish)) {
        atomic_store(&has_cancelled, true);
        sluice_engine_cancel(engine);
    }
    errno = kept;
}

void interrupt_install(sluice_engine *engine) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    atomic_store(&running, engine);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction old, action = {.sa_handler = handle}; /* no SA_RESTART: reads end */
        sigemptyset(&action.sa_mask);
        bool stays =
            signals[i] == SIGHUP && sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler == SIG_IGN;
        if (!stays)
            sigaction(signals[i], &action, NULL);
    }
}

void interrupt_while_loading(bool is_loading) {
    atomic_store(&has_bar, say_has_escapes());
    atomic_store(&loads, is_loading);
}

const atomic_bool *interrupt_flag(void) {
    return &flag;
}

void interrupt_lets_finish(bool is_short) {
    atomic_store(&lets_finish, is_short);
}

void interrupt_reset(void) {
    atomic_store(&flag, false);
    atomic_store(&has_cancelled, false);
}
