/* detok.c - ids back to text, in whole characters.
 *
 * (1) `held` is empty or the beginning of a character that further bytes may complete. */
#include <stdlib.h>

#include "base/array.h"
#include "base/size.h"
#include "text/tokenizer.h"
#include "text/tokenizer_make.h"

int text_buffer_add(struct text_buffer *b, const void *bytes, size_t len, struct err *err) {
    uint64_t end;
    if (!size_add(b->len, len, &end) || !array_grow(&b->at, end, &b->capacity, 1))
        return err_memory(err, "a text");
    if (len)
        memcpy(b->at + b->len, bytes, len);
    b->len += len;
    return SLUICE_OK;
}

void text_buffer_free(struct text_buffer *b) {
    free(b->at);
    *b = (struct text_buffer){0};
}

/* True when more bytes may complete `s` to a character. Tries the lowest and the highest byte that
 * may follow: validity depends on the second byte alone, which is either there or free. */
static bool is_beginning(const unsigned char *s, unsigned n) {
    static const unsigned char tails[][3] = {{0x80, 0x80, 0x80}, {0xBF, 0xBF, 0xBF}};
    for (int i = 0; i < 2; i++) {
        unsigned char whole[7];
        memcpy(whole, s, n);
        memcpy(whole + n, tails[i], 3);
        if (utf8_length((struct str){(const char *)whole, n + 3}) > n)
            return true;
    }
    return false;
}

static int replace_held(struct detok *d, struct text_buffer *out, struct err *err) {
    d->n_held = 0;
    return text_buffer_add(out, "\xEF\xBF\xBD", 3, err);
}

static int push_byte(struct detok *d, unsigned char byte, struct text_buffer *out,
                     struct err *err) {
    int status = SLUICE_OK;
    d->held[d->n_held++] = byte;
    if (utf8_length((struct str){(const char *)d->held, d->n_held}) == d->n_held) {
        status = text_buffer_add(out, d->held, d->n_held, err);
        d->n_held = 0;
    } else if (!is_beginning(d->held, d->n_held)) {
        bool was_alone = d->n_held == 1;
        status = replace_held(d, out, err);
        if (status == SLUICE_OK && !was_alone) /* the byte did not belong to what was held */
            status = push_byte(d, byte, out, err);
    }
    return status;
}

static int push_bytes(struct detok *d, struct str bytes, struct text_buffer *out, struct err *err) {
    if (d->n_held == 0 && utf8_valid(bytes))
        return text_buffer_add(out, bytes.at, bytes.len, err);
    int status = SLUICE_OK;
    for (size_t i = 0; i < bytes.len && status == SLUICE_OK; i++)
        status = push_byte(d, (unsigned char)bytes.at[i], out, err);
    return status;
}

int detok_push(struct detok *d, int32_t id, struct text_buffer *out, struct err *err) {
    if (id < 0 || id >= d->t->vocab.count)
        return err_set(err, SLUICE_ERR_ARGUMENT, "token %d is outside the vocabulary of %d",
                       (int)id, (int)d->t->vocab.count);
    const struct token *token = &d->t->vocab.tokens[id];
    struct str bytes = token->bytes;
    bool is_hidden = token->type == TOKEN_CONTROL && !d->with_control;
    if (is_hidden || bytes.len == 0)
        return SLUICE_OK;
    bool has_own_space = !d->has_started && !d->t->pre && d->t->spm.has_prefix;
    d->has_started = true;
    if (has_own_space && token->type == TOKEN_NORMAL && bytes.at[0] == ' ')
        bytes = str_skip(bytes, 1);
    return push_bytes(d, bytes, out, err);
}

int detok_end(struct detok *d, struct text_buffer *out, struct err *err) {
    d->has_started = false;
    return d->n_held ? replace_held(d, out, err) : SLUICE_OK;
}
