/* str.h - slices of bytes, UTF-8, and a map from slices to numbers.
 *
 * A slice is borrowed: it points into a mapped file or an arena and dies with it. It is not
 * terminated and may hold any byte. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct arena;

struct str {
    const char *at;
    size_t len;
};

/* For printf's "%.*s". Long slices are cut: this is for messages. */
#define STR_ARG(s) (int)((s).len < 200 ? (s).len : 200), (s).at
/* A literal as a slice. */
#define STR(literal) ((struct str){"" literal, sizeof(literal) - 1})

static inline struct str str_of(const char *z) {
    return (struct str){z, strlen(z)};
}

static inline bool str_equal(struct str a, struct str b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.at, b.at, a.len) == 0);
}

static inline bool str_is(struct str a, const char *z) {
    return str_equal(a, str_of(z));
}

static inline bool str_starts(struct str a, const char *z) {
    size_t n = strlen(z);
    return a.len >= n && memcmp(a.at, z, n) == 0;
}

static inline bool str_ends(struct str a, const char *z) {
    size_t n = strlen(z);
    return a.len >= n && memcmp(a.at + a.len - n, z, n) == 0;
}

bool str_contains(struct str a, const char *z);

/* As str_is, without the case of ASCII's letters; of no others, whatever the locale. */
bool str_is_caseless(struct str a, const char *z);

/* The slice without its first n bytes; n is at most its length. */
static inline struct str str_skip(struct str a, size_t n) {
    return (struct str){a.at + n, a.len - n};
}

/* The length in bytes of the valid UTF-8 character that `s` begins with; 0 when there is none
 * (empty, truncated, overlong, surrogate, or beyond U+10FFFF). */
size_t utf8_length(struct str s);

/* The same, and the character itself. */
size_t utf8_decode(struct str s, uint32_t *character);

/* Writes a character (at most U+10FFFF) and returns how many bytes it took, 1 to 4. */
size_t utf8_put(uint32_t character, char out[4]);

bool utf8_valid(struct str s);

/* Controls (C0, DEL, C1) and the marks that reorder text: what must not reach a terminal from a
 * file. */
static inline bool utf8_is_control(uint32_t c) {
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x202A && c <= 0x202E) ||
           (c >= 0x2066 && c <= 0x2069);
}

/* A 64-bit hash under a key drawn once per process, so that no file can choose collisions. */
uint64_t str_hash(struct str s);

/* A map from slices to numbers with a fixed capacity. The keys are borrowed. */
struct strmap {
    struct strmap_slot *slots;
    size_t mask; /* slots - 1, a power of two minus one */
    size_t count, capacity;
};

/* Allocates `capacity` keys from the arena. False when memory ran out. */
bool strmap_init(struct strmap *map, struct arena *arena, size_t capacity);

/* Adds a key. False when it is there already; the first value stays. CHECKs the capacity. */
bool strmap_add(struct strmap *map, struct str key, uint32_t value);

/* True and the value when the key is there. */
bool strmap_get(const struct strmap *map, struct str key, uint32_t *value);

#endif
