/* interrupt.h - Ctrl-C and the like: the one place that handles SIGINT, SIGTERM and SIGHUP.
 *
 * (1) Without an engine every one of them ends the program at once, by the signal itself; nothing
 *     half-written stays.
 * (2) With an engine the first SIGINT only asks: the flag is raised and the engine's step ends
 *     early. Code that polls the flag stops, prints its figures and returns EXIT_INTERRUPTED.
 *     Where steps are short, the first lets the step finish, and a second one ends it early: a step
 *     that ends early costs a recurrent model its state.
 * (3) One more before interrupt_reset ends the program as in (1).
 * (4) While a model loads a SIGINT ends the program at once, with a line and EXIT_INTERRUPTED. */
#ifndef CMD_INTERRUPT_H
#define CMD_INTERRUPT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "sluice.h"

/* Handles the three signals from now on. `engine`: the one that a SIGINT stops; NULL: none, as in
 * (1), also before the engine is closed. System calls that wait end with EINTR. SIGHUP stays
 * ignored where it was when the program began (nohup); SIGINT does not: scripts start background
 * jobs with it ignored, and kill -INT should still end them. */
void interrupt_install(sluice_engine *engine);

/* A model loads from now on, or (false) does no longer. */
void interrupt_while_loading(bool is_loading);

/* Whether the steps from now on are short; see (2). */
void interrupt_lets_finish(bool is_short);

/* The flag, for those who poll it. Never NULL. */
const atomic_bool *interrupt_flag(void);
static inline bool interrupt_asked(void) {
    return atomic_load(interrupt_flag());
}

/* The request was handled: the next SIGINT is a first one again. */
void interrupt_reset(void);

#endif
