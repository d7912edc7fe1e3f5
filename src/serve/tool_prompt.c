/* tool_prompt.c - tools for chat templates that know none. */
#include "serve/tool_prompt.h"

#include <string.h>

#include "serve/buffer.h"
#include "serve/fields.h"

static void add_content(struct buffer *to, const json_t *message) {
    const json_t *content = json_object_get(message, "content");
    buffer_add(to, json_string_value(content), json_string_length(content));
}

static void list_tools(struct buffer *to, const json_t *tools) {
    json_t *tool;
    size_t i;
    buffer_puts(to, "# Tools\n\nYou may call functions to answer. Their signatures are within "
                    "<tools></tools>:\n<tools>\n");
    json_array_foreach(tools, i, tool) {
        buffer_json_all_digits(to, json_incref(tool));
        buffer_puts(to, "\n");
    }
    buffer_puts(to, "</tools>\n\nTo call one, answer with its name and its arguments as a JSON "
                    "object within <tool_call></tool_call>:\n<tool_call>\n{\"name\": <name>, "
                    "\"arguments\": <arguments>}\n</tool_call>\nIts result then follows within "
                    "<tool_response></tool_response>.");
}

static void add_calls(struct buffer *to, const json_t *calls) {
    json_t *call;
    size_t i;
    json_array_foreach(calls, i, call) {
        const json_t *function = json_object_get(call, "function");
        buffer_printf(to, "%s<tool_call>\n{\"name\":", to->len > 0 ? "\n" : "");
        buffer_json(to, json_incref(json_object_get(function, "name")));
        buffer_puts(to, ",\"arguments\":");
        buffer_json_all_digits(to, json_incref(json_object_get(function, "arguments")));
        buffer_puts(to, "}\n</tool_call>");
    }
}

/* Appends a message with this text, otherwise like `message`; frees the text. */
static bool append(json_t *out, const char *role, const json_t *message, struct buffer *text) {
    json_t *copy = message ? json_copy((json_t *)message) : json_object();
    json_object_del(copy, "tool_calls");
    bool is_good = !text->has_failed && !json_object_set_new(copy, "role", json_string(role)) &&
                   !json_object_set_new(copy, "content", json_of_text(buffer_str(text))) &&
                   !json_array_append(out, copy);
    json_decref(copy);
    buffer_free(text);
    return is_good;
}

static bool has_role(const json_t *message, const char *role) {
    const char *its = json_text_of(message, "role");
    return its && strcmp(its, role) == 0;
}

/* The results from message i on, as one message; moves i to the last of them. */
static bool append_results(json_t *out, const json_t *messages, size_t *i) {
    struct buffer text = {0};
    for (;; ++*i) {
        buffer_printf(&text, "%s<tool_response>\n", text.len > 0 ? "\n" : "");
        add_content(&text, json_array_get(messages, *i));
        buffer_puts(&text, "\n</tool_response>");
        if (!has_role(json_array_get(messages, *i + 1), "tool"))
            break;
    }
    return append(out, "user", NULL, &text);
}

json_t *tool_prompt(const json_t *messages, const json_t *tools) {
    json_t *out = json_array(), *first = json_array_get(messages, 0);
    bool has_system = has_role(first, "system"), is_good = out != NULL;
    struct buffer text = {0};
    size_t i = 0;
    if (json_array_size(tools) > 0) {
        if (has_system) {
            add_content(&text, first);
            buffer_puts(&text, text.len > 0 ? "\n\n" : "");
            i = 1;
        }
        list_tools(&text, tools);
        is_good = append(out, "system", has_system ? first : NULL, &text);
    }
    for (; is_good && i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i),
               *calls = json_object_get(message, "tool_calls");
        if (has_role(message, "tool")) {
            is_good = append_results(out, messages, &i);
        } else if (calls) {
            text = (struct buffer){0};
            add_content(&text, message);
            add_calls(&text, calls);
            is_good = append(out, "assistant", message, &text);
        } else {
            is_good = !json_array_append(out, message);
        }
    }
    if (!is_good) {
        json_decref(out);
        return NULL;
    }
    return out;
}
