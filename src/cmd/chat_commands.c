/* chat_commands.c - the commands of a conversation, one row each. */
#include "cmd/chat_commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"

static const enum say_level ASKED_FOR = SAY_NOTHING; /* is shown even with -q */

static int say_size(const struct talk *t, const char *what) {
    size_t n = conversation_size(&t->conversation);
    say(SAY_NORMAL, "(%s%zu message%s)", what, n, n == 1 ? "" : "s");
    return 0;
}

/* ---- files -------------------------------------------------------------------------------- */

static int json_path(const char *command, const char *path, char *out, size_t size) {
    if (strcmp(path, "-") == 0)
        return complain(EXIT_WORLD, "%s - is not standard output or input, expected a file",
                        command);
    if ((size_t)snprintf(out, size, "%s.json", path) < size)
        return 0;
    return complain(EXIT_WORLD, "%s: the path has %zu bytes, expected fewer", command,
                    strlen(path));
}

/* Two files: the messages, and the sequence, so that they need not be processed again. */
static int save(struct talk *t, const char *path) {
    char other[4096];
    struct err err = {0};
    int exit = json_path("/save", path, other, sizeof other);
    if (exit)
        return exit;
    if (conversation_check_replaced(other, &err))
        return fail(&err);
    exit = talk_trim(t); /* the file must not contain what was undone */
    if (exit)
        return exit;
    if (sluice_seq_save(t->seq, path))
        return fail_engine(t->engine);
    if (conversation_save(&t->conversation, other, &err))
        return fail(&err);
    say(SAY_NORMAL, "(saved as %s and %s)", path, other);
    return 0;
}

static int load(struct talk *t, const char *path) {
    char other[4096];
    struct err err = {0};
    sluice_seq *seq;
    int exit = json_path("/load", path, other, sizeof other);
    if (exit)
        return exit;
    size_t n = strlen(path), n_end = strlen(".json");
    if (n > n_end && strcmp(path + n - n_end, ".json") == 0 && access(other, F_OK) != 0) {
        snprintf(other, sizeof other, "%.*s", (int)(n - n_end), path);
        return load(t, other); /* the other file of the two was named */
    }
    json_t *messages = conversation_read(other, &err);
    if (!messages)
        return fail(&err);
    if (sluice_seq_load(&seq, t->engine, path)) {
        json_decref(messages);
        return fail_engine(t->engine);
    }
    conversation_restore(&t->conversation, messages);
    exit = talk_set_seq(t, seq);
    return exit ? exit : say_size(t, "");
}

/* ---- turns -------------------------------------------------------------------------------- */

static int fork_talk(struct talk *t, const char *unused) {
    struct err err = {0};
    (void)unused;
    if (conversation_fork(&t->conversation, &err))
        return fail(&err);
    say(SAY_NORMAL, "(fork %d; /back returns to this point)", t->conversation.n_forks);
    return 0;
}

static int back(struct talk *t, const char *unused) {
    (void)unused;
    if (!conversation_back(&t->conversation))
        return complain(EXIT_WORLD, "there is no /fork to return to");
    return say_size(t, "");
}

static int undo(struct talk *t, const char *unused) {
    (void)unused;
    if (!conversation_undo(&t->conversation))
        return complain(EXIT_WORLD, "there is nothing to undo");
    return say_size(t, "undone; ");
}

static int regenerate(struct talk *t, const char *unused) {
    (void)unused;
    return talk_regenerate(t);
}

static int clear(struct talk *t, const char *unused) {
    struct err err = {0};
    (void)unused;
    if (conversation_clear(&t->conversation, &err))
        return fail(&err);
    return say_size(t, "cleared; ");
}

static int say_system(const char *text) {
    char *whole = NULL;
    if (text && asprintf(&whole, "(%s)", text) < 0)
        return complain(EXIT_WORLD, "out of memory for a message");
    say_lines(ASKED_FOR, whole ? whole : "(there is no system message)");
    free(whole);
    return 0;
}

static int set_system(struct talk *t, const char *text) {
    struct err err = {0};
    if (!*text)
        return say_system(conversation_system(&t->conversation));
    struct str given = strcmp(text, "\"\"") == 0 ? STR("") : str_of(text);
    if (conversation_set_system(&t->conversation, given, &err))
        return fail(&err);
    say(SAY_NORMAL, given.len ? "(the system message is set)" : "(no system message)");
    return 0;
}

static int quit(struct talk *t, const char *unused) {
    (void)unused;
    t->is_over = true;
    return 0;
}

/* ---- settings ----------------------------------------------------------------------------- */

enum { MAX_SETTINGS = MAX_COMMON_OPTS + 1 };

/* The numbers among the options that may change between two answers. */
static int make_settings(struct talk *t, struct opt settings[MAX_SETTINGS]) {
    struct opt rows[MAX_SETTINGS] = {
        {"--tokens", 'n', OPT_INT, &t->n, "N", "at most this many per answer; -1: until it ends"}};
    int n_rows = common_opts(rows, 1, &t->common, WITH_SAMPLING), n = 0;
    for (int i = 0; i < n_rows; i++)
        if (rows[i].kind == OPT_INT || rows[i].kind == OPT_INT64 || rows[i].kind == OPT_FLOAT)
            settings[n++] = rows[i];
    return n;
}

static int list_settings(struct talk *t) {
    struct opt settings[MAX_SETTINGS];
    int n = make_settings(t, settings);
    for (int i = 0; i < n; i++) {
        const struct opt *o = &settings[i];
        char value[32];
        if (o->kind == OPT_INT)
            snprintf(value, sizeof value, "%d", *(int *)o->value);
        else if (o->kind == OPT_INT64)
            snprintf(value, sizeof value, "%lld", (long long)*(int64_t *)o->value);
        else
            snprintf(value, sizeof value, "%g", (double)*(float *)o->value);
        const char *usual = strstr(o->help, "; default: "); /* the value says it */
        say(ASKED_FOR, "  %-18s %-10s %.*s", o->name + 2, value,
            (int)(usual ? (size_t)(usual - o->help) : strlen(o->help)), o->help);
    }
    return 0;
}

/* The option's name of a setting as it was typed: "temp", "top_k", "--temperature". */
static void spell_out(struct str typed, char *out, size_t size) {
    while (typed.len > 0 && typed.at[0] == '-')
        typed = str_skip(typed, 1);
    snprintf(out, size, "--%.*s", STR_ARG(typed));
    for (char *c = out; *c; c++)
        *c = *c == '_' ? '-' : *c;
    const char *ours = opts_ours(out);
    if (ours)
        snprintf(out, size, "%s", ours);
}

static const struct opt *find_setting(const struct opt *settings, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(name, settings[i].name) == 0 ||
            (name[2] == settings[i].letter && name[2] && !name[3]))
            return &settings[i];
    return NULL;
}

static int no_such_setting(const struct opt *settings, int n, const char *name) {
    const char *names[MAX_SETTINGS];
    if (strcmp(name, "--system") == 0)
        return complain(EXIT_WORLD, "/set: there is no 'system'; use /system TEXT");
    for (int i = 0; i < n; i++)
        names[i] = settings[i].name;
    const char *nearest = opts_nearest(name, names, n);
    if (nearest)
        return complain(EXIT_WORLD, "/set: there is no '%s'; did you mean %s?", name + 2,
                        nearest + 2);
    return complain(EXIT_WORLD, "/set: there is no '%s'; /set lists what there is", name + 2);
}

static int set(struct talk *t, const char *text) {
    struct opt settings[MAX_SETTINGS];
    struct common kept = t->common;
    int kept_n = t->n;
    if (!*text)
        return list_settings(t);
    if (strncmp(text, "parameter ", 10) == 0) /* Ollama's form */
        text += 10 + strspn(text + 10, " ");
    struct str typed = {text, strcspn(text, " \t=")};
    const char *value = text + typed.len + strspn(text + typed.len, " \t=");
    char name[64];
    spell_out(typed, name, sizeof name);
    int n = make_settings(t, settings);
    const struct opt *o = find_setting(settings, n, name);
    if (!o)
        return no_such_setting(settings, n, name);
    int exit = opts_set("/set", o, value);
    if (exit == OPTS_GO_ON)
        exit = common_check(&t->common, "/set");
    if (exit == OPTS_GO_ON && t->n < -1)
        exit = complain(EXIT_USAGE, "/set: --tokens is %d, expected -1 or more", t->n);
    if (exit == OPTS_GO_ON)
        exit = talk_set_sampling(t);
    if (exit) {
        t->common = kept;
        t->n = kept_n;
        return EXIT_WORLD;
    }
    return 0;
}

/* ---- the table ---------------------------------------------------------------------------- */

static int help(struct talk *t, const char *unused);

enum takes { NOTHING, TAKES, NEEDS };

static const struct command {
    const char *name, *argument, *help;
    enum takes takes;
    int (*run)(struct talk *t, const char *argument); /* "": no argument */
} commands[] = {
    {"/help", "", "this list", NOTHING, help},
    {"/system", "TEXT", "set the system message; without TEXT: show it; \"\": remove it", TAKES,
     set_system},
    {"/set", "NAME VALUE", "change a setting: /set temp 0.5; without NAME: list them", TAKES, set},
    {"/regenerate", "", "another answer to the last question", NOTHING, regenerate},
    {"/undo", "", "remove the last question and its answer", NOTHING, undo},
    {"/clear", "", "start over; the system message stays", NOTHING, clear},
    {"/fork", "", "mark this point; /back returns to it", NOTHING, fork_talk},
    {"/back", "", "return to the last /fork", NOTHING, back},
    {"/save", "FILE", "save the conversation to FILE and FILE.json", NEEDS, save},
    {"/load", "FILE", "continue a saved conversation", NEEDS, load},
    {"/quit", "", "leave; so does Ctrl-D", NOTHING, quit},
    {"/exit", "", "the same", NOTHING, quit},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* Names that other programs use. */
static const struct {
    const char *theirs, *ours;
} also[] = {{"/?", "/help"},      {"/bye", "/quit"},         {"/q", "/quit"},
            {"/reset", "/clear"}, {"/regen", "/regenerate"}, {"/retry", "/regenerate"}};

static int help(struct talk *t, const char *unused) {
    (void)t;
    (void)unused;
    for (int i = 0; i < N_COMMANDS; i++)
        say(ASKED_FOR, "  %-12s%-12s %s", commands[i].name, commands[i].argument, commands[i].help);
    say_lines(ASKED_FOR,
              "To send a message that begins with a command, put a space before it. For a "
              "message of\nseveral lines end a line with \\ or Alt-Enter, put it between "
              "\"\"\" and \"\"\", or paste it.\nCtrl-C ends an answer, Ctrl-D the "
              "conversation.");
    return 0;
}

/* ---- lines -------------------------------------------------------------------------------- */

/* The command that the word most likely meant. */
static const struct command *find_near(struct str word) {
    const char *names[N_COMMANDS];
    char *name = strndup(word.at, word.len);
    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    const char *nearest = name ? opts_nearest(name, names, N_COMMANDS) : NULL;
    free(name);
    for (int i = 0; nearest && i < N_COMMANDS; i++)
        if (names[i] == nearest)
            return &commands[i];
    return NULL;
}

static const struct command *find_command(struct str word) {
    for (size_t i = 0; i < sizeof also / sizeof *also; i++)
        if (str_is(word, also[i].theirs))
            word = str_of(also[i].ours);
    for (int i = 0; i < N_COMMANDS; i++)
        if (str_is(word, commands[i].name))
            return &commands[i];
    return NULL;
}

static int run_command(struct talk *t, const struct command *c, struct str rest) {
    char *argument = strndup(rest.at, rest.len);
    if (!argument)
        return complain(EXIT_WORLD, "out of memory for a command");
    int exit;
    if (c->takes == NEEDS && !*argument)
        exit = complain(EXIT_WORLD, "%s needs a %s", c->name, c->argument);
    else if (c->takes == NOTHING && *argument)
        exit = complain(EXIT_WORLD, "%s takes no argument, found '%s'", c->name, argument);
    else
        exit = c->run(t, argument);
    free(argument);
    return exit;
}

static bool is_slash_word(struct str word) {
    bool is = word.len > 1;
    for (size_t i = 1; is && i < word.len; i++)
        is = (word.at[i] | 0x20) >= 'a' && (word.at[i] | 0x20) <= 'z';
    return is;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n';
}

bool chat_command(struct talk *t, struct str line, int *exit) {
    struct str word = {line.at, 0};
    while (word.len < line.len && !is_blank(line.at[word.len]))
        word.len++;
    struct str rest = str_skip(line, word.len);
    while (rest.len > 0 && is_blank(rest.at[0]))
        rest = str_skip(rest, 1);
    while (rest.len > 0 && is_blank(rest.at[rest.len - 1]))
        rest.len--;
    if (!str_starts(word, "/"))
        return false;
    const struct command *c = find_command(word), *near = c ? NULL : find_near(word);
    if (c)
        *exit = run_command(t, c, rest);
    else if (near && (rest.len == 0 || near->takes != NOTHING))
        *exit = complain(EXIT_WORLD,
                         "there is no %.*s; did you mean %s? To send it as a message, put a space "
                         "before it",
                         STR_ARG(word), near->name);
    else if (rest.len == 0 && is_slash_word(word))
        *exit = complain(EXIT_WORLD,
                         "there is no %.*s; /help lists the commands. To send it as a message, put "
                         "a space before it",
                         STR_ARG(word));
    else
        return false;
    return true;
}
