/* test_base.c - errors, sizes, slices, UTF-8, hashes, maps, arenas, threads, features. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/array.h"
#include "base/cpu.h"
#include "base/entropy.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/size.h"
#include "base/str.h"
#include "base/thread.h"
#include "test.h"

TEST(err_text_is_one_printable_line) {
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"plain", "plain"},
        {"two\nlines\r\n", "two?lines??"},
        {"bell \a tab \t esc \033[2J", "bell ? tab ? esc ?[2J"},
        {"caf\xC3\xA9 \xE6\x97\xA5", "caf\xC3\xA9 \xE6\x97\xA5"},
        {"bad \xFF\xC3", "bad ??"},
        {"c1 \xC2\x9B here", "c1 ?? here"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        EXPECT_INT(err_set(&err, SLUICE_ERR_FORMAT, "%s", cases[i].from), SLUICE_ERR_FORMAT);
        EXPECT_INT(err.code, SLUICE_ERR_FORMAT);
        EXPECT_STR(err.text, cases[i].to);
    }
    EXPECT_INT(err_set(NULL, SLUICE_ERR_IO, "nobody listens"), SLUICE_ERR_IO);
}

TEST(err_text_cut_in_a_character) {
    char many[1024];
    for (int shift = 0; shift < 3; shift++) {
        memset(many, 'x', (size_t)shift);
        for (size_t i = (size_t)shift; i + 3 < sizeof many; i += 3)
            memcpy(many + i, "\xE6\x97\xA5\0", 4);
        struct err err = {0};
        err_set(&err, SLUICE_ERR_IO, "%s", many);
        EXPECT(utf8_valid(str_of(err.text)));
        EXPECT_INT(strlen(err.text), sizeof err.text - 1);
    }
}

TEST(err_prefix_goes_in_front) {
    struct err err = {0};
    err_set(&err, SLUICE_ERR_FORMAT, "key a is u8");
    EXPECT_INT(err_prefix(&err, "file %d", 3), SLUICE_ERR_FORMAT);
    EXPECT_STR(err.text, "file 3: key a is u8");
    EXPECT_STR(sluice_status_text(SLUICE_ERR_DEVICE), "device error");
    EXPECT_STR(sluice_status_text(SLUICE_ERR_CANCELLED), "cancelled");
    EXPECT_STR(sluice_status_text(-8), "unknown status");
    EXPECT_STR(sluice_status_text(-99), "unknown status");
    EXPECT_STR(sluice_status_text(5), "unknown status");
    EXPECT(strlen(sluice_version()) > 0);
}

TEST(size_checks_overflow) {
    uint64_t v = 7;
    EXPECT(size_mul(1u << 31, 1u << 31, &v) && v == 1ull << 62);
    EXPECT(!size_mul(1ull << 33, 1ull << 31, &v));
    EXPECT(size_add(UINT64_MAX - 1, 1, &v) && v == UINT64_MAX);
    EXPECT(!size_add(UINT64_MAX, 1, &v));
    EXPECT(size_align(33, 32, &v) && v == 64);
    EXPECT(size_align(64, 32, &v) && v == 64);
    EXPECT(!size_align(UINT64_MAX - 3, 32, &v));
}

TEST(utf8_decodes_what_is_valid) {
    static const struct {
        const char *bytes;
        size_t n;
        size_t len;
        uint32_t c;
    } cases[] = {
        {"a", 1, 1, 'a'},
        {"\0", 1, 1, 0},
        {"\xC2\x80", 2, 2, 0x80},
        {"\xDF\xBF", 2, 2, 0x7FF},
        {"\xE0\xA0\x80", 3, 3, 0x800},
        {"\xED\x9F\xBF", 3, 3, 0xD7FF},
        {"\xEE\x80\x80", 3, 3, 0xE000},
        {"\xF0\x90\x80\x80", 4, 4, 0x10000},
        {"\xF4\x8F\xBF\xBF", 4, 4, 0x10FFFF},
        {"", 0, 0, 0},
        {"\x80", 1, 0, 0},
        {"\xC0\x80", 2, 0, 0},         /* overlong */
        {"\xC1\xBF", 2, 0, 0},         /* overlong */
        {"\xE0\x9F\xBF", 3, 0, 0},     /* overlong */
        {"\xED\xA0\x80", 3, 0, 0},     /* surrogate */
        {"\xF0\x8F\xBF\xBF", 4, 0, 0}, /* overlong */
        {"\xF4\x90\x80\x80", 4, 0, 0}, /* beyond the last */
        {"\xF5\x80\x80\x80", 4, 0, 0},
        {"\xE6\x97", 2, 0, 0}, /* cut off */
        {"\xE6\x97x", 3, 0, 0},
        {"\xF0\x9F\x9A", 3, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t c = 0;
        struct str s = {cases[i].bytes, cases[i].n};
        EXPECT_INT(utf8_decode(s, &c), cases[i].len);
        EXPECT_INT(c, cases[i].c);
    }
}

TEST(utf8_round_trip_of_every_character) {
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        if (c >= 0xD800 && c <= 0xDFFF)
            continue;
        char bytes[4];
        uint32_t back = ~c;
        size_t n = utf8_put(c, bytes);
        if (utf8_decode((struct str){bytes, n}, &back) != n || back != c)
            test_fail(__FILE__, __LINE__, "U+%04X came back as U+%04X", (unsigned)c,
                      (unsigned)back);
    }
}

TEST(str_compares_slices) {
    struct str s = STR("blk.3.attn_q.weight");
    EXPECT(str_starts(s, "blk.") && !str_starts(s, "blk.3.attn_q.weight.") && str_starts(s, ""));
    EXPECT(str_ends(s, ".weight") && !str_ends(s, "weights") && str_ends(s, ""));
    EXPECT(str_contains(s, "attn_q") && !str_contains(s, "attn_k"));
    EXPECT(str_equal(STR(""), (struct str){NULL, 0}));
    EXPECT(str_is(str_skip(s, 13), "weight"));
}

/* Values of xxHash's own self-test, over its own buffer: every path through XXH3 by length. */
/* XXH3 multiplies the halves of 8 bytes, each XORed with constants: where one half becomes 0 the
 * other does not matter but for its sum with that of another place. */
/* Half a megabyte of stack, page by page. */
static void *use_stack(void *user) {
    volatile char many[512 << 10];
    for (size_t i = sizeof many; i > 0; i -= 4096)
        many[i - 1] = 1;
    *(bool *)user = true;
    return NULL;
}

/* With the default of musl's. */
TEST(thread_has_room_for_deep_calls) {
    pthread_t thread;
    bool is_done = false;
#ifdef __GLIBC__
    pthread_attr_t small, before;
    EXPECT(pthread_getattr_default_np(&before) == 0 && pthread_attr_init(&small) == 0);
    pthread_attr_setstacksize(&small, 128 << 10);
    EXPECT(pthread_setattr_default_np(&small) == 0);
#endif
    EXPECT(thread_start(&thread, use_stack, &is_done));
    pthread_join(thread, NULL);
    EXPECT(is_done);
#ifdef __GLIBC__
    EXPECT(pthread_setattr_default_np(&before) == 0);
    pthread_attr_destroy(&before);
    pthread_attr_destroy(&small);
#endif
}

TEST(hash_secrets_differ) {
    unsigned char a[ENTROPY_MAX], b[ENTROPY_MAX], other[8] = {0};
    entropy_fill(a, sizeof a);
    entropy_fill(b, sizeof b);
    EXPECT(memcmp(a, b, sizeof a) != 0);
    EXPECT(memcmp(a, a + sizeof a / 2, sizeof a / 2) != 0);
    entropy_fill(other, 4);
    EXPECT(memcmp(other + 4, "\0\0\0\0", 4) == 0);
}

TEST(hash_with_a_secret_has_no_equals_by_choice) {
    struct hash128 names[2][2];
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t first[] = {0x396CFEB8, 100 + i}, second[] = {0x2C81017C, 100 - i};
        unsigned char bytes[512] = {0};
        memcpy(bytes, first, sizeof first);
        memcpy(bytes + 64, second, sizeof second);
        for (int is_secret = 0; is_secret < 2; is_secret++) {
            struct hash h, same;
            (is_secret ? hash_begin_secret : hash_begin)(&h);
            (is_secret ? hash_begin_secret : hash_begin)(&same);
            hash_add(&h, bytes, sizeof bytes);
            hash_add(&same, bytes, 100);
            hash_add(&same, bytes + 100, sizeof bytes - 100);
            names[is_secret][i] = hash128_end(&h);
            EXPECT(hash128_equal(names[is_secret][i], hash128_end(&same)));
        }
    }
    EXPECT(hash128_equal(names[0][0], names[0][1]));
    EXPECT(!hash128_equal(names[1][0], names[1][1]));
    EXPECT(!hash128_equal(names[0][0], names[1][0]));
}

/* FIPS 180-4's examples. */
TEST(hash_strong_is_half_of_sha256) {
    static const struct {
        const char *text;
        uint8_t first, last; /* of 16 bytes */
    } cases[] = {
        {"", 0xe3, 0x24},
        {"abc", 0xba, 0x23},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 0x24, 0x39},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hash128 hash = hash128_strong_of(cases[i].text, strlen(cases[i].text));
        uint8_t bytes[sizeof hash];
        memcpy(bytes, &hash, sizeof hash);
        EXPECT_INT(bytes[0], cases[i].first);
        EXPECT_INT(bytes[15], cases[i].last);
    }
}

TEST(hash_is_xxh3) {
    static const struct {
        size_t n;
        uint64_t of64, low, high;
    } cases[] = {
        {0, 0x2D06800538D394C2, 0x6001C324468D497F, 0x99AA06D3014798D8},
        {1, 0xC44BDFF4074EECDB, 0xC44BDFF4074EECDB, 0xA6CD5E9392000F6A},
        {6, 0x27B56A84CD2D7325, 0x3E7039BDDA43CFC6, 0x082AFE0B8162D12A},
        {12, 0xA713DAF0DFBB77E7, 0x061A192713F69AD9, 0x6E3EFD8FC7802B18},
        {24, 0xA3FE70BF9D3510EB, 0x1E7044D28B1B901D, 0x0CE966E4678D3761},
        {48, 0x397DA259ECBA1F11, 0xF942219AED80F67B, 0xA002AC4E5478227E},
        {80, 0xBCDEFBBB2C47C90A, 0x454AE6BF7A8A532D, 0xFDF2CEFDE9EAAC8A},
        {195, 0xCD94217EE362EC3A, 0x3FB593C086A66075, 0x7729543A26B207EE},
        {403, 0xCDEB804D65C6DEA4, 0xCDEB804D65C6DEA4, 0x1B6DE21E332DD73D},
        {512, 0x617E49599013CB6B, 0x617E49599013CB6B, 0x18D2D110DCC9BCA1},
        {2048, 0xDD59E2C3A5F038E0, 0xDD59E2C3A5F038E0, 0xF736557FD47073A5},
        {2367, 0xCB37AEB9E5D361ED, 0xCB37AEB9E5D361ED, 0xE89C0F6FF369B427},
    };
    uint8_t bytes[2367];
    uint64_t g = 2654435761u;
    for (size_t i = 0; i < sizeof bytes; i++, g *= 11400714785074694797ull)
        bytes[i] = (uint8_t)(g >> 56);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hash128 expected = {cases[i].low, cases[i].high};
        EXPECT(hash64_of(bytes, cases[i].n) == cases[i].of64);
        EXPECT(hash128_equal(hash128_of(bytes, cases[i].n), expected));
        for (size_t part = 1; part < 700; part = part * 3 + 1) {
            struct hash h;
            hash_begin(&h);
            for (size_t at = 0; at < cases[i].n; at += part)
                hash_add(&h, bytes + at, at + part < cases[i].n ? part : cases[i].n - at);
            hash_add(&h, NULL, 0);
            EXPECT(hash64_end(&h) == cases[i].of64);
            EXPECT(hash128_equal(hash128_end(&h), expected));
        }
    }
    EXPECT(hash64_of(NULL, 0) == cases[0].of64);
    EXPECT(!hash128_equal((struct hash128){1, 2}, (struct hash128){1, 3}));
    EXPECT(!hash128_equal((struct hash128){1, 2}, (struct hash128){0, 2}));
}

TEST(strmap_holds_many) {
    struct arena arena = {0};
    struct strmap map;
    enum { N = 20000 };
    EXPECT(strmap_init(&map, &arena, N));
    uint32_t v = 0;
    EXPECT(!strmap_get(&map, STR("nothing"), &v));
    for (uint32_t i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "key.%u", i);
        EXPECT(strmap_add(&map, str_of(arena_strdup(&arena, str_of(name))), i));
    }
    EXPECT(!strmap_add(&map, STR("key.77"), 1)); /* the first stays */
    for (uint32_t i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "key.%u", i);
        EXPECT(strmap_get(&map, str_of(name), &v) && v == i);
    }
    EXPECT(!strmap_get(&map, STR("key.20000"), &v));
    arena_free(&arena);
}

TEST(array_grows_and_keeps_what_it_has) {
    uint32_t *array = NULL;
    size_t capacity = 0;
    for (uint32_t n = 0; n < 1000; n++) {
        EXPECT(array_grow(&array, n, &capacity, sizeof *array) && n < capacity);
        array[n] = n;
    }
    for (uint32_t n = 0; n < 1000; n++)
        EXPECT_INT(array[n], n);
    size_t before = capacity;
    EXPECT(array_grow(&array, capacity - 1, &capacity, sizeof *array) && capacity == before);
    EXPECT(array_grow(&array, 5 * before, &capacity, sizeof *array) && capacity > 5 * before);
    EXPECT_INT(array[999], 999);
    free(array);
}

TEST(array_that_cannot_grow_stays) {
    char *array = NULL;
    size_t capacity = 0;
    EXPECT(array_grow(&array, 0, &capacity, 1));
    char *old = array;
    size_t before = capacity;
    EXPECT(!array_grow(&array, SIZE_MAX, &capacity, 1));
    EXPECT(!array_grow(&array, SIZE_MAX / 4, &capacity, 8));
    EXPECT(array == old && capacity == before);
    free(array);
}

TEST(arena_gives_zeroed_aligned_memory_up_to_its_limit) {
    struct arena arena = {.limit = 1 << 20};
    size_t total = 0;
    for (size_t size = 0; size < 3000; size += 7) {
        unsigned char *p = arena_alloc(&arena, size);
        if (!p)
            break;
        EXPECT_INT((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < size; i++)
            EXPECT(p[i] == 0);
        memset(p, 0xAA, size);
        total += size;
    }
    EXPECT(total > 500000);
    EXPECT(arena_alloc(&arena, 1 << 20) == NULL);
    EXPECT(arena_array(&arena, UINT64_MAX / 2, 4) == NULL);
    EXPECT(arena_array(&arena, 1ull << 40, 1ull << 40) == NULL);
    EXPECT_STR(arena_strdup(&arena, STR("a slice")), "a slice");
    arena_free(&arena);
    EXPECT_INT(arena.used, 0);
    EXPECT(arena_alloc(&arena, 1 << 19) != NULL); /* usable again */
    arena_free(&arena);
}

/* ---- threads ------------------------------------------------------------------------------ */

struct visits {
    atomic_int seen[64];
    int count;
};

static void visit(void *context, int index, int count) {
    struct visits *v = context;
    atomic_fetch_add(&v->seen[index], 1);
    if (index == 0)
        v->count = count;
}

TEST(pool_runs_every_thread_once_a_job) {
    for (int threads = 1; threads <= 5; threads++) {
        struct pool *pool;
        struct visits v = {0};
        EXPECT_INT(pool_open(&pool, threads, NULL), SLUICE_OK);
        EXPECT_INT(pool_threads(pool), threads);
        for (int job = 0; job < 200; job++)
            pool_run(pool, visit, &v);
        for (int i = 0; i < 64; i++)
            EXPECT_INT(v.seen[i], i < threads ? 200 : 0);
        EXPECT_INT(v.count, threads);
        pool_close(pool);
    }
    pool_close(NULL);
}

static void mark(void *context, uint64_t begin, uint64_t end) {
    atomic_uchar *marks = context;
    for (uint64_t i = begin; i < end; i++)
        atomic_fetch_add(&marks[i], 1);
}

TEST(pool_for_covers_every_item_once) {
    struct pool *pool;
    EXPECT_INT(pool_open(&pool, 3, NULL), SLUICE_OK);
    static const uint64_t counts[] = {0, 1, 7, 1000}, grains[] = {0, 1, 3, 64, 5000};
    for (size_t c = 0; c < 4; c++)
        for (size_t g = 0; g < 5; g++) {
            static atomic_uchar marks[1001];
            memset((void *)marks, 0, sizeof marks);
            pool_for(pool, counts[c], grains[g], mark, marks);
            for (uint64_t i = 0; i < 1001; i++)
                EXPECT_INT(marks[i], i < counts[c]);
        }
    pool_close(pool);
}

struct relay {
    struct pool *pool;
    atomic_int count;
    atomic_bool is_wrong;
};

/* Between two barriers every thread adds one, so after each the sum is known. */
static void pass_barriers(void *context, int index, int count) {
    struct relay *r = context;
    for (int round = 1; round <= 300; round++) {
        atomic_fetch_add(&r->count, 1);
        if (round % 50 == 0 && index == 1)
            usleep(2000); /* long enough for the others to fall asleep */
        pool_barrier(r->pool);
        if (atomic_load(&r->count) != round * count)
            atomic_store(&r->is_wrong, true);
        pool_barrier(r->pool);
    }
}

TEST(pool_barrier_holds_everybody) {
    for (int threads = 1; threads <= 4; threads++) {
        struct relay r = {0};
        EXPECT_INT(pool_open(&r.pool, threads, NULL), SLUICE_OK);
        pool_run(r.pool, pass_barriers, &r);
        EXPECT_INT(r.count, 300 * threads);
        EXPECT(!r.is_wrong);
        pool_close(r.pool);
    }
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

TEST(pool_sleeps_when_idle) {
    struct pool *pool;
    struct visits v = {0};
    EXPECT_INT(pool_open(&pool, 4, NULL), SLUICE_OK);
    pool_run(pool, visit, &v);
    double used = 1;
    for (int i = 0; i < 20 && used >= 0.1; i++) { /* a busy machine lets them spin late */
        double before = cpu_seconds();
        usleep(200000);
        used = cpu_seconds() - before; /* four spinning threads would use 0.4 s and more */
    }
    EXPECT(used < 0.1);
    pool_close(pool);
}

/* ---- the rest ----------------------------------------------------------------------------- */

static char logged[64];

static void keep_line(void *user, enum log_level level, const char *line) {
    snprintf(logged, sizeof logged, "%s %d %s", (char *)user, level, line);
}

TEST(log_goes_through_the_hook) {
    log_line(LOG_INFO, "nobody hears this");
    log_set(keep_line, "user");
    log_line(LOG_WARN, "%d things", 3);
    log_set(NULL, NULL);
    log_line(LOG_WARN, "nor this");
    EXPECT_STR(logged, "user 2 3 things");
}

TEST(cpu_features_fit_the_architecture) {
    uint32_t f = cpu_features();
#if defined(__x86_64__)
    EXPECT(!(f & (CPU_NEON | CPU_DOTPROD | CPU_I8MM)));
    EXPECT(!(f & CPU_AVX512) || (f & CPU_AVX2));
    EXPECT(!(f & CPU_AVX512_VNNI) || (f & CPU_AVX512));
#elif defined(__aarch64__)
    EXPECT(!(f & (CPU_AVX2 | CPU_AVX512)));
#endif
    EXPECT((f == 0) == (strcmp(cpu_feature_names(), "none") == 0));
    EXPECT(cpu_count() >= 1);
}
