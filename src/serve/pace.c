/* pace.c - how many guessed tokens are worth their rows: measured rates, and the best of them. */
#include "serve/pace.h"

#include <stdbool.h>

#include "base/size.h"

enum {
    RETRY = 64,       /* guesses declined before one is drafted anyway, */
    RETRY_TOKENS = 3, /* and how much of it */
    REMEASURE = 64    /* drafts in a row before a step without is timed again */
};

static uint32_t size_of(uint32_t rows) {
    uint32_t i = 0;
    while (i + 1 < PACE_SIZES && 1u << i < rows)
        i++;
    return i;
}

static void note(double *at, double seconds) {
    const double newest = 0.25;
    *at = *at > 0 ? *at + newest * (seconds - *at) : seconds;
}

void pace_note(struct pace *p, uint32_t rows, double seconds) {
    note(&p->seconds[size_of(rows)], seconds);
}

void pace_note_draft(struct pace *p, uint32_t n_seqs, uint32_t n, double seconds) {
    note(&p->draft_seconds[size_of(n_seqs)], seconds / n);
}

double pace_seconds(const struct pace *p, uint32_t rows) {
    return p->seconds[size_of(rows)];
}

/* A larger size that was never run is assumed to take a quarter longer than the next smaller one:
 * so it is tried where most guesses are right. */
static double seconds_of(const double seconds[PACE_SIZES], uint32_t rows) {
    uint32_t i = size_of(rows);
    double factor = 1;
    for (; i > 0 && seconds[i] == 0; i--)
        factor *= 1.25;
    return factor * seconds[i];
}

static double step_seconds(const struct pace *p, uint32_t rows) {
    double seconds = seconds_of(p->seconds, rows);
    return seconds > 0 ? seconds : 1; /* then nothing is drafted */
}

/* Until it has run: a tenth of a step. */
double pace_draft_seconds(const struct pace *p, uint32_t n_seqs) {
    double seconds = seconds_of(p->draft_seconds, n_seqs);
    return seconds > 0 ? seconds : 0.1 * step_seconds(p, n_seqs);
}

void pace_learn(struct guess_record *r, uint32_t right, uint32_t n) {
    const float newest = 0.15f;
    for (uint32_t i = 0; i < n && i <= right; i++)
        r->rightness += newest * ((float)(i < right) - r->rightness);
}

uint32_t pace_choose(const struct pace *p, struct pace_step *step, struct guess_record *r,
                     uint32_t n_seqs, uint32_t max, double seconds_each) {
    double best = step->tokens / step_seconds(p, step->rows), tokens = step->tokens, chance = 1;
    struct pace_step with = *step;
    uint32_t n = 0;
    bool is_known = p->seconds[size_of(step->rows)] > 0 && r->n_taken < REMEASURE;
    for (uint32_t i = 1; i <= max && is_known; i++) {
        chance *= r->rightness;
        tokens += n_seqs * chance;
        double rate = tokens / (step_seconds(p, step->rows + i * n_seqs) + i * seconds_each);
        if (rate <= best)
            continue;
        best = rate;
        n = i;
        with = (struct pace_step){step->rows + i * n_seqs, tokens};
    }
    r->n_declined = n ? 0 : r->n_declined + (max > 0);
    r->n_taken = n ? r->n_taken + 1 : 0;
    if (r->n_declined < RETRY) {
        *step = with;
        return n;
    }
    r->n_declined = 0;
    n = min_u32(max, RETRY_TOKENS);
    step->rows += n * n_seqs;
    return n;
}
