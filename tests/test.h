/* test.h - the test runner.
 *
 * TEST(name) { ... } defines a test; it needs no registration. EXPECT and the like note a failure
 * and go on; the test's first failure is printed as one line. tests/main.c runs them all, or those
 * whose names contain an argument. */
#ifndef TEST_H
#define TEST_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test {
    const char *name, *file;
    void (*run)(void);
    struct test *next;
};

void test_register(struct test *t);
/* Notes a failure of the running test. */
void test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool test_has_failed(void); /* the test that runs */
/* Counts the running test as skipped, with a reason: it is not counted as passed. */
void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* One line that is always printed: how much a test found to run, or a figure to keep. */
void test_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The path of a file of tests/data (unpacked into build/data). Static ring of 8. */
const char *test_data(const char *name);
/* A fresh path in build/tmp for a file that the test writes. Static ring of 8. */
const char *test_temporary(const char *name);
/* A whole file; fails the test and returns NULL when it is not there. free() it. A zero byte
 * follows the end. */
char *test_read_file(const char *path, size_t *size);
/* Memory whose last byte is before a page that cannot be touched, so that a read after the end
 * crashes without a sanitizer, too. Aligned as far as its size is a multiple. */
void *test_guarded(size_t size);
void test_guarded_free(const void *memory); /* NULL is fine */

#define TEST(id)                                                                                   \
    static void id(void);                                                                          \
    __attribute__((constructor)) static void register_##id(void) {                                 \
        static struct test t = {#id, __FILE__, id, NULL};                                          \
        test_register(&t);                                                                         \
    }                                                                                              \
    static void id(void)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_IS_SLOW_BUILD 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_IS_SLOW_BUILD 1
#endif
#endif
#ifndef TEST_IS_SLOW_BUILD
#define TEST_IS_SLOW_BUILD 0
#endif

/* Sanitizers, and a machine that is emulated (tests/run.sh says so), get smaller texts and models:
 * the release's tests have the others. */
static inline bool test_is_slow(void) {
    return TEST_IS_SLOW_BUILD || getenv("SLUICE_TEST_SHORT");
}

#define EXPECT(cond) ((cond) ? (void)0 : test_fail(__FILE__, __LINE__, "%s", #cond))

#define EXPECT_INT(found, expected)                                                                \
    do {                                                                                           \
        long long found_ = (long long)(found), expected_ = (long long)(expected);                  \
        if (found_ != expected_)                                                                   \
            test_fail(__FILE__, __LINE__, "%s is %lld, expected %lld", #found, found_, expected_); \
    } while (0)

#define EXPECT_NEAR(found, expected, tolerance)                                                    \
    do {                                                                                           \
        double found_ = (found), expected_ = (expected);                                           \
        if (!(fabs(found_ - expected_) <= (tolerance)))                                            \
            test_fail(__FILE__, __LINE__, "%s is %.9g, expected %.9g", #found, found_, expected_); \
    } while (0)

#define EXPECT_STR(found, expected)                                                                \
    do {                                                                                           \
        const char *found_ = (found), *expected_ = (expected);                                     \
        if (strcmp(found_, expected_) != 0)                                                        \
            test_fail(__FILE__, __LINE__, "%s is \"%s\", expected \"%s\"", #found, found_,         \
                      expected_);                                                                  \
    } while (0)

#endif
