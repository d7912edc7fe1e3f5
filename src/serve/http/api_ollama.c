/* api_ollama.c - the Ollama API: /api/chat, /api/generate, /api/tags, /api/show, /api/ps,
 * /api/version. */
#include <inttypes.h>
#include <stdio.h>

#include "base/hash.h"
#include "serve/http/openai.h"

/* ---- what is asked ------------------------------------------------------------------------ */

/* The object "options": sampling under Ollama's names. */
static void read_options(struct ask *ask, struct fields *f, const struct ask_model *m) {
    struct fields o = {0};
    fields_object(f, "options", &o.object);
    if (o.object && !f->wrong) {
        ask_read_sampling(ask, &o, m);
        ask_read_stops(ask, &o, "stop");
        fields_int(&o, "num_predict", -2, INT32_MAX, &ask->max_tokens); /* -1, -2: no limit */
    }
    if (o.wrong)
        fields_refuse(f, "options", "options.%s", o.err.text);
    ask->is_streamed = true; /* by default */
    fields_bool(f, "stream", &ask->is_streamed);
    if (ask->max_tokens == 0)
        ask->max_tokens = 1;
}

/* "think": true, false, or a word for how much. */
static void read_think(struct ask *ask, struct fields *f) {
    const json_t *think = fields_any(f, "think");
    const char *word = json_string_value(think);
    if (think && !json_is_boolean(think) && !word)
        fields_refuse(f, "think", "think is %s, expected true, false or a word", json_kind(think));
    else if (word)
        ask_set_effort(ask, f, "think", "think", word);
    if (think)
        ask_set_variable(ask, "enable_thinking",
                         json_boolean(word ? strcmp(word, "none") != 0 : json_is_true(think)));
    fields_int(f, "thinking_budget", 0, INT32_MAX, &ask->thinking_budget); /* ours */
}

/* "json", or a schema. */
static void read_format(struct ask *ask, struct fields *f, const struct ask_model *m) {
    const json_t *format = fields_any(f, "format");
    const char *word = json_string_value(format);
    if (json_is_object(format) || (word && strcmp(word, "json") == 0))
        ask_set_schema(ask, f, "format", m, word ? NULL : format);
    else if (format && !(word && !*word))
        fields_refuse(f, "format", "format is %.40s, expected json or a schema",
                      word ? word : json_kind(format));
    ask_read_format(ask, f, m); /* ours: grammar */
}

static void refuse_images(struct fields *f, const json_t *from) {
    const json_t *images = json_object_get(from, "images");
    if (images && !json_is_null(images) && !json_is_array(images))
        fields_refuse(f, "images", "images is %s, expected an array", json_kind(images));
    else if (json_array_size(images) > 0)
        fields_refuse(f, "images", "images are not supported: this model reads text alone");
}

/* Refuses unsupported fields that would change the prompt. */
static void refuse_missing(struct fields *f) {
    const json_t *context = NULL;
    const char *template = "";
    fields_string(f, "template", &template);
    if (*template)
        fields_refuse(f, "template", "template is not supported");
    fields_array(f, "context", &context);
    if (json_array_size(context) > 0)
        fields_refuse(f, "context", "context is not supported, expected messages in /api/chat");
}

static void read_chat(struct ask *ask, struct fields *f, const struct ask_model *m) {
    const json_t *messages = NULL, *tools = NULL;
    json_t *message;
    size_t i;
    fields_array(f, "messages", &messages);
    json_array_foreach(messages, i, message) {
        refuse_images(f, message);
    }
    ask_read_messages(ask, f, messages);
    ask->continues_last = true;                     /* as Ollama's templates do */
    json_array_foreach(ask->messages, i, message) { /* Ollama's name for reasoning */
        json_t *thinking = json_object_get(json_array_get(messages, i), "thinking");
        if (json_is_string(thinking))
            json_object_set(message, "reasoning_content", thinking);
    }
    fields_array(f, "tools", &tools);
    ask_read_tools(ask, f, tools);
    read_options(ask, f, m);
    read_think(ask, f);
    openai_read_logprobs(ask, f);
    read_format(ask, f, m);
}

static void read_generate(struct ask *ask, struct fields *f, const struct ask_model *m) {
    const char *system = NULL, *suffix = "";
    const json_t *prompt = fields_any(f, "prompt");
    bool is_raw = false;
    struct err err = {0};
    refuse_images(f, f->object);
    refuse_missing(f);
    fields_string(f, "system", &system);
    fields_string(f, "suffix", &suffix);
    fields_bool(f, "raw", &is_raw);
    read_options(ask, f, m);
    read_think(ask, f);
    openai_read_logprobs(ask, f);
    read_format(ask, f, m);
    if (prompt && !json_is_string(prompt))
        fields_refuse(f, "prompt", "prompt is %s, expected a string", json_kind(prompt));
    if (f->wrong || (json_string_length(prompt) == 0 && !*suffix))
        return; /* no prompt */
    struct str text = {json_string_value(prompt), json_string_length(prompt)};
    if (*suffix) {
        const struct ask_middle middle = {.before = text, .after = str_of(suffix)};
        if (ask_add_middle(ask, m, &middle, &err))
            fields_refuse(f, "suffix", "%s", err.text);
        return;
    }
    if (is_raw) {
        if (ask_add_text(ask, m, text, &err))
            fields_refuse(f, "prompt", "%s", err.text);
        return;
    }
    ask->messages = json_array();
    if (system && *system) /* older clients send "" for none */
        json_array_append_new(ask->messages,
                              json_pack("{s:s, s:s}", "role", "system", "content", system));
    json_array_append_new(ask->messages,
                          json_pack("{s:s, s:O}", "role", "user", "content", prompt));
}

/* ---- what is answered --------------------------------------------------------------------- */

static json_t *begin_line(const struct exchange *x, bool is_done) {
    char when[32];
    openai_write_time(time(NULL), when);
    return json_pack("{s:o, s:s, s:b}", "model", json_of_text(str_of(x->server->model.name)),
                     "created_at", when, "done", is_done);
}

/* Adds the log probabilities of tokens not sent yet, if wanted. */
static void add_logprobs(struct answer *a, json_t *line) {
    if (a->ask->n_top >= 0 && a->n_emitted > a->n_streamed)
        json_object_set_new(line, "logprobs",
                            openai_logprobs_between(a, a->n_streamed, a->n_emitted));
    a->n_streamed = a->n_emitted;
}

/* Adds why it ended, token counts and nanoseconds. */
static void add_end(const struct exchange *x, json_t *line) {
    struct answer *a = &x->answers[0];
    const struct sched_report *r = &a->end->report;
    bool is_cut = a->finish == FINISH_LENGTH || a->finish == FINISH_CUT;
    double first = r->first_seconds > 0 ? r->first_seconds : r->seconds;
    json_t *end = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "done_reason", is_cut ? "length" : "stop",
        "total_duration", (json_int_t)(r->seconds * 1e9), "load_duration", (json_int_t)0,
        "prompt_eval_count", (json_int_t)x->ask->prompts[0].n, "prompt_eval_duration",
        (json_int_t)((first - r->start_seconds) * 1e9), "eval_count", (json_int_t)a->n_tokens,
        "eval_duration", (json_int_t)((r->seconds - first) * 1e9));
    json_object_update(line, end);
    json_decref(end);
    add_logprobs(a, line);
}

static json_t *call_json(const struct answer_call *call) {
    return json_pack("{s:{s:s, s:o}}", "function", "name", call->name, "arguments",
                     json_loads(call->arguments, 0, NULL));
}

static json_t *calls_json(const struct answer *a) {
    json_t *calls = json_array();
    for (size_t i = 0; i < a->n_calls; i++)
        json_array_append_new(calls, call_json(&a->calls[i]));
    return calls;
}

static void put_line(struct exchange *x, json_t *line) {
    buffer_json_all_digits(&x->draft, line);
    buffer_puts(&x->draft, "\n");
}

static void put_failure(struct exchange *x, const char *message) {
    put_line(x, api_error(API_OLLAMA, 500, message, NULL));
}

/* ---- chat --------------------------------------------------------------------------------- */

static json_t *chat_message(struct str content, struct str thinking) {
    json_t *message =
        json_pack("{s:s, s:o}", "role", "assistant", "content", json_of_text(content));
    if (thinking.len > 0)
        json_object_set_new(message, "thinking", json_of_text(thinking));
    return message;
}

static void chat_delta(struct exchange *x, struct answer *a, const struct answer_delta *delta) {
    struct str none = STR("");
    json_t *line = begin_line(x, false);
    json_t *message = delta->kind == DELTA_CONTENT ? chat_message(delta->text, none)
                                                   : chat_message(none, delta->text);
    add_logprobs(a, line);
    if (delta->kind == DELTA_CALL)
        json_object_set_new(message, "tool_calls", json_pack("[o]", call_json(delta->call)));
    json_object_set_new(line, "message", message);
    put_line(x, line);
}

static void chat_done(struct exchange *x) {
    json_t *line = begin_line(x, true);
    json_object_set_new(line, "message", chat_message(STR(""), STR("")));
    add_end(x, line);
    put_line(x, line);
}

static json_t *chat_whole(struct exchange *x) {
    const struct answer *a = &x->answers[0];
    json_t *line = begin_line(x, true);
    json_t *message = chat_message(buffer_str(&a->content), buffer_str(&a->reasoning));
    if (a->n_calls > 0)
        json_object_set_new(message, "tool_calls", calls_json(a));
    json_object_set_new(line, "message", message);
    add_end(x, line);
    return line;
}

static const struct style chat_style = {
    .stream_type = "application/x-ndjson",
    .delta = chat_delta,
    .done = chat_done,
    .fail = put_failure,
    .whole = chat_whole,
    .needs_all_digits = true,
};

/* A request without messages or with an empty prompt only asks for the model to be loaded. */
static void reply_loaded(struct exchange *x, struct ask *ask, bool is_chat) {
    json_t *line = begin_line(x, true);
    json_object_set_new(line, "done_reason", json_string("load"));
    if (is_chat)
        json_object_set_new(line, "message", chat_message(STR(""), STR("")));
    else
        json_object_set_new(line, "response", json_string(""));
    ask_close(ask);
    exchange_reply_json(x, 200, line);
}

void ollama_chat(struct exchange *x) {
    struct fields f;
    struct ask *ask = exchange_ask(x, &f);
    if (!ask)
        return;
    const json_t *messages = fields_any(&f, "messages");
    if (!f.wrong && (!messages || (json_is_array(messages) && json_array_size(messages) == 0))) {
        reply_loaded(x, ask, true);
        return;
    }
    read_chat(ask, &f, &x->server->model);
    exchange_converse(x, ask, &f, &chat_style);
}

/* ---- generate ----------------------------------------------------------------------------- */

static void text_delta(struct exchange *x, struct answer *a, const struct answer_delta *delta) {
    bool thinks = delta->kind == DELTA_REASONING;
    json_t *line = begin_line(x, false);
    add_logprobs(a, line);
    json_object_set_new(line, "response", thinks ? json_string("") : json_of_text(delta->text));
    if (thinks)
        json_object_set_new(line, "thinking", json_of_text(delta->text));
    put_line(x, line);
}

static void text_done(struct exchange *x) {
    json_t *line = begin_line(x, true);
    json_object_set_new(line, "response", json_string(""));
    add_end(x, line);
    put_line(x, line);
}

static json_t *text_whole(struct exchange *x) {
    const struct answer *a = &x->answers[0];
    json_t *line = begin_line(x, true);
    json_object_set_new(line, "response", json_of_text(buffer_str(&a->content)));
    if (a->reasoning.len > 0)
        json_object_set_new(line, "thinking", json_of_text(buffer_str(&a->reasoning)));
    add_end(x, line);
    return line;
}

static const struct style text_style = {
    .stream_type = "application/x-ndjson",
    .delta = text_delta,
    .done = text_done,
    .fail = put_failure,
    .whole = text_whole,
};

void ollama_generate(struct exchange *x) {
    struct fields f;
    struct ask *ask = exchange_ask(x, &f);
    if (!ask)
        return;
    read_generate(ask, &f, &x->server->model);
    if (!f.wrong && !ask->messages && ask->n_prompts == 0)
        reply_loaded(x, ask, false);
    else
        exchange_converse(x, ask, &f, &text_style);
}

/* ---- the model ---------------------------------------------------------------------------- */

static json_t *details_json(const struct server *s) {
    char size[32];
    double n = (double)s->model.facts.parameters;
    snprintf(size, sizeof size, n >= 1e9 ? "%.1fB" : "%.1fM", n >= 1e9 ? n / 1e9 : n / 1e6);
    return json_pack("{s:s, s:s, s:s, s:[s], s:s, s:s}", "parent_model", "", "format", "gguf",
                     "family", s->model.facts.architecture, "families", s->model.facts.architecture,
                     "parameter_size", size, "quantization_level", s->model.facts.type);
}

/* Not the file's SHA-256, which would mean reading all of it. Clients show its first 12 digits and
 * compare it, so it is stable for a model. */
static void write_digest(const struct server *s, char out[65]) {
    const struct sluice_facts *facts = &s->model.facts;
    const uint64_t sizes[] = {facts->parameters, facts->bytes, facts->layers, facts->width};
    struct hash h;
    hash_begin(&h);
    hash_add(&h, sizes, sizeof sizes);
    hash_add(&h, facts->type, strlen(facts->type));
    hash_add(&h, s->model.name, strlen(s->model.name));
    struct hash128 a = hash128_end(&h);
    hash_add(&h, &a, sizeof a);
    struct hash128 b = hash128_end(&h);
    snprintf(out, 65, "%016" PRIx64 "%016" PRIx64 "%016" PRIx64 "%016" PRIx64, a.low, a.high, b.low,
             b.high);
}

static json_t *model_json(const struct server *s) {
    char when[32], digest[65];
    openai_write_time(s->created, when);
    write_digest(s, digest);
    return json_pack("{s:o, s:o, s:s, s:I, s:s, s:o}", "name", json_of_text(str_of(s->model.name)),
                     "model", json_of_text(str_of(s->model.name)), "modified_at", when, "size",
                     (json_int_t)s->model.facts.bytes, "digest", digest, "details",
                     details_json(s));
}

void ollama_tags(struct exchange *x) {
    exchange_reply_json(x, 200, json_pack("{s:[o]}", "models", model_json(x->server)));
}

void ollama_ps(struct exchange *x) {
    struct sluice_memory memory;
    struct sluice_choice choice;
    json_t *model = model_json(x->server);
    sluice_engine_memory(x->server->served.engine, &memory);
    sluice_engine_choice(x->server->served.engine, &choice);
    bool is_on_gpu = strcmp(choice.backend, "cpu") != 0;
    json_object_set_new(model, "size", json_integer((json_int_t)memory.total));
    json_object_set_new(model, "size_vram", json_integer(is_on_gpu ? (json_int_t)memory.total : 0));
    /* never: what Ollama sends for a model that stays loaded */
    json_object_set_new(model, "expires_at", json_string("2318-01-01T00:00:00Z"));
    json_object_set_new(model, "context_length", json_integer(x->server->model.context));
    exchange_reply_json(x, 200, json_pack("{s:[o]}", "models", model));
}

void ollama_show(struct exchange *x) {
    const struct server *s = x->server;
    char key[80], when[32];
    json_t *info = json_pack("{s:s, s:o, s:I}", "general.architecture", s->model.facts.architecture,
                             "general.basename", json_of_text(str_of(s->model.name)),
                             "general.parameter_count", (json_int_t)s->model.facts.parameters);
    /* What fits: clients compute from it how much they may send, and num_ctx has no effect. */
    snprintf(key, sizeof key, "%.40s.context_length", s->model.facts.architecture);
    json_object_set_new(info, key, json_integer(s->model.context));
    snprintf(key, sizeof key, "%.40s.embedding_length", s->model.facts.architecture);
    json_object_set_new(info, key, json_integer(s->model.facts.width));
    snprintf(key, sizeof key, "%.40s.block_count", s->model.facts.architecture);
    json_object_set_new(info, key, json_integer(s->model.facts.layers));
    json_t *capabilities = json_pack("[s]", "completion");
    if (s->model.takes_tools)
        json_array_append_new(capabilities, json_string("tools"));
    if (s->model.think_close >= 0)
        json_array_append_new(capabilities, json_string("thinking"));
    openai_write_time(s->created, when);
    exchange_reply_json(
        x, 200,
        json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:s}", "modelfile", "", "parameters", "",
                  "template", json_of_text(ask_template(&s->model)), "details", details_json(s),
                  "model_info", info, "capabilities", capabilities, "modified_at", when));
}

/* Of the API: some clients refuse to use versions before the one that had what they need. This one
 * had log probabilities, the last that came to it of what is here. */
void ollama_version(struct exchange *x) {
    exchange_reply_json(x, 200,
                        json_pack("{s:s, s:s}", "version", "0.12.11", "sluice", sluice_version()));
}
