/* fuzz_jinja.c - any bytes as a chat template, rendered over a small conversation.
 *
 * What follows a zero byte, if it is JSON, takes the place of the conversation. What takes longer
 * than the work it was given is worth counts as a crash. */
#include <stdlib.h>

#include "file/json.h"
#include "text/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"},"
    " {\"role\": \"user\", \"content\": \"h\xC3\xA9llo \xF0\x9F\x98\x80\"},"
    " {\"role\": \"assistant\", \"content\": \"<think>\\nhm\\n</think>\\n\\nyes\", \"tool_calls\":"
    "  [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": [1.5, null, true]}}}]},"
    " {\"role\": \"tool\", \"content\": [{\"type\": \"text\", \"text\": \"42\"}]}],"
    " \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}],"
    " \"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"l\": [3, 1, 2], \"n\": null,"
    " \"s\": \"text\", \"i\": 7, \"x\": 2.5}";

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    /* A hundredth of the default work: 10 ms as released, some 0.2 s with sanitizers. */
    enum { UNITS = 6 * 1000 * 1000, MAX_SECONDS = 2 };
    static json_t *standard;
    const struct json_limits limits = {.max_depth = 64, .max_values = 4096};
    const struct tm now = {.tm_year = 124, .tm_mon = 6, .tm_mday = 4, .tm_wday = 4, .tm_yday = 185};
    struct text_buffer origins = {0};
    const struct jinja_options options = {.now = &now,
                                          .max_units = UNITS,
                                          .max_cpu_ms = 1000 * 1000,
                                          .max_output = 1 << 20,
                                          .max_memory = 32 << 20,
                                          .origins = size % 2 ? &origins : NULL,
                                          .own_key = "role"};
    struct str source = {(const char *)bytes, size};
    const char *zero = size ? memchr(bytes, 0, size) : NULL;
    struct err err = {0};
    json_t *variables = NULL;
    if (!standard)
        standard = json_parse(str_of(conversation), "conversation", NULL, NULL);
    CHECK(standard);
    if (zero) {
        source.len = (size_t)(zero - source.at);
        variables = json_parse(str_skip((struct str){source.at, size}, source.len + 1), "variables",
                               &limits, NULL);
    }
    struct jinja *jinja;
    struct text_buffer out = {0};
    double start = processor_seconds();
    if (jinja_compile(&jinja, source, &err)) {
        CHECK(!jinja && strncmp(err.text, "chat template", 13) == 0);
    } else if (jinja_render(jinja, json_is_object(variables) ? variables : standard, &options, &out,
                            &err)) {
        CHECK(err.code < 0 && out.len == 0 && strncmp(err.text, "chat template, line ", 20) == 0);
    } else {
        CHECK(utf8_valid((struct str){out.at ? out.at : "", out.len}));
        CHECK(origins.len == (options.origins ? out.len : 0));
    }
    CHECK(processor_seconds() - start < MAX_SECONDS);
    free(out.at);
    free(origins.at);
    jinja_close(jinja);
    json_decref(variables);
    return 0;
}
