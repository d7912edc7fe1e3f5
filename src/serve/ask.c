/* ask.c - what a client asks for, in whichever API. */
#include "serve/ask.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/follow.h"

/* ---- the model --------------------------------------------------------------------------------
 */

/* The token of exactly this text; -1: none. */
static int32_t token_of(const sluice_model *model, const char *text) {
    int32_t tokens[4];
    size_t n = 0;
    bool is_one =
        sluice_encode(model, text, strlen(text), SLUICE_ENCODE_SPECIAL, tokens, 4, &n) == 0 &&
        n == 1;
    return is_one ? tokens[0] : -1;
}

/* True for a control token: one that gives no text. */
static bool is_silent(const sluice_model *model, int32_t token) {
    sluice_text *text;
    const char *at;
    size_t length, all = 0;
    if (token < 0 || sluice_text_open(&text, model, NULL, 0))
        return false;
    if (sluice_text_push(text, token, &at, &length) == SLUICE_OK)
        all += length;
    if (sluice_text_push(text, SLUICE_TEXT_END, &at, &length) == SLUICE_OK)
        all += length;
    sluice_text_close(text);
    return all == 0;
}

void ask_model_fill(struct ask_model *m, const sluice_model *model) {
    static const char closing[] = "\n</think>\n\n";
    m->model = model;
    sluice_model_facts(model, &m->facts);
    m->think_open = token_of(model, "<think>");
    m->think_close = token_of(model, "</think>");
    m->think_is_silent = is_silent(model, m->think_close);
    m->python_tag = token_of(model, "<|python_tag|>");
    m->tool_call = token_of(model, "<tool_call>");
    if (is_silent(model, m->tool_call))
        m->tool_call = -1;
    m->n_closing = 0;
    if (m->think_close >= 0 &&
        sluice_encode(model, closing, sizeof closing - 1, SLUICE_ENCODE_SPECIAL, m->closing,
                      sizeof m->closing / sizeof *m->closing, &m->n_closing))
        m->n_closing = 0;
}

/* ---- requests ---------------------------------------------------------------------------------
 */

static uint64_t drawn_seed(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t x = (uint64_t)now.tv_sec * 1000000007u + (uint64_t)now.tv_nsec;
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
    return (x ^ x >> 29) >> 1;
}

struct ask *ask_open(json_t *root, const struct ask_model *m) {
    struct ask *ask = calloc(1, sizeof *ask);
    if (!ask)
        return NULL;
    ask->root = json_incref(root);
    ask->n = 1;
    ask->max_tokens = ask->n_top = ask->thinking_budget = -1;
    ask->sampling = m->sampling;
    ask->sampling.seed = drawn_seed();
    for (size_t i = 0; i < m->sampling.n_biases; i++)
        ask->biases[i] = m->sampling.biases[i];
    ask->sampling.biases = ask->biases;
    return ask;
}

void ask_close(struct ask *ask) {
    if (!ask)
        return;
    for (uint32_t i = 0; i < ask->n_prompts; i++) {
        const struct job_prompt *p = &ask->prompts[i];
        for (size_t k = 0; p->logprobs && k < p->n; k++)
            free(p->logprobs[k]);
        free(p->logprobs);
        free((void *)p->tokens);
    }
    free(ask->prompts);
    format_release(ask->format);
    free(ask->hidden);
    json_decref(ask->begun);
    json_decref(ask->messages);
    json_decref(ask->tools);
    json_decref(ask->allowed);
    json_decref(ask->variables);
    json_decref(ask->root);
    free(ask);
}

void ask_set_variable(struct ask *ask, const char *name, json_t *value) {
    static const char *const ours[] = {"messages", "tools", "add_generation_prompt",
                                       "chat_template"};
    bool is_ours = false;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        is_ours |= strcmp(name, ours[i]) == 0;
    if (!ask->variables)
        ask->variables = json_object();
    if (is_ours)
        json_decref(value);
    else
        json_object_set_new(ask->variables, name, value);
}

void ask_read_stops(struct ask *ask, struct fields *f, const char *name) {
    const json_t *stop = fields_any(f, name), *one;
    size_t n = json_is_array(stop) ? json_array_size(stop) : stop ? 1 : 0;
    if (n > ASK_MAX_STOPS)
        fields_refuse(f, name, "%s has %zu texts, expected at most %d", name, n, ASK_MAX_STOPS);
    for (size_t i = 0; !f->wrong && i < n; i++) {
        one = json_is_array(stop) ? json_array_get(stop, i) : stop;
        size_t length = json_string_length(one);
        if (!json_is_string(one))
            fields_refuse(f, name, "%s is %s, expected a string or an array of strings", name,
                          json_kind(one));
        else if (strlen(json_string_value(one)) != length)
            fields_refuse(f, name, "%s has a zero byte, expected a text without", name);
        else if (length > 0) /* an empty one never stops anything */
            ask->stops[ask->n_stops++] = json_string_value(one);
    }
}

/* A token id in the one form JSON has for it, so that no id has two keys. -1: not an id. */
static int64_t id_of(const char *key) {
    int64_t id = *key && (key[0] != '0' || !key[1]) ? 0 : -1;
    for (; *key && id >= 0; key++)
        id = *key >= '0' && *key <= '9' && id <= INT32_MAX ? 10 * id + (*key - '0') : -1;
    return id;
}

static void read_biases(struct ask *ask, struct fields *f, const struct ask_model *m) {
    const json_t *biases = NULL;
    const char *key;
    json_t *value;
    fields_object(f, "logit_bias", &biases);
    json_object_foreach((json_t *)biases, key, value) {
        int64_t token = id_of(key);
        double bias = json_number_value(value);
        if (token < 0 || token >= m->facts.n_tokens) {
            fields_refuse(f, "logit_bias",
                          "logit_bias has the key '%.40s', expected a token id, 0 to %d", key,
                          m->facts.n_tokens - 1);
            return;
        }
        if (!json_is_number(value) || !(fabs(bias) <= 1000)) {
            char found[32];
            snprintf(found, sizeof found, "%g", bias);
            fields_refuse(f, "logit_bias", "logit_bias of %.40s is %s, expected -1000 to 1000", key,
                          json_is_number(value) ? found : json_kind(value));
            return;
        }
        if (ask->sampling.n_biases == SLUICE_MAX_BIASES) {
            fields_refuse(f, "logit_bias", "logit_bias has more than %d tokens", SLUICE_MAX_BIASES);
            return;
        }
        /* In the OpenAI API -100 means never. */
        ask->biases[ask->sampling.n_biases++] =
            (struct sluice_bias){(int32_t)token, bias <= -100 ? -INFINITY : (float)bias};
    }
}

void ask_read_sampling(struct ask *ask, struct fields *f, const struct ask_model *m) {
    struct sluice_sampling *s = &ask->sampling;
    int64_t top_k = s->top_k, seed = -1;
    fields_float(f, "temperature", 0, 100, &s->temperature);
    fields_float(f, "top_p", 0, 1, &s->top_p);
    fields_float(f, "min_p", 0, 1, &s->min_p);
    fields_float(f, "repeat_penalty", 0.01, 100, &s->repeat_penalty);
    fields_float(f, "repetition_penalty", 0.01, 100, &s->repeat_penalty);
    fields_float(f, "presence_penalty", -100, 100, &s->presence_penalty);
    fields_float(f, "frequency_penalty", -100, 100, &s->frequency_penalty);
    fields_int(f, "top_k", -1, INT32_MAX, &top_k);
    fields_int(f, "seed", INT64_MIN, INT64_MAX, &seed);
    fields_bool(f, "stream", &ask->is_streamed);
    fields_bool(f, "ignore_eos", &ask->ignores_ends);
    read_biases(ask, f, m);
    s->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    if (fields_any(f, "seed"))
        s->seed = (uint64_t)seed;
    if (s->temperature > 0 && s->temperature < 1e-6f)
        s->temperature = 0;
}

/* Errors name the field. */
static void set_format(struct ask *ask, struct fields *f, const char *name,
                       const struct ask_model *m, enum format_kind kind, struct str text) {
    struct err err = {0};
    if (f->wrong)
        return;
    ask->is_strict |= kind == FORMAT_GBNF;
    if (ask->format)
        fields_refuse(f, name, "%s: another format is given too, expected one of them", name);
    else if (formats_find(m->formats, kind, text, &ask->format, &err))
        fields_refuse(f, name, "%s%s%s", kind == FORMAT_GBNF ? "" : name,
                      kind == FORMAT_GBNF ? "" : ": ", err.text); /* a grammar's says so itself */
}

void ask_set_schema(struct ask *ask, struct fields *f, const char *name, const struct ask_model *m,
                    const json_t *schema) {
    char *text = schema ? json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY) : strdup("");
    if (text)
        set_format(ask, f, name, m, schema ? FORMAT_SCHEMA : FORMAT_JSON, str_of(text));
    else
        fields_refuse(f, name, "out of memory for a schema");
    free(text);
}

void ask_read_format(struct ask *ask, struct fields *f, const struct ask_model *m) {
    static const char name[] = "response_format";
    const json_t *format = NULL;
    const char *grammar = NULL;
    fields_object(f, name, &format);
    fields_string(f, "grammar", &grammar);
    const char *type = json_string_value(json_object_get(format, "type"));
    const json_t *schema = json_object_get(json_object_get(format, "json_schema"), "schema");
    if (grammar && !f->wrong)
        set_format(ask, f, "grammar", m, FORMAT_GBNF, str_of(grammar));
    if (!format || f->wrong)
        return;
    if (type && strcmp(type, "json_object") == 0)
        ask_set_schema(ask, f, name, m, NULL);
    else if (type && strcmp(type, "json_schema") == 0 && schema)
        ask_set_schema(ask, f, name, m, schema);
    else if (type && strcmp(type, "json_schema") == 0)
        fields_refuse(f, name, "response_format.json_schema has no schema");
    else if (!type || strcmp(type, "text") != 0)
        fields_refuse(f, name,
                      "response_format.type is '%.40s', expected text, json_object or json_schema",
                      type ? type : "");
}

/* Every "$ref": "#..." becomes BASE...; false: there is none. */
static bool move_refs(json_t *schema, const char *base) {
    const char *key;
    json_t *value;
    size_t i;
    bool has_refs = false;
    json_array_foreach(schema, i, value) has_refs |= move_refs(value, base);
    json_object_foreach(schema, key, value) {
        const char *ref = strcmp(key, "$ref") == 0 ? json_string_value(value) : NULL;
        if (ref && ref[0] == '#')
            json_object_set_new(schema, key, json_sprintf("%s%s", base, ref + 1));
        has_refs |= ref || move_refs(value, base);
    }
    return has_refs;
}

/* A tool's parameters as part of another schema: those with references to themselves ($defs) are
 * copied into its definitions. */
static json_t *parameters_of(const json_t *function, size_t number, json_t *definitions) {
    json_t *parameters = json_deep_copy(json_object_get(function, "parameters"));
    char name[24], base[40];
    snprintf(name, sizeof name, "%zu", number);
    snprintf(base, sizeof base, "#/$defs/%s", name);
    if (json_object_size(parameters) == 0) {
        json_decref(parameters);
        return json_pack("{s:s}", "type", "object");
    }
    if (!move_refs(parameters, base))
        return parameters;
    json_object_set_new(definitions, name, parameters);
    return json_pack("{s:s}", "$ref", base);
}

/* {"name": NAME, "arguments": its parameters} of the tools that may be called. */
static json_t *call_schemas(const struct ask *ask, const char *name, json_t *definitions) {
    json_t *out = json_array(), *tool;
    size_t i;
    json_array_foreach(ask_callable(ask), i, tool) {
        const json_t *function = json_object_get(tool, "function");
        json_t *its = json_object_get(function, "name");
        if (name && strcmp(json_string_value(its), name) != 0)
            continue;
        json_array_append_new(out,
                              json_pack("{s:s, s:{s:{s:O}, s:o}, s:[s, s], s:b}", "type", "object",
                                        "properties", "name", "const", its, "arguments",
                                        parameters_of(function, i, definitions), "required", "name",
                                        "arguments", "additionalProperties", 0));
    }
    return out;
}

/* One of the schemas, in groups: an anyOf has up to 64. Takes them. */
static json_t *any_of(json_t *schemas) {
    enum { GROUP = 64 };
    while (json_array_size(schemas) > GROUP) {
        json_t *groups = json_array(), *schema;
        size_t i;
        json_array_foreach(schemas, i, schema) {
            if (i % GROUP == 0)
                json_array_append_new(groups, json_pack("{s:[]}", "anyOf"));
            json_array_append(json_object_get(json_array_get(groups, i / GROUP), "anyOf"), schema);
        }
        json_decref(schemas);
        schemas = groups;
    }
    json_t *one = json_array_size(schemas) == 1 ? json_incref(json_array_get(schemas, 0))
                                                : json_pack("{s:O}", "anyOf", schemas);
    json_decref(schemas);
    return one;
}

void ask_set_effort(struct ask *ask, struct fields *f, const char *field, const char *name,
                    const char *word) {
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    bool is_known = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        is_known |= strcmp(word, words[i]) == 0;
    if (is_known)
        ask_set_variable(ask, "reasoning_effort", json_string(word));
    else
        fields_refuse(f, field,
                      "%s is %.40s, expected %snone, minimal, low, medium, high, xhigh or max",
                      name, word, strcmp(field, "think") == 0 ? "true, false, " : "");
}

/* If the token that begins a call can be banned, the prompt still lists the tools: it stays the
 * same as in the turns before and after, and cached. */
void ask_forbid_tools(struct ask *ask, const struct ask_model *m) {
    ask->tool_choice = TOOLS_NONE;
    ask->hides_tools = m->tool_call < 0 || ask->sampling.n_biases == SLUICE_MAX_BIASES;
    if (!ask->hides_tools)
        ask->biases[ask->sampling.n_biases++] = (struct sluice_bias){m->tool_call, -INFINITY};
}

static const char *name_of_tool(const json_t *tool) {
    const json_t *function = json_object_get(tool, "function");
    return json_text_of(function ? function : tool, "name");
}

static bool has_item(const json_t *array, const json_t *item) {
    const json_t *one;
    size_t i;
    json_array_foreach(array, i, one) {
        if (one == item)
            return true;
    }
    return false;
}

const json_t *ask_callable(const struct ask *ask) {
    return ask->allowed ? ask->allowed : ask->tools;
}

void ask_allow_tools(struct ask *ask, struct fields *f, const json_t *allowed) {
    json_t *kept = json_array(), *tool;
    const json_t *one;
    size_t i, k;
    json_array_foreach(allowed, i, one) {
        const char *name = name_of_tool(one);
        bool is_found = false;
        json_array_foreach(ask->tools, k, tool) {
            if (!name || strcmp(name_of_tool(tool), name) != 0)
                continue;
            is_found = true;
            if (!has_item(kept, tool))
                json_array_append(kept, tool);
        }
        if (!is_found)
            fields_refuse(f, "tool_choice",
                          "tool_choice allows %.80s, which is not among the tools",
                          name ? name : json_kind(one));
    }
    if (json_array_size(kept) == 0)
        fields_refuse(f, "tool_choice", "tool_choice allows no tools, expected an array of them");
    json_decref(ask->allowed);
    ask->allowed = kept;
}

void ask_require_tool(struct ask *ask, struct fields *f, const struct ask_model *m,
                      const char *name) {
    json_t *definitions = json_object(), *schemas = call_schemas(ask, name, definitions);
    size_t n = json_array_size(schemas);
    if (!ask->tools)
        fields_refuse(f, "tool_choice", "tool_choice asks for a call, and tools is missing");
    else if (n == 0)
        fields_refuse(f, "tool_choice", "tool_choice wants %.80s, which is not among the tools",
                      name ? name : "a tool");
    json_t *schema = any_of(schemas);
    if (json_object_size(definitions) > 0)
        json_object_set(schema, "$defs", definitions);
    if (n > 0)
        ask_set_schema(ask, f, "tool_choice", m, schema);
    ask->is_call_begun = true;
    json_decref(schema);
    json_decref(definitions);
}

/* ---- messages ---------------------------------------------------------------------------------
 */

static bool add_part(struct fields *f, const char *name, const json_t *part, const char *where,
                     struct buffer *text) {
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *its =
        json_object_get(part, type && strcmp(type, "refusal") == 0 ? "refusal" : "text");
    if (!json_is_object(part) || !type)
        fields_refuse(f, name, "%s has a part that is %s, expected an object with a type", where,
                      json_kind(part));
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

/* Calls as templates want them: the arguments an object. */
static json_t *plain_calls(struct fields *f, const json_t *calls, const char *where) {
    json_t *out = json_array(), *call;
    size_t i;
    json_array_foreach(calls, i, call) {
        const json_t *function = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        const json_t *arguments = json_object_get(function, "arguments");
        const char *id = json_string_value(json_object_get(call, "id"));
        if (!name) {
            fields_refuse(f, "messages", "%s.tool_calls[%zu] has no function with a name", where,
                          i);
            break;
        }
        if (arguments && !json_is_string(arguments) && !json_is_object(arguments)) {
            fields_refuse(f, "messages",
                          "%s.tool_calls[%zu].function.arguments is %s, expected a string", where,
                          i, json_kind(arguments));
            break;
        }
        json_t *read = json_is_string(arguments)
                           ? json_loads(json_string_value(arguments), JSON_REJECT_DUPLICATES, NULL)
                           : NULL;
        json_t *plain = read && json_is_object(read) ? json_incref(read)
                        : arguments                  ? json_incref((json_t *)arguments)
                                                     : json_object();
        json_decref(read);
        json_array_append_new(out,
                              json_pack("{s:s*, s:s, s:{s:s, s:o}}", "id", id, "type", "function",
                                        "function", "name", name, "arguments", plain));
    }
    return out;
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
    const json_t *calls = json_object_get(message, "tool_calls");
    static const char *const kept[] = {"name", "tool_call_id", "tool_name", "reasoning_content"};
    if (!role)
        return NULL;
    snprintf(where, sizeof where, "messages[%zu].content", number);
    json_t *content = ask_content(f, "messages", json_object_get(message, "content"), where);
    if (f->wrong)
        return NULL;
    snprintf(where, sizeof where, "messages[%zu]", number);
    json_t *out = json_pack("{s:s, s:o}", "role", role, "content", content);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        json_t *value = json_object_get(message, kept[i]);
        if (json_is_string(value))
            json_object_set(out, kept[i], value);
    }
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        fields_refuse(f, "messages", "%s.tool_calls is %s, expected an array", where,
                      json_kind(calls));
    else if (json_array_size(calls) > 0)
        json_object_set_new(out, "tool_calls", plain_calls(f, calls, where));
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

json_t *ask_tool(const char *name, const char *description, json_t *parameters) {
    return json_pack("{s:s, s:{s:s*, s:s*, s:O*}}", "type", "function", "function", "name", name,
                     "description", description, "parameters", parameters);
}

void ask_read_tools(struct ask *ask, struct fields *f, const json_t *tools) {
    json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_text_of(function, "name"), *type = json_text_of(tool, "type");
        if (!function && type && strcmp(type, "function") != 0) {
            fields_refuse(f, "tools", "tools[%zu].type is %.40s, expected function", i, type);
            return;
        }
        if (!name || !*name) {
            fields_refuse(f, "tools", "tools[%zu] has no function with a name", i);
            return;
        }
    }
    if (!f->wrong && json_array_size(tools) > 0)
        ask->tools = json_incref((json_t *)tools);
}

/* ---- prompts ----------------------------------------------------------------------------------
 */

struct ids {
    int32_t *at;
    size_t n;
};

static int too_long(const struct ask_model *m, size_t n, struct err *err) {
    return err_set(err, SLUICE_ERR_ARGUMENT,
                   "the prompt has %zu tokens, expected at most %u: the context is %u", n,
                   m->context - 1, m->context);
}

/* Takes the tokens as one more prompt, or frees them. */
static int add_prompt(struct ask *ask, const struct ask_model *m, struct ids ids, struct err *err) {
    int status = SLUICE_OK;
    bool is_full = (ask->n_prompts & (ask->n_prompts - 1)) == 0; /* capacity doubles */
    struct job_prompt *more =
        is_full ? realloc(ask->prompts, (2 * (size_t)ask->n_prompts + 1) * sizeof *more)
                : ask->prompts;
    if (more)
        ask->prompts = more;
    if (!more)
        status = err_memory(err, "a prompt");
    else if (ids.n == 0)
        status =
            err_set(err, SLUICE_ERR_ARGUMENT, "the prompt has no tokens, expected one or more");
    else if (ids.n >= m->context)
        status = too_long(m, ids.n, err);
    if (status)
        free(ids.at);
    else
        ask->prompts[ask->n_prompts++] = (struct job_prompt){ids.at, ids.n, NULL};
    return status;
}

/* The first n messages as tokens, to free. The variables may be NULL. */
static int encode_messages(const struct ask *ask, const struct ask_model *m, size_t n,
                           const json_t *variables, bool with_answer, struct ids *out,
                           struct err *err) {
    json_t *request = variables ? json_deep_copy(variables) : json_object();
    json_t *messages = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(messages, json_array_get(ask->messages, i));
    json_object_set_new(request, "messages", messages);
    json_object_set_new(request, "add_generation_prompt", json_boolean(with_answer));
    if (ask->tools && !ask->hides_tools)
        json_object_set(request, "tools", ask->tools);
    if (m->template)
        json_object_set_new(request, "chat_template", json_string(m->template));
    char *text = json_dumps(request, JSON_COMPACT);
    size_t capacity = m->context;
    *out = (struct ids){malloc(capacity * sizeof *out->at), 0};
    int status = text && out->at ? sluice_encode_chat(m->model, text, out->at, capacity, &out->n,
                                                      err->text, sizeof err->text)
                                 : err_memory(err, "a prompt");
    if (status == SLUICE_ERR_ARGUMENT && out->n > capacity)
        status = too_long(m, out->n, err);
    err->code = status;
    if (status) {
        free(out->at);
        *out = (struct ids){0};
    }
    json_decref(request);
    free(text);
    return status;
}

static size_t count_ends(const struct ask_model *m, const struct ids *ids) {
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++)
        n += sluice_token_is_end(m->model, ids->at[i]);
    return n;
}

/* Where end token number `which` is, counted from 1; ids->n when there are fewer. */
static size_t find_end(const struct ask_model *m, const struct ids *ids, size_t which) {
    size_t i = 0;
    for (; i < ids->n; i++)
        if (sluice_token_is_end(m->model, ids->at[i]) && --which == 0)
            break;
    return i;
}

static bool are_equal(const struct ids *a, const struct ids *b) {
    return a->n == b->n && memcmp(a->at, b->at, a->n * sizeof *a->at) == 0;
}

/* Whether the messages give the same tokens (`as_asked`) with the template variables of the kept
 * tokens as with those of the ask. */
static bool is_same_with(const struct ask *ask, const struct ask_model *m, size_t n_messages,
                         const struct replayed *kept, const struct ids *as_asked) {
    struct err ignored;
    struct ids ids;
    bool has_none = json_object_size(kept->variables) + json_object_size(ask->variables) == 0;
    if (has_none || json_equal(kept->variables, ask->variables))
        return true;
    if (encode_messages(ask, m, n_messages, kept->variables, false, &ids, &ignored))
        return false;
    bool is_same = are_equal(&ids, as_asked);
    free(ids.at);
    return is_same;
}

/* Replaces the beginning of the prompt, up to the end of a kept answer, with the tokens that were
 * sampled. Every answer ends with an end token, and no message can contain one, so counting them
 * finds the answer's end. */
static void splice(const struct ask *ask, const struct ask_model *m, size_t n_messages,
                   const struct replayed *kept, struct ids *prompt) {
    struct err ignored;
    struct ids before;
    if (encode_messages(ask, m, n_messages, ask->variables, false, &before, &ignored))
        return;
    size_t n_ends = count_ends(m, &before);
    size_t end = n_ends > 0 ? find_end(m, prompt, n_ends) : prompt->n;
    size_t n = kept->n + prompt->n - end;
    bool is_good =
        end < prompt->n && n < m->context && is_same_with(ask, m, n_messages, kept, &before);
    free(before.at);
    int32_t *at = is_good ? malloc(n * sizeof *at) : NULL;
    if (!at)
        return;
    memcpy(at, kept->tokens, kept->n * sizeof *at);
    memcpy(at + kept->n, prompt->at + end, (prompt->n - end) * sizeof *at);
    free(prompt->at);
    prompt->at = at;
    prompt->n = n;
}

/* The replay name of the first n messages. */
static struct hash128 name_of(const struct ask *ask, size_t n) {
    struct hash128 name = replay_start(ask->hides_tools ? NULL : ask->tools);
    for (size_t i = 0; i < n; i++)
        name = replay_add(name, json_array_get(ask->messages, i));
    return name;
}

size_t ask_kept(const struct ask *ask, struct store *replay, struct replayed *out) {
    struct hash128 name = name_of(ask, 0);
    size_t n_messages = 0;
    *out = (struct replayed){0};
    for (size_t i = 0; i < json_array_size(ask->messages); i++) {
        const json_t *message = json_array_get(ask->messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        struct replayed found;
        name = replay_add(name, message);
        if (!role || strcmp(role, "assistant") != 0 || !replay_get(replay, name, &found))
            continue;
        replayed_free(out);
        *out = found;
        n_messages = i + 1;
    }
    return n_messages;
}

void ask_keep(const struct ask *ask, struct store *replay, size_t n_messages,
              const struct replayed *kept) {
    replay_put(replay, name_of(ask, n_messages), kept);
}

/* Splices in the longest beginning of the conversation whose last answer is kept. */
static void replay_answers(struct ask *ask, const struct ask_model *m, struct store *replay,
                           struct ids *prompt) {
    struct replayed kept;
    ask->name = name_of(ask, json_array_size(ask->messages));
    size_t n_messages = ask_kept(ask, replay, &kept);
    if (n_messages > 0)
        splice(ask, m, n_messages, &kept, prompt);
    replayed_free(&kept);
}

static void look_for_thinking(struct ask *ask, const struct ask_model *m,
                              const struct ids *prompt) {
    struct follow f = {.open = m->think_open, .close = m->think_close};
    follow_look(&f, prompt->at, prompt->n);
    ask->starts_thinking = f.is_thinking;
    ask->may_think = f.may_open;
}

static int append_text(const struct ask_model *m, struct ids *prompt, struct str text,
                       unsigned flags, struct err *err) {
    size_t n = 0, capacity = m->context;
    int32_t *more = realloc(prompt->at, (prompt->n + capacity) * sizeof *more);
    if (!more)
        return err_memory(err, "a prompt");
    prompt->at = more;
    int status = sluice_encode(m->model, text.at, text.len, flags, more + prompt->n, capacity, &n);
    if (status)
        return n > capacity ? too_long(m, prompt->n + n, err)
                            : err_set(err, status, "%s", sluice_status_text(status));
    prompt->n += n;
    return SLUICE_OK;
}

/* Ends the thinking that the template began, the way a template without thinking writes it: the
 * empty line is one token there, not two newlines. */
static int end_thinking(const struct ask_model *m, struct ids *prompt, struct err *err) {
    struct str last = {0};
    if (prompt->n > 0)
        last.at = sluice_token_text(m->model, prompt->at[prompt->n - 1], &last.len);
    bool has_newline = str_is(last, "\n");
    prompt->n -= has_newline;
    return append_text(m, prompt, has_newline ? STR("\n\n</think>\n\n") : STR("\n</think>\n\n"),
                       SLUICE_ENCODE_SPECIAL, err);
}

/* What the answer begins with: a text, or a call's first tag. Thinking that the template began ends
 * first. The template is not told that thinking is off: so the conversation stays the same as in
 * the cache. */
static int begin_answer(struct ask *ask, const struct ask_model *m, struct ids *prompt,
                        struct err *err) {
    struct str begun = {json_string_value(ask->begun), json_string_length(ask->begun)};
    int status = SLUICE_OK;
    if (!ask->begun && !ask->is_call_begun)
        return SLUICE_OK;
    if (ask->starts_thinking)
        status = end_thinking(m, prompt, err);
    ask->starts_thinking = ask->may_think = false;
    if (!status && ask->begun)
        status = append_text(m, prompt, begun, 0, err);
    if (!status && ask->is_call_begun)
        status = append_text(m, prompt, str_of(ASK_CALL_BEGIN), SLUICE_ENCODE_SPECIAL, err);
    return status;
}

static void continue_last(struct ask *ask) {
    size_t n = json_array_size(ask->messages);
    const json_t *last = n > 0 ? json_array_get(ask->messages, n - 1) : NULL;
    const char *role = json_text_of(last, "role"), *text = json_text_of(last, "content");
    if (!role || strcmp(role, "assistant") != 0 || !text || !*text ||
        json_object_get(last, "tool_calls"))
        return;
    ask->begun = json_incref(json_object_get(last, "content"));
    json_array_remove(ask->messages, n - 1);
}

int ask_encode(struct ask *ask, const struct ask_model *m, struct store *replay, struct err *err) {
    struct ids prompt;
    if (ask->continues_last)
        continue_last(ask);
    int status =
        encode_messages(ask, m, json_array_size(ask->messages), ask->variables, true, &prompt, err);
    if (status)
        return status;
    replay_answers(ask, m, replay, &prompt);
    look_for_thinking(ask, m, &prompt);
    if ((status = begin_answer(ask, m, &prompt, err))) {
        free(prompt.at);
        return status;
    }
    return add_prompt(ask, m, prompt, err);
}

int ask_add_encoded(struct ask *ask, const struct ask_model *m, struct str text, unsigned flags,
                    struct err *err) {
    struct ids ids = {malloc(m->context * sizeof *ids.at), 0};
    if (!ids.at)
        return err_memory(err, "a prompt");
    int status = sluice_encode(m->model, text.at, text.len, flags, ids.at, m->context, &ids.n);
    if (status) {
        free(ids.at);
        return ids.n > m->context ? too_long(m, ids.n, err)
                                  : err_set(err, status, "%s", sluice_status_text(status));
    }
    return add_prompt(ask, m, ids, err);
}

int ask_add_text(struct ask *ask, const struct ask_model *m, struct str text, struct err *err) {
    return ask_add_encoded(ask, m, text, SLUICE_ENCODE_BOS | SLUICE_ENCODE_SPECIAL, err);
}

int ask_add_middle(struct ask *ask, const struct ask_model *m, struct str before, struct str after,
                   struct err *err) {
    static const char *const tags[][3] = {
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}, /* Qwen */
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},       /* StarCoder, SmolLM2 */
    };
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        const char *const *its = tags[i];
        struct buffer all = {0};
        if (token_of(m->model, its[0]) < 0 || token_of(m->model, its[1]) < 0 ||
            token_of(m->model, its[2]) < 0)
            continue;
        buffer_printf(&all, "%s", its[0]);
        buffer_add(&all, before.at, before.len);
        buffer_printf(&all, "%s", its[1]);
        buffer_add(&all, after.at, after.len);
        buffer_printf(&all, "%s", its[2]);
        int status = ask_add_text(ask, m, buffer_str(&all), err);
        buffer_free(&all);
        return status;
    }
    return err_set(err, SLUICE_ERR_UNSUPPORTED,
                   "suffix is not supported: this model has no token <|fim_middle|>");
}

void ask_decode(const struct ask_model *m, const int32_t *tokens, size_t n, struct buffer *out) {
    sluice_text *text;
    const char *at;
    size_t length;
    if (sluice_text_open(&text, m->model, NULL, 0))
        return;
    for (size_t i = 0; i <= n; i++)
        if (sluice_text_push(text, i < n ? tokens[i] : SLUICE_TEXT_END, &at, &length) == SLUICE_OK)
            buffer_add(out, at, length);
    sluice_text_close(text);
}

int ask_read_ids(const struct ask_model *m, const char *name, const json_t *list, int32_t **out,
                 struct err *err) {
    json_t *id;
    size_t i;
    *out = calloc(json_array_size(list) + 1, sizeof **out);
    if (!*out)
        return err_memory(err, "tokens");
    json_array_foreach(list, i, id) {
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= m->facts.n_tokens)
            return err_set(err, SLUICE_ERR_ARGUMENT, "%s has a token that is %s, expected 0 to %d",
                           name, json_is_integer(id) ? "outside the vocabulary" : json_kind(id),
                           m->facts.n_tokens - 1);
        (*out)[i] = (int32_t)value;
    }
    return SLUICE_OK;
}

int ask_add_ids(struct ask *ask, const struct ask_model *m, const char *name, const json_t *list,
                struct err *err) {
    struct ids ids = {NULL, json_array_size(list)};
    int status = ask_read_ids(m, name, list, &ids.at, err);
    if (!status)
        return add_prompt(ask, m, ids, err);
    free(ids.at);
    return status;
}
