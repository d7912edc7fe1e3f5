/* answer.c - one answer: tokens in, deltas of reasoning, content and tool calls out. */
#include "serve/answer.h"

#include <stdio.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/entropy.h"

enum phase {
    PHASE_RAW,             /* everything is content */
    PHASE_START,           /* nothing but white space so far: <think> may follow */
    PHASE_REASONING,       /* inside <think> */
    PHASE_AFTER_REASONING, /* after </think>: white space is dropped */
    PHASE_CONTENT,
};

static const char think_open[] = "<think>", think_close[] = "</think>";

void answer_make_id(const char *prefix, char out[32]) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char random[20];
    entropy_fill(random, sizeof random);
    size_t n = strlen(prefix);
    memcpy(out, prefix, n);
    for (size_t i = 0; i < sizeof random && n < 31; i++)
        out[n++] = letters[random[i] % 36];
    out[n] = 0;
}

/* ---- deltas ------------------------------------------------------------------------------- */

static void emit(struct answer *a, enum answer_delta_kind kind, struct str text) {
    if (text.len == 0)
        return;
    struct buffer *all = kind == DELTA_CONTENT ? &a->content : &a->reasoning;
    a->has_failed |= !buffer_add(all, text.at, text.len);
    a->on_delta(a->user, a, &(struct answer_delta){.kind = kind, .text = text});
}

static void emit_call(struct answer *a, const struct tool_event *event) {
    if (a->ask->has_one_call && a->n_calls > 0)
        return;
    struct answer_call *more = realloc(a->calls, (a->n_calls + 1) * sizeof *more);
    a->has_failed |= !more;
    if (!more)
        return;
    a->calls = more;
    struct answer_call *call = &a->calls[a->n_calls];
    *call =
        (struct answer_call){.name = strdup(event->name), .arguments = strdup(event->arguments)};
    answer_make_id("call_", call->id);
    a->n_calls++;
    a->has_failed |= !call->name || !call->arguments;
    if (!a->has_failed)
        a->on_delta(a->user, a, &(struct answer_delta){.kind = DELTA_CALL, .call = call});
}

static void on_tool_event(void *user, const struct tool_event *event) {
    if (event->name)
        emit_call(user, event);
    else
        emit(user, DELTA_CONTENT, event->text);
}

static void add_content(struct answer *a, struct str text) {
    if (a->parser)
        tool_parser_push(a->parser, text);
    else
        emit(a, DELTA_CONTENT, text);
}

/* ---- reasoning ---------------------------------------------------------------------------- */

static size_t n_spaces(struct str s) {
    size_t n = 0;
    while (n < s.len && strchr(" \t\r\n", s.at[n]) && s.at[n])
        n++;
    return n;
}

/* How much of s can be emitted: everything up to what may be the start of the tag, without the
 * white space before it or at the end. */
static size_t safe_length(struct str s, const char *tag) {
    size_t n = 0;
    while (n < s.len) {
        size_t left = s.len - n, shorter = left < strlen(tag) ? left : strlen(tag);
        if (memcmp(s.at + n, tag, shorter) == 0)
            break;
        n++;
    }
    while (n > 0 && strchr(" \t\r\n", s.at[n - 1]) && s.at[n - 1])
        n--;
    return n;
}

/* Each parses the beginning of the pending text; false: it needs more of it. */
static bool parse_start(struct answer *a) {
    struct str pending = buffer_str(&a->pending);
    size_t spaces = n_spaces(pending);
    struct str rest = str_skip(pending, spaces);
    size_t n = strlen(think_open);
    if (rest.len < n && memcmp(rest.at, think_open, rest.len) == 0)
        return false;
    a->phase = str_starts(rest, think_open) ? PHASE_REASONING : PHASE_CONTENT;
    if (a->phase == PHASE_REASONING)
        buffer_drop(&a->pending, spaces + n);
    return true;
}

static bool parse_reasoning(struct answer *a) {
    struct str pending = buffer_str(&a->pending);
    size_t skipped = a->reasoning.len == 0 ? n_spaces(pending) : 0;
    struct str rest = str_skip(pending, skipped);
    size_t n = safe_length(rest, think_close);
    emit(a, DELTA_REASONING, (struct str){rest.at, n});
    rest = str_skip(rest, n);
    size_t spaces = n_spaces(rest);
    bool has_ended = str_starts(str_skip(rest, spaces), think_close);
    buffer_drop(&a->pending, skipped + n + (has_ended ? spaces + strlen(think_close) : 0));
    if (has_ended)
        a->phase = PHASE_AFTER_REASONING;
    return has_ended;
}

static bool parse_after_reasoning(struct answer *a) {
    size_t spaces = n_spaces(buffer_str(&a->pending));
    buffer_drop(&a->pending, spaces);
    if (a->pending.len > 0)
        a->phase = PHASE_CONTENT;
    return a->pending.len > 0;
}

/* ---- lines -------------------------------------------------------------------------------- */

/* Adds lines up to the first that is indented too little. */
static void add_indented(struct answer *a, struct str text) {
    while (text.len > 0 && !a->is_limited) {
        size_t n = 0;
        if (a->is_indent) {
            while (n < text.len && (text.at[n] == ' ' || text.at[n] == '\t'))
                n++;
            a->has_failed |= !buffer_add(&a->pending, text.at, n);
            if (n < text.len) {
                a->is_indent = false;
                a->is_limited = a->pending.len < (size_t)a->ask->min_indent;
                if (!a->is_limited)
                    add_content(a, buffer_str(&a->pending));
                a->pending.len = 0;
            }
        } else {
            const char *newline = memchr(text.at, '\n', text.len);
            n = newline ? (size_t)(newline - text.at) + 1 : text.len;
            add_content(a, (struct str){text.at, n});
            a->is_indent = newline != NULL;
        }
        text = str_skip(text, n);
    }
}

static void add_lines(struct answer *a, struct str text) {
    if (a->ask->min_indent > 0)
        add_indented(a, text);
    else
        add_content(a, text);
    if (a->ask->max_ms > 0 && memchr(text.at, '\n', text.len))
        a->is_limited |= seconds_now() - a->started > 1e-3 * (double)a->ask->max_ms;
}

static void add_text(struct answer *a, struct str text) {
    bool is_parsed = true;
    if (a->phase == PHASE_RAW) {
        add_lines(a, text);
        return;
    }
    if (a->phase == PHASE_CONTENT && a->pending.len == 0) {
        add_content(a, text);
        return;
    }
    buffer_add(&a->pending, text.at, text.len);
    while (is_parsed && a->pending.len > 0) {
        switch (a->phase) {
        case PHASE_START:
            is_parsed = parse_start(a);
            break;
        case PHASE_REASONING:
            is_parsed = parse_reasoning(a);
            break;
        case PHASE_AFTER_REASONING:
            is_parsed = parse_after_reasoning(a);
            break;
        default:
            add_content(a, buffer_str(&a->pending));
            a->pending.len = 0;
        }
    }
}

/* ---- tokens ------------------------------------------------------------------------------- */

int answer_open(struct answer *a, const struct ask_model *m, const struct ask *ask, uint32_t number,
                answer_delta_fn *on_delta, void *user) {
    *a = (struct answer){.m = m, .ask = ask, .number = number, .on_delta = on_delta, .user = user};
    a->phase = !ask->messages         ? PHASE_RAW
               : ask->starts_thinking ? PHASE_REASONING
               : m->think_open >= 0   ? PHASE_START
                                      : PHASE_CONTENT;
    int status = sluice_text_open(&a->content_decoder, m->model, ask->stops, ask->n_stops);
    if (!status)
        status = sluice_text_open(&a->reasoning_decoder, m->model, NULL, 0);
    if (!status && ask->messages && ask->tools && ask->tool_choice != TOOLS_NONE) {
        a->parser = tool_parser_open(ask_callable(ask), ask->allowed != NULL, on_tool_event, a);
        status = a->parser ? SLUICE_OK : SLUICE_ERR_MEMORY;
        if (a->parser && ask->is_call_begun)
            tool_parser_push(a->parser, str_of(ASK_CALL_BEGIN));
    }
    return status;
}

void answer_close(struct answer *a) {
    for (size_t i = 0; i < a->n_calls; i++) {
        free(a->calls[i].name);
        free(a->calls[i].arguments);
    }
    for (size_t i = 0; i < a->n_content_tokens; i++)
        free(a->content_tokens[i].logprobs);
    free(a->calls);
    free(a->content_tokens);
    free(a->tokens);
    buffer_free(&a->content);
    buffer_free(&a->reasoning);
    buffer_free(&a->pending);
    sluice_text_close(a->content_decoder);
    sluice_text_close(a->reasoning_decoder);
    tool_parser_close(a->parser);
}

static bool append_token(struct answer *a, int32_t token) {
    bool has_room = array_grow(&a->tokens, a->n_tokens, &a->capacity, sizeof *a->tokens);
    if (has_room)
        a->tokens[a->n_tokens++] = token;
    return has_room;
}

static bool append_content_token(struct answer *a, int32_t token, struct job_logprobs *logprobs) {
    bool has_room = array_grow(&a->content_tokens, a->n_content_tokens, &a->content_capacity,
                               sizeof *a->content_tokens);
    if (has_room)
        a->content_tokens[a->n_content_tokens++] = (struct answer_token){token, logprobs};
    return has_room;
}

/* Control tokens give no text, but these mean something here. So does the token that begins
 * thinking where it gives text: that is no part of the answer, in which stop texts are looked for.
 */
static const char *marker_of(const struct answer *a, int32_t token) {
    const struct ask_model *m = a->m;
    bool begins = m->think_is_silent || a->phase == PHASE_START;
    return token < 0 || a->phase == PHASE_RAW              ? NULL
           : token == m->think_open && begins              ? think_open
           : token == m->think_close && m->think_is_silent ? think_close
           : token == m->python_tag                        ? "<|python_tag|>"
                                                           : NULL;
}

/* Whether a token is part of the reasoning, or white space after it. */
static bool is_reasoning_token(const struct answer *a, int32_t token) {
    struct str text = {0};
    if (token >= 0)
        text.at = sluice_token_text(a->m->model, token, &text.len);
    bool is_space = n_spaces(text) == text.len;
    return a->phase == PHASE_REASONING ||
           (a->phase == PHASE_AFTER_REASONING && !a->has_begun_content && is_space);
}

/* A token whose text the decoder holds back may turn out to be part of a stop text, which is not
 * emitted. */
static void count_emitted_tokens(struct answer *a) {
    size_t length;
    for (; a->n_emitted < a->n_content_tokens && a->token_bytes < a->emitted_bytes;
         a->token_bytes += length)
        sluice_token_text(a->m->model, a->content_tokens[a->n_emitted++].token, &length);
}

/* The token's text is added; SLUICE_TEXT_END: what the decoder still holds back. */
static void decode_token(struct answer *a, int32_t token) {
    bool is_reasoning = is_reasoning_token(a, token);
    sluice_text *decoder = is_reasoning ? a->reasoning_decoder : a->content_decoder;
    const char *at;
    size_t length;
    a->has_failed |= sluice_text_push(decoder, token, &at, &length) != SLUICE_OK;
    a->has_begun_content |= a->phase == PHASE_AFTER_REASONING && !is_reasoning;
    a->emitted_bytes += is_reasoning ? 0 : length;
    count_emitted_tokens(a);
    add_text(a, (struct str){at, length});
    if (!is_reasoning && a->phase == PHASE_REASONING) {
        /* text held back as the possible start of a stop text comes first */
        a->has_failed |= sluice_text_push(decoder, SLUICE_TEXT_END, &at, &length) != SLUICE_OK;
        add_text(a, (struct str){at, length});
    }
}

/* Keeps the first n. */
static void truncate_content_tokens(struct answer *a, size_t n) {
    while (a->n_content_tokens > n)
        free(a->content_tokens[--a->n_content_tokens].logprobs);
    a->n_emitted = a->n_content_tokens;
}

/* Where a stop text begins in what was sampled after reasoning, and which; false: nowhere. */
static bool find_stop(const struct answer *a, size_t *at, const char **which) {
    struct buffer all = {0};
    bool is_found = false;
    ask_decode(a->m, a->tokens + a->first_content_token, a->n_tokens - a->first_content_token,
               false, &all);
    for (size_t i = 0; i < a->ask->n_stops; i++) {
        const char *stop = a->ask->stops[i];
        const char *found = all.len ? memmem(all.at, all.len, stop, strlen(stop)) : NULL;
        if (!found || (is_found && (size_t)(found - all.at) >= *at))
            continue;
        is_found = true;
        *at = (size_t)(found - all.at);
        *which = stop;
    }
    buffer_free(&all);
    return is_found;
}

/* Tokens that begin after the text's end are left out. */
static void drop_tokens_after_end(struct answer *a) {
    const char *ignored;
    size_t at = a->content.len, n = 0, length, end = 0;
    if (a->n_content_tokens == 0 || (!a->is_limited && !find_stop(a, &at, &ignored)))
        return;
    for (; n < a->n_content_tokens && end < at; n++, end += length)
        sluice_token_text(a->m->model, a->content_tokens[n].token, &length);
    truncate_content_tokens(a, n);
}

void answer_add_token(struct answer *a, int32_t token, struct job_logprobs *logprobs) {
    if (a->has_stopped || a->ask->is_silent || !append_token(a, token)) {
        free(logprobs);
        a->has_failed |= !a->has_stopped && !a->ask->is_silent;
        return;
    }
    if (a->n_tokens == 1)
        a->started = seconds_now();
    bool is_reasoning = is_reasoning_token(a, token);
    a->n_reasoning_tokens += is_reasoning;
    if (!logprobs || is_reasoning || !append_content_token(a, token, logprobs))
        free(logprobs);
    const char *marker = marker_of(a, token);
    decode_token(a, marker ? SLUICE_TEXT_END : token);
    if (marker)
        add_text(a, str_of(marker));
    if (a->phase == PHASE_REASONING) {
        truncate_content_tokens(a, 0);
        a->emitted_bytes = a->token_bytes = 0;
    }
    if (is_reasoning || a->phase == PHASE_REASONING)
        a->first_content_token = a->n_tokens;
    a->has_stopped = sluice_text_has_stopped(a->content_decoder) || a->is_limited;
    if (a->has_stopped)
        drop_tokens_after_end(a);
}

static enum answer_finish finish_of(const struct answer *a, const struct job_end *end) {
    enum sched_end why = end->report.end;
    if (why == SCHED_END_FAILED)
        return FINISH_FAILED;
    if (a->is_limited ||
        (!a->has_stopped && (why == SCHED_END_MAX_TOKENS || why == SCHED_END_FULL)))
        return FINISH_LENGTH;
    if (!a->has_stopped && why == SCHED_END_CANCELLED)
        return FINISH_CUT;
    return a->n_calls > 0 ? FINISH_CALLS : FINISH_END;
}

void answer_end(struct answer *a, const struct job_end *end) {
    a->n_emitted = a->n_content_tokens;
    if (!a->has_stopped)
        decode_token(a, SLUICE_TEXT_END);
    if (a->phase == PHASE_START)
        a->phase = PHASE_CONTENT;
    struct str pending = buffer_str(&a->pending);
    if (a->phase == PHASE_REASONING && a->reasoning.len > 0)
        emit(a, DELTA_REASONING, pending);
    else if (a->phase == PHASE_CONTENT || a->phase == PHASE_RAW)
        add_content(a, pending);
    a->pending.len = 0;
    if (a->parser) {
        tool_parser_end(a->parser);
        a->has_failed |= tool_parser_has_failed(a->parser);
    }
    a->end = end;
    a->finish = finish_of(a, end);
}

json_t *answer_message(const struct answer *a) {
    const json_t *begun = a->ask->begun;
    struct str content = buffer_str(&a->content);
    struct buffer all = {0};
    if (begun)
        buffer_add(&all, json_string_value(begun), json_string_length(begun));
    buffer_add(&all, content.at, content.len);
    json_t *message =
        json_pack("{s:s, s:o}", "role", "assistant", "content", json_of_text(buffer_str(&all)));
    buffer_free(&all);
    json_t *calls = a->n_calls > 0 ? json_array() : NULL;
    for (size_t i = 0; i < a->n_calls; i++)
        json_array_append_new(calls,
                              json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", a->calls[i].id, "type",
                                        "function", "function", "name", a->calls[i].name,
                                        "arguments", json_loads(a->calls[i].arguments, 0, NULL)));
    if (calls)
        json_object_set_new(message, "tool_calls", calls);
    return message;
}

const char *answer_stop_text(const struct answer *a) {
    const char *found = NULL;
    size_t at;
    bool has_one = a->has_stopped && !a->is_limited && find_stop(a, &at, &found);
    return has_one ? found : NULL;
}
