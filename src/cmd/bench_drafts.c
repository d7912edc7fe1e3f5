/* bench_drafts.c - what drafts by the model's own block take, and the step that verifies them.
 *
 * How many are right depends on model and text, and a synthetic model's are right by accident
 * alone. So times are measured, and rates computed for a given chance. Its tokens are no text,
 * either: any of the vocabulary. They are replaced by such as texts consist of, since what a draft
 * reads of the LM head follows from them (block_vocab in sluice.h). */
#include "cmd/bench_drafts.h"

#include <stdlib.h>

#include "base/clock.h"
#include "cmd/cmd.h"
#include "cmd/open.h"

static int pass(struct bench_drafts *b, double *draft, double *step) {
    double started = seconds_now();
    if (sluice_engine_draft(b->engine, b->seqs, b->n_seqs, b->n_drafts))
        return fail_engine(b->engine);
    double drafted = seconds_now();
    if (sluice_engine_step(b->engine, NULL))
        return fail_engine(b->engine);
    *draft = drafted - started;
    *step = seconds_now() - drafted;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        int32_t token = sluice_seq_token(b->seqs[i]);
        token = b->n_common ? token % b->n_common : token;
        if (sluice_seq_feed(b->seqs[i], &token, 1))
            return fail_engine(b->engine);
    }
    return 0;
}

static double median(double *x, uint32_t n) {
    qsort(x, n, sizeof *x, compare_doubles);
    return x[n / 2];
}

int bench_drafts(struct bench_drafts *b) {
    struct sluice_counters before, after;
    double *times = malloc(2 * (size_t)b->n_passes * sizeof *times);
    int exit = times ? 0 : complain(EXIT_WORLD, "out of memory for the times of steps");
    sluice_engine_counters(b->engine, &before);
    for (uint32_t i = 0; !exit && i < b->n_passes; i++)
        exit = pass(b, &times[i], &times[b->n_passes + i]);
    sluice_engine_counters(b->engine, &after);
    if (!exit) {
        b->draft_seconds = median(times, b->n_passes);
        b->step_seconds = median(times + b->n_passes, b->n_passes);
        b->kept = after.drafts_kept - before.drafts_kept;
        b->drafted = after.drafted - before.drafted;
    }
    free(times);
    return exit;
}

double bench_drafts_rate(const struct bench_drafts *b, double chance) {
    double tokens = 1, all = 1;
    for (uint32_t i = 0; i < b->n_drafts; i++)
        tokens += all *= chance;
    return b->n_seqs * tokens / (b->draft_seconds + b->step_seconds);
}
