/* unicode.h - characters for the text module: their classes, clean UTF-8, and NFC. */
#ifndef TEXT_UNICODE_H
#define TEXT_UNICODE_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

/* What a code point is, as bits. */
enum char_class {
    CHAR_LETTER = 1 << 0,   /* general category L */
    CHAR_MARK = 1 << 1,     /* M */
    CHAR_NUMBER = 1 << 2,   /* N */
    CHAR_SPACE = 1 << 3,    /* White_Space, newlines among them */
    CHAR_NEWLINE = 1 << 4,  /* CR and LF only */
    CHAR_PUNCT = 1 << 5,    /* P and the ASCII symbols $+<=>^~| */
    CHAR_WORD = 1 << 6,     /* what \w means: letters, marks, digits, connectors, joiners */
    CHAR_UNSTABLE = 1 << 7, /* NFC may change or move it: no text may be cut before it */
};

/* The classes of all code points, 0 .. 0x10FFFF. Made at the first call; any thread may call. */
const uint8_t *char_classes(void);

/* The character at p, in text known to be valid UTF-8; *size gets its bytes. */
static inline uint32_t char_at(const char *p, size_t *size) {
    const unsigned char *u = (const unsigned char *)p;
    if (u[0] < 0x80)
        return *size = 1, u[0];
    if (u[0] < 0xE0)
        return *size = 2, (u[0] & 0x1Fu) << 6 | (u[1] & 0x3F);
    if (u[0] < 0xF0)
        return *size = 3, (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3F);
    *size = 4;
    return (u[0] & 7u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3F);
}

/* Replaces *text by valid UTF-8, each byte that begins no character by U+FFFD. Valid text is not
 * copied; other text goes into the arena. */
int utf8_clean(struct str *text, struct arena *arena, struct err *err);

/* Replaces valid UTF-8 by its Normalization Form C, in the arena where it differs. O(n log n). */
int nfc_normalize(struct str *text, struct arena *arena, struct err *err);

#endif
