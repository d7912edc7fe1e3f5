/* test_jinja_cost.c - templates that try to run long: all work is paid for, so all of them end. */
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "file/gguf.h"
#include "test.h"
#include "text/chat.h"
#include "text/jinja.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { BUDGET = 600 * 1000 * 1000 }; /* units of work, the default */

/* What a unit of work takes differs between machines, more so between those that are imitated: work
 * is compared with other work of the same run. */
struct costs {
    const char *of[512];
    double ns[512]; /* of processor time, a unit */
    double seconds[512];
    size_t n;
};

static void note_cost(struct costs *c, const char *of, double seconds, uint64_t units) {
    c->of[c->n] = of;
    c->ns[c->n] = 1e9 * seconds / (double)units;
    c->seconds[c->n++] = seconds;
}

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What takes many times as long as most does is charged too little. Below a tenth of a second it
 * may be the machine that paused. */
static void expect_fair(const struct costs *c) {
    const double most = 12;
    double sorted[COUNT(c->ns)], worst = 0;
    memcpy(sorted, c->ns, c->n * sizeof *sorted);
    qsort(sorted, c->n, sizeof *sorted, compare_numbers);
    double median = sorted[c->n / 2];
    for (size_t i = 0; i < c->n; i++) {
        worst = c->ns[i] > worst ? c->ns[i] : worst;
        if (c->ns[i] > most * median && c->seconds[i] > 0.1)
            test_fail(__FILE__, __LINE__, "%s: takes %.1f ns a unit, expected at most %.0f * %.1f",
                      c->of[i], c->ns[i], most, median);
    }
    test_note("%.2f ns a unit, %.2f at most", median, worst);
}

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Renders, and gives the status; frees what comes out. */
static int render(struct str source, const json_t *variables, struct jinja_options options,
                  struct err *err) {
    struct jinja *jinja;
    struct text_buffer out = {0};
    int status = jinja_compile(&jinja, source, err);
    if (!status)
        status = jinja_render(jinja, variables, &options, &out, err);
    jinja_close(jinja);
    EXPECT(!status || out.len == 0);
    free(out.at);
    return status;
}

/* What a table's row may use: the longest texts and lists that are cheap to make. */
static const char before[] =
    "{% set s = 'x' * 100000 %}{% set u = '\xC3\xA9' * 50000 %}{% set w = ' ' * 100000 %}"
    "{% set d = '1' * 100000 %}{% set g = '\xCE\xA3' * 50000 %}{% set n = '\\n' * 99999 %}"
    "{% set l = [0] * 10000 %}{% set r = range(9999) %}{% set t = ['x', 'y'] * 9999 %}"
    "{% set m = {'a': 1, 'b': [1, 'x', 2.5], 'c': none} %}{% set f = 1.1 / 3 %}"
    "{% set p = 'x' * 255 %}{% set q = 'x' * 130 ~ 'y' ~ 'x' * 130 %}{% set v = '-x-' %}"
    "{% set e = '\"' * 99999 %}{% set x = 5e-324 %}{% set z = 1.7976931348623157e308 %}"
    "{% macro o(a, b=1) %}{% endmacro %}{% macro y() %}{{ varargs }}{{ kwargs }}{% endmacro %}";

/* clang-format off */
static const char *const operations[] = {
    /* evaluating */
    "1", "i", "missing", "s", "(1,2)", "[1,2]", "{'a': 1}", "1 if i", "not i", "-i", "i and j",
    "1 == 1 == 1", "i ~ j", "m.a", "m.missing", "m['a']", "s.missing", "s.upper", "r.start", "loop",
    "loop.index", "loop.length", "loop.last", "loop.nextitem", "loop.cycle(1, 2)",
    "loop.changed(s)", "o(1)", "o(1, b=2)", "y(1, a=2)", "dict(a=1)", "namespace(a=1)",
    "strftime_now('%Y')", "strftime_now('%c' * 30)", "strftime_now('x' ~ '%^Z' * 30000)",
    "range(9)", "range(9999)",
    /* operators */
    "i + j", "i * 3", "i ** 5", "1.5 ** 2.5", "z % 5e-324", "z // 5e-324", "z % 3.7", "1 // 3",
    "s + s", "l + l", "s * 2", "'x' * 99999", "l * 2", "[s] * 9", "s == s", "s == s ~ ''", "s != s",
    "s < s", "l == l", "l == l * 1", "l < l * 1", "t == t * 1", "m == {'a': 1}", "'y' in s",
    "q in s", "('y' ~ p) in s", "(p ~ 'y') in s", "s in s", "(s ~ 'y') in s", "1 in l", "'z' in t",
    "s in t", "'z' in m", "s in m", "s[1:]", "s[::-1]", "s[::2]", "u[1:]", "u[-1]", "u[49999]",
    "u[::9]", "l[1:]", "l[::-1]", "r[::3]", "s[9]", "l[9]", "m[s]", "m[d]", "'%s' % s",
    "'%-9s|%9s' % (i, j)", "'%.3s' % s", "'%.9s' % u", "'%r' % e", "'%f' % z", "'%.100f' % z",
    "'%.100e' % x", "'%99999d' % i", "('%%' * 9999) % ()", "('%-' * 9 ~ 'd') % i", "'%(a)s' % m",
    "s ~ s", "f ~ ''", "z ~ ''", "x ~ ''", "l ~ ''", "m ~ ''", "t ~ ''", "u ~ 1", "[u] ~ ''",
    "[e] ~ ''", "[1.1] * 99 ~ ''",
    /* filters */
    "1|abs", "s|capitalize", "u|capitalize", "s|count", "s|default(1)", "e|escape", "s|escape",
    "s|float", "d[:500]|float", "('0.' ~ d[:500])|float", "(d[:400] ~ 'e-300')|float", "w|float",
    "'%s'|format(s)", "'x'|format", "n|indent", "s|indent", "'x'|indent(99999)", "s|int",
    "(d ~ 'z')|int", "('1' * 99999 ~ '2')|int(0, 2)", "w|int", "s|length", "s|lower", "u|lower",
    "g|lower", "('\xCE\xA3.' * 9999)|lower", "s|replace('x', 'y')", "s|replace('y', '')",
    "s|replace('', 'y')", "s|replace(p, '')", "s|replace(q, '')", "f|round", "z|round(100)",
    "f|round(100)", "f|round(3, 'ceil')", "s|safe", "s|string", "l|string", "s|title", "u|title",
    "s|tojson", "u|tojson", "e|tojson", "n|tojson", "u|tojson(ensure_ascii=true)", "l|tojson",
    "t|tojson", "m|tojson", "m|tojson(indent=2)", "l|tojson(indent=9)", "m|tojson(sort_keys=true)",
    "f|tojson", "x|tojson", "w|trim", "s|trim", "s|trim('x')", "s|trim(p)",
    "s|trim('\xC3\xA9' * 99 ~ 'x')", "u|trim('ab\xC3\xA9')", "s|upper", "u|upper",
    "('\xC3\x9F' * 9999)|upper", "m|attr('a')", "m|dictsort", "l|first", "s|first", "m|items",
    "l|join", "t|join('--')", "t|join(v)", "([m] * 99)|join('', 'a')", "l|last", "s|last", "l|list",
    "s|list", "r|list", "l|map('string')|list", "l|map('abs')|list", "t|map('upper')|list",
    "[m]|map(attribute='a')|list", "[m]|map(attribute='a.a.a.a', default=m)|list",
    "[m]|map(attribute=d)|list", "[m]|map(attribute=d[:9999]|join('.'), default=1)|list", "l|max",
    "t|min", "([s] * 9)|max", "l|reject|list", "l|select('odd')|list", "l|select('eq', 1)|list",
    "[m]|selectattr('a', 'eq', 2)|list", "[m]|rejectattr('a')|list", "l|reverse", "s|reverse",
    "l|sort", "t|sort", "([s] * 9)|sort", "[m]|sort(attribute='a,a,a')", "r|sort(reverse=true)",
    "l|sum", "([[0] * 99] * 99)|sum(start=[])", "t|unique|list", "r|unique|list", "l|unique|list",
    /* tests */
    "s is defined", "s is string", "s is lower", "s is upper", "u is lower", "d is lower",
    "g is upper", "l is lower", "s is eq s", "s is lt s", "l is eq l", "'y' is in s", "1 is in l",
    "i is odd", "z is divisibleby 3.3", "s is sameas s", "s is filter", "s is test", "i is even",
    /* methods of texts */
    "s.capitalize()", "s.center(100001)", "'x'.center(99999)", "s.count('x')", "s.count('y')",
    "s.count('')", "s.count(p)", "s.count(q)", "u.count('')", "u.count('x', 9, 49999)",
    "s.endswith('x')", "s.endswith(('x',) * 99)", "u.endswith('x', 49999)", "s.startswith(s)",
    "s.startswith((s,) * 9)", "s.find('y')", "s.find(q)", "s.find(p ~ 'y')", "u.find('y')",
    "s.find('x', 99999)", "u.find('\xC3\xA9', 49999)", "s.rfind('y')", "s.rfind('y' ~ p)",
    "s.rfind(p ~ 'y')", "s.rfind('x' * 99999 ~ 'y')", "s.index('x')", "s.rindex('x')",
    "('{}' * 99).format(*l[:99])", "s.format()", "('{a}' * 99).format(**m)", "e.format()",
    "('{' ~ s ~ '}').format(**{s: 1})", "s.isalpha()", "u.isalpha()", "s.isalnum()", "d.isdigit()",
    "d.isdecimal()", "d.isnumeric()", "w.isspace()", "s.islower()", "u.isupper()", "'-'.join(t)",
    "v.join(t)", "s.join('abc')", "s.ljust(100001)", "s.rjust(100001)", "s.lower()", "u.lower()",
    "w.lstrip()", "s.lstrip('x')", "s.partition('y')", "s.partition(q)", "s.rpartition('y' ~ p)",
    "s.removeprefix(s)", "s.removesuffix('y')", "s.replace('x', 'yy')", "s.replace('y', 'x')",
    "n.rsplit('\\n')", "s.rsplit('y' ~ p)", "w.rsplit()", "s.rsplit()", "s.rstrip(p)",
    "s.split('y')", "s.split('x')", "s.split(q)", "s.split()", "('x ' * 99999).split()",
    "w.split()", "w.split(none, 1)", "n.splitlines()", "s.splitlines()", "u.splitlines()",
    "w.strip()", "s.strip('x')", "s.strip(p)", "v.strip('-')", "u.strip('\xC3\xA9')", "s.title()",
    "s.upper()", "u.upper()", "s.zfill(100001)",
    /* methods of lists and dicts */
    "l.count(1)", "t.count('x')", "(l + [1]).index(1)", "m.get('a')", "m.get(s)", "m.items()",
    "m.keys()", "m.values()", "l.copy()", "r.count(1)", "([s] * 9).count(s)", "k.get('x')",
    "k.items()", "k == k", "k|items", "k|dictsort", "k|list", "k.x", "'x' in k", "k|tojson",
    "k|tojson(sort_keys=true)", "k ~ 1", "o(**k)", "'{k99}'.format(**k)", "dict(k)",
    "namespace(**k)", "1|int(**k)",
};
/* clang-format on */

/* {"k0000": 0, "k0001": 1 ...} */
static json_t *make_keys(int count) {
    json_t *keys = json_object();
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "k%04d", i);
        json_object_set_new(keys, name, json_integer(i));
    }
    return keys;
}

/* Does an operation over and over until the budget ends it, with origins or without. */
static void exhaust(const char *operation, const json_t *variables, bool is_tracked,
                    struct costs *costs) {
    enum { UNITS = 6 * 1000 * 1000 };
    char source[4096];
    struct err err = {0};
    struct text_buffer origins = {0};
    uint64_t used = 0;
    snprintf(source, sizeof source,
             "%s{%% for i in range(99999) %%}{%% for j in range(9999) %%}{%% if (%s) %%}"
             "{%% endif %%}{%% endfor %%}{%% endfor %%}",
             before, operation);
    double start = processor_seconds();
    int status = render(str_of(source), variables,
                        (struct jinja_options){.max_units = UNITS,
                                               .max_cpu_ms = 60000,
                                               .used_units = &used,
                                               .origins = is_tracked ? &origins : NULL},
                        &err);
    double seconds = processor_seconds() - start;
    if (status == SLUICE_OK || (!strstr(err.text, "too many steps") && !strstr(err.text, "memory")))
        test_fail(__FILE__, __LINE__, "%s: found %d \"%s\", expected too many steps", operation,
                  status, err.text);
    EXPECT(used <= UNITS);
    note_cost(costs, operation, seconds, used);
    free(origins.at);
}

TEST(jinja_work_is_paid_for) {
    json_t *variables = json_pack("{s:o}", "k", make_keys(1000));
    struct costs costs = {.n = 0};
    static_assert(COUNT(operations) <= COUNT(costs.ns), "room for all");
    for (size_t i = 0; i < COUNT(operations); i++)
        exhaust(operations[i], variables, i % 2, &costs);
    expect_fair(&costs);
    json_decref(variables);
}

/* Statements and shapes that no expression has. */
static const char *const statements[] = {
    "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "{% for i in range(9999) %}{% for j in range(9999) if 0 %}{% endfor %}{% endfor %}",
    "{% for i in range(9999) %}{% for j in range(9999) %}{% set x = i %}{% endfor %}{% endfor %}",
    "{% for i in range(9999) %}{% for a, b in [[i, 1]] * 9999 %}{% endfor %}{% endfor %}",
    "{% for i in range(9999) %}{% for j in range(9999) %}{% set x %}{{ i }}{% endset %}{% endfor %}"
    "{% endfor %}",
    "{% for i in range(9999) %}{% for j in range(9999) %}{% with x = i, y = j %}{% endwith %}"
    "{% endfor %}{% endfor %}",
    "{% for i in range(9999) %}{% for j in range(9999) %}{% filter upper %}{{ i }}{% endfilter %}"
    "{% endfor %}{% endfor %}",
    "{% for i in range(9999) %}{% for j in range(9999) %}{% generation %}{{ j }}"
    "{% endgeneration %}{% endfor %}{% endfor %}",
    "{% for i in range(9999) %}{% for j in range(9999) %}{% set x %}{{ 'x' * 9999 }}{% continue %}"
    "{% endset %}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% for i in range(9999) %}{% for j in range(9999) "
    "%}{% call m() %}{% endcall %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}",
    "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = [n.l, n.l] %}{% endfor %}"
    "{{ n.l }}",
    "{% set n = namespace(l=[]) %}{% for i in range(99) %}{% set n.l = [n.l, n.l] %}{% endfor %}"
    "{{ n.l == n.l[:] }}{{ n.l|tojson }}",
    "{% set n = namespace(l=()) %}{% for i in range(99) %}{% set n.l = (n.l, n.l) %}{% endfor %}"
    "{{ {n.l: 1} }}",
    "{% set n = namespace(d={}) %}{% for i in range(9999) %}{% for j in range(9999) %}"
    "{% set n.d = dict(n.d, **{'k' ~ i ~ j: 1}) %}{% endfor %}{% endfor %}",
    "{% set n = namespace(s='') %}{% for i in range(9999) %}{% for j in range(9999) %}"
    "{% set n.s = n.s ~ 'x' %}{% endfor %}{% endfor %}",
};

TEST(jinja_statements_are_paid_for) {
    json_t *variables = json_object();
    struct costs costs = {.n = 0};
    for (size_t i = 0; i < COUNT(statements); i++) {
        struct err err = {0};
        uint64_t used = 0;
        double start = processor_seconds();
        struct jinja_options options = {
            .max_units = 20 * 1000 * 1000, .max_cpu_ms = 60000, .used_units = &used};
        int status = render(str_of(statements[i]), variables, options, &err);
        double seconds = processor_seconds() - start;
        if (!status)
            test_fail(__FILE__, __LINE__, "%s: renders, expected too many steps", statements[i]);
        note_cost(&costs, statements[i], seconds, used);
    }
    expect_fair(&costs);
    json_decref(variables);
}

/* ---- the clock ---- */

static const char endless[] = "\n{% set s = 'x' * 9999 %}{% for i in range(99999) %}"
                              "{% if s is lower %}{% endif %}{% endfor %}";

TEST(jinja_rendering_ends_by_the_clock) {
    json_t *variables = json_object();
    struct err err = {0};
    double start = processor_seconds();
    struct jinja_options options = {.max_units = UINT64_MAX, .max_cpu_ms = 30};
    EXPECT_INT(render(str_of(endless), variables, options, &err), SLUICE_ERR_FORMAT);
    double seconds = processor_seconds() - start;
    EXPECT_STR(err.text,
               "chat template, line 2: rendering takes more than 30 ms of processor time");
    EXPECT(seconds > 0.03 && seconds < 1);
    json_decref(variables);
}

/* With the limits that everybody has. */
TEST(jinja_rendering_ends_within_two_seconds) {
    json_t *variables = json_object();
    struct err err = {0};
    double start = processor_seconds();
    EXPECT_INT(render(str_of(endless), variables, (struct jinja_options){0}, &err),
               SLUICE_ERR_FORMAT);
    EXPECT(strstr(err.text, "chat template, line 2: rendering takes "));
    EXPECT(processor_seconds() - start < 2.5);
    json_decref(variables);
}

/* ---- cancelling ---- */

static void *set_later(void *flag) {
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    atomic_store((atomic_bool *)flag, true);
    return NULL;
}

static const char *const long_running[] = {
    endless,
    "{% set s = 'x' * 30000000 %}{% for i in range(999) %}{% if s is upper or not s.isalpha() or "
    "s.split('y')|length > 1 or s|lower != s %}{% endif %}{% endfor %}",
    "{% set s = 'x' * 30000000 %}{% for i in range(999) %}{{ 'y' in s }}{% endfor %}",
    "{% for i in range(99999) %}{{ range(9999)|list|sort|tojson }}{% endfor %}",
};

TEST(jinja_rendering_can_be_cancelled) {
    json_t *variables = json_object();
    for (size_t i = 0; i < COUNT(long_running); i++) {
        atomic_bool cancel = false;
        struct err err = {0};
        pthread_t thread;
        EXPECT_INT(pthread_create(&thread, NULL, set_later, &cancel), 0);
        struct jinja_options options = {
            .max_units = UINT64_MAX, .max_cpu_ms = 60000, .cancel = &cancel};
        EXPECT_INT(render(str_of(long_running[i]), variables, options, &err), SLUICE_ERR_CANCELLED);
        EXPECT(strstr(err.text, "rendering was cancelled"));
        pthread_join(thread, NULL);
    }
    json_decref(variables);
}

TEST(chat_requests_can_be_cancelled) {
    struct gguf *g;
    struct tokenizer *t = NULL;
    struct chat *chat = NULL;
    struct err err = {0};
    struct ids ids = {0};
    struct text_buffer text = {0};
    atomic_bool cancel = false;
    if (gguf_open(&g, "models/stories-27m-q4_k_m.gguf", &err) || tokenizer_from_gguf(&t, g, &err) ||
        chat_from_tokenizer(&chat, t, &err)) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        return;
    }
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "Hi");
    struct chat_request request = {.messages = messages, .cancel = &cancel};
    EXPECT_INT(chat_encode(chat, t, &request, &ids, &err), SLUICE_OK);
    size_t had = ids.len;
    atomic_store(&cancel, true);
    EXPECT_INT(chat_encode(chat, t, &request, &ids, &err), SLUICE_ERR_CANCELLED);
    EXPECT_INT(chat_render(chat, &request, &text, &err), SLUICE_ERR_CANCELLED);
    EXPECT_INT(ids.len, had);
    EXPECT_INT(text.len, 0);
    json_decref(messages);
    text_buffer_free(&text);
    ids_free(&ids);
    chat_close(chat);
    tokenizer_close(t);
    gguf_close(g);
}

/* ---- what real templates take ---- */

/* `count` messages of `size` bytes each; every fourth one is a tool's answer to a call. */
static json_t *make_conversation(int count, size_t size) {
    static const char line[] = "The \"quick\" fox\njumps over {\"h\": \"\xC3\xA9llo\"} </x>\n";
    json_t *messages = json_array();
    char *text = calloc(1, size + sizeof line);
    for (size_t n = 0; n < size; n += sizeof line - 1)
        memcpy(text + n, line, sizeof line);
    for (int i = 0; i < count; i++) {
        const char *role = i % 4 == 2 ? "tool" : i % 2 ? "assistant" : "user";
        json_t *m = json_pack("{s:s, s:s, s:s}", "role", role, "content", text, "tool_call_id",
                              "abcdefghi");
        if (i % 4 == 1)
            json_object_set_new(m, "tool_calls",
                                json_pack("[{s:s, s:s, s:{s:s, s:{s:s}}}]", "id", "abcdefghi",
                                          "type", "function", "function", "name", "f", "arguments",
                                          "text", text));
        json_array_append_new(messages, m);
    }
    free(text);
    return messages;
}

TEST(jinja_long_conversations_are_far_from_the_limits) {
    static const char *const names[] = {"llama3", "mistral", "qwen25", "qwen3",
                                        "qwen35", "schema",  "smollm2"};
    json_t *tool = json_pack("{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s}}}}}", "type", "function",
                             "function", "name", "f", "description", "Does it.", "parameters",
                             "type", "object", "properties", "text", "type", "string");
    json_t *variables = json_pack(
        "{s:o, s:[O,O], s:b, s:s, s:s}", "messages", make_conversation(1000, 2000), "tools", tool,
        tool, "add_generation_prompt", 1, "bos_token", "<s>", "eos_token", "</s>");
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[64];
        size_t size;
        uint64_t used = 0;
        struct err err = {0};
        snprintf(path, sizeof path, "tests/data/templates/%s.jinja", names[i]);
        char *source = test_read_file(path, &size);
        struct jinja_options options = {.used_units = &used};
        if (source && render((struct str){source, size}, variables, options, &err))
            test_fail(__FILE__, __LINE__, "%s: %s", names[i], err.text);
        if (used > BUDGET / 10)
            test_fail(__FILE__, __LINE__, "%s takes %llu units, expected at most %d", names[i],
                      (unsigned long long)used, BUDGET / 10);
        free(source);
    }
    json_decref(variables);
    json_decref(tool);
}

/* ---- compiling ---- */

/* Seconds of processor time to compile this many bytes of a piece over and over. */
static double compile_seconds(const char *piece, size_t size) {
    size_t n = strlen(piece);
    char *source = malloc(size);
    for (size_t at = 0; source && at < size; at++)
        source[at] = piece[at % n];
    struct jinja *jinja;
    struct err err = {0};
    double start = processor_seconds();
    jinja_compile(&jinja, (struct str){source, size}, &err);
    double seconds = processor_seconds() - start;
    jinja_close(jinja);
    free(source);
    return seconds;
}

/* Sources as long as they may be, of pieces that make much of little, beside those of a sixteenth:
 * a machine's speed does not matter, its caches may. */
TEST(jinja_compiling_is_linear) {
    static const char *const pieces[] = {
        "{% raw %}{%", "{%   ",  "{{",     "{#",          "\n   {%-", "{{ 1 }}",   "{{ 'a' 'b' }}",
        "{% if a %}",  "{{ a.",  "0_1.1e", "{{ 00001 }}", "\t \r\n",  "{{ [1,1,",  "{% set a=b %}",
        "{%endif%}",   "\\\"{{", "(((((",  "{{a}}",       "{{ 'x",    "{% raw %}", "{% endraw %}{%",
    };
    const size_t most = test_is_slow() ? 1 << 20 : 4 << 20;
    for (size_t i = 0; i < COUNT(pieces); i++) {
        double small = compile_seconds(pieces[i], most / 16);
        double large = compile_seconds(pieces[i], most);
        if (large > 16 * 5 * small && large > 0.05)
            test_fail(__FILE__, __LINE__, "%zu bytes of %s take %.0f ms, a sixteenth %.2f ms", most,
                      pieces[i], 1e3 * large, 1e3 * small);
    }
}
