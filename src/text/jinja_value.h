/* jinja_value.h - the values of templates, with Python's meaning, and the state of a rendering.
 *
 * (1) Values live in the rendering's arena and die with it; strings may point into the template
 *     or into the caller's JSON.
 * (2) Strings are valid UTF-8, and are measured and cut in characters.
 * (3) Nothing is changed once made, but namespaces, loops and the position of generators; so only
 *     a namespace can hold itself, and whatever walks values counts its depth.
 * (4) Functions that return bool return false after setting the rendering's error.
 *
 * A rendering is used by one thread. */
#ifndef TEXT_JINJA_VALUE_H
#define TEXT_JINJA_VALUE_H

#include <jansson.h>
#include <stdatomic.h>
#include <time.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include "text/tokenizer.h"

enum value_type {
    VALUE_MISSING, /* an argument that was not given; never seen by a template */
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_SEQ,
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_LOOP,
    VALUE_MACRO,
    VALUE_FUNCTION,
    VALUE_METHOD,
};

struct value {
    enum value_type type;
    union {
        bool truth;
        int64_t integer;
        double real;
        const struct string *string;
        const char *why; /* undefined: the message when it is used */
        struct seq *seq;
        struct dict *dict; /* a namespace's, too */
        struct loop *loop;
        const struct macro *macro;
        const struct builtin *function;
        const struct method *method;
    };
};

struct string {
    struct str text;
    size_t chars;
    bool is_markup; /* made by `safe` or `escape`: + escapes what it is joined with */
};

/* Everything that holds items in order. */
enum seq_kind { SEQ_LIST, SEQ_TUPLE, SEQ_RANGE, SEQ_KEYS, SEQ_VALUES, SEQ_ITEMS, SEQ_GENERATOR };

struct seq {
    enum seq_kind kind;
    struct value *items;
    size_t count;
    size_t next;              /* generators: how many were taken */
    int64_t start, end, step; /* ranges */
};

struct pair {
    struct value key, value;
};

/* In order of insertion, keys unique. Searched linearly: dicts are small, and a template that makes
 * large ones is charged for it. */
struct dict {
    struct pair *pairs;
    size_t count, capacity;
};

/* A method of a value, as in "text".upper. */
struct method {
    struct value self;
    const struct builtin *builtin;
};

/* A macro, or the block of a `call`, and the scope it was written in. */
struct macro {
    const struct node *node;
    struct scope *scope;
};

struct scope {
    struct scope *parent;
    struct binding *bindings;
};

/* ---- a rendering ---- */

struct render {
    const struct jinja *jinja;
    struct err *err;
    struct arena arena;
    struct text_buffer *out; /* also where strings are put together, above what is printed */
    size_t max_output;
    unsigned depth;
    uint32_t line; /* of what is evaluated, for errors */
    struct scope *scope;
    struct tm now;

    /* ---- what it may take: jinja_cost.c ---- */
    uint64_t until_check; /* units of work until the flag and the clock are checked */
    uint64_t units_left;  /* after those */
    uint64_t start_ms, max_cpu_ms;
    const atomic_bool *cancel;

    /* ---- who wrote what: jinja_origin.c ---- */
    bool is_tracked;
    bool is_own;        /* what jinja_from_json takes is the template's own */
    struct str own_key; /* see jinja_options */
    char *origins;      /* one for each byte of out */
    size_t n_origins;   /* its capacity */
    struct kept *kept;  /* strings that have origins of their own */
};

/* Sets the error with the current line; returns false. */
bool jinja_fail(struct render *render, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool jinja_no_memory(struct render *render);
/* Guards recursion: every enter that returned true has its leave. */
bool jinja_enter(struct render *render);
void jinja_leave(struct render *render);

/* ---- what work costs: jinja_cost.c says who pays ---- */

enum {
    JINJA_STEP = 64, /* units to evaluate a node */
    JINJA_CHAR = 8,  /* to decode a character and ask what it is */
};

void jinja_budget(struct render *render, uint64_t units, uint64_t cpu_ms,
                  const atomic_bool *cancel);
uint64_t jinja_units_left(const struct render *render);
/* For jinja_charge: the units between two checks of the flag and the clock are used up. */
bool jinja_check(struct render *render, uint64_t units);

/* Charges units of work. False: the rendering ends here. */
static inline bool jinja_charge(struct render *render, uint64_t units) {
    if (units >= render->until_check)
        return jinja_check(render, units);
    render->until_check -= units;
    return true;
}
/* The same with a step on top. */
static inline bool jinja_work(struct render *render, uint64_t units) {
    return jinja_charge(render, JINJA_STEP + units);
}
/* Charges for reading each byte or item of these values. */
bool jinja_charge_sizes(struct render *render, const struct value *values, size_t count);
/* Zeroed memory from the arena, charged by size. NULL: the error is set. */
void *jinja_alloc(struct render *render, uint64_t count, uint64_t size);

/* ---- making ---- */

static inline struct value value_none(void) {
    return (struct value){.type = VALUE_NONE};
}
static inline struct value value_bool(bool truth) {
    return (struct value){.type = VALUE_BOOL, .truth = truth};
}
static inline struct value value_int(int64_t integer) {
    return (struct value){.type = VALUE_INT, .integer = integer};
}
static inline struct value value_float(double real) {
    return (struct value){.type = VALUE_FLOAT, .real = real};
}

/* The text says what is wrong when the value is used. */
bool jinja_undefined(struct render *render, struct value *out, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool jinja_string(struct render *render, struct str text,
                  struct value *out); /* the bytes are borrowed */
bool jinja_string_copy(struct render *render, struct str text, struct value *out);
/* A copy that counts as the template's own. */
bool jinja_string_own(struct render *render, struct str text, struct value *out);
/* A sequence of `count` items, none of them set. */
bool jinja_seq(struct render *render, enum seq_kind kind, size_t count, struct value *out);
/* Appends to a list that is still being made. */
bool jinja_push(struct render *render, struct seq *seq, size_t *capacity, struct value item);
bool jinja_dict(struct render *render, enum value_type type, struct value *out);
/* Adds or replaces; false also for an unhashable key. */
bool jinja_dict_set(struct render *render, struct dict *dict, struct value key, struct value value);
bool jinja_from_json(struct render *render, const json_t *json, struct value *out);

/* ---- asking ---- */

/* What an error calls the type: "str", "dict" ... Static. */
const char *jinja_type_name(struct value v);
bool jinja_truth(struct value v);
bool jinja_is_number(struct value v);         /* bool, int or float */
bool jinja_is_int(struct value v, int64_t *); /* bool or int, and its value */
double jinja_number(struct value v);          /* of a number */
bool jinja_equal(struct render *render, struct value a, struct value b, bool *out);
/* a < b and so on; op is TK_LT, TK_LE, TK_GT or TK_GE. */
bool jinja_less(struct render *render, struct value a, struct value b, int op, bool *out);
bool jinja_contains(struct render *render, struct value item, struct value in, bool *out);
bool jinja_length(struct render *render, struct value v, int64_t *out);
/* Fails when the value was undefined. */
bool jinja_defined(struct render *render, struct value v);
bool jinja_hashable(struct render *render, struct value v);
/* A dict's value, or NULL. The key is hashable. */
bool jinja_dict_get(struct render *render, const struct dict *dict, struct value key,
                    const struct value **out);
/* The items that iterating gives; takes those of a generator. Fails for what can't be iterated. */
bool jinja_iterate(struct render *render, struct value v, struct value **items, size_t *count);
bool jinja_dict_view(struct render *render, const struct dict *dict, enum seq_kind kind,
                     struct value *out);

/* ---- text ---- */

bool jinja_put(struct render *render, struct str text);
bool jinja_put_times(struct render *render, struct str text, uint64_t times);
bool jinja_put_char(struct render *render, uint32_t character);
bool jinja_put_str(struct render *render, struct value v);      /* as Python's str() */
bool jinja_put_repr(struct render *render, struct value v);     /* as Python's repr() */
bool jinja_put_escaped(struct render *render, struct str text); /* for HTML */
/* What was put since `mark` (an earlier render->out->len) as a string, taken off again. */
bool jinja_take(struct render *render, size_t mark, struct value *out);
bool jinja_to_string(struct render *render, struct value v, struct value *out); /* str() */

/* ---- who wrote what ---- */

/* All these do nothing if origins are not wanted. */
/* Puts the origins of a text that is about to be put at the end of out. */
bool jinja_origins_put(struct render *render, struct str text);
/* What was put since `mark` counts as the template's own if `text`, which it was made from, does.
 */
void jinja_origins_follow(struct render *render, size_t mark, struct str text);
/* Appends the origins of what was put since `start`. */
bool jinja_origins_give(struct render *render, size_t start, struct text_buffer *to);
/* A copy of a text in out or anywhere else, with its origins. NULL: the error is set. */
char *jinja_origins_keep(struct render *render, struct str text);

struct json_style {
    bool is_ascii, is_sorted, has_indent;
    struct str indent, between, colon;
};
bool jinja_put_json(struct render *render, struct value v, const struct json_style *style);

bool jinja_is_space(uint32_t c);
/* Takes the first character off a text that has one, and charges for it. */
static inline bool jinja_next_char(struct render *render, struct str *rest, uint32_t *character) {
    *rest = str_skip(*rest, utf8_decode(*rest, character));
    return jinja_charge(render, JINJA_CHAR);
}
/* Without white space at its ends. Not charged. */
struct str jinja_trim(struct str text, bool left, bool right);
/* Without the characters of `chars` (white space when .at is NULL) at its ends. */
bool jinja_strip(struct render *render, struct str text, struct str chars, bool left, bool right,
                 struct str *out);
/* The first or last place of `what` in a text; NULL when there is none. */
bool jinja_find(struct render *render, struct str text, struct str what, bool from_right,
                const char **out);
/* The part of a text between two characters, 0 <= begin <= end <= its characters. */
struct str jinja_cut(const struct string *s, size_t begin, size_t end);
size_t jinja_count_chars(struct str text);
/* Python's int(text, base) and float(text): false when the text is not one. */
bool jinja_parse_int(struct str text, int64_t base, int64_t *out, bool *is_too_big);
bool jinja_parse_float(struct str text, double *out);
bool jinja_format(struct render *render, struct str format, struct value args, struct value *out);
enum text_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE, CASE_WORDS };
bool jinja_change_case(struct render *render, struct str text, enum text_case to,
                       struct value *out);
bool jinja_replace(struct render *render, struct str text, struct str old, struct str new,
                   int64_t count, struct value *out);
bool jinja_split_lines(struct render *render, struct str text, bool keep_ends, struct value *out);

/* ---- functions: filters, tests, methods and globals ---- */

enum { MAX_PARAMETERS = 5 };

struct named {
    struct str name;
    struct value value;
};

/* What a call gives. */
struct args {
    struct value *at;
    size_t count;
    struct named *named;
    size_t n_named;
};

struct call {
    struct value self;                 /* what stands before the filter, test or method */
    struct value args[MAX_PARAMETERS]; /* VALUE_MISSING: not given */
    const struct args *all;
};

typedef bool builtin_fn(struct render *render, const struct call *call, struct value *out);

/* Who charges for the bytes and items of its operands that a function reads. */
enum pays {
    PAYS_BY_SIZE, /* the caller, for all of them, before it begins */
    PAYS_ITSELF,  /* the function: it reads none, or charges for those it reads */
};

struct builtin {
    const char *name;
    const char *parameters; /* their names; those after a '/' may be left out; "*": any */
    builtin_fn *fn;         /* NULL: known to Python, refused by the sandbox */
    enum pays pays;
};

extern const struct builtin jinja_seq_filters[]; /* a part of the filters, a zero row last */
const struct builtin *jinja_filter_find(struct str name);
const struct builtin *jinja_test_find(struct str name);
const struct builtin *jinja_method_find(struct value self, struct str name);
const struct builtin *jinja_global_find(struct str name);

/* Charges for a call; done by jinja_call_builtin. */
bool jinja_charge_call(struct render *render, const struct builtin *b, struct value self,
                       const struct args *args);
/* Charges, binds the arguments to the parameters, and calls. */
bool jinja_call_builtin(struct render *render, const struct builtin *b, struct value self,
                        const struct args *args, struct value *out);
/* An argument that must be a text; one that must be an int when it is given. */
bool jinja_text_arg(struct render *render, struct value v, struct str *out);
bool jinja_int_arg(struct render *render, struct value v, int64_t fallback, int64_t *out);
/* Calls any value. */
bool jinja_call(struct render *render, struct value callee, const struct args *args,
                struct value *out);

/* a.name, a[key], a op b */
bool jinja_attribute(struct render *render, struct value a, struct str name, struct value *out);
bool jinja_item(struct render *render, struct value a, struct value key, struct value *out);
bool jinja_slice(struct render *render, struct value a, const struct value bounds[3],
                 struct value *out);
bool jinja_binary(struct render *render, int op, struct value a, struct value b, struct value *out);

#endif
