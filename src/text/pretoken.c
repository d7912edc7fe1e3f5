/* pretoken.c - the pre-tokenizers.
 *
 * A pass is given a piece of text and says how long its first part is; the piece's end is a hard
 * end that no lookahead crosses. The regexes, and the order of their alternatives:
 *
 *   qwen2     (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}
 *             | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *   qwen35    the same with [\p{L}\p{M}] for \p{L}, but for the first
 *   llama-bpe the same with \p{N}{1,3}
 *   gpt-2     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   smollm    \p{N}, then gpt-2
 *   default   [\p{P}$+<=>^~|]+, then gpt-2, then \p{N}+, then [0-9][0-9][0-9]
 *
 * Under Unicode's case folding (?i:'s) also means an apostrophe and U+017F, the long s. Hugging
 * Face matches it, llama.cpp does not; here it matches, from either container: it is what the
 * tokenizer that a model was trained with does, and text should not change its ids with the file's
 * format. */
#include "text/pretoken.h"

#include "base/err.h"
#include "text/unicode.h"

/* A piece being scanned. */
struct view {
    const uint8_t *classes;
    const char *at, *end;
};

struct pretoken_pass {
    size_t (*first)(const struct pretoken_pass *pass, struct view v);
    uint8_t mask;       /* the classes a pass isolates, or what counts as a letter */
    uint8_t max_digits; /* numbers come in groups of up to this many */
};

/* ---- small steps ---- */

/* The class of the character at p and its size; 0 and size 0 at the end. */
static inline uint8_t class_at(struct view v, const char *p, size_t *size) {
    if (p >= v.end)
        return *size = 0, 0;
    unsigned char b = (unsigned char)*p;
    if (b < 0x80)
        return *size = 1, v.classes[b];
    return v.classes[char_at(p, size)];
}

/* The end of the run of characters from p on that have a class of `any`. */
static inline const char *run_of(struct view v, const char *p, uint8_t any) {
    size_t size;
    while (p < v.end && class_at(v, p, &size) & any)
        p += size;
    return p;
}

/* The end of the run of characters from p on that have no class of `any`. */
static inline const char *run_without(struct view v, const char *p, uint8_t any) {
    size_t size;
    while (p < v.end && !(class_at(v, p, &size) & any))
        p += size;
    return p;
}

/* The bytes of a contraction ('s 't 'm 'd 're 've 'll) at v.at, or 0. */
static size_t contraction(struct view v, bool is_caseless) {
    size_t left = (size_t)(v.end - v.at);
    if (left < 2 || v.at[0] != '\'')
        return 0;
    char fold = is_caseless ? 0x20 : 0;
    char a = (char)(v.at[1] | fold), b = left > 2 ? (char)(v.at[2] | fold) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    if (is_caseless && left > 2 && memcmp(v.at + 1, "\xC5\xBF", 2) == 0) /* the long s */
        return 3;
    return 0;
}

/* \s+(?!\S)|\s+ on the run of white space [v.at, end): all of it when the piece ends there or it is
 * one character, else all but its last character, which goes with what follows. */
static size_t blank_run(struct view v, const char *end) {
    if (end == v.end)
        return (size_t)(end - v.at);
    const char *last = end - 1;
    while (((unsigned char)*last & 0xC0) == 0x80)
        last--;
    return (size_t)((last > v.at ? last : end) - v.at);
}

/* ---- passes ---- */

/* White space for the newer rules: through the last line break of the run, if there is one. */
static size_t blank_or_lines(struct view v) {
    const char *end = run_of(v, v.at, CHAR_SPACE);
    for (const char *p = end; p > v.at; p--)
        if (p[-1] == '\n' || p[-1] == '\r')
            return (size_t)(p - v.at);
    return blank_run(v, end);
}

/* Qwen and Llama 3. `mask` says what counts as a letter. */
static size_t first_modern(const struct pretoken_pass *pass, struct view v) {
    size_t size, next_size;
    size_t n = contraction(v, true);
    if (n)
        return n;
    uint8_t c = class_at(v, v.at, &size);
    if (c & pass->mask)
        return (size_t)(run_of(v, v.at + size, pass->mask) - v.at);
    if (c & CHAR_NUMBER) {
        const char *p = v.at + size;
        for (int i = 1; i < pass->max_digits && class_at(v, p, &size) & CHAR_NUMBER; i++)
            p += size;
        return (size_t)(p - v.at);
    }
    uint8_t next = class_at(v, v.at + size, &next_size);
    if (!(c & (CHAR_NEWLINE | CHAR_LETTER)) && next & pass->mask)
        return (size_t)(run_of(v, v.at + size + next_size, pass->mask) - v.at);
    const uint8_t not_symbol = CHAR_SPACE | CHAR_NUMBER | pass->mask;
    const char *symbols = v.at + (*v.at == ' ');
    const char *end = run_without(v, symbols, not_symbol);
    if (end > symbols)
        return (size_t)(run_of(v, end, CHAR_NEWLINE) - v.at);
    return blank_or_lines(v);
}

static size_t first_gpt2(const struct pretoken_pass *pass, struct view v) {
    (void)pass;
    size_t size, n = contraction(v, false);
    if (n)
        return n;
    const char *p = v.at + (*v.at == ' ');
    uint8_t c = class_at(v, p, &size);
    const char *end = p;
    if (c & CHAR_LETTER)
        end = run_of(v, p, CHAR_LETTER);
    else if (c & CHAR_NUMBER)
        end = run_of(v, p, CHAR_NUMBER);
    else
        end = run_without(v, p, CHAR_LETTER | CHAR_NUMBER | CHAR_SPACE);
    if (end > p)
        return (size_t)(end - v.at);
    return blank_run(v, run_of(v, v.at, CHAR_SPACE));
}

/* Each character of `mask` alone, what is between them whole. */
static size_t first_each(const struct pretoken_pass *pass, struct view v) {
    size_t size;
    if (class_at(v, v.at, &size) & pass->mask)
        return size;
    return (size_t)(run_without(v, v.at, pass->mask) - v.at);
}

/* Each run of `mask` whole, what is between them whole. */
static size_t first_run(const struct pretoken_pass *pass, struct view v) {
    size_t size;
    if (class_at(v, v.at, &size) & pass->mask)
        return (size_t)(run_of(v, v.at, pass->mask) - v.at);
    return (size_t)(run_without(v, v.at, pass->mask) - v.at);
}

/* Three ASCII digits, or what is before the next three. */
static size_t first_three(const struct pretoken_pass *pass, struct view v) {
    (void)pass;
    int digits = 0;
    for (const char *p = v.at; p < v.end; p++) {
        digits = *p >= '0' && *p <= '9' ? digits + 1 : 0;
        if (digits == 3)
            return p - v.at > 2 ? (size_t)(p - v.at - 2) : 3;
    }
    return (size_t)(v.end - v.at);
}

static const struct pretoken_pass pass_qwen2 = {first_modern, CHAR_LETTER, 1};
static const struct pretoken_pass pass_qwen35 = {first_modern, CHAR_LETTER | CHAR_MARK, 1};
static const struct pretoken_pass pass_llama3 = {first_modern, CHAR_LETTER, 3};
static const struct pretoken_pass pass_gpt2 = {first_gpt2, 0, 0};
static const struct pretoken_pass pass_each_number = {first_each, CHAR_NUMBER, 0};
static const struct pretoken_pass pass_punctuation = {first_run, CHAR_PUNCT, 0};
static const struct pretoken_pass pass_numbers = {first_run, CHAR_NUMBER, 0};
static const struct pretoken_pass pass_three = {first_three, 0, 0};

/* ---- the table ---- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BLANKS "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* clang-format off */
static const struct pretoken table[] = {
    {.names = {"qwen2", "deepseek-r1-qwen", "megrez", "kormo"}, .passes = {&pass_qwen2},
     .regex = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
              "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" BLANKS},
    {.names = {"qwen35"}, .passes = {&pass_qwen35},
     .regex = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
              "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" BLANKS},
    {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0",
               "lfm2"},
     .passes = {&pass_llama3}, .is_llama3 = true,
     .regex = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
              "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" BLANKS},
    {.names = {"gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum"}, .passes = {&pass_gpt2},
     .regex = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
              "|\\s+(?!\\S)|\\s+"},
    {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell"},
     .passes = {&pass_each_number, &pass_gpt2}},
    {.names = {"default"},
     .passes = {&pass_punctuation, &pass_gpt2, &pass_numbers, &pass_three}},
};
/* clang-format on */
enum { TABLE_COUNT = sizeof table / sizeof *table };

const struct pretoken *pretoken_find(struct str name) {
    for (int i = 0; i < TABLE_COUNT; i++)
        for (const char *const *alias = table[i].names; *alias; alias++)
            if (str_is(name, *alias))
                return &table[i];
    return NULL;
}

const struct pretoken *pretoken_find_regex(struct str regex) {
    for (int i = 0; i < TABLE_COUNT; i++)
        if (table[i].regex && str_is(regex, table[i].regex))
            return &table[i];
    return NULL;
}

void pretoken_begin(struct pretoken_walk *walk, const struct pretoken *pre, struct str text) {
    *walk = (struct pretoken_walk){.classes = char_classes(), .pre = pre, .at = text.at};
    walk->ends[0] = text.at + text.len;
    for (int i = 1; i <= PRETOKEN_PASSES; i++)
        walk->ends[i] = text.at;
}

bool pretoken_next(struct pretoken_walk *walk, struct str *word) {
    if (walk->at == walk->ends[0])
        return false;
    int i = 0;
    for (; i < PRETOKEN_PASSES && walk->pre->passes[i]; i++) {
        if (walk->ends[i + 1] != walk->at)
            continue; /* this pass's piece is not used up yet */
        const struct pretoken_pass *pass = walk->pre->passes[i];
        struct view v = {walk->classes, walk->at, walk->ends[i]};
        walk->ends[i + 1] = walk->at + pass->first(pass, v);
    }
    *word = (struct str){walk->at, (size_t)(walk->ends[i] - walk->at)};
    walk->at = walk->ends[i];
    return true;
}
