/* test_locale.c - a program that embeds the library may have any locale: the bytes are the same. */
#include <errno.h>
#include <locale.h>

#include "base/err.h"
#include "base/locale.h"
#include "base/log.h"
#include "file/json.h"
#include "grammar/grammar.h"
#include "model/mixture.h"
#include "test.h"
#include "text/jinja.h"

/* A comma; a comma, and capitals whose small letters are others; a point of two bytes. */
static const char *const locales[] = {"de_DE.UTF-8", "tr_TR.UTF-8", "ps_AF.UTF-8"};

/* Runs `check` in each locale, and leaves that of the tests. */
static void in_each_locale(void (*check)(void)) {
    char *own = strdup(setlocale(LC_ALL, NULL)), text[16];
    const char *folder = getenv("LOCPATH");
    char *before = folder ? strdup(folder) : NULL;
    setenv("LOCPATH", test_data("locales"), true);
    for (size_t i = 0; i < sizeof locales / sizeof *locales; i++) {
        if (!setlocale(LC_ALL, locales[i]))
            test_fail(__FILE__, __LINE__, "%s is not in %s", locales[i], getenv("LOCPATH"));
        snprintf(text, sizeof text, "%.1f", 0.5);
        EXPECT(strcmp(text, "0.5") != 0);
        check();
        snprintf(text, sizeof text, "%.1f", 0.5);
        EXPECT(strcmp(text, "0.5") != 0); /* it is the program's again */
    }
    if (before)
        setenv("LOCPATH", before, true);
    else
        unsetenv("LOCPATH");
    setlocale(LC_ALL, own);
    free(before);
    free(own);
}

static void check_templates(void) {
    static const struct tm now = {.tm_year = 124, .tm_mon = 6, .tm_mday = 4, .tm_wday = 4};
    static const char source[] =
        "{{ x }} {{ x|tojson }} {{ 1e-7 }} {{ 2.5 * 3 }} {{ '%.2f'|format(x) }} {{ '%e' % x }} "
        "{{ 1.25|round(1) }} {{ ' 2.75 '|float + 1 }} {{ '-INFINITY'|float }} {{ x|string|upper }} "
        "{{ strftime_now('%A, %d %b %Y %p') }} {{ 'TITLE I'|lower }}";
    struct text_buffer out = {0};
    struct err err = {0};
    struct jinja *jinja;
    json_t *variables = json_parse(STR("{\"x\": 0.5, \"y\": [1e3, -2.5E-3]}"), "x", NULL, &err);
    EXPECT_STR(err.text, "");
    EXPECT_NEAR(json_real_value(json_object_get(variables, "x")), 0.5, 0);
    EXPECT_NEAR(json_real_value(json_array_get(json_object_get(variables, "y"), 1)), -2.5e-3, 0);
    EXPECT_INT(jinja_compile(&jinja, str_of(source), &err), SLUICE_OK);
    EXPECT_INT(jinja_render(jinja, variables, &(struct jinja_options){.now = &now}, &out, &err),
               SLUICE_OK);
    static const char expected[] = "0.5 0.5 1e-07 7.5 0.50 5.000000e-01 1.2 3.75 -inf 0.5 "
                                   "Thursday, 04 Jul 2024 AM title i";
    if (out.len != sizeof expected - 1 || memcmp(out.at, expected, out.len) != 0)
        test_fail(__FILE__, __LINE__, "%s: \"%.*s\", expected \"%s\"", setlocale(LC_ALL, NULL),
                  (int)out.len, out.at, expected);
    jinja_close(jinja);
    json_decref(variables);
    free(out.at);
}

TEST(locale_changes_no_template) {
    in_each_locale(check_templates);
}

/* ---- what the library says, and reads ----------------------------------------------------- */

static void take_line(void *user, enum log_level level, const char *line) {
    (void)level;
    snprintf(user, 64, "%s", line);
}

static void check_texts(void) {
    struct err err = {0};
    char line[64] = "";
    err_set(&err, SLUICE_ERR_FORMAT, "%g is not %.3f", 1.5, 2.25);
    err_prefix(&err, "%.1f", 0.5);
    EXPECT_STR(err.text, "0.5: 1.5 is not 2.250");
    log_set(take_line, line);
    log_line(LOG_INFO, "%.1f GB", 1.5);
    log_set(NULL, NULL);
    EXPECT_STR(line, "1.5 GB");
    EXPECT_NEAR(locale_number("-0.25"), -0.25, 0);
    EXPECT_STR(locale_error(ENOENT), "No such file or directory");
}

TEST(locale_changes_no_errors_and_no_log) {
    in_each_locale(check_texts);
}

/* Turkish has a small I without a dot, and a capital one with it. */
static void check_letters(void) {
    EXPECT(mixture_find("iq3_s") != NULL && mixture_find("IQ3_xxs") != NULL);
    EXPECT(str_is_caseless(STR("iNfInItY"), "InFiNiTy") && str_is_caseless(STR(""), ""));
    EXPECT(!str_is_caseless(STR("inf"), "infinity") && !str_is_caseless(STR("infinity"), "inf"));
    EXPECT(!str_is_caseless(STR("[@"), "{`") && !str_is_caseless(STR("\xC4"), "\xE4"));
}

TEST(locale_changes_no_letters) {
    in_each_locale(check_letters);
}

/* Limits of a number are taken apart digit by digit. */
static void check_schemas(void) {
    struct err err = {0};
    struct grammar *g;
    json_t *schema = json_parse(STR("{\"type\": \"number\", \"minimum\": 0.25, "
                                    "\"maximum\": 0.75, \"enum\": [0.5, 1.5]}"),
                                "schema", NULL, &err);
    EXPECT_INT(grammar_of_schema(&g, schema, &err), SLUICE_OK);
    EXPECT_STR(err.text, "");
    grammar_close(g);
    json_object_del(schema, "enum");
    EXPECT_INT(grammar_of_schema(&g, schema, &err), SLUICE_OK);
    EXPECT_STR(err.text, "");
    grammar_close(g);
    json_decref(schema);
}

TEST(locale_changes_no_schema) {
    in_each_locale(check_schemas);
}

/* ---- sluice.h ----------------------------------------------------------------------------- */

static sluice_model *model;

static void check_conversation(void) {
    static const char request[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"n\": 2.5e-1, "
        "\"chat_template\": \"{{ n }} {{ [0.1, n * 2]|tojson }} {{ messages[0].content }}\"}";
    int32_t tokens[64];
    size_t n = 0, length, used = 0;
    char error[256] = "", text[256] = "";
    EXPECT_INT(sluice_encode_chat(model, request, tokens, 64, &n, error, sizeof error), SLUICE_OK);
    EXPECT_STR(error, "");
    for (size_t i = 0; i < n && used < sizeof text; i++) {
        const char *at = sluice_token_text(model, tokens[i], &length);
        used += (size_t)snprintf(text + used, sizeof text - used, "%.*s", (int)length, at);
    }
    EXPECT_STR(text, "0.25 [0.1, 0.5] x");
    EXPECT_STR(sluice_model_error(model), "");
}

TEST(locale_changes_no_conversation) {
    EXPECT_INT(sluice_model_open(&model, "models/stories-27m-q4_k_m.gguf"), SLUICE_OK);
    in_each_locale(check_conversation);
    sluice_model_close(model);
}
