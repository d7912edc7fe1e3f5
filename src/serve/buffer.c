/* buffer.c - a growing text. */
#include "serve/buffer.h"

#include <stdarg.h>
#include <stdio.h>

bool buffer_printf(struct buffer *b, const char *format, ...) {
    char line[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    return buffer_add(b, line, n < 0 ? 0 : (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

/* Digits that all numbers of a value need, and at least this many. */
static int digits_of(const json_t *value, int digits) {
    enum { MAX_DIGITS = 17 };
    char text[32];
    const char *key;
    json_t *one;
    size_t i;
    json_array_foreach(value, i, one) digits = digits_of(one, digits);
    json_object_foreach((json_t *)value, key, one) digits = digits_of(one, digits);
    for (; json_is_real(value) && digits < MAX_DIGITS; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, json_real_value(value));
        if (strtod(text, NULL) == json_real_value(value))
            break;
    }
    return digits;
}

bool buffer_json_all_digits(struct buffer *b, json_t *value) {
    return buffer_json_digits(b, value, digits_of(value, FLOAT_DIGITS));
}

json_t *json_of_float(float value) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    return json_real(strtod(text, NULL));
}

json_t *json_of_text(struct str s) {
    json_t *whole = json_stringn(s.at ? s.at : "", s.len);
    struct buffer fixed = {0};
    while (!whole && s.len > 0) {
        size_t n = utf8_length(s);
        buffer_add(&fixed, n ? s.at : "\xEF\xBF\xBD", n ? n : 3);
        s = str_skip(s, n ? n : 1);
    }
    if (!whole && !fixed.has_failed)
        whole = json_stringn(fixed.at ? fixed.at : "", fixed.len);
    buffer_free(&fixed);
    return whole;
}

/* ---- reading JSON ------------------------------------------------------------------------- */

static _Thread_local bool is_reading, lacks; /* this thread; since it began */

static void *get_memory(size_t n) {
    void *at = is_reading && lacks ? NULL : malloc(n);
    lacks |= !at;
    return at;
}

void json_watch_memory(void) {
    json_set_alloc_funcs(get_memory, free);
}

size_t json_tree_bytes(struct str text) {
    static const unsigned char cost[256] = {
        ['{'] = 240, ['['] = 136, [','] = 40, [':'] = 80, ['"'] = 32};
    size_t n = text.len;
    bool is_string = false;
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.at[i];
        if (is_string && c == '\\')
            i++;
        else if (!is_string)
            n += cost[c];
        if (c == '"')
            is_string = !is_string;
    }
    return n;
}

json_t *json_load_whole(struct str text, size_t flags, json_error_t *why, bool *lacks_memory) {
    is_reading = true;
    lacks = false;
    json_t *value = json_loadb(text.at, text.len, flags, why);
    is_reading = false;
    *lacks_memory = lacks;
    if (!lacks)
        return value;
    json_decref(value);
    return NULL;
}
