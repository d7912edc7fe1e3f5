/* test_grammar.c - grammars: GBNF, masks against a matcher that tries every token, hostile input.
 */
#include <time.h>

#include "file/gguf.h"
#include "grammar/grammar.h"
#include "grammar/texts.h"
#include "test.h"
#include "text/tokenizer.h"

/* ---- helpers ---- */

static uint64_t random_state;

static uint32_t random_below(uint32_t n) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % n);
}

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { N_BYTES = 256, N_SMALL = 400, END_TOKEN = N_SMALL };

/* Every byte, and some longer texts; the last token ends an answer. */
static struct token_texts *small_texts(void) {
    static const char *const words[] = {
        "{\"", "\":",   "\",\"", "\"}",  "\"},",     "[[",       "]]",   "}}",
        "],",  "true",  "false", "null", "12",       "345",      ".5",   "e+",
        "\\n", "\\u00", "ab",    "abc",  "name",     "value",    "  ",   "\n ",
        ", ",  ": ",    "\": ",  "\"\"", "\xc3\xa9", "\xe2\x82", "aaaa", "\xf0\x9f\x98"};
    static char bytes[N_BYTES];
    struct str texts[N_SMALL + 1] = {{0}};
    struct token_texts *t;
    struct err err = {0};
    int32_t ends[] = {END_TOKEN};
    for (int i = 0; i < N_BYTES; i++) {
        bytes[i] = (char)i;
        texts[i] = (struct str){&bytes[i], 1};
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        texts[N_BYTES + i] = str_of(words[i]);
    EXPECT_INT(token_texts_make(&t, texts, N_SMALL + 1, ends, 1, &err), SLUICE_OK);
    return t;
}

static struct grammar *gbnf(const char *text) {
    struct grammar *g = NULL;
    struct err err = {0};
    if (grammar_of_gbnf(&g, text, strlen(text), &err))
        test_fail(__FILE__, __LINE__, "%s: %s", text, err.text);
    return g;
}

static struct matcher *matcher_of(const struct grammar *g, const struct token_texts *t) {
    struct matcher *m = NULL;
    struct err err = {0};
    EXPECT_INT(matcher_open(&m, g, t, NULL, &err), SLUICE_OK);
    return m;
}

static bool allows(struct matcher *m, int32_t token) {
    return matcher_mask(m)[token / 32] >> token % 32 & 1;
}

/* Byte by byte, each of them also looked up in the mask. */
static bool takes(const struct grammar *g, const struct token_texts *t, const char *text,
                  size_t length) {
    struct matcher *m = matcher_of(g, t);
    bool is_ok = true;
    for (size_t i = 0; i < length && is_ok; i++) {
        int32_t token = (uint8_t)text[i];
        bool is_allowed = allows(m, token);
        is_ok = matcher_accept(m, token);
        EXPECT_INT(is_ok, is_allowed);
    }
    is_ok = is_ok && matcher_may_end(m);
    matcher_close(m);
    return is_ok;
}

/* Where the mask is the same after some tokens, it is after each of them. */
TEST(grammar_masks_that_hold) {
    static const struct {
        const char *grammar, *text;
        bool holds;
    } cases[] = {
        {"root ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]* \"\\\"\"", "", false},
        {"root ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]* \"\\\"\"", "\"", true},
        {"root ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]* \"\\\"\"", "\"ab", true},
        {"root ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]* \"\\\"\"", "\"ab\"", false},
        {"root ::= \"\\\"\" [^\"\\\\\\x00-\\x1f]{0,9} \"\\\"\"", "\"ab", false},
        {"root ::= [a-z]* \"!\"", "ab", false},
        {"root ::= [^\\n]* \"\\n\"", "", true},
        {"root ::= [^\\n]*", "", false}, /* it may end */
    };
    struct token_texts *t = small_texts();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grammar *g = gbnf(cases[i].grammar);
        struct matcher *m = matcher_of(g, t);
        for (const char *at = cases[i].text; *at; at++)
            EXPECT(matcher_accept(m, (uint8_t)*at));
        const uint32_t *keeps = matcher_keeps(m);
        EXPECT_INT(keeps != NULL, cases[i].holds);
        uint32_t before[(N_SMALL + 32) / 32];
        memcpy(before, matcher_mask(m), sizeof before);
        for (int32_t token = 0; keeps && token < N_SMALL; token++)
            if (keeps[token / 32] >> token % 32 & 1) {
                EXPECT(matcher_accept(m, token));
                EXPECT(memcmp(before, matcher_mask(m), t->n_words * sizeof *before) == 0);
            }
        matcher_close(m);
        grammar_close(g);
    }
    token_texts_close(t);
}

/* Inside of a property's string, and in no other place of the object. */
TEST(grammar_masks_hold_in_strings_of_schemas) {
    const char *text = "{\"name\":\"abc\\n\",\"n\":1}";
    json_t *schema = json_loads("{\"type\": \"object\", \"properties\": {\"name\": {\"type\": "
                                "\"string\"}, \"n\": {\"type\": \"integer\"}}, \"required\": "
                                "[\"name\", \"n\"], \"additionalProperties\": false}",
                                0, NULL);
    struct token_texts *t = small_texts();
    struct grammar *g = NULL;
    struct err err = {0};
    EXPECT_INT(grammar_of_schema(&g, schema, &err), SLUICE_OK);
    struct matcher *m = matcher_of(g, t);
    for (size_t i = 0; i < strlen(text); i++) {
        bool is_inside = i >= 9 && i <= 14 && i != 13; /* before its byte; 13: after a backslash */
        EXPECT_INT(matcher_keeps(m) != NULL, is_inside);
        EXPECT(matcher_accept(m, (uint8_t)text[i]));
    }
    matcher_close(m);
    grammar_close(g);
    json_decref(schema);
    token_texts_close(t);
}

/* ---- GBNF ---- */

TEST(grammar_gbnf_decides) {
    static const struct {
        const char *grammar, *yes[6], *no[6];
    } cases[] = {
        {"root ::= \"abc\"", {"abc"}, {"", "ab", "abcd", "abd"}},
        {"root ::= \"a\" | \"ab\" | \"b\"", {"a", "ab", "b"}, {"", "ba", "abb"}},
        {"root ::= [a-c]+ [^a-c]", {"ax", "abc1", "a\xc3\xa9"}, {"a", "x", "axx", "a\xc3"}},
        {"root ::= .", {"x", "\n", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}, {"", "xx", "\xe2\x82"}},
        {"root ::= [\\u00e0-\\u20ac]",
         {"\xc3\xa0", "\xe2\x82\xac", "\xe0\xa4\x80"},
         {"a", "\xc3\x9f", "\xe2\x82\xad"}},
        {"root ::= (\"a\" \"b\"?)*", {"", "ab", "aab", "aaaab"}, {"b", "abb"}},
        {"root ::= \"a\"{2,3} \"b\"{2} \"c\"{1,}",
         {"aabbc", "aaabbccc"},
         {"abbc", "aaaabbc", "aabc", "aabb"}},
        {"root ::= \"a\"{0,20}", {"", "aaaaaaaaaaaaaaaaaaaa"}, {"aaaaaaaaaaaaaaaaaaaaa"}},
        {"root ::= (\"a\"?){20} \"b\"",
         {"b", "ab", "aaaaaaaaaaaaaaaaaaaab"},
         {"aaaaaaaaaaaaaaaaaaaaab", "a"}},
        {"root ::= (\"a\" | \"b\"){12}", {"abababababab"}, {"ababababababa", "ab"}},
        {"root ::= (\"a\" | \"aa\"){2,9} \"b\"",
         {"aab", "aaaaaaaaaaaab", "aaaaaaaaaaaaaaaaaab"},
         {"ab", "aaaaaaaaaaaaaaaaaaab", "aa"}},
        {"root ::= s{9,10} \"b\"\ns ::= \"a\" | \"a\" s",
         {"aaaaaaaaab", "aaaaaaaaaaaaaaab"},
         {"aaaaaaaab", "b"}},
        {"root ::= \"(\" root \")\" | \"x\"", {"x", "((x))"}, {"", "((x)", "(x))"}},
        {"root ::= a root | \"\"\na ::= [0-9]+ \",\"", {"", "1,22,"}, {"1", ","}},
        {"# a comment\nroot ::=\n  \"a\" # here\n  | \"b\"\n\nother ::= \"c\"", {"a", "b"}, {"c"}},
        {"root ::= (\n\"a\"\n|\"b\"\n)+ other\nother ::= \"\\\"\\x41\\n\"", {"ab\"A\n"}, {"ab"}},
        {"root ::= [-a] [\\]\\^] []", {NULL}, {"-]"}},
        {"root ::= \"a\" s \"b\" | \"a\" s \"c\"\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"x\"",
         {"axb", "aaaxbcb"},
         {"aaxb", "axbb"}},
    };
    struct token_texts *t = small_texts();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grammar *g = NULL;
        struct err err = {0};
        int status = grammar_of_gbnf(&g, cases[i].grammar, strlen(cases[i].grammar), &err);
        if (!cases[i].yes[0]) {
            EXPECT_INT(status, SLUICE_ERR_UNSUPPORTED);
            continue;
        }
        if (status) {
            test_fail(__FILE__, __LINE__, "%s: %s", cases[i].grammar, err.text);
            continue;
        }
        for (int k = 0; k < 6 && cases[i].yes[k]; k++)
            if (!takes(g, t, cases[i].yes[k], strlen(cases[i].yes[k])))
                test_fail(__FILE__, __LINE__, "%s refuses \"%s\"", cases[i].grammar,
                          cases[i].yes[k]);
        for (int k = 0; k < 6 && cases[i].no[k]; k++)
            if (takes(g, t, cases[i].no[k], strlen(cases[i].no[k])))
                test_fail(__FILE__, __LINE__, "%s takes \"%s\"", cases[i].grammar, cases[i].no[k]);
        grammar_close(g);
    }
    token_texts_close(t);
}

/* Random ranges of characters, and those next to their ends. */
TEST(grammar_classes_have_their_characters) {
    enum { N_RANGES = 12 };
    struct token_texts *t = small_texts();
    random_state = 21;
    for (int i = 0; i < 60; i++) {
        uint32_t ends[2 * N_RANGES];
        char text[2 * N_RANGES * 12 + 32];
        size_t n = (size_t)sprintf(text, "root ::= [");
        for (int k = 0; k < N_RANGES; k++) {
            static const uint32_t most[] = {0x80, 0x900, 0x3000, 0x11000, 0x110000 - 300};
            uint32_t first = random_below(most[random_below(5)]);
            first = first >= 0xD000 && first < 0xE000 ? 0xE000 : first;
            ends[2 * k] = first;
            ends[2 * k + 1] = first + random_below(first < 0xC000 && k % 3 ? 4000 : 300);
            n += (size_t)sprintf(text + n, "\\U%08X-\\U%08X", first, ends[2 * k + 1]);
        }
        sprintf(text + n, "]");
        struct grammar *g = gbnf(text);
        for (int k = 0; k < 6 * N_RANGES && g; k++) {
            uint32_t c = ends[k / 3] + (uint32_t)(k % 3) - 1;
            char bytes[4];
            bool is_in = false;
            for (int r = 0; r < N_RANGES; r++)
                is_in |= c >= ends[2 * r] && c <= ends[2 * r + 1];
            if (c < 0x110000 && (c < 0xD800 || c > 0xDFFF) &&
                takes(g, t, bytes, utf8_put(c, bytes)) != is_in)
                test_fail(__FILE__, __LINE__, "%s: U+%X, expected %d", text, c, is_in);
        }
        grammar_close(g);
    }
    token_texts_close(t);
}

TEST(grammar_gbnf_refuses_by_one_line) {
    static const struct {
        const char *grammar, *says;
    } cases[] = {
        {"", "no rule root"},
        {"a ::= \"x\"", "no rule root"},
        {"root ::= b", "rule b is used in line 1 but not defined"},
        {"root ::= \"a\nx", "the end, expected a character"},
        {"root ::= \"a\" )", "')', expected a rule"},
        {"root ::= (\"a\"", "the end, expected )"},
        {"root ::= \"\\q\"", "'q', expected an escape"},
        {"root ::= \"\\ud800\"", "surrogate"},
        {"root ::= [z-a]", "in order"},
        {"root ::= \"a\"{3,2}", "in order"},
        {"root ::= \"a\"{99999999}", "16777216"},
        {"root ::= \"a\"{x}", "a number of repetitions"},
        {"root ::= root \"a\" | \"b\"", "left recursion"},
        {"root ::= a\na ::= b? c\nb ::= \"x\"\nc ::= a \"y\" | \"z\"", "left recursion"},
        {"root ::= \"a\" root", "never ends"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2: rule root is defined a second time"},
        {"root ::= \"a\xff\"", "not UTF-8"},
        {"root ::= <[1]>", "'<', expected a rule"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grammar *g = NULL;
        struct err err = {0};
        int status = grammar_of_gbnf(&g, cases[i].grammar, strlen(cases[i].grammar), &err);
        if (!status || !strstr(err.text, cases[i].says))
            test_fail(__FILE__, __LINE__, "%s: \"%s\", expected \"%s\"", cases[i].grammar, err.text,
                      cases[i].says);
        EXPECT(g == NULL);
    }
}

/* What must not take long, nor much memory: refused, or quick. */
TEST(grammar_gbnf_is_bounded) {
    char *text = malloc(2 << 20);
    struct token_texts *t = small_texts();
    double started = processor_seconds();
    for (int kind = 0; kind < 6; kind++) {
        size_t n = 0;
        struct grammar *g = NULL;
        struct err err = {0};
        n += (size_t)sprintf(text + n, "root ::= ");
        if (kind == 0) /* groups in groups */
            for (int i = 0; i < 100000; i++)
                text[n++] = '(';
        if (kind == 1) { /* repetitions of repetitions */
            n += (size_t)sprintf(text + n, "\"a\"");
            for (int i = 0; i < 100; i++)
                n += (size_t)sprintf(text + n, "{9}+");
        }
        if (kind == 2) { /* a chain of rules */
            n += (size_t)sprintf(text + n, "r0\n");
            for (int i = 0; i < 16000; i++)
                n += (size_t)sprintf(text + n, "r%d ::= r%d \"b\"\n", i, (i * 7919 + 1) % 16000);
        }
        if (kind == 3) /* many ways to read the same */
            n +=
                (size_t)sprintf(text + n, "s\ns ::= \"a\" s \"b\" | \"a\" s [b] | \"a\" s \"c\"? | "
                                          "(\"a\"? \"a\"?){50} s | \"x\"");
        if (kind == 4) /* empty loops */
            n += (size_t)sprintf(text + n, "((((\"a\"?)*)*)+ ([b]* | ()){3,1000})* \"x\"");
        if (kind == 5) /* a literal and classes without end */
            for (int i = 0; i < 60000; i++)
                n += (size_t)sprintf(text + n, "[^a%c]\"\\\\\"", 'b' + i % 20);
        text[n] = 0;
        if (!grammar_of_gbnf(&g, text, n, &err)) {
            struct matcher *m = matcher_of(g, t);
            for (int i = 0; i < 40; i++) {
                matcher_mask(m);
                matcher_accept(m, 'a');
            }
            matcher_close(m);
        }
        grammar_close(g);
    }
    double seconds = processor_seconds() - started;
    if (seconds > 20)
        test_fail(__FILE__, __LINE__, "%.1f s", seconds);
    token_texts_close(t);
    free(text);
}

/* ---- masks ---- */

static const char json_grammar[] =
    "root ::= object\n"
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)*)? ws \"}\"\n"
    "array ::= \"[\" ws (value (\",\" ws value)*)? ws \"]\"\n"
    "string ::= \"\\\"\" ([^\"\\\\\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" "
    "[0-9a-fA-F]{4}))* "
    "\"\\\"\"\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]*) (\".\" [0-9]+)? ([eE] [-+]? [0-9]+)?\n"
    "ws ::= [ \\n]{0,2}\n";

/* Every token is tried: the mask has those that are accepted. */
static void expect_same_mask(struct matcher *m, const struct grammar *g,
                             const struct token_texts *t, const int32_t *path, size_t n) {
    for (int32_t i = 0; i < t->n_tokens; i++) {
        struct matcher *trial = matcher_of(g, t);
        for (size_t k = 0; k < n; k++)
            EXPECT(matcher_accept(trial, path[k]));
        bool is_accepted = matcher_accept(trial, i);
        if (is_accepted != allows(m, i))
            test_fail(__FILE__, __LINE__, "token %d after %zu others: accepted %d, in the mask %d",
                      i, n, is_accepted, allows(m, i));
        matcher_close(trial);
    }
}

/* A random token of the mask; -1: there is none. */
static int32_t random_allowed(struct matcher *m, const struct token_texts *t) {
    int32_t first = (int32_t)random_below((uint32_t)t->n_tokens);
    for (int32_t i = 0; i < t->n_tokens; i++) {
        int32_t token = (first + i) % t->n_tokens;
        if (allows(m, token))
            return token;
    }
    return -1;
}

TEST(grammar_masks_are_what_is_accepted) {
    static const char *const grammars[] = {
        json_grammar,
        "root ::= \"a\"{3,14} (\"b\" | \"ab\")* .{0,5} \"abc\"?",
        "root ::= item{1,6}\nitem ::= \"[\" item{0,3} \"]\" | [a-c]{2,9} | \"\\\"\" .{0,12} "
        "\"\\\"\"",
        "root ::= (x | y) [bc]\nx ::= p \"c\"?\ny ::= q \"d\"?\np ::= \"a\" | \"(\" p \")\"\n"
        "q ::= \"ab\" | \"[\" q \"]\"",
        "root ::= x x x \"b\"\nx ::= (y | \"b\")*\ny ::= \"a\" y | \"c\" | \"a\"",
        "root ::= s \"b\"\ns ::= \"a\" s s | \"a\" s \"b\"? s | \"ab\" | \"\"",
    };
    struct token_texts *t = small_texts();
    random_state = 5;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        struct grammar *g = gbnf(grammars[i]);
        for (int walk = 0; g && walk < 6; walk++) {
            int32_t path[12];
            struct matcher *m = matcher_of(g, t);
            for (size_t n = 0; n < 12; n++) {
                expect_same_mask(m, g, t, path, n);
                path[n] = random_allowed(m, t);
                if (path[n] < 0 || path[n] == END_TOKEN)
                    break;
                EXPECT(matcher_accept(m, path[n]));
            }
            matcher_close(m);
        }
        grammar_close(g);
    }
    token_texts_close(t);
}

TEST(grammar_says_where_an_answer_may_and_must_end) {
    struct token_texts *t = small_texts();
    struct grammar *g = gbnf("root ::= \"a\" \"b\"?");
    struct matcher *m = matcher_of(g, t);
    EXPECT(!matcher_may_end(m) && !allows(m, END_TOKEN) && !matcher_accept(m, END_TOKEN));
    EXPECT(!matcher_accept(m, 'b') && !matcher_accept(m, -1) && !matcher_accept(m, N_SMALL + 1));
    EXPECT(matcher_accept(m, 'a'));
    EXPECT(matcher_may_end(m) && !matcher_must_end(m) && allows(m, END_TOKEN) && allows(m, 'b'));
    EXPECT(matcher_accept(m, 'b'));
    EXPECT(matcher_must_end(m) && allows(m, END_TOKEN) && !allows(m, 'b'));
    EXPECT(matcher_accept(m, END_TOKEN) && matcher_must_end(m) && !matcher_accept(m, END_TOKEN));
    matcher_close(m);
    grammar_close(g);
    token_texts_close(t);
}

/* ---- ambiguity ---- */

/* The most steps that a mask or a token takes over n times the byte; 0: a fault, put in err. */
static uint64_t max_steps(const struct grammar *g, const struct token_texts *t, const char *text,
                          int times, struct err *err) {
    struct matcher *m = NULL;
    uint64_t most = 0;
    if (matcher_open(&m, g, t, NULL, err))
        return 0;
    for (int i = 0; i < times && !matcher_fault(m, err); i++) {
        matcher_mask(m);
        most = matcher_steps(m) > most ? matcher_steps(m) : most;
        if (!matcher_accept(m, (uint8_t)text[(size_t)i % strlen(text)]))
            break;
        most = matcher_steps(m) > most ? matcher_steps(m) : most;
    }
    most = matcher_fault(m, err) ? 0 : most;
    matcher_close(m);
    return most;
}

/* Each rule is the next one twice, the last may be empty: 2^levels places for the first byte. */
static struct grammar *doubling(int levels, const char *last) {
    static char text[1 << 16];
    size_t n = 0;
    for (int i = 0; i < levels; i++) {
        n += i ? (size_t)sprintf(text + n, "r%d", i) : (size_t)sprintf(text + n, "root");
        n += (size_t)sprintf(text + n, " ::= r%d r%d\n", i + 1, i + 1);
    }
    sprintf(text + n, "r%d ::= %s\n", levels, last);
    return gbnf(text);
}

/* Twice the levels cost a power of it, not 2^levels. */
TEST(grammar_doubling_rules_cost_little) {
    static const char *const lasts[] = {"\"a\"?", "\"a\"*", "\"a\" | \"\"",
                                        "(\"a\" \"b\"? | \"ab\")?"};
    struct token_texts *t = small_texts();
    for (size_t i = 0; i < sizeof lasts / sizeof *lasts; i++) {
        struct err err = {0};
        struct grammar *g = doubling(14, lasts[i]), *h = doubling(28, lasts[i]);
        uint64_t few = max_steps(g, t, "a", 60, &err), more = max_steps(h, t, "a", 60, &err);
        if (few == 0 || more == 0 || few > 20000 || more > 16 * few)
            test_fail(__FILE__, __LINE__, "%s: %llu steps of 14 levels, %llu of 28 %s", lasts[i],
                      (unsigned long long)few, (unsigned long long)more, err.text);
        grammar_close(g);
        grammar_close(h);
    }
    token_texts_close(t);
}

/* What can be read in many ways, and still takes few steps. */
TEST(grammar_ambiguity_costs_little) {
    static const struct {
        const char *grammar, *text;
    } cases[] = {
        {"root ::= (\"a\"?)* \"b\"", "a"},
        {"root ::= ((\"a\"?)*)* \"b\"", "a"},
        {"root ::= (((\"a\"?)*)* | \"a\"){3,1000} \"b\"", "a"},
        {"root ::= \"a\"{1000}{1000}", "a"},
        {"root ::= (\"a\"?){1000}{1000}", "a"},
        {"root ::= (\"a\" | \"aa\"){500,1000} \"b\"", "a"},
        {"root ::= (\"a\"{1,30} \"b\"?){1,30} \"c\"", "a"},
        {"root ::= s s s s s s s s \"b\"\ns ::= \"a\" s | \"a\" | \"\"", "a"},
        {"root ::= s \"b\"\ns ::= \"a\" s s | \"a\" | \"\"", "a"},
        {"root ::= x \"b\"\nx ::= \"a\" y | \"\"\ny ::= \"a\" x x | x x", "a"},
        {"root ::= \"a\" s \"b\" | \"a\" s \"c\"\n"
         "s ::= \"a\" s \"b\" | \"a\" s \"c\" | \"a\" s \"b\"? | \"x\"",
         "a"},
        {"root ::= (\"a\" | \"a\" | [a-b] | .)* \"!\"", "a"},
        {"root ::= ([a-z]+ \" \"?)+ \"!\"", "ab "},
        {"root ::= (([a-z]{0,20} [a-z]{0,20}){0,20} \" \"?){0,20} \"!\"", "ab "},
    };
    struct token_texts *t = small_texts();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        struct grammar *g = gbnf(cases[i].grammar);
        uint64_t steps = g ? max_steps(g, t, cases[i].text, 100, &err) : 0;
        if (steps == 0 || steps > 40000)
            test_fail(__FILE__, __LINE__, "%s: %llu steps %s", cases[i].grammar,
                      (unsigned long long)steps, err.text);
        grammar_close(g);
    }
    token_texts_close(t);
}

/* Thousands of characters that do not touch are read byte by byte, not one by one. */
TEST(grammar_large_classes_cost_little) {
    static char text[3000 * 8];
    struct token_texts *t = small_texts();
    struct err err = {0};
    size_t n = (size_t)sprintf(text, "root ::= [");
    for (int i = 0; i < 3000; i++)
        n += (size_t)sprintf(text + n, "\\u%04x", 0x4E00 + 2 * i);
    sprintf(text + n, "]* \"!\"");
    struct grammar *g = gbnf(text);
    uint64_t steps = max_steps(g, t, "\xe4\xb8\x80", 30, &err);
    if (steps == 0 || steps > 3000)
        test_fail(__FILE__, __LINE__, "%llu steps %s", (unsigned long long)steps, err.text);
    grammar_close(g);
    token_texts_close(t);
}

/* What still takes too many steps ends with one line that names the limit, at the beginning
 * or on the way; other answers go on. */
TEST(grammar_faults_are_named) {
    static const struct {
        const char *grammar, *text, *says;
    } cases[] = {
        {"root ::= s\ns ::= \"a\" s s \"b\"? | \"a\" s \"c\"? s | \"a\"", "a", "steps"},
        {"root ::= s \"!\"\ns ::= \"(\" s [a]? [b]? [c]? [d]? | \"x\"", "(((((((((((((((x",
         "places"},
        {"root ::= \"(\" s\ns ::= \"(\" s \")\" | \"x\"", "(", "deep"},
    };
    struct token_texts *t = small_texts();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        struct grammar *g = gbnf(cases[i].grammar);
        struct matcher *m = matcher_of(g, t);
        int32_t last = 0;
        for (int k = 0; k < 300000 && !matcher_fault(m, &err); k++) {
            bool is_last = k >= 4000 && strchr(cases[i].text, 'x');
            last = is_last ? 'x' : (uint8_t)cases[i].text[0];
            matcher_accept(m, last);
            if (k < 4000 || is_last)
                matcher_mask(m);
        }
        EXPECT_INT(err.code, SLUICE_ERR_UNSUPPORTED);
        if (!strstr(err.text, cases[i].says))
            test_fail(__FILE__, __LINE__, "%s: \"%s\", expected \"%s\"", cases[i].grammar, err.text,
                      cases[i].says);
        for (uint32_t k = 0; k < t->n_words; k++)
            EXPECT_INT(matcher_mask(m)[k], 0);
        EXPECT(!matcher_accept(m, last) && !matcher_may_end(m) && !matcher_must_end(m));
        matcher_close(m);
        m = matcher_of(g, t);
        EXPECT(!matcher_fault(m, &err) && allows(m, (uint8_t)cases[i].text[0]));
        matcher_close(m);
        grammar_close(g);
    }
    token_texts_close(t);
}

/* All answers to a request together take what one may take, each token of theirs its share. */
TEST(grammar_answers_share_a_budget) {
    enum { ANSWERS = 8, TOKENS = 150, FIRST = 4 << 20, A_TOKEN = 1 << 16 };
    struct token_texts *t = small_texts();
    struct grammar *g = gbnf("root ::= s\ns ::= \"a\" s s \"b\"? | \"a\" s \"c\"? s | \"a\"");
    struct matcher *m[ANSWERS];
    struct matcher_budget budget;
    uint64_t steps = 0;
    struct err err = {0};
    matcher_budget_begin(&budget, ANSWERS);
    for (int i = 0; i < ANSWERS; i++)
        EXPECT_INT(matcher_open(&m[i], g, t, &budget, &err), SLUICE_OK);
    for (int k = 0; k < TOKENS; k++)
        for (int i = 0; i < ANSWERS; i++) {
            steps += matcher_accept(m[i], 'a') ? matcher_steps(m[i]) : 0;
            matcher_mask(m[i]);
            steps += matcher_fault(m[i], NULL) ? 0 : matcher_steps(m[i]);
        }
    EXPECT(steps > FIRST / 4 && steps <= FIRST + TOKENS * A_TOKEN);
    for (int i = 0; i < ANSWERS; i++) {
        EXPECT_INT(matcher_fault(m[i], &err), SLUICE_ERR_UNSUPPORTED);
        matcher_close(m[i]);
    }
    EXPECT(strstr(err.text, "with a token of each"));
    grammar_close(g);
    token_texts_close(t);
}

/* A rule that may end at each byte, before another one: walks from exits below exits. Once more was
 * found so than there are tokens, and written past the end of the list. */
TEST(grammar_tokens_may_end_several_rules) {
    enum { N = 60 };
    char a[N];
    struct str texts[N + 2];
    struct token_texts *t;
    struct err err = {0};
    memset(a, 'a', N);
    for (size_t i = 0; i < N; i++)
        texts[i] = (struct str){a, i + 1};
    texts[N] = STR("!");
    texts[N + 1] = STR("aa!");
    EXPECT_INT(token_texts_make(&t, texts, N + 2, NULL, 0, &err), SLUICE_OK);
    struct grammar *g =
        gbnf("root ::= x x x \"!\"\nx ::= (y | \"b\")*\ny ::= \"a\" y | \"c\" | \"a\"\n");
    struct matcher *m = matcher_of(g, t);
    for (int32_t i = 0; i < N + 2; i++)
        EXPECT(allows(m, i));
    EXPECT(matcher_accept(m, N - 1) && allows(m, N + 1) && matcher_accept(m, N + 1));
    EXPECT(matcher_must_end(m));
    matcher_close(m);
    grammar_close(g);
    token_texts_close(t);
}

static bool accepts_many(struct matcher *m, int32_t token, int n) {
    for (int i = 0; i < n; i++)
        if (!matcher_accept(m, token))
            return false;
    return true;
}

/* Nodes that nothing leads to, one more with each letter, are forgotten; needed ones are not.
 */
TEST(grammar_long_answers_forget_what_they_have_left) {
    enum { DEPTH = 3000, LETTERS = 20000 };
    struct token_texts *t = small_texts();
    struct grammar *g = gbnf("root ::= \"(\" root \")\" | \"[\" root \"]\" | [a-z]{9,20000}");
    struct matcher *m = matcher_of(g, t);
    for (int i = 0; i < DEPTH; i++)
        EXPECT(matcher_accept(m, i % 3 ? '(' : '['));
    EXPECT(accepts_many(m, 'a', LETTERS - 1));
    EXPECT(allows(m, 'b') && allows(m, DEPTH % 3 == 1 ? ']' : ')'));
    EXPECT(matcher_accept(m, 'b') && !allows(m, 'b') && !matcher_accept(m, 'b'));
    for (int i = DEPTH; i-- > 0;) {
        EXPECT(!matcher_may_end(m) && !matcher_accept(m, i % 3 ? ']' : ')'));
        EXPECT(matcher_accept(m, i % 3 ? ')' : ']'));
    }
    EXPECT(matcher_must_end(m));
    matcher_close(m);
    grammar_close(g);
    token_texts_close(t);
}

/* ---- random grammars ---- */

/* Expressions over a and b, of rules 0 to N_RULES - 1, and the texts that they match. */
enum { N_RULES = 4, MAX_PARTS = 80, MAX_TEXT = 7 };

enum random_kind { PART_EMPTY, PART_BYTES, PART_PAIR, PART_EITHER, PART_REPEAT, PART_RULE };

struct random_part {
    enum random_kind kind;
    const char *bytes;
    int x, y; /* parts, or the rule */
    uint32_t min, max;
};

struct random_grammar {
    struct random_part parts[MAX_PARTS];
    int n, rules[N_RULES];
    char text[1 << 13];
    size_t length;
    const char *word; /* that is looked for, and bits of where each rule ends, by where it begins */
    uint32_t ends[N_RULES][MAX_TEXT + 2];
};

static int random_part(struct random_grammar *r, int depth) {
    static const char *const words[] = {"a", "b", "ab", "aa", "ba"};
    static const uint32_t counts[][2] = {{0, 1},  {0, UINT32_MAX}, {1, UINT32_MAX}, {2, 3}, {0, 12},
                                         {3, 11}, {2, UINT32_MAX}, {9, 9},          {1, 10}};
    int i = r->n++;
    struct random_part p = {.kind = PART_BYTES, .bytes = words[random_below(5)]};
    uint32_t kind = depth > 3 || r->n > MAX_PARTS - 20 ? random_below(4) : random_below(10);
    if (kind == 0) {
        p.kind = PART_EMPTY;
    } else if (kind == 3 || kind == 4) {
        p.kind = PART_RULE;
        p.x = (int)random_below(N_RULES);
    } else if (kind > 4) {
        p.kind = kind < 7 ? PART_PAIR : kind == 7 ? PART_EITHER : PART_REPEAT;
        p.x = random_part(r, depth + 1);
        if (p.kind == PART_REPEAT) {
            const uint32_t *c = counts[random_below(9)];
            p.min = c[0];
            p.max = c[1];
        } else {
            p.y = random_part(r, depth + 1);
        }
    }
    r->parts[i] = p;
    return i;
}

static void write_part(struct random_grammar *r, int i) {
    const struct random_part *p = &r->parts[i];
    char *at = r->text + r->length;
    if (p->kind == PART_EMPTY)
        r->length += (size_t)sprintf(at, "\"\" ");
    else if (p->kind == PART_BYTES)
        r->length += (size_t)sprintf(at, "\"%s\" ", p->bytes);
    else if (p->kind == PART_RULE)
        r->length += (size_t)sprintf(at, p->x ? "r%d " : "root ", p->x);
    else {
        r->length += (size_t)sprintf(at, "(");
        write_part(r, p->x);
        if (p->kind == PART_EITHER)
            r->length += (size_t)sprintf(r->text + r->length, "| ");
        if (p->kind != PART_REPEAT)
            write_part(r, p->y);
        r->length += (size_t)sprintf(r->text + r->length, ") ");
        if (p->kind == PART_REPEAT && p->max == UINT32_MAX)
            r->length += (size_t)sprintf(r->text + r->length - 1, "{%u,} ", p->min) - 1;
        else if (p->kind == PART_REPEAT)
            r->length += (size_t)sprintf(r->text + r->length - 1, "{%u,%u} ", p->min, p->max) - 1;
    }
}

static uint32_t ends_of_all(const struct random_grammar *r, int part, uint32_t froms);

/* Where a part that begins at a place may end, as bits; of rules what is known so far. */
static uint32_t ends_of(const struct random_grammar *r, int part, uint32_t from) {
    const struct random_part *p = &r->parts[part];
    if (p->kind == PART_EMPTY)
        return 1u << from;
    if (p->kind == PART_BYTES) {
        size_t n = strlen(p->bytes);
        return strncmp(r->word + from, p->bytes, n) == 0 ? 1u << (from + n) : 0;
    }
    if (p->kind == PART_RULE)
        return r->ends[p->x][from];
    if (p->kind == PART_PAIR)
        return ends_of_all(r, p->y, ends_of(r, p->x, from));
    if (p->kind == PART_EITHER)
        return ends_of(r, p->x, from) | ends_of(r, p->y, from);
    uint32_t at = 1u << from, all = p->min == 0 ? at : 0;
    for (uint32_t i = 1; i <= p->max && i <= 24; i++) {
        at = ends_of_all(r, p->x, at);
        all |= i >= p->min ? at : 0;
    }
    return all;
}

static uint32_t ends_of_all(const struct random_grammar *r, int part, uint32_t froms) {
    uint32_t all = 0;
    for (uint32_t i = 0; i <= MAX_TEXT; i++)
        all |= froms >> i & 1 ? ends_of(r, part, i) : 0;
    return all;
}

static bool matches(struct random_grammar *r, const char *word) {
    bool has_changed = true;
    r->word = word;
    memset(r->ends, 0, sizeof r->ends);
    while (has_changed) {
        has_changed = false;
        for (int i = 0; i < N_RULES; i++)
            for (uint32_t from = 0; from <= strlen(word); from++) {
                uint32_t ends = ends_of(r, r->rules[i], from);
                has_changed |= ends != r->ends[i][from];
                r->ends[i][from] = ends;
            }
    }
    return r->ends[0][0] >> strlen(word) & 1;
}

/* All words of a and b up to a length: taken, and each byte in its mask, if and only if the grammar
 * has them. */
static void expect_same_words(struct random_grammar *r, const struct grammar *g,
                              const struct token_texts *t) {
    for (uint32_t length = 0; length <= MAX_TEXT; length++)
        for (uint32_t bits = 0; bits < 1u << length; bits++) {
            char word[MAX_TEXT + 4] = {0};
            for (uint32_t i = 0; i < length; i++)
                word[i] = bits >> i & 1 ? 'b' : 'a';
            bool expected = matches(r, word);
            if (takes(g, t, word, length) != expected)
                test_fail(__FILE__, __LINE__, "%s: \"%s\", expected %d", r->text, word, expected);
        }
}

/* Every byte, and all words of a and b of two to five of them. */
static struct token_texts *word_texts(void) {
    enum { N_WORDS = 60 };
    static char room[N_BYTES + N_WORDS][6];
    struct str texts[N_BYTES + N_WORDS];
    struct token_texts *t;
    struct err err = {0};
    int32_t n = N_BYTES;
    for (int i = 0; i < N_BYTES; i++) {
        room[i][0] = (char)i;
        texts[i] = (struct str){room[i], 1};
    }
    for (uint32_t length = 2; length <= 5; length++)
        for (uint32_t bits = 0; bits < 1u << length; bits++, n++) {
            for (uint32_t i = 0; i < length; i++)
                room[n][i] = bits >> i & 1 ? 'b' : 'a';
            texts[n] = (struct str){room[n], length};
        }
    EXPECT_INT(token_texts_make(&t, texts, n, NULL, 0, &err), SLUICE_OK);
    return t;
}

/* Along random answers every token is tried. */
static void expect_same_walk(const struct grammar *g, const struct token_texts *t) {
    int32_t path[3];
    struct matcher *m = matcher_of(g, t);
    for (size_t n = 0; n < 3; n++) {
        expect_same_mask(m, g, t, path, n);
        path[n] = random_allowed(m, t);
        if (path[n] < 0 || !matcher_accept(m, path[n]))
            break;
    }
    matcher_close(m);
}

TEST(grammar_random_ones_have_their_words) {
    static struct random_grammar r;
    struct token_texts *t = word_texts();
    uint32_t n_compiled = 0;
    random_state = 11;
    for (int i = 0; i < 200; i++) {
        struct grammar *g = NULL;
        struct err err = {0};
        r.n = 0;
        r.length = 0;
        for (int k = 0; k < N_RULES; k++) {
            r.rules[k] = random_part(&r, 0);
            r.length += (size_t)sprintf(r.text + r.length, k ? "r%d ::= " : "root ::= ", k);
            write_part(&r, r.rules[k]);
            r.length += (size_t)sprintf(r.text + r.length, "\n");
        }
        if (grammar_of_gbnf(&g, r.text, r.length, &err) == SLUICE_OK) {
            n_compiled++;
            expect_same_words(&r, g, t);
            expect_same_walk(g, t);
        }
        grammar_close(g);
    }
    EXPECT(n_compiled > 60);
    token_texts_close(t);
}

/* ---- plain characters ---- */

/* Texts that are not known to be plain: all of them are walked. */
static struct token_texts *without_plain(const struct str *texts, int32_t n) {
    struct token_texts *t;
    struct err err = {0};
    EXPECT_INT(token_texts_make(&t, texts, n, NULL, 0, &err), SLUICE_OK);
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        t->nodes[i].plain = TEXT_NOT_PLAIN;
        t->nodes[i].has_other = 1;
    }
    memset(t->plain, 0, (TEXT_MAX_PLAIN + 1ul) * t->n_words * sizeof *t->plain);
    t->n_char_nodes = 0;
    return t;
}

/* Random answers: the masks are those of the plain walk, bit by bit. */
static void expect_same_masks(const char *source, const struct token_texts *a,
                              const struct token_texts *b) {
    struct grammar *g = gbnf(source), *h = gbnf(source);
    for (int i = 0; g && h && i < 6; i++) {
        struct matcher *x = matcher_of(g, a), *y = matcher_of(h, b);
        for (int k = 0; k < 40 && !matcher_must_end(x); k++) {
            bool is_same = memcmp(matcher_mask(x), matcher_mask(y), a->n_words * 4) == 0;
            if (!is_same)
                test_fail(__FILE__, __LINE__, "%s: masks differ after %d tokens", source, k);
            int32_t token = random_allowed(x, a);
            if (token < 0 || !is_same)
                break;
            EXPECT(matcher_accept(x, token) && matcher_accept(y, token));
        }
        matcher_close(x);
        matcher_close(y);
    }
    grammar_close(g);
    grammar_close(h);
}

TEST(grammar_masks_of_plain_texts_are_those_of_the_walk) {
    static const char *const units[] = {"a", " ", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                        "z"};
    static const char *const others[] = {
        "\"",       "\\",       "\\n",     "\"}",        "a\"b", "\xC3",         "\xA9",   "\n",
        "\xE2\x82", "\x82\xAC", "\\u00e9", "ab\xF0\x9F", "\x7F", "\xED\xA0\x80", "x\",\"y"};
    static const char *const grammars[] = {
        "root ::= \"\\\"\" c* \"\\\"\"",
        "root ::= \"\\\"\" c{0,5} \"\\\"\"",
        "root ::= \"\\\"\" c{2,9} \"\\\"\"",
        "root ::= \"\\\"\" c{3,70} \"\\\"\"",
        "root ::= (\"\\\"\" c{0,20} \"\\\"\"){1,3}",
        "root ::= c{0,12} [a-z]*",
        "root ::= c{1,12}",
        "root ::= (c | \"ab\"){2,30} \"\\\"\"",
        "root ::= c{0,3} c{2,6} \"\\\"\" c*",
        "root ::= (c{1,3} \"\\\"\"){0,9}",
        "root ::= [a-z ]{0,6} \"\\\"\" c+",
        "root ::= . c{4,} \"\\\"\"",
    };
    enum { N_OTHERS = sizeof others / sizeof *others, N = 60 + 5 * 30 + 95 + N_OTHERS };
    static char room[N][200], rule[128];
    struct str texts[N];
    int32_t n = 0;
    for (int i = 0; i < 6; i++)
        for (int length = 1; length <= (i ? 30 : 60); length++, n++)
            for (int k = 0; k < length; k++)
                strcat(room[n], units[k % 3 == 2 ? (i + k) % 6 : i]);
    for (int c = 0x20; c < 0x7F; c++)
        room[n++][0] = (char)c;
    for (int i = 0; i < N_OTHERS; i++)
        strcat(room[n++], others[i]);
    for (int i = 0; i < N; i++)
        texts[i] = str_of(room[i]);
    struct token_texts *a, *b = without_plain(texts, N);
    struct err err = {0};
    EXPECT_INT(token_texts_make(&a, texts, N, NULL, 0, &err), SLUICE_OK);
    EXPECT(a->n_char_nodes > 0);
    random_state = 3;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        snprintf(rule, sizeof rule, "%s\nc ::= [^\"\\\\\\x00-\\x1F] | \"\\\\n\"\n", grammars[i]);
        expect_same_masks(rule, a, b);
    }
    token_texts_close(a);
    token_texts_close(b);
}

/* ---- a vocabulary of 248k ---- */

static struct token_texts *qwen_texts(void) {
    struct gguf *g = NULL;
    struct tokenizer *tokenizer = NULL;
    struct token_texts *t = NULL;
    struct err err = {0};
    if (gguf_open(&g, test_data("tokenizer/qwen35-vocab.gguf"), &err) ||
        tokenizer_from_gguf(&tokenizer, g, &err)) {
        test_fail(__FILE__, __LINE__, "%s", err.text);
        gguf_close(g);
        return NULL;
    }
    int32_t n = tokenizer_count(tokenizer), ends[64];
    uint32_t n_ends = 0;
    struct str *texts = calloc((size_t)n, sizeof *texts);
    for (int32_t i = 0; i < n; i++) {
        enum token_type type = tokenizer_type(tokenizer, i);
        if (tokenizer_is_end(tokenizer, i) && n_ends < 64)
            ends[n_ends++] = i;
        else if (type == TOKEN_NORMAL || type == TOKEN_USER || type == TOKEN_BYTE)
            texts[i] = tokenizer_bytes(tokenizer, i);
    }
    EXPECT_INT(token_texts_make(&t, texts, n, ends, n_ends, &err), SLUICE_OK);
    free(texts);
    tokenizer_close(tokenizer);
    gguf_close(g);
    return t;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Random answers over the whole vocabulary; the figures go to docs/results.md. */
static void measure_masks(const char *name, const struct grammar *g, const struct token_texts *t) {
    enum { ANSWERS = 20, TOKENS = 60 };
    static double seconds[ANSWERS * TOKENS];
    size_t n = 0;
    double total = 0, first = 0;
    random_state = 9;
    for (int i = 0; i < ANSWERS; i++) {
        struct matcher *m = matcher_of(g, t);
        for (int k = 0; k < TOKENS && !matcher_must_end(m); k++) {
            double started = processor_seconds();
            matcher_mask(m);
            seconds[n] = processor_seconds() - started;
            total += seconds[n];
            first += i == 0 ? seconds[n] : 0;
            n++;
            int32_t token = random_allowed(m, t);
            EXPECT(token >= 0 && matcher_accept(m, token));
        }
        matcher_close(m);
    }
    qsort(seconds, n, sizeof *seconds, by_value);
    test_note(
        "%s, %d tokens, %zu masks: mean %.1f us, median %.1f, p99 %.1f, most %.0f; of the first "
        "answer %.0f in all",
        name, t->n_tokens, n, 1e6 * total / (double)n, 1e6 * seconds[n / 2],
        1e6 * seconds[n * 99 / 100], 1e6 * seconds[n - 1], 1e6 * first);
}

TEST(grammar_masks_of_a_large_vocabulary) {
    static const char order[] =
        "{'type': 'object', 'properties': {'id': {'type': 'string', 'format': 'uuid'}, 'customer': "
        "{'type': 'string', 'minLength': 1, 'maxLength': 80}, 'total': {'type': 'number', "
        "'minimum': 0},"
        " 'status': {'enum': ['open', 'paid', 'sent']}, 'lines': {'type': 'array', 'items': "
        "{'type': "
        "'object', 'properties': {'sku': {'type': 'string'}, 'count': {'type': 'integer', "
        "'minimum': 1, "
        "'maximum': 999}, 'note': {'type': ['string', 'null']}}, 'required': ['sku', 'count']}}}, "
        "'required': ['id', 'customer', 'total', 'lines']}";
    struct token_texts *t = qwen_texts();
    struct grammar *g = gbnf(json_grammar), *of_order = NULL;
    struct err err = {0};
    char text[sizeof order];
    for (size_t i = 0; i < sizeof order; i++)
        text[i] = order[i] == '\'' ? '"' : order[i];
    json_t *schema = json_loads(text, 0, NULL);
    double started = processor_seconds();
    EXPECT_INT(grammar_of_schema(&of_order, schema, &err), SLUICE_OK);
    test_note("a schema of 9 properties: compiled in %.0f us",
              1e6 * (processor_seconds() - started));
    if (t && g && of_order) {
        uint32_t n_plain = 0;
        for (uint32_t i = 0; i < t->n_words; i++)
            n_plain += (uint32_t)__builtin_popcount(t->plain[TEXT_MAX_PLAIN * t->n_words + i]);
        test_note("%u of %d tokens are plain characters", n_plain, t->n_tokens);
        measure_masks("any JSON", g, t);
        measure_masks("a schema", of_order, t);
    }
    json_decref(schema);
    grammar_close(g);
    grammar_close(of_order);
    token_texts_close(t);
}
