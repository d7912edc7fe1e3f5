/* kernels.c - how fast the CPU kernels are, alone.
 *
 * usage: kernels [-k K] [-m MIB] [-r REPEATS] [-a] [NAME ...]   kernels whose names hold a NAME
 *
 * decode: one activation row against MIB (512) of weights, far more than the caches hold, on one
 * thread and on all; beside the speed of plain reads over the same memory, measured in turn with
 * it. prefill: 64 and 128 rows against 4096 weight rows. Times are processor time of the busiest
 * thread, so that waiting for a core that others use does not count; others' memory traffic does.
 * The best of the repeats is shown, the median of the decodes in brackets.
 * Without -a, only the kernel that kernel_find chooses for each type and mode is timed. */
#include "backend/cpu/kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/cpu.h"
#include "quant/f16.h"

enum { MAX_REPEATS = 101, MAX_THREADS = 64, MAX_ROWS = 128, PREFILL_N = 4096 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- weights --------------------------------------------------------------------------------- */

static uint32_t seed = 1;

static uint32_t random_bits(void) {
    seed = seed * 1664525 + 1013904223;
    return seed >> 8;
}

/* Random blocks that hold no infinite scale: halves are cut down to exponents below 15. */
static void random_rows(enum dtype type, uint8_t *to, uint64_t blocks) {
    static const int8_t offsets[DT_COUNT][2] = {
        [DT_Q4_0] = {0, 0}, [DT_Q4_1] = {0, 2},   [DT_Q5_0] = {0, 0},     [DT_Q5_1] = {0, 2},
        [DT_Q8_0] = {0, 0}, [DT_Q2_K] = {80, 82}, [DT_Q3_K] = {108, 108}, [DT_Q4_K] = {0, 2},
        [DT_Q5_K] = {0, 2}, [DT_IQ4_NL] = {0, 0}, [DT_IQ4_XS] = {0, 0},
    };
    const struct dtype_info *info = dtype_info((uint32_t)type);
    for (uint64_t b = 0; b < blocks; b++, to += info->block_bytes) {
        for (uint32_t i = 0; i < info->block_bytes; i++)
            to[i] = (uint8_t)random_bits();
        if (type == DT_MXFP4) {
            to[0] = (uint8_t)(118 + to[0] % 8);
        } else if (info->block_values == 1) {
            uint32_t last = info->block_bytes - 1;
            to[last] = (uint8_t)((to[last] & 0x80) | (type == DT_F16 ? 0x2c : 0x3d));
        } else {
            int at[2] = {type == DT_Q6_K ? 208 : offsets[type][0],
                         type == DT_Q6_K ? 208 : offsets[type][1]};
            for (int i = 0; i < 2; i++)
                to[at[i] + 1] = (uint8_t)(to[at[i] + 1] % 0x20);
        }
    }
}

struct weights {
    uint8_t *at;
    uint32_t k, n;
    uint64_t bytes;      /* as the kernel reads them */
    uint64_t file_bytes; /* as they are in the file */
};

/* Tiles made once and repeated: N rows of a packed (or file) matrix of at least `mib`. */
static struct weights weights_make(const struct kernel *kernel, uint32_t k, uint64_t mib) {
    enum { SAMPLE = 64 };
    const struct dtype_info *info = dtype_info((uint32_t)kernel->type);
    uint64_t row_bytes = (uint64_t)(k / info->block_values) * info->block_bytes;
    uint8_t *file = malloc(SAMPLE * row_bytes);
    random_rows(kernel->type, file, (uint64_t)SAMPLE * (k / info->block_values));
    uint64_t sample = kernel->pack ? kernel->packed_bytes(k, SAMPLE) : SAMPLE * row_bytes;
    uint64_t copies = (mib << 20) / sample + 1;
    struct weights w = {.k = k, .n = (uint32_t)(copies * SAMPLE), .bytes = copies * sample};
    w.file_bytes = w.n * row_bytes;
    w.at = aligned_alloc(2 << 20, (w.bytes + (2 << 20) - 1) >> 21 << 21);
    madvise(w.at, w.bytes, MADV_HUGEPAGE);
    if (kernel->pack)
        kernel->pack(file, k, SAMPLE, w.at);
    else
        memcpy(w.at, file, sample);
    for (uint64_t i = 1; i < copies; i++)
        memcpy(w.at + i * sample, w.at, sample);
    free(file);
    return w;
}

static struct activations acts_make(uint32_t n_rows, uint32_t k) {
    float *x = aligned_alloc(64, (size_t)n_rows * k * sizeof *x);
    struct act_group *groups = aligned_alloc(64, n_rows * act_group_stride(k) * sizeof *groups);
    for (size_t i = 0; i < (size_t)n_rows * k; i++)
        x[i] = (float)(int32_t)(random_bits() & 0xffff) / 32768.0f - 1.0f;
    for (uint32_t r = 0; r < n_rows; r++)
        act_groups(x + (size_t)r * k, k, 32, groups + r * act_group_stride(k));
    return (struct activations){.n_rows = n_rows,
                                .k = k,
                                .x = x,
                                .x_stride = k,
                                .groups = groups,
                                .group_stride = act_group_stride(k)};
}

/* ---- work for threads ------------------------------------------------------------------------ */

struct job {
    const struct kernel *kernel; /* NULL: plain reads */
    const struct weights *w;
    const struct activations *acts;
    float *out;
    uint32_t first, count;
    uint64_t sum;
    double seconds;
};

typedef uint64_t two __attribute__((vector_size(16)));

#if defined(__aarch64__)
/* In one stream, fetched far ahead into L2, as the kernels do it. */
static void read_weights(struct job *job) {
    enum { LINE = 4, AHEAD = 192 * LINE };
    uint64_t row = job->w->bytes / job->w->n, n = job->count * row / 64 * LINE;
    const two *at = (const two *)(const void *)(job->w->at + job->first * row / 64 * 64);
    two a = {0}, b = {0};
    for (const two *end = at + n; at < end; at += LINE) {
        __builtin_prefetch(at + AHEAD, 0, 2);
        a += at[0] + at[1];
        b += at[2] + at[3];
    }
    job->sum = a[0] + a[1] + b[0] + b[1];
}
#else
/* In eight streams, as the kernels do it: one stream alone is slower on some machines. */
static void read_weights(struct job *job) {
    enum { STREAMS = 8, LINE = 4 };
    uint64_t row = job->w->bytes / job->w->n, n = job->count * row / 64 / STREAMS * LINE;
    const two *from = (const two *)(const void *)(job->w->at + job->first * row / 64 * 64);
    two a = {0}, b = {0};
    for (uint64_t i = 0; i < n; i += LINE) {
        for (const two *at = from + i; at < from + STREAMS * n; at += n) {
            __builtin_prefetch(at + 16 * LINE);
            a += at[0] + at[1];
            b += at[2] + at[3];
        }
    }
    job->sum = a[0] + a[1] + b[0] + b[1];
}
#endif

static void *work(void *context) {
    struct job *job = context;
    double begin = now();
    if (job->kernel)
        job->kernel->run(job->w->at, job->first, job->count, job->acts, job->out + job->first,
                         job->w->n);
    else
        read_weights(job);
    job->seconds = now() - begin;
    return NULL;
}

/* Seconds for the first `n` weight rows on `threads` threads. */
static double time_once(const struct job *like, uint32_t n, int threads) {
    static volatile uint64_t sink;
    struct job jobs[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    uint32_t share = n / (uint32_t)threads / 64 * 64;
    for (int t = 0; t < threads; t++) {
        jobs[t] = *like;
        jobs[t].first = (uint32_t)t * share;
        jobs[t].count = t == threads - 1 ? n - jobs[t].first : share;
        if (t > 0)
            pthread_create(&ids[t], NULL, work, &jobs[t]);
    }
    work(&jobs[0]);
    for (int t = 1; t < threads; t++)
        pthread_join(ids[t], NULL);
    double seconds = 0;
    for (int t = 0; t < threads; t++) {
        sink = sink + jobs[t].sum;
        seconds = jobs[t].seconds > seconds ? jobs[t].seconds : seconds;
    }
    return seconds;
}

/* ---- the table ------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void time_decode(const struct kernel *kernel, const struct weights *w,
                        const struct activations *acts, float *out, int threads, int repeats) {
    double kernel_s[MAX_REPEATS], read_s[MAX_REPEATS];
    struct job job = {.kernel = kernel, .w = w, .acts = acts, .out = out}, read = {.w = w};
    for (int i = 0; i < repeats; i++) {
        read_s[i] = time_once(&read, w->n, threads);
        kernel_s[i] = time_once(&job, w->n, threads);
    }
    qsort(kernel_s, (size_t)repeats, sizeof *kernel_s, compare);
    qsort(read_s, (size_t)repeats, sizeof *read_s, compare);
    double gb = (double)w->bytes * 1e-9;
    printf(" %5.1f (%5.1f) of %5.1f %3.0f%%", gb / kernel_s[0], gb / kernel_s[repeats / 2],
           gb / read_s[0], 100 * read_s[0] / kernel_s[0]);
    fflush(stdout);
}

static void time_prefill(const struct kernel *kernel, const struct weights *w,
                         const struct activations *acts, uint32_t n_rows, float *out, int threads,
                         int repeats) {
    struct activations some = *acts;
    some.n_rows = n_rows;
    struct weights part = *w;
    part.n = w->n < PREFILL_N ? w->n : PREFILL_N;
    struct job job = {.kernel = kernel, .w = &part, .acts = &some, .out = out};
    double best = 1e9;
    for (int i = 0; i < (repeats + 1) / 2; i++) {
        double s = time_once(&job, part.n, threads);
        best = s < best ? s : best;
    }
    printf(" %6.0f", (double)part.n * w->k * n_rows * 1e-9 / best);
    fflush(stdout);
}

static void time_kernel(const struct kernel *kernel, uint32_t k, uint64_t mib, int repeats) {
    int threads = cpu_count() < MAX_THREADS ? cpu_count() : MAX_THREADS;
    struct weights w = weights_make(kernel, k, mib);
    struct activations acts = acts_make(MAX_ROWS, k), one = acts;
    one.n_rows = 1;
    size_t most = (size_t)PREFILL_N * MAX_ROWS;
    float *out = malloc((w.n > most ? w.n : most) * sizeof *out);
    printf("%-20s %+5.1f%% |", kernel->name, 100.0 * (double)w.bytes / (double)w.file_bytes - 100);
    time_decode(kernel, &w, &one, out, 1, repeats);
    printf(" |");
    time_decode(kernel, &w, &one, out, threads, repeats);
    printf(" |");
    time_prefill(kernel, &w, &acts, 64, out, 1, repeats);
    time_prefill(kernel, &w, &acts, 64, out, threads, repeats);
    time_prefill(kernel, &w, &acts, 128, out, 1, repeats);
    time_prefill(kernel, &w, &acts, 128, out, threads, repeats);
    printf("\n");
    free(out);
    free((void *)(uintptr_t)acts.x);
    free((void *)(uintptr_t)acts.groups);
    free(w.at);
}

static bool is_wanted(const struct kernel *kernel, bool all, char **names) {
    if (kernel->features & ~cpu_features())
        return false;
    if (!all && kernel != kernel_find(kernel->type, kernel->is_f32, cpu_features()))
        return false;
    for (char **name = names; *name; name++)
        if (strstr(kernel->name, *name))
            return true;
    return !*names;
}

int main(int argc, char **argv) {
    uint32_t k = 4096;
    uint64_t mib = 512;
    int repeats = 7, at = 1;
    bool all = false;
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (argv[at][1] == 'a')
            all = true;
        else if (at + 1 < argc && argv[at][1] == 'k')
            k = (uint32_t)atoi(argv[++at]);
        else if (at + 1 < argc && argv[at][1] == 'm')
            mib = (uint64_t)atoi(argv[++at]);
        else if (at + 1 < argc && argv[at][1] == 'r')
            repeats = atoi(argv[++at]);
    }
    if (k == 0 || k % 256 != 0 || mib == 0 || repeats < 1 || repeats > MAX_REPEATS) {
        fprintf(stderr, "usage: kernels [-k K] [-m MIB] [-r REPEATS] [-a] [NAME ...]\n");
        return 2;
    }
    int threads = cpu_count();
    printf("%s; %d threads; K %u; GB/s: best (median) of plain reads\n", cpu_feature_names(),
           threads, k);
    printf("%-20s %-6s | %-27s | decode %2d threads%11s | GMAC/s 64 rows 1, %d; 128 rows 1, %d\n",
           "kernel", "memory", "decode  1 thread", threads, "", threads, threads);
    const struct kernel *kernel;
    for (size_t i = 0; (kernel = kernel_at(i)); i++)
        if (is_wanted(kernel, all, argv + at))
            time_kernel(kernel, k, mib, repeats);
    return 0;
}
