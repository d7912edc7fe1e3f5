/* pretoken.h - cutting text into words before BPE.
 *
 * A pre-tokenizer is a row of a table: names, the regex it stands for, and one to four passes that
 * cut a piece into smaller ones. Each pass is a scanner without backtracking, equivalent to its
 * regex. */
#ifndef TEXT_PRETOKEN_H
#define TEXT_PRETOKEN_H

#include <stdbool.h>

#include "base/str.h"

enum { PRETOKEN_PASSES = 4 };

struct pretoken_pass;

struct pretoken {
    const char *names[9]; /* the first is its own, the others are aliases */
    const char *regex;    /* as tokenizer.json writes it in a Split; NULL: not written so */
    const struct pretoken_pass *passes[PRETOKEN_PASSES]; /* NULL after the last */
    bool is_llama3; /* in GGUF: ignore_merges, and BOS unless the file says otherwise */
};

/* NULL when there is no such name or regex. */
const struct pretoken *pretoken_find(struct str name);
const struct pretoken *pretoken_find_regex(struct str regex);

/* Walks over the words of a piece of valid UTF-8, which together are the piece. */
struct pretoken_walk {
    const uint8_t *classes;
    const struct pretoken *pre;
    const char *at;
    const char *ends[PRETOKEN_PASSES + 1]; /* of the piece, and of the piece of each pass in it */
};

void pretoken_begin(struct pretoken_walk *walk, const struct pretoken *pre, struct str text);

/* False at the end. */
bool pretoken_next(struct pretoken_walk *walk, struct str *word);

#endif
