/* tool_prompt.h - tools for chat templates that know none.
 *
 * In: messages in the OpenAI form and tools.  Out: messages without calls and results, for any
 * template: the tools are listed in the system message, a call is text of the assistant, and the
 * results after it are one message of the user, all in the form of Hermes, which tool_calls.h
 * reads. Other messages stay as they are. */
#ifndef SERVE_TOOL_PROMPT_H
#define SERVE_TOOL_PROMPT_H

#include <jansson.h>

/* tools may be NULL: none are listed. The array is new; NULL when memory ran out. */
json_t *tool_prompt(const json_t *messages, const json_t *tools);

#endif
