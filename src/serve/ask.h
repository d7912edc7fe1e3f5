/* ask.h - what a client asks for, in whichever API, and the tokens of its prompt.
 *
 * Each API fills a struct ask from its own JSON; from there on all are treated alike. Fields are
 * read in ask.c and ask_format.c, messages in ask_messages.c, tools in ask_tools.c; ask_prompt.c
 * makes tokens of them, ask_middle.c where the text between two others is asked for.
 *
 * An ask belongs to its exchange and is used by one thread at a time. A struct ask_model is
 * read-only and shared. */
#ifndef SERVE_ASK_H
#define SERVE_ASK_H

#include "serve/buffer.h"
#include "serve/fields.h"
#include "serve/replay.h"
#include "serve/worker.h"

/* ---- the model ---------------------------------------------------------------------------- */

/* What all requests need of the model. */
struct ask_model {
    const sluice_model *model;
    struct formats *formats;
    const char *name;     /* as clients see it */
    const char *template; /* a chat template; NULL: the model's own */
    uint32_t context;
    uint32_t max_answers; /* of one request, to each prompt */
    bool has_hidden;      /* its engine hands hidden states out */
    struct sluice_facts facts;
    struct sluice_sampling sampling;             /* defaults */
    int32_t think_open, think_close, python_tag; /* tokens; -1: it has none */
    int32_t tool_call;                           /* the same of <tool_call>, where it gives text */
    bool think_is_silent;                        /* control tokens, which give no text */
    bool takes_tools;    /* the template renders them; else tool_prompt.h does */
    int32_t closing[16]; /* text that ends thinking over budget */
    size_t n_closing;
};
void ask_model_fill(struct ask_model *m, const sluice_model *model);
/* The chat template that is used; empty: there is none. */
struct str ask_template(const struct ask_model *m);
/* The token of exactly this text; -1: none. */
int32_t ask_token_of(const sluice_model *model, const char *text);

/* ---- requests ----------------------------------------------------------------------------- */

enum { ASK_MAX_STOPS = 64 };
enum { ASK_MAX_TOP = 20, ASK_MAX_PROBS = 100 }; /* likeliest tokens; the other in llama.cpp's API */
enum { ASK_MAX_ANSWERS = 2048 }; /* to all prompts; as many texts as OpenAI's embeddings take */

/* What a call that is required begins with, before its JSON. */
#define ASK_CALL_BEGIN "<tool_call>\n"

enum ask_tools { TOOLS_AUTO, TOOLS_NONE };

struct ask {
    json_t *root; /* the request; what is borrowed below lives in it */

    /* A conversation: messages in the OpenAI form whose contents are strings; or, NULL, a text. */
    json_t *messages;
    json_t *tools;     /* an array in the OpenAI form; NULL: none */
    json_t *allowed;   /* those of them that may be called; NULL: all */
    json_t *variables; /* of the template, an object; NULL: none */
    enum ask_tools tool_choice;
    bool hides_tools;    /* the prompt does not list them */
    bool continues_last; /* the last message, if it is an answer's text, becomes `begun` */
    json_t
        *begun; /* a text that the answer begins with, not part of what is returned; NULL: none */
    bool is_call_begun; /* a call is required, and the prompt ends with its beginning */
    bool has_one_call;  /* calls after the first are dropped: parallel_tool_calls is false */

    bool has_snapshot;           /* its messages begin with those of the snapshot that it names */
    bool is_streamed, has_usage; /* usage in the stream: at its end, or ... */
    bool has_live_usage;         /* ... with every chunk */
    bool echoes;                 /* the prompt is part of the answer's text */
    bool is_silent;              /* and nothing else: the one token that is sampled is dropped */
    int64_t n, max_n;            /* answers to each prompt, and how many they may be */
    int64_t max_tokens, n_top;   /* -1: no limit, no log probabilities */
    int64_t max_ms;              /* of an answer to a text; then it ends with its next line. Below
                                  * 1: no limit */
    int64_t min_indent;          /* spaces and tabs that lines after the first of an answer to a
                                  * text begin with; it ends before one that has fewer */
    struct sluice_sampling sampling;
    struct sluice_bias biases[SLUICE_MAX_BIASES];
    const char *stops[ASK_MAX_STOPS];
    size_t n_stops;
    int64_t thinking_budget; /* tokens; below 0: no limit */
    bool ignores_ends;
    struct format *format; /* that answers must follow; NULL: none */
    bool is_strict;        /* it is a grammar, which tool calls must follow too */
    struct format *call;   /* that the required call must follow, instead of `format`; NULL: none */
    float *hidden;         /* (n_prompts, width) for hidden states; NULL: none are wanted; owned */

    /* Filled by ask_encode. */
    struct job_prompt *prompts; /* owned */
    uint32_t n_prompts;
    bool starts_thinking; /* the prompt ends inside a <think> */
    bool may_think;       /* or an answer may begin with one */
    struct hash128
        name; /* of the conversation, for replay, and whether the prompt is the same ... */
    bool is_named_whole; /* ... for all messages of that name, but for answers that are kept */
};

/* Takes a reference of root. NULL when memory ran out. */
struct ask *ask_open(json_t *root, const struct ask_model *m);
void ask_close(struct ask *ask); /* takes NULL */

/* The fields that have the same names and meaning in all OpenAI calls (and others): temperature,
 * top_p, top_k, min_p, penalties, seed, n, stop, logit_bias, stream. */
void ask_read_sampling(struct ask *ask, struct fields *f, const struct ask_model *m);
/* The number of answers, in the field of that name. */
void ask_read_n(struct ask *ask, struct fields *f, const char *name);
void ask_read_stops(struct ask *ask, struct fields *f, const char *name);
/* Whether its answers may have thoughts that the model would hardly have by itself: by biases, end
 * tokens that do not end, or values outside of what the OpenAI API allows, if the server's own are
 * not the same. */
bool ask_is_steered(const struct ask *ask, const struct ask_model *m);
/* response_format; llama.cpp's grammar and json_schema; vLLM's structured_outputs and guided_json
 * ... */
void ask_read_format(struct ask *ask, struct fields *f, const struct ask_model *m);
/* The same for a schema (a JSON object) or, NULL, any JSON object, given in that field. */
void ask_set_schema(struct ask *ask, struct fields *f, const char *name, const struct ask_model *m,
                    const json_t *schema);
/* Sets the reasoning effort, a word that templates may know; a word that no API has is refused, as
 * `name` in `field`. */
void ask_set_effort(struct ask *ask, struct fields *f, const char *field, const char *name,
                    const char *word);

/* No tool may be called. */
void ask_forbid_tools(struct ask *ask, const struct ask_model *m);
/* Only the tools that the array names may be called. The prompt lists all, so that it stays cached;
 * a call of any other is text. After ask_read_tools. */
void ask_allow_tools(struct ask *ask, struct fields *f, const json_t *allowed);
const json_t *ask_callable(const struct ask *ask); /* that may be called; NULL: none are given */
/* A tool must be called: any, or the one with that name. After ask_read_tools. A format of the
 * answer, given before or after this, is checked and has no effect: it is one of texts. */
void ask_require_tool(struct ask *ask, struct fields *f, const struct ask_model *m,
                      const char *name);
/* Sets a variable of the template; takes the value. Those with a meaning of their own (messages,
 * chat_template ...) stay as they are. */
void ask_set_variable(struct ask *ask, const char *name, json_t *value);

/* A message's role as templates know it. NULL and the field `name` is noted as wrong, at `where`,
 * for an unknown one. */
const char *ask_role(struct fields *f, const char *name, const json_t *message, const char *where);
/* A message's content: a string, or an array of parts with texts, joined. NULL and the field `name`
 * is noted as wrong, at `where`, for anything else; images are refused by name. null is "". */
json_t *ask_content(struct fields *f, const char *name, const json_t *content, const char *where);
/* Fills messages from an array in the OpenAI form; a member "tool_calls" has its arguments as
 * objects afterwards. */
void ask_read_messages(struct ask *ask, struct fields *f, const json_t *messages);
/* A tool in the form of chat completions; name, description and parameters may be NULL. */
json_t *ask_tool(const char *name, const char *description, json_t *parameters);
/* Fills tools, and checks that each has a name. */
void ask_read_tools(struct ask *ask, struct fields *f, const json_t *tools);

/* ---- prompts ------------------------------------------------------------------------------ */

/* The tokens of the conversation; those of earlier answers as they were sampled, where `replay` has
 * them. SLUICE_ERR_ARGUMENT: the template does not take it, or it is longer than the context. */
int ask_encode(struct ask *ask, const struct ask_model *m, struct store *replay, struct err *err);
/* The longest beginning of the conversation whose last answer is in `replay`: returns how many
 * messages it has, 0: none; *out is to be freed. And: keeps such a beginning for ask_encode. */
size_t ask_kept(const struct ask *ask, struct store *replay, struct replayed *out);
void ask_keep(const struct ask *ask, struct store *replay, size_t n_messages,
              const struct replayed *kept);
/* One more prompt, of a text (with control tokens and what the model wants around it, or with
 * sluice_encode's flags as given) or of ids. */
int ask_add_text(struct ask *ask, const struct ask_model *m, struct str text, struct err *err);
int ask_add_encoded(struct ask *ask, const struct ask_model *m, struct str text, unsigned flags,
                    struct err *err);
/* Fill-in-the-middle: asks for the text between two others, of which the beginning may be given.
 * None of them has control tokens. */
struct ask_middle {
    struct str before, after, begun;
    const json_t *files; /* others of the project: [{"filename": NAME, "text": TEXT}, ...], whose
                          * names may be missing; NULL: none */
    bool is_cut;         /* what does not fit is left out, but for `begun` */
};
/* SLUICE_ERR_UNSUPPORTED: the model has no tokens for it. */
int ask_add_middle(struct ask *ask, const struct ask_model *m, const struct ask_middle *middle,
                   struct err *err);
/* One prompt of tokens, which may have texts among them: an array, in the field `name`. */
int ask_add_parts(struct ask *ask, const struct ask_model *m, const char *name, const json_t *list,
                  struct err *err);
bool ask_has_token(const json_t *list);

/* The ids of an array, in the field `name`; *out is to be freed, also on failure. */
int ask_read_ids(const struct ask_model *m, const char *name, const json_t *list, int32_t **out,
                 struct err *err);
/* Appends the text of tokens; invalid ones are left out. with_control: control tokens as they are
 * written, else they give none. */
void ask_decode(const struct ask_model *m, const int32_t *tokens, size_t n, bool with_control,
                struct buffer *out);

#endif
