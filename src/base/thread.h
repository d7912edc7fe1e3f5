/* thread.h - starting a thread with all signals blocked, and stopping one. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

/* Starts a thread with all signals blocked: they are for the program's own threads. Join it. False:
 * out of memory or threads. */
static inline bool thread_start(pthread_t *out, void *(*run)(void *user), void *user) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    bool is_started = pthread_create(out, NULL, run, user) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return is_started;
}

/* Sets *is_ending under the lock, wakes the thread, which ends when it sees that, and joins it. */
static inline void thread_stop(pthread_t thread, pthread_mutex_t *lock, pthread_cond_t *wakes,
                               bool *is_ending) {
    pthread_mutex_lock(lock);
    *is_ending = true;
    pthread_cond_signal(wakes);
    pthread_mutex_unlock(lock);
    pthread_join(thread, NULL);
}

#endif
