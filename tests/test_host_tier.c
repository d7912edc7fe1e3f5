/* test_host_tier.c - host memory as a store: random operations against a simple model, failing
 * callbacks, objects that are filled by the tier's thread. */
#include "tiers.h"

enum { HOST_MODEL = 64 };

struct host_model {
    struct host_tier tier;
    struct kept {
        uint32_t object;
        uint64_t seed, bytes; /* 0: none */
        uint32_t pins;
        bool is_freed;
    } kept[HOST_MODEL];
    uint64_t random;
};

static uint64_t model_room(const struct host_model *m) {
    uint64_t used = 0;
    for (int i = 0; i < HOST_MODEL; i++)
        used += host_tier_cost(&m->tier, m->kept[i].bytes);
    return m->tier.n_units * m->tier.unit_bytes - used;
}

static void host_put(struct host_model *m, struct kept *k) {
    uint64_t n = 1 + below(&m->random, below(&m->random, 4) ? 1000 : 40000);
    uint64_t room = model_room(m), cost = host_tier_cost(&m->tier, n);
    struct stream s = stream_of(random_next(&m->random));
    if (below(&m->random, 3) == 0)
        s.fails_at = below(&m->random, (uint32_t)n);
    struct err err = {0};
    uint32_t object = 12345;
    int expected = cost > room               ? SLUICE_ERR_MEMORY
                   : s.fails_at < UINT64_MAX ? SLUICE_ERR_DEVICE
                                             : SLUICE_OK;
    EXPECT_INT(host_tier_put(&m->tier, n, fill, &s, &object, &err), expected);
    EXPECT(!s.is_wrong && (expected != SLUICE_ERR_MEMORY || s.at == 0));
    if (expected == SLUICE_OK) {
        EXPECT_INT(s.at, n);
        EXPECT_INT(host_tier_bytes(&m->tier, object), n);
        *k = (struct kept){.object = object, .seed = s.seed, .bytes = n};
    } else {
        EXPECT_INT(object, 12345);
    }
}

static void host_get(struct host_model *m, struct kept *k) {
    struct stream s = stream_of(k->seed);
    if (below(&m->random, 3) == 0)
        s.fails_at = below(&m->random, (uint32_t)k->bytes);
    int expected = s.fails_at < UINT64_MAX ? SLUICE_ERR_DEVICE : SLUICE_OK;
    EXPECT_INT(host_tier_get(&m->tier, k->object, take, &s, NULL), expected);
    EXPECT(!s.is_wrong && (expected || s.at == k->bytes));
}

static void host_operation(struct host_model *m) {
    struct kept *k = &m->kept[below(&m->random, HOST_MODEL)];
    if (k->bytes == 0) {
        host_put(m, k);
        return;
    }
    switch (below(&m->random, 5)) {
    case 0:
        if (!k->is_freed) {
            host_tier_free(&m->tier, k->object);
            k->is_freed = true;
        }
        break;
    case 1:
        if (!k->is_freed || k->pins) {
            host_tier_pin(&m->tier, k->object);
            k->pins++;
        }
        break;
    case 2:
        if (k->pins) {
            host_tier_unpin(&m->tier, k->object);
            k->pins--;
        }
        break;
    default:
        host_get(m, k);
    }
    if (k->is_freed && k->pins == 0)
        *k = (struct kept){0};
}

TEST(tier_host_is_as_its_model) {
    for (uint64_t seed = 0; seed < 2; seed++) {
        struct host_model m = {.random = seed};
        struct err err;
        EXPECT_INT(host_tier_open(&m.tier, 300 * 1024, 1024, &err), SLUICE_OK);
        for (int i = 0; i < 30000; i++) {
            host_operation(&m);
            EXPECT_INT(host_tier_free_bytes(&m.tier), model_room(&m));
            const char *broken = i % 64 ? NULL : host_tier_broken(&m.tier);
            if (broken)
                test_fail(__FILE__, __LINE__, "%s", broken);
        }
        for (int i = 0; i < HOST_MODEL; i++) {
            struct kept *k = &m.kept[i];
            if (k->bytes && !k->is_freed)
                host_tier_free(&m.tier, k->object);
            while (k->bytes && k->pins-- > 0)
                host_tier_unpin(&m.tier, k->object);
        }
        EXPECT_INT(host_tier_free_bytes(&m.tier), 300 * 1024);
        EXPECT(host_tier_broken(&m.tier) == NULL);
        host_tier_close(&m.tier);
        host_tier_close(&m.tier);
    }
}

TEST(tier_host_refuses_what_it_cannot_hold) {
    struct host_tier h;
    struct err err = {0};
    EXPECT_INT(host_tier_open(&h, 4095, 4096, &err), SLUICE_ERR_ARGUMENT);
    EXPECT(strstr(err.text, "4095") && strstr(err.text, "4096"));
    host_tier_close(&h);
    EXPECT_INT(host_tier_open(&h, UINT64_MAX / 2, 1 << 12, &err), SLUICE_ERR_ARGUMENT);
    host_tier_close(&h);
    EXPECT_INT(host_tier_open(&h, UINT64_MAX / 2, 1ull << 40, &err), SLUICE_ERR_MEMORY);
    host_tier_close(&h);
    EXPECT_INT(host_tier_open(&h, 3 * HOST_UNIT_BYTES + 5, 0, &err), SLUICE_OK);
    EXPECT_INT(host_tier_free_bytes(&h), 3 * HOST_UNIT_BYTES);
    EXPECT_INT(put_host(&h, 1, 3 * HOST_UNIT_BYTES + 1), HOST_NONE);
    EXPECT(put_host(&h, 1, UINT64_MAX) == HOST_NONE);
    EXPECT(put_host(&h, 1, 3 * HOST_UNIT_BYTES) != HOST_NONE);
    EXPECT_INT(host_tier_free_bytes(&h), 0);
    EXPECT_INT(put_host(&h, 1, 1), HOST_NONE);
    host_tier_close(&h);
}

/* ---- the thread --------------------------------------------------------------------------- */

enum { SOURCES = 256, SOURCE_BYTES = 5000 };

/* What objects are filled from: a source that is in use is not written to, one that is not changes
 * at any time. */
struct later {
    struct host_tier tier;
    uint8_t source[SOURCES][SOURCE_BYTES];
    uint32_t fenced[HOST_JOBS]; /* the number of fences so far */
    uint32_t n_fences;
    bool fails;
};

static int fence_later(void *user, uint32_t job, struct err *err) {
    struct later *l = user;
    (void)err;
    l->fenced[job] = ++l->n_fences;
    return SLUICE_OK;
}

static int fill_later(void *user, uint32_t job, struct host_source from, uint64_t at, uint64_t n,
                      void *to, struct err *err) {
    const struct later *l = user;
    memcpy(to, l->source[from.cell] + at, n);
    return from.page == l->fenced[job]
               ? SLUICE_OK
               : err_set(err, SLUICE_ERR_DEVICE, "another fence, or a wrong one was asked for");
}

static void change_source(struct later *l, uint32_t i, uint64_t seed) {
    for (uint64_t at = 0; at < SOURCE_BYTES; at++)
        l->source[i][at] = byte_of(seed, at);
}

static bool finish(struct later *l, uint32_t object, uint64_t seed) {
    struct stream s = stream_of(seed);
    return host_tier_finish(&l->tier, object, fill, &s);
}

/* Objects are put, waited for, read, pinned, freed at any time; a source is used again as soon as
 * its object was freed or is filled. */
TEST(tier_host_fills_later) {
    struct later *l = calloc(1, sizeof *l);
    struct err err;
    uint64_t random = 1, seeds[SOURCES] = {0};
    uint32_t objects[SOURCES], n_failed = 0, n_refused = 0;
    EXPECT(l != NULL);
    EXPECT_INT(host_tier_open(&l->tier, SOURCES * 2048, 512, &err), SLUICE_OK);
    EXPECT_INT(host_tier_start(&l->tier, &(struct host_filler){l, fence_later, fill_later}, &err),
               SLUICE_OK);
    for (int k = 0; k < 20000; k++) {
        uint32_t i = below(&random, SOURCES);
        if (!seeds[i]) {
            seeds[i] = random_next(&random) | 1;
            change_source(l, i, seeds[i]);
            bool is_wrong = below(&random, 16) == 0;
            int status = host_tier_put_later(
                &l->tier, 1 + seeds[i] % SOURCE_BYTES,
                (struct host_source){i, is_wrong ? 0 : l->n_fences + 1, 0}, &objects[i], &err);
            n_refused += status != SLUICE_OK;
            n_failed += !status && is_wrong;
            if (status)
                seeds[i] = 0;
        } else if (below(&random, 2)) {
            host_tier_free(&l->tier, objects[i]);
            seeds[i] = 0;
        } else if (below(&random, 2) ? host_tier_wait(&l->tier, objects[i])
                                     : finish(l, objects[i], seeds[i])) {
            struct stream s = stream_of(seeds[i]);
            change_source(l, i, 0);
            EXPECT_INT(host_tier_get(&l->tier, objects[i], take, &s, &err), SLUICE_OK);
            EXPECT(!s.is_wrong && s.at == 1 + seeds[i] % SOURCE_BYTES);
        }
    }
    EXPECT(n_failed > 0 && n_refused > 0 && host_tier_filled(&l->tier).bytes > 0);
    for (uint32_t i = 0; i < SOURCES; i++)
        if (seeds[i])
            host_tier_free(&l->tier, objects[i]);
    while (host_tier_wait_any(&l->tier))
        continue;
    EXPECT_INT(host_tier_leaving(&l->tier), 0);
    EXPECT_INT(host_tier_free_bytes(&l->tier), SOURCES * 2048);
    EXPECT(host_tier_broken(&l->tier) == NULL);
    host_tier_close(&l->tier);
    free(l);
}

/* Closing drops what waits. */
TEST(tier_host_closes_with_jobs_that_wait) {
    struct later *l = calloc(1, sizeof *l);
    struct err err;
    uint32_t object;
    EXPECT(l != NULL);
    for (int k = 0; k < 20; k++) {
        EXPECT_INT(host_tier_open(&l->tier, 1 << 20, 512, &err), SLUICE_OK);
        EXPECT_INT(
            host_tier_start(&l->tier, &(struct host_filler){l, fence_later, fill_later}, &err),
            SLUICE_OK);
        for (uint32_t i = 0; i < HOST_JOBS; i++)
            EXPECT_INT(
                host_tier_put_later(&l->tier, SOURCE_BYTES, (struct host_source){0}, &object, &err),
                SLUICE_OK);
        host_tier_close(&l->tier);
    }
    free(l);
}
