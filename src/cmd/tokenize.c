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

struct tokenize {
    const char *model, *nfc, *prompt, *file;
    bool as_json, bos, special, pieces;
    struct tokenizer *tokenizer;
};

static void print_ids(const struct ids *ids, bool as_json) {
    if (as_json)
        putchar('[');
    for (size_t i = 0; i < ids->len; i++)
        printf("%s%d", i == 0 ? "" : as_json ? ", " : " ", ids->at[i]);
    puts(as_json ? "]" : "");
}

/* One token per line: its id and its text. */
static void print_pieces(const struct tokenize *t, const struct ids *ids) {
    json_t *list = json_array();
    char piece[1024];
    for (size_t i = 0; i < ids->len; i++) {
        struct str bytes = tokenizer_bytes(t->tokenizer, ids->at[i]);
        if (t->as_json)
            json_array_append_new(
                list, json_pack("{s:i, s:o}", "id", (int)ids->at[i], "piece", json_text(bytes)));
        else
            printf("%7d  %s\n", ids->at[i], quoted(bytes, piece, sizeof piece));
    }
    if (t->as_json)
        print_json_line(list);
    else
        json_decref(list);
}

static int encode(const struct tokenize *t) {
    struct err err = {0};
    struct filemap map = {.fd = -1};
    struct ids ids = {0};
    unsigned flags = (t->bos ? ENCODE_BOS : 0) | (t->special ? ENCODE_SPECIAL : 0);
    struct str text = str_of(t->prompt ? t->prompt : "");
    int status = t->prompt ? SLUICE_OK : filemap_read(&map, t->file ? t->file : "-", &err);
    if (!t->prompt)
        text = (struct str){(const char *)map.data, map.size};
    if (!status)
        status = tokenizer_encode(t->tokenizer, text, flags, &ids, &err);
    if (!status && t->pieces)
        print_pieces(t, &ids);
    else if (!status)
        print_ids(&ids, t->as_json);
    ids_free(&ids);
    filemap_close(&map);
    return status ? fail(&err) : 0;
}

int cmd_tokenize(int argc, char **argv) {
    struct tokenize t = {.nfc = "auto"};
    const struct opt opts[] = {
        {"--model", 'm', OPT_STRING, &t.model, "MODEL", MODEL_HELP},
        {"--prompt", 'p', OPT_STRING, &t.prompt, "TEXT", "text to tokenize"},
        {"--file", 'f', OPT_STRING, &t.file, "FILE",
         "read the text from FILE; - (default): standard input"},
        {"--pieces", 0, OPT_FLAG, &t.pieces, NULL, "one token per line: its id and its text"},
        {"--bos", 0, OPT_FLAG, &t.bos, NULL, "add BOS (and EOS) where the model wants them"},
        {"--special", 0, OPT_FLAG, &t.special, NULL,
         "parse control tokens, such as <|im_start|>, in the text"},
        {"--nfc", 0, OPT_STRING, &t.nfc, "WHEN",
         "normalize to NFC first: on, off, or auto (default): as the model says"},
        {"--json", 0, OPT_FLAG, &t.as_json, NULL, "print a JSON array"},
    };
    const struct usage usage = {
        .verb = "tokenize",
        .synopsis = "[MODEL] [-p TEXT | -f FILE | < TEXT] [--pieces] [options]",
        .about = "Prints the token ids of a text, taken byte for byte.",
        .example = "sluice tokenize -p 'Once upon a time' --pieces",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
        .model = &t.model,
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit != OPTS_GO_ON)
        return exit;
    if (nfc_of(t.nfc) < 0)
        return complain(EXIT_USAGE, "tokenize: --nfc is '%s', expected on, off or auto", t.nfc);
    if (t.prompt && t.file)
        return complain(EXIT_USAGE, "tokenize: -p and -f are both given, expected one of them");
    struct err err = {0};
    const char *path = model_path(t.model, &err);
    if (!path || tokenizer_of_model(&t.tokenizer, path, &err))
        return fail(&err);
    if (nfc_of(t.nfc) != NFC_AUTO)
        tokenizer_set_nfc(t.tokenizer, nfc_of(t.nfc) == NFC_ON);
    exit = encode(&t);
    tokenizer_close(t.tokenizer);
    return exit;
}

/* ---- the way back ------------------------------------------------------------------------- */

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
        {"--model", 'm', OPT_STRING, &model, "MODEL", MODEL_HELP},
        {"--special", 0, OPT_FLAG, &special, NULL, "print control tokens too"},
    };
    const struct usage usage = {
        .verb = "detokenize",
        .synopsis = "[MODEL] [--special] < IDS",
        .about = "Reads token ids from standard input, separated by spaces or as a JSON array, and "
                 "prints their text.",
        .example = "sluice tokenize -p 'Once upon a time' | sluice detokenize",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
        .model = &model,
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
