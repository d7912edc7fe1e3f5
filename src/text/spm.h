/* spm.h - SentencePiece BPE: characters to pieces by score, bytes for unknown characters.
 *
 * Tables are read-only once built, and shared by threads; a merger belongs to one. */
#ifndef TEXT_SPM_H
#define TEXT_SPM_H

#include "base/arena.h"
#include "text/merge.h"
#include "text/vocab.h"

/* A symbol below n_tokens is a token; n_tokens + c is a character c that is not a token. */
struct spm {
    struct strmap pieces; /* text to token, of the plain tokens */
    struct pairs pairs;
    uint32_t n_tokens;
    int32_t byte_ids[256]; /* of the byte tokens; -1: none */
    int32_t unknown;       /* stands for bytes without a token; -1: nothing does */
    bool has_prefix;       /* a space goes before each stretch of text */
};

/* The longest piece: all ways to cut one in two are tried at load. */
enum { SPM_MAX_PIECE = 512 };

/* Builds the tables; the tokens' texts are borrowed. Zero-initialize; spm_free also after an
 * error. */
int spm_init(struct spm *spm, struct arena *arena, const struct vocab *vocab, struct err *err);
void spm_free(struct spm *spm);

/* The byte that a text of the form <0xHH> names, or -1. */
int spm_byte_of(struct str text);

/* Appends the ids of a stretch of valid UTF-8. */
int spm_encode(const struct spm *spm, struct merger *m, struct str text, struct ids *out,
               struct err *err);

#endif
