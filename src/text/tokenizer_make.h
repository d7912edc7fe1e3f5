/* tokenizer_make.h - what a tokenizer is made of, and what its two constructors share. */
#ifndef TEXT_TOKENIZER_MAKE_H
#define TEXT_TOKENIZER_MAKE_H

#include "base/arena.h"
#include "text/bpe.h"
#include "text/special.h"
#include "text/spm.h"
#include "text/vocab.h"

struct tokenizer {
    struct arena arena;
    struct vocab vocab;
    const struct pretoken *pre; /* NULL: SentencePiece */
    struct bpe bpe;             /* one of these two is filled */
    struct spm spm;
    struct special raw;        /* special tokens to find in the raw text */
    struct special normalized; /* and those to find in the normalized text */
    int32_t bos, eos;          /* -1: none */
    int32_t last;              /* put after a text instead of eos, if that is; -1: eos */
    bool adds_bos, adds_eos, has_nfc;
    struct str chat_template;
};

/* A tokenizer of `count` tokens, all unused and empty; NULL when memory ran out. */
struct tokenizer *tokenizer_new(int32_t count, struct err *err);

/* Completes a tokenizer whose `tokens` (texts may be borrowed until now), `pre`, `spm.unknown`,
 * `bpe.ignore_merges` and so on are set: copies texts and builds all tables. */
int tokenizer_finish(struct tokenizer *t, const struct merge_text *merges, size_t n_merges,
                     struct err *err);

/* Notes an id as ending a generation; ids outside the vocabulary are ignored. */
void tokenizer_add_end(struct tokenizer *t, int64_t id);

#endif
