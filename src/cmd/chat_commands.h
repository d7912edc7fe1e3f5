/* chat_commands.h - what can be typed in a conversation besides messages. */
#ifndef CMD_CHAT_COMMANDS_H
#define CMD_CHAT_COMMANDS_H

#include "cmd/talk.h"

/* Runs a command if the line is one, or asks about one that is all but a command; false: it is a
 * message. *exit: the exit status of what it did; a command that fails has said one line and left
 * the conversation as it was. */
bool chat_command(struct talk *t, struct str line, int *exit);

#endif
