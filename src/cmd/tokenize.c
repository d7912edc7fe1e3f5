/* tokenize.c - the verbs tokenize and detokenize: text to ids and back, for pipes. */
#include <stdio.h>
#include <string.h>

#include "base/filemap.h"
#include "cmd/cmd.h"

/* on, off or auto; -1 when it is none of them. */
enum nfc { NFC_AUTO, NFC_ON, NFC_OFF };
static int nfc_of(const char *word) {
    return !strcmp(word, "auto")  ? NFC_AUTO
           : !strcmp(word, "on")  ? NFC_ON
           : !strcmp(word, "off") ? NFC_OFF
                                  : -1;
}

static void print_ids(const struct ids *ids, bool as_json) {
    if (as_json)
        putchar('[');
    for (size_t i = 0; i < ids->len; i++)
        printf("%s%d", i == 0 ? "" : as_json ? ", " : " ", ids->at[i]);
    puts(as_json ? "]" : "");
}

static int encode_stdin(const struct tokenizer *t, unsigned flags, bool as_json) {
    struct err err = {0};
    struct filemap text;
    struct ids ids = {0};
    int status = filemap_read(&text, "-", &err);
    if (!status)
        status = tokenizer_encode(t, (struct str){(const char *)text.data, text.size}, flags, &ids,
                                  &err);
    if (!status)
        print_ids(&ids, as_json);
    ids_free(&ids);
    filemap_close(&text);
    return status ? fail(&err) : 0;
}

int cmd_tokenize(int argc, char **argv) {
    const char *model = NULL, *nfc = "auto";
    bool as_json = false, bos = false, special = false;
    const struct opt opts[] = {
        {"--model", 'm', OPT_STRING, &model, "MODEL", "a GGUF file or a folder"},
        {"--bos", 0, OPT_FLAG, &bos, NULL, "add BOS (and EOS) where the model wants them"},
        {"--special", 0, OPT_FLAG, &special, NULL, "control tokens in the text become their ids"},
        {"--nfc", 0, OPT_STRING, &nfc, "WHEN",
         "normalise first: on, off, or as the model says (auto)"},
        {"--json", 0, OPT_FLAG, &as_json, NULL, "print a JSON array"},
    };
    const struct usage usage = {
        .verb = "tokenize",
        .synopsis = "[-m MODEL] [options] < TEXT",
        .about = "Reads text from standard input, byte for byte, and prints its token ids.",
        .example = "printf 'Once upon a time' | sluice tokenize",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit != OPTS_GO_ON)
        return exit;
    if (nfc_of(nfc) < 0)
        return complain(EXIT_USAGE, "tokenize: --nfc is '%s', expected on, off or auto", nfc);
    struct err err = {0};
    struct tokenizer *t = NULL;
    const char *path = model_path(model, &err);
    if (!path || tokenizer_of_model(&t, path, &err))
        return fail(&err);
    if (nfc_of(nfc) != NFC_AUTO)
        tokenizer_set_nfc(t, nfc_of(nfc) == NFC_ON);
    unsigned flags = (bos ? ENCODE_BOS : 0) | (special ? ENCODE_SPECIAL : 0);
    exit = encode_stdin(t, flags, as_json);
    tokenizer_close(t);
    return exit;
}

/* ---- the way back -----------------------------------------------------------------------------
 */

static bool is_between(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == ',' || c == '[' || c == ']';
}

/* The next id of the text; 1, 0 at the end, or a negative status. */
static int next_id(struct str *text, int32_t *id, struct err *err) {
    size_t i = 0;
    while (i < text->len && is_between(text->at[i]))
        i++;
    *text = str_skip(*text, i);
    if (text->len == 0)
        return 0;
    int64_t n = 0;
    for (i = 0; i < text->len && text->at[i] >= '0' && text->at[i] <= '9' && n <= INT32_MAX; i++)
        n = n * 10 + (text->at[i] - '0');
    if (i == 0 || n > INT32_MAX || (i < text->len && !is_between(text->at[i]))) {
        while (i < text->len && i < 40 && !is_between(text->at[i]))
            i++;
        return err_set(err, SLUICE_ERR_ARGUMENT, "found '%.*s', expected a token id", (int)i,
                       text->at);
    }
    *id = (int32_t)n;
    *text = str_skip(*text, i);
    return 1;
}

static int decode_stdin(const struct tokenizer *t, bool with_control) {
    struct err err = {0};
    struct filemap map;
    struct text_buffer out = {0};
    struct detok d = {.t = t, .with_control = with_control};
    int status = filemap_read(&map, "-", &err);
    struct str text = {(const char *)map.data, map.size};
    int32_t id = 0;
    int got = 0;
    while (!status && (got = next_id(&text, &id, &err)) > 0)
        status = detok_push(&d, id, &out, &err);
    if (got < 0)
        status = got;
    if (!status)
        status = detok_end(&d, &out, &err);
    if (!status && out.len)
        fwrite(out.at, 1, out.len, stdout);
    text_buffer_free(&out);
    filemap_close(&map);
    return status ? fail(&err) : 0;
}

int cmd_detokenize(int argc, char **argv) {
    const char *model = NULL;
    bool special = false;
    const struct opt opts[] = {
        {"--model", 'm', OPT_STRING, &model, "MODEL", "a GGUF file or a folder"},
        {"--special", 0, OPT_FLAG, &special, NULL, "print control tokens too"},
    };
    const struct usage usage = {
        .verb = "detokenize",
        .synopsis = "[-m MODEL] [--special] < IDS",
        .about = "Reads token ids from standard input, separated by spaces or as a JSON array, and "
                 "prints their text.",
        .example = "printf 'Once upon a time' | sluice tokenize | sluice detokenize",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit != OPTS_GO_ON)
        return exit;
    struct err err = {0};
    struct tokenizer *t = NULL;
    const char *path = model_path(model, &err);
    if (!path || tokenizer_of_model(&t, path, &err))
        return fail(&err);
    exit = decode_stdin(t, special);
    tokenizer_close(t);
    return exit;
}
