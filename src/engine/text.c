/* text.c - token ids to text, one at a time, until a stop string.
 *
 * (1) What is handed out has no stop string in it, and none begins in it.
 * (2) What is held back may be the beginning of one, and is shorter than the longest. */
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "engine/engine.h"

struct sluice_text {
    struct detok detok;
    struct text_buffer buffer;
    size_t n_given; /* of the buffer's beginning, handed out by the last call */
    bool has_stopped;
    size_t n_stops;
    struct str stops[]; /* their bytes follow. A server has one of these or two for every answer:
                         * an arena's chunk would be most of what an answer takes */
};

/* Bytes of all stops, with what they are listed in; 0: there are too many. */
static size_t stops_bytes(const char *const *stops, size_t n_stops) {
    uint64_t bytes = sizeof(struct sluice_text), list;
    bool is_good = size_mul(n_stops, sizeof(struct str), &list) && size_add(bytes, list, &bytes);
    for (size_t i = 0; is_good && i < n_stops; i++)
        is_good = size_add(bytes, strlen(stops[i]), &bytes);
    return is_good && bytes <= SIZE_MAX / 2 ? bytes : 0;
}

int sluice_text_open(sluice_text **out, const sluice_model *model, const char *const *stops,
                     size_t n_stops) {
    if (!out)
        return SLUICE_ERR_ARGUMENT;
    *out = NULL;
    if (!model || (!stops && n_stops))
        return SLUICE_ERR_ARGUMENT;
    if (!model->tokenizer)
        return SLUICE_ERR_UNSUPPORTED;
    for (size_t i = 0; i < n_stops; i++)
        if (!stops[i] || !stops[i][0])
            return SLUICE_ERR_ARGUMENT;
    size_t bytes = stops_bytes(stops, n_stops);
    struct sluice_text *t = bytes ? calloc(1, bytes) : NULL;
    if (!t)
        return SLUICE_ERR_MEMORY;
    t->detok.t = model->tokenizer;
    char *copy = (char *)(t->stops + n_stops);
    for (; t->n_stops < n_stops; t->n_stops++) {
        size_t n = strlen(stops[t->n_stops]);
        memcpy(copy, stops[t->n_stops], n);
        t->stops[t->n_stops] = (struct str){copy, n};
        copy += n;
    }
    *out = t;
    return SLUICE_OK;
}

void sluice_text_close(sluice_text *t) {
    if (!t)
        return;
    text_buffer_free(&t->buffer);
    free(t);
}

void sluice_text_show_control(sluice_text *t, bool is_shown) {
    if (t)
        t->detok.with_control = is_shown;
}

/* True when a stop string starts at `at`: complete, or cut off by the end of the text. */
static bool is_stop_at(const struct sluice_text *t, size_t at, bool is_whole) {
    struct str rest = {t->buffer.at + at, t->buffer.len - at};
    for (size_t i = 0; i < t->n_stops; i++) {
        struct str stop = t->stops[i];
        if (is_whole != (rest.len >= stop.len))
            continue;
        if (memcmp(rest.at, stop.at, is_whole ? stop.len : rest.len) == 0)
            return true;
    }
    return false;
}

/* The first place of a whole stop string, or else where one may have begun; the text's length when
 * there is none. */
static size_t find_stop(const struct sluice_text *t, bool *is_whole) {
    for (int pass = 0; pass < 2; pass++) {
        *is_whole = pass == 0;
        for (size_t at = 0; at < t->buffer.len; at++)
            if (is_stop_at(t, at, *is_whole))
                return at;
    }
    return t->buffer.len;
}

static int take(struct sluice_text *t, int32_t token) {
    memmove(t->buffer.at, t->buffer.at + t->n_given, t->buffer.len - t->n_given);
    t->buffer.len -= t->n_given;
    t->n_given = 0;
    if (t->has_stopped) {
        /* what it held is dropped */
        t->detok = (struct detok){.t = t->detok.t, .with_control = t->detok.with_control};
        return SLUICE_OK;
    }
    return token == SLUICE_TEXT_END ? detok_end(&t->detok, &t->buffer, NULL)
                                    : detok_push(&t->detok, token, &t->buffer, NULL);
}

int sluice_text_push(sluice_text *t, int32_t token, const char **at, size_t *length) {
    if (!t || !at || !length)
        return SLUICE_ERR_ARGUMENT;
    *at = "";
    *length = 0;
    if (t->buffer.at == NULL) /* memmove and memcmp need a valid pointer */
        t->buffer = (struct text_buffer){.at = malloc(64), .capacity = 64};
    if (t->buffer.at == NULL) {
        t->buffer = (struct text_buffer){0};
        return SLUICE_ERR_MEMORY;
    }
    int status = take(t, token);
    if (status)
        return status;
    bool is_whole = false;
    size_t n_safe = t->has_stopped ? 0 : find_stop(t, &is_whole);
    if (token == SLUICE_TEXT_END && !is_whole && !t->has_stopped)
        n_safe = t->buffer.len;
    t->has_stopped |= is_whole;
    t->n_given = n_safe;
    *at = t->buffer.at;
    *length = n_safe;
    if (t->has_stopped)
        t->buffer.len = n_safe;
    if (token == SLUICE_TEXT_END)
        t->has_stopped = false;
    return SLUICE_OK;
}

bool sluice_text_has_stopped(const sluice_text *t) {
    return t && t->has_stopped;
}
