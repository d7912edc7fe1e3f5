/* chat.c - the verb chat: a conversation in the terminal.
 *
 * The conversation is a list of messages; the sequence is what the model's template makes of it.
 * Before each answer the list is rendered and encoded whole, the sequence goes back to what both
 * have in common, and the rest is fed: so /undo, /fork and /load only change the list, and a
 * template that rewrites its history (thinking stripped) works by itself. */
#include "text/chat.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/outfile.h"
#include "cmd/cmd.h"
#include "cmd/open.h"
#include "cmd/progress.h"
#include "engine/engine.h"
#include "file/json.h"

enum { MAX_FORKS = 64 };

struct talk {
    struct common common;
    const char *one_shot, *system, *think;
    int n;
    sluice_model *model;
    sluice_engine *engine;
    sluice_seq *seq;
    sluice_text *text;
    struct chat *chat;
    json_t *messages;
    json_t *forks[MAX_FORKS]; /* the conversations to come back to */
    int n_forks;
    struct text_buffer answer;
};

/* Ctrl-C: ends the answer, not the program. */
static volatile sig_atomic_t is_interrupted;
static void interrupt(int signal) {
    (void)signal;
    is_interrupted = 1;
}

/* ---- messages ---------------------------------------------------------------------------------
 */

static void add_message(struct talk *t, const char *role, const char *content, size_t length) {
    json_t *text = json_stringn(content, length);
    if (!text) /* not UTF-8: what a terminal may send */
        text = json_string("?");
    json_array_append_new(t->messages, json_pack("{s:s, s:o}", "role", role, "content", text));
}

static const char *role_of(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

/* The last question and what followed it. */
static bool undo(struct talk *t) {
    size_t n = json_array_size(t->messages);
    while (n > 0 && strcmp(role_of(json_array_get(t->messages, n - 1)), "user") != 0)
        n--;
    if (n == 0)
        return false;
    while (json_array_size(t->messages) >= n)
        json_array_remove(t->messages, json_array_size(t->messages) - 1);
    return true;
}

static void begin_messages(struct talk *t) {
    json_decref(t->messages);
    t->messages = json_array();
    if (t->system)
        add_message(t, "system", t->system, strlen(t->system));
}

/* ---- the prompt -------------------------------------------------------------------------------
 */

static int render(const struct talk *t, struct ids *ids, struct err *err) {
    const struct chat_request request = {
        .messages = t->messages,
        .with_generation_prompt = true,
        .thinking = !t->think                     ? THINK_AS_MODEL
                    : strcmp(t->think, "on") == 0 ? THINK_ON
                                                  : THINK_OFF,
    };
    return chat_encode(t->chat, t->model->tokenizer, &request, ids, err);
}

/* Makes the sequence hold exactly these tokens, keeping what it has of them already. The last one
 * is worked off again in any case: the answer begins behind it. */
static int feed_prompt(struct talk *t, const struct ids *ids, size_t *n_fed) {
    const int32_t *old;
    uint32_t n_old, common = 0;
    struct sluice_choice choice;
    sluice_engine_choice(t->engine, &choice);
    if (ids->len == 0)
        return err_set(&t->engine->err, SLUICE_ERR_ARGUMENT, "the conversation has no tokens");
    if (ids->len > choice.context)
        return err_set(&t->engine->err, SLUICE_ERR_ARGUMENT,
                       "the conversation has %zu tokens, expected at most %u (-c); /undo or /clear",
                       ids->len, choice.context);
    sluice_seq_tokens(t->seq, &old, &n_old, NULL);
    while (common < n_old && common + 1 < ids->len && old[common] == ids->at[common])
        common++;
    int status = sluice_seq_rewind(t->seq, common);
    if (!status)
        status = sluice_seq_feed(t->seq, ids->at + common, ids->len - common);
    *n_fed = ids->len - common;
    return status;
}

/* ---- the answer -------------------------------------------------------------------------------
 */

static int keep(struct talk *t, const char *at, size_t length) {
    if (t->answer.capacity - t->answer.len < length) {
        size_t capacity = 2 * t->answer.capacity + length + 256;
        char *more = realloc(t->answer.at, capacity);
        if (!more)
            return complain(EXIT_WORLD, "out of memory for an answer");
        t->answer.at = more;
        t->answer.capacity = capacity;
    }
    if (length)
        memcpy(t->answer.at + t->answer.len, at, length);
    t->answer.len += length;
    return 0;
}

static int show_token(struct talk *t, int32_t token) {
    const char *at;
    size_t length;
    int status = sluice_text_push(t->text, token, &at, &length);
    if (status)
        return complain(EXIT_WORLD, "token %d: %s", token, sluice_status_text(status));
    fwrite(at, 1, length, stdout);
    fflush(stdout);
    return keep(t, at, length);
}

static int generate(struct talk *t, int *n_new) {
    struct sluice_choice choice;
    int exit = 0;
    sluice_engine_choice(t->engine, &choice);
    for (*n_new = 0; !exit && !is_interrupted && (t->n < 0 || *n_new < t->n); ++*n_new) {
        int32_t token = sluice_seq_token(t->seq);
        uint32_t n;
        if (sluice_token_is_end(t->model, token))
            break;
        exit = show_token(t, token);
        sluice_seq_tokens(t->seq, NULL, &n, NULL);
        if (sluice_text_has_stopped(t->text))
            break;
        if (n >= choice.context) {
            fprintf(stderr, "\n(the context is full; /undo or /clear)");
            break;
        }
        if (sluice_seq_feed(t->seq, &token, 1) || sluice_engine_step(t->engine, NULL))
            exit = fail_engine(t->engine);
    }
    if (!exit)
        exit = show_token(t, SLUICE_TEXT_END);
    putchar('\n');
    fflush(stdout);
    return exit;
}

/* What stands behind the thinking: the template strips the rest from the history itself. */
static int answer(struct talk *t) {
    struct err err = {0};
    struct ids ids = {0};
    size_t n_fed = 0;
    int n_new = 0;
    t->answer.len = 0;
    is_interrupted = 0;
    int status = render(t, &ids, &err);
    if (!status && (status = feed_prompt(t, &ids, &n_fed)))
        err = t->engine->err;
    ids_free(&ids);
    if (status)
        return fail(&err);
    double started = seconds_now();
    int exit = common_work_off(t->engine, "prompt", n_fed);
    double prompt_seconds = seconds_now() - started;
    started = seconds_now();
    if (!exit)
        exit = generate(t, &n_new);
    double seconds = seconds_now() - started;
    if (exit)
        return exit;
    add_message(t, "assistant", t->answer.at ? t->answer.at : "", t->answer.len);
    fprintf(stderr, "(%zu tokens read, %.0f tok/s; %d written, %.1f tok/s%s)\n", n_fed,
            (double)n_fed / prompt_seconds, n_new, n_new / seconds,
            is_interrupted ? ", interrupted" : "");
    return 0;
}

/* ---- commands ---------------------------------------------------------------------------------
 *
 * Each says one line and leaves the conversation as it was when it fails. */

static const char *json_path(const char *path, char *out, size_t size) {
    return (size_t)snprintf(out, size, "%s.json", path) < size ? out : NULL;
}

/* Two files: the messages, and the sequence, which saves working them off again. */
static int save(struct talk *t, const char *path) {
    char other[4096];
    struct err err = {0};
    struct outfile out = {.fd = -1};
    char *text = json_dumps(t->messages, JSON_INDENT(1));
    if (!text || !json_path(path, other, sizeof other)) {
        free(text);
        return complain(EXIT_WORLD, "cannot save as %s", path);
    }
    int status = sluice_seq_save(t->seq, path);
    if (status)
        err = t->engine->err;
    if (!status)
        status = outfile_open(&out, other, &err);
    if (!status)
        status = outfile_write(&out, text, strlen(text), &err);
    if (!status)
        status = outfile_commit(&out, &err);
    outfile_abort(&out);
    free(text);
    if (!status)
        fprintf(stderr, "(saved as %s and %s)\n", path, other);
    return status ? fail(&err) : 0;
}

static bool are_messages(const json_t *list) {
    size_t i;
    json_t *message;
    json_array_foreach(list, i, message) if (!role_of(message)[0]) return false;
    return json_is_array(list);
}

static int load(struct talk *t, const char *path) {
    char other[4096];
    struct err err = {0};
    sluice_seq *seq;
    json_t *messages =
        json_path(path, other, sizeof other) ? json_read(other, NULL, true, &err) : NULL;
    if (!messages)
        return fail(&err);
    if (!are_messages(messages)) {
        json_decref(messages);
        return complain(EXIT_WORLD, "%s: expected a list of messages", other);
    }
    if (sluice_seq_load(&seq, t->engine, path)) {
        json_decref(messages);
        return fail_engine(t->engine);
    }
    sluice_seq_set_sampling(seq, &t->seq->sampling);
    sluice_seq_close(t->seq);
    t->seq = seq;
    json_decref(t->messages);
    t->messages = messages;
    fprintf(stderr, "(%zu messages)\n", json_array_size(messages));
    return 0;
}

static int fork_talk(struct talk *t, const char *unused) {
    (void)unused;
    if (t->n_forks == MAX_FORKS)
        return complain(EXIT_WORLD, "%d forks, expected fewer; /back leaves one", MAX_FORKS);
    t->forks[t->n_forks++] = json_deep_copy(t->messages);
    fprintf(stderr, "(fork %d; /back returns to this point)\n", t->n_forks);
    return 0;
}

static int back(struct talk *t, const char *unused) {
    (void)unused;
    if (t->n_forks == 0)
        return complain(EXIT_WORLD, "there is no fork to leave");
    json_decref(t->messages);
    t->messages = t->forks[--t->n_forks];
    fprintf(stderr, "(%zu messages)\n", json_array_size(t->messages));
    return 0;
}

static int undo_last(struct talk *t, const char *unused) {
    (void)unused;
    if (!undo(t))
        return complain(EXIT_WORLD, "there is nothing to undo");
    fprintf(stderr, "(undone; %zu messages)\n", json_array_size(t->messages));
    return 0;
}

static int clear(struct talk *t, const char *unused) {
    (void)unused;
    begin_messages(t);
    return 0;
}

static int help(struct talk *t, const char *unused);

static const struct command {
    const char *name, *argument, *help;
    int (*run)(struct talk *t, const char *argument);
} commands[] = {
    {"/save", "FILE", "keep the conversation in a file (and FILE.json)", save},
    {"/load", "FILE", "go on with one that was kept", load},
    {"/fork", NULL, "try something; /back returns to this point", fork_talk},
    {"/back", NULL, "leave a fork", back},
    {"/undo", NULL, "take the last question and its answer back", undo_last},
    {"/clear", NULL, "begin anew", clear},
    {"/help", NULL, "this list; Ctrl-C ends an answer, Ctrl-D the program", help},
};

static int help(struct talk *t, const char *unused) {
    (void)t;
    (void)unused;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(stderr, "  %-6s %-5s %s\n", commands[i].name,
                commands[i].argument ? commands[i].argument : "", commands[i].help);
    return 0;
}

static int run_command(struct talk *t, char *line) {
    char *argument = strchr(line, ' ');
    if (argument)
        *argument++ = 0;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(line, commands[i].name) != 0)
            continue;
        if (commands[i].argument && (!argument || !*argument))
            return complain(EXIT_WORLD, "%s needs a %s", line, commands[i].argument);
        return commands[i].run(t, argument);
    }
    return complain(EXIT_WORLD, "unknown command %s; /help lists them", line);
}

/* ---- the verb ---------------------------------------------------------------------------------
 */

static int ask(struct talk *t, const char *question) {
    add_message(t, "user", question, strlen(question));
    int exit = answer(t);
    if (exit)
        undo(t);
    return exit;
}

/* The next line without its end; false at the end of input. */
static bool read_line(char **line, size_t *capacity) {
    bool is_terminal = isatty(0);
    for (;;) {
        if (is_terminal)
            fputs("> ", stderr);
        errno = 0;
        ssize_t n = getline(line, capacity, stdin);
        if (n > 0) {
            (*line)[strcspn(*line, "\r\n")] = 0;
            return true;
        }
        if (errno != EINTR)
            return false;
        clearerr(stdin);
        fputs("\n(Ctrl-D ends)\n", stderr);
    }
}

/* In a terminal a failure is said and life goes on; in a pipe it is the end. */
static int converse(struct talk *t) {
    char *line = NULL;
    size_t capacity = 0;
    int exit = 0;
    while ((!exit || isatty(0)) && read_line(&line, &capacity)) {
        if (line[0] == '/')
            exit = run_command(t, line);
        else if (line[0])
            exit = ask(t, line);
    }
    free(line);
    return isatty(0) ? 0 : exit;
}

static int open_talk(struct talk *t) {
    struct err err = {0};
    if (!t->model->tokenizer)
        return complain(EXIT_WORLD, "%s", sluice_model_error(t->model));
    if (chat_from_tokenizer(&t->chat, t->model->tokenizer, &err))
        return fail(&err);
    struct sluice_engine_options o = common_engine(&t->common);
    o.sequences = 2; /* one to load into while the other is kept */
    o.snapshot_bytes = 256 << 20;
    int exit = common_open_engine(t->model, &o, false, &t->engine);
    if (exit)
        return exit;
    struct sluice_sampling sampling = common_sampling(&t->common, t->model);
    if (sluice_seq_open(&t->seq, t->engine) || sluice_seq_set_sampling(t->seq, &sampling))
        return fail_engine(t->engine);
    if (sluice_text_open(&t->text, t->model, t->common.stops.at, (size_t)t->common.stops.n))
        return complain(EXIT_WORLD, "out of memory for a text");
    return 0;
}

static void close_talk(struct talk *t) {
    json_decref(t->messages);
    while (t->n_forks > 0)
        json_decref(t->forks[--t->n_forks]);
    text_buffer_free(&t->answer);
    chat_close(t->chat);
    sluice_text_close(t->text);
    sluice_engine_close(t->engine);
    sluice_model_close(t->model);
}

static int talk(struct talk *t) {
    int exit = open_talk(t);
    if (exit)
        return exit;
    begin_messages(t);
    common_announce(&t->common, t->model, t->engine);
    const struct sigaction action = {.sa_handler = interrupt}; /* no SA_RESTART: getline ends */
    sigaction(SIGINT, &action, NULL);
    return t->one_shot ? ask(t, t->one_shot) : converse(t);
}

int cmd_chat(int argc, char **argv) {
    struct talk t = {.common = common_default(), .n = -1};
    struct opt opts[MAX_COMMON_OPTS + 8] = {
        {"--prompt", 'p', OPT_STRING, &t.one_shot, "TEXT", "one question, one answer"},
        {"--system", 0, OPT_STRING, &t.system, "TEXT", "what the model is told first"},
        {"--think", 0, OPT_STRING, &t.think, "on|off", "thinking, where the model can"},
        {"--tokens", 'n', OPT_INT, &t.n, "N", "of an answer at most; none: until it ends"},
    };
    const struct usage usage = {
        .verb = "chat",
        .synopsis = "[-m MODEL] [-p TEXT] [--system TEXT] [--think on|off] [options]",
        .about = "A conversation in the terminal, by the model's own template. /help lists what "
                 "else can be\ntyped; Ctrl-C ends an answer, Ctrl-D the program.",
        .example = "sluice chat -p 'Tell me a story about a fox.'",
        .opts = opts,
        .n_opts = common_opts(opts, 4, &t.common, WITH_ENGINE | WITH_SAMPLING | WITH_STOP),
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit == OPTS_GO_ON)
        exit = common_check(&t.common, "chat");
    if (exit != OPTS_GO_ON)
        return exit;
    if (t.think && strcmp(t.think, "on") != 0 && strcmp(t.think, "off") != 0)
        return complain(EXIT_USAGE, "chat: --think is '%s', expected on or off", t.think);
    if (t.n < -1)
        return complain(EXIT_USAGE, "chat: -n is %d, expected 0 or more", t.n);
    exit = common_open_model(&t.common, &t.model);
    if (!exit)
        exit = talk(&t);
    close_talk(&t);
    return exit;
}
