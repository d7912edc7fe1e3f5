/* keep.c - what a verified row's recurrent state costs: kept in a cell of its own, or made again.
 *
 *     make bench-programs
 *     build/bench/lookup/keep MODEL [BACKEND [THREADS]]
 *
 * A step that verifies k drafts needs the state after the last one that is right, and which one
 * that is only the step itself finds out. Either every row's state is stored to a cell on the way
 * (one of them is the sequence's from then on), or none is, and the tokens that were right are run
 * again from the state before the step. Marks store states exactly as drafts do, so steps of 2 to
 * 16 rows are timed with a mark after every row and without one, in turns. What it says is the
 * median. */
#include <sluice.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { REPEATS = 41, MAX_ROWS = 16 };

static sluice_model *model;
static sluice_engine *engine;

static void check(int status) {
    if (status == SLUICE_OK)
        return;
    fprintf(stderr, "%s %s\n", sluice_model_error(model), sluice_engine_error(engine));
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *list) {
    qsort(list, REPEATS, sizeof *list, compare);
    return list[REPEATS / 2];
}

/* Seconds of a step of this many rows, other tokens in each call. */
static double time_step(uint32_t rows, int is_kept) {
    static int32_t seed = 1;
    int32_t tokens[MAX_ROWS];
    sluice_seq *seq;
    check(sluice_seq_open(&seq, engine));
    check(sluice_seq_want(seq, 0));
    for (uint32_t i = 0; i < rows; i++)
        tokens[i] = (seed = seed * 69069 + 1) >> 8 & 255;
    check(sluice_seq_feed(seq, tokens, rows));
    for (uint32_t i = 1; is_kept && i < rows; i++)
        check(sluice_seq_mark(seq, i));
    double started = now();
    check(sluice_engine_step(engine, &rows));
    double took = now() - started;
    sluice_seq_close(seq);
    return took;
}

int main(int argc, char **argv) {
    struct sluice_engine_options o = sluice_engine_options_default();
    double plain[REPEATS], kept[REPEATS], steps[MAX_ROWS + 1] = {0};
    if (argc < 2)
        return fprintf(stderr, "keep MODEL [BACKEND [THREADS]]\n") > 0;
    o.backend = argc > 2 ? argv[2] : "auto";
    o.threads = argc > 3 ? atoi(argv[3]) : 0;
    o.context = 256;
    o.snapshot_every = 256;
    o.sequences = o.batch = 48;
    o.snapshot_bytes = UINT64_MAX / 4;
    check(sluice_model_open(&model, argv[1]));
    check(sluice_engine_open(&engine, model, &o));
    printf("rows   step   every state kept   a state   replay of half of them\n");
    for (uint32_t rows = 1; rows <= MAX_ROWS; rows *= 2) {
        for (int i = 0; i < REPEATS; i++) {
            plain[i] = time_step(rows, 0);
            kept[i] = time_step(rows, 1);
        }
        steps[rows] = median(plain);
        double all = median(kept), more = all - steps[rows];
        printf("%4u %6.2f ms %15.2f ms %6.0f us %20.2f ms\n", rows, 1e3 * steps[rows], 1e3 * all,
               rows > 1 ? 1e6 * more / (rows - 1) : 0, 1e3 * steps[rows / 2]);
    }
    sluice_engine_close(engine);
    sluice_model_close(model);
}
