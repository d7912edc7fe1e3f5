/* api_completions.c - the OpenAI API's /v1/completions: texts that are continued. */
#include "serve/http/openai.h"

/* ---- what is asked ----------------------------------------------------------------------------
 */

int openai_add_prompts(struct ask *ask, const struct ask_model *m, const char *name,
                       const json_t *prompt, struct err *err) {
    int status = SLUICE_OK;
    const json_t *first = json_array_get(prompt, 0);
    if (json_is_string(prompt))
        return ask_add_text(
            ask, m, (struct str){json_string_value(prompt), json_string_length(prompt)}, err);
    if (json_is_integer(first))
        return ask_add_ids(ask, m, prompt, err);
    if (!json_is_array(prompt) || !first)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "%s is %s, expected a text, tokens or an array of these", name,
                       json_is_array(prompt) ? "empty" : json_kind(prompt));
    for (size_t i = 0; !status && i < json_array_size(prompt); i++) {
        const json_t *one = json_array_get(prompt, i);
        if (json_is_string(one) || json_is_array(one))
            status = openai_add_prompts(ask, m, name, one, err);
        else
            status = err_set(err, SLUICE_ERR_ARGUMENT,
                             "%s has %s, expected texts or arrays of tokens", name, json_kind(one));
    }
    return status;
}

static void read_all(struct ask *ask, struct fields *f, const struct ask_model *m) {
    struct err err = {0};
    const char *suffix = "";
    ask->most = 16; /* the API's own default */
    ask_read_sampling(ask, f, m);
    ask_read_stops(ask, f, "stop");
    openai_read_lengths(ask, f);
    openai_read_stream_options(ask, f);
    ask_read_format(ask, f, m);
    fields_int(f, "logprobs", 0, ASK_MAX_TOP, &ask->n_top);
    fields_bool(f, "echo", &ask->echoes);
    fields_string(f, "suffix", &suffix);
    if (!f->wrong && *suffix)
        fields_refuse(f, "suffix", "suffix is not supported: this model only continues texts");
    if (!f->wrong && ask->echoes && ask->n_top >= 0)
        fields_refuse(f, "echo", "echo with logprobs is not supported");
    if (!f->wrong &&
        openai_add_prompts(ask, m, "prompt", json_object_get(f->object, "prompt"), &err))
        fields_refuse(f, "prompt", "%s", err.text);
}

/* ---- what is answered -------------------------------------------------------------------------
 */

static const struct openai_chunk text_chunk = {"cmpl-", "text_completion"};

/* The prompt of an answer, where it is to be echoed. */
static struct str echo_of(const struct answer *a) {
    const json_t *prompt = json_object_get(a->ask->root, "prompt");
    if (json_is_array(prompt))
        prompt = json_array_get(prompt, a->number / (size_t)a->ask->n);
    bool has_text = a->ask->echoes && json_is_string(prompt);
    return has_text ? (struct str){json_string_value(prompt), json_string_length(prompt)} : STR("");
}

/* The tokens from `from` on in this call's own form; `offset`: bytes of text before them. */
static json_t *logprobs_of(const struct answer *a, size_t from) {
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(),
           *offsets = json_array();
    size_t offset = 0;
    if (a->ask->n_top < 0)
        from = a->n_said;
    for (size_t i = 0; i < a->n_said; i++) {
        const struct job_logprobs *l = a->said[i].logprobs;
        json_t *text = openai_token_text(a->m, a->said[i].token), *top = json_object();
        size_t length = json_string_length(text);
        for (uint32_t k = 0; i >= from && k < l->n; k++) {
            json_t *other = openai_token_text(a->m, l->top[k].token);
            if (other && !json_object_get(top, json_string_value(other)))
                json_object_set_new(top, json_string_value(other),
                                    openai_number(l->top[k].logprob));
            json_decref(other);
        }
        if (i >= from) {
            json_array_append(tokens, text);
            json_array_append_new(values, openai_number(l->logprob));
            json_array_append(tops, top);
            json_array_append_new(offsets, json_integer((json_int_t)offset));
        }
        json_decref(text);
        json_decref(top);
        offset += length;
    }
    json_t *all = json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values,
                            "top_logprobs", tops, "text_offset", offsets);
    if (a->ask->n_top >= 0)
        return all;
    json_decref(all);
    return json_null();
}

static void put_text(struct exchange *x, struct answer *a, struct str text) {
    json_t *logprobs = logprobs_of(a, a->n_told);
    a->n_told = a->n_said;
    openai_put_chunk(x, &text_chunk, a, "text", json_of_text(text), logprobs);
}

static void text_begin(struct exchange *x) {
    for (uint32_t i = 0; x->ask->echoes && i < x->n_answers; i++)
        put_text(x, &x->answers[i], echo_of(&x->answers[i]));
}

static void text_piece(struct exchange *x, struct answer *a, const struct piece *piece) {
    put_text(x, a, piece->text);
}

static void text_end(struct exchange *x, struct answer *a) {
    put_text(x, a, STR(""));
}

static void text_done(struct exchange *x) {
    openai_put_end(x, &text_chunk);
}

static json_t *text_choice(const struct answer *a) {
    struct buffer text = {0};
    struct str echo = echo_of(a), content = buffer_str(&a->content);
    buffer_add(&text, echo.at, echo.len);
    buffer_add(&text, content.at, content.len);
    json_t *out = json_pack("{s:i, s:o, s:o, s:s}", "index", (int)a->number, "text",
                            json_of_text(buffer_str(&text)), "logprobs", logprobs_of(a, 0),
                            "finish_reason", openai_finish(a));
    buffer_free(&text);
    return out;
}

static json_t *text_whole(struct exchange *x) {
    return openai_whole(x, text_chunk.id_prefix, text_chunk.object, text_choice);
}

static const struct style text_style = {
    .stream_type = "text/event-stream",
    .begin = text_begin,
    .piece = text_piece,
    .end = text_end,
    .done = text_done,
    .fail = openai_put_failure,
    .whole = text_whole,
};

void openai_complete(struct exchange *x) {
    struct fields f;
    struct ask *ask = exchange_ask(x, &f);
    if (!ask)
        return;
    read_all(ask, &f, &x->server->model);
    exchange_converse(x, ask, &f, &text_style);
}
