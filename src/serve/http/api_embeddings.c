/* api_embeddings.c - vectors of texts: /v1/embeddings of the OpenAI API, /api/embed and
 * /api/embeddings of Ollama's.
 *
 * A text's vector is its pooled hidden state (worker.h), normalized; truncated to fewer dimensions
 * it is normalized again. */
#include <math.h>

#include "serve/http/openai.h"

/* ---- what is asked ------------------------------------------------------------------------ */

static void check_model(struct fields *f, const struct ask_model *m, const char *name) {
    int pooling = m->facts.pooling;
    if (!m->has_hidden)
        fields_refuse(f, name, "embeddings are off: start the server with --embeddings");
    else if (pooling != SLUICE_POOL_MEAN && pooling != SLUICE_POOL_LAST)
        fields_refuse(f, name, "%s.pooling_type is %d, expected %d (mean) or %d (last)",
                      m->facts.architecture, pooling, SLUICE_POOL_MEAN, SLUICE_POOL_LAST);
}

/* The texts of a field. */
static void read_input(struct ask *ask, struct fields *f, const struct ask_model *m,
                       const char *name) {
    struct err err = {0};
    int64_t ignored;
    ask->max_tokens = 1; /* the token sampled after a text is not used */
    ask->sampling.temperature = 0;
    check_model(f, m, name);
    fields_int(f, "dimensions", 1, m->facts.width, &ignored);
    if (!f->wrong && openai_add_prompts(ask, m, name, fields_any(f, name), &err))
        fields_refuse(f, name, "%s", err.text);
    if (f->wrong)
        return;
    ask->hidden = calloc(ask->n_prompts, m->facts.width * sizeof *ask->hidden);
    if (!ask->hidden)
        fields_refuse(f, name, "out of memory for a request");
}

/* ---- what is answered --------------------------------------------------------------------- */

static uint32_t dimensions_of(const struct exchange *x) {
    const json_t *asked = json_object_get(x->ask->root, "dimensions");
    return json_is_number(asked) ? (uint32_t)json_number_value(asked)
                                 : x->server->model.facts.width;
}

/* The vector of a text, whose hidden state it overwrites. */
static const float *vector_of(const struct exchange *x, uint32_t number, uint32_t n) {
    float *at = x->ask->hidden + (size_t)number * x->server->model.facts.width;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)at[i] * (double)at[i];
    double scale = sum > 0 ? 1 / sqrt(sum) : 0;
    for (uint32_t i = 0; i < n; i++)
        at[i] = (float)((double)at[i] * scale);
    return at;
}

static json_t *numbers_json(const float *at, uint32_t n) {
    json_t *out = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(out, json_real((double)at[i]));
    return out;
}

/* The bytes of the f32 values, little-endian as on every supported machine. */
static json_t *base64_json(const float *at, uint32_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = (const unsigned char *)at;
    size_t length = n * sizeof *at;
    struct buffer text = {0};
    for (size_t i = 0; i < length; i += 3) {
        size_t left = length - i;
        uint32_t three = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                         (left > 2 ? bytes[i + 2] : 0);
        const char four[4] = {digits[three >> 18], digits[three >> 12 & 63],
                              left > 1 ? digits[three >> 6 & 63] : '=',
                              left > 2 ? digits[three & 63] : '='};
        buffer_add(&text, four, sizeof four);
    }
    json_t *out = text.has_failed ? NULL : json_stringn_nocheck(text.at, text.len);
    buffer_free(&text);
    return out;
}

static json_t *openai_embeddings(struct exchange *x) {
    const char *encoding = json_string_value(json_object_get(x->ask->root, "encoding_format"));
    bool is_base64 = encoding && strcmp(encoding, "base64") == 0;
    uint32_t n = dimensions_of(x);
    json_int_t tokens = (json_int_t)exchange_usage(x).prompt;
    json_t *data = json_array();
    for (uint32_t i = 0; i < x->ask->n_prompts; i++) {
        const float *at = vector_of(x, i, n);
        json_array_append_new(
            data, json_pack("{s:s, s:i, s:o}", "object", "embedding", "index", (int)i, "embedding",
                            is_base64 ? base64_json(at, n) : numbers_json(at, n)));
    }
    return json_pack("{s:s, s:o, s:o, s:{s:I, s:I}}", "object", "list", "data", data, "model",
                     json_of_text(str_of(x->server->model.name)), "usage", "prompt_tokens", tokens,
                     "total_tokens", tokens);
}

static json_t *ollama_embeddings(struct exchange *x) {
    json_t *vectors = json_array();
    uint32_t n = dimensions_of(x);
    for (uint32_t i = 0; i < x->ask->n_prompts; i++)
        json_array_append_new(vectors, numbers_json(vector_of(x, i, n), n));
    return json_pack("{s:o, s:o, s:I, s:i, s:I}", "model",
                     json_of_text(str_of(x->server->model.name)), "embeddings", vectors,
                     "total_duration", (json_int_t)(1e9 * x->answers[0].end->report.seconds),
                     "load_duration", 0, "prompt_eval_count", (json_int_t)exchange_usage(x).prompt);
}

static json_t *ollama_embedding(struct exchange *x) {
    uint32_t n = dimensions_of(x);
    return json_pack("{s:o}", "embedding", numbers_json(vector_of(x, 0, n), n));
}

static const struct style openai_style = {.whole = openai_embeddings};
static const struct style ollama_style = {.whole = ollama_embeddings};
static const struct style ollama_one_style = {.whole = ollama_embedding};

static bool is_nothing(const json_t *input) {
    return !input || (json_is_string(input) && json_string_length(input) == 0) ||
           (json_is_array(input) && json_array_size(input) == 0);
}

/* `nothing` answers a request without a text, by which Ollama's clients load a model; NULL: it is
 * refused. Taken. */
static void embed(struct exchange *x, const char *name, const struct style *style,
                  json_t *nothing) {
    struct fields f;
    struct ask *ask = exchange_ask(x, &f);
    const char *encoding = "float";
    if (ask && nothing && !f.wrong && is_nothing(fields_any(&f, name))) {
        ask_close(ask);
        exchange_reply_json(x, 200, nothing);
        return;
    }
    json_decref(nothing);
    if (!ask)
        return;
    fields_string(&f, "encoding_format", &encoding);
    if (!f.wrong && strcmp(encoding, "float") != 0 && strcmp(encoding, "base64") != 0)
        fields_refuse(&f, "encoding_format", "encoding_format is '%.40s', expected float or base64",
                      encoding);
    read_input(ask, &f, &x->server->model, name);
    exchange_converse(x, ask, &f, style);
}

void openai_embed(struct exchange *x) {
    embed(x, "input", &openai_style, NULL);
}

void ollama_embed(struct exchange *x) {
    embed(x, "input", &ollama_style,
          json_pack("{s:o, s:[], s:i, s:i, s:i}", "model",
                    json_of_text(str_of(x->server->model.name)), "embeddings", "total_duration", 0,
                    "load_duration", 0, "prompt_eval_count", 0));
}

void ollama_embed_one(struct exchange *x) {
    embed(x, "prompt", &ollama_one_style, json_pack("{s:[]}", "embedding"));
}
