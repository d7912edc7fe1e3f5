/* gpu.cpp - thread blocks of fibers: see gpu.h. */
#include "gpu.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <vector>

#include "launch.h"

enum {
    MAX_THREADS = 1024, /* of a block */
    WORKERS = 16, /* blocks that run at once: no kernel waits for one that is later than that */
    STACK = 128 << 10,
    BARRIERS = 16,
    SLOTS = 8, /* masks of a warp in use at once */
    CANARY = 4096,
    STUCK_SECONDS = 60,
};

thread_local struct gpu_dim threadIdx, blockIdx, blockDim, gridDim;
thread_local char gpu_shared_anchor;
extern "C" {
extern thread_local char gpu_dynamic_shared[]; /* shared.c: all names that kernels have for it */
}

/* ---- state of a block ---------------------------------------------------------------------- */

struct async_copy {
    void *to;
    const void *from;
    uint32_t bytes, group;
};

struct fiber {
    jmp_buf at;
    bool is_made, is_done;
    const uint32_t *waits_for; /* this word is no longer `seen`; NULL: it runs */
    uint32_t seen;
    std::vector<async_copy> copies;
    uint32_t groups; /* committed */
};

struct barrier {
    uint32_t count, generation;
    bool is_for_all; /* that still run */
};

/* Lanes that leave values at the same mask. A value is read until its next but one. */
struct slot {
    uint32_t mask, count, generation, readers;
    uint64_t values[2][32];
};

struct block {
    struct fiber fibers[MAX_THREADS + 1]; /* the last: the worker itself */
    uint32_t n, n_running, current, step;
    struct barrier barriers[BARRIERS];
    struct slot slots[MAX_THREADS / 32][SLOTS];
    struct gpu_area areas[MAX_THREADS / 32];
    const struct launch *launch;
    bool copies_late; /* cp.async is done when it is waited for, not at once */
    bool is_greedy;   /* a warp runs as long as it can before the next one does */
    uint64_t idle;    /* turns since anybody did something */
    time_t since;
    uint64_t random;
};
static thread_local struct block *own;

static struct gpu_kernel *kernels;

gpu_kernel::gpu_kernel(const char *name, void (*run)(const void *), size_t bytes)
    : name(name), run(run), bytes(bytes), next(kernels) {
    kernels = this;
}

const struct gpu_kernel *gpu_find_kernel(const char *name) {
    const struct gpu_kernel *k = kernels;
    while (k && strcmp(k->name, name) != 0)
        k = k->next;
    return k;
}

/* What is wrong with the running kernel; does not return. */
static void fail(const char *what) {
    fprintf(stderr, "emulated GPU: %s, block (%u, %u, %u), thread %u: %s\n",
            own->launch->kernel->name, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, what);
    abort();
}

static uint32_t random_below(struct block *b, uint32_t n) {
    b->random = b->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(b->random >> 33) % n;
}

/* ---- fibers -------------------------------------------------------------------------------- */

static void run_fiber(void);

static void switch_to(uint32_t to) {
    struct block *b = own;
    struct fiber *from = &b->fibers[b->current], *f = &b->fibers[to];
    if (_setjmp(from->at))
        return;
    b->current = to;
    threadIdx.x = to;
    if (f->is_made)
        _longjmp(f->at, 1);
    f->is_made = true;
    static thread_local ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    context.uc_stack.ss_size = STACK;
    if (context.uc_stack.ss_sp == MAP_FAILED)
        fail("no memory for a thread");
    makecontext(&context, run_fiber, 0);
    setcontext(&context);
}

static bool can_run(const struct fiber *f) {
    return !f->is_done && (!f->waits_for || *f->waits_for != f->seen);
}

/* The next thread that can run, or the worker when all are done. */
static void switch_to_next(bool may_be_greedy) {
    struct block *b = own;
    uint32_t next = b->current, warp = next / 32 * 32;
    if (b->n_running == 0)
        return switch_to(MAX_THREADS);
    for (uint32_t i = 1; may_be_greedy && b->is_greedy && i < 32; i++) {
        uint32_t lane = warp + (next + i) % 32;
        if (lane < b->n && can_run(&b->fibers[lane]))
            return switch_to(lane);
    }
    for (uint32_t i = 0; i < b->n; i++) {
        next = next + b->step < b->n ? next + b->step : next + b->step - b->n;
        if (can_run(&b->fibers[next]))
            return next != b->current ? switch_to(next) : (void)0;
    }
    fail("all threads wait for each other");
}

static void wait_while(const uint32_t *word, uint32_t seen) {
    struct fiber *f = &own->fibers[own->current];
    f->waits_for = word;
    f->seen = seen;
    switch_to_next(true);
    f->waits_for = NULL;
}

void gpu_yield(void) {
    struct block *b = own;
    if (++b->idle % (64 * MAX_THREADS) == 0) {
        sched_yield();
        time_t now = time(NULL);
        if (b->idle == 64 * MAX_THREADS)
            b->since = now;
        else if (now - b->since > STUCK_SECONDS)
            fail("waits forever for other blocks");
    }
    switch_to_next(false);
}

static void made_progress(void) {
    own->idle = 0;
}

static void release(struct barrier *barrier) {
    barrier->count = 0;
    barrier->generation++;
    made_progress();
}

static void finish_fiber(void) {
    struct block *b = own;
    struct fiber *f = &b->fibers[b->current];
    f->is_done = true;
    f->copies.clear();
    f->groups = 0;
    b->n_running--;
    made_progress();
    for (uint32_t i = 0; i < BARRIERS; i++)
        if (b->barriers[i].is_for_all && b->barriers[i].count &&
            b->barriers[i].count == b->n_running)
            release(&b->barriers[i]);
    switch_to_next(true);
}

/* A fiber goes on with the next block when the worker has one. */
static void run_fiber(void) {
    for (;;) {
        own->launch->kernel->run(own->launch->params);
        finish_fiber();
    }
}

/* ---- waiting for each other ------------------------------------------------------------------ */

void gpu_barrier(uint32_t number, uint32_t threads, bool waits) {
    struct block *b = own;
    struct barrier *barrier = &b->barriers[number];
    uint32_t generation = barrier->generation;
    if (number >= BARRIERS || threads > b->n || threads % 32)
        fail("a barrier of more threads than there are, or parts of warps");
    barrier->is_for_all = threads == 0;
    if (++barrier->count == (threads ? threads : b->n_running))
        release(barrier);
    else if (waits)
        wait_while(&barrier->generation, generation);
}

static struct slot *find_slot(uint32_t mask) {
    struct slot *slots = own->slots[own->current / 32], *unused = NULL;
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (slots[i].mask == mask)
            return &slots[i];
        if (slots[i].count == 0 && slots[i].readers == 0)
            unused = &slots[i];
    }
    if (!unused)
        fail("lanes of a warp wait for each other with too many masks");
    *unused = (struct slot){};
    unused->mask = mask;
    return unused;
}

const uint64_t *gpu_exchange(uint32_t mask, uint64_t value) {
    struct slot *s = find_slot(mask);
    uint32_t lane = own->current % 32, generation = s->generation;
    uint64_t *values = s->values[generation % 2];
    if (!(mask >> lane & 1))
        fail("a lane is not in its own mask");
    values[lane] = value;
    if (++s->count == (uint32_t)__builtin_popcount(mask)) {
        s->count = 0;
        s->readers += (uint32_t)__builtin_popcount(mask);
        s->generation++;
        made_progress();
    } else {
        wait_while(&s->generation, generation);
    }
    s->readers--;
    return values;
}

struct gpu_area *gpu_warp_area(void) {
    return &own->areas[own->current / 32];
}

/* ---- cp.async ------------------------------------------------------------------------------ */

void gpu_copy_async(void *to, const void *from, uint32_t bytes) {
    struct fiber *f = &own->fibers[own->current];
    if ((uintptr_t)to % bytes || (uintptr_t)from % bytes)
        fail("cp.async at an address that is no multiple of its size");
    if (own->copies_late)
        f->copies.push_back({to, from, bytes, f->groups});
    else
        memcpy(to, from, bytes);
}

void gpu_copy_commit(void) {
    own->fibers[own->current].groups++;
}

void gpu_copy_wait(uint32_t youngest) {
    struct fiber *f = &own->fibers[own->current];
    size_t n = 0;
    while (n < f->copies.size() && f->copies[n].group + youngest < f->groups) {
        memcpy(f->copies[n].to, f->copies[n].from, f->copies[n].bytes);
        n++;
    }
    f->copies.erase(f->copies.begin(), f->copies.begin() + (ptrdiff_t)n);
}

/* ---- launches ------------------------------------------------------------------------------ */

static void run_block(const struct launch *l, uint32_t number) {
    struct block *b = own;
    b->launch = l;
    b->n = b->n_running = l->threads;
    b->current = MAX_THREADS;
    b->random ^= (number + 1) * 0x9e3779b97f4a7c15u + l->number;
    b->step = random_below(b, 2) ? 1 : b->n - 1;
    b->step = b->n == 1 ? 1 : b->step;
    b->copies_late = random_below(b, 2);
    b->is_greedy = random_below(b, 2);
    b->idle = 0;
    memset(b->barriers, 0, sizeof b->barriers);
    memset(b->slots, 0, (b->n + 31) / 32 * sizeof b->slots[0]);
    for (uint32_t i = 0; i < b->n; i++)
        b->fibers[i].is_done = false;
    gridDim = {l->grid[0], l->grid[1], l->grid[2]};
    blockDim = {l->threads, 1, 1};
    blockIdx = {number % l->grid[0], number / l->grid[0] % l->grid[1],
                number / l->grid[0] / l->grid[1]};
    threadIdx = {0, 0, 0};
    memset(gpu_dynamic_shared, 0xff, l->shared);
    memset(gpu_dynamic_shared + l->shared, 0xa5, CANARY);
    switch_to(random_below(b, b->n));
    for (uint32_t i = 0; i < CANARY; i++)
        if (gpu_dynamic_shared[l->shared + i] != (char)0xa5)
            fail("it wrote past the end of its shared memory");
    for (uint32_t i = 0; i < BARRIERS; i++)
        if (b->barriers[i].count)
            fail("a barrier was not reached by all");
}

static struct {
    pthread_mutex_t launching, lock;
    pthread_cond_t has_work, is_done;
    const struct launch *launch;
    uint32_t next, done, total;
    bool is_started;
} pool = {PTHREAD_MUTEX_INITIALIZER,
          PTHREAD_MUTEX_INITIALIZER,
          PTHREAD_COND_INITIALIZER,
          PTHREAD_COND_INITIALIZER,
          NULL,
          0,
          0,
          0,
          false};

static void *work(void *) {
    own = new struct block();
    own->fibers[MAX_THREADS].is_made = true;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.next == pool.total)
            pthread_cond_wait(&pool.has_work, &pool.lock);
        const struct launch *l = pool.launch;
        uint32_t number = pool.next++;
        pthread_mutex_unlock(&pool.lock);
        run_block(l, number);
        pthread_mutex_lock(&pool.lock);
        if (++pool.done == pool.total)
            pthread_cond_signal(&pool.is_done);
    }
    return NULL;
}

static void start_workers(void) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    for (int i = 0; i < WORKERS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, work, NULL)) {
            fprintf(stderr, "emulated GPU: no thread for a block\n");
            abort();
        }
    }
    pthread_attr_destroy(&attributes);
}

bool gpu_run(struct launch *l) {
    static uint64_t number;
    uint64_t blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
    if (!l->threads || l->threads > MAX_THREADS || l->shared > GPU_SHARED - 1024 || !blocks)
        return false;
    pthread_mutex_lock(&pool.launching);
    pthread_mutex_lock(&pool.lock);
    if (!pool.is_started)
        start_workers();
    pool.is_started = true;
    l->number = number++;
    pool.launch = l;
    pool.next = pool.done = 0;
    pool.total = (uint32_t)blocks;
    pthread_cond_broadcast(&pool.has_work);
    while (pool.done < pool.total)
        pthread_cond_wait(&pool.is_done, &pool.lock);
    pool.next = pool.total = pool.done = 0;
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.launching);
    return true;
}
