/* tool_calls.c - finds tool calls in a model's output as it streams.
 *
 * What is not decided yet is in `held`. `step` looks at its beginning and either takes some of it
 * (as text, as a call) or waits for more; push repeats it until it waits. */
#include "serve/tool_calls.h"

#include <strings.h>

#include "serve/fields.h"

static const char open_tag[] = "<tool_call>", close_tag[] = "</tool_call>";
static const char python_tag[] = "<|python_tag|>";
static const char function_tag[] = "<function=", function_end[] = "</function>";
static const char parameter_tag[] = "<parameter=", parameter_end[] = "</parameter>";

struct tool_parser {
    const json_t *tools;
    bool must_be_known;
    tool_event_fn *on_event;
    void *user;
    struct buffer held;
    size_t n_looked;    /* bytes of `held` already searched for the end of a call */
    bool has_begun;     /* something other than white space was there: no call without tags now */
    bool is_after_call; /* nothing but white space since the last one */
    bool is_ending;
    bool has_failed;
};

struct tool_parser *tool_parser_open(const json_t *tools, bool must_be_known,
                                     tool_event_fn *on_event, void *user) {
    struct tool_parser *p = calloc(1, sizeof *p);
    if (p)
        *p = (struct tool_parser){
            .tools = tools, .must_be_known = must_be_known, .on_event = on_event, .user = user};
    return p;
}

void tool_parser_close(struct tool_parser *p) {
    if (!p)
        return;
    buffer_free(&p->held);
    free(p);
}

bool tool_parser_has_failed(const struct tool_parser *p) {
    return p->has_failed || p->held.has_failed;
}

/* ---- slices ------------------------------------------------------------------------------- */

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t n_spaces(struct str s) {
    size_t n = 0;
    while (n < s.len && is_space(s.at[n]))
        n++;
    return n;
}

static struct str trimmed(struct str s) {
    s = str_skip(s, n_spaces(s));
    while (s.len > 0 && is_space(s.at[s.len - 1]))
        s.len--;
    return s;
}

/* Where z is in s from `from` on; s.len when nowhere. */
static size_t find(struct str s, const char *z, size_t from) {
    if (from >= s.len)
        return s.len;
    const char *at = memmem(s.at + from, s.len - from, z, strlen(z));
    return at ? (size_t)(at - s.at) : s.len;
}

/* Whether one of s and z is a prefix of the other. */
static bool may_start(struct str s, const char *z) {
    size_t n = strlen(z);
    return memcmp(s.at, z, s.len < n ? s.len : n) == 0;
}

/* ---- events ------------------------------------------------------------------------------- */

static void give_text(struct tool_parser *p, size_t n) {
    if (n == 0)
        return;
    p->has_begun |= n_spaces((struct str){p->held.at, n}) < n;
    p->is_after_call = false;
    p->on_event(p->user, &(struct tool_event){.text = {p->held.at, n}});
    buffer_drop(&p->held, n);
    p->n_looked = 0;
}

/* The first n bytes were a call. */
static void give_call(struct tool_parser *p, const char *name, const json_t *arguments, size_t n) {
    struct buffer text = {0};
    buffer_json_all_digits(&text, json_incref((json_t *)arguments));
    p->has_failed |= !buffer_add(&text, "", 1);
    if (!text.has_failed)
        p->on_event(p->user, &(struct tool_event){.name = name, .arguments = text.at});
    buffer_free(&text);
    buffer_drop(&p->held, n);
    p->n_looked = 0;
    p->is_after_call = true;
}

/* ---- calls as JSON ------------------------------------------------------------------------ */

static const json_t *find_tool(const struct tool_parser *p, const char *name) {
    json_t *tool;
    size_t i;
    json_array_foreach(p->tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        const char *its = json_string_value(json_object_get(function, "name"));
        if (its && strcmp(its, name) == 0)
            return function;
    }
    return NULL;
}

/* Reads an object with a name and arguments (or parameters). These are borrowed from it, or, when
 * written as a string, a new value in *owned. */
static const char *read_call(const json_t *call, json_t **owned, const json_t **arguments) {
    const char *name = json_string_value(json_object_get(call, "name"));
    const json_t *a = json_object_get(call, "arguments");
    *owned = NULL;
    a = a ? a : json_object_get(call, "parameters");
    if (json_is_string(a))
        a = *owned = json_loads(json_string_value(a), 0, NULL);
    else if (!a || json_is_null(a))
        a = *owned = json_object();
    *arguments = a;
    return name && *name && json_is_object(a) ? name : NULL;
}

/* A call in two pairs of braces is one: so Qwen2.5-Coder's template shows its form. */
static json_t *load_object(struct str s) {
    bool is_twice = s.len >= 4 && memcmp(s.at, "{{", 2) == 0 && str_ends(s, "}}");
    return json_loadb(s.at + is_twice, s.len - 2 * is_twice, JSON_REJECT_DUPLICATES, NULL);
}

/* Reads s as a call; NULL: it is none. To json_decref are *call and *owned, also then. */
static const char *load_call(const struct tool_parser *p, struct str s, bool must_be_known,
                             json_t **call, json_t **owned, const json_t **arguments) {
    *owned = NULL;
    *call = load_object(s);
    const char *name = *call ? read_call(*call, owned, arguments) : NULL;
    bool is_call = name && (!must_be_known || find_tool(p, name)) &&
                   !json_is_deeper(*arguments, TOOL_MAX_LEVELS);
    return is_call ? name : NULL;
}

/* Hands out s as a call, in place of the first n bytes held; false: s is not a call. */
static bool try_json(struct tool_parser *p, struct str s, size_t n, bool must_be_known) {
    json_t *call, *owned;
    const json_t *arguments;
    const char *name = load_call(p, s, must_be_known, &call, &owned, &arguments);
    if (name)
        give_call(p, name, arguments, n);
    json_decref(call);
    json_decref(owned);
    return name != NULL;
}

static bool is_known_call(const struct tool_parser *p, struct str s) {
    json_t *call, *owned;
    const json_t *arguments;
    bool is_call = load_call(p, s, true, &call, &owned, &arguments) != NULL;
    json_decref(call);
    json_decref(owned);
    return is_call;
}

/* The end of the object at the start of s; 0: not in s, which may then end inside a string. Braces
 * in strings do not count. */
static size_t object_end(struct str s, bool *is_string) {
    int depth = 0;
    *is_string = false;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.at[i];
        if (*is_string && c == '\\')
            i++;
        else if (c == '"')
            *is_string = !*is_string;
        else if (!*is_string && (c == '{' || c == '['))
            depth++;
        else if (!*is_string && (c == '}' || c == ']') && --depth <= 0)
            return i + 1;
    }
    return 0;
}

/* ---- calls as XML ------------------------------------------------------------------------- */

static const json_t *type_of(const json_t *function, const char *parameter) {
    const json_t *schema = json_object_get(function, "parameters");
    const json_t *properties = json_object_get(schema, "properties");
    return json_object_get(json_object_get(properties, parameter), "type");
}

static bool may_be_string(const json_t *type) {
    json_t *one;
    size_t i;
    json_array_foreach(type, i, one) {
        if (may_be_string(one))
            return true;
    }
    return json_is_string(type) && strcmp(json_string_value(type), "string") == 0;
}

/* A parameter's value by its schema: a string stays as it is, others are parsed as JSON where
 * possible. */
static json_t *value_of(struct str s, const json_t *type) {
    static const struct {
        const char *word, *json;
    } words[] = {{"true", "true"}, {"false", "false"}, {"none", "null"}, {"null", "null"}};
    struct str bare = trimmed(s);
    json_t *value = NULL;
    if (!may_be_string(type))
        value = json_loadb(bare.at, bare.len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    for (size_t i = 0; !value && type && !may_be_string(type) && i < 4; i++)
        if (bare.len == strlen(words[i].word) && strncasecmp(bare.at, words[i].word, bare.len) == 0)
            value = json_loads(words[i].json, JSON_DECODE_ANY, NULL);
    return value ? value : json_of_text(s);
}

/* One newline after the opening tag and one before the closing tag are markup. */
static struct str parameter_text(struct str s) {
    if (s.len > 0 && s.at[0] == '\n')
        s = str_skip(s, 1);
    if (s.len > 0 && s.at[s.len - 1] == '\n')
        s.len--;
    return s;
}

static char *copy_name(struct str s) {
    s = trimmed(s);
    return s.len > 0 && !memchr(s.at, 0, s.len) ? strndup(s.at, s.len) : NULL;
}

/* Takes <parameter=x>...</parameter> off the start of *s; false: there is none. A value extends to
 * the last end tag before the next parameter. */
static bool read_parameter(struct str *s, const json_t *function, json_t *arguments) {
    if (!str_starts(*s, parameter_tag))
        return false;
    size_t name_at = strlen(parameter_tag), name_end = find(*s, ">", name_at);
    size_t end = find(*s, parameter_end, name_end);
    if (name_end == s->len || end == s->len)
        return false;
    for (;;) { /* an end tag not followed by a parameter or the end is part of the value */
        struct str rest = trimmed(str_skip(*s, end + strlen(parameter_end)));
        size_t next = find(*s, parameter_end, end + 1);
        if (rest.len == 0 || str_starts(rest, parameter_tag) || next == s->len)
            break;
        end = next;
    }
    char *name = copy_name((struct str){s->at + name_at, name_end - name_at});
    struct str text = parameter_text((struct str){s->at + name_end + 1, end - name_end - 1});
    bool is_good =
        name && !json_object_get(arguments, name) && /* of two, one would be lost */
        json_object_set_new(arguments, name, value_of(text, type_of(function, name))) == 0;
    free(name);
    *s = str_skip(*s, end + strlen(parameter_end));
    *s = str_skip(*s, n_spaces(*s));
    return is_good;
}

/* <function=f> ... </function>, nothing else. */
static bool try_xml(struct tool_parser *p, struct str s, size_t n) {
    size_t name_at = strlen(function_tag), name_end = find(s, ">", name_at);
    if (name_end == s.len || !str_ends(s, function_end) ||
        s.len < name_end + 1 + strlen(function_end))
        return false;
    char *name = copy_name((struct str){s.at + name_at, name_end - name_at});
    json_t *arguments = json_object();
    const json_t *function = name ? find_tool(p, name) : NULL;
    struct str rest = {s.at + name_end + 1, s.len - name_end - 1 - strlen(function_end)};
    rest = trimmed(rest);
    bool is_good = name && arguments && (function || !p->must_be_known);
    while (is_good && rest.len > 0)
        is_good = read_parameter(&rest, function, arguments);
    is_good = is_good && !json_is_deeper(arguments, TOOL_MAX_LEVELS);
    if (is_good)
        give_call(p, name, arguments, n);
    json_decref(arguments);
    free(name);
    return is_good;
}

/* ---- deciding ----------------------------------------------------------------------------- */

enum step { STEP_WAIT, STEP_DONE };

/* Whether the text between the tags is complete, not cut inside a value. */
static bool is_closed(struct str call, bool is_json) {
    bool is_string;
    if (!is_json)
        return str_ends(call, function_end);
    return object_end(call, &is_string) > 0 || !is_string;
}

/* <tool_call> ... after some white space: waits for the end; what cannot become a call goes out as
 * text. */
static enum step step_tagged(struct tool_parser *p, size_t spaces) {
    struct str held = buffer_str(&p->held);
    size_t n_open = spaces + strlen(open_tag);
    struct str body = str_skip(held, n_open);
    body = str_skip(body, n_spaces(body));
    size_t from =
        p->n_looked > n_open + strlen(close_tag) ? p->n_looked - strlen(close_tag) : n_open;
    bool is_json = body.len > 0 && body.at[0] == '{', is_xml = may_start(body, function_tag);
    if (body.len > 0 && !is_json && !is_xml) {
        give_text(p, n_open);
        return STEP_DONE;
    }
    for (size_t end; (end = find(held, close_tag, from)) < held.len; from = end + 1) {
        size_t n = end + strlen(close_tag);
        size_t length = held.at + end > body.at ? (size_t)(held.at + end - body.at) : 0;
        struct str call = trimmed((struct str){body.at, length});
        if (!is_closed(call, is_json))
            continue;
        p->has_begun = true;
        if (!(is_json ? try_json(p, call, n, p->must_be_known) : try_xml(p, call, n)))
            give_text(p, n);
        return STEP_DONE;
    }
    p->n_looked = held.len;
    if (!p->is_ending)
        return STEP_WAIT;
    /* Some models stop without the last tag. */
    struct str call = trimmed(body);
    if (!(is_json ? try_json(p, call, held.len, p->must_be_known) : try_xml(p, call, held.len)))
        give_text(p, n_open);
    return STEP_DONE;
}

/* Whether it starts like a call without tags; anything else is plain JSON. */
static bool may_be_bare_call(struct str s) {
    static const char *const keys[] = {"\"name\"", "\"type\"", "\"function\"", "\"parameters\"",
                                       "\"arguments\""};
    s = str_skip(s, s.len > 1 && s.at[1] == '{' ? 2 : 1);
    s = str_skip(s, n_spaces(s));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (may_start(s, keys[i]))
            return true;
    return false;
}

/* {"name": ...} at the beginning, maybe after <|python_tag|>, or after another such call. */
static enum step step_bare(struct tool_parser *p, size_t n_before) {
    struct str s = str_skip(buffer_str(&p->held), n_before);
    bool is_string, may_be = s.len == 0 || (s.at[0] == '{' && may_be_bare_call(s));
    size_t n = may_be && s.len > 0 ? object_end(s, &is_string) : 0;
    if (may_be && n == 0 && !p->is_ending)
        return STEP_WAIT;
    if (n == 0 || !try_json(p, (struct str){s.at, n}, n_before + n, true)) {
        give_text(p, n_before > 0 ? n_before : 1);
        p->has_begun = true;
    }
    return STEP_DONE;
}

static const char *const code_fences[] = {"```json\n", "```\n"};
static const char fence_end[] = "```";
enum { N_FENCES = sizeof code_fences / sizeof *code_fences };

/* Whether it starts like a block of code that may have calls. */
static bool may_be_fence(struct str s) {
    bool may_be = false;
    for (int i = 0; i < N_FENCES; i++)
        may_be |= may_start(s, code_fences[i]);
    return may_be;
}

/* The next object at the start of *s, which then begins after it; 0 bytes: there is none. */
static struct str next_object(struct str *s) {
    bool is_string;
    *s = str_skip(*s, n_spaces(*s));
    struct str object = {s->at, s->len > 0 && s->at[0] == '{' ? object_end(*s, &is_string) : 0};
    *s = str_skip(*s, object.len);
    return object;
}

/* A block of code with calls of known tools, one after the other, and nothing else. At the end of
 * the text its last line may be missing. */
static enum step step_fenced(struct tool_parser *p, size_t spaces) {
    struct str held = buffer_str(&p->held), s = str_skip(held, spaces), object;
    size_t n_calls = 0, n_open = 0;
    for (int i = 0; i < N_FENCES; i++)
        n_open = str_starts(s, code_fences[i]) ? strlen(code_fences[i]) : n_open;
    struct str body = str_skip(s, n_open ? n_open : s.len), rest = body;
    bool is_good = true;
    while (is_good && (object = next_object(&rest)).len > 0) {
        is_good = is_known_call(p, object);
        n_calls += is_good;
    }
    bool is_over = n_calls > 0 && str_starts(rest, fence_end);
    bool may_go_on = rest.len == 0 || (n_calls > 0 && may_start(rest, fence_end)) ||
                     (rest.at[0] == '{' && may_be_bare_call(rest));
    if (is_good && !is_over && may_go_on && !p->is_ending)
        return STEP_WAIT;
    bool is_cut = n_calls > 0 && may_start(rest, fence_end); /* or nothing is left */
    if (!is_good || !(is_over || is_cut)) {
        give_text(p, spaces + 1);
        return STEP_DONE;
    }
    while ((object = next_object(&body)).len > 0)
        try_json(p, object, 0, true);
    buffer_drop(&p->held, is_over ? (size_t)(rest.at - held.at) + strlen(fence_end) : held.len);
    return STEP_DONE;
}

/* Text up to the first thing that may begin a call, without the white space before that. */
static enum step step_text(struct tool_parser *p) {
    struct str held = buffer_str(&p->held);
    size_t n = 0;
    while (n < held.len && !(held.at[n] == '<' && may_start(str_skip(held, n), open_tag)))
        n++;
    while (n > 0 && is_space(held.at[n - 1]))
        n--;
    if (n == 0 && !p->is_ending)
        return STEP_WAIT;
    give_text(p, n > 0 ? n : held.len);
    return STEP_DONE;
}

/* Drops the semicolon between two calls without tags. */
static enum step step_separator(struct tool_parser *p, size_t n) {
    struct str rest = str_skip(buffer_str(&p->held), n);
    rest = str_skip(rest, n_spaces(rest));
    if (rest.len == 0 && !p->is_ending)
        return STEP_WAIT;
    if (rest.len == 0 || rest.at[0] != '{')
        return step_text(p);
    buffer_drop(&p->held, n);
    return STEP_DONE;
}

static enum step step(struct tool_parser *p) {
    struct str held = buffer_str(&p->held);
    size_t spaces = n_spaces(held);
    struct str rest = str_skip(held, spaces);
    if (rest.len == 0) {
        if (p->is_ending && p->is_after_call)
            buffer_drop(&p->held, held.len);
        else if (p->is_ending)
            give_text(p, held.len);
        return STEP_WAIT;
    }
    if (str_starts(rest, open_tag))
        return step_tagged(p, spaces);
    if (!p->has_begun && str_starts(rest, python_tag))
        return step_bare(p, spaces + strlen(python_tag));
    if (!p->has_begun && rest.at[0] == '{')
        return step_bare(p, spaces);
    if (!p->has_begun && may_be_fence(rest))
        return step_fenced(p, spaces);
    if (!p->has_begun && p->is_after_call && rest.at[0] == ';')
        return step_separator(p, spaces + 1);
    if (!p->is_ending &&
        (may_start(rest, open_tag) || (!p->has_begun && may_start(rest, python_tag))))
        return STEP_WAIT;
    return step_text(p);
}

static void run(struct tool_parser *p) {
    while (p->held.len > 0 && step(p) == STEP_DONE)
        ;
}

void tool_parser_push(struct tool_parser *p, struct str text) {
    buffer_add(&p->held, text.at, text.len);
    run(p);
}

void tool_parser_end(struct tool_parser *p) {
    p->is_ending = true;
    run(p);
    p->is_ending = false;
}
