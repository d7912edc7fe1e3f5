/* vocab.h - the tokens of a model, shared by the parts of its tokenizer. */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include "base/str.h"
#include "text/tokenizer.h"

enum token_flag {
    TOKEN_ENDS = 1 << 0,        /* ends a generation */
    TOKEN_LSTRIP = 1 << 1,      /* in text, it includes the white space before it */
    TOKEN_RSTRIP = 1 << 2,      /* and after it */
    TOKEN_SINGLE_WORD = 1 << 3, /* not found inside a word */
    TOKEN_NORMALIZED = 1 << 4,  /* looked for in the normalized text */
    TOKEN_ADDED = 1 << 5,       /* not in the model's own vocabulary: no merge makes it */
};

struct token {
    struct str text;  /* as the file stores it */
    struct str bytes; /* what it stands for in text */
    float score;      /* SentencePiece: higher joins earlier */
    uint8_t type;     /* enum token_type */
    uint8_t flags;    /* enum token_flag */
};

struct vocab {
    struct token *tokens;
    int32_t count;
};

/* The maximum number of tokens or merges in a file. */
enum { VOCAB_MAX = 1 << 24 };

/* A token that plain text may become. The others only come from special.c or the model. */
static inline bool token_is_plain(const struct token *token) {
    return token->type == TOKEN_NORMAL || token->type == TOKEN_USER;
}

#endif
