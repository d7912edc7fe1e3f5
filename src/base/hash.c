/* hash.c - XXH3, by xxHash's header alone, and SHA-256, by libmd. */
#include "base/hash.h"

#include <pthread.h>
#include <sha2.h>
#include <string.h>

#include "base/entropy.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct hash), "room for XXH3's state");
_Static_assert(_Alignof(XXH3_state_t) <= _Alignof(struct hash), "XXH3's state is aligned");

static struct hash128 from(XXH128_hash_t h) {
    return (struct hash128){h.low64, h.high64};
}

uint64_t hash64_of(const void *bytes, size_t n) {
    return XXH3_64bits(bytes, n);
}

struct hash128 hash128_of(const void *bytes, size_t n) {
    return from(XXH3_128bits(bytes, n));
}

struct hash128 hash128_strong_of(const void *bytes, size_t n) {
    SHA2_CTX state;
    uint8_t sum[SHA256_DIGEST_LENGTH];
    struct hash128 half;
    SHA256Init(&state);
    if (n)
        SHA256Update(&state, bytes, n);
    SHA256Final(sum, &state);
    memcpy(&half, sum, sizeof half);
    return half;
}

/* One state serves both widths: they differ in how they end. */
void hash_begin(struct hash *h) {
    /* cppcheck-suppress ctuuninitvar ; it is set here */
    XXH3_state_t *state = (XXH3_state_t *)h->state;
    XXH3_INITSTATE(state);
    XXH3_128bits_reset(state);
}

static unsigned char secret[XXH3_SECRET_SIZE_MIN];

static void draw_secret(void) {
    entropy_fill(secret, sizeof secret);
}

void hash_begin_secret(struct hash *h) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, draw_secret);
    /* cppcheck-suppress ctuuninitvar ; it is set here */
    XXH3_state_t *state = (XXH3_state_t *)h->state;
    XXH3_INITSTATE(state);
    XXH3_128bits_reset_withSecret(state, secret, sizeof secret);
}

void hash_add(struct hash *h, const void *bytes, size_t n) {
    if (n)
        XXH3_128bits_update((XXH3_state_t *)h->state, bytes, n);
}

uint64_t hash64_end(const struct hash *h) {
    return XXH3_64bits_digest((const XXH3_state_t *)h->state);
}

struct hash128 hash128_end(const struct hash *h) {
    return from(XXH3_128bits_digest((const XXH3_state_t *)h->state));
}
