/* worker_logprobs.c - log probabilities of a token and of the likeliest. */
#include <stdlib.h>

#include "base/log_sum.h"
#include "serve/worker_internal.h"

/* The n likeliest into w->top, best first; of equals the lower id. */
static void find_top(struct worker *w, const float *logits, uint32_t n) {
    uint32_t found = 0;
    for (int32_t t = 0; t < w->n_tokens; t++) {
        if (found == n && !(logits[t] > w->top[n - 1].logit))
            continue;
        uint32_t at = found < n ? found++ : n - 1;
        for (; at > 0 && logits[t] > w->top[at - 1].logit; at--)
            w->top[at] = w->top[at - 1];
        w->top[at].token = t;
        w->top[at].logit = logits[t];
    }
}

struct job_logprobs *worker_logprobs(struct worker *w, const float *logits, int32_t token,
                                     int n_top) {
    uint32_t capacity = sizeof w->top / sizeof *w->top,
             n = (uint32_t)n_top < capacity ? (uint32_t)n_top : capacity;
    n = n < (uint32_t)w->n_tokens ? n : (uint32_t)w->n_tokens;
    struct job_logprobs *out = malloc(sizeof *out + n * sizeof *out->top);
    if (!out)
        return NULL;
    double sum = log_sum_exp(logits, w->n_tokens);
    if (n > 0)
        find_top(w, logits, n);
    out->logprob = (float)((double)logits[token] - sum);
    out->n = n;
    for (uint32_t i = 0; i < n; i++) {
        out->top[i].token = w->top[i].token;
        out->top[i].logprob = (float)((double)w->top[i].logit - sum);
    }
    return out;
}
