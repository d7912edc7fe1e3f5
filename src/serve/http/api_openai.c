/* api_openai.c - the OpenAI API: /v1/chat/completions, /v1/models, and what the OpenAI calls share.
 */
#include <math.h>
#include <stdio.h>

#include "serve/http/openai.h"

/* ---- what is asked ------------------------------------------------------------------------ */

void openai_read_stream_options(struct ask *ask, struct fields *f) {
    struct fields inner = {0};
    fields_object(f, "stream_options", &inner.object);
    if (inner.object)
        fields_bool(&inner, "include_usage", &ask->has_usage);
    if (inner.object)
        fields_bool(&inner, "continuous_usage_stats", &ask->has_live_usage);
    if (inner.wrong)
        fields_refuse(f, "stream_options", "stream_options.%s", inner.err.text);
}

/* "none", "low" ...: templates may use the word; for others it switches thinking on or off. */
void openai_read_thinking(struct ask *ask, struct fields *f, const char *effort) {
    const char *key;
    const json_t *variables = NULL;
    json_t *value;
    bool thinks = true;
    fields_string(f, "reasoning_effort", &effort);
    fields_object(f, "chat_template_kwargs", &variables);
    fields_bool(f, "enable_thinking", &thinks);
    fields_int(f, "thinking_budget", 0, INT32_MAX, &ask->thinking_budget);
    if (f->wrong)
        return;
    if (effort) {
        bool is_own = fields_any(f, "reasoning_effort");
        ask_set_effort(ask, f, is_own ? "reasoning_effort" : "reasoning",
                       is_own ? "reasoning_effort" : "reasoning.effort", effort);
        ask_set_variable(ask, "enable_thinking", json_boolean(strcmp(effort, "none") != 0));
    }
    if (fields_any(f, "enable_thinking"))
        ask_set_variable(ask, "enable_thinking", json_boolean(thinks));
    json_object_foreach((json_t *)variables, key, value)
        ask_set_variable(ask, key, json_incref(value));
}

/* {"mode": "auto" or "required", "tools": [...]}, as it is or in a member of the choice. */
static void read_allowed(struct ask *ask, struct fields *f, const struct ask_model *m,
                         const json_t *choice) {
    const json_t *inner = json_object_get(choice, "allowed_tools");
    inner = inner ? inner : choice;
    const char *mode = json_text_of(inner, "mode");
    bool is_required = mode && strcmp(mode, "required") == 0;
    if (mode && !is_required && strcmp(mode, "auto") != 0)
        fields_refuse(f, "tool_choice", "tool_choice.mode is %.40s, expected auto or required",
                      mode);
    ask_allow_tools(ask, f, json_object_get(inner, "tools"));
    if (is_required && !f->wrong)
        ask_require_tool(ask, f, m, NULL);
}

void openai_read_tool_choice(struct ask *ask, struct fields *f, const struct ask_model *m) {
    const json_t *choice = fields_any(f, "tool_choice");
    const char *word = json_string_value(choice);
    bool in_parallel = true;
    fields_bool(f, "parallel_tool_calls", &in_parallel);
    ask->has_one_call = !in_parallel;
    if (!choice || (word && strcmp(word, "auto") == 0))
        return;
    const json_t *function = json_object_get(choice, "function");
    const char *type = json_text_of(choice, "type");
    const char *name = json_string_value(json_object_get(function ? function : choice, "name"));
    if (word && strcmp(word, "none") == 0)
        ask_forbid_tools(ask, m);
    else if (word && strcmp(word, "required") == 0)
        ask_require_tool(ask, f, m, NULL);
    else if (type && strcmp(type, "allowed_tools") == 0)
        read_allowed(ask, f, m, choice);
    else if (name)
        ask_require_tool(ask, f, m, name);
    else
        fields_refuse(
            f, "tool_choice",
            "tool_choice is %.40s, expected none, auto, required, a function or allowed_tools",
            word ? word : json_kind(choice));
}

/* Clients of llama.cpp and LM Studio send -1 for no limit. */
static void read_max_tokens(struct ask *ask, struct fields *f, const char *name) {
    const json_t *given = fields_any(f, name);
    if (json_is_integer(given) && json_integer_value(given) == -1)
        ask->max_tokens = -1;
    else
        fields_int(f, name, 1, INT32_MAX, &ask->max_tokens);
}

void openai_read_lengths(struct ask *ask, struct fields *f) {
    read_max_tokens(ask, f, "max_tokens");
    read_max_tokens(ask, f, "max_completion_tokens");
    read_max_tokens(ask, f, "n_predict"); /* llama.cpp's */
    ask_read_n(ask, f, "n");
}

void openai_read_conversation(struct ask *ask, struct fields *f) {
    const json_t *messages = NULL, *tools = NULL;
    fields_array(f, "messages", &messages);
    ask_read_messages(ask, f, messages);
    fields_bool(f, "continue_final_message", &ask->continues_last);
    fields_array(f, "tools", &tools);
    ask_read_tools(ask, f, tools);
    openai_read_thinking(ask, f, NULL);
}

/* Refuses the old function-calling fields: ignoring them would change the answer. */
static void refuse_old(struct fields *f) {
    static const char *const old[][2] = {{"functions", "tools"}, {"function_call", "tool_choice"}};
    for (size_t i = 0; i < sizeof old / sizeof *old; i++)
        if (fields_any(f, old[i][0]))
            fields_refuse(f, old[i][0], "%s is not supported, expected %s", old[i][0], old[i][1]);
}

static void refuse_speech(struct fields *f) {
    const json_t *kinds = NULL, *kind;
    size_t i;
    fields_array(f, "modalities", &kinds);
    json_array_foreach(kinds, i, kind) {
        const char *word = json_string_value(kind);
        if (!word || strcmp(word, "text") != 0)
            fields_refuse(f, "modalities", "modalities has %.40s, expected text alone",
                          word ? word : json_kind(kind));
    }
}

void openai_read_logprobs(struct ask *ask, struct fields *f) {
    bool has_logprobs = false;
    int64_t n_top = 0;
    fields_bool(f, "logprobs", &has_logprobs);
    fields_int(f, "top_logprobs", 0, ASK_MAX_TOP, &n_top);
    if (n_top > 0 && !has_logprobs)
        fields_refuse(f, "top_logprobs", "top_logprobs is %d, expected logprobs true", (int)n_top);
    ask->n_top = has_logprobs ? n_top : -1;
}

static void read_chat(struct ask *ask, struct fields *f, const struct ask_model *m) {
    openai_read_conversation(ask, f);
    ask_read_sampling(ask, f, m);
    ask_read_stops(ask, f, "stop");
    openai_read_lengths(ask, f);
    openai_read_stream_options(ask, f);
    ask_read_format(ask, f, m);
    openai_read_tool_choice(ask, f, m);
    openai_read_logprobs(ask, f);
    refuse_old(f);
    refuse_speech(f);
}

/* ---- what is answered --------------------------------------------------------------------- */

static json_t *usage_json(const struct exchange *x) {
    struct usage_counts u = exchange_usage(x);
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}}", "prompt_tokens", (json_int_t)u.prompt,
                     "completion_tokens", (json_int_t)u.new_tokens, "total_tokens",
                     (json_int_t)(u.prompt + u.new_tokens), "prompt_tokens_details",
                     "cached_tokens", (json_int_t)u.cached, "completion_tokens_details",
                     "reasoning_tokens", (json_int_t)u.reasoning);
}

/* Submissions to the device after the first token: for the tokens after it and the one that ended
 * the answer. */
static void add_submissions(json_t *timings, const struct sched_report *r) {
    uint32_t n_waits = (r->n_new > 0 ? r->n_new - 1 : 0) + (r->end_token >= 0);
    json_object_set_new(timings, "steps", json_integer(r->steps));
    json_object_set_new(timings, "submissions", json_integer(r->submissions));
    json_object_set_new(timings, "submissions_per_token",
                        json_real(n_waits ? (double)r->submissions / n_waits : 0));
}

json_t *openai_timings(const struct exchange *x) {
    struct usage_counts u = exchange_usage(x);
    double first = INFINITY, last = 0;
    uint32_t n_after = 0;
    for (uint32_t i = 0; i < x->n_answers; i++) {
        const struct job_end *end = x->answers[i].end;
        if (!end)
            return NULL;
        n_after += end->report.n_new > 0 ? end->report.n_new - 1 : 0;
        if (end->report.first_seconds > 0)
            first = fmin(first, end->report.first_seconds);
        last = fmax(last, end->report.seconds);
    }
    first = fmin(first, last); /* no token: all of the time went to the prompt */
    const struct sched_report *r = &x->answers[0].end->report;
    double read = (double)(u.prompt - u.cached), after = last - first;
    json_t *out = json_pack(
        "{s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f}", "cache_n", (json_int_t)u.cached,
        "prompt_n", (json_int_t)(u.prompt - u.cached), "prompt_ms", 1e3 * first,
        "prompt_per_token_ms", read > 0 ? 1e3 * first / read : 0, "prompt_per_second",
        first > 0 ? read / first : 0, "predicted_n", (json_int_t)u.new_tokens, "predicted_ms",
        1e3 * after, "predicted_per_token_ms", n_after > 0 ? 1e3 * after / n_after : 0,
        "predicted_per_second", after > 0 ? n_after / after : 0);
    if (x->ask->n_prompts == 1)
        json_object_set_new(out, "cache_from", exchange_reuse(&r->reuse));
    if (x->n_answers == 1)
        add_submissions(out, r);
    return out;
}

void openai_write_time(time_t when, char out[32]) {
    struct tm utc;
    gmtime_r(&when, &utc);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

const char *openai_finish(const struct answer *a) {
    static const char *const words[] = {
        [FINISH_NOT_YET] = NULL,    [FINISH_END] = "stop",   [FINISH_CALLS] = "tool_calls",
        [FINISH_LENGTH] = "length", [FINISH_CUT] = "length", [FINISH_FAILED] = "error",
    };
    return words[a->finish];
}

json_t *openai_token_text(const struct ask_model *m, int32_t token, struct str *bytes) {
    bytes->at = sluice_token_text(m->model, token, &bytes->len);
    return json_of_text(*bytes);
}

json_t *openai_number(float logprob) {
    char text[32];
    snprintf(text, sizeof text, "%.*g", FLOAT_DIGITS, (double)logprob);
    return json_real(logprob > -9999.0f ? strtod(text, NULL)
                                        : -9999.0); /* the API's value for never */
}

static json_t *logprob_entry(const struct ask_model *m, int32_t token, float logprob) {
    struct str its;
    json_t *text = openai_token_text(m, token, &its), *bytes = json_array();
    for (size_t i = 0; i < its.len; i++)
        json_array_append_new(bytes, json_integer((unsigned char)its.at[i]));
    return json_pack("{s:o, s:o, s:o}", "token", text, "logprob", openai_number(logprob), "bytes",
                     bytes);
}

json_t *openai_logprobs_between(const struct answer *a, size_t from, size_t to) {
    json_t *content = json_array();
    for (size_t i = from; i < to; i++) {
        const struct answer_token *t = &a->content_tokens[i];
        const struct job_logprobs *l = t->logprobs;
        json_t *entry = logprob_entry(a->m, t->token, l->logprob), *top = json_array();
        for (uint32_t k = 0; k < l->n; k++)
            json_array_append_new(top, logprob_entry(a->m, l->top[k].token, l->top[k].logprob));
        json_object_set_new(entry, "top_logprobs", top);
        json_array_append_new(content, entry);
    }
    return content;
}

json_t *openai_logprobs(const struct answer *a, size_t from) {
    return openai_logprobs_between(a, from, a->n_content_tokens);
}

/* null when none were asked for. */
static json_t *chat_logprobs(const struct answer *a, size_t from) {
    return a->ask->n_top < 0 ? json_null()
                             : json_pack("{s:o, s:n}", "content",
                                         openai_logprobs_between(a, from, a->n_emitted), "refusal");
}

static json_t *call_json(const struct answer_call *call) {
    return json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", call->id, "type", "function", "function",
                     "name", call->name, "arguments", call->arguments);
}

/* ---- streams ------------------------------------------------------------------------------ */

static void begin_chunk(struct exchange *x, const struct openai_chunk *c) {
    buffer_printf(&x->draft, "data: {\"id\":\"%s%s\",\"object\":\"%s\",\"created\":%lld,\"model\":",
                  c->id_prefix, x->id, c->object, (long long)x->created);
    buffer_json(&x->draft, json_of_text(str_of(x->server->model.name)));
}

void openai_put_chunk(struct exchange *x, const struct openai_chunk *c, struct answer *a,
                      const char *what, json_t *value, json_t *logprobs) {
    const char *finish = openai_finish(a);
    begin_chunk(x, c);
    buffer_printf(&x->draft, ",\"choices\":[{\"index\":%u,\"%s\":", a->number, what);
    buffer_json(&x->draft, value);
    buffer_puts(&x->draft, ",\"logprobs\":");
    buffer_json(&x->draft, logprobs);
    buffer_printf(&x->draft, finish ? ",\"finish_reason\":\"%s\"}]" : ",\"finish_reason\":null}]",
                  finish);
    /* No null, unlike OpenAI's: clients of llama.cpp's server take a chunk with it for the last. */
    if (x->ask->has_usage && x->ask->has_live_usage) {
        buffer_puts(&x->draft, ",\"usage\":");
        buffer_json(&x->draft, usage_json(x));
    }
    buffer_puts(&x->draft, "}\n\n");
}

void openai_put_end(struct exchange *x, const struct openai_chunk *c) {
    if (x->ask->has_usage) {
        begin_chunk(x, c);
        buffer_puts(&x->draft, ",\"choices\":[],\"usage\":");
        buffer_json(&x->draft, usage_json(x));
        json_t *timings = openai_timings(x);
        if (timings) {
            buffer_puts(&x->draft, ",\"timings\":");
            buffer_json(&x->draft, timings);
        }
        buffer_puts(&x->draft, "}\n\n");
    }
    buffer_puts(&x->draft, "data: [DONE]\n\n");
}

void openai_put_failure(struct exchange *x, const char *message) {
    buffer_puts(&x->draft, "data: ");
    buffer_json(&x->draft, api_error(API_OPENAI, 500, message, NULL));
    buffer_puts(&x->draft, "\n\ndata: [DONE]\n\n");
}

/* ---- chat --------------------------------------------------------------------------------- */

static const struct openai_chunk chat_chunk = {"chatcmpl-", "chat.completion.chunk"};

static void put_delta(struct exchange *x, struct answer *a, json_t *delta) {
    json_t *logprobs = chat_logprobs(a, a->n_streamed);
    a->n_streamed = a->n_emitted;
    openai_put_chunk(x, &chat_chunk, a, "delta", delta, logprobs);
}

static void chat_begin(struct exchange *x) {
    for (uint32_t i = 0; i < x->n_answers; i++)
        put_delta(x, &x->answers[i], json_pack("{s:s, s:s}", "role", "assistant", "content", ""));
}

static void chat_delta(struct exchange *x, struct answer *a, const struct answer_delta *delta) {
    static const char *const names[] = {"content", "reasoning_content"};
    if (delta->kind != DELTA_CALL) {
        put_delta(x, a, json_pack("{s:o}", names[delta->kind], json_of_text(delta->text)));
        return;
    }
    json_t *call = call_json(delta->call);
    json_object_set_new(call, "index", json_integer((json_int_t)a->n_calls - 1));
    put_delta(x, a, json_pack("{s:[o]}", "tool_calls", call));
}

static void chat_end(struct exchange *x, struct answer *a) {
    put_delta(x, a, json_object());
}

static void chat_done(struct exchange *x) {
    openai_put_end(x, &chat_chunk);
}

static json_t *chat_choice(const struct answer *a) {
    bool is_silent = a->content.len == 0 && a->n_calls > 0;
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content",
                                is_silent ? json_null() : json_of_text(buffer_str(&a->content)));
    json_t *calls = json_array();
    if (a->reasoning.len > 0)
        json_object_set_new(message, "reasoning_content", json_of_text(buffer_str(&a->reasoning)));
    for (size_t i = 0; i < a->n_calls; i++)
        json_array_append_new(calls, call_json(&a->calls[i]));
    if (a->n_calls > 0)
        json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    return json_pack("{s:i, s:o, s:o, s:s}", "index", (int)a->number, "message", message,
                     "logprobs", chat_logprobs(a, 0), "finish_reason", openai_finish(a));
}

json_t *openai_whole(struct exchange *x, const char *prefix, const char *object,
                     json_t *(*choice)(const struct answer *a)) {
    char id[64];
    json_t *choices = json_array();
    for (uint32_t i = 0; i < x->n_answers; i++)
        json_array_append_new(choices, choice(&x->answers[i]));
    snprintf(id, sizeof id, "%s%s", prefix, x->id);
    return json_pack("{s:s, s:s, s:I, s:o, s:o, s:o, s:o*}", "id", id, "object", object, "created",
                     (json_int_t)x->created, "model", json_of_text(str_of(x->server->model.name)),
                     "choices", choices, "usage", usage_json(x), "timings", openai_timings(x));
}

static json_t *chat_whole(struct exchange *x) {
    return openai_whole(x, "chatcmpl-", "chat.completion", chat_choice);
}

static const struct style chat_style = {
    .stream_type = "text/event-stream",
    .ping = OPENAI_PING,
    .begin = chat_begin,
    .delta = chat_delta,
    .end = chat_end,
    .done = chat_done,
    .fail = openai_put_failure,
    .whole = chat_whole,
};

void openai_chat(struct exchange *x) {
    const struct server *s = x->server;
    struct fields f;
    struct ask *ask = exchange_ask(x, &f);
    if (!ask)
        return;
    read_chat(ask, &f, &s->model);
    exchange_converse(x, ask, &f, &chat_style);
}

/* ---- models ------------------------------------------------------------------------------- */

/* Also with the Anthropic API's names, and vLLM's name for the context length, which clients look
 * for. */
static json_t *model_json(const struct server *s) {
    char when[32];
    openai_write_time(s->created, when);
    return json_pack(
        "{s:o, s:s, s:I, s:s, s:s, s:o, s:s, s:s, s:i, s:i, s:{s:i, s:i, s:I, s:s}}", "id",
        json_of_text(str_of(s->model.name)), "object", "model", "created", (json_int_t)s->created,
        "owned_by", "sluice", "type", "model", "display_name", json_of_text(str_of(s->model.name)),
        "created_at", when, "lifecycle", "active", "max_model_len", (int)s->model.context,
        "max_input_tokens", (int)s->model.context, "meta", "context", (int)s->model.context,
        "trained_context", (int)s->model.facts.context, "parameters",
        (json_int_t)s->model.facts.parameters, "architecture", s->model.facts.architecture);
}

void openai_models(struct exchange *x) {
    exchange_reply_json(x, 200,
                        json_pack("{s:s, s:[o], s:b, s:o, s:o}", "object", "list", "data",
                                  model_json(x->server), "has_more", 0, "first_id",
                                  json_of_text(str_of(x->server->model.name)), "last_id",
                                  json_of_text(str_of(x->server->model.name))));
}

void openai_model(struct exchange *x) {
    const struct server *s = x->server;
    const char *name = x->path + strlen(s->options.prefix) + strlen("/v1/models/");
    if (strcmp(name, s->model.name) == 0)
        exchange_reply_json(x, 200, model_json(s));
    else
        exchange_refuse(x, 404, "model", "there is no model %.200s, expected %s", name,
                        s->model.name);
}
