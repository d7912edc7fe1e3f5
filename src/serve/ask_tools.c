/* ask_tools.c - the tools of a request: which there are, which may be called, which must be. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "serve/ask_internal.h"

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

/* ---- which may be called ------------------------------------------------------------------ */

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

const json_t *ask_callable(const struct ask *ask) {
    return ask->allowed ? ask->allowed : ask->tools;
}

/* By hash: there may be as many tools as fit a request, and as many that are allowed. */
void ask_allow_tools(struct ask *ask, struct fields *f, const json_t *allowed) {
    json_t *names = json_object(), *kept = json_array(), *tool;
    const json_t *one;
    size_t i;
    json_array_foreach(ask->tools, i, tool)
        json_object_set_new(names, name_of_tool(tool), json_false());
    json_array_foreach(allowed, i, one) {
        const char *name = name_of_tool(one);
        if (name && json_object_get(names, name))
            json_object_set_new(names, name, json_true());
        else
            fields_refuse(f, "tool_choice",
                          "tool_choice allows %.80s, which is not among the tools",
                          name ? name : json_kind(one));
    }
    json_array_foreach(ask->tools, i, tool) {
        if (json_is_true(json_object_get(names, name_of_tool(tool))))
            json_array_append(kept, tool);
    }
    json_decref(names);
    if (json_array_size(kept) == 0)
        fields_refuse(f, "tool_choice", "tool_choice allows no tools, expected an array of them");
    json_decref(ask->allowed);
    ask->allowed = kept;
}

/* ---- a call that is required -------------------------------------------------------------- */

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
        ask_set_format_schema(ask, &ask->call, f, "tool_choice", m, schema);
    ask->is_call_begun = true;
    json_decref(schema);
    json_decref(definitions);
}
