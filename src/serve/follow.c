/* follow.c - what may come next in an answer that follows a grammar. */
#include "serve/follow.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"

static void set_bit(uint32_t *mask, int32_t token) {
    mask[token / 32] |= 1u << token % 32;
}

uint32_t *follow_no_ends(const sluice_model *model) {
    struct sluice_facts facts;
    sluice_model_facts(model, &facts);
    uint32_t *mask = calloc(div_up((uint32_t)facts.n_tokens, 32) + 1ul, sizeof *mask);
    for (int32_t t = 0; mask && t < facts.n_tokens; t++)
        if (!sluice_token_is_end(model, t))
            set_bit(mask, t);
    return mask;
}

int follow_open(struct follow *f, const struct format *format, int32_t n_tokens,
                struct matcher_budget *budget, struct err *err) {
    *f = (struct follow){
        .open = -1, .close = -1, .call = -1, .n_words = div_up((uint32_t)n_tokens, 32)};
    if (!format)
        return SLUICE_OK;
    f->mask = calloc(f->n_words + 1ul, sizeof *f->mask);
    return f->mask ? matcher_open(&f->matcher, format->grammar, format->texts, budget, err)
                   : err_memory(err, "a mask");
}

void follow_close(struct follow *f) {
    matcher_close(f->matcher);
    free(f->mask);
    *f = (struct follow){0};
}

void follow_look(struct follow *f, const int32_t *prompt, size_t n) {
    enum { NEAR = 16 };
    f->is_thinking = false;
    f->may_open = f->open >= 0;
    for (size_t i = n; f->may_open && i > 0 && n - i < NEAR; i--) {
        f->is_thinking = prompt[i - 1] == f->open;
        if (f->is_thinking || prompt[i - 1] == f->close)
            f->may_open = false;
    }
}

static bool may_think(const struct follow *f) {
    return f->n_tokens == 0 && f->may_open && f->open >= 0;
}

static bool may_call(const struct follow *f) {
    return f->call >= 0 && !f->has_begun;
}

/* Copies the matcher's mask, without ends if there is anything else. */
static void copy_mask(struct follow *f, const uint32_t *mask) {
    uint32_t others = 0;
    for (uint32_t i = 0; f->ignores_ends && i < f->n_words; i++)
        others |= f->mask[i] = mask[i] & f->no_ends[i];
    if (!others)
        memcpy(f->mask, mask, f->n_words * sizeof *mask);
}

/* While it thinks, anything but an end; at the beginning thinking too, or a call. */
const uint32_t *follow_mask(struct follow *f) {
    if (!f->matcher || f->is_free)
        return f->matcher && f->ignores_ends ? f->no_ends : NULL;
    if (f->is_thinking)
        return f->no_ends;
    const uint32_t *mask = matcher_mask(f->matcher);
    if (!may_think(f) && !may_call(f) && !f->ignores_ends)
        return mask;
    copy_mask(f, mask);
    if (may_think(f))
        set_bit(f->mask, f->open);
    if (may_call(f))
        set_bit(f->mask, f->call);
    return f->mask;
}

/* The same mask holds until thinking is closed. */
const uint32_t *follow_keeps(struct follow *f) {
    if (!f->matcher || f->is_free || (!f->is_thinking && (may_think(f) || may_call(f))))
        return NULL;
    if (!f->is_thinking)
        return matcher_keeps(f->matcher);
    memcpy(f->mask, f->no_ends, f->n_words * sizeof *f->mask);
    if (f->close >= 0)
        f->mask[f->close / 32] &= ~(1u << f->close % 32);
    return f->mask;
}

static bool is_blank(const sluice_model *model, int32_t token) {
    size_t n;
    const char *text = sluice_token_text(model, token, &n);
    while (n > 0 && strchr(" \t\r\n", text[n - 1]) && text[n - 1])
        n--;
    return n == 0;
}

/* False: nothing may follow it, or it does not fit. */
static bool say(struct follow *f, int32_t token) {
    f->is_free |= may_call(f) && token == f->call;
    f->has_begun |= f->call >= 0 && !is_blank(f->model, token);
    if (!f->matcher || f->is_free)
        return true;
    return (matcher_accept(f->matcher, token) && !matcher_must_end(f->matcher)) ||
           follow_fault(f, NULL);
}

enum follow_kind follow_token(struct follow *f, int32_t token) {
    bool was_thinking = f->is_thinking;
    if (f->close >= 0 && token == f->close)
        f->is_thinking = false;
    else if (f->open >= 0 && token == f->open && f->n_tokens == 0)
        f->is_thinking = true;
    f->n_tokens++;
    if (was_thinking || f->is_thinking)
        return FOLLOW_THOUGHT;
    return say(f, token) ? FOLLOW_SAID : FOLLOW_LAST;
}

int follow_fault(const struct follow *f, struct err *err) {
    return f->matcher ? matcher_fault(f->matcher, err) : SLUICE_OK;
}
