/* chat.c - the verb chat: a conversation in the terminal. */
#include <signal.h>
#include <string.h>

#include "cmd/chat_commands.h"
#include "cmd/cmd.h"
#include "cmd/editor.h"
#include "cmd/interrupt.h"

struct chat_options {
    const char *one_shot, *system, *full;
};

static bool is_empty(struct str s) {
    while (s.len > 0 && strchr(" \t\r\n", s.at[0]) && s.at[0])
        s = str_skip(s, 1);
    return s.len == 0;
}

static int handle(struct talk *t, const struct message *m) {
    int exit = 0;
    if (is_empty(m->text) || (!m->is_block && chat_command(t, m->text, &exit)))
        return exit;
    return talk_ask(t, m->text);
}

/* In a terminal a failure is reported and the conversation continues; in a pipe it ends the
 * program, and so does a failure of the output anywhere. An interrupt only ends an answer. */
static int converse(struct talk *t) {
    struct editor *editor;
    struct err err = {0};
    struct message message;
    int exit = 0, found = 0;
    if (editor_open(&editor, &err))
        return fail(&err);
    while (!t->is_over && (!exit || editor_is_terminal(editor)) &&
           (found = editor_read(editor, &message, &err)) > 0) {
        exit = handle(t, &message);
        if (exit == EXIT_INTERRUPTED)
            exit = 0;
    }
    if (editor_is_terminal(editor) && !t->is_over)
        exit = 0;
    editor_close(editor);
    return found < 0 ? fail(&err) : exit;
}

static int chat(struct talk *t, const struct chat_options *o) {
    struct err err = {0};
    int exit = talk_open(t);
    if (exit)
        return exit;
    if (o->system && conversation_set_system(&t->conversation, str_of(o->system), &err))
        return fail(&err);
    common_announce(&t->common, t->model, t->engine);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe becomes a write error */
    interrupt_install(t->engine);
    exit = o->one_shot ? talk_ask(t, str_of(o->one_shot)) : converse(t);
    interrupt_install(NULL);
    return exit;
}

int cmd_chat(int argc, char **argv) {
    struct talk t = {.common = common_default(), .n = -1};
    struct chat_options o = {.full = "drop"};
    t.common.draft = USUAL_DRAFT;
    struct opt opts[MAX_COMMON_OPTS + N_CONSTRAINT_OPTS + 8] = {
        {"--prompt", 'p', OPT_STRING, &o.one_shot, "TEXT",
         "ask one question, print the answer and exit"},
        {"--system", 0, OPT_STRING, &o.system, "TEXT", "system message"},
        {"--chat-template", 0, OPT_STRING, &t.template, "FILE|TEXT",
         "Jinja template to use instead of the model's"},
        {"--think", 0, OPT_STRING, &t.think, "on|off",
         "let the model think first, if it can; default: as its template says"},
        {"--tokens", 'n', OPT_INT, &t.n, "N",
         "at most N tokens per answer; default: until it ends"},
        {"--full", 0, OPT_STRING, &o.full, "drop|stop",
         "when the context is full: drop the oldest turns (default) or stop"},
    };
    const struct usage usage = {
        .verb = "chat",
        .synopsis = "[MODEL] [-p TEXT] [--system TEXT] [--think on|off] [options]",
        .about =
            "A conversation in the terminal, formatted by the model's own chat template. /help "
            "lists "
            "the\ncommands; Ctrl-C ends an answer, Ctrl-D the conversation. What you type is kept "
            "in the file\n$SLUICE_HISTORY (empty: not at all), by default "
            "~/.local/state/sluice/history.",
        .example = "sluice chat -p 'Tell me a story about a fox.'",
        .opts = opts,
        .n_opts = common_opts(opts, constraint_opts(opts, 6, &t.constraint), &t.common,
                              WITH_ENGINE | WITH_CACHE | WITH_DRAFT | WITH_SAMPLING | WITH_STOP |
                                  WITH_JSON),
        .model = &t.common.model,
    };
    int exit = opts_parse(&usage, argc, argv, NULL);
    if (exit == OPTS_GO_ON)
        exit = common_check(&t.common, "chat");
    if (exit == OPTS_GO_ON)
        exit = constraint_check(&t.constraint, "chat", t.common.ignore_eos);
    if (exit != OPTS_GO_ON)
        return exit;
    if (t.think && strcmp(t.think, "on") != 0 && strcmp(t.think, "off") != 0)
        return complain(EXIT_USAGE, "chat: --think is '%s', expected on or off", t.think);
    if (strcmp(o.full, "drop") != 0 && strcmp(o.full, "stop") != 0)
        return complain(EXIT_USAGE, "chat: --full is '%s', expected drop or stop", o.full);
    if (t.n < -1)
        return complain(EXIT_USAGE, "chat: -n is %d, expected 0 or more", t.n);
    t.stops_when_full = strcmp(o.full, "stop") == 0;
    exit = common_open_model(&t.common, &t.model);
    if (!exit)
        exit = chat(&t, &o);
    talk_close(&t);
    sluice_model_close(t.model);
    return exit;
}
