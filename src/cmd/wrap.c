/* wrap.c - breaks the lines of a text between words as it streams to a terminal. */
#include "cmd/wrap.h"

#include <limits.h>
#include <string.h>
#include <utf8proc.h>

#include "base/str.h"
#include "cmd/say.h"

enum { TAB = 8 };

/* ---- characters --------------------------------------------------------------------------- */

/* Columns that say_text makes of it: control characters are shown as '?', returns are dropped. */
static int width_of(uint32_t c) {
    bool is_control = c < 0x20 || (c >= 0x7F && c < 0xA0);
    return c == '\r' ? 0 : is_control ? 1 : utf8proc_charwidth((utf8proc_int32_t)c);
}

/* Punctuation that a line does not begin with; or, opening, does not end with. */
static bool is_punctuation(uint32_t c, bool is_opening) {
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PI:
        return is_opening;
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return !is_opening;
    default:
        return false;
    }
}

/* Whether a line may be broken between two characters that are not spaces: beside wide ones, which
 * are written without. What joins or modifies another character stays with it. */
static bool may_break(uint32_t before, uint32_t after) {
    enum { ZERO_WIDTH_JOINER = 0x200D };
    bool is_wide = width_of(before) > 1 || width_of(after) > 1;
    return is_wide && before != ZERO_WIDTH_JOINER && width_of(after) > 0 &&
           !is_punctuation(before, true) && !is_punctuation(after, false);
}

/* ---- what comes out ----------------------------------------------------------------------- */

static void flush(struct wrap *w) {
    int exit = say_text(w->out, w->n_out);
    w->exit = w->exit ? w->exit : exit;
    w->n_out = 0;
}

/* The column after a character; the terminal breaks a line where it does not fit. */
static int column_after(int column, uint32_t c, int columns) {
    int width = c == '\t' ? TAB - column % TAB : width_of(c);
    if (c == '\t') /* stops at the edge */
        return column + width < columns ? column + width : columns - 1;
    return column + width > columns ? width : column + width;
}

static void put(struct wrap *w, struct str text, int columns) {
    while (text.len > 0) {
        uint32_t c = '?'; /* what is no UTF-8 is shown as one */
        size_t n = utf8_decode(text, &c);
        n = n ? n : 1;
        if (w->n_out + n > sizeof w->out)
            flush(w);
        memcpy(w->out + w->n_out, text.at, n);
        w->n_out += n;
        w->column = c == '\n' ? 0 : column_after(w->column, c, columns);
        text = str_skip(text, n);
    }
}

/* ---- words -------------------------------------------------------------------------------- */

/* The fence that a line's first word is; three marks or more. */
static struct fence fence_of(const char *word, size_t n) {
    char mark = word[0];
    size_t marks = 0;
    while (marks < n && word[marks] == mark)
        marks++;
    bool is_fence = (mark == '`' || mark == '~') && marks >= 3 &&
                    (mark == '~' || !memchr(word + marks, '`', n - marks)); /* `code` in a line */
    return is_fence ? (struct fence){mark, (int)marks} : (struct fence){0};
}

static void end_word(struct wrap *w, int columns) {
    if (!w->n_word)
        return;
    int column = w->column;
    for (size_t i = 0; i < w->n_gap; i++)
        column += w->gap[i] == '\t' ? TAB - column % TAB : 1;
    bool is_break = w->has_words && !w->is_cut && w->column > 0 && column + w->word_width > columns;
    bool is_broken = w->has_words && w->column == 0; /* by a line on stderr */
    if (is_break)
        put(w, STR("\n"), columns);
    else if (!is_broken)
        put(w, (struct str){w->gap, w->n_gap}, columns);
    put(w, (struct str){w->word, w->n_word}, columns);
    if (!w->has_words)
        w->next = fence_of(w->word, w->n_word);
    w->has_words = true;
    w->is_cut = false;
    w->n_gap = w->n_word = 0;
    w->word_width = 0;
}

static void end_line(struct wrap *w, int columns) {
    end_word(w, columns);
    put(w, STR("\n"), columns); /* spaces before it are dropped */
    w->n_gap = 0;
    w->has_words = false;
    w->fence = w->next;
    w->next = (struct fence){0};
    w->marks = 0;
}

/* A character of code. */
static void take_code(struct wrap *w, struct str character, uint32_t c, int columns) {
    put(w, character, columns);
    if (c == '\n') {
        if (w->marks >= w->fence.n)
            w->fence = (struct fence){0};
        w->marks = 0;
    } else if (c == (unsigned char)w->fence.mark && w->marks >= 0) {
        w->marks++;
    } else if (c != ' ' && c != '\r') {
        w->marks = -1;
    }
}

static void take(struct wrap *w, struct str character, uint32_t c, int columns) {
    if (w->fence.mark) {
        take_code(w, character, c, columns);
    } else if (c == '\n') {
        end_line(w, columns);
    } else if (c == ' ' || c == '\t') {
        end_word(w, columns);
        if (w->n_gap == sizeof w->gap) {
            put(w, (struct str){w->gap, w->n_gap}, columns);
            w->n_gap = 0;
        }
        w->gap[w->n_gap++] = (char)c;
    } else {
        bool is_full = w->n_word + character.len > sizeof w->word;
        if (w->n_word > 0 && (is_full || may_break(w->last, c)))
            end_word(w, columns);
        w->is_cut |= is_full;
        memcpy(w->word + w->n_word, character.at, character.len);
        w->n_word += character.len;
        w->word_width += width_of(c);
        w->last = c;
    }
}

/* The terminal may have another width by now, and lines on stderr may have ended ours. */
static int look(struct wrap *w) {
    int columns = say_text_columns();
    if (!say_line_is_open())
        w->column = 0;
    else if (columns > 0 && w->column > columns)
        w->column %= columns;
    return columns;
}

int wrap_text(struct wrap *w, const char *at, size_t length) {
    int columns = look(w);
    struct str rest = {at, length};
    w->exit = 0;
    if (columns == 0) { /* what was held for a terminal that had a width comes first */
        end_word(w, INT_MAX);
        flush(w);
        return w->exit ? w->exit : say_text(at, length);
    }
    while (rest.len > 0) {
        uint32_t c = '?';
        size_t n = utf8_decode(rest, &c);
        n = n ? n : 1;
        take(w, (struct str){rest.at, n}, c, columns);
        rest = str_skip(rest, n);
    }
    flush(w);
    return w->exit;
}

int wrap_end(struct wrap *w) {
    int columns = look(w);
    w->exit = 0;
    end_word(w, columns > 0 ? columns : INT_MAX);
    flush(w);
    int exit = w->exit;
    *w = (struct wrap){.exit = 0};
    return exit;
}
