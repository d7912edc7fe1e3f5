/* talk.c - a conversation with a model: questions and answers. */
#include "cmd/talk.h"

#include <stdio.h>

#include "base/clock.h"
#include "cmd/cmd.h"
#include "cmd/figures.h"
#include "cmd/interrupt.h"
#include "engine/engine.h"
#include "text/chat.h"

/* ---- the prompt --------------------------------------------------------------------------- */

static uint32_t context_of(const struct talk *t) {
    struct sluice_choice choice;
    sluice_engine_choice(t->engine, &choice);
    return choice.context;
}

static int render(const struct talk *t, struct ids *ids, struct err *err) {
    const struct chat_request request = {
        .messages = t->conversation.messages,
        .with_generation_prompt = true,
        .thinking = !t->think                     ? THINK_AS_MODEL
                    : strcmp(t->think, "on") == 0 ? THINK_ON
                                                  : THINK_OFF,
        .cancel = interrupt_flag(),
    };
    ids->len = 0;
    int status = chat_encode(t->chat, t->model->tokenizer, &request, ids, err);
    if (!status && ids->len == 0)
        return err_set(err, SLUICE_ERR_ARGUMENT, "the conversation has no tokens");
    return status;
}

/* Renders; when less than `reserve` is left in the context, the oldest turns go until it is half
 * empty, so that this does not happen at every question. */
static int render_dropping(struct talk *t, size_t reserve, struct ids *ids, struct err *err) {
    uint32_t context = context_of(t);
    int n_dropped = 0;
    int status = render(t, ids, err);
    if (!status && !t->stops_when_full && ids->len + reserve > context)
        while (!status && ids->len + reserve > context / 2 &&
               conversation_drop_oldest(&t->conversation)) {
            n_dropped++;
            status = render(t, ids, err);
        }
    if (!status && ids->len > context)
        return err_set(err, SLUICE_ERR_ARGUMENT,
                       "the %s has %zu tokens, expected at most %u (-c)%s",
                       t->stops_when_full ? "conversation" : "question", ids->len, context,
                       t->stops_when_full ? "; /undo or /clear" : "");
    if (!status && n_dropped > 0)
        say(SAY_NORMAL, "(the context is full: the oldest %s dropped)",
            n_dropped == 1 ? "turn is" : "turns are");
    return status;
}

/* Makes the sequence hold exactly these tokens, reusing what it or any earlier conversation has of
 * them. The last one is always processed again: the answer begins after it. */
static int feed_prompt(struct talk *t, const struct ids *ids, size_t *n_fed) {
    uint32_t waiting, common = common_prefix(t->seq, ids->at, ids->len ? ids->len - 1 : 0);
    if (sluice_seq_rewind(t->seq, common) ||
        sluice_seq_resume(t->seq, ids->at + common, ids->len - common, NULL))
        return fail_engine(t->engine);
    sluice_seq_tokens(t->seq, NULL, NULL, &waiting);
    if (sluice_seq_mark_turns(t->seq) ||
        (waiting > 1 && sluice_seq_mark(t->seq, (uint32_t)ids->len - 1)))
        return fail_engine(t->engine);
    *n_fed = waiting;
    return common_work_off(t->engine, "prompt", waiting);
}

int talk_trim(struct talk *t) {
    struct err ignored = {0};
    struct ids ids = {0};
    uint32_t n_old, waiting = 0;
    if (render(t, &ids, &ignored)) /* it cannot be rendered: nothing is kept */
        ids.len = 0;
    sluice_seq_tokens(t->seq, NULL, &n_old, NULL);
    uint32_t common = common_prefix(t->seq, ids.at, ids.len);
    ids_free(&ids);
    if (common == n_old)
        return 0;
    if (sluice_seq_rewind(t->seq, common))
        return fail_engine(t->engine);
    sluice_seq_tokens(t->seq, NULL, NULL, &waiting);
    return waiting ? common_work_off(t->engine, "conversation", waiting) : 0;
}

static int read_prompt(struct talk *t, size_t *n_fed) {
    struct err err = {0};
    struct ids ids = {0};
    uint32_t enough = context_of(t) / 8; /* less would hardly be an answer */
    size_t reserve = t->n >= 0 && (uint32_t)t->n < enough ? (size_t)t->n : enough;
    int status = render_dropping(t, reserve, &ids, &err);
    int exit = status == SLUICE_ERR_CANCELLED ? EXIT_INTERRUPTED
               : status                       ? fail(&err)
                        : constraint_begin(&t->constraint, t->seq, ids.at, ids.len, true);
    if (!exit)
        exit = feed_prompt(t, &ids, n_fed);
    t->n_prompt = ids.len;
    ids_free(&ids);
    return exit;
}

/* ---- the answer --------------------------------------------------------------------------- */

static int print(struct talk *t, const char *at, size_t length) {
    int exit = t->common.as_json ? 0 : wrap_text(&t->wrap, at, length);
    t->is_over |= exit != 0;
    return exit;
}

static int show(void *user, const char *at, size_t length) {
    struct talk *t = user;
    struct err err = {0};
    int exit = print(t, at, length);
    if (!exit && text_buffer_add(&t->answer, at, length, &err))
        exit = fail(&err);
    return exit;
}

/* Appends the answer's tokens so far: all of the sequence after the prompt. */
static int append_answer(const struct talk *t, struct ids *ids, struct err *err) {
    const int32_t *tokens;
    uint32_t n;
    sluice_seq_tokens(t->seq, &tokens, &n, NULL);
    int status = SLUICE_OK;
    for (size_t i = t->n_prompt; !status && i < n; i++)
        status = ids_push(ids, tokens[i], err);
    return status;
}

/* The context is full in the middle of an answer: drops the oldest turns and continues. */
static bool make_room(void *user, int *exit) {
    struct talk *t = user;
    struct err err = {0};
    struct ids ids = {0};
    uint32_t n;
    size_t n_fed;
    bool has_room = false;
    json_t *before = conversation_snapshot(&t->conversation);
    sluice_seq_tokens(t->seq, NULL, &n, NULL);
    int status = before ? render_dropping(t, n - t->n_prompt + 1, &ids, &err) : SLUICE_ERR_MEMORY;
    size_t n_prompt = ids.len;
    if (!status)
        status = append_answer(t, &ids, &err);
    if (!status && ids.len < context_of(t)) {
        t->n_prompt = n_prompt;
        *exit = feed_prompt(t, &ids, &n_fed);
        has_room = !*exit;
        *exit = *exit == EXIT_INTERRUPTED ? 0 : *exit;
        json_decref(before);
    } else if (before) {
        conversation_restore(&t->conversation, before);
    }
    ids_free(&ids);
    return has_room;
}

/* Reports why the answer ended, if that is not obvious; then the figures. */
static int report(struct talk *t, const struct generate *g, const struct figures *figures) {
    if (g->end == GENERATE_CONTEXT_FULL)
        say(SAY_NORMAL, "(the context is full; %s)",
            t->stops_when_full ? "/undo or /clear" : "-c makes it larger");
    else if (g->end == GENERATE_LOOP)
        say(SAY_NORMAL, "(stopped: the same tokens over and over)");
    else if (g->end == GENERATE_MAX_TOKENS)
        say(SAY_NORMAL, "(stopped after %d token%s: -n)", t->n, t->n == 1 ? "" : "s");
    figures_say(figures);
    if (!t->common.as_json)
        return 0;
    print_json_line(figures_json(figures, (struct str){t->answer.at, t->answer.len}));
    t->is_over = fflush(stdout) != 0;
    return t->is_over ? say_lost() : 0;
}

static int answer(struct talk *t) {
    struct err err = {0};
    size_t n_fed = 0;
    struct generate g = {
        .model = t->model,
        .engine = t->engine,
        .seq = t->seq,
        .text = t->text,
        .max_tokens = t->n < 0 ? SIZE_MAX : (size_t)t->n,
        .is_endless = t->common.ignore_eos,
        .constraint = &t->constraint,
        .show = show,
        .make_room = make_room,
        .user = t,
    };
    struct figures figures = {.engine = t->engine, .out = &g, .seed = (uint64_t)t->common.seed};
    t->answer.len = 0;
    interrupt_reset();
    double started = seconds_now();
    int exit = read_prompt(t, &n_fed);
    figures.prompt_seconds = seconds_now() - started;
    figures.n_prompt = t->n_prompt;
    figures.n_cached = t->n_prompt - n_fed;
    if (exit == EXIT_INTERRUPTED)
        say(SAY_NORMAL, "(interrupted: the question is taken back)");
    if (!exit)
        exit = generate(&g);
    if (!exit)
        exit = print(t, "\n", 1);
    wrap_end(&t->wrap);
    if (!exit && conversation_add(&t->conversation, "assistant",
                                  (struct str){t->answer.at, t->answer.len}, &err))
        exit = fail(&err);
    if (!exit)
        exit = report(t, &g, &figures);
    interrupt_reset(); /* ignore one Ctrl-C too many */
    return !exit && g.end == GENERATE_INTERRUPTED ? EXIT_INTERRUPTED : exit;
}

/* ---- questions ---------------------------------------------------------------------------- */

/* An answer that has begun is kept. */
static int answer_or_restore(struct talk *t, json_t *before) {
    size_t n = conversation_size(&t->conversation);
    int exit = answer(t);
    if (exit && (exit != EXIT_INTERRUPTED || conversation_size(&t->conversation) <= n))
        conversation_restore(&t->conversation, before);
    else
        json_decref(before);
    return exit;
}

int talk_ask(struct talk *t, struct str question) {
    struct err err = {0};
    json_t *before = conversation_snapshot(&t->conversation);
    if (before && conversation_add(&t->conversation, "user", question, &err) == SLUICE_OK)
        return answer_or_restore(t, before);
    json_decref(before);
    return complain(EXIT_WORLD, "out of memory for a question");
}

int talk_regenerate(struct talk *t) {
    json_t *before = conversation_snapshot(&t->conversation);
    if (!before)
        return complain(EXIT_WORLD, "out of memory for a conversation");
    if (!conversation_undo_answer(&t->conversation)) {
        json_decref(before);
        return complain(EXIT_WORLD, "there is no question to answer again");
    }
    if (t->common.temperature == 0)
        say(SAY_NORMAL, "(temperature 0 gives the same answer; /set temp 0.8)");
    t->common.seed = (t->common.seed == INT64_MAX ? 0 : t->common.seed) + 1;
    int exit = talk_set_sampling(t);
    if (!exit)
        return answer_or_restore(t, before);
    conversation_restore(&t->conversation, before);
    return exit;
}

/* ---- opening ------------------------------------------------------------------------------ */

int talk_set_sampling(struct talk *t) {
    struct sluice_sampling s = common_sampling(&t->common, t->model);
    if (sluice_seq_set_sampling(t->seq, &s))
        return fail_engine(t->engine);
    struct common *c = &t->common;
    c->temperature = s.temperature;
    c->top_k = (int)s.top_k;
    c->top_p = s.top_p;
    c->min_p = s.min_p;
    c->repeat_penalty = s.repeat_penalty;
    c->presence_penalty = s.presence_penalty;
    c->frequency_penalty = s.frequency_penalty;
    c->seed = (int64_t)s.seed;
    return 0;
}

int talk_set_seq(struct talk *t, sluice_seq *seq) {
    sluice_seq_close(t->seq);
    t->seq = seq;
    return talk_set_sampling(t);
}

static int open_template(struct talk *t, struct err *err) {
    const struct tokenizer *tokenizer = t->model->tokenizer;
    char *source;
    int status;
    if (t->template) {
        status = template_read(t->template, &source, err);
        if (!status && (status = chat_from_template(&t->chat, tokenizer, str_of(source), err)))
            err_prefix(err, "--chat-template");
        free(source);
    } else {
        status = chat_from_tokenizer(&t->chat, tokenizer, err);
        if (!status && tokenizer_chat_template(tokenizer).len == 0)
            warn("the model has no chat template, ChatML is used; --chat-template names another");
    }
    return status;
}

int talk_open(struct talk *t) {
    struct err err = {0};
    if (!t->model->tokenizer)
        return complain(EXIT_WORLD, "%s", sluice_model_error(t->model));
    int exit = constraint_open(&t->constraint, t->model);
    if (exit)
        return exit;
    if (open_template(t, &err) || conversation_clear(&t->conversation, &err))
        return fail(&err);
    struct sluice_engine_options o = common_engine(&t->common);
    o.sequences = 2; /* one to load into while the other is kept */
    if (t->common.snapshot_bytes == UINT64_MAX)
        o.snapshot_bytes = 256 << 20; /* needed to go back */
    exit = common_open_engine(t->model, &o, false, &t->engine);
    if (exit)
        return exit;
    if (sluice_seq_open(&t->seq, t->engine))
        return fail_engine(t->engine);
    if (sluice_text_open(&t->text, t->model, t->common.stops.at, (size_t)t->common.stops.n))
        return complain(EXIT_WORLD, "out of memory for a text");
    return talk_set_sampling(t);
}

void talk_close(struct talk *t) {
    constraint_close(&t->constraint);
    conversation_free(&t->conversation);
    text_buffer_free(&t->answer);
    chat_close(t->chat);
    sluice_text_close(t->text);
    sluice_engine_close(t->engine);
}
