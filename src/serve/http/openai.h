/* openai.h - what the calls of the OpenAI API share. */
#ifndef SERVE_HTTP_OPENAI_H
#define SERVE_HTTP_OPENAI_H

#include "serve/http/internal.h"

/* A comment, which is no event. */
#define OPENAI_PING ":\n\n"

void openai_read_stream_options(struct ask *ask, struct fields *f);
/* messages, continue_final_message, tools, and what openai_read_thinking reads. */
void openai_read_conversation(struct ask *ask, struct fields *f);
/* max_tokens, max_completion_tokens and n. */
void openai_read_lengths(struct ask *ask, struct fields *f);
/* logprobs, true or false, and top_logprobs. */
void openai_read_logprobs(struct ask *ask, struct fields *f);

/* reasoning_effort, enable_thinking, thinking_budget, chat_template_kwargs; `effort` (may be NULL)
 * where the request says nothing of it. */
void openai_read_thinking(struct ask *ask, struct fields *f, const char *effort);
/* tool_choice, which names a function in its "function" or itself, and parallel_tool_calls. */
void openai_read_tool_choice(struct ask *ask, struct fields *f, const struct ask_model *m);

/* Prompts of a field: a text, ids, or an array of either. */
int openai_add_prompts(struct ask *ask, const struct ask_model *m, const char *name,
                       const json_t *prompt, struct err *err);

void openai_write_time(time_t when, char out[32]); /* as ISO 8601 */
const char *openai_finish(const struct answer *a); /* NULL: not yet */
/* A token's own text, and its bytes, which may be a part of a character. */
json_t *openai_token_text(const struct ask_model *m, int32_t token, struct str *bytes);
json_t *openai_number(float logprob);
/* The content's tokens from `from` on, an array. */
json_t *openai_logprobs(const struct answer *a, size_t from);
json_t *openai_logprobs_between(const struct answer *a, size_t from, size_t to);

/* What chunks of a stream begin with. */
struct openai_chunk {
    const char *id_prefix, *object;
};
/* A chunk of one choice, whose `what` ("delta", "text") is `value`; takes both values. */
void openai_put_chunk(struct exchange *x, const struct openai_chunk *c, struct answer *a,
                      const char *what, json_t *value, json_t *logprobs);
/* Usage, where asked for, and [DONE]. */
void openai_put_end(struct exchange *x, const struct openai_chunk *c);
void openai_put_failure(struct exchange *x, const char *message);

/* Speed of the answers, under the names of llama.cpp's server: from the first token of any to the
 * last of all. NULL: not all have ended. Answers share submissions, so these are only given for a
 * single one. */
json_t *openai_timings(const struct exchange *x);

/* A response that is not streamed. */
json_t *openai_whole(struct exchange *x, const char *id_prefix, const char *object,
                     json_t *(*choice)(const struct answer *a));

#endif
