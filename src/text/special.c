/* special.c - the scan for special tokens: a table of first bytes, then a trie. */
#include "text/special.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/size.h"
#include "text/unicode.h"

struct special_node {
    uint32_t child, sibling; /* 0: none; node 0 is not used */
    int32_t id;              /* of the token that ends here, or -1 */
    unsigned char byte;
};

static int add_node(struct special *s, unsigned char byte, uint32_t *index, struct err *err) {
    if (s->n_nodes == 0)
        s->n_nodes = 1;
    if (s->n_nodes == UINT32_MAX ||
        !array_grow(&s->nodes, s->n_nodes, &s->capacity, sizeof *s->nodes))
        return err_memory(err, "the special tokens");
    *index = s->n_nodes++;
    s->nodes[*index] = (struct special_node){.id = -1, .byte = byte};
    return SLUICE_OK;
}

/* The child of `parent` (0: the root) for a byte; 0 when there is none. */
static uint32_t child_of(const struct special *s, uint32_t parent, unsigned char byte) {
    if (parent == 0)
        return s->first[byte];
    uint32_t i = s->nodes[parent].child;
    while (i != 0 && s->nodes[i].byte != byte)
        i = s->nodes[i].sibling;
    return i;
}

int special_add(struct special *s, struct str text, int32_t id, struct err *err) {
    if (text.len == 0)
        return SLUICE_OK;
    if (text.len > SPECIAL_MAX_BYTES)
        return err_set(err, SLUICE_ERR_FORMAT,
                       "special token %d has a text of %zu bytes, expected at most %d", (int)id,
                       text.len, SPECIAL_MAX_BYTES);
    uint32_t at = 0;
    for (size_t i = 0; i < text.len; i++) {
        unsigned char byte = (unsigned char)text.at[i];
        uint32_t next = child_of(s, at, byte);
        if (next == 0) {
            int status = add_node(s, byte, &next, err);
            if (status != SLUICE_OK)
                return status;
            if (at == 0) {
                s->first[byte] = next;
            } else {
                s->nodes[next].sibling = s->nodes[at].child;
                s->nodes[at].child = next;
            }
        }
        at = next;
    }
    if (s->nodes[at].id < 0)
        s->nodes[at].id = id;
    return SLUICE_OK;
}

void special_free(struct special *s) {
    free(s->nodes);
    *s = (struct special){0};
}

/* The longest token at `at`, or -1. */
static int32_t match_at(const struct special_scan *scan, size_t at, size_t *end) {
    int32_t found = -1;
    uint32_t node = 0;
    bool with_control = scan->with_control;
    for (size_t i = at; i < scan->text.len; i++) {
        with_control = with_control && (!scan->own || scan->own[i]);
        node = child_of(scan->special, node, (unsigned char)scan->text.at[i]);
        if (node == 0)
            break;
        int32_t id = scan->special->nodes[node].id;
        if (id >= 0 && (with_control || scan->vocab->tokens[id].type == TOKEN_USER)) {
            found = id;
            *end = i + 1;
        }
    }
    return found;
}

/* Where the character that ends at `at` begins; at is not 0. */
static size_t step_back(struct str text, size_t at) {
    do
        at--;
    while (at > 0 && ((unsigned char)text.at[at] & 0xC0) == 0x80);
    return at;
}

static uint8_t class_before(struct str text, size_t at) {
    size_t size;
    return at > 0 ? char_classes()[char_at(text.at + step_back(text, at), &size)] : 0;
}

static uint8_t class_after(struct str text, size_t at, size_t *size) {
    return at < text.len ? char_classes()[char_at(text.at + at, size)] : 0;
}

/* A token that must be a word of its own may not touch letters, digits or underscores. */
static bool is_allowed(const struct token *token, struct str text, size_t begin, size_t end) {
    size_t size;
    return !(token->flags & TOKEN_SINGLE_WORD) || (!(class_before(text, begin) & CHAR_WORD) &&
                                                   !(class_after(text, end, &size) & CHAR_WORD));
}

bool special_next(struct special_scan *scan, struct str *plain, int32_t *id) {
    const struct str text = scan->text;
    const size_t start = scan->at;
    size_t begin, end = start;
    *id = -1;
    for (begin = start; begin < text.len && *id < 0; begin++) {
        if (scan->special->first[(unsigned char)text.at[begin]] == 0)
            continue;
        int32_t found = match_at(scan, begin, &end);
        if (found >= 0 && is_allowed(&scan->vocab->tokens[found], text, begin, end)) {
            *id = found;
            break;
        }
        if (found >= 0)
            begin = end - 1; /* it stays plain text as a whole: nothing is searched inside it */
    }
    if (*id < 0)
        begin = end = text.len;
    uint8_t flags = *id < 0 ? 0 : scan->vocab->tokens[*id].flags;
    size_t size = 0;
    while (flags & TOKEN_LSTRIP && begin > start && class_before(text, begin) & CHAR_SPACE)
        begin = step_back(text, begin);
    while (flags & TOKEN_RSTRIP && class_after(text, end, &size) & CHAR_SPACE)
        end += size;
    *plain = (struct str){text.at + start, begin - start};
    scan->at = end;
    return *id >= 0 || plain->len > 0;
}
