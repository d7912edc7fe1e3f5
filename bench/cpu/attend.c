/* attend.c - how fast attention over the KV cache is on the CPU, alone.
 *
 * usage: attend [-m MIB] [-r REPEATS] [-a]      -a: all kernels, not only the one that is chosen
 *
 * one row: the query heads of a group against MIB (256) of keys and values, on one thread and on
 * all, beside the speed of plain reads over the same memory, measured in turn with it. 64 queries:
 * a prompt's block, in products a second. Times are processor time of the busiest thread, the best
 * of the repeats, the median in brackets. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "backend/cpu/kernels.h"
#include "base/cpu.h"

enum { MAX_REPEATS = 101, MAX_THREADS = 64 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct cache {
    enum dtype type;
    uint32_t width, n_splits;
    uint64_t split_bytes; /* of keys, and of values */
    uint8_t *at;          /* the keys of all splits, then the values */
};

static uint64_t row_bytes(enum dtype type, uint32_t width) {
    const struct dtype_info *info = dtype_info((uint32_t)type);
    return (uint64_t)width / info->block_values * info->block_bytes;
}

static struct cache cache_make(enum dtype type, uint32_t width, uint64_t mib) {
    struct cache c = {.type = type, .width = width};
    c.split_bytes = ATTEND_POSITIONS * row_bytes(type, width);
    c.n_splits = (uint32_t)((mib << 20) / c.split_bytes / 2 / MAX_THREADS * MAX_THREADS);
    c.at = aligned_alloc(2 << 20, ((mib << 20) + (2 << 20) - 1) >> 21 << 21);
    madvise(c.at, mib << 20, MADV_HUGEPAGE);
    float x[1024];
    for (uint32_t p = 0; p < ATTEND_POSITIONS; p++) {
        for (uint32_t i = 0; i < width; i++)
            x[i] = (float)((p * 31 + i * 17) % 61) / 61 - 0.5f;
        dtype_info((uint32_t)type)->encode(x, c.at + p * row_bytes(type, width), width);
    }
    for (uint32_t s = 1; s < 2 * c.n_splits; s++)
        memcpy(c.at + s * c.split_bytes, c.at, c.split_bytes);
    return c;
}

struct job {
    const struct attend_kernel *kernel; /* NULL: plain reads */
    const struct cache *cache;
    uint32_t n_queries, first, count; /* splits */
    uint64_t sum;
    double seconds;
};

typedef uint64_t two __attribute__((vector_size(16)));

static uint64_t read_all(const uint8_t *from, uint64_t bytes) {
    two a = {0}, b = {0};
    const two *at = (const two *)(const void *)from, *end = at + bytes / 64 * 4;
    for (; at < end; at += 4) {
        __builtin_prefetch(at + 64);
        a += at[0] + at[1];
        b += at[2] + at[3];
    }
    return a[0] + a[1] + b[0] + b[1];
}

static void attend_splits(struct job *job) {
    const struct cache *c = job->cache;
    static _Thread_local _Alignas(64) float queries[ATTEND_QUERIES * 256], pv[ATTEND_QUERIES * 256],
        tile[ATTEND_POSITIONS * 256], qk[ATTEND_QUERIES * ATTEND_POSITIONS];
    struct softmax sums[ATTEND_QUERIES];
    uint32_t seen[ATTEND_QUERIES];
    for (uint32_t q = 0; q < job->n_queries; q++)
        seen[q] = ATTEND_POSITIONS;
    for (uint32_t i = 0; i < job->n_queries * 256; i++)
        queries[i] = (float)(i % 37) / 37 - 0.5f;
    double begin = now();
    for (uint32_t s = job->first; s < job->first + job->count; s++)
        job->kernel->run(&(struct attend_split){
            .type = c->type,
            .width = c->width,
            .keys = c->at + s * c->split_bytes,
            .values = c->at + (c->n_splits + s) * c->split_bytes,
            .queries = queries,
            .seen = seen,
            .n_queries = job->n_queries,
            .sums = sums,
            .pv = pv,
            .tile = tile,
            .qk = qk,
            .next = c->at + (s + 1) * c->split_bytes,
        });
    job->seconds = now() - begin;
}

static void *work(void *context) {
    struct job *job = context;
    const struct cache *c = job->cache;
    if (job->kernel) {
        attend_splits(job);
        return NULL;
    }
    double begin = now();
    for (int v = 0; v < 2; v++)
        job->sum += read_all(c->at + ((uint64_t)v * c->n_splits + job->first) * c->split_bytes,
                             job->count * c->split_bytes);
    job->seconds = now() - begin;
    return NULL;
}

static double time_once(struct job like, uint32_t n_splits, int threads) {
    static volatile uint64_t sink;
    struct job jobs[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    double seconds = 0;
    like.count = n_splits / (uint32_t)threads;
    for (int t = 0; t < threads; t++) {
        jobs[t] = like;
        jobs[t].first = (uint32_t)t * like.count;
        if (t > 0)
            pthread_create(&ids[t], NULL, work, &jobs[t]);
    }
    work(&jobs[0]);
    for (int t = 0; t < threads; t++) {
        if (t > 0)
            pthread_join(ids[t], NULL);
        sink = sink + jobs[t].sum;
        seconds = jobs[t].seconds > seconds ? jobs[t].seconds : seconds;
    }
    return seconds;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void time_row(const struct attend_kernel *kernel, const struct cache *c, uint32_t group,
                     int threads, int repeats) {
    double ours[MAX_REPEATS], plain[MAX_REPEATS];
    struct job job = {.kernel = kernel, .cache = c, .n_queries = group}, read = {.cache = c};
    for (int i = 0; i < repeats; i++) {
        plain[i] = time_once(read, c->n_splits, threads);
        ours[i] = time_once(job, c->n_splits, threads);
    }
    qsort(ours, (size_t)repeats, sizeof *ours, compare);
    qsort(plain, (size_t)repeats, sizeof *plain, compare);
    double gb = 2e-9 * (double)c->n_splits * (double)c->split_bytes;
    printf(" %5.1f (%5.1f) of %5.1f %3.0f%% |", gb / ours[0], gb / ours[repeats / 2], gb / plain[0],
           100 * plain[0] / ours[0]);
    fflush(stdout);
}

static void time_block(const struct attend_kernel *kernel, const struct cache *c, int repeats) {
    struct job job = {.kernel = kernel, .cache = c, .n_queries = ATTEND_QUERIES};
    uint32_t splits = c->n_splits < 64 ? c->n_splits : 64;
    double best = 1e9;
    for (int i = 0; i < repeats; i++) {
        double s = time_once(job, splits, 1);
        best = s < best ? s : best;
    }
    printf(" %6.1f\n", 2e-9 * splits * ATTEND_POSITIONS * (double)c->width * ATTEND_QUERIES / best);
}

int main(int argc, char **argv) {
    static const struct {
        enum dtype type;
        uint32_t width, group;
    } shapes[] = {{DT_F16, 64, 1},   {DT_F16, 64, 3},  {DT_F16, 128, 4}, {DT_F16, 128, 6},
                  {DT_F16, 128, 8},  {DT_F16, 256, 4}, {DT_F32, 64, 3},  {DT_Q8_0, 64, 3},
                  {DT_Q8_0, 128, 4}, {DT_Q4_0, 128, 4}};
    uint64_t mib = 256;
    int repeats = 7, threads = cpu_count() < MAX_THREADS ? cpu_count() : MAX_THREADS;
    bool all = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-a"))
            all = true;
        else if (i + 1 < argc && !strcmp(argv[i], "-m"))
            mib = (uint64_t)atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "-r"))
            repeats = atoi(argv[++i]);
    }
    if (mib < 64 || repeats < 1 || repeats > MAX_REPEATS) {
        fprintf(stderr, "usage: attend [-m MIB, 64 or more] [-r REPEATS] [-a]\n");
        return 2;
    }
    printf("%s; GB/s: best (median) of plain reads; GMAC/s of 64 queries\n", cpu_feature_names());
    printf("%-17s type  width group | %-28s| %2d threads%18s| GMAC/s 1 thread\n", "kernel",
           "1 thread", threads, "");
    const struct attend_kernel *kernel;
    for (size_t k = 0; (kernel = attend_at(k)); k++) {
        if ((kernel->features & ~cpu_features()) != 0 ||
            (!all && kernel != attend_find(cpu_features())))
            continue;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            struct cache c = cache_make(shapes[i].type, shapes[i].width, mib);
            printf("%-17s %-5s %5u %5u |", kernel->name, dtype_info((uint32_t)shapes[i].type)->name,
                   shapes[i].width, shapes[i].group);
            time_row(kernel, &c, shapes[i].group, 1, repeats);
            time_row(kernel, &c, shapes[i].group, threads, repeats);
            time_block(kernel, &c, repeats);
            free(c.at);
        }
    }
    return 0;
}
