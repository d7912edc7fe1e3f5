/* api_completions.c - the OpenAI API's /v1/completions: texts that are continued. */
#include "serve/http/openai.h"

/* ---- what is asked ------------------------------------------------------------------------ */

/* A text, or tokens with texts among them, as llama.cpp's server takes them. */
static int add_one(struct ask *ask, const struct ask_model *m, const char *name, const json_t *one,
                   struct err *err) {
    if (json_is_string(one))
        return ask_add_text(ask, m, (struct str){json_string_value(one), json_string_length(one)},
                            err);
    if (json_array_size(one) > 0)
        return ask_add_parts(ask, m, name, one, err);
    return err_set(err, SLUICE_ERR_ARGUMENT, "%s has %s, expected texts or arrays of tokens", name,
                   json_is_array(one) ? "an empty array" : json_kind(one));
}

int openai_add_prompts(struct ask *ask, const struct ask_model *m, const char *name,
                       const json_t *prompt, struct err *err) {
    int status = SLUICE_OK;
    if (json_is_string(prompt) || ask_has_token(prompt))
        return add_one(ask, m, name, prompt, err);
    if (json_array_size(prompt) == 0)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "%s is %s, expected a text, tokens or an array of these", name,
                       json_is_array(prompt) ? "empty" : json_kind(prompt));
    if (json_array_size(prompt) > ASK_MAX_ANSWERS)
        return err_set(err, SLUICE_ERR_ARGUMENT, "%s has %zu texts, expected at most %d", name,
                       json_array_size(prompt), ASK_MAX_ANSWERS);
    for (size_t i = 0; !status && i < json_array_size(prompt); i++)
        status = add_one(ask, m, name, json_array_get(prompt, i), err);
    return status;
}

/* Each is some 500 bytes when the response is written, and a request of a few MB has many. */
static void check_prompt_logprobs(const struct ask *ask, struct fields *f) {
    enum { MAX_LOGPROBS = 1 << 21 };
    uint64_t n = 0;
    for (uint32_t i = 0; i < ask->n_prompts; i++)
        n += ask->prompts[i].n;
    n *= (uint64_t)ask->n * (1 + (uint64_t)ask->n_top);
    if (n > MAX_LOGPROBS)
        fields_refuse(f, "logprobs",
                      "%llu log probabilities of prompts are asked for, expected at most %d: fewer "
                      "prompts, answers or alternatives",
                      (unsigned long long)n, MAX_LOGPROBS);
}

static void want_prompt_logprobs(struct ask *ask, struct fields *f) {
    check_prompt_logprobs(ask, f);
    for (uint32_t i = 0; !f->wrong && i < ask->n_prompts; i++) {
        struct job_prompt *p = &ask->prompts[i];
        p->logprobs = calloc(p->n, sizeof(struct job_logprobs *));
        if (!p->logprobs)
            fields_refuse(f, "logprobs", "out of memory for log probabilities");
    }
}

/* max_tokens 0 is allowed with echo, for the prompt's log probabilities. */
static void read_lengths(struct ask *ask, struct fields *f) {
    const json_t *max_tokens = fields_any(f, "max_tokens");
    fields_bool(f, "echo", &ask->echoes);
    ask->is_silent =
        ask->echoes && json_is_number(max_tokens) && json_number_value(max_tokens) == 0;
    if (ask->is_silent) {
        ask_read_n(ask, f, "n");
        ask->max_tokens = 1;
    } else {
        openai_read_lengths(ask, f);
    }
}

static void read_all(struct ask *ask, struct fields *f, const struct ask_model *m) {
    struct err err = {0};
    const char *suffix = "";
    ask->max_tokens = 16; /* the API's own default */
    ask_read_sampling(ask, f, m);
    ask_read_stops(ask, f, "stop");
    read_lengths(ask, f);
    openai_read_stream_options(ask, f);
    ask_read_format(ask, f, m);
    fields_int(f, "logprobs", 0, ASK_MAX_TOP, &ask->n_top);
    fields_string(f, "suffix", &suffix);
    if (fields_any(f, "snapshot"))
        fields_refuse(f, "snapshot", "snapshot is of a conversation, expected messages");
    int64_t best_of = ask->n;
    fields_int(f, "best_of", 1, INT32_MAX, &best_of);
    if (best_of != ask->n)
        fields_refuse(f, "best_of",
                      "best_of is %lld, expected n, which is %lld: all answers are returned",
                      (long long)best_of, (long long)ask->n);
    const json_t *prompt = json_object_get(f->object, "prompt");
    if (!f->wrong && *suffix && !json_is_string(prompt))
        fields_refuse(f, "prompt", "prompt is %s, expected a string before the suffix",
                      json_kind(prompt));
    else if (!f->wrong && *suffix) {
        const struct ask_middle middle = {
            .before = {json_string_value(prompt), json_string_length(prompt)},
            .after = str_of(suffix),
        };
        if (ask_add_middle(ask, m, &middle, &err))
            fields_refuse(f, "suffix", "%s", err.text);
    } else if (!f->wrong && openai_add_prompts(ask, m, "prompt", prompt, &err))
        fields_refuse(f, "prompt", "%s", err.text);
    if (!f->wrong && ask->echoes && ask->n_top >= 0)
        want_prompt_logprobs(ask, f);
}

/* ---- what is answered --------------------------------------------------------------------- */

static const struct openai_chunk text_chunk = {"cmpl-", "text_completion"};

static const struct job_prompt *prompt_of(const struct answer *a) {
    return &a->ask->prompts[a->number / (size_t)a->ask->n];
}

/* Adds the prompt of an answer if it is echoed: as it was sent, or the text of its tokens. */
static void add_echo(const struct answer *a, struct buffer *text) {
    const json_t *prompt = json_object_get(a->ask->root, "prompt");
    const struct job_prompt *p = prompt_of(a);
    if (json_is_array(prompt) && !ask_has_token(prompt)) /* several */
        prompt = json_array_get(prompt, a->number / (size_t)a->ask->n);
    if (a->ask->echoes && json_is_string(prompt))
        buffer_add(text, json_string_value(prompt), json_string_length(prompt));
    else if (a->ask->echoes)
        ask_decode(a->m, p->tokens, p->n, false, text);
}

/* Tokens in this call's own form. */
struct token_lists {
    json_t *tokens, *values, *tops, *offsets;
    size_t offset; /* characters of text before the next */
};

/* Characters of a text that may begin or end inside of one. */
static size_t count_characters(struct str text) {
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++)
        n += ((unsigned char)text.at[i] & 0xC0) != 0x80;
    return n;
}

/* `l` NULL: unknown, as for the first token of a prompt. */
static void add_token(struct token_lists *to, const struct ask_model *m, int32_t token,
                      const struct job_logprobs *l) {
    struct str bytes, ignored;
    json_t *top = l ? json_object() : json_null();
    for (uint32_t k = 0; l && k < l->n; k++) {
        json_t *other = openai_token_text(m, l->top[k].token, &ignored);
        if (other && !json_object_get(top, json_string_value(other)))
            json_object_set_new(top, json_string_value(other), openai_number(l->top[k].logprob));
        json_decref(other);
    }
    json_t *text = openai_token_text(m, token, &bytes);
    if (l && text && !json_object_get(top, json_string_value(text))) /* as OpenAI does */
        json_object_set_new(top, json_string_value(text), openai_number(l->logprob));
    json_array_append_new(to->tokens, text);
    json_array_append_new(to->values, l ? openai_number(l->logprob) : json_null());
    json_array_append_new(to->tops, top);
    json_array_append_new(to->offsets, json_integer((json_int_t)to->offset));
    to->offset += count_characters(bytes);
}

/* Log probabilities of the tokens from `from` on, after those of the prompt if wanted; null if not
 * asked for. *offset: characters of text before them, and then after them. */
static json_t *logprobs_of(const struct answer *a, bool has_prompt, size_t from, size_t *offset) {
    const struct job_prompt *p = prompt_of(a);
    if (a->ask->n_top < 0)
        return json_null();
    has_prompt &= p->logprobs != NULL;
    struct token_lists to = {json_array(), json_array(), json_array(), json_array(), *offset};
    for (size_t i = 0; has_prompt && i < p->n; i++)
        add_token(&to, a->m, p->tokens[i], p->logprobs[i]);
    for (size_t i = from; i < a->n_emitted; i++)
        add_token(&to, a->m, a->content_tokens[i].token, a->content_tokens[i].logprobs);
    *offset = to.offset;
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", to.tokens, "token_logprobs", to.values,
                     "top_logprobs", to.tops, "text_offset", to.offsets);
}

/* The echo goes with the first text: only then are its log probabilities known. */
static void put_text(struct exchange *x, struct answer *a, struct str text) {
    struct buffer all = {0};
    json_t *logprobs = logprobs_of(a, !a->is_echoed, a->n_streamed, &a->offset);
    if (!a->is_echoed)
        add_echo(a, &all);
    buffer_add(&all, text.at, text.len);
    a->is_echoed = true;
    a->n_streamed = a->n_emitted;
    openai_put_chunk(x, &text_chunk, a, "text", json_of_text(buffer_str(&all)), logprobs);
    buffer_free(&all);
}

static void text_delta(struct exchange *x, struct answer *a, const struct answer_delta *delta) {
    put_text(x, a, delta->text);
}

static void text_end(struct exchange *x, struct answer *a) {
    put_text(x, a, STR(""));
}

static void text_done(struct exchange *x) {
    openai_put_end(x, &text_chunk);
}

static json_t *text_choice(const struct answer *a) {
    struct buffer text = {0};
    struct str content = buffer_str(&a->content);
    size_t offset = 0;
    add_echo(a, &text);
    buffer_add(&text, content.at, content.len);
    json_t *out = json_pack("{s:i, s:o, s:o, s:s}", "index", (int)a->number, "text",
                            json_of_text(buffer_str(&text)), "logprobs",
                            logprobs_of(a, true, 0, &offset), "finish_reason", openai_finish(a));
    buffer_free(&text);
    return out;
}

static json_t *text_whole(struct exchange *x) {
    return openai_whole(x, text_chunk.id_prefix, text_chunk.object, text_choice);
}

static const struct style text_style = {
    .stream_type = "text/event-stream",
    .ping = OPENAI_PING,
    .delta = text_delta,
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
