/* buffer.h - a growing text. Zero-initialize; buffer_free when done.
 *
 * When memory runs out nothing more is appended and `has_failed` stays set: check it once, when the
 * text is done. */
#ifndef SERVE_BUFFER_H
#define SERVE_BUFFER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

struct buffer {
    char *at; /* not terminated; NULL when it is empty */
    size_t len, capacity;
    bool has_failed;
};

static inline void buffer_free(struct buffer *b) {
    free(b->at);
    *b = (struct buffer){0};
}

static inline struct str buffer_str(const struct buffer *b) {
    return (struct str){b->at ? b->at : "", b->len};
}

static inline bool buffer_add(struct buffer *b, const char *at, size_t length) {
    if (!b->has_failed && b->capacity - b->len < length) {
        size_t capacity = 2 * b->capacity + length + 64;
        char *more = realloc(b->at, capacity);
        b->has_failed = !more;
        if (more) {
            b->at = more;
            b->capacity = capacity;
        }
    }
    if (b->has_failed)
        return false;
    if (length)
        memcpy(b->at + b->len, at, length);
    b->len += length;
    return true;
}

static inline bool buffer_puts(struct buffer *b, const char *z) {
    return buffer_add(b, z, strlen(z));
}

/* Takes the first n bytes out. */
static inline void buffer_drop(struct buffer *b, size_t n) {
    if (n < b->len)
        memmove(b->at, b->at + n, b->len - n);
    b->len -= n;
}

static inline int buffer_put_json(const char *at, size_t length, void *user) {
    return buffer_add(user, at, length) ? 0 : -1;
}

/* Appends a value on one line and releases it. NULL: memory ran out before. */
static inline bool buffer_json_digits(struct buffer *b, json_t *value, int digits) {
    if (!value ||
        json_dump_callback(value, buffer_put_json, b,
                           JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION((size_t)digits)))
        b->has_failed = true;
    json_decref(value);
    return !b->has_failed;
}

enum { FLOAT_DIGITS = 9 }; /* all that our own numbers have: they are 32 bits */

static inline bool buffer_json(struct buffer *b, json_t *value) {
    return buffer_json_digits(b, value, FLOAT_DIGITS);
}

/* The same of a value that has numbers of a client or of the model's text: with all digits that
 * they need. */
bool buffer_json_all_digits(struct buffer *b, json_t *value);

/* printf; at most 255 bytes of it. */
__attribute__((format(printf, 2, 3))) bool buffer_printf(struct buffer *b, const char *format, ...);

/* As json_loadb. When memory runs out jansson (2.14) silently drops data and retries with every
 * byte: after minutes a text would lack its end. Here that fails at once, if json_watch_memory was
 * called before, while the process had one thread. */
void json_watch_memory(void);
json_t *json_load_whole(struct str text, size_t flags, json_error_t *why, bool *lacks_memory);

/* About the memory that a text takes as JSON: 80 times its length when it is full of {}. */
size_t json_tree_bytes(struct str text);

/* A number as it was written: 0.7, not 0.699999988. */
json_t *json_of_float(float value);
/* A JSON string of any bytes: those that are not UTF-8 become U+FFFD. */
json_t *json_of_text(struct str s);

#endif
