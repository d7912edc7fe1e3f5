/* bpe.c - byte-level BPE.
 *
 * Everything here works on raw bytes: the printable form of stored texts is decoded at load. */
#include "text/bpe.h"

#include <stdlib.h>

/* ---- the byte alphabet ---- */

/* The byte that a character of a stored text stands for, or -1: printable Latin-1 for itself, the
 * 68 other bytes as U+0100 and on. */
static int byte_of(uint32_t c) {
    if ((c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF))
        return (int)c;
    if (c >= 0x100 && c <= 0x120)
        return (int)(c - 0x100);
    if (c >= 0x121 && c <= 0x142)
        return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}

size_t bpe_unmap(struct str stored, char *bytes) {
    size_t n = 0;
    while (stored.len > 0) {
        uint32_t c;
        size_t size = utf8_decode(stored, &c);
        int byte = size ? byte_of(c) : -1;
        if (byte < 0)
            return SIZE_MAX;
        bytes[n++] = (char)byte;
        stored = str_skip(stored, size);
    }
    return n;
}

/* ---- tables ---- */

/* A merge as symbols; SYMBOL_NONE for strings that are not tokens, until they get a number. */
struct triple {
    uint32_t left, right, result;
    bool is_void; /* cannot occur in any text */
};

struct building {
    struct bpe *bpe;
    struct arena *arena;
    const struct merge_text *merges;
    struct triple *triples; /* one per merge */
    size_t n_merges;
    char *buffer;          /* left and right of one merge, as bytes */
    struct strmap numbers; /* of the strings that are not tokens */
    size_t n_missing;      /* at most this many of them */
};

/* A special token: its text is what it stands for, but merges know it as the bytes that this text
 * is the printable form of, and not at all if it is not of that form. A control token is made from
 * text only if it is a byte, which nothing else would encode. */
static int map_special(struct bpe *bpe, struct arena *arena, const struct vocab *vocab, uint32_t i,
                       struct err *err) {
    const struct token *token = &vocab->tokens[i];
    char *bytes = arena_alloc(arena, token->text.len);
    if (!bytes)
        return err_memory(err, "the vocabulary");
    size_t n = bpe_unmap(token->text, bytes);
    if (n == 1 || (n > 1 && n != SIZE_MAX && token->type == TOKEN_USER))
        strmap_add(&bpe->words, (struct str){bytes, n}, i);
    return SLUICE_OK;
}

/* Of two tokens with the same bytes the last one counts; a normal one wins over a special one, and
 * that over a byte token. */
static int map_words(struct bpe *bpe, struct arena *arena, const struct vocab *vocab,
                     struct err *err) {
    int status = SLUICE_OK;
    if (!strmap_init(&bpe->words, arena, (size_t)vocab->count))
        return err_memory(err, "the vocabulary");
    for (int32_t i = vocab->count; i-- > 0;)
        if (vocab->tokens[i].type == TOKEN_NORMAL && vocab->tokens[i].bytes.len > 0)
            strmap_add(&bpe->words, vocab->tokens[i].bytes, (uint32_t)i);
    for (int32_t i = vocab->count; !status && i-- > 0;)
        if ((vocab->tokens[i].type == TOKEN_USER || vocab->tokens[i].type == TOKEN_CONTROL) &&
            !(vocab->tokens[i].flags & TOKEN_ADDED))
            status = map_special(bpe, arena, vocab, (uint32_t)i, err);
    for (int32_t i = vocab->count; i-- > 0;)
        if (vocab->tokens[i].type == TOKEN_BYTE && vocab->tokens[i].bytes.len == 1)
            strmap_add(&bpe->words, vocab->tokens[i].bytes, (uint32_t)i);
    return status;
}

/* The symbol of a string; SYMBOL_NONE when it has none yet. */
static uint32_t symbol_of(const struct building *b, struct str bytes) {
    uint32_t symbol;
    if (strmap_get(&b->bpe->words, bytes, &symbol) || strmap_get(&b->numbers, bytes, &symbol))
        return symbol;
    return SYMBOL_NONE;
}

/* The bytes of a merge's parts, side by side in the buffer. False: they cannot occur in any text.
 */
static bool merge_bytes(const struct building *b, size_t i, struct str *left, struct str *right) {
    left->at = b->buffer;
    left->len = bpe_unmap(b->merges[i].left, b->buffer);
    if (left->len == 0 || left->len == SIZE_MAX)
        return false;
    right->at = b->buffer + left->len;
    right->len = bpe_unmap(b->merges[i].right, b->buffer + left->len);
    return right->len != 0 && right->len != SIZE_MAX;
}

static void read_merges(struct building *b) {
    for (size_t i = 0; i < b->n_merges; i++) {
        struct str left, right;
        struct triple *t = &b->triples[i];
        t->is_void = !merge_bytes(b, i, &left, &right);
        if (t->is_void)
            continue;
        t->left = symbol_of(b, left);
        t->right = symbol_of(b, right);
        t->result = symbol_of(b, (struct str){left.at, left.len + right.len});
        b->n_missing +=
            (t->left == SYMBOL_NONE) + (t->right == SYMBOL_NONE) + (t->result == SYMBOL_NONE);
    }
}

/* Gives a string that is no token a number of its own. */
static bool number_part(struct building *b, struct str bytes, uint32_t *symbol) {
    if (*symbol != SYMBOL_NONE || (*symbol = symbol_of(b, bytes)) != SYMBOL_NONE)
        return true;
    char *copy = arena_strdup(b->arena, bytes);
    if (!copy)
        return false;
    struct str part = {copy, bytes.len};
    *symbol = b->bpe->n_tokens + b->bpe->n_parts;
    b->bpe->parts[b->bpe->n_parts++] = part;
    return strmap_add(&b->numbers, part, *symbol);
}

static int number_parts(struct building *b, struct err *err) {
    if (b->n_missing == 0)
        return SLUICE_OK;
    b->bpe->parts = arena_array(b->arena, b->n_missing, sizeof *b->bpe->parts);
    bool is_fine = b->bpe->parts && strmap_init(&b->numbers, b->arena, b->n_missing);
    for (size_t i = 0; is_fine && i < b->n_merges; i++) {
        struct str left, right;
        struct triple *t = &b->triples[i];
        if (t->is_void || !merge_bytes(b, i, &left, &right))
            continue;
        is_fine = number_part(b, left, &t->left) && number_part(b, right, &t->right) &&
                  number_part(b, (struct str){left.at, left.len + right.len}, &t->result);
    }
    return is_fine ? SLUICE_OK : err_memory(err, "the merges");
}

static int link_pairs(struct building *b, struct err *err) {
    struct bpe *bpe = b->bpe;
    int status = pairs_reserve(&bpe->pairs, b->n_merges, err);
    if (status != SLUICE_OK)
        return status;
    for (size_t i = 0; i < b->n_merges; i++)
        if (!b->triples[i].is_void)
            pairs_add(&bpe->pairs, b->triples[i].left, b->triples[i].right,
                      (struct joined){(uint32_t)i, b->triples[i].result});
    for (int byte = 0; byte < 256; byte++) {
        struct str s = {&(char){(char)byte}, 1};
        bpe->byte_symbols[byte] = symbol_of(b, s);
        bpe->byte_ids[byte] =
            bpe->byte_symbols[byte] < bpe->n_tokens ? (int32_t)bpe->byte_symbols[byte] : -1;
    }
    return SLUICE_OK;
}

int bpe_init(struct bpe *bpe, struct arena *arena, const struct vocab *vocab,
             const struct merge_text *merges, size_t n_merges, struct err *err) {
    struct building b = {.bpe = bpe, .arena = arena, .merges = merges, .n_merges = n_merges};
    CHECK(n_merges <= VOCAB_MAX && vocab->count <= VOCAB_MAX);
    size_t longest = 1;
    for (size_t i = 0; i < n_merges; i++)
        if (merges[i].left.len + merges[i].right.len > longest)
            longest = merges[i].left.len + merges[i].right.len;
    bpe->n_tokens = (uint32_t)vocab->count;
    b.triples = calloc(n_merges + 1, sizeof *b.triples);
    b.buffer = malloc(longest);
    int status = b.triples && b.buffer ? SLUICE_OK : err_memory(err, "the merges");
    if (status == SLUICE_OK)
        status = map_words(bpe, arena, vocab, err);
    if (status == SLUICE_OK) {
        read_merges(&b);
        status = number_parts(&b, err);
    }
    if (status == SLUICE_OK)
        status = link_pairs(&b, err);
    free(b.triples);
    free(b.buffer);
    return status;
}

void bpe_free(struct bpe *bpe) {
    pairs_free(&bpe->pairs);
}

/* ---- words ---- */

/* Appends a symbol's ids. A symbol that is not a token is spelled byte by byte. */
static int emit_symbol(const struct bpe *bpe, uint32_t symbol, struct ids *out, struct err *err) {
    if (symbol < bpe->n_tokens)
        return ids_push(out, (int32_t)symbol, err);
    if (symbol == SYMBOL_NONE)
        return SLUICE_OK; /* a byte that the vocabulary lacks */
    struct str part = bpe->parts[symbol - bpe->n_tokens];
    int status = SLUICE_OK;
    for (size_t i = 0; i < part.len && status == SLUICE_OK; i++)
        if (bpe->byte_ids[(unsigned char)part.at[i]] >= 0)
            status = ids_push(out, bpe->byte_ids[(unsigned char)part.at[i]], err);
    return status;
}

static int encode_word(const struct bpe *bpe, struct merger *m, struct str word, struct ids *out,
                       struct err *err) {
    uint32_t token;
    if (bpe->ignore_merges && strmap_get(&bpe->words, word, &token))
        return ids_push(out, (int32_t)token, err);
    int status = merger_reserve(m, word.len, err);
    if (status != SLUICE_OK)
        return status;
    for (size_t i = 0; i < word.len; i++)
        m->symbols[i] = bpe->byte_symbols[(unsigned char)word.at[i]];
    m->n_symbols = word.len;
    status = merge_run(m, &bpe->pairs, err);
    for (size_t i = 0; i < m->n_symbols && status == SLUICE_OK; i++)
        status = emit_symbol(bpe, m->symbols[i], out, err);
    return status;
}

/* ---- the cache ---- */

enum { CACHED_BYTES = 24, CACHED_IDS = 5, CACHE_SLOTS = 1 << 14 };

/* A word with zeros after it, and its ids. */
struct bpe_cached {
    uint64_t word[CACHED_BYTES / 8];
    uint8_t len, n_ids; /* len 0: free */
    int32_t ids[CACHED_IDS];
};

void bpe_scratch_init(struct bpe_scratch *scratch, size_t text_bytes) {
    size_t slots = 64;
    while (slots < text_bytes / 16 && slots < CACHE_SLOTS)
        slots *= 2;
    *scratch = (struct bpe_scratch){.cache_mask = slots - 1};
    if (text_bytes >= 256)
        scratch->cache = calloc(slots, sizeof *scratch->cache);
}

void bpe_scratch_free(struct bpe_scratch *scratch) {
    merger_free(&scratch->merger);
    free(scratch->cache);
    *scratch = (struct bpe_scratch){0};
}

/* The word's bytes as numbers, zeros after them; `end` is where reading must stop. */
static inline void load_word(struct str word, const char *end, uint64_t out[3]) {
    if (end - word.at < CACHED_BYTES) {
        out[0] = out[1] = out[2] = 0;
        memcpy(out, word.at, word.len);
        return;
    }
    memcpy(out, word.at, CACHED_BYTES);
    for (size_t i = 0; i < 3; i++) {
        size_t n = word.len > i * 8 ? word.len - i * 8 : 0;
        uint64_t keep = n >= 8 ? UINT64_MAX : (UINT64_C(1) << n * 8) - 1;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        keep = __builtin_bswap64(keep);
#endif
        out[i] &= keep;
    }
}

static inline size_t hash_word(const uint64_t w[3]) {
    uint64_t h = (w[0] ^ w[1] * 3 ^ w[2] * 7) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(h >> 40 ^ h >> 20);
}

static int encode_cached(const struct bpe *bpe, struct bpe_scratch *scratch, struct str word,
                         const char *end, struct ids *out, struct err *err) {
    uint64_t w[3];
    load_word(word, end, w);
    struct bpe_cached *slot = &scratch->cache[hash_word(w) & scratch->cache_mask];
    int status = ids_reserve(out, CACHED_IDS, err);
    if (status != SLUICE_OK)
        return status;
    if (slot->len == word.len && slot->word[0] == w[0] && slot->word[1] == w[1] &&
        slot->word[2] == w[2]) {
        memcpy(out->at + out->len, slot->ids, sizeof slot->ids);
        out->len += slot->n_ids;
        return SLUICE_OK;
    }
    size_t before = out->len;
    status = encode_word(bpe, &scratch->merger, word, out, err);
    size_t n_ids = out->len - before;
    if (status == SLUICE_OK && n_ids <= CACHED_IDS) {
        memcpy(slot->word, w, sizeof w);
        slot->len = (uint8_t)word.len;
        slot->n_ids = (uint8_t)n_ids;
        memcpy(slot->ids, out->at + before, n_ids * sizeof *slot->ids);
    }
    return status;
}

int bpe_encode(const struct bpe *bpe, const struct pretoken *pre, struct bpe_scratch *scratch,
               struct str text, struct ids *out, struct err *err) {
    struct pretoken_walk walk;
    struct str word;
    int status = SLUICE_OK;
    pretoken_begin(&walk, pre, text);
    while (status == SLUICE_OK && pretoken_next(&walk, &word)) {
        if (scratch->cache && word.len <= CACHED_BYTES)
            status = encode_cached(bpe, scratch, word, text.at + text.len, out, err);
        else
            status = encode_word(bpe, &scratch->merger, word, out, err);
    }
    return status;
}
