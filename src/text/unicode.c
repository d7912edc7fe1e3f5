/* unicode.c - character classes, and bytes made into valid UTF-8.
 *
 * The classes come from utf8proc and are laid out flat, one byte per code point: a lookup is one
 * load, and the pages of scripts that never occur are never touched again. */
#include "text/unicode.h"

#include <pthread.h>
#include <utf8proc.h>

static uint8_t classes[0x110000];

static bool is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static uint8_t class_of_category(utf8proc_category_t category) {
    switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return CHAR_LETTER | CHAR_WORD;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return CHAR_MARK | CHAR_WORD;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
        return CHAR_NUMBER | CHAR_WORD;
    case UTF8PROC_CATEGORY_NO:
        return CHAR_NUMBER;
    case UTF8PROC_CATEGORY_PC:
        return CHAR_PUNCT | CHAR_WORD;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return CHAR_PUNCT;
    default:
        return 0;
    }
}

/* A character is unstable when NFC replaces it, when it can be the second half of a composition, or
 * when it has a combining class. Compositions are found by decomposing composed characters. */
static void mark_unstable(uint32_t c, const utf8proc_property_t *property) {
    if (property->combining_class != 0)
        classes[c] |= CHAR_UNSTABLE;
    if (property->decomp_seqindex == UINT16_MAX || property->decomp_type != 0)
        return; /* no canonical decomposition */
    utf8proc_int32_t parts[32];
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, parts, 32,
                                                 UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
    if (n < 1 || n > 32)
        return;
    for (utf8proc_ssize_t i = 1; i < n; i++)
        classes[parts[i]] |= CHAR_UNSTABLE;
    n = utf8proc_normalize_utf32(parts, n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (n != 1 || parts[0] != (utf8proc_int32_t)c)
        classes[c] |= CHAR_UNSTABLE;
}

static void make_classes(void) {
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c == 0x40000) /* planes 4 to 13 are empty, 15 and 16 are private */
            c = 0xE0000;
        else if (c == 0xF0000)
            break;
        const utf8proc_property_t *property = utf8proc_get_property((utf8proc_int32_t)c);
        classes[c] |= class_of_category((utf8proc_category_t)property->category);
        if (is_space(c))
            classes[c] |= CHAR_SPACE;
        mark_unstable(c, property);
    }
    classes['\r'] |= CHAR_NEWLINE;
    classes['\n'] |= CHAR_NEWLINE;
    for (const char *p = "$+<=>^~|"; *p; p++)
        classes[(unsigned char)*p] |= CHAR_PUNCT;
    static const uint32_t word_ranges[][2] = {
        {0x200C, 0x200D},   /* the joiners */
        {0x24B6, 0x24E9},   /* symbols that count as letters: circled, */
        {0x1F130, 0x1F149}, /* squared */
        {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
    };
    for (size_t i = 0; i < sizeof word_ranges / sizeof *word_ranges; i++)
        for (uint32_t c = word_ranges[i][0]; c <= word_ranges[i][1]; c++)
            classes[c] |= CHAR_WORD;
    for (uint32_t c = 0x1161; c <= 0x11C2; c++) /* Hangul vowels and finals compose by rule */
        if (c <= 0x1175 || c >= 0x11A8)
            classes[c] |= CHAR_UNSTABLE;
}

const uint8_t *char_classes(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_classes);
    return classes;
}

/* The length of the valid UTF-8 that s begins with; ASCII goes eight bytes at a time. */
static size_t valid_length(struct str s) {
    size_t i = 0;
    while (i < s.len) {
        uint64_t w;
        if (s.len - i >= sizeof w && (memcpy(&w, s.at + i, sizeof w), true) &&
            (w & 0x8080808080808080u) == 0) {
            i += sizeof w;
            continue;
        }
        size_t n = utf8_length(str_skip(s, i));
        if (n == 0)
            break;
        i += n;
    }
    return i;
}

/* Copies s with each bad byte replaced; out NULL only counts. Returns the bytes of the result. */
static size_t replace_bad(struct str s, char *out) {
    size_t size = 0;
    while (s.len > 0) {
        size_t good = valid_length(s);
        if (out)
            memcpy(out + size, s.at, good);
        size += good;
        s = str_skip(s, good);
        if (s.len == 0)
            break;
        if (out)
            memcpy(out + size, "\xEF\xBF\xBD", 3);
        size += 3;
        s = str_skip(s, 1);
    }
    return size;
}

int utf8_clean(struct str *text, struct arena *arena, struct err *err) {
    if (valid_length(*text) == text->len)
        return SLUICE_OK;
    size_t size = replace_bad(*text, NULL);
    char *clean = arena_alloc(arena, size);
    if (!clean)
        return err_memory(err, "a text with invalid UTF-8");
    replace_bad(*text, clean);
    *text = (struct str){clean, size};
    return SLUICE_OK;
}
