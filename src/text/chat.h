/* chat.h - a conversation as the text that a model was trained on.
 *
 * In: messages (and tools) as JSON, in the shape of the OpenAI API.  Out: the prompt's text and its
 * tokens, without BOS: a template writes that itself.
 * (1) Only what the template itself wrote, the texts of BOS and EOS and the roles can become
 *     control tokens: a message that says <|im_end|> stays plain text. A model without a template
 *     uses ChatML if its vocabulary has <|im_start|>. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include <jansson.h>
#include <stdatomic.h>
#include <time.h>

#include "base/err.h"
#include "base/str.h"
#include "text/tokenizer.h"

struct chat; /* read-only once made, may be shared by threads */

/* What chat_open needs of a model. All texts are copied. */
struct chat_model {
    struct str template; /* the file's own; empty: none */
    struct str bos, eos; /* the tokens' texts; empty: none */
    bool has_im_start;   /* <|im_start|> is a token */
};

/* SLUICE_ERR_UNSUPPORTED when there is neither a template nor ChatML. */
int chat_open(struct chat **out, const struct chat_model *model, struct err *err);
/* The same for a tokenizer's model. */
int chat_from_tokenizer(struct chat **out, const struct tokenizer *t, struct err *err);
/* The same with another template than its own. */
int chat_from_template(struct chat **out, const struct tokenizer *t, struct str source,
                       struct err *err);
void chat_close(struct chat *chat); /* takes NULL */

enum chat_thinking { THINK_AS_MODEL, THINK_ON, THINK_OFF };

/* One conversation; everything is borrowed. */
struct chat_request {
    const json_t *messages;      /* an array of objects, each with a "role" */
    const json_t *tools;         /* an array, or NULL */
    const json_t *extra;         /* more variables, an object, or NULL; these win */
    bool with_generation_prompt; /* end where the assistant's answer begins */
    enum chat_thinking thinking; /* sets enable_thinking, or leaves it unset */
    const struct tm *now;        /* for templates that tell the date; NULL: the local time */
    const atomic_bool *cancel;   /* set by any thread: stop, SLUICE_ERR_CANCELLED; NULL: none */
};

/* Appends the text; on error *out is unchanged. A conversation that the template rejects gives
 * SLUICE_ERR_ARGUMENT with the template's message. */
int chat_render(const struct chat *chat, const struct chat_request *request,
                struct text_buffer *out, struct err *err);

/* Appends the tokens of that text. */
int chat_encode(const struct chat *chat, const struct tokenizer *t,
                const struct chat_request *request, struct ids *out, struct err *err);

#endif
