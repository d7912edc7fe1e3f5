/* test_tool_calls.c - tool calls in what a model says, cut in every way; and the other parts of
 * the server that need no engine. */
#include "serve/fields.h"
#include "serve/replay.h"
#include "serve/tool_calls.h"
#include "test.h"

/* ---- tool calls --------------------------------------------------------------------------- */

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": "
    "\"integer\"}, \"exact\": {\"type\": \"boolean\"}, \"where\": {\"type\": [\"string\", "
    "\"null\"]}, \"list\": {\"type\": \"array\"}, \"any\": {}}}}}]";

/* What comes out, as one text: calls as [name arguments]. */
static void note(void *user, const struct tool_event *event) {
    struct buffer *all = user;
    if (event->name) {
        buffer_puts(all, "[");
        buffer_puts(all, event->name);
        buffer_puts(all, " ");
        buffer_puts(all, event->arguments);
        buffer_puts(all, "]");
    } else {
        buffer_add(all, event->text.at, event->text.len);
    }
}

/* clang-format off */
static const struct {
    const char *in, *out;
} cases[] = {
    {"Just text.", "Just text."},
    {"", ""},
    {" \n ", " \n "},
    {"a < b and <tool> and <tool_cal", "a < b and <tool> and <tool_cal"},
    /* Hermes, Qwen3 */
    {"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>", "[weather {\"city\":\"Rome\"}]"},
    {"Let me see.\n<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>", "Let me see.[weather {}]"},
    {"<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"b\", \"arguments\": {\"x\": 1}}</tool_call>\n", "[a {}][b {\"x\":1}]"},
    {"<tool_call>{\"name\": \"a\", \"arguments\": \"{\\\"x\\\": [1]}\"}</tool_call> then", "[a {\"x\":[1]}] then"},
    {"<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": \"</tool_call>\"}}</tool_call>.", "[a {\"x\":\"</tool_call>\"}]."},
    {"<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": \"\\\"}\"}}</tool_call>", "[a {\"x\":\"\\\"}\"}]"},
    {"<tool_call>{\"name\": \"a\", \"parameters\": {}}", "[a {}]"},
    {"<tool_call>{\"name\": \"a\"}</tool_call>", "[a {}]"},
    /* malformed: text, byte for byte */
    {"x \n<tool_call>{\"name\": \"a\", \"arguments\": {}</tool_call> y", "x \n<tool_call>{\"name\": \"a\", \"arguments\": {}</tool_call> y"},
    {"<tool_call>{\"nome\": \"a\"}</tool_call>", "<tool_call>{\"nome\": \"a\"}</tool_call>"},
    {"<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>", "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>"},
    {"<tool_call>{\"name\": \"a\", \"arguments\": 3}</tool_call>", "<tool_call>{\"name\": \"a\", \"arguments\": 3}</tool_call>"},
    {"<tool_call>{\"name\": \"a", "<tool_call>{\"name\": \"a"},
    {"<tool_call>", "<tool_call>"},
    {"<tool_call> hello </tool_call>", "<tool_call> hello </tool_call>"},
    {"<tool_call></tool_call>", "<tool_call></tool_call>"},
    {"<tool_call>{\"x\": \"open</tool_call>\n<tool_call>{\"name\": \"b\", \"arguments\": {}}</tool_call>", "<tool_call>{\"x\": \"open</tool_call>[b {}]"},
    {"</tool_call>", "</tool_call>"},
    {"<tool_call><tool_call>{\"name\": \"b\", \"arguments\": {}}</tool_call>", "<tool_call>[b {}]"},
    /* Qwen3.5 */
    {"<tool_call><function=a><parameter=city>a</parameter><parameter=city>b</parameter></function></tool_call>", "<tool_call><function=a><parameter=city>a</parameter><parameter=city>b</parameter></function></tool_call>"}, /* which of them? */
    {"<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", "[weather {\"city\":\"Rome\",\"days\":3}]"},
    {"<tool_call><function=weather></function></tool_call>", "[weather {}]"},
    {"<tool_call><function=weather><parameter=city>12</parameter><parameter=exact>True</parameter><parameter=where>null</parameter><parameter=list>[1, {\"a\": 2}]</parameter><parameter=any>7</parameter></function></tool_call>",
     "[weather {\"city\":\"12\",\"exact\":true,\"where\":\"null\",\"list\":[1,{\"a\":2}],\"any\":7}]"},
    {"<tool_call><function=weather><parameter=days>many</parameter><parameter=other>a b</parameter></function></tool_call>", "[weather {\"days\":\"many\",\"other\":\"a b\"}]"},
    {"<tool_call><function=f><parameter=code>\nif a < b:\n    print(\"</tool_call>\")\n\n</parameter></function></tool_call>", "[f {\"code\":\"if a < b:\\n    print(\\\"</tool_call>\\\")\\n\"}]"},
    {"<tool_call><function=f><parameter=x>a</parameter> b</parameter></function></tool_call>", "[f {\"x\":\"a</parameter> b\"}]"},
    {"<tool_call><function=f><parameter=x>1</parameter></tool_call>", "<tool_call><function=f><parameter=x>1</parameter></tool_call>"},
    {"<tool_call><function=f</function></tool_call>", "<tool_call><function=f</function></tool_call>"},
    {"<tool_call><function=></function></tool_call>", "<tool_call><function=></function></tool_call>"},
    {"<tool_call><function=f>text</function></tool_call>", "<tool_call><function=f>text</function></tool_call>"},
    {"<tool_call><function=f><parameter=x>1</parameter></function>", "[f {\"x\":1}]"},
    /* Llama 3.x */
    {"{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}", "[weather {\"city\":\"Rome\"}]"},
    {"\n{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {}}\n", "[weather {}]"},
    {"<|python_tag|>{\"name\": \"weather\", \"parameters\": {}}", "[weather {}]"},
    {"{\"name\": \"weather\", \"parameters\": {}}; {\"name\": \"weather\", \"parameters\": {\"days\": 2}}", "[weather {}][weather {\"days\":2}]"},
    {"{\"name\": \"weather\", \"parameters\": {}}; so", "[weather {}]; so"},
    {"{\"name\": \"unknown\", \"parameters\": {}}", "{\"name\": \"unknown\", \"parameters\": {}}"},
    {"{\"answer\": 42}", "{\"answer\": 42}"},
    {"{\"name\": \"weather\", \"parameters\": {\"city\"", "{\"name\": \"weather\", \"parameters\": {\"city\""},
    {"<|python_tag|>print(1)", "<|python_tag|>print(1)"},
    {"See {\"name\": \"weather\", \"parameters\": {}}", "See {\"name\": \"weather\", \"parameters\": {}}"},
    {"{", "{"},
    /* Qwen2.5-Coder */
    {"```json\n{\n  \"name\": \"weather\",\n  \"arguments\": {\n    \"city\": \"Rome\"\n  }\n}\n```", "[weather {\"city\":\"Rome\"}]"},
    {"```json\n{\"name\": \"weather\", \"arguments\": {}}\n{\"name\": \"weather\", \"arguments\": {\"days\": 2}}\n```\n", "[weather {}][weather {\"days\":2}]"},
    {"\n```\n{\"name\": \"weather\", \"arguments\": {}}\n```\n```json\n{\"name\": \"weather\", \"arguments\": {\"days\": 2}}```", "[weather {}][weather {\"days\":2}]"},
    {"```json\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a ``` b }\"}}\n```", "[weather {\"city\":\"a ``` b }\"}]"},
    {"```json\n{\"name\": \"weather\", \"arguments\": {}}\n```\nThen it rains.", "[weather {}]\nThen it rains."},
    {"```json\n{\"name\": \"weather\", \"arguments\": {}}\n``", "[weather {}]"},
    {"```json\n{\"name\": \"weather\", \"arguments\": {}}", "[weather {}]"},
    {"```json\n{\"name\": \"unknown\", \"arguments\": {}}\n```", "```json\n{\"name\": \"unknown\", \"arguments\": {}}\n```"},
    {"```json\n{\"name\": \"weather\", \"arguments\": {}}\n{\"x\": 1}\n```", "```json\n{\"name\": \"weather\", \"arguments\": {}}\n{\"x\": 1}\n```"},
    {"```json\n{\"name\": \"weather\", \"arguments\": {}} // so\n```", "```json\n{\"name\": \"weather\", \"arguments\": {}} // so\n```"},
    {"```json\n{\"name\": \"weather\", \"argum", "```json\n{\"name\": \"weather\", \"argum"},
    {"See:\n```json\n{\"name\": \"weather\", \"arguments\": {}}\n```", "See:\n```json\n{\"name\": \"weather\", \"arguments\": {}}\n```"},
    {"```python\nprint({\"name\": \"weather\"})\n```", "```python\nprint({\"name\": \"weather\"})\n```"},
    {"```json\n```", "```json\n```"},
    {"```jso", "```jso"},
    {"`weather`", "`weather`"},
    {"{{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}}", "[weather {\"city\":\"Rome\"}]"},
    {"<tool_call>\n{{\"name\": \"weather\", \"arguments\": {}}}\n</tool_call>", "[weather {}]"},
    {"```json\n{{\"name\": \"weather\", \"arguments\": {}}}\n```", "[weather {}]"},
    {"{{\"name\": \"weather\", \"arguments\": {}} }", "{{\"name\": \"weather\", \"arguments\": {}} }"},
    {"{{\"name\": \"unknown\", \"arguments\": {}}}", "{{\"name\": \"unknown\", \"arguments\": {}}}"},
    {"{{{\"name\": \"weather\", \"arguments\": {}}}}", "{{{\"name\": \"weather\", \"arguments\": {}}}}"},
    {"{{ user }}", "{{ user }}"},
    {"{}", "{}"},
};
/* clang-format on */

static void parse(const json_t *tools, struct str text, size_t first, size_t step,
                  struct buffer *out) {
    struct tool_parser *p = tool_parser_open(tools, false, note, out);
    size_t at = first < text.len ? first : text.len;
    out->len = 0;
    tool_parser_push(p, (struct str){text.at, at});
    while (at < text.len) {
        size_t n = text.len - at < step ? text.len - at : step;
        tool_parser_push(p, (struct str){text.at + at, n});
        at += n;
    }
    tool_parser_end(p);
    EXPECT(!tool_parser_has_failed(p));
    tool_parser_close(p);
}

static void expect_out(struct buffer *out, const char *expected, size_t which) {
    buffer_add(out, "", 1);
    if (strcmp(out->at, expected) != 0)
        test_fail(__FILE__, __LINE__, "case %zu gives '%s', expected '%s'", which, out->at,
                  expected);
}

TEST(serve_tool_calls_are_found_however_the_text_is_cut) {
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct buffer out = {0};
    EXPECT(tools != NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct str text = str_of(cases[i].in);
        for (size_t first = 0; first <= text.len; first++) { /* every cut in two */
            parse(tools, text, first, text.len + 1, &out);
            expect_out(&out, cases[i].out, i);
        }
        parse(tools, text, 1, 1, &out); /* byte by byte */
        expect_out(&out, cases[i].out, i);
    }
    buffer_free(&out);
    json_decref(tools);
}

/* Arguments of this many levels, as JSON, as a string in JSON and as XML. */
static void make_deep(struct buffer *text, int form, int levels) {
    static const char *const forms[][2] = {
        {"<tool_call>{\"name\": \"weather\", \"arguments\": {\"list\": ", "}}</tool_call>"},
        {"<tool_call>{\"name\": \"weather\", \"arguments\": \"{\\\"list\\\": ", "}\"}</tool_call>"},
        {"<tool_call><function=weather><parameter=list>", "</parameter></function></tool_call>"},
    };
    text->len = 0;
    buffer_puts(text, forms[form][0]);
    for (int i = 1; i < levels; i++)
        buffer_puts(text, "[");
    for (int i = 1; i < levels; i++)
        buffer_puts(text, "]");
    buffer_puts(text, forms[form][1]);
}

TEST(serve_tool_calls_that_are_too_deep_are_text) {
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct buffer text = {0}, out = {0};
    for (int form = 0; form < 3; form++)
        for (int levels = TOOL_MAX_LEVELS; levels <= 2060;
             levels = levels == 512 ? 513 : levels + 509) {
            make_deep(&text, form, levels);
            parse(tools, buffer_str(&text), 7, 100, &out);
            bool is_call = str_starts(buffer_str(&out), "[weather {\"list\":[");
            /* What jansson cannot read is a string. */
            bool is_string = str_starts(buffer_str(&out), "[weather {\"list\":\"[");
            EXPECT(is_call == (levels <= TOOL_MAX_LEVELS));
            EXPECT(is_call || is_string || str_equal(buffer_str(&out), buffer_str(&text)));
        }
    buffer_free(&text);
    buffer_free(&out);
    json_decref(tools);
}

/* Pieces of calls in any order: nothing may crash, and the cut changes nothing. */
TEST(serve_tool_calls_of_random_pieces_do_not_depend_on_the_cut) {
    static const char *const pieces[] = {"<tool_call>",
                                         "</tool_call>",
                                         "<function=weather>",
                                         "</function>",
                                         "<parameter=city>",
                                         "</parameter>",
                                         "{\"name\": \"weather\", \"parameters\": {}}",
                                         "{",
                                         "}",
                                         "\"",
                                         "\\",
                                         " ",
                                         "\n",
                                         "<|python_tag|>",
                                         ";",
                                         "text",
                                         "<",
                                         "{\"name\"",
                                         ":",
                                         "\"weather\"",
                                         "<function=",
                                         "<parameter=",
                                         "```json\n",
                                         "```",
                                         "```\n",
                                         "{{\"name\": \"weather\"}}"};
    json_t *tools = json_loads(tools_text, 0, NULL);
    struct buffer text = {0}, whole = {0}, cut = {0};
    uint64_t x = 88172645463325252ull;
    for (int round = 0; round < 3000; round++) {
        text.len = 0;
        for (int i = 0; i < 12; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            buffer_puts(&text, pieces[x % (sizeof pieces / sizeof *pieces)]);
        }
        parse(tools, buffer_str(&text), text.len, 1, &whole);
        parse(tools, buffer_str(&text), 1, 1 + (size_t)(x >> 33) % 7, &cut);
        if (!str_equal(buffer_str(&whole), buffer_str(&cut)))
            test_fail(__FILE__, __LINE__, "'%.*s' gives '%.*s' and '%.*s'", (int)text.len, text.at,
                      (int)whole.len, whole.at, (int)cut.len, cut.at);
    }
    buffer_free(&text);
    buffer_free(&whole);
    buffer_free(&cut);
    json_decref(tools);
}

/* ---- fields ------------------------------------------------------------------------------- */

static void expect_wrong(const char *json, const char *expected) {
    struct fields f = {.object = json_loads(json, 0, NULL), .max_tree_bytes = SIZE_MAX};
    float temperature = 0.5f;
    int64_t n = 7;
    bool flag = false;
    const char *text = NULL;
    const json_t *list = NULL;
    fields_float(&f, "temperature", 0, 2, &temperature);
    fields_int(&f, "n", 1, 10, &n);
    fields_bool(&f, "stream", &flag);
    fields_string(&f, "model", &text);
    fields_array(&f, "messages", &list);
    EXPECT_STR(f.err.text, expected);
    json_decref((json_t *)f.object);
}

TEST(serve_fields_name_what_is_wrong) {
    expect_wrong("{}", "");
    expect_wrong("{\"temperature\": null, \"other\": [1]}", "");
    expect_wrong("{\"temperature\": 1, \"n\": 2.0, \"stream\": true, \"model\": \"m\"}", "");
    expect_wrong("{\"temperature\": \"hot\"}",
                 "temperature is a string, expected a number from 0 to 2");
    expect_wrong("{\"temperature\": 2.5}", "temperature is 2.5, expected 0 to 2");
    expect_wrong("{\"n\": 2.5}", "n is a fraction, expected a whole number");
    expect_wrong("{\"n\": 0}", "n is 0, expected 1 to 10");
    expect_wrong("{\"n\": 1e300}", "n is a fraction, expected a whole number");
    expect_wrong("{\"stream\": 1}", "stream is a number, expected true or false");
    expect_wrong("{\"model\": {}}", "model is an object, expected a string");
    expect_wrong("{\"messages\": \"hi\", \"n\": 3}", "messages is a string, expected an array");
    expect_wrong("{\"n\": [], \"stream\": 3}", "n is an array, expected a whole number");
}

/* ---- replay ------------------------------------------------------------------------------- */

TEST(serve_replay_keeps_the_newest_and_finds_by_what_was_said) {
    struct store *r = store_open(40000);
    struct hash128 start = replay_start(NULL), name;
    int32_t tokens[1000] = {1, 2, 3};
    struct replayed found, some = {tokens, 3, json_pack("{s:b}", "enable_thinking", 0)};
    const struct replayed many = {tokens, 1000, NULL};
    json_t *a = json_pack("{s:s, s:s, s:s}", "role", "assistant", "content", "hi", "refusal", "x");
    json_t *b = json_pack("{s:s, s:s}", "content", "hi", "role", "assistant");
    json_t *c = json_pack("{s:s, s:s}", "role", "assistant", "content", "hi!");
    EXPECT(hash128_equal(replay_add(start, a), replay_add(start, b)));
    EXPECT(!hash128_equal(replay_add(start, a), replay_add(start, c)));
    replay_put(r, replay_add(start, a), &some);
    EXPECT(replay_get(r, replay_add(start, b), &found));
    EXPECT(found.n == 3 && found.tokens[2] == 3 && json_equal(found.variables, some.variables));
    replayed_free(&found);
    EXPECT(!replay_get(r, replay_add(start, c), &found));
    name = start;
    for (int i = 0; i < 50; i++) {
        name = replay_add(name, c);
        replay_put(r, name, &many);
        replay_put(r, name, &many);
    }
    EXPECT(replay_get(r, name, &found) && found.n == 1000 && !found.variables);
    replayed_free(&found);
    EXPECT(!replay_get(r, replay_add(start, a), &found)); /* the oldest went */
    EXPECT(store_drop(r, name) && !store_drop(r, name) && !replay_get(r, name, &found));
    char *much = calloc(1, 50000);
    store_put(r, start, much, 50000); /* more than there may be: the others stay */
    free(much);
    EXPECT(!replay_get(r, start, &found));
    name = start;
    for (int i = 0; i < 49; i++)
        name = replay_add(name, c);
    EXPECT(replay_get(r, name, &found) && found.n == 1000);
    replayed_free(&found);
    json_decref(some.variables);
    store_close(r);
    json_decref(a);
    json_decref(b);
    json_decref(c);
}
