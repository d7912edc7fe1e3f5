/* fuzz_tokenizer_json.c - tokenizer.json of any content.
 *
 * Input: a tokenizer.json, or an object whose members "tokenizer", "tokenizer_config",
 * "generation" and "config" are the files of a folder. What loads must also encode and decode. */
#include <stdlib.h>

#include "file/folder.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct tokenizer *t) {
    static const char text[] = "Hello, world!\r\n  <think>caf\xC3\xA9 e\xCC\x81 12345 "
                               "\xF0\x9F\x9A\x80</think><|im_end|>\xFF it's 'S\n\n";
    struct ids ids = {0};
    struct detok d = {.t = t, .with_control = true};
    struct text_buffer out = {0};
    struct str s = {text, sizeof text - 1};
    CHECK(tokenizer_encode(t, s, ENCODE_SPECIAL | ENCODE_BOS, &ids, NULL) == SLUICE_OK);
    CHECK(tokenizer_encode(t, s, 0, &ids, NULL) == SLUICE_OK);
    for (size_t i = 0; i < ids.len; i++)
        CHECK(detok_push(&d, ids.at[i], &out, NULL) == SLUICE_OK);
    CHECK(detok_end(&d, &out, NULL) == SLUICE_OK);
    CHECK(utf8_valid((struct str){out.at, out.len}));
    for (int32_t i = -1; i <= tokenizer_count(t); i++)
        tokenizer_is_end(t, i);
    CHECK(tokenizer_bos(t) < tokenizer_count(t) && tokenizer_eos(t) < tokenizer_count(t));
    ids_free(&ids);
    text_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err err = {0};
    json_t *root = json_parse((struct str){(const char *)data, size}, "fuzz", NULL, &err);
    if (!root)
        return 0;
    bool is_folder = json_object_get(root, "tokenizer");
    struct folder folder = {
        .path = "folder",
        .tokenizer = is_folder ? json_object_get(root, "tokenizer") : root,
        .tokenizer_config = json_object_get(root, "tokenizer_config"),
        .generation = json_object_get(root, "generation"),
        .config = json_object_get(root, "config"),
    };
    struct tokenizer *t = NULL;
    int status = tokenizer_from_folder(&t, &folder, &err);
    CHECK((status == SLUICE_OK) == (t != NULL));
    CHECK(status == SLUICE_OK || err.text[0] != 0);
    if (t)
        use(t);
    tokenizer_close(t);
    json_decref(root);
    return 0;
}
