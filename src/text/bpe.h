/* bpe.h - byte-level BPE: words to tokens by a list of merges.
 *
 * Tables are read-only once built, and shared by threads; a scratch belongs to one. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "base/arena.h"
#include "text/merge.h"
#include "text/pretoken.h"
#include "text/vocab.h"

/* A line of the merge list, both parts as the file stores them. */
struct merge_text {
    struct str left, right;
};

/* (1) A symbol stands for a string of bytes, and no two for the same. Symbols below n_tokens are
 *     tokens; the others are strings that only occur while merging. */
struct bpe {
    struct strmap words; /* bytes to token, of all that merges may make */
    struct pairs pairs;
    struct str *parts; /* the bytes of the symbols that are not tokens */
    uint32_t n_tokens, n_parts;
    uint32_t byte_symbols[256]; /* SYMBOL_NONE: in no token */
    int32_t byte_ids[256];      /* -1: no token */
    bool ignore_merges;         /* a word that is a token is that token, whatever the merges say */
};

/* Decodes a stored text: GPT-2 stores each byte as a printable character. Returns the number of
 * bytes, at most the text's own length, or SIZE_MAX when a character stands for none. */
size_t bpe_unmap(struct str stored, char *bytes);

/* Builds the tables; the tokens' bytes are borrowed. Merges whose parts cannot occur in any text
 * have no effect. Zero-initialize; bpe_free also after an error. */
int bpe_init(struct bpe *bpe, struct arena *arena, const struct vocab *vocab,
             const struct merge_text *merges, size_t n_merges, struct err *err);
void bpe_free(struct bpe *bpe);

/* What one call of encode keeps between words. Zero-initialize; bpe_scratch_free when done. */
struct bpe_cached;
struct bpe_scratch {
    struct merger merger;
    struct bpe_cached *cache; /* words seen before and their ids; NULL: not worth it */
    size_t cache_mask;
};

/* Prepares for about this many bytes of text. */
void bpe_scratch_init(struct bpe_scratch *scratch, size_t text_bytes);
void bpe_scratch_free(struct bpe_scratch *scratch);

/* Appends the ids of a piece of valid UTF-8. */
int bpe_encode(const struct bpe *bpe, const struct pretoken *pre, struct bpe_scratch *scratch,
               struct str text, struct ids *out, struct err *err);

#endif
