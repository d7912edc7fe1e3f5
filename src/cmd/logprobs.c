/* logprobs.c - how likely each token of a text was, and what else was likely there. */
#include "cmd/logprobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log_sum.h"
#include "cmd/cmd.h"

/* Keeps the n_top best of what it is offered, best first; equal ones in order of their ids. */
static void offer(struct logprob *top, uint32_t n_top, uint32_t *n, struct logprob one) {
    if (*n == n_top && (n_top == 0 || top[n_top - 1].value >= one.value))
        return;
    uint32_t i = *n < n_top ? (*n)++ : n_top - 1;
    for (; i > 0 && top[i - 1].value < one.value; i--)
        top[i] = top[i - 1];
    top[i] = one;
}

int logprobs_push(struct logprobs *l, const float *logits, int32_t n, int32_t token,
                  struct err *err) {
    size_t width = 1 + l->n_top;
    if (!array_grow(&l->at, l->n_rows, &l->capacity, width * sizeof *l->at))
        return err_memory(err, "the tokens' probabilities");
    struct logprob *row = l->at + l->n_rows++ * width;
    float total = (float)log_sum_exp(logits, n);
    uint32_t n_found = 0;
    for (uint32_t i = 0; i < width; i++)
        row[i] = (struct logprob){.token = -1}; /* a vocabulary may be smaller than the list */
    row[0] = (struct logprob){token, logits[token] - total};
    for (int32_t i = 0; i < n; i++)
        offer(row + 1, l->n_top, &n_found, (struct logprob){i, logits[i] - total});
    return SLUICE_OK;
}

void logprobs_free(struct logprobs *l) {
    free(l->at);
    *l = (struct logprobs){0};
}

static json_t *one_json(const struct logprob *p, const struct tokenizer *t) {
    return json_pack("{s:i, s:o, s:f}", "id", (int)p->token, "token",
                     json_text(tokenizer_bytes(t, p->token)), "logprob", (double)p->value);
}

json_t *logprobs_json(const struct logprobs *l, const struct tokenizer *t) {
    json_t *list = json_array();
    for (size_t i = 0; i < l->n_rows; i++) {
        const struct logprob *row = l->at + i * (1 + l->n_top);
        json_t *object = one_json(row, t), *top = json_array();
        for (uint32_t k = 1; k <= l->n_top && row[k].token >= 0; k++)
            json_array_append_new(top, one_json(&row[k], t));
        json_object_set_new(object, "top", top);
        json_array_append_new(list, object);
    }
    return list;
}

void logprobs_say(const struct logprobs *l, const struct tokenizer *t) {
    char line[4096], piece[160];
    for (size_t i = 0; i < l->n_rows; i++) {
        const struct logprob *row = l->at + i * (1 + l->n_top);
        size_t used = 0;
        for (uint32_t k = 0; k <= l->n_top && row[k].token >= 0 && used < sizeof line; k++)
            used += (size_t)snprintf(line + used, sizeof line - used, "%s%s %.3f",
                                     k == 0   ? ""
                                     : k == 1 ? "  | "
                                              : ", ",
                                     quoted(tokenizer_bytes(t, row[k].token), piece, sizeof piece),
                                     (double)row[k].value);
        say(SAY_NORMAL, "%s", line);
    }
}
