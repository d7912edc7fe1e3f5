/* texts.c - the trie of a vocabulary's texts. */
#include "grammar/texts.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

/* Longer texts are left out: tokens of that length are runs of blanks and the like. */
enum { MAX_DEPTH = 1024 };

/* ---- the tokens in order ------------------------------------------------------------------ */

static int compare_texts(const void *a, const void *b, void *user) {
    const struct str *texts = user;
    int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    size_t n = texts[i].len < texts[k].len ? texts[i].len : texts[k].len;
    int order = memcmp(texts[i].at, texts[k].at, n);
    if (order == 0 && texts[i].len != texts[k].len)
        order = texts[i].len < texts[k].len ? -1 : 1;
    return order ? order : i < k ? -1 : i > k;
}

static bool copy_texts(struct token_texts *t, const struct str *texts) {
    uint64_t bytes = 0;
    for (int32_t i = 0; i < t->n_tokens; i++)
        bytes += texts[i].len <= MAX_DEPTH ? texts[i].len : 0;
    char *at = arena_alloc(&t->arena, bytes);
    t->texts = arena_array(&t->arena, (uint64_t)t->n_tokens, sizeof *t->texts);
    t->sorted = arena_array(&t->arena, (uint64_t)t->n_tokens, sizeof *t->sorted);
    if (!at || !t->texts || !t->sorted)
        return false;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        if (texts[i].len == 0 || texts[i].len > MAX_DEPTH)
            continue;
        t->texts[i] = (struct str){memcpy(at, texts[i].at, texts[i].len), texts[i].len};
        at += texts[i].len;
    }
    return true;
}

/* Sorted by text, those without one left out; returns how many. */
static uint32_t sort_tokens(struct token_texts *t) {
    uint32_t n = 0;
    for (int32_t i = 0; i < t->n_tokens; i++)
        if (t->texts[i].len)
            t->sorted[n++] = i;
    if (n)
        qsort_r(t->sorted, n, sizeof *t->sorted, compare_texts, t->texts);
    return n;
}

/* ---- plain characters --------------------------------------------------------------------- */

uint32_t text_plain_begin(uint8_t byte, uint8_t *low, uint8_t *high) {
    *low = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
    *high = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF; /* no surrogates, up to U+10FFFF */
    if (byte < 0x80)
        return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\';
    return byte < 0xC2 ? 0 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 0;
}

/* Bytes of the plain character that a text begins with; 0: it begins with another. */
static uint32_t plain_length(struct str text) {
    uint8_t low, high;
    uint32_t n = text_plain_begin((uint8_t)text.at[0], &low, &high);
    bool is_good = n > 0 && n <= text.len;
    for (uint32_t i = 1; i < n && is_good; i++) {
        uint8_t byte = (uint8_t)text.at[i];
        is_good = i == 1 ? byte >= low && byte <= high : byte >= 0x80 && byte <= 0xBF;
    }
    return is_good ? n : 0;
}

/* Plain characters of the rest of the text from each byte on, or TEXT_NOT_PLAIN. */
static void count_plain(struct str text, uint8_t rest[MAX_DEPTH + 1]) {
    rest[text.len] = 0;
    for (size_t i = text.len; i-- > 0;) {
        uint32_t n = plain_length(str_skip(text, i));
        rest[i] = n && rest[i + n] < TEXT_MAX_CHARS ? rest[i + n] + 1 : TEXT_NOT_PLAIN;
    }
}

/* Notes a token's plain characters in its nodes and tables. */
static void note_plain(struct token_texts *t, int32_t token, const uint32_t *path) {
    uint8_t rest[MAX_DEPTH + 1];
    struct str text = t->texts[token];
    count_plain(text, rest);
    bool is_other = rest[0] == TEXT_NOT_PLAIN;
    if (!is_other && rest[0] > TEXT_MAX_PLAIN)
        t->longs[t->n_longs++] = (struct long_text){token, rest[0]};
    else if (!is_other)
        t->plain[(size_t)rest[0] * t->n_words + (uint32_t)token / 32] |= 1u << token % 32;
    for (size_t d = 0; d <= text.len; d++) {
        struct text_node *node = &t->nodes[path[d]];
        node->has_other |= is_other;
        if (rest[d] > node->plain)
            node->plain = rest[d];
    }
}

/* Turns masks of exactly n characters into masks of at most n. */
static void sum_plain(struct token_texts *t) {
    for (size_t i = t->n_words; i < (TEXT_MAX_PLAIN + 1ul) * t->n_words; i++)
        t->plain[i] |= t->plain[i - t->n_words];
}

void token_texts_add_plain(const struct token_texts *t, uint32_t n, uint32_t *mask) {
    const uint32_t *known = t->plain + (size_t)min_u32(n, TEXT_MAX_PLAIN) * t->n_words;
    for (uint32_t i = 0; i < t->n_words; i++)
        mask[i] |= known[i];
    for (uint32_t i = 0; n > TEXT_MAX_PLAIN && i < t->n_longs; i++)
        if (t->longs[i].n <= n)
            mask[t->longs[i].token / 32] |= 1u << t->longs[i].token % 32;
}

static uint32_t list_char_nodes(struct token_texts *t, uint32_t *out) {
    uint32_t n = 0, skip;
    for (uint32_t i = 1; i < t->n_nodes; i = skip) { /* the first bytes */
        uint8_t low, high;
        uint32_t bytes = text_plain_begin(t->nodes[i].byte, &low, &high);
        skip = t->nodes[i].skip;
        for (uint32_t k = i; bytes && k < skip;) {
            const struct text_node *node = &t->nodes[k];
            bool is_char = node->depth == bytes, has_below = node->skip > k + 1;
            if (is_char && has_below && !node->has_other) {
                if (out)
                    out[n] = k;
                n++;
            }
            k = is_char ? node->skip : k + 1;
        }
    }
    return n;
}

/* ---- nodes -------------------------------------------------------------------------------- */

static size_t common_bytes(struct str a, struct str b) {
    size_t n = 0;
    while (n < a.len && n < b.len && a.at[n] == b.at[n])
        n++;
    return n;
}

static uint64_t count_nodes(const struct token_texts *t, uint32_t n) {
    struct str before = {"", 0};
    uint64_t nodes = 1;
    for (uint32_t i = 0; i < n; i++) {
        struct str text = t->texts[t->sorted[i]];
        nodes += text.len - common_bytes(before, text);
        before = text;
    }
    return nodes;
}

/* An upper bound of the number of long texts. */
static uint64_t count_longs(const struct token_texts *t, uint32_t n) {
    uint64_t longs = 0;
    for (uint32_t i = 0; i < n; i++)
        longs += t->texts[t->sorted[i]].len > TEXT_MAX_PLAIN;
    return longs;
}

/* A token adds the nodes that it does not share with the token before it. `path`: the node at each
 * depth; its end is known when another takes its place. */
static void fill_nodes(struct token_texts *t, uint32_t n) {
    uint32_t path[MAX_DEPTH + 1] = {0}, depth = 0, used = 1;
    struct str before = {"", 0};
    for (uint32_t i = 0; i < n; i++) {
        struct str text = t->texts[t->sorted[i]];
        size_t common = common_bytes(before, text);
        for (; depth > common; depth--)
            t->nodes[path[depth]].skip = used;
        while (depth < text.len) {
            t->nodes[used] = (struct text_node){
                .first_token = i, .depth = (uint16_t)(depth + 1), .byte = (uint8_t)text.at[depth]};
            path[++depth] = used++;
        }
        note_plain(t, t->sorted[i], path);
        if (depth > t->max_depth)
            t->max_depth = depth;
        before = text;
    }
    for (; depth > 0; depth--)
        t->nodes[path[depth]].skip = used;
    t->nodes[0].skip = used;
    t->nodes[used] = (struct text_node){.skip = used, .first_token = n};
    t->n_nodes = used;
}

static int make(struct token_texts *t, const struct str *texts, const int32_t *ends,
                uint32_t n_ends, struct err *err) {
    static atomic_ullong last_id;
    t->id = atomic_fetch_add(&last_id, 1) + 1;
    t->n_words = div_up((uint32_t)t->n_tokens, 32);
    if (!copy_texts(t, texts))
        return err_memory(err, "the texts of a vocabulary");
    uint32_t n = sort_tokens(t);
    uint64_t nodes = count_nodes(t, n);
    if (nodes >= UINT32_MAX)
        return err_set(err, SLUICE_ERR_UNSUPPORTED, "the vocabulary's texts are too long");
    t->nodes = arena_array(&t->arena, nodes + 1, sizeof *t->nodes);
    t->ends = arena_array(&t->arena, n_ends, sizeof *t->ends);
    t->longs = arena_array(&t->arena, count_longs(t, n), sizeof *t->longs);
    t->plain = arena_array(&t->arena, (TEXT_MAX_PLAIN + 1ull) * t->n_words, sizeof *t->plain);
    if (!t->nodes || !t->ends || !t->longs || !t->plain)
        return err_memory(err, "the texts of a vocabulary");
    fill_nodes(t, n);
    sum_plain(t);
    t->n_char_nodes = list_char_nodes(t, NULL);
    t->char_nodes = arena_array(&t->arena, t->n_char_nodes, sizeof *t->char_nodes);
    if (!t->char_nodes)
        return err_memory(err, "the texts of a vocabulary");
    list_char_nodes(t, t->char_nodes);
    t->n_ends = n_ends;
    for (uint32_t i = 0; i < n_ends; i++)
        t->ends[i] = ends[i];
    return SLUICE_OK;
}

int token_texts_make(struct token_texts **out, const struct str *texts, int32_t n,
                     const int32_t *ends, uint32_t n_ends, struct err *err) {
    struct token_texts *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return err_memory(err, "the texts of a vocabulary");
    t->n_tokens = n;
    int status = make(t, texts, ends, n_ends, err);
    if (status)
        token_texts_close(t);
    else
        *out = t;
    return status;
}

/* ---- of a model --------------------------------------------------------------------------- */

int token_texts_open(struct token_texts **out, const sluice_model *model, struct err *err) {
    struct sluice_facts facts;
    *out = NULL;
    sluice_model_facts(model, &facts);
    if (!facts.has_tokenizer)
        return err_set(err, SLUICE_ERR_UNSUPPORTED,
                       "the model has no tokenizer, expected one: answers cannot follow a grammar");
    struct str *texts = calloc((size_t)facts.n_tokens + 1, sizeof *texts);
    int32_t *ends = calloc((size_t)facts.n_tokens + 1, sizeof *ends);
    uint32_t n_ends = 0;
    int status = texts && ends ? SLUICE_OK : err_memory(err, "the texts of a vocabulary");
    for (int32_t i = 0; !status && i < facts.n_tokens; i++) {
        if (sluice_token_is_end(model, i))
            ends[n_ends++] = i;
        else
            texts[i].at = sluice_token_text(model, i, &texts[i].len);
    }
    if (!status)
        status = token_texts_make(out, texts, facts.n_tokens, ends, n_ends, err);
    free(texts);
    free(ends);
    return status;
}

void token_texts_close(struct token_texts *t) {
    if (!t)
        return;
    arena_free(&t->arena);
    free(t);
}
