/* hash.h - XXH3 of bytes, at once or in parts: 64 bits for checksums, 128 bits for names that are
 * not compared any further.
 *
 * The values are those of XXH3 with seed 0, on every machine and in every release, so files may
 * hold them. Whoever chooses the bytes can choose them to have the hash of others: names of what
 * clients send begin with hash_begin_secret, or are hash128_strong_of where files hold them. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hash128 {
    uint64_t low, high;
};

static inline bool hash128_equal(struct hash128 a, struct hash128 b) {
    return a.low == b.low && a.high == b.high;
}

uint64_t hash64_of(const void *bytes, size_t n); /* bytes may be NULL when n is 0, here and below */
struct hash128 hash128_of(const void *bytes, size_t n);
/* The first half of SHA-256: nobody can choose two that are equal. About 5 us for a kilobyte. */
struct hash128 hash128_strong_of(const void *bytes, size_t n);

/* In parts: begin, add as often as need be, then either end or both. Ending changes nothing, so
 * more may be added after it. */
struct hash {
    _Alignas(64) uint8_t state[576];
};
void hash_begin(struct hash *h);
void hash_begin_secret(struct hash *h); /* other values in each process, which nobody can predict */
void hash_add(struct hash *h, const void *bytes, size_t n);
uint64_t hash64_end(const struct hash *h);
struct hash128 hash128_end(const struct hash *h);

#endif
