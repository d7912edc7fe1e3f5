/* conversation.c - the messages of a conversation, and its forks. */
#include "cmd/conversation.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "base/outfile.h"
#include "cmd/cmd.h"
#include "file/json.h"

/* ---- messages ----------------------------------------------------------------------------- */

static const char *role_at(const struct conversation *c, size_t i) {
    return json_string_value(json_object_get(json_array_get(c->messages, i), "role"));
}

static bool is_question(const struct conversation *c, size_t i) {
    return strcmp(role_at(c, i), "user") == 0;
}

/* The first question at or after `from`; the number of messages when there is none. */
static size_t find_question(const struct conversation *c, size_t from) {
    while (from < conversation_size(c) && !is_question(c, from))
        from++;
    return from;
}

static void remove_range(struct conversation *c, size_t from, size_t to) {
    while (to > from)
        json_array_remove(c->messages, --to);
}

/* Without zero bytes, which a file could not give back. */
static json_t *make_content(struct str text) {
    if (text.len == 0 || !memchr(text.at, 0, text.len))
        return json_text(text);
    char *copy = malloc(text.len);
    for (size_t i = 0; copy && i < text.len; i++)
        copy[i] = text.at[i] ? text.at[i] : ' ';
    json_t *content = copy ? json_text((struct str){copy, text.len}) : NULL;
    free(copy);
    return content;
}

static json_t *make_message(const char *role, struct str text, struct err *err) {
    json_t *content = make_content(text);
    json_t *message = content ? json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
    if (!message)
        err_memory(err, "a message");
    return message;
}

size_t conversation_size(const struct conversation *c) {
    return json_array_size(c->messages);
}

int conversation_add(struct conversation *c, const char *role, struct str text, struct err *err) {
    json_t *message = make_message(role, text, err);
    if (!message)
        return err->code;
    return json_array_append_new(c->messages, message) ? err_memory(err, "a message") : SLUICE_OK;
}

void conversation_free(struct conversation *c) {
    json_decref(c->messages);
    while (c->n_forks > 0)
        json_decref(c->forks[--c->n_forks]);
    *c = (struct conversation){0};
}

/* ---- the system message ------------------------------------------------------------------- */

static bool has_system(const struct conversation *c) {
    return conversation_size(c) > 0 && strcmp(role_at(c, 0), "system") == 0;
}

int conversation_clear(struct conversation *c, struct err *err) {
    if (!c->messages && !(c->messages = json_array()))
        return err_memory(err, "a conversation");
    remove_range(c, has_system(c), conversation_size(c));
    return SLUICE_OK;
}

const char *conversation_system(const struct conversation *c) {
    const json_t *content = json_object_get(json_array_get(c->messages, 0), "content");
    return has_system(c) ? json_string_value(content) : NULL;
}

int conversation_set_system(struct conversation *c, struct str text, struct err *err) {
    json_t *message = text.len > 0 ? make_message("system", text, err) : NULL;
    if (text.len > 0 && !message)
        return err->code;
    if (has_system(c))
        json_array_remove(c->messages, 0);
    if (message && json_array_insert_new(c->messages, 0, message))
        return err_memory(err, "a message");
    return SLUICE_OK;
}

/* ---- turns -------------------------------------------------------------------------------- */

/* The last question's number and one; 0 when there is none. */
static size_t after_last_question(const struct conversation *c) {
    size_t n = conversation_size(c);
    while (n > 0 && !is_question(c, n - 1))
        n--;
    return n;
}

bool conversation_undo(struct conversation *c) {
    size_t n = after_last_question(c);
    if (n > 0)
        remove_range(c, n - 1, conversation_size(c));
    return n > 0;
}

bool conversation_undo_answer(struct conversation *c) {
    size_t n = after_last_question(c);
    if (n > 0)
        remove_range(c, n, conversation_size(c));
    return n > 0;
}

bool conversation_drop_oldest(struct conversation *c) {
    size_t first = find_question(c, 0), second = find_question(c, first + 1);
    if (second >= conversation_size(c))
        return false;
    remove_range(c, first, second);
    return true;
}

/* ---- other states ------------------------------------------------------------------------- */

json_t *conversation_snapshot(const struct conversation *c) {
    return json_copy(c->messages); /* messages themselves never change */
}

void conversation_restore(struct conversation *c, json_t *snapshot) {
    json_decref(c->messages);
    c->messages = snapshot;
}

int conversation_fork(struct conversation *c, struct err *err) {
    if (c->n_forks == MAX_FORKS)
        return err_set(err, SLUICE_ERR_ARGUMENT, "%d forks, expected fewer; /back leaves one",
                       MAX_FORKS);
    json_t *kept = conversation_snapshot(c);
    if (!kept)
        return err_memory(err, "a fork");
    c->forks[c->n_forks++] = kept;
    return SLUICE_OK;
}

bool conversation_back(struct conversation *c) {
    if (c->n_forks == 0)
        return false;
    conversation_restore(c, c->forks[--c->n_forks]);
    return true;
}

/* ---- files -------------------------------------------------------------------------------- */

int conversation_save(const struct conversation *c, const char *path, struct err *err) {
    struct outfile out = {.fd = -1};
    char *text = json_dumps(c->messages, JSON_INDENT(1));
    if (!text)
        return err_memory(err, path);
    int status = outfile_open(&out, path, err);
    if (!status)
        status = outfile_write(&out, text, strlen(text), err);
    if (!status)
        status = outfile_write(&out, "\n", 1, err);
    if (!status)
        status = outfile_commit(&out, err);
    outfile_abort(&out);
    free(text);
    return status;
}

int conversation_check_replaced(const char *path, struct err *err) {
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
        return SLUICE_OK;
    json_t *old = conversation_read(path, err);
    json_decref(old);
    return old ? SLUICE_OK
               : err_set(err, SLUICE_ERR_ARGUMENT,
                         "%s: exists and is not a saved conversation; it is left as it is", path);
}

json_t *conversation_read(const char *path, struct err *err) {
    json_t *list = json_read(path, NULL, true, err), *message;
    size_t i;
    bool is_good = json_is_array(list);
    json_array_foreach(list, i, message) {
        is_good &= json_is_string(json_object_get(message, "role"));
    }
    if (!list || is_good)
        return list;
    json_decref(list);
    err_set(err, SLUICE_ERR_FORMAT, "%s: expected a list of messages, each with a role", path);
    return NULL;
}
