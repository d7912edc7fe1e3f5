/* nfc.c - Normalization Form C.
 *
 * utf8proc decomposes and composes characters. Its own ordering of marks is quadratic in the length
 * of a run of marks, so the run is sorted here, and only the stretches that need it are touched: a
 * stretch goes from the character before an unstable one up to the next stable one. */
#include <stdlib.h>
#include <utf8proc.h>

#include "base/size.h"
#include "text/unicode.h"

struct nfc {
    const uint8_t *classes;
    utf8proc_int32_t *points; /* the stretch at hand, decomposed */
    uint64_t *keys;           /* a run of marks: combining class, then place, then the mark */
    size_t n_points, point_capacity, key_capacity;
    char *out;
    size_t size, capacity;
};

/* Reserves `need` elements. False when memory ran out. */
static bool grow(void **at, size_t *capacity, size_t need, size_t element) {
    if (need <= *capacity)
        return true;
    size_t wanted = need + need / 2 + 64;
    uint64_t bytes;
    void *p = size_mul(wanted, element, &bytes) ? realloc(*at, bytes) : NULL;
    if (!p)
        return false;
    *at = p;
    *capacity = wanted;
    return true;
}

static bool put_bytes(struct nfc *n, const char *at, size_t len) {
    if (len == 0)
        return true;
    if (!grow((void **)&n->out, &n->capacity, n->size + len, 1))
        return false;
    memcpy(n->out + n->size, at, len);
    n->size += len;
    return true;
}

static bool decompose(struct nfc *n, struct str s) {
    n->n_points = 0;
    for (size_t i = 0, size; i < s.len; i += size) {
        utf8proc_int32_t c = (utf8proc_int32_t)char_at(s.at + i, &size);
        int boundary = 0;
        /* No canonical decomposition is longer than 4; 32 leaves room for any version. */
        if (!grow((void **)&n->points, &n->point_capacity, n->n_points + 32, sizeof *n->points))
            return false;
        utf8proc_ssize_t got = utf8proc_decompose_char(
            c, n->points + n->n_points, 32, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        if (got < 1 || got > 32) {
            n->points[n->n_points] = c;
            got = 1;
        }
        n->n_points += (size_t)got;
    }
    return true;
}

static unsigned combining_class(utf8proc_int32_t c) {
    return (unsigned)utf8proc_get_property(c)->combining_class;
}

static int compare_keys(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts marks [begin, end) by combining class, stably. */
static bool sort_marks(struct nfc *n, size_t begin, size_t end) {
    size_t count = end - begin;
    if (count < 2)
        return true;
    /* 8 bits class, 56 bits place: the mark itself is fetched from a copy after the keys. */
    if (!grow((void **)&n->keys, &n->key_capacity, count * 2, sizeof *n->keys))
        return false;
    uint64_t *copy = n->keys + count;
    for (size_t i = 0; i < count; i++) {
        n->keys[i] = (uint64_t)combining_class(n->points[begin + i]) << 56 | i;
        copy[i] = (uint64_t)n->points[begin + i];
    }
    qsort(n->keys, count, sizeof *n->keys, compare_keys);
    for (size_t i = 0; i < count; i++)
        n->points[begin + i] = (utf8proc_int32_t)copy[n->keys[i] & ((UINT64_C(1) << 56) - 1)];
    return true;
}

static bool order_marks(struct nfc *n) {
    for (size_t i = 0; i < n->n_points;) {
        size_t end = i;
        while (end < n->n_points && combining_class(n->points[end]) != 0)
            end++;
        if (!sort_marks(n, i, end))
            return false;
        i = end + 1;
    }
    return true;
}

static bool put_composed(struct nfc *n, struct str s) {
    if (!decompose(n, s) || !order_marks(n))
        return false;
    utf8proc_ssize_t count = utf8proc_normalize_utf32(n->points, (utf8proc_ssize_t)n->n_points,
                                                      UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        char bytes[4];
        if (!put_bytes(n, bytes, utf8_put((uint32_t)n->points[i], bytes)))
            return false;
    }
    return true;
}

/* Where the next stretch that NFC may change begins and ends; false: there is none. All code
 * points below U+0300 are stable, and only they begin with a byte below 0xCC. */
static bool find_stretch(const uint8_t *classes, struct str s, size_t *begin, size_t *end) {
    size_t before = 0, i = 0, size;
    for (;; i += size) {
        while (i < s.len && (unsigned char)s.at[i] < 0xCC)
            i++;
        if (i >= s.len)
            return false;
        uint32_t c = char_at(s.at + i, &size);
        if (classes[c] & CHAR_UNSTABLE)
            break;
    }
    for (before = i; before > 0;) {
        before--;
        if (((unsigned char)s.at[before] & 0xC0) != 0x80)
            break;
    }
    *begin = before;
    while (i < s.len && classes[char_at(s.at + i, &size)] & CHAR_UNSTABLE)
        i += size;
    *end = i;
    return true;
}

int nfc_normalize(struct str *text, struct arena *arena, struct err *err) {
    struct nfc n = {.classes = char_classes()};
    struct str rest = *text;
    size_t begin, end;
    bool is_fine = true, has_changed = false;
    while (is_fine && find_stretch(n.classes, rest, &begin, &end)) {
        has_changed = true;
        is_fine = put_bytes(&n, rest.at, begin) &&
                  put_composed(&n, (struct str){rest.at + begin, end - begin});
        rest = str_skip(rest, end);
    }
    if (has_changed && is_fine) {
        char *copy = NULL;
        is_fine = put_bytes(&n, rest.at, rest.len) && (copy = arena_alloc(arena, n.size));
        if (is_fine) {
            memcpy(copy, n.out, n.size);
            *text = (struct str){copy, n.size};
        }
    }
    free(n.points);
    free(n.keys);
    free(n.out);
    return is_fine ? SLUICE_OK : err_memory(err, "normalizing a text");
}
