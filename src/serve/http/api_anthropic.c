/* api_anthropic.c - the Anthropic API: /v1/messages and /v1/messages/count_tokens. */
#include <stdio.h>

#include "serve/http/internal.h"
#include "serve/tool_calls.h"

/* ---- messages ---------------------------------------------------------------------------------
 *
 * A message's blocks become messages of the OpenAI form: results of tools are messages of their
 * own, and go before the text beside them. */

struct turn {
    struct fields *f;
    json_t *to; /* the messages so far */
    char where[48];
    struct buffer text, thinking;
    json_t *calls;
};

static void add_result(struct turn *t, const json_t *block) {
    const char *id = json_text_of(block, "tool_use_id");
    json_t *content = ask_content(t->f, "messages", json_object_get(block, "content"), t->where);
    if (!id)
        fields_refuse(t->f, "messages", "%s: a tool_result has no tool_use_id", t->where);
    json_array_append_new(t->to, json_pack("{s:s, s:s*, s:o*}", "role", "tool", "tool_call_id", id,
                                           "content", content));
}

static void add_call(struct turn *t, const json_t *block) {
    const char *name = json_text_of(block, "name");
    json_t *input = json_object_get(block, "input");
    if (!name || !json_is_object(input)) {
        fields_refuse(t->f, "messages", "%s: a tool_use has no name or no input", t->where);
        return;
    }
    if (json_is_deeper(input, TOOL_MAX_LEVELS)) {
        fields_refuse(t->f, "messages",
                      "%s: the input of a tool_use is nested deeper than %d levels", t->where,
                      TOOL_MAX_LEVELS);
        return;
    }
    if (!t->calls)
        t->calls = json_array();
    json_array_append_new(t->calls, json_pack("{s:s*, s:s, s:{s:s, s:O}}", "id",
                                              json_text_of(block, "id"), "type", "function",
                                              "function", "name", name, "arguments", input));
}

static void add_text(struct turn *t, const json_t *block, const char *name, struct buffer *to) {
    const json_t *text = json_object_get(block, name);
    if (json_is_string(text))
        buffer_add(to, json_string_value(text), json_string_length(text));
    else
        fields_refuse(t->f, "messages", "%s: %s is %s, expected a string", t->where, name,
                      json_kind(text));
}

static void add_block(struct turn *t, const json_t *block) {
    const char *type = json_text_of(block, "type");
    if (!type)
        fields_refuse(t->f, "messages", "%s has a block without a type", t->where);
    else if (strcmp(type, "text") == 0)
        add_text(t, block, "text", &t->text);
    else if (strcmp(type, "thinking") == 0)
        add_text(t, block, "thinking", &t->thinking);
    else if (strcmp(type, "tool_use") == 0)
        add_call(t, block);
    else if (strcmp(type, "tool_result") == 0)
        add_result(t, block);
    else if (strcmp(type, "redacted_thinking") != 0)
        fields_refuse(t->f, "messages", "%s has a block of type %.40s; this model reads text alone",
                      t->where, type);
}

/* Makes one message of the remaining blocks. */
static void end_turn(struct turn *t, const char *role, bool is_plain) {
    bool is_empty = t->text.len == 0 && !t->calls && t->thinking.len == 0;
    if (t->text.has_failed || (is_empty && !is_plain))
        return;
    json_t *message =
        json_pack("{s:s, s:o}", "role", role, "content", json_of_text(buffer_str(&t->text)));
    if (t->thinking.len > 0)
        json_object_set_new(message, "reasoning_content", json_of_text(buffer_str(&t->thinking)));
    if (t->calls)
        json_object_set(message, "tool_calls", t->calls);
    json_array_append_new(t->to, message);
}

static void read_message(struct fields *f, json_t *to, const json_t *message, size_t number) {
    struct turn t = {.f = f, .to = to};
    const char *role = json_text_of(message, "role");
    const json_t *content = json_object_get(message, "content");
    json_t *block;
    size_t i;
    snprintf(t.where, sizeof t.where, "messages[%zu]", number);
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 &&
                  strcmp(role, "system") != 0))
        fields_refuse(f, "messages", "%s.role is %s%.40s%s, expected user or assistant", t.where,
                      role ? "'" : "", role ? role : json_kind(json_object_get(message, "role")),
                      role ? "'" : "");
    else if (json_is_string(content))
        buffer_add(&t.text, json_string_value(content), json_string_length(content));
    else if (!json_is_array(content))
        fields_refuse(f, "messages", "%s.content is %s, expected a string or an array of blocks",
                      t.where, json_kind(content));
    json_array_foreach(content, i, block) {
        add_block(&t, block);
    }
    if (!f->wrong)
        end_turn(&t, role, json_is_string(content));
    buffer_free(&t.text);
    buffer_free(&t.thinking);
    json_decref(t.calls);
}

static void read_messages(struct ask *ask, struct fields *f) {
    const json_t *messages = NULL, *system = fields_any(f, "system");
    json_t *message;
    size_t i;
    fields_array(f, "messages", &messages);
    if (f->wrong)
        return;
    ask->messages = json_array();
    if (system) {
        json_t *text = ask_content(f, "system", system, "system");
        json_array_append_new(ask->messages,
                              json_pack("{s:s, s:o*}", "role", "system", "content", text));
    }
    json_array_foreach(messages, i, message) {
        if (!f->wrong)
            read_message(f, ask->messages, message, i);
    }
    if (json_array_size(messages) == 0)
        fields_refuse(f, "messages", "messages is %s, expected an array with a message",
                      messages ? "empty" : "missing");
}

/* ---- what else is asked ------------------------------------------------------------------- */

static void read_tools(struct ask *ask, struct fields *f) {
    const json_t *tools = NULL;
    json_t *tool, *out = json_array();
    size_t i;
    fields_array(f, "tools", &tools);
    json_array_foreach(tools, i, tool) {
        const char *name = json_text_of(tool, "name"), *type = json_text_of(tool, "type");
        json_t *schema = json_object_get(tool, "input_schema");
        if (type && strcmp(type, "custom") != 0)
            fields_refuse(f, "tools", "tools[%zu] is of type %.40s, expected a custom tool", i,
                          type);
        else if (!name || !json_is_object(schema))
            fields_refuse(f, "tools", "tools[%zu] has no name or no input_schema", i);
        else
            json_array_append_new(out, ask_tool(name, json_text_of(tool, "description"), schema));
    }
    ask_read_tools(ask, f, out);
    json_decref(out);
}

static void read_tool_choice(struct ask *ask, struct fields *f, const struct ask_model *m) {
    const json_t *choice = NULL;
    fields_object(f, "tool_choice", &choice);
    const char *type = json_text_of(choice, "type");
    ask->has_one_call = json_is_true(json_object_get(choice, "disable_parallel_tool_use"));
    if (!choice || f->wrong)
        return;
    if (type && strcmp(type, "none") == 0)
        ask_forbid_tools(ask, m);
    else if (type && strcmp(type, "any") == 0)
        ask_require_tool(ask, f, m, NULL);
    else if (type && strcmp(type, "tool") == 0 && json_text_of(choice, "name"))
        ask_require_tool(ask, f, m, json_text_of(choice, "name"));
    else if (!type || strcmp(type, "auto") != 0)
        fields_refuse(f, "tool_choice",
                      "tool_choice.type is '%.40s', expected auto, any, tool or none",
                      type ? type : "");
}

/* In this API thinking is off unless requested. */
static void read_thinking(struct ask *ask, struct fields *f) {
    struct fields inner = {0};
    fields_object(f, "thinking", &inner.object);
    const char *type = json_text_of(inner.object, "type");
    fields_int(&inner, "budget_tokens", 1, INT32_MAX, &ask->thinking_budget);
    if (inner.wrong)
        fields_refuse(f, "thinking", "thinking.%s", inner.err.text);
    else if (inner.object &&
             (!type || (strcmp(type, "enabled") != 0 && strcmp(type, "disabled") != 0 &&
                        strcmp(type, "adaptive") != 0)))
        fields_refuse(f, "thinking",
                      "thinking.type is '%.40s', expected enabled, disabled or adaptive",
                      type ? type : "");
    bool thinks = type && strcmp(type, "disabled") != 0;
    ask_set_variable(ask, "enable_thinking", json_boolean(thinks));
}

/* output_config: the effort, and a format of the answer. */
static void read_output(struct ask *ask, struct fields *f, const struct ask_model *m) {
    const json_t *output = NULL;
    fields_object(f, "output_config", &output);
    const char *effort = json_text_of(output, "effort");
    const json_t *format = json_object_get(output, "format");
    const char *type = json_text_of(format, "type");
    if (effort)
        ask_set_effort(ask, f, "output_config", "output_config.effort", effort);
    if (!json_is_object(format) || f->wrong)
        return;
    if (type && strcmp(type, "json_schema") == 0 && json_object_get(format, "schema"))
        ask_set_schema(ask, f, "output_config", m, json_object_get(format, "schema"));
    else
        fields_refuse(f, "output_config", "output_config.format is '%.40s', expected a json_schema",
                      type ? type : "");
}

/* Refuses stateful conversations, in which `messages` has the last turn alone. */
static void refuse_threads(struct fields *f) {
    if (fields_any(f, "thread"))
        fields_refuse(f, "thread",
                      "thread is not supported, expected all messages of the conversation");
}

static void read_all(struct ask *ask, struct fields *f, const struct ask_model *m) {
    refuse_threads(f);
    read_messages(ask, f);
    ask->continues_last = true;
    read_tools(ask, f);
    read_tool_choice(ask, f, m);
    read_thinking(ask, f);
    read_output(ask, f, m);
    ask_read_format(ask, f, m); /* our extension: grammar */
    ask_read_sampling(ask, f, m);
    ask_read_stops(ask, f, "stop_sequences");
}

/* ---- what is answered --------------------------------------------------------------------- */

static const char *stop_reason(const struct answer *a, const char **stop) {
    *stop = answer_stop_text(a);
    return *stop                        ? "stop_sequence"
           : a->finish == FINISH_CALLS  ? "tool_use"
           : a->finish == FINISH_LENGTH ? "max_tokens"
           : a->finish == FINISH_CUT    ? "max_tokens"
                                        : "end_turn";
}

/* In this API input_tokens excludes cached tokens. */
static json_t *usage_of(const struct exchange *x) {
    struct usage_counts u = exchange_usage(x);
    return json_pack("{s:I, s:I, s:I, s:I}", "input_tokens", (json_int_t)(u.prompt - u.cached),
                     "cache_creation_input_tokens", (json_int_t)0, "cache_read_input_tokens",
                     (json_int_t)u.cached, "output_tokens", (json_int_t)u.new_tokens);
}

static json_t *message_json(const struct exchange *x, json_t *content, const char *reason,
                            const char *stop) {
    char id[64];
    snprintf(id, sizeof id, "msg_%s", x->id);
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:s?, s:s?, s:o}", "id", id, "type", "message",
                     "role", "assistant", "model", json_of_text(str_of(x->server->model.name)),
                     "content", content, "stop_reason", reason, "stop_sequence", stop, "usage",
                     usage_of(x));
}

static json_t *whole(struct exchange *x) {
    const struct answer *a = &x->answers[0];
    json_t *content = json_array();
    const char *stop, *reason = stop_reason(a, &stop);
    if (a->reasoning.len > 0)
        json_array_append_new(content,
                              json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking",
                                        json_of_text(buffer_str(&a->reasoning)), "signature", ""));
    if (a->content.len > 0 || (a->n_calls == 0 && a->reasoning.len == 0))
        json_array_append_new(content, json_pack("{s:s, s:o}", "type", "text", "text",
                                                 json_of_text(buffer_str(&a->content))));
    for (size_t i = 0; i < a->n_calls; i++)
        json_array_append_new(content, json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id",
                                                 a->calls[i].id, "name", a->calls[i].name, "input",
                                                 json_loads(a->calls[i].arguments, 0, NULL)));
    return message_json(x, content, reason, stop);
}

/* ---- streams ----------------------------------------------------------------------------------
 *
 * x->block is what the open block holds, and x->n_blocks how many were begun. */

enum { NO_BLOCK, TEXT_BLOCK, THINKING_BLOCK };

static void put(struct exchange *x, const char *event, json_t *data) {
    json_object_set_new(data, "type", json_string(event));
    buffer_printf(&x->draft, "event: %s\ndata: ", event);
    buffer_json(&x->draft, data);
    buffer_puts(&x->draft, "\n\n");
}

static void begin(struct exchange *x) {
    put(x, "message_start",
        json_pack("{s:o}", "message", message_json(x, json_array(), NULL, NULL)));
}

static void end_block(struct exchange *x) {
    if (x->block == THINKING_BLOCK)
        put(x, "content_block_delta",
            json_pack("{s:i, s:{s:s, s:s}}", "index", x->n_blocks - 1, "delta", "type",
                      "signature_delta", "signature", ""));
    if (x->block != NO_BLOCK)
        put(x, "content_block_stop", json_pack("{s:i}", "index", x->n_blocks - 1));
    x->block = NO_BLOCK;
}

static void begin_block(struct exchange *x, int block, json_t *content) {
    end_block(x);
    x->block = block;
    put(x, "content_block_start",
        json_pack("{s:i, s:o}", "index", x->n_blocks++, "content_block", content));
}

static void put_call(struct exchange *x, const struct answer_call *call) {
    begin_block(x, TEXT_BLOCK,
                json_pack("{s:s, s:s, s:s, s:{}}", "type", "tool_use", "id", call->id, "name",
                          call->name, "input"));
    put(x, "content_block_delta",
        json_pack("{s:i, s:{s:s, s:s}}", "index", x->n_blocks - 1, "delta", "type",
                  "input_json_delta", "partial_json", call->arguments));
    end_block(x);
}

static void put_delta(struct exchange *x, struct answer *a, const struct answer_delta *delta) {
    (void)a;
    if (delta->kind == DELTA_CALL) {
        put_call(x, delta->call);
        return;
    }
    bool thinks = delta->kind == DELTA_REASONING;
    int block = thinks ? THINKING_BLOCK : TEXT_BLOCK;
    if (x->block != block)
        begin_block(x, block,
                    thinks ? json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "",
                                       "signature", "")
                           : json_pack("{s:s, s:s}", "type", "text", "text", ""));
    put(x, "content_block_delta",
        json_pack("{s:i, s:{s:s, s:o}}", "index", x->n_blocks - 1, "delta", "type",
                  thinks ? "thinking_delta" : "text_delta", thinks ? "thinking" : "text",
                  json_of_text(delta->text)));
}

static void done(struct exchange *x) {
    const char *stop, *reason = stop_reason(&x->answers[0], &stop);
    if (x->n_blocks == 0)
        begin_block(x, TEXT_BLOCK, json_pack("{s:s, s:s}", "type", "text", "text", ""));
    end_block(x);
    put(x, "message_delta",
        json_pack("{s:{s:s, s:s?}, s:o}", "delta", "stop_reason", reason, "stop_sequence", stop,
                  "usage", usage_of(x)));
    put(x, "message_stop", json_object());
}

static void put_failure(struct exchange *x, const char *message) {
    put(x, "error", api_error(API_ANTHROPIC, 500, message, NULL));
}

static const struct style anthropic_style = {
    .stream_type = "text/event-stream",
    .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    .begin = begin,
    .delta = put_delta,
    .done = done,
    .fail = put_failure,
    .whole = whole,
    .needs_all_digits = true,
};

void anthropic_messages(struct exchange *x) {
    struct fields f;
    struct ask *ask = exchange_ask(x, &f);
    if (!ask)
        return;
    read_all(ask, &f, &x->server->model);
    fields_int(&f, "max_tokens", 1, INT32_MAX, &ask->max_tokens);
    if (!f.wrong && ask->max_tokens < 0)
        fields_refuse(&f, "max_tokens", "max_tokens is missing, expected a number");
    exchange_converse(x, ask, &f, &anthropic_style);
}

void anthropic_count(struct exchange *x) {
    struct fields f;
    struct ask *ask = exchange_ask(x, &f);
    if (!ask)
        return;
    read_all(ask, &f, &x->server->model);
    if (exchange_encode(x, ask, &f))
        exchange_reply_json(x, 200,
                            json_pack("{s:I}", "input_tokens", (json_int_t)ask->prompts[0].n));
    ask_close(ask);
}
