/* ask_prompt.c - the tokens of a request: of a conversation, with earlier answers as they were
 * sampled; of texts; of ids. */
#include <stdlib.h>
#include <string.h>

#include "serve/ask_internal.h"
#include "serve/follow.h"
#include "serve/tool_prompt.h"

/* Clients that shorten a conversation by themselves know such errors by these words. */
int prompt_too_long(const struct ask_model *m, size_t n, struct err *err) {
    return err_set(err, SLUICE_ERR_ARGUMENT,
                   "the prompt is too long: it has %zu tokens, expected at most %u; this model's "
                   "maximum context length is %u tokens",
                   n, m->context - 1, m->context);
}

int prompt_add(struct ask *ask, const struct ask_model *m, struct token_list ids, struct err *err) {
    int status = SLUICE_OK;
    bool is_full = (ask->n_prompts & (ask->n_prompts - 1)) == 0; /* capacity doubles */
    struct job_prompt *more =
        is_full ? realloc(ask->prompts, (2 * (size_t)ask->n_prompts + 1) * sizeof *more)
                : ask->prompts;
    if (more)
        ask->prompts = more;
    if (!more)
        status = err_memory(err, "a prompt");
    else if (ids.n == 0)
        status =
            err_set(err, SLUICE_ERR_ARGUMENT, "the prompt has no tokens, expected one or more");
    else if (ids.n >= m->context)
        status = prompt_too_long(m, ids.n, err);
    if (status)
        free(ids.at);
    else
        ask->prompts[ask->n_prompts++] = (struct job_prompt){ids.at, ids.n, NULL};
    return status;
}

/* The first n messages as tokens, to free. The variables may be NULL. */
static int encode_messages(const struct ask *ask, const struct ask_model *m, size_t n,
                           const json_t *variables, bool with_answer, struct token_list *out,
                           struct err *err) {
    json_t *request = variables ? json_deep_copy(variables) : json_object();
    json_t *messages = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(messages, json_array_get(ask->messages, i));
    json_t *tools = ask->hides_tools ? NULL : ask->tools;
    if (!m->takes_tools) {
        json_t *plain = tool_prompt(messages, tools);
        json_decref(messages);
        messages = plain;
    }
    bool is_good = json_object_set_new(request, "messages", messages) == 0;
    json_object_set_new(request, "add_generation_prompt", json_boolean(with_answer));
    if (tools)
        json_object_set(request, "tools", tools);
    if (m->template)
        json_object_set_new(request, "chat_template", json_string(m->template));
    char *text = is_good ? json_dumps(request, JSON_COMPACT) : NULL;
    size_t capacity = m->context;
    *out = (struct token_list){malloc(capacity * sizeof *out->at), 0};
    int status = text && out->at ? sluice_encode_chat(m->model, text, out->at, capacity, &out->n,
                                                      err->text, sizeof err->text)
                                 : err_memory(err, "a prompt");
    if (status == SLUICE_ERR_ARGUMENT && out->n > capacity)
        status = prompt_too_long(m, out->n, err);
    err->code = status;
    if (status) {
        free(out->at);
        *out = (struct token_list){0};
    }
    json_decref(request);
    free(text);
    return status;
}

static size_t count_ends(const struct ask_model *m, const struct token_list *ids) {
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++)
        n += sluice_token_is_end(m->model, ids->at[i]);
    return n;
}

/* Where end token number `which` is, counted from 1; ids->n when there are fewer. */
static size_t find_end(const struct ask_model *m, const struct token_list *ids, size_t which) {
    size_t i = 0;
    for (; i < ids->n; i++)
        if (sluice_token_is_end(m->model, ids->at[i]) && --which == 0)
            break;
    return i;
}

static bool are_equal(const struct token_list *a, const struct token_list *b) {
    return a->n == b->n && memcmp(a->at, b->at, a->n * sizeof *a->at) == 0;
}

/* Whether the messages give the same tokens with the template variables of the kept tokens as with
 * those of the ask. */
static bool is_same_with(const struct ask *ask, const struct ask_model *m, size_t n_messages,
                         const struct replayed *kept) {
    struct err ignored;
    struct token_list then = {0}, now = {0};
    bool has_none = json_object_size(kept->variables) + json_object_size(ask->variables) == 0;
    if (has_none || json_equal(kept->variables, ask->variables))
        return true;
    bool is_same = !encode_messages(ask, m, n_messages, kept->variables, false, &then, &ignored) &&
                   !encode_messages(ask, m, n_messages, ask->variables, false, &now, &ignored) &&
                   are_equal(&then, &now);
    free(then.at);
    free(now.at);
    return is_same;
}

/* Replaces the beginning of the prompt, up to the end of a kept answer, with the tokens that were
 * sampled. Every answer ends with an end token, and no message can contain one, so counting those
 * of the prompt that it answered finds its own. Those of the messages with the answer do not:
 * templates may end a conversation with one more, or one less. */
static bool splice(const struct ask *ask, const struct ask_model *m, size_t n_messages,
                   const struct replayed *kept, struct token_list *prompt) {
    struct err ignored;
    struct token_list before;
    if (encode_messages(ask, m, n_messages - 1, ask->variables, true, &before, &ignored))
        return false;
    size_t end = find_end(m, prompt, count_ends(m, &before) + 1);
    free(before.at);
    size_t n = kept->n + prompt->n - end;
    bool is_good = end < prompt->n && n < m->context && is_same_with(ask, m, n_messages, kept);
    int32_t *at = is_good ? malloc(n * sizeof *at) : NULL;
    if (!at)
        return false;
    memcpy(at, kept->tokens, kept->n * sizeof *at);
    memcpy(at + kept->n, prompt->at + end, (prompt->n - end) * sizeof *at);
    free(prompt->at);
    prompt->at = at;
    prompt->n = n;
    return true;
}

/* ---- what names leave out ----------------------------------------------------------------- */

/* A copy without what replay_add leaves out: an answer's thinking and name, and its calls' ids. */
static json_t *as_named(const json_t *message) {
    json_t *out = json_deep_copy(message), *call;
    const char *role = json_text_of(message, "role");
    size_t i;
    json_object_del(out, "reasoning_content");
    if (role && strcmp(role, "assistant") == 0)
        json_object_del(out, "name");
    json_array_foreach(json_object_get(out, "tool_calls"), i, call) {
        if (json_object_get(call, "id")) /* without one nothing is left out */
            json_object_set_new(call, "id", json_string(""));
    }
    return out;
}

/* Whether the prompt has nothing of its messages, those from `first` on, that their name leaves
 * out: then an answer to it is one to all conversations of that name. */
static bool is_named_whole(const struct ask *ask, const struct ask_model *m, size_t first,
                           const struct token_list *prompt) {
    struct ask named = *ask;
    struct token_list tokens = {0};
    struct err ignored;
    json_t *message;
    bool is_whole = true;
    size_t i;
    named.messages = json_array();
    json_array_foreach(ask->messages, i, message) {
        json_t *copy = i < first ? json_incref(message) : as_named(message);
        is_whole &= json_equal(copy, message);
        json_array_append_new(named.messages, copy);
    }
    if (!is_whole)
        is_whole = !encode_messages(&named, m, json_array_size(named.messages), ask->variables,
                                    true, &tokens, &ignored) &&
                   are_equal(&tokens, prompt);
    free(tokens.at);
    json_decref(named.messages);
    return is_whole;
}

/* The replay name of the first n messages. */
static struct hash128 name_of(const struct ask *ask, size_t n) {
    struct hash128 name = replay_start(ask->hides_tools ? NULL : ask->tools);
    for (size_t i = 0; i < n; i++)
        name = replay_add(name, json_array_get(ask->messages, i));
    return name;
}

size_t ask_kept(const struct ask *ask, struct store *replay, struct replayed *out) {
    struct hash128 name = name_of(ask, 0);
    size_t n_messages = 0;
    *out = (struct replayed){0};
    for (size_t i = 0; i < json_array_size(ask->messages); i++) {
        const json_t *message = json_array_get(ask->messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        struct replayed found;
        name = replay_add(name, message);
        if (!role || strcmp(role, "assistant") != 0 || !replay_get(replay, name, &found))
            continue;
        replayed_free(out);
        *out = found;
        n_messages = i + 1;
    }
    return n_messages;
}

void ask_keep(const struct ask *ask, struct store *replay, size_t n_messages,
              const struct replayed *kept) {
    replay_put(replay, name_of(ask, n_messages), kept);
}

/* Splices in the longest beginning of the conversation whose last answer is kept. */
static void replay_answers(struct ask *ask, const struct ask_model *m, struct store *replay,
                           struct token_list *prompt) {
    struct replayed kept;
    ask->name = name_of(ask, json_array_size(ask->messages));
    size_t n_messages = ask_kept(ask, replay, &kept);
    ask->is_named_whole = is_named_whole(ask, m, n_messages, prompt);
    if (n_messages > 0 && !splice(ask, m, n_messages, &kept, prompt))
        ask->is_named_whole = is_named_whole(ask, m, 0, prompt);
    replayed_free(&kept);
}

static void look_for_thinking(struct ask *ask, const struct ask_model *m,
                              const struct token_list *prompt) {
    struct follow f = {.open = m->think_open, .close = m->think_close};
    follow_look(&f, prompt->at, prompt->n);
    ask->starts_thinking = f.is_thinking;
    ask->may_think = f.may_open;
}

int prompt_append_text(const struct ask_model *m, struct token_list *prompt, struct str text,
                       unsigned flags, struct err *err) {
    size_t n = 0, capacity = m->context;
    int32_t *more = realloc(prompt->at, (prompt->n + capacity) * sizeof *more);
    if (!more)
        return err_memory(err, "a prompt");
    prompt->at = more;
    int status = sluice_encode(m->model, text.at, text.len, flags, more + prompt->n, capacity, &n);
    if (status)
        return n > capacity ? prompt_too_long(m, prompt->n + n, err)
                            : err_set(err, status, "%s", sluice_status_text(status));
    prompt->n += n;
    return SLUICE_OK;
}

int prompt_append_token(struct token_list *ids, int32_t token, struct err *err) {
    int32_t *more = realloc(ids->at, (ids->n + 1) * sizeof *more);
    if (!more)
        return err_memory(err, "a prompt");
    ids->at = more;
    ids->at[ids->n++] = token;
    return SLUICE_OK;
}

/* Ends the thinking that the template began, the way a template without thinking writes it: the
 * empty line is one token there, not two newlines. */
static int end_thinking(const struct ask_model *m, struct token_list *prompt, struct err *err) {
    struct str last = {0};
    if (prompt->n > 0)
        last.at = sluice_token_text(m->model, prompt->at[prompt->n - 1], &last.len);
    bool has_newline = str_is(last, "\n");
    prompt->n -= has_newline;
    return prompt_append_text(m, prompt,
                              has_newline ? STR("\n\n</think>\n\n") : STR("\n</think>\n\n"),
                              SLUICE_ENCODE_SPECIAL, err);
}

/* What the answer begins with: a text, or a call's first tag. Thinking that the template began ends
 * first. The template is not told that thinking is off: so the conversation stays the same as in
 * the cache. */
static int begin_answer(struct ask *ask, const struct ask_model *m, struct token_list *prompt,
                        struct err *err) {
    struct str begun = {json_string_value(ask->begun), json_string_length(ask->begun)};
    int status = SLUICE_OK;
    if (!ask->begun && !ask->is_call_begun)
        return SLUICE_OK;
    if (ask->starts_thinking)
        status = end_thinking(m, prompt, err);
    ask->starts_thinking = ask->may_think = false;
    if (!status && ask->begun)
        status = prompt_append_text(m, prompt, begun, 0, err);
    if (!status && ask->is_call_begun)
        status = prompt_append_text(m, prompt, str_of(ASK_CALL_BEGIN), SLUICE_ENCODE_SPECIAL, err);
    return status;
}

static void continue_last(struct ask *ask) {
    size_t n = json_array_size(ask->messages);
    const json_t *last = n > 0 ? json_array_get(ask->messages, n - 1) : NULL;
    const char *role = json_text_of(last, "role"), *text = json_text_of(last, "content");
    if (!role || strcmp(role, "assistant") != 0 || !text || !*text ||
        json_object_get(last, "tool_calls"))
        return;
    ask->begun = json_incref(json_object_get(last, "content"));
    json_array_remove(ask->messages, n - 1);
}

int ask_encode(struct ask *ask, const struct ask_model *m, struct store *replay, struct err *err) {
    struct token_list prompt;
    if (ask->continues_last)
        continue_last(ask);
    int status =
        encode_messages(ask, m, json_array_size(ask->messages), ask->variables, true, &prompt, err);
    if (status)
        return status;
    replay_answers(ask, m, replay, &prompt);
    look_for_thinking(ask, m, &prompt);
    if ((status = begin_answer(ask, m, &prompt, err))) {
        free(prompt.at);
        return status;
    }
    return prompt_add(ask, m, prompt, err);
}

int ask_add_encoded(struct ask *ask, const struct ask_model *m, struct str text, unsigned flags,
                    struct err *err) {
    struct token_list ids = {malloc(m->context * sizeof *ids.at), 0};
    if (!ids.at)
        return err_memory(err, "a prompt");
    int status = sluice_encode(m->model, text.at, text.len, flags, ids.at, m->context, &ids.n);
    if (status) {
        free(ids.at);
        return ids.n > m->context ? prompt_too_long(m, ids.n, err)
                                  : err_set(err, status, "%s", sluice_status_text(status));
    }
    return prompt_add(ask, m, ids, err);
}

int ask_add_text(struct ask *ask, const struct ask_model *m, struct str text, struct err *err) {
    return ask_add_encoded(ask, m, text, SLUICE_ENCODE_BOS | SLUICE_ENCODE_SPECIAL, err);
}

/* ---- tokens ------------------------------------------------------------------------------- */

void ask_decode(const struct ask_model *m, const int32_t *tokens, size_t n, bool with_control,
                struct buffer *out) {
    sluice_text *text;
    const char *at;
    size_t length;
    if (sluice_text_open(&text, m->model, NULL, 0))
        return;
    sluice_text_show_control(text, with_control);
    for (size_t i = 0; i <= n; i++)
        if (sluice_text_push(text, i < n ? tokens[i] : SLUICE_TEXT_END, &at, &length) == SLUICE_OK)
            buffer_add(out, at, length);
    sluice_text_close(text);
}

static int read_id(const struct ask_model *m, const char *name, const json_t *id, int32_t *out,
                   struct err *err) {
    json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0 || value >= m->facts.n_tokens)
        return err_set(err, SLUICE_ERR_ARGUMENT, "%s has a token that is %s, expected 0 to %d",
                       name, json_is_integer(id) ? "outside the vocabulary" : json_kind(id),
                       m->facts.n_tokens - 1);
    *out = (int32_t)value;
    return SLUICE_OK;
}

int ask_read_ids(const struct ask_model *m, const char *name, const json_t *list, int32_t **out,
                 struct err *err) {
    json_t *id;
    size_t i;
    int status = SLUICE_OK;
    *out = calloc(json_array_size(list) + 1, sizeof **out);
    if (!*out)
        return err_memory(err, "tokens");
    json_array_foreach(list, i, id) {
        if ((status = read_id(m, name, id, &(*out)[i], err)))
            break;
    }
    return status;
}

bool ask_has_token(const json_t *list) {
    const json_t *part;
    size_t i;
    json_array_foreach(list, i, part) {
        if (json_is_integer(part))
            return true;
    }
    return false;
}

/* One more token, or a text: before a first one BOS is added. */
static int append_part(const struct ask_model *m, const char *name, const json_t *part,
                       struct token_list *ids, struct err *err) {
    struct str text = {json_string_value(part), json_string_length(part)};
    int32_t id;
    int status = SLUICE_OK;
    if (!text.at) {
        status = read_id(m, name, part, &id, err);
        return status ? status : prompt_append_token(ids, id, err);
    }
    if (ids->n == 0 && m->facts.adds_bos)
        status = prompt_append_token(ids, m->facts.bos, err);
    return status ? status : prompt_append_text(m, ids, text, SLUICE_ENCODE_SPECIAL, err);
}

int ask_add_parts(struct ask *ask, const struct ask_model *m, const char *name, const json_t *list,
                  struct err *err) {
    struct token_list ids = {0};
    const json_t *part;
    size_t i;
    int status = SLUICE_OK;
    if (!ask_has_token(list)) {
        status = ask_read_ids(m, name, list, &ids.at, err); /* says what there is instead */
        free(ids.at);
        return status;
    }
    json_array_foreach(list, i, part) {
        status = append_part(m, name, part, &ids, err);
        if (!status && ids.n >= m->context)
            status = prompt_too_long(m, ids.n, err);
        if (status)
            break;
    }
    if (!status)
        return prompt_add(ask, m, ids, err);
    free(ids.at);
    return status;
}
