/* ask.c - what a client asks for, in whichever API: the model, and the fields of a request. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/ask_internal.h"

/* ---- the model ---------------------------------------------------------------------------- */

int32_t ask_token_of(const sluice_model *model, const char *text) {
    int32_t tokens[4];
    size_t n = 0;
    bool is_one =
        sluice_encode(model, text, strlen(text), SLUICE_ENCODE_SPECIAL, tokens, 4, &n) == 0 &&
        n == 1;
    return is_one ? tokens[0] : -1;
}

/* True for a control token: one that gives no text. */
static bool is_silent(const sluice_model *model, int32_t token) {
    sluice_text *text;
    const char *at;
    size_t length, all = 0;
    if (token < 0 || sluice_text_open(&text, model, NULL, 0))
        return false;
    if (sluice_text_push(text, token, &at, &length) == SLUICE_OK)
        all += length;
    if (sluice_text_push(text, SLUICE_TEXT_END, &at, &length) == SLUICE_OK)
        all += length;
    sluice_text_close(text);
    return all == 0;
}

/* Tokens of a prompt with these tools; 0: the template rejects it. */
static size_t count_prompt(const struct ask_model *m, json_t *tools) {
    size_t n = 0;
    json_t *request = json_pack("{s:[{s:s, s:s}], s:o}", "messages", "role", "user", "content", "x",
                                "tools", tools);
    if (m->template)
        json_object_set_new(request, "chat_template", json_string(m->template));
    char *text = json_dumps(request, JSON_COMPACT);
    int status = text ? sluice_encode_chat(m->model, text, NULL, 0, &n, NULL, 0) : SLUICE_OK;
    json_decref(request);
    free(text);
    return status == SLUICE_ERR_ARGUMENT ? n : 0;
}

/* Whether the template renders tools. */
static bool takes_tools(const struct ask_model *m) {
    json_t *tool =
        json_pack("{s:s, s:{s:s, s:s, s:{s:s, s:{}}}}", "type", "function", "function", "name", "x",
                  "description", "x", "parameters", "type", "object", "properties");
    return count_prompt(m, json_pack("[o]", tool)) > count_prompt(m, json_array());
}

struct str ask_template(const struct ask_model *m) {
    struct str own;
    own.at = sluice_model_template(m->model, &own.len);
    return m->template ? str_of(m->template) : own;
}

void ask_model_fill(struct ask_model *m, const sluice_model *model) {
    static const char closing[] = "\n</think>\n\n";
    m->model = model;
    sluice_model_facts(model, &m->facts);
    m->think_open = ask_token_of(model, "<think>");
    m->think_close = ask_token_of(model, "</think>");
    m->think_is_silent = is_silent(model, m->think_close);
    m->python_tag = ask_token_of(model, "<|python_tag|>");
    m->tool_call = ask_token_of(model, "<tool_call>");
    if (is_silent(model, m->tool_call))
        m->tool_call = -1;
    m->takes_tools = takes_tools(m);
    m->n_closing = 0;
    if (m->think_close >= 0 &&
        sluice_encode(model, closing, sizeof closing - 1, SLUICE_ENCODE_SPECIAL, m->closing,
                      sizeof m->closing / sizeof *m->closing, &m->n_closing))
        m->n_closing = 0;
}

/* ---- requests ----------------------------------------------------------------------------- */

static uint64_t drawn_seed(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t x = (uint64_t)now.tv_sec * 1000000007u + (uint64_t)now.tv_nsec;
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
    return (x ^ x >> 29) >> 1;
}

struct ask *ask_open(json_t *root, const struct ask_model *m) {
    struct ask *ask = calloc(1, sizeof *ask);
    if (!ask)
        return NULL;
    ask->root = json_incref(root);
    ask->n = 1;
    ask->max_n = m->max_answers;
    ask->max_tokens = ask->n_top = ask->thinking_budget = -1;
    ask->sampling = m->sampling;
    ask->sampling.seed = drawn_seed();
    for (size_t i = 0; i < m->sampling.n_biases; i++)
        ask->biases[i] = m->sampling.biases[i];
    ask->sampling.biases = ask->biases;
    return ask;
}

void ask_close(struct ask *ask) {
    if (!ask)
        return;
    for (uint32_t i = 0; i < ask->n_prompts; i++) {
        const struct job_prompt *p = &ask->prompts[i];
        for (size_t k = 0; p->logprobs && k < p->n; k++)
            free(p->logprobs[k]);
        free(p->logprobs);
        free((void *)p->tokens);
    }
    free(ask->prompts);
    format_release(ask->format);
    format_release(ask->call);
    free(ask->hidden);
    json_decref(ask->begun);
    json_decref(ask->messages);
    json_decref(ask->tools);
    json_decref(ask->allowed);
    json_decref(ask->variables);
    json_decref(ask->root);
    free(ask);
}

void ask_set_variable(struct ask *ask, const char *name, json_t *value) {
    static const char *const ours[] = {"messages", "tools", "add_generation_prompt",
                                       "chat_template"};
    bool is_ours = false;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        is_ours |= strcmp(name, ours[i]) == 0;
    if (!ask->variables)
        ask->variables = json_object();
    if (is_ours)
        json_decref(value);
    else
        json_object_set_new(ask->variables, name, value);
}

void ask_read_stops(struct ask *ask, struct fields *f, const char *name) {
    const json_t *stop = fields_any(f, name), *one;
    size_t n = json_is_array(stop) ? json_array_size(stop) : stop ? 1 : 0;
    if (n > ASK_MAX_STOPS)
        fields_refuse(f, name, "%s has %zu texts, expected at most %d", name, n, ASK_MAX_STOPS);
    for (size_t i = 0; !f->wrong && i < n; i++) {
        one = json_is_array(stop) ? json_array_get(stop, i) : stop;
        size_t length = json_string_length(one);
        if (!json_is_string(one))
            fields_refuse(f, name, "%s is %s, expected a string or an array of strings", name,
                          json_kind(one));
        else if (strlen(json_string_value(one)) != length)
            fields_refuse(f, name, "%s has a zero byte, expected a text without", name);
        else if (length > 0) /* an empty one never stops anything */
            ask->stops[ask->n_stops++] = json_string_value(one);
    }
}

/* A token id in the one form JSON has for it, so that no id has two keys. -1: not an id. */
static int64_t id_of(const char *key) {
    int64_t id = *key && (key[0] != '0' || !key[1]) ? 0 : -1;
    for (; *key && id >= 0; key++)
        id = *key >= '0' && *key <= '9' && id <= INT32_MAX ? 10 * id + (*key - '0') : -1;
    return id;
}

/* In the OpenAI API -100 means never, in llama.cpp's false does. */
static void add_bias(struct ask *ask, struct fields *f, int32_t token, const json_t *value) {
    double bias = json_is_false(value) ? -100 : json_number_value(value);
    if ((!json_is_number(value) && !json_is_false(value)) || !(fabs(bias) <= 1000)) {
        char found[32];
        snprintf(found, sizeof found, "%g", bias);
        fields_refuse(f, "logit_bias", "logit_bias of %d is %s, expected -1000 to 1000", token,
                      json_is_number(value) ? found : json_kind(value));
    } else if (ask->sampling.n_biases == SLUICE_MAX_BIASES) {
        fields_refuse(f, "logit_bias", "logit_bias has more than %d tokens", SLUICE_MAX_BIASES);
    } else {
        ask->biases[ask->sampling.n_biases++] =
            (struct sluice_bias){token, bias <= -100 ? -INFINITY : (float)bias};
    }
}

/* {"ID": BIAS, ...} */
static void read_bias_object(struct ask *ask, struct fields *f, const struct ask_model *m) {
    const json_t *biases = NULL;
    const char *key;
    json_t *value;
    fields_object(f, "logit_bias", &biases);
    json_object_foreach((json_t *)biases, key, value) {
        int64_t token = id_of(key);
        if (token < 0 || token >= m->facts.n_tokens)
            fields_refuse(f, "logit_bias",
                          "logit_bias has the key '%.40s', expected a token id, 0 to %d", key,
                          m->facts.n_tokens - 1);
        if (f->wrong)
            return;
        add_bias(ask, f, (int32_t)token, value);
    }
}

/* llama.cpp's [[ID or TEXT, BIAS], ...]: a text stands for each of its tokens. */
static void read_bias_list(struct ask *ask, struct fields *f, const struct ask_model *m,
                           const json_t *list) {
    json_t *pair;
    size_t i;
    json_array_foreach(list, i, pair) {
        const json_t *what = json_array_get(pair, 0), *bias = json_array_get(pair, 1);
        int32_t tokens[SLUICE_MAX_BIASES];
        json_int_t id = json_integer_value(what);
        size_t n = 0;
        if (json_is_string(what)) {
            sluice_encode(m->model, json_string_value(what), json_string_length(what), 0, tokens,
                          SLUICE_MAX_BIASES, &n);
        } else if (json_is_integer(what) && id >= 0 && id < m->facts.n_tokens) {
            tokens[n++] = (int32_t)id;
        } else {
            fields_refuse(f, "logit_bias",
                          "logit_bias has %s at place %zu, expected [token, bias], a token being a "
                          "text or an id, 0 to %d",
                          json_is_integer(what) ? "another id" : json_kind(what ? what : pair), i,
                          m->facts.n_tokens - 1);
        }
        if (n > SLUICE_MAX_BIASES)
            fields_refuse(f, "logit_bias", "logit_bias has more than %d tokens", SLUICE_MAX_BIASES);
        for (size_t k = 0; k < n && !f->wrong; k++)
            add_bias(ask, f, tokens[k], bias);
        if (f->wrong)
            return;
    }
}

static void read_biases(struct ask *ask, struct fields *f, const struct ask_model *m) {
    const json_t *biases = fields_any(f, "logit_bias");
    if (json_is_array(biases))
        read_bias_list(ask, f, m, biases);
    else
        read_bias_object(ask, f, m);
}

void ask_read_n(struct ask *ask, struct fields *f, const char *name) {
    fields_int(f, name, 1, ask->max_n, &ask->n);
}

void ask_read_sampling(struct ask *ask, struct fields *f, const struct ask_model *m) {
    struct sluice_sampling *s = &ask->sampling;
    int64_t top_k = s->top_k, seed = -1;
    fields_float(f, "temperature", 0, 100, &s->temperature);
    fields_float(f, "top_p", 0, 1, &s->top_p);
    fields_float(f, "min_p", 0, 1, &s->min_p);
    fields_float(f, "repeat_penalty", 0.01, 100, &s->repeat_penalty);
    fields_float(f, "repetition_penalty", 0.01, 100, &s->repeat_penalty);
    fields_float(f, "presence_penalty", -100, 100, &s->presence_penalty);
    fields_float(f, "frequency_penalty", -100, 100, &s->frequency_penalty);
    fields_int(f, "top_k", -1, INT32_MAX, &top_k);
    fields_int(f, "seed", INT64_MIN, INT64_MAX, &seed);
    fields_bool(f, "stream", &ask->is_streamed);
    fields_bool(f, "ignore_eos", &ask->ignores_ends);
    read_biases(ask, f, m);
    s->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    if (fields_any(f, "seed"))
        s->seed = (uint64_t)seed;
    if (s->temperature > 0 && s->temperature < 1e-6f)
        s->temperature = 0;
}

/* Whether a value is outside of its usual range, and not the server's own. */
static bool is_unusual(float value, float own, float min, float max) {
    return value != own && !(value >= min && value <= max);
}

bool ask_is_steered(const struct ask *ask, const struct ask_model *m) {
    const struct sluice_sampling *s = &ask->sampling, *own = &m->sampling;
    bool is_biased = false;
    for (size_t i = own->n_biases; i < s->n_biases; i++)
        is_biased |= s->biases[i].token != m->think_open; /* whether it thinks, not what */
    return is_biased || ask->ignores_ends || is_unusual(s->temperature, own->temperature, 0, 2) ||
           is_unusual(s->repeat_penalty, own->repeat_penalty, 0.5f, 2) ||
           is_unusual(s->presence_penalty, own->presence_penalty, -2, 2) ||
           is_unusual(s->frequency_penalty, own->frequency_penalty, -2, 2);
}

void ask_set_effort(struct ask *ask, struct fields *f, const char *field, const char *name,
                    const char *word) {
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    bool is_known = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        is_known |= strcmp(word, words[i]) == 0;
    if (is_known)
        ask_set_variable(ask, "reasoning_effort", json_string(word));
    else
        fields_refuse(f, field,
                      "%s is %.40s, expected %snone, minimal, low, medium, high, xhigh or max",
                      name, word, strcmp(field, "think") == 0 ? "true, false, " : "");
}
