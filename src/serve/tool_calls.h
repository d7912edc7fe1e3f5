/* tool_calls.h - finds tool calls in a model's output as it streams.
 *
 * In: text in pieces, cut anywhere.  Out: text that is not part of a call, as soon as that is
 * certain, and complete calls. Known forms:
 *
 *   <tool_call>{"name": "f", "arguments": {...}}</tool_call>          Hermes, Qwen3
 *   <tool_call><function=f><parameter=x>...</parameter></function></tool_call>      Qwen3.5
 *   {"name": "f", "parameters": {...}}    at the beginning, maybe after <|python_tag|>: Llama 3.x
 *   ```json {"name": "f", "arguments": {...}} ```       at the beginning: Qwen2.5-Coder
 *   {{"name": "f", "arguments": {...}}}   wherever the single braces may be: the same
 *
 * (1) What looks like a call but is not comes out as text, byte for byte; only white space around
 *     calls is dropped.
 *     A call whose arguments are nested too deeply is text.
 * (2) What comes out does not depend on how the text was cut.
 *
 * A parser is used by one thread at a time; the callback runs inside its calls. */
#ifndef SERVE_TOOL_CALLS_H
#define SERVE_TOOL_CALLS_H

#include <jansson.h>

#include "serve/buffer.h"

/* Levels of arrays and objects that a call's arguments may have. jansson reads 2048 levels: with so
 * many the messages, requests and snapshots that a call is inside of can always be read back. */
enum { TOOL_MAX_LEVELS = 512 };

struct tool_parser;

struct tool_event {
    struct str text;       /* or, where name is not NULL: a call */
    const char *name;      /* valid during the call, as all of it */
    const char *arguments; /* a JSON object as text */
};
typedef void tool_event_fn(void *user, const struct tool_event *event);

/* tools: an array as in the OpenAI API, borrowed; it says which parameters are strings, and which
 * names a call without tags may have; with must_be_known, also one with tags. NULL when memory ran
 * out. */
struct tool_parser *tool_parser_open(const json_t *tools, bool must_be_known,
                                     tool_event_fn *on_event, void *user);
void tool_parser_close(struct tool_parser *p); /* takes NULL */

void tool_parser_push(struct tool_parser *p, struct str text);
/* The text has ended: what was held back comes out. */
void tool_parser_end(struct tool_parser *p);
bool tool_parser_has_failed(const struct tool_parser *p); /* memory ran out */

#endif
