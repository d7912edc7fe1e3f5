/* chat_commands.h - the commands of a conversation. */
#ifndef CMD_CHAT_COMMANDS_H
#define CMD_CHAT_COMMANDS_H

#include "cmd/talk.h"

/* Runs a command if the line is one, or suggests one if it is nearly one; false: it is a message.
 * *exit: the exit status of what it did; a command that fails has printed one line and left the
 * conversation unchanged. */
bool chat_command(struct talk *t, struct str line, int *exit);

#endif
