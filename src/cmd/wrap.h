/* wrap.h - breaks the lines of a text between words as it streams to a terminal.
 *
 * (1) A word is held back until it has ended: only then is it known on which line it fits. Every
 *     byte of it comes out; of spaces those at a break do not.
 * (2) Lines of code, between ``` or ~~~, stay as they are, and so do words longer than a line: the
 *     terminal breaks them, and they can be copied whole.
 * (3) Where stdout is no terminal, nothing is changed or held back. */
#ifndef CMD_WRAP_H
#define CMD_WRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Marks at the beginning of a line, around code. */
struct fence {
    char mark; /* 0: none */
    int n;
};

/* Begin with a zeroed one. */
struct wrap {
    char gap[64], word[256]; /* spaces, and the word after them, that are held back */
    size_t n_gap, n_word;
    uint32_t last;            /* character of the word */
    int word_width;           /* in columns */
    int column;               /* where the cursor is */
    bool has_words;           /* before the one that is held back, in this line of the text */
    bool is_cut;              /* the word's beginning was too long to be held, and is out */
    struct fence fence, next; /* around this line; around the next one, if this one opens code */
    int marks;                /* in a line of code: marks alone so far; -1: there is more */
    char out[1024];
    size_t n_out;
    int exit;
};

/* As say_text; a piece of text is of whole characters. */
int wrap_text(struct wrap *w, const char *at, size_t length);
/* What is held back comes out. */
int wrap_end(struct wrap *w);

#endif
