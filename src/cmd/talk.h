/* talk.h - a conversation with a model: the state that chat and its commands share. */
#ifndef CMD_TALK_H
#define CMD_TALK_H

#include "cmd/constraint.h"
#include "cmd/conversation.h"
#include "cmd/open.h"
#include "cmd/wrap.h"
#include "text/tokenizer.h"

/* Before each answer the messages are rendered and encoded whole, the sequence goes back to what
 * both have in common, and the rest is fed: so commands only change the messages, and a template
 * that rewrites its history (thinking stripped) works by itself. */
struct talk {
    /* Set by the caller. Once the talk is open, common's sampling is what is used. */
    struct common common;
    struct constraint constraint; /* that every answer follows */
    const char *template;         /* a file; NULL: the model's own */
    const char *think;            /* "on", "off"; NULL: the model's default */
    bool stops_when_full;
    int n; /* tokens of an answer; -1: no limit */
    sluice_model *model;

    sluice_engine *engine;
    sluice_seq *seq;
    sluice_text *text;
    struct chat *chat;
    struct conversation conversation;
    struct text_buffer answer; /* the running or last one */
    struct wrap wrap;          /* what is shown of it */
    size_t n_prompt;           /* tokens of the sequence before it */
    bool is_over;              /* nothing more is to be read: the output is gone, or /quit */
};

/* Opens everything but the model. Reports a failure and returns the exit status; talk_close in any
 * case. */
int talk_open(struct talk *t);
void talk_close(struct talk *t);

/* Prints the answer and keeps both; the conversation stays as it was when that fails or is
 * interrupted before the answer begins. Returns the exit status. */
int talk_ask(struct talk *t, struct str question);
/* Rewinds the sequence to what the conversation still has: turns may have been undone, cleared or
 * left by a fork. */
int talk_trim(struct talk *t);
/* Another answer to the last question, from another seed. */
int talk_regenerate(struct talk *t);

/* Applies common's sampling; a random seed is drawn when it is below 0. */
int talk_set_sampling(struct talk *t);
/* Replaces the sequence; the old one is closed. */
int talk_set_seq(struct talk *t, sluice_seq *seq);

#endif
