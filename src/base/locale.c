/* locale.c - see locale.h. */
#include "base/locale.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static locale_t plain; /* 0 if it could not be made: then nothing is changed */

static void make_plain(void) {
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

static locale_t get_plain(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_plain);
    return plain;
}

locale_t locale_enter(void) {
    return uselocale(get_plain());
}

void locale_leave(locale_t before) {
    uselocale(before);
}

int locale_vprint(char *out, size_t size, const char *format, va_list args) {
    locale_t before = locale_enter();
    int n = vsnprintf(out, size, format, args);
    locale_leave(before);
    return n;
}

int locale_print(char *out, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = locale_vprint(out, size, format, args);
    va_end(args);
    return n;
}

double locale_number(const char *text) {
    locale_t before = locale_enter();
    double x = strtod(text, NULL);
    locale_leave(before);
    return x;
}

const char *locale_error(int number) {
    return get_plain() ? strerror_l(number, plain) : strerror(number);
}

size_t locale_time(char *out, size_t size, const char *format, const struct tm *time) {
    locale_t before = locale_enter();
    size_t n = strftime(out, size, format, time);
    locale_leave(before);
    return n;
}
