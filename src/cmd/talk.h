/* talk.h - a conversation with a model: what chat and its commands work on. */
#ifndef CMD_TALK_H
#define CMD_TALK_H

#include "cmd/constraint.h"
#include "cmd/conversation.h"
#include "cmd/open.h"
#include "text/tokenizer.h"

/* Before each answer the messages are rendered and encoded whole, the sequence goes back to what
 * both have in common, and the rest is fed: so commands only change the messages, and a template
 * that rewrites its history (thinking stripped) works by itself. */
struct talk {
    /* Set by the caller. common's sampling is what is in force, once the talk is open. */
    struct common common;
    struct constraint constraint; /* that every answer follows */
    const char *template;         /* a file; NULL: the model's own */
    const char *think;            /* "on", "off"; NULL: as the model likes */
    bool stops_when_full;
    int n; /* tokens of an answer; -1: no limit */
    sluice_model *model;

    sluice_engine *engine;
    sluice_seq *seq;
    sluice_text *text;
    struct chat *chat;
    struct conversation conversation;
    struct text_buffer answer; /* the running or last one */
    size_t n_prompt;           /* tokens of the sequence before it */
    bool is_over;              /* nothing more is to be read: the output is gone, or /quit */
};

/* Everything but the model. Says what fails and returns the exit status; talk_close in any case. */
int talk_open(struct talk *t);
void talk_close(struct talk *t);

/* Prints the answer and keeps both; the conversation stays as it was when that fails or is
 * interrupted before the answer begins. Returns the exit status. */
int talk_ask(struct talk *t, struct str question);
/* Takes back what the sequence holds and the conversation does not: turns that were undone, cleared
 * or left with a fork. */
int talk_trim(struct talk *t);
/* Another answer to the last question, from another seed. */
int talk_regenerate(struct talk *t);

/* Brings common's sampling into force; the seed is drawn when it is below 0. */
int talk_set_sampling(struct talk *t);
/* A sequence in place of the one there is, which is closed. */
int talk_set_seq(struct talk *t, sluice_seq *seq);

#endif
