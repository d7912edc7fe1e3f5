/* thread.h - starting a thread with signals blocked, and stopping one. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/* Blocks signals for threads that are started next; returns what was blocked before. Not those of
 * faults: they are raised in the thread that has one, and would end the program without a word (a
 * mapped file that was truncated: cmd/faults.c). */
static inline sigset_t thread_block_signals(void) {
    static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    return before;
}

/* A template may call itself hundreds of levels deep: 200 kB. What a thread gets unasked is that of
 * `ulimit -s` with glibc, but 128 kB with musl. Only what is used takes memory. */
enum { THREAD_STACK_BYTES = 8 << 20 };

/* Starts a thread with signals blocked: they are for the program's own threads. Join it. False: out
 * of memory or threads. */
static inline bool thread_start(pthread_t *out, void *(*run)(void *user), void *user) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes))
        return false;
    pthread_attr_setstacksize(&attributes, THREAD_STACK_BYTES);
    sigset_t before = thread_block_signals();
    bool is_started = pthread_create(out, &attributes, run, user) == 0;
    pthread_attr_destroy(&attributes);
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
