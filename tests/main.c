/* main.c - runs the tests: all, or those whose names contain one of the arguments, or are one after
 * "=" (=cuda_attend). */
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "test.h"

static struct test *tests;
static const char *running; /* the test that runs, or NULL */
static bool has_failed, is_skipped;

void test_register(struct test *t) {
    struct test **at = &tests; /* sorted, so that the order does not hang on the linker */
    while (*at && (strcmp((*at)->file, t->file) < 0 ||
                   (strcmp((*at)->file, t->file) == 0 && strcmp((*at)->name, t->name) < 0)))
        at = &(*at)->next;
    t->next = *at;
    *at = t;
}

void test_fail(const char *file, int line, const char *format, ...) {
    if (has_failed)
        return;
    has_failed = true;
    printf("FAILED %s:%d: ", file, line);
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf(" (%s)\n", running);
    fflush(stdout);
}

bool test_has_failed(void) {
    return has_failed;
}

void test_skip(const char *format, ...) {
    is_skipped = true;
    va_list args;
    va_start(args, format);
    printf("skipped: ");
    vprintf(format, args);
    va_end(args);
    printf(" (%s)\n", running);
}

void test_note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

static const char *path_in(const char *variable, const char *folder, const char *name) {
    static char ring[8][512];
    static int next;
    char *out = ring[next++ & 7];
    const char *base = getenv(variable);
    snprintf(out, sizeof ring[0], "%s/%s", base ? base : folder, name);
    return out;
}

/* What another copy of the data lacks is taken from ours. */
const char *test_data(const char *name) {
    const char *path = path_in("SLUICE_TEST_DATA", "build/data", name);
    return access(path, F_OK) == 0 ? path : path_in("", "build/data", name);
}

const char *test_temporary(const char *name) {
    char unique[256];
    mkdir("build", 0777);
    mkdir("build/tmp", 0777);
    snprintf(unique, sizeof unique, "%ld-%s", (long)getpid(), name);
    const char *path = path_in("SLUICE_TEST_TMP", "build/tmp", unique);
    unlink(path);
    return path;
}

char *test_read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    char *data = NULL;
    long n = -1;
    if (f && fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && (data = malloc((size_t)n + 1))) {
        rewind(f);
        *size = fread(data, 1, (size_t)n, f);
        data[*size] = 0;
    }
    if (!data)
        test_fail(__FILE__, __LINE__, "cannot read %s", path);
    if (f)
        fclose(f);
    return data;
}

/* A test that kills the program is named too. Only calls that are safe in a signal handler. */
static void name_the_dead(void) {
    static const char before[] = "\nFAILED ", after[] = ": died\n";
    if (!running)
        return;
    ssize_t n = write(1, before, sizeof before - 1);
    n += write(1, running, strlen(running));
    n += write(1, after, sizeof after - 1);
    (void)n;
}

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
void __sanitizer_set_death_callback(void (*callback)(void));
void __ubsan_on_report(void);
void __ubsan_on_report(void) {
    name_the_dead();
}

static void name_deaths(void) {
    __sanitizer_set_death_callback(name_the_dead);
}
#else
static void die(int signal_number) {
    name_the_dead();
    raise(signal_number); /* the default action, after SA_RESETHAND */
}

static void name_deaths(void) {
    static const int deadly[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM};
    for (size_t i = 0; i < sizeof deadly / sizeof *deadly; i++)
        sigaction(deadly[i], &(struct sigaction){.sa_handler = die, .sa_flags = (int)SA_RESETHAND},
                  NULL);
}
#endif

/* A page that knows the size, the memory at the end of its own, and the page that cannot be
 * touched. */
void *test_guarded(size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size + page - 1) / page * page;
    uint8_t *at =
        mmap(NULL, bytes + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + page + bytes, page, PROT_NONE) != 0)
        abort();
    memcpy(at, &bytes, sizeof bytes);
    return at + page + bytes - size;
}

void test_guarded_free(const void *memory) {
    if (!memory)
        return;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes;
    uint8_t *at = (uint8_t *)((uintptr_t)memory / page * page) - page;
    memcpy(&bytes, at, sizeof bytes);
    munmap(at, bytes + 2 * page);
}

/* Arguments: a part of a name, =the whole name, or -a part of names that are left out. */
static bool is_wanted(const char *name, int argc, char **argv) {
    bool has_words = false, is_named = false;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && strstr(name, argv[i] + 1))
            return false;
        has_words |= argv[i][0] != '-';
        is_named |= argv[i][0] == '=' ? strcmp(name, argv[i] + 1) == 0
                                      : argv[i][0] != '-' && strstr(name, argv[i]) != NULL;
    }
    return is_named || !has_words;
}

int main(int argc, char **argv) {
    int passed = 0, failed = 0, skipped = 0;
    name_deaths();
    if (getenv("SLUICE_TEST_LOCALE") && !setlocale(LC_ALL, getenv("SLUICE_TEST_LOCALE"))) {
        printf("FAILED: there is no locale %s\n", getenv("SLUICE_TEST_LOCALE"));
        return 1;
    }
    for (struct test *t = tests; t; t = t->next) {
        if (!is_wanted(t->name, argc, argv))
            continue;
        has_failed = is_skipped = false;
        clock_t started = clock();
        running = t->name;
        t->run();
        running = NULL;
        if (getenv("TIMES")) {
            printf("%7.2f s %s\n", (double)(clock() - started) / CLOCKS_PER_SEC, t->name);
            fflush(stdout);
        }
        failed += has_failed;
        skipped += !has_failed && is_skipped;
        passed += !has_failed && !is_skipped;
    }
    printf("%d passed, %d failed", passed, failed);
    printf(skipped ? ", %d skipped\n" : "\n", skipped);
    return failed || passed + skipped == 0; /* nothing run is no success */
}
