/* gpu.cpp - thread blocks of fibers: see gpu.h. */
#include "gpu.h"

#include <atomic>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#include "launch.h"

enum {
    MAX_THREADS = 1024, /* of a block */
    WORKERS = 16, /* blocks that run at once: no kernel waits for one that is later than that */
    STACK = 128 << 10,
    BARRIERS = 16,
    MAX_CLUSTER = 8,
    SLOTS = 8, /* masks of a warp in use at once */
    CANARY = 4096,
    STUCK_SECONDS = 60,
};

thread_local struct gpu_dim threadIdx, blockIdx, blockDim, gridDim;

/* ---- state of a block ---------------------------------------------------------------------- */

struct async_copy {
    void *to;
    const void *from;
    uint32_t bytes, group;
};

/* What an mbarrier counts, done when somebody waits for it. */
struct async_arrival {
    uint64_t *mbarrier;
    std::vector<async_copy> copies;
    uint32_t bytes; /* that it is told of; 0: it is an arrival */
};

struct async_product {
    struct gpu_product product;
    uint32_t group;
};

struct fiber {
    jmp_buf at;
    bool is_made, is_done;
    const uint32_t *waits_for; /* this word is no longer `seen`; NULL: it runs */
    uint32_t seen;
    uint32_t groups; /* committed */
    std::vector<async_copy> copies;
    uint32_t product_groups;
    std::vector<async_product> products;
    std::vector<async_copy> stores;
    uint32_t cluster_generation; /* when it arrived */
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

/* Blocks that run at the same time. */
struct cluster {
    std::atomic<char *> bases[MAX_CLUSTER]; /* of their shared memory; NULL: it does not run */
    std::atomic<uint32_t> arrived, exited;
    uint32_t generation, threads;
};

struct block {
    struct fiber fibers[MAX_THREADS + 1]; /* the last: the worker itself */
    uint32_t n, n_running, current, step;
    struct barrier barriers[BARRIERS];
    struct slot slots[MAX_THREADS / 32][SLOTS];
    struct gpu_area areas[MAX_THREADS / 32];
    std::vector<async_arrival> arrivals;
    const struct launch *launch;
    struct cluster *cluster; /* NULL: it is alone */
    bool is_late;            /* what is asynchronous is done when it is waited for, not at once */
    bool is_greedy;          /* a warp runs as long as it can before the next one does */
    uint64_t idle;           /* turns since anybody did something */
    time_t since;
    uint64_t random;
};
static thread_local struct block *own;

static struct gpu_kernel *kernels;

gpu_kernel::gpu_kernel(const char *name, uint32_t cluster, void (*run)(const void *), size_t bytes)
    : name(name), cluster(cluster), run(run), bytes(bytes), next(kernels) {
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
    return !f->is_done &&
           (!f->waits_for || __atomic_load_n(f->waits_for, __ATOMIC_ACQUIRE) != f->seen);
}

static void rest(const char *what);
static bool do_arrivals(const uint64_t *mbarrier);

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
    for (;;) {
        for (uint32_t i = 0; i < b->n; i++) {
            next = next + b->step < b->n ? next + b->step : next + b->step - b->n;
            if (can_run(&b->fibers[next]))
                return next != b->current ? switch_to(next) : (void)0;
        }
        if (do_arrivals(NULL))
            continue;
        if (!b->cluster)
            fail("all threads wait for each other");
        rest("all threads wait for another block of the cluster");
    }
}

static void wait_while(const uint32_t *word, uint32_t seen) {
    struct fiber *f = &own->fibers[own->current];
    f->waits_for = word;
    f->seen = seen;
    switch_to_next(true);
    f->waits_for = NULL;
}

/* Lets other blocks run; `what` is wrong when it has taken too long. */
static void rest(const char *what) {
    struct block *b = own;
    sched_yield();
    time_t now = time(NULL);
    if (!b->since)
        b->since = now;
    else if (now - b->since > STUCK_SECONDS)
        fail(what);
}

void gpu_yield(void) {
    if (++own->idle % (64 * MAX_THREADS) == 0)
        rest("waits forever for other blocks");
    switch_to_next(false);
}

static void made_progress(void) {
    own->idle = 0;
    own->since = 0;
}

static void exit_cluster(struct cluster *c);

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
    f->groups = f->product_groups = 0;
    if (!f->products.empty())
        fail("products that it did not wait for");
    if (!f->stores.empty())
        fail("stores from shared memory that it did not wait for");
    b->n_running--;
    if (b->cluster)
        exit_cluster(b->cluster);
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
    if (number >= BARRIERS || threads > b->n || threads % 32)
        fail("a barrier of more threads than there are, or parts of warps");
    struct barrier *barrier = &b->barriers[number];
    uint32_t generation = barrier->generation;
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
    if (own->is_late)
        f->copies.push_back({to, from, bytes, f->groups});
    else
        memcpy(to, from, bytes);
}

void gpu_copy_commit(void) {
    own->fibers[own->current].groups++;
}

static void copy_now(const struct async_copy &c) {
    memcpy(c.to, c.from, c.bytes);
}

void gpu_copy_wait(uint32_t youngest) {
    struct fiber *f = &own->fibers[own->current];
    size_t n = 0;
    while (n < f->copies.size() && f->copies[n].group + youngest < f->groups)
        copy_now(f->copies[n++]);
    f->copies.erase(f->copies.begin(), f->copies.begin() + (ptrdiff_t)n);
}

/* ---- mbarriers ------------------------------------------------------------------------------- */

/* The 64 bits of one. Bytes may come before they are expected. */
struct mbarrier {
    uint16_t pending, count; /* arrivals of this phase, of every one */
    uint32_t bytes : 31, phase : 1;
};
enum { NO_BYTES = 1 << 30 };

/* Another block's is counted while that block runs its own threads. */
static void count_at(uint64_t *at, uint32_t arrivals, int64_t bytes) {
    uint64_t before = __atomic_load_n(at, __ATOMIC_ACQUIRE), after;
    do {
        struct mbarrier m;
        memcpy(&m, &before, sizeof m);
        if (m.count == 0 || m.pending > m.count)
            fail("an mbarrier that was not initialised");
        if (m.pending < arrivals)
            fail("an mbarrier with more arrivals than it counts");
        m.pending = (uint16_t)(m.pending - arrivals);
        m.bytes = (uint32_t)(m.bytes + bytes) & 0x7fffffff;
        if (m.pending == 0 && m.bytes == NO_BYTES) {
            m.phase ^= 1;
            m.pending = m.count;
        }
        memcpy(&after, &m, sizeof m);
    } while (!__atomic_compare_exchange_n(at, &before, after, false, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE));
    made_progress();
}

/* What is under way for this mbarrier, or for any; whether there was something. */
static bool do_arrivals(const uint64_t *mbarrier) {
    struct block *b = own;
    std::vector<async_arrival> left, now;
    for (async_arrival &a : b->arrivals)
        (mbarrier && a.mbarrier != mbarrier ? left : now).push_back(std::move(a));
    b->arrivals = std::move(left);
    for (async_arrival &a : now) {
        for (const async_copy &c : a.copies)
            copy_now(c);
        count_at(a.mbarrier, !a.bytes, -(int64_t)a.bytes);
    }
    return !now.empty();
}

static uint64_t *mbarrier_at(uint32_t at) {
    if (at % 8)
        fail("an mbarrier at an address that is no multiple of 8");
    return (uint64_t *)__cvta_shared_to_generic(at);
}

void gpu_mbarrier_init(uint32_t at, uint32_t count) {
    struct mbarrier m = {(uint16_t)count, (uint16_t)count, NO_BYTES, 0};
    memcpy(mbarrier_at(at), &m, sizeof m);
}

void gpu_mbarrier_arrive(uint32_t at, uint32_t bytes) {
    count_at(mbarrier_at(at), 1, bytes);
}

void gpu_mbarrier_wait(uint32_t at, uint32_t phase) {
    uint64_t *mbarrier = mbarrier_at(at);
    for (;;) {
        uint64_t now = __atomic_load_n(mbarrier, __ATOMIC_ACQUIRE);
        struct mbarrier m;
        memcpy(&m, &now, sizeof m);
        if (m.phase != (phase & 1))
            return;
        if (do_arrivals(mbarrier))
            continue;
        wait_while((const uint32_t *)mbarrier + 1, (uint32_t)(now >> 32));
    }
}

void gpu_copy_arrive(uint32_t at) {
    struct fiber *f = &own->fibers[own->current];
    async_arrival a = {mbarrier_at(at), {}, 0};
    a.copies.swap(f->copies);
    if (own->is_late)
        own->arrivals.push_back(std::move(a));
    else
        count_at(a.mbarrier, 1, 0);
}

void gpu_bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t mbarrier) {
    if (to % 16 || (uintptr_t)from % 16 || bytes % 16 || !bytes)
        fail("a bulk copy whose addresses and size are no multiples of 16");
    async_arrival a = {
        mbarrier_at(mbarrier), {{__cvta_shared_to_generic(to), from, bytes, 0}}, bytes};
    if (own->is_late && to >> GPU_RANK_SHIFT == 0) {
        own->arrivals.push_back(std::move(a));
    } else {
        copy_now(a.copies[0]);
        count_at(a.mbarrier, 0, -(int64_t)bytes);
    }
}

void gpu_store_async(uint32_t to, const void *from, uint32_t bytes, uint32_t mbarrier) {
    memcpy(__cvta_shared_to_generic(to), from, bytes);
    count_at(mbarrier_at(mbarrier), 0, -(int64_t)bytes);
}

void gpu_bulk_store(void *to, uint32_t from, uint32_t bytes) {
    struct fiber *f = &own->fibers[own->current];
    if (from % 16 || (uintptr_t)to % 16 || bytes % 16)
        fail("a bulk store whose addresses and size are no multiples of 16");
    f->stores.push_back({to, __cvta_shared_to_generic(from), bytes, f->groups});
    if (!own->is_late)
        copy_now(f->stores.back());
}

void gpu_bulk_store_wait(void) {
    struct fiber *f = &own->fibers[own->current];
    for (const async_copy &c : f->stores)
        if (own->is_late)
            copy_now(c);
    f->stores.clear();
}

/* ---- clusters ----------------------------------------------------------------------------------
 */

char *gpu_base_of_rank(uint32_t rank) {
    struct cluster *c = own->cluster;
    char *base = c && rank < MAX_CLUSTER ? c->bases[rank].load() : NULL;
    if (!base)
        fail("the memory of a block of the cluster that does not run");
    return base;
}

/* All threads of all blocks have arrived or ended. */
static void count_cluster(struct cluster *c) {
    uint32_t exited = c->exited, arrived = c->arrived;
    if (arrived && arrived + exited == c->threads && c->arrived.compare_exchange_strong(arrived, 0))
        __atomic_add_fetch(&c->generation, 1, __ATOMIC_RELEASE);
}

static void exit_cluster(struct cluster *c) {
    c->exited++;
    count_cluster(c);
}

void gpu_cluster_arrive(void) {
    struct block *b = own;
    if (!b->cluster)
        return;
    b->fibers[b->current].cluster_generation =
        __atomic_load_n(&b->cluster->generation, __ATOMIC_ACQUIRE);
    b->cluster->arrived++;
    count_cluster(b->cluster);
}

void gpu_cluster_wait(void) {
    struct block *b = own;
    if (b->cluster)
        wait_while(&b->cluster->generation, b->fibers[b->current].cluster_generation);
}

/* ---- wgmma
 * --------------------------------------------------------------------------------------- */

/* A matrix in shared memory as a descriptor tells it: 16 bytes of a row or, with `is_mn_major`, of
 * a column at a time. Matrices are in dynamic memory, which begins at a multiple of 256 KB. */
static const char *element_at(uint64_t descriptor, uint32_t row, uint32_t byte, bool is_mn_major) {
    uint32_t at = (uint32_t)(descriptor & 0x3fff) << 4,
             leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
             stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4,
             swizzle = (uint32_t)(descriptor >> 62);
    if (is_mn_major) /* panels of 64 rows: 128 bytes for every 16-bit column, 8 of them a stride */
        at += row / 64 * leading + row % 64 * 2 + byte / 16 * stride + byte % 16 / 2 * 128;
    else if (swizzle) /* 8 rows of 128 bytes a stride */
        at += row / 8 * stride + row % 8 * 128 + byte;
    else /* matrices of 8 rows of 16 bytes */
        at += row / 8 * stride + row % 8 * 16 + byte / 16 * leading + byte % 16;
    if (swizzle > 1 || (is_mn_major && !swizzle))
        fail("a layout of wgmma's operands that is not emulated");
    if (swizzle)
        at ^= at >> 3 & 0x70;
    if (at >= own->launch->shared)
        fail("wgmma reads past the end of shared memory");
    return gpu_dynamic_shared + at;
}

/* This thread's share of a product: two rows, and two of every eight columns. */
static void multiply(const struct gpu_product *p) {
    uint32_t lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    double a[2][32], b[32];
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < p->k; k++)
            a[i][k] = p->number(p->is_a_here ? (const char *)p->a_rows[i] + k * p->bytes
                                             : element_at(p->a, row + 8 * i, k * p->bytes, false));
    for (uint32_t n = 0; n < p->n; n++) {
        uint32_t column = n / 2 * 8 + lane % 4 * 2 + n % 2;
        for (uint32_t k = 0; k < p->k; k++)
            b[k] = p->number(element_at(p->b, column, k * p->bytes, p->is_b_mn_major));
        for (uint32_t i = 0; i < 2; i++) {
            double sum = 0;
            for (uint32_t k = 0; k < p->k; k++)
                sum += a[i][k] * b[k];
            p->add((char *)p->c + 4 * (n / 2 * 4 + i * 2 + n % 2), sum, p->adds);
        }
    }
}

void gpu_wgmma(const struct gpu_product *p) {
    struct fiber *f = &own->fibers[own->current];
    f->products.push_back({*p, f->product_groups});
    if (!own->is_late)
        multiply(p);
}

void gpu_wgmma_commit(void) {
    own->fibers[own->current].product_groups++;
}

void gpu_wgmma_wait(uint32_t youngest) {
    struct fiber *f = &own->fibers[own->current];
    size_t n = 0;
    for (; n < f->products.size() && f->products[n].group + youngest < f->product_groups; n++)
        if (own->is_late)
            multiply(&f->products[n].product);
    f->products.erase(f->products.begin(), f->products.begin() + (ptrdiff_t)n);
}

/* ---- launches ------------------------------------------------------------------------------ */

static void run_block(const struct launch *l, uint32_t number, struct cluster *cluster) {
    struct block *b = own;
    b->launch = l;
    b->cluster = cluster;
    b->n = b->n_running = l->threads;
    b->current = MAX_THREADS;
    b->random ^= (number + 1) * 0x9e3779b97f4a7c15u + l->number;
    b->step = random_below(b, 2) ? 1 : b->n - 1;
    b->step = b->n == 1 ? 1 : b->step;
    b->is_late = random_below(b, 2);
    b->is_greedy = random_below(b, 2);
    b->idle = 0;
    b->since = 0;
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
    uint32_t rank = number % l->kernel->cluster;
    if (cluster) { /* they need not begin together */
        usleep(random_below(b, 4) ? 0 : 500);
        cluster->bases[rank] = gpu_shared_base();
    }
    switch_to(random_below(b, b->n));
    if (cluster)
        cluster->bases[rank] = NULL;
    if (!b->arrivals.empty())
        fail("copies into shared memory that nobody waited for");
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
    struct cluster *clusters; /* of it; NULL: each block is alone */
    uint32_t next, done, total;
    bool is_started;
} pool = {PTHREAD_MUTEX_INITIALIZER,
          PTHREAD_MUTEX_INITIALIZER,
          PTHREAD_COND_INITIALIZER,
          PTHREAD_COND_INITIALIZER,
          NULL,
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
        run_block(l, number, pool.clusters ? &pool.clusters[number / l->kernel->cluster] : NULL);
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
    if (!l->threads || l->threads > MAX_THREADS || l->shared > GPU_MAX_SHARED || !blocks ||
        l->grid[0] % l->kernel->cluster)
        return false;
    uint32_t n_clusters = l->kernel->cluster > 1 ? (uint32_t)blocks / l->kernel->cluster : 0;
    std::vector<struct cluster> clusters(n_clusters);
    for (struct cluster &c : clusters)
        c.threads = l->kernel->cluster * l->threads;
    pthread_mutex_lock(&pool.launching);
    pthread_mutex_lock(&pool.lock);
    if (!pool.is_started)
        start_workers();
    pool.is_started = true;
    l->number = number++;
    pool.launch = l;
    pool.clusters = n_clusters ? clusters.data() : NULL;
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
