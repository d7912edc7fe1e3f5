/* api_model.c - the public interface of models: opening, facts, tokens, text and chats to tokens.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"
#include "base/size.h"
#include "engine/engine.h"
#include "model/mixture.h"
#include "text/chat.h"

static int open_tokenizer(struct sluice_model *m, struct err *err) {
    struct model *model = m->model;
    int status = model->folder ? tokenizer_from_folder(&m->tokenizer, model->folder, err)
                               : tokenizer_from_gguf(&m->tokenizer, model->file, err);
    if (status != SLUICE_ERR_UNSUPPORTED)
        return status;
    m->tokenizer = NULL; /* a model without vocabulary can still be fed ids */
    return SLUICE_OK;
}

/* Padding comes after the last token. */
static int32_t count_tokens(const struct sluice_model *m) {
    int32_t rows = (int32_t)m->model->config.n_vocab;
    int32_t n = m->tokenizer ? tokenizer_count(m->tokenizer) : rows;
    while (m->tokenizer && n > 1 && tokenizer_type(m->tokenizer, n - 1) == TOKEN_UNUSED)
        n--;
    return n < rows ? n : rows;
}

int sluice_model_open(sluice_model **out, const char *path) {
    if (!out)
        return SLUICE_ERR_ARGUMENT;
    struct sluice_model *m = *out = calloc(1, sizeof *m);
    if (!m)
        return SLUICE_ERR_MEMORY;
    pthread_mutex_init(&m->loading, NULL);
    if (!path)
        return err_set(&m->err, SLUICE_ERR_ARGUMENT, "the model's path is NULL, expected one");
    int status = model_open(&m->model, path, &m->err);
    if (!status)
        status = open_tokenizer(m, &m->err);
    if (status)
        return status;
    m->n_tokens = count_tokens(m);
    CHECK(size_align(m->model->weights->bytes, WEIGHTS_PAGE, &m->weight_bytes));
    m->is_open = true;
    return SLUICE_OK;
}

void sluice_model_close(sluice_model *m) {
    if (!m)
        return;
    tokenizer_close(m->tokenizer);
    model_close(m->model);
    pthread_mutex_destroy(&m->loading);
    free(m);
}

const char *sluice_model_error(const sluice_model *m) {
    return m ? m->err.text : "";
}

static const struct tensor *tensors_of(const struct model *m, uint32_t *n) {
    *n = m->file ? m->file->n_tensors : m->folder ? m->folder->weights->n_tensors : 0;
    return m->file ? m->file->tensors : m->folder ? m->folder->weights->tensors : NULL;
}

/* The type the file names, or else the type of most of its values. */
static const char *type_of(const struct model *m) {
    uint64_t sums[DT_COUNT] = {0}, best = 0;
    uint32_t n, file_type = UINT32_MAX;
    const struct tensor *tensors = tensors_of(m, &n);
    struct err ignored;
    gguf_get_u32(m->keys, "general.file_type", &file_type, &ignored);
    const struct mixture *mixture = mixture_of_file_type(file_type);
    const char *name = mixture ? mixture_name(mixture) : "";
    for (uint32_t i = 0; !mixture && i < n; i++) {
        const struct tensor *t = &tensors[i];
        if (t->type < 0 || (sums[t->type] += t->n_values) <= best)
            continue;
        best = sums[t->type];
        name = t->type_name;
    }
    return name;
}

void sluice_model_facts(const sluice_model *m, struct sluice_facts *out) {
    if (!out)
        return;
    *out = (struct sluice_facts){.architecture = "", .type = "", .bos = -1, .eos = -1};
    if (!m || !m->is_open)
        return;
    const struct config *c = &m->model->config;
    uint32_t n;
    const struct tensor *tensors = tensors_of(m->model, &n);
    *out = (struct sluice_facts){
        .architecture = c->arch,
        .layers = c->n_layers,
        .width = c->hidden,
        .context = c->context,
        .n_logits = (int32_t)c->n_vocab,
        .n_tokens = m->n_tokens,
        .has_tokenizer = m->tokenizer != NULL,
        .adds_bos = m->tokenizer && tokenizer_adds_bos(m->tokenizer),
        .bos = m->tokenizer ? tokenizer_bos(m->tokenizer) : -1,
        .eos = m->tokenizer ? tokenizer_eos(m->tokenizer) : -1,
        .type = type_of(m->model),
        .has_draft_block = m->model->draft.join.n_dims > 0,
        .pooling = c->pooling ? (enum sluice_pooling)c->pooling : SLUICE_POOL_LAST,
    };
    for (uint32_t i = 0; i < n; i++) {
        out->parameters += tensors[i].n_values;
        out->bytes += tensors[i].bytes;
    }
}

const char *sluice_model_template(const sluice_model *m, size_t *length) {
    struct str none = STR("");
    struct str found = m && m->tokenizer ? tokenizer_chat_template(m->tokenizer) : none;
    if (length)
        *length = found.len;
    return found.at ? found.at : none.at;
}

bool sluice_token_is_end(const sluice_model *m, int32_t token) {
    return m && m->tokenizer && token >= 0 && token < tokenizer_count(m->tokenizer) &&
           tokenizer_is_end(m->tokenizer, token);
}

const char *sluice_token_text(const sluice_model *m, int32_t token, size_t *length) {
    struct str bytes = {"", 0};
    if (m && m->tokenizer && token >= 0 && token < tokenizer_count(m->tokenizer)) {
        enum token_type type = tokenizer_type(m->tokenizer, token);
        if (type == TOKEN_NORMAL || type == TOKEN_USER || type == TOKEN_BYTE)
            bytes = tokenizer_bytes(m->tokenizer, token);
    }
    if (length)
        *length = bytes.len;
    return bytes.at ? bytes.at : "";
}

/* Hands ids out, and frees them. */
static int ids_out(struct ids *ids, int status, int32_t *tokens, size_t capacity, size_t *n,
                   struct err *err) {
    if (!status)
        *n = ids->len;
    if (!status && ids->len > capacity)
        status = err_set(err, SLUICE_ERR_ARGUMENT, "%zu tokens, expected at most %zu", ids->len,
                         capacity);
    else if (!status && ids->len)
        memcpy(tokens, ids->at, ids->len * sizeof *tokens);
    ids_free(ids);
    return status;
}

int sluice_encode(const sluice_model *m, const char *text, size_t length, unsigned flags,
                  int32_t *tokens, size_t capacity, size_t *n) {
    const unsigned all = SLUICE_ENCODE_SPECIAL | SLUICE_ENCODE_BOS;
    if (!m || !n || (!text && length) || (!tokens && capacity) || flags & ~all)
        return SLUICE_ERR_ARGUMENT;
    *n = 0;
    if (!m->tokenizer)
        return SLUICE_ERR_UNSUPPORTED;
    struct ids ids = {0};
    unsigned how = (flags & SLUICE_ENCODE_SPECIAL ? ENCODE_SPECIAL : 0) |
                   (flags & SLUICE_ENCODE_BOS ? ENCODE_BOS : 0);
    int status =
        tokenizer_encode(m->tokenizer, (struct str){text ? text : "", length}, how, &ids, NULL);
    return ids_out(&ids, status, tokens, capacity, n, NULL);
}

/* Members we do not know are passed on to the template. */
static int encode_request(const sluice_model *m, json_t *json, struct ids *ids, struct err *err) {
    const json_t *prompt = json_object_get(json, "add_generation_prompt");
    struct chat_request request = {
        .messages = json_object_get(json, "messages"),
        .tools = json_object_get(json, "tools"),
        .with_generation_prompt = !prompt || json_is_true(prompt),
        .extra = json,
    };
    const json_t *source = json_object_get(json, "chat_template");
    struct str text = {json_string_value(source), json_string_length(source)};
    struct chat *chat = NULL;
    int status = json_is_string(source) ? chat_from_template(&chat, m->tokenizer, text, err)
                                        : chat_from_tokenizer(&chat, m->tokenizer, err);
    if (!status)
        status = chat_encode(chat, m->tokenizer, &request, ids, err);
    chat_close(chat);
    return status;
}

int sluice_encode_chat(const sluice_model *m, const char *request, int32_t *tokens, size_t capacity,
                       size_t *n, char *error, size_t error_size) {
    struct err err = {0};
    struct ids ids = {0};
    json_error_t where;
    if (!m || !request || !n || (!tokens && capacity)) {
        if (error && error_size)
            snprintf(error, error_size, "an argument is NULL, expected a pointer");
        return SLUICE_ERR_ARGUMENT;
    }
    *n = 0;
    locale_t before = locale_enter();
    json_t *json = json_loads(request, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    locale_leave(before);
    int status = SLUICE_OK;
    if (!m->tokenizer)
        status = err_set(&err, SLUICE_ERR_UNSUPPORTED, "the model has no tokenizer");
    else if (!json)
        status = err_set(&err, SLUICE_ERR_ARGUMENT, "the request is not JSON: line %d: %s",
                         where.line, where.text);
    else if (!json_is_object(json))
        status = err_set(&err, SLUICE_ERR_ARGUMENT, "the request is not a JSON object");
    else
        status = encode_request(m, json, &ids, &err);
    status = ids_out(&ids, status, tokens, capacity, n, &err);
    json_decref(json);
    if (status && error && error_size)
        snprintf(error, error_size, "%s", err.text);
    return status;
}
