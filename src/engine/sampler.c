/* sampler.c - how tokens are picked: defaults, limits, and the parameters for a step.
 *
 * The picking itself is an op of the plan and runs where the logits are. */
#include <math.h>

#include "engine/engine.h"
#include "plan/io.h"

/* ---- defaults ----------------------------------------------------------------------------- */

/* What files call the parameters: a key of a GGUF file, a member of generation_config.json. */
static const struct parameter {
    const char *key, *member;
    size_t at;
    bool is_count;
} parameters[] = {
#define AT(field) offsetof(struct sluice_sampling, field)
    {"general.sampling.temp", "temperature", AT(temperature), false},
    {"general.sampling.top_k", "top_k", AT(top_k), true},
    {"general.sampling.top_p", "top_p", AT(top_p), false},
    {"general.sampling.min_p", "min_p", AT(min_p), false},
    {"general.sampling.penalty_repeat", "repetition_penalty", AT(repeat_penalty), false},
#undef AT
};

static bool find_value(const struct model *m, const struct parameter *p, double *value) {
    const json_t *member = m->folder ? json_object_get(m->folder->generation, p->member) : NULL;
    const struct gguf_key *key = m->file ? gguf_key(m->file, p->key) : NULL;
    bool is_number = key && !key->is_array && key->type != GGUF_STRING && key->type != GGUF_BOOL;
    if (is_number)
        *value = gguf_float_at(key, 0);
    else if (json_is_number(member))
        *value = json_number_value(member);
    else
        return false;
    return true;
}

void sampler_defaults(struct sluice_sampling *s, const struct model *m) {
    *s = (struct sluice_sampling){.temperature = 0.8f, .top_p = 0.95f, .repeat_penalty = 1};
    for (size_t i = 0; m && i < sizeof parameters / sizeof *parameters; i++) {
        const struct parameter *p = &parameters[i];
        struct sluice_sampling with = *s;
        double value;
        if (!find_value(m, p, &value))
            continue;
        void *at = (char *)&with + p->at;
        if (p->is_count)
            *(uint32_t *)at = value > 0 && value < UINT32_MAX ? (uint32_t)value : 0;
        else
            *(float *)at = (float)value;
        if (sampler_check(&with, INT32_MAX, NULL) ==
            SLUICE_OK) /* values out of range are ignored */
            *s = with;
    }
}

/* ---- limits ------------------------------------------------------------------------------- */

static int check_value(const char *name, float value, float min, float max, struct err *err) {
    if (value >= min && value <= max)
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_ARGUMENT, "%s is %g, expected %g to %g", name, (double)value,
                   (double)min, (double)max);
}

/* Keeps (logits + biases) / temperature far below the limit of f32. */
#define MIN_TEMPERATURE 1e-6f
#define MAX_BIAS 1e9f

static int check_temperature(float value, struct err *err) {
    if (value == 0 || (value >= MIN_TEMPERATURE && value <= 100))
        return SLUICE_OK;
    return err_set(err, SLUICE_ERR_ARGUMENT, "temperature is %g, expected 0, or %g to 100",
                   (double)value, (double)MIN_TEMPERATURE);
}

static int check_biases(const struct sluice_sampling *s, int32_t n_tokens, struct err *err) {
    if (s->n_biases > SLUICE_MAX_BIASES)
        return err_set(err, SLUICE_ERR_ARGUMENT, "%zu logit biases, expected at most %d",
                       s->n_biases, SLUICE_MAX_BIASES);
    if (s->n_biases && !s->biases)
        return err_set(err, SLUICE_ERR_ARGUMENT, "%zu logit biases, but their pointer is NULL",
                       s->n_biases);
    for (size_t i = 0; i < s->n_biases; i++) {
        const struct sluice_bias *b = &s->biases[i];
        if (b->token < 0 || b->token >= n_tokens)
            return err_set(err, SLUICE_ERR_ARGUMENT,
                           "a logit bias is for token %d, expected 0 to %d", b->token,
                           n_tokens - 1);
        if (!(fabsf(b->bias) <= MAX_BIAS) && b->bias != -INFINITY)
            return err_set(err, SLUICE_ERR_ARGUMENT,
                           "the logit bias of token %d is %g, expected -%g to %g, or -inf",
                           b->token, (double)b->bias, (double)MAX_BIAS, (double)MAX_BIAS);
    }
    return SLUICE_OK;
}

int sampler_check(const struct sluice_sampling *s, int32_t n_tokens, struct err *err) {
    int status;
    if ((status = check_temperature(s->temperature, err)) ||
        (status = check_value("top_p", s->top_p, 0, 1, err)) ||
        (status = check_value("min_p", s->min_p, 0, 1, err)) ||
        (status = check_value("repeat_penalty", s->repeat_penalty, 0.01f, 100, err)) ||
        (status = check_value("presence_penalty", s->presence_penalty, -100, 100, err)) ||
        (status = check_value("frequency_penalty", s->frequency_penalty, -100, 100, err)))
        return status;
    return check_biases(s, n_tokens, err);
}

/* ---- a step ------------------------------------------------------------------------------- */

uint32_t sampler_fill(const struct sluice_seq *seq, struct io_output *out, struct io_bias *biases) {
    const struct sluice_sampling *s = &seq->sampling;
    out->temperature = s->temperature;
    out->top_k = s->top_k;
    out->top_p = s->top_p;
    out->min_p = s->min_p;
    out->repeat_penalty = s->repeat_penalty;
    out->presence_penalty = s->presence_penalty;
    out->frequency_penalty = s->frequency_penalty;
    out->seed = s->seed;
    out->n_vocab = seq->n_pick;
    out->n_bias = (uint32_t)s->n_biases;
    for (size_t i = 0; i < s->n_biases; i++)
        biases[i] = (struct io_bias){seq->biases[i].token, seq->biases[i].bias};
    return out->n_bias;
}
