/* step_facts.h - one step of an engine, op by op: what each reads and writes, how long it takes and
 * which kernels it is. `explain` prints these facts, the server's page draws them. */
#ifndef CMD_STEP_FACTS_H
#define CMD_STEP_FACTS_H

#include <jansson.h>

#include "engine/engine.h"

/* Fill in the first part, and the plan with step_facts_find. */
struct step_facts {
    sluice_engine *engine; /* borrowed */
    int rows, depth, repeats;
    int sequences;    /* that the rows belong to */
    bool has_kernels; /* include kernels, if the backend has any */

    const struct plan *plan;
    uint32_t plan_number;
    double *seconds;  /* of each op, the median of all repeats; NULL: not timed; owned */
    double bandwidth; /* GB/s of the device; 0: not known */
    double peak;      /* TFLOP/s of its tensor cores; 0: not known */
};

void step_facts_find(struct step_facts *f);
void step_facts_free(struct step_facts *f); /* what it owns */

/* Rows of sequence i; whether rows are parts of prompts. */
int step_facts_rows_of(const struct step_facts *f, int i);
bool step_facts_is_prompt(const struct step_facts *f);

/* Feeds n arbitrary tokens, which depend on i. Exit status. */
int step_facts_feed(sluice_engine *engine, sluice_seq *seq, int i, int n);
/* Opens the sequences, `depth` tokens deep. Exit status; those that were opened are not NULL. */
int step_facts_open(const struct step_facts *f, sluice_engine *engine, sluice_seq **seqs);
/* Runs the step `repeats` times after a warm-up, and fills in seconds. Exit status; its sequences
 * are closed again. Called by the thread that owns the engine. */
int step_facts_time(struct step_facts *f);

struct op_use step_facts_use(const struct step_facts *f);
struct op_traffic step_facts_traffic(const struct step_facts *f, uint32_t op);
/* An op's bandwidth use, by its bytes of weights and state, in percent of the limit; 0: unknown. */
double step_facts_percent(const struct step_facts *f, const struct op_traffic *t, double seconds);
/* TFLOP/s of this many operations, and in percent of the peak; 0: unknown. */
double step_facts_speed(double flops, double seconds);
double step_facts_peak_percent(const struct step_facts *f, double flops, double seconds);
/* Kernel k of an op; false after the last, and on backends without kernels. */
bool step_facts_kernel(const struct step_facts *f, uint32_t op, uint32_t k,
                       struct backend_kernel *out);
/* All of it; NULL: memory ran out. has_operands: the operands of each op too. */
json_t *step_facts_json(const struct step_facts *f, bool has_operands);

#endif
