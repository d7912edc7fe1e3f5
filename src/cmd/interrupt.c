/* interrupt.c - Ctrl-C and its kin: the one place that handles SIGINT, SIGTERM and SIGHUP. */
#include "cmd/interrupt.h"

#include <errno.h>
#include <signal.h>

#include "cmd/faults.h"

static atomic_bool flag;
static _Atomic(sluice_engine *) running;

static void handle(int number) {
    int kept = errno;
    sluice_engine *engine = atomic_load(&running);
    if (number != SIGINT || !engine || atomic_exchange(&flag, true))
        faults_end_by(number);
    else
        sluice_engine_cancel(engine);
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

const atomic_bool *interrupt_flag(void) {
    return &flag;
}

void interrupt_reset(void) {
    atomic_store(&flag, false);
}
