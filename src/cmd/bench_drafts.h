/* bench_drafts.h - what drafts by the model's own block take, for bench. */
#ifndef CMD_BENCH_DRAFTS_H
#define CMD_BENCH_DRAFTS_H

#include "sluice.h"

struct bench_drafts {
    sluice_engine *engine;
    sluice_seq **seqs; /* (n_seqs) open, each with one waiting token; they generate */
    uint32_t n_seqs;
    uint32_t n_drafts; /* for each, in every pass */
    uint32_t n_passes;
    int32_t n_common; /* tokens fed are brought below it; 0: as they were sampled */
    /* Out: medians of a pass, and how many drafts were right of how many. */
    double draft_seconds, step_seconds;
    uint64_t kept, drafted;
};

/* Drafts, verifies, feeds, n_passes times. 0, or the exit status after one line. */
int bench_drafts(struct bench_drafts *b);

/* Tokens per second of all sequences, if each draft is right with that chance. */
double bench_drafts_rate(const struct bench_drafts *b, double chance);

#endif
