/* err.h - how errors are reported.
 *
 * A function that can fail because of files, memory or devices takes `struct err *` as its last
 * parameter and returns a negative sluice_status. The text is set once, where it is known, and
 * says what, what was found and what was expected. Our own mistakes are CHECKs. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include "base/machine.h"
#include "sluice.h"

struct err {
    int code;       /* an enum sluice_status */
    char text[512]; /* one line of UTF-8 without control characters, whatever the file held */
};

/* Sets code and text, returns code. `err` may be NULL: then only the code is returned. */
int err_set(struct err *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Sets SLUICE_ERR_MEMORY, naming what the memory was for. */
int err_memory(struct err *err, const char *what);

/* Puts "prefix: " before the text that is already there, and returns the code. */
int err_prefix(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Names and values from hostile files end up in messages, and those on terminals: every byte that
 * is not part of printable UTF-8 becomes '?'. */
void err_make_printable(char *text);

/* A broken promise of our own: says where, and aborts. Kept in release builds. */
#define CHECK(cond) ((cond) ? (void)0 : check_failed(#cond, __FILE__, __LINE__))
_Noreturn void check_failed(const char *cond, const char *file, int line);

#endif
