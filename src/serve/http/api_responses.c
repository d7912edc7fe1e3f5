/* api_responses.c - the OpenAI API's /v1/responses: items in, items out.
 *
 * Input items become messages of the chat form; the deltas of the answer become output items, which
 * a stream sends as they grow. A stored response (in memory, the least recently used go first) is
 * found by its id, with the conversation up to its end.
 *
 * (1) The last event of a stream has the same response that is sent without a stream. */
#include <stdio.h>

#include "serve/http/openai.h"
#include "serve/http/snapshot.h"

enum item { NO_ITEM, ITEM_REASONING, ITEM_MESSAGE };

/* What an exchange needs besides its ask. */
struct response {
    json_t *turns;  /* messages of the conversation, without instructions */
    json_t *output; /* items that are complete */
    bool is_stored;
    int sequence; /* events so far */

    /* The item that grows. */
    enum item open;
    char id[32];
    struct buffer text;
    size_t first_token; /* of the answer's tokens with log probabilities */
};

static void response_release(void *own) {
    struct response *r = own;
    json_decref(r->turns);
    json_decref(r->output);
    buffer_free(&r->text);
    free(r);
}

static struct response *response_of(const struct exchange *x) {
    return x->own;
}

/* ---- stored responses -------------------------------------------------------------------------
 *
 * {"response": ..., "turns": [...]}, as text. */

static json_t *find_stored(const struct server *s, const char *id) {
    size_t n;
    char *text = store_get(s->responses, hash128_of(id, strlen(id)), &n);
    bool lacks_memory;
    json_t *stored =
        text ? json_load_whole((struct str){text, n}, JSON_ALLOW_NUL, NULL, &lacks_memory) : NULL;
    const char *found =
        json_string_value(json_object_get(json_object_get(stored, "response"), "id"));
    free(text);
    if (found && strcmp(found, id) == 0)
        return stored;
    json_decref(stored);
    return NULL;
}

static void keep(const struct exchange *x, const json_t *response, const struct answer *a) {
    const struct response *r = response_of(x);
    const char *id = json_string_value(json_object_get(response, "id"));
    struct buffer text = {0};
    json_array_append_new(r->turns, answer_message(a));
    if (buffer_json_all_digits(&text,
                               json_pack("{s:O, s:O}", "response", response, "turns", r->turns)))
        store_put(x->server->responses, hash128_of(id, strlen(id)), text.at, text.len);
    buffer_free(&text);
}

static void refuse_unknown(struct exchange *x) {
    exchange_refuse(x, 404, NULL, "there is no response %s: it was never stored, or is forgotten",
                    x->name);
}

void openai_response_get(struct exchange *x) {
    json_t *stored = find_stored(x->server, x->name);
    if (strcmp(x->query.stream, "true") == 0)
        exchange_refuse(x, 400, "stream", "stream is true, expected false: its events are over");
    else if (stored)
        exchange_reply_json_all_digits(x, 200, json_incref(json_object_get(stored, "response")));
    else
        refuse_unknown(x);
    json_decref(stored);
}

void openai_response_delete(struct exchange *x) {
    if (store_drop(x->server->responses, hash128_of(x->name, strlen(x->name))))
        exchange_reply_json(
            x, 200,
            json_pack("{s:s, s:s, s:b}", "id", x->name, "object", "response", "deleted", 1));
    else
        refuse_unknown(x);
}

/* ---- what a stored response was given ----------------------------------------------------- */

/* The id encodes its place, so that a list can continue after it: items are not stored. */
static void add_input(json_t *items, const char *response, const char *prefix, json_t *item) {
    char id[96];
    const char *rest = strchr(response, '_');
    snprintf(id, sizeof id, "%s_%s_%zu", prefix, rest ? rest + 1 : response,
             json_array_size(items));
    json_object_set_new(item, "id", json_string(id));
    json_object_set_new(item, "status", json_string("completed"));
    json_array_append_new(items, item);
}

static json_t *call_item(const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    json_t *arguments = json_object_get(function, "arguments");
    struct buffer text = {0};
    if (!json_is_string(arguments))
        buffer_json_all_digits(&text, json_incref(arguments));
    json_t *item = json_pack("{s:s, s:s, s:O*, s:o*}", "type", "function_call", "call_id",
                             json_text_of(call, "id") ? json_text_of(call, "id") : "", "name",
                             json_object_get(function, "name"), "arguments",
                             text.len ? json_of_text(buffer_str(&text)) : json_incref(arguments));
    buffer_free(&text);
    return item;
}

/* A message is an item, and so are the calls in it. */
static void add_turn(json_t *items, const char *response, json_t *turn) {
    const char *role = json_text_of(turn, "role"), *id = json_text_of(turn, "tool_call_id");
    json_t *content = json_object_get(turn, "content"), *call;
    bool is_answer = role && strcmp(role, "assistant") == 0;
    size_t i;
    if (role && strcmp(role, "tool") == 0)
        add_input(items, response, "fco",
                  json_pack("{s:s, s:s, s:O*}", "type", "function_call_output", "call_id",
                            id ? id : "", "output", content));
    else if (!is_answer || json_string_length(content) > 0)
        add_input(items, response, "msg",
                  json_pack("{s:s, s:s*, s:[{s:s, s:O*, s:o*}]}", "type", "message", "role", role,
                            "content", "type", is_answer ? "output_text" : "input_text", "text",
                            content, "annotations", is_answer ? json_array() : NULL));
    json_array_foreach(json_object_get(turn, "tool_calls"), i, call) {
        add_input(items, response, "fc", call_item(call));
    }
}

/* All but the answer, which is the last turn; in the requested order. */
static json_t *input_items(const char *response, const json_t *turns, bool newest_first) {
    json_t *items = json_array(), *turned = newest_first ? json_array() : NULL;
    for (size_t i = 0; i + 1 < json_array_size(turns); i++)
        add_turn(items, response, json_array_get(turns, i));
    if (!newest_first)
        return items;
    for (size_t i = json_array_size(items); i > 0; i--)
        json_array_append(turned, json_array_get(items, i - 1));
    json_decref(items);
    return turned;
}

/* The place after the item of that id; 0: there is none. */
static size_t place_after(const json_t *items, const char *id) {
    json_t *item;
    size_t i;
    json_array_foreach(items, i, item) {
        const char *its = json_text_of(item, "id");
        if (its && strcmp(its, id) == 0)
            return i + 1;
    }
    return 0;
}

static json_t *page_of(const json_t *items, size_t from, size_t limit) {
    size_t n = json_array_size(items);
    json_t *data = json_array();
    for (size_t i = from; i < n && i - from < limit; i++)
        json_array_append(data, json_array_get(items, i));
    size_t n_data = json_array_size(data);
    json_t *first = json_object_get(json_array_get(data, 0), "id");
    json_t *last = n_data > 0 ? json_object_get(json_array_get(data, n_data - 1), "id") : NULL;
    return json_pack("{s:s, s:o, s:O?, s:O?, s:b}", "object", "list", "data", data, "first_id",
                     first, "last_id", last, "has_more", from + n_data < n);
}

void openai_response_input(struct exchange *x) {
    enum { MAX_LIMIT = 100, DEFAULT_LIMIT = 20 };
    const struct query *q = &x->query;
    char *end = NULL;
    long limit = *q->limit ? strtol(q->limit, &end, 10) : DEFAULT_LIMIT;
    bool is_rising = strcmp(q->order, "asc") == 0;
    json_t *stored = find_stored(x->server, x->name);
    json_t *items = input_items(x->name, json_object_get(stored, "turns"), !is_rising);
    size_t from = place_after(items, q->after);
    if (!stored)
        refuse_unknown(x);
    else if ((end && *end) || limit < 1 || limit > MAX_LIMIT)
        exchange_refuse(x, 400, "limit", "limit is %s, expected 1 to %d", q->limit, MAX_LIMIT);
    else if (*q->order && !is_rising && strcmp(q->order, "desc") != 0)
        exchange_refuse(x, 400, "order", "order is %s, expected asc or desc", q->order);
    else if (*q->after && from == 0)
        exchange_refuse(x, 400, "after", "after is %s, expected the id of an item", q->after);
    else
        exchange_reply_json(x, 200, page_of(items, from, (size_t)limit));
    json_decref(items);
    json_decref(stored);
}

/* ---- input -------------------------------------------------------------------------------- */

/* Items of one assistant turn (reasoning, text, calls) are one message. */
static json_t *assistant_turn(json_t *turns) {
    json_t *last = json_array_get(turns, json_array_size(turns) - 1);
    const char *role = json_text_of(last, "role");
    if (role && strcmp(role, "assistant") == 0)
        return last;
    json_array_append_new(turns, json_pack("{s:s, s:s}", "role", "assistant", "content", ""));
    return json_array_get(turns, json_array_size(turns) - 1);
}

static void add_message(struct fields *f, json_t *turns, const json_t *item, const char *where) {
    const char *role = ask_role(f, "input", item, where);
    if (!role)
        return;
    json_t *content = ask_content(f, "input", json_object_get(item, "content"), where);
    json_t *last = strcmp(role, "assistant") == 0 && content ? assistant_turn(turns) : NULL;
    bool is_fresh = last && json_string_length(json_object_get(last, "content")) == 0 &&
                    !json_object_get(last, "tool_calls");
    if (is_fresh)
        json_object_set_new(last, "content", content);
    else if (content)
        json_array_append_new(turns, json_pack("{s:s, s:o}", "role", role, "content", content));
}

static void add_call(struct fields *f, json_t *turns, const json_t *item, const char *where) {
    const char *name = json_text_of(item, "name"), *arguments = json_text_of(item, "arguments");
    if (!name || !arguments) {
        fields_refuse(f, "input", "%s: a function_call has no name or no arguments", where);
        return;
    }
    json_t *turn = assistant_turn(turns), *calls = json_object_get(turn, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(turn, "tool_calls", calls);
    }
    json_array_append_new(calls, json_pack("{s:s*, s:s, s:{s:s, s:s}}", "id",
                                           json_text_of(item, "call_id"), "type", "function",
                                           "function", "name", name, "arguments", arguments));
}

static void add_result(struct fields *f, json_t *turns, const json_t *item, const char *where) {
    const char *id = json_text_of(item, "call_id");
    json_t *content = ask_content(f, "input", json_object_get(item, "output"), where);
    if (!id)
        fields_refuse(f, "input", "%s: a function_call_output has no call_id", where);
    json_array_append_new(turns, json_pack("{s:s, s:s*, s:o*}", "role", "tool", "tool_call_id", id,
                                           "content", content));
}

/* Adds the reasoning before a turn; without its text there is nothing to add. */
static void add_reasoning(json_t *turns, const json_t *item) {
    struct buffer text = {0};
    json_t *part;
    size_t i;
    json_array_foreach(json_object_get(item, "content"), i, part) {
        const json_t *its = json_object_get(part, "text");
        buffer_add(&text, json_string_value(its), json_string_length(its));
    }
    if (text.len > 0) {
        json_array_append_new(turns,
                              json_pack("{s:s, s:s, s:o}", "role", "assistant", "content", "",
                                        "reasoning_content", json_of_text(buffer_str(&text))));
    }
    buffer_free(&text);
}

static void add_item(struct fields *f, json_t *turns, const json_t *item, size_t number) {
    char where[32];
    const char *type = json_text_of(item, "type");
    snprintf(where, sizeof where, "input[%zu]", number);
    if (!json_is_object(item))
        fields_refuse(f, "input", "%s is %s, expected an item", where, json_kind(item));
    else if (!type || strcmp(type, "message") == 0)
        add_message(f, turns, item, where);
    else if (strcmp(type, "function_call") == 0)
        add_call(f, turns, item, where);
    else if (strcmp(type, "function_call_output") == 0)
        add_result(f, turns, item, where);
    else if (strcmp(type, "reasoning") == 0)
        add_reasoning(turns, item);
    else
        fields_refuse(f, "input",
                      "%s is of type %.40s, expected message, function_call, "
                      "function_call_output or reasoning",
                      where, type);
}

static void read_items(struct fields *f, json_t *turns) {
    const json_t *input = fields_any(f, "input");
    json_t *item;
    size_t i;
    if (json_is_string(input))
        json_array_append_new(turns,
                              json_pack("{s:s, s:O}", "role", "user", "content", (json_t *)input));
    else if (json_array_size(input) == 0)
        fields_refuse(f, "input", "input is %s, expected a string or an array of items",
                      json_is_array(input) ? "empty" : json_kind(input));
    json_array_foreach(input, i, item) {
        if (!f->wrong)
            add_item(f, turns, item, i);
    }
}

/* The conversation of the previous response. */
static json_t *earlier_turns(const struct server *s, struct fields *f) {
    const char *id = NULL;
    fields_string(f, "previous_response_id", &id);
    json_t *stored = id ? find_stored(s, id) : NULL;
    json_t *turns = stored ? json_incref(json_object_get(stored, "turns")) : json_array();
    if (id && !stored)
        fields_refuse(f, "previous_response_id",
                      "previous_response_id is %.80s, which is not kept: it was never stored, or "
                      "is forgotten",
                      id);
    json_decref(stored);
    return turns;
}

/* Templates take one system message: instructions and one that the input begins with are joined. */
static json_t *with_instructions(const json_t *turns, const char *instructions) {
    json_t *messages = json_copy((json_t *)turns), *first = json_array_get(messages, 0);
    const char *role = json_text_of(first, "role");
    struct buffer text = {0};
    if (!instructions)
        return messages;
    buffer_puts(&text, instructions);
    if (role && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0)) {
        const json_t *content = json_object_get(first, "content");
        buffer_puts(&text, "\n\n");
        buffer_add(&text, json_string_value(content), json_string_length(content));
        json_array_remove(messages, 0);
    }
    json_array_insert_new(
        messages, 0,
        json_pack("{s:s, s:o}", "role", "system", "content", json_of_text(buffer_str(&text))));
    buffer_free(&text);
    return messages;
}

/* In this API a tool is the function itself. */
static void read_tools(struct ask *ask, struct fields *f) {
    const json_t *tools = NULL;
    json_t *tool, *out = json_array();
    size_t i;
    fields_array(f, "tools", &tools);
    json_array_foreach(tools, i, tool) {
        const char *type = json_text_of(tool, "type"), *name = json_text_of(tool, "name");
        if (!type || strcmp(type, "function") != 0)
            fields_refuse(f, "tools", "tools[%zu].type is %.40s, expected function", i,
                          type ? type : json_kind(json_object_get(tool, "type")));
        json_array_append_new(out, ask_tool(name, json_text_of(tool, "description"),
                                            json_object_get(tool, "parameters")));
    }
    ask_read_tools(ask, f, out);
    json_decref(out);
}

/* Instructions change how a snapshot's conversation begins: it is then processed again. */
static void read_input(const struct server *s, struct response *r, struct ask *ask,
                       struct fields *f) {
    const char *instructions = NULL;
    json_t *snapshot = snapshot_named(s, f);
    fields_string(f, "instructions", &instructions);
    if (snapshot && fields_any(f, "previous_response_id"))
        fields_refuse(f, "snapshot",
                      "snapshot and previous_response_id are both given, expected one");
    r->turns =
        snapshot ? json_deep_copy(json_object_get(snapshot, "messages")) : earlier_turns(s, f);
    read_items(f, r->turns);
    json_t *messages = with_instructions(r->turns, instructions);
    ask_read_messages(ask, f, messages);
    read_tools(ask, f);
    ask->has_snapshot = snapshot != NULL;
    if (snapshot && !f->wrong)
        snapshot_fill(s, ask, f, snapshot, !instructions);
    json_decref(messages);
    json_decref(snapshot);
}

/* ---- what else is asked ------------------------------------------------------------------- */

static void read_text(struct ask *ask, struct fields *f, const struct ask_model *m) {
    const json_t *text = NULL;
    fields_object(f, "text", &text);
    const json_t *format = json_object_get(text, "format");
    const char *type = json_text_of(format, "type");
    if (!format || json_is_null(format) || f->wrong)
        return;
    const json_t *schema = json_object_get(format, "schema");
    if (type && strcmp(type, "json_object") == 0)
        ask_set_schema(ask, f, "text", m, NULL);
    else if (type && strcmp(type, "json_schema") == 0 && schema)
        ask_set_schema(ask, f, "text", m, schema);
    else if (type && strcmp(type, "json_schema") == 0)
        fields_refuse(f, "text", "text.format has no schema");
    else if (!type || strcmp(type, "text") != 0)
        fields_refuse(f, "text",
                      "text.format.type is '%.40s', expected text, json_object or json_schema",
                      type ? type : "");
}

static void read_logprobs(struct ask *ask, struct fields *f) {
    const json_t *include = NULL;
    json_t *one;
    int64_t n_top = 0;
    size_t i;
    fields_array(f, "include", &include);
    fields_int(f, "top_logprobs", 0, ASK_MAX_TOP, &n_top);
    json_array_foreach(include, i, one) {
        const char *word = json_string_value(one);
        if (!word)
            fields_refuse(f, "include", "include has %s, expected strings", json_kind(one));
        else if (strcmp(word, "message.output_text.logprobs") == 0)
            ask->n_top = n_top;
    }
    if (n_top > 0 && ask->n_top < 0)
        fields_refuse(f, "top_logprobs",
                      "top_logprobs is %d, expected include to have message.output_text.logprobs",
                      (int)n_top);
}

/* Refuses unsupported fields that would change the answer. */
static void refuse_missing(struct fields *f) {
    static const char *const missing[] = {"conversation", "prompt"};
    bool in_background = false;
    fields_bool(f, "background", &in_background);
    if (in_background)
        fields_refuse(f, "background",
                      "background is true, expected false: there are no jobs "
                      "without a client here");
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        if (fields_any(f, missing[i]))
            fields_refuse(f, missing[i],
                          "%s is not supported, expected the whole input or previous_response_id",
                          missing[i]);
}

static void read_all(const struct server *s, struct response *r, struct ask *ask,
                     struct fields *f) {
    const struct ask_model *m = &s->model;
    const json_t *reasoning = NULL, *metadata = NULL, *options = NULL;
    const char *truncation;
    r->is_stored = true;
    refuse_missing(f);
    read_input(s, r, ask, f);
    fields_object(f, "reasoning", &reasoning);
    openai_read_thinking(ask, f, json_text_of(reasoning, "effort"));
    openai_read_tool_choice(ask, f, m);
    read_text(ask, f, m);
    ask_read_format(ask, f, m); /* ours: grammar */
    ask_read_sampling(ask, f, m);
    ask_read_stops(ask, f, "stop");
    fields_int(f, "max_output_tokens", 1, INT32_MAX, &ask->max_tokens);
    fields_object(f, "metadata", &metadata);
    fields_object(f, "stream_options", &options);
    fields_string(f, "truncation", &truncation);
    fields_bool(f, "store", &r->is_stored);
    read_logprobs(ask, f);
}

/* ---- the response ------------------------------------------------------------------------- */

static json_t *usage_json(const struct exchange *x) {
    struct usage_counts u = exchange_usage(x);
    return json_pack("{s:I, s:{s:I, s:i}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)u.prompt,
                     "input_tokens_details", "cached_tokens", (json_int_t)u.cached,
                     "cache_write_tokens", 0, "output_tokens", (json_int_t)u.new_tokens,
                     "output_tokens_details", "reasoning_tokens", (json_int_t)u.reasoning,
                     "total_tokens", (json_int_t)(u.prompt + u.new_tokens));
}

/* Copies a member of the request, or sets its default. Takes `other`. */
static void echo(json_t *response, const struct exchange *x, const char *name, json_t *other) {
    json_t *asked = json_object_get(x->ask->root, name);
    if (asked && !json_is_null(asked)) {
        json_object_set(response, name, asked);
        json_decref(other);
    } else {
        json_object_set_new(response, name, other);
    }
}

/* `status` is "in_progress" while no output has been sent. */
static json_t *response_json(const struct exchange *x, const char *status) {
    const struct sluice_sampling *s = &x->ask->sampling;
    const struct response *r = response_of(x);
    bool is_over = strcmp(status, "in_progress") != 0;
    char id[64];
    snprintf(id, sizeof id, "resp_%s", x->id);
    json_t *out = json_pack(
        "{s:s, s:s, s:I, s:s, s:b, s:n, s:n, s:o, s:o, s:b, s:s, s:o}", "id", id, "object",
        "response", "created_at", (json_int_t)x->created, "status", status, "background", 0,
        "error", "incomplete_details", "model", json_of_text(str_of(x->server->model.name)),
        "output", is_over ? json_incref(r->output) : json_array(), "store", r->is_stored,
        "truncation", "disabled", "usage", is_over ? usage_json(x) : json_null());
    echo(out, x, "temperature", json_of_float(s->temperature));
    echo(out, x, "top_p", json_of_float(s->top_p));
    echo(out, x, "instructions", json_null());
    echo(out, x, "max_output_tokens", json_null());
    echo(out, x, "metadata", json_object());
    echo(out, x, "parallel_tool_calls", json_true());
    echo(out, x, "previous_response_id", json_null());
    echo(out, x, "reasoning", json_pack("{s:n, s:n}", "effort", "summary"));
    echo(out, x, "text", json_pack("{s:{s:s}}", "format", "type", "text"));
    echo(out, x, "tool_choice", json_string("auto"));
    echo(out, x, "tools", json_array());
    echo(out, x, "top_logprobs", json_integer(0));
    return out;
}

static json_t *failed_json(const struct exchange *x, const char *message) {
    json_t *out = response_json(x, "failed");
    json_object_set_new(out, "error",
                        json_pack("{s:s, s:s}", "code", "server_error", "message", message));
    return out;
}

/* ---- items -------------------------------------------------------------------------------- */

static void put(struct exchange *x, const char *event, json_t *data) {
    struct response *r = response_of(x);
    if (x->ask->is_streamed) {
        json_object_set_new(data, "type", json_string(event));
        json_object_set_new(data, "sequence_number", json_integer(r->sequence++));
        buffer_printf(&x->draft, "event: %s\ndata: ", event);
        buffer_json_all_digits(&x->draft, data);
        buffer_puts(&x->draft, "\n\n");
    } else {
        json_decref(data);
    }
}

static int output_index(const struct response *r) {
    return (int)json_array_size(r->output);
}

/* An event of the open item's one part; takes the value. */
static void put_part(struct exchange *x, const char *event, const char *name, json_t *value) {
    const struct response *r = response_of(x);
    put(x, event,
        json_pack("{s:s, s:i, s:i, s:o}", "item_id", r->id, "output_index", output_index(r),
                  "content_index", 0, name, value));
}

static void put_item(struct exchange *x, const char *event, json_t *item) {
    put(x, event,
        json_pack("{s:i, s:o}", "output_index", output_index(response_of(x)), "item", item));
}

static json_t *logprobs_of(const struct answer *a, size_t from, size_t to) {
    return a->ask->n_top < 0 ? json_array() : openai_logprobs_between(a, from, to);
}

static json_t *part_json(const struct response *r, struct str text, json_t *logprobs) {
    return r->open == ITEM_REASONING
               ? json_pack("{s:s, s:o}", "type", "reasoning_text", "text", json_of_text(text))
               : json_pack("{s:s, s:o, s:[], s:O}", "type", "output_text", "text",
                           json_of_text(text), "annotations", "logprobs", logprobs);
}

/* Takes the part; NULL: none yet. */
static json_t *item_json(const struct response *r, const char *status, json_t *part) {
    json_t *content = part ? json_pack("[o]", part) : json_array();
    return r->open == ITEM_REASONING
               ? json_pack("{s:s, s:s, s:s, s:[], s:o}", "id", r->id, "type", "reasoning", "status",
                           status, "summary", "content", content)
               : json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", r->id, "type", "message", "status",
                           status, "role", "assistant", "content", content);
}

static void begin_item(struct exchange *x, const struct answer *a, enum item item) {
    struct response *r = response_of(x);
    json_t *none = json_array();
    r->open = item;
    r->text.len = 0;
    r->first_token = a->n_streamed;
    answer_make_id(item == ITEM_REASONING ? "rs_" : "msg_", r->id);
    put_item(x, "response.output_item.added", item_json(r, "in_progress", NULL));
    put_part(x, "response.content_part.added", "part", part_json(r, STR(""), none));
    json_decref(none);
}

static void end_item(struct exchange *x, const struct answer *a, const char *status) {
    struct response *r = response_of(x);
    if (r->open == NO_ITEM)
        return;
    struct str text = buffer_str(&r->text);
    json_t *logprobs = logprobs_of(a, r->first_token, a->n_streamed);
    json_t *part = part_json(r, text, logprobs), *item = item_json(r, status, json_incref(part));
    if (x->ask->is_streamed) {
        bool thinks = r->open == ITEM_REASONING;
        json_t *done = json_pack("{s:s, s:i, s:i, s:o}", "item_id", r->id, "output_index",
                                 output_index(r), "content_index", 0, "text", json_of_text(text));
        if (!thinks)
            json_object_set(done, "logprobs", logprobs);
        put(x, thinks ? "response.reasoning_text.done" : "response.output_text.done", done);
    }
    put_part(x, "response.content_part.done", "part", part);
    put_item(x, "response.output_item.done", json_incref(item));
    json_array_append_new(r->output, item);
    json_decref(logprobs);
    r->open = NO_ITEM;
}

static json_t *call_json(const char *id, const struct answer_call *call, const char *status,
                         const char *arguments) {
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "id", id, "type", "function_call", "status",
                     status, "call_id", call->id, "name", call->name, "arguments", arguments);
}

static void add_call_item(struct exchange *x, const struct answer_call *call) {
    struct response *r = response_of(x);
    char id[32];
    answer_make_id("fc_", id);
    put_item(x, "response.output_item.added", call_json(id, call, "in_progress", ""));
    put(x, "response.function_call_arguments.delta",
        json_pack("{s:s, s:i, s:s}", "item_id", id, "output_index", output_index(r), "delta",
                  call->arguments));
    put(x, "response.function_call_arguments.done",
        json_pack("{s:s, s:i, s:s, s:s}", "item_id", id, "output_index", output_index(r), "name",
                  call->name, "arguments", call->arguments));
    json_t *item = call_json(id, call, "completed", call->arguments);
    put_item(x, "response.output_item.done", json_incref(item));
    json_array_append_new(r->output, item);
}

static void put_delta(struct exchange *x, struct answer *a, const struct answer_delta *delta) {
    struct response *r = response_of(x);
    if (delta->kind == DELTA_CALL) {
        end_item(x, a, "completed");
        add_call_item(x, delta->call);
        a->n_streamed = a->n_emitted; /* the call's own tokens are of no text */
        return;
    }
    bool thinks = delta->kind == DELTA_REASONING;
    enum item item = thinks ? ITEM_REASONING : ITEM_MESSAGE;
    if (r->open != item) {
        end_item(x, a, "completed");
        begin_item(x, a, item);
    }
    a->has_failed |= !buffer_add(&r->text, delta->text.at, delta->text.len);
    json_t *event =
        json_pack("{s:s, s:i, s:i, s:o}", "item_id", r->id, "output_index", output_index(r),
                  "content_index", 0, "delta", json_of_text(delta->text));
    if (!thinks && x->ask->is_streamed)
        json_object_set_new(event, "logprobs", logprobs_of(a, a->n_streamed, a->n_emitted));
    if (!thinks)
        a->n_streamed = a->n_emitted;
    put(x, thinks ? "response.reasoning_text.delta" : "response.output_text.delta", event);
}

/* ---- the answer --------------------------------------------------------------------------- */

static void begin(struct exchange *x) {
    put(x, "response.created", json_pack("{s:o}", "response", response_json(x, "in_progress")));
    put(x, "response.in_progress", json_pack("{s:o}", "response", response_json(x, "in_progress")));
}

/* The response at its end; it is stored before it is sent. */
static json_t *whole(struct exchange *x) {
    struct response *r = response_of(x);
    struct answer *a = &x->answers[0];
    bool is_short = a->finish == FINISH_LENGTH;
    const char *status = is_short ? "incomplete" : "completed";
    if (r->open == NO_ITEM && output_index(r) == 0)
        begin_item(x, a, ITEM_MESSAGE); /* an empty answer */
    a->n_streamed = a->n_emitted;
    end_item(x, a, a->finish == FINISH_CUT ? "incomplete" : status);
    if (a->finish == FINISH_CUT)
        return failed_json(x, "the server ended before the answer did");
    json_t *out = response_json(x, status);
    json_object_set_new(out, "completed_at",
                        is_short ? json_null() : json_integer((json_int_t)time(NULL)));
    if (is_short)
        json_object_set_new(out, "incomplete_details",
                            json_pack("{s:s}", "reason", "max_output_tokens"));
    if (r->is_stored)
        keep(x, out, a);
    return out;
}

static void done(struct exchange *x) {
    char event[32];
    json_t *response = whole(x);
    snprintf(event, sizeof event, "response.%s", json_text_of(response, "status"));
    put(x, event, json_pack("{s:o}", "response", response));
}

static void fail(struct exchange *x, const char *message) {
    put(x, "response.failed", json_pack("{s:o}", "response", failed_json(x, message)));
}

static const struct style response_style = {
    .stream_type = "text/event-stream",
    .ping = OPENAI_PING,
    .begin = begin,
    .delta = put_delta,
    .done = done,
    .fail = fail,
    .whole = whole,
    .has_all_deltas = true,
    .repeats_request = true,
    .needs_all_digits = true,
};

/* NULL: already refused. */
static struct ask *read_request(struct exchange *x, struct fields *f) {
    struct response *r = calloc(1, sizeof *r);
    struct ask *ask = r ? exchange_ask(x, f) : NULL;
    if (!r)
        exchange_refuse(x, 500, NULL, "out of memory for a request");
    if (!ask) {
        free(r);
        return NULL;
    }
    r->output = json_array();
    x->own = r;
    x->release_own = response_release;
    read_all(x->server, r, ask, f);
    return ask;
}

void openai_respond(struct exchange *x) {
    struct fields f;
    struct ask *ask = read_request(x, &f);
    if (ask)
        exchange_converse(x, ask, &f, &response_style);
}

void openai_respond_count(struct exchange *x) {
    struct fields f;
    struct ask *ask = read_request(x, &f);
    if (!ask)
        return;
    if (exchange_encode(x, ask, &f))
        exchange_reply_json(x, 200,
                            json_pack("{s:s, s:I}", "object", "response.input_tokens",
                                      "input_tokens", (json_int_t)ask->prompts[0].n));
    ask_close(ask);
}
