/* answer.h - one answer: tokens in, deltas of reasoning, content and tool calls out.
 *
 * (1) All deltas of a kind together are what `content`, `reasoning` and `calls` hold at the end.
 * (2) Reasoning is the text between <think> and </think> at the answer's beginning, without the
 *     white space around it; tool calls are only looked for after it.
 *
 * An answer is used by one thread at a time; in the server the writer's, once it is open. It owns
 * its texts and tokens; model and ask are borrowed. */
#ifndef SERVE_ANSWER_H
#define SERVE_ANSWER_H

#include "serve/ask.h"
#include "serve/tool_calls.h"

struct answer_call {
    char id[32]; /* random */
    char *name, *arguments;
};

enum answer_delta_kind { DELTA_CONTENT, DELTA_REASONING, DELTA_CALL };

/* Text or a call that is appended to an answer. */
struct answer_delta {
    enum answer_delta_kind kind;
    struct str text;                /* not of a call */
    const struct answer_call *call; /* of a call: the newest, whole */
};

enum answer_finish {
    FINISH_NOT_YET,
    FINISH_END,    /* the model ended it, or a stop text was found: `stop` */
    FINISH_CALLS,  /* and there were calls */
    FINISH_LENGTH, /* as many tokens or lines as asked for, or as fit */
    FINISH_CUT,    /* cancelled: the server shuts down */
    FINISH_FAILED, /* `end` says why */
};

struct answer_token {
    int32_t token;
    struct job_logprobs *logprobs;
};

struct answer;
typedef void answer_delta_fn(void *user, struct answer *answer, const struct answer_delta *delta);

struct answer {
    const struct ask_model *m;
    const struct ask *ask;
    uint32_t number;
    answer_delta_fn *on_delta;
    void *user;

    struct buffer content, reasoning;
    struct answer_call *calls;
    size_t n_calls;
    int32_t *tokens; /* all that were sampled */
    size_t n_tokens, capacity;
    size_t n_reasoning_tokens;
    struct answer_token *content_tokens; /* none unless log probabilities are wanted */
    size_t n_content_tokens, content_capacity;
    size_t n_emitted;  /* content tokens whose text was emitted, or its beginning; all at the end */
    size_t n_streamed; /* of those: already in the stream, of APIs that stream them */
    size_t n_streamed_ids; /* of `tokens`, likewise */
    enum answer_finish finish;
    const struct job_end *end;
    bool has_stopped; /* by a stop text: the rest is not wanted */
    bool has_failed;  /* memory ran out */
    bool is_echoed;   /* and its prompt is included */
    size_t offset;    /* characters of the tokens that were streamed with log probabilities */

    /* Private. */
    sluice_text *content_decoder, *reasoning_decoder; /* only the first looks for stop texts */
    size_t first_content_token;                       /* of `tokens`: the first after reasoning */
    size_t emitted_bytes;                             /* of the content */
    size_t token_bytes;                               /* of the first n_emitted content tokens */
    struct tool_parser *parser;                       /* NULL: no calls are looked for */
    struct buffer pending;  /* text that may yet turn out to be a tag, or white space to drop */
    int phase;              /* an enum phase of answer.c */
    bool has_begun_content; /* after reasoning, with more than white space */
    bool is_indent;         /* what is pending begins a line */
    bool is_limited;        /* a limit of its lines ended it */
    double started;         /* when its first token came */
};

/* Returns SLUICE_OK or SLUICE_ERR_MEMORY; answer_close in any case. `a` begins with zeros. */
int answer_open(struct answer *a, const struct ask_model *m, const struct ask *ask, uint32_t number,
                answer_delta_fn *on_delta, void *user);
void answer_close(struct answer *a);

/* Takes the logprobs (may be NULL). Nothing happens after has_stopped. */
void answer_add_token(struct answer *a, int32_t token, struct job_logprobs *logprobs);
void answer_end(struct answer *a, const struct job_end *end);

/* The answer as a message of the conversation, as ask_read_messages would make it. */
json_t *answer_message(const struct answer *a);

/* The stop text that ended it, borrowed from its ask; NULL: none did. */
const char *answer_stop_text(const struct answer *a);

/* Random letters and digits after a prefix: "call_", "chatcmpl-" ... */
void answer_make_id(const char *prefix, char out[32]);

#endif
