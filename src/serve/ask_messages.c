/* ask_messages.c - the messages of a request, in the form that templates take. */
#include <stdio.h>
#include <string.h>

#include "serve/ask.h"
#include "serve/tool_calls.h"

static bool add_part(struct fields *f, const char *name, const json_t *part, const char *where,
                     struct buffer *text) {
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *its =
        json_object_get(part, type && strcmp(type, "refusal") == 0 ? "refusal" : "text");
    if (!json_is_object(part) || !type)
        fields_refuse(f, name, "%s has a part that is %s, expected an object with a type", where,
                      json_is_object(part) ? "without a type" : json_kind(part));
    else if (strcmp(type, "text") != 0 && strcmp(type, "refusal") != 0 &&
             strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0)
        fields_refuse(f, name, "%s has a part of type %.40s; this model reads text alone", where,
                      type);
    else if (!json_is_string(its))
        fields_refuse(f, name, "%s has a text that is %s, expected a string", where,
                      json_kind(its));
    else
        buffer_add(text, json_string_value(its), json_string_length(its));
    return !f->wrong;
}

json_t *ask_content(struct fields *f, const char *name, const json_t *content, const char *where) {
    struct buffer text = {0};
    json_t *part, *whole = NULL;
    size_t i;
    if (!content || json_is_null(content))
        return json_string("");
    if (json_is_string(content))
        return json_incref((json_t *)content);
    if (!json_is_array(content)) {
        fields_refuse(f, name, "%s is %s, expected a string or an array of parts", where,
                      json_kind(content));
        return NULL;
    }
    json_array_foreach(content, i, part) {
        if (!add_part(f, name, part, where, &text))
            break;
    }
    if (!f->wrong && !text.has_failed)
        whole = json_stringn(text.at ? text.at : "", text.len);
    buffer_free(&text);
    return whole;
}

/* null, or a text of white space alone. */
static bool is_blank(const json_t *value) {
    const char *text = json_string_value(value);
    return json_is_null(value) || (text && strspn(text, " \t\r\n") == json_string_length(value));
}

/* Arguments as they are in a text; NULL: they are no JSON, or take too much memory. */
static json_t *read_arguments(struct fields *f, const json_t *arguments) {
    struct str text = {json_string_value(arguments), json_string_length(arguments)};
    if (!text.at)
        return NULL;
    f->tree_bytes += json_tree_bytes(text);
    if (f->tree_bytes <= f->max_tree_bytes)
        return json_loads(text.at, JSON_REJECT_DUPLICATES, NULL);
    fields_refuse(f, "messages",
                  "the arguments of calls take %zu bytes as JSON, expected at most %zu",
                  f->tree_bytes, f->max_tree_bytes);
    return NULL;
}

/* A call as templates want it: the arguments an object. `where` is its function; NULL: refused. */
static json_t *plain_call(struct fields *f, const json_t *function, const char *id,
                          const char *where) {
    const char *name = json_text_of(function, "name");
    const json_t *arguments = json_object_get(function, "arguments");
    if (!name) {
        fields_refuse(f, "messages", "%s is %s, expected an object with a name", where,
                      json_is_object(function) ? "without a name" : json_kind(function));
        return NULL;
    }
    if (is_blank(arguments)) /* as some models call functions without parameters */
        arguments = NULL;
    if (arguments && !json_is_string(arguments) && !json_is_object(arguments)) {
        fields_refuse(f, "messages", "%s.arguments is %s, expected a string", where,
                      json_kind(arguments));
        return NULL;
    }
    json_t *read = read_arguments(f, arguments);
    json_t *plain = read && json_is_object(read) ? json_incref(read)
                    : arguments                  ? json_incref((json_t *)arguments)
                                                 : json_object();
    json_decref(read);
    if (json_is_deeper(plain, TOOL_MAX_LEVELS))
        fields_refuse(f, "messages", "%s.arguments is nested deeper than %d levels", where,
                      TOOL_MAX_LEVELS);
    return json_pack("{s:s*, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name",
                     name, "arguments", plain);
}

/* A message's calls, also the one in the form of before tools; NULL: it has none. */
static json_t *plain_calls(struct fields *f, const json_t *message, const char *where) {
    const json_t *calls = json_object_get(message, "tool_calls");
    const json_t *old = json_object_get(message, "function_call");
    json_t *call, *out = json_array();
    char its[80];
    size_t i;
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        fields_refuse(f, "messages", "%s.tool_calls is %s, expected an array", where,
                      json_kind(calls));
    json_array_foreach(calls, i, call) {
        snprintf(its, sizeof its, "%s.tool_calls[%zu].function", where, i);
        if (!f->wrong)
            json_array_append_new(out, plain_call(f, json_object_get(call, "function"),
                                                  json_text_of(call, "id"), its));
    }
    snprintf(its, sizeof its, "%s.function_call", where);
    if (old && !json_is_null(old) && json_array_size(calls) == 0)
        json_array_append_new(out, plain_call(f, old, NULL, its));
    if (json_array_size(out) > 0)
        return out;
    json_decref(out);
    return NULL;
}

const char *ask_role(struct fields *f, const char *name, const json_t *message, const char *where) {
    static const struct {
        const char *said, *plain;
    } roles[] = {{"system", "system"},       {"developer", "system"}, {"user", "user"},
                 {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"}};
    const json_t *value = json_object_get(message, "role");
    const char *role = json_string_value(value);
    for (size_t i = 0; role && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(role, roles[i].said) == 0)
            return roles[i].plain;
    fields_refuse(f, name,
                  "%s.role is %s%.40s%s, expected system, developer, user, assistant, tool or "
                  "function",
                  where, role ? "'" : "", role ? role : json_kind(value), role ? "'" : "");
    return NULL;
}

static json_t *plain_message(struct fields *f, const json_t *message, size_t number) {
    char where[48];
    snprintf(where, sizeof where, "messages[%zu]", number);
    if (!json_is_object(message)) {
        fields_refuse(f, "messages", "%s is %s, expected an object", where, json_kind(message));
        return NULL;
    }
    const char *role = ask_role(f, "messages", message, where);
    static const char *const kept[] = {"name", "tool_call_id", "tool_name", "reasoning_content"};
    if (!role)
        return NULL;
    snprintf(where, sizeof where, "messages[%zu].content", number);
    const json_t *said = json_object_get(message, "content");
    if ((!said || json_is_null(said)) && (strcmp(role, "user") == 0 || strcmp(role, "system") == 0))
        fields_refuse(f, "messages", "%s is %s, expected a string or an array of parts", where,
                      json_kind(said));
    json_t *content = ask_content(f, "messages", said, where);
    if (f->wrong) {
        json_decref(content);
        return NULL;
    }
    snprintf(where, sizeof where, "messages[%zu]", number);
    json_t *out = json_pack("{s:s, s:o}", "role", role, "content", content);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        json_t *value = json_object_get(message, kept[i]);
        if (json_is_string(value))
            json_object_set(out, kept[i], value);
    }
    json_t *calls = plain_calls(f, message, where);
    if (calls)
        json_object_set_new(out, "tool_calls", calls);
    return out;
}

void ask_read_messages(struct ask *ask, struct fields *f, const json_t *messages) {
    json_t *message;
    size_t i;
    if (f->wrong)
        return;
    ask->messages = json_array();
    json_array_foreach(messages, i, message) {
        json_t *plain = plain_message(f, message, i);
        json_array_append_new(ask->messages, plain);
        if (f->wrong)
            return;
    }
    if (json_array_size(messages) == 0)
        fields_refuse(f, "messages", "messages is %s, expected an array with a message",
                      messages ? "empty" : "missing");
}
