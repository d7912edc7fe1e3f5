/* special.h - special tokens, control and user-defined: found in the text before it is cut into
 * words.
 *
 * A trie is read-only once its tokens are added, and may be shared by threads; a scan belongs to
 * one. */
#ifndef TEXT_SPECIAL_H
#define TEXT_SPECIAL_H

#include "base/err.h"
#include "text/vocab.h"

struct special_node;

/* A trie of token texts. Zero-initialize; special_free when done. */
struct special {
    struct special_node *nodes;
    uint32_t n_nodes;
    size_t capacity;
    uint32_t first[256]; /* the node of each first byte; 0: none */
};

/* The longest text of a special token: a scan looks at most so far ahead from each place. */
enum { SPECIAL_MAX_BYTES = 1024 };

/* Adds a token by its text; of two with the same text the first stays. */
int special_add(struct special *s, struct str text, int32_t id, struct err *err);
void special_free(struct special *s);

/* Scans a text: leftmost token first, the longest at each place. */
struct special_scan {
    const struct special *special;
    const struct vocab *vocab;
    bool with_control; /* control and unknown tokens count too, not only user-defined ones */
    struct str text;   /* valid UTF-8 */
    const char *own;   /* control tokens only of bytes where this is not 0; NULL: anywhere */
    size_t at;         /* what is before it is done */
};

/* The next stretch of plain text (may be empty) and the token after it, -1 at the end. False when
 * there is nothing more. A token includes the white space beside it if its flags say so. */
bool special_next(struct special_scan *scan, struct str *plain, int32_t *id);

#endif
