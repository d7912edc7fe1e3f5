/* folder.h - a model folder as a hub serves it.
 *
 * config.json and the safetensors must be there; generation_config.json, tokenizer.json,
 * tokenizer_config.json and chat_template.jinja may. What names and values mean is up to the
 * modules model and text.
 *
 * Read-only once open, and may be shared by threads. What it returns is borrowed from it. */
#ifndef FILE_FOLDER_H
#define FILE_FOLDER_H

#include "file/json.h"
#include "file/safetensors.h"

struct folder {
    struct arena arena;
    const char *path;
    struct safetensors *weights;
    json_t *config;     /* an object; text_config's members, if any, replace those of the root */
    json_t *generation; /* objects, or NULL when the file is absent */
    json_t *tokenizer;
    json_t *tokenizer_config;
    struct str chat_template; /* from chat_template.jinja, else tokenizer_config; empty: none */
};

/* True when path is a directory. */
bool folder_is(const char *path);

/* `with_weights` false leaves the safetensors closed (tokenize needs none), and then config.json
 * may be missing too (an empty object). */
int folder_open(struct folder **out, const char *path, bool with_weights, struct err *err);
void folder_close(struct folder *f); /* takes NULL */

/* Refuses a path that is to be written and names one of the folder's own files. */
int folder_protect(const struct folder *f, const char *path, struct err *err);

#endif
