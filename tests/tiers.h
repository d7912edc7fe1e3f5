/* tiers.h - objects for the tests of host memory and disk as stores. */
#ifndef TESTS_TIERS_H
#define TESTS_TIERS_H

#include "engine/host_tier.h"
#include "test.h"

static inline uint64_t random_next(uint64_t *s) {
    *s += 0x9E3779B97F4A7C15u;
    uint64_t x = (*s ^ *s >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static inline uint32_t below(uint64_t *s, uint32_t n) {
    return (uint32_t)(random_next(s) % n);
}

/* Contents: a function of an object's seed and the byte's number. */
static inline uint8_t byte_of(uint64_t seed, uint64_t at) {
    uint64_t x = (seed + at / 8 + 1) * 0x9E3779B97F4A7C15u;
    return (uint8_t)((x ^ x >> 31) >> at % 8 * 8);
}

struct stream {
    uint64_t seed, at; /* where the next call must go on */
    uint64_t fails_at; /* the call that reaches this byte fails */
    bool is_wrong;
};

static inline int stream_step(struct stream *s, uint64_t at, uint64_t n, struct err *err) {
    s->is_wrong |= at != s->at;
    s->at += n;
    return s->fails_at >= at && s->fails_at < at + n
               ? err_set(err, SLUICE_ERR_DEVICE, "the device is gone")
               : SLUICE_OK;
}

static inline int fill(void *user, uint64_t at, uint64_t n, void *to, struct err *err) {
    struct stream *s = user;
    for (uint64_t i = 0; i < n; i++)
        ((uint8_t *)to)[i] = byte_of(s->seed, at + i);
    return stream_step(s, at, n, err);
}

static inline int take(void *user, uint64_t at, uint64_t n, const void *from, struct err *err) {
    struct stream *s = user;
    for (uint64_t i = 0; i < n; i++)
        s->is_wrong |= ((const uint8_t *)from)[i] != byte_of(s->seed, at + i);
    return stream_step(s, at, n, err);
}

static inline struct stream stream_of(uint64_t seed) {
    return (struct stream){.seed = seed, .fails_at = UINT64_MAX};
}

static inline uint32_t put_host(struct host_tier *h, uint64_t seed, uint64_t n) {
    struct stream s = stream_of(seed);
    uint32_t object = HOST_NONE;
    return host_tier_put(h, n, fill, &s, &object, NULL) == SLUICE_OK ? object : HOST_NONE;
}

#endif
