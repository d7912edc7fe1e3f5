/* tokenizer_keys.c - a folder's tokenizer as the keys of a GGUF file.
 *
 * The tokenizer is made first, as if to use it: what it refuses is not written either; its tokens,
 * types and pre-tokenizer go into the file. Only the merges are copied from tokenizer.json
 * unchanged. */
#include "text/tokenizer_keys.h"

#include <stdio.h>
#include <string.h>

#include "text/tokenizer.h"

struct key_job {
    struct gguf_writer *w;
    const struct folder *f;
    const struct tokenizer *t;
    uint32_t rows;
    struct arena arena;
    struct err *err;
};

static int write_tokens(struct key_job *j) {
    struct str *words = arena_array(&j->arena, j->rows, sizeof *words);
    int32_t *types = arena_array(&j->arena, j->rows, sizeof *types);
    if (!words || !types)
        return err_memory(j->err, "the vocabulary");
    for (uint32_t i = 0; i < j->rows; i++) {
        bool is_known = (int32_t)i < tokenizer_count(j->t);
        types[i] = is_known ? (int32_t)tokenizer_type(j->t, (int32_t)i) : TOKEN_UNUSED;
        words[i] = is_known ? tokenizer_token(j->t, (int32_t)i) : (struct str){0};
        if (types[i] != TOKEN_UNUSED)
            continue;
        char pad[32];
        snprintf(pad, sizeof pad, "[PAD%u]", i);
        char *copy = arena_strdup(&j->arena, str_of(pad));
        if (!copy)
            return err_memory(j->err, "the vocabulary");
        words[i] = str_of(copy);
    }
    int status = gguf_write_strs(j->w, "tokenizer.ggml.tokens", words, j->rows, j->err);
    if (!status)
        status = gguf_write_i32s(j->w, "tokenizer.ggml.token_type", types, j->rows, j->err);
    return status;
}

/* "a b" as it stands, or the pair ["a", "b"] joined by a space. */
static int merge_line(struct key_job *j, const json_t *merge, struct str *out) {
    struct str left, right;
    if (json_str(merge, out))
        return SLUICE_OK;
    if (!json_str(json_array_get(merge, 0), &left) || !json_str(json_array_get(merge, 1), &right))
        return err_set(j->err, SLUICE_ERR_FORMAT,
                       "%s/tokenizer.json: a merge is neither a string nor a pair", j->f->path);
    char *line = arena_alloc(&j->arena, left.len + right.len + 1);
    if (!line)
        return err_memory(j->err, "the merges");
    memcpy(line, left.at, left.len);
    line[left.len] = ' ';
    memcpy(line + left.len + 1, right.at, right.len);
    *out = (struct str){line, left.len + right.len + 1};
    return SLUICE_OK;
}

static int write_merges(struct key_job *j) {
    const json_t *merges = json_object_get(json_object_get(j->f->tokenizer, "model"), "merges");
    size_t n = json_array_size(merges);
    struct str *lines = arena_array(&j->arena, n, sizeof *lines);
    if (!lines)
        return err_memory(j->err, "the merges");
    for (size_t i = 0; i < n; i++) {
        int status = merge_line(j, json_array_get(merges, i), &lines[i]);
        if (status)
            return status;
    }
    return gguf_write_strs(j->w, "tokenizer.ggml.merges", lines, n, j->err);
}

/* The id of bos, eos or pad: by its text in tokenizer_config.json, else by number (the first, of
 * a list) in generation_config.json; -1: none. */
static int32_t special_id(const struct key_job *j, const char *kind) {
    char name[32];
    snprintf(name, sizeof name, "%s_token", kind);
    const json_t *token = json_object_get(j->f->tokenizer_config, name);
    struct str text;
    if (json_str(json_is_object(token) ? json_object_get(token, "content") : token, &text)) {
        int32_t id = tokenizer_find(j->t, text);
        if (id >= 0)
            return id;
    }
    snprintf(name, sizeof name, "%s_token_id", kind);
    const json_t *id = json_object_get(j->f->generation, name);
    if (json_is_array(id))
        id = json_array_get(id, 0);
    bool is_valid = json_is_integer(id) && json_integer_value(id) >= 0 &&
                    json_integer_value(id) < (json_int_t)j->rows;
    return is_valid ? (int32_t)json_integer_value(id) : -1;
}

static int write_id(struct key_job *j, const char *name, int32_t id) {
    char key[64];
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    return id >= 0 ? gguf_write_u32(j->w, key, (uint32_t)id, j->err) : SLUICE_OK;
}

/* The ids that end a generation and are neither `eos` nor known by their text: GGUF has two more
 * places. `used`: the first is taken. */
static int write_ends(struct key_job *j, int32_t eos, bool used) {
    static const char *const names[] = {"eot", "eom"};
    const json_t *list = json_object_get(j->f->generation, "eos_token_id");
    size_t n = used;
    int status = SLUICE_OK;
    for (size_t i = 0; !status && n < 2 && i < json_array_size(list); i++) {
        int64_t id = json_integer_value(json_array_get(list, i));
        if (id < 0 || id >= tokenizer_count(j->t) || id == eos ||
            !tokenizer_is_end(j->t, (int32_t)id) ||
            tokenizer_text_ends(tokenizer_token(j->t, (int32_t)id)))
            continue;
        status = write_id(j, names[n++], (int32_t)id);
    }
    return status;
}

/* A text ends with EOS in GGUF: what the folder's tokenizer puts there instead becomes it, and EOS
 * the end of a turn. llama.cpp's converter does the same. */
static int write_specials(struct key_job *j) {
    int32_t eos = special_id(j, "eos"), last = tokenizer_last(j->t);
    bool has_two = last >= 0 && last != eos;
    int status = write_id(j, "bos", special_id(j, "bos"));
    if (!status)
        status = write_id(j, "eos", has_two ? last : eos);
    if (!status && has_two)
        status = write_id(j, "eot", eos);
    if (!status)
        status = write_ends(j, eos, has_two && eos >= 0);
    if (!status)
        status = write_id(j, "padding", special_id(j, "pad"));
    if (!status)
        status =
            gguf_write_bool(j->w, "tokenizer.ggml.add_bos_token", tokenizer_adds_bos(j->t), j->err);
    if (!status && last >= 0)
        status = gguf_write_bool(j->w, "tokenizer.ggml.add_eos_token", true, j->err);
    return status;
}

static int write_all(struct key_job *j) {
    int status = gguf_write_str(j->w, "tokenizer.ggml.model", STR("gpt2"), j->err);
    if (!status)
        status =
            gguf_write_str(j->w, "tokenizer.ggml.pre", str_of(tokenizer_pre_name(j->t)), j->err);
    if (!status)
        status = write_tokens(j);
    if (!status)
        status = write_merges(j);
    if (!status)
        status = write_specials(j);
    /* GGUF has no key for this; readers that do not know ours ignore it. */
    if (!status && tokenizer_uses_nfc(j->t))
        status = gguf_write_bool(j->w, "sluice.nfc", true, j->err);
    if (!status && j->f->chat_template.len)
        status = gguf_write_str(j->w, "tokenizer.chat_template", j->f->chat_template, j->err);
    return status;
}

int tokenizer_write_keys(struct gguf_writer *w, const struct folder *f, uint32_t rows,
                         struct err *err) {
    if (!f->tokenizer)
        return gguf_write_str(w, "tokenizer.ggml.model", STR("no_vocab"), err);
    struct tokenizer *t;
    int status = tokenizer_from_folder(&t, f, err);
    if (status)
        return status;
    struct key_job j = {.w = w, .f = f, .t = t, .rows = rows, .err = err};
    if ((uint32_t)tokenizer_count(t) > rows)
        status = err_set(err, SLUICE_ERR_FORMAT,
                         "%s: the tokenizer has %d ids, expected at most vocab_size, %u", f->path,
                         tokenizer_count(t), rows);
    if (!status)
        status = write_all(&j);
    arena_free(&j.arena);
    tokenizer_close(t);
    return status;
}
