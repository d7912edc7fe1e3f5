/* api_llama.c - llama.cpp's own API: /completion, /infill, /props, /apply-template, /tokenize,
 * /detokenize. */
#include <string.h>

#include "serve/http/openai.h"

/* ---- what is asked ------------------------------------------------------------------------ */

static void check_response_fields(struct fields *f) {
    const json_t *paths = NULL;
    json_t *path;
    size_t i;
    fields_array(f, "response_fields", &paths);
    json_array_foreach(paths, i, path) {
        if (!json_is_string(path))
            fields_refuse(f, "response_fields", "response_fields has %s, expected strings",
                          json_kind(path));
    }
}

/* A temperature below 0 and a penalty of 0 mean the same as none. Other APIs refuse them. */
static void turn_off(json_t *request) {
    const json_t *penalty = json_object_get(request, "repeat_penalty");
    if (json_number_value(json_object_get(request, "temperature")) < 0)
        json_object_set_new(request, "temperature", json_integer(0));
    if (json_is_number(penalty) && json_number_value(penalty) == 0)
        json_object_set_new(request, "repeat_penalty", json_integer(1));
}

/* The prompt aside. Seeds of -1, also as 32 bits without a sign, mean any: the one that is drawn
 * is in the response, so it has 31 bits, which clients in JavaScript can send back. n_predict 0
 * processes the prompt alone, below 0 has no limit. */
static void read_settings(struct ask *ask, struct fields *f, const struct ask_model *m) {
    uint64_t drawn = ask->sampling.seed &= INT32_MAX;
    int64_t n_probs = 0;
    turn_off(ask->root);
    ask_read_sampling(ask, f, m);
    if ((int64_t)ask->sampling.seed < 0 || ask->sampling.seed == UINT32_MAX)
        ask->sampling.seed = drawn;
    ask_read_stops(ask, f, "stop");
    fields_int(f, "max_tokens", -2, INT32_MAX, &ask->max_tokens);
    fields_int(f, "n_predict", -2, INT32_MAX, &ask->max_tokens);
    ask->is_silent = ask->max_tokens == 0;
    if (ask->is_silent)
        ask->max_tokens = 1;
    fields_int(f, "t_max_predict_ms", -1, INT32_MAX, &ask->max_ms);
    fields_int(f, "n_indent", 0, INT32_MAX, &ask->min_indent);
    ask_read_n(ask, f, "n");
    ask_read_n(ask, f, "n_cmpl");
    fields_int(f, "n_probs", 0, ASK_MAX_PROBS, &n_probs);
    if (n_probs > 0)
        ask->n_top = n_probs;
    ask_read_format(ask, f, m); /* grammar, json_schema */
    check_response_fields(f);
    if (json_array_size(json_object_get(ask->root, "image_data")) > 0)
        fields_refuse(f, "image_data", "images are not supported: this model reads text alone");
    if (fields_any(f, "snapshot"))
        fields_refuse(f, "snapshot", "snapshot is of a conversation, expected messages");
}

static struct str text_field(struct fields *f, const char *name) {
    const json_t *text = fields_any(f, name);
    if (text && !json_is_string(text))
        fields_refuse(f, name, "%s is %s, expected a string", name, json_kind(text));
    return json_is_string(text) ? (struct str){json_string_value(text), json_string_length(text)}
                                : STR("");
}

/* Other files of the project, or pieces of them: [{"filename": NAME, "text": TEXT}, ...]. */
static const json_t *files_field(struct fields *f) {
    static const char name[] = "input_extra";
    const json_t *files = NULL, *file;
    size_t i;
    fields_array(f, name, &files);
    json_array_foreach(files, i, file) {
        const json_t *text = json_object_get(file, "text");
        const json_t *its = json_object_get(file, "filename");
        if (!json_is_object(file))
            fields_refuse(f, name, "%s has %s at place %zu, expected objects", name,
                          json_kind(file), i);
        else if (!json_is_string(text))
            fields_refuse(f, name, "%s[%zu].text is %s, expected a string", name, i,
                          json_kind(text));
        else if (its && !json_is_string(its))
            fields_refuse(f, name, "%s[%zu].filename is %s, expected a string", name, i,
                          json_kind(its));
    }
    return files;
}

/* The text between two others; `prompt` is its beginning. */
static void add_middle(struct ask *ask, struct fields *f, const struct ask_model *m) {
    const struct ask_middle middle = {
        .before = text_field(f, "input_prefix"),
        .after = text_field(f, "input_suffix"),
        .begun = text_field(f, "prompt"),
        .files = files_field(f),
        .is_cut = true,
    };
    struct err err = {0};
    if (!f->wrong && ask_add_middle(ask, m, &middle, &err))
        fields_refuse(f, "input_suffix", "%s", err.text);
}

/* ---- what is answered --------------------------------------------------------------------- */

static json_t *ids_json(const struct answer *a, size_t from) {
    json_t *out = json_array();
    for (size_t i = from; i < a->n_tokens; i++)
        json_array_append_new(out, json_integer(a->tokens[i]));
    return out;
}

static void set_ids(json_t *entries, const struct answer *a, size_t from) {
    json_t *entry, *top;
    size_t i, k;
    json_array_foreach(entries, i, entry) {
        const struct answer_token *token = &a->content_tokens[from + i];
        json_object_set_new(entry, "id", json_integer(token->token));
        json_array_foreach(json_object_get(entry, "top_logprobs"), k, top)
            json_object_set_new(top, "id", json_integer(token->logprobs->top[k].token));
    }
}

static const struct job_prompt *prompt_of(const struct answer *a) {
    return &a->ask->prompts[a->number / (size_t)a->ask->n];
}

static json_t *prompt_json(const struct answer *a) {
    struct buffer text = {0};
    ask_decode(a->m, prompt_of(a)->tokens, prompt_of(a)->n, true, &text);
    json_t *out = text.has_failed ? NULL : json_of_text(buffer_str(&text));
    buffer_free(&text);
    return out;
}

/* The context that was used: the last token of an answer was not processed. Tokens that the
 * scheduler handed out after a stop text do not count: how many depends on time. */
static json_int_t context_tokens(const struct answer *a) {
    return (json_int_t)(prompt_of(a)->n + (a->n_tokens > 0 ? a->n_tokens - 1 : 0));
}

/* What every object has. A stream's ids, which it has unasked, and log probabilities are those that
 * no object had before; a stop text's tokens have ids, but no log probabilities. */
static json_t *begin_object(const struct answer *a, struct str content, bool is_end) {
    bool has_ids =
        a->ask->is_streamed || json_is_true(json_object_get(a->ask->root, "return_tokens"));
    json_t *out = json_pack("{s:i, s:o, s:o, s:b, s:i, s:I, s:I}", "index", (int)a->number,
                            "content", json_of_text(content), "tokens",
                            has_ids ? ids_json(a, a->n_streamed_ids) : json_array(), "stop", is_end,
                            "id_slot", -1, "tokens_predicted", (json_int_t)a->n_tokens,
                            "tokens_evaluated", (json_int_t)prompt_of(a)->n);
    if (a->ask->n_top > 0 && a->n_streamed < a->n_emitted) {
        json_t *entries = openai_logprobs_between(a, a->n_streamed, a->n_emitted);
        set_ids(entries, a, a->n_streamed);
        json_object_set_new(out, "completion_probabilities", entries);
    }
    return out;
}

static void count_streamed(struct answer *a) {
    a->n_streamed_ids = a->n_tokens;
    a->n_streamed = a->n_emitted;
}

static const char *stop_type(const struct answer *a, const char *stop) {
    return stop                                                    ? "word"
           : a->finish == FINISH_END                               ? "eos"
           : a->finish == FINISH_LENGTH || a->finish == FINISH_CUT ? "limit"
                                                                   : "none";
}

/* An answer's seed is the first one's and its number. */
static json_t *settings_json(const struct sluice_sampling *s, uint32_t number) {
    return json_pack("{s:I, s:o, s:I, s:o, s:o, s:o, s:o, s:o}", "seed",
                     (json_int_t)(s->seed + number), "temperature", json_of_float(s->temperature),
                     "top_k", (json_int_t)s->top_k, "top_p", json_of_float(s->top_p), "min_p",
                     json_of_float(s->min_p), "repeat_penalty", json_of_float(s->repeat_penalty),
                     "presence_penalty", json_of_float(s->presence_penalty), "frequency_penalty",
                     json_of_float(s->frequency_penalty));
}

/* What response_fields names, by paths such as "timings/prompt_n", which are the names then, too;
 * all if it names nothing. Takes the object. */
static json_t *only_named(const struct answer *a, json_t *object) {
    const json_t *paths = json_object_get(a->ask->root, "response_fields");
    json_t *out = json_array_size(paths) > 0 ? json_object() : json_incref(object), *path;
    size_t i;
    json_array_foreach(paths, i, path) {
        const char *at = json_string_value(path);
        json_t *value = object;
        do {
            size_t n = strcspn(at, "/");
            value = json_object_getn(value, at, n);
            at += n;
        } while (*at++ == '/');
        if (value)
            json_object_set(out, json_string_value(path), value);
    }
    json_decref(object);
    return out;
}

/* The last object of a stream, or the only one. */
static json_t *end_object(const struct exchange *x, const struct answer *a, struct str content) {
    const char *stop = answer_stop_text(a);
    json_t *out = begin_object(a, content, true);
    bool has_newline = a->content.len > 0 && memchr(a->content.at, '\n', a->content.len);
    json_t *more =
        json_pack("{s:o, s:o, s:b, s:b, s:s, s:s, s:I, s:o, s:o*}", "model",
                  json_of_text(str_of(x->server->model.name)), "prompt", prompt_json(a),
                  "has_new_line", has_newline, "truncated", 0, "stop_type", stop_type(a, stop),
                  "stopping_word", stop ? stop : "", "tokens_cached", context_tokens(a),
                  "generation_settings", settings_json(&x->ask->sampling, a->number), "timings",
                  x->n_answers == 1 ? openai_timings(x) : NULL);
    bool is_whole = json_object_update(out, more) == 0;
    json_decref(more);
    if (is_whole)
        return only_named(a, out);
    json_decref(out);
    return NULL; /* memory ran out */
}

static void put(struct exchange *x, json_t *object) {
    buffer_puts(&x->draft, "data: ");
    buffer_json(&x->draft, object);
    buffer_puts(&x->draft, "\n\n");
}

static void completion_delta(struct exchange *x, struct answer *a,
                             const struct answer_delta *delta) {
    put(x, begin_object(a, delta->text, false));
    count_streamed(a);
}

static void completion_end(struct exchange *x, struct answer *a) {
    put(x, end_object(x, a, STR("")));
    count_streamed(a);
}

static void completion_fail(struct exchange *x, const char *message) {
    put(x, api_error(API_OPENAI, 500, message, NULL));
}

static json_t *completion_whole(struct exchange *x) {
    json_t *out = json_array();
    for (uint32_t i = 0; i < x->n_answers; i++) {
        const struct answer *a = &x->answers[i];
        json_array_append_new(out, end_object(x, a, buffer_str(&a->content)));
    }
    if (x->n_answers > 1)
        return out;
    json_t *only = json_incref(json_array_get(out, 0));
    json_decref(out);
    return only;
}

static const struct style completion_style = {
    .stream_type = "text/event-stream",
    .ping = OPENAI_PING,
    .delta = completion_delta,
    .end = completion_end,
    .fail = completion_fail,
    .whole = completion_whole,
};

void llama_complete(struct exchange *x) {
    struct fields f;
    struct ask *ask = exchange_ask(x, &f);
    if (!ask)
        return;
    struct err err = {0};
    const json_t *prompt = json_object_get(f.object, "prompt");
    read_settings(ask, &f, &x->server->model);
    if (!f.wrong && openai_add_prompts(ask, &x->server->model, "prompt", prompt, &err))
        fields_refuse(&f, "prompt", "%s", err.text);
    exchange_converse(x, ask, &f, &completion_style);
}

void llama_infill(struct exchange *x) {
    struct fields f;
    struct ask *ask = exchange_ask(x, &f);
    if (!ask)
        return;
    read_settings(ask, &f, &x->server->model);
    add_middle(ask, &f, &x->server->model);
    exchange_converse(x, ask, &f, &completion_style);
}

/* ---- the model ---------------------------------------------------------------------------- */

/* A token's text, "" for none. */
static json_t *token_json(const struct ask_model *m, int32_t token) {
    struct buffer text = {0};
    if (token >= 0)
        ask_decode(m, &token, 1, true, &text);
    json_t *out = json_of_text(buffer_str(&text));
    buffer_free(&text);
    return out;
}

void llama_props(struct exchange *x) {
    const struct ask_model *m = &x->server->model;
    struct sluice_choice choice;
    sluice_engine_choice(x->server->served.engine, &choice);
    json_t *params = settings_json(&m->sampling, 0);
    json_object_del(params, "seed"); /* drawn for each answer */
    exchange_reply_json(
        x, 200,
        json_pack("{s:{s:i, s:o}, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:{s:b, s:b}}",
                  "default_generation_settings", "n_ctx", (int)m->context, "params", params,
                  "total_slots", (int)choice.sequences, "model_alias",
                  json_of_text(str_of(m->name)), "model_path", json_of_text(str_of(m->name)),
                  "chat_template", json_of_text(ask_template(m)), "bos_token",
                  token_json(m, m->facts.bos), "eos_token", token_json(m, m->facts.eos),
                  "build_info", json_sprintf("sluice %s", sluice_version()), "modalities", "vision",
                  0, "audio", 0));
}

/* ---- prompts and tokens ------------------------------------------------------------------- */

static void reply_decoded(struct exchange *x, const char *name, const int32_t *tokens, size_t n,
                          bool with_control) {
    struct buffer text = {0};
    ask_decode(&x->server->model, tokens, n, with_control, &text);
    if (text.has_failed)
        exchange_refuse(x, 500, NULL, "out of memory for a text");
    else
        exchange_reply_json(x, 200, json_pack("{s:o}", name, json_of_text(buffer_str(&text))));
    buffer_free(&text);
}

/* {"messages": [...]} and the other fields of a chat completion that are part of the prompt. */
void llama_apply_template(struct exchange *x) {
    struct fields f;
    struct ask *ask = exchange_ask(x, &f);
    if (!ask)
        return;
    openai_read_conversation(ask, &f);
    if (exchange_encode(x, ask, &f))
        reply_decoded(x, "prompt", ask->prompts[0].tokens, ask->prompts[0].n, true);
    ask_close(ask);
}

/* A token's own text; of a part of a character, its bytes. */
static void put_piece(struct buffer *to, const struct ask_model *m, int32_t token) {
    struct str bytes;
    bytes.at = sluice_token_text(m->model, token, &bytes.len);
    json_t *piece = bytes.len ? json_stringn(bytes.at, bytes.len) : token_json(m, token);
    if (!piece) {
        piece = json_array();
        for (size_t i = 0; i < bytes.len; i++)
            json_array_append_new(piece, json_integer((unsigned char)bytes.at[i]));
    }
    buffer_printf(to, "{\"id\":%d,\"piece\":", token);
    buffer_json(to, piece);
    buffer_puts(to, "}");
}

/* Written as text, not built as JSON: there may be millions. */
static void reply_tokens(struct exchange *x, const int32_t *tokens, size_t n, bool has_pieces) {
    struct buffer text = {0};
    buffer_puts(&text, "{\"tokens\":[");
    for (size_t i = 0; i < n && !text.has_failed; i++) {
        buffer_puts(&text, i ? "," : "");
        if (has_pieces)
            put_piece(&text, &x->server->model, tokens[i]);
        else
            buffer_printf(&text, "%d", tokens[i]);
    }
    buffer_printf(&text, "],\"count\":%zu}", n);
    if (text.has_failed)
        exchange_refuse(x, 500, NULL, "out of memory for tokens");
    else
        exchange_reply_body(x, 200, "application/json", buffer_str(&text));
    buffer_free(&text);
}

/* Each flag under llama.cpp's name and our own. */
static void tokenize_content(struct exchange *x, struct fields *f, bool has_pieces) {
    const json_t *content = fields_any(f, "content");
    const sluice_model *model = x->server->model.model;
    bool has_special = true, has_bos = false;
    size_t n = 0;
    fields_bool(f, "parse_special", &has_special);
    fields_bool(f, "special", &has_special);
    fields_bool(f, "add_special", &has_bos);
    fields_bool(f, "bos", &has_bos);
    if (!json_is_string(content))
        fields_refuse(f, "content", "content is %s, expected a string", json_kind(content));
    if (f->wrong) {
        exchange_refuse_field(x, f);
        return;
    }
    unsigned flags = (has_special ? SLUICE_ENCODE_SPECIAL : 0) | (has_bos ? SLUICE_ENCODE_BOS : 0);
    const char *text = json_string_value(content);
    size_t length = json_string_length(content);
    sluice_encode(model, text, length, flags, NULL, 0, &n);
    size_t capacity = n;
    int32_t *tokens = calloc(capacity + 1, sizeof *tokens);
    int status = tokens ? sluice_encode(model, text, length, flags, tokens, capacity, &n)
                        : SLUICE_ERR_MEMORY;
    if (status)
        exchange_refuse(x, 500, NULL, "content: %s", sluice_status_text(status));
    else
        reply_tokens(x, tokens, n, has_pieces);
    free(tokens);
}

/* {"content": TEXT, "parse_special": true, "add_special": false, "with_pieces": false}, or
 * {"messages": [...]} as in llama_apply_template. */
void llama_tokenize(struct exchange *x) {
    struct fields f;
    bool has_pieces = false;
    struct ask *ask = exchange_ask(x, &f);
    if (!ask)
        return;
    fields_bool(&f, "with_pieces", &has_pieces);
    if (fields_any(&f, "messages")) {
        openai_read_conversation(ask, &f);
        if (exchange_encode(x, ask, &f))
            reply_tokens(x, ask->prompts[0].tokens, ask->prompts[0].n, has_pieces);
    } else {
        tokenize_content(x, &f, has_pieces);
    }
    ask_close(ask);
}

/* {"tokens": [...], "special": true}: with the text of control tokens. */
void llama_detokenize(struct exchange *x) {
    struct fields f;
    struct err err = {0};
    struct ask *ask = exchange_ask(x, &f);
    const json_t *list = NULL;
    int32_t *tokens = NULL;
    bool with_control = true;
    if (!ask)
        return;
    fields_array(&f, "tokens", &list);
    fields_bool(&f, "special", &with_control);
    if (!f.wrong && !list)
        fields_refuse(&f, "tokens", "tokens is missing, expected an array");
    if (!f.wrong && ask_read_ids(&x->server->model, "tokens", list, &tokens, &err))
        fields_refuse(&f, "tokens", "%s", err.text);
    if (f.wrong)
        exchange_refuse_field(x, &f);
    else
        reply_decoded(x, "content", tokens, json_array_size(list), with_control);
    free(tokens);
    ask_close(ask);
}
