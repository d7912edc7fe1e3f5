/* editor.h - messages from standard input: with a line editor in a terminal, as plain lines
 * elsewhere.
 *
 * A message is a line. It continues on the next line after a backslash, within """ ... """, and, in
 * a terminal, after Alt-Enter and in pasted text. */
#ifndef CMD_EDITOR_H
#define CMD_EDITOR_H

#include "base/err.h"
#include "base/str.h"

struct editor;

/* One at a time: it has the terminal. *out is NULL on failure. */
int editor_open(struct editor **out, struct err *err);
/* The terminal is as it was before. Takes NULL. */
void editor_close(struct editor *editor);

/* Whether input is interactive, so that a failure is not the end. */
bool editor_is_terminal(const struct editor *editor);

struct message {
    struct str text; /* any bytes; lives until the next call */
    bool is_block;   /* was within """: never a command */
};

/* 1: a message; 0: the end of input; or a negative status. */
int editor_read(struct editor *editor, struct message *out, struct err *err);

#endif
