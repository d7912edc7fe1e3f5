/* str.c - slices, UTF-8, and the map from slices to numbers. */
#include "base/str.h"

#include <pthread.h>

#include "base/arena.h"
#include "base/entropy.h"
#include "base/err.h"

bool str_contains(struct str a, const char *z) {
    return memmem(a.at, a.len, z, strlen(z)) != NULL;
}

static unsigned char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (unsigned char)(c - 'A' + 'a') : (unsigned char)c;
}

bool str_is_caseless(struct str a, const char *z) {
    size_t i = 0;
    while (i < a.len && z[i] && lower(a.at[i]) == lower(z[i]))
        i++;
    return i == a.len && !z[i];
}

size_t utf8_decode(struct str s, uint32_t *character) {
    if (s.len == 0)
        return 0;
    const unsigned char *p = (const unsigned char *)s.at;
    if (p[0] < 0x80) {
        *character = p[0];
        return 1;
    }
    /* The second byte's range is what shuts out overlong forms, surrogates and > U+10FFFF. */
    size_t n;
    unsigned low = 0x80, high = 0xBF;
    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        n = 2;
    } else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        n = 3;
        low = p[0] == 0xE0 ? 0xA0 : 0x80;
        high = p[0] == 0xED ? 0x9F : 0xBF;
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        n = 4;
        low = p[0] == 0xF0 ? 0x90 : 0x80;
        high = p[0] == 0xF4 ? 0x8F : 0xBF;
    } else {
        return 0;
    }
    if (s.len < n || p[1] < low || p[1] > high)
        return 0;
    uint32_t c = p[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3F);
    }
    *character = c;
    return n;
}

size_t utf8_length(struct str s) {
    uint32_t c;
    return utf8_decode(s, &c);
}

size_t utf8_put(uint32_t c, char out[4]) {
    CHECK(c <= 0x10FFFF);
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; --i > 0; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)((0xF00u >> n & 0xF0) | c);
    return n;
}

bool utf8_valid(struct str s) {
    while (s.len > 0) {
        size_t n = utf8_length(s);
        if (n == 0)
            return false;
        s = str_skip(s, n);
    }
    return true;
}

static uint64_t hash_key[2];

static void draw_hash_key(void) {
    entropy_fill(hash_key, sizeof hash_key);
    hash_key[0] |= 1;
}

static inline uint64_t fold(uint64_t a, uint64_t b) {
    __uint128_t p = (__uint128_t)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

uint64_t str_hash(struct str s) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, draw_hash_key);
    const uint64_t k = 0x9E3779B97F4A7C15u;
    uint64_t h = hash_key[0] ^ fold(s.len ^ k, hash_key[1] ^ k);
    size_t left = s.len;
    const char *p = s.at;
    for (; left > 8; left -= 8, p += 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = fold(h ^ w, hash_key[1] ^ k);
    }
    uint64_t w = 0;
    if (left)
        memcpy(&w, p, left);
    return fold(h ^ w, hash_key[0] ^ k);
}

struct strmap_slot {
    struct str key;
    uint32_t value;
    uint32_t tag; /* upper hash bits | 1; 0 marks a free slot */
};

bool strmap_init(struct strmap *map, struct arena *arena, size_t capacity) {
    size_t slots = 8;
    while (slots < capacity * 2)
        slots *= 2;
    *map = (struct strmap){.mask = slots - 1, .capacity = capacity};
    map->slots = arena_array(arena, slots, sizeof *map->slots);
    return map->slots != NULL;
}

static struct strmap_slot *find_slot(const struct strmap *map, struct str key, uint32_t *tag) {
    uint64_t h = str_hash(key);
    *tag = (uint32_t)(h >> 32) | 1;
    size_t i = h & map->mask;
    while (map->slots[i].tag != 0 &&
           !(map->slots[i].tag == *tag && str_equal(map->slots[i].key, key)))
        i = (i + 1) & map->mask;
    return &map->slots[i];
}

bool strmap_add(struct strmap *map, struct str key, uint32_t value) {
    uint32_t tag;
    struct strmap_slot *slot = find_slot(map, key, &tag);
    if (slot->tag != 0)
        return false;
    CHECK(map->count < map->capacity);
    map->count++;
    *slot = (struct strmap_slot){.key = key, .value = value, .tag = tag};
    return true;
}

bool strmap_get(const struct strmap *map, struct str key, uint32_t *value) {
    if (map->count == 0)
        return false;
    uint32_t tag;
    const struct strmap_slot *slot = find_slot(map, key, &tag);
    if (slot->tag == 0)
        return false;
    *value = slot->value;
    return true;
}
