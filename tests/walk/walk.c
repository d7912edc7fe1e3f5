/* walk.c - what tests/test_schemas.py asks of the grammar module, a line of JSON in and one out.
 *
 *   {"schema": ..., "seed": 1, "walks": 3, "tries": ["text", ...]}, or "regex": "..."
 *   {"error": "..."}, or {"ms": 0.4, "walks": ["text", ...], "tries": [true, ...]}
 *
 * A walk takes random tokens of the masks until the answer ends; after many tokens, those that lead
 * to its end soonest. The vocabulary: all bytes and a few longer texts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "grammar/grammar.h"
#include "grammar/texts.h"

enum { N_BYTES = 256, MOST_FREE = 60, MOST = 4000 };

static uint64_t state;

static uint32_t random_below(uint32_t n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((state >> 33) % n);
}

static struct token_texts *make_texts(void) {
    static const char *const words[] = {
        "{\"",      "\":",          "\",\"", "\"}", "true",  "false",  "null", "name",
        "12",       "0.5",          "e-",    "],",  "[{",    "\": \"", "\\n",  "\\u00e9",
        "\xc3\xa9", "\xe2\x82\xac", "http",  "://", "2024-", "the "};
    enum { N_WORDS = sizeof words / sizeof *words, N = N_BYTES + N_WORDS };
    static char bytes[N_BYTES];
    struct str texts[N + 1] = {{0}};
    struct token_texts *t;
    int32_t ends[] = {N};
    for (int i = 0; i < N_BYTES; i++) {
        bytes[i] = (char)i;
        texts[i] = (struct str){&bytes[i], 1};
    }
    for (int i = 0; i < N_WORDS; i++)
        texts[N_BYTES + i] = str_of(words[i]);
    return token_texts_make(&t, texts, N + 1, ends, 1, NULL) ? NULL : t;
}

/* Late in a walk: the end, else what closes, else a token that opens nothing. */
static int32_t choose(struct matcher *m, const struct token_texts *t, uint32_t step) {
    static const char closing[] = "\"}]el0a:,-./@T";
    const uint32_t *mask = matcher_mask(m);
    int32_t end = t->ends[0], first = (int32_t)random_below((uint32_t)t->n_tokens);
    bool is_late = step > MOST_FREE;
    if ((mask[end / 32] >> end % 32 & 1) && (is_late || random_below(4) == 0))
        return end;
    for (const char *c = closing; is_late && step % 4 && *c; c++)
        if (mask[*c / 32] >> *c % 32 & 1)
            return *c;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        int32_t token = (first + i) % t->n_tokens;
        if (mask[token / 32] >> token % 32 & 1)
            return token;
    }
    return -1;
}

static json_t *walk(const struct grammar *g, const struct token_texts *t) {
    struct matcher *m;
    static char text[MOST * 8 + 1];
    size_t n = 0;
    if (matcher_open(&m, g, t, NULL, NULL))
        return json_null();
    for (uint32_t step = 0; step < MOST; step++) {
        int32_t token = choose(m, t, step);
        if (token == t->ends[0] || token < 0 || !matcher_accept(m, token)) {
            n = token == t->ends[0] ? n : SIZE_MAX;
            break;
        }
        memcpy(text + n, t->texts[token].at, t->texts[token].len);
        n += t->texts[token].len;
        if (step + 1 == MOST)
            n = SIZE_MAX;
    }
    matcher_close(m);
    return n == SIZE_MAX ? json_null() : json_stringn(text, n);
}

static bool takes(const struct grammar *g, const struct token_texts *t, const char *text) {
    struct matcher *m;
    bool is_ok = !matcher_open(&m, g, t, NULL, NULL);
    for (; *text && is_ok; text++)
        is_ok = matcher_accept(m, (uint8_t)*text);
    is_ok = is_ok && matcher_may_end(m);
    matcher_close(m);
    return is_ok;
}

static int compile(struct grammar **out, const json_t *q, struct err *err) {
    const json_t *regex = json_object_get(q, "regex");
    return regex ? grammar_of_regex(out, json_string_value(regex), json_string_length(regex), err)
                 : grammar_of_schema(out, json_object_get(q, "schema"), err);
}

static json_t *answer(const json_t *q, const struct token_texts *t) {
    struct grammar *g;
    struct err err = {0};
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    if (compile(&g, q, &err))
        return json_pack("{s:s}", "error", err.text);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    json_t *walks = json_array(), *tries = json_array(), *each;
    size_t i;
    state = (uint64_t)json_integer_value(json_object_get(q, "seed"));
    for (json_int_t n = json_integer_value(json_object_get(q, "walks")); n > 0; n--)
        json_array_append_new(walks, walk(g, t));
    json_array_foreach(json_object_get(q, "tries"), i, each)
        json_array_append_new(tries, json_boolean(takes(g, t, json_string_value(each))));
    grammar_close(g);
    double ms = 1e3 * (double)(b.tv_sec - a.tv_sec) + 1e-6 * (double)(b.tv_nsec - a.tv_nsec);
    return json_pack("{s:f, s:o, s:o}", "ms", ms, "walks", walks, "tries", tries);
}

int main(void) {
    struct token_texts *t = make_texts();
    char *line = NULL;
    size_t size = 0;
    while (t && getline(&line, &size, stdin) > 0) {
        json_t *q = json_loads(line, JSON_ALLOW_NUL, NULL), *a = q ? answer(q, t) : NULL;
        char *text = a ? json_dumps(a, JSON_COMPACT) : NULL;
        puts(text ? text : "{\"error\": \"no JSON\"}");
        fflush(stdout);
        free(text);
        json_decref(a);
        json_decref(q);
    }
    free(line);
    token_texts_close(t);
    return 0;
}
