/* opts.c - command lines: one table a verb, which is also its help. */
#include "cmd/opts.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int complain(int status, const char *format, ...) {
    fputs("sluice: ", stderr);
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return status;
}

static void print_help(const struct usage *u) {
    printf("usage: sluice %s %s\n\n%s\n", u->verb, u->synopsis, u->about);
    for (int i = 0; i < u->n_opts; i++) {
        const struct opt *o = &u->opts[i];
        char left[64];
        if (o->letter && strlen(o->name) > 2)
            snprintf(left, sizeof left, "-%c, %s %s", o->letter, o->name,
                     o->placeholder ? o->placeholder : "");
        else
            snprintf(left, sizeof left, "%s %s", o->name, o->placeholder ? o->placeholder : "");
        printf("%s  %-24s %s\n", i ? "" : "\n", left, o->help);
    }
    printf("\nexample: %s\n", u->example);
}

static const struct opt *find(const struct usage *u, const char *word, size_t len) {
    for (int i = 0; i < u->n_opts; i++) {
        const struct opt *o = &u->opts[i];
        bool is_long = strlen(o->name) == len && strncmp(o->name, word, len) == 0;
        if (is_long || (o->letter && len == 2 && word[0] == '-' && word[1] == o->letter))
            return o;
    }
    return NULL;
}

static bool set_int(const struct opt *o, const char *text) {
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || errno || v < INT_MIN || v > INT_MAX)
        return false;
    *(int *)o->value = (int)v;
    return true;
}

static bool set_float(const struct opt *o, const char *text) {
    char *end;
    float v = strtof(text, &end);
    if (*text == 0 || *end != 0 || !isfinite(v))
        return false;
    *(float *)o->value = v;
    return true;
}

static bool add_to_list(const struct opt *o, const char *text) {
    struct opt_list *list = o->value;
    if (list->n == sizeof list->at / sizeof *list->at)
        return false;
    list->at[list->n++] = text;
    return true;
}

static int set_value(const struct usage *u, const struct opt *o, const char *text) {
    if (o->kind == OPT_STRING)
        *(const char **)o->value = text;
    else if (o->kind == OPT_INT && !set_int(o, text))
        return complain(EXIT_USAGE, "%s: %s is '%s', expected a whole number", u->verb, o->name,
                        text);
    else if (o->kind == OPT_FLOAT && !set_float(o, text))
        return complain(EXIT_USAGE, "%s: %s is '%s', expected a number", u->verb, o->name, text);
    else if (o->kind == OPT_LIST && !add_to_list(o, text))
        return complain(EXIT_USAGE, "%s: %s is given more than 16 times", u->verb, o->name);
    return OPTS_GO_ON;
}

int opts_parse(const struct usage *u, int argc, char **argv, const char **words) {
    int n_words = 0;
    bool only_words = false;
    for (int i = 0; i < u->max_words; i++)
        words[i] = NULL;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (only_words || word[0] != '-' || word[1] == 0) {
            if (n_words == u->max_words)
                return complain(EXIT_USAGE, "%s: unexpected argument '%s'; see sluice %s --help",
                                u->verb, word, u->verb);
            words[n_words++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_words = true;
            continue;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            print_help(u);
            return 0;
        }
        const char *equals = word[1] == '-' ? strchr(word, '=') : NULL;
        const struct opt *o = find(u, word, equals ? (size_t)(equals - word) : strlen(word));
        if (!o)
            return complain(EXIT_USAGE, "%s: unknown option '%s'; see sluice %s --help", u->verb,
                            word, u->verb);
        if (o->kind == OPT_FLAG) {
            if (equals)
                return complain(EXIT_USAGE, "%s: %s takes no value, found '%s'", u->verb, o->name,
                                equals + 1);
            *(bool *)o->value = true;
            continue;
        }
        if (!equals && i + 1 == argc)
            return complain(EXIT_USAGE, "%s: %s needs a value (%s)", u->verb, o->name,
                            o->placeholder);
        int status = set_value(u, o, equals ? equals + 1 : argv[++i]);
        if (status != OPTS_GO_ON)
            return status;
    }
    if (n_words < u->min_words)
        return complain(EXIT_USAGE, "%s: missing argument; usage: sluice %s %s", u->verb, u->verb,
                        u->synopsis);
    return OPTS_GO_ON;
}
