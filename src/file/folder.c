/* folder.c - a model folder as a hub serves it: its JSON files, its weights, its template. */
#include "file/folder.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "file/path.h"

bool folder_is(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Reads a JSON file that must hold an object; *out stays NULL when it may be missing and is. */
static int read_object(struct folder *f, const char *name, bool required, json_t **out,
                       struct err *err) {
    struct err own = {0};
    const char *path = path_join(&f->arena, f->path, name);
    if (!path)
        return err_memory(err, "a path");
    *out = json_read(path, NULL, required, &own);
    if (!*out && own.code)
        return err_set(err, own.code, "%s", own.text);
    if (*out && !json_is_object(*out))
        return err_set(err, SLUICE_ERR_FORMAT, "%s: is a JSON array, expected an object", path);
    return SLUICE_OK;
}

/* Models with vision keep the text model's values in text_config: these win over the root's, which
 * fill in what is missing (tie_word_embeddings, say). */
static int merge_text_config(struct folder *f, struct err *err) {
    json_t *text = json_object_get(f->config, "text_config");
    if (!text || json_is_null(text))
        return SLUICE_OK;
    if (!json_is_object(text))
        return err_set(err, SLUICE_ERR_FORMAT, "%s/config.json: text_config is not an object",
                       f->path);
    json_incref(text); /* a text_config inside it would replace it in the root */
    int failed = json_object_update(f->config, text);
    json_decref(text);
    return failed ? err_memory(err, "config.json") : SLUICE_OK;
}

/* The template of a tokenizer_config: a string, or the one named "default" of a list. NULL: none.
 */
static const json_t *find_template(const json_t *config) {
    const json_t *value = json_object_get(config, "chat_template");
    if (!json_is_array(value))
        return value;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i);
        struct str name;
        if (json_str(json_object_get(entry, "name"), &name) && str_is(name, "default"))
            return json_object_get(entry, "template");
    }
    return NULL;
}

/* chat_template.jinja, copied from the file. */
static int read_template(struct folder *f, const char *path, struct err *err) {
    struct filemap map;
    int status = filemap_open(&map, path, err);
    if (status)
        return status;
    struct str text = {(const char *)map.data, map.size};
    if (!utf8_valid(text))
        status = err_set(err, SLUICE_ERR_FORMAT, "%s: is not UTF-8", path);
    else if (!(f->chat_template.at = arena_strdup(&f->arena, text)))
        status = err_memory(err, path);
    else
        f->chat_template.len = text.len;
    filemap_close(&map);
    return status;
}

static int find_chat_template(struct folder *f, struct err *err) {
    struct stat info;
    const char *path = path_join(&f->arena, f->path, "chat_template.jinja");
    if (!path)
        return err_memory(err, "a path");
    if (stat(path, &info) == 0)
        return read_template(f, path, err);
    const json_t *value = find_template(f->tokenizer_config);
    if (value && !json_is_null(value) && !json_str(value, &f->chat_template))
        return err_set(err, SLUICE_ERR_FORMAT,
                       "%s/tokenizer_config.json: chat_template is not a string", f->path);
    return SLUICE_OK;
}

static int read_all(struct folder *f, bool with_weights, struct err *err) {
    int status;
    if ((status = read_object(f, "config.json", with_weights, &f->config, err)))
        return status;
    if (!f->config && !(f->config = json_object()))
        return err_memory(err, "config.json");
    if ((status = merge_text_config(f, err)) ||
        (status = read_object(f, "generation_config.json", false, &f->generation, err)) ||
        (status = read_object(f, "tokenizer.json", false, &f->tokenizer, err)) ||
        (status = read_object(f, "tokenizer_config.json", false, &f->tokenizer_config, err)) ||
        (status = find_chat_template(f, err)))
        return status;
    return with_weights ? safetensors_open(&f->weights, f->path, err) : SLUICE_OK;
}

int folder_open(struct folder **out, const char *path, bool with_weights, struct err *err) {
    *out = NULL;
    if (!folder_is(path))
        return err_set(err, SLUICE_ERR_IO, "%s: is not a folder, expected one", path);
    struct folder *f = calloc(1, sizeof *f);
    if (f)
        f->path = arena_strdup(&f->arena, str_of(path));
    int status = f && f->path ? read_all(f, with_weights, err) : err_memory(err, path);
    if (status)
        folder_close(f);
    else
        *out = f;
    return status;
}

int folder_protect(const struct folder *f, const char *path, struct err *err) {
    static const char *const names[] = {"config.json",         "generation_config.json",
                                        "tokenizer.json",      "tokenizer_config.json",
                                        "chat_template.jinja", "model.safetensors.index.json"};
    int status = f->weights ? filemap_protect(f->weights->shards, f->weights->n_shards, path, err)
                            : SLUICE_OK;
    for (size_t i = 0; !status && i < sizeof names / sizeof *names; i++) {
        struct arena arena = {0};
        struct stat own;
        const char *name = path_join(&arena, f->path, names[i]);
        if (!name)
            status = err_memory(err, "a path");
        else if (stat(name, &own) == 0)
            status = filemap_protect(&(struct filemap){.device = own.st_dev, .inode = own.st_ino},
                                     1, path, err);
        arena_free(&arena);
    }
    return status;
}

void folder_close(struct folder *f) {
    if (!f)
        return;
    safetensors_close(f->weights);
    json_decref(f->tokenizer_config);
    json_decref(f->tokenizer);
    json_decref(f->generation);
    json_decref(f->config);
    arena_free(&f->arena);
    free(f);
}
