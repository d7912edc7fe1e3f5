/* sha256.c - see sha256.h. */
#include "base/sha256.h"

#include <string.h>

enum { BLOCK = 64, ROUNDS = 64 };

/* Fractional parts of the cube roots of the first 64 primes. */
static const uint32_t constants[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static uint32_t load(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void store(uint8_t *p, uint32_t x) {
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> (24 - 8 * i));
}

/* One round. A round moves all eight by one place; its callers name them in turn instead. */
static inline void turn(uint32_t a, uint32_t b, uint32_t c, uint32_t *d, uint32_t e, uint32_t f,
                        uint32_t g, uint32_t *h, uint32_t word) {
    uint32_t sum =
        *h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + word;
    *d += sum;
    *h = sum + (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
}

static void mix(uint32_t state[8], const uint8_t block[BLOCK]) {
    uint32_t w[ROUNDS];
    for (int i = 0; i < 16; i++)
        w[i] = load(block + 4 * i);
    for (int i = 16; i < ROUNDS; i++) {
        uint32_t near = w[i - 2], far = w[i - 15];
        w[i] = w[i - 16] + (rotate(far, 7) ^ rotate(far, 18) ^ far >> 3) + w[i - 7] +
               (rotate(near, 17) ^ rotate(near, 19) ^ near >> 10);
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < ROUNDS; i += 8) {
        turn(a, b, c, &d, e, f, g, &h, constants[i] + w[i]);
        turn(h, a, b, &c, d, e, f, &g, constants[i + 1] + w[i + 1]);
        turn(g, h, a, &b, c, d, e, &f, constants[i + 2] + w[i + 2]);
        turn(f, g, h, &a, b, c, d, &e, constants[i + 3] + w[i + 3]);
        turn(e, f, g, &h, a, b, c, &d, constants[i + 4] + w[i + 4]);
        turn(d, e, f, &g, h, a, b, &c, constants[i + 5] + w[i + 5]);
        turn(c, d, e, &f, g, h, a, &b, constants[i + 6] + w[i + 6]);
        turn(b, c, d, &e, f, g, h, &a, constants[i + 7] + w[i + 7]);
    }
    const uint32_t mixed[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++)
        state[i] += mixed[i];
}

void sha256(const void *bytes, size_t n, uint8_t out[32]) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *p = bytes;
    uint8_t last[2 * BLOCK] = {0}; /* what is left, a one bit, and the length at the end */
    size_t left = n;
    for (; left >= BLOCK; left -= BLOCK, p += BLOCK)
        mix(state, p);
    size_t n_last = left + 9 <= BLOCK ? BLOCK : 2 * BLOCK;
    if (left)
        memcpy(last, p, left);
    last[left] = 0x80;
    store(last + n_last - 8, (uint32_t)((uint64_t)n >> 29));
    store(last + n_last - 4, (uint32_t)((uint64_t)n << 3));
    for (size_t at = 0; at < n_last; at += BLOCK)
        mix(state, last + at);
    for (int i = 0; i < 8; i++)
        store(out + 4 * i, state[i]);
}
