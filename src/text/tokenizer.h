/* tokenizer.h - text to token ids and back.
 *
 * Byte-level BPE (GPT-2's scheme, with the pre-tokenizers of pretoken.h) and SentencePiece BPE
 * with byte fallback. A tokenizer is read-only once made and may be shared by threads. It holds
 * its own copies: the file it came from may be closed. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

struct gguf;
struct folder;
struct tokenizer;

/* A growing list of ids. Zero-initialize; ids_free when done. */
struct ids {
    int32_t *at;
    size_t len, capacity;
};
int ids_push(struct ids *ids, int32_t id, struct err *err);
int ids_reserve(struct ids *ids, size_t more, struct err *err); /* reserves this many more */
void ids_free(struct ids *ids);

enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER,
    TOKEN_UNUSED,
    TOKEN_BYTE,
};

/* SLUICE_ERR_UNSUPPORTED, naming it, for an unknown model, pre-tokenizer or regex, and for a file
 * without a vocabulary; SLUICE_ERR_FORMAT for one that contradicts itself. Errors begin with the
 * file's path. NFC is off for GGUF unless the file says `sluice.nfc`, and as tokenizer.json says
 * for a folder. Of a folder only the JSON values are used. */
int tokenizer_from_gguf(struct tokenizer **out, const struct gguf *g, struct err *err);
int tokenizer_from_folder(struct tokenizer **out, const struct folder *f, struct err *err);
void tokenizer_close(struct tokenizer *t); /* takes NULL */

enum encode_flags {
    ENCODE_SPECIAL = 1, /* control tokens written out in the text become their ids */
    ENCODE_BOS = 2,     /* BOS before and EOS after, where the model wants them */
};

/* Appends the ids of a text of any bytes; invalid UTF-8 becomes U+FFFD, one for each bad byte.
 * O(n log n) for any text, with up to 36 bytes of memory for each byte of the longest word. Fails
 * only when memory runs out, or for a word of 2 GB. Without ENCODE_SPECIAL no text becomes a
 * control token. */
int tokenizer_encode(const struct tokenizer *t, struct str text, unsigned flags, struct ids *out,
                     struct err *err);

/* The same of a text that has several authors: a control token only where own[i] is not 0 for every
 * byte of it. The text must be valid UTF-8, or none is found. NULL: as tokenizer_encode. */
int tokenizer_encode_own(const struct tokenizer *t, struct str text, const char *own,
                         unsigned flags, struct ids *out, struct err *err);

/* Overrides what the file said. Not while others use t. */
void tokenizer_set_nfc(struct tokenizer *t, bool on);

/* A growing text, not terminated. Zero-initialize; text_buffer_free when done. */
struct text_buffer {
    char *at;
    size_t len, capacity;
};
int text_buffer_add(struct text_buffer *b, const void *bytes, size_t len, struct err *err);
void text_buffer_free(struct text_buffer *b);

/* Streaming decoder: bytes come out as soon as they are whole characters. Bytes that can no longer
 * become a character come out as U+FFFD, one for each longest beginning of a character, as Unicode
 * recommends; so the output is always valid UTF-8. Start from (struct detok){.t = t}; set
 * with_control to see control tokens. There is nothing to free. */
struct detok {
    const struct tokenizer *t;
    bool with_control;
    bool has_started;      /* SentencePiece: the first space is the tokenizer's own */
    unsigned char held[4]; /* the beginning of a character */
    unsigned n_held;
};

/* Appends the text that this id completes, maybe none. An id outside the vocabulary gives
 * SLUICE_ERR_ARGUMENT, naming it. */
int detok_push(struct detok *d, int32_t id, struct text_buffer *out, struct err *err);
/* Appends U+FFFD for a beginning that is still held; d is then as new. */
int detok_end(struct detok *d, struct text_buffer *out, struct err *err);

/* Facts. Ids are 0 .. count - 1; -1: none. */
int32_t tokenizer_count(const struct tokenizer *t);                /* padding included */
struct str tokenizer_token(const struct tokenizer *t, int32_t id); /* as stored in the file */
struct str tokenizer_bytes(const struct tokenizer *t, int32_t id); /* what it stands for in text */
enum token_type tokenizer_type(const struct tokenizer *t, int32_t id); /* TOKEN_UNUSED: padding */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t);
int32_t tokenizer_last(const struct tokenizer *t); /* that ENCODE_BOS puts after a text */
bool tokenizer_uses_nfc(const struct tokenizer *t);
bool tokenizer_is_end(const struct tokenizer *t, int32_t id); /* ends a generation */
bool tokenizer_text_ends(struct str text); /* a special token of this text does, always */
int32_t tokenizer_find(const struct tokenizer *t, struct str stored_text); /* linear search */
struct str tokenizer_chat_template(const struct tokenizer *t);             /* empty: none */
const char *tokenizer_pre_name(const struct tokenizer *t);                 /* "qwen35", "spm" ... */

#endif
