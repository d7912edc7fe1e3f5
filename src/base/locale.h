/* locale.h - numbers as in the locale "C", whatever the program has set.
 *
 * A program that embeds the library may have called setlocale: then printf writes 0,5, strtod stops
 * at the point of 0.5, and strftime and strcasecmp have the months and letters of a country. In the
 * library these functions stand in for them (tools/check_locale.sh), and letters that are compared
 * without case are ASCII's (str_is_caseless). Threads have a locale each, so others notice nothing.
 */
#ifndef BASE_LOCALE_H
#define BASE_LOCALE_H

#include <locale.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

/* The calling thread has the locale "C" until locale_leave, which takes what locale_enter returned.
 */
locale_t locale_enter(void);
void locale_leave(locale_t before);

/* In place of snprintf, vsnprintf, strtod, strftime and strerror, which speaks the user's language.
 */
int locale_print(char *out, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int locale_vprint(char *out, size_t size, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
double locale_number(const char *text);
const char *locale_error(int number);
size_t locale_time(char *out, size_t size, const char *format, const struct tm *time);

#endif
