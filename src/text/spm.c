/* spm.c - SentencePiece BPE.
 *
 * Two neighbours join if together they are a piece, the best score first, the leftmost of equals.
 * All such pairs are found at load by cutting each piece in two, so that merge.c does the encoding,
 * with a rank for each distinct score. */
#include "text/spm.h"

#include <math.h>
#include <stdlib.h>

#include "text/unicode.h"

#define SPACE_MARK "\xE2\x96\x81" /* U+2581, what a space is stored as */

int spm_byte_of(struct str text) {
    int value = 0;
    if (text.len != 6 || !str_starts(text, "<0x") || text.at[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        char c = text.at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* ---- tables ---- */

static int compare_scores(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y); /* the best first */
}

/* The rank of a score among all, best first; equal scores share one. */
static uint32_t rank_of(const float *sorted, size_t n, float score) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (sorted[middle] > score)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint32_t)low;
}

static int map_pieces(struct spm *spm, struct arena *arena, const struct vocab *vocab,
                      struct err *err) {
    if (!strmap_init(&spm->pieces, arena, (size_t)vocab->count))
        return err_memory(err, "the vocabulary");
    for (int i = 0; i < 256; i++)
        spm->byte_ids[i] = -1;
    for (int32_t i = vocab->count; i-- > 0;) {
        const struct token *token = &vocab->tokens[i];
        if (token_is_plain(token) && token->text.len > SPM_MAX_PIECE)
            return err_set(err, SLUICE_ERR_FORMAT, "token %d has %zu bytes, expected at most %d",
                           (int)i, token->text.len, SPM_MAX_PIECE);
        if (isnan(token->score))
            return err_set(err, SLUICE_ERR_FORMAT, "token %d has no number as its score", (int)i);
        if (token_is_plain(token) && token->text.len > 0 && utf8_valid(token->text))
            strmap_add(&spm->pieces, token->text, (uint32_t)i);
        int byte = token->type == TOKEN_BYTE ? spm_byte_of(token->text) : -1;
        if (byte >= 0)
            spm->byte_ids[byte] = i;
    }
    return SLUICE_OK;
}

/* The symbol of a string: a piece, or a single character. */
static uint32_t symbol_of(const struct spm *spm, struct str s) {
    uint32_t symbol, c;
    if (strmap_get(&spm->pieces, s, &symbol))
        return symbol;
    return utf8_decode(s, &c) == s.len ? spm->n_tokens + c : SYMBOL_NONE;
}

/* Notes all pairs that make the piece `text`. */
static int cut_piece(struct spm *spm, struct str text, struct joined to, struct err *err) {
    size_t size;
    for (size_t i = 0; i < text.len; i += size) {
        char_at(text.at + i, &size);
        uint32_t left = i > 0 ? symbol_of(spm, (struct str){text.at, i}) : SYMBOL_NONE;
        uint32_t right = left != SYMBOL_NONE ? symbol_of(spm, str_skip(text, i)) : SYMBOL_NONE;
        if (right == SYMBOL_NONE)
            continue;
        int status = pairs_reserve(&spm->pairs, spm->pairs.count + 1, err);
        if (status != SLUICE_OK)
            return status;
        pairs_add(&spm->pairs, left, right, to);
    }
    return SLUICE_OK;
}

int spm_init(struct spm *spm, struct arena *arena, const struct vocab *vocab, struct err *err) {
    size_t count = (size_t)vocab->count;
    spm->n_tokens = (uint32_t)count;
    float *sorted = calloc(count, sizeof *sorted);
    int status = sorted ? map_pieces(spm, arena, vocab, err) : err_memory(err, "the scores");
    if (status == SLUICE_OK)
        status = pairs_reserve(&spm->pairs, count, err);
    if (status == SLUICE_OK) {
        for (size_t i = 0; i < count; i++)
            sorted[i] = vocab->tokens[i].score;
        qsort(sorted, count, sizeof *sorted, compare_scores);
    }
    for (size_t i = 0; status == SLUICE_OK && i < count; i++) {
        const struct token *token = &vocab->tokens[i];
        uint32_t id;
        if (strmap_get(&spm->pieces, token->text, &id) && id == i)
            status = cut_piece(spm, token->text,
                               (struct joined){rank_of(sorted, count, token->score), id}, err);
    }
    free(sorted);
    return status;
}

void spm_free(struct spm *spm) {
    pairs_free(&spm->pairs);
}

/* ---- text ---- */

/* Characters to symbols. `text` still has its spaces. */
static void read_symbols(const struct spm *spm, struct merger *m, struct str text) {
    const uint32_t space = symbol_of(spm, STR(SPACE_MARK));
    size_t size;
    m->n_symbols = 0;
    if (spm->has_prefix)
        m->symbols[m->n_symbols++] = space;
    for (size_t i = 0; i < text.len; i += size) {
        char_at(text.at + i, &size);
        m->symbols[m->n_symbols++] =
            text.at[i] == ' ' ? space : symbol_of(spm, (struct str){text.at + i, size});
    }
}

static int emit_symbol(const struct spm *spm, uint32_t symbol, struct ids *out, struct err *err) {
    if (symbol < spm->n_tokens)
        return ids_push(out, (int32_t)symbol, err);
    char bytes[4];
    size_t n = utf8_put(symbol - spm->n_tokens, bytes);
    int status = SLUICE_OK;
    for (size_t i = 0; i < n && status == SLUICE_OK; i++) {
        int32_t id = spm->byte_ids[(unsigned char)bytes[i]];
        if (id >= 0 || spm->unknown >= 0)
            status = ids_push(out, id >= 0 ? id : spm->unknown, err);
    }
    return status;
}

int spm_encode(const struct spm *spm, struct merger *m, struct str text, struct ids *out,
               struct err *err) {
    int status = merger_reserve(m, text.len + 1, err);
    if (status != SLUICE_OK)
        return status;
    read_symbols(spm, m, text);
    status = merge_run(m, &spm->pairs, err);
    for (size_t i = 0; i < m->n_symbols && status == SLUICE_OK; i++)
        status = emit_symbol(spm, m->symbols[i], out, err);
    return status;
}
