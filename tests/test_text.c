/* test_text.c - tokenizers: splitting, merging, special tokens, NFC, and the way back. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <inttypes.h>
#include <pcre2.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "file/folder.h"
#include "file/gguf.h"
#include "file/gguf_write.h"
#include "test.h"
#include "text/tokenizer_make.h"
#include "text/unicode.h"

/* ---- helpers ---- */

static uint64_t random_state;

static uint32_t random_below(uint32_t n) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % n);
}

static struct tokenizer *open_gguf(const char *path) {
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    struct err err = {0};
    if (gguf_open(&g, path, &err) != SLUICE_OK || tokenizer_from_gguf(&t, g, &err) != SLUICE_OK)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    gguf_close(g);
    return t;
}

static struct tokenizer *open_folder(const char *path) {
    struct folder *f = NULL;
    struct tokenizer *t = NULL;
    struct err err = {0};
    if (folder_open(&f, path, false, &err) != SLUICE_OK ||
        tokenizer_from_folder(&t, f, &err) != SLUICE_OK)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    folder_close(f);
    return t;
}

/* A tokenizer.json (backquotes stand for quotes) or an object of a folder's files. */
static int load_json(struct tokenizer **t, const char *backquoted, struct err *err) {
    char *text = strdup(backquoted);
    for (char *p = text; *p; p++)
        if (*p == '`')
            *p = '"';
    json_t *root = json_parse(str_of(text), "test", NULL, err);
    bool is_folder = json_object_get(root, "tokenizer");
    struct folder f = {.path = "folder",
                       .tokenizer = is_folder ? json_object_get(root, "tokenizer") : root,
                       .tokenizer_config = json_object_get(root, "tokenizer_config"),
                       .generation = json_object_get(root, "generation"),
                       .config = json_object_get(root, "config")};
    int status = root ? tokenizer_from_folder(t, &f, err) : err->code;
    json_decref(root);
    free(text);
    return status;
}

/* "1 2 3" of a text's ids; static. */
static const char *ids_of(const struct tokenizer *t, struct str text, unsigned flags) {
    static char line[1 << 16];
    struct ids ids = {0};
    size_t n = 0;
    EXPECT_INT(tokenizer_encode(t, text, flags, &ids, NULL), SLUICE_OK);
    line[0] = 0;
    for (size_t i = 0; i < ids.len && n + 16 < sizeof line; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, "%s%d", i ? " " : "", (int)ids.at[i]);
    ids_free(&ids);
    return line;
}

static const char *ids_of_z(const struct tokenizer *t, const char *text, unsigned flags) {
    return ids_of(t, str_of(text), flags);
}

/* The text of ids, control tokens shown; free() its buffer. */
static struct text_buffer decode(const struct tokenizer *t, const struct ids *ids) {
    struct detok d = {.t = t, .with_control = true};
    struct text_buffer out = {0};
    for (size_t i = 0; i < ids->len; i++)
        EXPECT_INT(detok_push(&d, ids->at[i], &out, NULL), SLUICE_OK);
    EXPECT_INT(detok_end(&d, &out, NULL), SLUICE_OK);
    return out;
}

static void expect_decoded(const struct tokenizer *t, const struct ids *ids, struct str text) {
    struct text_buffer out = decode(t, ids);
    if (!str_equal((struct str){out.at, out.len}, text))
        test_fail(__FILE__, __LINE__, "decoded \"%.*s\", expected \"%.*s\"",
                  STR_ARG(((struct str){out.at, out.len})), STR_ARG(text));
    text_buffer_free(&out);
}

static void expect_round_trip(const struct tokenizer *t, struct str text, unsigned flags) {
    struct ids ids = {0};
    EXPECT_INT(tokenizer_encode(t, text, flags, &ids, NULL), SLUICE_OK);
    expect_decoded(t, &ids, text);
    ids_free(&ids);
}

/* Characters that scanners, regexes and NFC stumble over. */
static const uint32_t pool[] = {
    'a',     'B',      's',    'S',    't',    'T',    'r',    'e',     'E',     'v',     'l',
    'L',     'm',      'd',    'D',    '\'',   '\'',   '\'',   ' ',     ' ',     ' ',     '\n',
    '\n',    '\r',     '\t',   '0',    '1',    '9',    '.',    ',',     '!',     '$',     '+',
    '<',     '=',      '>',    '^',    '~',    '|',    '`',    '_',     '-',     '(',     0x0B,
    0x0C,    0x1F,     0x00,   0x7F,   0x85,   0xA0,   0xAD,   0xB2,    0xBD,    0xC4,    0xE9,
    0x17F,   0x1C5,    0x300,  0x301,  0x316,  0x345,  0x3A3,  0x410,   0x663,   0x6DD,   0x915,
    0x94D,   0x93F,    0xE33,  0x1680, 0x1100, 0x1161, 0x11A8, 0x2000,  0x200A,  0x200B,  0x200D,
    0x2019,  0x2028,   0x2029, 0x202F, 0x205F, 0x20AC, 0x20DD, 0x2160,  0x2460,  0x212A,  0x212B,
    0x3000,  0x3042,   0x65E5, 0xAC00, 0xFEFF, 0xFFFD, 0xFFFF, 0x1D7D8, 0x1F680, 0x1F1E6, 0x20000,
    0xE0100, 0x10FFFF,
};
enum { POOL = sizeof pool / sizeof *pool };

/* A random text of up to n characters of the first `kinds` of the pool. */
static size_t random_text(char *out, uint32_t n, const uint32_t *from, uint32_t kinds) {
    size_t len = 0;
    for (uint32_t i = random_below(n + 1); i > 0; i--)
        len += utf8_put(from[random_below(kinds)], out + len);
    return len;
}

/* ---- pre-tokenizers ---- */

#define DOT "\xC2\xB7"
enum { MAX_WORDS = 512 };

static size_t split(const char *name, struct str text, struct str *words) {
    struct pretoken_walk walk;
    size_t n = 0;
    pretoken_begin(&walk, pretoken_find(str_of(name)), text);
    while (n < MAX_WORDS && pretoken_next(&walk, &words[n]))
        n++;
    return n;
}

/* The words with middle dots between; static. */
static const char *split_line(const char *name, const char *text) {
    static char line[1024];
    struct str words[MAX_WORDS];
    size_t n = split(name, str_of(text), words), len = 0;
    line[0] = 0;
    for (size_t i = 0; i < n; i++)
        len += (size_t)snprintf(line + len, sizeof line - len, "%s%.*s", i ? DOT : "",
                                STR_ARG(words[i]));
    return line;
}

TEST(text_splits_are_the_published_ones) {
    static const struct {
        const char *text, *qwen2, *qwen35, *llama, *smollm, *gpt2; /* NULL: as the one before */
    } cases[] = {
        {"Hello, y'all!", "Hello·,· y·'all·!", NULL, NULL, "Hello·,· y·'·all·!", NULL},
        {"I'VE 12345 a", "I·'VE· ·1·2·3·4·5· a", NULL, "I·'VE· ·123·45· a", "I·'·VE· ·1·2·3·4·5· a",
         "I·'·VE· 12345· a"},
        {"don't 'Tis 3.14", "don·'t· '·Tis· ·3·.·1·4", NULL, "don·'t· '·Tis· ·3·.·14",
         "don·'t· '·Tis· ·3·.·1·4", "don·'t· '·Tis· 3·.·14"},
        {"  two  spaces\n\n\tTab", " · two· · spaces·\n\n·\tTab", NULL, NULL,
         " · two· · spaces·\n\n·\t·Tab", NULL},
        {"x=1;\r\n\r\ny", "x·=·1·;\r\n\r\n·y", NULL, NULL, "x·=·1·;·\r\n\r·\n·y", NULL},
        {"\n \n x", "\n \n· x", NULL, NULL, NULL, NULL},
        {"re\u0301sume\u0301", "re·\u0301sume·\u0301", "re\u0301sume\u0301", "re·\u0301sume·\u0301",
         "re·\u0301·sume·\u0301", NULL},
        {"क्षेत्र ok", "क·्ष·ेत·्र· ok", "क्षेत्र· ok", "क·्ष·ेत·्र· ok", "क·्·ष·े·त·्·र· ok", NULL},
        {"a\u00a0b  ", "a·\u00a0b·  ", NULL, NULL, "a·\u00a0·b·  ", NULL},
        {"#$%^ 日本語123 🚀🚀", "#$%^· 日本語·1·2·3· 🚀🚀", NULL, "#$%^· 日本語·123· 🚀🚀",
         "#$%^· 日本語·1·2·3· 🚀🚀", "#$%^· 日本語·123· 🚀🚀"},
        {"I\u2019m", "I·\u2019m", NULL, NULL, "I·\u2019·m", NULL},
        {"a'\u017f'S", "a·'\u017f·'S", NULL, NULL, "a·'·\u017f·'·S", NULL}, /* the long s */
        {"", "", NULL, NULL, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *names[] = {"qwen2", "qwen35", "llama-bpe", "smollm", "gpt-2"};
        const char *expected[] = {cases[i].qwen2, cases[i].qwen35, cases[i].llama, cases[i].smollm,
                                  cases[i].gpt2};
        for (int k = 0; k < 5; k++) {
            if (k > 0 && !expected[k])
                expected[k] = expected[k - 1];
            EXPECT_STR(split_line(names[k], cases[i].text), expected[k]);
        }
    }
    EXPECT_STR(split_line("default", "a+b, 1234567x 'll"), "a·+·b·,· ·123·456·7·x· ·'·ll");
}

TEST(text_pretokenizers_have_aliases) {
    static const char *const pairs[][2] = {
        {"llama3", "llama-bpe"},       {"llama-v3", "llama-bpe"},  {"starcoder", "smollm"},
        {"refact", "smollm"},          {"command-r", "smollm"},    {"codeshell", "smollm"},
        {"deepseek-r1-qwen", "qwen2"}, {"megrez", "qwen2"},        {"kormo", "qwen2"},
        {"falcon3", "llama-bpe"},      {"falcon-h1", "llama-bpe"}, {"pixtral", "llama-bpe"},
        {"midm-2.0", "llama-bpe"},     {"lfm2", "llama-bpe"},      {"phi-2", "gpt-2"},
        {"gigachat", "gpt-2"},         {"a.x-4.0", "gpt-2"},       {"mellum", "gpt-2"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        EXPECT(pretoken_find(str_of(pairs[i][0])) == pretoken_find(str_of(pairs[i][1])));
    EXPECT(pretoken_find(STR("qwen")) == NULL);
    EXPECT(pretoken_find(STR("")) == NULL);
}

/* ---- the regexes themselves, run by PCRE2 ---- */

#define OLD_WORDS                                                                                  \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define BLANK_WORDS "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SHORT_WORDS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

static const struct oracle {
    const char *name, *passes[4];
} oracles[] = {
    {"qwen2",
     {SHORT_WORDS
      "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" BLANK_WORDS}},
    {"qwen35",
     {SHORT_WORDS
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
      "|" BLANK_WORDS}},
    {"llama-bpe",
     {SHORT_WORDS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                  "|" BLANK_WORDS}},
    {"gpt-2", {OLD_WORDS}},
    {"smollm", {"\\p{N}", OLD_WORDS}},
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", OLD_WORDS, "\\p{N}+", "[0-9][0-9][0-9]"}},
};
enum { ORACLES = sizeof oracles / sizeof *oracles };

static pcre2_code *compile(const char *regex) {
    int code;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                   &code, &at, NULL);
    CHECK(re);
    pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    return re;
}

struct oracle_split {
    pcre2_code *passes[4];
    pcre2_match_data *match;
    struct str words[MAX_WORDS];
    size_t n;
};

/* Cuts a piece into matches and the gaps between, each by the passes after. */
static void oracle_run(struct oracle_split *o, int pass, struct str piece) {
    if (pass == 4 || !o->passes[pass]) {
        if (o->n < MAX_WORDS)
            o->words[o->n++] = piece;
        return;
    }
    size_t at = 0;
    while (at < piece.len) {
        size_t begin = piece.len, end = piece.len;
        if (pcre2_match(o->passes[pass], (PCRE2_SPTR)piece.at, piece.len, at, 0, o->match, NULL) >
            0) {
            begin = pcre2_get_ovector_pointer(o->match)[0];
            end = pcre2_get_ovector_pointer(o->match)[1];
        }
        if (begin > at)
            oracle_run(o, pass + 1, (struct str){piece.at + at, begin - at});
        if (end > begin)
            oracle_run(o, pass + 1, (struct str){piece.at + begin, end - begin});
        at = end;
    }
}

/* The pool without characters whose class is another in PCRE2's version of Unicode. */
static uint32_t agreed_pool(uint32_t *out) {
    static const struct {
        const char *regex;
        uint8_t mask;
    } rules[] = {{"\\p{L}", CHAR_LETTER},
                 {"\\p{M}", CHAR_MARK},
                 {"\\p{N}", CHAR_NUMBER},
                 {"\\s", CHAR_SPACE},
                 {"[\\p{P}$+<=>^~|]", CHAR_PUNCT}};
    uint32_t n = 0;
    bool agrees[POOL];
    memset(agrees, 1, sizeof agrees);
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        pcre2_code *re = compile(rules[r].regex);
        pcre2_match_data *match = pcre2_match_data_create_from_pattern(re, NULL);
        for (size_t i = 0; i < POOL; i++) {
            char bytes[4];
            size_t len = utf8_put(pool[i], bytes);
            bool is_theirs = pcre2_match(re, (PCRE2_SPTR)bytes, len, 0, 0, match, NULL) > 0;
            if (is_theirs != ((char_classes()[pool[i]] & rules[r].mask) != 0))
                agrees[i] = false;
        }
        pcre2_match_data_free(match);
        pcre2_code_free(re);
    }
    for (size_t i = 0; i < POOL; i++)
        if (agrees[i])
            out[n++] = pool[i];
    EXPECT(n > POOL - 8);
    return n;
}

static void compare_split(struct oracle_split *o, const char *name, struct str text) {
    struct str words[MAX_WORDS];
    size_t n = split(name, text, words);
    o->n = 0;
    oracle_run(o, 0, text);
    bool is_same = n == o->n;
    for (size_t i = 0; i < n && is_same; i++)
        is_same = words[i].at == o->words[i].at && words[i].len == o->words[i].len;
    if (!is_same)
        test_fail(__FILE__, __LINE__, "%s splits \"%.*s\" into %zu words, the regex into %zu", name,
                  STR_ARG(text), n, o->n);
}

TEST(text_scanners_do_what_the_regexes_do) {
    static const char *const files[] = {"tokenizer/ggml-vocab-qwen2.gguf.inp",
                                        "tokenizer/ggml-vocab-qwen35.gguf.inp",
                                        "tokenizer/ggml-vocab-llama-bpe.gguf.inp"};
    uint32_t agreed[POOL], n = agreed_pool(agreed);
    random_state = 1;
    for (int k = 0; k < ORACLES; k++) {
        struct oracle_split o = {0};
        for (int i = 0; i < 4 && oracles[k].passes[i]; i++)
            o.passes[i] = compile(oracles[k].passes[i]);
        o.match = pcre2_match_data_create(16, NULL);
        char text[256];
        for (int i = 0; i < (test_is_slow() ? 5000 : 50000); i++) {
            /* Few kinds of characters make long runs, many make odd neighbours. */
            uint32_t from[POOL], kinds = 1 + random_below(i % 2 ? 6 : n);
            for (uint32_t j = 0; j < kinds; j++)
                from[j] = agreed[random_below(n)];
            compare_split(&o, oracles[k].name,
                          (struct str){text, random_text(text, 40, from, kinds)});
        }
        for (int i = 0; i < 3; i++) {
            size_t size = 0;
            char *data = test_read_file(test_data(files[i]), &size);
            for (size_t at = 0; data && at < size; at += 256) {
                struct str part = {data + at, size - at < 300 ? size - at : 300};
                if (utf8_valid(part))
                    compare_split(&o, oracles[k].name, part);
            }
            free(data);
        }
        for (int i = 0; i < 4; i++)
            pcre2_code_free(o.passes[i]);
        pcre2_match_data_free(o.match);
    }
}

/* ---- vectors ---- */

/* NAME.gguf.inp: texts, each followed by a separator; NAME.gguf.out: a line of ids for each. */
static int compare_vectors(const char *name) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[128];
    size_t size = 0, out_size = 0;
    snprintf(path, sizeof path, "tokenizer/ggml-vocab-%s.gguf", name);
    struct tokenizer *t = open_gguf(test_data(path));
    strcat(path, ".inp");
    char *texts = test_read_file(test_data(path), &size);
    memcpy(path + strlen(path) - 3, "out", 3);
    char *lines = test_read_file(test_data(path), &out_size);
    int n = 0;
    char *end, *line = lines, *text = texts;
    for (; t && text && lines &&
           (end = memmem(text, size - (size_t)(text - texts), separator, sizeof separator - 1));
         text = end + sizeof separator - 1, n++) {
        char *newline = strchr(line, '\n');
        if (!newline)
            break;
        *newline = 0;
        EXPECT_STR(ids_of(t, (struct str){text, (size_t)(end - text)}, 0), line + (*line == ' '));
        line = newline + 1;
    }
    free(texts);
    free(lines);
    tokenizer_close(t);
    return n;
}

TEST(text_llama_cpp_vectors) {
    EXPECT_INT(compare_vectors("gpt-2"), 46);
    EXPECT_INT(compare_vectors("starcoder"), 46);
    EXPECT_INT(compare_vectors("llama-spm"), 46);
}

static bool read_ids(const char *line, struct ids *ids) {
    ids->len = 0;
    for (char *end; *line && *line != '\t' && *line != '\n'; line = end) {
        long id = strtol(line, &end, 10);
        if (end == line || ids_push(ids, (int32_t)id, NULL) != SLUICE_OK)
            return false;
        while (*end == ' ')
            end++;
    }
    return true;
}

TEST(text_qwen35_vocabulary_vectors) {
    struct tokenizer *t = open_gguf(test_data("tokenizer/qwen35-vocab.gguf"));
    size_t size = 0;
    char *data = test_read_file(test_data("tokenizer/qwen35-vocab.jsonl"), &size);
    int n = 0;
    if (t && data) {
        EXPECT_STR(ids_of_z(t, "Paris is the capital of", 0), "57590 369 279 6511 314");
        for (char *line = strtok(data, "\n"); line; line = strtok(NULL, "\n"), n++) {
            json_t *entry = json_parse(str_of(line), "line", NULL, NULL);
            json_t *list = json_object_get(entry, "ids");
            struct str text = {"", 0};
            struct ids ids = {0};
            json_str(json_object_get(entry, "text"), &text);
            EXPECT_INT(tokenizer_encode(t, text, ENCODE_SPECIAL, &ids, NULL), SLUICE_OK);
            EXPECT_INT(ids.len, json_array_size(list));
            for (size_t i = 0; i < ids.len && i < json_array_size(list); i++)
                EXPECT_INT(ids.at[i], json_integer_value(json_array_get(list, i)));
            expect_decoded(t, &ids, text);
            ids_free(&ids);
            json_decref(entry);
        }
    }
    EXPECT_INT(n, 148);
    EXPECT(t && tokenizer_is_end(t, 248046) && tokenizer_is_end(t, 248044));
    EXPECT(t && !tokenizer_is_end(t, 248045) && !tokenizer_adds_bos(t));
    free(data);
    tokenizer_close(t);
}

/* Undoes \\ \n \r \t \0 in place. */
static struct str unescape(char *text) {
    char *out = text;
    for (char *p = text; *p; p++) {
        if (*p == '\\' && p[1]) {
            static const char from[] = "\\nrt0", to[] = "\\\n\r\t";
            p++;
            *out++ = to[strchr(from, *p) - from];
        } else {
            *out++ = *p;
        }
    }
    return (struct str){text, (size_t)(out - text)};
}

/* The lines of text.txt or text-nfc.txt. Decoding gives the text back where NFC is no matter. */
static int compare_texts(const struct tokenizer *t, const char *path, bool decodes) {
    size_t size = 0;
    int n = 0;
    char *data = test_read_file(path, &size), *line = data;
    struct ids expected = {0}, found = {0};
    while (t && line && *line) {
        char *newline = strchr(line, '\n'), *tab = strchr(line, '\t');
        if (!newline || !tab || !read_ids(line, &expected))
            break;
        *newline = 0;
        struct str text = unescape(tab + 1);
        found.len = 0;
        EXPECT_INT(tokenizer_encode(t, text, ENCODE_SPECIAL, &found, NULL), SLUICE_OK);
        bool is_same =
            found.len == expected.len &&
            (found.len == 0 || memcmp(found.at, expected.at, found.len * sizeof *found.at) == 0);
        if (!is_same)
            test_fail(__FILE__, __LINE__, "%s: \"%.*s\" has other ids", path, STR_ARG(text));
        if (decodes)
            expect_decoded(t, &expected, text);
        n++;
        line = newline + 1;
    }
    ids_free(&expected);
    ids_free(&found);
    free(data);
    return n;
}

TEST(text_reference_models) {
    static const struct {
        const char *name, *gguf, *pre;
        bool has_folder, has_nfc;
    } models[] = {
        {"llama-a", "model-f32.gguf", "llama-bpe", true, false},
        {"llama-b", "model-f32.gguf", "smollm", true, false},
        {"llama-k", "model-q4_k_m.gguf", "smollm", false, false},
        {"qwen2-a", "model-f32.gguf", "qwen2", true, true},
        {"qwen3-a", "model-f32.gguf", "qwen2", true, true},
        {"qwen3moe-a", "model-f32.gguf", "qwen2", true, true},
        {"qwen3next-a", "model-f32.gguf", "qwen2", true, true},
        {"qwen35-dense-a", "model-f32.gguf", "qwen35", true, true},
        {"qwen35-dense-b", NULL, "qwen35", true, true},
        {"qwen35-dense-k", "model-q4_k_m.gguf", "qwen35", false, true},
        {"qwen35-moe-a", "model-f32.gguf", "qwen35", true, true},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char folder[128], path[192];
        snprintf(folder, sizeof folder, "reference/%s", models[i].name);
        snprintf(path, sizeof path, "%s/%s", folder, models[i].gguf ? models[i].gguf : "");
        struct tokenizer *from[2] = {
            models[i].gguf ? open_gguf(test_data(path)) : NULL,
            models[i].has_folder ? open_folder(test_data(folder)) : NULL,
        };
        for (int k = 0; k < 2; k++) {
            struct tokenizer *t = from[k];
            if (!t)
                continue;
            EXPECT_STR(tokenizer_pre_name(t), models[i].pre);
            EXPECT_INT(tokenizer_uses_nfc(t), k == 1 && models[i].has_nfc);
            snprintf(path, sizeof path, "%s/text.txt", folder);
            EXPECT_INT(compare_texts(t, test_data(path), true), 36);
            snprintf(path, sizeof path, "%s/text-nfc.txt", folder);
            tokenizer_set_nfc(t, true);
            if (models[i].has_nfc)
                EXPECT_INT(compare_texts(t, test_data(path), false), 4);
            int32_t eos = tokenizer_find(t, STR("<|im_end|>"));
            EXPECT_INT(tokenizer_eos(t), eos);
            EXPECT(tokenizer_is_end(t, eos));
            EXPECT(tokenizer_is_end(t, tokenizer_find(t, STR("<|endoftext|>"))));
            EXPECT(!tokenizer_is_end(t, tokenizer_find(t, STR("<think>"))));
            EXPECT_INT(tokenizer_adds_bos(t), strcmp(models[i].name, "llama-a") == 0);
        }
        if (from[0] && from[1]) { /* both containers say the same */
            EXPECT_INT(tokenizer_count(from[0]), tokenizer_count(from[1]));
            EXPECT_INT(tokenizer_bos(from[0]), tokenizer_bos(from[1]));
            for (int32_t id = 0; id < tokenizer_count(from[0]); id++) {
                EXPECT(str_equal(tokenizer_token(from[0], id), tokenizer_token(from[1], id)));
                EXPECT_INT(tokenizer_type(from[0], id), tokenizer_type(from[1], id));
                EXPECT_INT(tokenizer_is_end(from[0], id), tokenizer_is_end(from[1], id));
            }
            EXPECT(str_equal(tokenizer_chat_template(from[0]), tokenizer_chat_template(from[1])));
        }
        tokenizer_close(from[0]);
        tokenizer_close(from[1]);
    }
}

TEST(text_shipped_model) {
    struct tokenizer *t = open_gguf("models/stories-27m-q4_k_m.gguf");
    if (!t)
        return;
    EXPECT_INT(tokenizer_count(t), 8192);
    EXPECT_STR(tokenizer_pre_name(t), "qwen35");
    EXPECT(tokenizer_is_end(t, 2) && tokenizer_chat_template(t).len > 0);
    EXPECT_STR(ids_of_z(t, "<|im_start|>", ENCODE_SPECIAL), "1");
    expect_round_trip(t, STR("Once upon a time, there was a caf\xC3\xA9."), 0);
    tokenizer_close(t);
}

/* ---- merging ---- */

#define BYTE_LEVEL "{`type`:`ByteLevel`,`add_prefix_space`:false,`use_regex`:true}"
#define MODEL(vocab, merges)                                                                       \
    "`pre_tokenizer`:" BYTE_LEVEL ",`model`:{`type`:`BPE`,`vocab`:{" vocab "},`merges`:[" merges   \
    "]}"

/* "ab" and "bab" are results of merges but no tokens; "c" is no token at all. */
static const char made_up[] =
    "{" MODEL("`a`:0,`b`:1,`abb`:2,`aa`:3,`aaaa`:4,`bc`:5,`abab`:6,`d`:7",
              "`a b`,`b c`,`ab b`,`a a`,`ab ab`,`aa aa`,`b ab`,`c c`,[`bab`,`bab`]") "}";

/* BPE by strings and brute force, as its definition has it. */
static const char *naive_ids(const char *text) {
    static const char *const ranked[][2] = {{"a", "b"},  {"b", "c"},   {"ab", "b"},
                                            {"a", "a"},  {"ab", "ab"}, {"aa", "aa"},
                                            {"b", "ab"}, {"c", "c"},   {"bab", "bab"}};
    static const char *const tokens[] = {"a", "b", "abb", "aa", "aaaa", "bc", "abab", "d"};
    static char out[1 << 14];
    static char parts[1024][1024];
    size_t n = 0, len = 0;
    for (; text[n]; n++)
        snprintf(parts[n], sizeof parts[n], "%c", text[n]);
    for (bool has_merged = true; has_merged;) {
        has_merged = false;
        for (size_t r = 0; r < sizeof ranked / sizeof *ranked && !has_merged; r++)
            for (size_t i = 0; i + 1 < n && !has_merged; i++)
                if (!strcmp(parts[i], ranked[r][0]) && !strcmp(parts[i + 1], ranked[r][1])) {
                    strcat(parts[i], parts[i + 1]);
                    memmove(parts + i + 1, parts + i + 2, (n - i - 2) * sizeof parts[0]);
                    n--;
                    has_merged = true;
                }
    }
    out[0] = 0;
    for (size_t i = 0; i < n; i++) {
        int id = -1;
        for (int k = 0; k < 8; k++)
            id = strcmp(parts[i], tokens[k]) ? id : k;
        for (const char *p = parts[i]; *p; p++) {
            int single = *p == 'a' ? 0 : *p == 'b' ? 1 : *p == 'd' ? 7 : -1;
            int emitted = id >= 0 ? id : single;
            if (emitted >= 0)
                len +=
                    (size_t)snprintf(out + len, sizeof out - len, "%s%d", len ? " " : "", emitted);
            if (id >= 0)
                break;
        }
    }
    return out;
}

TEST(text_merges_may_pass_through_what_is_no_token) {
    struct tokenizer *t = NULL;
    struct err err = {0};
    EXPECT_INT(load_json(&t, made_up, &err), SLUICE_OK);
    if (!t)
        return;
    EXPECT_STR(ids_of_z(t, "ab", 0), "0 1");
    EXPECT_STR(ids_of_z(t, "abb", 0), "2");
    EXPECT_STR(ids_of_z(t, "abab", 0), "6");
    EXPECT_STR(ids_of_z(t, "cbc", 0), "5");
    random_state = 3;
    for (int i = 0; i < 3000; i++) { /* short and long words take different ways */
        char text[400];
        uint32_t n = 1 + random_below(i % 10 ? 30 : 200), kinds = 2 + random_below(3);
        for (uint32_t k = 0; k < n; k++)
            text[k] = "abcd"[random_below(kinds)];
        text[n] = 0;
        EXPECT_STR(ids_of_z(t, text, 0), naive_ids(text));
    }
    tokenizer_close(t);
}

TEST(text_ignore_merges) {
    struct tokenizer *t = NULL;
    struct err err = {0};
    static const char json[] =
        "{`pre_tokenizer`:" BYTE_LEVEL ",`model`:{`type`:`BPE`,`ignore_merges`:%s,"
        "`vocab`:{`a`:0,`b`:1,`aba`:2},`merges`:[]}}";
    for (int on = 0; on < 2; on++) {
        char text[512];
        snprintf(text, sizeof text, json, on ? "true" : "false");
        EXPECT_INT(load_json(&t, text, &err), SLUICE_OK);
        EXPECT_STR(t ? ids_of_z(t, "aba", 0) : "", on ? "2" : "0 1 0");
        tokenizer_close(t);
    }
}

/* ---- round trips ---- */

TEST(text_decoding_undoes_encoding) {
    static const char *const names[] = {"tokenizer/ggml-vocab-gpt-2.gguf",
                                        "tokenizer/ggml-vocab-starcoder.gguf",
                                        "tokenizer/ggml-vocab-llama-spm.gguf"};
    random_state = 4;
    for (int k = 0; k < 3; k++) {
        struct tokenizer *t = open_gguf(test_data(names[k]));
        for (int i = 0; t && i < 2000; i++) {
            char text[2048];
            size_t len = 0;
            for (uint32_t n = random_below(300); n > 0; n--) {
                uint32_t c = random_below(3) ? pool[random_below(POOL)] : random_below(0x110000);
                /* No special tokens by chance; StarCoder's vocabulary lacks the byte F1. */
                bool is_fine = c != '<' && !(c >= 0xD800 && c < 0xE000) &&
                               !(k == 1 && c >= 0x40000 && c < 0x80000);
                if (is_fine)
                    len += utf8_put(c, text + len);
            }
            expect_round_trip(t, (struct str){text, len}, 0);
        }
        tokenizer_close(t);
    }
}

TEST(text_invalid_utf8_becomes_replacement_characters) {
    static const struct {
        const char *bytes, *clean;
    } cases[] = {
        {"a\xFF"
         "b",
         "a\uFFFDb"},
        {"\x80\x80", "\uFFFD\uFFFD"},
        {"\xE2\x82", "\uFFFD\uFFFD"},
        {"\xE2\x82"
         "a",
         "\uFFFD\uFFFDa"},
        {"\xF0\x9F\x9A", "\uFFFD\uFFFD\uFFFD"},
        {"\xC0\xAF", "\uFFFD\uFFFD"},
        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
        {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
        {"12345678\xFF", "12345678\uFFFD"},
    };
    struct tokenizer *t = open_gguf(test_data("tokenizer/ggml-vocab-gpt-2.gguf"));
    for (size_t i = 0; t && i < sizeof cases / sizeof *cases; i++) {
        struct ids ids = {0};
        EXPECT_INT(tokenizer_encode(t, str_of(cases[i].bytes), 0, &ids, NULL), SLUICE_OK);
        expect_decoded(t, &ids, str_of(cases[i].clean));
        ids_free(&ids);
    }
    tokenizer_close(t);
}

/* ---- the streaming way back ---- */

/* The token of a single byte in gpt-2's vocabulary. */
static int32_t byte_token(const struct tokenizer *t, unsigned char byte) {
    for (int32_t i = 0; i < tokenizer_count(t); i++)
        if (tokenizer_bytes(t, i).len == 1 && (unsigned char)tokenizer_bytes(t, i).at[0] == byte)
            return i;
    return -1;
}

TEST(text_streaming_never_shows_half_a_character) {
    struct tokenizer *t = open_gguf(test_data("tokenizer/ggml-vocab-gpt-2.gguf"));
    static const char text[] = "a\u00e9\u65e5\U0001F680\u07FF\U0010FFFFz";
    struct detok d = {.t = t};
    struct text_buffer out = {0};
    for (const char *p = text; t && *p; p++) {
        EXPECT_INT(detok_push(&d, byte_token(t, (unsigned char)*p), &out, NULL), SLUICE_OK);
        size_t done = (size_t)(p + 1 - text);
        EXPECT(utf8_valid((struct str){out.at, out.len}));
        EXPECT(out.len <= done && memcmp(out.at, text, out.len) == 0);
        EXPECT_INT(out.len + d.n_held, done); /* all but the beginning of a character is out */
    }
    EXPECT_INT(detok_end(&d, &out, NULL), SLUICE_OK);
    EXPECT_INT(out.len, sizeof text - 1);
    text_buffer_free(&out);
    tokenizer_close(t);
}

TEST(text_streaming_replaces_what_never_completes) {
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"\xE2\x82", "\uFFFD"},
        {"\xE2\x82"
         "a",
         "\uFFFDa"},
        {"\xE2\xE2\x82\xAC", "\uFFFD\u20AC"},
        {"\x80", "\uFFFD"},
        {"\xF0\x9F\x9A", "\uFFFD"},
        {"\xC0\xAF", "\uFFFD\uFFFD"},
        {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
        {"\xF4\x90", "\uFFFD\uFFFD"},
        {"\xF5", "\uFFFD"},
        {"\xF0\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
        {"\xF0\x9F\xC3\xA9", "\uFFFD\u00e9"},
        {"a\xFF"
         "b",
         "a\uFFFDb"},
    };
    struct tokenizer *t = open_gguf(test_data("tokenizer/ggml-vocab-gpt-2.gguf"));
    for (size_t i = 0; t && i < sizeof cases / sizeof *cases; i++) {
        struct ids ids = {0};
        for (const char *p = cases[i].bytes; *p; p++)
            ids_push(&ids, byte_token(t, (unsigned char)*p), NULL);
        expect_decoded(t, &ids, str_of(cases[i].text));
        ids_free(&ids);
    }
    struct detok d = {.t = t};
    struct text_buffer out = {0};
    struct err err = {0};
    EXPECT_INT(detok_push(&d, 50257, &out, &err), SLUICE_ERR_ARGUMENT);
    EXPECT_STR(err.text, "token 50257 is outside the vocabulary of 50257");
    EXPECT_INT(detok_push(&d, -1, &out, &err), SLUICE_ERR_ARGUMENT);
    EXPECT_INT(detok_push(&d, 50256, &out, &err), SLUICE_OK); /* control: hidden */
    EXPECT_INT(out.len, 0);
    d.with_control = true;
    EXPECT_INT(detok_push(&d, 50256, &out, &err), SLUICE_OK);
    EXPECT_INT(out.len, strlen("<|endoftext|>"));
    text_buffer_free(&out);
    tokenizer_close(t);
}

TEST(text_sentencepiece_spaces_and_bytes) {
    struct tokenizer *t = open_gguf(test_data("tokenizer/ggml-vocab-llama-spm.gguf"));
    if (!t)
        return;
    EXPECT_STR(tokenizer_pre_name(t), "spm");
    EXPECT_STR(ids_of_z(t, "Hello world", ENCODE_BOS), "1 15043 3186");
    EXPECT_STR(ids_of_z(t, "", ENCODE_BOS), "1");
    EXPECT_STR(ids_of_z(t, "<s>Hello", ENCODE_SPECIAL), "1 15043");
    EXPECT(strcmp(ids_of_z(t, "<s>", 0), "1") != 0);
    expect_round_trip(t, STR(" leading and  double"), 0);
    expect_round_trip(t, STR("\U0001F9FF bytes \U00012000"), 0);
    EXPECT(tokenizer_is_end(t, 2) && !tokenizer_is_end(t, 1));
    tokenizer_close(t);
}

/* ---- special tokens ---- */

#define ADDED(id, text, flags) "{`id`:" id ",`content`:`" text "`" flags "}"

static const char with_specials[] =
    "{`added_tokens`:[" ADDED("10", "<s>", ",`special`:true") "," ADDED("11", "<s>a", ",`special`:true") "," ADDED("12", "<u>", "") "," ADDED(
        "13", "<u><s>",
        "") "," ADDED("14", "<l>",
                      ",`lstrip`:true") "," ADDED("15", "<r>",
                                                  ",`rstrip`:true") "," ADDED("16", "ab",
                                                                              ",`"
                                                                              "single"
                                                                              "_word`"
                                                                              ":true") "," ADDED("1"
                                                                                                 "7",
                                                                                                 "<"
                                                                                                 "|"
                                                                                                 "x"
                                                                                                 "|"
                                                                                                 ">",
                                                                                                 "") "," ADDED("18",
                                                                                                               "n>",
                                                                                                               ",`normalized`:true") "],"
                                                                                                                                     "`normalizer`:{`type`:`NFC`}," MODEL(
                                                                                                                                         "`a`:0,`b`:1,`<`:2,`>`:3,`s`:4,`u`:5,`\u0120`:6,`l`:7,`r`:8,`n`:9",
                                                                                                                                         "") "}";

TEST(text_special_tokens) {
    static const struct {
        const char *text, *parsed, *plain;
    } cases[] = {
        {"<s>", "10", "2 4 3"},
        {"<s>a", "11", "2 4 3 0"}, /* the longest */
        {"<s>b<s>", "10 1 10", "2 4 3 1 2 4 3"},
        {"<<s>", "2 10", "2 2 4 3"},
        {"<u>", "12", "12"},         /* user-defined: always */
        {"<u><s>a", "13 0", "13 0"}, /* leftmost before longest elsewhere */
        {"a <l> b", "0 14 6 1", "0 14 6 1"},
        {"a  <r>  b", "0 6 6 15 1", "0 6 6 15 1"},
        {"<r> <l>", "15 14", "15 14"}, /* white space goes once */
        {" <l>", "14", "14"},
        {"ab", "16", "16"},
        {"bab", "1 0 1", "1 0 1"},  /* inside a word */
        {"\u24b6ab", "0 1", "0 1"}, /* a circled letter is one */
        {"a ab b", "0 6 16 6 1", "0 6 16 6 1"},
        {"<u>ab<u>", "12 16 12", "12 16 12"},
        {"<u", "2 5", "2 5"},
        {"<|x|>", "17", "2 3"}, /* control by its form */
        {"n>", "18", "18"},
        {"n>\u0338", "9", "9"}, /* NFC makes it another character first */
        {"", "", ""},
    };
    struct tokenizer *t = NULL;
    struct err err = {0};
    if (load_json(&t, with_specials, &err) != SLUICE_OK)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    for (size_t i = 0; t && i < sizeof cases / sizeof *cases; i++) {
        EXPECT_STR(ids_of_z(t, cases[i].text, ENCODE_SPECIAL), cases[i].parsed);
        EXPECT_STR(ids_of_z(t, cases[i].text, 0), cases[i].plain);
    }
    tokenizer_close(t);
}

/* Tokens whose text is that of others: " a" is not the one that merges make, "_" and what a byte is
 * stored as are the same token. */
TEST(text_special_tokens_do_not_replace_those_of_merges) {
    static const char json[] =
        "{`added_tokens`:[{`id`:9,`content`:` a`,`single_word`:true},"
        "{`id`:5,`content`:`_`,`single_word`:true,`special`:true},{`id`:2,`content`:`\u00e9`},"
        "{`id`:10,`content`:`ba`,`single_word`:true}],`pre_tokenizer`:" BYTE_LEVEL
        ",`model`:{`type`:`BPE`,`ignore_merges`:%s,`vocab`:{`a`:0,`b`:1,`\u00e9`:2,`\u00c3`:3,"
        "`\u00a9`:4,`_`:5,`\u00c3\u00a9`:6,`\u0120`:7,`\u0120a`:8},"
        "`merges`:[`\u0120 a`,`\u00c3 \u00a9`]}}";
    for (int on = 0; on < 2; on++) {
        struct tokenizer *t = NULL;
        struct err err = {0};
        char text[1024];
        snprintf(text, sizeof text, json, on ? "true" : "false");
        if (load_json(&t, text, &err) != SLUICE_OK)
            test_fail(__FILE__, __LINE__, "%s", err.text);
        if (!t)
            return;
        EXPECT_STR(ids_of_z(t, " a", ENCODE_SPECIAL), "9");
        EXPECT_STR(ids_of_z(t, "b a", ENCODE_SPECIAL), "1 8");
        EXPECT_STR(ids_of_z(t, "ba", ENCODE_SPECIAL), "10");
        EXPECT_STR(ids_of_z(t, "ba\u0301", ENCODE_SPECIAL), "1 0"); /* the accent is unknown */
        EXPECT_STR(ids_of_z(t, "_", ENCODE_SPECIAL), "5");
        EXPECT_STR(ids_of_z(t, "a_ _", ENCODE_SPECIAL), "0 5 7 5");
        EXPECT_STR(ids_of_z(t, "a_", 0), "0 5"); /* no text is lost */
        EXPECT_STR(ids_of_z(t, "\u00e9", 0), "2");
        EXPECT_STR(ids_of_z(t, "\u9a69", 0), "2 4 4"); /* its bytes */
        tokenizer_close(t);
    }
}

/* Tags that no text may contain, though the file says nothing of it. */
TEST(text_tags_are_control_tokens) {
    static const char with_tags[] = "{`added_tokens`:[" ADDED("3", "<fim_prefix>", "") "," ADDED(
        "4", "</s>", "") "," ADDED("5", "<u>", "") "]," MODEL("`a`:0,`<`:1,`>`:2", "") "}";
    struct tokenizer *t = NULL;
    struct err err = {0};
    if (load_json(&t, with_tags, &err) != SLUICE_OK)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    if (!t)
        return;
    EXPECT_STR(ids_of_z(t, "a<fim_prefix></s><u>", ENCODE_SPECIAL), "0 3 4 5");
    EXPECT_STR(ids_of_z(t, "a<fim_prefix></s><u>", 0), "0 1 2 1 2 5");
    EXPECT(tokenizer_is_end(t, 4) && !tokenizer_is_end(t, 3));
    tokenizer_close(t);
}

TEST(text_folder_settings) {
    static const char folder[] =
        "{`tokenizer`:{`added_tokens`:[" ADDED("3", "<b>", ",`special`:true") "," ADDED(
            "4", "<e>",
            ",`special`:true") "],`post_processor`:{`type`:`Sequence`,`processors`:["
                               "{`type`:`ByteLevel`},{`type`:`TemplateProcessing`,`single`:["
                               "{`SpecialToken`:{`id`:`<b>`,`type_id`:0}},{`Sequence`:{`id`:`A`,`"
                               "type_id`:0}}]}]}," MODEL(
                                   "`a`:0,`b`:1,`c`:2",
                                   "") "},"
                                       "`tokenizer_config`:{`eos_token`:{`content`:`<e>`}%s},"
                                       "`generation`:{`eos_token_id`:[4,2,77]},`config`:{`vocab_"
                                       "size`:8}}";
    for (int on = 0; on < 2; on++) {
        struct tokenizer *t = NULL;
        struct err err = {0};
        char text[2048];
        snprintf(text, sizeof text, folder, on ? "" : ",`add_bos_token`:false");
        if (load_json(&t, text, &err) != SLUICE_OK)
            test_fail(__FILE__, __LINE__, "%s", err.text);
        if (!t)
            return;
        EXPECT_INT(tokenizer_count(t), 8);
        EXPECT_INT(tokenizer_type(t, 7), TOKEN_UNUSED);
        EXPECT(str_is(tokenizer_token(t, 7), "[PAD7]") && tokenizer_bytes(t, 7).len == 0);
        EXPECT_INT(tokenizer_bos(t), 3);
        EXPECT_INT(tokenizer_eos(t), 4);
        EXPECT(tokenizer_is_end(t, 4) && tokenizer_is_end(t, 2) && !tokenizer_is_end(t, 3));
        EXPECT_STR(ids_of_z(t, "a", ENCODE_BOS), on ? "3 0" : "0");
        EXPECT_STR(ids_of_z(t, "a", 0), "0");
        tokenizer_close(t);
    }
}

/* What the template puts last need not be EOS: embedding models have <|endoftext|> there. */
TEST(text_folder_puts_last_what_its_template_has) {
    static const char folder[] =
        "{`tokenizer`:{`added_tokens`:[" ADDED("3", "<b>", ",`special`:true") "," ADDED(
            "4", "<e>", ",`special`:true") "],`post_processor`:{`type`:`TemplateProcessing`,"
                                           "`single`:[{`Sequence`:{`id`:`A`}},"
                                           "{`SpecialToken`:{`id`:`<b>`}}]}," MODEL(
                                               "`a`:0,`b`:1,`c`:2", "") "},"
                                                                        "`tokenizer_config`:{%s}}";
    static const struct {
        const char *config, *expected;
        int eos, last;
    } cases[] = {{"`eos_token`:`<e>`", "0 3", 4, 3},
                 {"`eos_token`:`<e>`,`add_eos_token`:true", "0 3", 4, 3},
                 {"`eos_token`:`<e>`,`add_eos_token`:false", "0", 4, -1},
                 {"", "0 3", 3, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t = NULL;
        struct err err = {0};
        char text[2048];
        snprintf(text, sizeof text, folder, cases[i].config);
        if (load_json(&t, text, &err) != SLUICE_OK)
            test_fail(__FILE__, __LINE__, "%s", err.text);
        if (!t)
            return;
        EXPECT_STR(ids_of_z(t, "a", ENCODE_BOS), cases[i].expected);
        EXPECT_STR(ids_of_z(t, "a", 0), "0");
        EXPECT_INT(tokenizer_eos(t), cases[i].eos);
        EXPECT_INT(tokenizer_last(t), cases[i].last);
        tokenizer_close(t);
    }
}

/* ---- NFC ---- */

TEST(text_nfc) {
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"", ""},
        {"plain", "plain"},
        {"e\u0301", "\u00e9"},
        {"xe\u0301y", "x\u00e9y"},
        {"e\u0301\u0316", "\u00e9\u0316"},
        {"e\u0316\u0301", "\u00e9\u0316"},
        {"\u212b", "\u00c5"},
        {"\u1100\u1161\u11a8", "\uac01"},
        {"\uac00\u11a8", "\uac01"},
        {"\u0958", "\u0915\u093c"}, /* excluded from composition */
        {"\u0344", "\u0308\u0301"},
        {"\u0301", "\u0301"},
        {"a\u0315\u0300\u05ae\u0300b", "\u00e0\u05ae\u0300\u0315b"},
        {"\u03b1\u0345\u0313", "\u1f80"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct str text = str_of(cases[i].from);
        EXPECT_INT(nfc_normalize(&text, &arena, NULL), SLUICE_OK);
        if (!str_equal(text, str_of(cases[i].to)))
            test_fail(__FILE__, __LINE__, "NFC case %zu gives \"%.*s\"", i, STR_ARG(text));
        arena_free(&arena);
    }
}

/* ---- texts made to be slow ---- */

static void encode_repeated(const struct tokenizer *t, const char *unit, size_t bytes) {
    size_t n = strlen(unit), len = bytes / n * n;
    char *text = malloc(len);
    for (size_t i = 0; i < len; i += n)
        memcpy(text + i, unit, n);
    struct ids ids = {0};
    clock_t begin = clock();
    EXPECT_INT(tokenizer_encode(t, (struct str){text, len}, 0, &ids, NULL), SLUICE_OK);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    EXPECT(ids.len > 0);
    if (seconds > 30)
        test_fail(__FILE__, __LINE__, "\"%s\" for %zu bytes took %.1f s", unit, len, seconds);
    if (getenv("SLUICE_TEST_TIMES"))
        fprintf(stderr, "%-8s %-24.24s %6.2f s\n", tokenizer_pre_name(t), unit, seconds);
    free(text);
    ids_free(&ids);
}

TEST(text_no_text_is_slow) {
    static const char *const units[] = {
        "a",    " ",  "\n",           "\xFF", "\U0001F680",   "1",       "ab",
        "\r\n", " a", "<|endoftext|", "'s",   "\u0301\u0316", "e\u0301", "\u1100\u1161",
    };
    static const char *const names[] = {"tokenizer/qwen35-vocab.gguf",
                                        "tokenizer/ggml-vocab-llama-spm.gguf",
                                        "tokenizer/ggml-vocab-starcoder.gguf"};
    for (int k = 0; k < 3; k++) {
        struct tokenizer *t = open_gguf(test_data(names[k]));
        for (size_t i = 0; t && i < sizeof units / sizeof *units; i++) {
            bool is_big = k < 2 && i < 5;
            tokenizer_set_nfc(t, k == 0);
            encode_repeated(t, units[i], test_is_slow() ? 128 << 10 : (is_big ? 2048 : 512) << 10);
        }
        tokenizer_close(t);
    }
}

/* ---- hostile files ---- */

/* What a GGUF file is made of; NULL and 0 leave a key out. */
struct gguf_case {
    const char *expected; /* a part of the message; NULL: loads */
    const char *model, *pre, *merge;
    int n_tokens, n_types, n_scores;
    int type; /* of token 1; 0: normal */
    int bos;  /* -1: none */
    bool bos_is_string, tokens_are_ints, has_nan;
};

static void write_case(const struct gguf_case *c, const char *path) {
    static const struct str texts[] = {STR("a"), STR("b"), STR("ab"), STR("ab"), STR("")};
    struct gguf_writer *w = NULL;
    struct str merges[2] = {STR("a b"), str_of(c->merge ? c->merge : "b a")};
    int32_t types[5] = {1, c->type ? c->type : 1, 1, 1, 1};
    float scores[5] = {0, -1, -2, c->has_nan ? NAN : -3, -4};
    EXPECT_INT(gguf_writer_open(&w, path, 0, NULL), SLUICE_OK);
    gguf_write_str(w, "general.architecture", STR("llama"), NULL);
    if (c->model)
        gguf_write_str(w, "tokenizer.ggml.model", str_of(c->model), NULL);
    if (c->pre)
        gguf_write_str(w, "tokenizer.ggml.pre", str_of(c->pre), NULL);
    if (c->tokens_are_ints)
        gguf_write_i32s(w, "tokenizer.ggml.tokens", types, 5, NULL);
    else if (c->n_tokens >= 0)
        gguf_write_strs(w, "tokenizer.ggml.tokens", texts, (uint64_t)c->n_tokens, NULL);
    if (c->n_types)
        gguf_write_i32s(w, "tokenizer.ggml.token_type", types, (uint64_t)c->n_types, NULL);
    if (c->n_scores)
        gguf_write_f32s(w, "tokenizer.ggml.scores", scores, (uint64_t)c->n_scores, NULL);
    if (!c->merge || c->merge[0])
        gguf_write_strs(w, "tokenizer.ggml.merges", merges, 2, NULL);
    if (c->bos_is_string)
        gguf_write_str(w, "tokenizer.ggml.bos_token_id", STR("a"), NULL);
    else if (c->bos >= 0)
        gguf_write_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)c->bos, NULL);
    EXPECT_INT(gguf_writer_close(w, NULL), SLUICE_OK);
}

TEST(text_hostile_gguf) {
    static const struct gguf_case cases[] = {
        {NULL, .model = "gpt2", .pre = "gpt-2", .n_tokens = 4, .n_types = 4},
        {NULL, .model = "gpt2",
         .n_tokens = 5}, /* no types, no pre: default; a text twice, an empty one */
        {NULL, .model = "gpt2", .n_tokens = 4, .bos = 99},
        {NULL, .model = "gpt2", .n_tokens = 4, .merge = "x y"}, /* parts that are not tokens */
        {NULL, .model = "gpt2", .n_tokens = 4, .merge = "a \xFF"},
        {NULL, .model = "llama", .n_tokens = 4, .n_types = 4, .n_scores = 4},
        {"the file has no vocabulary (tokenizer.ggml.model is no_vocab)", .model = "no_vocab"},
        {"the file has no vocabulary (tokenizer.ggml.model is missing)", .n_tokens = 4},
        {"tokenizer.ggml.model is t5, expected gpt2 or llama", .model = "t5"},
        {"the pre-tokenizer tekken is not known", .model = "gpt2", .pre = "tekken"},
        {"tokenizer.ggml.tokens is missing", .model = "gpt2", .n_tokens = -1},
        {"tokenizer.ggml.tokens has 0 elements, expected at least 1", .model = "gpt2"},
        {"tokenizer.ggml.tokens is i32[], expected string[]", .model = "gpt2",
         .tokens_are_ints = true},
        {"tokenizer.ggml.token_type has 3 elements, expected at least 4", .model = "gpt2",
         .n_tokens = 4, .n_types = 3},
        {"tokenizer.ggml.scores has 5 elements, expected at most 4", .model = "llama",
         .n_tokens = 4, .n_scores = 5},
        {"tokenizer.ggml.scores is missing", .model = "llama", .n_tokens = 4},
        {"token 3 has no number as its score", .model = "llama", .n_tokens = 4, .n_scores = 4,
         .has_nan = true},
        {"token 1 has type 7, expected 1 to 6", .model = "gpt2", .n_tokens = 4, .n_types = 4,
         .type = 7},
        {"token 1 has type -1, expected 1 to 6", .model = "gpt2", .n_tokens = 4, .n_types = 4,
         .type = -1},
        {"tokenizer.ggml.merges is missing", .model = "gpt2", .n_tokens = 4, .merge = ""},
        {"merge 1 is \"ab\", expected two parts with a space between", .model = "gpt2",
         .n_tokens = 4, .merge = "ab"},
        {"tokenizer.ggml.bos_token_id is string, expected", .model = "gpt2", .n_tokens = 4,
         .bos_is_string = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = test_temporary("hostile.gguf");
        struct gguf *g = NULL;
        struct tokenizer *t = NULL;
        struct err err = {0};
        write_case(&cases[i], path);
        EXPECT_INT(gguf_open(&g, path, &err), SLUICE_OK);
        int status = g ? tokenizer_from_gguf(&t, g, &err) : err.code;
        EXPECT_INT(status == SLUICE_OK, cases[i].expected == NULL);
        if (cases[i].expected &&
            (!strstr(err.text, cases[i].expected) || strncmp(err.text, path, strlen(path))))
            test_fail(__FILE__, __LINE__, "case %zu says \"%s\"", i, err.text);
        if (status == SLUICE_OK)
            ids_of_z(t, "abba <x>", ENCODE_SPECIAL | ENCODE_BOS);
        tokenizer_close(t);
        gguf_close(g);
        unlink(path);
    }
}

static void keep_warning(void *to, enum log_level level, const char *line) {
    if (level == LOG_WARN)
        snprintf(to, 256, "%s", line);
}

TEST(text_ids_beyond_the_vocabulary_are_reported) {
    static const struct gguf_case cases[] = {
        {"", .model = "gpt2", .n_tokens = 4, .bos = 3},
        {"key tokenizer.ggml.bos_token_id is 4, expected a token, 0 to 3: it is not used",
         .model = "gpt2", .n_tokens = 4, .bos = 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = test_temporary("ids.gguf");
        char said[256] = "";
        struct gguf *g = NULL;
        struct tokenizer *t = NULL;
        struct err err = {0};
        write_case(&cases[i], path);
        EXPECT_INT(gguf_open(&g, path, &err), SLUICE_OK);
        log_set(keep_warning, said);
        EXPECT_INT(tokenizer_from_gguf(&t, g, &err), SLUICE_OK);
        log_set(NULL, NULL);
        if (!*said != !*cases[i].expected || !strstr(said, cases[i].expected))
            test_fail(__FILE__, __LINE__, "case %zu says \"%s\"", i, said);
        tokenizer_close(t);
        gguf_close(g);
        unlink(path);
    }
}

TEST(text_hostile_json) {
    static const struct {
        const char *json, *expected;
    } cases[] = {
        {"{}", "model is missing, expected an object"},
        {"{`model`:5}", "model is an integer, expected an object"},
        {"{`model`:{`type`:`Unigram`}}", "model.type is Unigram, expected BPE"},
        {"{`model`:{`type`:`BPE`,`vocab`:[]}}", "model.vocab is an array, expected an object"},
        {"{`model`:{`type`:`BPE`,`byte_fallback`:true}}", "model.byte_fallback is set"},
        {"{`model`:{`type`:`BPE`,`dropout`:0.1}}", "model.dropout is set"},
        {"{`added_tokens`:{},`model`:{`type`:`BPE`,`vocab`:{}}}", "added_tokens is an object"},
        {"{" MODEL("", "") "}", "model.vocab has no tokens, expected at least 1"},
        {"{" MODEL("`a`:-1", "") "}", "the id of token \"a\" is -1, expected 0 to "},
        {"{" MODEL("`a`:1e3", "") "}", "the id of token \"a\" is a number, expected an integer"},
        {"{" MODEL("`a`:99999999999", "") "}", "the id of token \"a\" is 99999999999, expected 0"},
        {"{" MODEL("`a`:1000000", "") "}", "the id of token \"a\" is 1000000, expected 0 to 65539"},
        {"{" MODEL("`a`:0,`b`:0", "") "}", "both have id 0"},
        {"{" MODEL("`a`:0", "`ab`") "}", "merge 0 is a string that is not a pair"},
        {"{" MODEL("`a`:0", "[`a`]") "}", "merge 0 is an array that is not a pair"},
        {"{" MODEL("`a`:0", "7") "}", "merge 0 is an integer that is not a pair"},
        {"{`pre_tokenizer`:" BYTE_LEVEL ",`model`:{`type`:`BPE`,`vocab`:{`a`:0}}}",
         "model.merges is missing, expected an array"},
        {"{`model`:{`type`:`BPE`,`vocab`:{`a`:0},`merges`:[]}}",
         "pre_tokenizer is missing, expected an object"},
        {"{`pre_tokenizer`:{`type`:`Metaspace`},`model`:{`type`:`BPE`,`vocab`:{`a`:0}}}",
         "the pre-tokenizer Metaspace is not known"},
        {"{`pre_tokenizer`:{`type`:`ByteLevel`,`add_prefix_space`:true},`model`:{`type`:`BPE`,"
         "`vocab`:{`a`:0}}}",
         "the pre-tokenizer ByteLevel is not known"},
        {"{`pre_tokenizer`:{`type`:`Sequence`,`pretokenizers`:[{`type`:`Split`,`behavior`:"
         "`Isolated`,`pattern`:{`Regex`:`\\\\d`}},{`type`:`ByteLevel`,`use_regex`:false}]},"
         "`model`:{`type`:`BPE`,`vocab`:{`a`:0}}}",
         "the pre-tokenizer regex \\d is not known"},
        {"{`pre_tokenizer`:{`type`:`Sequence`,`pretokenizers`:[{`type`:`Punctuation`},{`type`:"
         "`ByteLevel`}]},`model`:{`type`:`BPE`,`vocab`:{`a`:0}}}",
         "the pre-tokenizer Punctuation + ByteLevel is not known"},
        {"{`normalizer`:{`type`:`Lowercase`}," MODEL("`a`:0", "") "}",
         "the normalizer Lowercase is not known"},
        {"{`normalizer`:7," MODEL("`a`:0", "") "}", "normalizer is an integer"},
        {"{`added_tokens`:[5]," MODEL("`a`:0", "") "}", "content of an added token is missing"},
        {"{`added_tokens`:[" ADDED("1", "a", "") "]," MODEL("`a`:0,`b`:1", "") "}",
         "the added token \"a\" has id 1, expected 0 as in model.vocab"},
        {"{`added_tokens`:[" ADDED("0", "x", "") "]," MODEL("`a`:0", "") "}",
         "the tokens \"a\" and \"x\" both have id 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t = NULL;
        struct err err = {0};
        EXPECT(load_json(&t, cases[i].json, &err) < 0);
        EXPECT(t == NULL);
        if (!strstr(err.text, cases[i].expected) || !strstr(err.text, "folder/tokenizer.json: "))
            test_fail(__FILE__, __LINE__, "case %zu says \"%s\", expected \"%s\"", i, err.text,
                      cases[i].expected);
    }
}

TEST(text_folder_without_a_vocabulary) {
    struct tokenizer *t = NULL;
    struct err err = {0};
    EXPECT_INT(tokenizer_from_folder(&t, &(struct folder){.path = "folder"}, &err),
               SLUICE_ERR_UNSUPPORTED);
    EXPECT_STR(err.text, "folder/tokenizer.json: the file is missing: there is no vocabulary");
}
