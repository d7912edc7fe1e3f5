/* ask_middle.c - fill-in-the-middle: the prompt for the text between two others. */
#include <stdlib.h>
#include <string.h>

#include "serve/ask_internal.h"

/* A model's tokens; the last two are -1 if it has none for other files. */
struct fim {
    int32_t prefix, suffix, middle, repo, file;
};

static bool find_fim(const struct ask_model *m, struct fim *out) {
    static const char *const names[][5] = {
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"},
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>"},
    }; /* of Qwen; of StarCoder, SmolLM2 */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const sluice_model *model = m->model;
        *out = (struct fim){ask_token_of(model, names[i][0]), ask_token_of(model, names[i][1]),
                            ask_token_of(model, names[i][2]), ask_token_of(model, names[i][3]),
                            ask_token_of(model, names[i][4])};
        if (out->prefix >= 0 && out->suffix >= 0 && out->middle >= 0)
            return true;
    }
    return false;
}

/* A text without control tokens, which may be longer than the context. */
static int append_plain(const struct ask_model *m, struct token_list *ids, struct str text,
                        struct err *err) {
    size_t n = 0;
    sluice_encode(m->model, text.at, text.len, 0, NULL, 0, &n);
    int32_t *more = realloc(ids->at, (ids->n + n + 1) * sizeof *more);
    if (!more)
        return err_memory(err, "a prompt");
    ids->at = more;
    int status = sluice_encode(m->model, text.at, text.len, 0, more + ids->n, n, &n);
    if (status)
        return err_set(err, status, "%s", sluice_status_text(status));
    ids->n += n;
    return SLUICE_OK;
}

/* What goes before a file: the model's own token and a name, or else a line. */
static int append_file(const struct ask_model *m, struct token_list *ids, const struct fim *fim,
                       const char *name, struct err *err) {
    if (fim->file < 0)
        return append_plain(m, ids, STR("\n\n--- snippet ---\n\n"), err);
    int status = prompt_append_token(ids, fim->file, err);
    if (!status)
        status = append_plain(m, ids, str_of(name), err);
    return status ? status : append_plain(m, ids, STR("\n"), err);
}

enum { PART_HEAD, PART_FILES, PART_BEFORE, PART_AFTER, PART_BEGUN, N_PARTS };

/* The other files, in the form that llama.cpp's server gives them, names included. */
static int encode_files(const struct ask_model *m, const struct fim *fim, const json_t *files,
                        struct token_list *parts, struct err *err) {
    const json_t *file;
    size_t i;
    int status = SLUICE_OK;
    if (fim->repo >= 0) {
        status = prompt_append_token(&parts[PART_HEAD], fim->repo, err);
        if (!status)
            status = append_plain(m, &parts[PART_HEAD], STR("myproject\n"), err);
    }
    json_array_foreach(files, i, file) {
        const char *name = json_text_of(file, "filename");
        const json_t *text = json_object_get(file, "text");
        struct str its = {json_string_value(text), json_string_length(text)};
        if (!status)
            status = append_file(m, &parts[PART_FILES], fim, name ? name : "tmp", err);
        if (!status)
            status = append_plain(m, &parts[PART_FILES], its, err);
    }
    if (!status && fim->file >= 0)
        status = append_file(m, &parts[PART_FILES], fim, "filename", err);
    return status;
}

static int encode_parts(const struct ask_model *m, const struct fim *fim,
                        const struct ask_middle *middle, struct token_list *parts,
                        struct err *err) {
    int status =
        m->facts.adds_bos ? prompt_append_token(&parts[PART_HEAD], m->facts.bos, err) : SLUICE_OK;
    if (!status && json_array_size(middle->files) > 0)
        status = encode_files(m, fim, middle->files, parts, err);
    if (!status)
        status = append_plain(m, &parts[PART_BEFORE], middle->before, err);
    if (!status)
        status = append_plain(m, &parts[PART_AFTER], middle->after, err);
    return status ? status : append_plain(m, &parts[PART_BEGUN], middle->begun, err);
}

static void keep_end(struct token_list *ids, size_t n) {
    if (n < ids->n)
        memmove(ids->at, ids->at + ids->n - n, n * sizeof *ids->at);
    ids->n = n;
}

/* Cuts the parts so that they fit, with room for an answer: at least a quarter of the context, if
 * no smaller length was asked for. Before the gap the end is kept, after it the beginning, 3 : 1 if
 * both are too long; other files have what is left, and the last of them are kept, each whole where
 * tokens say where one begins. */
static void cut_parts(const struct ask *ask, const struct ask_model *m, const struct fim *fim,
                      struct token_list *parts) {
    size_t quarter = m->context / 4, answer = quarter;
    if (ask->max_tokens >= 0 && (size_t)ask->max_tokens < quarter)
        answer = (size_t)ask->max_tokens;
    size_t taken = answer + parts[PART_HEAD].n + parts[PART_BEGUN].n + 3;
    size_t room = taken < m->context ? m->context - taken : 0;
    struct token_list *before = &parts[PART_BEFORE], *after = &parts[PART_AFTER];
    struct token_list *files = &parts[PART_FILES];
    size_t n_after = after->n < room / 4 ? after->n : room / 4;
    keep_end(before, before->n < room - n_after ? before->n : room - n_after);
    room -= before->n;
    after->n = after->n < room ? after->n : room;
    room -= after->n;
    if (files->n <= room)
        return;
    size_t first = files->n - room;
    while (fim->file >= 0 && first < files->n && files->at[first] != fim->file)
        first++;
    keep_end(files, files->n - first);
}

static int join_parts(struct ask *ask, const struct ask_model *m, const struct fim *fim,
                      const struct token_list *parts, struct err *err) {
    const int32_t tags[N_PARTS] = {-1, -1, fim->prefix, fim->suffix, fim->middle};
    size_t n = 3;
    for (int i = 0; i < N_PARTS; i++)
        n += parts[i].n;
    struct token_list prompt = {malloc(n * sizeof *prompt.at), 0};
    if (!prompt.at)
        return err_memory(err, "a prompt");
    for (int i = 0; i < N_PARTS; i++) {
        if (tags[i] >= 0)
            prompt.at[prompt.n++] = tags[i];
        if (parts[i].n > 0)
            memcpy(prompt.at + prompt.n, parts[i].at, parts[i].n * sizeof *prompt.at);
        prompt.n += parts[i].n;
    }
    return prompt_add(ask, m, prompt, err);
}

int ask_add_middle(struct ask *ask, const struct ask_model *m, const struct ask_middle *middle,
                   struct err *err) {
    struct token_list parts[N_PARTS] = {0};
    struct fim fim;
    if (!find_fim(m, &fim))
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "suffix is not supported: this model has no token <|fim_middle|>");
    int status = encode_parts(m, &fim, middle, parts, err);
    if (!status && middle->is_cut)
        cut_parts(ask, m, &fim, parts);
    if (!status)
        status = join_parts(ask, m, &fim, parts, err);
    for (int i = 0; i < N_PARTS; i++)
        free(parts[i].at);
    return status;
}
