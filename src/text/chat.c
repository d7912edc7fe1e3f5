/* chat.c - a conversation as the text that a model was trained on. */
#include "text/chat.h"

#include <stdlib.h>

#include "base/arena.h"
#include "text/jinja.h"

/* For models that have the tokens but no template. */
static const char chatml[] =
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}"
    "{%- for part in message.content or [] if part.text is defined %}{{- part.text }}{% endfor %}"
    "{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}";

struct chat {
    struct jinja *jinja;
    struct arena arena;
    struct str bos, eos;
};

int chat_open(struct chat **out, const struct chat_model *model, struct err *err) {
    struct str source = model->template.len > 0 ? model->template : STR("");
    *out = NULL;
    if (source.len == 0 && !model->has_im_start)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "the model has no chat template and no <|im_start|> token");
    if (source.len == 0)
        source = str_of(chatml);
    struct chat *chat = calloc(1, sizeof *chat);
    if (!chat)
        return err_memory(err, "the chat template");
    chat->bos = (struct str){arena_strdup(&chat->arena, model->bos), model->bos.len};
    chat->eos = (struct str){arena_strdup(&chat->arena, model->eos), model->eos.len};
    int code = chat->bos.at && chat->eos.at ? jinja_compile(&chat->jinja, source, err)
                                            : err_memory(err, "the chat template");
    if (code) {
        chat_close(chat);
        return code;
    }
    *out = chat;
    return SLUICE_OK;
}

static struct str token_text(const struct tokenizer *t, int32_t id) {
    return id >= 0 ? tokenizer_bytes(t, id) : STR("");
}

int chat_from_tokenizer(struct chat **out, const struct tokenizer *t, struct err *err) {
    return chat_from_template(out, t, tokenizer_chat_template(t), err);
}

int chat_from_template(struct chat **out, const struct tokenizer *t, struct str source,
                       struct err *err) {
    struct chat_model model = {
        .template = source,
        .bos = token_text(t, tokenizer_bos(t)),
        .eos = token_text(t, tokenizer_eos(t)),
        .has_im_start = tokenizer_find(t, STR("<|im_start|>")) >= 0,
    };
    return chat_open(out, &model, err);
}

void chat_close(struct chat *chat) {
    if (!chat)
        return;
    jinja_close(chat->jinja);
    arena_free(&chat->arena);
    free(chat);
}

static int check_messages(const json_t *messages, struct err *err) {
    if (!json_is_array(messages))
        return err_set(err, SLUICE_ERR_ARGUMENT, "messages: expected an array");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!json_is_string(json_object_get(json_array_get(messages, i), "role")))
            return err_set(err, SLUICE_ERR_ARGUMENT,
                           "messages: number %zu has no role, expected an object with a role and "
                           "a content",
                           i + 1);
    return SLUICE_OK;
}

/* The reference is shared, the value not changed. */
static int set(json_t *variables, const char *name, const json_t *value) {
    return json_object_set_new(variables, name, value ? json_incref((json_t *)value) : json_null());
}

static int set_text(json_t *variables, const char *name, struct str text) {
    return json_object_set_new(variables, name, json_stringn(text.at, text.len));
}

static json_t *make_variables(const struct chat_request *request) {
    json_t *v = json_object();
    int bad = !v || set(v, "messages", request->messages) || set(v, "tools", request->tools) ||
              set(v, "documents", NULL) ||
              json_object_set_new(v, "add_generation_prompt",
                                  json_boolean(request->with_generation_prompt));
    if (!bad && request->thinking != THINK_AS_MODEL)
        bad =
            json_object_set_new(v, "enable_thinking", json_boolean(request->thinking == THINK_ON));
    if (!bad && request->extra)
        bad = json_object_update(v, (json_t *)request->extra);
    if (!bad)
        return v;
    json_decref(v);
    return NULL;
}

/* The texts of BOS and EOS, which a template may use; the caller's values win. */
static json_t *make_own(const struct chat *chat, const struct chat_request *request) {
    json_t *v = json_object();
    int bad =
        !v ||
        (!json_object_get(request->extra, "bos_token") && set_text(v, "bos_token", chat->bos)) ||
        (!json_object_get(request->extra, "eos_token") && set_text(v, "eos_token", chat->eos));
    if (!bad)
        return v;
    json_decref(v);
    return NULL;
}

/* origins may be NULL. */
static int render(const struct chat *chat, const struct chat_request *request,
                  struct text_buffer *out, struct text_buffer *origins, struct err *err) {
    int code = check_messages(request->messages, err);
    if (code)
        return code;
    json_t *variables = make_variables(request), *own = make_own(chat, request);
    struct jinja_options options = {.now = request->now,
                                    .cancel = request->cancel,
                                    .origins = origins,
                                    .own = own,
                                    .own_key = "role"};
    code = variables && own ? jinja_render(chat->jinja, variables, &options, out, err)
                            : err_memory(err, "the conversation");
    json_decref(variables);
    json_decref(own);
    return code;
}

int chat_render(const struct chat *chat, const struct chat_request *request,
                struct text_buffer *out, struct err *err) {
    return render(chat, request, out, NULL, err);
}

int chat_encode(const struct chat *chat, const struct tokenizer *t,
                const struct chat_request *request, struct ids *out, struct err *err) {
    struct text_buffer text = {0}, origins = {0};
    int code = render(chat, request, &text, &origins, err);
    if (!code)
        code = tokenizer_encode_own(t, (struct str){text.at, text.len},
                                    origins.at ? origins.at : "", ENCODE_SPECIAL, out, err);
    text_buffer_free(&text);
    text_buffer_free(&origins);
    return code;
}
